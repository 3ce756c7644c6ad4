"""Silent streams: after `idle` without rows of one stream, the watermark follows the other one alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import handshake
from handshake.errors import UnsupportedError, WindowError
from handshake.kinds import KINDS
from handshake.schema import UNITS

pytest.importorskip("pyspark")
from handshake.engines.spark.joins.definition import Idle
from handshake.engines.spark.state.store import Store
from handshake.testing.oracle_values import TIME, rows
from pairs import with_row_numbers
from spark_kinds import expected_kind
from spark_session import Feed, Sink
from spark_steps import Cluster, arrivals_of, cut, definition_of, row_pairs
from strategies import Case, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MILLISECOND = UNITS["ms"]


@dataclass
class SlowClock:
    """The watermark with silent streams, by plain means: from the whole history."""

    idle: Idle
    unit: int
    history: list[tuple[int, list[list[int]]]] = field(default_factory=list)
    """Of each micro-batch with rows, when it began and the times of both streams, in nanoseconds."""
    marks: list[int] = field(default_factory=list)

    def watermark(self, now: int, times: list[list[int]]) -> int | None:
        """Return the watermark of a micro-batch that begins now, in the unit of the join."""
        before = [[t for _, each in self.history for t in each[side]] for side in (0, 1)]
        clocks = [
            max(times) // MILLISECOND - delay if times else 0
            for times, delay in zip(before, self.idle.delays, strict=True)
        ]
        self.history.append((now, times))
        silent = [self._silent(side, now) for side in (0, 1)]
        found = [min(clocks)]
        if silent == [True, False]:
            found.append(clocks[1])
        if silent == [False, True]:
            found.append(clocks[0])
        self.marks.append(max(found))
        newest = max(self.marks)
        return newest * MILLISECOND // self.unit if newest > 0 else None

    def spark(self) -> int | None:
        """Return the watermark of Spark for the next micro-batch, which knows nothing of silence."""
        each = [[t for _, times in self.history for t in times[side]] for side in (0, 1)]
        if not all(each):
            return None
        pairs = zip(each, self.idle.delays, strict=True)
        mark = min(max(times) // MILLISECOND - delay for times, delay in pairs)
        return mark * MILLISECOND // self.unit if mark > 0 else None

    def _silent(self, side: int, now: int) -> bool:
        since = None
        for began, times in self.history:
            if times[side]:
                since = None
            elif since is None:
                since = began
        return since is not None and now - since >= self.idle.after


def check_silence(case: Case, seed: int, root: str) -> None:
    """Run random micro-batches at random moments, with long runs in which one stream is silent."""
    rng = Random(f"silence {seed}")
    kind = rng.choice(list(KINDS.values()))
    tables = with_row_numbers(case)
    idle = Idle(rng.choice((1, 50, 300)), (rng.choice((0, 2000)), rng.choice((0, 5000))))
    try:
        definition = definition_of(
            *tables, case, rng.choice((1, 3)), root, kind=kind, idle=f"{idle.after} ms", delays=idle.delays
        )
        definition.spec
    except UnsupportedError:  # numbers beyond 512 bits are refused, in words
        return
    unit = UNITS[definition.spec.unit]
    cluster, slow = Cluster(definition, Store(root)), SlowClock(idle, unit)
    marks, results, start, now = [], [], [0, 0], 1000
    batches = []
    for both in cut(rng, case, tables):  # one stream after the other, half of the time
        alone = [(both[0], []), ([], both[1])]
        batches += rng.sample(alone, 2) if rng.random() < 0.5 else [both]
    for parts in batches:
        now += rng.choice((0, 10, 60, 400))
        cluster.now = now
        times = []
        for side, (table, name) in enumerate(((case.left, case.left_time), (case.right, case.right_time))):
            count = sum(t.num_rows for t in parts[side])
            clock = [row[TIME] for row in rows(table.slice(start[side], count), name)]
            start[side] += count
            times.append([t for t in clock if t is not None])
        there = any(table.num_rows for tables in parts for table in tables)  # otherwise no micro-batch
        cluster.watermark = slow.spark()
        marks.append(slow.watermark(now, times) if there else None)
        results += cluster.run(parts, [k for k in range(definition.segments) if rng.random() < 0.2])
        if there:
            assert {manifest.watermark for manifest in cluster.manifests()} == {marks[-1]}
    cluster.watermark = 2**62
    results += cluster.tick()
    arrivals, late, _ = arrivals_of(cluster, case, batches, marks)
    assert row_pairs(results) == expected_kind(case, kind.name, arrivals), (kind.name, case.on, case.windows)
    if kind.name == "inner":
        assert sum(sum(t.late) for batch in cluster.tallies for t in batch) == late


def timed_cases() -> st.SearchStrategy[Case]:
    return known_cases().filter(lambda case: case.windows.timed and case.windows.left and case.windows.right)


@settings(EXAMPLES, max_examples=10)
@given(case=timed_cases(), seed=st.integers(0, 2**32 - 1))
def test_silent_streams_agree_with_the_oracle(case, seed, tmp_path_factory):
    check_silence(case, seed, str(tmp_path_factory.mktemp("state")))


@pytest.mark.soak
@settings(EXAMPLES, max_examples=300)
@given(case=timed_cases(), seed=st.integers(0, 2**32 - 1))
def test_silent_streams_agree_with_the_oracle_at_length(case, seed, tmp_path_factory):
    check_silence(case, seed, str(tmp_path_factory.mktemp("state")))


# On Spark


BEGIN = datetime(2024, 1, 1)
COLUMNS = "n int, t timestamp"


def table(*seconds: int) -> pa.Table:
    times = [BEGIN + timedelta(seconds=s) for s in seconds]
    return pa.table({"n": pa.array(seconds, pa.int32()), "t": pa.array(times, pa.timestamp("us", "UTC"))})


def test_a_silent_stream_does_not_hold_back_results(spark: Any, tmp_path: Any) -> None:
    """Rows without a match come although one stream is silent, and late rows of it are dropped.

    The query stops after every micro-batch: the clocks are part of its checkpoint.
    """
    feeds = [Feed(tmp_path / name, COLUMNS) for name in ("left", "right")]
    left, right = (feed.read(spark).withWatermark("t", "0 seconds") for feed in feeds)
    joined = handshake.join(
        left, right, "l.n = r.n", window="10 s", how="left", idle="1 ms", name="idle", segments=2
    )
    sink = Sink(tmp_path / "sink")
    batches = [
        ((0, 1), (0,)),  # the watermark is 0 s after this
        ((30,), ()),  # the right stream begins to be silent
        ((60,), ()),  # and is left out: the watermark is 30 s, so row 1 is final
        ((90,), ()),  # 60 s: row 30 is final
        ((), (45, 90)),  # it comes back: 45 is late
    ]
    came = []
    for each in batches:
        for feed, seconds in zip(feeds, each, strict=True):
            if seconds:
                feed.add(table(*seconds))
        before = len(sink.rows())
        sink.run(joined)
        came.append(sorted((row["n"], row["n_right"]) for row in sink.rows()[before:]))
    assert came == [[(0, 0)], [], [(1, None)], [(30, None)], [(90, 90)]]
    assert sink.sums("idle", "late") == 1


def test_idle_is_checked(spark: Any, tmp_path: Any) -> None:
    feed = Feed(tmp_path / "in", COLUMNS)
    feed.add(table(1))
    stream = feed.read(spark).withWatermark("t", "0 seconds")
    batch = spark.createDataFrame([(1,)], "m int")
    for kind, message, inputs, options in (
        (UnsupportedError, "idle='5 s' is for joins of two streams, and an input is a batch DataFrame",
         (stream, batch), {"idle": "5 s"}),
        (WindowError, "idle='5 s' moves the watermark, which windows of tuples do not follow; leave it out",
         (stream, stream), {"idle": "5 s", "window": "5 tuples"}),
        (WindowError, "idle must be a millisecond or longer; '5 us' is not",
         (stream, stream), {"idle": "5 us", "window": "5 s"}),
        (WindowError, "cannot read 'soon' as a length of time",
         (stream, stream), {"idle": "soon", "window": "5 s"}),
    ):  # fmt: skip
        with pytest.raises(kind, match=re.escape(message)):
            handshake.join(*inputs, **options)
    with pytest.raises(UnsupportedError, match="idle='5 s' is only supported by the spark engine"):
        handshake.join({"x": [1]}, {"a": [1]}, idle="5 s")
