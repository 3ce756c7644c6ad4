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
from handshake.operators.filters import Rows, RowSearch
from handshake.plan.algebra import Apply, Node, Project, Select, reads
from handshake.plan.assemble import substitute
from handshake.plan.expr import Column, Expr, Literal, columns_of, conjuncts
from handshake.schema import Decimal, Field, Int, Type, arrow_of, type_from_arrow


@dataclass(frozen=True)
class _Step:
    """A step of a pipeline; saved state leaves out its cached properties."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class _Value(_Step):
    """Compute a column: a result, or one that is read more than once."""

    expr: Expr
    type: Type

    name: str

    @cached_property
    def compute(self) -> Evaluator:
        return Evaluator(self.expr)

    @cached_property
    def reads(self) -> tuple[Column, ...]:
        return columns_of(self.expr)

    @cached_property
    def target(self) -> pa.DataType:
        return arrow_of(self.type)

    def of(self, rows: Rows) -> pa.Array:
        """Return the values in the rows."""
        if isinstance(self.expr, Column):
            values = rows[self.expr.name]
        else:
            values = self.compute({column: rows[column.name] for column in self.reads}, rows.count)
        return values if values.type == self.target else fit(values, self.type, self.name)


@dataclass(frozen=True)
class _Keep(_Step):
    """Keep tuples for which a condition holds, and of them the columns that are read later."""

    condition: Expr
    columns: tuple[str, ...]

    @cached_property
    def search(self) -> RowSearch:
        return RowSearch(self.condition)


class Pipeline:
    """A compiled chain: columns in, columns out, and which rows they are."""

    def __init__(self, fields: tuple[Field, ...], nodes: list[Node]) -> None:
        self._steps: list[_Value | _Keep] = []
        self._compile(
            {f.name: held_column(f.name, f.type) for f in fields}, {f.name: f.type for f in fields}, nodes
        )
        self._prune()

    def _compile(self, known: dict[str, Expr], types: dict[str, Type], nodes: list[Node]) -> None:
        uses = _uses(nodes)
        for node in nodes:
            match node:
                case Apply(name=name, operation=operation, type=kind):
                    known[name], types[name] = substitute(operation, known), kind
                    if uses[name] > 1 and not isinstance(known[name], (Column, Literal)) and _holds(kind):
                        column = held_column(f"\0{len(self._steps)}.{name}", kind)
                        self._steps.append(_Value(known[name], kind, column.name))
                        known[name] = column
                case Select(field=field):
                    self._steps += [_Keep(part, ()) for part in conjuncts(known[field])]
                case Project(columns=columns):
                    known = {new: known[old] for new, old in columns}
                    types = {new: types[old] for new, old in columns}
        self._results = [_Value(expr, types[name], name) for name, expr in known.items()]

    def _prune(self) -> None:
        """Find the columns that later steps read, from the end to the start."""
        needed = {name for result in self._results for name in _names(result.expr)}
        steps: list[_Value | _Keep] = []
        for step in reversed(self._steps):
            if isinstance(step, _Keep):
                steps.append(_Keep(step.condition, tuple(sorted(needed))))
                needed |= _names(step.condition)
            elif step.name in needed:
                steps.append(step)
                needed |= _names(step.expr)
        self._steps = steps[::-1]
        self.reads = frozenset(needed)
        """The names of the columns that it reads."""

    def run(self, columns: dict[str, pa.Array], rows: int) -> tuple[dict[str, pa.Array], int, Array | None]:
        """Return the result columns, their row count, and the input row of each (None: all rows)."""
        left = Rows(columns, rows)
        for step in self._steps:
            if isinstance(step, _Keep):
                left.keep(step.search.where(left), step.columns)
            else:
                left.add(step.name, step.of(left))
        return {result.name: result.of(left) for result in self._results}, left.count, left.places

    def apply(self, chunk: Chunk) -> Chunk:
        """Apply the chain to a chunk with its stamps."""
        columns, rows, places = self.run(chunk.columns, chunk.rows)
        if places is None:
            return chunk.with_columns(columns)
        stamps = (None if stamp is None else stamp[places] for stamp in chunk.stamps)
        return Chunk(columns, rows, *stamps)


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


def _names(expr: Expr) -> set[str]:
    return {column.name for column in columns_of(expr)}


def held_column(name: str, kind: Type, side: int = 0) -> Column:
    """Return a column with its type in memory, where whole numbers have the next larger width.

    Beyond 64 bits that is a decimal: of no more digits than they need, so that sums of them are known to fit.
    """
    held = type_from_arrow(arrow_of(kind))
    if isinstance(kind, Int) and isinstance(held, Decimal):
        held = Decimal(min(held.precision, len(str(1 << kind.bits))), 0)
    return Column(side, name, type=held)


def _holds(kind: Type) -> bool:
    """Return whether a column can hold values of a type."""
    try:
        arrow_of(kind)
    except SchemaError:
        return False
    return True
