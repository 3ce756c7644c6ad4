"""Continuous queries on Spark: streams against the in-process engine, expressions, inputs, refusals.

Batches are compared with the oracle in test_queries.py, by the suite of all back ends.
"""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import query_oracle
from handshake.errors import HandshakeError, UnsupportedError
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query
from handshake.schema import arrow_of
from handshake.testing.oracle_values import rows as physical_rows
from query_backends import by_time, frames, plain, restore_rows, tables
from query_cases import ASOF, CHAINS, JOINS, KINDS, LAYERED, PAPER, QUERIES, TRADES, TWO, WINDOWS
from query_streams import as_physical, together
from spark_session import Feed, Sink, spark, spark_columns

__all__ = ["spark"]

pytest.importorskip("pyspark")
from handshake.engines.spark.queries import query_frames
from handshake.engines.spark.types import to_spark_types
from handshake.engines.spark.workers import freeze_libraries

Item = tuple[str, dict[str, Any]]
JOIN = "(SELECT R.k, v - w AS d FROM R [SIZE .008 TIME], S [SIZE .01 TIME] WHERE R.k <= S.k AND v > 0)"
OVER = f"""SELECT k, sum(d) AS s, median(d) AS m, window_end() AS z FROM {JOIN} [SIZE .01 ADVANCE .005 TIME]
    GROUP BY k"""
STREAMS = {
    **{name: TRADES + PAPER[name] for name in ("Q3", "Q4", "Q5")},
    **{name: TWO + JOINS[name] for name in ("band", "three", "windowed")},
    "over a join": TWO + OVER,
    **{name: TWO + LAYERED[name] for name in ("tuples over a join", "of a window", "ahead")},
    "carried": "".join(QUERIES["carried"]),
    **{name: "".join(QUERIES[name]) for name in ("spreads", "picks", "collected")},
    **{name: WINDOWS[name] for name in ("sessions", "states of sessions", "cumulating", "partial")},
}
KIND_STREAMS = {
    name: TWO + (KINDS | CHAINS | ASOF)[name]
    for name in (
        "full",
        "windows ahead",
        "before",
        "windows over left",
        "right semi",
        "by tuples",
        "anti",
        "left left",
        "forward",
        "two",
    )
}
"""Joins that are not inner joins: rows without a match come in a micro-batch without new rows at the end."""
AFTER_THE_LAST = "spark.sql.streaming.noDataMicroBatches.enabled"
UNORDERED = ("Q3", "Q5", "spreads")
"""Streams whose rows may come in any order within a micro-batch."""
SOME_STREAMS = (
    "Q3",
    "band",
    "three",
    "over a join",
    "of a window",
    "carried",
    "spreads",
    "picks",
    "sessions",
)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, 2, 3, -3], pa.int32(): [0, 5, 7, 100_001, -4],
    pa.int64(): [1, 2, 3], pa.uint64(): [0, 2**64 - 1],
    pa.string(): ["UBSN", "UBSN", "CSGN", ""], pa.float64(): [0.1, -0.0, 1e300, float("nan")],
    pa.float32(): [0.5, 3.0], pa.bool_(): [True, False],
}  # fmt: skip


def made_up(plan: Plan, count: int, step: int, disorder: bool, seed: int = 1) -> list[Item]:
    """Draw arrivals by time; with `disorder`, out of order within and across streams."""
    draw, now, items = random.Random(seed), 0, []
    inputs = [source for source in plan.inputs if source.demux is None]
    for _ in range(count):
        source = draw.choice(inputs)
        now += draw.randrange(0, 3 * step)
        row = {f.name: None if draw.random() < 0.06 else _value(draw, f) for f in source.fields}
        row[str(source.time)] = now - (draw.choice([0, 0, 0, 2, 9]) * step if disorder else 0)
        items.append((source.name, row))
    order = [source.name for source in inputs]
    if not disorder:
        items.sort(
            key=lambda item: (item[1][str(plan.inputs[order.index(item[0])].time)], order.index(item[0]))
        )
    return items


def _value(draw: random.Random, field: Any) -> Any:
    kind = arrow_of(field.type)
    if pa.types.is_decimal(kind):
        return Decimal(draw.randrange(-30, 30)).scaleb(-kind.scale)
    return draw.choice(VALUES.get(kind, [0]))


NATIVE = """i + j > 0; i * j; j - i; x < y; x = y; x >= y; x + y; x * y; s < 'CSGN'; s <> 'ü'; b OR i > 1;
b AND x > 0; NOT (b AND i = 1); i IS NULL; i BETWEEN j - 2 AND j + 2; i IN (1, 127, j); l > i; l <= 3;
b = (i > 0)"""
ARROW = """l - 1; x <> y; i / j; i % 3; upper(s); CAST(i AS DOUBLE); ABS(i); x / y; l < 9223372036854775808;
lpad(s, 3, '-'); round(x, 1); (i & 6) | j"""


