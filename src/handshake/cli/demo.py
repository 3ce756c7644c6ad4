"""`handshake demo`: two made-up streams joined live on a band, then checked by a double loop.

Every value follows from the number of its row, so the check computes the streams again, in plain Python.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

import handshake.api as api
from handshake.cli.errors import reporting
from handshake.cli.live_page import Live as LiveFlag
from handshake.cli.live_page import LiveAt, hold, open_live
from handshake.cli.options import check_options
from handshake.engines.engine import plain_table
from handshake.errors import HandshakeError, InputError
from handshake.io import sink_for
from handshake.joins.join import Join
from handshake.options import Option

if TYPE_CHECKING:
    from handshake.page.live import Page

PREDICATE = "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05 AND l.symbol <> r.symbol"
WINDOW = "2 seconds"
_WINDOW_US = 2_000_000
_TITLE = "trades with quotes"
_BACKEND = Option("The engine that runs it.", ("local", "spark"), choices=("local", "spark"), noun="backend")
_SYMBOLS = np.array(["ABBN", "CSGN", "NESN", "NOVN", "ROG", "UBSN", "ZURN", "SCMN"])
_LOOPS = 20_000_000
"""Pairs that the double loop may compare: a few seconds of plain Python."""
_TICK, _PRACTICE, _GRACE = 0.1, 5_000, 5.0
_SETTLING = 120.0
"""Seconds that a slow machine gets beyond the length of the streams."""
_TRADE, _QUOTE = 1, 2


def demo(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long the streams last: 30, in process 10.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Rows per second and stream: 4000, in process 20000.")
    ] = None,
    save: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write both streams there, as Parquet.")
    ] = None,
    backend: Annotated[str, typer.Option(metavar="local|spark", help=_BACKEND.help)] = "spark",
    ui: Annotated[bool, typer.Option("--ui", help="Serve Spark's own pages too, on this machine.")] = False,
    live: LiveFlag = False,
    live_at: LiveAt = None,
) -> None:
    """Join two made-up streams of trades and quotes live on Spark, then check the results.

    The predicate has no equality, so Spark's own stream join would refuse it. A plain double loop checks the
    results in the end. Nothing is written unless --save asks for it. Without Spark or Java, --backend local
    runs the same join in process.

    \b
    Examples:
      handshake demo
      handshake demo --seconds 60 --rate 10000 --ui
      handshake demo --backend local --save demo-data
      handshake demo --backend local --seconds 120 --live
    """
    with reporting():
        _BACKEND.check(backend)
        check_options(context, backend)
        local = backend == "local"
        length, pace = seconds or (10.0 if local else 30.0), rate or (20_000 if local else 4_000)
        streams = Streams(pace, max(round(length * pace), 1), time.time_ns() // 1000)
        if save is not None:
            _save(Path(save), streams)
        print(f"trades and quotes, {pace:,} of each per second for {length:g} s")
        print(
            f"join   {PREDICATE}\nwindow {WINDOW}; no equality in it, so Spark's own stream join refuses it"
        )
        with open_live(live, live_at) as page:
            if local:
                pairs, joined = _play_here(streams, length, page)
            else:
                pairs, joined = _play_on_spark(streams, length, ui, page)
            if not _check(streams, pairs, joined):
                raise typer.Exit(1)
            _next_steps(save, "handshake demo --backend local" if local else "handshake demo")
            hold(page)


@dataclass(frozen=True)
class Streams:
    """Trades and quotes: `rate` of each per second, `rows` of each in all."""

    rate: int
    rows: int
    start: int
    """Time of the first trade, in microseconds of the epoch."""

    @property
    def step(self) -> int:
        """Microseconds between two rows of a stream."""
        return max(1_000_000 // self.rate, 1)

    def trade(self, row: Any) -> tuple[Any, ...]:
        """Return time, symbol, price and volume of a trade by its number, or of an array of them."""
        cents, kind, volume = (_hash(row, _TRADE + 10 * salt) for salt in range(3))
        return self.start + row * self.step, _SYMBOLS[kind % 8], (1000 + cents % 99000) / 100, volume % 1000

    def quote(self, row: Any) -> tuple[Any, ...]:
        """Return time, symbol, bid and ask of a quote by its number, or of an array of them."""
        cents, kind, spread = (_hash(row, _QUOTE + 10 * salt) for salt in range(3))
        bid = 1000 + cents % 99000
        return self.start + row * self.step, _SYMBOLS[kind % 8], bid / 100, (bid + 1 + spread % 5) / 100

    def columns(self) -> tuple[list[str], list[str]]:
        """Return the columns of both streams in Spark's SQL, where `value` is the number of a row."""
        time = f"timestamp_micros({self.start} + value * {self.step}) AS time"
        names = ", ".join(f"'{symbol}'" for symbol in _SYMBOLS)
        symbol = f"element_at(array({names}), int({{}} % 8) + 1) AS symbol"
        cents, kind, volume = (_hash_sql(_TRADE + 10 * salt) for salt in range(3))
        price = f"(1000 + {cents} % 99000) / 100D AS price"
        trades = ["value AS trade", time, symbol.format(kind), price, f"int({volume} % 1000) AS volume"]
        cents, kind, spread = (_hash_sql(_QUOTE + 10 * salt) for salt in range(3))
        bid = f"(1000 + {cents} % 99000) / 100D AS bid"
        ask = f"(1000 + {cents} % 99000 + 1 + {spread} % 5) / 100D AS ask"
        return trades, ["value AS quote", time, symbol.format(kind), bid, ask]

    def frames(self, spark: Any, partitions: int) -> tuple[Any, Any]:
        """Return both as streaming DataFrames."""
        source = spark.readStream.format("rate").option("rowsPerSecond", self.rate)
        source = source.option("numPartitions", partitions)
        trades, quotes = (
            source.load().where(f"value < {self.rows}").selectExpr(*columns).withWatermark("time", "1 second")
            for columns in self.columns()
        )
        return trades, quotes

    def batches(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return both as Arrow batches."""
        rows = np.arange(self.rows)
        trades = _batch(self.trade(rows), price=pa.float64(), volume=pa.int32())
        return trades, _batch(self.quote(rows), bid=pa.float64(), ask=pa.float64())


def _hash(row: Any, salt: int) -> Any:
    """Return a number below 2**32 that looks random."""
    x = (row * 2654435761 + salt * 40503) % 4294967296
    return (x ^ (x >> 15)) * 1540483477 % 4294967296


def _hash_sql(salt: int) -> str:
    """Return `_hash` in SQL."""
    x = f"((value * 2654435761L + {salt * 40503}) % 4294967296L)"
    return f"((({x} ^ shiftright({x}, 15)) * 1540483477L) % 4294967296L)"


def _batch(columns: tuple[Any, ...], **rest: pa.DataType) -> pa.RecordBatch:
    kinds = {"time": pa.timestamp("us"), "symbol": pa.string(), **rest}
    arrays = [pa.array(values).cast(kind) for values, kind in zip(columns, kinds.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(kinds))


def _save(folder: Path, streams: Streams) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be created: {error.strerror}") from error
    for name, batch in zip(("trades", "quotes"), streams.batches(), strict=True):
        with sink_for(folder / f"{name}.parquet", batch.schema) as sink:
            sink.write(batch)


# In process


@dataclass
class _Run:
    """The streams, the join that they are pushed into, and the pairs that it found."""

    streams: Streams
    join: Join
    batches: tuple[pa.RecordBatch, pa.RecordBatch]
    pairs: list[tuple[pa.Array, pa.Array]] = field(default_factory=list)
    pushed: int = 0
    started: float = field(default_factory=time.perf_counter)
    busy: float = 0.0
    """Seconds spent in the join."""

    def push(self, rows: int) -> None:
        """Push the next rows of both streams."""
        started = time.perf_counter()
        results = self.join.push_left(self.batches[0].slice(self.pushed, rows))
        results += self.join.push_right(self.batches[1].slice(self.pushed, rows))
        self.busy += time.perf_counter() - started
        self.pushed = min(self.pushed + rows, self.streams.rows)
        self.pairs += [(batch["time"], batch["time_right"]) for batch in results]

    def numbers(self) -> list[tuple[int, int]]:
        """Return the pairs by the numbers of their rows, which follow from the times."""
        found: list[tuple[int, int]] = []
        for pair in self.pairs:
            trades, quotes = (
                (np.asarray(times.cast(pa.int64())) - self.streams.start) // self.streams.step
                for times in pair
            )
            found += zip(trades.tolist(), quotes.tolist(), strict=True)
        return found

    def facts(self) -> list[tuple[str, str]]:
        """Return what the live table shows."""
        metrics = self.join.metrics()
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        return [
            ("trades, quotes", f"{metrics.left_rows:,}, {metrics.right_rows:,}"),
            ("in the windows", f"{metrics.left_window_rows:,}, {metrics.right_window_rows:,}"),
            ("results", f"{metrics.results:,}"),
            ("late", f"{metrics.late:,}"),
            ("rate", f"{(metrics.left_rows + metrics.right_rows) / elapsed:,.0f} rows/s"),
            ("busy", f"{self.busy / elapsed:.0%}"),
            ("state", f"{metrics.state_bytes / 1e6:,.1f} MB"),
            ("method", self.join.plan.method),
        ]


Played = tuple[list[tuple[int, int]], tuple[int, int]]
"""Pairs of row numbers, and how many rows of each stream were joined."""


def _play_here(streams: Streams, seconds: float, page: Page | None) -> Played:
    batches = streams.batches()
    trades, quotes = (batch.schema for batch in batches)

    def start() -> Join:
        return Join(left=trades, right=quotes, on=PREDICATE, window=WINDOW, time="time")

    with start() as warm:  # compiles, so that the streams need not wait for it
        practice = _Run(streams, warm, batches)
        for _ in range(4):
            practice.push(_PRACTICE)
    with start() as join:
        run, console = _Run(streams, join, batches), Console()
        if page is not None:
            page.add(join, _TITLE)
        if console.is_terminal:
            with Live(_table(run), console=console, refresh_per_second=8) as live:
                _push_at_rate(run, seconds + _GRACE, lambda: live.update(_table(run)), 0.125)
        else:
            _push_at_rate(run, seconds + _GRACE, lambda: _line(run), 1.0)
    return run.numbers(), (run.pushed, run.pushed)


def _push_at_rate(run: _Run, limit: float, show: Callable[[], None], every: float) -> None:
    """Push until the streams end, or until `limit` on a machine that cannot keep up."""
    run.started = shown = time.perf_counter()
    rate = run.streams.rate
    per_tick = max(round(rate * _TICK), 1)
    for tick in itertools.count(1):
        run.push(per_tick)
        if run.pushed == run.streams.rows or time.perf_counter() - run.started > limit:
            break
        time.sleep(max(run.started + tick * per_tick / rate - time.perf_counter(), 0))
        if time.perf_counter() - shown >= every:
            shown = time.perf_counter()
            show()
    show()


def _line(run: _Run) -> None:
    print("  ".join(f"{name} {value}" for name, value in run.facts()), flush=True)


def _table(run: _Run) -> Table:
    table = Table(show_header=False)
    for name, value in run.facts():
        table.add_row(name, value)
    return table


# On Spark


def _play_on_spark(streams: Streams, seconds: float, ui: bool, page: Page | None) -> Played:
    print("starting Spark …", flush=True)
    with api.spark_module("cluster").start_cluster("handshake demo", ui=ui) as cluster:
        if cluster.address:
            print(f"Spark's own pages, while this runs: {cluster.address}")
        practice = _start(replace(streams, rows=streams.rate), cluster, "practice")
        _wait(practice, streams.rate)  # workers start and kernels are compiled, so the streams need not wait
        practice.stop()
        streams = replace(streams, start=time.time_ns() // 1000)  # so that the lag is one to the clock
        query = _start(streams, cluster, _TITLE, page)
        api.watch(query, seconds + _SETTLING, until=lambda: min(_joined_rows(query, streams)) >= streams.rows)
        query.stop()
        consumed = _joined_rows(query, streams)
        if not min(consumed):
            raise _too_slow(seconds + _SETTLING)
        kept = cluster.session.read.schema("trade bigint, quote bigint")
        rows = cluster.run(kept.parquet(_results(cluster, query.name)).toArrow)
        return list(zip(rows["trade"].to_pylist(), rows["quote"].to_pylist(), strict=True)), consumed


def _start(streams: Streams, cluster: Any, name: str, page: Page | None = None) -> Any:
    """Start the join as a streaming query, and show it on the page."""
    trades, quotes = streams.frames(cluster.session, cluster.cores)
    joined = api.join(
        trades, quotes, PREDICATE, window=WINDOW, time="time", name="trades_with_quotes",
        state_dir=str(cluster.folder / "state"),
    )  # fmt: skip
    query = (
        joined.writeStream.queryName(name).format("parquet").option("path", _results(cluster, name))
        .option("checkpointLocation", str(cluster.folder / "checkpoints" / name))
        .trigger(processingTime="1 second").start()
    )  # fmt: skip
    if page is not None:
        page.add(query, plan=joined)
    return query


def _results(cluster: Any, name: str) -> str:
    return str(cluster.folder / "results" / name)


def _wait(query: Any, rows: int) -> None:
    """Wait until a micro-batch with this many rows has ended."""
    ends = time.monotonic() + _SETTLING
    while query.exception() is None and (query.lastProgress or {"numInputRows": 0})["numInputRows"] < rows:
        if time.monotonic() > ends:
            raise _too_slow(_SETTLING)
        time.sleep(0.2)
    if query.exception() is not None:
        raise api.spark_module("failures").join_error(query.exception())


def _too_slow(seconds: float) -> HandshakeError:
    return HandshakeError(
        f"Spark ended no micro-batch in {seconds:g} s; this machine is too busy or too small for it: "
        "try again later, or handshake demo --backend local"
    )


def _joined_rows(query: Any, streams: Streams) -> tuple[int, int]:
    """Return the rows of each stream in the micro-batches that have ended; Spark's source counts seconds."""
    last = query.lastProgress
    if last is None:
        return 0, 0
    ends = [int(source["endOffset"] or 0) * streams.rate for source in last["sources"]]
    return min(ends[0], streams.rows), min(ends[-1], streams.rows)


# The check


def _check(streams: Streams, pairs: list[tuple[int, int]], joined: tuple[int, int]) -> bool:
    """Compare with a double loop over evenly chosen trades and all quotes that were joined."""
    trades, quotes = joined
    every = max(trades * quotes // _LOOPS, 1)
    chosen = range(0, trades, every)
    which = "all" if every == 1 else f"one in {every:,}"
    print(f"\nchecking {len(chosen):,} trades ({which}) against all {quotes:,} quotes in plain Python …")
    found = sorted(pair for pair in pairs if pair[0] % every == 0 and pair[0] < trades and pair[1] < quotes)
    expected = sorted(_double_loop(streams, chosen, quotes))
    if found == expected:
        more = "" if len(pairs) == len(found) else f" ({len(pairs):,} results in all)"
        print(f"exact: {len(found):,} results equal the double loop{more}")
        return True
    missing, wrong = len(set(expected) - set(found)), len(set(found) - set(expected))
    print(f"NOT exact: the join found {len(found):,} results, the double loop {len(expected):,}")
    print(f"{missing:,} are missing, {wrong:,} are wrong, {len(found) - len(set(found)):,} are doubled")
    return False


def _double_loop(streams: Streams, trades: range, quotes: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of every chosen trade with every quote that the predicate and the window allow."""
    rows = [(number, *streams.quote(number)) for number in range(quotes)]
    for trade in trades:
        t, symbol, price, _ = streams.trade(trade)
        for quote, u, other, bid, ask in rows:
            if bid - 0.05 <= price <= ask + 0.05 and -_WINDOW_US < t - u < _WINDOW_US and symbol != other:
                yield trade, quote


def _next_steps(save: str | None, again: str) -> None:
    """Print commands that go on from here."""
    folder = save or "demo-data"
    inputs = f"handshake join {folder}/trades.parquet {folder}/quotes.parquet --time time"
    on = f'--window "{WINDOW}" --on "{PREDICATE}"'
    steps = [
        ("the streams as files" if save is None else "longer", f"{again} --save {folder} --seconds 60"),
        ("the same join on them", f"{inputs} {on} --output matches.parquet"),
        ("how it runs", f"{inputs} {on} --explain"),
    ]
    print("\nTry next:")
    for line in plain_table(steps):
        print(f"  {line}")
