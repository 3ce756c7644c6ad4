"""Joins of DataFrames in real Spark, streaming and batch, against the oracle."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle, pairwise
from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pytest

import handshake
from handshake.errors import InputError, UnsupportedError, WindowError
from handshake.kinds import KINDS
from handshake.windows import windows_of

pytest.importorskip("pyspark")
import pyspark
from pyspark.sql import functions as F

from handshake.testing.oracle import of_kind
from handshake.testing.oracle_values import TIME, rows
from spark_kinds import expected_kind
from spark_session import Feed, Sink
from spark_steps import arrivals_of
from strategies import Case, expect

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "n int, k int, x int, y double, t timestamp"
RIGHT = SCHEMA.replace("n int", "m int")


def make_side(
    rng: Random, name: str, size: int, disorder: int, start: datetime = EPOCH, first: int = 0
) -> pa.Table:
    """Return rows with a number, a few keys, NULL and NaN among the values, and times that mostly rise."""
    now, made = 0, []
    for number in range(first, first + size):
        now += rng.choice((0, 0, 1, 2))
        at = start + timedelta(
            seconds=now - rng.choice((0, 0, rng.randint(0, disorder))), milliseconds=rng.choice((0, 500))
        )
        y = rng.choice((None, math.nan, -0.0, 0.0, *(rng.randint(-4, 4) / 2 for _ in range(8))))
        made.append((number, rng.choice((None, 0, 0, 1, 2)), rng.choice((None, *range(12))), y, at))
    columns = list(zip(*made, strict=True)) if made else [[]] * 5
    kinds = (pa.int32(), pa.int32(), pa.int32(), pa.float64(), pa.timestamp("us", "UTC"))
    names = (name, "k", "x", "y", "t")
    return pa.table({n: pa.array(list(c), kind) for n, c, kind in zip(names, columns, kinds, strict=True)})


def cut(rng: Random, table: pa.Table, files: int) -> list[pa.Table]:
    """Write a table as files of random sizes, some of them empty."""
    edges = [0, *sorted(rng.randint(0, table.num_rows) for _ in range(files - 1)), table.num_rows]
    return [table.slice(a, b - a) for a, b in pairwise(edges)]


# Streams against the oracle


@dataclass(frozen=True)
class Streams:
    """A join of two streams, and how late their tuples may be."""

    on: str
    left: str
    right: str
    delays: tuple[int, int] = (2, 4)
    rows: tuple[int, int] = (40, 40)
    files: int = 2
    partitions: int = 1
    keys: str = ""
    """Columns without which a tuple can match nothing; it is dropped before it is known to be late."""
    restart: bool = True
    """Whether the query starts anew from its checkpoint half-way."""
    state: str = "directory"


STREAMS = {
    "band": Streams("l.x BETWEEN r.x - 1 AND r.x + 1", "6 seconds", "6 seconds", partitions=3, keys="x"),
    "stored band": Streams(
        "l.x BETWEEN r.x - 1 AND r.x + 1", "6 seconds", "6 seconds", partitions=3, keys="x", state="store"
    ),
    "equality": Streams(
        "l.k = r.k AND l.y <= r.y", "3 seconds", "12 seconds", (0, 1), keys="ky", restart=False
    ),
    "tuples": Streams("l.x < r.x", "7 tuples", "5 tuples"),
    "mixed": Streams("l.y = r.y OR l.x = r.x + 2", "5 seconds", "6 tuples", (1, 1), restart=False),
    "one side only": Streams("l.x = r.x", "5 seconds", "5 seconds", rows=(9, 0), files=1, keys="x"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_agree_with_the_oracle(spark, tmp_path, name):
    wanted, rng = STREAMS[name], Random(f"{name} 4")
    tables = make_side(rng, "n", wanted.rows[0], 9), make_side(rng, "m", wanted.rows[1], 9)
    case = Case(*tables, wanted.on, windows_of(None, wanted.left, wanted.right), "t", "t")
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    sink, batches = Sink(tmp_path), []
    for parts in rounds(rng, tables, wanted.files, wanted.restart):
        batches += feed_files(feeds, parts)
        left, right = (
            spread(feed.read(spark).withWatermark("t", f"{delay} seconds"), wanted.partitions)
            for feed, delay in zip(feeds, wanted.delays, strict=True)
        )
        joined = handshake.join(
            left, right, wanted.on, left_window=wanted.left, right_window=wanted.right, name="j", segments=2,
            state=wanted.state,
        )  # fmt: skip
        sink.run(joined)
    arrivals, _, _ = arrivals_of(MICROSECONDS, case, batches, marks_of(case, batches, wanted.delays))
    late = late_of(tables, arrivals, wanted.keys)
    want = expect(case, None, arrivals)
    assert sorted((row["n"], row["m"]) for row in sink.rows()) == sorted(want.pairs)
    assert sink.sums("j", "late") == late
    assert sink.sums("j", "results") == len(want.pairs)
    assert name == "one side only" or (want.pairs and (late or not case.windows.timed))


KIND_STREAMS = {
    "left": "band",
    "full": "equality",
    "right": "mixed",
    "left_semi": "mixed",
    "left_anti": "band",
    "right_anti": "tuples",
}


COVERED = ("left", "right", "left_anti")
"""Kinds whose rows without a match are also those of full or right_anti; they run in `make soak`."""


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        pytest.param(kind, state, marks=[pytest.mark.soak] if kind in COVERED else [])
        for kind, streams in KIND_STREAMS.items()
        for state in (["directory", "store"] if streams in ("band", "equality") else ["directory"])
    ],
)
def test_kinds_of_streams_agree_with_the_oracle(spark, tmp_path, kind, state):
    """Rows without a match come over a restart, and in a micro-batch without new rows at the end."""
    wanted, rng = STREAMS[KIND_STREAMS[kind]], Random(f"{kind} 4")
    last = EPOCH + timedelta(minutes=2)
    tables = tuple(
        pa.concat_tables([make_side(rng, name, 40, 9), make_side(Random(1), name, 1, 0, last, 40)])
        for name in "nm"
    )
    windows = windows_of(None, wanted.left, wanted.right)
    case = Case(*tables, wanted.on, windows, "t", "t")
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    sink, batches = Sink(tmp_path), []
    first, second = rounds(rng, [table.slice(0, 40) for table in tables], wanted.files)
    second = tuple([*parts, table.slice(40)] for parts, table in zip(second, tables, strict=True))
    spark.conf.set(AFTER_THE_LAST, "true")
    try:
        for parts in (first, second):
            batches += feed_files(feeds, parts)
            left, right = (
                feed.read(spark).withWatermark("t", f"{delay} seconds")
                for feed, delay in zip(feeds, wanted.delays, strict=True)
            )
            joined = handshake.join(
                left, right, wanted.on, left_window=wanted.left, right_window=wanted.right, how=kind,
                name="j", segments=3, state=state,
            )  # fmt: skip
            sink.run(joined)
    finally:
        spark.conf.set(AFTER_THE_LAST, "false")
    arrivals, _, _ = arrivals_of(MICROSECONDS, case, batches, marks_of(case, batches, wanted.delays))
    end = (last - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000
    want = expected_kind(case, kind, arrivals, end - max(wanted.delays) * 10**9)
    found = [(row.get("n"), row.get("m")) for row in sink.rows()]
    assert sorted(found, key=repr) == want
    assert any(None in pair for pair in want)
    assert sink.sums("j", "results") == len(want)


def late_of(tables, arrivals, keys: str) -> int:
    """Return tuples that could have matched and did not arrive in time."""
    arrived = set(arrivals)
    return sum(
        (side, number) not in arrived and all(row[key] is not None and row[key] == row[key] for key in keys)
        for side, table in zip(("left", "right"), tables, strict=True)
        for number, row in enumerate(table.to_pylist())
    )


def rounds(rng: Random, tables, files: int, restart: bool = True):
    """Cut both sides into files in two rounds; with a restart, the sides get different numbers of files."""
    left, right = (cut(rng, table, 2 * files) for table in tables)
    if not restart:
        return ((left, right),)
    return (left[:files], right[: files - 1]), (left[files:], right[files - 1 :])


def feed_files(feeds, parts):
    """Put files where the streams find them; return the micro-batches that Spark makes, one file a side."""
    for feed, tables in zip(feeds, parts, strict=True):
        for table in tables:
            feed.add(table)
    count = max(map(len, parts))
    return [tuple(tables[k : k + 1] for tables in parts) for k in range(count)]


def spread(frame, partitions: int):
    return frame if partitions == 1 else frame.repartition(partitions)


MICROSECONDS = SimpleNamespace(definition=SimpleNamespace(spec=SimpleNamespace(unit="us")))


def marks_of(case: Case, batches, delays) -> list[int | None]:
    """Return Spark's watermark at each micro-batch, in microseconds: that of the side further behind."""
    marks: list[int | None] = []
    newest: list[int | None] = [None, None]
    for parts in batches:
        known = [n - d * 1000 for n, d in zip(newest, delays, strict=True) if n is not None]
        marks.append(min(known) * 1000 if len(known) == 2 else None)
        for side in (0, 1):
            times = [row[TIME] // 10**6 for table in parts[side] for row in rows(table, "t")]
            newest[side] = max([*times, *([newest[side]] if newest[side] is not None else [])], default=None)
    return marks


def test_streams_without_watermarks_take_turns(spark, tmp_path):
    rng = Random(11)
    tables = make_side(rng, "n", 20, 0), make_side(rng, "m", 25, 0)
    case = Case(*tables, "l.x <> r.x", windows_of("3 tuples"))
    feeds, sink = (Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)), Sink(tmp_path)
    batches = feed_files(feeds, tuple(cut(rng, table, 3) for table in tables))
    left, right = (feed.read(spark) for feed in feeds)
    joined = handshake.join(left, right, case.on, window="3 tuples")
    sink.run(joined, "update")  # of an inner join, updates are what is appended
    arrivals, _, _ = arrivals_of(MICROSECONDS, case, batches, [None] * len(batches))
    assert sorted((row["n"], row["m"]) for row in sink.rows()) == sorted(expect(case, None, arrivals).pairs)


