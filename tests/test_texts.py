"""Rows whose text is a constant, against Python's own comparison."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handshake.kernels.texts import rows_equal, searchable

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
    expected = [row for row, text in enumerate(texts[cut:]) if text == wanted]
    assert rows_equal(column, wanted.encode()).tolist() == expected


@pytest.mark.parametrize(
    ("column", "can"),
    [
        (pa.array(["a"]), True),
        (pa.array(["a", None]), False),
        (pa.array(["a"]).dictionary_encode(), False),
        (pa.array(["a"], pa.string_view()), False),
    ],
)
def test_columns_in_other_layouts_are_left_to_arrow(column: pa.Array, can: bool) -> None:
    assert searchable(column) is can
