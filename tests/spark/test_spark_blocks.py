"""Chunks of new rows as blocks: what segments read, in bytes, and every type of column."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handshake.engines.spark.joins.arrivals import turn_stamps
from handshake.engines.spark.joins.tasks import packed_chunk, references
from handshake.engines.spark.state.blocks import block_edges, decode_blocks, encode_blocks
from handshake.engines.spark.state.pack import pack
from handshake.engines.spark.state.store import StateError, Store
from handshake.windows import windows_of
from spark_steps import FILES, Cluster, definition_of
from strategies import Case

START = datetime(2026, 1, 1)
COLUMNS = {
    "n": pa.array([1, None, -3], pa.int32()),
    "b": pa.array([True, None, False]),
    "t": pa.array([START, START, None], pa.timestamp("us", "UTC")),
    "d": pa.array([Decimal("1.25"), None, Decimal("-7.00")], pa.decimal128(10, 2)),
    "s": pa.array(["", None, "Zürich"]),
    "w": pa.array([b"\0\1", b"", None], pa.large_binary()),
    "f": pa.array([float("nan"), -0.0, None]),
    "p": pa.array([timedelta(1), None, timedelta(0)], pa.duration("us")),
}
NESTED = {"x": pa.array([[1, None], None, []], pa.list_(pa.int64())), "k": pa.array([None] * 3, pa.null())}


def streams(rows: int, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Return two streams like those of the benchmark, with a text on the left."""
    times = pa.array((np.arange(rows) * 1000).astype("datetime64[us]"))
    keys = [rng.integers(1, 10_000, rows).astype(np.int32) for _ in range(2)]
    texts = [f"{n:06}" * (1 + n % 5) for n in rng.integers(0, 999_999, rows).tolist()]
    left = pa.table({"t": times, "x": keys[0], "z": texts})
    return left, pa.table({"u": times, "a": keys[1], "b": rng.random(rows)})


@pytest.mark.parametrize("segments", [4, 16, 64])
@pytest.mark.parametrize(
    ("on", "window"),
    [
        ("x BETWEEN a - 10 AND a + 10", "20 seconds"),
        ("x = a", "20 seconds"),
        ("x = a", "20000 tuples"),  # without times, whose order would need all tuples
    ],
)
def test_segments_read_little_more_than_they_visit(segments, on, window, tmp_path):
    tables = streams(20_000, np.random.default_rng(segments))
    times = ("t", "u") if "seconds" in window else (None, None)
    case = Case(*tables, on, windows_of(window), *times)
    definition = definition_of(*tables, case, segments, str(tmp_path))
    cluster = Cluster(definition, Store(str(tmp_path)))
    for half in (0, 10_000):
        parts = tuple([table.slice(half + k * 5_000, 5_000) for k in (0, 1)] for table in tables)
        cluster.run(parts)
        chunks = list(tmp_path.glob(f"query/join-test/batch/{cluster.batch - 1}/*.chunk"))
        new = sum(p.stat().st_size for p in chunks)
        visits = sum(tally.visits for tally in cluster.tallies[-1])
        read = sum(tally.read_bytes for tally in cluster.tallies[-1])
        assert len(chunks) == 4
        assert visits >= 20_000
        assert read <= 1.3 * new * visits / 20_000
        places = 0 if times[0] else 8 * 20_000
        assert new <= 1.1 * (sum(table.slice(half, 10_000).nbytes for table in tables) + places)


@pytest.mark.parametrize("segments", [4, 16, 64])
@pytest.mark.parametrize("rows", [40, 150, 600])
def test_segments_read_little_more_than_they_visit_of_small_chunks(segments, rows, tmp_path):
    """Micro-batches with few rows per segment, in files."""
    tables = streams(4 * rows, np.random.default_rng(segments))
    case = Case(*tables, "x BETWEEN a - 10 AND a + 10", windows_of("20 seconds"), "t", "u")
    tuning = replace(FILES, inline_bytes=0)
    cluster = Cluster(
        definition_of(*tables, case, segments, str(tmp_path), tuning=tuning), Store(str(tmp_path))
    )
    for half in (0, 2 * rows):
        parts = tuple([table.slice(half + k * rows, rows) for k in (0, 1)] for table in tables)
        cluster.run(parts)
        chunks = list(tmp_path.glob(f"query/join-test/batch/{cluster.batch - 1}/*.chunk"))
        new, visits = (
            sum(p.stat().st_size for p in chunks),
            sum(tally.visits for tally in cluster.tallies[-1]),
        )
        assert visits >= 4 * rows
        assert sum(tally.read_bytes for tally in cluster.tallies[-1]) <= 1.3 * new * visits / (4 * rows)
        assert new <= 1.2 * sum(table.slice(half, 2 * rows).nbytes for table in tables)


