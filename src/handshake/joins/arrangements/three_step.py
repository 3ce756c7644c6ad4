"""One core, Kang's procedure: probe the other window, insert into one's own, expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from handshake.errors import core_error
from handshake.joins.arrangements.arrangement import Entry
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, Seen
from handshake.joins.latency import Latencies
from handshake.joins.metrics import Metrics, collect_metrics, with_latency
from handshake.joins.pieces import coalesce, pieces
from handshake.joins.spec import SIDES, JoinSpec

__all__ = ["THREE_STEP", "ThreeStep"]


@dataclass
class ThreeStep:
    """A running join on one core."""

    spec: JoinSpec
    lateness: int = 0
    core: JoinCore = field(init=False)
    driver: Driver = field(init=False)
    expired: int = 0
    elapsed: float = 0.0

    def __post_init__(self) -> None:
        self.core = JoinCore(self.spec)
        self.driver = Driver(self.spec, self.lateness)
        self.latencies = Latencies(1)

    def push(
        self, side: int, batch: pa.RecordBatch, seen: Seen | None = None,
        came: float | None = None, *, more: bool = False,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Join a batch of one side's tuples; yields all results that they complete."""
        came = time.perf_counter() if came is None else came
        return self.latencies.time_delivery(coalesce(self._time(self._push(side, batch, seen), came)))

    def _time(self, results: Iterator[pa.RecordBatch], came: float) -> Iterator[pa.RecordBatch]:
        """Count the time spent here, not in the consumer of the results."""
        while True:
            start = time.perf_counter()
            batch = next(results, None)
            self.elapsed += time.perf_counter() - start
            if batch is None:
                return
            self.latencies.note(0, batch.num_rows, came)
            yield batch

    def _push(self, side: int, batch: pa.RecordBatch, seen: Seen | None) -> Iterator[pa.RecordBatch]:
        admitted = self.driver.admit(side, batch, seen)
        for piece in pieces(self.spec, side, admitted):
            try:
                yield from self.core.probe(piece)
                self.core.insert(piece)
            except Exception as error:
                raise core_error(
                    error, f"a batch of {piece.rows} tuples of the {SIDES[side]} input"
                ) from error
        self.expire()

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

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        figures = collect_metrics(self.driver, [self.core], "three_step", self.expired, self.elapsed)
        return with_latency(figures, self.latencies)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Return nothing: every push has yielded all its results."""
        return iter(())

    def settle(self, until: Callable[[], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Return nothing, as `drain`."""
        return iter(())

    def wake(self) -> None:
        """Do nothing: no thread waits."""

    def close(self) -> None:
        """Do nothing: no thread runs."""


THREE_STEP = Entry(
    "three_step",
    "one core in the caller's thread: probe, insert, expire",
    lambda plan: ThreeStep(plan.spec, plan.lateness),
    threads=False,
)
