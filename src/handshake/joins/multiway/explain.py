"""Descriptions of joins of several streams: the join orders, their access methods, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from handshake.joins.multiway.order import Order, runner_up
from handshake.joins.multiway.spec import ManySpec
from handshake.joins.multiway.stats import Statistics


def explain_many(spec: ManySpec, orders: Sequence[Order], statistics: Statistics, cores: int) -> str:
    """Describe the join orders and their steps."""
    return "\n".join(_lines(spec, orders, statistics, cores))


def _lines(spec: ManySpec, orders: Sequence[Order], statistics: Statistics, cores: int) -> Iterator[str]:
    yield f"join of     {', '.join(spec.names)}"
    yield f"on          {spec.text}"
    windows = [f"{stream.name} {stream.window or 'unbounded'}" for stream in spec.streams]
    yield f"windows     {', '.join(windows)}"
    for condition in spec.filters:
        yield f"filter      {condition.text}, once per tuple"
    for order in orders:
        yield from _order(spec, order, statistics)
    shared = "; they share the first window of an order, or the input if it is indexed" if cores > 1 else ""
    yield f"algorithm   mjoin, cores: {cores}{shared}"


def _order(spec: ManySpec, order: Order, statistics: Statistics) -> Iterator[str]:
    """Describe the join order of one stream, the best other one, and the steps."""
    yield f"{'from ' + spec.names[order.source]:<11} {_route(spec, order)}: {_why(spec, order, statistics)}"
    joined = frozenset({order.source})
    for target in order.targets:
        new = spec.new_conditions(joined, target)
        texts = [condition.text for condition in new.conditions]
        what = " AND ".join(texts) if texts else "every tuple, no condition connects it"
        found = statistics.estimate(joined, target)
        matches = f"{found.matches:.3g} matches each ({found.known})"
        yield f"  {'-> ' + spec.names[target]:<9} {new.method}: {what}; {matches}"
        joined |= {target}


def _route(spec: ManySpec, order: Order) -> str:
    return " -> ".join(spec.names[k] for k in (order.source, *order.targets))


def _why(spec: ManySpec, order: Order, statistics: Statistics) -> str:
    other = runner_up(order, spec, statistics)
    if other is None:
        return "the only order"
    return f"about {_time(order.seconds)} a tuple; {_route(spec, other)} would take {_time(other.seconds)}"


def _time(seconds: float) -> str:
    for unit, name in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 1000 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
