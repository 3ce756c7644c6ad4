"""Codes of one byte: no pair is missed, whatever the numbers; where they do not help, scans do without."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.joins.arrangements.low_latency import shared_scan
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.join import prepare
from handshake.joins.segment import ScanRows
from handshake.joins.tuning import Tuning
from handshake.kernels.codes import Codes
from pairs import EXAMPLES, rows_of

TIMED = pa.schema([("ts", pa.int64()), ("x", pa.int32()), ("y", pa.float32())])
BAND = "l.x BETWEEN r.x - 2 AND r.x + 2 AND l.y BETWEEN r.y - 2.5 AND r.y + 2.5"
NUMBERS = {
    pa.int8(): (-128, 127), pa.int32(): (-(2**31), 2**31 - 1), pa.uint32(): (0, 2**32 - 1),
    pa.int64(): (-(2**63), 2**63 - 1, 2**63 - 500),
    pa.float32(): (-math.inf, math.inf, math.nan, 3e38, -3e38, 1e-45, -0.0, 2.0**24 + 64),
    pa.float64(): (-math.inf, math.inf, math.nan, 1.7e308, -1.7e308, 5e-324, 0.1, 2.0**53 + 64),
}  # fmt: skip
"""Types, and the ends of their ranges; at some numbers floats, and codes with them, skip every other."""


Around = tuple[float, int]


def around(rng: Random, kind: pa.DataType) -> Around:
    """Draw the middle of some numbers, often an end, and their spread, often one code per number."""
    return rng.choice([0, *(end for end in NUMBERS[kind] if math.isfinite(end))]), rng.choice((1, 30, 100))


def numbers(rng: Random, kind: pa.DataType, rows: int, near: Around) -> list[float | int | None]:
    """Draw numbers, some at the ends and some missing; always some of both, so all need the same kernel."""
    ends, (middle, spread) = NUMBERS[kind], near
    found = [
        rng.choice((*ends, None)) if rng.random() < 0.03 else middle + rng.randint(-spread, spread)
        for _ in range(rows)
    ]
    return [None, ends[1], *found[2:]] if rows > 2 else found


def batch_of(rng: Random, schema: pa.Schema, rows: int, near: Sequence[Around]) -> pa.RecordBatch:
    times = pa.array([rng.randint(50, 100) for _ in range(rows)], pa.int64())
    columns = [
        pa.array([fitting(v, kind) for v in numbers(rng, kind, rows, where)], kind)
        for kind, where in zip(schema.types[1:], near, strict=True)
    ]
    return pa.RecordBatch.from_arrays([times, *columns], schema=schema)


def fitting(value: float | int | None, kind: pa.DataType) -> float | int | None:
    if value is None or pa.types.is_floating(kind):
        return value if value is None else float(value)
    return min(max(value, NUMBERS[kind][0]), NUMBERS[kind][1])


def is_near(a: float | int | None, b: float | int | None, reach: float) -> bool:
    """Evaluate `a BETWEEN b - reach AND b + reach`."""
    return a is not None and b is not None and b - reach <= a <= b + reach


@pytest.mark.parametrize(
    ("side", "kinds"),
    [(0, (pa.int64(), pa.float64())), (1, (pa.float32(), pa.uint32())), (1, (pa.int8(), pa.int64()))],
)
@settings(EXAMPLES, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_scans_by_codes_miss_no_pair(side, kinds, seed):
    rng = Random(seed)
    schema = pa.schema([("ts", pa.int64()), ("x", kinds[0]), ("y", kinds[1])])
    text = "l.x BETWEEN r.x - 2 AND r.x + 2 AND l.y BETWEEN r.y - 3 AND r.y + 3"
    plan = prepare(schema, schema, text, "60 s", time="ts", method="scan", tuning=Tuning(coded_from=1))
    assert len(plan.spec.sides[0].coded) == len(plan.spec.sides[1].coded) == 2
    near = [around(rng, kind) for kind in kinds]
    piece = BasicWindow(plan.spec.sides[side], batch_of(rng, schema, 9, near))
    windows = [
        BasicWindow(plan.spec.sides[1 - side], batch_of(rng, schema, rows, near))
        for rows in rng.choices((3, 64, 150, 400), k=2)
    ]
    core = JoinCore(plan.spec)
    scan = shared_scan.SharedScan(plan.spec, [core])
    made = []
    for scan.coding.without in (0, 2):
        visit = shared_scan.Visit(piece, [windows], core.outer(piece), 0.0)
        made.append(rows_of([batch for batch, _ in scan.search([visit])]))
        core.coding.without = scan.coding.without
        made.append(rows_of(core.probe(piece, windows)))
    assert all(window.has_codes for window in windows)
    assert all(found == made[0] for found in made)
    if not any(pa.types.is_floating(kind) for kind in kinds):  # Python adds these up as the predicate does
        assert made[0] == by_loops(side, piece, windows)


def test_limits_are_wider_than_what_floats_round_off():
    """The limits hold for floats that skip numbers, and if each number has a code of its own."""
    schema = pa.schema([("ts", pa.int64()), ("x", pa.int64()), ("y", pa.float32())])
    text = "l.x BETWEEN r.x - 2 AND r.x + 2 AND l.y BETWEEN r.y - 3 AND r.y + 3"
    spec = prepare(schema, schema, text, "60 s", time="ts", method="scan", tuning=Tuning(coded_from=1)).spec
    whole, odd = 2**63 - 640, 2.0**24
    columns = {
        "ts": [0] * 512,
        "x": [*range(whole, whole + 256), *[whole] * 256],
        "y": [*[0.0] * 256, *(odd + 2 * k for k in range(256))],
    }
    held = pa.RecordBatch.from_pydict(columns, schema)
    windows = [BasicWindow(spec.sides[1], held.slice(start, 256)) for start in (0, 256)]
    core, made = JoinCore(spec), []
    scan = shared_scan.SharedScan(spec, [core])
    for k in range(250):
        new = {"ts": [0, 0], "x": [whole + k, whole], "y": [0.0, odd + 2 * k]}
        piece = BasicWindow(spec.sides[0], pa.RecordBatch.from_pydict(new, schema))
        for scan.coding.without in (0, 2):
            visit = shared_scan.Visit(piece, [windows], core.outer(piece), 0.0)
            made.append(rows_of([batch for batch, _ in scan.search([visit])]))
        assert made[-2] == made[-1], k
        assert sum(row[2] == 0.0 for row in made[-1]) == 5 - max(2 - k, 0)


def by_loops(side: int, piece: BasicWindow, windows: list[BasicWindow]) -> list[tuple]:
    found = []
    for new in piece.batch.to_pylist():
        for old in (row for window in windows for row in window.batch.to_pylist()):
            left, right = (new, old) if side == 0 else (old, new)
            if is_near(left["x"], right["x"], 2) and is_near(left["y"], right["y"], 3):
                found.append((*left.values(), *right.values()))
    return sorted(found, key=repr)


@settings(EXAMPLES, max_examples=60)
@given(values=st.lists(st.floats() | st.integers(-(2**63), 2**63 - 1).map(float), min_size=1, max_size=30))
def test_codes_grow_with_values(values):
    (codes,), _ = Codes.of([np.array(values)])
    pairs = sorted((v, c) for v, c in zip(values, codes.tolist(), strict=True) if not math.isnan(v))
    assert [c for _, c in pairs] == sorted(c for _, c in pairs)


def engine_with(values: np.ndarray, text: str):
    """Start one core, whose right window holds these numbers in both columns."""
    plan = prepare(TIMED, TIMED, text, "60 s", time="ts", method="scan", cores=1)
    engine = plan.start()
    columns = [pa.array(np.zeros(len(values), np.int64)), pa.array(values.astype(np.int32))]
    columns.append(pa.array(np.roll(values, 7).astype(np.float32)))
    engine.fill(1, pa.RecordBatch.from_arrays(columns, schema=TIMED))
    return engine


def watch_blocks(engine, monkeypatch) -> list[int]:
    """Return a list that gets the number of blocks which each job evaluates the predicate on."""
    seen, before = list[int](), shared_scan._Job.passed_blocks

    def watch(job) -> int:
        seen.append(before(job))
        return seen[-1]

    monkeypatch.setattr(shared_scan._Job, "passed_blocks", watch)
    return seen


def push_row(engine, x: int, y: float) -> int:
    row = pa.RecordBatch.from_pylist([{"ts": 1, "x": x, "y": y}], TIMED)
    return sum(batch.num_rows for batch in engine.push(0, row))


def test_the_predicate_is_asked_about_few_blocks(monkeypatch):
    values = np.random.default_rng(5).integers(0, 10_000, 100_000)
    engine = engine_with(values, BAND)
    seen = watch_blocks(engine, monkeypatch)
    try:
        for x, y in ((5000, 5000.0), (0, 9999.0), (77, 3.0)):
            near = (abs(values - x) <= 2) & (abs(np.roll(values, 7) - y) <= 2.5)
            assert push_row(engine, x, y) == np.count_nonzero(near)
        assert engine.metrics().comparisons == 3 * 100_000  # of codes, at least
    finally:
        engine.close()
    assert len(seen) == 3
    assert 0 < sum(seen) < 3 * 100_000 / 64 / 50


def test_codes_that_let_most_blocks_through_are_left_aside(monkeypatch):
    """A few numbers far away: all others have one code. The next 64 jobs do without, then they are tried."""
    values = np.random.default_rng(6).integers(0, 100, 20_000)
    values[::5000] = 2**31 - 1
    engine = engine_with(values, BAND)
    seen = watch_blocks(engine, monkeypatch)
    near = (abs(values - 50) <= 2) & (abs(np.roll(values, 7) - 50) <= 2.5)
    try:
        assert [push_row(engine, 50, 50.0) for _ in range(67)] == [np.count_nonzero(near)] * 67
    finally:
        engine.close()
    blocks = 20_000 // 64
    assert seen == [blocks, *[0] * 64, blocks, 0]


def timed_batch(values: np.ndarray) -> pa.RecordBatch:
    columns = (np.ones(len(values)), values, np.roll(values, 7))
    arrays = [pa.array(c.astype(k.to_pandas_dtype())) for c, k in zip(columns, TIMED.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=TIMED)


@pytest.mark.parametrize("algorithm", ["three_step", "cell", "handshake"])
def test_batches_of_many_rows_are_scanned_by_codes(algorithm):
    rng = np.random.default_rng(7)
    held, new = rng.integers(0, 2_000, 30_000), rng.integers(0, 2_000, 300)
    plan = prepare(TIMED, TIMED, BAND, "60 s", time="ts", method="scan", algorithm=algorithm, cores=1)
    assert "codes       of l.x, l.y, r.x, r.y, a byte each, which scans compare first" in plan.explain()
    engine = plan.start()
    try:
        list(engine.push(1, timed_batch(held)))
        found = [*engine.push(0, timed_batch(new)), *engine.drain(last=True)]
    finally:
        engine.close()
    near = abs(held - new[:, None]) <= 2
    other = abs(np.roll(held, 7) - np.roll(new, 7)[:, None]) <= 2.5
    assert sum(batch.num_rows for batch in found) == np.count_nonzero(near & other) > 0


def test_a_core_gives_up_codes_of_clumped_values_for_a_while():
    rng = np.random.default_rng(8)
    clumped = rng.integers(0, 100, 20_000)
    clumped[::5000] = 2**31 - 1
    spec = prepare(TIMED, TIMED, BAND, "60 s", time="ts", method="scan").spec
    core, window = JoinCore(spec), BasicWindow(spec.sides[1], timed_batch(clumped))
    piece, counts = BasicWindow(spec.sides[0], timed_batch(rng.integers(0, 100, 70))), []
    for _ in range(3):
        counts.append((sum(b.num_rows for b in core.probe(piece, [window])), core.coding.without))
    assert [without for _, without in counts] == [64, 63, 62]
    assert len({found for found, _ in counts}) == 1
    assert counts[0][0] > 0


def test_only_two_bands_on_plain_numbers_have_codes():
    def count_coded(text: str, **options: str) -> list[int]:
        spec = prepare(TIMED, TIMED, text, "60 s", time="ts", **options).spec
        return [len(side.coded) for side in spec.sides]

    assert count_coded(BAND, method="scan") == [2, 2]
    assert count_coded(BAND) == [0, 0]  # by band index
    assert count_coded("l.x BETWEEN r.x - 2 AND r.x + 2 AND l.y <= r.y", method="scan") == [0, 0]
    assert count_coded(BAND.replace("r.x", "r.x * r.x"), method="scan") == [0, 0]


@settings(EXAMPLES, max_examples=10)
@given(data=st.data())
def test_rows_of_windows_are_what_the_windows_say(data):
    """Appended, merged, dropped from either end: the table is always that of the windows at hand."""
    spec = prepare(TIMED, TIMED, BAND, "60 s", time="ts", method="scan").spec.sides[0]
    rng, rows, windows = Random(data.draw(st.integers(0, 99))), ScanRows(), list[BasicWindow]()
    made = list[weakref.ref[BasicWindow]]()

    def new() -> BasicWindow:
        window = BasicWindow(spec, batch_of(rng, TIMED, rng.randint(1, 3), ((0, 9), (0, 9))))
        made.append(weakref.ref(window))
        return window

    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(windows)))
        match data.draw(st.sampled_from(("append", "merge", "expire", "forget", "many"))):
            case "append":
                windows = [*windows, new()]
            case "merge":
                windows = [*windows[:at], new(), *windows[at + 2 :]]
            case "expire":
                windows = windows[at:]
            case "many":
                windows = [*windows, *(new() for _ in range(40))]
            case "forget":
                rows.forget(windows[:at])
                rows.forget(windows)
        expected = [window.scan_row.tolist() for window in windows]
        assert (rows.of(windows).tolist() if windows else rows.forget([]) or []) == expected
    assert sum(window() is not None for window in made) == len(windows)
