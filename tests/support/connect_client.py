"""A client of Spark Connect, run as a script: it compares joins with joins in process.

python connect_client.py FOLDER [ADDRESS]

Without an address, such as `sc://127.0.0.1:15002`, it starts a server. The client opens no file of the state
directory.
"""

from __future__ import annotations

import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import handshake
from handshake.engines.spark.joins.connect import translate_connect
from handshake.engines.spark.joins.inputs import arrow_schema
from handshake.engines.spark.state.store import Store
from handshake.errors import ExpressionError, SchemaError, UnsupportedError
from handshake.plan.build import Expression

LEFT = {
    "x": [1, 20, None, 7, 300],
    "y": [2.0, 3.5, float("nan"), -1.0, None],
    "s": ["a'b", "B\\c", None, "", "abc"],
    "d": [date(2024, 1, 2), None, date(1960, 2, 29), date(2024, 3, 1), None],
}
RIGHT = {"a": [5, 40, None, 8], "b": [1.0, 2.0, float("nan"), -1.0], "x": [1, 2, 7, None]}
LEFT_COLUMNS, RIGHT_COLUMNS = "x int, y double, s string, d date", "a int, b double, x int"


def conditions(left: Any, right: Any) -> dict[str, Any]:
    """Return conditions by the SQL text that means the same."""
    return {
        "ABS(l.x - r.a) <= 10": F.abs(left.x - right.a) <= 10,
        "l.y BETWEEN 1 AND 5 AND NOT l.x IN (7, 8) AND r.b > 0": left.y.between(1, 5)
        & ~left.x.isin(7, 8)
        & (right.b > 0),
        "l.s = 'a\\'b' OR l.s LIKE '%c' OR l.s IS NULL": (left.s == "a'b")
        | left.s.like("%c")
        | left.s.isNull(),
        "l.d >= DATE '2024-01-02' AND r.a IS NOT NULL": (left.d >= date(2024, 1, 2)) & right.a.isNotNull(),
        "CAST(l.x AS BIGINT) + 4 = r.a OR -l.x < -100": (left.x.cast("long") + 4 == right.a)
        | (-left.x < -100),
        "CASE WHEN l.x > 5 THEN TRUE ELSE r.b < 0 END": F.when(left.x > 5, True).otherwise(right.b < 0),
        "LENGTH(l.s) = 3 AND STARTSWITH(l.s, 'a')": (F.length(left.s) == 3) & left.s.startswith("a"),
        "l.x = r.x OR (l.x IS NULL AND r.x IS NULL)": left.x.eqNullSafe(right.x),
        "l.y = r.b * 2 - 5.5 OR COALESCE(l.x, 0) = 0": (left.y == F.col("b") * 2 - 5.5)
        | (F.coalesce(left.x, F.lit(0)) == 0),
        "l.x % 2 = 1 AND r.x <> 2": (left.x % 2 == 1) & (right.x != 2),
    }


def check_predicates(left: Any, right: Any) -> None:
    """Compare conditions with texts, on rows in this process."""
    tables = [
        pa.table(values, arrow_schema(frame, side))
        for side, (values, frame) in enumerate(((LEFT, left), (RIGHT, right)))
    ]
    for text, condition in conditions(left, right).items():
        found = handshake.join(*tables, Expression(translate_connect(condition, left, right)))
        wanted = handshake.join(*tables, text)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, wanted.to_pylist())), text
        assert 0 < wanted.num_rows < len(LEFT["x"]) * len(RIGHT["a"]), text


def check_names(left: Any, right: Any) -> None:
    """Resolve columns by alias; refuse those of neither DataFrame, or of both."""
    named = handshake.join(left.alias("p"), right.alias("q"), "p.x + 4 = q.a").select("a")
    assert [row.a for row in named.collect()] == [5]
    condition = F.col("p.x") + 4 == F.col("q.a")
    assert handshake.join(left.alias("p"), right.alias("q"), condition).count() == 1
    for wrong, why in ((F.col("zz") > 1, "belongs to neither"), (F.col("x") > 1, "could belong to either")):
        with pytest.raises(ExpressionError, match=why):
            translate_connect(wrong, left, right)


def check_kinds(left: Any, right: Any) -> None:
    counts = {
        how: handshake.join(left, right, "ABS(l.x - r.a) <= 10", how=how).count()
        for how in ("inner", "left", "full", "left_semi", "left_anti")
    }
    assert counts == {"inner": 4, "left": 7, "full": 9, "left_semi": 2, "left_anti": 3}, counts


