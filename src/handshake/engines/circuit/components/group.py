"""Grouping: content-addressable memory, de-multiplexer and sub-plan copies (Glacier, 4.7 and figure 7).

The CAM finds the copy for a tuple's key in one cycle; a key that it does not hold takes `write_cycles` more
to enter (the paper's CAM of lookup tables: 16). A FIFO before it takes the tuples that wait meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from operator import and_
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.operators import copy_field
from handshake.engines.circuit.components.slide import Slide
from handshake.engines.circuit.components.stream import (
    StreamSignature,
    forward,
    moves,
    register,
    stream_in,
    stream_out,
)
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row, Wire, null_of, plain
from handshake.engines.circuit.components.union import Union, lowest
from handshake.engines.circuit.components.window import Body, Windows
from handshake.errors import UnsupportedError
from handshake.schema import INT64, Float

WRITE_CYCLES = 16
GROUP = "@group"
"""Hidden field: one-hot, the sub-plan copy of a tuple's group."""


def hidden_key(name: str) -> str:
    """Return the name of the field that carries a group's key beside its tuples."""
    return f"@key.{name}"


def key_row(row: Row, keys: tuple[str, ...]) -> Row:
    """Return the wires of the grouping fields."""
    for key in keys:
        if isinstance(row[key].type, Float) or row[key].count_bits:
            raise UnsupportedError(
                f"the circuit cannot group by '{key}' ({row[key].type}), whose equality is not that of "
                'wires; use engine="local"'
            )
    return Row(tuple(row[key] for key in keys))


def routed_row(row: Row, keys: tuple[str, ...]) -> Row:
    """Return the wires that a copy reads: the tuple without its place, and the key of its group."""
    hidden = [replace(w, name=hidden_key(w.name)) for w in key_row(row, keys)]
    return Row((*(w for w in row if w.name != GROUP), *hidden))


def grouped_row(after: Row, keys: tuple[str, ...]) -> Row:
    """Return the wires of results: the keys, then the copy's columns."""
    hidden = [hidden_key(key) for key in keys]
    named = [replace(after[h], name=key) for key, h in zip(keys, hidden, strict=True)]
    return Row((*named, *(w for w in after if w.name not in hidden)))


def _key(payload: Any, row: Row) -> Value:
    """Return all bits of the grouping fields; the value of a NULL counts as zero."""
    parts: list[Value] = []
    for each in row:
        value = Value.cast(payload[each.name]).as_unsigned()
        if each.nullable:
            null = payload[null_of(each.name)]
            parts += [Mux(null, 0, value)[: each.bits], null]
        else:
            parts.append(value)
    return Cat(*parts)


