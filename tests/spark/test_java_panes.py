# ruff: noqa: E501 - a query is easier to read in one line
"""Panes that Java makes inside of Spark's process are those that Python makes: partition by partition."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
import zipfile
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_queries_spark import spark_schema

import query_oracle
from handshake.errors import UnsupportedError
from handshake.operators.pipeline import chain
from handshake.operators.query import Query
from handshake.plan.algebra import Output, Windowing
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from handshake.schema import arrow_of
from oracle_values import rows as physical_rows
from query_backends import Spark, by_time, check, frames, many, plain, restored, tables
from query_streams import batch_of, seen
from spark_session import Feed, Sink, spark

__all__ = ["spark"]

pytest.importorskip("pyspark")
from handshake.engines.spark.failures import reason
from handshake.engines.spark.jvm import classes as jvm
from handshake.engines.spark.jvm.pane_blobs import read_panes
from handshake.engines.spark.jvm.panes import java_panes
from handshake.engines.spark.jvm.row_blobs import packed, readable, unpacked
from handshake.engines.spark.queries.inputs import source_frame
from handshake.engines.spark.queries.panes import Reduced
from handshake.engines.spark.queries.state import PaneQuery, reduce_panes
from handshake.engines.spark.queries.tasks import BLOBS, conformed
from handshake.engines.spark.queries.translate import query_frames
from handshake.engines.spark.tables import carried

WIDE = """CREATE INPUT STREAM S (g string, y binary, h double, k float, i int8, j int, l long, d decimal(12, 2),
  e decimal(38, 3), b bool, a date, w uint32, o timestamp(3), u uint64, t {time}) TIMESTAMP BY t{unit};"""
CLOCKS = {"timestamp": "", "timestamp(0)": "", "timestamp(3)": "", "long": " IN MILLISECONDS", "int": ""}
SECONDS = {"timestamp": 1e-6, "timestamp(0)": 1, "timestamp(3)": 1e-3, "long": 1e-3, "int": 1}
QUERIES = {
    "sums": "SELECT sum(i) p, sum(j) q, avg(l) r, sum(d) s, avg(e) u, sum(h) v, avg(k) w, sum(w) x FROM {S}",
    "extremes": """SELECT min(i) c, max(j) n, min(l) o, max(l) p, min(d) q, max(h) r, min(h) s, min(k) u, max(a) v,
        min(o) w, max(t) x, max(w) y, max(d) z FROM {S}""",
    "counts": "SELECT count() n, count(g) c, count(e) x, count(u) y, window_start() z FROM {S} WHERE i > 0 OR b",
    "groups": "SELECT g, sum(l) AS s, max(h) AS m, min(j) AS n, count() AS c FROM {S} GROUP BY g",
    "many keys": "SELECT b, h, a, y, i, count(j) AS c FROM {S} WHERE j <> 5 GROUP BY b, h, a, y, i",
    "times as keys": "SELECT o, k, sum(e) AS c, window_end() z FROM {S} GROUP BY o, k HAVING count() > 1",
    "below": "SELECT g, sum(p) AS s FROM (SELECT g, j * i + 1 AS p, b FROM S WHERE b) {W} WHERE p > 0 GROUP BY g",
    "computed": "SELECT sum(j * i) AS s, max(j - i) AS m, sum(j + j) AS n FROM {S} WHERE g = 'UBSN' AND j < 8",
}
SLICES = "spark.sql.leafNodeDefaultParallelism"
WINDOWS = ((10, 4), (6, 6), (2, 5), (7, 3), (12, 1))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "g": st.sampled_from(["UBSN", "CSGN", "", "ü", "a\0", "a"]),
    "y": st.sampled_from([b"", b"a", b"\0", b"\xff\xfe"]),
    "h": st.sampled_from([0.0, -0.0, 0.1, 1e300, -1e300, 5e-324, -2.5, math.inf, -math.inf, math.nan]),
    "k": st.sampled_from([0.0, -0.0, 0.5, -1.25, math.nan, 3.0]),
    "i": st.integers(-3, 3) | st.sampled_from([-128, 127]),
    "j": st.integers(-5, 9) | st.sampled_from([-(2**31), 2**31 - 1]),
    "l": st.integers(-5, 9) | st.sampled_from([-(2**63), 2**63 - 1]),
    "d": st.integers(-30, 30).map(lambda n: Decimal(n) / 100) | st.just(Decimal("9999999999.99")),
    "e": st.sampled_from([Decimal("-0.001"), Decimal(10) ** 34, -(Decimal(10) ** 34), Decimal(2**64)]),
    "b": st.booleans(),
    "a": st.sampled_from([0, 1, -5, 20_000]),
    "w": st.sampled_from([0, 7, 2**32 - 1]),
    "o": st.sampled_from([0, -1, 86_400_123]),
    "u": st.sampled_from([0, 2**64 - 1]),
}
FEW = settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    """A partition's tuples: times in any order, before and after 1970, some NULL."""
    nulls, late = draw(st.booleans()), draw(st.booleans())
    values = {name: st.none() | some if nulls else some for name, some in VALUES.items()}
    now, made = draw(st.integers(-20, 20)), list[dict[str, Any]]()
    for _ in range(draw(st.integers(0, 24))):
        now += draw(st.integers(0, 3))
        made.append({name: draw(some) for name, some in values.items()})
        made[-1]["t"] = (
            None if nulls and draw(st.integers(0, 9)) == 0 else now - late * draw(st.integers(0, 9))
        )
    return made


