"""Plan to circuit: one small function per node; the default is an error that names the node.

The translation is the paper's section 4, without optimisation: a register behind every operator, a union
with FIFOs behind every window, a CAM in every sub-plan copy. nets.rules improves on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatchmethod

from handshake.engines.circuit.components.aggregate import FORMS
from handshake.engines.circuit.components.group import routed_row
from handshake.engines.circuit.components.sequence import PLACE, place_wire
from handshake.engines.circuit.components.slide import TIME, Slide, body_row
from handshake.engines.circuit.components.stamp import common_row
from handshake.engines.circuit.components.types import Row, Wire, wire
from handshake.engines.circuit.join.design import at_most
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.netlist import (
    ComputeNet,
    ConcatNet,
    DemuxNet,
    DivideNet,
    Input,
    Net,
    ProjectNet,
    SelectNet,
    StampNet,
    UnionNet,
    WidenNet,
    walk,
)
from handshake.engines.circuit.nets.translate_join import Joins, is_timed
from handshake.engines.circuit.nets.window_nets import AggregateNet, GroupNet, WindowNet
from handshake.errors import UnsupportedError
from handshake.plan.aggregates import AGGREGATES
from handshake.plan.algebra import (
    Aggregate,
    Apply,
    Concat,
    Group,
    Node,
    Output,
    Parameter,
    Plan,
    Project,
    Select,
    Sliding,
    Source,
    Union,
    Windowing,
    WindowJoin,
    reads,
)
from handshake.plan.algebra import walk as walk_plan
from handshake.schema import UNITS, Binary, Field, String

CLOCK_HZ = 100_000_000
"""The papers' clock: what bounds the number of tuples of a time window."""
MOST_COPIES, MOST_GROUPS = 1024, 4096
"""Copies of sub-plans that a circuit has at most: each takes its place, and its time to be made."""
LEAST_CAPACITY = 1 << 32


def translate(plan: Plan, bounds: Bounds | None = None) -> dict[str, Net]:
    """Return the net of each result of a plan."""
    translator = _Translator(plan, bounds or Bounds())
    return {output.name: translator.net(output, False) for output in plan.outputs}


@dataclass(frozen=True)
class _Window:
    """The properties of a window that its sub-plan needs."""

    most: int
    size: int


