"""Panes made inside of Spark's own process, so that of a partition's tuples Python gets a few aggregates.

Spark computes conditions, keys and what is aggregated, as plain numbers; `PaneMaker.java` does the rest. All
of it is exact: what Spark or Java would compute otherwise than the in-process engine is left to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType, _parse_datatype_string

from handshake.engines.spark.expressions import native
from handshake.engines.spark.jvm.classes import java_array, java_class, rows_of
from handshake.engines.spark.jvm.pane_blobs import width_of
from handshake.engines.spark.queries.inputs import quoted
from handshake.engines.spark.queries.panes import SharedPanes
from handshake.engines.spark.queries.selections import Chained, windows_by_panes
from handshake.operators.aggregates import Additive, Extreme
from handshake.operators.pipeline import chain
from handshake.operators.windows import Spans
from handshake.plan.aggregates import BOUNDS
from handshake.plan.algebra import Aggregate, Output, Source
from handshake.plan.expr import Column as Named
from handshake.plan.expr import Expr
from handshake.plan.panes import PaneShape
from handshake.schema import UNITS, Binary, Bool, Date, Decimal, Float, Int, String, Timestamp, Type, arrow_of

__all__ = ["JavaPanes", "java_panes"]

_FARTHEST = 2**62
_COUNT, _SUM, _WIDE, _FLOATS, _DECIMALS, _GREATEST, _LEAST = range(7)
"""The numbers that PaneMaker.java has for aggregates."""


@dataclass
class JavaPanes:
    """What PaneMaker.java is told, and the columns that its rows have."""

    spans: Spans
    columns: list[Column]
    below: int = -1
    inside: int = -1
    keys: list[int] | None = None
    texts: list[bool] = field(default_factory=list)
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each aggregate: its number, its column (-1: none), and how many whole numbers it takes."""

    def place(self, column: Column) -> int:
        """The place of one more column."""
        self.columns.append(column)
        return len(self.columns) - 1

    def frame(self, given: DataFrame, kind: str) -> DataFrame:
        """The panes of each partition as a blob."""
        context = given.sparkSession.sparkContext
        jvm: Any = context._jvm
        rows = given.select(*(column.alias(f"c{place}") for place, column in enumerate(self.columns)))

        def whole(values: list[int]) -> Any:
            return java_array(context, jvm.int, values)

        longs = [jvm.java.lang.Long(value) for value in (self.spans.size, self.spans.advance)]
        keys = None if self.keys is None else whole(self.keys)
        texts = java_array(context, jvm.boolean, self.texts)
        numbers = [whole([part[k] for part in self.parts]) for k in range(3)]
        arguments = [*longs, self.below, self.inside, keys, texts, *numbers]
        schema = _parse_datatype_string(kind)
        assert isinstance(schema, StructType)
        return rows_of(rows, "PaneMaker", arguments, schema)


