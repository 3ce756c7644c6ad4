"""`handshake bench live`: the share of a join's throughput that an open live page costs.

One join gets rows as fast as it takes them, in many short turns: with its page open, or not.
Each turn pushes the same rows, which fill the windows once or more, so that all turns have the same work. The
turns follow each other without a pause, in the order off, on, on, off, on, off, off, on. So neither other
load nor the phase of the windows favours one of them. The reader of the page is a process of its own, as a
browser is. It counts the updates. The page is served all the time; while it is not open, it reads the figures
once a second.

Two ratios are taken per pair of turns: rows per second, and rows per second of processor time of the join's
process. The first is what users see, and needs a machine with nothing else to do. The second depends less on
other load. Each comes with an interval that holds the median in 95 % of runs. If the interval has 0, the cost
is below the noise. The processor time of one update follows from the second ratio. It does not depend on the
share of the machine that the join gets.
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from handshake.joins.join import Join
from handshake.page.live import Page
from handshake_bench import report
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["run"]

_Batches = list[tuple[pa.RecordBatch, pa.RecordBatch]]

_READER = """
import sys, urllib.request
for rate in sys.stdin:
    frames = 0
    with urllib.request.urlopen(sys.argv[1] + "events?rate=" + rate.strip(), timeout=30) as answer:
        answer.readline()
        print("open", flush=True)
        with open(sys.argv[2]) as over:
            while not over.seek(0) and not over.read(1):
                frames += answer.readline().startswith(b"data: ")
    print(frames, flush=True)
"""
_ORDER = (False, True, True, False, True, False, False, True)
_BATCH, _BATCHES = 2000, 50
"""Rows per batch, and batches per stream in a pass: a pass fills windows of 100,000 tuples once."""


@dataclass(frozen=True)
class _Turn:
    """Rows of one turn, and what they took."""

    rows: int
    seconds: float
    processor: float
    updates: float = 0.0
    """Updates per second that the reader of the page got."""


def run(passes: int = 1, pairs: int = 40, updates: float = 50.0, window: str = "100000 tuples") -> None:
    """Measure the cost of an open page; print a table and the ratios."""
    batches = _batches(_BATCH, _BATCHES)
    with Join(left=left_schema, right=right_schema, on=BAND, window=window, time="ts") as join:
        _turn(join, batches, 8)  # fills the windows and compiles
        turns: dict[bool, list[_Turn]] = {False: [], True: []}
        with Page("127.0.0.1:0") as page, _Reader(page.url) as reader:
            page.add(join, "measured")
            for shown in itertools.islice(itertools.cycle(_ORDER), 2 * pairs):
                if shown:
                    reader.open(updates)
                turn = _turn(join, batches, passes)
                turns[shown].append(replace(turn, updates=reader.close() / turn.seconds) if shown else turn)
                if len(turns[True]) == len(turns[False]):
                    lost = [_lost(turns, name)[-1] for name in ("seconds", "processor")]
                    done = f"pair {len(turns[True])} of {pairs}"
                    report.progress(f"{done}: lost {lost[0]:.2%}, of processor time {lost[1]:.2%}")
        cores = len(join.metrics().cores)
    _report(turns, window, cores, updates)


def _batches(rows: int, number: int) -> _Batches:
    streams = Streams(1e6)
    return [(streams.left(k * rows, rows), streams.right(k * rows, rows)) for k in range(number)]


def _turn(join: Join, batches: _Batches, passes: int) -> _Turn:
    rows, began, worked = 0, time.perf_counter(), time.process_time()
    for left, right in itertools.chain.from_iterable(itertools.repeat(batches, passes)):
        join.push_left(left)
        join.push_right(right)
        rows += left.num_rows + right.num_rows
    return _Turn(rows, time.perf_counter() - began, time.process_time() - worked)


class _Reader:
    """A process that reads the events of a page from `open` to `close`."""

    def __init__(self, url: str) -> None:
        self._over = tempfile.NamedTemporaryFile("w")  # noqa: SIM115 - closed in __exit__
        command = [sys.executable, "-c", _READER, url, self._over.name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def open(self, rate: float) -> None:
        """Open the page; return when the first event has come."""
        self._over.truncate(0)
        assert self._process.stdin is not None
        print(f"{rate:g}", file=self._process.stdin, flush=True)
        self._answer()

    def close(self) -> int:
        """Close the page; return the number of updates that have come."""
        self._over.write("x")
        self._over.flush()
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._over.close()


def _lost(turns: dict[bool, list[_Turn]], measure: str) -> list[float]:
    """Return the lost share of rows per second, or per second of the processor, of each pair."""
    pairs = zip(turns[False], turns[True], strict=False)
    return [1 - (b.rows / getattr(b, measure)) / (a.rows / getattr(a, measure)) for a, b in pairs]


def _report(turns: dict[bool, list[_Turn]], window: str, cores: int, updates: float) -> None:
    lost = {name: _lost(turns, name) for name in ("seconds", "processor")}
    reached = statistics.median(turn.updates for turn in turns[True])
    rows = [
        (name, f"{_rate(turns[shown], 'seconds'):,.0f}", f"{_rate(turns[shown], 'processor'):,.0f}")
        for shown, name in ((False, "page closed"), (True, f"page open, {reached:.0f} updates/s"))
    ]
    rows.append(("lost", _interval_text(lost["seconds"]), _interval_text(lost["processor"])))
    title = f"band join at full rate, {cores} cores, windows of {window}, {updates:g} updates/s asked for"
    report.table(title, ("", "rows/s", "rows per processor second"), rows)
    each = _update_times(turns)
    low, high = _interval(each)
    busy = statistics.median(turn.processor / turn.seconds for turn in turns[False])
    typical = statistics.median(each)
    print(
        f"An update takes {typical * 1e3:.2f} ms ({low * 1e3:.2f} to {high * 1e3:.2f}) of processor time, so "
        f"{updates:g} per second take {updates * typical:.1%} of a processor. The join had {busy:.2f} of one."
    )
    report.result(
        cost=round(statistics.median(lost["seconds"]), 4), noise=round(_spread(lost["seconds"]), 4),
        processor_cost=round(statistics.median(lost["processor"]), 4),
        processor_noise=round(_spread(lost["processor"]), 4),
        updates=round(reached, 1), pairs=len(turns[True]), update_ms=round(typical * 1e3, 3),
        busy=round(busy, 2),
    )  # fmt: skip


def _update_times(turns: dict[bool, list[_Turn]]) -> list[float]:
    """Return the seconds of processor time that an update takes, per pair of turns.

    Other load makes rows per second fall, but not updates per second, so the share that is lost grows. The
    time of an update stays the same.
    """
    pairs = zip(turns[False], turns[True], strict=True)
    return [
        (on.processor - off.processor * on.rows / off.rows) / max(on.updates * on.seconds, 1)
        for off, on in pairs
    ]


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
