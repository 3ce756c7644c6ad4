"""As-of joins by segments, driven by hand over random micro-batches; without a JVM."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asof_streams import CONDITIONS, DIRECTIONS, make_stream, pairs, predicate_of
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.explain import FramePlan
from handshake.engines.spark.state.store import Store
from handshake.joins.asof import AsOf
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan import parse
from handshake.testing.oracle import TIME, asof, rows
from handshake.windows import Windows
from pairs import EXAMPLES
from spark_steps import Cluster, best_definition

MICRO = 10**3


def make_definition(
    tables: list[pa.Table],
    on: str | None,
    by: str | None,
    segments: int,
    root: str,
    tuning: Tuning,
    **options,
) -> Definition:
    left, right = (table.schema for table in tables)
    join = AsOf(left, right, None if on is None else parse(on), by, ("t", "t"), cores=1, **options)
    return best_definition(join, segments, root, tuning)


class Steps:
    """Random micro-batches, and when each left row should come by plain means."""

    def __init__(self, rng: Random, cluster: Cluster, tables: list[pa.Table], ahead: int, needed) -> None:
        self.rng, self.cluster, self.tables, self.ahead, self.needed = rng, cluster, tables, ahead, needed
        self.times = [[row[TIME] for row in rows(table, "t")] for table in tables]
        self.taken, self.delay = [0, 0], rng.choice((0, 0, 1, 5, 60)) * 10**9
        self.waiting: list[int] = []
        self.right: list[int] = []
        self.late = 0
        self.came: list[tuple[list, list[int]]] = []
        """Of each micro-batch, the pairs that came, and the left rows that should have."""

    def run(self) -> None:
        while any(self.taken[side] < self.tables[side].num_rows for side in (0, 1)):
            parts, at_once = ([], []), []
            mark = self.cluster.watermark
            for side in (0, 1):
                for _ in range(self.rng.choice((0, 1, 1, 2))):
                    parts[side].append(self._take(side, self.rng.choice((0, 1, 3, 10, 40)), mark, at_once))
            if not any(table.num_rows for side in parts for table in side):
                continue
            again = [k for k in range(self.cluster.definition.segments) if self.rng.random() < 0.2]
            self._note(self.cluster.run(parts, again), at_once)
            self._move()
            if self.rng.random() < 0.5:
                self._note(self.cluster.tick(), [])
        self.cluster.watermark = 10**12
        self._note(self.cluster.tick(), [])

    def _take(self, side: int, size: int, mark: int | None, at_once: list[int]) -> pa.Table:
        """Take the next rows of a side; note which ones are late, wait, or come at once."""
        start = self.taken[side]
        table = self.tables[side].slice(start, size)
        self.taken[side] += table.num_rows
        for index in range(start, start + table.num_rows):
            time, row = self.times[side][index], self.tables[side].slice(index, 1).to_pylist()[0]
            missing = any(row[name] is None or row[name] != row[name] for name in self.needed)
            if time is not None and mark is not None and time < mark * MICRO:
                # rows that can match nothing, and are no results, are counted as such before any segment
                self.late += not missing or self.cluster.definition.kind.preserved[side]
            elif side == 1:
                self.right.append(index)
            else:
                (at_once if time is None or missing else self.waiting).append(index)
        return table

    def _note(self, batches, at_once: list[int]) -> None:
        mark = self.cluster.watermark
        final = [i for i in self.waiting if mark is not None and mark * MICRO > self.times[0][i] + self.ahead]
        self.waiting = [i for i in self.waiting if i not in final]
        self.came.append((pairs(batches), sorted([*at_once, *final])))

    def _move(self) -> None:
        """Advance the watermark as Spark does: the slower side's newest time less the delay."""
        newest = [
            max((t for t in times[:count] if t is not None), default=None)
            for times, count in zip(self.times, self.taken, strict=True)
        ]
        if None not in newest:
            mark = (min(newest) - self.delay) // MICRO
            known = self.cluster.watermark
            self.cluster.watermark = mark if known is None else max(known, mark)