@pytest.mark.classic("plans are Java objects")
@pytest.mark.parametrize(("texts", "inside"), [(NATIVE, False), (ARROW, True)], ids=["native", "arrow"])
def test_expressions_have_the_oracles_values(spark: Any, texts: str, inside: bool) -> None:
    fields = "i int8, j int, l long, x double, y double, s string(4), b bool, t long"
    declared = f"CREATE INPUT STREAM S ({fields}) TIMESTAMP BY t;"
    selected = [f"{text.strip()} AS e{n}" for n, text in enumerate(texts.split(";"))]
    outputs = [f"SELECT {one} FROM S INTO r{n}" for n, one in enumerate(selected)] if inside else []
    text = declared + ";".join(outputs or [f"SELECT {', '.join(selected)} FROM S INTO r0"])
    plan, draw, nan = parse_query(text), random.Random(5), float("nan")
    values = {
        "i": [1, -128, 127, 0, None], "j": [5, -(2**31), 2**31 - 1, 0, None],
        "l": [3, -(2**63), 2**63 - 1, None], "x": [0.0, -0.0, 1.5, nan, float("inf"), None],
        "y": [0.0, 1.5, nan, -1e308, None], "s": ["", "CSGN", "ü", "UBS", None], "b": [True, False, None],
        "t": [0],
    }  # fmt: skip
    items = [("S", {name: draw.choice(some) for name, some in values.items()}) for _ in range(150)]
    query = Query(plan)
    wanted = query_oracle.run(plan, as_physical(query, items))
    for name, frame in query_frames(plan, frames(spark, tables(query, items))).items():
        assert ("MapInArrow" in frame._jdf.queryExecution().toString()) == inside
        found = restore_rows(frame.toArrow(), query.schema(name))
        assert plain({name: found}) == plain({name: wanted[name]})


@pytest.mark.parametrize(
    "names",
    [SOME_STREAMS, pytest.param([n for n in STREAMS if n not in SOME_STREAMS], marks=pytest.mark.soak)],
    ids=["some", "others"],
)
def test_streams_agree_with_the_engine_across_restarts(spark: Any, tmp_path: Path, names: Any) -> None:
    with ThreadPoolExecutor(3) as pool:  # a micro-batch of these waits more than it computes
        for told in [pool.submit(_check_streaming, spark, tmp_path / name, name) for name in names]:
            told.result()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.soak] * (at > 2)) for at, n in enumerate(KIND_STREAMS)]
)
def test_kinds_of_streams_agree_with_the_engine_across_restarts(
    spark: Any, tmp_path: Path, name: str
) -> None:
    spark.conf.set(AFTER_THE_LAST, "true")
    try:
        _check_streaming(spark, tmp_path, name)
    finally:
        spark.conf.set(AFTER_THE_LAST, "false")


def _check_streaming(spark: Any, folder: Path, name: str) -> None:
    """Run four micro-batches, two in each run; the second run begins from the checkpoint of the first."""
    plan = parse_query({**STREAMS, **KIND_STREAMS}[name])
    late = name in (*PAPER, *LAYERED, *WINDOWS, "spreads", "picks", "collected")
    items = made_up(plan, 80, 90 if name in PAPER else 1, disorder=late)
    query, output = Query(plan), plan.outputs[-1 if name in LAYERED else 0]
    feeds = {n: Feed(folder / n, spark_columns(query, n)) for n in tables(query, [])}
    inputs = {n: feed.read(spark) for n, feed in feeds.items()}
    frame = query_frames(plan, inputs, state_dir=str(folder / "state"))[output.name]
    sink, wanted = Sink(folder / "sink"), list[pa.RecordBatch]()
    for start in range(0, len(items), 20):
        arrived = by_time(plan, items[start : start + 20])
        for stream, table in tables(query, arrived).items():
            mixed = table.take(random.Random(start).sample(range(table.num_rows), table.num_rows))
            feeds[stream].add(to_spark_types(mixed if name in UNORDERED else table, stream))
        wanted += query.push_together(together(query, list(enumerate(arrived, start))))[output.name]
        if start in (20, 60):
            sink.run(frame)
    schema = query.schema(output.name)
    found = [row for n in sorted(sink.batches) for row in restore_rows(sink.batches[n], schema)]
    expected = physical_rows(pa.Table.from_batches(wanted, schema))
    assert plain({name: found}) == plain({name: expected})
    assert found, name
    if name in (*UNORDERED, "picks", "states of sessions") or name in LAYERED:
        assert sink.sums(output.name, "late") == query.metrics().late > 0
    if name in CHAINS:
        for figure in ("matched", "unmatched", "finalised"):
            assert sink.sums(output.name, figure) == getattr(query.metrics(), figure) > 0
    if name == "carried":
        assert sink.sums("Mux", "unknown") == query.metrics().unknown > 0