class Lookup(Block):
    """The CAM: `i` leaves on `o` with the one-hot place of its group in the hidden field `@group`.

    Latency 2 (FIFO and lookup), `write_cycles` more for a key that is new. When all of the `entries` are
    taken, tuples of further groups are dropped and counted in `overflow`. Inputs: `clear_at_end` is the
    paper's arrangement (each window has its own CAM, cleared when it ends); otherwise an entry is given free
    when its bit of `occupied` is low and none of its tuples is on the way.
    """

    latency = 2
    counters = ("overflow",)

    def __init__(
        self,
        row: Row,
        keys: tuple[str, ...],
        entries: int,
        *,
        write_cycles: int = WRITE_CYCLES,
        clear_at_end: bool = True,
        depth: int | None = None,
    ) -> None:
        self.row, self.keys, self.entries = row, key_row(row, keys), entries
        self.write_cycles, self.clear_at_end = write_cycles, clear_at_end
        # Section 4.7: with 16 places for each group, one tuple per cycle comes in whatever groups are new.
        self.depth = depth if depth is not None else max(2, write_cycles * entries)
        self.after = Row((*row.wires, Wire(GROUP, INT64, entries)))
        ports = {
            "i": stream_in(row),
            "o": stream_out(self.after),
            "occupied": In(entries),
            "overflow": Out(COUNTER),
        }
        super().__init__(ports, (row, keys, entries, write_cycles, clear_at_end, self.depth))

    def build(self) -> Module:
        m = Module()
        m.submodules.fifo = fifo = Fifo(self.row, self.depth, storage="memory")
        forward(m, self.i, fifo.i)
        head, key = fifo.o, Signal(self.keys.bits)
        taken, hit = Signal(self.entries), Signal(self.entries)
        stored = [Signal(self.keys.bits, name=f"key{g}") for g in range(self.entries)]
        m.d.comb += [
            key.eq(_key(head.payload, self.keys)),
            hit.eq(Cat(taken[g] & (stored[g] == key) for g in range(self.entries))),
        ]
        missing, full = Signal(), Signal()
        m.d.comb += [missing.eq(head.valid & ~hit.any()), full.eq(taken.all())]
        self._write(m, missing & ~full, key, stored, taken)
        self._send(m, head, hit, ~missing | full)
        self._release(m, taken, head, hit)
        with m.If(moves(head) & missing):
            m.d.sync += self.overflow.eq(self.overflow + 1)
        return m

    def _write(self, m: Module, miss: Value, key: Value, stored: list[Signal], taken: Signal) -> None:
        """Enter a new key into the first free entry after `write_cycles`; then the lookup finds it."""
        wait = Signal(range(self.write_cycles))
        last = wait == self.write_cycles - 1
        with m.If(miss):
            m.d.sync += wait.eq(Mux(last, 0, wait + 1))
        place = Signal(self.entries)
        m.d.comb += place.eq(lowest(~taken))
        for g in range(self.entries):
            with m.If(miss & last & place[g]):
                m.d.sync += [stored[g].eq(key), taken[g].eq(1)]

    def _send(self, m: Module, head: Any, hit: Value, decided: Value) -> None:
        made = StreamSignature(self.after).create(path=("made",))
        for each in self.row:
            copy_field(m, made.payload, head.payload, each, each.name)
        m.d.comb += [
            made.payload[GROUP].eq(hit),
            made.valid.eq(head.valid & hit.any()),
            made.eos.eq(head.eos & decided),
            head.ready.eq(made.ready & decided),
        ]
        register(m, made, self.o)

    def _release(self, m: Module, taken: Signal, head: Any, hit: Value) -> None:
        if self.clear_at_end:
            with m.If(moves(head) & head.eos):
                m.d.sync += taken.eq(0)
            return
        coming = Mux(head.valid, hit, 0) | Mux(self.o.valid, self.o.payload[GROUP], 0)
        for g in range(self.entries):
            with m.If(~self.occupied[g] & ~coming[g] & taken[g]):
                m.d.sync += taken[g].eq(0)


class Route(Block):
    """De-multiplexer and sub-plan copies: the tuple goes to the copy that `@group` names (rule GRPBY).

    The payload goes to all copies; only `valid` is routed. `eos` goes to all. Each copy's key is kept from
    its first tuple on. Results leave through a union without FIFOs. Latency: the sub-plan's, and 1. Output
    `occupied`: the copies that hold tuples.
    """

    flags = ("occupied",)

    def __init__(self, row: Row, keys: tuple[str, ...], body: Body) -> None:
        self.row, self.keys, self.body = row, keys, body
        self.entries = row[GROUP].bits
        self.latency = body.latency + 1
        self.inner = routed_row(row, keys)
        self.after = grouped_row(body.after, keys)
        ports = {"i": stream_in(row), "o": stream_out(self.after), "occupied": Out(self.entries)}
        super().__init__(ports, (row, keys, body))

    def build(self) -> Module:
        m = Module()
        m.submodules.union = union = Union(self.after, self.entries, depth=0)
        taken = Signal(self.entries)
        done: list[Value] = []
        for g in range(self.entries):
            m.submodules[f"copy{g}"] = copy = self.body.make()
            self._key(m, g, copy.i.payload)
            mine = self.i.valid & self.i.payload[GROUP][g]
            m.d.comb += [copy.i.valid.eq(mine & ~taken[g]), copy.i.eos.eq(self.i.eos & ~taken[g])]
            done.append(~(mine | self.i.eos) | taken[g] | copy.i.ready)
            m.d.sync += taken[g].eq((taken[g] | moves(copy.i)) & ~moves(self.i))
            self._leave(m, copy, getattr(union, f"i{g}"))
            with m.If(moves(self.i)):
                m.d.sync += self.occupied[g].eq((self.occupied[g] | mine) & ~self.i.eos)
        m.d.comb += self.i.ready.eq(tree_of(and_, done))
        forward(m, union.o, self.o)
        return m

    def _key(self, m: Module, g: int, payload: Any) -> None:
        """Drive the tuple's fields and the key of its group, kept from the group's first tuple on."""
        for each in self.row:
            if each.name != GROUP:
                copy_field(m, payload, self.i.payload, each, each.name)
        first = self.i.valid & self.i.payload[GROUP][g] & ~self.occupied[g]
        for key in self.keys:
            each = self.row[key]
            parts = [(key, hidden_key(key), each.shape)]
            parts += [(null_of(key), null_of(hidden_key(key)), 1)] if each.nullable else []
            for source, target, shape in parts:
                kept = Signal(shape, name=f"{plain(source)}{g}")
                m.d.comb += payload[target].eq(Mux(first, self.i.payload[source], kept))
                m.d.sync += kept.eq(payload[target])

    def _leave(self, m: Module, copy: Block, sink: Any) -> None:
        names = {key: hidden_key(key) for key in self.keys}
        for each in self.after:
            copy_field(m, sink.payload, copy.o.payload, each, names.get(each.name, each.name))
        m.d.comb += [sink.valid.eq(copy.o.valid), sink.eos.eq(copy.o.eos), copy.o.ready.eq(sink.ready)]


