"""Windows of joins in parallel memories: which tuples they admit, and which they push out too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.fifo import next_place
from handshake.engines.circuit.components.slide import TIME
from handshake.engines.circuit.components.stream import stream_in, stream_out
from handshake.engines.circuit.components.types import Row, null_of
from handshake.engines.circuit.join.arrivals import arrivals_row
from handshake.engines.circuit.join.condition import Combination, PairGates
from handshake.engines.circuit.join.segment import BLOCK_RAM_FROM
from handshake.windows import Rule, is_late


class Store:
    """The last `size` tuples of a stream in `lanes` memories, built into its owner's module.

    Tuples lie in the memories in turn, as on a ring; a read gives `lanes` tuples that came one after another,
    the oldest ones first. `first` reads the oldest, `following` the next ones; in the cycle after either,
    `data` has them and `held` says which of them are there; `last` is high when none come after these.
    """

    def __init__(self, bits: int, size: int, lanes: int, name: str) -> None:
        self.bits, self.size, self.lanes, self.name = bits, size, lanes, name
        self.rows = -(-size // lanes)
        self.first, self.following = Signal(name=f"{name}_first"), Signal(name=f"{name}_following")
        self.insert, self.clear = Signal(name=f"{name}_insert"), Signal(name=f"{name}_clear")
        self.new = Signal(bits, name=f"{name}_new")
        self.data = [Signal(bits, name=f"{name}_data{lane}") for lane in range(lanes)]
        self.held, self.oldest_of = Signal(lanes, name=f"{name}_held"), Signal(lanes, name=f"{name}_from")
        """Which lanes have a tuple; and which ones come first: all from the oldest tuple's on."""
        self.last, self.full = Signal(name=f"{name}_last"), Signal(name=f"{name}_full")
        self.at_oldest = Signal(name=f"{name}_at_oldest")
        """Whether `data` begins with the oldest tuple."""

    def build(self, m: Module) -> None:
        """Add the memories and their pointers to the circuit."""
        self.filled = Signal(range(self.size + 1), name=f"{self.name}_filled")
        self.start, self.end = (self._pointer(which) for which in ("start", "end"))
        m.d.comb += self.full.eq(self.filled == self.size)
        self._read(m)
        self._write(m)

    def _pointer(self, which: str) -> tuple[Signal, Signal]:
        lane = Signal(range(self.lanes), name=f"{self.name}_{which}_lane")
        return lane, Signal(range(self.rows), name=f"{self.name}_{which}_row")

    def _read(self, m: Module) -> None:
        here, after = (Signal(range(self.rows), name=f"{self.name}_{what}") for what in ("row", "row_after"))
        seen = Signal(range(self.size + 2 * self.lanes), name=f"{self.name}_seen")
        m.d.comb += after.eq(Mux(self.first, self.start[1], next_place(here, self.rows)))
        with m.If(self.first | self.following):
            m.d.sync += [here.eq(after), seen.eq(Mux(self.first, 0, seen + self.lanes))]
        for lane in range(self.lanes):
            self._lane(m, lane, after, seen)
        m.d.comb += [self.last.eq(seen + self.lanes >= self.filled), self.at_oldest.eq(seen == 0)]

    def _lane(self, m: Module, lane: int, row: Signal, seen: Signal) -> None:
        style = "block" if self.rows >= BLOCK_RAM_FROM else "distributed"
        memory = Memory(shape=self.bits, depth=self.rows, init=[], attrs={"ram_style": style})
        m.submodules[f"{self.name}{lane}"] = memory
        write, read = memory.write_port(), memory.read_port()
        start, end = self.start, self.end
        behind = lane < start[0]  # lanes before the oldest tuple's have theirs one row further on
        place = Signal(range(self.lanes), name=f"{self.name}_place{lane}")
        m.d.comb += [
            read.addr.eq(Mux(behind, next_place(row, self.rows), row)),
            read.en.eq(self.first | self.following),
            self.data[lane].eq(read.data),
            place.eq(Mux(behind, lane + self.lanes - start[0], lane - start[0])),
            self.held[lane].eq(seen + place < self.filled), self.oldest_of[lane].eq(~behind),
            write.addr.eq(end[1]), write.data.eq(self.new), write.en.eq(self.insert & (end[0] == lane)),
        ]  # fmt: skip

    def _write(self, m: Module) -> None:
        with m.If(self.clear):
            pointers = (self.filled, *self.start, *self.end)
            m.d.sync += [pointer.eq(0) for pointer in pointers]
        with m.Elif(self.insert):
            self._advance(m, self.end)
            with m.If(self.full):
                self._advance(m, self.start)
            with m.Else():
                m.d.sync += self.filled.eq(self.filled + 1)

    def _advance(self, m: Module, pointer: tuple[Signal, Signal]) -> None:
        lane, row = pointer
        m.d.sync += lane.eq(next_place(lane, self.lanes))
        with m.If(lane == self.lanes - 1):
            m.d.sync += row.eq(next_place(row, self.rows))

    @property
    def first_lane(self) -> Value:
        """The lane of the oldest tuple, as one bit."""
        return self.oldest_of & ~(self.oldest_of << 1)[: self.lanes]

    def oldest(self, low: int, width: int) -> Value:
        """Return bits of the oldest tuple, as long as `data` begins with it."""
        first = self.first_lane
        parts = [d[low : low + width] & first[lane].replicate(width) for lane, d in enumerate(self.data)]
        value: Value = parts[0]
        for part in parts[1:]:
            value = value | part
        return value


