"""`handshake demo --backend local`: two made-up streams joined in process, then checked by a double loop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.live import Live
from rich.table import Table

from handshake.cli.preview import plain_table
from handshake.errors import InputError
from handshake.io import sink_for
from handshake.joins.join import Join

__all__ = ["PREDICATE", "WINDOW", "next_steps", "save_streams", "show_demo", "streams"]

PREDICATE = "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05 AND l.symbol <> r.symbol"
WINDOW = "2 seconds"
_WINDOW_US = 2_000_000
_SEED, _TICK = 2011, 0.1
_SYMBOLS = np.array(["ABBN", "CSGN", "NESN", "NOVN", "ROG", "UBSN", "ZURN", "SCMN"])
_PRACTICE, _GRACE = 5_000, 5.0
_LOOPS = 20_000_000
"""Pairs that the double loop may look at: a few seconds of plain Python."""

_TRADES = pa.schema(
    [("time", pa.timestamp("us")), ("symbol", pa.string()), ("price", pa.float64()), ("volume", pa.int32())]
)
_QUOTES = pa.schema(
    [("time", pa.timestamp("us")), ("symbol", pa.string()), ("bid", pa.float64()), ("ask", pa.float64())]
)


def streams(rows: int, rate: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Trades and quotes, the same ones each time; no two of a stream at the same microsecond.

    >>> [stream.num_rows for stream in streams(100, 1000)]
    [100, 100]
    """
    random = np.random.default_rng(_SEED)
    spread = np.round(random.uniform(0.01, 0.05, rows), 2)
    bid = np.round(_prices(random, rows) - spread / 2, 2)
    trades = [
        _times(random, rows, rate),
        _SYMBOLS[random.integers(len(_SYMBOLS), size=rows)],
        np.round(_prices(random, rows), 2),
        random.integers(1, 1000, rows, dtype=np.int32) * 10,
    ]
    quotes = [
        _times(random, rows, rate),
        _SYMBOLS[random.integers(len(_SYMBOLS), size=rows)],
        bid,
        np.round(bid + spread, 2),
    ]
    return _batch(trades, _TRADES), _batch(quotes, _QUOTES)


