"""Joins of three and more streams give what the oracle gives."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import handshake.cores.basic_window as basic_window
from handshake.cores.mjoin import MJoin
from handshake.errors import ExpressionError, SchemaError, WindowError
from handshake.plan import Scope, bind, parse
from handshake.schema import UNITS, Schema
from handshake.window import Window, parse_window
from oracle import TIME, join_many, rows
from strategies import make_array

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
SECOND = 10**9
CONDITIONS = (
    *("s{i}.x = s{j}.x", "ABS(s{i}.x - s{j}.x) <= 1", "s{i}.y <= s{j}.y + 1.5", "s{i}.z = s{j}.z"),
    *("s{i}.x > 1", "s{i}.y IS NOT NULL", "s{i}.x + s{j}.x < s{k}.x * 3", "s{i}.y <> s{k}.y"),
    *("s{i}.x = s{j}.x OR s{j}.z < s{k}.z", "s{i}.x % 3 = 1", "s{i}.x + s{j}.x = s{k}.x", "TRUE"),
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
        return Window("tuples", rng.choice((1, 2, 4, 100)))
    return Window("time", rng.choice((1, 2, 3, 6)) * SECOND + rng.choice((0, 0, 1, -1, SECOND // 2)))


def make_predicate(rng: Random, many: int) -> str:
    parts = []
    for _ in range(rng.randint(1, many)):
        i, j, k = (rng.sample(range(many), 3)) if many > 2 else (0, 1, 1)
        parts.append("(" + rng.choice(CONDITIONS).format(i=i, j=j, k=k) + ")")
    return " AND ".join(parts)


def check(seed: int, many: int, most: int) -> int:
    """Push random streams in random batches; says how many combinations that made."""
    rng = Random(f"many {seed}")
    tables = make_streams(rng, many, most)
    windows = [make_window(rng) for _ in range(many)]
    text = make_predicate(rng, many)
    timed = any(w is not None and w.kind == "time" for w in windows)
    lateness = rng.choice((0, 1, 60))
    schemas = [table.schema for table in tables]
    join = MJoin(schemas, parse(text), windows, ["t" if timed else None] * many)
    join.lateness = lateness * SECOND // UNITS[join.unit]
    at, arrivals, found = [0] * many, [], []
    while any(at[k] < table.num_rows for k, table in enumerate(tables)):
        k = rng.randrange(many)
        size = min(rng.choice((1, 2, 5)), tables[k].num_rows - at[k])
        for part in tables[k].slice(at[k], size).to_batches():
            found += join.push(k, part)
        arrivals += [(k, at[k] + n) for n in range(size)]
        at[k] += size
    found += join.drain()
    scope = Scope(
        tuple(Schema.from_arrow(s, f"s{k}") for k, s in enumerate(schemas)), {f"s{k}": k for k in range(many)}
    )
    streams = [rows(table, "t") for table in tables]
    bound = bind(parse(text), scope)
    want = join_many(
        streams,
        bound,
        windows,
        lateness * SECOND if timed else None,
        arrivals,
        [TIME] * many if timed else None,
    )
    got = sorted(
        members
        for batch in found
        for members in zip(*(batch.column(f"row {k}").to_pylist() for k in range(many)), strict=True)
    )
    assert got == sorted(want.pairs), (text, windows, lateness)
    assert sum(c.late for c in join.counts) == want.late
    assert sum(c.no_time for c in join.counts) == want.no_time
    assert join.results == len(got)
    return len(got)


@pytest.mark.parametrize("thresholds", ["as shipped", "all indexed"])
@settings(EXAMPLES, max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(((3, 12), (3, 12), (4, 6), (2, 20))))
def test_any_number_of_streams_agrees_with_the_oracle(thresholds, seed, size):
    with pytest.MonkeyPatch.context() as patch:
        if thresholds == "all indexed":
            patch.setattr(basic_window, "INDEXED_FROM", 1)
        check(seed, *size)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(EXAMPLES, max_examples=1_000, derandomize=False)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(((3, 14), (4, 7), (5, 4), (2, 40))))
def test_soak(seed, size):
    check(seed, *size)


SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.int64())])


def test_the_order_prefers_equality_then_bands_then_any_connection():
    on = parse("s0.x = s2.x AND ABS(s0.y - s1.y) <= 3 AND s2.y <> s3.y AND s1.x = s3.x")
    join = MJoin([SCHEMA] * 4, on, [None] * 4, [None] * 4)
    assert join.orders == [(2, 1, 3), (3, 0, 2), (0, 1, 3), (1, 0, 2)]
    assert join.explain().splitlines()[0].split(maxsplit=1)[1] == "s0 -> s2 -> s1 -> s3 (hash, band, hash)"


def test_windows_expire_in_every_step():
    join = MJoin(
        [SCHEMA] * 3, parse("s0.x = s1.x AND s1.x = s2.x"), [parse_window("10 tuples")] * 3, [None] * 3
    )
    batch = pa.record_batch([pa.array(range(1100)), pa.array(range(1100))], schema=SCHEMA)
    count = 0
    for _ in range(4):
        for k in range(3):
            count += sum(found.num_rows for found in join.push(k, batch))
    assert join.expired > 0
    assert all(step.core.segments[1].rows <= 2200 for step in join._steps.values())
    assert count == join.results


def test_columns_of_the_same_name_say_their_stream():
    other = pa.schema([("x", pa.int64()), ("w", pa.int64())])
    join = MJoin([SCHEMA, other], parse("a.x = b.x"), [None] * 2, [None] * 2, names=("a", "b"))
    assert join.output.names == ["a.x", "y", "b.x", "w"]


def test_mistakes_are_named():
    with pytest.raises(ExpressionError, match="no column 'q' in the s1 input"):
        MJoin([SCHEMA] * 3, parse("s0.x = s1.q"), [None] * 3, [None] * 3)
    with pytest.raises(WindowError, match="time column"):
        MJoin([SCHEMA] * 3, parse("s0.x = s1.x"), [parse_window("3 s")] * 3, [None] * 3)
    with pytest.raises(SchemaError, match="two or more streams"):
        MJoin([SCHEMA], parse("s0.x = 1"), [None], [None])
