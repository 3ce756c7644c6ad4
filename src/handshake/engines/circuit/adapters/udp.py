"""Network adapter: Ethernet frames in, tuples out, without a processor (Glacier, section 5.1)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.fifo import next_place
from handshake.engines.circuit.components.stream import moves, stream_in, stream_out
from handshake.engines.circuit.components.types import Row, Wire
from handshake.errors import UnsupportedError
from handshake.schema import Int

BYTES = Row((Wire("byte", Int(8, signed=False), 8),))
"""Frames as a MAC gives them: a byte per cycle, `eos` with the last one of a frame; no preamble, no FCS."""

_ETHERNET, _IPV4, _UDP = 14, 0x0800, 17


def tuple_bytes(row: Row) -> int:
    """Return the bytes of a packed tuple: fields one after the other, in network byte order."""
    return sum(_width(each) for each in row)


def _width(each: Wire) -> int:
    return (each.bits + 7) // 8


class UdpParser(Block):
    """Parses Ethernet, IPv4 and UDP; the datagram's payload is one or more packed tuples of `row`.

    Tuples of a frame leave on `o` when its last byte has come and all of it is right: lengths, header
    checksum, UDP checksum (zero means none), no fragment, whole tuples. `i` is always ready: a network does
    not wait. Latency 1 (from the last byte), one byte per cycle. Counters: `datagrams` taken, `malformed`
    dropped, `other` (not IPv4, not UDP, or not for `port`), `dropped` (no room for the tuples of a frame).
    """

    latency = 1
    counters = ("datagrams", "malformed", "other", "dropped")

    def __init__(self, row: Row, *, port: int, depth: int = 256) -> None:
        if any(each.nullable for each in row):
            raise UnsupportedError("packed tuples have no NULL; fields of a datagram cannot be nullable")
        self.row, self.port, self.depth = row, port, depth
        ports = {"i": stream_in(BYTES), "o": stream_out(row)}
        ports |= {name: Out(COUNTER) for name in self.counters}
        super().__init__(ports, (row, port, depth))

    def build(self) -> Module:
        m = Module()
        frame = _Frame(m, self)
        frame.headers()
        buffer = _Buffer(m, self, frame)
        m.d.comb += self.i.ready.eq(1)
        for name, hit in frame.verdicts(buffer.overrun).items():
            with m.If(frame.last & hit):
                m.d.sync += getattr(self, name).eq(getattr(self, name) + 1)
        return m


class _Frame:
    """The position of the current byte in the frame, and what the bytes before it said."""

    def __init__(self, m: Module, block: UdpParser) -> None:
        self.m, self.block = m, block
        self.byte = Value.cast(block.i.payload["byte"])
        self.here = block.i.valid
        self.last = block.i.eos
        self.at = Signal(16)  # bytes before this one
        self.ip_length, self.total = Signal(7), Signal(16)
        self.udp_length = Signal(16)
        self.foreign, self.wrong, self.checked = Signal(), Signal(), Signal()
        self.ip_sum, self.udp_sum = Signal(16), Signal(16)
        self.ours: Value = Const(0, 1)
        self.right: Value = Const(0, 1)
        self.ip_at, self.udp_at = Signal(16), Signal(16)
        m.d.comb += [self.ip_at.eq(self.at - _ETHERNET), self.udp_at.eq(self.at - _ETHERNET - self.ip_length)]
        in_ip = self.at >= _ETHERNET
        self.in_header = in_ip & ((self.ip_at == 0) | (self.ip_at < self.ip_length))
        inside = in_ip & ~self.in_header & (self.ip_at < self.total)
        self.in_udp = Signal()
        m.d.comb += self.in_udp.eq(inside & self.here)
        self.in_payload = self.in_udp & (self.udp_at >= 8)

    def headers(self) -> None:
        """Check and remember fields as their bytes pass."""
        m = self.m
        with m.If(self.here):
            m.d.sync += self.at.eq(self.at + 1)
            self._ethernet()
            with m.If(self.in_header):
                self._ip()
            with m.If(self.in_udp):
                self._udp()
        with m.If(self.last):
            state = (self.at, self.ip_length, self.total, self.udp_length, self.foreign, self.wrong)
            m.d.sync += [s.eq(0) for s in (*state, self.checked, self.ip_sum, self.udp_sum)]

    def _ethernet(self) -> None:
        m = self.m
        for at, expected in ((12, _IPV4 >> 8), (13, _IPV4 & 0xFF)):
            with m.If((self.at == at) & (self.byte != expected)):
                m.d.sync += self.foreign.eq(1)

    def _ip(self) -> None:
        m, at, byte = self.m, self.ip_at, self.byte
        m.d.sync += self.ip_sum.eq(_add(self.ip_sum, self._word(at)))
        with m.Switch(at):
            with m.Case(0):
                m.d.sync += self.ip_length.eq(byte[:4] << 2)
                with m.If((byte[4:] != 4) | (byte[:4] < 5)):
                    m.d.sync += self.wrong.eq(1)
            with m.Case(2):
                m.d.sync += self.total.eq(byte << 8)
            with m.Case(3):
                m.d.sync += self.total.eq(self.total | byte)
            with m.Case(6), m.If(byte[:6].any()):  # more fragments, or an offset
                m.d.sync += self.wrong.eq(1)
            with m.Case(7), m.If(byte.any()):
                m.d.sync += self.wrong.eq(1)
            with m.Case(9), m.If(byte != _UDP):
                m.d.sync += self.foreign.eq(1)
            with m.Case(*range(12, 20)):
                m.d.sync += self.udp_sum.eq(_add(self.udp_sum, self._word(at)))

    def _udp(self) -> None:
        m, at, byte = self.m, self.udp_at, self.byte
        word = self._word(at)
        length = (at == 4) | (at == 5)
        pseudo = _add(_add(self.udp_sum, word), Mux(at == 4, _UDP, 0))  # the pseudo header's protocol
        m.d.sync += self.udp_sum.eq(Mux(length, _add(pseudo, word), pseudo))  # the length counts twice
        with m.Switch(at):
            with m.Case(2), m.If(byte != self.block.port >> 8):
                m.d.sync += self.foreign.eq(1)
            with m.Case(3), m.If(byte != self.block.port & 0xFF):
                m.d.sync += self.foreign.eq(1)
            with m.Case(4):
                m.d.sync += self.udp_length.eq(byte << 8)
            with m.Case(5):
                m.d.sync += self.udp_length.eq(self.udp_length | byte)
            with m.Case(6, 7), m.If(byte != 0):
                m.d.sync += self.checked.eq(1)

    def _word(self, at: Value) -> Value:
        """Return the byte in its half of a 16-bit word."""
        return Mux(at[0], self.byte, self.byte << 8)[:16]

    def judge(self) -> tuple[Value, Value]:
        """Return whether the frame is for us and whether it is right, once its last byte is here."""
        m = self.m
        count = Signal(17)
        m.d.comb += count.eq(self.at + self.here)
        sum_ = Signal(16)
        m.d.comb += sum_.eq(Mux(self.in_udp, _add(self.udp_sum, self._word(self.udp_at)), self.udp_sum))
        whole = (count >= self.total + _ETHERNET) & (self.udp_length >= 8)
        lengths = self.udp_length == self.total - self.ip_length
        headed = count >= _ETHERNET + 28
        sums = (self.ip_sum == 0xFFFF) & (~self.checked | (sum_ == 0xFFFF))
        return ~self.foreign, headed & whole & lengths & sums & ~self.wrong

    def verdicts(self, overrun: Value) -> dict[str, Value]:
        """Return for each counter whether the frame counts there."""
        ours, right = self.ours, self.right
        return {
            "other": ~ours,
            "malformed": ours & ~right,
            "dropped": ours & right & overrun,
            "datagrams": ours & right & ~overrun,
        }


def _add(a: Value, b: Any) -> Value:
    """Return the ones' complement sum: carries are added back in, as Internet checksums have it."""
    total = a + b
    return (total[:16] + total[16:])[:16]


