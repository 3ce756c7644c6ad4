"""Join orders: through which windows, and in which order, the tuples of each stream go.

An order costs what its steps cost: each one sees the combinations that those before it have left. For up to
eight streams, dynamic programming over the sets of joined streams finds the best of all orders. With more
streams, an order is built step by step, and each step is the cheapest of those that are left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from handshake.joins.multiway.spec import ManySpec
from handshake.joins.multiway.stats import Statistics

_EXACT = 8
"""The most streams whose orders are all weighed."""
_PROBED = 3e-7
"""Seconds to find the cells of an index that a tuple looks at."""


@dataclass(frozen=True)
class Order:
    """The windows that a tuple of `source` goes through, and what that is expected to cost."""

    source: int
    targets: tuple[int, ...] = ()
    combinations: float = 1.0
    """How many combinations a tuple is in so far."""
    seconds: float = 0.0

    @property
    def joined(self) -> frozenset[int]:
        """The streams that have a member in the combinations."""
        return frozenset((self.source, *self.targets))

    def then(self, target: int, spec: ManySpec, statistics: Statistics) -> Order:
        """Return this order with one step more."""
        joined, tuning = self.joined, spec.tuning
        estimate = statistics.estimate(joined, target)
        made = self.combinations * estimate.matches
        looked = statistics.rows[target] * tuning.scanned
        if spec.new_conditions(joined, target).method != "scan":  # a core scans where that is cheaper
            looked = min(looked, _PROBED + estimate.candidates * tuning.looked_up)
        seconds = self.seconds + self.combinations * looked + made * tuning.made * (len(self.targets) + 1)
        return Order(self.source, (*self.targets, target), made, seconds)

    @property
    def prospect(self) -> float:
        """The seconds so far, and those to look up each combination once more."""
        return self.seconds + self.combinations * _PROBED


def best_order(source: int, spec: ManySpec, statistics: Statistics) -> Order:
    """Return the order that is expected to cost least; with many streams, a good one."""
    return _complete([Order(source)], spec, statistics)


def cost_order(source: int, targets: Iterable[int], spec: ManySpec, statistics: Statistics) -> Order:
    """Return an order with its expected cost."""
    order = Order(source)
    for target in targets:
        order = order.then(target, spec, statistics)
    return order


def runner_up(order: Order, spec: ManySpec, statistics: Statistics) -> Order | None:
    """Return the best order that begins with another window; None if there is only one order."""
    starts = _follow(Order(order.source), spec, statistics, without=order.targets[0])
    return _complete(starts, spec, statistics) if starts else None


def _complete(starts: list[Order], spec: ManySpec, statistics: Statistics) -> Order:
    """Return the best order that begins like one of `starts`."""
    if len(spec.streams) > _EXACT:
        return _extend_greedily(starts, spec, statistics)
    orders = starts
    for _ in range(len(spec.streams) - 1 - len(starts[0].targets)):
        cheapest: dict[frozenset[int], Order] = {}
        for order in orders:
            for longer in _follow(order, spec, statistics):
                joined = longer.joined
                known = cheapest.get(joined)
                if known is None or longer.seconds < known.seconds:
                    cheapest[joined] = longer
        orders = list(cheapest.values())
    return min(orders, key=lambda order: order.seconds)


def _extend_greedily(starts: list[Order], spec: ManySpec, statistics: Statistics) -> Order:
    """Return the most promising start, extended by the most promising step until no stream is left."""
    while starts:
        order = min(starts, key=lambda start: start.prospect)
        starts = _follow(order, spec, statistics)
    return order


def _follow(order: Order, spec: ManySpec, statistics: Statistics, without: int | None = None) -> list[Order]:
    """Return the order with each step more that is left, but those into `without`."""
    left = sorted(set(range(len(spec.streams))) - order.joined - {without})
    return [order.then(target, spec, statistics) for target in left]