SPARKS_OWN = (
    *("count(DISTINCT i)", "count(DISTINCT i, b)", "count(i, s)", "count_if(b)", "sum(DISTINCT i)", "any(b)"),
    *("some(i > 1)", "every(b)", "bool_or(i > 1) FILTER (WHERE b)", "sum(i) FILTER (WHERE b)", "first(s)"),
    *("last(s)", "first(s, true)", "last(i) IGNORE NULLS", "max_by(s, i)", "min_by(i, x)"),
    *("max_by(i, x) FILTER (WHERE b)", "percentile(i, 0.3)", "percentile(x, 0.25)", "percentile(d, 0.9)"),
    *("approx_percentile(i, 0.3)", "approx_percentile(d, 0.5)", "approx_percentile(x, 0.75, 100)"),
    *(f"percentile_{kind} WITHIN GROUP (ORDER BY i)" for kind in ("cont(0.3)", "disc(0.3)", "disc(0.25)")),
    *(f"percentile_{kind} WITHIN GROUP (ORDER BY x DESC)" for kind in ("cont(0.2)", "disc(0.7)")),
    *("string_agg(s)", "listagg(s, ', ')", "listagg(s, ',') WITHIN GROUP (ORDER BY i, j DESC)"),
    *("collect_list(i)", "array_agg(x)", "collect_list(s) FILTER (WHERE i > 100)", "mean(j)"),
    *(
        "string_agg(s) FILTER (WHERE i > 100)",
        "stddev(i) FILTER (WHERE i > 100)",
        "var_pop(j)",
        "var_samp(j)",
    ),
    *("stddev(j)", "std(x) FILTER (WHERE x < 2)", "stddev_pop(i)", "variance(i)"),
)


def test_aggregates_have_the_values_of_spark(spark: Any) -> None:
    """Run the same calls by Spark and by this package, on rows in one order."""
    calls = ", ".join(f"{call} AS c{n}" for n, call in enumerate(SPARKS_OWN))
    fields = "k int8, i int8, j int, x double, d decimal(12, 2), s string, b bool, t timestamp(3)"
    declared = f"CREATE INPUT STREAM S ({fields}) TIMESTAMP BY t;"
    query = Query(f"{declared} SELECT k, {calls} FROM S [SIZE 1000 ADVANCE 1000 TIME] GROUP BY k")
    items = made_up(query.plan, 60, 1, disorder=False)
    (table,) = tables(query, items).values()
    found = [
        row
        for batch in [*query.push("S", table)["result"], *query.finish()["result"]]
        for row in batch.to_pylist()
    ]
    spark.createDataFrame(to_spark_types(table, "S")).coalesce(1).createOrReplaceTempView("S")
    wanted = _spark_values(spark, [n for n, call in enumerate(SPARKS_OWN) if "DISTINCT" in call])
    others = _spark_values(spark, [n for n, call in enumerate(SPARKS_OWN) if "DISTINCT" not in call])
    wanted = [{**row, **other} for row, other in zip(wanted, others, strict=True)]
    assert len(found) == len(wanted) > 2
    for own, theirs in zip(
        *(sorted(rows, key=lambda row: str(row["k"])) for rows in (found, wanted)), strict=True
    ):
        for n, call in enumerate(SPARKS_OWN):
            near = theirs[f"c{n}"]
            if isinstance(near, float) and near == near:
                near = pytest.approx(near, rel=1e-12)
            assert own[f"c{n}"] == near or str(own[f"c{n}"]) == str(near), call


def _spark_values(spark: Any, numbers: list[int]) -> list[dict[str, Any]]:
    """Return the values of some calls by group; Spark fails to plan DISTINCT next to WITHIN GROUP."""
    calls = ", ".join(f"{SPARKS_OWN[n]} AS c{n}" for n in numbers)
    return [
        row.asDict() for row in spark.sql(f"SELECT k, {calls} FROM S GROUP BY k ORDER BY string(k)").collect()
    ]


@pytest.mark.classic("plans are Java objects")
def test_a_query_starts_no_python_process_that_spark_is_impatient_with(spark: Any, tmp_path: Path) -> None:
    """Avoid transformWithState: Spark gives its Python process ten seconds, too few on a busy machine."""
    trades = spark.readStream.schema("Seqnr int, Symbol string, Price int, Volume int, Ts timestamp_ntz")
    for name in ("Q3", "Q4", "Q5"):
        (frame,) = query_frames(TRADES + PAPER[name], {"Trades": trades.parquet(str(tmp_path))}).values()
        plan = frame._jdf.queryExecution().toString()
        assert "FlatMapGroupsInPandasWithState" in plan
        assert "TransformWithState" not in plan