class _Buffer:
    """Tuples of the frame so far, which count only when the frame is found right."""

    def __init__(self, m: Module, block: UdpParser, frame: _Frame) -> None:
        self.m, self.block, self.frame = m, block, frame
        width, depth = tuple_bytes(block.row), block.depth
        shift, filled = Signal(8 * width), Signal(range(width))
        self.overrun = Signal()
        latest = Signal(8 * width)
        m.d.comb += latest.eq(shift << 8 | frame.byte)
        full_tuple = frame.in_payload & (filled == width - 1)
        with m.If(frame.in_payload):
            m.d.sync += [shift.eq(latest), filled.eq(Mux(full_tuple, 0, filled + 1))]
        ours, right = frame.judge()
        partial = Mux(frame.in_payload, ~full_tuple, filled != 0)
        frame.ours, frame.right = ours, right & ~partial
        m.submodules.ring = ring = Memory(shape=8 * width, depth=depth, init=[])
        write, commit, read = (Signal(range(depth), name=n) for n in ("write", "commit", "read"))
        room = Signal()
        m.d.comb += room.eq(next_place(write, depth) != read)
        lost = Signal()
        m.d.comb += self.overrun.eq(lost | (full_tuple & ~room))
        port = ring.write_port()
        m.d.comb += [port.addr.eq(write), port.data.eq(latest), port.en.eq(full_tuple & room)]
        after = Signal(range(depth))
        m.d.comb += after.eq(Mux(full_tuple & room, next_place(write, depth), write))
        m.d.sync += [write.eq(after), lost.eq(self.overrun)]
        with m.If(frame.last):
            keep = frame.ours & frame.right & ~self.overrun
            m.d.sync += [
                commit.eq(Mux(keep, after, commit)),
                write.eq(Mux(keep, after, commit)),
                filled.eq(0),
                lost.eq(0),
            ]
        self._leave(ring, port, read, commit)

    def _leave(self, ring: Any, port: Any, read: Signal, commit: Signal) -> None:
        m, o, depth = self.m, self.block.o, self.block.depth
        following = Signal(range(depth))
        out = ring.read_port(transparent_for=(port,))
        m.d.comb += [
            following.eq(Mux(moves(o), next_place(read, depth), read)),
            out.addr.eq(following),
            out.en.eq(Const(1, 1)),
            o.valid.eq(read != commit),
        ]
        m.d.sync += read.eq(following)
        end = 8 * tuple_bytes(self.block.row)
        for each in self.block.row:
            field = out.data[end - 8 * _width(each) : end]
            m.d.comb += o.payload[each.name].eq(field[: each.bits])
            end -= 8 * _width(each)
