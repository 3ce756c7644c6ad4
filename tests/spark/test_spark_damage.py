"""State that is damaged, missing, out of room or another join's: an error, never a wrong result."""

from __future__ import annotations

import os
import resource
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import handshake
from handshake.engines.spark.failures import reason
from handshake.engines.spark.joins.held import chunks
from handshake.engines.spark.state.pack import pack
from handshake.engines.spark.state.reading import read_state
from handshake.engines.spark.state.store import StateError, Store
from handshake.errors import InputError, UnsupportedError
from handshake.windows import windows_of
from spark_session import Feed, Sink
from spark_streams import BAND, Stream, cluster_of
from strategies import Case, expect

SCHEMAS = (
    pa.schema([("l", pa.int64()), ("x", pa.int32()), ("t", pa.timestamp("us", "UTC"))]),
    pa.schema([("r", pa.int64()), ("a", pa.int32()), ("u", pa.timestamp("us", "UTC"))]),
)
WINDOW = "20 seconds"
START = datetime(2024, 1, 1)


# Files


def flip(path: Path) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped": (flip, "is damaged: "),
    "truncated": (truncate, "is damaged: "),
    "empty": (lambda path: os.truncate(path, 0), "is damaged: 0 bytes that do not match"),
    "missing": (os.unlink, "which the join's state needs: "),
}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen_in_the_next_batch(damage, cached, tmp_path):
    """Also where this process has had the chunk in its hands before."""
    rng = Random(damage)
    cluster, stream = cluster_of(BAND, WINDOW, tmp_path, 2), Stream(rng, lambda _: rng.randint(0, 99))
    for _ in range(3):
        cluster.run(stream.batch(5, 5))
    for ref in () if cached else [ref for manifest in cluster.manifests() for ref in manifest.refs]:
        chunks.drop(cluster.store, ref)
    name = cluster.manifests()[1].windows[0][0].name
    act, words = DAMAGES[damage]
    act(tmp_path / name)
    with pytest.raises(StateError) as error:
        cluster.run(stream.batch(5, 5))
    assert str(tmp_path / name) in str(error.value)
    assert words in str(error.value)


def test_new_tuples_that_are_damaged_are_seen(tmp_path):
    """Between the task that packs them and those that read them."""

    def pack_and_flip(*args):
        for arrival in pack(*args):
            flip(tmp_path / arrival.ref.name)
            yield arrival

    rng = Random(1)
    cluster, stream = cluster_of(BAND, WINDOW, tmp_path, 2), Stream(rng, lambda _: rng.randint(0, 99))
    cluster.pack = pack_and_flip
    with pytest.raises(StateError, match=r"batch/0/left-0-0-\w+\.chunk' is damaged"):
        cluster.run(stream.batch(5, 5))


