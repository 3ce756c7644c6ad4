"""Files of segments: bounded, compacted, evenly shared, and complete for a restart."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.finite import probe_task
from handshake.engines.spark.joins.routing import choose_routing
from handshake.engines.spark.joins.tasks import _remove_old_batches, references
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import pack, record_once
from handshake.engines.spark.state.store import Store
from handshake.joins.join import prepare
from handshake.joins.tuning import TUNING
from handshake.kinds import KINDS
from handshake.windows import Windows, windows_of
from spark_steps import FOLDER, Cluster
from spark_streams import BAND, RETAIN, SECOND, Stream, cluster_of
from strategies import expect

BATCHES = 200
EQUAL = "x = a"
ROUTES = {"hash": EQUAL, "range": BAND, "all": "x < a - 990"}


def pairs_of(batches: list[pa.RecordBatch]) -> Counter:
    return Counter(
        pair
        for b in batches
        for pair in zip(b.column("l").to_pylist(), b.column("r").to_pylist(), strict=True)
    )


def files_of(cluster: Cluster) -> set[str]:
    """Return the files of the segments."""
    root = cluster.definition.root
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, names in os.walk(os.path.join(root, FOLDER))
        for name in names
        if "segment-" in folder
    }


def chunks_of(cluster: Cluster) -> set[str]:
    return {name for name in files_of(cluster) if ".chunk" in name}


def referred_files(cluster: Cluster, states: list[bytes | None]) -> set[str]:
    held = [Manifest.parse(state) for state in states if state is not None]
    return {ref.name for manifest in held for side in manifest.windows for ref in side}


def number_of(name: str) -> int:
    """Return the batch that wrote a chunk."""
    return int(os.path.basename(name).split("-")[1])


class Restarting:
    """A cluster whose tasks and driver fail at random; its results are those that were committed."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.versions: list[list[bytes | None]] = [list(cluster.states)]
        self.results: list[list[pa.RecordBatch]] = []

    def step(self, stream: Stream) -> None:
        """Run the next batch, after failed attempts."""
        cluster, rng = self.cluster, self.rng
        cluster.watermark = stream.watermark()
        for _ in range(rng.choice((0, 0, 0, 1, 2)) if len(self.versions) > 1 else 2):
            self._attempt(stream.batches[-1])
            self._litter()
            cluster.states, cluster.batch = list(self.versions[-1]), len(self.results)
        again = [k for k in range(cluster.definition.segments) if rng.random() < 0.2]
        self.results.append(self._attempt(stream.batches[-1], again))
        self.versions.append(list(cluster.states))

    def _attempt(self, parts, again=()) -> list[pa.RecordBatch]:
        _remove_old_batches(self.cluster.store, f"{FOLDER}/batch/{self.cluster.batch}")
        return self.cluster.run(parts, again)

    def _litter(self) -> None:
        """Leave a partial file, as a task that is killed while it writes."""
        written = sorted(n for n in chunks_of(self.cluster) if number_of(n) == self.cluster.batch - 1)
        for name in written[:1]:
            with open(os.path.join(self.cluster.definition.root, f"{name}.0123.part"), "wb") as part:
                part.write(b"half a chunk")

    def set_back(self, by: int) -> int:
        """Go on from an older version of the state, as after a restore; says from which batch."""
        by = min(by, len(self.results))
        del self.versions[len(self.versions) - by :], self.results[len(self.results) - by :]
        self.cluster.states, self.cluster.batch = list(self.versions[-1]), len(self.results)
        return by


SOME_ROUTES = [kind if kind == "range" else pytest.param(kind, marks=pytest.mark.soak) for kind in ROUTES]


