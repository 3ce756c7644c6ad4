"""A market feed over UDP, queried live on Spark: the five queries of the Glacier paper, and a join.

A generator sends trades and quotes, distinguished by their first byte, to a local port. `handshake receive`
writes the datagrams to a durable log, and Spark runs all queries on it. At the end the same log is queried in
this process, and the results must agree.

    python examples/finance.py --rate 20000 --seconds 30
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.io.udp.log import LogReader
from handshake.io.udp.receive import direct, layout_of
from handshake.io.udp.sockets import Endpoint, UdpSender
from handshake.operators.query import Query
from handshake.plan.query import parse_query

QUERY = """
CREATE INPUT STREAM Feed (MsgType byte);
CREATE INPUT STREAM Trades (MsgType byte, Seqnr int, Symbol string(4), Price int, Volume int, Ts long)
    FROM Feed WHERE MsgType = 84 TIMESTAMP BY Ts IN MICROSECONDS;
CREATE INPUT STREAM Quotes (MsgType byte, Symbol string(4), Bid int, Ask int, Ts long)
    FROM Feed WHERE MsgType = 81 TIMESTAMP BY Ts IN MICROSECONDS;

SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO UBSTrades;

SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" AND Volume > 100000 INTO LargeUBSTrades;

SELECT count() AS Number FROM Trades [SIZE 600 ADVANCE 60 TIME] WHERE Symbol = "UBSN" INTO NumUBSTrades;

SELECT wsum(Price,[.5,.25,.125,.125]) AS Wprice
FROM (SELECT * FROM Trades WHERE Symbol = "UBSN") [SIZE 4 ADVANCE 1 TUPLES] INTO WeightedUBSTrades;

SELECT Symbol, avg(Price) AS AvgPrice FROM Trades [SIZE 600 ADVANCE 60 TIME] GROUP BY Symbol
INTO PriceAverages;

SELECT t.Symbol, Price, Bid, Ask FROM Trades [SIZE 1 TIME] t, Quotes [SIZE 1 TIME] q
WHERE t.Symbol = q.Symbol AND Price BETWEEN Bid AND Ask INTO TradesInSpread
"""
SYMBOLS = pa.array(["UBSN", "CSGN", "NESN", "NOVN", "ROG", "ABBN", "ZURN", "SREN"])
START = 1_231_146_000_000_000
"""Monday, 5 January 2009, 9:00, in microseconds."""
STEP = 0.02
"""Seconds between two bursts of the generator."""


# The market


def messages(first: int, count: int, speed: float, rate: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generate `count` trades and `count` quotes, numbered from `first`."""
    random = np.random.default_rng(first)
    times = pa.array((START + np.arange(first, first + count) / rate * speed * 1e6).astype(np.int64))
    prices = 10_000 + np.cumsum(random.integers(-3, 4, count))
    volumes = np.where(random.random(count) < 0.01, 200_000, random.integers(1, 5_000, count))
    trades = {
        "MsgType": np.full(count, 84, np.int8),
        "Seqnr": np.arange(first, first + count, dtype=np.int32),
        "Symbol": SYMBOLS.take(pa.array(random.integers(0, 8, count))),
        "Price": prices.astype(np.int32),
        "Volume": volumes.astype(np.int32),
        "Ts": times,
    }
    bids = prices + random.integers(-50, 50, count)
    quotes = {
        "MsgType": np.full(count, 81, np.int8),
        "Symbol": SYMBOLS.take(pa.array(random.integers(0, 8, count))),
        "Bid": bids.astype(np.int32),
        "Ask": (bids + random.integers(0, 4, count)).astype(np.int32),
        "Ts": times,
    }
    return trades, quotes


def generate(endpoint: Endpoint, rate: float, seconds: float, speed: float) -> int:
    """Send messages at a rate, then the end mark; return the number of datagrams."""
    plan = parse_query(QUERY)
    layouts = {source.name: layout_of(source) for source in plan.inputs}
    each = max(int(rate / 2 * STEP), 1)
    with UdpSender(endpoint, layouts["Trades"]) as sender:
        begun = time.monotonic()
        for burst in range(round(seconds / STEP)):
            trades, quotes = messages(burst * each, each, speed, rate / 2)
            time.sleep(max(begun + burst * STEP - time.monotonic(), 0))
            sender.send(trades, layout=layouts["Trades"])
            sender.send(quotes, layout=layouts["Quotes"])
        sent = sender.sent
        time.sleep(0.5)
        sender.end()
    return sent


