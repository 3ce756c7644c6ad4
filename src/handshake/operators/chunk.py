"""Chunks, which flow between operators: rows of a stream with their stamps, and the movement of its clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, InputError
from handshake.schema import Schema, Type, arrow_of

Array = np.ndarray[Any, Any]
BEGINNING, END = -(2**62), 2**62
"""The values of a clock before the first tuple and after the last; times lie between them."""
EARLIEST = -(2**63)
"""No window has a smaller number: windows of times are as long as times go at most (plan.algebra.LONGEST)."""


def beyond(what: str, time: int) -> InputError:
    """Return the error for a time that clocks cannot show."""
    return InputError(f"{what} is beyond 62 bits: {time}; times lie between -2^62 and 2^62")


def check_times(times: Array, what: str) -> None:
    """Refuse times that clocks cannot show."""
    if len(times):
        for time in (int(times.min()), int(times.max())):
            if not BEGINNING < time < END:
                raise beyond(what, time)


class Chunk(NamedTuple):
    """Rows with the stamps that an operator above needs; a stamp that none needs is None."""

    columns: dict[str, pa.Array]
    rows: int
    times: Array | None = None
    """In units of the stream's clock; where `timed` is False, the tuple has none."""
    timed: Array | None = None
    """None if all tuples have a time."""
    clocks: Array | None = None
    places: Array | None = None
    """The number of each row among all arrivals; a result has that of the row that completed it."""

    def take(self, rows: Array) -> Chunk:
        """Return the rows with these numbers, in this order."""
        picked = pa.array(rows)
        columns = {name: column.take(picked) for name, column in self.columns.items()}
        stamps = (None if stamp is None else stamp[rows] for stamp in self.stamps)
        return Chunk(columns, len(rows), *stamps)

    @property
    def stamps(self) -> tuple[Array | None, ...]:
        """Times, where they are known, clocks, places."""
        return (self.times, self.timed, self.clocks, self.places)

    def with_columns(self, columns: dict[str, pa.Array]) -> Chunk:
        """Return the same rows with other columns."""
        return self._replace(columns=columns)


def concat_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Concatenate chunks of a stream."""
    if len(chunks) == 1:
        return chunks[0]
    names = chunks[0].columns
    columns = {name: pa.concat_arrays([chunk.columns[name] for chunk in chunks]) for name in names}
    rows = sum(chunk.rows for chunk in chunks)
    times, clocks, places = (
        None if stamps[0] is None else np.concatenate(stamps)
        for stamps in zip(*((c.times, c.clocks, c.places) for c in chunks), strict=True)
    )
    timed = None
    if any(chunk.timed is not None for chunk in chunks):
        timed = np.concatenate([np.ones(c.rows, np.bool_) if c.timed is None else c.timed for c in chunks])
    return Chunk(columns, rows, times, timed, clocks, places)


def check_results(chunk: Chunk) -> None:
    """Refuse results of windows that end later than clocks can show."""
    if chunk.times is not None and chunk.rows and (latest := int(chunk.times.max())) >= END:
        raise beyond("the time of a result of a window", latest)


class Trace(NamedTuple):
    """The movement of a stream's clock in a step: from `places[i]` on it shows `clocks[i]`."""

    places: Array
    clocks: Array

    @property
    def last(self) -> int | None:
        """The clock at the end of the step; None if it has not moved."""
        return int(self.clocks[-1]) if len(self.clocks) else None


class Flow(NamedTuple):
    """The output of an operator in one step."""

    chunk: Chunk
    trace: Trace
    ended: bool = False
    """No tuple will follow."""


def fit(array: pa.Array, kind: Type, what: str) -> pa.Array:
    """Convert values to the Arrow type of a column type."""
    target = arrow_of(kind)
    if array.type == target:
        return array
    if pa.types.is_dictionary(array.type):
        return fit(array.dictionary_decode(), kind, what)
    try:
        if pa.types.is_decimal(array.type) and pa.types.is_temporal(target):
            array = array.cast(pa.int64())
        if pa.types.is_int64(array.type) and pa.types.is_temporal(target) and target.bit_width == 32:
            array = array.cast(pa.int32())
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise HandshakeError(f"a value of {what} does not fit {kind}: {error}") from None


def grown(array: Array, size: int, fill: int = 0) -> Array:
    """Return an array with room for `size` rows: itself, or a copy with at least twice its rows."""
    if len(array) >= size:
        return array
    more = max(size, 2 * len(array)) - len(array)
    return np.concatenate([array, np.full((more, *array.shape[1:]), fill, array.dtype)])


def empty(schema: Schema) -> dict[str, pa.Array]:
    """Return columns without rows."""
    return {f.name: pa.array([], arrow_of(f.type)) for f in schema}
