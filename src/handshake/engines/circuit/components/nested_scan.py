"""A window join of three and more streams: the windows are scanned inside one another, in order.

A tuple that arrives is joined at once. For each tuple of the first other window that the condition lets
through, as far as it can be decided already, the next window is scanned, and so on; the last one gives the
results. They come with their last tuple, by the arrival of the members in the order of the streams. Nothing
is kept of combinations that are not complete: they are found again for each tuple that arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value

from handshake.engines.circuit.components.join_windows import HeldTuples, OrderedWindows, Store
from handshake.engines.circuit.components.stream import StreamSignature, register
from handshake.engines.circuit.components.union import multiplex, rotating_grant
from handshake.engines.circuit.join.arrivals import has_of
from handshake.engines.circuit.join.condition import Combination, Conjunct

_READY = 0
"""The state that takes a beat; state 1 + k scans the window of stream k, and one more sends the end."""


def most_cycles(held: Sequence[HeldTuples], lanes: int, together: Collection[frozenset[int]] = ()) -> int:
    """Return the most cycles that an arrival takes, with full windows and at most one result per row.

    The condition lets everything through until the last window. `together`: streams that one arrival may
    have tuples of, if several; all of them at once cost the most.
    """
    alone = (_scan_cycles([*held[:k], *held[k + 1 :]], lanes) for k in range(len(held)))
    return 1 + max(*alone, *(_scan_cycles_together(held, lanes, each) for each in together if len(each) > 1))


def _scan_cycles(held: Sequence[HeldTuples], lanes: int) -> int:
    first, *rest = held
    return first.tuples * (1 + _scan_cycles(rest, lanes)) if rest else _rows(first, lanes)


def _scan_cycles_together(held: Sequence[HeldTuples], lanes: int, arrived: frozenset[int]) -> int:
    """Return the cycles of an arrival with tuples of several streams.

    Every window is scanned, and then the tuple that arrived, unless nothing new is in place or comes after.
    """
    *outer, last = range(len(held))
    old, new = int(last in arrived), _rows(held[last], lanes) + (last in arrived)
    for k in reversed(outer):
        tuples, own = held[k].tuples, 1 + new if k in arrived else 0
        before = tuples - (k in arrived)  # the oldest one has left for those that come after this stream
        passed_by = int(before < tuples and min(lanes, tuples) == 1)
        old = before * (1 + max(1, old)) + passed_by + own if any(j > k for j in arrived) else max(1, own)
        new = tuples * (1 + new) + own
    return old


def _rows(held: HeldTuples, lanes: int) -> int:
    return -(-held.tuples // min(lanes, held.tuples))


@dataclass
class _Level:
    """The state of the scan of one window."""

    store: Store
    new: Signal
    """The tuple that arrived, if one did."""
    member: Signal
    """The tuple of a combination that is being completed."""
    sent: Signal
    """Which tuples of the row of memories have been members."""
    spent: Signal
    """All tuples of the window have been looked at: the one that arrived is left."""

    def enter(self, m: Module) -> None:
        """Start at the oldest tuple."""
        m.d.comb += self.store.first.eq(1)
        m.d.sync += [self.sent.eq(0), self.spent.eq(0)]

    @property
    def oldest(self) -> Value:
        """The lane that has the oldest tuple of the window."""
        return self.store.first_lane & self.store.at_oldest.replicate(self.store.lanes)


class _Look:
    """Signals of one cycle of the scan of a window."""

    def __init__(self, k: int, store: Store) -> None:
        self.scanning = Signal(name=f"scanning_{k}")
        """A row of the window is looked at; else the tuple of the beat, if it may be a member."""
        self.grant, self.member = Signal(store.lanes, name=f"grant_{k}"), Signal(store.bits, name=f"seen_{k}")
        self.taken, self.leaves = Signal(name=f"taken_{k}"), Signal(name=f"leaves_{k}")
        """A member is found; and it is the oldest tuple, which the beat has pushed out."""
        self.left, self.goes_on = Signal(name=f"left_{k}"), Signal(name=f"goes_on_{k}")
        """The row has more members; and there is more to look at."""


class NestedScan(OrderedWindows):
    """The join. Ports: `arrivals`, `results` and `mark` as of `OrderedJoin`, for any number of streams.

    Latency as many as there are streams, from a tuple to the result with the oldest ones of the other
    windows. An arrival takes as many cycles as `most_cycles` has it, or fewer: a tuple that the condition
    rules out costs nothing but its part of a row. Each result but the first of a row takes one more.

    In a beat with tuples of several streams (one input joined with itself), each stream's is in place behind
    its window's, and combinations without any of them are left out. The stream that comes first in the query
    came first, so that its tuple has pushed its oldest one out for those of the streams after it.
    """

    def __init__(
        self,
        condition: Combination,
        held: tuple[HeldTuples, ...],
        lanes: int,
        *,
        shown: Shape | None = None,
        together: Collection[frozenset[int]] = (),
    ) -> None:
        self.condition = condition
        self.latency, self.issue_rate = len(held), 1 / most_cycles(held, lanes, together)
        super().__init__(condition, held, lanes, shown)

    def build(self) -> Module:
        m, n = Module(), len(self.rows)
        self.levels = [self._level(k) for k in range(n)]
        self.stores = [level.store for level in self.levels]
        self.state, self.ending = Signal(range(n + 2)), Signal()
        self.has, self.alone = Signal(n), Signal(n)
        """Which streams the beat has a tuple of; and which one, if it is the only one."""
        self.is_new, self.leaves, self.more = Signal(n), Signal(n), Signal(n)
        """Of members: which are of this beat, and which were the oldest ones that it has pushed out of their
        windows; and which windows have more to look at."""
        self.finish, self.fresh = Signal(), Signal()
        self.made = StreamSignature(self.condition.result).create(path=("made",))
        self._build_stores(m, [level.new for level in self.levels], self.has, self.finish)
        self._control(m)
        self._count_evicted(m)
        register(m, self.made, self.results)
        return m

    def _level(self, k: int) -> _Level:
        bits, tuples = self.rows[k].bits, self.held[k].tuples
        lanes = min(self.lanes, tuples)
        return _Level(
            Store(bits, tuples, lanes, f"stream{k}_"),
            Signal(bits, name=f"new_{k}"),
            Signal(bits, name=f"member_{k}"),
            Signal(lanes, name=f"sent_{k}"),
            Signal(name=f"spent_{k}"),
        )

    def _control(self, m: Module) -> None:
        m.d.sync += self.fresh.eq(self.state == _READY)
        with m.Switch(self.state):
            with m.Case(_READY):
                self._ready(m)
            for k in range(len(self.levels)):
                with m.Case(1 + k):
                    self._scan(m, k)
            with m.Case(self._end):
                self._send_end(m, self.made, self.state, _READY)

    @property
    def _end(self) -> int:
        return 1 + len(self.levels)

    def _ready(self, m: Module) -> None:
        """Take a beat; all windows are read from their oldest tuples on."""
        payload = self.arrivals.payload
        m.d.comb += self.arrivals.ready.eq(1)
        m.d.sync += [self.ending.eq(self.arrivals.eos), self.leaves.eq(0), self.more.eq(0)]
        for level, bits in zip(self.levels, self._arrivals(), strict=True):
            m.d.sync += [level.new.eq(bits), level.member.eq(bits)]
            level.enter(m)
        here = [payload[has_of(side)] & self.arrivals.valid for side in self.sides]
        has, alone = Signal(len(here), name="admitted"), Signal(len(here), name="only")
        m.d.comb += has.eq(Cat(*self._admit(m, here)))
        m.d.comb += alone.eq(Mux((has & (has - 1)[: len(has)]).any(), 0, has))
        m.d.sync += [self.has.eq(has), self.alone.eq(alone), self.is_new.eq(alone)]
        with m.If(has.any()):
            m.d.sync += self.state.eq(Mux(alone[0], 2, 1))
        with m.Elif(self.arrivals.eos):
            m.d.sync += self.state.eq(self._end)

    def _arrivals(self) -> Iterator[Value]:
        whole, at = self.arrivals.payload.as_value(), len(self.rows)
        for row in self.rows:
            yield whole[at : at + row.bits]
            at += row.bits

    # Scans.

    def _scan(self, m: Module, k: int) -> None:
        """Look at a row of a window, or at the tuple of the beat after it; take the oldest that fits."""
        level, last = self.levels[k], self._is_last(k)
        look = self._look(m, k)
        m.d.comb += [
            self.made.valid.eq(look.taken & last),
            self.made.payload.as_value().eq(self._result(k, look.member)),
        ]
        with m.If(~look.taken | ~last | self.made.ready):
            self._look_on(m, level, look)
            with m.If(look.taken & ~last):
                m.d.sync += [
                    level.member.eq(look.member), self.more[k].eq(look.goes_on),
                    self.is_new[k].eq(~look.scanning), self.leaves[k].eq(look.leaves),
                ]  # fmt: skip
                self._descend(m, k)
            with m.Elif(~look.goes_on):
                self._return(m, k)

    def _look(self, m: Module, k: int) -> _Look:
        level, store = self.levels[k], self.levels[k].store
        look, found = _Look(k, store), Signal(store.lanes, name=f"found_{k}")
        new_before, newest = _any(self.is_new[:k]), self.has[k] & ~_any(self.leaves[:k])
        leaving = level.oldest & (self.has[k] & store.full).replicate(store.lanes)
        m.d.comb += [
            look.scanning.eq(~level.spent & (new_before | _any(self.has[k + 1 :])) & self._can_join_alone(k)),
            found.eq(self._candidates(k) & ~(leaving & (~new_before).replicate(store.lanes))),
        ]
        fits_new = self._fits(k, level.new, self._decidable(k))
        grant = rotating_grant(m, [look.scanning & each for each in found], store.oldest_of)
        m.d.comb += [
            look.grant.eq(grant), look.left.eq((found & ~grant).any()),
            look.leaves.eq((leaving & grant).any()),
            look.taken.eq(Mux(look.scanning, grant.any(), newest & fits_new)),
            look.member.eq(Mux(look.scanning, multiplex(grant, store.data), level.new)),
            look.goes_on.eq(look.scanning & (look.left | ~store.last | newest)),
        ]  # fmt: skip
        return look

    def _look_on(self, m: Module, level: _Level, look: _Look) -> None:
        """Go on to the rest of the row, to the next row, or to the tuple that arrived."""
        with m.If(look.scanning):
            m.d.sync += level.sent.eq(Mux(look.left, level.sent | look.grant, 0))
            with m.If(~look.left):
                with m.If(level.store.last):
                    m.d.sync += level.spent.eq(1)
                with m.Else():
                    m.d.comb += level.store.following.eq(1)

    def _is_last(self, k: int) -> Value:
        """Return whether a combination is complete with a member of this stream."""
        n = len(self.levels)
        if k == n - 1:
            return Const(1, 1)
        return self.alone[n - 1] if k == n - 2 else Const(0, 1)

    def _descend(self, m: Module, k: int) -> None:
        """Go on to the next window; a tuple that arrived alone is a member already."""
        n = len(self.levels)
        if k + 1 == n:
            return
        with m.If(self.alone[k + 1]):
            if k + 2 < n:
                self._enter(m, k + 2)
        with m.Else():
            self._enter(m, k + 1)

    def _enter(self, m: Module, k: int) -> None:
        self.levels[k].enter(m)
        m.d.sync += self.state.eq(1 + k)

    def _return(self, m: Module, k: int) -> None:
        """Go back to the nearest window before that has more to look at, or to the next beat."""
        if k == 0:
            m.d.comb += self.finish.eq(1)
            m.d.sync += self.state.eq(Mux(self.ending, self._end, _READY))
            return
        with m.If(self.more[k - 1]):
            m.d.sync += self.state.eq(k)
        with m.Else():
            self._return(m, k - 1)

    def _result(self, k: int, member: Value) -> Value:
        return Cat(*(member if j == k else level.member for j, level in enumerate(self.levels)))

    # The condition.

    def _candidates(self, k: int) -> Value:
        """Return the tuples of a row that fit the members before and the one that arrived alone."""
        level = self.levels[k]
        behind = [j for j in range(k + 1, len(self.levels)) if self._decidable(k, j)]
        fits = [
            reduce(
                and_,
                (~self.alone[j] | self._fits(k, data, self._decidable(k, j)) for j in behind),
                self._fits(k, data, self._decidable(k)),
            )
            for data in level.store.data
        ]
        return Cat(*fits) & level.store.held & ~level.sent

    def _decidable(self, k: int, alone: int | None = None) -> list[Conjunct]:
        """Return the conjuncts that the member of a stream decides, with all members before and `alone`."""
        behind = frozenset() if alone is None else frozenset({alone})
        ours = (part for part in self.condition.parts if k in part.reads)
        return [part for part in ours if frozenset(j for j in part.reads if j > k) == behind]

    def _fits(self, k: int, bits: Value, parts: Sequence[Conjunct]) -> Value:
        members: Mapping[int, Value] = {j: level.member for j, level in enumerate(self.levels)} | {k: bits}
        return self.condition.holds(parts, members)

    def _can_join_alone(self, k: int) -> Value:
        """Return whether a tuple that arrived alone can be a member at all; asked in the first window."""
        streams = {0: range(1, len(self.levels)), 1: range(1)}.get(k, range(0))
        unable = [
            self.alone[j] & ~self._fits(j, self.levels[j].member, parts)
            for j in streams
            if (parts := [part for part in self.condition.parts if part.reads == {j}])
        ]
        return ~reduce(or_, unable, Const(0, 1))


def _any(bits: Value) -> Value:
    return bits.any() if len(bits) else Const(0, 1)
