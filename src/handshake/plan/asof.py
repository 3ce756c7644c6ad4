"""As-of joins of a SELECT: `ASOF JOIN … MATCH_CONDITION (l.t >= r.t) ON …`.

The condition compares the times of both streams, so it has to name their time columns. Results of a join that
looks back have the times of its left rows, so several of them may follow each other.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from handshake.errors import ExpressionError
from handshake.plan.algebra import LONGEST, Apply, Node, Project, Select, Source, Union, WindowJoin
from handshake.plan.bind import Scope, bind_value
from handshake.plan.expr import Column, Compare, Expr, Name, show
from handshake.plan.joined import Item, Joined
from handshake.schema import UNITS, Timestamp, finest_unit
from handshake.windows import TimeWindow, Window

_MIRRORED = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
ErrorAt = Callable[[str, exp.Expr], ExpressionError]


def window_of_matches(
    joined: Joined, item: Item, windows: tuple[Window | None, Window | None], match: str, error: ErrorAt
) -> Window:
    """Return the window that says how far apart in time a row and its match may be.

    Args:
        joined: The streams so far.
        item: The stream that is searched for the best match.
        windows: The windows of the left stream and of this one, if they have one.
        match: The comparison of their times.
        error: Returns an error that points at a node.
    """
    side = 0 if match.startswith("<") else 1
    window, clock = windows[side], finest_unit(joined.node.clock.unit, item.node.clock.unit)
    if not isinstance(window, TimeWindow):
        name = item.name if side else joined.members[0].item.name
        given = "none" if window is None else f"one of {window}"
        looks = "looks back, so the right" if side else "looks ahead, so the left"
        raise error(
            f"an as-of join with {match} {looks} stream needs a window of time, and {name} has {given}; "
            f"write {name} [SIZE 10 MINUTES]", item.tree
        )  # fmt: skip
    if window.size > LONGEST * UNITS[clock]:
        raise error(
            f"the window is longer than 2^62 {clock}, in which the streams count their times; shorten it",
            item.tree,
        )
    return window


def comparison_of_times(
    joined: Joined, item: Item, written: Expr | None, scope: Scope, error: ErrorAt
) -> str:
    """Return the comparison of a MATCH_CONDITION, with the left side first.

    Args:
        joined: The streams so far.
        item: The stream that is searched for the best match.
        written: The condition.
        scope: The columns of the streams so far, and of the one that is searched.
        error: Returns an error that points at a node.
    """
    left, right = joined.members[0].item.name, item.name
    known = (_time_columns(joined.node), _time_columns(item.node))
    times = [
        f"{name}.{next(iter(columns), 'time')}" for name, columns in zip((left, right), known, strict=True)
    ]
    if joined.members[0].prefix:
        times[0] = times[0].replace(f".{joined.members[0].prefix}", ".", 1)
    example = f"MATCH_CONDITION ({times[0]} >= {times[1]})"
    if written is None:
        raise error(f"an as-of join says which times match; write {example} behind the stream", item.tree)
    if not isinstance(written, Compare) or written.op not in _MIRRORED:
        raise error(
            f"MATCH_CONDITION compares the times of both streams with >=, >, <= or <, as in {example}; "
            f"other conditions, such as {show(written)}, stand in ON", item.tree
        )  # fmt: skip
    operands = [bind_value(e, scope) for e in written.children if isinstance(e, Name)]
    found = [e for e in operands if isinstance(e, Column)]
    if len(found) == 2 and found[0].side > found[1].side:
        found, op = found[::-1], _MIRRORED[written.op]
    else:
        op = written.op
    new = len(joined.members)
    if len(found) < 2 or found[0].side == new or found[1].side != new:
        raise error(
            f"MATCH_CONDITION compares a time column of each stream, as in {example}, not {show(written)}; "
            "the window says how far apart they may be", item.tree
        )  # fmt: skip
    names = joined.members[found[0].side].prefix + found[0].name, found[1].name
    for column, name, columns, stream in zip(found, names, known, (left, right), strict=True):
        if name not in columns:
            raise error(_no_time(column, stream, bool(columns), example), item.tree)
    types = [column.type for column in found]
    same = joined.node.clock.unit == item.node.clock.unit
    if len({isinstance(kind, Timestamp) for kind in types}) > 1 or not (
        same or all(isinstance(kind, Timestamp) for kind in types)
    ):
        raise error(
            f"{show(written)} compares times of different units; declare both as timestamps, or as whole "
            "numbers of one unit", item.tree
        )  # fmt: skip
    return op


def _no_time(column: Column, stream: str, known: bool, example: str) -> str:
    if known:
        return f"{column.shown or column.name} is not the time of {stream}; write {example}"
    return (
        f"{stream} has no column with its times: declare one with TIMESTAMP BY, and select it if {stream} is "
        "a query. Results of windows, and of joins other than an as-of join that looks back, have none"
    )


def _time_columns(node: Node) -> list[str]:
    """Return the columns that hold the times of rows."""
    match node:
        case Source(time=time):
            return [] if time is None else [time]
        case Project(input=below, columns=columns):
            known = _time_columns(below)
            return [new for new, old in columns if old in known]
        case Select(input=below) | Apply(input=below):
            return _time_columns(below)
        case Union(inputs=inputs):
            each = [_time_columns(child) for child in inputs]
            same = len({child.clock for child in inputs}) == 1
            return [name for name in each[0] if same and all(name in other for other in each)]
        case WindowJoin(match=(">=" | ">"), inputs=inputs, names=names):
            return [f"{names[0]}.{name}" for name in _time_columns(inputs[0])]
    return []