def test_one_task_takes_streams_or_finite_inputs(spark: Any, tmp_path: Path) -> None:
    query = Query(TWO + LAYERED["of a window"])
    stream = spark.readStream.schema(spark_columns(query, "R")).parquet(str(tmp_path))
    finite = spark.createDataFrame([], spark_columns(query, "S"))
    with pytest.raises(UnsupportedError) as error:
        query_frames(query.plan, {"R": stream, "S": finite})
    assert str(error.value) == (
        "result runs in one task, since it joins results of windows, and takes streams there or finite "
        "DataFrames, not both: S does not stream; read it as a stream (readStream)"
    )


def test_tuples_of_no_stream_are_counted(spark: Any) -> None:
    values = "(1, 1), (2, 2), (5, 3), (NULL, 4) AS v(kind, a)"
    columns = "CAST(kind AS tinyint) kind, a, a AS b, TIMESTAMP_NTZ'1970-01-01' t"
    mux = spark.sql(f"SELECT {columns} FROM VALUES {values}")
    found = query_frames("".join(QUERIES["carried"]), {"Mux": mux})
    assert [row["b"] for row in found["Y"].collect()] == [2]
    assert found.observations["Mux"].get == {"unknown": 2}


def test_rows_that_wait_for_a_match_are_counted(spark: Any) -> None:
    query = Query(TWO + CHAINS["left left"])
    items = made_up(query.plan, 80, 1, disorder=False)
    given = tables(query, by_time(query.plan, items))
    columns = {n: spark_columns(query, n) for n in given}
    frames = {n: spark.createDataFrame(to_spark_types(t, n), columns[n]) for n, t in given.items()}
    found = query_frames(query.plan, frames)
    assert found["result"].count() > 0
    query.push_together(together(query, list(enumerate(by_time(query.plan, items)))))
    query.finish()
    figures = ("matched", "unmatched", "finalised", "pending")
    wanted = {name: getattr(query.metrics(), name) for name in figures}
    assert {name: found.observations["result"].get[name] for name in figures} == wanted
    assert wanted["finalised"] > wanted["pending"] == 0


def test_instants_count_as_readings_of_utc_and_streams_without_a_time_by_arrival(spark: Any) -> None:
    text = """CREATE INPUT STREAM Rate (timestamp timestamp, value long) TIMESTAMP BY timestamp;
    CREATE INPUT STREAM Bare (value short);
    SELECT window_start() AS at, sum(value) AS s FROM Rate [SIZE 10 ADVANCE 10 TIME] INTO Sums;
    SELECT timestamp, value * 2 AS two FROM Rate WHERE value > 17 INTO Late;
    SELECT count() AS n FROM Bare [SIZE 100000000 ADVANCE 100000000 TIME] INTO All"""
    rate = spark.range(20).selectExpr("timestamp_micros(id * 1000000) AS timestamp", "id AS value")
    bare = spark.range(5).selectExpr("CAST(id AS tinyint) AS value")
    found = query_frames(text, {"Rate": rate, "Bare": bare})
    start = datetime(1970, 1, 1)
    assert sorted(found["Sums"].collect()) == [(start, 45), (start + timedelta(seconds=10), 145)]
    assert sorted(found["Late"].collect()) == [(start + timedelta(seconds=n), 2 * n) for n in (18, 19)]
    assert [row["n"] for row in found["All"].collect()] == [5]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            lambda s: {"Trade": s.range(1)},
            "no input stream 'Trade' in the query (Trades); did you mean 'Trades'?",
        ),
        (lambda s: {}, "no DataFrame is given for the input stream 'Trades'"),
        (lambda s: {"Trades": s.range(1)}, "the DataFrame of 'Trades' lacks the column 'Seqnr' (id)"),
        (
            lambda s: {"Trades": s.sql("SELECT 'x' Seqnr, 'y' Symbol, 1 Price, 1 Volume, now() Ts")},
            "column 'Seqnr' of the DataFrame of 'Trades' is string, but int32 is declared; cast it",
        ),
    ],
)
def test_inputs_that_do_not_fit(spark: Any, frame: Any, message: str) -> None:
    with pytest.raises(HandshakeError) as error:
        query_frames(TRADES + PAPER["Q1"], frame(spark))
    assert message in str(error.value)


def test_workers_leave_their_libraries_out_of_the_garbage(spark: Any) -> None:
    def count_frozen(batches: Any) -> Any:
        freeze_libraries()
        list(batches)
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    for _ in range(2):  # a worker that is new has it done by the time of its second task
        found = spark.range(0, 1, 1, 1).mapInArrow(count_frozen, "frozen long").toArrow()
    assert found.column("frozen").to_pylist()[0] > 20_000
    before = gc.get_freeze_count()
    freeze_libraries()
    assert gc.get_freeze_count() == before  # this process is no worker