@dataclass(frozen=True)
class HeldTuples:
    """The part of a stream that a join holds: its last `tuples`, which may be fewer than its window has."""

    tuples: int
    is_window: bool = True
    """True if these tuples are the window itself; False if a window without a bound is cut to them."""
    rule: Rule | None = None
    """The rule of a time window; None if no tuple is ever too old."""


class OrderedWindows(Block):
    """Windows in `stores`, times of tuples and counters: the common part of joins that keep order.

    Under a time window, tuples without a time and late ones are dropped and counted, as docs/semantics.md has
    it. Counters: `late`, `no_time`; and `evicted`, tuples that there was no room for any more.
    """

    # Made by `build`.
    stores: list[Store]
    fresh: Signal
    """High in the cycle after a beat was taken, when `data` of all stores begins with their oldest tuples."""

    def __init__(
        self,
        condition: PairGates | Combination,
        held: tuple[HeldTuples, ...],
        lanes: int,
        shown: Shape | None,
    ) -> None:
        self.held, self.lanes = held, lanes
        self.rows: tuple[Row, ...] = condition.rows
        self.sides: tuple[str, ...] = condition.sides
        """The prefix of each stream's fields in `arrivals`."""
        self.counters = self._counter_names()
        ports = {"arrivals": stream_in(arrivals_row(condition)), "results": stream_out(condition.result)}
        ports |= {name: Out(COUNTER) for name in self.counters}
        if self.timed:
            assert shown is not None
            ports["mark"] = In(shown)
        super().__init__(ports, (condition.key, held, lanes, shown))

    @property
    def timed(self) -> bool:
        """True if the join reads times."""
        return any(held.rule is not None for held in self.held)

    def _counter_names(self) -> tuple[str, ...]:
        bounded = not all(held.is_window for held in self.held)
        return (*(("late", "no_time") if self.timed else ()), *(("evicted",) if bounded else ()))

    def _build_stores(self, m: Module, new: list[Signal], has: Value, finish: Signal) -> None:
        """Build the windows; tuples of a beat are inserted when all of its results have been found."""
        for store, each, here in zip(self.stores, new, has, strict=True):
            store.build(m)
            m.d.comb += [store.new.eq(each), store.insert.eq(finish & here)]

    def _send_end(self, m: Module, made: Any, state: Signal, ready: Any) -> None:
        m.d.comb += made.eos.eq(1)
        with m.If(made.ready):
            m.d.comb += [store.clear.eq(1) for store in self.stores]
            m.d.sync += state.eq(ready)

    def _admit(self, m: Module, has: list[Value]) -> list[Value]:
        """Return the tuples of a beat that take part; under a time window only those in time."""
        if not self.timed:
            return has
        kept, late, untimed = list[Value](), Const(0, 2), Const(0, 2)
        for here, side, row in zip(has, self.sides, self.rows, strict=True):
            time, known = self._time_of(self.arrivals.payload, side, row)
            behind = is_late(time, self.mark)  # a tuple never makes itself late: its clock is not ahead of it
            stays = Signal(name=f"stays_{side}")
            m.d.comb += stays.eq(here & known & ~behind)
            late, untimed = late + (here & known & behind), untimed + (here & ~known)
            kept.append(stays)
        self.passed = Signal(self.mark.shape(), name="passed")
        m.d.sync += self.passed.eq(self.mark)
        m.d.sync += [self.late.eq(self.late + late), self.no_time.eq(self.no_time + untimed)]
        return kept

    def _time_of(self, payload: Any, side: str, row: Row) -> tuple[Value, Value]:
        time = Value.cast(payload[f"{side}.{TIME}"])
        known = ~payload[null_of(f"{side}.{TIME}")] if row[TIME].nullable else Const(1, 1)
        return time, known

    def _count_evicted(self, m: Module) -> None:
        """Count tuples that are pushed out though a partner may still come."""
        lost: list[Value] = []
        for n, (store, held) in enumerate(zip(self.stores, self.held, strict=True)):
            if not held.is_window:
                needed = Const(1, 1) if held.rule is None else self._can_still_join(m, n, store, held.rule)
                lost.append(store.insert & store.full & needed)
        if lost:
            m.d.sync += self.evicted.eq(self.evicted + sum(lost[1:], lost[0]))

    def _can_still_join(self, m: Module, n: int, store: Store, rule: Rule) -> Value:
        """Return whether a tuple that is not late could join the oldest one."""
        row = self.rows[n]
        at, shape = row.layout[TIME].offset, row[TIME].shape
        kept, oldest = Signal(shape, name=f"oldest_{n}"), Signal(shape, name=f"oldest_now_{n}")
        m.d.comb += oldest.eq(Mux(self.fresh, store.oldest(at, shape.width), kept))
        m.d.sync += kept.eq(oldest)
        return Value.cast(rule.holds(held=oldest, asked=self.passed))