@contextlib.contextmanager
def receiver(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run `handshake receive` in another process."""
    (folder / "query.sql").write_text(QUERY)
    command = [
        sys.executable, "-m", "handshake.cli", "receive", f"udp://127.0.0.1:{port}?sequence=yes",
        "--query", str(folder / "query.sql"), "--input", "Feed", "--log", str(folder / "log"), "--ends", "1",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            while not all((folder / "log" / name / "schema.arrow").exists() for name in ("Trades", "Quotes")):
                if process.poll() is not None:
                    raise RuntimeError(f"'{' '.join(command)}' ended with status {process.returncode}")
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()


# Spark


class Live:
    """Results of the queries so far, by name: the number of rows, and the last row."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.last: dict[str, Any] = {}

    def sink(self, name: str) -> Any:
        self.rows[name] = 0

        def take(frame: Any, batch: int) -> None:
            table = frame.toArrow()
            self.rows[name] = self.rows.get(name, 0) + table.num_rows
            if table.num_rows:
                self.last[name] = table.slice(table.num_rows - 1).to_pylist()[0]

        return take

    def show(self, seconds: float) -> None:
        print(f"--- {seconds:5.1f} s")
        for name in sorted(self.rows):
            print(f"{name:18} {self.rows[name]:>10,} rows   {self.last.get(name, '')}")
        sys.stdout.flush()


def start(spark: Any, folder: Path, live: Live) -> list[Any]:
    """Start a streaming query per result."""
    from handshake.engines.spark.queries import query_frames
    from handshake.engines.spark.udp_source import FORMAT, register

    register(spark)
    inputs = {
        name: spark.readStream.format(FORMAT).load(str(folder / "log" / name))
        for name in ("Trades", "Quotes")
    }
    frames = query_frames(direct(parse_query(QUERY)), inputs, state_dir=str(folder / "state"))
    return [
        frame.writeStream.foreachBatch(live.sink(name))
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .queryName(name)
        .start()
        for name, frame in frames.items()
    ]


def in_process(folder: Path) -> dict[str, int]:
    """Count the results of the same queries in this process, without those of open windows."""
    plan = direct(parse_query(QUERY))
    tables = {
        name: pa.Table.from_batches(list(LogReader(folder / "log" / name))) for name in ("Trades", "Quotes")
    }
    times = np.concatenate([table.column("Ts").to_numpy() for table in tables.values()])
    places = np.argsort(np.argsort(times, kind="stable"), kind="stable")
    cut = tables["Trades"].num_rows
    with Query(plan) as query:
        given = {"Trades": (tables["Trades"], places[:cut]), "Quotes": (tables["Quotes"], places[cut:])}
        results = query.push_together(given)
    return {name: sum(batch.num_rows for batch in batches) for name, batches in results.items()}


def main() -> None:
    """Parse the options, run the example and exit with its status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rate", type=float, default=10_000, help="messages per second")
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--speed", type=float, default=60, help="market seconds per real second")
    options.add_argument("--port", type=int, default=50_068)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        same = run(Path(name), given.rate, given.seconds, given.speed, given.port)
    print("the same as in this process" if same else "NOT the same as in this process")
    sys.exit(0 if same else 1)


def run(folder: Path, rate: float, seconds: float, speed: float, port: int) -> bool:
    """Generate, receive, query and compare; return whether Spark and this process agree."""
    from handshake.engines.spark.cluster import start_cluster

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    with start_cluster("finance", cores=2, **settings) as cluster, receiver(folder, port) as receiving:
        live = Live()
        queries = start(cluster.session, folder, live)
        begun = time.monotonic()
        figures = [str(figure) for figure in (port, rate, seconds, speed)]
        with subprocess.Popen(
            [sys.executable, __file__, "--generate", *figures], stdout=subprocess.PIPE, text=True
        ) as sender:
            while receiving.poll() is None:
                time.sleep(2)
                live.show(time.monotonic() - begun)
            sent = int(sender.communicate()[0])
        for query in queries:
            query.processAllAvailable()
            query.stop()
        live.show(time.monotonic() - begun)
        counters = json.loads(receiving.communicate()[0])
    print(f"sent {sent:,} datagrams; received {counters}")
    return live.rows == in_process(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--generate"]:
        port, *figures = sys.argv[2:]
        print(generate(Endpoint("127.0.0.1", int(port), True), *map(float, figures)))
    else:
        main()