# Batches, and a stream with a static side


BATCHES = {
    "plain": ("l.x BETWEEN r.x - 1 AND r.x + 2 AND l.y < r.y", None),
    "equality": ("l.y = r.y AND l.k = r.k", None),
    "arithmetic": ("l.x + 1 = r.x AND l.k <> r.k", None),
    "timed": ("l.x > r.x", "4 seconds"),
    "counted": ("l.x = r.x OR l.k < r.k", "9 tuples"),
}


@pytest.fixture(scope="module")
def tables():
    return make_side(Random(1), "n", 60, 5), make_side(Random(2), "m", 50, 5)


@pytest.fixture(scope="module")
def frames(spark, tables):
    return tuple(spark.createDataFrame(table) for table in tables)


def pairs(frame) -> list[tuple[int, int]]:
    return sorted((row.n, row.m) for row in frame.select("n", "m").collect())


@pytest.mark.parametrize("name", BATCHES)
def test_batches_agree_with_the_oracle(tables, frames, name):
    on, window = BATCHES[name]
    time = None if window is None else "t"
    joined = handshake.join(*(spread(f, 1) for f in frames), on, window=window, time=time)
    want = expect(Case(*tables, on, windows_of(window), time, time))
    assert pairs(joined.coalesce(1)) == sorted(want.pairs)
    assert len(want.pairs) > 0
    assert ("Spark's own join" in handshake.explain(joined)) == (name == "equality")


