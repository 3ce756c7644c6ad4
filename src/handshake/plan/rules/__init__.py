"""The rules of the optimiser: pure functions from plan to plan, one to a file."""

from handshake.plan.rules.constants import fold_constants
from handshake.plan.rules.filters import push_down_filters
from handshake.plan.rules.groups import nested, unnest_groups
from handshake.plan.rules.panes import use_panes
from handshake.plan.rules.projections import push_down_projections
from handshake.plan.rules.shared import share_expressions
from handshake.plan.rules.unions import flatten_unions

__all__ = [
    "flatten_unions",
    "fold_constants",
    "nested",
    "push_down_filters",
    "push_down_projections",
    "share_expressions",
    "unnest_groups",
    "use_panes",
]
