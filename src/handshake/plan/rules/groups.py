"""Group-by/windowing un-nesting (section 6.4): one dispatcher of groups, not one for each open window."""

from __future__ import annotations

from dataclasses import replace

from handshake.plan.algebra import (
    Apply,
    Group,
    Node,
    Parameter,
    Project,
    Select,
    Windowing,
    rebuild,
)

__all__ = ["nested", "unnest_groups"]


def unnest_groups(node: Node) -> Node:
    """Windows inside of groups instead of groups inside of windows; of time, since tuples are counted."""
    return rebuild(node, _unnested)


def _unnested(node: Node) -> Node:
    if not isinstance(node, Windowing) or node.window.kind != "time":
        return node
    group = _below(node.body)
    if not isinstance(group, Group) or not _reads(group.input, node.parameter):
        return node
    fields = group.input.schema
    inside = Windowing(
        Parameter(group.parameter, fields, node.clock),
        node.parameter,
        _over(group.body, group.parameter, Parameter(node.parameter, fields, node.clock)),
        node.window,
        pane=node.pane,
    )
    before = _over(group.input, node.parameter, node.input)
    return _replaced(node.body, group, Group(before, group.parameter, inside, group.keys))


def nested(node: Group) -> Windowing | None:
    """The other way round: what `unnest_groups` made of a window with groups in it."""
    inside = node.body
    if not isinstance(inside, Windowing) or not isinstance(inside.input, Parameter):
        return None
    x = Parameter(inside.parameter, node.input.schema, node.clock)
    y = Parameter(node.parameter, node.input.schema, node.clock)
    group = Group(x, node.parameter, _over(inside.body, inside.parameter, y), node.keys)
    return Windowing(node.input, inside.parameter, group, inside.window, pane=inside.pane)


def _below(node: Node) -> Node:
    while isinstance(node, (Project, Select, Apply)):
        node = node.input
    return node


def _reads(node: Node, parameter: str) -> bool:
    below = _below(node)
    return isinstance(below, Parameter) and below.name == parameter


def _over(node: Node, parameter: str, other: Node) -> Node:
    """A sub-plan with another plan in place of its parameter."""

    def put(here: Node) -> Node:
        return other if isinstance(here, Parameter) and here.name == parameter else here

    return rebuild(node, put)


def _replaced(node: Node, old: Node, new: Node) -> Node:
    if node is old:
        return new
    assert isinstance(node, (Project, Select, Apply))
    return replace(node, input=_replaced(node.input, old, new))
