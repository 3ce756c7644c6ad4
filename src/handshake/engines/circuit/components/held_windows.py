"""Windows that a join holds, of tuples or of time: which tuples it admits, and which leave too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.slide import TIME
from handshake.engines.circuit.components.stores import Store
from handshake.engines.circuit.components.stream import stream_in, stream_out
from handshake.engines.circuit.components.types import Row, null_of
from handshake.engines.circuit.join.arrivals import arrivals_row
from handshake.engines.circuit.join.combination import Combination
from handshake.engines.circuit.join.condition import Condition
from handshake.windows import Rule, is_late

__all__ = ["Held", "HeldWindows"]


@dataclass(frozen=True)
class Held:
    """What a join holds of a stream: its last `tuples`, all of its window or as many as there is room for."""

    tuples: int
    is_window: bool = True
    """True if these tuples are the window itself; False if a window without a bound is cut to them."""
    rule: Rule | None = None
    """The rule of a time window; None if no tuple is ever too old."""


class HeldWindows(Block):
    """What joins in order have in common: their windows in `stores`, the times of tuples, and counters.

    Under a time window, tuples without a time and late ones are dropped and counted, as docs/semantics.md has
    it. Counters: `late`, `no_time`; and `evicted`, tuples that there was no room for any more.
    """

    # Made by `build`.
    stores: list[Store]
    fresh: Signal
    """High in the cycle after a beat was taken, when `data` of all stores begins with their oldest tuples."""

    def __init__(
        self, condition: Condition | Combination, held: tuple[Held, ...], lanes: int, shown: Shape | None
    ) -> None:
        self.held, self.lanes = held, lanes
        self.rows: tuple[Row, ...] = condition.rows
        self.sides: tuple[str, ...] = condition.sides
        """What the fields of each stream begin with in `arrivals`."""
        self.counters = self._counted()
        ports = {"arrivals": stream_in(arrivals_row(condition)), "results": stream_out(condition.result)}
        ports |= {name: Out(COUNTER) for name in self.counters}
        if self.timed:
            assert shown is not None
            ports["mark"] = In(shown)
        super().__init__(ports, (condition.key, held, lanes, shown))

    @property
    def timed(self) -> bool:
        """Whether the join looks at times."""
        return any(held.rule is not None for held in self.held)

    def _counted(self) -> tuple[str, ...]:
        bounded = not all(held.is_window for held in self.held)
        return (*(("late", "no_time") if self.timed else ()), *(("evicted",) if bounded else ()))

    def _admitted(self, m: Module, has: list[Value]) -> list[Value]:
        """Which tuples of a beat take part: under a time window, those with a time that are not late."""
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
        """Tuples that are pushed out though a partner may still come."""
        lost: list[Value] = []
        for n, (store, held) in enumerate(zip(self.stores, self.held, strict=True)):
            if not held.is_window:
                needed = Const(1, 1) if held.rule is None else self._needed(m, n, store, held.rule)
                lost.append(store.insert & store.full & needed)
        if lost:
            m.d.sync += self.evicted.eq(self.evicted + sum(lost[1:], lost[0]))

    def _needed(self, m: Module, n: int, store: Store, rule: Rule) -> Value:
        """Whether a tuple that is not late could join the oldest one."""
        row = self.rows[n]
        at, shape = row.layout[TIME].offset, row[TIME].shape
        kept, oldest = Signal(shape, name=f"oldest_{n}"), Signal(shape, name=f"oldest_now_{n}")
        m.d.comb += oldest.eq(Mux(self.fresh, store.oldest(at, shape.width), kept))
        m.d.sync += kept.eq(oldest)
        return Value.cast(rule.holds(held=oldest, asked=self.passed))
