"""One core, Kang's procedure: probe the other window, insert into one's own, expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from handshake.errors import core_error
from handshake.joins.arrangements.arrangement import Arrangement, Entry, Task
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, OnLate, Seen
from handshake.joins.latency import Latencies
from handshake.joins.metrics import Metrics, Stopwatch, collect_metrics, with_latency, with_matches
from handshake.joins.pieces import pieces
from handshake.joins.spec import JoinSpec


@dataclass
class ThreeStep(Arrangement):
    """A running join on one core."""

    spec: JoinSpec
    lateness: int | None = 0
    on_late: OnLate | None = None
    core: JoinCore = field(init=False)
    driver: Driver = field(init=False)
    expired: int = 0
    name: ClassVar[str] = "three_step"

    def __post_init__(self) -> None:
        self.driver = Driver(self.spec, self.lateness, self.on_late)
        self.core = self._make_core()
        self.latencies, self.watch = Latencies(1), Stopwatch()

    def _make_core(self) -> JoinCore:
        return JoinCore(self.spec, self.driver.tracked)

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        for found in self.watch.time(self._join(stream, batch, seen)):
            self.latencies.note(0, found.num_rows, came)
            yield found

    def _join(self, side: int, batch: pa.RecordBatch, seen: Seen | None) -> Iterator[pa.RecordBatch]:
        admitted = self.driver.admit(side, batch, seen)
        for piece in pieces(self.spec, side, admitted):
            try:
                yield from self.core.probe(piece)
                self.core.insert(piece)
            except Exception as error:
                raise core_error(error, Task(piece, 0.0).describe()) from error
        self.expire()

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        return iter(())  # every push has yielded all its results

    def held_windows(self, side: int) -> list[BasicWindow]:
        """Return the basic windows of a side. Rows in them may have expired."""
        return list(self.core.segments[side])

    def _take_departed(self, side: int) -> list[BasicWindow]:
        return self.core.segments[side].take_departed()

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
            self.core.insert(piece)

    def expire(self) -> None:
        """Drop tuples that no future tuple can join."""
        for side in (0, 1):
            oldest = self.driver.oldest(side)
            if oldest is not None:
                self.expired += self.core.expire(side, oldest)

    def _count_results(self) -> int | None:
        return None if any(self.driver.tracked) else self.core.results

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        figures = collect_metrics(self.driver, [self.core], self.name, self.expired, self.watch.seconds)
        return with_latency(with_matches(figures, self.driver), self.latencies)

    def wake(self) -> None:
        """Do nothing: no thread waits."""

    def close(self) -> None:
        """Do nothing: no thread runs."""


THREE_STEP = Entry(
    "three_step",
    "one core in the caller's thread: probe, insert, expire",
    lambda plan, on_late: ThreeStep(plan.spec, plan.lateness, on_late),
    threads=False,
)