class Group(Block):
    """Lookup and Route one after the other, as a sub-plan of a window: the CAM is cleared when it ends."""

    counters = ("overflow",)

    def __init__(
        self, row: Row, keys: tuple[str, ...], body: Body, entries: int, *, write_cycles: int = WRITE_CYCLES
    ) -> None:
        self.lookup = Lookup(row, keys, entries, write_cycles=write_cycles)
        self.route = Route(self.lookup.after, keys, body)
        self.after = self.route.after
        self.latency = self.lookup.latency + self.route.latency
        ports = {"i": stream_in(row), "o": stream_out(self.after), "overflow": Out(COUNTER)}
        super().__init__(ports, (row, keys, body, entries, write_cycles))

    def build(self) -> Module:
        m = Module()
        m.submodules.lookup, m.submodules.route = self.lookup, self.route
        forward(m, self.i, self.lookup.i)
        forward(m, self.lookup.o, self.route.i)
        forward(m, self.route.o, self.o)
        m.d.comb += self.overflow.eq(self.lookup.overflow)
        return m


def looked_up_row(row: Row, entries: int) -> Row:
    """Return the wires of a tuple with the place of its group."""
    return Row((*row.wires, Wire(GROUP, INT64, entries)))


class GroupedWindows(Block):
    """A CAM, then windows whose copies are de-multiplexers with a sub-plan per group.

    The CAM holds the groups of all open windows; an entry is free again when no open window has its group.
    """

    counters = ("late", "no_time", "overflow")

    def __init__(
        self,
        row: Row,
        keys: tuple[str, ...],
        slide: Slide,
        route: Body,
        entries: int,
        write_cycles: int,
        merge: str,
    ) -> None:
        self.lookup = Lookup(row, keys, entries, write_cycles=write_cycles, clear_at_end=False)
        self.windows = Windows(self.lookup.after, slide, route, merge=merge)
        self.latency = self.lookup.latency + self.windows.latency
        ports = {"i": stream_in(row), "o": stream_out(self.windows.after)}
        ports |= {name: Out(COUNTER) for name in self.counters}
        super().__init__(ports, (row, keys, slide, route, entries, write_cycles, merge))

    def build(self) -> Module:
        m = Module()
        m.submodules.lookup, m.submodules.windows = self.lookup, self.windows
        forward(m, self.i, self.lookup.i)
        forward(m, self.lookup.o, self.windows.i)
        forward(m, self.windows.o, self.o)
        m.d.comb += [
            self.lookup.occupied.eq(self.windows.occupied),
            self.overflow.eq(self.lookup.overflow),
            self.late.eq(self.windows.late),
            self.no_time.eq(self.windows.no_time),
        ]
        return m
