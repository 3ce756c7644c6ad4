"""Segments, driven by hand over random micro-batches, give what the oracle gives; without a JVM."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.state.store import Store
from handshake.errors import UnsupportedError
from handshake.joins.tuning import TUNING, Tuning
from handshake.kinds import INNER, KINDS
from handshake.schema import UNITS
from handshake.testing.oracle_values import TIME, rows
from handshake.windows import TupleWindow, Windows
from pairs import with_row_numbers
from spark_kinds import expected_kind, matchable_rows
from spark_steps import Cluster, arrivals_of, cut, definition_of, row_pairs
from strategies import Case, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(params=["as shipped", "all indexed, small chunks"])
def tuning(request):
    if request.param == "as shipped":
        return TUNING
    return Tuning(indexed_from=1, indexed_probes=1, chunk_rows=7, settled_batches=1, uneven=1.0)


def move(cluster: Cluster, case: Case, parts, start, delay: int) -> None:
    """Advance the watermark as Spark does: the slower side's newest time less the delay."""
    for side, (table, name) in enumerate(((case.left, case.left_time), (case.right, case.right_time))):
        count = sum(t.num_rows for t in parts[side])
        times = [r[TIME] for r in rows(table.slice(start[side], count), name) if r[TIME] is not None]
        start[side] += count
        if times:
            newest = cluster.newest[side]
            cluster.newest[side] = max(times) if newest is None else max(newest, *times)
    if None not in cluster.newest:
        mark = (min(cluster.newest) - delay) // UNITS[cluster.definition.spec.unit]
        cluster.watermark = mark if cluster.watermark is None else max(cluster.watermark, mark)


def _places(rng: Random, case: Case, root: str) -> dict[str, str | None]:
    """Choose a place for the windows, and whether results and late rows go to files."""
    return {
        "results_to": rng.choice((None, f"{root}/results")),
        "late_to": rng.choice((None, f"{root}/late")),
        "state": "directory" if case.windows.counted else rng.choice(("directory", "store")),
    }


def _crash(rng: Random, cluster: Cluster, parts) -> None:
    """Let a micro-batch fail after some of its segments have done their work, now and then."""
    if rng.random() < 0.2:
        segments = range(cluster.definition.segments)
        cluster.crash(parts, [k for k in segments if rng.random() < 0.5])


def check_files(definition: Definition, results, late: int) -> None:
    """Check that the folders hold the results of micro-batches that ended, and the late rows, once."""
    if definition.options.late_to is not None:
        sides = zip(("left", "right"), ("row of left", "row of right"), strict=True)
        for side, name in sides:
            files = Path(definition.options.late_to, side).glob("part-*.parquet")
            numbers = [n for file in files for n in pq.read_table(file)[name].to_pylist()]
            assert len(numbers) == len({*numbers})
            late -= len(numbers)
        assert late == 0
    if definition.options.results_to is not None:
        files = sorted(Path(definition.options.results_to).glob("part-*.parquet"))
        found = [batch for file in files for batch in pq.read_table(file).to_batches()]
        assert row_pairs(found) == row_pairs(results)


def check_steps(case: Case, seed: int, root: str, tuning: Tuning) -> None:
    rng = Random(f"steps {seed}")
    tables = with_row_numbers(case)
    try:
        definition = definition_of(
            *tables, case, rng.choice((1, 2, 3, 5)), root, tuning=tuning, **_places(rng, case, root)
        )
        definition.spec
    except UnsupportedError:  # numbers beyond 512 bits are refused, in words
        return
    cluster = Cluster(definition, Store(root))
    batches = cut(rng, case, tables)
    delay = rng.choice((0, 0, 1, 5, 60)) * 10**9
    results, marks, start = [], [], [0, 0]
    for parts in batches:
        marks.append(cluster.watermark)
        _crash(rng, cluster, parts)
        again = [k for k in range(definition.segments) if rng.random() < 0.2]
        results += cluster.run(parts, again)
        if case.windows.timed:
            move(cluster, case, parts, start, delay)
    arrivals, late, no_time = arrivals_of(cluster, case, batches, marks)
    want = expect(case, None, arrivals)
    check_files(definition, results, late)
    assert row_pairs(results) == sorted(want.pairs, key=repr), (
        case.on,
        case.windows,
        definition.routing.kind,
    )
    tallies = [t for batch in cluster.tallies for t in batch]
    assert sum(sum(t.late) for t in tallies) == late
    assert sum(t.no_time for t in tallies) == no_time
    assert sum(t.results for t in tallies) == len(want.pairs)


@settings(EXAMPLES, max_examples=8)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_micro_batches_agree_with_the_oracle(tuning, case, seed, tmp_path_factory):
    check_steps(case, seed, str(tmp_path_factory.mktemp("state")), tuning)


