"""Dividers: quotients bit by bit as Python's, whatever is held back; latency and issue rate as declared."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from circuits import latency_and_rate, patterns
from handshake.engines.circuit.components.divide import Divide, PipelinedDivide, SerialDivide, divided_row
from handshake.engines.circuit.components.types import Row, Wire, count_of
from handshake.engines.circuit.simulation.simulate import Beat, Feed, Simulation
from handshake.schema import FLOAT64, Decimal, Int

WHOLE = Row(
    (Wire("k", Int(8), 8, True, True), Wire("a", FLOAT64, 98, True, count_bits=33), Wire("t", Int(4), 4))
)
SMALL = Row((Wire("a", FLOAT64, 9, False, count_bits=3), Wire("d", Decimal(9, 4), 20, True, count_bits=5)))
DECIMALS = Row((Wire("d", Decimal(16, 6), 88, True, count_bits=33), Wire("k", Int(8), 8, True)))
KINDS: tuple[type[Divide], ...] = (PipelinedDivide, SerialDivide)
FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=200)
ROWS = pytest.mark.parametrize("row", [WHOLE, SMALL, DECIMALS], ids=["whole", "small", "decimals"])


@lru_cache
def make_divide(kind: type[Divide], row: Row) -> tuple[Divide, Simulation]:
    block = kind(row)
    return block, Simulation(block)


def pack_values(row: Row, values: dict[str, Any]) -> int:
    """Return a payload from the values of its members: an average has its sum and its count."""
    number = 0
    for name, each in row.layout:
        number |= (values[name] & ((1 << each.width) - 1)) << each.offset
    return number


def sums(each: Wire) -> st.SearchStrategy[tuple[int, int]]:
    """Draw a sum and a count such that the average fits: powers of two and their neighbours among them."""
    most = (1 << each.count_bits - 1) - 1
    largest = each.range[1] >> each.count_bits
    near = st.builds(
        lambda n, d: (1 << n) + d, st.integers(0, max(0, largest.bit_length() - 2)), st.integers(-2, 2)
    )

    @st.composite
    def pairs(draw: Any) -> tuple[int, int]:
        count = draw(st.integers(0, 9) | st.integers(0, most))
        bound = count * largest
        total = draw(
            st.integers(0, bound) | near.map(lambda n: min(abs(n) * max(1, count) + count // 2, bound))
        )
        return (-total if each.signed and draw(st.booleans()) else total) if count else 0, count

    return pairs()


@st.composite
def tuples(draw: Any, row: Row) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in row:
        if each.count_bits:
            values[each.name], values[count_of(each.name)] = draw(sums(each))
        else:
            values[each.name] = draw(st.integers(*each.range))
            values[f"{each.name}.null"] = 0
    return values


@ROWS
@FEW
@given(data=st.data())
def test_quotients_are_pythons(row: Row, data: st.DataObject) -> None:
    """`Wire.average`, which the host divides with, is Python's int / int, which rounds to nearest even."""
    check(SerialDivide, row, data, 12)


@pytest.mark.parametrize("row", [WHOLE, SMALL], ids=["whole", "small"])
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_a_pipeline_of_divisions(row: Row, data: st.DataObject) -> None:
    check(PipelinedDivide, row, data, 12)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@ROWS
@MANY
@given(data=st.data())
def test_many_quotients(kind: type[Divide], row: Row, data: st.DataObject) -> None:
    check(kind, row, data, 40)


def check(kind: type[Divide], row: Row, data: st.DataObject, most: int) -> None:
    given_ = [pack_values(row, each) for each in data.draw(st.lists(tuples(row), max_size=most))]
    _, simulation = make_divide(kind, row)
    feed = Feed([*map(Beat, given_), Beat(None, True)], data.draw(patterns))
    run = simulation.run({"i": feed}, ready={"o": data.draw(patterns)})
    assert run.outputs["o"][-1].eos
    wanted = [row.unpack(each) for each in given_]
    found = run.tuples("o", divided_row(row))
    assert [[_bits(v) for v in each] for each in found] == [[_bits(v) for v in each] for each in wanted]


def _bits(value: Any) -> Any:
    return struct.pack(">d", value) if isinstance(value, float) else value


CLOSE = [
    (2**53 + 1, 1),  # a tie, to even: down
    (2**53 + 3, 1),  # a tie, to even: up
    (2**54 - 1, 1),  # up to a power of two: the carry goes into the exponent
    (2**53 * 3 + 1, 3),  # just above a tie
    (-(2**53) - 1, 1),
    (1, 3),
    (2, 3),
    (10, 5),
    (0, 7),
    (-1, 2**32),
    ((2**64 - 1) * 5, 5),
]


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_to_nearest_even(kind: type[Divide]) -> None:
    beats = [pack_values(WHOLE, {"k": 1, "k.null": 0, "a": a, "a.count": n, "t": 0}) for a, n in CLOSE]
    run = make_divide(kind, WHOLE)[1].run({"i": Feed([*map(Beat, beats), Beat(None, True)])})
    found = [value for _, value, _ in run.tuples("o", divided_row(WHOLE))]
    assert [_bits(value) for value in found] == [_bits(total / count) for total, count in CLOSE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [WHOLE, DECIMALS], ids=["whole", "decimals"])
def test_latency_and_issue_rate_are_as_declared(kind: type[Divide], row: Row) -> None:
    block = kind(row)
    beats = [Beat(pack_values(row, {n: 1 for n, _ in row.layout})) for _ in range(4)]
    latency, rate = latency_and_rate(block, beats)
    assert (latency, rate) == (block.latency, pytest.approx(block.issue_rate))
    assert block.latency == block.steps + 2
    assert block.steps == (55 if row is WHOLE else 56)
