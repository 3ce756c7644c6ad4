"""Random joins of several streams, and tunings that share every batch and change join orders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import handshake.joins.multiway.mjoin as mjoin
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.order import Order, cost_order
from handshake.joins.multiway.spec import ManySpec, StreamSpec, many_spec
from handshake.joins.multiway.stats import Statistics
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan import Scope, bind, parse
from handshake.schema import UNITS, Schema
from handshake.testing.oracle import TIME, Result, join_many, rows
from handshake.windows import TimeWindow, TupleWindow, Window
from strategies import make_array

SECOND = 10**9
CONDITIONS = (
    *("s{i}.x = s{j}.x", "ABS(s{i}.x - s{j}.x) <= 1", "s{i}.y <= s{j}.y + 1.5", "s{i}.z = s{j}.z"),
    *("s{i}.x > 1", "s{i}.y IS NOT NULL", "s{i}.x + s{j}.x < s{k}.x * 3", "s{i}.y <> s{k}.y"),
    *("s{i}.x = s{j}.x OR s{j}.z < s{k}.z", "s{i}.x % 3 = 1", "s{i}.x + s{j}.x = s{k}.x", "TRUE"),
    *("s{i}.z LIKE CONCAT('%', s{j}.z)", "s{i}.x BETWEEN s{j}.x - 1 AND s{k}.x + 2"),
)


def make_streams(rng: Random, many: int, most: int) -> list[pa.Table]:
    tables = []
    for k in range(many):
        size = rng.randint(0, most)
        unit = rng.choice(("s", "ms"))
        disorder = rng.choice((0, 0, 3))
        ticks = sorted(range(size), key=lambda n: n + rng.randint(0, disorder))
        seconds = SECOND // UNITS[unit]
        times = [n // rng.choice((1, 2)) * seconds + rng.choice((0, 0, 1)) for n in ticks]
        if rng.random() < 0.2:
            times = [None if rng.random() < 0.2 else t for t in times]
        columns = {
            "x": make_array(rng, rng.choice((pa.int8(), pa.int32(), pa.int64())), size),
            "y": make_array(rng, rng.choice((pa.float32(), pa.float64())), size),
            "z": make_array(rng, pa.string(), size),
            "t": pa.array(times, pa.timestamp(unit)),
            f"row {k}": pa.array(range(size), pa.int64()),
        }
        tables.append(pa.table(columns))
    return tables


def make_window(rng: Random) -> Window | None:
    kind = rng.choice((None, "tuples", "time", "time"))
    if kind is None:
        return None
    if kind == "tuples":
        return TupleWindow(rng.choice((1, 2, 4, 100)))
    return TimeWindow(rng.choice((1, 2, 3, 6)) * SECOND + rng.choice((0, 0, 1, -1, SECOND // 2)))


def make_predicate(rng: Random, many: int) -> str:
    parts = []
    for _ in range(rng.randint(1, many)):
        i, j, k = (rng.sample(range(many), 3)) if many > 2 else (0, 1, 1)
        parts.append("(" + rng.choice(CONDITIONS).format(i=i, j=j, k=k) + ")")
    return " AND ".join(parts)


class Case:
    """Random streams, windows and predicate."""

    def __init__(self, seed: int, many: int, most: int) -> None:
        self.rng = rng = Random(f"many {seed}")
        self.many = many
        self.tables = make_streams(rng, many, most)
        self.windows = [make_window(rng) for _ in range(many)]
        self.text = make_predicate(rng, many)
        self.timed = any(w is not None and w.kind == "time" for w in self.windows)
        self.lateness = rng.choice((0, 1, 60))

    def spec(self, tuning: Tuning = TUNING) -> ManySpec:
        time = "t" if self.timed else None
        streams = [
            StreamSpec(f"s{k}", table.schema, window, time)
            for k, (table, window) in enumerate(zip(self.tables, self.windows, strict=True))
        ]
        return many_spec(streams, parse(self.text), tuning)

    def want(self, arrivals: list[tuple[int, int]] | None, *, by_time: bool) -> Result:
        schemas = tuple(Schema.from_arrow(t.schema, f"s{k}") for k, t in enumerate(self.tables))
        bound = bind(parse(self.text), Scope(schemas, {f"s{k}": k for k in range(self.many)}))
        lateness = self.lateness * SECOND if self.timed and arrivals is not None else None
        times = [TIME] * self.many if by_time else None
        return join_many(
            [rows(table, "t") for table in self.tables], bound, self.windows, lateness, arrivals, times
        )

    def members(self, batches: list[pa.RecordBatch]) -> list[tuple[int, ...]]:
        return sorted(
            members
            for batch in batches
            for members in zip(*(batch.column(f"row {k}").to_pylist() for k in range(self.many)), strict=True)
        )

    def push_all(self, join: MJoin) -> tuple[list[tuple[int, int]], list[Any]]:
        """Push all streams in random batches and close; return the order of arrival and the results."""
        at, arrivals, found = [0] * len(self.tables), [], []
        try:
            while any(at[k] < table.num_rows for k, table in enumerate(self.tables)):
                k = self.rng.randrange(len(self.tables))
                size = min(self.rng.choice((1, 2, 5)), self.tables[k].num_rows - at[k])
                for part in self.tables[k].slice(at[k], size).to_batches():
                    found += join.push(k, part)
                arrivals += [(k, at[k] + n) for n in range(size)]
                at[k] += size
            found += join.drain()
        finally:
            join.close()
        return arrivals, found


DEALT = Tuning(dealt_rows=0, dealt_window=1, dealt_methods=("scan", "hash", "band"))
"""Every batch is shared by all cores, with basic windows of one tuple."""
CHANGING = replace(DEALT, first_look=4, next_look=3, order_gain=0, order_worth=-1e9)
"""Join orders also change all the time."""


@contextmanager
def changing_orders(seed: int | None) -> Iterator[Tuning]:
    """Give the tuning of a join whose batches are shared; with a seed, its join orders change at random."""
    if seed is None:
        yield DEALT
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mjoin, "best_order", any_order(seed))
        yield CHANGING


def any_order(seed: int) -> Any:
    """Return a function that gives a random join order, another one at each call."""
    rng = Random(seed)

    def order(source: int, spec: ManySpec, statistics: Statistics) -> Order:
        targets = [k for k in range(len(spec.streams)) if k != source]
        return cost_order(source, rng.sample(targets, len(targets)), spec, statistics)

    return order