@pytest.mark.parametrize(
    ("kind", "name"), [*zip(KINDS, cycle(BATCHES)), ("full", "counted"), ("left", "timed")]
)
def test_kinds_of_batches_agree_with_the_oracle(tables, frames, kind, name):
    """Rows visit several segments; there are NULL keys and one-sided conditions."""
    on, window = BATCHES[name]
    on, time = f"({on}) AND l.x < 10 AND r.k < 2", None if window is None else "t"
    joined = handshake.join(*frames, on, window=window, time=time, how=kind, segments=3)
    result = expect(Case(*tables, on, windows_of(window), time, time))
    want = of_kind(kind, result, (len(tables[0]), len(tables[1])))
    found = [(row.get("n"), row.get("m")) for row in joined.toArrow().to_pylist()]
    assert sorted(found, key=repr) == want
    assert want


@pytest.mark.parametrize("kind", ["left", "full", "left_semi", "left_anti"])
def test_kinds_of_equalities_are_left_to_spark(frames, kind):
    left, right = frames
    on = "l.y = r.y AND l.k >= r.k"
    native, own = (handshake.join(left, right, on, how=kind, method=method) for method in ("auto", "hash"))
    assert native.schema == own.schema
    assert sorted(map(str, native.collect())) == sorted(map(str, own.collect()))
    assert "Spark's own join" in handshake.explain(native)


