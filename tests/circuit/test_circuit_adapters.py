"""Adapters: UDP frames to tuples, with everything that can be wrong with a frame, and the CPU's registers."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits import SMALL, patterns
from frames import PORT, Frame
from handshake.engines.circuit.adapters.cpu import CpuReader, CpuWriter, words
from handshake.engines.circuit.adapters.udp import BYTES, UdpParser, tuple_bytes
from handshake.engines.circuit.components.types import Row, wire
from handshake.engines.circuit.simulation.simulate import Beat, Feed, Simulation
from handshake.errors import UnsupportedError
from handshake.schema import BOOL, STRING, Field, Int

ROW = Row(
    (
        wire(Field("Seqnr", Int(32))),
        wire(Field("Symbol", STRING), length=4),
        wire(Field("up", BOOL)),
        wire(Field("Price", Int(16))),
    )
)


def pack_tuples(tuples: list[tuple[Any, ...]]) -> bytes:
    return b"".join(struct.pack(">i4s?h", n, symbol.encode(), up, price) for n, symbol, up, price in tuples)


def beats(frames: list[bytes]) -> list[Beat]:
    return [Beat(byte, k == len(frame) - 1) for frame in frames for k, byte in enumerate(frame)]


@lru_cache
def parser(depth: int) -> Simulation:
    return Simulation(UdpParser(ROW, port=PORT, depth=depth))


def parse(frames: list[bytes], *, pattern: Any = (True,), ready: Any = (True,), depth: int = 64) -> Any:
    feeds = {"i": Feed(beats(frames), pattern)}
    return parser(depth).run(feeds, ready={"o": ready}, stop_at_eos=False, quiet=30)


TUPLES = [(1, "UBSN", True, 100), (-2, "AB", False, -5)]
GOOD = Frame(pack_tuples(TUPLES))


tuples = st.lists(
    st.tuples(
        st.integers(-(2**31), 2**31 - 1),
        st.sampled_from(["UBSN", "", "A"]),
        st.booleans(),
        st.integers(-9, 9),
    ),
    max_size=3,
)


@settings(max_examples=10, deadline=None)
@given(st.lists(tuples, min_size=1, max_size=3), st.data())
def test_tuples_of_right_frames_come_out_in_order(
    datagrams: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    frames = [
        Frame(
            pack_tuples(each),
            options=data.draw(st.sampled_from([b"", b"\1" * 4])),
            udp_sum=data.draw(st.sampled_from([None, 0])),
            padding=data.draw(st.sampled_from([b"", b"\x55" * 18])),
        ).bytes()
        for each in datagrams
    ]
    run = parse(frames, pattern=data.draw(patterns), ready=data.draw(patterns))
    assert run.tuples("o", ROW) == [each for datagram in datagrams for each in datagram]
    assert run.probes == {"datagrams": len(frames), "malformed": 0, "other": 0, "dropped": 0}


WRONG = {
    "IP checksum": (replace(GOOD, ip_sum=0x1234), "malformed"),
    "UDP checksum": (replace(GOOD, udp_sum=0x1234), "malformed"),
    "half a tuple": (replace(GOOD, payload=pack_tuples(TUPLES)[:-3]), "malformed"),
    "IP version": (replace(GOOD, version=6), "malformed"),
    "fragment": (replace(GOOD, fragment=0x2000), "malformed"),
    "later fragment": (replace(GOOD, fragment=3), "malformed"),
    "UDP length": (replace(GOOD, udp_length=9, udp_sum=0), "malformed"),
    "port": (replace(GOOD, port=5002), "other"),
    "TCP": (replace(GOOD, protocol=6), "other"),
    "ARP": (replace(GOOD, ethertype=0x0806), "other"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_frame_is_dropped_whole_and_counted(name: str) -> None:
    frame, counted = WRONG[name]
    run = parse([GOOD.bytes(), frame.bytes(), GOOD.bytes()])
    assert run.tuples("o", ROW) == TUPLES * 2
    assert run.probes == {"datagrams": 2, "malformed": 0, "other": 0, "dropped": 0} | {counted: 1}


@pytest.mark.parametrize("length", [1, 13, 20, 41, 50])
def test_a_frame_cut_short_is_malformed(length: int) -> None:
    run = parse([GOOD.bytes()[:length], GOOD.bytes()])
    assert run.tuples("o", ROW) == TUPLES
    assert run.probes["malformed"] + run.probes["other"] == 1


@settings(max_examples=15, deadline=None)
@given(st.integers(14, 63), st.integers(1, 255))
def test_no_flipped_byte_gets_past_the_checksums(at: int, flip: int) -> None:
    data = bytearray(GOOD.bytes())
    data[at] ^= flip
    run = parse([bytes(data)])
    assert run.tuples("o", ROW) == []
    assert run.probes["malformed"] + run.probes["other"] == 1


def test_tuples_leave_one_cycle_after_the_last_byte() -> None:
    run = parse([GOOD.bytes()])
    assert run.outputs["o"][0].cycle - run.accepted["i"][-1] == UdpParser(ROW, port=PORT).latency == 1


def test_a_datagram_that_does_not_fit_is_dropped_and_counted() -> None:
    run = parse([GOOD.bytes()] * 3, ready=(*[False] * 250, True), depth=4)
    assert run.tuples("o", ROW) == TUPLES
    assert run.probes == {"datagrams": 1, "malformed": 0, "other": 0, "dropped": 2}


def test_datagrams_have_no_null() -> None:
    row = Row((wire(Field("a", Int(8)), nullable=True),))
    with pytest.raises(
        UnsupportedError, match=r"^packed tuples have no NULL; fields of a datagram cannot be nullable$"
    ):
        UdpParser(row, port=1)
    assert tuple_bytes(ROW) == 11
    assert BYTES.bits == 8


# The CPU's side.


def drive(circuit: Any, bench: Any) -> None:
    simulator = Simulator(circuit)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


WIDE = Row((wire(Field("a", Int(64))), wire(Field("b", Int(8)))))


def test_a_cpu_reads_tuples_word_by_word() -> None:
    adapter = CpuReader(WIDE, depth=2)
    payload = WIDE.pack((-3, 7))

    async def read(ctx: Any, address: int) -> int:
        ctx.set(adapter.address, address)
        ctx.set(adapter.read, 1)
        value = int(ctx.get(adapter.data))
        await ctx.tick()
        ctx.set(adapter.read, 0)
        return value

    async def bench(ctx: Any) -> None:
        assert not ctx.get(adapter.interrupt)
        for valid, eos in ((1, 0), (0, 1)):
            ctx.set(adapter.i.valid, valid)
            ctx.set(adapter.i.eos, eos)
            ctx.set(adapter.i.payload.as_value(), payload)
            await ctx.tick()
        ctx.set(adapter.i.eos, 0)
        assert not ctx.get(adapter.i.ready)  # two places, two beats
        assert ctx.get(adapter.interrupt)
        assert await read(ctx, 0) == 1 | 2 << 8
        parts = [await read(ctx, 1 + k) for k in range(words(WIDE))]
        assert WIDE.unpack(sum(part << 32 * k for k, part in enumerate(parts))) == (-3, 7)
        assert await read(ctx, 0) == 2 | 1 << 8  # the end, alone
        await read(ctx, words(WIDE))
        assert not ctx.get(adapter.interrupt)

    drive(adapter, bench)


def test_a_cpu_writes_tuples_and_is_told_when_there_is_no_room() -> None:
    adapter = CpuWriter(SMALL, depth=1)

    async def write(ctx: Any, address: int, value: int) -> None:
        ctx.set(adapter.address, address)
        ctx.set(adapter.data, value)
        ctx.set(adapter.write, 1)
        await ctx.tick()
        ctx.set(adapter.write, 0)

    async def bench(ctx: Any) -> None:
        await write(ctx, 0, SMALL.pack((5, 6)))
        await write(ctx, 1, 0b11)
        assert ctx.get(adapter.o.valid)
        assert ctx.get(adapter.o.eos)
        assert SMALL.unpack(ctx.get(adapter.o.payload.as_value())) == (5, 6)
        assert ctx.get(adapter.full)
        await write(ctx, 1, 0b01)
        assert ctx.get(adapter.refused) == 1
        ctx.set(adapter.o.ready, 1)
        await ctx.tick()
        assert not ctx.get(adapter.full)
        assert not ctx.get(adapter.o.valid)

    drive(adapter, bench)
