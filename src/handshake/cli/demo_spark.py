"""`handshake demo`: two made-up streams joined live by Spark on a band, then checked by a double loop.

Every value follows from the number of its row, so the check makes the streams again, in plain Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import handshake.api as session
from handshake.cli.demo import PREDICATE, WINDOW, next_steps, save_streams
from handshake.errors import HandshakeError

__all__ = ["show_spark_demo"]

_WINDOW_US = 2_000_000
_SYMBOLS = ("ABBN", "CSGN", "NESN", "NOVN", "ROG", "UBSN", "ZURN", "SCMN")
_LOOPS = 40_000_000
"""Pairs that the double loop may look at: a few seconds of plain Python."""
_SETTLING = 120.0
"""Seconds that a slow machine gets beyond the length of the streams."""
_TRADE, _QUOTE = 1, 2


@dataclass(frozen=True)
class Streams:
    """Trades and quotes, so many of each per second, for so long."""

    rate: int
    rows: int
    start: int
    """Time of the first trade, in microseconds of the epoch."""

    @property
    def step(self) -> int:
        """Microseconds between two tuples of a stream."""
        return max(1_000_000 // self.rate, 1)

    def trade(self, row: int) -> tuple[int, str, float, int]:
        """Time, symbol, price and volume of a trade."""
        cents, kind, volume = (_mixed(row, _TRADE + 10 * salt) for salt in range(3))
        return self.start + row * self.step, _SYMBOLS[kind % 8], (1000 + cents % 99000) / 100, volume % 1000

    def quote(self, row: int) -> tuple[int, str, float, float]:
        """Time, symbol, bid and ask of a quote."""
        cents, kind, spread = (_mixed(row, _QUOTE + 10 * salt) for salt in range(3))
        bid = 1000 + cents % 99000
        return self.start + row * self.step, _SYMBOLS[kind % 8], bid / 100, (bid + 1 + spread % 5) / 100

    def columns(self) -> tuple[list[str], list[str]]:
        """The columns of both, in Spark's SQL over the numbers of rows."""
        time = f"timestamp_micros({self.start} + value * {self.step}) AS time"
        names = ", ".join(f"'{symbol}'" for symbol in _SYMBOLS)
        symbol = f"element_at(array({names}), int({{}} % 8) + 1) AS symbol"
        cents, kind, volume = (_mixed_sql(_TRADE + 10 * salt) for salt in range(3))
        price = f"(1000 + {cents} % 99000) / 100D AS price"
        trades = ["value AS trade", time, symbol.format(kind), price, f"int({volume} % 1000) AS volume"]
        cents, kind, spread = (_mixed_sql(_QUOTE + 10 * salt) for salt in range(3))
        bid = f"(1000 + {cents} % 99000) / 100D AS bid"
        ask = f"(1000 + {cents} % 99000 + 1 + {spread} % 5) / 100D AS ask"
        return trades, ["value AS quote", time, symbol.format(kind), bid, ask]

    def frames(self, spark: Any, partitions: int) -> tuple[Any, Any]:
        """Both as streaming DataFrames that Spark makes from the numbers of rows."""
        trades, quotes = (
            self._numbers(spark, partitions).selectExpr(*columns).withWatermark("time", "1 second")
            for columns in self.columns()
        )
        return trades, quotes

    def _numbers(self, spark: Any, partitions: int) -> Any:
        """Numbers of rows as they come, so many per second."""
        source = spark.readStream.format("rate").option("rowsPerSecond", self.rate)
        return source.option("numPartitions", partitions).load().where(f"value < {self.rows}")

    def batches(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Both as Arrow batches, made in plain Python."""
        trades = _batch(map(self.trade, range(self.rows)), price=pa.float64(), volume=pa.int32())
        quotes = _batch(map(self.quote, range(self.rows)), bid=pa.float64(), ask=pa.float64())
        return trades, quotes


def _mixed(row: int, salt: int) -> int:
    """A number below 2**32 that looks random."""
    x = (row * 2654435761 + salt * 40503) % 4294967296
    return (x ^ (x >> 15)) * 1540483477 % 4294967296


def _mixed_sql(salt: int) -> str:
    """The same in SQL."""
    x = f"((value * 2654435761L + {salt * 40503}) % 4294967296L)"
    return f"((({x} ^ shiftright({x}, 15)) * 1540483477L) % 4294967296L)"


def _batch(rows: Iterator[Any], **rest: pa.DataType) -> pa.RecordBatch:
    kinds = {"time": pa.timestamp("us"), "symbol": pa.string(), **rest}
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(kinds))


def show_spark_demo(seconds: float, rate: int, save: str | None, *, ui: bool = False) -> bool:
    """Run the demo; whether the results were right."""
    streams = Streams(rate, max(round(seconds * rate), 1), time.time_ns() // 1000)
    if save is not None:
        save_streams(Path(save), *streams.batches())
    started = session.spark_module("cluster").started
    print(f"trades and quotes, {rate:,} of each per second for {seconds:g} s")
    print(f"join   {PREDICATE}\nwindow {WINDOW}; no equality in it, so Spark's own stream join refuses it")
    print("starting Spark …", flush=True)
    with started("handshake demo", ui=ui) as cluster:
        if cluster.address:
            print(f"Spark's own pages, while this runs: {cluster.address}")
        pairs, consumed = _play(streams, seconds, cluster)
    right = _check(streams, pairs, consumed)
    if right:
        next_steps(save, "handshake demo")
    return right


def _play(streams: Streams, seconds: float, cluster: Any) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Join the streams while they last; pairs of row numbers, and how many rows of each were consumed."""
    practice = _started(replace(streams, rows=streams.rate), cluster, "practice")
    _wait(practice, streams.rate)  # workers start and kernels are compiled, so the streams need not wait
    practice.stop()
    streams = replace(streams, start=time.time_ns() // 1000)  # so that the lag is one to the clock
    query = _started(streams, cluster, "trades with quotes")
    session.watch(query, seconds + _SETTLING, until=lambda: min(_consumed(query, streams)) >= streams.rows)
    query.stop()
    consumed = _consumed(query, streams)
    if not min(consumed):
        raise _too_slow(seconds + _SETTLING)
    kept = cluster.session.read.schema("trade bigint, quote bigint").parquet(_results(cluster, query.name))
    rows = cluster.run(kept.toArrow)
    return list(zip(rows["trade"].to_pylist(), rows["quote"].to_pylist(), strict=True)), consumed


def _started(streams: Streams, cluster: Any, name: str) -> Any:
    """The join as a running query."""
    trades, quotes = streams.frames(cluster.session, cluster.cores)
    joined = session.join(
        trades, quotes, PREDICATE, window=WINDOW, time="time", name="trades_with_quotes",
        state_dir=str(cluster.folder / "state"),
    )  # fmt: skip
    return (
        joined.writeStream.queryName(name).format("parquet").option("path", _results(cluster, name))
        .option("checkpointLocation", str(cluster.folder / "checkpoints" / name))
        .trigger(processingTime="1 second").start()
    )  # fmt: skip


def _results(cluster: Any, name: str) -> str:
    return str(cluster.folder / "results" / name)


def _wait(query: Any, rows: int) -> None:
    """Until so many rows of both streams have been joined."""
    ends = time.monotonic() + _SETTLING
    while query.exception() is None and (query.lastProgress or {"numInputRows": 0})["numInputRows"] < rows:
        if time.monotonic() > ends:
            raise _too_slow(_SETTLING)
        time.sleep(0.2)
    if query.exception() is not None:
        raise session.spark_module("failures").told(query.exception())


def _too_slow(seconds: float) -> HandshakeError:
    return HandshakeError(
        f"Spark ended no micro-batch in {seconds:g} s; this machine is too busy or too small for it: "
        "try again later, or handshake demo --backend local"
    )


def _consumed(query: Any, streams: Streams) -> tuple[int, int]:
    """Rows of each stream in the micro-batches that have ended; Spark's source counts in seconds."""
    last = query.lastProgress
    if last is None:
        return 0, 0
    ends = [int(source["endOffset"] or 0) * streams.rate for source in last["sources"]]
    return min(ends[0], streams.rows), min(ends[-1], streams.rows)


def _check(streams: Streams, pairs: list[tuple[int, int]], consumed: tuple[int, int]) -> bool:
    """Compare with a double loop over evenly chosen trades and all quotes that were consumed."""
    trades, quotes = consumed
    every = max(trades * quotes // _LOOPS, 1)
    chosen = range(0, trades, every)
    which = "all" if every == 1 else f"one in {every:,}"
    print(f"\nchecking {len(chosen):,} trades ({which}) against all {quotes:,} quotes in plain Python …")
    found = sorted(pair for pair in pairs if pair[0] % every == 0 and pair[0] < trades and pair[1] < quotes)
    expected = sorted(_double_loop(streams, chosen, quotes))
    if found == expected:
        print(f"exact: {len(found):,} results equal the double loop ({len(pairs):,} results in all)")
        return True
    missing, wrong = len(set(expected) - set(found)), len(set(found) - set(expected))
    print(f"NOT exact: the join found {len(found):,} results, the double loop {len(expected):,}")
    print(f"{missing:,} are missing, {wrong:,} are wrong, {len(found) - len(set(found)):,} are doubled")
    return False


def _double_loop(streams: Streams, trades: range, quotes: int) -> Iterator[tuple[int, int]]:
    """Every chosen trade with every quote, by the words of the predicate and of the window."""
    rows = [(number, *streams.quote(number)) for number in range(quotes)]
    for trade in trades:
        t, symbol, price, _ = streams.trade(trade)
        for quote, u, other, bid, ask in rows:
            if bid - 0.05 <= price <= ask + 0.05 and -_WINDOW_US < t - u < _WINDOW_US and symbol != other:
                yield trade, quote
