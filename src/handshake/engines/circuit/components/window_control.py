"""The state machines of the windowing template: which sub-plan copy gets what in which cycle."""

from __future__ import annotations

from abc import abstractmethod
from operator import and_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.operators import copy_field
from handshake.engines.circuit.components.slide import CLOCK, START, TIME
from handshake.engines.circuit.components.stream import StreamSignature, forward, moves, register
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row, Wire, bits_of_range, null_of
from handshake.engines.circuit.components.union import multiplex
from handshake.schema import INT64


class Control:
    """The common part of both kinds of windows: steps, merging of results, the end of the input."""

    base: Signal
    """The start of the oldest window."""

    def __init__(self, m: Module, block: Any, copies: list[Block]) -> None:
        self.m, self.block, self.copies, self.slide = m, block, copies, block.slide
        self.i = block.i
        self.n = n = len(copies)
        self.oldest = Signal(n, init=1)
        self.turn = Signal(range(n))  # the place of the one bit in `oldest`
        self.following = Signal(range(n))  # that place after an advance
        self.used = Signal(n)  # copies whose window has a tuple
        self.taken = Signal(n)  # copies that have taken their part of this step
        self.close, self.enter, self.last = Signal(), Signal(), Signal()
        self.step_done, self.member = Signal(), Signal(n)
        self.tuple_done = Signal()
        self.discard, self.finish, self.finished = Signal(), Signal(), Signal()
        self.pending = Signal(range(n * (block.body.latency + 6)))
        self.tuple = self.i.valid & ~self.tuple_done

    def build(self) -> None:
        """Build all of the template's logic."""
        self.m.d.comb += self.following.eq(Mux(self.turn == self.n - 1, 0, self.turn + 1))
        self._steps()
        self._merging()
        self.machine()

    @abstractmethod
    def machine(self) -> None:
        """Build the state machine that decides on steps."""

    @abstractmethod
    def restart(self) -> None:
        """Get ready for the next stream."""

    @abstractmethod
    def result_time(self) -> Value:
        """Return the time of results of the window that closes."""

    @abstractmethod
    def result_clock(self) -> Value:
        """Return the clock of results of the window that closes."""

    # One step: `close` ends the oldest window, `enter` sends the tuple to the copies in `member`.

    def _steps(self) -> None:
        m, n = self.m, self.n
        eos = Signal(n)
        m.d.comb += eos.eq(Mux(self.close, self.oldest & (self.used | self._fill()), 0))
        beat = Signal(self.block.inner.layout)
        self._payload(beat)
        done: list[Value] = []
        for s, copy in enumerate(self.copies):
            for each in self.block.inner:
                copy_field(m, copy.i.payload, beat, each, each.name)
            enters = self.enter & self.member[s]
            m.d.comb += [copy.i.valid.eq(enters & ~self.taken[s]), copy.i.eos.eq(eos[s] & ~self.taken[s])]
            addressed = enters | eos[s]
            done.append(~addressed | self.taken[s] | copy.i.ready)
            m.d.sync += self.taken[s].eq((self.taken[s] | moves(copy.i)) & ~self.step_done)
        self.closing = eos
        room = self._order_room(eos)
        m.d.comb += self.step_done.eq((self.close | self.enter) & tree_of(and_, done) & room)
        with m.If(self.step_done):
            entered = Mux(self.enter, self.member, 0)
            if self.slide.kind == "time":  # the closed copy is not a member
                m.d.sync += self.used.eq((self.used & ~Mux(self.close, self.oldest, 0)) | entered)
            else:
                m.d.sync += self.used.eq((self.used | entered) & ~Mux(self.close, self.oldest, 0))
            with m.If(self.close):
                m.d.sync += [self.oldest.eq(self.oldest.rotate_left(1)), self.turn.eq(self.following)]

    def _fill(self) -> Value:
        """Return the copies that a tuple enters if its window may close with the same tuple."""
        return Mux(self.enter, self.member, 0) if self.slide.kind == "tuples" else Const(0, self.n)

    def place(self, ordinals: list[Value], turn: Value) -> None:
        """Find the copies of windows by their age (0: the oldest, at `turn`).

        The ring is turned by a power of two per level, so that gates grow with n·log n: a gate for each age
        and copy would be n² of them.
        """
        ages = Cat(*ordinals, Const(0, self.n - len(ordinals)))
        for level in range(len(turn)):
            turned = Signal(self.n, name=f"turned{level}")
            self.m.d.comb += turned.eq(ages)
            ages = Mux(turn[level], turned.rotate_left(1 << level), turned)
        self.m.d.comb += self.member.eq(ages)

    def _payload(self, payload: Any) -> None:
        """Drive the tuple and, for a closing window, its start, and its time and clock if they are read."""
        for each in self.block.inner:
            if each.name == START:
                self.m.d.comb += payload[START].eq(self.base)
            elif self.slide.timed and each.name in (TIME, CLOCK):
                self._stamp(payload, each)
            else:
                copy_field(self.m, payload, self.i.payload, each, each.name)

    def _stamp(self, payload: Any, each: Wire) -> None:
        """Give results a time and a clock of their own: rule 8 of docs/queries.md."""
        stamp = self.result_time() if each.name == TIME else self.result_clock()
        self.m.d.comb += payload[each.name].eq(Mux(self.close, stamp, self.i.payload[each.name]))
        if each.nullable:
            null = Mux(self.close, self.result_null(), self.i.payload[null_of(each.name)])
            self.m.d.comb += payload[null_of(each.name)].eq(null)

    def result_null(self) -> Value:
        """Return a bit that is high when no tuple of the window that closes has a time."""
        return Const(0, 1)

    # Merging of results.

    def _merging(self) -> None:
        """Send results of the windows to the output register in the order in which the windows closed.

        A round-robin choice would let a younger window overtake an older one that is held back.
        """
        m = self.m
        made = StreamSignature(self.block.after).create(path=("made",))
        head, streams = self.order.o, self._streams()
        served = Signal(self.n)
        m.d.comb += served.eq(Cat(*(head.payload["copy"] == s for s in range(self.n))))
        source = multiplex(served, [Cat(each.valid, each.eos) for each in streams])
        valid, eos = source[0] & head.valid, source[1] & head.valid
        payloads = []
        for s, each in enumerate(streams):
            result = Signal(self.block.after.layout, name=f"result{s}")
            for field in self.block.after:
                copy_field(m, result, each.payload, field, field.name)
            payloads.append(result)
            m.d.comb += each.ready.eq(served[s] & head.valid & made.ready)
        m.d.comb += [
            made.payload.eq(multiplex(served, payloads)),
            made.valid.eq(valid & ~self.discard),
            made.eos.eq(self.finish),
            self.finished.eq(self.finish & made.ready),
            head.ready.eq(eos & made.ready),
        ]
        register(m, made, self.block.o)
        m.d.sync += self.pending.eq(self.pending + self.closing.any() * self.step_done - (eos & made.ready))

    def _streams(self) -> list[Any]:
        """Return the results of each copy: through a FIFO, or directly to the multiplexer (section 6.3)."""
        if self.block.merge == "multiplexer":
            return [copy.o for copy in self.copies]
        streams = []
        for s, copy in enumerate(self.copies):
            self.m.submodules[f"fifo{s}"] = fifo = Fifo(self.block.body.after, 2)
            forward(self.m, copy.o, fifo.i)
            streams.append(fifo.o)
        return streams

    def _order_room(self, closing: Value) -> Value:
        """Queue the copies that have closed, for merging; return whether there is room."""
        row = Row((Wire("copy", INT64, len(self.turn)),))
        depth = 2 * self.n + self.block.body.latency
        self.m.submodules.order = self.order = Fifo(row, max(2, depth))
        self.m.d.comb += [
            self.order.i.payload["copy"].eq(self.turn),
            self.order.i.valid.eq(closing.any() & self.step_done),
        ]
        return self.order.i.ready

    # The end of the input.

    def ending(self, first: str) -> None:
        """Close or clear open windows after the last tuple, wait for results, and pass the end on."""
        m = self.m
        with m.State("FLUSH"):
            with m.If(self.used.any()):
                m.d.comb += self.close.eq(1)
            with m.Else():
                m.next = "DRAIN"
        with m.State("DRAIN"), m.If(self.pending == 0):
            m.next = "END"
        with m.State("END"):
            m.d.comb += self.finish.eq(1)
            with m.If(self.finished):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [self.tuple_done.eq(0), self.oldest.eq(1), self.turn.eq(0)]
                self.restart()
                m.next = first

    def consume(self) -> None:
        """Take the tuple; if it also ends the stream, the beat stays for the end."""
        with self.m.If(self.i.eos):
            self.m.d.sync += self.tuple_done.eq(1)
        with self.m.Else():
            self.m.d.comb += self.i.ready.eq(1)


