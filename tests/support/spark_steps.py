"""The Spark back end without Spark: chunks, references and segments driven by hand, batch by batch."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from handshake.engines.spark.joins.changes import Change, postpone, prepare_change
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.segment import SegmentStep, SegmentTally
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PackedChunk, pack
from handshake.engines.spark.state.store import Chunks, KeptChunks, Store
from handshake.joins.asof import AsOf
from handshake.joins.nearest import Nearest
from handshake.joins.spec import SIDES
from handshake.joins.tuning import TUNING, Tuning
from handshake.kinds import BEST
from handshake.options import OPTIONS, Options
from handshake.plan.parse import parse
from handshake.schema import UNITS
from handshake.testing.oracle_values import TIME, rows
from strategies import Case

FOLDER = "query/join-test"
FILES = replace(TUNING, inline_bytes=0)
"""All chunks are files, although they are small."""


def definition_of(
    left: pa.Table, right: pa.Table, case: Case, segments: int, root: str, **changes
) -> Definition:
    options = {name: changes.pop(name) for name in OPTIONS if name in changes}
    chosen = {
        "suffix": "_right",
        "aliases": None,
        "retain": 3,
        "tuning": replace(TUNING, inline_bytes=200),
        **changes,
    }
    return Definition(
        left.schema, right.schema, parse(case.on), case.windows, (case.left_time, case.right_time),
        segments=segments, partitions=segments, root=root, marker="", options=Options(**options), **chosen,
    )  # fmt: skip


def best_definition(join: AsOf | Nearest, segments: int, root: str, tuning: Tuning = FILES) -> Definition:
    """Define an as-of or nearest join of streams."""
    times = join.times[0], join.times[1]
    return Definition(
        join.left, join.right, join.condition(), join.held_windows(), times, "_right", join.aliases,
        segments, segments, root, "", 3, BEST[join.how], best=join, tuning=tuning,
    )  # fmt: skip


class MapState(dict[tuple[str], tuple[bytes]]):
    """A map of Spark's state store."""

    getValue, updateValue = dict.get, dict.__setitem__

    def removeKey(self, key: tuple[str]) -> None:
        self.pop(key, None)