def check_best(spark: Any) -> None:
    """Join rows with the last row before each, and with the nearest one."""
    left, right = (spark.range(0, 10, step).withColumnRenamed("id", "t") for step in (3, 4))
    last = handshake.asof(left, right, time="t").collect()
    assert sorted((row.t, row.t_right) for row in last) == [(0, 0), (3, 0), (6, 4), (9, 8)]
    near = handshake.nearest(left, right, by="ABS(2 * (l.t - r.t) + 1)").collect()
    assert sorted((row.t, row.t_right) for row in near) == [(0, 0), (3, 4), (6, 8), (9, 8)]


def check_queries(spark: Any) -> None:
    """Run a query text on a DataFrame."""
    frame = spark.createDataFrame([(n, n) for n in range(6)], "i int, t long")
    text = "CREATE INPUT STREAM S (i int, t long) TIMESTAMP BY t; SELECT i * 2 AS d FROM S WHERE i > 3 INTO r"
    found = handshake.run(text, {"S": frame}, engine="spark")["r"]
    assert sorted(row.d for row in found.collect()) == [8, 10]
    with pytest.raises(UnsupportedError, match="joins and queries on DataFrames only"):
        handshake.run(text, {"S": pa.table({"i": [1], "t": [1]})}, engine="spark")


def check_streams(spark: Any, folder: Path) -> None:
    """Join two streams of files into files, in two runs of the query."""
    start = datetime(2024, 1, 1)
    left, right = (
        spark.readStream.schema(f"{name} int, t timestamp")
        .parquet(str(folder / name))
        .withWatermark("t", "1 second")
        for name in ("n", "m")
    )
    windows = {"window": "3 s", "state_dir": str(folder / "state"), "name": "pairs"}
    if pyspark.__version__.startswith("4.0."):
        with pytest.raises(UnsupportedError, match=r"has no stateful operators in Spark Connect"):
            handshake.join(left, right, "l.n < r.m", **windows)
        return
    files = {"results_to": folder / "results", "late_to": folder / "late"}
    assert handshake.join(left, right, "l.n < r.m", **windows, **files).columns[0] == "path"
    assert all(path.is_dir() for path in files.values())
    with pytest.raises(UnsupportedError, match="late_to='late' is relative, and the server of Spark Connect"):
        handshake.join(left, right, "l.n < r.m", **windows, late_to="late")
    for batch in range(2):
        for name in ("n", "m"):
            rows = [(10 * batch + i, start + timedelta(seconds=10 * batch + i)) for i in range(5)]
            frame = spark.createDataFrame(rows, f"{name} int, t timestamp").coalesce(1)
            frame.write.mode("append").parquet(str(folder / name))
        windows["window"] = f"{3 - batch} s"  # the second run changes the join
        joined = handshake.join(left, right, "l.n < r.m", **windows, late_to=folder / "late")
        writer = joined.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(str(folder / "out")).awaitTermination()
    found = sorted((row.n, row.m) for row in spark.read.parquet(str(folder / "out")).collect())
    assert found == [
        (10 * b + i, 10 * b + j) for b in (0, 1) for i in range(5) for j in range(i + 1, min(i + 3 - b, 5))
    ]


def check_pipelines(spark: Any, folder: Path) -> None:
    """Join in the query function of a pipeline: with declared columns, and nothing set in the session."""
    try:
        from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
        from pyspark.pipelines.block_session_mutations import block_session_mutations
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph
    except ImportError:  # they came with PySpark 4.1, in another form
        return
    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={})
    schema = StructType().add("n", "integer").add("t", "timestamp")
    files = spark.readStream.schema(schema).parquet(str(folder / "n"))
    marked, declared = (frame.withWatermark("t", "1 second") for frame in (files, files.to(schema)))
    inside = add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name="flow")
    with inside, block_session_mutations():
        # PySpark 4.1 analyses in pipelines, so the next reason comes first
        reasons = "columns of the right DataFrame are unknown: Spark|providerClass cannot be set here"
        with pytest.raises((SchemaError, UnsupportedError), match=reasons):
            handshake.join(declared, marked, "l.n < r.n", window="3 s")
        with pytest.raises(UnsupportedError, match="providerClass cannot be set here"):
            handshake.join(declared, declared, "l.n < r.n", window="3 s")
        batch = spark.read.schema(schema).parquet(str(folder / "n")).to(schema)
        joined = handshake.join(batch, batch.alias("q"), "l.n < q.n", how="left", suffix="_q")
        assert joined.columns == ["n", "t", "n_q", "t_q"]
    assert joined.count() == 0
    text = handshake.explain(declared, declared, "l.n < r.n", window="3 s")
    assert "l.t (watermark 1 second behind), r.t (watermark 1 second behind)" in text, text


