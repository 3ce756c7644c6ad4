"""The driver: what happens to a tuple at arrival. Stamping, lateness, filtering, derived columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError
from handshake.joins.spec import OTHER, OWN, SIDES, TIME, JoinSpec, SideSpec
from handshake.kernels.columns import as_array, integers
from handshake.kernels.evaluate import evaluate, holds
from handshake.kernels.keys import has_value, hash_of, prefix_of
from handshake.plan.expr import Column, Expr, walk
from handshake.plan.types import is_exact
from handshake.schema import UNITS, Date, Int, Timestamp, type_from_arrow
from handshake.windows import watermark

__all__ = [
    "Counts",
    "Driver",
    "arrays_of",
    "derived",
    "extended",
    "lies_ready",
    "matchable",
    "stored",
    "times_of",
]

Array = np.ndarray[Any, Any]
_FORMS = {"hash": hash_of, "prefix": prefix_of}


@dataclass
class Counts:
    """Tuples of one side, by fate."""

    rows: int = 0
    late: int = 0
    no_time: int = 0
    unmatchable: int = 0
    """Tuples that no other can match (a NULL key, a filter that fails); they are not stored."""


@dataclass
class Driver:
    """Stamps the tuples of both sides in arrival order and remembers how far each stream has come."""

    spec: JoinSpec
    lateness: int = 0
    counts: tuple[Counts, Counts] = field(default_factory=lambda: (Counts(), Counts()))
    newest: list[int | None] = field(default_factory=lambda: [None, None])
    arrived: list[int] = field(default_factory=lambda: [0, 0])
    met: list[int] = field(default_factory=lambda: [0, 0])
    """The least `other` stamp that a tuple of this side can still get."""
    told: bool = False
    """Only `advance` says how far streams have come; what is late then has been dropped before."""

    def __post_init__(self) -> None:
        windows = self.spec.windows
        self._timed, self._counted = windows.timed, windows.counted

    def admit(self, side: int, batch: pa.RecordBatch, other: Array | None = None) -> pa.RecordBatch:
        """Stamp a batch; what comes back has its hidden columns and only tuples that can match.

        `other` gives the counts of the other stream for tuples whose arrival order is known beforehand.
        """
        spec, counts = self.spec.sides[side], self.counts[side]
        counts.rows += batch.num_rows
        hidden: dict[str, pa.Array] = {}
        if self._timed:
            batch, other = self._by_time(side, batch, other, hidden)
        if self._counted:
            self._count(side, batch.num_rows, other, hidden)
        full = extended(batch, hidden) if hidden else batch
        full = derived(full, spec)
        kept = matchable(full, spec)
        counts.unmatchable += full.num_rows - kept.num_rows
        return kept

    def _by_time(
        self, side: int, batch: pa.RecordBatch, other: Array | None, hidden: dict[str, pa.Array]
    ) -> tuple[pa.RecordBatch, Array | None]:
        spec, counts = self.spec.sides[side], self.counts[side]
        assert spec.time is not None
        times, valid = times_of(batch.column(spec.time), self.spec.unit, spec.time, SIDES[side])
        if valid is not None:
            counts.no_time += len(times) - int(valid.sum())
            batch, times = batch.filter(pa.array(valid)), times[valid]
            other = other[valid] if other is not None else None
        late = self._late(side, times)
        if late is not None:
            counts.late += int(late.sum())
            batch, times = batch.filter(pa.array(~late)), times[~late]
            other = other[~late] if other is not None else None
        if not lies_ready(batch.schema.field(spec.time).type, self.spec.unit):
            hidden[TIME] = pa.array(times)
        return batch, other

    def _late(self, side: int, times: Array) -> Array | None:
        """Which tuples the watermark has passed at their own arrival; None when it has passed none."""
        if len(times) == 0 or self.told:
            return None
        mine, theirs = self.newest[side], self.newest[1 - side]
        if (mine is None or times[0] >= mine) and not (times[1:] < times[:-1]).any():
            self.newest[side] = int(times[-1])
            return None
        peak = np.maximum.accumulate(times)
        if mine is not None:
            peak = np.maximum(peak, mine)
        self.newest[side] = int(peak[-1])
        if theirs is None:
            return None
        before = np.empty_like(peak)
        before[1:] = peak[:-1]
        before[0] = times[0] if mine is None else mine
        passed = np.minimum(before, theirs)
        # Differences of 64-bit times fit unsigned words.
        behind = passed.view(np.uint64) - times.view(np.uint64)
        late: Array = (times < passed) & (behind > np.uint64(min(self.lateness, 2**64 - 1)))
        return late if late.any() else None

    def _count(self, side: int, rows: int, other: Array | None, hidden: dict[str, pa.Array]) -> None:
        start = self.arrived[side]
        hidden[OWN] = pa.array(np.arange(start, start + rows))
        self.arrived[side] += rows
        if other is None:
            other = np.full(rows, self.arrived[1 - side])
            self.met[0], self.met[1] = self.arrived[1], self.arrived[0]
        elif rows:
            self.met[side] = int(other[-1])
        hidden[OTHER] = pa.array(other.astype(np.int64, copy=False))

    def mark(self) -> int | None:
        """The watermark."""
        return watermark(self.newest, self.lateness)

    def oldest(self, side: int) -> int | None:
        """The least expiring stamp of this side that a tuple to come can still ask for."""
        rule = self.spec.rules[side]
        return None if rule is None else rule.oldest(self.mark(), self.met[1 - side])

    def advance(self, side: int, time: int) -> None:
        """Take note that no tuple of this side older than `time` will come."""
        newest = self.newest[side]
        self.newest[side] = time if newest is None else max(time, newest)


def extended(batch: pa.RecordBatch, hidden: dict[str, pa.Array]) -> pa.RecordBatch:
    names = [*batch.schema.names, *hidden]
    return pa.RecordBatch.from_arrays([*batch.columns, *hidden.values()], names=names)


def lies_ready(kind: pa.DataType, unit: str) -> bool:
    """Whether a time column is in memory as the 64-bit counts that kernels read, so that no copy is kept."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == unit)
    return bool(kind == pa.int64() and unit == "s")