@dataclass
class Cluster:
    """Segments with their states, and the watermark as Spark would move it.

    With `state="store"`, chunks are in the states too, and return to an earlier micro-batch with them.
    """

    definition: Definition
    store: Store
    folder: str = FOLDER
    pack: Callable[..., Iterable[PackedChunk]] = pack
    """Packs the tuples of a partition."""
    delay: int = 0
    states: list[bytes | None] = field(default_factory=list)
    maps: list[MapState] = field(default_factory=list)
    """The chunks of each segment, in Spark's state store."""
    newest: list[int | None] = field(default_factory=lambda: [None, None])
    watermark: int | None = None
    batch: int = 0
    now: int | None = None
    """The time at which the micro-batch begins, in milliseconds."""
    starts: int = 0
    """How often the query has been started again."""
    tallies: list[list[SegmentTally]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = [None] * self.definition.segments
        self.maps = [MapState() for _ in self.states]

    def run(
        self, parts: tuple[Sequence[pa.Table], Sequence[pa.Table]], again: Sequence[int] = ()
    ) -> list[pa.RecordBatch]:
        """Run one micro-batch; segments in `again` run it twice, as if an attempt failed."""
        arrivals = self._pack(parts)
        return self._run(arrivals, again) if arrivals else []

    def crash(self, parts: tuple[Sequence[pa.Table], Sequence[pa.Table]], segments: Sequence[int]) -> None:
        """Run some segments of a micro-batch that does not end, and start the query again."""
        before = self._committed_state()
        arrivals = self._pack(parts)
        if arrivals:
            self._run(arrivals, (), segments)
            self.tallies.pop()
        self._restart(before)

    def _committed_state(self) -> tuple[list[bytes | None], list[MapState], int]:
        return list(self.states), [MapState(each) for each in self.maps], self.batch

    def _restart(self, before: tuple[list[bytes | None], list[MapState], int]) -> None:
        self.states, self.maps, self.batch = before
        self.starts += 1

    def _pack(self, parts: tuple[Sequence[pa.Table], Sequence[pa.Table]]) -> list[PackedChunk]:
        folder = f"{self.folder}/batch/{self.batch}"
        store = self.store if self.definition.options.state == "directory" else None
        return [
            arrival
            for side, partitions in enumerate(parts)
            for number, table in enumerate(partitions)
            for arrival in self.pack(self.definition, side, table.to_batches(), store, folder, number)
        ]

    def change(self, definition: Definition) -> None:
        """Go on with another definition, as a query that is restarted; its segments have other keys."""
        self.definition, self.starts = definition, self.starts + 1
        missing = definition.segments - len(self.states)
        self.states += [None] * missing
        self.maps += [MapState() for _ in range(missing)]

    def tick(self) -> list[pa.RecordBatch]:
        """Run a micro-batch without new rows, in the segments whose timers have expired."""
        due = []
        for k, state in enumerate(self.states):
            held = None if state is None else Manifest.parse(state)
            mark = self.watermark
            if held is None or held.timer is None or mark is None or held.timer > mark:
                continue
            moved = k >= self.definition.segments
            if moved or self._change(k, held) is not None:
                postpone(self.definition, held, self.store, self.batch, self.folder, self._run_name)
            else:
                due.append(k)
        return self._run([], (), due)

    def crash_tick(self) -> list[pa.RecordBatch]:
        """Run a micro-batch without new rows that does not end, and start the query again."""
        before = self._committed_state()
        lost = self.tick()
        self.tallies.pop()
        self._restart(before)
        return lost

    @property
    def _run_name(self) -> str:
        return f"run {self.starts}"

    def _run(self, arrivals, again=(), segments: Sequence[int] | None = None) -> list[pa.RecordBatch]:
        results, tallies, routers = [], [], []
        for segment in range(self.definition.segments) if segments is None else segments:
            before = self.states[segment], self.maps[segment]
            for _ in range(2 if segment in again else 1):
                self.states[segment], self.maps[segment] = before[0], MapState(before[1])
                state, chunks = self.states[segment], self._chunks(segment)
                held = None if state is None else Manifest.parse(state)
                change = self._change(segment, held)
                if change is not None:
                    held = change.begin(self.folder, segment, uuid.uuid4().hex[:12])
                step = SegmentStep(
                    self.definition, segment, held, arrivals, self.watermark, chunks, self.batch,
                    self.folder, now=self.now, take_over=None if change is None else change.take_over,
                    run=self._run_name,
                )  # fmt: skip
                mine = _results(step)
            step.manifest.timer = step.next_final  # tests count timers in the unit of the join
            self.states[segment] = step.commit()
            results += mine
            tallies.append(step.tally)
            routers.append([(e.cuts, e.newest) for e in step.manifest.router.epochs])
        assert not arrivals or all(router == routers[0] for router in routers)
        self.tallies.append(tallies)
        self.batch += 1
        return results

    def _change(self, segment: int, held: Manifest | None) -> Change | None:
        chunks = self._chunks(segment)
        return prepare_change(self.definition, self.folder, chunks, self.batch, held, self._run_name)

    def _chunks(self, segment: int) -> Chunks:
        return self.store if self.definition.options.state == "directory" else KeptChunks(self.maps[segment])

    def manifests(self) -> list[Manifest]:
        states = self.states[: self.definition.segments]
        return [Manifest.parse(state) for state in states if state is not None]


def _results(step: SegmentStep) -> list[pa.RecordBatch]:
    """Return the results of a segment, from their file if that is where they go."""
    if step.definition.options.results_to is None:
        return list(step.results())
    file = step.write_results()
    if file is None:
        return []
    table = pq.read_table(file.path)
    assert (table.num_rows, os.path.getsize(file.path)) == (file.rows, file.bytes)
    assert step.tally.written_bytes == file.bytes
    return table.to_batches()


Parts = tuple[list[pa.Table], list[pa.Table]]


def cut(rng: Random, case: Case, tables: tuple[pa.Table, pa.Table]) -> list[Parts]:
    """Draw random micro-batches of random partitions; rows keep their order."""
    batches = []
    at = [0, 0]
    while any(at[side] < tables[side].num_rows for side in (0, 1)):
        parts: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for side in (0, 1):
            for _ in range(rng.choice((0, 1, 1, 2))):
                size = rng.choice((0, 1, 3, 10, 40))
                parts[side].append(tables[side].slice(at[side], size))
                at[side] = min(at[side] + size, tables[side].num_rows)
        batches.append(parts)
    return batches


def arrivals_of(cluster: Cluster, case: Case, batches, marks: list[int | None]):
    """Return the documented order of arrival, by plain means: (admitted arrivals, late, without a time)."""
    sides = ((case.left, case.left_time), (case.right, case.right_time))
    clocks = [[row.get(TIME) for row in rows(table, name)] for table, name in sides]
    unit = UNITS[cluster.definition.spec.unit]
    order, late, no_time, start = [], 0, 0, [0, 0]
    for parts, mark in zip(batches, marks, strict=True):
        here = []
        for side in (0, 1):
            count = sum(t.num_rows for t in parts[side])
            ranked = []
            for index in range(start[side], start[side] + count):
                now = clocks[side][index] if case.left_time else None
                if case.windows.timed and now is None:
                    no_time += 1
                elif case.windows.timed and mark is not None and now // unit < mark:
                    late += 1
                else:
                    ranked.append((now, index))
            here += [(now, turn, side, index) for turn, (now, index) in enumerate(ranked)]
            start[side] += count
        if case.left_time:
            here.sort(key=lambda a: (math.inf if a[0] is None else a[0], a[2], a[3]))
        else:
            here.sort(key=lambda a: (a[1], a[2]))
        order += [(SIDES[side], index) for _, _, side, index in here]
    return order, late, no_time


def row_pairs(batches: Sequence[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Return the sorted pairs of row numbers in results; None for a side that is missing."""
    names = ("row of left", "row of right")
    found: list[tuple[int, int]] = []
    for batch in batches:
        nothing = [None] * batch.num_rows
        sides = (batch.column(n).to_pylist() if n in batch.schema.names else nothing for n in names)
        found += zip(*sides, strict=True)
    return sorted(found, key=repr)
