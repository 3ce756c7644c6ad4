"""Continuous queries on Spark against the oracle, and streams against the in-process engine."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import query_oracle
from handshake.errors import HandshakeError
from handshake.plan.algebra import Plan, Source
from handshake.plan.query import parse_query
from handshake.queries import Query
from handshake.schema import arrow_of
from oracle_values import rows as physical_rows
from query_cases import JOINS, PAPER, QUERIES, TRADES, TWO
from query_streams import batch_of, seen
from spark_session import Feed, Sink, spark

__all__ = ["spark"]

Item = tuple[str, dict[str, Any]]
CHOSEN = ("uneven", "lateness", "cascade", "union", "carried", "computed keys", "weighted")
TEXTS = {
    **{name: TRADES + text for name, text in PAPER.items()},
    **{name: TWO + text for name, text in JOINS.items()},
    **{name: "".join(QUERIES[name]) for name in CHOSEN},
}
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, 2, 3, -3], pa.int32(): [0, 5, 7, 100_001, -4],
    pa.int64(): [1, 2, 3], pa.uint64(): [0, 2**64 - 1],
    pa.string(): ["UBSN", "UBSN", "CSGN", ""], pa.float64(): [0.1, -0.0, 1e300, float("nan")],
    pa.float32(): [0.5, 3.0], pa.bool_(): [True, False],
}  # fmt: skip


def made_up(plan: Plan, count: int, step: int, disorder: bool, seed: int = 1) -> list[Item]:
    """Arrivals by time; with disorder, within and across streams, only where there is one stream."""
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


def tables(query: Query, items: list[Item]) -> dict[str, pa.Table]:
    names = [source.name for source in query.plan.inputs if source.demux is None]
    rows = {name: [row for given, row in items if given == name] for name in names}
    return {name: pa.Table.from_batches([batch_of(query, name, rows[name])]) for name in names}


def frames(spark: Any, given: dict[str, pa.Table]) -> dict[str, Any]:
    from handshake.spark.tables import carried

    return {name: spark.createDataFrame(carried(table, name)) for name, table in given.items()}


def plain(table: pa.Table, schema: pa.Schema) -> list[Any]:
    """Rows in any order, with physical values of the declared types."""
    columns = [_back(table.column(f.name), f.type) for f in schema]
    rows = physical_rows(pa.Table.from_arrays(columns, schema=schema))
    return sorted(str(sorted(row.items())) for row in rows)


def _back(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us")).cast(kind) if pa.types.is_timestamp(kind) else column.cast(kind)


def test_batches_agree_with_the_oracle(spark: Any) -> None:
    from handshake.spark.queries import query_frames

    for name, text in TEXTS.items():
        plan = parse_query(text)
        single = len([s for s in plan.inputs if s.demux is None]) == 1
        items = made_up(plan, 60, 90 if name in PAPER else 1, disorder=single)
        query = Query(plan)
        wanted = query_oracle.run(plan, seen(query, items))
        results = query_frames(plan, frames(spark, tables(query, items)))
        for output in plan.outputs:
            found = plain(results[output.name].toArrow(), query.schema(output.name))
            expected = sorted(str(sorted(row.items())) for row in wanted[output.name])
            assert found == expected, f"{name}: {output.name}"
            assert expected or name == "mixed", f"{name}: {output.name} gives nothing"


NATIVE = """i + j > 0; i * j; j - i; x < y; x = y; x >= y; x + y; x * y; s < 'CSGN'; s <> 'ü'; b OR i > 1;
b AND x > 0; NOT (b AND i = 1); i IS NULL; i BETWEEN j - 2 AND j + 2; i IN (1, 127, j); l > i; l <= 3;
b = (i > 0)"""
ARROW = "l - 1; x <> y; i / j; i % 3; upper(s); CAST(i AS DOUBLE); ABS(i); x / y"


@pytest.mark.parametrize(("texts", "inside"), [(NATIVE, False), (ARROW, True)], ids=["native", "arrow"])
def test_expressions_have_the_oracles_values(spark: Any, texts: str, inside: bool) -> None:
    from handshake.spark.queries import query_frames

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
    wanted = query_oracle.run(plan, seen(query, items))
    for name, frame in query_frames(plan, frames(spark, tables(query, items))).items():
        assert ("MapInArrow" in frame._jdf.queryExecution().toString()) == inside
        expected = sorted(str(sorted(row.items())) for row in wanted[name])
        assert plain(frame.toArrow(), query.schema(name)) == expected


def schema_text(source: Source) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    from handshake.spark.tables import carrier

    kinds = pa.schema([(f.name, carrier(arrow_of(f.type))) for f in source.fields])
    return ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in from_arrow_schema(kinds))


@pytest.mark.parametrize("name", ["Q3", "Q4", "Q5", "band", "three"])
def test_streams_agree_with_the_engine_across_restarts(spark: Any, tmp_path: Path, name: str) -> None:
    from handshake.spark.queries import query_frames
    from handshake.spark.tables import carried

    plan = parse_query(TEXTS[name])
    items = made_up(plan, 80, 90 if name in PAPER else 1, disorder=name in PAPER)
    query = Query(plan)
    feeds = {s.name: Feed(tmp_path / s.name, schema_text(s)) for s in plan.inputs}
    wanted: list[pa.RecordBatch] = []
    results = query_frames(
        plan, {n: feed.read(spark) for n, feed in feeds.items()}, state_dir=str(tmp_path / "state")
    )
    (output,) = plan.outputs
    sink = Sink(tmp_path / "sink")
    for start in range(0, len(items), 20):
        part = items[start : start + 20]
        for stream, table in tables(query, part).items():
            feeds[stream].add(carried(table, stream))
            wanted += query.push(stream, table)[output.name]
        if start in (20, 60):
            sink.run(results[output.name])
    schema = query.schema(output.name)
    found = [row for n in sorted(sink.batches) for row in plain(sink.batches[n], schema)]
    assert sorted(found) == plain(pa.Table.from_batches(wanted, schema), schema)
    assert found
    if name in ("Q3", "Q5"):
        assert sink.sums(output.name, "late") == query.metrics().late > 0


def test_instants_count_as_readings_of_utc_and_streams_without_a_time_by_arrival(spark: Any) -> None:
    from handshake.spark.queries import query_frames

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
    from handshake.spark.queries import query_frames

    with pytest.raises(HandshakeError) as error:
        query_frames(TRADES + PAPER["Q1"], frame(spark))
    assert message in str(error.value)
