"""Panes: sliding aggregates combine those of short pieces of the stream."""

from __future__ import annotations

from dataclasses import replace

from handshake.plan.algebra import Node, Session, Windowing, rebuild
from handshake.plan.panes import pane_length, pane_shape


def use_panes(node: Node) -> Node:
    """Mark windows whose aggregates are algebraic (section 4.6)."""
    return rebuild(node, _mark)


def _mark(node: Node) -> Node:
    if isinstance(node, Windowing) and pane_shape(node.body, node.parameter) is not None:
        window = node.window
        return replace(node, pane=window.gap if isinstance(window, Session) else pane_length(window))
    return node