def check(seed: int, root: str, tuning: Tuning, on: str | None, by: str | None) -> None:
    rng = Random(f"as of {seed}")
    direction, how, exact = rng.choice(DIRECTIONS), rng.choice(("left", "inner")), rng.random() < 0.5
    tolerance = rng.choice((0, 1, 4, 100))
    tables = [
        make_stream(rng, rng.randint(0, 80), pa.timestamp("us", "UTC"), side) for side in ("left", "right")
    ]
    definition = make_definition(
        tables, on, by, rng.choice((1, 2, 3, 5)), root, tuning, direction=direction, how=how,
        tolerance=f"{tolerance} s", allow_exact_matches=exact,
    )  # fmt: skip
    needed = [*CONDITIONS[on], *([by] if by else [])]
    ahead = 0 if direction == "backward" else tolerance * 10**9
    steps = Steps(rng, Cluster(definition, Store(root)), tables, ahead, needed)
    steps.run()
    left, right = (rows(table, "t") for table in tables)
    others = [right[index] for index in steps.right]
    best = asof(left, others, predicate_of(*tables, on, by), direction, tolerance * 10**9, exact)
    for found, indices in steps.came:
        want = [(i, None if best[i] is None else steps.right[best[i]]) for i in indices]
        kept = [pair for pair in want if pair[1] is not None or how == "left"]
        assert sorted(found) == kept, (on, by, direction, tolerance, exact, how)
    tallies = [tally for batch in steps.cluster.tallies for tally in batch]
    assert sum(sum(tally.late) for tally in tallies) == steps.late
    assert all(manifest.states[0].pending == 0 for manifest in steps.cluster.manifests())


@pytest.fixture(params=["as shipped", "small chunks, moving cuts"])
def tuning(request):
    if request.param == "as shipped":
        return TUNING
    return Tuning(
        indexed_from=1, indexed_probes=1, chunk_rows=7, settled_batches=1, uneven=1.0, reduced_from=1
    )


SEEDS = st.integers(0, 2**32 - 1)
CASES = st.sampled_from([(on, by) for on in CONDITIONS for by in (None, "k")])


@settings(EXAMPLES, max_examples=10)
@given(seed=SEEDS, case=CASES)
def test_micro_batches_agree_with_the_oracle(tuning, seed, case, tmp_path_factory):
    check(seed, str(tmp_path_factory.mktemp("state")), tuning, *case)


@pytest.mark.soak
@settings(EXAMPLES, max_examples=300)
@given(seed=SEEDS, case=CASES)
def test_many_micro_batches_agree_with_the_oracle(tuning, seed, case, tmp_path_factory):
    check(seed, str(tmp_path_factory.mktemp("state")), tuning, *case)


def test_right_rows_are_held_as_long_as_they_are_wanted(tmp_path):
    """A nearest join looks back and ahead; a row that is out of reach of all left rows to come is dropped."""
    tables = [
        pa.table({"k": [1], "t": pa.array([time]).cast(pa.timestamp("us"))})
        for time in (10 * 10**6, 4 * 10**6)
    ]
    definition = make_definition(
        tables, None, "k", 1, str(tmp_path), TUNING, direction="nearest", tolerance="6 s"
    )
    assert definition.windows == Windows(*definition.best.held_windows())
    cluster = Cluster(definition, Store(str(tmp_path)))
    cluster.run(([tables[0]], [tables[1]]))
    cluster.watermark = 16 * 10**6
    assert cluster.tick() == []
    assert [len(side) for side in cluster.manifests()[0].windows] == [1, 1]
    cluster.watermark += 1
    assert [batch["t_right"].to_pylist() for batch in cluster.tick()] == [tables[1]["t"].to_pylist()]
    assert [len(side) for side in cluster.manifests()[0].windows] == [0, 0]


@pytest.mark.parametrize(
    ("direction", "on"), [("backward", None), ("nearest", None), ("backward", "r.x >= 0")]
)
def test_right_rows_that_later_ones_replace_are_dropped(tmp_path, direction, on):
    """Without a condition, a segment holds the last right row of each key from before the watermark."""
    tables = [
        pa.table(
            {
                "k": pa.array([n % 3 for n in range(600)]),
                "x": pa.array(range(600)),
                "t": pa.array([n * 10**6 for n in range(600)]).cast(pa.timestamp("us")),
                f"row of {side}": pa.array(range(600)),
            }
        )
        for side in ("left", "right")
    ]
    definition = make_definition(
        tables, on, "k", 1, str(tmp_path), Tuning(reduced_from=50), direction=direction, tolerance="1000 s"
    )
    text = FramePlan(definition, "streaming", None).explain()
    assert ("unless later ones of their keys replace them" in text) == (on is None)
    cluster, found = Cluster(definition, Store(str(tmp_path))), []
    ahead = 1000 if direction == "nearest" else 0
    for start in range(0, 600, 20):
        found += cluster.run(tuple([table.slice(start, 20)] for table in tables))
        cluster.watermark = (start + 20 - ahead) * 10**6
    held = cluster.tallies[-1][0].held[1]
    assert held == 600 if on or ahead else held < 200
    cluster.watermark = 10**10
    found += cluster.tick()
    assert sorted(pairs(found)) == [(n, n) for n in range(600)]
