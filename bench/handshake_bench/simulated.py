"""Arrangements of many cores in one thread, to count the work of each core.

The engine's own code runs, but without threads. In `cell` and `low_latency` a task runs when it is handed
over. In a handshake line each core has a clock that advances with its comparisons and messages, and the core
with the slowest clock runs next, as if each had its own processor. No real time is read, so counts are
reproducible.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.cell.cell import Cell
from handshake.joins.arrangements.cell.cost import CostModel
from handshake.joins.arrangements.channels import Channel, Monitor
from handshake.joins.arrangements.crew import Crew
from handshake.joins.arrangements.handshake.core import LEFT, Message
from handshake.joins.arrangements.handshake.ends import Ends
from handshake.joins.arrangements.handshake.worker import Queue, Worker, in_line
from handshake.joins.arrangements.low_latency.low_latency import LowLatency
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.driver import Driver
from handshake.joins.results import Made, Pairs
from handshake.joins.segment import Segment
from handshake.joins.spec import JoinSpec
from handshake.kernels.compile import Program

__all__ = ["ARRANGEMENTS", "COMPARISON", "Counts", "Simulated", "simulate"]

ARRANGEMENTS = ("cell", "handshake", "low_latency")
T = TypeVar("T")
Array = np.ndarray[Any, Any]
COMPARISON, _MESSAGE = 1e-10, 1e-5
"""Seconds of a simulated core's clock per scanned pair, and per message sent or received."""
_MODEL = CostModel(alpha=1e-5, beta=2e-10, row_bytes=8.0)
"""Typical for one core with AVX-512; fixed, so that counts do not depend on the machine."""


@dataclass(frozen=True)
class Counts:
    """Work of each core so far."""

    comparisons: tuple[int, ...]
    """Tuple pairs looked at."""
    messages: tuple[int, ...]
    """Messages received and, in a line, sent: tuples, acknowledgements, window sizes."""
    work: tuple[float, ...]
    """The same comparisons in seconds: a candidate from an index costs as much as 30 pairs of a scan."""
    tuples: tuple[int, ...]
    """Tuples in those messages."""

    def since(self, before: Counts) -> Counts:
        """Return the difference to earlier counts."""
        pairs = [(getattr(self, one.name), getattr(before, one.name)) for one in fields(self)]
        return Counts(*(tuple(a - b for a, b in zip(*pair, strict=True)) for pair in pairs))


class CountingCore(JoinCore):
    """A join core that counts the pairs of a scan instead of comparing them; index probes are real."""

    def search(
        self,
        piece: BasicWindow,
        windows: Iterable[BasicWindow] | None = None,
        outer: Outer | None = None,
    ) -> Iterator[Made]:
        """Count the pairs of a scan and return no result; index probes run as usual."""
        if self.spec.method != "scan" or windows is None or isinstance(windows, Segment):
            return super().search(piece, windows, outer)
        self.batches += 1
        self._count(piece, [window for window in windows if self._relation(piece, window) != "apart"])
        return iter(())

    def _count(self, outer: BasicWindow, inner: list[BasicWindow]) -> None:
        pairs = outer.rows * sum(window.rows for window in inner)
        self.comparisons += pairs
        self.work += pairs * COMPARISON

    def _by_scan(
        self, program: Program, outer: BasicWindow, inner: list[BasicWindow]
    ) -> Iterator[tuple[Array, Array, Array]]:
        self._count(outer, inner)
        return iter(())

    def _make_results(self, pairs: Pairs) -> Iterator[Made]:
        self.results += len(pairs.here)
        return iter(())


class InlineCrew(Crew[T]):
    """A crew without threads that counts the tasks and their tuples."""

    def __post_init__(self) -> None:
        self.inline = True
        super().__post_init__()
        self.handed, self.rows = [0] * self.size, [0] * self.size

    def hand(self, k: int, task: T) -> Iterator[pa.RecordBatch]:
        """Run the task at once."""
        self.handed[k] += 1
        piece: BasicWindow = task.piece  # type: ignore[attr-defined]
        self.rows[k] += piece.rows
        return self.work(k, task)


