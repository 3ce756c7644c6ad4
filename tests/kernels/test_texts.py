"""Rows whose text is a constant, against Python's own comparison."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handshake.kernels.texts import rows_equal

# few letters, long common beginnings, and characters of several bytes: near misses are likely
_TEXTS = st.sampled_from(
    ["", "U", "UBSN", "UBSM", "UBSNX", "é", "日本", "ABCDEFGH", "ABCDEFGHI", "ABCDEFGHJ", "\0"]
)
_KINDS = st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])


@given(texts=st.lists(_TEXTS, max_size=40), wanted=_TEXTS, kind=_KINDS, cut=st.integers(0, 5))
def test_found_are_the_rows_with_just_these_bytes(
    texts: list[str], wanted: str, kind: pa.DataType, cut: int
) -> None:
    column = pa.array([text.encode() for text in texts], pa.binary()).cast(kind)[cut:]
    found = rows_equal(column, wanted.encode())
    if found is not None:
        assert found.tolist() == [row for row, text in enumerate(texts[cut:]) if text == wanted]


@given(
    size=st.integers(0, 10), rows=st.lists(st.integers(0, 2**80), min_size=1, max_size=30), cut=st.booleans()
)
def test_texts_of_one_length(size: int, rows: list[int], cut: bool) -> None:
    texts = [row.to_bytes(11, "big")[:size] for row in rows]
    found = rows_equal(pa.array([b"x", *texts], pa.binary())[1:] if cut else pa.array(texts), texts[0])
    if found is not None:
        assert found.tolist() == [row for row, text in enumerate(texts) if text == texts[0]]


@pytest.mark.parametrize("text", ["A", "UBSN", "ABCDEFGHI"])
def test_rare_texts_are_found_here(text: str) -> None:
    texts = [text, *(f"{number:0{len(text)}}" for number in range(9)), "longer than the others"]
    for column in (pa.array(texts), pa.array(texts[:-1])):
        assert rows_equal(column, text.encode()).tolist() == [0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array(["a"]).dictionary_encode(),
        pa.array(["a"], pa.string_view()),
        pa.array([], pa.string()),
        pa.array(["ab"] * 5 + ["ac", "b"]),
    ],
)
def test_other_columns_are_left_to_arrow(column: pa.Array) -> None:
    assert rows_equal(column, b"ab") is None
