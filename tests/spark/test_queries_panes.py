# ruff: noqa: E501 - a query is easier to read in one line
"""Time windows on Spark from panes: results, late rows, and times at the ends of the range."""

from __future__ import annotations

import math
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.operators.query import Query
from handshake.plan.query import parse_query
from handshake.testing.oracle_values import rows as physical_rows
from query_backends import Spark, by_time, check, frames, many, plain, restore_rows, tables
from query_streams import as_physical
from spark_session import Feed, Sink, spark, spark_columns

__all__ = ["spark"]

pytest.importorskip("pyspark")
from handshake.engines.spark.failures import reason
from handshake.engines.spark.queries import query_frames
from handshake.engines.spark.types import to_spark_types

WIDE = """CREATE INPUT STREAM S (g string, y binary, h double, k float, i int8, j int, l long, d decimal(12, 2),
  e decimal(38, 3), b bool, a date, w uint32, o timestamp(3), u uint64, t timestamp(3)) TIMESTAMP BY t;"""
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
QUICK = ("many keys", "below")
WINDOW = "[SIZE .010 ADVANCE .004 TIME]"
SLICES = "spark.sql.leafNodeDefaultParallelism"
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
MANY = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    """Draw rows with times in any order, before and after 1970, some NULL."""
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


def prove(session: Any, name: str, data: st.DataObject, count: int) -> None:
    plan = parse_query(WIDE + QUERIES[name].format(S=f"S {WINDOW}", W=WINDOW))
    cases = data.draw(many(rows(), count))
    check(Spark(session), plan, [[("S", row) for row in some] for some in cases], data.draw)


@pytest.mark.parametrize("name", QUICK)
@FEW
@given(data=st.data())
def test_results_are_those_of_the_oracle(spark: Any, name: str, data: st.DataObject) -> None:
    prove(spark, name, data, 4)


@pytest.mark.soak
@pytest.mark.parametrize("name", QUERIES)
@MANY
@given(data=st.data())
def test_results_are_those_of_the_oracle_at_length(spark: Any, name: str, data: st.DataObject) -> None:
    prove(spark, name, data, 6)


LATE = """CREATE INPUT STREAM S (k int, v long, t timestamp(3)) TIMESTAMP BY t LATENESS .002;
SELECT k, sum(v) AS s, max(v) AS m, count() AS n, window_end() AS z FROM S [SIZE .01 ADVANCE .004 TIME]
WHERE v <> 3 GROUP BY k"""


def test_streams_count_late_rows_across_restarts(spark: Any, tmp_path: Path) -> None:
    """Run six micro-batches in three runs from one checkpoint."""
    plan, draw = parse_query(LATE), random.Random(7)
    query, feed = Query(plan), Feed(tmp_path / "S", spark_columns(Query(plan), "S"))
    sink, wanted = Sink(tmp_path / "sink"), list[pa.RecordBatch]()
    for batch in range(6):
        items = by_time(plan, [("S", late_row(draw, batch)) for _ in range(30)])
        (table,) = tables(query, items).values()
        feed.add(to_spark_types(table.take(draw.sample(range(len(items)), len(items))), "S"))
        wanted += query.push("S", table)["result"]
        if batch % 2:
            sink.run(query_frames(plan, {"S": feed.read(spark)})["result"])
    schema = query.schema("result")
    found = [row for n in sorted(sink.batches) for row in restore_rows(sink.batches[n], schema)]
    assert plain({"": found}) == plain({"": physical_rows(pa.Table.from_batches(wanted, schema))})
    assert found
    metrics = query.metrics()
    assert (sink.sums("result", "late"), sink.sums("result", "no_time")) == (metrics.late, metrics.no_time)
    assert metrics.late > 0 < metrics.no_time


def late_row(draw: random.Random, batch: int) -> dict[str, Any]:
    time = None if draw.random() < 0.1 else 12 * batch - 10 + draw.randrange(-9, 12)
    return {"k": draw.choice([None, 1, 2]), "v": draw.choice([None, 3, -(2**63), 2**63 - 1, 0]), "t": time}


FAR = """CREATE INPUT STREAM S (v int, t long) TIMESTAMP BY t LATENESS 3;
SELECT count() AS n, sum(v) AS s, max(v) AS m, window_end() AS z FROM S [SIZE 7 ADVANCE 2 TIME]"""


def test_windows_at_the_ends_of_time(spark: Any) -> None:
    plan, most = parse_query(FAR), 2**62 - 1
    times = [most, 5, -most, most - 1, -most + 4, -5, -(2**61), most]
    items: list[Any] = [("S", {"v": at, "t": time}) for at, time in enumerate(times)]
    spark.conf.set(SLICES, 2)
    try:
        found = query_frames(plan, frames(spark, tables(Query(plan), items)))["result"].toArrow()
    finally:
        spark.conf.unset(SLICES)
    wanted = query_oracle.run(plan, as_physical(Query(plan), by_time(plan, items)))
    assert plain({"result": restore_rows(found, Query(plan).schema("result"))}) == plain(wanted)


def test_a_time_that_no_window_can_have(spark: Any) -> None:
    text = "CREATE INPUT STREAM S (t long) TIMESTAMP BY t; SELECT count() AS n FROM S [SIZE 2 TIME]"
    frame = query_frames(text, {"S": spark.sql(f"SELECT {2**62}L AS t")})
    with pytest.raises(Exception, match="a time in column 't' of stream S is beyond 62 bits"):
        frame["result"].collect()


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_time_of_a_join_that_spark_cannot_have(spark: Any, ansi: str) -> None:
    """Raise the error without Spark's ANSI mode, too, in which the product would wrap around."""
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
    with pytest.raises(Exception, match="column 't' is declared as timestamp") as found:
        frame.collect()
    assert "would lose data: 1500000" in reason(found.value)
