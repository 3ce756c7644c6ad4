"""A circuit as a picture: blocks and wires, from the inputs at the bottom to the results at the top.

As in the paper, a grey bar is a register. Sub-plans of windows and groups are drawn once, with the number of
their copies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

from handshake.engines.circuit.adapters.attach import NETWORK
from handshake.engines.circuit.adapters.cpu import WORD
from handshake.engines.circuit.adapters.udp import BYTES, UdpParser
from handshake.engines.circuit.compiler import Compiled
from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.types import Row, Wire
from handshake.engines.circuit.components.window_join import JoinSpec
from handshake.engines.circuit.nets.join_nets import ClaimNet, JoinNet, MaskNet, SequenceNet
from handshake.engines.circuit.nets.netlist import (
    ComputeNet,
    ConcatNet,
    DelayNet,
    DivideNet,
    Input,
    Net,
    ProjectNet,
    SelectNet,
    StageNet,
    UnaryNet,
    UnionNet,
    rebuild,
)
from handshake.engines.circuit.nets.window_nets import AggregateNet, GroupedWindowNet, GroupNet, WindowNet
from handshake.errors import HandshakeError
from handshake.plan.expr import show
from handshake.schema import Int

_BUS_ROW = Row((Wire("word", Int(WORD, signed=False), WORD),))
_LINE, _PAD, _GAP, _CHAR = 16, 10, 34, 7.2


@dataclass
class _Box:
    """A block: its lines of text, what is inside it, and where it lies (top left)."""

    net: Net
    lines: list[str]
    inside: _Plan | None = None
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        """Room for the text and for the sub-plan."""
        text = max(len(line) for line in self.lines) * _CHAR + 2 * _PAD
        return max(text, 90, self.inside.width + 2 * _PAD if self.inside else 0)

    @property
    def height(self) -> float:
        """Room for the text, then for the sub-plan."""
        text = len(self.lines) * _LINE + _PAD + (8 if _has_register(self.net) else 0)
        return text + (self.inside.height + _PAD if self.inside else 0)


@dataclass
class _Plan:
    """Boxes in levels, the inputs in the last."""

    boxes: list[_Box]
    levels: list[list[_Box]]
    width: float = 0
    height: float = 0
    at: dict[Hashable, _Box] = field(default_factory=dict)


@dataclass(frozen=True)
class _AdapterNet(UnaryNet):
    """An adapter as a block of the picture."""

    lines: tuple[str, ...]
    after: Row

    @cached_property
    def row(self) -> Row:
        return self.after

    def block(self) -> Block:
        raise HandshakeError("an adapter of the picture has no component")


def draw_compiled(compiled: Compiled) -> str:
    """Return the circuit of a query, with its adapters, as an SVG drawing."""
    adapters = compiled.adapters
    if not adapters.latency:
        return draw(compiled.nets)
    adapted, nets = compiled.with_adapters(), compiled.nets
    where = {each.name: each.address for each in adapted.registers()}
    outside = Input(NETWORK, BYTES) if adapters.input == "udp" else Input("CPU bus", _BUS_ROW)
    leaves = {id(net): name for name, net in compiled.circuit().leaves.items()}
    if adapters.input != "none":
        done: dict[int, Net] = {}

        def attach(net: Net) -> Net:
            if id(net) not in leaves:
                return net
            name = leaves[id(net)]
            block = adapted.sources[name]
            lines = (
                (f"UDP port {block.port}", "checks, then queues")
                if isinstance(block, UdpParser)
                else ("from the CPU", f"registers {where[f'{name}.word0']} to {where[f'{name}.send']}")
            )
            return _AdapterNet(outside, (name, *lines), net.row)

        nets = {name: rebuild(net, attach, done) for name, net in nets.items()}
    if adapters.output == "cpu":
        nets = {
            name: _AdapterNet(net, ("to the CPU", f"registers from {where[f'{name}.status']}"), _BUS_ROW)
            for name, net in nets.items()
        }
    return draw(nets)


def draw(nets: dict[str, Net]) -> str:
    """Return the circuit of some results as an SVG drawing."""
    plan = _lay_out(nets.values())
    tops: dict[Hashable, str] = {}
    for name, net in nets.items():
        tops[net.unit] = f"{tops[net.unit]}, {name}" if net.unit in tops else name
    body = _render(plan, 20, 50, tops)
    width, height = plan.width + 40, plan.height + 70
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" font-family="monospace" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            *body,
            "</svg>",
            "",
        ]
    )


# The text of a block.


def _has_register(net: Net) -> bool:
    return not isinstance(net, (StageNet, ConcatNet)) or net.registered


def _lines(net: Net) -> list[str]:
    match net:
        case Input(name=name):
            return [name, *(f"{w.name}: {w.width}" for w in net.row)]
        case SelectNet(field=name):
            return [f"select {name}"]
        case ProjectNet(columns=columns):
            return ["project", ", ".join(new for new, _ in columns)]
        case ComputeNet(operations=operations):
            return [f"{name} = {_shorten(show(operation))}" for name, operation, _ in operations]
        case DelayNet(cycles=cycles):
            return [f"delay of {cycles} cycles"]
        case _AdapterNet(lines=lines):
            return list(lines)
        case AggregateNet(function=function, field=name):
            return [f"{function}({name or ''})"]
        case ConcatNet():
            return ["concatenate"]
        case DivideNet():
            return ["divide " + ", ".join(w.name for w in net.source.row if w.count_bits)]
        case UnionNet():
            return [f"{len(net.sources)}-way union", "a FIFO for each input"]
    return _joining(net)


def _joining(net: Net) -> list[str]:
    match net:
        case SequenceNet(sources=sources):
            order = "a slot for each arrival" if len(sources) == 1 else "the next arrival by its place"
            return ["sequence", order]
        case MaskNet(field=name):
            return [f"select {name}", "empty slot if not"]
        case ClaimNet(field=name, values=values):
            return [f"{name} in {', '.join(map(str, values))}", "empty slot if not"]
        case JoinNet(spec=spec):
            return _join(spec)
    return _composite(net)


def _join(spec: JoinSpec) -> list[str]:
    windows = [f"{name}: {held.tuples} tuples held" for name, held in zip(spec.names, spec.held, strict=True)]
    if len(spec.held) > 2:
        kind = [f"nested scans, {spec.lanes} at a time", *windows]
        kind.append(f"up to {spec.cycles:,} cycles for an arrival")
    elif spec.ordered:
        kind = [f"ordered join, {spec.lanes} at a time", *windows]
    else:
        buffers = f"buffers of {spec.buffer} and {spec.merger_buffer}"
        kind = [f"handshake join, {spec.lanes} cores", *windows, buffers]
    return [*kind, _shorten(show(spec.on))]


def _composite(net: Net) -> list[str]:
    match net:
        case WindowNet(slide=slide, merge=merge):
            return [f"window {slide.kind}: size {slide.size}, advance {slide.advance}", merge]
        case GroupNet(keys=keys, entries=entries):
            return [f"group by {', '.join(keys)}", f"CAM of {entries}, de-multiplexer, union"]
        case GroupedWindowNet(keys=keys, entries=entries, slide=slide, merge=merge):
            size = f"window {slide.kind}: size {slide.size}, advance {slide.advance}"
            return [
                f"group by {', '.join(keys)}: CAM of {entries}",
                size,
                f"{merge}; de-multiplexers, unions",
            ]
    return [net.block().title.replace("_", " ")]


def _shorten(text: str) -> str:
    return text.replace("l.", "", 1) if len(text) < 40 else text[:37] + "…"


def _copies(net: Net) -> str:
    match net:
        case WindowNet(slide=slide):
            return f"{slide.copies} copies of the sub-plan"
        case GroupNet(entries=entries):
            return f"{entries} copies of the sub-plan"
        case GroupedWindowNet(slide=slide, entries=entries):
            return f"sub-plan, {slide.copies} windows by {entries} groups"
    return ""


# The places of blocks.


def _lay_out(nets: Iterable[Net]) -> _Plan:
    """Put boxes into levels by their longest way to a result; each level is centred."""
    depth: dict[Hashable, int] = {}
    found: dict[Hashable, Net] = {}

    def visit(net: Net, at: int) -> None:
        found[net.unit] = net
        if at >= depth.get(net.unit, 0):
            depth[net.unit] = at
            for source in net.inputs:
                visit(source, at + 1)

    for net in nets:
        visit(net, 0)
    boxes = {key: _box(net) for key, net in found.items()}
    levels: list[list[_Box]] = [[] for _ in range(max(depth.values()) + 1)]
    for key, box in boxes.items():
        levels[depth[key]].append(box)
    plan = _Plan(list(boxes.values()), levels, at=boxes)
    _place(plan)
    return plan


def _box(net: Net) -> _Box:
    body = getattr(net, "body", None)
    if not isinstance(body, Net):
        return _Box(net, _lines(net))
    return _Box(net, [*_lines(net), _copies(net)], _lay_out([body]))


def _place(plan: _Plan) -> None:
    widths = [sum(b.width for b in level) + _GAP * (len(level) - 1) for level in plan.levels]
    plan.width = max(widths)
    y = 0.0
    for level, width in zip(plan.levels, widths, strict=True):
        x = (plan.width - width) / 2
        for box in level:
            box.x, box.y = x, y
            x += box.width + _GAP
        y += max(b.height for b in level) + _GAP
    plan.height = y - _GAP


# The drawing.


def _render(plan: _Plan, x: float, y: float, tops: dict[Hashable, str]) -> list[str]:
    parts: list[str] = []
    for box in plan.boxes:
        for source in box.net.inputs:
            parts += _wire(plan.at[source.unit], source.row.bits, box, x, y)
    for box in plan.boxes:
        if name := tops.get(box.net.unit):
            parts += _result(box, name, x, y)
        parts += _block(box, x, y)
    return parts


def _wire(source: _Box, bits: int, target: _Box, x: float, y: float) -> list[str]:
    x1, y1 = x + source.x + source.width / 2, y + source.y
    x2, y2 = x + target.x + target.width / 2, y + target.y + target.height
    middle = (y1 + y2) / 2
    path = f"M{x1:.0f} {y1:.0f} V{middle:.0f} H{x2:.0f} V{y2 + 6:.0f}"
    return [
        f'<path d="{path}" fill="none" stroke="black"/>',
        f'<path d="M{x2 - 4:.0f} {y2 + 7:.0f} h8 l-4 -7 z" fill="black"/>',
        f'<text x="{x2 + 6:.0f}" y="{y2 + 18:.0f}" fill="#666" font-size="10">{bits}</text>',
    ]


def _result(box: _Box, name: str, x: float, y: float) -> list[str]:
    middle, top = x + box.x + box.width / 2, y + box.y
    return [
        f'<path d="M{middle:.0f} {top:.0f} v-24" stroke="black"/>',
        f'<text x="{middle + 6:.0f}" y="{top - 14:.0f}" font-weight="bold">{escape(name)}</text>',
    ]


def _block(box: _Box, x: float, y: float) -> list[str]:
    left, top = x + box.x, y + box.y
    leaf = isinstance(box.net, Input)
    dash = ' stroke-dasharray="4 3"' if leaf else ""
    parts = [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        f'fill="white" stroke="black"{dash}/>'
    ]
    below = top
    if _has_register(box.net) and not leaf:
        parts.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{box.width:.0f}" height="8" '
            'fill="#bbb" stroke="black"/>'
        )
        below += 8
    for n, line in enumerate(box.lines):
        parts.append(f'<text x="{left + _PAD:.0f}" y="{below + _LINE * (n + 1):.0f}">{escape(line)}</text>')
    if box.inside:
        inner = below + len(box.lines) * _LINE + _PAD
        parts += _render(box.inside, left + (box.width - box.inside.width) / 2, inner, {})
    return parts
