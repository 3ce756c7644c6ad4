"""Sub-plans of windows that can be computed from panes: algebraic aggregates, grouped or not."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from handshake.plan.algebra import Aggregate, Concat, Group, Node, Parameter, Sliding, chain


@dataclass(frozen=True)
class PaneShape:
    """A sub-plan in parts: steps on rows, keys, aggregates, and steps on the results."""

    before: Node
    """Projections, selections and computed columns on the window's tuples."""
    keys: tuple[str, ...] | None
    """None: no grouping."""
    aggregates: tuple[Aggregate, ...]
    result: Node
    """The node whose results the steps after it read."""


def pane_shape(body: Node, parameter: str) -> PaneShape | None:
    """Return the parts of a sub-plan, or None if it needs the rows of each window."""
    node, _ = chain(body)
    if isinstance(node, Group):
        made = _aggregates(node.body)
        plain = made is not None and all(_is(a.input, node.parameter) for a in made)
        before, keys = node.input, node.keys
    else:
        made = _aggregates(node)
        plain = made is not None and len({a.input for a in made}) == 1
        before, keys = (made[0].input if made else node), None
    if made is None or not plain or not _is(chain(before)[0], parameter):
        return None
    return PaneShape(before, keys, made, node)


def _aggregates(node: Node) -> tuple[Aggregate, ...] | None:
    parts = node.inputs if isinstance(node, Concat) else (node,)
    made = tuple(part for part in parts if isinstance(part, Aggregate))
    return made if len(made) == len(parts) and not any(a.holistic for a in made) else None


def _is(node: Node, parameter: str) -> bool:
    return isinstance(node, Parameter) and node.name == parameter


def pane_length(window: Sliding) -> int:
    """Return the length of the longest panes that make up all windows."""
    return gcd(window.size, window.advance)
