"""`handshake bench live`: the share of a join's throughput that an open live page costs.

One join gets rows as fast as it takes them. It is measured with and without the page, in turn and in the
order without, with, with, without, so that other load on the machine concerns both. The reader of the page is
a process of its own, as a browser is, and counts the updates. Ratios are medians over pairs of turns.
"""

from __future__ import annotations

import itertools
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
        for line in answer:
            frames += line.startswith(b"data: ")
    except Exception:
        pass
print(frames, flush=True)
"""


@dataclass(frozen=True)
class _Turn:
    """Rows of one turn, and what they took."""

    rows: int
    seconds: float
    processor: float
    updates: float = 0.0
    """Updates per second that the reader of the page got."""


def run(seconds: float = 2.0, pairs: int = 12, updates: float = 50.0, window: str = "100000 tuples") -> None:
    """Measure the cost of an open page; print a table and the ratios."""
    batches = _batches(2000, 200)
    with Join(left=left_schema, right=right_schema, on=BAND, window=window, time="ts") as join:
        feed = _feed(join, batches)
        _turn(feed, 3 * seconds)  # fills the windows and compiles
        turns: dict[bool, list[_Turn]] = {False: [], True: []}
        for pair in range(pairs):
            for shown in ((False, True), (True, False))[pair % 2]:
                turns[shown].append(
                    _turn_with_page(join, feed, seconds, updates) if shown else _turn(feed, seconds)
                )
            report.progress(
                f"pair {pair + 1} of {pairs}: {_lost(turns, 'seconds')[-1]:.2%} of throughput lost"
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
            _turn(feed, 0.2)  # the page has its first figures
            turn = _turn(feed, seconds)
            page.close()
            frames = int(reader.stdout.readline())
    join.on_results = None
    return _Turn(turn.rows, turn.seconds, turn.processor, frames / (seconds + 0.2))


def _lost(turns: dict[bool, list[_Turn]], measure: str) -> list[float]:
    """Return the lost share of rows per second, or per second of the processor, of each pair."""
    pairs = zip(turns[False], turns[True], strict=False)
    return [1 - (b.rows / getattr(b, measure)) / (a.rows / getattr(a, measure)) for a, b in pairs]


def _report(turns: dict[bool, list[_Turn]], window: str, cores: int, updates: float) -> None:
    wall, processor = (statistics.median(_lost(turns, name)) for name in ("seconds", "processor"))
    reached = statistics.median(turn.updates for turn in turns[True])
    rows = [
        (name, f"{_rate(turns[shown], 'seconds'):,.0f}", f"{_rate(turns[shown], 'processor'):,.0f}")
        for shown, name in ((False, "no page"), (True, f"page open, {reached:.0f} updates/s"))
    ]
    title = f"band join at full rate, {cores} cores, windows of {window}, {updates:g} updates/s asked for"
    report.table(title, ("", "rows/s", "rows per processor second"), rows)
    report.result(cost=round(wall, 4), processor_cost=round(processor, 4), updates=round(reached, 1))


def _rate(turns: list[_Turn], measure: str) -> float:
    return statistics.median([turn.rows / float(getattr(turn, measure)) for turn in turns])