def test_rows_without_a_time_are_without_a_match(spark):
    at = EPOCH.replace(tzinfo=None)
    left = spark.createDataFrame([(0, at), (1, None), (2, None)], "n int, t timestamp")
    right = spark.createDataFrame([(0, at), (1, None)], "m int, t timestamp")
    joined = handshake.join(left, right, window="5 s", time="t", how="full")
    found = sorted(((row.n, row.m) for row in joined.collect()), key=str)
    assert found == [(0, 0), (1, None), (2, None), (None, 1)]


def test_kinds_of_empty_batches(spark, frames):
    left, right = frames
    nothing = right.limit(0)
    on = "l.x < r.x"
    assert handshake.join(left, nothing, on, how="left").count() == left.count()
    assert handshake.join(left, nothing, on, how="left_semi").count() == 0
    assert handshake.join(left.limit(0), nothing, on, how="full").count() == 0


def test_the_result_time_of_a_row_without_a_match_is_its_own(frames):
    left, right = frames
    joined = handshake.join(
        left, right, "l.x = r.x + 100", window="5 s", time="t", how="full", result_time="at"
    )
    rows = joined.collect()
    assert len(rows) == left.count() + right.count()
    assert all(row["at"] == (row["t"] if row["n"] is not None else row["t_right"]) for row in rows)
    only = handshake.join(left, right, "l.x < r.x", how="anti", window="5 s", time="t", result_time="at")
    assert all(row["at"] == row["t"] for row in only.collect())


def test_a_python_function_as_the_predicate(tables, frames):
    def alike(x, y):
        return None if x is None or y is None else x % 5 == y % 5

    left, right = handshake.left, handshake.right
    built = handshake.call(alike, left.x, right.x) & (left.k == right.k)
    want = expect(Case(*tables, "l.x % 5 = r.x % 5 AND l.k = r.k", windows_of()))
    assert pairs(handshake.join(*frames, built)) == sorted(want.pairs)


def test_an_equality_is_left_to_spark(frames):
    """Compare columns, types and rows with those of our own join."""
    left, right = frames
    on = "l.y = r.y AND l.k >= r.k"
    native, own = handshake.join(left, right, on), handshake.join(left, right, on, method="hash")
    assert native.schema == own.schema
    assert sorted(map(str, native.collect())) == sorted(map(str, own.collect()))
    assert "Spark's own join" in handshake.explain(native)
    assert "Spark's own join" not in handshake.explain(own)


@pytest.mark.parametrize(
    "on",
    ["l.y <> r.y AND l.k = r.k", "l.x = r.y", "l.x = r.x OR l.k = r.k", "l.x < r.x", "l.x = r.x AND l.k = 1",
     "ABS(l.x - r.x) = 0"],
)  # fmt: skip
def test_what_spark_may_see_otherwise_is_not(frames, on):
    assert "Spark's own join" not in handshake.explain(*frames, on)


@pytest.mark.parametrize("streaming", [0, 1])
def test_a_stream_with_a_static_side(spark, tmp_path, tables, frames, streaming):
    on = "l.x BETWEEN r.x - 1 AND r.x AND l.y <= r.y"
    feed, sink = Feed(tmp_path / "in", (SCHEMA, RIGHT)[streaming]), Sink(tmp_path)
    inputs = list(frames)
    inputs[streaming] = feed.read(spark)
    joined = handshake.join(*inputs, on)
    assert "a stream that passes by a static DataFrame" in handshake.explain(joined)
    for table in cut(Random(5), tables[streaming], 2):
        feed.add(table)
    sink.run(joined)
    want = expect(Case(*tables, on, windows_of()))
    assert sorted((row["n"], row["m"]) for row in sink.rows()) == sorted(want.pairs)


STATIC_KINDS = {"left": 0, "left_semi": 0, "left_anti": 0, "right": 1, "right_anti": 1}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=[pytest.mark.soak] if k in {"left_anti", "right_anti"} else [])
        for k in STATIC_KINDS
    ],
)  # the rows of left_anti and right_anti are among those of left and right
def test_kinds_of_a_stream_with_a_static_side(spark, tmp_path, tables, frames, kind):
    """All matches of a row are known when it passes by, so every result comes at once."""
    streaming = STATIC_KINDS[kind]
    on = "l.x BETWEEN r.x - 1 AND r.x AND l.y <= r.y AND l.k < 2 AND r.x > 3"
    feed, sink = Feed(tmp_path / "in", (SCHEMA, RIGHT)[streaming]), Sink(tmp_path)
    inputs = list(frames)
    inputs[streaming] = feed.read(spark)
    for table in cut(Random(5), tables[streaming], 2):
        feed.add(table)
    sink.run(handshake.join(*inputs, on, how=kind, segments=3))
    result = expect(Case(*tables, on, windows_of()))
    want = of_kind(kind, result, (len(tables[0]), len(tables[1])))
    assert sorted(((row.get("n"), row.get("m")) for row in sink.rows()), key=repr) == want
    assert want


