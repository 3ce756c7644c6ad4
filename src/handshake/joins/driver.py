"""The driver: stamps rows on arrival, drops late ones, and records how far each stream has come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError
from handshake.joins.spec import OTHER, OWN, ROW, TIME, JoinSpec, SideSpec
from handshake.joins.states import RowStates
from handshake.kernels.arrivals import Arrival
from handshake.kernels.columns import as_array, integers
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.evaluate import evaluate, holds
from handshake.kernels.intrinsics import QUICK
from handshake.kernels.keys import has_value, hash_of, prefix_of
from handshake.plan.expr import Column, Expr, walk
from handshake.plan.types import is_exact
from handshake.schema import UNITS, Date, Int, Timestamp, type_from_arrow
from handshake.windows import Windows, is_late, watermark

Array = np.ndarray[Any, Any]
Seen = Mapping[int, Array]
"""By the number of another stream: how many of its rows had arrived before each row of a batch."""
OnLate = Callable[[int, pa.RecordBatch, Array | None], None]
"""A function of a stream's number, late rows, and how far behind the watermark each was; None for rows
without a time."""
_FORMS = {"hash": hash_of, "prefix": prefix_of}


class StreamLike(Protocol):
    """One input of a join, as far as its arrival is concerned."""

    @property
    def name(self) -> str:
        """The name that errors use."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""

    @property
    def time(self) -> str | None:
        """The time column, if there is one."""


@dataclass
class Counts:
    """Numbers of rows of one stream by what became of them."""

    rows: int = 0
    late: int = 0
    no_time: int = 0
    unmatchable: int = 0
    """Rows that can match nothing (a NULL key, a filter that fails); they are not stored."""


class Positions(NamedTuple):
    """The stamps of a batch for tuple windows."""

    own: Array
    seen: Seen


@dataclass
class Tracked:
    """The rows of a side of which the join must know whether they have matched."""

    preserved: bool
    """Whether rows without a match are results."""
    states: RowStates = field(default_factory=RowStates)
    alone: list[pa.RecordBatch] = field(default_factory=list)
    """Rows that can match nothing, and are results not yet taken."""

    def add_alone(self, batch: pa.RecordBatch) -> None:
        """Keep rows that can match nothing, if they are results."""
        if self.preserved and batch.num_rows:
            self.alone.append(batch)

    def take_alone(self) -> list[pa.RecordBatch]:
        """Return these rows, and count them as unmatched."""
        taken, self.alone = self.alone, []
        self.states.unmatched += sum(batch.num_rows for batch in taken)
        return taken