def check_foreach_batch(spark: Any, folder: Path) -> None:
    """Run joins in and before `foreachBatch`, whose functions and actions run on the server's side."""
    given, out = folder / "each-in", folder / "each-out"
    rows = spark.range(6).selectExpr("CAST(id AS INT) AS n", "timestamp_seconds(id) AS t").coalesce(1)
    rows.write.parquet(str(given))
    stream = spark.readStream.schema("n int, t timestamp").parquet(str(given))
    state = str(folder / "state")

    def join(frame: Any, batch: int) -> None:
        import handshake

        near = handshake.join(frame, frame.select("n"), "l.n + 1 = r.n", state_dir=state)
        near.write.mode("append").parquet(str(out / "batches"))

    run_each(stream, join, folder / "each-1")
    assert pairs(spark, out / "batches") == [(n, n + 1) for n in range(5)]
    if pyspark.__version__.startswith("4.0."):
        return

    def write(frame: Any, batch: int) -> None:
        frame.write.mode("append").parquet(str(out / "streams"))

    marked = stream.withWatermark("t", "1 second")
    options = {"window": "3 s", "name": "each"}
    joined = handshake.join(marked, marked, "l.n = r.n", **options, state_dir=state)
    with pytest.raises(StreamingQueryException, match="foreachBatch with Spark Connect is such a case"):
        run_each(joined, write, folder / "each-2")
    for step in range(2):
        joined = handshake.join(marked, marked, "l.n + 1 = r.n", **options, state="store")
        run_each(joined, write, folder / "each-3")
        assert pairs(spark, out / "streams") == [(n, n + 1) for n in range(5 + 2 * step)]
        more = rows.selectExpr("n + 6 AS n", "t + INTERVAL 6 SECONDS AS t").where("n < 8")
        more.write.mode("append").parquet(str(given))
    options["window"] = "2 s"
    joined = handshake.join(marked, marked, "l.n + 1 = r.n", **options, state="store")
    with pytest.raises(StreamingQueryException, match="of a join cannot change from"):
        run_each(joined, write, folder / "each-3")


def pairs(spark: Any, folder: Path) -> list[tuple[int, int]]:
    """Return the results of joins of rows by their numbers."""
    return sorted((row.n, row.n_right) for row in spark.read.parquet(str(folder)).collect())


def run_each(frame: Any, write: Any, checkpoint: Path) -> None:
    """Run a query with a function for its micro-batches."""
    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def check_refresh(spark: Any, folder: Path) -> None:
    """Join a stream with a batch DataFrame that is read in every period."""
    static = spark.createDataFrame([(3,), (12,)], "k int")
    spark.range(20).selectExpr("CAST(id AS INT) AS n").coalesce(1).write.parquet(str(folder / "static-in"))
    stream = spark.readStream.schema("n int").parquet(str(folder / "static-in"))
    joined = handshake.join(stream, static, "l.n > r.k", refresh="1 second")
    writer = joined.writeStream.option("checkpointLocation", str(folder / "static-checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "static-out")).awaitTermination()
    found = sorted((row.n, row.k) for row in spark.read.parquet(str(folder / "static-out")).collect())
    assert found == sorted((n, k) for n in range(20) for k in (3, 12) if n > k)


def refuse(self: Any, root: str) -> None:
    raise AssertionError(f"the client opened the state directory {root}")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    address = sys.argv[2] if len(sys.argv) > 2 else "local[2]"
    (folder / "n").mkdir()
    (folder / "m").mkdir()
    builder = SparkSession.builder.remote(address).config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.handshake.stateDir", str(folder / "state")).getOrCreate()
    left = spark.createDataFrame(list(zip(*LEFT.values(), strict=True)), LEFT_COLUMNS)
    right = spark.createDataFrame(list(zip(*RIGHT.values(), strict=True)), RIGHT_COLUMNS)
    check_predicates(left, right)
    check_names(left, right)
    check_pipelines(spark, folder)
    Store.__init__ = refuse  # type: ignore[method-assign]
    check_kinds(left, right)
    check_best(spark)
    check_queries(spark)
    check_streams(spark, folder)
    check_refresh(spark, folder)
    check_foreach_batch(spark, folder)
    spark.stop()
    print("done")
