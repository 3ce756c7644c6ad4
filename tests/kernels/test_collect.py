"""Rows of several batches as one: the same as Arrow's `take` and `concat`, whatever the columns are."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
import handshake.kernels.collect as collect_module
from handshake.kernels.collect import Rows, RowsMessage, places_of, shape_of

VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 65535),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us"): st.just(datetime(2026, 1, 2, 3, 4, 5, 6)),
    pa.date32(): st.just(date(2026, 1, 2)),
    pa.decimal128(20, 3): st.integers(-(10**15), 10**15).map(lambda n: Decimal(n).scaleb(-3)),
    pa.decimal256(60, 0): st.integers(-(10**50), 10**50).map(Decimal),
    pa.string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=70),
    pa.large_string(): st.text(max_size=3),
}


@st.composite
def runs(draw):
    """Draw batches of one schema, slices of longer ones, and rows of each."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    batches, rows = [], []
    for _ in range(draw(st.integers(1, 3))):
        size, before = draw(st.integers(1, 20)), draw(st.integers(0, 9))
        length = size + before
        columns = [
            pa.array(
                draw(st.lists(st.none() | VALUES[k] if draw(st.booleans()) else VALUES[k],
                              min_size=length, max_size=length)), k
            )
            for k in kinds
        ]  # fmt: skip
        batch = pa.RecordBatch.from_arrays(columns, names=[f"c{n}" for n in range(len(kinds))])
        batches.append(batch.slice(before))
        rows.append(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40)))
    return batches, rows


@settings(max_examples=200, deadline=None)
@given(runs(), st.integers(1, 2), st.booleans())
def test_rows_of_several_batches_are_what_arrow_takes(case, sides, many):
    """With few rows, and with enough that the loops run without the interpreter's lock."""
    batches, rows = case
    rows = [some * (1 + 2048 * many) for some in rows]
    schema, flat = batches[0].schema, [row for some in rows for row in some]
    shape, ends = shape_of(schema), np.cumsum([len(some) for some in rows])
    given = Rows([places_of(shape, batch) for batch in batches], np.array(flat, np.int32), ends)
    whole = pa.schema([field.with_name(f"{n}{field.name}") for n in range(sides) for field in schema])
    found = RowsMessage(whole, [shape] * sides).make([given] * sides)
    found.validate(full=True)
    assert found.schema.equals(whole)
    parts = [b.take(pa.array(some)) for b, some in zip(batches, rows, strict=True)]
    expected = pa.Table.from_batches(parts).combine_chunks().columns * sides
    for column, wanted in zip(found.columns, expected, strict=True):
        assert column.equals(wanted.chunk(0))
        assert column.null_count == wanted.null_count


def test_a_batch_larger_than_wanted_is_refused():
    batch = pa.record_batch({"x": [1, 2], "t": ["short", "long" * 500]})
    shape = shape_of(batch.schema)
    given = Rows([places_of(shape, batch)], np.array([1] * 40, np.int32), np.array([40]))
    message = RowsMessage(batch.schema, [shape])
    assert message.make([given], 1 << 20).column("t").to_pylist() == ["long" * 500] * 40
    with pytest.raises(pa.ArrowInvalid, match="bytes of results are more than 1024"):
        message.make([given], 1024)


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8()), pa.null()])
def test_columns_that_lie_otherwise_are_left_to_arrow(kind):
    assert shape_of(pa.schema([("a", pa.int32()), ("b", kind)])) is None


def test_dictionaries_of_many_basic_windows_are_joined_all_the_same():
    texts = [["a", "b"], ["c"], ["b", "d"]]
    with hs.Join(
        left=pa.schema([("x", pa.int64()), ("t", pa.dictionary(pa.int8(), pa.string()))]),
        right=pa.schema([("x", pa.int64())]), on="l.x <= r.x", left_window="10 tuples",
        right_window="10 tuples", method="scan",
    ) as join:  # fmt: skip
        for part in texts:
            encoded = pa.array(part).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
            join.push_left(pa.table({"x": [1] * len(part), "t": encoded}))
        found = [t for b in join.push_right(pa.table({"x": [1]})) for t in b.column("t").to_pylist()]
    assert sorted(found) == ["a", "b", "b", "c", "d"]


def test_texts_that_are_too_long_for_one_batch_make_several(monkeypatch):
    monkeypatch.setitem(collect_module.REACH, 4, 1000)
    left = pa.table({"x": range(40), "t": ["long" * 25] * 40})
    found = hs.join(left, {"y": [100] * 3}, "l.x < r.y", method="scan")
    assert found.num_rows == 120
    assert set(found.column("t").to_pylist()) == {"long" * 25}


def test_a_single_text_that_is_too_long_is_an_error(monkeypatch):
    monkeypatch.setitem(collect_module.REACH, 4, 99)
    with pytest.raises(hs.errors.HandshakeError, match="offsets of 32 bits cannot address 100 bytes of text"):
        hs.join({"x": [1], "t": ["long" * 25]}, {"y": [2]}, "l.x < r.y", method="scan")