def test_a_stream_with_an_empty_static_side(spark, tmp_path, tables, frames):
    feed, sink = Feed(tmp_path / "in", SCHEMA), Sink(tmp_path)
    feed.add(tables[0])
    sink.run(handshake.join(feed.read(spark), frames[1].limit(0), "l.x < r.x", how="left"))
    assert len(sink.rows()) == tables[0].num_rows


@pytest.mark.parametrize(("kind", "streaming"), [("right", 0), ("full", 0), ("left_anti", 1)])
def test_kinds_that_ask_for_matches_of_a_static_side(spark, tmp_path, frames, kind, streaming):
    inputs = list(frames)
    inputs[streaming] = Feed(tmp_path / "in", (SCHEMA, RIGHT)[streaming]).read(spark)
    with pytest.raises(UnsupportedError, match=f"how='{kind}' asks which rows of the .* DataFrame have a"):
        handshake.join(*inputs, "l.x < r.x", how=kind)


# The time of results


@pytest.mark.parametrize(
    "kind", ["full", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("left_semi", "left_anti"))]
)  # a full join has results of both kinds: at a match, and at the end of a window
def test_no_result_is_late_by_its_result_time(spark, tmp_path, kind):
    """A windowed count after the join takes every result: its time is the end of a window, or of a pair."""
    rng = Random(8)
    last = EPOCH + timedelta(hours=1)
    tables = tuple(
        pa.concat_tables([make_side(rng, name, 30, 3), make_side(Random(1), name, 1, 0, last, 30)])
        for name in "nm"
    )
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    feed_files(feeds, tuple([*cut(rng, table.slice(0, 30), 2), table.slice(30)] for table in tables))
    left, right = (feed.read(spark).withWatermark("t", "5 seconds") for feed in feeds)
    on = "l.x BETWEEN r.x - 1 AND r.x"
    joined = handshake.join(left, right, on, window="4 seconds", how=kind, result_time="at")
    plain, counted = Sink(tmp_path / "plain"), Sink(tmp_path / "counted")
    spark.conf.set(AFTER_THE_LAST, "true")
    try:
        plain.run(joined)
        counted.run(joined.groupBy(F.window("at", "10 seconds")).count())
    finally:
        spark.conf.set(AFTER_THE_LAST, "false")
    rows = [row for row in plain.rows() if row["at"] < last - timedelta(seconds=20)]
    assert sum(row["count"] for row in counted.rows()) == len(rows) > 10
    for row in rows:
        assert row["at"] == expected_time(kind, row)


def expected_time(kind: str, row: dict) -> datetime:
    """Return the later time of a pair, or the end of the window of a row alone.

    A semi join shows no other time.
    """
    mine, other = row.get("t"), row.get("t_right")
    if kind == "left_semi":
        assert mine <= row["at"] < mine + timedelta(seconds=4)
        return row["at"]
    if mine is None or other is None:
        return (mine or other) + timedelta(seconds=4)
    return max(mine, other)


def test_the_result_time_of_an_outer_join_needs_a_time_window(spark, tmp_path):
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    left, right = (feed.read(spark).withWatermark("t", "5 seconds") for feed in feeds)
    with pytest.raises(WindowError, match="result_time of a left join needs a time window"):
        handshake.join(left, right, "l.x = r.x", window="9 tuples", how="left", result_time="at")


# Several joins and operators in one query


AFTER_THE_LAST = "spark.sql.streaming.noDataMicroBatches.enabled"


def near(a: dict, b: dict, seconds: int) -> bool:
    return abs(a["t"] - b["t"]) < timedelta(seconds=seconds)


