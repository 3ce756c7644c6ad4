"""Projection, selection and computed columns: chains of them become a few compiled expressions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pyarrow as pa

from handshake.errors import SchemaError
from handshake.kernels.evaluate import Evaluator
from handshake.operators.chunk import Array, Chunk, fit
from handshake.operators.filters import Condition
from handshake.plan.algebra import Apply, Node, Project, Select, reads
from handshake.plan.assemble import substitute
from handshake.plan.expr import Column, Expr, Literal, conjuncts, walk
from handshake.schema import Decimal, Field, Int, Type, arrow_of, type_from_arrow

__all__ = ["Pipeline", "chain"]

_SIMPLE = (Project, Select, Apply)


def chain(node: Node) -> tuple[Node, list[Node]]:
    """Return the plan below a chain of Project, Select and Apply, and the chain, first applied first."""
    above: list[Node] = []
    while isinstance(node, _SIMPLE):
        above.append(node)
        node = node.input
    return node, above[::-1]


@dataclass(frozen=True)
class _Step:
    """A step of a pipeline; saved state leaves out its cached properties."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class _Value(_Step):
    """Compute a column."""

    expr: Expr
    type: Type

    @cached_property
    def compute(self) -> Evaluator:
        return Evaluator(self.expr)

    @cached_property
    def reads(self) -> tuple[Column, ...]:
        return _columns(self.expr)


@dataclass(frozen=True)
class _Let(_Value):
    """One that is read more than once."""

    column: Column


@dataclass(frozen=True)
class _Result(_Value):
    name: str


@dataclass(frozen=True)
class _Keep(_Step):
    """Keep tuples for which a condition holds, and of them the columns that are read later."""

    condition: Expr
    columns: tuple[str, ...]

    @cached_property
    def search(self) -> Condition:
        return Condition(self.condition)

    @cached_property
    def reads(self) -> tuple[Column, ...]:
        return _columns(self.condition)


class Pipeline:
    """A compiled chain: columns in, columns out, and which rows they are."""

    def __init__(self, fields: tuple[Field, ...], nodes: list[Node]) -> None:
        self._columns = {f.name: _stored_column(f.name, f.type) for f in fields}
        self._steps: list[_Let | _Keep] = []
        self._compile({**self._columns}, {f.name: f.type for f in fields}, nodes)
        self._prune()

    def _compile(self, known: dict[str, Expr], types: dict[str, Type], nodes: list[Node]) -> None:
        uses = _uses(nodes)
        for node in nodes:
            match node:
                case Apply(name=name, operation=operation, type=kind):
                    known[name], types[name] = substitute(operation, known), kind
                    if uses[name] > 1 and not isinstance(known[name], (Column, Literal)) and _holds(kind):
                        known[name] = self._let(name, known[name], kind)
                case Select(field=field):
                    self._steps += [_Keep(part, ()) for part in conjuncts(known[field])]
                case Project(columns=columns):
                    known = {new: known[old] for new, old in columns}
                    types = {new: types[old] for new, old in columns}
        self._results = [_Result(expr, types[name], name) for name, expr in known.items()]

    def _let(self, name: str, expr: Expr, kind: Type) -> Column:
        column = _stored_column(f"\0{len(self._steps)}.{name}", kind)
        self._steps.append(_Let(expr, kind, column))
        return column

    def _prune(self) -> None:
        """Find the columns that later steps read, from the end to the start."""
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

    def run(self, columns: dict[str, pa.Array], rows: int) -> tuple[dict[str, pa.Array], int, Array | None]:
        """Return the result columns, their row count, and the input row of each (None: all rows)."""
        left = _Rows({self._columns[name]: columns[name] for name in self._needed if name in columns}, rows)
        for step in self._steps:
            if isinstance(step, _Let):
                value = step.compute(left.take(step.reads), left.count)
                left.add(step.column, fit(value, step.type, step.column.name))
            else:
                left.keep(step.search.where(left.take(step.reads), left.count), step.columns)
        results = {
            r.name: fit(r.compute(left.take(r.reads), left.count), r.type, r.name) for r in self._results
        }
        return results, left.count, left.places

    def apply(self, chunk: Chunk) -> Chunk:
        """Apply the chain to a chunk with its stamps."""
        columns, rows, places = self.run(chunk.columns, chunk.rows)
        if places is None:
            return chunk.with_columns(columns)
        stamps = (None if stamp is None else stamp[places] for stamp in chunk.stamps)
        return Chunk(columns, rows, *stamps)


class _Rows:
    """The remaining rows of a batch; input columns are filtered when they are read."""

    def __init__(self, inputs: dict[Column, pa.Array], count: int) -> None:
        self._inputs, self._ready = inputs, dict(inputs)
        self.count = count
        self.places: Array | None = None

    def take(self, columns: tuple[Column, ...]) -> dict[Column, pa.Array]:
        """Return columns of the remaining rows."""
        return {column: self._column(column) for column in columns}

    def _column(self, column: Column) -> pa.Array:
        if column not in self._ready:
            self._ready[column] = self._inputs[column].take(self._picked)
        return self._ready[column]

    def add(self, column: Column, values: pa.Array) -> None:
        """Add a computed column."""
        self._ready[column] = values

    def keep(self, found: Array, names: tuple[str, ...]) -> None:
        """Keep these rows, and the columns that are read later."""
        if len(found) == self.count:
            return
        here = {c: a for c, a in self._ready.items() if c.name in names}
        if self.places is None:  # what is still whole is picked when the last row to go is gone
            here = {c: a for c, a in here.items() if c not in self._inputs}
        self._ready = {column: array.take(pa.array(found)) for column, array in here.items()}
        self.places = found if self.places is None else self.places[found]
        self._picked = pa.array(self.places)
        self.count = len(found)


def _uses(nodes: list[Node]) -> Counter[str]:
    """Count how often each column is read."""
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


def _columns(expr: Expr) -> tuple[Column, ...]:
    return tuple(dict.fromkeys(e for e in walk(expr) if isinstance(e, Column)))


def _names(expr: Expr) -> set[str]:
    return {column.name for column in _columns(expr)}


def _stored_column(name: str, kind: Type) -> Column:
    """Return a column with its type in memory, where whole numbers have the next larger width.

    Beyond 64 bits that is a decimal: of no more digits than they need, so that sums of them are known to fit.
    """
    held = type_from_arrow(arrow_of(kind))
    if isinstance(kind, Int) and isinstance(held, Decimal):
        held = Decimal(min(held.precision, len(str(1 << kind.bits))), 0)
    return Column(0, name, type=held)


def _holds(kind: Type) -> bool:
    """Tell whether a column can hold values of a type."""
    try:
        arrow_of(kind)
    except SchemaError:
        return False
    return True
