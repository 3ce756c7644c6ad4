"""`handshake bench spark_queries`: the paper's queries on Spark, as translated and as written by hand.

Both read the same Parquet files, micro-batch by micro-batch, and discard the results; times are Spark's own
(`batchDuration`). Runs are interleaved, so that other work on the machine affects both. Each runs once
before, because a new virtual machine is slow at first.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from handshake.api import spark_module
from handshake.errors import HandshakeError, InputError, one_line, suggest
from handshake_bench import report
from handshake_bench.report import Data, Report, progress

__all__ = ["BY_HAND", "DECLARED", "QUERIES", "run", "write_trades"]

_GOAL = 1.2
DECLARED = """CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int, Ts timestamp)
TIMESTAMP BY Ts;"""
QUERIES = {
    "Q1": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO UBSTrades',
    "Q2": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" AND Volume > 100000 INTO LargeUBSTrades',
    "Q3": """SELECT count() AS Number FROM Trades [SIZE 600 ADVANCE 60 TIME] WHERE Symbol = "UBSN"
        INTO NumUBSTrades""",
    "Q4": """SELECT wsum(Price, [.5, .25, .125, .125]) AS Wprice
        FROM (SELECT * FROM Trades WHERE Symbol = "UBSN") [SIZE 4 ADVANCE 1 TUPLES] INTO WeightedUBSTrades""",
    "Q5": """SELECT Symbol, avg(Price) AS AvgPrice FROM Trades [SIZE 600 ADVANCE 60 TIME] GROUP BY Symbol
        INTO PriceAverages""",
    "minutes": """SELECT Symbol, sum(Volume) AS Total, max(Price) AS High, count() AS Number
        FROM Trades [SIZE 60 ADVANCE 60 TIME] GROUP BY Symbol INTO Minutes""",
}
_SYMBOLS = pa.array(["UBSN", "CSGN", "NESN", "NOVN", "ROG", "ABBN", "ZURN", "SREN"])
_SCHEMA = "Seqnr int, Symbol string, Price int, Volume int, Ts timestamp"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"

Make = Callable[[Any], Any]


# By hand: PySpark code with the same results for trades in order.


def _ubs(trades: Any) -> Any:
    return trades.where("Symbol = 'UBSN'").select("Price", "Volume")


def _large(trades: Any) -> Any:
    return trades.where("Symbol = 'UBSN' AND Volume > 100000").select("Price", "Volume")


def _with_window(trades: Any, size: int, advance: int) -> tuple[Any, Any]:
    from pyspark.sql import functions as F

    return trades.withWatermark("Ts", "0 seconds"), F.window("Ts", f"{size} seconds", f"{advance} seconds")


def _counts(trades: Any) -> Any:
    stream, window = _with_window(trades.where("Symbol = 'UBSN'"), 600, 60)
    return stream.groupBy(window).count().selectExpr("count AS Number")


def _averages(trades: Any) -> Any:
    stream, window = _with_window(trades, 600, 60)
    return (
        stream.groupBy(window, "Symbol").agg({"Price": "avg"}).selectExpr("Symbol", "`avg(Price)` AvgPrice")
    )


def _minutes(trades: Any) -> Any:
    from pyspark.sql import functions as F

    stream, window = _with_window(trades, 60, 60)
    made = (F.sum("Volume").alias("Total"), F.max("Price").alias("High"), F.count("*").alias("Number"))
    return stream.groupBy(window, "Symbol").agg(*made).drop("window")


def _weighted_sums(trades: Any) -> Any:
    """Keep the last three prices in state, because Spark has no windows of tuples."""
    from pyspark.sql import functions as F

    ubs = trades.where("Symbol = 'UBSN'").select("Seqnr", "Price", F.lit(0).alias("one"))
    return ubs.groupBy("one").applyInPandasWithState(
        _weigh, "Wprice double", "prices binary", "append", "NoTimeout"
    )


def _weigh(key: Any, frames: Any, state: Any) -> Any:
    import pandas as pd

    rows = pd.concat(frames).sort_values("Seqnr", kind="stable")
    held = np.frombuffer(state.get[0] if state.exists else b"")
    prices = np.concatenate([held, rows["Price"].to_numpy(float)])
    state.update((prices[-3:].tobytes(),))
    if len(prices) > 3:
        weighted = 0.5 * prices[3:] + 0.25 * prices[2:-1] + 0.125 * (prices[1:-2] + prices[:-3])
        yield pd.DataFrame({"Wprice": weighted})


BY_HAND: dict[str, Make] = {
    "Q1": _ubs, "Q2": _large, "Q3": _counts, "Q4": _weighted_sums, "Q5": _averages, "minutes": _minutes
}  # fmt: skip


# Measuring


def run(
    rows: int = 1_000_000, batches: int = 6, cores: int = 2, turns: int = 2, queries: str | None = None,
    out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Run micro-batches of `rows` tuples, ten minutes of stream time each, by both in turns."""
    wanted = _chosen_queries(queries)
    data = report.load(source, "spark_queries") if source else _measure(rows, batches, cores, turns, wanted)
    report.publish("spark_queries", data, _show, _draw, out)


