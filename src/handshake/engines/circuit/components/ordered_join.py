"""A window join whose results come in order: with their last tuple, by the arrival of the other one.

Handshake join lets tuples drift past each other, so its results come when they meet, in any order. Where what
follows counts results or closes windows by them, this arrangement is used: a tuple is compared with the
opposite window at once, `lanes` tuples in a cycle, the oldest first; only then the next tuple is taken.

It also holds windows of time, up to a number of tuples: a tuple that is pushed out while it could still find
a partner is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Module, Mux, Shape, Signal, Value
from amaranth.lib.enum import Enum

from handshake.engines.circuit.components.join_windows import HeldTuples, OrderedWindows, Store
from handshake.engines.circuit.components.stream import StreamSignature, register
from handshake.engines.circuit.components.union import multiplex, rotating_grant
from handshake.engines.circuit.join.arrivals import HAS_LEFT, HAS_RIGHT
from handshake.engines.circuit.join.condition import Delay, PairGates


class _State(Enum, shape=3):  # type: ignore[call-arg]  # Amaranth has no types
    READY = 0
    SCAN_LEFT = 1
    SCAN_RIGHT = 2
    PAIR = 3
    END = 4


class OrderedJoin(OrderedWindows):
    """Ports: `arrivals` and `results`, as of `HandshakeJoin`; under time windows also `mark`, what the clock
    of the join shows with the tuples that arrive: the least of both streams' own, each less its lateness.

    Latency 2, from a tuple to the result with the oldest one of the other window; each further row of `lanes`
    tuples takes a cycle, and so does each result but the first of a row.
    """

    latency = 2

    def __init__(
        self, condition: PairGates, held: tuple[HeldTuples, ...], lanes: int, *, shown: Shape | None = None
    ) -> None:
        self.condition = condition
        self.issue_rate = 1 / (1 + max(-(-each.tuples // lanes) for each in held))
        super().__init__(condition, held, lanes, shown)

    def build(self) -> Module:
        m = Module()
        self.stores = [
            Store(row.bits, held.tuples, self.lanes, name)
            for row, held, name in zip(self.rows, self.held, ("left", "right"), strict=True)
        ]
        self.new = [Signal(row.bits, name=f"new_{n}") for n, row in enumerate(self.rows)]
        self.state, self.has, self.ending = Signal(_State), Signal(2), Signal()
        self.finish, self.fresh = Signal(), Signal()
        self.made = StreamSignature(self.condition.result).create(path=("made",))
        self._build_stores(m, self.new, self.has, self.finish)
        self._control(m)
        self._count_evicted(m)
        register(m, self.made, self.results)
        return m

    def _control(self, m: Module) -> None:
        m.d.sync += self.fresh.eq(self.state == _State.READY)
        with m.Switch(self.state):
            with m.Case(_State.READY):
                self._ready(m)
            with m.Case(_State.SCAN_LEFT):
                self._scan(m, 0, lambda: self._then(m, self.has[0], _State.SCAN_RIGHT))
            with m.Case(_State.SCAN_RIGHT):
                self._scan(m, 1, lambda: self._then(m, self.has[1], _State.PAIR))
            with m.Case(_State.PAIR):  # a stream with itself: the tuple meets itself last
                found = self._match(*self.new)
                m.d.comb += [self.made.valid.eq(found[0]), self.made.payload.as_value().eq(found[1])]
                with m.If(~found[0] | self.made.ready):
                    self._finish(m)
            with m.Case(_State.END):
                self._send_end(m, self.made, self.state, _State.READY)

    def _then(self, m: Module, more: Value, state: Any) -> None:
        with m.If(more):
            m.d.sync += self.state.eq(state)
        with m.Else():
            self._finish(m)

    def _finish(self, m: Module) -> None:
        m.d.comb += self.finish.eq(1)
        m.d.sync += self.state.eq(Mux(self.ending, _State.END, _State.READY))

    def _ready(self, m: Module) -> None:
        """Take a beat; both windows are read from their oldest tuples on."""
        payload, width = self.arrivals.payload, self.condition.left.bits
        whole = payload.as_value()
        m.d.comb += [self.arrivals.ready.eq(1), *(store.first.eq(1) for store in self.stores)]
        m.d.sync += [
            self.new[0].eq(whole[2 : 2 + width]), self.new[1].eq(whole[2 + width :]),
            self.ending.eq(self.arrivals.eos),
        ]  # fmt: skip
        has = self._admit(m, [payload[flag] & self.arrivals.valid for flag in (HAS_LEFT, HAS_RIGHT)])
        m.d.sync += [self.has[n].eq(each) for n, each in enumerate(has)]
        with m.If(has[1]):
            m.d.sync += self.state.eq(_State.SCAN_LEFT)
        with m.Elif(has[0]):
            m.d.sync += self.state.eq(_State.SCAN_RIGHT)
        with m.Elif(self.arrivals.eos):
            m.d.sync += self.state.eq(_State.END)

    # Comparison.

    def _match(self, left: Value, right: Value) -> tuple[Value, Value]:
        views = self.condition.left.layout(left), self.condition.right.layout(right)
        return self.condition.matches(Delay(None), *views), self.condition.carry(*views)

    def _scan(self, m: Module, side: int, then: Callable[[], None]) -> None:
        """Compare the new tuple with a row of the other window; results leave one by one, oldest first."""
        store, other = self.stores[side], self.new[1 - side]
        pairs = [(data, other) if side == 0 else (other, data) for data in store.data]
        parts = [self._match(*pair) for pair in pairs]
        sent, left = Signal(self.lanes, name=f"sent_{side}"), Signal(self.lanes, name=f"left_{side}")
        found = [part[0] & store.held[lane] & ~sent[lane] for lane, part in enumerate(parts)]
        if side == 0:
            found = self._without_oldest(found, store)
        grant = rotating_grant(m, found, store.oldest_of)
        m.d.comb += [
            self.made.valid.eq(grant.any()),
            self.made.payload.as_value().eq(multiplex(grant, [part[1] for part in parts])),
        ]
        for lane, each in enumerate(found):
            m.d.comb += left[lane].eq(each & ~grant[lane])
        with m.If(~grant.any() | self.made.ready):
            m.d.sync += sent.eq(Mux(left.any(), sent | grant, 0))
            with m.If(~left.any()):
                with m.If(store.last):
                    then()
                with m.Else():
                    m.d.comb += store.following.eq(1)

    def _without_oldest(self, found: list[Value], store: Store) -> list[Value]:
        """Leave out the oldest left tuple if the left tuple of the same beat has pushed it out."""
        gone = self.has[0] & store.full & store.at_oldest
        first = store.first_lane
        return [each & ~(gone & first[lane]) for lane, each in enumerate(found)]
