"""Optimisation: a visible tuple of rules, each a pure function from plan to plan."""

from __future__ import annotations

from collections.abc import Callable

from handshake.plan.algebra import Node, Plan
from handshake.plan.rules import (
    flatten_unions,
    fold_constants,
    push_down_filters,
    push_down_projections,
    share_expressions,
    unnest_groups,
    use_panes,
)

__all__ = ["RULES", "Rule", "optimise"]

Rule = Callable[[Node], Node]
RULES: tuple[Rule, ...] = (
    fold_constants,
    flatten_unions,
    push_down_filters,
    share_expressions,
    push_down_projections,
    use_panes,
    unnest_groups,
)
"""All rules, in the order in which they are applied."""


def optimise(plan: Plan, rules: tuple[Rule, ...] = RULES[:-1]) -> Plan:
    """Apply rules to every result of a plan.

    Un-nesting is left to back ends that have a copy of a sub-plan for each open window, as circuits do: where
    windows are made of panes, they share the groups already.
    """
    for rule in rules:
        plan = plan.map(rule)
    return plan