def _chosen_queries(queries: str | None) -> list[str]:
    wanted = queries.split(",") if queries else list(QUERIES)
    for name in wanted:
        if name not in QUERIES:
            raise InputError(f"no query '{name}' ({', '.join(QUERIES)}){suggest(name, QUERIES)}")
    return wanted


def _measure(rows: int, batches: int, cores: int, turns: int, wanted: list[str]) -> Data:
    with tempfile.TemporaryDirectory(prefix="handshake-bench-") as name:
        folder = Path(name)
        write_trades(folder / "trades", rows, batches)
        settings = {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.handshake.stateDir": str(folder / "state"),
        }
        with spark_module("cluster").start_cluster("bench", cores=cores, **settings) as cluster:
            found = [_both(cluster.session, folder, query, turns) for query in wanted]
    head = {"benchmark": "spark_queries", "machine": report.machine(), "cores": cores}
    return {**head, "rows": rows, "queries": found}


def write_trades(folder: Path, rows: int, batches: int) -> None:
    """Write one file per micro-batch, ordered by time."""
    folder.mkdir()
    random = np.random.default_rng(3)
    for batch in range(batches):
        times = (batch * 600_000_000 + np.sort(random.integers(0, 600_000_000, rows))).astype(
            "datetime64[us]"
        )
        columns = {
            "Seqnr": pa.array(np.arange(batch * rows, (batch + 1) * rows), pa.int32()),
            "Symbol": _SYMBOLS.take(pa.array(random.integers(0, 8, rows))),
            "Price": pa.array(random.integers(1, 10_000, rows), pa.int32()),
            "Volume": pa.array(random.integers(1, 200_000, rows), pa.int32()),
            "Ts": pa.array(times, pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{batch:03}.parquet", row_group_size=max(rows // 4, 1))


def _both(session: Any, folder: Path, query: str, turns: int) -> Data:
    translate = spark_module("queries").query_frames

    def ours(trades: Any) -> Any:
        return next(iter(translate(DECLARED + QUERIES[query], {"Trades": trades}).values()))

    makes = {"translated": ours, "by hand": BY_HAND[query]}
    found: dict[str, list[float]] = {name: [] for name in makes}
    for turn in range(-1, turns):  # B A, which does not count, then A B B A …
        for name in [*makes][:: 1 if turn % 2 == 0 else -1]:
            place = folder / f"{query}-{turn}-{name}"
            took = _run(session, makes[name], folder / "trades", place)
            progress(f"{query}, {name}: {median(took):.2f} s{' (not counted)' if turn < 0 else ''}")
            found[name] += took if turn >= 0 else []
    return {"query": query, **found}


def _run(session: Any, make: Make, trades: Path, place: Path) -> list[float]:
    """Return the seconds of each micro-batch except the first, which compiles."""
    session.conf.unset(_PROVIDER)  # code by hand gets Spark's default
    source = session.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(trades))
    writer = make(source).writeStream.format("noop").option("checkpointLocation", str(place))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:  # the text is only available while the session lives
        raise HandshakeError(f"a query of the benchmark failed on Spark: {one_line(error, 2000)}") from None
    reports = [json.loads(p.json) if hasattr(p, "json") else p for p in query.recentProgress]
    return [one["batchDuration"] / 1000 for one in reports if one["numInputRows"]][1:]


# Showing


def _ratio(one: Data) -> float:
    return float(median(one["translated"]) / median(one["by hand"]))


def _show(page: Report, data: Data) -> None:
    rows = [
        (
            one["query"], f"{median(one['translated']):.2f}", f"{median(one['by hand']):.2f}",
            f"{_ratio(one):.2f}", f"{min(one['translated']) / min(one['by hand']):.2f}",
        )
        for one in data["queries"]
    ]  # fmt: skip
    page.table(
        f"Seconds per micro-batch of {data['rows']:,} tuples, local[{data['cores']}], without the first",
        ("query", "translated, median", "by hand, median", "ratio", "ratio of the quickest"), rows,
    )  # fmt: skip
    page.say(f"Goal: at most {_GOAL:g} times as long as by hand.")
    ratios = {f"{one['query'].lower()}_ratio": _ratio(one) for one in data["queries"]}
    page.result(worst=max(ratios.values()), **ratios)


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table is enough."""
