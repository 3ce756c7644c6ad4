"""Conditions below windows, computed by Spark: Python then gets whether they hold, and not what they read.

All tuples go to Python all the same: those that are not selected move the clock, and make windows be there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame

from handshake.engines.spark.expressions import native
from handshake.engines.spark.queries.inputs import quoted
from handshake.operators.pipeline import chain
from handshake.plan.algebra import Apply, Node, Output, Parameter, Project, Select, Source, Windowing, rebuild
from handshake.plan.assemble import substitute
from handshake.plan.expr import Column, Expr, conjuncts
from handshake.plan.panes import PaneShape, pane_shape
from handshake.schema import BOOL, Field

__all__ = ["Chained", "Selected", "selected", "windows_by_panes"]

_HOLDS = "\0holds"


@dataclass(frozen=True)
class Selected:
    """The same windows on tuples that say themselves whether they are selected."""

    output: Output
    source: Source
    conditions: tuple[Expr, ...]

    def frame(self, given: DataFrame) -> DataFrame | None:
        """The tuples, from those of the input; None where Spark would not compute the same."""
        known = dict(zip(given.columns, quoted(given.columns), strict=True))
        parts = [part for condition in self.conditions if (part := native(condition, known)) is not None]
        if len(parts) < len(self.conditions):
            return None
        holds = reduce(lambda a, b: a & b, parts).alias(_HOLDS)
        return given.select(*quoted(self.source.fields.names[:-1]), holds)


def windows_by_panes(output: Output) -> tuple[Windowing, Source, list[Node], PaneShape]:
    """The windows of a result that panes will do for, the input, what lies between, and what is computed."""
    window, _ = chain(output.input)
    assert isinstance(window, Windowing)
    source, between = chain(window.input)
    shape = pane_shape(window.body, window.parameter)
    assert isinstance(source, Source)
    assert shape is not None
    return window, source, between, shape


def selected(output: Output) -> Selected | None:
    """Windows with a condition on plain columns below them, or inside of them before all else."""
    window, source, between, shape = windows_by_panes(output)
    below = Chained.of(source, between)
    if below.conditions:
        made = _narrowed(source, below.columns(window.input.schema.names))
        return None if made is None else _with(output, window, Select(made, _HOLDS), window.body, below)
    parameter, before = chain(shape.before)
    inside = Chained.of(source, [*between, *before])
    made = _narrowed(source, inside.columns(_read(shape)))
    if not inside.conditions or made is None or not isinstance(parameter, Parameter):
        return None
    taken = Select(replace(parameter, fields=made.fields), _HOLDS)
    body = rebuild(window.body, lambda here: taken if here == shape.before else here)
    return _with(output, window, made, body, inside)


def _read(shape: PaneShape) -> tuple[str, ...]:
    """What aggregates need of a tuple."""
    fields = (aggregate.field for aggregate in shape.aggregates)
    return (*(shape.keys or ()), *(name for name in fields if name is not None))


def _with(output: Output, window: Windowing, below: Node, body: Node, found: Chained) -> Selected:
    source, _ = chain(below)
    assert isinstance(source, Source)
    made = replace(window, input=below, body=body)
    whole = rebuild(output, lambda here: made if here == window else here)
    assert isinstance(whole, Output)
    return Selected(whole, source, tuple(found.conditions))


def _narrowed(source: Source, names: set[str] | None) -> Source | None:
    """The input with these columns, its times, and what Spark has found out."""
    if names is None or source.time is None:
        return None
    kept = tuple(f for f in source.fields if f.name in names or f.name == source.time)
    return replace(source, fields=replace(source.fields, fields=(*kept, Field(_HOLDS, BOOL))))


@dataclass(frozen=True)
class Chained:
    """What a chain of simple nodes makes of an input's columns, and which tuples it keeps."""

    known: dict[str, Expr]
    conditions: list[Expr]

    @classmethod
    def of(cls, source: Source, nodes: list[Node]) -> Chained:
        known: dict[str, Expr] = {f.name: Column(0, f.name, type=f.type) for f in source.fields}
        conditions: list[Expr] = []
        for node in nodes:
            match node:
                case Apply(name=name, operation=operation):
                    known[name] = substitute(operation, known)
                case Select(field=field):
                    conditions += conjuncts(known[field])
                case Project(columns=kept):
                    known = {new: known[old] for new, old in kept}
        return cls(known, conditions)

    def columns(self, names: tuple[str, ...]) -> set[str] | None:
        """These columns, if they are the input's own, by their own names."""
        plain = {name for name in names if isinstance(self.known[name], Column)}
        same = {name for name in plain if self.known[name].name == name}  # type: ignore[attr-defined]
        return same if len(same) == len(set(names)) else None