def java_panes(output: Output, frame: DataFrame) -> JavaPanes | None:
    """Windows on an input as Java is to make their panes; None where Python does."""
    window, source, between, shape = windows_by_panes(output)
    if java_class(frame.sparkSession, "PaneMaker") is None:
        return None
    unit = UNITS[window.clock.unit]
    spans = Spans(window.window.size // unit, window.window.advance // unit)
    try:
        values = _Values(frame, source)
        made = JavaPanes(spans, [values.time()])
        _, before = chain(shape.before)
        below, inside = Chained.of(source, between), Chained.of(source, [*between, *before])
        made.below = _condition(made, values, below.conditions)
        made.inside = _condition(made, values, inside.conditions[len(below.conditions) :])
        _group(made, values, shape, inside.known)
        aggregates = (a for a in shape.aggregates if a.function not in BOUNDS)
        for aggregate, part in zip(aggregates, SharedPanes(window, shape).parts, strict=True):
            made.parts.append((*_part(made, values, aggregate, part, inside.known), width_of(part)))
    except _NotInJava:
        return None
    return made if max(spans.size, spans.advance) < _FARTHEST else None


class _NotInJava(Exception):
    """Python makes the panes."""


def _condition(made: JavaPanes, values: _Values, conditions: list[Expr]) -> int:
    if not conditions:
        return -1
    holds = reduce(lambda a, b: a & b, [values.native(condition) for condition in conditions])
    return made.place(F.coalesce(holds, F.lit(False)))


def _group(made: JavaPanes, values: _Values, shape: PaneShape, known: dict[str, Expr]) -> None:
    if shape.keys is None:
        return
    made.keys = []
    for key in shape.keys:
        kind = shape.before.schema.get(key).type
        made.texts.append(isinstance(kind, (String, Binary)))
        column = values.native(known[key]).cast("binary") if made.texts[-1] else values.key(known[key], kind)
        made.keys.append(made.place(column))


def _part(
    made: JavaPanes, values: _Values, aggregate: Aggregate, part: Additive | Extreme, known: dict[str, Expr]
) -> tuple[int, int]:
    """An aggregate's number and column."""
    if aggregate.field is None:
        return _COUNT, -1
    kind, expr = aggregate.input.schema.get(aggregate.field).type, known[aggregate.field]
    if aggregate.function == "count":
        return _COUNT, made.place(F.when(values.native(expr).isNotNull(), F.lit(True)))
    python_keys = (
        isinstance(part, Extreme) and not part.compiled
    )  # texts, and decimals of more than 18 digits
    if aggregate.function not in _FORMS or python_keys:
        raise _NotInJava
    return _FORMS[aggregate.function](kind), made.place(values.number(expr, kind))


def _sum(kind: Type) -> int:
    if isinstance(kind, Float):
        return _FLOATS
    if isinstance(kind, Decimal):
        return _DECIMALS
    return _WIDE if arrow_of(kind).bit_width == 64 else _SUM


_FORMS: dict[str, Callable[[Type], int]] = {
    "sum": _sum,
    "avg": _sum,
    "min": lambda kind: _LEAST,
    "max": lambda kind: _GREATEST,
}
"""Aggregates of a column that Java computes, besides count; Python computes the others."""


@dataclass(frozen=True)
class _Values:
    """An input's columns, and what is computed of them, as longs, doubles and decimals."""

    frame: DataFrame
    source: Source

    def native(self, expr: Expr) -> Column:
        """What has a value that Spark computes as the in-process engine does."""
        known = dict(zip(self.frame.columns, quoted(self.frame.columns), strict=True))
        found = native(expr, known)
        if found is None:
            raise _NotInJava
        return found

    def time(self) -> Column:
        """The times of tuples, in units of their clock."""
        name = str(self.source.time)
        kind = self.source.fields.get(name).type
        if not isinstance(kind, (Int, Timestamp)):
            raise _NotInJava
        return self.whole(Named(0, name, type=kind), kind)

    def whole(self, expr: Expr, kind: Type) -> Column:
        """What is a whole number of 64 bits in Arrow, as one."""
        match kind:
            case Int() if kind.bits - kind.signed <= 63 and kind.bits <= 64:
                return self.native(expr).cast("long")
            case Bool():
                return self.native(expr).cast("long")
            case Date():
                return F.unix_date(self.native(expr)).cast("long")
            case Timestamp(unit="us" | "ms" | "s") if isinstance(expr, Named):
                return _in_units(self._micros(expr), expr.name, kind.unit)
        raise _NotInJava

    def _micros(self, expr: Named) -> Column:
        """Microseconds, of an instant or of a clock's reading."""
        if isinstance(self.frame.schema[expr.name].dataType, TimestampType):
            return F.unix_micros(self.native(expr))
        return F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', `{expr.name}`)")

    def key(self, expr: Expr, kind: Type) -> Column:
        """Whole numbers, and floats as doubles."""
        return self.native(expr).cast("double") if isinstance(kind, Float) else self.whole(expr, kind)

    def number(self, expr: Expr, kind: Type) -> Column:
        """Decimals too."""
        return self.native(expr) if isinstance(kind, Decimal) else self.key(expr, kind)


def _in_units(micros: Column, name: str, unit: str) -> Column:
    """Microseconds in a coarser unit; it is an error if that loses some, as it is with Arrow."""
    each = UNITS[unit] // UNITS["us"]
    if each == 1:
        return micros
    wanted = "seconds" if unit == "s" else "milliseconds"
    told = F.format_string(
        f"a time in column '{name}' is %d us, which is no whole number of {wanted}", micros
    )
    whole = F.call_function("div", micros, F.lit(each))
    return F.when(micros % each != 0, F.raise_error(told)).otherwise(whole)