@given(
    st.lists(st.integers(0, 2), max_size=60), st.integers(1, 70), st.integers(1, 9), st.booleans(),
    st.sampled_from([COLUMNS, {**COLUMNS, **NESTED}, {"n": COLUMNS["n"]}]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_ranges_of_all_types_come_back(picked, cells, segments, valid, columns, rng: Random):
    whole = pa.RecordBatch.from_pydict(columns)
    batch = whole.take(pa.array([0 if valid else k for k in picked], pa.int64()))
    cell = sorted(rng.randrange(cells) for _ in picked)
    offsets = np.searchsorted(cell, np.arange(cells + 1))
    data, layout, _ = encode_blocks("a", batch, block_edges(offsets, len(picked), segments, batch.schema))
    edges = sorted(rng.randint(0, len(picked)) for _ in range(4))
    wanted = [(edges[0], edges[1]), (edges[2], edges[3])]
    blocks = layout.cover(wanted)
    parts = [data[start:stop] for start, stop in layout.bytes_of(blocks)]
    found = decode_blocks("a", "a", layout, blocks, parts)
    found.validate(full=True)
    rows = [
        row for start, stop in layout.rows_of(blocks) for row in batch.slice(start, stop - start).to_pylist()
    ]
    assert repr(found.to_pylist()) == repr(rows)
    for start, stop in wanted:
        assert start == stop or any(a <= start and stop <= b for a, b in layout.rows_of(blocks))


def test_a_block_of_another_chunk_or_place_is_damage():
    batch = pa.RecordBatch.from_pydict({"n": list(range(32))})
    data, layout, _ = encode_blocks("a", batch, np.arange(0, 33, 8))
    size = layout.ends[1]
    for name, part in (("b", data[:size]), ("a", data[size : 2 * size]), ("a", data[: size - 1])):
        with pytest.raises(StateError, match=r"'state/a' is damaged: .*; restart the query"):
            decode_blocks("state/a", name, layout, [(0, 1)], [part])


@pytest.mark.parametrize("limit", [0, 4096])
def test_references_hold_small_chunks_and_the_layout_of_others(limit, tmp_path):
    tables = streams(100, np.random.default_rng(1))
    case = Case(*tables, "x + 1 = a * 1.0", windows_of("20 seconds"), "t", "u")
    tuning = replace(FILES, inline_bytes=limit)
    definition = definition_of(*tables, case, 3, str(tmp_path), tuning=tuning)
    for side, table in enumerate(tables):
        (chunk,) = pack(definition, side, table.to_batches(), Store(str(tmp_path)), "batch/0")
        row = references(chunk, definition, (7,)).to_pylist()[0]
        again = packed_chunk(row, definition)
        assert (row["inline"] is None, again.ref) == (limit == 0, chunk.ref)
        assert again.layout.ends.tolist() == chunk.layout.ends.tolist()
        found = again.rows(Store(str(tmp_path))).batch()
        assert found.schema.types == chunk.layout.schema.types
        assert sorted(map(str, found.select(table.column_names).to_pylist())) == sorted(
            map(str, table.to_pylist())
        )
    assert len(list(tmp_path.glob("batch/0/*"))) == (0 if limit else 2)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 5)), max_size=8), st.randoms())
def test_tuples_without_times_take_turns(chunks, rng: Random):
    """Left and right alternate in source order, left first; a chunk knows it from places and row counts."""
    parts = Counter[tuple[int, int]]()
    arrivals, places = [], []
    for side, partition, rows in sorted(chunks, key=lambda chunk: chunk[:2]):
        start = parts[side, partition]
        parts[side, partition] += rows
        arrivals.append(SimpleNamespace(side=side, partition=partition, ref=SimpleNamespace(rows=rows)))
        places.append(np.array(rng.sample(range(start, start + rows), rng.randint(0, rows)), np.int64))
    before = [rng.randint(0, 9), rng.randint(0, 9)]
    order = [(*key, place) for key, rows in sorted(parts.items()) for place in range(rows)]
    queues = [[(partition, place) for s, partition, place in order if s == side] for side in (0, 1)]
    stamps, seen, count = {}, [0, 0], list(before)
    while seen[0] < len(queues[0]) or seen[1] < len(queues[1]):
        for side in (0, 1):
            if seen[side] < len(queues[side]):
                stamps[side, *queues[side][seen[side]]] = (count[side], count[1 - side])
                seen[side] += 1
                count[side] += 1
    found = turn_stamps(arrivals, places, before)
    for arrival, place, (own, other) in zip(arrivals, places, found, strict=True):
        wanted = [stamps[arrival.side, arrival.partition, each] for each in place.tolist()]
        assert list(zip(own.tolist(), other.tolist(), strict=True)) == wanted
