"""Projection, selection and computed columns: chains of them become a few compiled expressions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from handshake.errors import SchemaError
from handshake.kernels.evaluate import Evaluator
from handshake.kernels.texts import rows_equal
from handshake.plan.algebra import Apply, Node, Project, Select, reads
from handshake.plan.assemble import fused
from handshake.plan.expr import Column, Compare, Expr, Literal, conjuncts, walk
from handshake.queries.chunk import Array, Chunk, fit
from handshake.schema import Field, Type, arrow_of, type_from_arrow

__all__ = ["Pipeline", "chain"]

_SIMPLE = (Project, Select, Apply)


def chain(node: Node) -> tuple[Node, list[Node]]:
    """The plan below a chain of Project, Select and Apply, and these, first applied first."""
    above: list[Node] = []
    while isinstance(node, _SIMPLE):
        above.append(node)
        node = node.input
    return node, above[::-1]


@dataclass(frozen=True)
class _Let:
    """Compute a column that is read more than once."""

    column: Column
    expr: Expr
    type: Type

    @cached_property
    def compute(self) -> Evaluator:
        return Evaluator(self.expr)


@dataclass(frozen=True)
class _Keep:
    """Keep tuples for which a condition holds, and of them the columns that are read later."""

    condition: Expr
    columns: tuple[str, ...]

    def where(self, arrays: dict[Column, pa.Array], rows: int) -> Array:
        """The rows for which it holds."""
        match self.condition:
            case Compare(op="=", left=Column() as column, right=Literal(value=str() as text)):
                found = rows_equal(arrays[column], text.encode())
                if found is not None:
                    return found
        return _where(self._compute(arrays, rows))

    @cached_property
    def _compute(self) -> Evaluator:
        return Evaluator(self.condition)


@dataclass(frozen=True)
class _Result:
    name: str
    expr: Expr
    type: Type

    @cached_property
    def compute(self) -> Evaluator:
        return Evaluator(self.expr)


class Pipeline:
    """A compiled chain: columns in, columns out, and which rows they are."""

    def __init__(self, fields: tuple[Field, ...], nodes: list[Node]) -> None:
        self._columns = {f.name: _held(f.name, f.type) for f in fields}
        self._steps: list[_Let | _Keep] = []
        self._compile({**self._columns}, {f.name: f.type for f in fields}, nodes)
        self._prune()

    def _compile(self, known: dict[str, Expr], types: dict[str, Type], nodes: list[Node]) -> None:
        uses = _uses(nodes)
        for node in nodes:
            match node:
                case Apply(name=name, operation=operation, type=kind):
                    known[name], types[name] = fused(operation, known), kind
                    if uses[name] > 1 and not isinstance(known[name], (Column, Literal)) and _holds(kind):
                        known[name] = self._let(name, known[name], kind)
                case Select(field=field):
                    self._steps += [_Keep(part, ()) for part in conjuncts(known[field])]
                case Project(columns=columns):
                    known = {new: known[old] for new, old in columns}
                    types = {new: types[old] for new, old in columns}
        self._results = [_Result(name, expr, types[name]) for name, expr in known.items()]

    def _let(self, name: str, expr: Expr, kind: Type) -> Column:
        column = _held(f"\0{len(self._steps)}.{name}", kind)
        self._steps.append(_Let(column, expr, kind))
        return column

    def _prune(self) -> None:
        """From the end to the start: what is read later is kept when tuples are dropped."""
        needed = {name for result in self._results for name in _names(result.expr)}
        steps: list[_Let | _Keep] = []
        for step in reversed(self._steps):
            if isinstance(step, _Keep):
                steps.append(_Keep(step.condition, tuple(sorted(needed))))
                needed |= _names(step.condition)
            elif step.column.name in needed:
                steps.append(step)
                needed |= _names(step.expr)
        self._steps = steps[::-1]
        self._needed = needed

    @property
    def keeps_all(self) -> bool:
        """Whether no tuple is dropped."""
        return not any(isinstance(step, _Keep) for step in self._steps)

    def run(self, columns: dict[str, pa.Array], rows: int) -> tuple[dict[str, pa.Array], int, Array | None]:
        """Columns of the results, their number, and which rows of the input they are (None: all)."""
        held = {name: columns[name] for name in self._needed if name in columns}
        arrays = {self._columns[name]: array for name, array in held.items()}
        places: Array | None = None
        for step in self._steps:
            if isinstance(step, _Let):
                value = fit(step.compute(arrays, rows), step.type, step.column.name)
                arrays[step.column] = value
                continue
            found = step.where(arrays, rows)
            places = found if places is None else places[found]
            if len(found) < rows:
                picked = pa.array(found)
                arrays = {c: a.take(picked) for c, a in arrays.items() if c.name in step.columns}
                rows = len(found)
        results = {r.name: fit(r.compute(arrays, rows), r.type, r.name) for r in self._results}
        return results, rows, places

    def apply(self, chunk: Chunk) -> Chunk:
        """The chain on a chunk, stamps included."""
        columns, rows, places = self.run(chunk.columns, chunk.rows)
        if places is None:
            return chunk.with_columns(columns)
        stamps = (None if stamp is None else stamp[places] for stamp in chunk.stamps)
        return Chunk(columns, rows, *stamps)


def _where(condition: pa.Array) -> Array:
    mask = condition.fill_null(False) if condition.null_count else condition
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _uses(nodes: list[Node]) -> Counter[str]:
    """How often each column is read."""
    uses: Counter[str] = Counter()
    for node in nodes:
        match node:
            case Apply(operation=operation):
                uses.update(reads(operation))
            case Select(field=field):
                uses[field] += 1
            case Project(columns=columns):
                uses.update(old for _, old in columns)
    return uses


def _names(expr: Expr) -> set[str]:
    return {e.name for e in walk(expr) if isinstance(e, Column)}


def _held(name: str, kind: Type) -> Column:
    """A column as it is in memory, where whole numbers of odd widths have the next one up."""
    return Column(0, name, type=type_from_arrow(arrow_of(kind)))


def _holds(kind: Type) -> bool:
    """Whether values of a type can be put into a column."""
    try:
        arrow_of(kind)
    except SchemaError:
        return False
    return True
