"""The optimiser: named sets of rules, each rule a pure function from plan to plan."""

from __future__ import annotations

from collections.abc import Callable

from handshake.plan.algebra import Node, Plan
from handshake.plan.rules.constants import fold_constants
from handshake.plan.rules.filters import push_down_filters
from handshake.plan.rules.panes import use_panes
from handshake.plan.rules.projections import push_down_projections
from handshake.plan.rules.shared import share_expressions
from handshake.plan.rules.unions import flatten_unions

Rule = Callable[[Node], Node]
_BATCHES: tuple[Rule, ...] = (
    fold_constants,
    flatten_unions,
    push_down_filters,
    share_expressions,
    push_down_projections,
    use_panes,
)
RULE_SETS: dict[str, tuple[Rule, ...]] = {
    "local": _BATCHES,
    "spark": _BATCHES,
    "circuit": (),  # circuits are optimised as nets; see engines/circuit/nets/rules.py
}
"""The rules of each engine, in the order in which they are applied."""


def optimise(plan: Plan, rules: str | tuple[Rule, ...] = "local") -> Plan:
    """Apply rules to every result of a plan.

    Args:
        plan: the plan, which stays as it is.
        rules: the name of a rule set, or the rules themselves.

    Returns:
        A plan with the same results.
    """
    for rule in RULE_SETS[rules] if isinstance(rules, str) else rules:
        plan = plan.map(rule)
    return plan
