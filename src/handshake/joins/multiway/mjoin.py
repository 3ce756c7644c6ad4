"""Joins of three and more streams, in MJoin fashion (CellJoin 7.1).

A batch goes through the windows of all other streams, in the join order of its own stream. Each step is a
two-way join of the combinations so far with the next stream's window. A combination is found exactly once:
when the last of its members comes.

With several cores, the first window of the order is dealt out to them and the input goes to all (where that
window is indexed, the other way round); the windows behind it are searched by each core for the combinations
that it has found itself. The caller's thread is the
coordinator. Basic windows are immutable, and a batch is handed out together with those that are there when it
comes, so windows may change, orders and the number of cores too, while the cores still work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.arrangement import RunningJoin
from handshake.joins.arrangements.crew import Clock, Crew, Load
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import Outer
from handshake.joins.driver import OnLate, Positions, Seen, StreamDriver, arrays_of
from handshake.joins.metrics import CoreMetrics, MultiMetrics, StepMetrics, Stopwatch, StreamMetrics
from handshake.joins.multiway.explain import explain_many
from handshake.joins.multiway.order import Order, best_order, cost_order
from handshake.joins.multiway.spec import ManySpec, StepSpec
from handshake.joins.multiway.stats import Statistics
from handshake.joins.multiway.step import StepCore, StepWindow
from handshake.joins.pieces import coalesce
from handshake.kernels.evaluate import holds

Array = np.ndarray[Any, Any]
Key = tuple[frozenset[int], int]


@dataclass(frozen=True)
class _Job:
    """A task of a core: tuples of a stream, and for each step the basic windows to search."""

    source: int
    outer: Outer
    route: tuple[Key, ...]
    runs: tuple[tuple[BasicWindow, ...], ...]
    came: float
    """When the tuples came."""


class ManyDriver(StreamDriver):
    """The driver of a `ManySpec`; rows also get their stamps for the windows of all streams."""

    def __init__(self, spec: ManySpec, lateness: int | None = 0, on_late: OnLate | None = None) -> None:
        super().__init__(spec.streams, spec.windows, spec.unit, lateness, on_late)
        self._spec = spec

    def _enter(
        self, k: int, batch: pa.RecordBatch, times: Array | None, positions: Positions | None
    ) -> pa.RecordBatch:
        streams = self._spec.streams
        stamps = [] if times is None else [times]
        if positions is not None:
            stamps += [positions.own] if streams[k].counted else []
            stamps += [positions.seen[j] for j, other in enumerate(streams) if j != k and other.counted]
        arrays = [*batch.columns, *(pa.array(stamp.astype(np.int64, copy=False)) for stamp in stamps)]
        stamped = pa.RecordBatch.from_arrays(arrays, schema=self._spec.stamped[k])
        own = [c.bound for c in self._spec.filters if c.streams == {k}]
        held = [holds(on, arrays_of(stamped, 0, (on,)), stamped.num_rows) for on in own]
        mask = np.logical_and.reduce(held) if held else None
        return stamped if mask is None or mask.all() else stamped.filter(pa.array(mask))


@dataclass
class MJoin(RunningJoin):
    """A running join of any number of streams, on `cores` threads; on the caller's own where that is one.

    With `adapt`, on as many of them as the load asks for, beginning with one (7.3).
    """

    spec: ManySpec
    lateness: int | None = 0
    cores: int = 1
    cpus: tuple[int, ...] = ()
    """The processor of each core's thread; empty if threads are not pinned."""
    adapt: bool = False
    clock: Clock = time.perf_counter
    on_late: OnLate | None = None
    driver: ManyDriver = field(init=False)
    statistics: Statistics = field(init=False)
    orders: list[Order] = field(init=False)
    expired: int = 0
    replans: int = 0

    def __post_init__(self) -> None:
        self.driver = ManyDriver(self.spec, self.lateness, self.on_late)
        self.statistics = Statistics(self.spec)
        self.orders = [best_order(k, self.spec, self.statistics) for k in range(len(self.spec.streams))]
        self._windows: dict[int, StepWindow] = {}
        self._keys: dict[Key, None] = {}
        self._steps: list[dict[Key, StepCore]] = [{} for _ in range(self.cores)]
        self._results = [0] * self.cores
        self._batches = [0] * self.cores
        self.load = Load(self.cores, 1 if self.adapt else self.cores, self.clock)
        self._recent = self._work_seen = 0.0
        self._next_look = self.spec.tuning.first_look
        self.watch = Stopwatch()
        self.crew = Crew(
            self.cores, self._work, self._describe, lambda job: job.came, active=self.load.active,
            cpus=self.cpus, clock=self.clock, inline=self.cores == 1,
        )  # fmt: skip
        self.latencies = self.crew.latencies
        self._arrange()

    # Planning.

    def _arrange(self) -> None:
        """Have the windows that the orders need, and no others."""
        needed: dict[int, StepWindow] = {}
        keys = dict.fromkeys(key for order in self.orders for key in _route(order))
        self._keys = self._keys | keys  # a new value: another thread may read the metrics
        for key in keys:
            layout = self.spec.layout(*key)
            if layout not in needed:
                needed[layout] = self._windows.get(layout) or self._make_window(self.spec.step(*key))
        self._windows = needed

    def _have_cores(self, route: tuple[Key, ...]) -> None:
        """Make what each core needs for the steps of a route, when the route is first taken."""
        for steps in self._steps:
            for key in route:
                if key not in steps:
                    steps[key] = StepCore(self.spec, self.spec.step(*key), self.crew.monitor.check)

    def _make_window(self, step: StepSpec) -> StepWindow:
        """Return a window for a step, filled from another window of the same stream."""
        window = StepWindow(step, self.cores, self.crew.active)
        held = self._any_window(step.target)
        for batch in held.tuples() if held is not None else ():
            window.add(batch)
        return window

    def _any_window(self, k: int) -> StepWindow | None:
        return next((window for window in list(self._windows.values()) if window.step.target == k), None)

    def tuples(self, k: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples in the window of a stream, stamped."""
        window = self._any_window(k)
        assert window is not None
        return window.tuples()

    def refill(self, k: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Put tuples that were held into all windows of their stream, without joining them."""
        for window in self._windows.values():
            if window.step.target == k:
                for batch in batches:
                    window.add(batch)

    def foresee(self, samples: Sequence[pa.RecordBatch], rows: Sequence[int]) -> None:
        """Plan, before the first push, by some tuples of each stream and by how many a window will hold."""
        if len(self.spec.streams) < 3:
            return
        for k, held in enumerate(rows):
            self.statistics.hold(k, held)
        names = [[f"{s.name}.{name}" for name in s.schema.names] for s in self.spec.streams]
        named = [pa.RecordBatch.from_arrays(b.columns, names=n) for b, n in zip(samples, names, strict=True)]
        self.statistics.sample(dict(enumerate(named)))
        self.orders = [best_order(order.source, self.spec, self.statistics) for order in self.orders]
        self._arrange()

    def _look(self) -> None:
        """Look at the statistics when it is time, and change orders that have become bad ones.

        Orders decide when conditions are tested, not what the results are. Batches that cores still work on
        keep their order.
        """
        arrived = sum(counts.rows for counts in self.driver.counts)
        if arrived < self._next_look or len(self.spec.streams) < 3:
            return
        self._next_look = arrived + self.spec.tuning.next_look
        self._observe()
        better = [self._better(order) for order in self.orders]
        changed = sum(a.targets != b.targets for a, b in zip(self.orders, better, strict=True))
        self.orders = better
        if changed:
            self.replans += changed
            self._arrange()

    def _observe(self) -> None:
        samples = {}
        for k in range(len(self.spec.streams)):
            window = self._any_window(k)
            assert window is not None
            self.statistics.hold(k, window.rows)
            samples[k] = window.sample()
        self.statistics.sample(samples)
        self.statistics.measure(core for steps in self._steps for core in steps.values())

    def _better(self, order: Order) -> Order:
        """Return the best order now, if it is much better than the given one."""
        tuning = self.spec.tuning
        now = cost_order(order.source, order.targets, self.spec, self.statistics)
        best = best_order(order.source, self.spec, self.statistics)
        saved = (now.seconds - best.seconds) * self.driver.counts[order.source].rows
        return best if now.seconds > tuning.order_gain * best.seconds and saved > tuning.order_worth else now

    # On the cores.

    def _work(self, core: int, job: _Job) -> Iterator[pa.RecordBatch]:
        self._batches[core] += 1
        first = self._steps[core][job.route[0]].probe(job.outer.piece, job.runs[0], job.outer)
        for found in self._through(core, job, 1, first):
            self._results[core] += found.num_rows
            yield self._output(found)

    def _through(
        self, core: int, job: _Job, at: int, found: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Take combinations through the windows that are left in the order, many at a time."""
        if at == len(job.route):
            yield from found
            return
        step, run = self._steps[core][job.route[at]], job.runs[at]
        for combinations in coalesce(found):
            yield from self._through(core, job, at + 1, step.follow(combinations, run))

    def _output(self, found: pa.RecordBatch) -> pa.RecordBatch:
        columns = [found.column(f"{s.name}.{name}") for s in self.spec.streams for name in s.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.output)

    def _describe(self, job: _Job) -> str:
        return f"a batch of {job.outer.piece.rows} tuples of the {self.spec.names[job.source]} input"

    # On the coordinator.

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        self.watch.start()
        self._look()
        stamped = self.driver.admit(stream, batch, seen)
        yield from self._search(stream, stamped, came)
        for window in self._windows.values():
            if window.step.target == stream:
                window.add(stamped)
        self.expire()
        yield from self.crew.ready()

    def _search(self, stream: int, stamped: pa.RecordBatch, came: float) -> Iterator[pa.RecordBatch]:
        route = _route(self.orders[stream])
        windows = [self._windows[self.spec.layout(*key)] for key in route]
        if not all(window.rows for window in windows):
            return
        if self.adapt and self.cores > 1:
            self._resize(self.load.note(sum(self.crew.busy)))
        self._have_cores(route)
        step = self._steps[0][route[0]]
        rest = tuple(window.whole() for window in windows[1:])
        for piece in step.cut(step.enter(stamped)):
            for core, outer, run in self._deal(step, piece, windows[0]):
                yield from self.crew.hand(core, _Job(stream, outer, route, (run, *rest), came))

    def _deal(
        self, step: StepCore, piece: BasicWindow, window: StepWindow
    ) -> Iterator[tuple[int, Outer, tuple[BasicWindow, ...]]]:
        """Assign work to cores: each core searches its run of the window with the whole piece (7.1).

        If a window is indexed, or has too few basic windows to share, cores share the piece instead. If there
        is little to do, one core does it all.
        """
        if self.crew.active == 1 or not self._is_large(piece):
            yield self.crew.least_busy(), step.core.outer(piece), window.whole()
        elif window.is_dealt and len(window.segment.windows) >= 2 * self.crew.active:
            outer = step.core.outer(piece).prepare()
            for core, run in enumerate(window.runs()):
                yield core, outer, run
        else:
            for core in range(self.crew.active):
                start, stop = (piece.rows * n // self.crew.active for n in (core, core + 1))
                part = BasicWindow(piece.spec, piece.batch.slice(start, stop - start))
                yield core, step.core.outer(part), window.whole()

    def _resize(self, cores: int) -> None:
        """Use this many cores from the next batch on (7.3).

        Windows are dealt out afresh. A core that is released does what it was handed, then its thread ends.
        """
        self.crew.resize(cores)
        for window in self._windows.values():
            window.cores = cores

    def _is_large(self, piece: BasicWindow) -> bool:
        """Return whether a piece is worth sharing, by its size and the work of those before it."""
        work = sum(core.core.work for steps in self._steps for core in list(steps.values()))
        self._recent = 0.7 * self._recent + 0.3 * (work - self._work_seen)
        self._work_seen = work
        tuning = self.spec.tuning
        return piece.rows >= tuning.dealt_rows or self._recent > tuning.dealt_seconds

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        return self.crew.drain(until)

    def _is_idle(self) -> bool:
        return self.crew.idle()

    def wake(self) -> None:
        """Make a running `settle` check `until` again."""
        self.crew.monitor.wake_all()

    def expire(self) -> None:
        """Drop tuples that no tuple to come can join."""
        for window in self._windows.values():
            oldest = self.driver.oldest(window.step.target)
            if oldest is not None:
                self.expired += window.segment.expire(oldest)

    def close(self) -> None:
        """Stop; all threads end."""
        self.watch.stop()
        self.crew.close()

    # Figures.

    def explain(self, cores: int | None = None) -> str:
        """Describe the join orders and their steps as they are now."""
        return explain_many(self.spec, self.orders, self.statistics, cores or self.cores)

    def _count_results(self) -> int:
        return sum(self._results)

    def metrics(self) -> MultiMetrics:
        """Return counts and sizes so far."""
        windows = list(self._windows.values())
        cores = [core for steps in self._steps for core in list(steps.values())]
        return MultiMetrics(
            tuple(map(self._stream_metrics, range(len(self.spec.streams)))),
            results=sum(self._results),
            comparisons=sum(core.core.comparisons for core in cores),
            basic_windows=sum(len(window.segment.windows) for window in windows),
            state_bytes=sum(window.segment.nbytes for window in windows),
            expired=self.expired,
            elapsed=self.watch.seconds,
            algorithm="mjoin",
            cores=tuple(map(self._core_metrics, range(self.cores))),
            latency=self.latencies.figures(),
            core_counts=tuple(self.crew.history) if self.adapt else (),
            steps=tuple(map(self._step_metrics, tuple(self._keys))),
            replans=self.replans,
        )

    def _stream_metrics(self, k: int) -> StreamMetrics:
        counts, window, names = self.driver.counts[k], self._any_window(k), self.spec.names
        return StreamMetrics(
            names[k], counts.rows, counts.late, counts.no_time, counts.unmatchable,
            window.rows if window is not None else 0, tuple(names[t] for t in self.orders[k].targets),
        )  # fmt: skip

    def _step_metrics(self, key: Key) -> StepMetrics:
        cores = [core for steps in self._steps if (core := steps.get(key)) is not None]
        names = self.spec.names
        joined, new = key[0], self.spec.new_conditions(*key)
        return StepMetrics(
            tuple(names[k] for k in sorted(joined)), names[new.target], new.method,
            sum(core.probed for core in cores), sum(core.core.comparisons for core in cores),
            sum(core.found for core in cores),
        )  # fmt: skip

    def _core_metrics(self, k: int) -> CoreMetrics:
        comparisons = sum(core.core.comparisons for core in list(self._steps[k].values()))
        deepest = self.crew.inboxes[k].deepest
        return CoreMetrics(self._results[k], comparisons, batches=self._batches[k], deepest_queue=deepest)


def _route(order: Order) -> tuple[Key, ...]:
    """Return the steps of an order."""
    streams = (order.source, *order.targets)
    return tuple((frozenset(streams[:at]), streams[at]) for at in range(1, len(streams)))
