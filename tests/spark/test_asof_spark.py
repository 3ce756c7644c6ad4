"""As-of joins of DataFrames in real Spark: batch, a stream with a static side, and streams over restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
import pytest

import handshake as hs
from asof_streams import make_stream, predicate_of
from handshake.page.about import StateOf
from handshake.testing.oracle import TIME, asof, rows
from spark_session import Feed, Sink

pytest.importorskip("pyspark")
from pyspark.sql import functions as F

ZONED = pa.timestamp("us", "UTC")
COLUMNS = "k bigint, x double, t timestamp, `row of {}` bigint"
AFTER_THE_LAST = "spark.sql.streaming.noDataMicroBatches.enabled"
LAST, DELAY = 1000, 8
"""The time of the last rows, which make all others final, and the delay of watermarks; no row is late."""


def pairs(found: list[dict]) -> list[tuple]:
    return sorted(((row["row of left"], row["row of right"]) for row in found), key=repr)


def expected_pairs(left: pa.Table, right: pa.Table, on: str | None, by: str | None, **options) -> list[tuple]:
    mine, others = rows(left, "t"), rows(right, "t")
    tolerance = options.get("tolerance")
    best = asof(
        mine, others, predicate_of(left, right, on, by), options.get("direction", "backward"),
        None if tolerance is None else int(tolerance.split()[0]) * 10**9, True,
    )  # fmt: skip
    kept = ((i, j) for i, j in enumerate(best) if j is not None or options.get("how", "left") == "left")
    return sorted(kept, key=repr)


@pytest.fixture(scope="module")
def tables():
    return [make_stream(Random(side), 70, ZONED, side) for side in ("left", "right")]


@pytest.fixture(scope="module")
def frames(spark, tables):
    return [spark.createDataFrame(table).repartition(3) for table in tables]


BATCHES = {
    "by key": (None, "k", {"tolerance": "4 s"}),
    "by key and condition": ("l.x BETWEEN r.x - 1 AND r.x + 1", "k", {"direction": "nearest"}),
    "neither": (None, None, {"direction": "forward", "how": "inner", "tolerance": "1 s"}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_agree_with_the_oracle(tables, frames, name):
    on, by, options = BATCHES[name]
    joined = hs.asof(*frames, on, by=by, time="t", segments=3, **options)
    assert pairs(joined.toArrow().to_pylist()) == expected_pairs(*tables, on, by, **options)


def test_a_condition_as_a_column_and_columns_of_other_names(tables, frames):
    left, right = frames[0].alias("a"), frames[1].withColumnsRenamed({"t": "u", "k": "key"}).alias("b")
    condition = F.col("b.x") > F.col("a.x")
    joined = hs.asof(left, right, condition, by=[("k", "key")], left_time="t", right_time="u")
    assert pairs(joined.toArrow().to_pylist()) == expected_pairs(*tables, "r.x > l.x", "k")
    assert joined.columns == ["k", "x", "t", "row of left", "key", "x_right", "u", "row of right"]
    assert "routing     hash: equality on l.k" in hs.explain(joined)


def test_a_stream_with_a_static_side(spark, tmp_path, tables, frames):
    """All right rows are there, so left rows come at once, and no tolerance is needed."""
    feed = Feed(tmp_path / "left", COLUMNS.format("left"))
    for start in (0, 30):
        feed.add(tables[0].slice(start, 30 if start == 0 else 40))
    sink = Sink(tmp_path)
    sink.run(hs.asof(feed.read(spark), frames[1], by="k", time="t", direction="nearest", segments=2))
    assert pairs(sink.rows()) == expected_pairs(*tables, None, "k", direction="nearest")
    with pytest.raises(hs.UnsupportedError, match="no left row would ever be final"):
        hs.asof(frames[1], feed.read(spark), by="k", time="t", tolerance="1 s")


def last_row(table: pa.Table) -> pa.Table:
    """Return a row that is much later than all others."""
    last = datetime.fromtimestamp(LAST, UTC)
    row = {**dict.fromkeys(table.column_names), "t": last, table.column_names[-1]: table.num_rows}
    return pa.Table.from_pylist([row], table.schema)


@pytest.mark.parametrize(
    ("direction", "by", "how", "state"),
    [
        ("backward", "k", "left", "directory"),
        ("nearest", None, "inner", "directory"),
        ("forward", "k", "left", "store"),
    ],
)
def test_streams_agree_with_the_oracle_over_restarts(spark, tmp_path, direction, by, how, state):
    """The last rows come in a micro-batch without new rows."""
    tables = [make_stream(Random(side), 60, ZONED, side) for side in ("left", "right")]
    feeds = [Feed(tmp_path / side, COLUMNS.format(side)) for side in ("left", "right")]
    options = {"direction": direction, "tolerance": "4 s", "how": how}
    sink = Sink(tmp_path)
    spark.conf.set(AFTER_THE_LAST, "true")
    try:
        for start in (0, 20, 40, 60):
            for feed, table in zip(feeds, tables, strict=True):
                feed.add(table.slice(start, 20) if start < 60 else last_row(table))
            if start in (20, 40):
                continue  # a run with three micro-batches
            left, right = (feed.read(spark).withWatermark("t", f"{DELAY} seconds") for feed in feeds)
            joined = hs.asof(left, right, by=by, name="quotes", segments=3, state=state, **options)
            sink.run(joined)
    finally:
        spark.conf.set(AFTER_THE_LAST, "false")
    want = expected_pairs(*tables, None, by, **options)
    assert [pair for pair in pairs(sink.rows()) if pair[0] < 60] == want
    assert len([batch for batch in sink.batches.values() if batch.num_rows]) > 2
    assert sink.sums("quotes", "late") == 0
    assert sink.sums("quotes", "results") == len(sink.rows())
    assert any(line.startswith("final       left rows") for line in hs.explain(joined).splitlines())
    asked = StateOf.join(sink.query, joined)
    assert (asked is None) == (state == "store")
    if asked is not None and by is None:
        told = asked.why({"row of left": 60}, {"row of right": 60})
        assert (
            "?    best match: no right row is better so far; the left row waits until the watermark" in told
        )


def test_no_result_is_late_by_its_result_time(spark, tmp_path):
    """A windowed count after the join takes every result: its time is the moment when it is final."""
    tables = [make_stream(Random(side), 40, ZONED, side) for side in ("left", "right")]
    feeds = [Feed(tmp_path / side, COLUMNS.format(side)) for side in ("left", "right")]
    for start in (0, 20, 40):
        for feed, table in zip(feeds, tables, strict=True):
            feed.add(table.slice(start, 20) if start < 40 else last_row(table))
    left, right = (feed.read(spark).withWatermark("t", f"{DELAY} seconds") for feed in feeds)
    joined = hs.asof(left, right, by="k", direction="forward", tolerance="3 s", result_time="at")
    plain, counted = Sink(tmp_path / "plain"), Sink(tmp_path / "counted")
    spark.conf.set(AFTER_THE_LAST, "true")
    try:
        plain.run(joined)
        counted.run(joined.groupBy(F.window("at", "10 seconds")).count())
    finally:
        spark.conf.set(AFTER_THE_LAST, "false")
    dated = [row for row in plain.rows() if row["t"] is not None and row["row of left"] < 40]
    assert all(row["at"] == row["t"] + timedelta(seconds=3, microseconds=1) for row in dated)
    dropped = sum(
        operator["numRowsDroppedByWatermark"]
        for progress in counted.progress
        for operator in progress["stateOperators"]
    )
    assert dropped == 0
    assert len(dated) > 30


def test_mistakes_are_explained(spark, tmp_path, frames):
    left, right = (Feed(tmp_path / side, COLUMNS.format(side)).read(spark) for side in ("left", "right"))
    marked = [frame.withWatermark("t", "1 second") for frame in (left, right)]
    with pytest.raises(hs.WindowError, match="an as-of join of streams needs a tolerance"):
        hs.asof(*marked, by="k")
    with pytest.raises(hs.WindowError, match="the left stream has no watermark on 't'"):
        hs.asof(left, right, by="k", tolerance="1 s")
    with pytest.raises(hs.WindowError, match="an as-of join needs a time column"):
        hs.asof(*frames, by="k")
    with pytest.raises(hs.UnsupportedError, match="cores=2 has no effect on Spark DataFrames"):
        hs.asof(*frames, by="k", time="t", cores=2)
    with pytest.raises(hs.InputError, match="one input is a Spark DataFrame"):
        hs.asof(frames[0], {"t": [1]}, time="t")


def test_the_rows_of_the_oracle_have_times(tables):
    """The comparison above says something: times are there, with ties and without an order."""
    times = [row[TIME] for row in rows(tables[1], "t") if row[TIME] is not None]
    assert len(set(times)) < len(times)
    assert times != sorted(times)