@pytest.mark.parametrize("kind", SOME_ROUTES)
def test_two_hundred_batches_leave_only_what_a_restart_needs(kind, tmp_path):
    rng = Random(f"clean-up {kind}")
    cluster = cluster_of(ROUTES[kind], "8 seconds", tmp_path, segments=2)
    assert cluster.definition.routing.kind == kind
    stream = Stream(rng, lambda _: rng.randint(0, 1000), disorder=2 * SECOND)
    running, most = Restarting(cluster, rng), 0
    for _ in range(BATCHES):
        stream.batch(rng.randint(0, 3), rng.randint(1, 3), partitions=rng.choice((1, 2)))
        running.step(stream)
        _check_versions(running)
        most = max(most, len(files_of(cluster)))
        if rng.random() < 0.05:
            _replay(running, stream, running.set_back(rng.randint(1, RETAIN)))
    assert sum(map(pairs_of, running.results), Counter()) == Counter(
        expect(stream.case(ROUTES[kind], windows_of("8 seconds"))).pairs
    )
    assert most < 400, "files pile up"
    _check_no_garbage(running, stream)


def _replay(running: Restarting, stream: Stream, by: int) -> None:
    """Run batches again that were set back; the source gives the same tuples."""
    batches = stream.batches
    for at in range(len(batches) - by, len(batches)):
        stream.batches = batches[: at + 1]
        running.step(stream)
    stream.batches = batches


def _check_versions(running: Restarting) -> None:
    """Check that every file of each recoverable version exists."""
    cluster = running.cluster
    there = files_of(cluster)
    for states in running.versions[-RETAIN - 1 :]:
        assert referred_files(cluster, states) <= there


def _check_no_garbage(running: Restarting, stream: Stream) -> None:
    """Check that only needed files are left once nothing fails for a while."""
    cluster = running.cluster
    for _ in range(70):
        stream.batch(2, 2)
        cluster.watermark = stream.watermark()
        running.results.append(running._attempt(stream.batches[-1]))
        running.versions.append(list(cluster.states))
    needed = referred_files(cluster, cluster.states) | {n for m in cluster.manifests() for n, _ in m.dropped}
    assert chunks_of(cluster) == needed
    assert len(needed) < 80
    assert len(os.listdir(os.path.join(cluster.definition.root, FOLDER, "batch"))) <= 2


def test_a_join_that_a_query_uses_twice_keeps_two_states_apart(tmp_path):
    """Spark runs such a join twice on the same references, in the same folder."""
    packed: dict = {}

    def pack_once(definition, side, batches, store, folder, number):
        key = (folder, side, number)
        if key not in packed:
            packed[key] = list(pack(definition, side, batches, store, folder, number))
        return packed[key]

    rng = Random(5)
    twins = [cluster_of(EQUAL, "8 seconds", tmp_path, segments=2) for _ in range(2)]
    for twin in twins:
        twin.pack = pack_once
    stream, results = Stream(rng, lambda _: rng.randint(0, 9)), [[], []]
    for _ in range(70):
        parts = stream.batch(2, 2)
        for twin, found in zip(twins, results, strict=True):
            twin.watermark = stream.watermark()
            found += twin.run(parts)
    wanted = Counter(expect(stream.case(EQUAL, windows_of("8 seconds"))).pairs)
    assert [pairs_of(found) for found in results] == [wanted, wanted]


def test_a_folder_is_listed_while_other_tasks_make_and_remove_it(tmp_path):
    store, stop = Store(str(tmp_path)), threading.Event()

    def make_and_remove() -> None:
        while not stop.is_set():
            (tmp_path / "join" / "0").mkdir(parents=True)
            (tmp_path / "join" / "0").rmdir()
            (tmp_path / "join").rmdir()

    other = threading.Thread(target=make_and_remove)
    other.start()
    try:
        found = {store.folders("join") for _ in range(20_000)}
    finally:
        stop.set()
        other.join()
    assert found <= {(), ("0",)}


