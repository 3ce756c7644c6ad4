"""What joins of two streams and of several have in common where they run: pushed into, or from tables."""

from __future__ import annotations

import contextlib
import gc
import threading
import time as clock
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, InputError, UnsupportedError, WindowError
from handshake.io.frames import conform
from handshake.joins.driver import times_of
from handshake.joins.gate import AnyGate
from handshake.joins.ordering import InOrder

__all__ = [
    "NEWEST", "TICK", "Arrivals", "Cut", "PushedJoin", "Stream", "TableReplay", "check_clock", "checked_pace",
    "old_objects_spared",
]  # fmt: skip

TICK = 0.005
"""Seconds of the clock between two pushes of a paced replay."""
NEWEST = np.iinfo(np.int64).max
Array = np.ndarray[Any, Any]
SeenT = TypeVar("SeenT")
FiguresT = TypeVar("FiguresT")
FiguresT_co = TypeVar("FiguresT_co", covariant=True)


@contextlib.contextmanager
def old_objects_spared() -> Iterator[None]:
    """Meanwhile the collector of garbage leaves out what is there now: libraries, kernels and plans.

    It goes through a hundred thousand objects otherwise, some times in a minute, and nothing else runs in
    that tenth of a second. For programs that have the process to themselves.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Driver(Protocol):
    def advance(self, stream: int, time: int, /) -> None: ...

    def mark(self) -> int | None: ...


class _Engine(Protocol[FiguresT_co]):
    """A running join that nothing stands before."""

    @property
    def driver(self) -> _Driver: ...

    def push(self, stream: int, batch: pa.RecordBatch, /) -> Iterator[pa.RecordBatch]: ...

    def drain(self) -> Iterator[pa.RecordBatch]: ...

    def expire(self) -> None: ...

    def metrics(self) -> FiguresT_co: ...

    def close(self) -> None: ...


class Stream(NamedTuple):
    """A stream as it is pushed."""

    name: str
    schema: pa.Schema
    time: str | None


class PushedJoin(Generic[FiguresT]):
    """A running join that tuples are pushed into, from one thread at a time."""

    def __init__(
        self, engine: _Engine[FiguresT] | AnyGate[Any, Any, FiguresT], streams: Sequence[Stream], unit: str,
        ordering: InOrder | None,
    ) -> None:  # fmt: skip
        self._streams, self._unit, self._ordering = streams, unit, ordering
        self._engine: _Engine[FiguresT] | AnyGate[Any, Any, FiguresT] | None = engine
        # The threads of the cores keep the engine alive, not this object; when nobody holds it, they end.
        self._forgotten = weakref.finalize(self, _let_go, engine)
        self._forgotten.atexit = False
        self._last: FiguresT | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            held = self._ordering.rows if self._ordering is not None and self._engine is not None else 0
            self.close()
        if held and kind is None:
            raise HandshakeError(f"{held} results were held back and not taken; call finish() before leaving")

    def _push(self, k: int, tuples: Any) -> list[pa.RecordBatch]:
        with self._lock:
            engine = self._running()
            batch = conform(tuples, self._streams[k].schema, self._streams[k].name)
            with self._closing_on_failure():
                results = list(engine.push(k, batch))
                if isinstance(engine, AnyGate):
                    return self._in_order(results, engine.mark())
                return self._in_order([*results, *engine.drain()], engine.driver.mark())

    def take(self, wait: float = 0.0) -> list[pa.RecordBatch]:
        """Results that have come since the last push, and that come within `wait` seconds.

        Only where tuples may be shed: otherwise every push has returned all its results.
        """
        with self._lock:
            engine = self._running()
            if not isinstance(engine, AnyGate):
                return []
            with self._closing_on_failure():
                return self._in_order(list(engine.until(clock.perf_counter() + wait)), engine.mark())

    def _advance(self, times: Mapping[int, Any]) -> list[pa.RecordBatch]:
        with self._lock:
            engine = self._running()
            receiver = engine if isinstance(engine, AnyGate) else engine.driver
            for k, time in times.items():
                receiver.advance(k, self._instant(k, time))
            if isinstance(engine, AnyGate):
                return self.take()
            engine.expire()
            return self._in_order([], engine.driver.mark())

    def _instant(self, k: int, time: Any) -> int:
        """One time in the unit that stamps have."""
        name, schema, column = self._streams[k]
        if column is None:
            raise WindowError(f"no time column is named for the {name} input, so it cannot advance")
        batch = conform({column: [time]}, pa.schema([schema.field(column)]), name)
        times, valid = times_of(batch.column(0), self._unit, column, name)
        if valid is not None:
            raise InputError(f"{time!r} is not a time to advance the {name} input to")
        return int(times[0])

    def finish(self) -> list[pa.RecordBatch]:
        """Say that no more tuples will come; returns results that were held back, and closes the join."""
        with self._lock, self._closing_on_failure():
            results = self._in_order(list(self._running().drain()), None, last=True)
            self.close()
            return results

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Half a batch may have been joined: going on could lose or double results."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _in_order(
        self, results: list[pa.RecordBatch], mark: int | None, *, last: bool = False
    ) -> list[pa.RecordBatch]:
        if self._ordering is None:
            return results
        self._ordering.add(results)
        return self._ordering.release(mark, all_of_them=last)

    def metrics(self) -> FiguresT:
        """Counts and sizes so far; after closing, the last ones."""
        with self._lock:
            if self._engine is not None:
                return self._engine.metrics()
            assert self._last is not None
            return self._last

    def close(self) -> None:
        """Free the windows. What was pushed has been joined already."""
        with self._lock:
            if self._engine is not None:
                self._last = self._engine.metrics()
                self._forgotten.detach()
                self._engine.close()
                self._engine = None

    def _running(self) -> _Engine[FiguresT] | AnyGate[Any, Any, FiguresT]:
        if self._engine is None:
            raise HandshakeError("this join is closed; make a new one to push more tuples")
        return self._engine


def _let_go(engine: _Engine[Any] | AnyGate[Any, Any, Any]) -> None:
    """Close an engine from a thread of its own: the collector may call this on one of the engine's."""
    threading.Thread(target=engine.close, daemon=True).start()