def test_joins_and_aggregates_in_one_query(spark, tmp_path):
    """Filters before, a join of a join, a union of two joins, and a windowed count after."""
    rng = Random(8)
    left, right = make_side(rng, "n", 30, 3), make_side(rng, "m", 30, 3)
    last = make_side(Random(1), "n", 1, 0).set_column(
        4, "t", pa.array([EPOCH + timedelta(hours=1)], left.schema[4].type)
    )
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    feed_files(feeds, (cut(rng, left, 2), cut(rng, right, 2)))
    feed_files(
        feeds, ([last], [last.rename_columns(right.schema.names)])
    )  # moves the watermarks past all else
    streams = [feed.read(spark).withWatermark("t", "5 seconds") for feed in feeds]
    first = handshake.join(
        streams[0].where("n % 3 < 2"), streams[1].withColumn("z", F.expr("x + 1")), "l.x <= r.z",
        window="4 seconds", result_time="at", name="first",
    )  # fmt: skip
    second = handshake.join(
        first.select("n", "m", "x", "at"), streams[0].toDF("p", "k", "w", "y", "t"), "l.x = r.w",
        window="3 seconds", result_time="then", name="second",
    )  # fmt: skip
    third = handshake.join(*streams, "l.k = r.k", window="2 seconds", result_time="then", name="third")
    both = second.select("then", F.lit("second").alias("which")).union(
        third.select("then", F.lit("third").alias("which"))
    )
    sink = Sink(tmp_path)
    spark.conf.set(AFTER_THE_LAST, "true")  # for the watermark that the last tuples lead to
    try:
        sink.run(both.groupBy(F.window("then", "10 seconds"), "which").count())
    finally:
        spark.conf.set(AFTER_THE_LAST, "false")
    got = Counter({(row["window"]["start"], row["which"]): row["count"] for row in sink.rows()})
    assert got == count_matches(left.to_pylist(), right.to_pylist())
    assert {which for _, which in got} == {"second", "third"}


def count_matches(left: list[dict], right: list[dict]) -> Counter:
    """Count matches with plain loops."""
    found: Counter = Counter()
    for r in left:
        for s in right:
            then = max(r["t"], s["t"])
            if near(r, s, 4) and r["n"] % 3 < 2 and None not in (r["x"], s["x"]) and r["x"] <= s["x"] + 1:
                for q in left:
                    if near({"t": then}, q, 3) and q["x"] == r["x"]:
                        found[slot(max(then, q["t"])), "second"] += 1
            if near(r, s, 2) and r["k"] is not None and r["k"] == s["k"]:
                found[slot(then), "third"] += 1
    return found


def slot(at: datetime) -> datetime:
    return EPOCH + timedelta(seconds=(at - EPOCH) // timedelta(seconds=10) * 10)


def test_empty_streams(spark, tmp_path):
    feeds, sink = (Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)), Sink(tmp_path)
    feed_files(feeds, ([make_side(Random(0), "n", 0, 0)], []))
    left, right = (feed.read(spark).withWatermark("t", "1 second") for feed in feeds)
    sink.run(handshake.join(left, right, "l.x = r.x", window="5 seconds"))
    assert sink.rows() == []


# Payload