def test_no_room_for_a_file_leaves_nothing_half_written(tmp_path):
    store, before = Store(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StateError) as error:
            store.write("folder/big.chunk", [bytes(600), bytes(600)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(error.value) == (
        f"cannot write '{tmp_path}/folder/big.chunk': [Errno 27] File too large; "
        "the folder must be writable for every executor and have room"
    )
    assert os.listdir(tmp_path / "folder") == []


# Queries


class Pipeline:
    """A streaming join that is stopped and started again, with changes."""

    def __init__(self, spark, folder: Path, state: Path | None = None) -> None:
        self.spark, self.folder, self.state = spark, folder, state or folder / "state"
        self.feeds = (
            Feed(folder / "left", "l long, x int, t timestamp"),
            Feed(folder / "right", "r long, a int, u timestamp"),
        )
        self.rng, self.rows = Random(str(folder.name)), ([], [])
        self.sink = Sink(folder)

    def add(self, batches: int, rows: int = 12) -> None:
        for _ in range(batches):
            for side, feed in enumerate(self.feeds):
                at, start = feed.files * 5000, len(self.rows[side])
                new = [
                    (start + k, self.rng.randint(0, 200), START + timedelta(milliseconds=at + 400 * k))
                    for k in range(rows)
                ]
                self.rows[side].extend(new)
                feed.add(_table(SCHEMAS[side], new))

    def join(self, on: str = BAND, window: str = WINDOW, segments: int = 2, left=None, **options):
        streams = [feed.read(self.spark) for feed in self.feeds]
        streams[0] = left(streams[0]) if left else streams[0]
        marked = [s.withWatermark(t, "10 seconds") for s, t in zip(streams, ("t", "u"), strict=True)]
        return handshake.join(
            *marked,
            on,
            window=window,
            segments=segments,
            **{"name": "damage", "state_dir": str(self.state), **options},
        )

    def run(self, **changes) -> None:
        self.sink.run(self.join(**changes))

    def refusal(self, frame=None, **changes) -> str:
        """Return the reason why Spark stops the query."""
        with pytest.raises(Exception) as error:
            self.sink.run(self.join(**changes) if frame is None else frame)
        return reason(error.value)

    def chunks(self) -> list[Path]:
        """Return the files of the segments, the newest last."""
        found = self.state.rglob("join-*/segment-*/*.chunk")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    def check(self) -> None:
        case = Case(*map(_table, SCHEMAS, self.rows), BAND, windows_of(WINDOW), "t", "u")
        found = Counter((row["l"], row["r"]) for row in self.sink.rows())
        assert found == Counter(expect(case).pairs)


def _table(schema: pa.Schema, rows: list[tuple]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def test_a_query_stops_at_a_damaged_chunk_and_goes_on_once_it_is_restored(spark, tmp_path):
    query = Pipeline(spark, tmp_path)
    query.add(3)
    query.run()
    query.add(1)
    act, words = DAMAGES["flipped"]
    chunk = query.chunks()[-1]
    kept = chunk.read_bytes()
    act(chunk)
    said = query.refusal()
    assert str(chunk) in said
    assert words in said
    chunk.write_bytes(kept)
    query.run()
    query.check()


@contextmanager
def small_disk(folder: Path):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a disk of a size of its own can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until no page is left."""
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_is_an_error_and_room_is_the_cure(spark, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        query = Pipeline(spark, tmp_path, disk)
        query.add(2)
        query.run()
        filler = disk / "filler"
        fill(filler)
        query.add(2)
        said = query.refusal()
        assert f"cannot write '{disk}/" in said
        assert "No space left on device" in said
        assert said.endswith("the folder must be writable for every executor and have room")
        filler.unlink()
        query.run()
        query.check()
        assert not list(disk.rglob("*.part"))


def test_a_segment_that_has_lost_its_state_says_so(tmp_path):
    rng = Random(2)
    cluster, stream = cluster_of(BAND, WINDOW, tmp_path, 2), Stream(rng, lambda _: rng.randint(0, 99))
    cluster.run(stream.batch(5, 5))
    cluster.states[0] = None
    with pytest.raises(StateError) as error:
        cluster.run(stream.batch(5, 5))
    place = f"{tmp_path}/query/join-test/segment-{cluster.definition.fingerprint}-0"
    assert str(error.value) == (
        f"'{place}' holds rows of micro-batches before 1, but the checkpoint has no state that refers to "
        "them; restore the checkpoint, or start from a new one"
    )


def test_the_checkpoint_of_another_stateful_query_is_refused(spark, tmp_path):
    query = Pipeline(spark, tmp_path)
    query.add(1)
    left, right = (feed.read(spark) for feed in query.feeds)
    query.sink.run(left.selectExpr("x").union(right.selectExpr("a")).dropDuplicates(["x"]))
    query.add(1)
    assert "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA" in query.refusal()


def test_joins_of_one_query_do_not_touch_each_other(spark, tmp_path):
    """Join other inputs, which begin later, with the same definition; then repeat the first join."""
    queries = [Pipeline(spark, tmp_path / name, tmp_path / "state") for name in ("one", "two")]
    sink = Sink(tmp_path)
    for number in range(2):
        queries[0].add(2)
        queries[1].add(2 * number)
        first, second = (query.join(name=query.folder.name) for query in queries)
        rows = [f.selectExpr(f"{k} AS k", "l", "r") for k, f in enumerate((first, first, second))]
        sink.run(rows[0].union(rows[1]).union(rows[2]))
    for k, query in enumerate((queries[0], queries[0], queries[1])):
        query.sink.batches = {0: pa.Table.from_pylist([row for row in sink.rows() if row["k"] == k])}
        query.check()
    assert len(list(tmp_path.glob("state/*/batch/*"))) <= 2
    # Per segment and side: what is held, and what the last 5 versions (see spark_session) still refer to.
    assert len(list(tmp_path.glob("state/*/join-*/segment-*/*.chunk"))) <= 3 * 2 * 2 * (4 + 5 + 2)


# Chunks in Spark's state store


def test_windows_in_the_state_store_go_on_where_they_stopped(spark, tmp_path):
    """Nothing is written beside the checkpoint, and the join does not change on it."""
    query, store = Pipeline(spark, tmp_path), {"state": "store", "state_dir": None}
    for _ in range(2):
        query.add(2)
        query.run(**store, left=lambda rows: rows.repartition(3))  # a shuffle before the join
        query.check()
    assert not query.state.exists()
    query.add(1)
    cannot = "of a join cannot change from {} to {} on a checkpoint: "
    why = 'windows with state="store" stay as they are; put back what'
    assert "the segments " + cannot.format(2, 3) + why in query.refusal(**store, segments=3)
    assert "the windows " + cannot.format(WINDOW, "9 seconds") + why in query.refusal(**store, window="9 s")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", int(before) + 3)
    try:
        refused = query.refusal(**store)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert "the shuffle partitions " + cannot.format(before, int(before) + 3) + why in refused
    assert "the state " + cannot.format("store", "directory") + "windows stay where" in query.refusal()
    query.run(**store)
    query.check()
    with pytest.raises(InputError, match=r"is a checkpoint of Spark, and no state directory of a join"):
        read_state(str(tmp_path / "checkpoint"))


def test_a_directory_does_not_become_a_state_store(spark, tmp_path):
    query = Pipeline(spark, tmp_path)
    query.add(2)
    query.run()
    query.add(1)
    refused = query.refusal(state="store", state_dir=None)
    assert "the state of a join cannot change from directory to store on a checkpoint" in refused
    query.run()
    query.check()


def test_where_the_state_store_cannot_hold_windows(spark, tmp_path):
    query = Pipeline(spark, tmp_path)
    with pytest.raises(UnsupportedError, match=r'state="store" needs no directory, and state_dir='):
        query.join(state="store")
    with pytest.raises(UnsupportedError, match=r"^unknown state 'disk'; choose directory or store$"):
        query.join(state="disk")
    with pytest.raises(UnsupportedError, match=r'state="store" keeps windows of time, and the windows are'):
        query.join(state="store", state_dir=None, window="9 tuples")
    batch = spark.range(3).toDF("n")
    with pytest.raises(UnsupportedError, match=r'state="store" keeps the windows of two streams'):
        handshake.join(batch, batch.toDF("m"), "l.n < r.m", state="store")