class Cut(NamedTuple, Generic[SeenT]):
    """Tuples of a stream in a tick, how many of others came before each, and of its own before them."""

    batch: pa.RecordBatch
    seen: SeenT
    start: int


class Arrivals(NamedTuple, Generic[SeenT]):
    """Streams in the order in which their tuples arrive."""

    tables: Sequence[pa.RecordBatch]
    moments: Sequence[Array]
    """For each tuple, the seconds of the clock after which it comes."""
    seen: Callable[[int, int, int], SeenT]
    """How many of other streams came before each of a stream's tuples, from one row up to another."""


class _Measured(Protocol[FiguresT_co]):
    def metrics(self) -> FiguresT_co: ...

    def close(self) -> None: ...


class TableReplay(ABC, Generic[SeenT, FiguresT]):
    """Tables replayed as streams; iterating yields results in Arrow batches."""

    def __init__(self, total: int, pace: float | None, *, sheds: bool) -> None:
        self.total, self.done = total, 0
        self._pace, self._sheds = pace, sheds
        self._engine: _Measured[FiguresT] | None = None
        self._last: FiguresT | None = None

    @abstractmethod
    def _run(self) -> Iterator[pa.RecordBatch]:
        """All results; sets `_engine`."""

    @abstractmethod
    def _arrivals(self, pace: float) -> Arrivals[SeenT]:
        """The streams by the clock."""

    @abstractmethod
    def _restamped(self, k: int, seen: SeenT, most: Mapping[int, int], before: Sequence[int]) -> SeenT:
        """The counts of a stream where others have shed so many `before`, and all from the row `most` on."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._run()
        finally:
            self._close()

    def _paced(
        self, gate: AnyGate[Any, SeenT, FiguresT], pace: float, ordering: InOrder | None
    ) -> Iterator[pa.RecordBatch]:
        self._engine = gate
        results = self._feed(gate, pace)
        if ordering is None:
            yield from results
            return
        for batch in results:
            ordering.add([batch])
            yield from ordering.release(gate.mark())
        yield from ordering.release(None, all_of_them=True)

    def _feed(self, gate: AnyGate[Any, SeenT, FiguresT], pace: float) -> Iterator[pa.RecordBatch]:
        """Push each tick's tuples when it is over; they arrive then, even if the feeder itself is late."""
        began = clock.perf_counter()
        for tick, cuts in self._ticks(pace):
            due = began + tick * TICK
            yield from gate.until(due)
            for k, piece, seen in self._kept(gate, cuts):
                yield from gate.admit(k, piece, seen, due)
            self.done += sum(cut.batch.num_rows for cut in cuts.values())
        yield from gate.drain()

    def _ticks(self, pace: float) -> Iterator[tuple[int, dict[int, Cut[SeenT]]]]:
        """The ticks in which tuples come, and those of each stream."""
        tables, moments, seen = self._arrivals(pace)
        ticks = [np.ceil(seconds / TICK).astype(np.int64) for seconds in moments]
        for tick in np.unique(np.concatenate(ticks)):
            cuts: dict[int, Cut[SeenT]] = {}
            for k, table in enumerate(tables):
                low, high = (int(n) for n in np.searchsorted(ticks[k], [tick, tick + 1]))
                if low < high:
                    cuts[k] = Cut(table.slice(low, high - low), seen(k, low, high), low)
            yield int(tick), cuts

    def _kept(
        self, gate: AnyGate[Any, SeenT, FiguresT], cuts: dict[int, Cut[SeenT]]
    ) -> Iterator[tuple[int, pa.RecordBatch, SeenT]]:
        """Those of a tick's batches that there is room for, stamped as if what was shed had never come."""
        before = list(gate.shed_rows)
        gone = {k: cut.start for k, cut in cuts.items() if self._sheds and not gate.has_room(k)}
        for k in gone:
            gate.shed(k, cuts[k].batch)
        for k, cut in cuts.items():
            if k not in gone:
                yield k, cut.batch, self._restamped(k, cut.seen, gone, before)

    def _close(self) -> None:
        if self._engine is not None:
            self._last = self._engine.metrics()
            self._engine.close()
            self._engine = None

    def metrics(self) -> FiguresT:
        """Counts and sizes so far; after the end, the last ones."""
        if self._engine is not None:
            return self._engine.metrics()
        if self._last is None:
            raise HandshakeError("the replay has not begun; iterate over it first")
        return self._last


def checked_pace(pace: Any, *, timed: bool) -> float | None:
    """A pace as it may be given, or an error."""
    if pace is None:
        return None
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 < pace < float("inf"):
        raise UnsupportedError(
            f"pace is a number above 0, 1 being the speed of the time columns; {pace!r} was given"
        )
    if not timed:
        raise WindowError("a pace goes by time columns, and none is named; name them (time=…, or --time)")
    return float(pace)


def check_clock(pace: float | None, *, sheds: bool, pushed: str) -> None:
    """Refuse to shed where nothing can fall behind."""
    if sheds and pace is None:
        raise UnsupportedError(
            "overload='shed' needs a clock that the join can fall behind, and a replay without a pace "
            f"waits for the join; give a pace (1 is the speed of the time columns), or push into a {pushed}"
        )
