"""Components: what they compute, their latency and issue rate as measured, with streams held back at will."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits import SMALL, TEXT, latency_and_rate, patterns, rows, through, tuples_only
from handshake.engines.circuit.components.aggregate import Avg, Count, Extreme, Sum, Wsum
from handshake.engines.circuit.components.demux import StreamDemux
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.group import Lookup
from handshake.engines.circuit.components.operators import Compute, Concat, Delay, Fork, Project, Select
from handshake.engines.circuit.components.types import Row, Wire, wire
from handshake.engines.circuit.components.union import Union
from handshake.engines.circuit.simulation.simulate import Beat, Feed, feed, simulate
from handshake.errors import InputError, SchemaError, UnsupportedError
from handshake.plan.expr import Arithmetic, Call, Column, Compare, Literal
from handshake.schema import BOOL, FLOAT64, INT64, NULL, STRING, Decimal, Field, Float, Int

SETTINGS = settings(max_examples=12, deadline=None)
A, B = Column(0, "a", type=Int(8)), Column(0, "b", type=Int(4))
LESS = ("less", Compare("<", A, B, type=BOOL), BOOL)
BEATS = [Beat(SMALL.pack((i, i))) for i in range(8)]


def compute_block(registered: bool = True) -> Compute:
    return Compute(SMALL, (LESS,), registered=registered)


BLOCKS = {
    "fifo": lambda: Fifo(SMALL, 4),
    "fifo of one": lambda: Fifo(SMALL, 1),
    "fifo in memory": lambda: Fifo(SMALL, 4, storage="memory"),
    "select": lambda: Select(compute_block().after, "less"),
    "project": lambda: Project(SMALL, (("x", "b"),)),
    "compute": compute_block,
    "compute without register": lambda: compute_block(False),
    "delay": lambda: Delay(SMALL, 3),
    "lookup": lambda: Lookup(SMALL, ("b",), 1, write_cycles=1),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_latency_and_issue_rate_are_as_declared(name: str) -> None:
    block = BLOCKS[name]()
    row = compute_block().after if name == "select" else SMALL
    beats = [Beat(row.pack((i, 1, True)[: len(row.wires)])) for i in range(8)]
    at = 0
    if name == "lookup":  # the first tuple of a group takes longer: measured on its own below
        beats, at = [Beat(SMALL.pack((i, 1))) for i in range(40)], 0
        run = simulate(block, {"i": Feed(beats)}, stop_at_eos=False)
        assert run.outputs["o"][-1].cycle - run.accepted["i"][-1] == block.latency
        return
    assert latency_and_rate(block, beats, at=at) == (block.latency, block.issue_rate)


@pytest.mark.parametrize("depth", [0, 2])
def test_union_has_the_latency_of_its_fifos_and_one_more(depth: int) -> None:
    union = Union(SMALL, 3, depth=depth)
    run = simulate(union, {"i1": Feed(BEATS)}, stop_at_eos=False)
    assert run.outputs["o"][0].cycle - run.accepted["i1"][0] == union.latency == (2 if depth else 1)
    assert [a.cycle for a in run.outputs["o"]] == list(range(union.latency, union.latency + 8))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("storage", ["registers", "memory"])
def test_fifo_keeps_every_beat_in_order_whatever_is_held_back(depth: int, storage: str) -> None:
    """All patterns of four cycles on both sides: bounded exhaustive."""
    if depth < 2 and storage == "memory":
        with pytest.raises(ValueError, match="at least 2 beats"):
            Fifo(SMALL, depth, storage=storage)
        return
    beats = [*BEATS[:5], Beat(None, True)]
    for offered, taken in itertools.product(itertools.product((False, True), repeat=3), repeat=2):
        run = simulate(
            Fifo(SMALL, depth, storage=storage),
            {"i": Feed(beats, (*offered, True))},
            ready={"o": (*taken, True)},
        )
        assert [Beat(a.payload, a.eos) for a in run.outputs["o"]] == beats
        assert run.probes["level"] == 0


@SETTINGS
@given(st.data())
def test_union_forwards_every_tuple_once_and_ends_when_all_have(data: st.DataObject) -> None:
    n, depth = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2))
    streams = [[(k, k % 16) for k in range(10 * i, 10 * i + data.draw(st.integers(0, 6)))] for i in range(n)]
    feeds = {
        f"i{i}": feed(
            SMALL, tuples, pattern=data.draw(patterns), end=data.draw(st.sampled_from(["alone", "last"]))
        )
        for i, tuples in enumerate(streams)
    }
    run = simulate(Union(SMALL, n, depth=depth), feeds, ready={"o": data.draw(patterns)}, stop_at_eos=False)
    out = run.tuples("o", SMALL)
    assert Counter(out) == Counter(itertools.chain(*streams))
    assert [a.eos for a in run.outputs["o"]].count(True) == 1
    assert run.outputs["o"][-1].eos
    for tuples in streams:  # tuples of one input keep their order
        assert [t for t in out if t in set(tuples)] == tuples


def test_union_is_fair() -> None:
    feeds = {f"i{i}": feed(SMALL, [(i, k) for k in range(6)]) for i in range(3)}
    run = simulate(Union(SMALL, 3), feeds)
    order = [a for a, _ in run.tuples("o", SMALL)]
    assert all(set(order[k : k + 3]) == {0, 1, 2} for k in range(0, 15, 3))


@SETTINGS
@given(rows(SMALL), patterns, patterns)
def test_fork_and_concat_put_rows_side_by_side(
    tuples: list[tuple[int, int]], offered: object, ready: object
) -> None:
    from amaranth.hdl import Module

    from handshake.engines.circuit.components.block import Block
    from handshake.engines.circuit.components.stream import forward, stream_in, stream_out

    left, right = Project(SMALL, (("x", "a"),)), Project(SMALL, (("y", "b"), ("z", "a")), registered=False)
    both = Concat((left.after, right.after))

    class Pair(Block):
        def __init__(self) -> None:
            super().__init__({"i": stream_in(SMALL), "o": stream_out(both.row)})

        def build(self) -> Module:
            m = Module()
            m.submodules.fork = fork = Fork(SMALL, 2)
            m.submodules.left, m.submodules.right, m.submodules.both = left, right, both
            for a, b in ((self.i, fork.i), (fork.o0, left.i), (fork.o1, right.i)):
                forward(m, a, b)
            for a, b in ((left.o, both.i0), (right.o, both.i1), (both.o, self.o)):
                forward(m, a, b)
            return m

    out = through(Pair(), SMALL, tuples, both.row, pattern=offered, ready=ready)
    assert out == [(a, b, a) for a, b in tuples]


@SETTINGS
@given(rows(SMALL), patterns, patterns)
def test_stages_compute_select_and_project(
    tuples: list[tuple[int, int]], offered: object, ready: object
) -> None:
    for registered in (True, False):
        compute = compute_block(registered)
        out = through(compute, SMALL, tuples, compute.after, pattern=offered, ready=ready)
        assert out == [(a, b, a < b) for a, b in tuples]
        select = Select(compute.after, "less", registered=registered)
        kept = through(select, compute.after, out, compute.after, pattern=offered, ready=ready)
        assert kept == [t for t in out if t[2]]


def test_sums_grow_instead_of_wrapping() -> None:
    add = Arithmetic("+", A, Literal(127, type=INT64), type=INT64)
    compute = Compute(SMALL, (("sum", add, Int(9)), ("product", Arithmetic("*", A, A, type=INT64), Int(16))))
    out = through(compute, SMALL, [(127, 0), (-128, 0)], compute.after)
    assert out == [(127, 0, 254, 127 * 127), (-128, 0, -1, 16384)]


# Aggregates.


def fold(name: str, values: list[int | None]) -> object:
    """Return the result of an aggregate, in plain Python."""
    present = [v for v in values if v is not None]
    match name:
        case "count":
            return len(values)
        case "count of v":
            return len(present)
        case "wsum":
            newest = present[::-1][:2]
            return 3 * newest[0] - 2 * newest[1] if len(newest) == 2 else None
    if not present:
        return None
    return {"sum": sum, "min": min, "max": max, "avg": lambda p: sum(p) / len(p)}[name](present)


def make(name: str, row: Row = TEXT) -> object:
    field = "v"
    return {
        "count": lambda: Count(row, "r", INT64, None, most=20),
        "count of v": lambda: Count(row, "r", INT64, field, most=20),
        "sum": lambda: Sum(row, "r", INT64, field, most=20),
        "avg": lambda: Avg(row, "r", FLOAT64, field, most=20),
        "min": lambda: Extreme(row, "r", Int(16), field, largest=False, most=20),
        "max": lambda: Extreme(row, "r", Int(16), field, largest=True, most=20),
        "wsum": lambda: Wsum(row, "r", Decimal(7, 1), field, weights=(3, -2), most=20),
    }[name]()


AGGREGATES = ("count", "count of v", "sum", "avg", "min", "max", "wsum")


@settings(max_examples=5, deadline=None)
@given(st.lists(rows(TEXT), min_size=1, max_size=3), patterns, patterns, st.sampled_from(["alone", "last"]))
@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_of_streams_one_after_the_other(
    name: str, streams: list[list[tuple[object, int | None]]], offered: object, ready: object, end: str
) -> None:
    beats = [beat for tuples in streams for beat in feed(TEXT, tuples, end=end).beats]
    block = make(name)
    run = simulate(block, {"i": Feed(beats, offered)}, ready={"o": ready}, stop_at_eos=False, quiet=20)
    got = [value for (value,) in run.tuples("o", block.after)]
    assert got == [fold(name, [v for _, v in tuples]) for tuples in streams]


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_answer_one_cycle_after_the_end(name: str) -> None:
    beats = [Beat(TEXT.pack(("A", i))) for i in range(6)]
    beats[-1] = beats[-1]._replace(eos=True)
    assert latency_and_rate(make(name), beats, at=5) == (1, 1.0)


def test_a_sum_cannot_overflow() -> None:
    block = Sum(SMALL, "r", INT64, "a", most=5)
    assert block.result.range[0] <= -128 * 5
    assert through(block, SMALL, [(-128, 0)] * 5, block.after) == [(-640,)]


def test_an_empty_stream_may_give_no_row() -> None:
    block = Count(SMALL, "r", INT64, None, most=3, if_empty=False)
    run = simulate(block, {"i": feed(SMALL, [])})
    assert tuples_only(run) == []
    assert run.outputs["o"][-1].eos


# Grouping.


@pytest.mark.parametrize("write_cycles", [1, 16])
def test_a_hit_takes_one_cycle_and_a_miss_as_many_more_as_writing_takes(write_cycles: int) -> None:
    beats = [Beat(SMALL.pack((0, key))) for key in (1, 1, 2, 1)]
    run = simulate(Lookup(SMALL, ("b",), 4, write_cycles=write_cycles), {"i": Feed(beats)}, stop_at_eos=False)
    first, second, third, fourth = (a.cycle for a in run.outputs["o"])
    assert first - run.accepted["i"][0] == 2 + write_cycles
    assert (second - first, third - second, fourth - third) == (1, 1 + write_cycles, 1)


def test_a_group_too_many_is_dropped_and_counted() -> None:
    lookup = Lookup(SMALL, ("b",), 2, write_cycles=1)
    run = simulate(lookup, {"i": feed(SMALL, [(0, 1), (0, 2), (0, 3), (0, 1), (0, 4)])})
    assert run.tuples("o", lookup.after) == [(0, 1, 1), (0, 2, 2), (0, 1, 1)]
    assert run.probes["overflow"] == 2


def test_demultiplexer_routes_by_type_and_counts_what_is_unknown() -> None:
    demux = StreamDemux(SMALL, "b", ((1,), (2, 3)), (("a",), ("b", "a")))
    run = simulate(demux, {"i": feed(SMALL, [(10, 1), (11, 2), (12, 7), (13, 3), (14, 1)])})
    assert run.tuples("o0", demux.rows[0]) == [(10,), (14,)]
    assert run.tuples("o1", demux.rows[1]) == [(2, 11), (3, 13)]
    assert run.probes["unknown"] == 1
    assert run.outputs["o0"][0].cycle - run.accepted["i"][0] == demux.latency == 1


# Wires.


@settings(max_examples=30, deadline=None)
@given(rows(TEXT))
def test_what_is_packed_is_unpacked(tuples: list[tuple[object, ...]]) -> None:
    assert [TEXT.unpack(TEXT.pack(each)) for each in tuples] == tuples


def test_wires_refuse_what_they_cannot_carry() -> None:
    with pytest.raises(
        InputError, match=r"^300 does not fit field 'a' \(int8\), whose 8 wires carry -128 to 127$"
    ):
        SMALL.pack((300, 0))
    with pytest.raises(InputError, match=r"^'ABC' has 3 bytes, field 'key' has room for 2 on its wires$"):
        TEXT.pack(("ABC", 0))
    with pytest.raises(
        InputError, match=r"^'A\\x00' in field 'key' holds a zero byte, which ends text on wires$"
    ):
        TEXT.pack(("A\0", 0))
    with pytest.raises(InputError, match=r"^NULL in field 'a', which has no wire for it; declare the field"):
        SMALL.pack((None, 0))
    with pytest.raises(
        UnsupportedError, match=r"^field 's' is a string without a length; wires need one, .* text=… "
    ):
        wire(Field("s", STRING))
    with pytest.raises(SchemaError, match=r"^more than one field named 'a' \(a, a\); rename one$"):
        Row((Wire("a", INT64, 8), Wire("a", INT64, 8)))
    with pytest.raises(SchemaError, match=r"^selection by field 'a', which is int8, not bool$"):
        Select(SMALL, "a")


def test_a_field_without_a_value_has_a_wire_that_says_so() -> None:
    row = Row((wire(Field("n", NULL)), wire(Field("a", Int(8)))))
    assert row.unpack(row.pack((None, -3))) == (None, -3)


def test_operations_on_bits() -> None:
    row = Row((wire(Field("x", Int(4))), wire(Field("u", Int(3, signed=False)))))
    x, u = Column(0, "x", type=Int(4)), Column(0, "u", type=Int(3, signed=False))
    tuples = list(itertools.product(range(-8, 8), range(8)))
    operations = (
        *((name, Call((x, u), name, type=INT64), INT64) for name in ("bit_and", "bit_or", "bit_xor")),
        *((f"not_{c.name}", Call((c,), "bit_not", type=INT64), INT64) for c in (x, u)),
    )
    compute = Compute(row, operations)
    got = [each[2:] for each in through(compute, row, tuples, compute.after)]
    assert got == [(a & b, a | b, a ^ b, ~a, ~b) for a, b in tuples]
    with pytest.raises(
        UnsupportedError, match=r"^the circuit has no unit for shiftleft\(\): SHIFTLEFT\(l.x, l.u\)"
    ):
        Compute(row, (("s", Call((x, u), "shiftleft", type=INT64), INT64),))


@pytest.mark.parametrize(("bits", "least"), [(64, 5e-324), (32, 2.0**-149)])
def test_floats_are_carried_and_compared_but_not_computed_on(bits: int, least: float) -> None:
    """Both zeros are equal, NaN compares false but for <>, and the least numbers have their place."""
    kind = Float(bits)
    row = Row((wire(Field("x", kind)), wire(Field("y", kind))))
    x, y = Column(0, "x", type=kind), Column(0, "y", type=kind)
    numbers = [0.0, -0.0, least, -least, 1.5, -2.5, float("inf"), float("-inf"), float("nan"), -float("nan")]
    tuples = list(itertools.product(numbers, repeat=2))
    operations = tuple((op, Compare(op, x, y, type=BOOL), BOOL) for op in ("=", "<>", "<", "<=", ">", ">="))
    compute = Compute(row, operations)
    got = [each[2:] for each in through(compute, row, tuples, compute.after)]
    assert got == [(a == b, a != b, a < b, a <= b, a > b, a >= b) for a, b in tuples]
    with pytest.raises(
        UnsupportedError, match=rf"^the circuit has no unit for arithmetic on float{bits}: l.x \+ l.y"
    ):
        Compute(row, (("s", Arithmetic("+", x, y, type=kind), kind),))