PAYLOAD = """
    SELECT 1 AS id, struct(1 AS a, array(struct('x' AS q, CAST(NULL AS int) AS z)) AS b) AS nested,
    map('k', array(1, NULL)) AS m, CAST('12345678901234567890.5' AS decimal(38,10)) AS d, X'00ff' AS b,
    timestamp'2024-01-01 00:00:01.123456' AS t, timestamp_ntz'0001-01-01 00:00:01.123456' AS u,
    date'1600-02-29' AS da, true AS bo, 1Y AS by, 2S AS sh, CAST('NaN' AS float) AS f, double('-0.0') AS g,
    CAST('c' AS char(3)) AS ch, CAST('v' AS varchar(5)) AS vc, INTERVAL '1 02:03:04.5' DAY TO SECOND AS iv,
    'Straße' COLLATE UTF8_LCASE AS co, CAST(NULL AS string) AS nothing, time'10:11:12.5' AS ti,
    parse_json('{"a": [1, null]}') AS va
"""


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark 4.0 has no type for times of day")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_payload_is_left_as_it_is(spark, tmp_path, zone):
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        payload = spark.sql(PAYLOAD)
        keys = spark.sql("SELECT 2 AS more")
        joined = handshake.join(payload, keys, "l.id < r.more")
        check_payload(payload, joined)
        if zone == "UTC":
            stream_payload(spark, tmp_path, payload.drop("ti"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def check_payload(payload, joined) -> None:
    assert joined.schema.fields[: len(payload.columns)] == payload.schema.fields
    (want,), (got,) = payload.collect(), joined.collect()
    assert str(tuple(got)[: len(want)]) == str(tuple(want))


def stream_payload(spark, tmp_path, payload) -> None:
    """Join through a stream and its state: the second micro-batch finds rows of the first."""
    payload.coalesce(1).write.parquet(str(tmp_path / "payload"))
    kept = spark.readStream.schema(payload.schema).parquet(str(tmp_path / "payload"))
    feed, sink = Feed(tmp_path / "keys", "more int, at timestamp"), Sink(tmp_path)
    for second in (0, 1):
        at = pa.array([datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC)], pa.timestamp("us", "UTC"))
        feed.add(pa.table({"more": pa.array([2 + second], pa.int32()), "at": at}))
    left, right = kept.withWatermark("t", "1 hour"), feed.read(spark).withWatermark("at", "1 hour")
    joined = handshake.join(left, right, "l.id < r.more", window="1 minute")
    sink.run(joined)
    assert joined.schema.fields[: len(kept.columns)] == kept.schema.fields
    got = [tuple(row.values()) for batch in sink.batches.values() for row in batch.to_pylist()]
    want = payload.toArrow().to_pylist()[0]
    assert [str(row[: len(want)]) for row in got] == [str(tuple(want.values()))] * 2


# What is said of it


def test_explain_tells_how_a_stream_join_runs(spark, tmp_path):
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    left, right = (feed.read(spark).withWatermark("t", "5 seconds") for feed in feeds)
    options = {"window": "15 minutes", "name": "trades", "segments": 3, "state_dir": str(tmp_path / "state")}
    text = handshake.explain(left, right, "l.x BETWEEN r.x - 10 AND r.x + 10", **options)
    assert not (tmp_path / "state").exists()
    assert text.splitlines() == [
        "join on     (l.x >= (r.x - 10)) AND (l.x <= (r.x + 10))",
        "windows     15 minutes",
        "method      band: no equality; 1 band(s) between the sides",
        "  band        l.x >= r.x - 10",
        "  band        l.x <= r.x + 10",
        "left index  band on l.x",
        "right index band on r.x",
        "time        l.t (watermark 5 seconds behind), r.t (watermark 5 seconds behind)",
        "runs as     streaming: micro-batches of both streams, results appended",
        "routing     range with overlap: band of 10 to either side on l.x; a tuple goes to the segments of "
        "its cell and of 2 to either side, of 1024",
        "segments    3, over 2 shuffle partitions",
        f"state       windows lie under {tmp_path}/state",
        "progress    observedMetrics['trades'] of the query's progress",
    ]
    assert (
        handshake.explain(handshake.join(left, right, "l.x BETWEEN r.x - 10 AND r.x + 10", **options)) == text
    )
    assert "routing     hash: equality on l.k; " in handshake.explain(left, right, "l.k = r.k", **options)
    assert "routing     to all: no equality" in handshake.explain(left, right, "l.k <> r.k", **options)


def test_explain_tells_how_an_outer_join_of_streams_runs(spark, tmp_path):
    feeds = Feed(tmp_path / "left", SCHEMA), Feed(tmp_path / "right", RIGHT)
    left, right = (feed.read(spark).withWatermark("t", "5 seconds") for feed in feeds)
    text = handshake.explain(left, right, "l.x = r.x", window="15 minutes", how="left").splitlines()
    for line in (
        "kind        left: the pairs, and left rows without a match, with NULLs",
        "matches     left rows find them in their own segment; right rows stay wherever they visit",
        "held        a number of 4 bytes and 2 bits of state per left row in the window",
        "unmatched   left rows come when they have left 15 minutes; those that can match nothing come at "
        "once",
    ):
        assert line in text


def test_explain_goes_with_its_dataframe(frames):
    joined = handshake.join(*frames, "l.x < r.x", segments=2)
    plan = weakref.ref(joined._handshake_plan)
    with pytest.raises(InputError, match=r"this DataFrame is not the one that handshake\.join returned"):
        handshake.explain(joined.where("x > 1"))
    with pytest.raises(
        InputError,
        match="explain takes the text of a query, a running query or join",
    ):
        handshake.explain({"x": [1]})
    del joined
    gc.collect()
    assert plan() is None
