"""Rows whose text is a constant, against Python's own comparison."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handshake.kernels.texts import rows_equal

# few letters, long common beginnings, and characters of several bytes: near misses are likely
_TEXTS = [
    "",
    "U",
    "UB",
    "UBS",
    "UBSN",
    "UBSM",
    "UBSNX",
    "é",
    "日本",
    "ABCDEFGH",
    "ABCDEFGHI",
    "ABCDEFGHJ",
    "\0",
]
_KINDS = st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])


def column_of(texts: list[str | None], kind: pa.DataType, cut: int) -> pa.Array:
    """Return texts as a slice that starts at some bit, and whose buffer ends with the last text."""
    values = [None if text is None else text.encode() for text in ["x"] * cut + texts]
    column = pa.array(values, pa.binary()).cast(kind)
    valid, places, data = column.buffers()
    exact = None if data is None else pa.py_buffer(data.to_pybytes())
    return pa.Array.from_buffers(kind, len(values), [valid, places, exact])[cut:]


@given(
    texts=st.lists(st.sampled_from([*_TEXTS, None]), max_size=90),
    times=st.integers(1, 3),
    wanted=st.sampled_from(_TEXTS),
    kind=_KINDS,
    cut=st.integers(0, 9),
)
def test_found_are_the_rows_with_just_these_bytes(
    texts: list[str | None], times: int, wanted: str, kind: pa.DataType, cut: int
) -> None:
    found = rows_equal(column_of(texts * times, kind, cut), wanted.encode())
    assert found.tolist() == [row for row, text in enumerate(texts * times) if text == wanted]


@given(
    size=st.integers(0, 10),
    rows=st.lists(st.integers(0, 3) | st.integers(0, 2**80), min_size=1, max_size=150),
    odd=st.none() | st.integers(0, 149),
    kind=_KINDS,
    cut=st.integers(0, 9),
)
def test_texts_of_one_length(
    size: int, rows: list[int], odd: int | None, kind: pa.DataType, cut: int
) -> None:
    texts = [row.to_bytes(11, "big")[-size:].hex()[:size] for row in rows]
    if odd is not None:
        texts[odd % len(texts)] += "x"
    found = rows_equal(column_of(texts, kind, cut), texts[0].encode())
    assert found.tolist() == [row for row, text in enumerate(texts) if text == texts[0]]


@pytest.mark.parametrize(
    "column", [pa.array(["a"]).dictionary_encode(), pa.array(["a"], pa.string_view()), pa.array([1])]
)
def test_columns_without_offsets_are_left_to_arrow(column: pa.Array) -> None:
    assert rows_equal(column, b"ab") is None
