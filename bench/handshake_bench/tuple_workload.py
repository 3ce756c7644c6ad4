"""The streams of PIM-Tree and SPO-Join: keys by distribution, and pairs counted by hand with NumPy.

PIM-Tree: Shahvarani and Jacobsen, Parallel Index-based Stream Join on a Multicore CPU, SIGMOD 2020.
SPO-Join: Efficient Stream Inequality Join, EDBT 2025.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from handshake_bench.pairs import Pairs

__all__ = ["KINDS", "MATCHES", "TupleStreams", "left_schema", "pairs_by_hand", "right_schema"]

Array = np.ndarray[Any, Any]
Random = np.random.Generator

MATCHES = 2.0
"""Average matches of a tuple (PIM-Tree's match rate)."""
_LOW, _SPAN = -(2**31), 2**32
_SAMPLE = 1 << 16
left_schema = pa.schema([("x", pa.int32()), ("y", pa.int32()), ("n", pa.int64())])
right_schema = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("m", pa.int64())])

KINDS: dict[str, Callable[[Random, Array], Array]] = {
    "uniform": lambda random, at: random.random(len(at)),
    "gaussian": lambda random, at: random.normal(0.5, 0.125, len(at)),
    "gamma": lambda random, at: random.gamma(3.0, 1 / 24, len(at)),
    "shifting": lambda random, at: random.normal(0.25 + at / 2, 0.125),
    "inequality": lambda random, at: random.random(len(at)),
}
"""By workload, keys as shares of the range of 32-bit integers; `at` is the place in the stream, 0 to 1.

The mean of `shifting` moves from a quarter of the range to three quarters. Keys wrap around.
"""


@dataclass(frozen=True)
class TupleStreams:
    """Both streams of a workload: `rows` tuples each, for windows of `window` tuples."""

    kind: str
    window: int
    rows: int

    @cached_property
    def tables(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """All tuples of both streams."""
        random = np.random.default_rng(20)
        return self._table(random, left_schema), self._table(random, right_schema)

    def left(self, start: int, rows: int) -> pa.RecordBatch:
        """Return tuples `start` to `start + rows` of the left stream."""
        return self.tables[0].slice(start, rows)

    def right(self, start: int, rows: int) -> pa.RecordBatch:
        """Return tuples `start` to `start + rows` of the right stream."""
        return self.tables[1].slice(start, rows)

    @cached_property
    def reach(self) -> int:
        """The distance of keys up to which tuples match, or can match, so that a tuple has two matches."""
        if self.kind == "inequality":
            return round(6 * MATCHES * _SPAN / self.window)
        keys, others = (table.column(0).to_numpy()[: self.window].astype(np.int64) for table in self.tables)
        keys, guess = keys[-_SAMPLE:], _SPAN // self.window
        others.sort()
        found = np.searchsorted(others, keys + guess, "right") - np.searchsorted(others, keys - guess)
        return max(1, round(guess * MATCHES / float(found.mean())))

    @property
    def on(self) -> str:
        """The predicate, with the reach as a constant."""
        if self.kind == "inequality":
            return "l.x < r.a AND l.y > r.b"
        return f"l.x BETWEEN r.a - {self.reach} AND r.a + {self.reach}"

    def _table(self, random: Random, schema: pa.Schema) -> pa.RecordBatch:
        shares = KINDS[self.kind](random, np.arange(self.rows) / self.rows)
        more = random.integers(0, self.reach, self.rows) if self.kind == "inequality" else 0
        keys = _LOW + ((shares % 1) * (_SPAN - 1 - np.max(more))).astype(np.int64)
        columns = (keys.astype(np.int32), (keys + more).astype(np.int32), np.arange(self.rows))
        return pa.record_batch([pa.array(column) for column in columns], schema=schema)


def pairs_by_hand(streams: TupleStreams, first: int, batch: int) -> Pairs:
    """Return the pairs that tuples from number `first` find as batches of both streams come in turn.

    Of each pair, the tuple that comes later probes the window of the other stream as it is then.
    """
    keys = [[table.column(n).to_numpy().astype(np.int64) for n in (0, 1)] for table in streams.tables]
    found = []
    for side in (0, 1):
        mine, other = _near(streams, keys, side, first)
        arrived = mine // batch * batch + (batch if side == 1 else 0)  # tuples of the other stream so far
        held = (other < arrived) & (other >= arrived - streams.window)
        found.append((mine[held], other[held]) if side == 0 else (other[held], mine[held]))
    left, right = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pairs.of(left, right)


def _near(streams: TupleStreams, keys: list[list[Array]], side: int, first: int) -> tuple[Array, Array]:
    """Return the matching positions of tuples from `first` of one stream and of all tuples of the other."""
    (mine, more), (others, others_more) = keys[side], keys[1 - side]
    order = np.argsort(others, kind="stable")
    ordered = others[order]
    low = np.searchsorted(ordered, mine[first:] - streams.reach)
    high = np.searchsorted(ordered, mine[first:] + streams.reach, "right")
    counts = high - low
    here = np.repeat(np.arange(first, len(mine)), counts)
    there = order[np.arange(len(here)) - np.repeat(np.cumsum(counts) - counts - low, counts)]
    if streams.kind == "inequality":
        sign = 1 if side == 0 else -1
        matched = (sign * mine[here] < sign * others[there]) & (sign * more[here] > sign * others_more[there])
        return here[matched], there[matched]
    return here, there
