"""Joins on a GPU give what the oracle gives: on a stand-in that runs the same frames, and on a real one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from gpu_joins import BANDS, CODED, SMALL, TUNINGS, band_case, on_gpu, plan_for
from handshake.errors import UnsupportedError
from handshake.joins.join import Join, Replay, prepare
from handshake.joins.tuning import TUNING, Tuning
from handshake.kernels.compile import Program
from handshake.kernels.gpu import driver
from handshake.kernels.gpu.driver import DeviceError
from handshake.kernels.gpu.lay_out import count_module, lay_out_module, offsets_module, sums_module
from handshake.kernels.gpu.look_up import look_up_module
from handshake.kernels.gpu.scan import Scan, scan_module
from handshake.kernels.gpu.target import PtxTarget
from handshake.plan.expr import Literal
from handshake.windows import windows_of
from pairs import EXAMPLES, pairs_of, with_row_numbers
from pushes import check_pushes
from stand_in_gpu import StandIn
from strategies import Case, cases, expect, known_cases, make_case

XY = pa.schema([("t", pa.timestamp("us")), ("x", pa.int32()), ("y", pa.float32())])


@pytest.fixture
def stand_in(monkeypatch):
    device = StandIn()
    monkeypatch.setattr(driver, "open_device", lambda: device)
    return device


def has_gpu() -> bool:
    try:
        driver.open_device()
    except DeviceError:
        return False
    return True


def rows(seed: int, count: int, spread: float = 100.0) -> pa.Table:
    rng = np.random.default_rng(seed)
    times = pa.array(np.arange(count) * 1000, pa.timestamp("us"))
    x, y = rng.integers(0, int(spread), count, np.int32), (spread * rng.random(count)).astype(np.float32)
    return pa.table([times, x, y], schema=XY)


def both_ways(left: pa.Table, right: pa.Table, on: str, **options) -> tuple[list, list]:
    """Return the results of a join on the processor and on the GPU."""
    return tuple(
        sorted(map(repr, hs.join(left, right, on, time="t", device=device, **options).to_pylist()))
        for device in ("cpu", "gpu")
    )


@settings(EXAMPLES, max_examples=7)
@given(case=cases())
def test_replayed_tables_agree_with_the_oracle(stand_in, case):
    for tuning in TUNINGS:
        on_gpu(case, tuning)


@settings(EXAMPLES, max_examples=6)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_pushed_batches_agree_with_the_oracle(stand_in, case, seed):
    if plan_for(case, with_row_numbers(case), SMALL) is not None:
        check_pushes(case, seed, tuning=SMALL, device="gpu")


@settings(EXAMPLES, max_examples=6)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 120))
def test_bands_agree_with_the_oracle_by_codes_and_by_index(stand_in, seed, rows):
    for tuning in (CODED, SMALL):
        assert on_gpu(band_case(seed, rows), tuning)


@pytest.mark.parametrize("how", ["left", "full", "left_semi", "left_anti"])
def test_every_kind_of_join_agrees_with_the_processor(stand_in, how):
    cpu, gpu = both_ways(rows(1, 300), rows(2, 300), BANDS, window="50 ms", how=how)
    assert cpu == gpu
    assert cpu


FEW_PAIRS = {"device_first_pairs": 4, "device_most_pairs": 64, "device_copied_pairs": 16}


@pytest.mark.parametrize("tuning", [Tuning(**FEW_PAIRS), replace(SMALL, **FEW_PAIRS)])
def test_more_pairs_than_the_output_holds_are_all_found(stand_in, tuning):
    """The output grows; beyond its limit the search is cut by probes, then by rows or indexes."""
    tables = rows(1, 150, 9.0), rows(2, 200, 9.0)
    case = Case(*tables, BANDS, windows_of("1 s"), "t", "t")
    assert on_gpu(case, tuning)
    assert stand_in.launches > 150 * 200 / 64


def test_large_windows_are_searched_by_index(stand_in):
    """Indexes are made anew when NULLs come, and left out where they would not fit."""
    left, right = (rows(seed, 900, 300.0) for seed in (7, 8))
    nulls = pa.table([right["t"], pc.if_else(pc.equal(right["x"], 5), None, right["x"]), right["y"]], XY)
    case = Case(left, pa.concat_tables([right.slice(0, 450), nulls.slice(450)]), BANDS,
                windows_of("1 hour"), "t", "t")  # fmt: skip
    tables = with_row_numbers(case)
    tuning = replace(SMALL, device_indexed_from=100, slice_rows=300)
    for memory, indexed in ((1 << 34, True), (11_000_000, False)):
        stand_in.total = memory
        replay = Replay(plan_for(case, tables, tuning), *tables)
        assert pairs_of(list(replay)) == sorted(expect(case).pairs)
        assert (replay.metrics().comparisons < 900 * 900 / 2) == indexed


def test_windows_that_slide_keep_their_place_in_memory(stand_in):
    """Rows expire, the rest moves to the front; texts and callables are decided on the host."""
    left, right = (rows(seed, 40_000, 4000.0) for seed in (3, 4))
    for on in (BANDS, f"{BANDS} AND CAST(l.x AS STRING) LIKE '%1%'"):
        cpu, gpu = both_ways(left, right, on, window="2 s")
        assert cpu == gpu
        assert len(cpu) > 100
    with Join(left=XY, right=XY, on=BANDS, window="100 ms", time="t", device="gpu") as join:
        for start in range(0, 40_000, 500):
            join.push_left(left.slice(start, 500))
            join.push_right(right.slice(start, 500))
        assert join.metrics().expired >= 78_000
        slots = join._joined.core.windows[0].slots
        assert slots == 1 << 14
    assert not stand_in.held


def test_codes_rule_out_most_pairs_and_are_given_up_where_values_clump(stand_in):
    left, right = rows(5, 30_000, 1e5), rows(6, 30_000, 1e5)
    with Join(left=XY, right=XY, on=BANDS, time="t", window="1 hour", device="gpu") as join:
        join.push_left(left)
        assert sum(batch.num_rows for batch in join.push_right(right)) == len(
            both_ways(left, right, BANDS, window="1 hour")[0]
        )
        core = join._joined.core
        assert any(scan.coded for scan, _ in core._loaded.values())
        assert core.coding.without == 0
        last = right.column("t")[-1].as_py()
        near = pa.table({"t": [last] * 6000, "x": [7] * 6000, "y": [7.0] * 6000}, XY)
        for _ in range(3):
            join.push_left(near)
        join.push_right(near.slice(0, 8))
        assert core.coding.without > 0


PREDICATES = [
    BANDS, "l.x * r.x % 7 = 3", "l.y / r.y > 2 OR l.x IS NULL", "SQRT(ABS(l.y - r.y)) < 0.1 AND l.y < r.y",
    "FLOOR(l.y) <= r.y",
    "CASE WHEN l.x > r.x THEN l.x - r.x ELSE r.x - l.x END <= 10", "COALESCE(l.x, r.x) BETWEEN 3 AND 5",
    "CAST(l.x AS DECIMAL(38, 10)) * r.x > 1", "LEAST(l.y, r.y) > GREATEST(l.x, r.x)",
    "ROUND(l.y + r.y) = l.x", "l.x & r.x = 1 AND NOT (l.y >= r.y)",
]  # fmt: skip


@pytest.mark.parametrize("on", PREDICATES)
def test_ptx_rounds_every_operation_and_calls_nothing(on):
    spec = prepare(XY, XY, on, "1 s", time="t", device="gpu").spec
    assert_ptx(spec)


def test_indexes_become_ptx_that_rounds_like_the_host():
    target = PtxTarget((7, 0))
    spec = prepare(XY, XY, BANDS, "1 s", time="t", device="gpu").spec
    columns = (spec.sides[0].columns, spec.sides[1].columns)
    bands = [attribute.inner for attribute in spec.sides[0].coded]
    modules = [look_up_module(Scan(Program(spec.boundary, columns, False, True, None), 0), target)]
    modules += [count_module(target, bands), sums_module(target), offsets_module(target)]
    modules.append(lay_out_module(target, (1, 2, 4, 8, 16)))
    for module in modules:
        text = target.emit(module)
        assert f".entry {module.name}" in text
        assert not any(word in text for word in ("fma.", "call", ".ftz", ".approx", "mul.f64", "sub.f64"))


def assert_ptx(spec) -> None:
    columns = (spec.sides[0].columns, spec.sides[1].columns)
    guard = None if isinstance(spec.interior, Literal) else spec.interior
    for nullable in (False, True):
        scan = Scan(Program(spec.boundary, columns, nullable, nullable, guard), 0, all_small=not nullable)
        text = PtxTarget((9, 0)).emit(scan_module(scan, PtxTarget((9, 0))))
        assert ".entry scan" in text
        for unwanted in ("fma.", "call", ".ftz", ".approx", "add.f32", "mul.f32", "add.f64", "mul.f64"):
            assert unwanted not in text, unwanted


@settings(EXAMPLES, max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_predicates_become_ptx(seed):
    case = make_case(seed, 2, 2)
    plan = plan_for(case, with_row_numbers(case), TUNING)
    if plan is not None:
        assert_ptx(plan.spec)


@pytest.mark.parametrize("text", ["EXP(l.y + r.y)", "LN(l.y + r.y)", "SIN(l.y * r.y)", "COS(l.y * r.y)",
                                  "POWER(l.y, r.y)", "(l.y + r.y) % 3.0"])  # fmt: skip
def test_what_a_gpu_rounds_differently_is_decided_on_the_host(stand_in, text):
    cpu, gpu = both_ways(rows(1, 60, 9.0), rows(2, 60, 9.0), f"l.x = r.x AND {text} > 0.5", window="1 s")
    assert cpu == gpu
    with pytest.raises(UnsupportedError, match="a GPU cannot decide any condition of"):
        hs.join(rows(1, 6), rows(2, 6), f"{text} > 0.5", device="gpu")


def test_a_machine_without_a_gpu_says_so():
    if has_gpu():
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match=r"GPU.*; use device=.cpu"):
        Join(left=XY, right=XY, on=BANDS, window="1 s", time="t", device="gpu")


def test_windows_beyond_the_memory_of_the_device_are_refused_with_the_figures(monkeypatch):
    device = StandIn(total=5_000_000)
    monkeypatch.setattr(driver, "open_device", lambda: device)
    join = Join(left=XY, right=XY, on=BANDS, window="1 hour", time="t", device="gpu")
    figures = r"left window .* [\d,]+ rows of 20 bytes need \d\.\d MB, and \d\.\d MB of 5\.0 MB are free"
    join.push_left(rows(0, 40_000))
    with pytest.raises(DeviceError, match=figures):
        join.push_left(rows(0, 120_000).slice(40_000))
    assert not device.held


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'; choose cpu or gpu"),
        ({"device": "gpu", "cores": 2}, "cores is for joins on processor cores"),
        ({"device": "gpu", "algorithm": "cell"}, "algorithm is for"),
        ({"device": "gpu", "method": "hash"}, "needs an equality"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UnsupportedError, match=message):
        Join(left=XY, right=XY, on=BANDS, window="1 s", time="t", **options)


def test_queries_refuse_a_gpu():
    text = "CREATE INPUT STREAM A (x int); SELECT x FROM A INTO B"
    with pytest.raises(UnsupportedError, match="single join of two inputs"):
        hs.run(text, {"A": {"x": [1]}}, device="gpu")