class _Translator:
    def __init__(self, plan: Plan, bounds: Bounds) -> None:
        self._plan, self._bounds = plan, bounds
        self._done: dict[tuple[int, bool], Net] = {}
        self._leaves: dict[str, Net] = {}
        self._joins = Joins(plan, bounds, self._leaf)
        self._apart: dict[str, Net] = {}
        self._dividers: dict[tuple[int, bool], Net] = {}
        self._parameters: dict[str, Input] = {}
        self._window: _Window | None = None
        self._grouped = False

    def net(self, node: Node, timed: bool) -> Net:
        """Return the net of a node; `timed`: its tuples' times and clocks are read further on."""
        key = (id(node), timed)
        if key not in self._done:
            self._done[key] = self._net(node, timed)
        return self._done[key]

    @singledispatchmethod
    def _net(self, node: Node, timed: bool) -> Net:
        raise UnsupportedError(f'the circuit has no component for {type(node).__name__}; use engine="local"')

    @_net.register
    def _(self, node: Output, timed: bool) -> Net:
        return self._divide(self.net(node.input, timed))

    @_net.register
    def _(self, node: Select, timed: bool) -> Net:
        return SelectNet(self.net(node.input, timed), node.field)

    @_net.register
    def _(self, node: Apply, timed: bool) -> Net:
        source = self.net(node.input, timed)
        if any(source.row[name].count_bits for name in reads(node.operation)):
            source = self._divide(source)
        return ComputeNet(source, ((node.name, node.operation, node.type),))

    @_net.register
    def _(self, node: Project, timed: bool) -> Net:
        source = self.net(node.input, timed)
        shown = tuple(w.name for w in source.row if not w.name.startswith("@"))
        if node.columns == tuple((name, name) for name in shown):
            return source  # nothing is left out: no wires to cut
        return ProjectNet(source, node.columns)

    @_net.register
    def _(self, node: Parameter, timed: bool) -> Net:
        return self._parameters[node.name]

    @_net.register
    def _(self, node: Concat, timed: bool) -> Net:
        return ConcatNet(tuple(self.net(each, timed) for each in node.inputs))

    @_net.register
    def _(self, node: Union, timed: bool) -> Net:
        if timed:
            raise UnsupportedError(
                "a time window over a union has no bound on the windows that are open at once, since the "
                "clock of one input may run ahead of another's; window each input and unite the results"
            )
        nets = [self._divide(self.net(each, False)) for each in node.inputs]
        common = common_row([net.row for net in nets], "union")
        return UnionNet(tuple(net if net.row == common else WidenNet(net, common) for net in nets))

    @_net.register
    def _(self, node: WindowJoin, timed: bool) -> Net:
        return self._joins.net(node, timed)

    def _divide(self, net: Net) -> Net:
        """Divide the averages of a net unless the host does; all readers share one divider.

        In a sub-plan, which has a result per window, a divider that takes its time is enough.
        """
        if self._bounds.divider == "host" or not any(w.count_bits for w in net.row):
            return net
        pipelined = self._bounds.divider == "pipelined" and self._window is None
        key = (id(net), pipelined)
        if key not in self._dividers:
            self._dividers[key] = DivideNet(net, pipelined)
        return self._dividers[key]

    # Sources.

    @_net.register
    def _(self, node: Source, timed: bool) -> Net:
        leaf = self._without_place(node)
        if not timed:
            return leaf
        time = node.time if node.time is not None else TIME
        return StampNet(leaf, time, node.lateness // UNITS[node.clock.unit])

    def _without_place(self, node: Source) -> Net:
        """Return the input without its places, which only joins read."""
        leaf = self._leaf(node)
        if PLACE not in leaf.row.names:
            return leaf
        columns = tuple((w.name, w.name) for w in leaf.row if w.name[0] not in "@#")
        return self._apart.setdefault(node.name, ProjectNet(leaf, columns, registered=False))

    def _leaf(self, node: Source) -> Net:
        if node.name not in self._leaves:
            carried = node.demux is not None
            self._leaves[node.name] = (
                self._demultiplex(node) if carried else Input(node.name, self._row(node))
            )
        return self._leaves[node.name]

    def _row(self, node: Source) -> Row:
        """Return declared fields, the time of arrival if a window needs it, and fields of carried streams."""
        wires = [self._wire(node.name, each) for each in node.fields]
        for other in self._plan.carried_by(node.name):
            known = [w.name for w in wires]
            wires += [self._wire(node.name, each, True) for each in other.fields if each.name not in known]
        if node.time is None and self._needs_arrival_time(node):
            wires.append(Wire(TIME, node.clock.type, 64, True))
        if len(self._joins.inputs) > 1 and node.name in (s.name for s in self._joins.inputs):
            wires.append(place_wire())
        return Row(tuple(wires))

    def _wire(self, stream: str, each: Field, nullable: bool = False) -> Wire:
        length = each.type.length if isinstance(each.type, String) else None
        if length is None and isinstance(each.type, (String, Binary)):
            length = self._bounds.text
        marked = each.name in self._bounds.nullable.get(stream, frozenset())
        return wire(each, length=length, nullable=nullable or marked)

    def _needs_arrival_time(self, node: Source) -> bool:
        """Return whether some window slides by the time at which this source's tuples arrive."""
        names = {node.name, *(s.name for s in self._plan.carried_by(node.name))}
        windows = [
            w
            for output in self._plan.outputs
            for w in walk_plan(output)
            if (isinstance(w, Windowing) and w.window.kind != "tuples")
            or (isinstance(w, WindowJoin) and is_timed(w))
        ]
        return any(isinstance(s, Source) and s.name in names for w in windows for s in walk_plan(w))

    def _demultiplex(self, node: Source) -> Net:
        assert node.demux is not None
        carrier = next(s for s in self._plan.inputs if s.name == node.demux.stream)
        streams = self._plan.carried_by(carrier.name)
        leaf = self._leaf(carrier)
        values = tuple(s.demux.values for s in streams if s.demux is not None)
        hidden = tuple(w.name for w in leaf.row if w.name == TIME)
        columns = tuple((*s.fields.names, *hidden) for s in streams)
        return DemuxNet(leaf, node.demux.field, values, columns, streams.index(node))

    # Windows, groups and aggregates.

    @_net.register
    def _(self, node: Windowing, timed: bool) -> Net:
        slide = self._slide(node, timed)
        self._check_order(node)
        source = self._divide(_without_register(self.net(node.input, timed or slide.kind == "time")))
        self._parameters[node.parameter] = Input(node.parameter, body_row(source.row, slide))
        before, self._window = self._window, _Window(self._most_tuples(slide, node), slide.size)
        body = self.net(node.body, timed)
        self._window = before
        if not any(isinstance(net, (AggregateNet, GroupNet)) for net in walk(body)):
            raise UnsupportedError(
                f"a window ({node.window}) whose tuples are not aggregated would have to be kept whole; "
                "the circuit keeps aggregates only"
            )
        return WindowNet(source, slide, body)

    def _check_order(self, node: Windowing) -> None:
        """Refuse a reader of the order of results if the circuit does not promise one."""
        functions = [n.function for n in walk_plan(node.body) if isinstance(n, Aggregate)]
        ordered = next((name for name in functions if AGGREGATES[name].ordered), None)
        if node.window.kind == "time" and ordered is None:
            return
        loose = next((n for n in walk_plan(node.input) if isinstance(n, (Union, Group))), None)
        if loose is not None:
            kind, what = ("union", "streams") if isinstance(loose, Union) else ("GROUP BY", "groups")
            reader = f"{ordered}()" if ordered else f"a window of tuples ({node.window})"
            raise UnsupportedError(
                f"{reader} over the results of a {kind} depends on the order in which {what} come, "
                'which a circuit does not promise; use engine="local"'
            )

    def _slide(self, node: Windowing, timed: bool) -> Slide:
        if not isinstance(node.window, Sliding):
            raise UnsupportedError(
                f"a circuit has no session windows ({node.window}), whose lengths have no bound; it has "
                "windows of a fixed SIZE"
            )
        if node.window != Sliding(node.window.kind, node.window.size, node.window.advance):
            raise UnsupportedError(
                f"a circuit has windows of a SIZE and an ADVANCE only, not {node.window}; leave out OFFSET, "
                "PARTIAL and CUMULATE"
            )
        unit = UNITS[node.input.clock.unit] if node.window.kind == "time" else 1
        spread = _spread(node.input) if node.window.kind == "time" else 0
        slide = Slide(
            node.window.kind,
            node.window.size // unit,
            node.window.advance // unit,
            -(-spread // unit),
            _reads_bounds(node.body),
            timed,
        )
        _check_copies(slide, node)
        return slide

    def _most_tuples(self, slide: Slide, node: Windowing) -> int:
        """Return the most tuples that a window can have: its size, or one per cycle of its duration."""
        if slide.kind == "tuples":
            return slide.size
        unit = UNITS[node.input.clock.unit]
        return max(LEAST_CAPACITY, slide.size * unit * CLOCK_HZ // UNITS["s"])

    @_net.register
    def _(self, node: Group, timed: bool) -> Net:
        if self._bounds.groups is None:
            raise UnsupportedError(
                f"GROUP BY {', '.join(node.keys)} has no bound on the number of groups, and a circuit has "
                "a copy of the aggregates for each; give one with groups=…"
            )
        at_most("groups", self._bounds.groups, MOST_GROUPS)
        source = self.net(node.input, timed)
        self._parameters[node.parameter] = Input(node.parameter, routed_row(source.row, node.keys))
        before, self._grouped = self._grouped, True
        body = self.net(node.body, timed)
        self._grouped = before
        return GroupNet(source, node.keys, body, self._bounds.groups, self._bounds.write_cycles)

    @_net.register
    def _(self, node: Aggregate, timed: bool) -> Net:
        function = AGGREGATES[node.function]
        if node.distinct or (node.function not in FORMS and function.kind != "bound"):
            reason = (
                "needs all tuples of a window, whose number has no bound in the circuit"
                if node.holistic
                else "has no component in the circuit"
            )
            what = "(DISTINCT)" if node.distinct else "()"
            raise UnsupportedError(f"{node.function}{what} {reason}; it has {', '.join(FORMS)}")
        if len(node.fields) > 1:
            raise UnsupportedError(
                f'{node.function}() of several columns has no component in the circuit; use engine="local"'
            )
        assert self._window is not None, "the language has aggregates on windows only"
        (kind,) = (f.type for f in node.schema)
        return AggregateNet(
            self.net(node.input, timed),
            node.function,
            node.name,
            kind,
            node.field,
            self._window.most,
            not self._grouped,
            node.weights,
            self._window.size,
            node.where,
        )


def _check_copies(slide: Slide, node: Windowing) -> None:
    """Refuse windows of which more are open at once than a circuit can have copies of a sub-plan."""
    if slide.copies > MOST_COPIES:
        late = ", or less LATENESS" if slide.spread else ""
        raise UnsupportedError(
            f"of the window ({node.window}) {slide.copies - 1:,} are open at once, and each has a copy of "
            f"what is computed on it; a circuit has at most {MOST_COPIES:,}: give a longer ADVANCE{late}"
        )


def _without_register(net: Net) -> Net:
    """Leave out the register of a projection that renames nothing; sub-plans read fields by name."""
    if isinstance(net, ProjectNet) and all(new == old for new, old in net.columns):
        return replace(net, registered=False)
    return net


def _spread(node: Node) -> int:
    """Return how many nanoseconds times can be ahead of clocks."""
    if isinstance(node, Source):
        return node.lateness
    if isinstance(node, Windowing) and node.window.kind == "time":
        return 0  # results have their time as their clock
    return max((_spread(child) for child in node.children), default=0)


def _reads_bounds(body: Node) -> bool:
    bounds = ("window_start", "window_end")
    return any(isinstance(n, Aggregate) and n.function in bounds for n in walk_plan(body))
