"""`handshake bench live`: the share of a join's throughput that an open live page costs.

One join gets rows as fast as it takes them, in many short turns with and without a page. The turns of a pair
follow each other, in an order that alternates. Both begin after the same pause, so that other load on the
machine concerns both. The reader of the page is a process of its own, as a browser is. It counts the updates.

Two ratios are taken per pair: rows per second, and rows per second of processor time of the join's process.
The first is what users see, and needs a machine with nothing else to do. The second hardly depends on other
load. Each comes with an interval that holds the median in 95 % of runs. If the interval has 0, the cost is
below the noise.
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from handshake.joins.join import Join
from handshake.page.live import Page
from handshake_bench import report
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["run"]

_READER = """
import sys, urllib.request
frames = 0
with urllib.request.urlopen(sys.argv[1], timeout=30) as answer:
    print("open", flush=True)
    try:
        while data := answer.read1(1 << 16):
            frames += data.count(b"data: {")
    except Exception:
        pass
print(frames, flush=True)
"""
_LEAD = 0.2
"""Seconds before each turn in which rows are pushed and not counted."""


@dataclass(frozen=True)
class _Turn:
    """Rows of one turn, and what they took."""

    rows: int
    seconds: float
    processor: float
    updates: float = 0.0
    """Updates per second that the reader of the page got."""


def run(seconds: float = 1.0, pairs: int = 40, updates: float = 50.0, window: str = "100000 tuples") -> None:
    """Measure the cost of an open page; print a table and the ratios."""
    batches = _batches(2000, 200)
    with Join(left=left_schema, right=right_schema, on=BAND, window=window, time="ts") as join:
        feed = _feed(join, batches)
        _turn(feed, 8.0)  # fills the windows and compiles
        turns: dict[bool, list[_Turn]] = {False: [], True: []}
        pause = 0.5
        for pair in range(pairs):
            for shown in ((False, True), (True, False))[pair % 2]:
                if shown:
                    began = time.perf_counter()
                    turns[True].append(_turn_with_page(join, feed, seconds, updates))
                    pause = max(time.perf_counter() - began - seconds - _LEAD, 0.1)
                else:
                    time.sleep(pause)  # as long as a page takes to open
                    _turn(feed, _LEAD)
                    turns[False].append(_turn(feed, seconds))
            lost = [_lost(turns, name)[-1] for name in ("seconds", "processor")]
            report.progress(
                f"pair {pair + 1} of {pairs}: lost {lost[0]:.2%}, of processor time {lost[1]:.2%}"
            )
        cores = len(join.metrics().cores)
    _report(turns, window, cores, updates)


def _batches(rows: int, number: int) -> list[tuple[pa.RecordBatch, pa.RecordBatch]]:
    streams = Streams(1e6)
    return [(streams.left(k * rows, rows), streams.right(k * rows, rows)) for k in range(number)]


def _feed(join: Join, batches: list[tuple[pa.RecordBatch, pa.RecordBatch]]) -> Iterator[int]:
    """Push batches for ever; yield the number of rows after each."""
    for left, right in itertools.cycle(batches):
        join.push_left(left)
        join.push_right(right)
        yield left.num_rows + right.num_rows


def _turn(feed: Iterator[int], seconds: float) -> _Turn:
    rows, began, worked = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        rows += next(feed)
    return _Turn(rows, time.perf_counter() - began, time.process_time() - worked)


def _turn_with_page(join: Join, feed: Iterator[int], seconds: float, updates: float) -> _Turn:
    with Page("127.0.0.1:0") as page:
        page.add(join, "measured")
        command = [sys.executable, "-c", _READER, f"{page.url}events?rate={updates:g}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            began = time.perf_counter()
            _turn(feed, _LEAD)
            turn = _turn(feed, seconds)
            lasted = time.perf_counter() - began
            page.close()
            frames = int(reader.stdout.readline())
    join.on_results = None
    return _Turn(turn.rows, turn.seconds, turn.processor, frames / lasted)


def _lost(turns: dict[bool, list[_Turn]], measure: str) -> list[float]:
    """Return the lost share of rows per second, or per second of the processor, of each pair."""
    pairs = zip(turns[False], turns[True], strict=False)
    return [1 - (b.rows / getattr(b, measure)) / (a.rows / getattr(a, measure)) for a, b in pairs]


def _report(turns: dict[bool, list[_Turn]], window: str, cores: int, updates: float) -> None:
    lost = {name: _lost(turns, name) for name in ("seconds", "processor")}
    reached = statistics.median(turn.updates for turn in turns[True])
    rows = [
        (name, f"{_rate(turns[shown], 'seconds'):,.0f}", f"{_rate(turns[shown], 'processor'):,.0f}")
        for shown, name in ((False, "no page"), (True, f"page open, {reached:.0f} updates/s"))
    ]
    rows.append(("lost", _interval_text(lost["seconds"]), _interval_text(lost["processor"])))
    title = f"band join at full rate, {cores} cores, windows of {window}, {updates:g} updates/s asked for"
    report.table(title, ("", "rows/s", "rows per processor second"), rows)
    report.result(
        cost=round(statistics.median(lost["seconds"]), 4), noise=round(_spread(lost["seconds"]), 4),
        processor_cost=round(statistics.median(lost["processor"]), 4),
        processor_noise=round(_spread(lost["processor"]), 4),
        updates=round(reached, 1), pairs=len(turns[True]),
    )  # fmt: skip


def _interval(values: list[float]) -> tuple[float, float]:
    """Return the bounds within which the median lies with 95 % confidence, by ranks."""
    held, reach = sorted(values), 0.98 * len(values) ** 0.5
    low, high = math.floor(len(held) / 2 - reach), math.ceil(len(held) / 2 + reach)
    return held[max(low, 0)], held[min(high, len(held) - 1)]


def _spread(values: list[float]) -> float:
    low, high = _interval(values)
    return (high - low) / 2


def _interval_text(values: list[float]) -> str:
    low, high = _interval(values)
    return f"{statistics.median(values):.2%} ({low:.2%} to {high:.2%})"


def _rate(turns: list[_Turn], measure: str) -> float:
    return statistics.median([turn.rows / float(getattr(turn, measure)) for turn in turns])
