"""Packed tuples, datagrams and streams: every decoder against one that goes byte by byte."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.errors import HandshakeError, InputError, SchemaError
from handshake.io.udp.demux import Demux, Sequence, Stream, refuse
from handshake.io.udp.mmsg import Datagrams
from handshake.io.udp.sockets import Endpoint
from handshake.io.udp.wire import Layout
from oracle_wire import KINDS, Receiver, width

kinds = st.one_of(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 6).map(lambda n: f"string({n})"),
    st.integers(1, 5).map(lambda n: f"binary({n})"),
    st.sampled_from(["decimal(38,10)", "decimal(5,2)", "decimal(20,0)"]),
)
interesting = st.sampled_from([b"\0", b"\1", b"\xff", b"\x7f", b"A", b"\xc3", b"\xa9", b"\x80"])
soup = st.lists(interesting, max_size=60).map(b"".join)


def datagrams(payloads: list[bytes], gap: int = 3) -> Datagrams:
    """Lay out payloads as an inbox holds them, with other bytes between them."""
    starts, flat = [], b"\xee" * gap
    for payload in payloads:
        starts.append(len(flat))
        flat += payload + b"\xee" * gap
    count = len(payloads)
    return Datagrams(
        np.frombuffer(flat, np.uint8).copy(),
        np.array(starts, np.int64),
        np.array([len(p) for p in payloads], np.int64),
        np.zeros(count, bool),
        (bytes(28),),
    )


def plain(batch: pa.RecordBatch | None) -> list[tuple[Any, ...]]:
    """Return rows that compare: timestamps and dates as numbers, and NaN as a text."""
    if batch is None:
        return []
    columns = [_numbers(batch.column(n)).to_pylist() for n in range(batch.num_columns)]
    return [comparable(row) for row in zip(*columns, strict=True)]


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row)


def _numbers(column: pa.Array) -> pa.Array:
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def layout_of(fields: list[str]) -> Layout:
    return Layout.parse(", ".join(f"f{n} {kind}" for n, kind in enumerate(fields)))


@st.composite
def feeds(draw: st.DrawFn) -> tuple[dict[str, tuple[list[str], int | None]], bool, list[bytes]]:
    """Draw streams, whether there are sequence numbers, and datagrams, most of which make sense."""
    several = draw(st.booleans())
    marks: list[int | None] = [68, 70] if several else [None]
    head = ["uint8"] if several else []
    streams = {
        f"s{n}": (head + draw(st.lists(kinds, min_size=1, max_size=4)), mark) for n, mark in enumerate(marks)
    }
    sequence = draw(st.booleans())
    payloads, number = [], draw(st.integers(1, 5))
    for _ in range(draw(st.integers(0, 12))):
        fields, mark = draw(st.sampled_from(list(streams.values())))
        size = sum(map(width, fields))
        payload = b"".join(_tuple(draw, size, mark) for _ in range(draw(st.integers(0, 3))))
        payload = draw(st.sampled_from([payload] * 6 + [payload + b"\1", payload[:-1], b"\x45" + payload]))
        number += draw(st.sampled_from([1] * 6 + [2, 5, -1, -3, 0]))
        number = max(number, 1)
        payloads.append(struct.pack(">q", number) + payload if sequence else payload)
    return streams, sequence, payloads + draw(st.sampled_from([[], [b"\1\2\3"]]))


def _tuple(draw: st.DrawFn, size: int, mark: int | None) -> bytes:
    data = (draw(soup) + b"\0" * size)[:size]
    return data if mark is None else bytes([mark]) + data[1:]


@settings(max_examples=150, deadline=None)
@given(feeds(), st.integers(1, 5))
def test_decoding_agrees_with_a_decoder_that_goes_byte_by_byte(feed: Any, step: int) -> None:
    streams, sequence, payloads = feed
    oracle = Receiver(streams, sequence)
    several = any(mark is not None for _, mark in streams.values())
    bad: list[bytes] = []
    demux = Demux(
        tuple(Stream(n, layout_of(f), () if m is None else (m,)) for n, (f, m) in streams.items()),
        "f0" if several else None,
        sequence,
        bad=lambda data, reason: bad.append(data),
    )
    got: dict[str, list[Any]] = {}
    for start in range(0, len(payloads), step):
        for name, batch in demux.take(datagrams(payloads[start : start + step])).items():
            batch.validate(full=True)
            got.setdefault(name, []).extend(plain(batch))
    for payload in payloads:
        oracle.take(payload)
    wanted = {name: [comparable(row) for row in rows] for name, rows in oracle.got.items() if rows}
    assert got == wanted
    counters = demux.counters
    for figure in ("datagrams", "malformed", "unknown", "ends"):
        assert getattr(counters, figure) == oracle.counts[figure], figure
    assert len(bad) == counters.malformed
    assert counters.tuples == sum(map(len, wanted.values()))
    assert sum(counters.unknown_types.values()) == counters.unknown
    if sequence:
        assert counters.missing == oracle.missing
        assert counters.out_of_sequence == oracle.counts["out_of_sequence"]
        assert counters.repeated == oracle.counts["repeated"]


@settings(max_examples=60, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=5), st.data())
def test_what_is_packed_is_unpacked_again(fields: list[str], data: st.DataObject) -> None:
    layout = layout_of(fields)
    raw = data.draw(st.lists(soup, max_size=5))
    packed = np.frombuffer(b"".join((r + b"\0" * layout.width)[: layout.width] for r in raw), layout.dtype)
    batch, good = layout.unpack(packed)
    kept = batch if good is None else batch.filter(pa.array(good))
    expected = packed if good is None else packed[good]
    assert layout.pack(kept.slice(0)).tobytes() == expected.tobytes()
    assert layout.pack(pa.Table.from_batches([kept]).slice(1)).tobytes() == layout.pack(kept)[1:].tobytes()


def test_the_wire_is_in_network_byte_order_without_gaps() -> None:
    layout = Layout.parse("a int16, b double, c string(3), d bool, e decimal(4, 1)")
    packed = layout.pack({"a": [-2], "b": [1.5], "c": ["x"], "d": [True], "e": pa.array([Decimal("12.5")])})
    assert packed.tobytes() == struct.pack(">hd3s?", -2, 1.5, b"x", True) + (125).to_bytes(16, "big")
    assert layout.width == 2 + 8 + 3 + 1 + 16
    assert Layout.of(layout.schema) == layout


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=20), st.integers(1, 6))
def test_sequences_in_pieces(numbers: list[int], step: int) -> None:
    sequence, oracle = Sequence(), Receiver({}, True)
    for start in range(0, len(numbers), step):
        sequence.observe(np.array(numbers[start : start + step], np.int64))
    for number in numbers:
        oracle._number(number)
    assert (sequence.missing, sequence.out_of_sequence, sequence.repeated) == (
        oracle.missing, oracle.counts["out_of_sequence"], oracle.counts["repeated"],
    )  # fmt: skip


def test_a_sender_that_begins_anew_is_not_out_of_sequence() -> None:
    sequence = Sequence()
    sequence.observe(np.array([0, 1, 2, 5]))
    sequence.observe(np.array([0, 1, 3]))
    assert (sequence.missing, sequence.out_of_sequence, sequence.restarts) == (3, 0, 1)


def test_times_of_day_end_at_midnight() -> None:
    layout = Layout.of(pa.schema([pa.field("t", pa.time32("s"))]))
    batch, good = layout.unpack(np.array([(0,), (86_399,), (86_400,), (-1,)], layout.dtype))
    assert good is not None
    assert good.tolist() == [True, True, False, False]
    assert batch.column(0).validate(full=True) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price", "'price' is not a field; write its name and type, such as 'price int'"),
        ("a int, a long", "more than one field is named 'a' (a int32, a int64); rename one of them"),
        ("s string", "field 's' is a string without a width; every field has a fixed width on the wire"),
        ("s strin(4)", "did you mean 'string'?"),
        (
            "d decimal(50,2)",
            "field 'd' has the type 'decimal(50, 2)', which has no form on the wire; use bool",
        ),
    ],
)
def test_layouts_that_have_no_meaning(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        Layout.parse(text)
    assert message in str(error.value)


def test_types_that_have_no_form_on_the_wire() -> None:
    with pytest.raises(
        SchemaError, match=r"list<item: int32> has no form on the wire; it takes numbers, bool"
    ):
        Layout.of(pa.schema([("a", pa.list_(pa.int32()))]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": [1]}, "no column 's' to send (n)"),
        ({"n": [1], "s": ["abc"]}, "column 's' holds 'abc', of 3 bytes, but the wire has 2"),
        ({"n": [None], "s": ["a"]}, "column 'n' has 1 NULLs; a field on the wire has none"),
        (
            {"n": [300], "s": ["a"]},
            "column 'n' does not fit int8: Integer value 300 not in range: -128 to 127",
        ),
        ({"n": [1], "s": ["a\0"]}, "column 's' holds text that ends with a zero byte"),
    ],
)
def test_rows_that_do_not_fit(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(HandshakeError) as error:
        Layout.parse("s string(2), n byte").pack(columns)
    assert message in str(error.value)


A, B = Layout.parse("t byte, x int"), Layout.parse("t byte, y long")


@pytest.mark.parametrize(
    ("streams", "kind", "message"),
    [
        ((), None, "a receiver needs at least one stream to receive"),
        ((Stream("a", A), Stream("b", B)), None, "several streams (a, b) in one input need a type field"),
        ((Stream("a", A, (1,)), Stream("b", B)), "t", "no value of 't' marks the stream b; give it"),
        ((Stream("a", A, (1,)), Stream("b", B, (2, 1))), "t", "t = 1 marks both a and b; keep one"),
        ((Stream("a", A, (1,)),), "u", "no field 'u' in the tuple (t int8, x int32)"),
        (
            (Stream("a", A, (1,)), Stream("b", Layout.parse("y long, t byte"), (2,))), "t",
            "the type field 't' is at byte 0 of a's tuples but at byte 8 of b's",
        ),
        ((Stream("a", Layout.parse("t float"), (1,)),), "t", "the type field 't' is not a whole number"),
    ],
)  # fmt: skip
def test_inputs_that_cannot_be_told_apart(
    streams: tuple[Stream, ...], kind: str | None, message: str
) -> None:
    with pytest.raises(HandshakeError) as error:
        Demux(streams, kind)
    assert message in str(error.value)


def test_strict_stops_at_a_malformed_datagram() -> None:
    demux = Demux((Stream("a", A),), bad=refuse)
    with pytest.raises(
        InputError, match=r"malformed datagram of 3 bytes: no whole number of a's tuples of 5 bytes"
    ):
        demux.take(datagrams([b"\1\2\3"]))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("tcp://h:1", "'tcp://h:1' is not an address for UDP; write it as udp://127.0.0.1:5000"),
        ("udp://h", "'udp://h' is not an address for UDP"),
        ("udp://h:99999", "is not an address for UDP"),
        (
            "udp://h:1?sequnce=1",
            "has the unknown option 'sequnce'; known are sequence, max_datagram, buffer, ",
        ),
        ("udp://h:1?sequence=maybe", "sequence=maybe in 'udp://h:1?sequence=maybe' is not yes or no"),
        ("udp://h:1?buffer=lots", "buffer=lots in 'udp://h:1?buffer=lots' is not a whole number from 1 up"),
    ],
)
def test_addresses_that_are_none(url: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Endpoint.parse(url)
    assert message in str(error.value)


def test_numbers_far_apart_are_missing_in_between() -> None:
    sequence, far = Sequence(), 2**63 - 1
    sequence.observe(np.array([-far, far]))
    assert (sequence.missing, sequence.out_of_sequence) == (2 * far - 1, 0)
