"""The in-process engine's panes, made in many tasks and put together in one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from handshake.operators.aggregates import Additive, Extreme
from handshake.operators.chunk import Array, Chunk, Flow
from handshake.operators.panes import Panes, Table, stack_tables
from handshake.operators.windows import WindowOperator

__all__ = ["PaneTable", "Reduced", "SharedPanes", "SharedWindows"]

PaneTable = Table


@dataclass(frozen=True)
class Reduced:
    """Panes of one partition's tuples, none of which is late yet."""

    table: PaneTable | None
    keys: list[pa.Array]
    clock: int
    """What these tuples make the source's clock show."""
    firsts: Array
    counts: Array
    """How many tuples begin with which window."""
    no_time: int
    rows: int


class SharedPanes(Panes):
    """Panes that can be taken out, as a source's task does, and put in, as the query's task does."""

    @property
    def parts(self) -> tuple[Additive | Extreme, ...]:
        """How each aggregate is kept."""
        return tuple(self._parts)

    @property
    def key_types(self) -> tuple[pa.DataType, ...] | None:
        """Of what the tuples are grouped by; None where they are not."""
        return None if self._shape.keys is None else tuple(key.type for key in self._index.keys)

    def taken(self) -> tuple[PaneTable | None, list[pa.Array]]:
        """All panes that were made, and the keys of their groups by number."""
        return (stack_tables(self._waiting) if self._waiting else None), self._index.keys

    def put(self, table: PaneTable, keys: list[pa.Array], opened: int) -> None:
        """Add panes of a later partition; windows before `opened` had ended when it began."""
        first = np.maximum(table.first, opened)
        rows = np.flatnonzero(first <= table.last)
        if self._shape.keys is not None:
            table = self._renumbered(table, keys)
        self._waiting.append(replace(table, first=first).take(rows))

    def _renumbered(self, table: PaneTable, keys: list[pa.Array]) -> PaneTable:
        """Groups by the numbers that they have here, and first tuples by the order of arrival here."""
        numbers = self._index.numbers(keys)
        arrivals, there = table.parts[-1]
        latest = int((~arrivals).max(initial=-1)) + 1
        moved = (~(~arrivals + self._seen), there)
        self._seen += latest
        return replace(table, groups=numbers[table.groups], parts=(*table.parts[:-1], moved))


class SharedWindows(WindowOperator):
    """Tuples in without results, results out without tuples."""

    def take(self, chunk: Chunk) -> None:
        """Put tuples into the store."""
        self._take_by_time(chunk)

    def closing(self, flow: Flow) -> list[Chunk]:
        """The results of windows that have ended."""
        return list(self._results(flow))