def test_a_partition_is_packed_once_in_a_run(tmp_path):
    """Return the first references for rows in another order; another run gets its own."""
    rng = Random(3)
    cluster, stream = cluster_of(EQUAL, "8 seconds", tmp_path, segments=3), Stream(rng, lambda _: 7)
    table = stream.batch(30, 0)[0][0]
    turned = table.take(list(reversed(range(30))))

    def record(rows: pa.Table, run: str) -> list[dict]:
        arrivals = pack(cluster.definition, 0, rows.to_batches(), cluster.store, "batch/0")
        rows = (references(arrival, cluster.definition, (0,)) for arrival in arrivals)
        found = record_once(cluster.store, f"batch/0/left-{run}.packed", rows)
        return [row for batch in found for row in batch.to_pylist()]

    first = record(table, "a")
    assert record(turned, "a") == first
    assert record(turned, "b")[0]["check"] != first[0]["check"]
    assert sorted(os.listdir(tmp_path / "batch" / "0")) == sorted(
        ["left-a.packed", "left-b.packed", *(os.path.basename(r["name"]) for r in first + record(table, "b"))]
    )


def packed_rows(definition: Definition, side: int, table: pa.Table, store: Store, **options) -> list[dict]:
    """Return references to the chunks of a partition."""
    chunks = pack(definition, side, table.to_batches(), store, f"batch/{side}", **options)
    rows = (references(chunk, definition, (0,)).to_pylist()[0] for chunk in chunks)
    return [{name: value for name, value in row.items() if name != "segment"} for row in rows]


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_segments_agree_on_a_static_side_that_is_packed_again(kind: str, tmp_path):
    """An executor that is lost loses its part of it, and its rows may come in another order then."""
    rng = Random(4)
    cluster, stream = cluster_of(EQUAL, "8 seconds", tmp_path, segments=3), Stream(rng, lambda _: 7)
    tuning = replace(TUNING, chunk_rows=9)
    definition = replace(
        cluster.definition,
        windows=Windows(None, None),
        streaming=(True, False),
        kind=KINDS[kind],
        tuning=tuning,
    )
    moving, static = (tables[0] for tables in stream.batch(30, 30))
    turned = static.take(pa.array(rng.sample(range(30), 30)))
    held = [packed_rows(definition, 1, table, cluster.store, in_any_order=True) for table in (static, turned)]
    chunks = packed_rows(definition, 0, moving, cluster.store)
    pairs = [
        {"segment": key, "moving": chunk, "held": held[segment % 2]}
        for segment, key in enumerate(definition.keys)
        for chunk in chunks
    ]
    blobs = probe_task(definition, 0)(iter([pa.RecordBatch.from_pylist(pairs)]))
    found = [
        batch for blob in blobs for part in blob.column(0) for batch in pa.ipc.open_stream(part.as_buffer())
    ]
    wanted = Counter((left, right) for left in moving["l"].to_pylist() for right in static["r"].to_pylist())
    assert pairs_of(found) == wanted


def test_homes_of_rows_do_not_depend_on_the_attempt(tmp_path):
    """Results that are cached and lost are computed again in other files."""
    cluster, stream = (
        cluster_of("x < a - 990", "8 seconds", tmp_path, segments=3),
        Stream(Random(5), lambda _: 7),
    )
    table = stream.batch(7, 0)[0][0]
    seeds = {
        (part, chunk.seed)
        for _ in range(3)
        for part, chunk in enumerate(
            pack(cluster.definition, 0, table.to_batches(), cluster.store, "batch/0")
        )
    }
    assert len(seeds) == len({part for part, _ in seeds})