# Outer, semi and anti joins


def check_kinds(case: Case, seed: int, root: str, tuning: Tuning) -> None:
    """Check that rows without a match come once, in the micro-batch that makes them final, for any cuts."""
    rng = Random(f"kinds {seed}")
    kind = rng.choice([kind for kind in KINDS.values() if kind != INNER])
    tables = with_row_numbers(case)
    try:
        definition = definition_of(
            *tables, case, rng.choice((1, 2, 3, 5)), root, tuning=tuning, kind=kind,
            **_places(rng, case, root),
        )  # fmt: skip
        definition.spec
    except UnsupportedError:  # numbers beyond 512 bits are refused, in words
        return
    cluster = Cluster(definition, Store(root))
    batches, delay = cut(rng, case, tables), rng.choice((0, 0, 1, 5, 60)) * 10**9
    marks, used, start, came = [], [], [0, 0], []
    for parts in batches:
        marks.append(cluster.watermark)
        _crash(rng, cluster, parts)
        found = cluster.run(parts, [k for k in range(definition.segments) if rng.random() < 0.2])
        if any(table.num_rows for tables in parts for table in tables):  # otherwise there is none
            came.append(found)
            used.append(cluster.watermark)
        if case.windows.timed:
            move(cluster, case, parts, start, delay)
            if rng.random() < 0.5:
                if rng.random() < 0.3:
                    cluster.crash_tick()
                came.append(cluster.tick())
                used.append(cluster.watermark)
    if case.windows.timed:
        cluster.watermark = 2**62
        came.append(cluster.tick())
        used.append(cluster.watermark)
    arrivals, late, _ = arrivals_of(cluster, case, batches, marks)
    want = expected_kind(case, kind.name, arrivals)
    check_files(definition, [batch for results in came for batch in results], late)
    found = row_pairs([batch for results in came for batch in results])
    assert found == want, (kind.name, case.on, case.windows, definition.routing.kind)
    check_moments(cluster, case, tables, came, used, kind)
    tallies = [t for batch in cluster.tallies for t in batch]
    assert sum(t.results for t in tallies) == len(want)
    alone = sum(None in pair for pair in want) if kind.pairs != "first" else 0
    assert sum(t.unmatched for t in tallies) == alone
    if kind.pairs != "first":  # the rows of a semi join that leave without a match are not results
        assert sum(t.finalised for t in tallies) == sum(t.matched for t in tallies) + alone
    if case.windows.left and case.windows.left.timed and case.windows.right and case.windows.right.timed:
        assert sum(t.pending for t in cluster.tallies[-1]) == 0


def check_moments(cluster: Cluster, case: Case, tables, came, used, kind) -> None:
    """Check that rows without a match come as soon as the watermark has passed the end of their window."""
    unit = UNITS[cluster.definition.spec.unit]
    for side, (table, name) in enumerate(((case.left, case.left_time), (case.right, case.right_time))):
        window = case.windows[side]
        if not kind.preserved[side] or window is None or not window.timed:
            continue
        clock, can = [row[TIME] for row in rows(table, name)], matchable_rows(case, side)
        for number, batches in enumerate(came):
            for pair in row_pairs(batches):
                if pair[1 - side] is None and pair[side] is not None and can[pair[side]]:
                    time = clock[pair[side]]
                    end = None if time is None else time // unit + -(-window.size // unit)
                    assert end is None or used[number] >= end
                    assert end is None or number == 0 or used[number - 1] is None or used[number - 1] < end


@settings(EXAMPLES, max_examples=8)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_kinds_agree_with_the_oracle(tuning, case, seed, tmp_path_factory):
    check_kinds(case, seed, str(tmp_path_factory.mktemp("state")), tuning)


def test_partitions_with_and_without_missing_times_join_by_tuples(tmp_path):
    """Windows of tuples take all; those without a time come last in their micro-batch."""
    kind = pa.schema([("x", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    whole, missing = (pa.table([[1, 2], times], schema=kind) for times in ([5, 6], [None, 4]))
    case = Case(whole, whole, "l.x = r.x", Windows(TupleWindow(3), TupleWindow(3)), "t", "t")
    for segments in (1, 3):
        root = str(tmp_path / str(segments))
        cluster = Cluster(definition_of(whole, whole, case, segments, root), Store(root))
        found = cluster.run(([whole, missing], [whole]))
        found += cluster.run(([missing], [whole, missing]))
        # In order: l2 l1 r1 l2 r2 and l1, which has no time; then l2 r2 r1 r2, l1 and r1.
        assert sorted(row["x"] for batch in found for row in batch.to_pylist()) == [1] * 6 + [2] * 7