class TimeControl(Control):
    """Windows [j·l, j·l + k): a window closes when a tuple's clock reaches its end."""

    def __init__(self, m: Module, block: Any, copies: list[Block]) -> None:
        super().__init__(m, block, copies)
        k, step = self.slide.size, self.slide.advance
        least, most = block.row[TIME].range
        first = (least - k) // step * step  # not after any window that a time can be in
        bits, _ = bits_of_range(first, most + k)
        self.levels = max(1, ((most - first) // step + 1).bit_length())
        self.base = Signal(Shape(bits, signed=True), init=first)
        self.first = first
        self.stride = Signal(Shape(bits + 2, signed=False), init=step << (self.levels - 1))

    def result_time(self) -> Value:
        return self.base + self.slide.size - 1

    def result_clock(self) -> Value:
        return self.result_time()

    def restart(self) -> None:
        self.m.d.sync += self.base.eq(self.first)

    def machine(self) -> None:
        m, k, step = self.m, self.slide.size, self.slide.advance
        ahead, far, no_time = Signal(), Signal(), Signal()
        since = Signal(Shape(len(self.base) + 2, signed=True))
        m.d.comb += [
            since.eq(Value.cast(self.i.payload[CLOCK]) - self.base),
            ahead.eq(since >= k),
            far.eq(since >= k + step),
        ]
        if self.block.row[TIME].nullable:
            m.d.comb += no_time.eq(self.i.payload[null_of(TIME)])
        place = self._place(ahead)
        with m.If(self.step_done & self.close):
            m.d.sync += self.base.eq(self.base + step)
        with m.FSM():
            with m.State("RUN"):
                with m.If(self.tuple & no_time):
                    m.d.sync += self.block.no_time.eq(self.block.no_time + 1)
                    self.consume()
                with m.Elif(self.tuple & far & ~self.used.any()):
                    m.d.sync += self.stride.eq(step << (self.levels - 1))
                    m.next = "SEEK"
                with m.Elif(self.tuple):
                    m.d.comb += [self.close.eq(ahead), self.enter.eq(~far)]
                    with m.If(self.step_done & ~far):
                        with m.If(self._late(place)):
                            m.d.sync += self.block.late.eq(self.block.late + 1)
                        self.consume()
                with m.Elif(self.i.eos):
                    m.next = "FLUSH"
            with m.State("SEEK"):
                # As long division: the largest power of two times l that does not go beyond.
                with m.If(since >= self.stride + (k - step)):
                    m.d.sync += self.base.eq(self.base + self.stride)
                m.d.sync += self.stride.eq(self.stride >> 1)
                with m.If(self.stride == step):
                    m.next = "RUN"
            self.ending("RUN")

    def _place(self, ahead: Value) -> Value:
        """Return the position of the tuple in the oldest window, after this step's advance."""
        k, step = self.slide.size, self.slide.advance
        place = Signal(Shape(len(self.base) + 2, signed=True))
        time = Value.cast(self.i.payload[TIME])
        self.m.d.comb += place.eq(time - self.base - Mux(ahead, step, 0))
        turn = Signal(range(self.n))
        self.m.d.comb += turn.eq(Mux(ahead, self.following, self.turn))
        ages = [(place >= age * step) & (place < age * step + k) for age in range(self.n - 1)]
        self.place(ages, turn)
        return place

    def _late(self, place: Value) -> Value:
        """Return whether the tuple is in a window that has closed."""
        k, step = self.slide.size, self.slide.advance
        if step <= k:
            return place < k - step
        return (place < 0) & (place % step < k)


class TupleControl(Control):
    """Windows of the tuples j·l … j·l + k - 1: a window closes with its last tuple."""

    def __init__(self, m: Module, block: Any, copies: list[Block]) -> None:
        super().__init__(m, block, copies)
        k, step = self.slide.size, self.slide.advance
        bits, signed = bits_of_range(min(0, k - step), k)
        self.offset = Signal(Shape(bits, signed=signed))  # of the next tuple, from the oldest window's start
        self.base = Signal(64)
        if self.slide.timed:
            self.latest = [Signal(block.row[TIME].shape, name=f"latest{s}") for s in range(self.n)]
            self.known = Signal(self.n)  # copies whose window has a tuple with a time
            nullable = block.row[TIME].nullable
            self.null = self.i.payload[null_of(TIME)] if nullable else Const(0, 1)

    def result_time(self) -> Value:
        time = Value.cast(self.i.payload[TIME])
        before = multiplex(self.oldest, [each.as_unsigned() for each in self.latest])
        held = before.as_signed() if self.block.row[TIME].signed else before
        return Mux(self._has_time() & (self.null | (held > time)), held, time)

    def result_null(self) -> Value:
        return self.null & ~self._has_time()

    def _has_time(self) -> Value:
        """Return a bit that is high when an earlier tuple of the window that closes has a time."""
        return (self.oldest & self.used & self.known).any()

    def result_clock(self) -> Value:
        return Value.cast(self.i.payload[CLOCK])  # clocks do not run back: that of the last tuple

    def restart(self) -> None:
        self.m.d.sync += [self.base.eq(0), self.offset.eq(0), self.discard.eq(0)]

    def machine(self) -> None:
        m, k, step = self.m, self.slide.size, self.slide.advance
        self.place([self.offset >= age * step for age in range(self.n - 1)], self.turn)
        full = Signal()
        m.d.comb += full.eq(self.offset == k - 1)
        if self.slide.timed:
            self._times()
        with m.FSM():
            with m.State("RUN"):
                with m.If(self.tuple):
                    m.d.comb += [self.enter.eq(1), self.close.eq(full)]
                    with m.If(self.step_done):
                        m.d.sync += self.offset.eq(Mux(full, k - step, self.offset + 1))
                        m.d.sync += self.base.eq(Mux(full, self.base + step, self.base))
                        self.consume()
                with m.Elif(self.i.eos & (self.pending == 0)):
                    m.d.sync += self.discard.eq(1)  # windows that are not full give nothing
                    m.next = "FLUSH"
            self.ending("RUN")

    def _times(self) -> None:
        """Keep the largest time among the tuples of each window."""
        time = Value.cast(self.i.payload[TIME])
        for s, latest in enumerate(self.latest):
            held = self.used[s] & self.known[s]
            with self.m.If(self.step_done & self.enter & self.member[s]):
                self.m.d.sync += self.known[s].eq(held | ~self.null)
                with self.m.If(~self.null & ~(held & (latest > time))):
                    self.m.d.sync += latest.eq(time)