SHAPES = {
    "in order": (0, (5, 5), EQUAL),
    "in order, one side idle": (0, (0, 60), BAND),
    "disordered": (50 * SECOND, (200, 200), BAND),
    "disordered, one side idle": (50 * SECOND, (400, 0), EQUAL),
    "all in disorder": (100 * SECOND, (200, 0), ROUTES["all"]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_stay_few(shape, tmp_path):
    disorder, sizes, on = SHAPES[shape]
    rng = Random(shape)
    cluster = cluster_of(on, "60 seconds", tmp_path, segments=1)
    stream = Stream(rng, lambda _: rng.randint(0, 10**6), disorder, SECOND)
    for _ in range(BATCHES):
        cluster.run(stream.batch(*sizes))
        cluster.watermark = stream.watermark()
        for side, refs in enumerate(cluster.manifests()[0].windows):
            rows = sum(ref.rows for ref in refs)
            assert len(refs) <= 8 + math.log2(rows + 1), (side, [ref.rows for ref in refs])


def hot_key(rng: Random) -> Callable[[int], int]:
    return lambda _: 7 if rng.random() < 0.6 else rng.randint(0, 1000)


def dense_range(rng: Random) -> Callable[[int], int]:
    return lambda _: rng.randint(500, 520) if rng.random() < 0.7 else rng.randint(0, 1000)


def moving(rng: Random) -> Callable[[int], int]:
    return lambda number: int(rng.gauss(100 if number < 15 else 900, 10)) % 1000


SKEWS = [(EQUAL, hot_key), (BAND, dense_range), (BAND, moving), (EQUAL, moving), (ROUTES["all"], dense_range)]


SPREAD = [pytest.param(*s, 2, 8, marks=[] if s[1] is moving else pytest.mark.soak) for s in SKEWS]
"""The same skews in many small partitions."""


@pytest.mark.parametrize(("on", "value", "size", "partitions"), [*((*s, 16, 1) for s in SKEWS), *SPREAD])
def test_no_segment_is_pinned_by_skew(on, value, size, partitions, tmp_path):
    """Balance a hot key, a dense range and a moving one, also with many small partitions."""
    rng = Random(f"{on} {value.__name__} {partitions}")
    cluster = cluster_of(on, "10 seconds", tmp_path, segments=4)
    stream, results, moves = Stream(rng, value(rng)), [], set()
    for _ in range(45):
        results += cluster.run(stream.batch(size, size, partitions=partitions))
        cluster.watermark = stream.watermark()
        moves.add(tuple(cluster.manifests()[0].router.epochs[-1].cuts))
    shares = [sum(sum(tally[k].rows) for tally in cluster.tallies[-15:]) for k in range(4)]
    assert max(shares) <= 1.3 * sum(shares) / 4, shares
    if value is moving and on is BAND:
        assert len(moves) > 1
    assert pairs_of(results) == Counter(expect(stream.case(on, windows_of("10 seconds"))).pairs)


# Bands that floats would round.


@pytest.mark.parametrize("width", [1, 10, 2**53 + 1, 2**55 + 3, 2**60 + 7, 2**62 + 1, 2**63, 2**64, 2**70])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_partners_of_a_wide_band_are_in_cells_that_overlap(width: int, kind: pa.DataType) -> None:
    low, high = (0, 2**64 - 1) if kind == pa.uint64() else (-(2**63), 2**63 - 1)
    rng, pairs = Random(width), list[tuple[int, int]]()
    for _ in range(400):
        near = rng.randint(low, high) // max(1, width // 2) * max(1, width // 2) + rng.randint(-3, 3)
        a = min(high, max(low, rng.choice([near, low, high])))
        pairs.append((min(high, max(low, a + rng.choice([width, -width, rng.randint(-width, width)]))), a))
    schemas = [pa.schema([(name, kind)]) for name in "xa"]
    spec = prepare(*schemas, f"l.x BETWEEN r.a - {width} AND r.a + {width}").spec
    routing = choose_routing(spec, 4)
    cells = [
        routing.cells_of(pa.record_batch([pa.array(values, kind)], schema), side).astype(int)
        for side, (values, schema) in enumerate(zip(zip(*pairs, strict=True), schemas, strict=True))
    ]
    apart = abs(cells[0] - cells[1])
    assert (np.minimum(apart, routing.cells - apart) <= routing.overlap).all()
