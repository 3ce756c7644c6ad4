"""The choice between `handshake.join` and one task for the joins of a query.

In one task, the operators of continuous queries see tuples in their order of arrival. That is as exact, but
not spread over a cluster, so it is used only if `handshake.join` would give other results, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from handshake.errors import UnsupportedError
from handshake.kinds import INNER
from handshake.plan.aggregates import AGGREGATES
from handshake.plan.algebra import Aggregate, Node, Output, Plan, Source, Union, Windowing, WindowJoin, walk
from handshake.plan.optimise import optimise


def explain_placement(plan: Plan) -> list[str]:
    """Return a line for each result that runs in one task because of its joins, with the reason."""
    plan = optimise(plan, "spark")
    names = [source.name for source in plan.inputs]
    timeless = frozenset(source.name for source in plan.inputs if source.time is None)
    found = ((output, why_one_task(output, names, names, timeless)) for output in plan.outputs)
    return [f"{output.name}: on Spark in one task, since {why}" for output, why in found if why is not None]


def declared_sources(node: Node, declared: Sequence[str]) -> tuple[Source, ...]:
    """Return the inputs of a plan in the order of their declarations, which orders tuples of equal time."""
    found = (here for here in dict.fromkeys(walk(node)) if isinstance(here, Source))
    return tuple(sorted(found, key=lambda source: declared.index(source.name)))


def why_one_task(
    output: Output, declared: Sequence[str], streams: Collection[str],
    timeless: Collection[str] = (),
) -> str | None:  # fmt: skip
    """Return why a plan with joins runs in one task; None if its joins are spread over Spark's tasks.

    Args:
        output: The plan.
        declared: The names of the inputs in the order of their declarations.
        streams: The names of the inputs that are unbounded.
        timeless: The names of the inputs without a time column.
    """
    joins = [node for node in dict.fromkeys(walk(output)) if isinstance(node, WindowJoin)]
    found = next((why for join in joins for why in _about_join(join, declared, streams, timeless)), None)
    if found is not None or not joins or not _stream_count(output, streams):
        return found
    if sum(sum(_stream_count(child, streams) > 0 for child in join.inputs) > 1 for join in joins) > 1:
        return "it has several joins of streams, and Spark has one watermark for all of them"
    return next(_about_windows(output), None)


def check_carried(output: Output, inputs: Sequence[Source], timeless: Collection[str]) -> None:
    """Refuse to order tuples of several inputs by the rows of a carrier, which Spark does not number.

    Args:
        output: The plan of a result.
        inputs: All inputs of the query.
        timeless: The names of the inputs without a time column.
    """
    streams = [s for s in inputs if s.demux is not None]
    carriers = {s.name: s.demux.stream for s in streams if s.demux is not None and s.name in timeless}
    replayed = {s.demux.stream for s in streams if s.demux is not None and s.time is not None} & set(timeless)
    for node in walk(output):
        counted = isinstance(node, WindowJoin) and any(w is None or w.counted for w in node.windows)
        windowed, names = isinstance(node, Windowing), _names(node)
        alone = [name for name in names if name in replayed and (windowed or counted)]
        among = [name for name in names if name in carriers and (windowed or counted) and len(names) > 1]
        for name in (*alone, *among):
            carrier = carriers.get(name, name)
            raise UnsupportedError(
                f"{output.name} depends on the order in which tuples of {name} arrive among others, and "
                f"Spark does not number the rows of {carrier}, which carries several streams; declare "
                f"TIMESTAMP BY for {name}"
            )


def _stream_count(node: Node, streams: Collection[str]) -> int:
    return sum(name in streams for name in _names(node))


def _about_join(
    join: WindowJoin, declared: Sequence[str], streams: Collection[str], timeless: Collection[str]
) -> Iterator[str]:
    below = [node for child in join.inputs for node in walk(child)]
    counted = any(window is None or window.counted for window in join.windows)
    if any(isinstance(node, Windowing) for node in below):
        yield "it joins results of windows"
    if any(isinstance(node, WindowJoin) for node in below):
        yield "it joins results of a join"
    if len(join.inputs) > 2 and counted:
        yield "it joins more than two streams, one of them by number of tuples"
    if any(child.clock.unit == "ns" for child in join.inputs):
        yield "it counts nanoseconds, and Spark microseconds"
    unions = [node for node in below if isinstance(node, Union)]
    if unions and (counted or any(_stream_count(union, streams) > 1 for union in unions)):
        yield "it joins a union of streams, which goes by the slowest of their clocks"
    sources = [node for node in walk(join) if isinstance(node, Source)]
    # otherwise turns alone order tuples of streams that have no time column
    if counted and any(s.name in timeless for s in sources) and any(s.time is not None for s in sources):
        yield "it counts tuples of streams without a time column, which arrive before all others"
    if counted and not _in_order(join, declared):
        yield "it counts tuples of streams that it does not name in the order of their declarations"


def _names(node: Node) -> list[str]:
    return [here.name for here in dict.fromkeys(walk(node)) if isinstance(here, Source)]


def _in_order(join: WindowJoin, declared: Sequence[str]) -> bool:
    """Return whether tuples of equal time arrive on the left first, as `handshake.join` assumes."""
    places = [declared.index(name) for child in join.inputs for name in _names(child)]
    return all(a < b for a, b in pairwise(places))


def _about_windows(output: Output) -> Iterator[str]:
    nodes = list(walk(output))
    windows = [node for node in nodes if isinstance(node, Windowing)]
    if windows and join_below(output) is None:
        yield "it has windows over a union with the results of a join"
    for node in nodes:
        if windows and isinstance(node, WindowJoin) and node.kind != INNER:
            yield f"it has windows over {node.called}, whose rows go by the clock of each tuple"
    if any(node.window.kind == "tuples" for node in windows):
        yield "a window of tuples needs an order, which results of a join have in one task only"
    for node in nodes:
        if isinstance(node, Aggregate) and AGGREGATES[node.function].ordered:
            yield f"{node.function} needs an order, which results of a join have in one task only"


def join_below(output: Output) -> WindowJoin | None:
    """Return the join whose results alone are the input of a query's windows; None if there is none."""
    node: Node = output.input
    while not isinstance(node, (WindowJoin, Union, Source)):
        node = node.children[0]
    return node if isinstance(node, WindowJoin) else None
