"""`handshake bench spark_queries`: the paper's queries on Spark, as translated and as written by hand.

Both read the same Parquet files, micro-batch by micro-batch, and write to nowhere; the time of each of these
is Spark's own (`batchDuration`). They take turns, so that whatever else the machine does strikes both.
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

from handshake.bench.report import progress, result, table
from handshake.errors import HandshakeError
from handshake.session import spark_module
from handshake.sources import one_line

__all__ = ["QUERIES", "run"]

DECLARED = """CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int, Ts timestamp)
TIMESTAMP BY Ts;"""
QUERIES = {
    "Q1": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO UBSTrades',
    "Q2": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" AND Volume > 100000 INTO LargeUBSTrades',
    "Q3": """SELECT count() AS Number FROM Trades [SIZE 600 ADVANCE 60 TIME] WHERE Symbol = "UBSN"
        INTO NumUBSTrades""",
    "Q5": """SELECT Symbol, avg(Price) AS AvgPrice FROM Trades [SIZE 600 ADVANCE 60 TIME] GROUP BY Symbol
        INTO PriceAverages""",
}
"""Q4, a window of tuples, cannot be written in PySpark without a stateful operator of one's own."""
_SYMBOLS = pa.array(["UBSN", "CSGN", "NESN", "NOVN", "ROG", "ABBN", "ZURN", "SREN"])
_SCHEMA = "Seqnr int, Symbol string, Price int, Volume int, Ts timestamp"

Make = Callable[[Any], Any]


def _by_hand() -> dict[str, Make]:
    from pyspark.sql import functions as F

    def windowed(trades: Any) -> Any:
        return trades.withWatermark("Ts", "0 seconds"), F.window("Ts", "600 seconds", "60 seconds")

    def q3(trades: Any) -> Any:
        stream, window = windowed(trades)
        return (
            stream.where("Symbol = 'UBSN'").groupBy(window).agg(F.count("*").alias("Number")).select("Number")
        )

    def q5(trades: Any) -> Any:
        stream, window = windowed(trades)
        grouped = stream.groupBy(window, "Symbol").agg(F.avg("Price").alias("AvgPrice"))
        return grouped.select("Symbol", "AvgPrice")

    return {
        "Q1": lambda t: t.where("Symbol = 'UBSN'").select("Price", "Volume"),
        "Q2": lambda t: t.where("Symbol = 'UBSN' AND Volume > 100000").select("Price", "Volume"),
        "Q3": q3,
        "Q5": q5,
    }


def run(rows: int = 1_000_000, batches: int = 6, cores: int = 2, queries: str | None = None) -> None:
    """Micro-batches of `rows` tuples, each ten minutes of the market, by both, in turns."""
    wanted = queries.split(",") if queries else list(QUERIES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "trades", rows, batches)
        settings = {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.handshake.stateDir": str(folder / "state"),
        }
        with spark_module("cluster").started("bench", cores=cores, **settings) as cluster:
            times = {query: _both(cluster.session, folder, query) for query in wanted}
    ratios = {query: median(ours) / median(theirs) for query, (ours, theirs) in times.items()}
    table(
        f"Seconds per micro-batch of {rows:,} tuples on Spark, local[{cores}], medians without the first",
        ("query", "translated", "by hand", "ratio"),
        [
            (query, f"{median(ours):.2f}", f"{median(theirs):.2f}", f"{ratios[query]:.2f}")
            for query, (ours, theirs) in times.items()
        ],
    )
    result(worst=max(ratios.values()), **{f"{query.lower()}_ratio": ratio for query, ratio in ratios.items()})


def _write(folder: Path, rows: int, batches: int) -> None:
    folder.mkdir()
    random = np.random.default_rng(3)
    for batch in range(batches):
        times = (batch * 600_000_000 + np.sort(random.integers(0, 600_000_000, rows))).astype(
            "datetime64[us]"
        )
        columns = {
            "Seqnr": pa.array(np.arange(rows), pa.int32()),
            "Symbol": _SYMBOLS.take(pa.array(random.integers(0, 8, rows))),
            "Price": pa.array(random.integers(1, 10_000, rows), pa.int32()),
            "Volume": pa.array(random.integers(1, 200_000, rows), pa.int32()),
            "Ts": pa.array(times, pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{batch:03}.parquet", row_group_size=max(rows // 4, 1))


def _both(session: Any, folder: Path, query: str) -> tuple[list[float], list[float]]:
    progress(query)
    translate = spark_module("queries").query_frames

    def ours(trades: Any) -> Any:
        return next(iter(translate(DECLARED + QUERIES[query], {"Trades": trades}).values()))

    found: list[list[float]] = [[], []]
    for turn in range(2):  # A B B A
        order = ((0, ours), (1, _by_hand()[query]))
        for at, make in order if turn == 0 else order[::-1]:
            place = folder / f"{query}-{turn}-{at}"
            found[at] += _measured(session, make, folder / "trades", place)
    return found[0], found[1]


def _measured(session: Any, make: Make, trades: Path, place: Path) -> list[float]:
    """Seconds of each micro-batch but the first, which has compilation and start-up in it."""
    source = session.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(trades))
    writer = make(source).writeStream.format("noop").option("checkpointLocation", str(place))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:  # its text can be had while the session is there, not later
        raise HandshakeError(f"a query of the benchmark failed on Spark: {one_line(error, 2000)}") from None
    told = [json.loads(p.json) if hasattr(p, "json") else p for p in query.recentProgress]
    return [one["batchDuration"] / 1000 for one in told if one["numInputRows"]][1:]