class StreamDriver(ABC):
    """The arrival of rows of any number of streams.

    Args:
        streams: The inputs.
        windows: Their windows, in the same order.
        unit: The unit that times are counted in.
        lateness: How far rows may be behind the watermark, in that unit. None if the caller has dropped late
            rows before: only `advance` moves the watermark then.
        on_late: Called with late rows, and with rows that are dropped without a time.
    """

    def __init__(
        self, streams: Sequence[StreamLike], windows: Windows, unit: str, lateness: int | None = 0,
        on_late: OnLate | None = None,
    ) -> None:  # fmt: skip
        many = len(streams)
        self.streams, self._unit, self.lateness = streams, unit, lateness
        self._rules = windows.rules(unit)
        self._timed, self._counted = windows.timed, windows.counted
        self.counts = [Counts() for _ in streams]
        self.newest: list[int | None] = [None] * many
        """The newest time of each stream."""
        self._on_late = on_late
        self.arrived = [0] * many
        self.met = [[0] * many for _ in streams]
        """`met[j][k]`: the least count of stream k that a row of stream j to come can be stamped with."""

    @abstractmethod
    def _enter(
        self, k: int, batch: pa.RecordBatch, times: Array | None, positions: Positions | None
    ) -> pa.RecordBatch:
        """Add the stamps to a batch, and keep the rows that can match."""

    def admit(self, k: int, batch: pa.RecordBatch, seen: Seen | None = None) -> pa.RecordBatch:
        """Stamp a batch of stream `k`; return its rows that can match, with hidden columns.

        Args:
            k: The number of the stream.
            batch: The rows.
            seen: Counts of the other streams, if the order of arrival is not the order of the calls.
        """
        counts, times, positions = self.counts[k], None, None
        counts.rows += batch.num_rows
        if self._timed:
            batch, times, seen = self._timely(k, batch, seen)
        if self._counted:
            positions = self._count(k, batch.num_rows, seen)
        kept = self._enter(k, batch, times, positions)
        counts.unmatchable += batch.num_rows - kept.num_rows
        return kept

    def _timely(
        self, k: int, batch: pa.RecordBatch, seen: Seen | None
    ) -> tuple[pa.RecordBatch, Array, Seen | None]:
        """Drop rows that have no time or are late."""
        stream, counts = self.streams[k], self.counts[k]
        assert stream.time is not None
        times, valid = times_of(batch.column(stream.time), self._unit, stream.time, stream.name)
        if valid is not None:
            self._drop_timeless(k, batch, ~valid)
            batch, times, seen = _filter(batch, times, seen, valid)
        mark = self._mark_each(k, times)
        if mark is not None and (late := is_late(times, mark)).any():
            counts.late += int(late.sum())
            if self._on_late is not None:  # differences of 64-bit times fit unsigned words
                lag = mark[late].view(np.uint64) - times[late].view(np.uint64)
                self._on_late(k, batch.filter(pa.array(late)), lag)
            batch, times, seen = _filter(batch, times, seen, ~late)
        return batch, times, seen

    def _drop_timeless(self, k: int, batch: pa.RecordBatch, timeless: Array) -> None:
        """Count the rows of a batch that have no time, and pass them on."""
        self.counts[k].no_time += int(timeless.sum())
        if self._on_late is not None and timeless.any():
            self._on_late(k, batch.filter(pa.array(timeless)), None)

    def _mark_each(self, k: int, times: Array) -> Array | None:
        """Return the watermark at the arrival of each row; None if it has passed none of them."""
        if len(times) == 0 or self.lateness is None:
            return None
        mine = self.newest[k]
        if (mine is None or times[0] >= mine) and _ascend(times):
            self.newest[k] = int(times[-1])
            return None
        peak = np.maximum.accumulate(np.concatenate([[times[0] if mine is None else mine], times]))
        self.newest[k] = int(peak[-1])
        others = [newest for j, newest in enumerate(self.newest) if j != k]
        slowest = watermark(others, 0)
        if slowest is None:
            return None
        passed = np.minimum(peak[:-1], slowest).view(np.uint64)
        room = passed - np.uint64(2**63)  # down to the least time
        marks: Array = (passed - np.minimum(room, np.uint64(min(self.lateness, 2**64 - 1)))).view(np.int64)
        return marks

    def _count(self, k: int, rows: int, seen: Seen | None) -> Positions:
        start = self.arrived[k]
        self.arrived[k] += rows
        others = (j for j in range(len(self.arrived)) if j != k)
        if seen is None:  # a row that comes now comes after all rows so far
            self.meet_all()
            seen = {j: np.full(rows, self.arrived[j]) for j in others}
        elif rows:
            for j, counted in seen.items():
                self.met[k][j] = int(counted[-1])
        return Positions(np.arange(start, start + rows), seen)

    def meet_all(self) -> None:
        """Record that rows to come arrive after all rows so far."""
        self.met = [list(self.arrived) for _ in self.met]

    def mark(self) -> int | None:
        """Return the watermark."""
        return watermark(self.newest, self.lateness or 0)

    def oldest(self, k: int) -> int | None:
        """Return the oldest stamp of stream `k` that a row to come can still join."""
        rule = self._rules[k]
        if rule is None:
            return None
        seen = min([met[k] for j, met in enumerate(self.met) if j != k]) if self._counted else None
        return rule.oldest(self.mark() if self._timed else None, seen)

    def advance(self, k: int, time: int) -> None:
        """Record that no row of stream `k` older than `time` will come."""
        newest = self.newest[k]
        self.newest[k] = time if newest is None else max(time, newest)


class Driver(StreamDriver):
    """The driver of the two sides of a `JoinSpec`; rows also get the columns that kernels read."""

    def __init__(self, spec: JoinSpec, lateness: int | None = 0, on_late: OnLate | None = None) -> None:
        super().__init__(spec.sides, spec.windows, spec.unit, lateness, on_late)
        self.spec = spec
        kind = spec.kind
        self.tracked = tuple(Tracked(kind.preserved[side]) if kind.tracked[side] else None for side in (0, 1))
        """The sides whose rows are numbered."""
        self._lies_ready = [
            side.time is not None and lies_ready(side.schema.field(side.time).type, spec.unit)
            for side in spec.sides
        ]
        self.plain = tuple(self._is_plain(k) for k in (0, 1))
        """Whether rows of each side are stored as they come, if they are in time and have their keys."""

    def _is_plain(self, k: int) -> bool:
        side = self.spec.sides[k]
        changed = side.derived or side.filters or self._counted or self.tracked[k] is not None
        return (
            not changed and (self._lies_ready[k] or not self._timed) and set(side.keys) <= set(side.columns)
        )

    def admits_all(self, k: int, arrival: Arrival | None) -> bool:
        """Admit a described batch of a plain side if all its rows are in time and can match.

        Otherwise change nothing. The description decides it without another look at the rows.
        """
        if arrival is None or not arrival.has_keys:
            return False
        if self._timed and self.lateness is not None:
            side, newest = self.spec.sides[k], self.newest[k]
            least, most = arrival.row[1:3] if side.stamps.first is not None else arrival.row[3:5]
            if not arrival.ascends or (newest is not None and least < newest):
                return False
            self.newest[k] = int(most)
        self.counts[k].rows += int(arrival.row[0])
        return True

    def _enter(
        self, k: int, batch: pa.RecordBatch, times: Array | None, positions: Positions | None
    ) -> pa.RecordBatch:
        side, hidden = self.spec.sides[k], dict[str, pa.Array]()
        if times is not None and not self._lies_ready[k]:
            hidden[TIME] = pa.array(times)
        if positions is not None:
            hidden[OWN] = pa.array(positions.own)
            hidden[OTHER] = pa.array(positions.seen[1 - k].astype(np.int64, copy=False))
        stamped = derive_columns(add_columns(batch, hidden) if hidden else batch, side)
        tracked = self.tracked[k]
        return matchable(stamped, side) if tracked is None else number_matchable(stamped, side, tracked)

    def _drop_timeless(self, k: int, batch: pa.RecordBatch, timeless: Array) -> None:
        tracked = self.tracked[k]
        if tracked is None or not tracked.preserved:
            super()._drop_timeless(k, batch, timeless)
            return
        self.counts[k].no_time += int(timeless.sum())
        tracked.add_alone(batch.filter(pa.array(timeless)))