def window(time: str, size: int, advance: int) -> str:
    each = SECONDS[time]
    return f"[SIZE {size * each:f} ADVANCE {advance * each:f} TIME]"


def text_of(name: str, time: str, size: int, advance: int) -> str:
    made = window(time, size, advance)
    return WIDE.format(time=time, unit=CLOCKS[time]) + QUERIES[name].format(S=f"S {made}", W=made)


def output_of(text: str) -> Output:
    return optimise(parse_query(text)).outputs[0]


def source_of(output: Output) -> Any:
    over, _ = chain(output.input)
    assert isinstance(over, Windowing)
    return chain(over.input)[0]


def made_by_java(spark: Any, output: Output, table: pa.Table, parts: int) -> dict[int, Reduced]:
    """What comes of each partition, by its number."""
    source, panes = source_of(output), PaneQuery(output)._panes
    spark.conf.set(SLICES, parts)
    try:
        frame = source_frame(frames(spark, {"S": table})["S"], source, to_arrow=True)
        java = java_panes(output, frame)
        assert java is not None
        blobs = java.frame(frame, BLOBS)
        told = blobs.collect()
    finally:
        spark.conf.unset(SLICES)
    found = {row["partition"]: read_panes(bytes(row["data"]), panes, source) for row in told}
    return {number: reduced for number, reduced in found.items() if reduced is not None}


def made_by_python(output: Output, table: pa.Table) -> Reduced:
    source = source_of(output)
    schema = pa.schema([(f.name, arrow_of(f.type)) for f in source.fields])
    given = carried(table.select(schema.names), "S").combine_chunks().to_batches()
    return reduce_panes(output, (conformed(batch, schema) for batch in given))


def comparable(got: Reduced) -> tuple[Any, ...]:
    """What panes say, whatever their order and the numbers of their groups."""
    firsts: dict[int, int] = {}
    for first, count in zip(got.firsts.tolist(), got.counts.tolist(), strict=True):
        firsts[first] = firsts.get(first, 0) + count
    return got.clock, got.no_time, got.rows, firsts, _panes_of(got)


def _panes_of(got: Reduced) -> list[Any]:
    if got.table is None:
        return []
    table, keys = got.table, [physical_rows(pa.table({"k": key})) for key in got.keys]
    found, order = [], []
    for at in range(len(table)):
        group = [str(key[table.groups[at]]["k"]) for key in keys]
        parts = [_part(part, at) for part in (table.parts[:-1] if keys else table.parts)]
        found.append((int(table.first[at]), int(table.last[at]), group, int(table.counts[at]), parts))
        order.append(int(~table.parts[-1][0][at]) if keys else 0)
    in_time = [found[at] for at in np.argsort(order, kind="stable")] if keys else sorted(found, key=str)
    return [*sorted(found, key=str), in_time]


def _part(part: Any, at: int) -> Any:
    if isinstance(part, tuple):
        return (int(part[0][at]), True) if part[1][at] else (0, False)
    return part[at].tolist()