class Simulated(ABC):
    """The interface of all simulated arrangements."""

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without counting the cost."""
        self.push(side, batch, 0.0)

    @abstractmethod
    def push(self, side: int, batch: pa.RecordBatch, at: float) -> None:
        """Push tuples that arrive `at` seconds, and run the work they cause."""

    @abstractmethod
    def counts(self) -> Counts:
        """Return the work of each core so far."""


class Coordinated(Simulated):
    """`cell` or `low_latency` with a crew without threads."""

    def __init__(self, engine: Cell | LowLatency) -> None:
        self.engine: Any = engine
        engine.crew.close()
        self.crew: InlineCrew[Any] = InlineCrew(
            engine.cores, self.engine._work, lambda task: "a batch", lambda task: 0.0
        )
        self.engine.crew = self.crew
        self.engine._cores = [CountingCore(engine.spec) for _ in range(engine.cores)]
        if isinstance(engine, Cell):
            engine.model = _MODEL

    def push(self, side: int, batch: pa.RecordBatch, at: float) -> None:
        for _ in (*self.engine.push(side, batch), *self.engine.drain()):
            pass

    def counts(self) -> Counts:
        cores: list[JoinCore] = self.engine._cores
        return _counts(cores, self.crew.handed, self.crew.rows)


class _Counted(Queue):
    """A queue between neighbours that counts its messages."""

    passed = 0
    rows = 0

    def _append(self, item: Message[BasicWindow]) -> None:
        self.passed += 1
        self.rows += item.piece.rows if item.kind == "tuples" and item.piece is not None else 0
        super()._append(item)


class Line(Simulated):
    """A handshake line whose cores take turns by their clocks."""

    def __init__(self, spec: JoinSpec, cores: int) -> None:
        monitor = Monitor()
        right, left = ([_Counted(monitor, 2) for _ in range(cores + 1)] for _ in range(2))
        right[cores].capacity = left[0].capacity = 1 << 62  # as in `Handshake`
        self.ends = Ends(Driver(spec), cores, (right[0], left[cores]), (right[cores], left[0]))
        self.queues = [(right[k], left[k + 1], left[k], right[k + 1]) for k in range(cores)]
        self.workers = [
            Worker(
                spec, k, cores, True, (right[k], left[k + 1]), (left[k], right[k + 1]),
                Channel(monitor, 1 << 30),
            )
            for k in range(cores)
        ]  # fmt: skip
        in_line(self.workers)
        for worker in self.workers:
            worker.join_core = CountingCore(spec)
        self.clocks = [0.0] * cores
        self.turns = [LEFT] * cores
        self.ready: set[int] = set()

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        for worker in self.workers:
            worker.matching = False
        self.push(side, batch, 0.0)
        self._run(math.inf)
        self.clocks = [0.0] * len(self.workers)
        for worker in self.workers:
            worker.matching = True

    def push(self, side: int, batch: pa.RecordBatch, at: float) -> None:
        """Run the cores until their clocks show `at`, then push the batch."""
        self._run(at)
        self.ends.admit(side, batch, None, at)
        self.ends.exchange()
        self._wake(0, at)
        self._wake(len(self.workers) - 1, at)

    def _run(self, until: float) -> None:
        """Run the ready core with the slowest clock, again and again, until all clocks reach `until`."""
        waiting = [(self.clocks[k], k) for k in self.ready]
        heapify(waiting)
        while waiting and waiting[0][0] < until:
            began, k = heappop(waiting)
            self._step(k)
            if k in (0, len(self.workers) - 1):
                self.ends.exchange()
            for other in self._look(k, began):
                heappush(waiting, (self.clocks[other], other))

    def _look(self, k: int, at: float) -> Iterator[int]:
        """Yield the cores that can run after a step of core `k`: itself, its neighbours and the ends.

        A core sends before it compares, so the others need not wait for its comparisons.
        """
        self.ready.discard(k)
        if self._wake(k, self.clocks[k]):
            yield k
        for other in {k - 1, k + 1, 0, len(self.workers) - 1} & set(range(len(self.workers))):
            if self._wake(other, at):
                yield other

    def _wake(self, k: int, at: float) -> bool:
        """Make an idle core ready from time `at`; return True if it has work."""
        if k in self.ready or not self.workers[k]._ready():
            return False
        self.ready.add(k)
        self.clocks[k] = max(self.clocks[k], at)
        return True

    def _step(self, k: int) -> None:
        """Run half of the loop of figure 9: the messages of one neighbour."""
        worker, before = self.workers[k], self._spent(k)
        worker._receive(self.turns[k])
        worker._forward()
        self.turns[k] = 1 - self.turns[k]
        while worker.results.poll() is not None:
            pass
        self.clocks[k] += self._spent(k) - before

    def _spent(self, k: int) -> float:
        messages = sum(queue.passed for queue in self.queues[k])
        return self.workers[k].join_core.work + messages * _MESSAGE

    def counts(self) -> Counts:
        messages = [sum(queue.passed for queue in queues) for queues in self.queues]
        rows = [sum(queue.rows for queue in queues) for queues in self.queues]
        return _counts([worker.join_core for worker in self.workers], messages, rows)


def _counts(cores: Sequence[JoinCore], messages: list[int], rows: list[int]) -> Counts:
    compared, work = tuple(core.comparisons for core in cores), tuple(core.work for core in cores)
    return Counts(compared, tuple(messages), work, tuple(rows))


def simulate(arrangement: str, spec: JoinSpec, cores: int) -> Simulated:
    """Create a join on `cores` simulated cores."""
    match arrangement:
        case "cell":
            return Coordinated(Cell(spec, 0, cores))
        case "low_latency":
            # The cores are to work, not the caller's thread.
            tuning = replace(spec.tuning, at_once_seconds=-1.0)
            return Coordinated(LowLatency(replace(spec, tuning=tuning), 0, cores))
    return Line(spec, cores)
