"""Operators as lines of text, and plans as graphs, in the symbols of Glacier's Table 1."""

from __future__ import annotations

from dataclasses import replace

from handshake.kinds import INNER
from handshake.plan import algebra
from handshake.plan.aggregates import AGGREGATES
from handshake.plan.algebra import Node, Plan, explain_plan, label
from handshake.plan.expr import Cast, Column, show, transform
from handshake.plan.literals import to_text
from handshake.schema import Decimal
from handshake.windows import Duration

__all__ = ["dot", "explain_plan", "label"]


@label.register
def _(node: algebra.Output) -> str:
    columns = ", ".join(f"{f.name} {f.type}" for f in node.schema)
    return f"{node.name} ({columns})"


@label.register
def _(node: algebra.Source) -> str:
    text = f"{node.name} by {node.time}" if node.time else node.name
    if node.demux is None:
        return text
    values = " or ".join(str(value) for value in node.demux.values)
    return f"{text} from {node.demux.stream} where {node.demux.field} = {values}"


@label.register
def _(node: algebra.Parameter) -> str:
    return node.name


@label.register
def _(node: algebra.Project) -> str:
    return "π " + ", ".join(new if new == old else f"{new}:{old}" for new, old in node.columns)


@label.register
def _(node: algebra.Select) -> str:
    return f"σ {node.field}"  # noqa: RUF001 - the paper's sign


@label.register
def _(node: algebra.Apply) -> str:
    operation = node.operation
    # a cast that brings operands to one scale leaves their digits open, and the column has them
    if isinstance(operation, Cast) and isinstance(operation.type, Decimal) and not operation.type.precision:
        operation = replace(operation, type=node.type)
    plain = transform(operation, lambda e: replace(e, shown=e.name) if isinstance(e, Column) else e)
    return f"⊛ {node.name}: {show(plain)}"


@label.register
def _(node: algebra.Union) -> str:
    return "∪"  # noqa: RUF001 - the paper's sign


@label.register
def _(node: algebra.Aggregate) -> str:
    columns = ", ".join(node.fields)
    parts = [f"distinct {columns}" if node.distinct else columns, *_constants(node)]
    order = f" by {', '.join(map(str, node.order))}" if node.order else ""
    where = f" if {node.where}" if node.where is not None else ""
    return f"{node.function} {node.name}: ({', '.join(part for part in parts if part)}{order}){where}"


def _constants(node: algebra.Aggregate) -> list[str]:
    shown = [repr(c) if isinstance(c, str) else f"{c:f}" for c in node.constants]
    if AGGREGATES[node.function].constants != "weights":
        return shown
    return [f"[{', '.join(to_text(weight, Decimal(0, node.scale)) for weight in node.weights)}]"]


@label.register
def _(node: algebra.Group) -> str:
    return f"grp {node.parameter}|{', '.join(node.keys)}"


@label.register
def _(node: algebra.Windowing) -> str:
    panes = ""
    if node.pane is not None and node.window.kind == "session":
        panes = ", states"
    elif node.pane is not None:
        panes = f", panes of {Duration(node.pane) if node.window.kind == 'time' else f'{node.pane} tuples'}"
    return f"⊞ {node.parameter}|{node.window}{panes}"


@label.register
def _(node: algebra.Concat) -> str:
    return "∞"


@label.register
def _(node: algebra.WindowJoin) -> str:
    held = ", ".join(
        f"{name} {'for ever' if window is None else window}"
        for name, window in zip(node.names, node.windows, strict=True)
    )
    kind = "" if node.kind == INNER else f" {node.kind.name}"
    if node.match:
        held = f"as of {node.names[0]} {node.match} {node.names[1]} in time, {node.windows[1]}"
    return f"⋈{kind} {held}: {show(node.on)}"


def dot(plan: Plan) -> str:
    """Return a plan as a Graphviz graph; shared parts are drawn once."""
    numbers: dict[Node, int] = {}
    lines = ["digraph plan {", "  rankdir=BT;", '  node [shape=box, fontname="sans-serif"];']
    for output in plan.outputs:
        _draw(output, numbers, lines)
    return "\n".join([*lines, "}"]) + "\n"


def _draw(node: Node, numbers: dict[Node, int], lines: list[str]) -> int:
    if node in numbers:
        return numbers[node]
    numbers[node] = here = len(numbers)
    text = label(node).replace("\\", "\\\\").replace('"', '\\"')
    lines.append(f'  n{here} [label="{text}"];')
    for at, child in enumerate(node.children):
        body = isinstance(node, (algebra.Group, algebra.Windowing)) and at == 1
        below = _draw(child, numbers, lines)
        lines.append(f"  n{below} -> n{here}{' [style=dashed]' if body else ''};")
    return here
