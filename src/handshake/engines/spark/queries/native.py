"""Projections, filters and computed columns that Spark's own operators evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame

from handshake.engines.spark.queries.expressions import native, quote_names
from handshake.engines.spark.queries.panes import PaneWindow
from handshake.engines.spark.types import carrier_schema, spark_schema
from handshake.plan.algebra import Apply, Node, Output, Parameter, Project, Select, Source, chain, rebuild
from handshake.plan.assemble import substitute
from handshake.plan.expr import Column, Expr, conjuncts
from handshake.schema import BOOL, Field, Schema

_HOLDS = "\0holds"


@dataclass(frozen=True)
class _Chain:
    """A chain of simple nodes as expressions over the columns below it."""

    values: dict[str, Expr]
    conditions: list[Expr]

    @classmethod
    def of(cls, below: Schema, nodes: list[Node]) -> _Chain:
        values: dict[str, Expr] = {f.name: Column(0, f.name, type=f.type) for f in below}
        conditions: list[Expr] = []
        for node in nodes:
            match node:
                case Apply(name=name, operation=operation):
                    values[name] = substitute(operation, values)
                case Select(field=field):
                    conditions += conjuncts(values[field])
                case Project(columns=kept):
                    values = {new: values[old] for new, old in kept}
        return cls(values, conditions)

    def plain_columns(self, names: tuple[str, ...]) -> set[str] | None:
        """Return these columns if all of them are the columns of the same name below; else None."""
        same = {n for n in names if isinstance(v := self.values[n], Column) and v.name == n}
        return same if len(same) == len(set(names)) else None


def _evaluate(expressions: Iterable[Expr], columns: Sequence[str]) -> list[SparkColumn] | None:
    """Return Spark columns with the values of the expressions; None if Spark computes one differently."""
    known = dict(zip(columns, quote_names(columns), strict=True))
    found = [native(expr, known) for expr in expressions]
    values = [column for column in found if column is not None]
    return values if len(values) == len(found) else None


def native_chain(frame: DataFrame, below: Schema, nodes: list[Node], result: Schema) -> DataFrame | None:
    """Run a chain of nodes on a DataFrame; None if Spark would compute other values."""
    found = _Chain.of(below, nodes)
    conditions = _evaluate(found.conditions, below.names)
    values = _evaluate([found.values[f.name] for f in result], below.names)
    if conditions is None or values is None:
        return None
    kinds = spark_schema(carrier_schema(result))
    for condition in conditions:
        frame = frame.where(condition)
    return frame.select(
        *(
            value.cast(kind.dataType).alias(field.name)
            for value, kind, field in zip(values, kinds, result, strict=True)
        )
    )


# Filters below windows


@dataclass(frozen=True)
class SparkFilter:
    """Windows on tuples with a column that says whether they pass the filter, which Spark evaluates.

    All tuples still go to Python: tuples that do not pass also advance the clock and open windows. But the
    columns that only the filter reads stay behind.
    """

    output: Output
    source: Source
    conditions: tuple[Expr, ...]

    def frame(self, given: DataFrame) -> DataFrame | None:
        """Add the column to the tuples of the input; None if Spark would compute other values."""
        parts = _evaluate(self.conditions, given.columns)
        if parts is None:
            return None
        holds = reduce(lambda a, b: a & b, parts).alias(_HOLDS)
        return given.select(*quote_names(self.source.fields.names[:-1]), holds)


def spark_filter(output: Output) -> SparkFilter | None:
    """Rewrite a window with a filter on plain columns, below it or as its first step; None if it has none."""
    found = PaneWindow.of(output)
    assert found is not None
    window, source, shape = found.window, found.source, found.shape
    below = _Chain.of(source.fields, found.below)
    if below.conditions:
        narrow = _narrow(source, below.plain_columns(window.input.schema.names))
        if narrow is None:
            return None
        return _rewrite(output, found, narrow, replace(window, input=Select(narrow, _HOLDS)), below)
    parameter, before = chain(shape.before)
    inside = _Chain.of(source.fields, [*found.below, *before])
    used = (*(shape.keys or ()), *(name for each in shape.aggregates for name in each.reads))
    narrow = _narrow(source, inside.plain_columns(used))
    if not inside.conditions or narrow is None or not isinstance(parameter, Parameter):
        return None
    first = Select(replace(parameter, fields=narrow.fields), _HOLDS)
    body = rebuild(window.body, lambda here: first if here == shape.before else here)
    return _rewrite(output, found, narrow, replace(window, input=narrow, body=body), inside)


def _narrow(source: Source, names: set[str] | None) -> Source | None:
    """Return the source with these columns, its time and the result of the filter."""
    if names is None or source.time is None:
        return None
    kept = tuple(f for f in source.fields if f.name in names or f.name == source.time)
    return replace(source, fields=replace(source.fields, fields=(*kept, Field(_HOLDS, BOOL))))


def _rewrite(
    output: Output, found: PaneWindow, source: Source, window: Node, filtered: _Chain
) -> SparkFilter:
    whole = rebuild(output, lambda here: window if here == found.window else here)
    assert isinstance(whole, Output)
    return SparkFilter(whole, source, tuple(filtered.conditions))
