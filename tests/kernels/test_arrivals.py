"""Small batches described by one call: the same facts as Arrow gives column by column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.joins.basic_window import BasicWindow, _limits
from handshake.joins.join import prepare
from handshake.kernels.codes import FACTS
from handshake.kernels.collect import places_of, shape_of

KINDS = {
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.integers(0, 9),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
}
OFFSETS = ("10", "0.1", "-3", "9223372036854775807")


@st.composite
def pieces(draw):
    """Draw a slice of a batch with times, a number, a bool and a text, and a band join on the number."""
    kind, side = draw(st.sampled_from(list(KINDS))), draw(st.integers(0, 1))
    before, rows = draw(st.integers(0, 9)), draw(st.integers(1, 12))
    many = before + rows
    times = draw(st.lists(st.integers(-(2**40), 2**40), min_size=many, max_size=many))
    missing = draw(st.booleans())

    def values(plain):
        some = st.none() | plain if missing else plain
        return draw(st.lists(some, min_size=many, max_size=many))

    schema = pa.schema([("t", pa.timestamp("us")), ("x", kind), ("f", pa.bool_()), ("s", pa.string())])
    columns = [times, values(KINDS[kind]), values(st.booleans()), values(st.text(max_size=5))]
    arrays = [pa.array(column, k) for column, k in zip(columns, schema.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema).slice(before)
    low, high = draw(st.sampled_from(OFFSETS)), draw(st.sampled_from(OFFSETS))
    on = f"l.x >= r.x - {low} AND l.x <= r.x + {high} AND (l.f OR r.f)"
    spec = prepare(schema, schema, on, "1 minute", time="t").spec
    return spec, side, batch


@settings(max_examples=100, deadline=None)
@given(pieces())
def test_one_call_finds_what_arrow_says_of_each_column(case):
    spec, side, batch = case
    window, plain = BasicWindow(spec.sides[side], batch), BasicWindow(spec.sides[side], batch)
    plain.__dict__["arrival"] = None
    if window.arrival is None:  # bits that begin inside a byte are copied first
        assert any(column.offset % 8 for column in batch.columns)
        return
    assert (window.headroom, window.nullable) == (plain.headroom, plain.nullable)
    assert (window.first, window.second) == (plain.first, plain.second)
    np.testing.assert_array_equal(window.scan_row[:FACTS], plain.scan_row[:FACTS])
    assert _data(window) == _data(plain)
    for attribute in spec.sides[1 - side].attributes:
        for found, expected in zip(window.limits(attribute), _limits(plain, attribute), strict=True):
            np.testing.assert_array_equal(found, expected)
    shape = shape_of(batch.schema)
    np.testing.assert_array_equal(window.places[:-1], places_of(shape, batch)[:-1])


def _data(window):
    """Return the addresses of the values; bitmaps of ones may lie anywhere."""
    return window.addresses(True)[::2]


@pytest.mark.parametrize("kind", [pa.decimal128(18, 2), pa.dictionary(pa.int8(), pa.int32())])
def test_other_layouts_are_described_column_by_column(kind):
    schema = pa.schema([("t", pa.timestamp("us")), ("x", kind)])
    numbers = pa.array([1], pa.int32())
    values = numbers.cast(kind) if pa.types.is_decimal(kind) else numbers.dictionary_encode().cast(kind)
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.timestamp("us")), values], schema=schema)
    spec = prepare(schema, schema, "l.x <= r.x + 1", "1 minute", time="t").spec
    assert BasicWindow(spec.sides[0], batch).arrival is None


def test_nulls_that_nobody_has_counted_are_found():
    """Slices of an array with NULLs do not know how many they have."""
    schema = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])
    values = pa.array([None, *range(15)], pa.int64())
    times = pa.array(range(16), pa.timestamp("us"))
    whole = pa.RecordBatch.from_arrays([times, values], schema=schema)
    spec = prepare(schema, schema, "l.x <= r.x + 1 OR l.x IS NULL", "1 minute", time="t").spec
    assert BasicWindow(spec.sides[0], whole.slice(0, 8)).nullable
    assert not BasicWindow(spec.sides[0], whole.slice(8, 8)).nullable


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int32()])
@pytest.mark.parametrize("before", [0, 1, 8])
def test_rows_without_times_or_keys_are_found(kind, before):
    def arrival_of(times, values):
        columns = [pa.array([9] * before + times, pa.timestamp("us")), pa.array([9] * before + values, kind)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema).slice(before)
        return BasicWindow(spec.sides[0], batch).arrival

    schema = pa.schema([("t", pa.timestamp("us")), ("x", kind)])
    spec = prepare(schema, schema, "l.x <= r.x + 1", "1 minute", time="t").spec
    plain = arrival_of([1, 1, 3], [-1, 2, 0])
    assert plain.has_keys
    assert plain.ascends
    assert not arrival_of([1, 3, 2], [1, 2, 3]).ascends
    if not before:  # bits that begin inside a byte are copied first
        assert not arrival_of([1, None, 3], [1, 2, 3]).has_keys
        assert not arrival_of([1, 2, 3], [1, 2, None]).has_keys
    if pa.types.is_floating(kind):
        assert not arrival_of([1, 2, 3], [1, -float("nan"), 3]).has_keys
        assert arrival_of([1, 2, 3], [float("inf"), -float("inf"), 0]).has_keys
