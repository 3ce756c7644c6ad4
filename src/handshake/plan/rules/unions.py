"""Union flattening: one union of many streams instead of unions of unions."""

from __future__ import annotations

from dataclasses import replace

from handshake.plan.algebra import Node, Project, Union, rebuild


def flatten_unions(node: Node) -> Node:
    """Replace a union of unions by one union."""
    return rebuild(node, _flat)


def _flat(node: Node) -> Node:
    if not isinstance(node, Union):
        return node
    return Union(tuple(branch for child in node.inputs for branch in _branches(child)))


def _branches(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Union):
        return node.inputs
    if isinstance(node, Project) and isinstance(node.input, Union):
        return tuple(replace(node, input=branch) for branch in node.input.inputs)
    return (node,)
