"""Window joins to circuits: what is below them in lock step, and the join itself.

Below a join there may be selections, projections, arithmetic, unions of different inputs, and streams that an
input carries: whatever makes at most one tuple of an arrival. See components.sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import singledispatchmethod

from handshake.engines.circuit.components.join_windows import HeldTuples
from handshake.engines.circuit.components.slide import TIME
from handshake.engines.circuit.components.stamp import common_row
from handshake.engines.circuit.components.window_join import JoinSpec
from handshake.engines.circuit.join.design import CORES, MOST_TUPLES, at_most
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.join_nets import ClaimNet, JoinNet, LockstepUnionNet, MaskNet, SequenceNet
from handshake.engines.circuit.nets.netlist import ComputeNet, Net, ProjectNet, StampNet, WidenNet
from handshake.errors import UnsupportedError
from handshake.plan.algebra import Apply, Node, Plan, Project, Select, Source, Union, Windowing, WindowJoin
from handshake.plan.algebra import walk as walk_plan
from handshake.plan.expr import And, Arithmetic, Column, Compare, Expr, Literal
from handshake.schema import BOOL, INT64, UNITS
from handshake.windows import Window, Windows


def is_timed(node: WindowJoin) -> bool:
    """Return whether a join reads times."""
    return Windows(*node.windows).timed


class Joins:
    """Translates the joins of a plan; `leaf` makes the input of a source that is not carried by another."""

    def __init__(self, plan: Plan, bounds: Bounds, leaf: Callable[[Source], Net]) -> None:
        self._plan, self._bounds, self._leaf = plan, bounds, leaf
        every = [node for output in plan.outputs for node in walk_plan(output)]
        self._joins = [node for node in every if isinstance(node, WindowJoin)]
        windows = [node for node in every if isinstance(node, Windowing)]
        self._ordered = {
            id(join) for w in windows for join in walk_plan(w.input) if isinstance(join, WindowJoin)
        }
        below = {_input_of(s) for join in self._joins for s in walk_plan(join) if isinstance(s, Source)}
        self.inputs = tuple(s for name, s in plan.own_inputs.items() if name in below)
        """The inputs whose arrivals have one order."""
        self._done: dict[tuple[int, bool], Net] = {}
        self._counted: set[str] = set()

    # The join.

    def net(self, node: WindowJoin, timed: bool) -> Net:
        """Return the net of a join; `timed`: times and clocks of its results are read further on."""
        needs_time = timed or is_timed(node)
        if needs_time and len({child.clock.unit for child in node.inputs}) > 1:
            units = [f"{n} in {c.clock.unit}" for n, c in zip(node.names, node.inputs, strict=True)]
            streams = "both" if len(units) == 2 else "all"
            raise UnsupportedError(
                f"{_name(node)}: the circuit compares times of one unit only, and these are "
                f"{_list(units)}; declare {streams} streams with the same one"
            )
        sources = tuple(self.slots(child, needs_time, node) for child in node.inputs)
        return JoinNet(sources, self._spec(node, timed))

    def _spec(self, node: WindowJoin, timed: bool) -> JoinSpec:
        ordered = self._needs_order(node, timed)
        held = tuple(self._hold(node, k) for k in range(len(node.inputs)))
        most = min if len(held) == 2 else max  # of several, each window has as many memories as it can use
        lanes = min(self._bounds.cores or CORES, most(each.tuples for each in held))
        return JoinSpec(
            node.names,
            _with_times(node),
            held,
            lanes,
            ordered,
            self._bounds.buffer,
            self._bounds.merger_buffer,
            timed,
            _together(node),
        )

    def _needs_order(self, node: WindowJoin, timed: bool) -> bool:
        """Return whether the join must give its results in order."""
        plain = all(window is not None and window.capacity for window in node.windows)
        several = len(node.inputs) > 2
        needs = timed or id(node) in self._ordered or not plain or several
        if self._bounds.join == "handshake" and several:
            raise UnsupportedError(
                f"{_name(node)} is of {len(node.inputs)} streams, and a handshake join of two; leave the "
                "arrangement to the compiler (auto)"
            )
        if self._bounds.join == "handshake" and needs:
            why = (
                "a window reads its results, whose order a handshake join does not promise"
                if plain
                else "a handshake join holds windows of tuples"
            )
            raise UnsupportedError(f"{_name(node)}: {why}; leave the arrangement to the compiler (auto)")
        return needs or self._bounds.join == "ordered"

    def _hold(self, node: WindowJoin, k: int) -> HeldTuples:
        window, name = node.windows[k], node.names[k]
        if window is not None and window.capacity == 0:
            raise UnsupportedError(
                f"{_name(node)}: {name} goes by arrival without a window (NOW), and a circuit holds at least "
                "one tuple; give the other streams windows of time"
            )
        if window is not None and window.capacity is not None:
            at_most(f"tuples in the window of {name}", window.capacity, MOST_TUPLES)
            return HeldTuples(window.capacity)
        if self._bounds.window_tuples is None:
            what = f"a window of {window}" if window is not None else "no window"
            raise UnsupportedError(
                f"{_name(node)}: {name} has {what}, and how many tuples are to be held has no bound; give "
                "the most with window_tuples=…, or a window of tuples"
            )
        at_most(f"tuples in the window of {name}", self._bounds.window_tuples, MOST_TUPLES)
        rule = None if window is None else window.rule(node.clock.unit)
        return HeldTuples(self._bounds.window_tuples, is_window=False, rule=rule)

    # The nets below a join.

    def slots(self, node: Node, timed: bool, join: WindowJoin) -> Net:
        """Return the net of a plan below a join, in lock step."""
        key = (id(node), timed)
        if key not in self._done:
            self._done[key] = self._slots(node, timed, join)
        return self._done[key]

    @singledispatchmethod
    def _slots(self, node: Node, timed: bool, join: WindowJoin) -> Net:
        what = f"a window ({node.window})" if isinstance(node, Windowing) else "another join"
        raise UnsupportedError(
            f"{_name(join)} reads the results of {what}, of which an arrival may give any number; below a "
            "join the circuit has selections, projections, arithmetic and unions of different streams"
        )

    @_slots.register
    def _(self, node: Select, timed: bool, join: WindowJoin) -> Net:
        return MaskNet(self.slots(node.input, timed, join), node.field)

    @_slots.register
    def _(self, node: Apply, timed: bool, join: WindowJoin) -> Net:
        return ComputeNet(self.slots(node.input, timed, join), ((node.name, node.operation, node.type),))

    @_slots.register
    def _(self, node: Project, timed: bool, join: WindowJoin) -> Net:
        return ProjectNet(self.slots(node.input, timed, join), node.columns)

    @_slots.register
    def _(self, node: Union, timed: bool, join: WindowJoin) -> Net:
        claims = [claim for each in node.inputs for claim in _claims(each)]
        if len(set(claims)) < len(claims) or any(
            (stream, None) in claims for stream, v in claims if v is not None
        ):
            raise UnsupportedError(
                f"{_name(join)} reads a union of streams that share an input, of which one arrival may give "
                "two tuples; the circuit takes one at a time"
            )
        if timed and len({child.clock.unit for child in node.inputs}) > 1:
            raise UnsupportedError(
                f"{_name(join)} reads a union of streams whose times have different units; declare one unit"
            )
        nets = [self.slots(each, timed, join) for each in node.inputs]
        common = common_row([net.row for net in nets], "union")
        return LockstepUnionNet(tuple(net if net.row == common else WidenNet(net, common) for net in nets))

    @_slots.register
    def _(self, node: Source, timed: bool, join: WindowJoin) -> Net:
        net = self._sequence(_input_of(node))
        if node.demux is not None:
            net = self._claim(node, net)
        if not timed:
            return net
        time = node.time if node.time is not None else TIME
        return StampNet(net, time, node.lateness // UNITS[node.clock.unit])

    def _sequence(self, name: str) -> Net:
        names = [source.name for source in self.inputs]
        return SequenceNet(tuple(self._leaf(source) for source in self.inputs), names.index(name))

    def _claim(self, node: Source, net: Net) -> Net:
        """Return the tuples of a stream that an input carries; the first one counts tuples of no stream."""
        assert node.demux is not None
        everyone = None
        if node.demux.stream not in self._counted and not self._read_elsewhere(node.demux.stream):
            self._counted.add(node.demux.stream)
            streams = [s.demux for s in self._plan.inputs if s.demux and s.demux.stream == node.demux.stream]
            everyone = tuple(value for demux in streams for value in demux.values)
        claimed = ClaimNet(net, node.demux.field, node.demux.values, everyone)
        return ProjectNet(claimed, tuple((name, name) for name in node.fields.names))

    def _read_elsewhere(self, carrier: str) -> bool:
        """Return whether a stream of that input is also read outside joins, by a component that counts."""
        outside = (node for output in self._plan.outputs for node in _above_joins(output))
        return any(
            isinstance(n, Source) and n.demux is not None and n.demux.stream == carrier for n in outside
        )


def _above_joins(node: Node) -> Iterator[Node]:
    yield node
    if not isinstance(node, WindowJoin):
        for child in node.children:
            yield from _above_joins(child)


def _name(node: WindowJoin) -> str:
    return f"the join of {_list(node.names)}"


def _list(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}"


def _input_of(source: Source) -> str:
    return source.name if source.demux is None else source.demux.stream


def _claims(node: Node) -> list[tuple[str, int | str | None]]:
    """Return the tuples that a plan reads: (input, value of the carried stream's field or None for all)."""
    found: list[tuple[str, int | str | None]] = []
    for source in {s.name: s for s in walk_plan(node) if isinstance(s, Source)}.values():
        values = (None,) if source.demux is None else source.demux.values
        found += [(_input_of(source), value) for value in values]
    return found


def _together(node: WindowJoin) -> tuple[frozenset[int], ...]:
    """Return the sets of streams of a join that read the same tuples."""
    claims = [set(_claims(each)) for each in node.inputs]
    found = (
        frozenset(k for k, own in enumerate(claims) if own & {claim, (claim[0], None)})
        for claim in sorted(set().union(*claims), key=repr)
    )
    return tuple(dict.fromkeys(streams for streams in found if len(streams) > 1))


def _with_times(node: WindowJoin) -> Expr:
    """Return the condition, extended by the distance of times for windows of time."""
    parts = [node.on]
    for k, window in enumerate(node.windows):
        if window is not None and window.timed:
            others = (j for j in range(len(node.inputs)) if j != k)
            parts += [_in_time(k, j, window, node) for j in others]
    return parts[0] if len(parts) == 1 else And(tuple(parts), type=BOOL)


def _in_time(k: int, j: int, window: Window, node: WindowJoin) -> Expr:
    """Return whether the member of stream j is not too late for that of stream k, whose window this is."""
    own, other = (
        Column(side, TIME, shown=f"{node.names[side]}.{TIME}", type=node.clock.type) for side in (k, j)
    )
    apart = Arithmetic("-", other, own, type=INT64)
    return Compare("<=", apart, Literal(window.rule(node.clock.unit).reach, type=INT64), type=BOOL)