def stored(batch: pa.RecordBatch, spec: SideSpec, name: str) -> pa.Array:
    """A kernel column of a stored batch; times that lie ready are the input's own column."""
    if name == TIME and batch.schema.get_field_index(name) < 0:
        assert spec.time is not None
        name = spec.time
    return as_array(batch.column(name))


def arrays_of(batch: pa.RecordBatch, side: int, exprs: tuple[Expr, ...]) -> dict[Column, pa.Array]:
    """The columns that expressions read, from a batch of that side."""
    used = {n for e in exprs for n in walk(e) if isinstance(n, Column) and n.side == side}
    return {column: as_array(batch.column(column.name)) for column in used}


def derived(batch: pa.RecordBatch, spec: SideSpec) -> pa.RecordBatch:
    hidden: dict[str, pa.Array] = {}
    for name, source in spec.derived:
        values = evaluate(source.expr, arrays_of(batch, spec.side, (source.expr,)), batch.num_rows)
        hidden[name] = values if source.form == "value" else _FORMS[source.form](values)
    return extended(batch, hidden) if hidden else batch


def matchable(batch: pa.RecordBatch, spec: SideSpec) -> pa.RecordBatch:
    """Only tuples that can match: one-sided conditions hold and no key is NULL or NaN."""
    mask: Array | None = None
    for condition in spec.filters:
        held = holds(condition, arrays_of(batch, spec.side, (condition,)), batch.num_rows)
        mask = held if mask is None else mask & held
    for key in spec.keys:
        if isinstance(key, Column) and is_exact(key.type) and not batch.column(key.name).null_count:
            continue
        value = has_value(_key_values(batch, spec, key))
        if value is not None:
            mask = value if mask is None else mask & value
    return batch if mask is None or mask.all() else batch.filter(pa.array(mask))


def _key_values(batch: pa.RecordBatch, spec: SideSpec, key: Expr) -> pa.Array:
    """A key of each tuple, or at least something that has a value where it has one."""
    if isinstance(key, Column) and pa.types.is_floating(batch.schema.field(key.name).type):
        return as_array(batch.column(key.name))
    return evaluate(key, arrays_of(batch, spec.side, (key,)), batch.num_rows, as_key=True)


def times_of(column: pa.Array, unit: str, name: str, stream: str) -> tuple[Array, Array | None]:
    """A time column as whole units, and where it has a value (None: everywhere)."""
    column = as_array(column)
    if lies_ready(column.type, unit) and column.null_count == 0:
        return integers(column), None
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    valid = np.asarray(column.is_valid()) if column.null_count else None
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    if pa.types.is_floating(column.type):
        return _float_times(column, unit, valid, name, stream)
    try:
        whole = _whole_times(column, unit)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"a time in column '{name}' of the {stream} input does not fit 64 bits in {unit}: {error}"
        ) from None
    return np.asarray(pc.fill_null(whole, 0).to_numpy(zero_copy_only=False)), valid


def _whole_times(column: pa.Array, unit: str) -> pa.Array:
    match type_from_arrow(column.type):
        case Timestamp(unit=own):
            factor = UNITS[own] // UNITS[unit]
            return (
                pc.multiply_checked(column.cast(pa.int64()), factor)
                if factor > 1
                else column.cast(pa.int64())
            )
        case Date():
            days = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
            return pc.multiply_checked(days, UNITS["d"] // UNITS[unit])
        case Int():
            return pc.multiply_checked(column.cast(pa.int64()), UNITS["s"] // UNITS[unit])
    seconds = column.cast(pa.decimal256(38, column.type.scale))  # 128 bits have no room for the product
    return pc.round(pc.multiply(seconds, pa.scalar(UNITS["s"] // UNITS[unit])), 0).cast(pa.int64())


def _float_times(
    column: pa.Array, unit: str, valid: Array | None, name: str, stream: str
) -> tuple[Array, Array | None]:
    seconds = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    known = ~np.isnan(seconds)
    present = known if valid is None else valid & known
    scaled = np.rint(np.where(present, seconds, 0.0) * (UNITS["s"] // UNITS[unit]))
    if np.abs(scaled).max(initial=0.0) >= 2.0**63:
        raise InputError(f"a time in column '{name}' of the {stream} input does not fit 64 bits in {unit}")
    return scaled.astype(np.int64), None if present.all() else present
