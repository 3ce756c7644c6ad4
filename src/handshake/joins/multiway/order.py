"""Join orders: through which windows, and in which order, the tuples of each stream go.

An order costs what its steps cost: each one sees the combinations that those before it have left. All orders
are weighed by dynamic programming over the sets of streams that have been joined. It is exact for up to
eight streams; beyond, only the cheapest sets of each size are followed up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from handshake.joins.multiway.spec import ManySpec
from handshake.joins.multiway.stats import Statistics

__all__ = ["Order", "best_order", "runner_up"]

_BEAM = 64
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
        estimate = statistics.estimate(self.joined, target)
        made = self.combinations * estimate.matches
        step = spec.step(self.joined, target).spec
        looked = statistics.rows[target] * step.tuning.scanned
        if step.method != "scan":  # a core scans where that is cheaper
            looked = min(looked, _PROBED + estimate.candidates * step.tuning.looked_up)
        seconds = (
            self.seconds + self.combinations * looked + made * step.tuning.made * (len(self.targets) + 1)
        )
        return Order(self.source, (*self.targets, target), made, seconds)


def best_order(source: int, spec: ManySpec, statistics: Statistics) -> Order:
    """Return the order that is expected to cost least."""
    everyone = frozenset(range(len(spec.streams)))
    return _complete([Order(source)], everyone, spec, statistics)


def cost_order(source: int, targets: Iterable[int], spec: ManySpec, statistics: Statistics) -> Order:
    """Return an order with its expected cost."""
    order = Order(source)
    for target in targets:
        order = order.then(target, spec, statistics)
    return order


def runner_up(order: Order, spec: ManySpec, statistics: Statistics) -> Order | None:
    """Return the best order that begins with another window; None if there is only one order."""
    everyone = frozenset(range(len(spec.streams)))
    others = everyone - {order.source, order.targets[0]}
    starts = [Order(order.source).then(target, spec, statistics) for target in sorted(others)]
    return _complete(starts, everyone, spec, statistics) if starts else None


def _complete(orders: list[Order], everyone: frozenset[int], spec: ManySpec, statistics: Statistics) -> Order:
    while orders[0].joined != everyone:
        longer: dict[frozenset[int], Order] = {}
        for order in orders:
            for target in sorted(everyone - order.joined):
                following = order.then(target, spec, statistics)
                known = longer.get(following.joined)
                if known is None or following.seconds < known.seconds:
                    longer[following.joined] = following
        orders = sorted(longer.values(), key=lambda order: order.seconds)[:_BEAM]
    return min(orders, key=lambda order: order.seconds)
