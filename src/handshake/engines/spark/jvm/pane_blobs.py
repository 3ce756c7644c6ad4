"""Reads the panes that PaneMaker.java writes: whole numbers of 64 bits, and the bytes of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.engines.spark.queries.panes import PaneTable, Reduced, SharedPanes
from handshake.operators.aggregates import Additive, Extreme
from handshake.operators.chunk import BEGINNING, END, Array, beyond
from handshake.plan.algebra import Source
from handshake.schema import UNITS

__all__ = ["read_panes", "width_of"]

_MARK = b"HSPANES1"


def width_of(part: Additive | Extreme) -> int:
    """How many whole numbers an aggregate has of a slot; of an extreme, its key and whether there is one."""
    return part.width if isinstance(part, Additive) else 2


def read_panes(data: bytes, panes: SharedPanes, source: Source) -> Reduced | None:
    """What Java has written; None where these bytes are not Java's."""
    return _Reader(data).reduced(panes, source) if data.startswith(_MARK) else None


class _Reader:
    """Takes pieces off the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, len(_MARK)

    def _whole(self, count: int) -> Array:
        found = np.frombuffer(self._data, "<i8", count, self._at).astype(np.int64)
        self._at += 8 * count
        return found

    def reduced(self, panes: SharedPanes, source: Source) -> Reduced:
        """All of it."""
        rows, no_time, earliest, latest, many, slots, groups = (int(n) for n in self._whole(7))
        first, last, tuples = (self._whole(many) for _ in range(3))
        table, keys = self._table(panes, (first, last, tuples), slots, groups)
        clock = BEGINNING if earliest > latest else _clock(source, earliest, latest)
        return Reduced(table if slots else None, keys, clock, first, tuples, no_time, rows)

    def _table(
        self, panes: SharedPanes, spans: tuple[Array, Array, Array], slots: int, groups: int
    ) -> tuple[PaneTable, list[pa.Array]]:
        first, last, counts = spans
        if panes.key_types is None:
            parts = [self._part(part, slots) for part in panes.parts]
            return PaneTable(first, last, np.zeros(slots, np.int32), counts, tuple(parts)), []
        codes, counts, arrivals = (self._whole(slots) for _ in range(3))
        parts = [self._part(part, slots) for part in panes.parts]
        pane, group = codes >> 32, (codes & 0xFFFFFFFF).astype(np.int32)
        parts.append((~arrivals, np.ones(slots, np.bool_)))
        table = PaneTable(first[pane], last[pane], group, counts, tuple(parts))
        return table, [self._keys(kind, groups) for kind in panes.key_types]

    def _part(self, part: Additive | Extreme, slots: int) -> Any:
        width = width_of(part)
        state = self._whole(slots * width).reshape(slots, width)
        if isinstance(part, Additive):
            return state
        return np.ascontiguousarray(state[:, 0]), state[:, 1] != 0

    def _keys(self, kind: pa.DataType, groups: int) -> pa.Array:
        missing, values = self._whole(groups) == 0, self._whole(groups)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._texts(kind, missing, values)
        if pa.types.is_floating(kind):
            return pa.array(values.view(np.float64), mask=missing).cast(kind)
        whole = pa.array(values, mask=missing)
        if pa.types.is_boolean(kind):
            return pc.not_equal(whole, 0)
        if pa.types.is_temporal(kind):
            return whole.view(kind) if kind.bit_width == 64 else whole.cast(pa.int32()).view(kind)
        return whole.cast(kind)

    def _texts(self, kind: pa.DataType, missing: Array, ends: Array) -> pa.Array:
        length = int(ends[-1]) if len(ends) else 0
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        bitmap = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        text = pa.py_buffer(self._data[self._at : self._at + length])
        self._at += length + -length % 8
        return pa.Array.from_buffers(kind, len(ends), [bitmap, pa.py_buffer(offsets), text])


def _clock(source: Source, earliest: int, latest: int) -> int:
    for time in (earliest, latest):
        if not BEGINNING < time < END:
            raise beyond(f"a time in column '{source.time}' of stream {source.name}", time)
    return latest - source.lateness // UNITS[source.clock.unit]