def number_matchable(batch: pa.RecordBatch, side: SideSpec, tracked: Tracked) -> pa.RecordBatch:
    """Number the rows that can match; keep the others as rows without a match."""
    mask = can_match(batch, side)
    if mask is not None and not mask.all():
        tracked.add_alone(batch.filter(pa.array(~mask)))
        batch = batch.filter(pa.array(mask))
    return number_rows(batch, tracked)


def number_rows(batch: pa.RecordBatch, tracked: Tracked) -> pa.RecordBatch:
    """Number the rows of a tracked side."""
    return add_columns(batch, {ROW: pa.array(tracked.states.number(batch.num_rows))})


@compile_loop(**QUICK)
def _ascend(times):  # type: ignore[no-untyped-def]
    """Return whether no time is before the one ahead of it."""
    for row in range(1, times.shape[0]):  # noqa: SIM110  (compiled)
        if times[row] < times[row - 1]:
            return False
    return True


def _filter(
    batch: pa.RecordBatch, times: Array, seen: Seen | None, mask: Array
) -> tuple[pa.RecordBatch, Array, Seen | None]:
    kept = None if seen is None else {j: counted[mask] for j, counted in seen.items()}
    return batch.filter(pa.array(mask)), times[mask], kept


def add_columns(batch: pa.RecordBatch, hidden: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return a batch with hidden columns behind its own."""
    names = [*batch.schema.names, *hidden]
    return pa.RecordBatch.from_arrays([*batch.columns, *hidden.values()], names=names)


def lies_ready(kind: pa.DataType, unit: str) -> bool:
    """Return whether a time column holds the 64-bit counts that kernels read, so that no copy is needed."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == unit)
    return bool(kind == pa.int64() and unit == "s")


def stored_column(batch: pa.RecordBatch, spec: SideSpec, name: str) -> pa.Array:
    """Return a kernel column of a stored batch; `TIME` may be the input's own column (see `lies_ready`)."""
    if name == TIME and batch.schema.get_field_index(name) < 0:
        assert spec.time is not None
        name = spec.time
    return as_array(batch.column(name))


def arrays_of(batch: pa.RecordBatch, side: int, exprs: tuple[Expr, ...]) -> dict[Column, pa.Array]:
    """Return the columns of one side that expressions read, from a batch of that side."""
    used = {n for e in exprs for n in walk(e) if isinstance(n, Column) and n.side == side}
    return {column: as_array(batch.column(column.name)) for column in used}


def derive_columns(batch: pa.RecordBatch, spec: SideSpec) -> pa.RecordBatch:
    """Return a batch with the columns that are computed once per row."""
    hidden: dict[str, pa.Array] = {}
    for name, source in spec.derived:
        values = evaluate(source.expr, arrays_of(batch, spec.side, (source.expr,)), batch.num_rows)
        hidden[name] = values if source.form == "value" else _FORMS[source.form](values)
    return add_columns(batch, hidden) if hidden else batch


def matchable(batch: pa.RecordBatch, spec: SideSpec) -> pa.RecordBatch:
    """Return the rows that can match: one-sided conditions hold and no key is NULL or NaN."""
    mask = can_match(batch, spec)
    return batch if mask is None or mask.all() else batch.filter(pa.array(mask))


def can_match(batch: pa.RecordBatch, spec: SideSpec) -> Array | None:
    """Return which rows can match; None if all can."""
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
    return mask


def _key_values(batch: pa.RecordBatch, spec: SideSpec, key: Expr) -> pa.Array:
    """Return the key of each row, or other values that are NULL or NaN for the same rows."""
    if isinstance(key, Column) and pa.types.is_floating(batch.schema.field(key.name).type):
        return as_array(batch.column(key.name))
    return evaluate(key, arrays_of(batch, spec.side, (key,)), batch.num_rows, as_key=True)


def times_of(column: pa.Array, unit: str, name: str, stream: str) -> tuple[Array, Array | None]:
    """Return a time column in whole units, and which rows have a time (None if all have one)."""
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
    except pa.ArrowInvalid:
        raise InputError(
            f"a time in column '{name}' of the {stream} input does not fit 64 bits in {unit}, in which the "
            "times of another input count; cast those to a coarser unit, such as us"
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
        raise InputError(
            f"a time in column '{name}' of the {stream} input is infinite, or does not fit 64 bits in {unit}"
        )
    return scaled.astype(np.int64), None if present.all() else present