def _times(random: np.random.Generator, rows: int, rate: int) -> np.ndarray:
    """Even steps with jitter that keeps their order."""
    step = max(1_000_000 // rate, 1)
    start = np.datetime64("2024-01-02T09:00:00", "us").astype(np.int64)
    return start + np.arange(rows, dtype=np.int64) * step + random.integers(0, step, rows)


def _prices(random: np.random.Generator, rows: int) -> np.ndarray:
    return random.uniform(10, 1000, rows)


def _batch(columns: list[np.ndarray], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(values).cast(kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)


@dataclass
class _Run:
    """The streams, the join that they are pushed into, and what the check will need."""

    trades: pa.RecordBatch
    quotes: pa.RecordBatch
    join: Join
    chosen: pa.Array
    """Times of the trades that the double loop will look at."""
    pairs: list[tuple[pa.Array, pa.Array]] = field(default_factory=list)
    pushed: int = 0
    started: float = field(default_factory=time.perf_counter)
    busy: float = 0.0
    """Seconds spent in the join."""

    def push(self, rows: int) -> None:
        """Push the next rows of both streams."""
        at = self.pushed
        started = time.perf_counter()
        results = self.join.push_left(self.trades.slice(at, rows))
        results += self.join.push_right(self.quotes.slice(at, rows))
        self.busy += time.perf_counter() - started
        self.pushed = min(at + rows, self.trades.num_rows)
        for batch in results:
            kept = batch.filter(pc.is_in(batch["time"], value_set=self.chosen))
            self.pairs.append((kept["time"], kept["time_right"]))

    def facts(self) -> list[tuple[str, str]]:
        """What the live table shows."""
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


def show_demo(seconds: float, rate: int, save: str | None) -> bool:
    """Run the demo; whether the results were right."""
    console = Console()
    rows = max(round(seconds * rate), 1)
    trades, quotes = streams(rows, rate)
    if save is not None:
        save_streams(Path(save), trades, quotes)
    print(f"trades and quotes, {rate:,} of each per second for {seconds:g} s, seed {_SEED}")
    print(f"join   {PREDICATE}\nwindow {WINDOW}; no equality in it, so Spark's streams would refuse it\n")
    chosen = trades["time"].take(pa.array(_sample(rows)))
    with _join() as warm:  # compiles, so that the streams need not wait for it
        practice = _Run(trades, quotes, warm, chosen)
        for _ in range(4):
            practice.push(_PRACTICE)
    with _join() as join:
        run = _Run(trades, quotes, join, chosen)
        _play(run, rate, seconds + _GRACE, console)
    right = _check(run)
    if right:
        next_steps(save, "handshake demo --backend local")
    return right


def _join() -> Join:
    return Join(left=_TRADES, right=_QUOTES, on=PREDICATE, window=WINDOW, time="time")


def save_streams(folder: Path, trades: pa.RecordBatch, quotes: pa.RecordBatch) -> None:
    """Write both streams into a folder, as Parquet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be made: {error.strerror}") from error
    for name, batch in (("trades", trades), ("quotes", quotes)):
        with sink_for(folder / f"{name}.parquet", batch.schema) as sink:
            sink.write(batch)


def _sample(rows: int) -> np.ndarray:
    """Places of the trades to check: all, or evenly spread ones so that the loop stays short."""
    return np.arange(0, rows, max(rows * rows // _LOOPS, 1))


def _play(run: _Run, rate: int, limit: float, console: Console) -> None:
    """Push both streams at their pace, with a live table, or a line per second where there is no terminal."""
    if not console.is_terminal:
        _paced(run, rate, limit, _lines(run), 1.0)
        return
    with Live(_table(run), console=console, refresh_per_second=8) as live:
        _paced(run, rate, limit, lambda: live.update(_table(run)), 0.125)


def _paced(run: _Run, rate: int, limit: float, show: Callable[[], None], every: float) -> None:
    """Push until the streams end, or until `limit` on a machine that cannot keep up."""
    run.started = shown = time.perf_counter()
    per_tick = max(round(rate * _TICK), 1)
    for tick in itertools.count(1):
        run.push(per_tick)
        if run.pushed == run.trades.num_rows or time.perf_counter() - run.started > limit:
            break
        time.sleep(max(run.started + tick * per_tick / rate - time.perf_counter(), 0))
        if time.perf_counter() - shown >= every:
            shown = time.perf_counter()
            show()
    show()


def _lines(run: _Run) -> Callable[[], None]:
    return lambda: print("  ".join(f"{name} {value}" for name, value in run.facts()), flush=True)


def _table(run: _Run) -> Table:
    table = Table(show_header=False)
    for name, value in run.facts():
        table.add_row(name, value)
    return table


def _check(run: _Run) -> bool:
    """Compare with a double loop over the chosen trades and all quotes that were pushed."""
    found = sorted(pair for chunk in run.pairs for pair in zip(*map(_micros, chunk), strict=True))
    places = _sample(run.trades.num_rows)
    trades = run.trades.take(pa.array(places[places < run.pushed]))
    quotes = run.quotes.slice(0, run.pushed)
    print(f"\nchecking {trades.num_rows:,} trades against all {quotes.num_rows:,} quotes in plain Python …")
    expected = sorted(_double_loop(trades, quotes))
    if found == expected:
        print(f"exact: {len(found):,} results equal the double loop")
        return True
    print(f"NOT exact: the join found {len(found):,} results, the double loop {len(expected):,}")
    return False


def _double_loop(trades: pa.RecordBatch, quotes: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    rows = list(
        zip(_micros(quotes["time"]), *(quotes[n].to_pylist() for n in ("symbol", "bid", "ask")), strict=True)
    )
    for t, symbol, price in zip(
        _micros(trades["time"]), trades["symbol"].to_pylist(), trades["price"].to_pylist(), strict=True
    ):
        for u, other, bid, ask in rows:
            if bid - 0.05 <= price <= ask + 0.05 and -_WINDOW_US < t - u < _WINDOW_US and symbol != other:
                yield t, u


def _micros(times: pa.Array) -> list[int]:
    micros: list[int] = times.cast(pa.int64()).to_pylist()
    return micros


def next_steps(save: str | None, again: str) -> None:
    """Commands that go on from here."""
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
