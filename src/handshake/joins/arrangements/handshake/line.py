"""Handshake join: a line of cores, each talking to its neighbours only, and the driver at both ends.

Each core is a thread that runs one `HandshakeCore`; the caller's thread is the driver (section 4.4): it feeds
R into the left end and S into the right end, and acknowledges at the far end what has expired. No one
coordinates the cores. Queues are bounded, and a full line holds back the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from handshake.errors import HandshakeError, UnsupportedError, core_error
from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.arrangements.channels import Channel, Merger, Monitor, Stopped
from handshake.joins.arrangements.handshake.ends import Ends
from handshake.joins.arrangements.handshake.worker import Queue, Worker, in_line
from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import Seen
from handshake.joins.latency import Latencies
from handshake.joins.metrics import CoreMetrics, Metrics, with_latency

_UNBOUNDED = 1 << 62
"""Pieces that have reached their end stay there; the driver only learns of it."""


@dataclass
class Handshake(Arrangement):
    """A running join on a line of cores."""

    name: ClassVar[str] = "handshake"

    two_phase: bool = True
    """Whether S pieces stay until they are acknowledged (see `HandshakeCore`)."""

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise UnsupportedError(f"a handshake join needs at least one core, not {self.cores}")
        super().__post_init__()
        spec, cores = self.spec, self.cores
        self._monitor = Monitor()
        self._closed = False
        self.latencies = Latencies(cores)
        # One pair of queues between any two neighbours; the driver is the neighbour at both ends.
        right, left = (
            [Queue(self._monitor, spec.tuning.line_queue) for _ in range(cores + 1)] for _ in range(2)
        )
        right[cores].capacity = left[0].capacity = _UNBOUNDED
        self._ends = Ends(self.driver, cores, (right[0], left[cores]), (right[cores], left[0]))
        self._workers = [
            Worker(
                spec, k, cores, self.two_phase, (right[k], left[k + 1]), (left[k], right[k + 1]),
                Channel(self._monitor, spec.tuning.line_results), self.cpus[k] if self.cpus else None,
                self.driver.tracked,
            )
            for k in range(cores)
        ]  # fmt: skip
        in_line(self._workers)
        self._cores = [worker.join_core for worker in self._workers]
        self._results = Merger([worker.results for worker in self._workers])
        for worker in self._workers:
            worker.start()

    # The caller's side.

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        return self.watch.time(self._enter(stream, batch, seen, came))

    def _enter(
        self, side: int, batch: pa.RecordBatch, seen: Seen | None, came: float
    ) -> Iterator[pa.RecordBatch]:
        """Let tuples in; yields results that are ready, and waits while the line is full."""
        self._check()
        self._ends.admit(side, batch, seen, came)
        yield from self._run(lambda: not self._ends.waiting)

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        if until is None:
            return self.watch.time(self._drain())
        return self._coalesce(self.watch.time(self._settle(until)))

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Make all tuples meet. The join can go on afterwards.

        Tuples move only where windows are uneven, so pairs may be left on different cores. When the line is
        at rest, tuples that have entered since the last drain visit the cores ahead of them, and those that
        have not entered yet visit all cores. No tuple moves for it: windows stay as even as they were.
        """
        self._check()
        yield from self._run(self._quiet)
        if self._ends.apart:
            self._ends.mark()
            yield from self._run(self._quiet, still=True)
        for side in (0, 1):
            if self._ends.visit(side):
                yield from self._run(self._quiet, still=True)
                self._ends.enter(side)
                yield from self._run(self._quiet)

    def _settle(self, until: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Let all tuples in, and wait until the line is quiet or `until` holds.

        Pairs on different cores have not met then; later tuples push them on, as the paper has it.
        """
        self._check()
        for side in (0, 1):
            self._ends.release(side)
        yield from self._run(lambda: self._quiet() or until())

    def wake(self) -> None:
        """Make a running `settle` call `until` again; any thread may call this."""
        self._monitor.wake_all()

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into the line, and let them spread over it, without joining them: they count as met."""
        for worker in self._workers:
            worker.matching = False
        for _ in (*self._enter(side, batch, None, 0.0), *self._drain()):
            raise AssertionError("results were waiting: fill only after drain")
        for worker in self._workers:
            worker.matching = True

    def held_windows(self, side: int) -> list[BasicWindow]:
        """Return the basic windows of a side. Rows in them may have expired."""
        return [piece for worker in self._workers for piece in tuple(worker.core.windows[side])]

    def _take_departed(self, side: int) -> list[BasicWindow]:
        departed = self._ends.departed[side]
        self._ends.departed[side] = []
        return departed

    def expire(self) -> None:
        """Acknowledge what no tuple to come can join and has reached its end of the line."""
        self._ends.exchange()

    def close(self) -> None:
        """Stop; all threads end. Results that have not been drained are lost."""
        self._closed = True
        self._monitor.stop()
        for worker in self._workers:
            worker.join()

    def _run(self, done: Callable[[], bool], still: bool = False) -> Iterator[pa.RecordBatch]:
        """Feed the ends and yield results until `done`, which is asked under the monitor's lock."""
        while True:
            self._check()
            self._ends.exchange(still)
            for _ in range(sum(len(worker.results) for worker in self._workers)):
                found = self._results.poll()
                if found is not None:
                    for rows, arrived in found.notes:
                        self.latencies.note(found.core, rows, arrived)
                    yield found.batch
            try:
                self._monitor.wait_for(lambda: self._busy() or done())
                if self._holds(done):
                    return
            except Stopped:
                self._check()
                raise

    def _holds(self, done: Callable[[], bool]) -> bool:
        with self._monitor.condition:
            return done()

    def _busy(self) -> bool:
        return self._ends.movable() or any(len(worker.results) for worker in self._workers)

    def _quiet(self) -> bool:
        """Return whether no message is on its way, no core is busy, and no result waits."""
        return not self._ends.waiting and not self._busy() and all(w.at_rest() for w in self._workers)

    def _check(self) -> None:
        """Raise what a core has raised, or that the join is closed."""
        for worker in self._workers:
            if worker.error is not None:
                error = worker.error
                self.close()
                raise core_error(error, f"{worker.at} ({worker.place})") from error
        if self._closed:
            raise HandshakeError("this join is closed; make a new one to push more tuples")

    def metrics(self) -> Metrics:
        """Return counts and sizes so far; each core's are those of a moment."""
        figures, held = super().metrics(), self._ends.held
        figures = replace(
            figures.with_windows((self._ends.rows(0), self._ends.rows(1))),
            basic_windows=sum(len(window) for worker in self._workers for window in worker.core.windows),
            state_bytes=figures.state_bytes + held[0].nbytes + held[1].nbytes,
            expired=self._ends.expired,
            cores=tuple(_core_metrics(worker) for worker in self._workers),
        )
        return with_latency(figures, self.latencies)


def _core_metrics(worker: Worker) -> CoreMetrics:
    core, kernel = worker.core, worker.join_core
    return CoreMetrics(
        kernel.results, kernel.comparisons, core.sizes[0], core.sizes[1], core.pieces,
        core.forwarded, core.acknowledged, worker.deepest, worker.queued,
        len(worker.results), worker.results.deepest, worker.results.waits,
    )  # fmt: skip
