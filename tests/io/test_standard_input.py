"""Tests of standard input: the rows are the same however the bytes are cut into pieces."""

from __future__ import annotations

import csv
import io
import sys
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handshake.errors import InputError
from handshake.io.csv_declared import read_standard_input
from handshake.io.csv_rows import split_rows
from handshake.io.declared import BadRows
from handshake.io.files import read_declared
from handshake.schema import Field, Schema, String

CELLS = st.text(st.sampled_from("a\",\n\r '0é"), max_size=4)
SCHEMA = Schema((Field("x", String()), Field("y", String())), "T")
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    given = iter([*cut(data, cuts), b""])
    return list(split_rows(lambda: next(given)))


def read(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


@given(st.lists(st.tuples(CELLS, CELLS)), ENDS, st.booleans(), st.lists(st.integers(0, 200), max_size=8))
@example([("a\n", '"')], "\r\n", False, [7])
@example([("", "x")], "\r", True, [4])
def test_rows_are_whole_wherever_the_bytes_are_cut(
    rows: list[tuple[str, str]], end: str, last: bool, cuts: list[int]
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end).writerows([("x", "y"), *rows])
    text = out.getvalue() if last else out.getvalue().removesuffix(end)
    found = [read(piece.decode()) for piece in pieces_of(text.encode(), cuts)]
    assert all(piece[0] == ["x", "y"] for piece in found)
    assert [row for piece in found for row in piece[1:]] == read(text)[1:]


def read_pieces(pieces: list[bytes]) -> tuple[list[dict[str, str]], list[dict[str, object]]] | str:
    bad, given = BadRows(), iter([*pieces, b""])
    try:
        batches = list(read_standard_input(SCHEMA, bad.add, lambda: next(given)))
    except InputError as error:
        return str(error)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return rows, sorted(bad.rows, key=lambda row: int(row["row"]))


@given(st.text(st.sampled_from('ab",\n\r '), max_size=30), st.lists(st.integers(0, 40), max_size=6))
def test_text_in_pieces_is_read_as_text_at_once(text: str, cuts: list[int]) -> None:
    data = ("x,y\n" + text).encode()
    assert read_pieces(cut(data, cuts)) == read_pieces([data])


def test_a_quote_left_open_is_reported_before_memory_is_full() -> None:
    text = iter([b'x\n"', *[b"a" * (1 << 20)] * 17])
    with pytest.raises(InputError, match="a row of more than 16 MiB; is a quote left open before it"):
        list(split_rows(lambda: next(text)))


def test_a_standard_input_that_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y,x\n1,2\n")))
    assert read_declared("-", SCHEMA, BadRows()).to_pylist() == [{"x": "2", "y": "1"}]


def test_nothing_and_a_header_alone() -> None:
    assert (
        read_pieces([])
        == read_pieces([b"\n\n"])
        == "standard input is empty; stream T needs a header at least"
    )
    assert read_pieces([b"\n\r\nx,y"]) == read_pieces([b"x,y"]) == read_pieces([b"x,", b"y\r\n"]) == ([], [])
