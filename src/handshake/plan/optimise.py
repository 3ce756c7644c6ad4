"""Optimisation: a visible tuple of rules, each a pure function from plan to plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from handshake.plan.algebra import Node, Plan, Windowing, rebuild
from handshake.plan.panes import pane_length, pane_shape

__all__ = ["RULES", "optimise"]


def use_panes(node: Node) -> Node:
    """Algebraic aggregates of windows from those of panes, instead of each window's from its tuples."""
    if isinstance(node, Windowing) and pane_shape(node.body, node.parameter) is not None:
        return replace(node, pane=pane_length(node.window))
    return node


RULES: tuple[Callable[[Node], Node], ...] = (lambda node: rebuild(node, use_panes),)


def optimise(plan: Plan, rules: tuple[Callable[[Node], Node], ...] = RULES) -> Plan:
    """Apply all rules, in order."""
    for rule in rules:
        plan = plan.map(rule)
    return plan