def prove(spark: Any, name: str, data: st.DataObject, parts: int) -> None:
    time, spans = data.draw(st.sampled_from(list(CLOCKS))), data.draw(st.sampled_from(WINDOWS))
    text = text_of(name, time, *spans)
    output, query = output_of(text), Query(parse_query(text))
    tuples = [row for some in data.draw(many(rows(), parts)) for row in some]
    table = pa.Table.from_batches([batch_of(query, "S", tuples)])
    found, parts = made_by_java(spark, output, table, parts), min(parts, max(len(tuples), 1))
    edges = [len(tuples) * part // parts for part in range(parts + 1)]  # as Spark cuts a local table
    for part, (start, stop) in enumerate(pairwise(edges)):
        wanted = made_by_python(output, table.slice(start, stop - start))
        assert (part in found) == (wanted.rows > 0)
        if part in found:
            assert comparable(found[part]) == comparable(wanted)


@pytest.mark.parametrize("name", QUERIES)
@FEW
@given(data=st.data())
def test_panes_are_those_of_python(spark: Any, name: str, data: st.DataObject) -> None:
    prove(spark, name, data, 4)


@pytest.mark.soak
@pytest.mark.parametrize("name", QUERIES)
@MANY
@given(data=st.data())
def test_panes_are_those_of_python_at_length(spark: Any, name: str, data: st.DataObject) -> None:
    prove(spark, name, data, 6)


# Whole queries, against the oracle and the in-process engine.


@pytest.mark.parametrize("name", ["many keys", "below"])
@FEW
@given(data=st.data())
def test_results_are_the_oracles(spark: Any, name: str, data: st.DataObject) -> None:
    plan = parse_query(text_of(name, "timestamp(3)", 10, 4))
    cases = data.draw(many(rows(), 4))
    (made,) = {query_frames(plan, frames(spark, tables(Query(plan), []))).panes[o.name] for o in plan.outputs}
    assert made == "Java"
    check(Spark(spark), plan, [[("S", row) for row in some] for some in cases], data.draw)


LATE = """CREATE INPUT STREAM S (k int, v long, t timestamp(3)) TIMESTAMP BY t LATENESS .002;
SELECT k, sum(v) AS s, max(v) AS m, count() AS n, window_end() AS z FROM S [SIZE .01 ADVANCE .004 TIME]
WHERE v <> 3 GROUP BY k"""


def test_streams_count_what_is_late_whoever_makes_panes(spark: Any, tmp_path: Path) -> None:
    """Six micro-batches in three runs from one checkpoint: panes are Java's, then Python's, then Java's."""
    plan, draw = parse_query(LATE), random.Random(7)
    query, feed = Query(plan), Feed(tmp_path / "S", spark_schema(Query(plan), "S"))
    sink, wanted = Sink(tmp_path / "sink"), list[pa.RecordBatch]()
    for batch in range(6):
        items = by_time(plan, [("S", late_row(draw, batch)) for _ in range(30)])
        (table,) = tables(query, items).values()
        feed.add(carried(table.take(draw.sample(range(len(items)), len(items))), "S"))
        wanted += query.push("S", table)["result"]
        if batch % 2:
            made = ("Java", "Python", "Java")[batch // 2]
            sink.run(panes_by(spark, made, plan, {"S": feed.read(spark)}))
    schema = query.schema("result")
    found = [row for n in sorted(sink.batches) for row in restored(sink.batches[n], schema)]
    assert plain({"": found}) == plain({"": physical_rows(pa.Table.from_batches(wanted, schema))})
    assert found
    metrics = query.metrics()
    assert (sink.sums("result", "late"), sink.sums("result", "no_time")) == (metrics.late, metrics.no_time)
    assert metrics.late > 0 < metrics.no_time


def late_row(draw: random.Random, batch: int) -> dict[str, Any]:
    time = None if draw.random() < 0.1 else 12 * batch - 10 + draw.randrange(-9, 12)
    return {"k": draw.choice([None, 1, 2]), "v": draw.choice([None, 3, -(2**63), 2**63 - 1, 0]), "t": time}


def panes_by(spark: Any, made: str, plan: Any, inputs: dict[str, Any]) -> Any:
    spark.conf.set("spark.handshake.java", str(made == "Java"))
    try:
        frames = query_frames(plan, inputs)
    finally:
        spark.conf.unset("spark.handshake.java")
    assert frames.panes == {"result": made}
    return frames["result"]


FAR = """CREATE INPUT STREAM S (v int, t long) TIMESTAMP BY t LATENESS 3;
SELECT count() AS n, sum(v) AS s, max(v) AS m, window_end() AS z FROM S [SIZE 7 ADVANCE 2 TIME]"""


@pytest.mark.parametrize("made", ["Java", "Python"])
def test_windows_at_the_ends_of_time(spark: Any, made: str) -> None:
    plan, most = parse_query(FAR), 2**62 - 1
    times = [most, 5, -most, most - 1, -most + 4, -5, -(2**61), most]
    items: list[Any] = [("S", {"v": at, "t": time}) for at, time in enumerate(times)]
    spark.conf.set(SLICES, 2)
    try:
        found = panes_by(spark, made, plan, frames(spark, tables(Query(plan), items))).toArrow()
    finally:
        spark.conf.unset(SLICES)
    wanted = query_oracle.run(plan, seen(Query(plan), by_time(plan, items)))
    assert plain({"result": restored(found, Query(plan).schema("result"))}) == plain(wanted)


def test_a_time_that_no_window_can_have(spark: Any) -> None:
    text = "CREATE INPUT STREAM S (t long) TIMESTAMP BY t; SELECT count() AS n FROM S [SIZE 2 TIME]"
    frame = query_frames(text, {"S": spark.sql(f"SELECT {2**62}L AS t")})
    assert frame.panes == {"result": "Java"}
    with pytest.raises(Exception, match="a time in column 't' of stream S is beyond 62 bits"):
        frame["result"].collect()


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_time_of_a_join_that_spark_cannot_have(spark: Any, ansi: str) -> None:
    """Without Spark's ANSI mode the product would wrap around."""
    streams = "".join(f"CREATE INPUT STREAM {name} (t long) TIMESTAMP BY t; " for name in "SR")
    text = streams + "SELECT S.t AS a FROM S [SIZE 2 TIME], R [SIZE 2 TIME] WHERE S.t <= R.t"
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        given = {name: spark.sql("SELECT 9223372036855L AS t") for name in "SR"}
        with pytest.raises(Exception, match="a time in column 't'") as found:
            query_frames(text, given)["result"].collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert re.fullmatch(
        "a time in column 't' of stream [SR] is 9223372036855 s, which Spark's timestamps, microseconds in 64 "
        "bits, do not hold",
        reason(found.value),
    )


def test_a_time_that_is_too_fine(spark: Any) -> None:
    text = "CREATE INPUT STREAM S (t timestamp(0)) TIMESTAMP BY t; SELECT count() AS n FROM S [SIZE 2 TIME]"
    frame = query_frames(text, {"S": spark.sql("SELECT timestamp_micros(1500000) AS t")})["result"]
    with pytest.raises(
        Exception, match="a time in column 't' is 1500000 us, which is no whole number of seconds"
    ):
        frame.collect()


# Results, which Java makes rows of.

RESULTS = {
    "i": (pa.int8(), [1, -128, None]), "j": (pa.int16(), [-(2**15), 3]), "k": (pa.int32(), [2**31 - 1, None]),
    "l": (pa.int64(), [-(2**63), 2**63 - 1, 0, None]), "h": (pa.float64(), [0.1, -0.0, math.inf, math.nan, None]),
    "f": (pa.float32(), [0.5, None]), "b": (pa.bool_(), [True, False, None]),
    "d": (pa.decimal128(12, 2), [Decimal("-9999999999.99"), Decimal("0.01"), None]),
    "e": (pa.decimal128(38, 3), [Decimal(10**37 - 1) / 1000, -(Decimal(2**100)), Decimal(-1), None]),
    "g": (pa.string(), ["", "ü", "a\0", "UBSN", None]), "y": (pa.binary(), [b"", b"\xff\0", b"abcdefgh", None]),
    "a": (pa.date32(), [0, -5, 20_000, None]), "t": (pa.timestamp("us", "UTC"), [0, -1, 10**15 + 1, None]),
    "n": (pa.timestamp("us"), [0, -1, -(10**16), 10**15 + 1, None]),
}  # fmt: skip


def test_rows_are_the_results_that_were_packed(spark: Any) -> None:
    draw = random.Random(3)
    schema = pa.schema([(name, kind) for name, (kind, _) in RESULTS.items()])
    arrays = [column([draw.choice(some) for _ in range(40)], kind) for kind, some in RESULTS.values()]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    pieces = [whole.slice(0, 25), whole.slice(25, 0), whole.slice(25)]
    blobs = spark.createDataFrame([(packed(piece, schema),) for piece in pieces], "data binary").coalesce(1)
    assert readable(schema, spark)
    found = unpacked(blobs, schema).toArrow()
    assert [str(row) for row in physical_rows(found)] == [
        str(row) for row in physical_rows(pa.Table.from_batches([whole]))
    ]
    assert found.schema.types == schema.types


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Dates and times are given as whole numbers."""
    if not pa.types.is_temporal(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)


# Where Python makes them.

NOT_IN_JAVA = ["max(g)", "sum(u)", "max(e)", "sum(j / 3)", "min(upper(g))", "sum(l + 1)"]


@pytest.mark.parametrize("aggregate", NOT_IN_JAVA)
def test_what_java_does_not_compute_as_we_do(spark: Any, aggregate: str) -> None:
    text = WIDE.format(time="timestamp", unit="") + f"SELECT {aggregate} AS m FROM S [SIZE 2 TIME]"
    given = frames(spark, tables(Query(parse_query(text)), []))
    assert query_frames(text, given).panes == {"result": "Python"}


def test_a_setting_that_is_none(spark: Any) -> None:
    spark.conf.set("spark.handshake.java", "scala")
    try:
        with pytest.raises(
            UnsupportedError, match=r"spark\.handshake\.java is 'true' or 'false'; 'scala' was given"
        ):
            query_frames(parse_query(LATE), frames(spark, tables(Query(parse_query(LATE)), [])))
    finally:
        spark.conf.unset("spark.handshake.java")


def test_a_java_that_cannot_be_compiled_leaves_it_to_python(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "PaneMaker.java"
    broken.write_text("package handshake; class PaneMaker {")
    monkeypatch.setattr(jvm, "SOURCES", (broken,))
    monkeypatch.delattr(spark.sparkContext, "_handshake_java", raising=False)
    plan = parse_query(LATE)
    items = [("S", {"k": 1, "v": 5, "t": 0}), ("S", {"k": None, "v": 3, "t": 9})]
    found = query_frames(plan, frames(spark, tables(Query(plan), items)))
    assert found.panes == {"result": "Python"}
    assert {row["s"] for row in found["result"].collect()} == {5}


def test_a_jar_is_compiled_once_and_again_when_damaged(spark: Any, tmp_path: Path) -> None:
    jar = jvm.jar_in(tmp_path, spark._jvm)
    made = jar.read_bytes()
    jar.touch()
    stamp = jar.stat().st_mtime_ns
    assert jvm.jar_in(tmp_path, spark._jvm) == jar
    assert jar.stat().st_mtime_ns == stamp
    jar.write_bytes(made[: len(made) // 2])
    assert jvm.jar_in(tmp_path, spark._jvm) == jar
    assert zipfile.ZipFile(jar).testzip() is None
    assert [path.name for path in tmp_path.iterdir()] == [jar.name]


# A cluster, whose executors are processes of their own.

ON_CLUSTER = """
import sys
from handshake.spark.cluster import started
from handshake.spark.queries import query_frames
text = '''CREATE INPUT STREAM S (k string, v long, t timestamp) TIMESTAMP BY t;
SELECT k, sum(v) AS s, count() AS n FROM S [SIZE 10 TIME] GROUP BY k'''
settings = {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "512m", "spark.local.dir": sys.argv[1]}
with started("panes", "local-cluster[2,1,1024]", **settings) as cluster:
    rows = "SELECT CAST(id % 3 AS string) AS k, id AS v, timestamp_seconds(id % 10) AS t FROM range(0, 3000, 1, 4)"
    found = query_frames(text, {"S": cluster.session.sql(rows)})
    assert found.panes == {"result": "Java"}, found.panes
    told = [row for row in found["result"].collect() if row["n"] == 1000]
    print("FOUND", sorted((row["k"], int(row["s"])) for row in told))
"""


@pytest.mark.soak
def test_executors_of_a_cluster_have_the_class(tmp_path: Path) -> None:
    import pyspark

    home = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    path = os.pathsep.join([str(Path(jvm.__file__).parents[4]), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, "-c", ON_CLUSTER, str(tmp_path)], capture_output=True, text=True, timeout=300,
        env={**os.environ, **home, "PYTHONPATH": path}, cwd=tmp_path,
    )  # fmt: skip
    sums = [(str(k), sum(range(k, 3000, 3))) for k in range(3)]
    assert f"FOUND {sums}" in told.stdout, told.stderr[-2000:]
