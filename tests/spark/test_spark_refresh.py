"""Fresh static sides: files of the batch DataFrame change while a stream joins it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import handshake
from handshake.errors import UnsupportedError, WindowError
from handshake.testing.steps import KeptBatches
from waiting import wait_until

pytest.importorskip("pyspark")
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_session import Feed

BATCHES = 5


class Seen(StreamingQueryListener):
    """The micro-batches whose end other listeners, which were added before, know."""

    def __init__(self) -> None:
        self.batches: set[int] = set()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.batches.add(int(event.progress.batchId))

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def write_version(folder: Path, version: int) -> None:
    pq.write_table(pa.table({"a": [0, 1], "version": [version] * 2}), folder / f"{version}.parquet")


@dataclass
class Prices:
    """A query that joins a stream with files; a version of the files is added after its first micro-batch."""

    spark: Any
    folder: Path
    refresh: str | None
    first: bool = True

    def __post_init__(self) -> None:
        self.static, self.feed = self.folder / "static", Feed(self.folder / "in", "x bigint")
        self.static.mkdir()
        write_version(self.static, 1)
        self.define()

    def define(self) -> None:
        """Build the join, as a program does that starts its query again."""
        options = {} if self.refresh is None else {"refresh": self.refresh}
        self.joined = handshake.join(
            self.feed.read(self.spark), self.spark.read.parquet(str(self.static)), "l.x + 1 > r.a",
            state_dir=str(self.folder / "state"), **options,
        )  # fmt: skip

    def run(self, batches: int) -> list[set[int]]:
        """Run micro-batches, each after the refresh that follows the last; return the versions they saw."""
        seen, kept = Seen(), KeptBatches(self.folder)
        self.spark.streams.addListener(seen)
        writer = kept.write(self.joined.select("version"))
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        try:
            for n in range(batches):
                self.feed.add(pa.table({"x": [n, n + 1]}))
                query.processAllAvailable()
                wait_until(lambda n=n: len(seen.batches) > n, 120, what="the end of a micro-batch")
                if self.first and n == 0:
                    write_version(self.static, 2)
        finally:
            query.stop()
            self.spark.streams.removeListener(seen)
        self.first = False
        found = kept.read()
        assert len(found) == batches
        return [{row["version"] for row in found[n].to_pylist()} for n in sorted(found)]


LISTED = pytest.mark.classic("a query lists the files of its own plan again")


@pytest.mark.parametrize("refresh", [pytest.param("batch", marks=LISTED), "1 ms"])
def test_a_static_side_is_read_again(spark: Any, tmp_path: Path, refresh: str) -> None:
    """A new file is seen by the second micro-batch after it, a removed one is not seen after a restart."""
    prices = Prices(spark, tmp_path, refresh)
    found = prices.run(BATCHES)
    assert found[0] == {1}
    assert found[1] in ({1}, {1, 2})
    assert found[2:] == [{1, 2}] * (BATCHES - 2)
    folders = [path for path in (tmp_path / "state").glob("handshake-batch-*/*/*") if path.is_dir()]
    assert len(folders) < BATCHES - 1  # chunks that are no longer read are removed
    (prices.static / "1.parquet").unlink()
    assert prices.run(1) == [{2}]


@pytest.mark.classic("the driver lists files")
def test_a_join_that_its_query_no_longer_runs_is_not_refreshed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Any] = []
    monkeypatch.setattr("handshake.engines.spark.joins.refresh.list_files_again", listed.append)
    prices = Prices(spark, tmp_path, "batch", first=False)
    for _ in range(2):
        prices.run(2)
        prices.define()
    before = [*listed]
    prices.run(2)
    seen = [frame for frame in listed[len(before) :] if any(frame is each for each in before)]
    assert len(seen) == 1  # of the join before, when the query started: it could have been the same
    assert len(listed) - len(before) > 3


def test_chunks_do_not_wait_for_other_queries(spark: Any, tmp_path: Path) -> None:
    idle = Feed(tmp_path / "idle", "y bigint").read(spark).writeStream.format("noop")
    other = idle.option("checkpointLocation", str(tmp_path / "idle-checkpoint")).start()
    try:
        Prices(spark, tmp_path, "1 ms", first=False).run(BATCHES)
    finally:
        other.stop()
    folders = [path for path in (tmp_path / "state").glob("handshake-batch-*/*/*") if path.is_dir()]
    assert len(folders) < BATCHES - 1


def test_a_static_side_is_read_once_by_default(spark: Any, tmp_path: Path) -> None:
    assert Prices(spark, tmp_path, None).run(3) == [{1}] * 3


def test_refresh_is_checked(spark: Any, tmp_path: Path) -> None:
    batch = spark.createDataFrame([(1,)], "m int")
    feed = Feed(tmp_path / "in", "x bigint")
    feed.add(pa.table({"x": [1]}))
    stream = feed.read(spark)
    static = batch.withColumnRenamed("m", "k")
    for kind, message, left, on, refresh in (
        (UnsupportedError, "refresh='batch' is for joins of a stream with a batch DataFrame",
         batch, "l.m < r.k", "batch"),
        (WindowError, "refresh must be longer than zero; '0 s' is not", stream, "l.x < r.k", "0 s"),
        (WindowError, "cannot read 'often' as a length of time", stream, "l.x < r.k", "often"),
    ):  # fmt: skip
        with pytest.raises(kind, match=re.escape(message)):
            handshake.join(left, static, on, refresh=refresh)
