"""Kernels and their keys on their own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from handshake.joins.join import prepare
from handshake.kernels.cluster import cluster_band, cluster_hash, probe_hash, sweep_order
from handshake.kernels.codes import FACTS, NO_CODES
from handshake.kernels.columns import address_words, view
from handshake.kernels.compile import TILE, Program
from handshake.kernels.gather import gather
from handshake.kernels.keys import has_value, hash_of, prefix_of, row_hash, sort_key
from handshake.kernels.look_up import look_up_kernel
from handshake.kernels.scan import STATE, scan_kernel
from handshake.kernels.shared_scan import CHUNK, COUNT, GROUPS
from handshake.kernels.sorting import order_of
from handshake.plan.ranges import ranges, width_of
from handshake.schema import BOOL, Int

FLOATS = st.floats(allow_nan=False, width=32)


@settings(deadline=None)
@given(
    keys=st.lists(st.one_of(FLOATS, st.sampled_from([0.0, -0.0, np.inf, -np.inf]))), times=st.integers(1, 300)
)
def test_radix_order_of_floats(keys, times):
    values = np.array(keys * times, np.float64)
    order = order_of(values)
    assert sorted(order.tolist()) == list(range(len(values)))
    assert values[order].tolist() == sorted(values.tolist())


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "u8", "f4", "f8"])
def test_radix_order_at_the_ends_of_types(dtype):
    info = np.iinfo(dtype) if dtype[0] in "iu" else np.finfo(dtype)
    values = np.tile(np.array([info.max, 0, info.min, 1, info.max], dtype), 200)
    assert values[order_of(values)].tolist() == sorted(values.tolist())


def test_radix_order_is_stable():
    values = np.array([1, 0] * 1000)
    assert order_of(values).tolist() == list(range(1, 2000, 2)) + list(range(0, 2000, 2))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 3000),
    spread=st.sampled_from([1, 3, 40, 1000]),
    attributes=st.sampled_from([1, 2]),
    size=st.sampled_from([TILE + 8, 8 * TILE]),
)
def test_a_sweep_over_cells_finds_what_a_double_loop_finds(seed, rows, spread, attributes, size):
    random = np.random.default_rng(seed)
    inner = [random.integers(0, spread, rows, dtype=np.int32) for _ in range(2)]
    outer = [random.integers(-2, spread + 2, 50, dtype=np.int32) for _ in range(2)]
    order, cells = cluster_band(inner[0], inner[1] if attributes == 2 else None)
    assert sorted(order.tolist()) == list(range(rows))
    limits = [(values.astype(np.int64) - 2, values.astype(np.int64) + 2) for values in outer[:attributes]]
    visit = sweep_order(limits[0][0], limits[1][0] if attributes == 2 else None)
    first, second = ([bound[visit] for bound in limits[k]] for k in (0, -1))
    columns = [[values[visit] for values in outer], [values[order] for values in inner]]
    found = _swept(_band_program(), columns, first, second, cells, size)
    near = [abs(outer[k][:, None] - inner[k][None, :]) <= 2 for k in range(2)]
    pairs = sorted((int(visit[i]), int(order[j])) for i, j in found)
    assert pairs == sorted(map(tuple, np.argwhere(near[0] & near[1]).tolist()))


def _band_program():
    schema = pa.schema([("x", pa.int32()), ("y", pa.int32())])
    spec = prepare(schema, schema, "ABS(l.x - r.x) <= 2 AND ABS(l.y - r.y) <= 2").spec
    by_name = (tuple(sorted(side.columns, key=lambda column: column.name)) for side in spec.sides)
    return Program(spec.interior, tuple(by_name), True, False)


def _swept(program, columns, first, second, cells, size):
    """Return pairs of places that the kernel gives, in as many calls as buffers of that size need."""
    keys = (cells.low.dtype.str, cells.fences.dtype.str)
    kernel, found = look_up_kernel(program, 1, *keys, False), []
    outer, inner = (tuple(at for c in side for at in (c.ctypes.data, 0)) for side in columns)
    table = np.array([(len(columns[1][0]), *(0,) * 6, *cells.places, *NO_CODES, *inner)])
    one, seen, state = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(STATE, np.int64)
    state[CHUNK] = -1
    while True:
        out = np.empty(size, np.int32), np.empty(size, np.int32)
        windows, ends = np.empty(1, np.int64), np.empty(1, np.int64)
        kernel(
            0, 0, outer, len(first[0]), 0, table, one, one, 0, *first, *second, seen,
            state, *out, windows, ends,
        )  # fmt: skip
        count = int(state[COUNT])
        assert not count or (windows[0], ends[0], state[GROUPS]) == (0, count, 1)
        found += zip(out[0][:count].tolist(), out[1][:count].tolist(), strict=True)
        if state[CHUNK] < 0:
            return found
        state[COUNT] = state[GROUPS] = 0


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.float64(), pa.int16()])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_gathered_rows_are_those_that_arrow_takes(kind, dtype, data):
    values = st.integers(-9, 9) if pa.types.is_primitive(kind) else st.text("aé", max_size=80)
    values = st.one_of(values, st.none()) if data.draw(st.booleans()) else values
    listed = data.draw(st.lists(values, min_size=1, max_size=20))
    array = pa.array(listed, pa.string() if kind == pa.binary() else kind).cast(kind)
    array = array.slice(data.draw(st.integers(0, len(array) - 1)))
    rows = np.random.default_rng(len(listed)).integers(0, len(array), 300).astype(dtype)
    got = gather(array, rows)
    got.validate(full=True)
    assert got.equals(array.take(pa.array(rows)))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 400), distinct=st.sampled_from([1, 5, 10**6]))
def test_equal_keys_meet_in_the_same_cell(seed, rows, distinct):
    keys = np.random.default_rng(seed).integers(0, distinct, rows)
    hashes = row_hash([pa.array(keys)])
    order, cells = cluster_hash(hashes, None)
    probe = probe_hash(cells, hashes, None)
    for place, outer in enumerate(probe.order):
        cell = probe.first[place]
        assert outer in order[cells.offsets[cell] : cells.offsets[cell + 1]]


def test_hashes_do_not_depend_on_the_type_that_holds_a_value():
    forms = [
        pa.array([1, 2, -3], kind)
        for kind in (pa.int8(), pa.int64(), pa.decimal128(38, 0), pa.timestamp("us"), pa.duration("s"))
    ]
    hashes = [row_hash([form]).tolist() for form in forms]
    assert all(h == hashes[0] for h in hashes)
    assert row_hash([pa.array([0.0])]) == row_hash([pa.array([-0.0], pa.float32())])


def test_text_hashes_agree_between_layouts():
    forms = [pa.array(["a", "", None, "ab"], kind) for kind in (pa.string(), pa.large_string())]
    forms.append(forms[0].dictionary_encode())
    hashes = [hash_of(form).to_pylist() for form in forms]
    assert hashes[0] == hashes[1] == hashes[2]
    assert hashes[0][2] is None
    assert len(set(hashes[0])) == 4


@given(st.lists(st.text(max_size=12), min_size=2, max_size=8))
def test_prefixes_never_contradict_the_order_of_texts(texts):
    prefixes = prefix_of(pa.array(texts, pa.string())).to_pylist()
    for a, p in zip(texts, prefixes, strict=True):
        for b, q in zip(texts, prefixes, strict=True):
            assert not (p < q and not a.encode() < b.encode())


def test_sort_keys_saturate_and_keep_order():
    wide = pa.array([10**30, -(10**30), 5], pa.decimal128(38, 0))
    assert sort_key(wide).tolist() == [2**63 - 1, -(2**63), 5]
    assert sort_key(pa.array([2**64 - 1, 3], pa.uint64())).tolist() == [2**63 - 1, 3]


def test_keys_without_a_value():
    assert has_value(pa.array([1, 2])) is None
    assert has_value(pa.array([1.0, None, float("nan")])).tolist() == [True, False, False]


@pytest.mark.parametrize("offset", range(10))
def test_views_of_slices_start_where_the_slice_does(offset):
    bits = pa.array([k % 3 == 0 if k % 5 else None for k in range(40)])
    piece = bits.slice(offset)
    seen = view(piece, BOOL)
    table = pa.table({"b": piece})
    held = hs.join(table, {"k": [1]}, "l.b AND r.k = 1").num_rows
    assert held == sum(value is True for value in piece.to_pylist())
    assert seen.validity != 0


def compile_scan(on, left, right):
    spec = prepare(left.schema, right.schema, on, method="scan").spec
    columns = tuple(side.columns for side in spec.sides)
    return scan_kernel(Program(spec.interior, columns, True, False), 1), spec


@pytest.mark.parametrize("cuts", [(0, 300), (0, 0, 1, 64, 65, 300), (0, 299, 300)])
def test_a_scan_that_fills_its_buffers_goes_on_where_it_stopped(cuts):
    left, right = (pa.table({"x": np.arange(300, dtype=np.int32)}) for _ in range(2))
    kernel, _ = compile_scan("l.x <= r.x", left, right)
    others = (0,) * (address_words(1) - 1)
    start = (view(left.column("x").chunk(0), Int(32)).data, *others)
    runs = [view(right.column("x").chunk(0).slice(a, b - a), Int(32)) for a, b in pairwise(cuts)]
    facts = [(rows, *(0,) * (FACTS - 1)) for rows in np.diff(cuts)]
    table = np.array([(*fact, v.data, *others) for fact, v in zip(facts, runs, strict=True)])
    out = np.empty(TILE, np.int32), np.empty(TILE, np.int32)
    state, ends, pairs, calls = np.zeros(STATE, np.int64), np.empty(len(runs), np.int64), [], 0
    while state[0] < len(runs):
        ends[: state[0]] = 0
        count = kernel(start, 300, table, state, ends, *out)
        ends[state[0] :] = count
        owner = np.searchsorted(ends, np.arange(count), "right")
        found = out[1][:count] + np.array(cuts)[owner]
        pairs += zip(out[0][:count].tolist(), found.tolist(), strict=True)
        assert ends[-1] == count
        calls += 1
    assert calls > 10
    assert sorted(pairs) == [(i, j) for i in range(300) for j in range(i, 300)]


def test_cross_joins_stream_through_bounded_buffers():
    table = pa.table({"x": np.arange(3000, dtype=np.int32)})
    plan = prepare(table.schema, table.schema, "l.x + r.x >= 0", method="scan")
    largest = total = 0
    for batch in hs.Replay(plan, table, table):
        largest, total = max(largest, batch.num_rows), total + batch.num_rows
    assert total == 3000 * 3000
    assert largest <= 2**21


@pytest.mark.parametrize(
    ("on", "width"),
    [
        ("l.i - r.i > 0", 64),
        ("l.b - r.b > 0", 128),
        ("l.i * r.i > 0", 64),
        ("l.b * r.b > 0", 128),
        ("l.t + r.t > 0", 32),
        ("l.d * r.d > 0", 256),
    ],
)
def test_widths_are_the_narrowest_that_cannot_wrap(on, width):
    kinds = {"i": pa.int32(), "b": pa.int64(), "t": pa.int8(), "d": pa.decimal128(38, 2)}
    spec = prepare(pa.schema(kinds), pa.schema(kinds), on).spec
    assert width_of(ranges(spec.analysis.predicate.left, headroom=False)) == width


SKEWED = {
    "all equal": lambda random, n: np.full(n, 7),
    "zipf": lambda random, n: random.zipf(1.3, n).clip(max=10**6),
    "two clumps": lambda random, n: np.where(random.random(n) < 0.5, 0, 10**6) + random.integers(0, 3, n),
    "sorted": lambda random, n: np.arange(n),
}


@pytest.mark.parametrize("shape", SKEWED)
@pytest.mark.parametrize(
    "on", ["ABS(l.x - r.x) <= 1 AND l.k = r.k", "ABS(l.x - r.x) <= 1 AND ABS(l.k - r.k) < 2"]
)
def test_skewed_values_agree_with_the_scan(shape, on):
    random = np.random.default_rng(3)
    tables = [
        pa.table({"x": SKEWED[shape](random, n).astype(np.int64), "k": random.integers(0, 3000, n)})
        for n in (3000, 5000)
    ]
    found = {}
    for method in ("auto", "scan"):
        plan = prepare(tables[0].schema, tables[1].schema, on, method=method)
        replay = hs.Replay(plan, *tables)
        out = pa.Table.from_batches(list(replay), plan.output_schema)
        found[method] = sorted(map(tuple, (row.values() for row in out.to_pylist())))
        assert replay.metrics().comparisons <= 3000 * 5000
    assert found["auto"] == found["scan"]
    assert found["auto"]
