"""docs/semantics.md as a program: plain Python, one value and one pair at a time, nothing clever.

`evaluate` gives the value of a bound expression, `join` and `join_many` say which rows join, `of_kind` says
what the results of a kind of join are. `asof` and `nearest` choose the best matches. Rows are dictionaries of
physical values (see oracle_values.py); `rows` reads them from an Arrow table.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from handshake.plan import expr as tree
from handshake.schema import Date, Decimal, Float, Int, Timestamp
from handshake.testing.oracle_functions import TYPED
from handshake.testing.oracle_values import FUNCTIONS, SKIP_NULL, TIME, cast, fit, logical, physical, rows

__all__ = [
    "TIME", "Accepted", "Advance", "Result", "accept", "asof", "cast", "evaluate", "join", "join_many",
    "logical", "nearest", "of_kind", "physical", "rows",
]  # fmt: skip

Row = Mapping[str, Any]


# Expressions: one function per node.


def evaluate(expr: tree.Expr, rows: Sequence[Row]) -> Any:
    """Return the value of a bound expression for one row of each input; None is NULL."""
    return _EVALUATE[type(expr)](expr, rows)


def _arithmetic(expr: tree.Arithmetic, rows: Sequence[Row]) -> Any:
    a, b = evaluate(expr.left, rows), evaluate(expr.right, rows)
    if a is None or b is None or (expr.op in ("/", "div", "%") and b == 0):
        return None
    if expr.op in _OPERATORS:
        return fit(_OPERATORS[expr.op](a, b), expr.type)
    if isinstance(expr.type, Float):  # %
        return math.nan if math.isinf(a) else math.fmod(a, b)
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if expr.op == "div" else a - quotient * b


_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(expr: tree.Compare, rows: Sequence[Row]) -> bool | None:
    a, b = evaluate(expr.left, rows), evaluate(expr.right, rows)
    return None if a is None or b is None else _OPERATORS[expr.op](a, b)


def _and(expr: tree.And, rows: Sequence[Row]) -> bool | None:
    unknown = False
    for arg in expr.args:
        value = evaluate(arg, rows)
        if value is False:
            return False
        unknown = unknown or value is None
    return None if unknown else True


def _or(expr: tree.Or, rows: Sequence[Row]) -> bool | None:
    unknown = False
    for arg in expr.args:
        value = evaluate(arg, rows)
        if value is True:
            return True
        unknown = unknown or value is None
    return None if unknown else False


def _not(expr: tree.Not, rows: Sequence[Row]) -> bool | None:
    value = evaluate(expr.arg, rows)
    return None if value is None else not value


def _negate(expr: tree.Negate, rows: Sequence[Row]) -> Any:
    value = evaluate(expr.arg, rows)
    return None if value is None else -value


def _case(expr: tree.Case, rows: Sequence[Row]) -> Any:
    for condition, value in expr.pairs:
        if evaluate(condition, rows) is True:
            return evaluate(value, rows)
    return evaluate(expr.default, rows)


def _call(expr: tree.Call, rows: Sequence[Row]) -> Any:
    values = [evaluate(arg, rows) for arg in expr.args]
    if expr.name == "path":
        steps = zip(values[1:], expr.args[1:], strict=True)
        return physical(reduce(lambda owner, step: _step(owner, *step), steps, values[0]), expr.type)
    if expr.name in SKIP_NULL:
        known = [value for value in values if value is not None]
        return SKIP_NULL[expr.name](known) if known else None
    if expr.name == "concat_ws":
        return None if values[0] is None else values[0].join(v for v in values[1:] if v is not None)
    if any(value is None for value in values):
        return None
    if expr.name in TYPED:
        found = TYPED[expr.name](expr, *values)
        return None if found is None or not _holds(found, expr) else fit(found, expr.type)
    return fit(FUNCTIONS[expr.name](expr.args[0].type, *values), expr.type)


def _step(owner: Any, key: Any, step: tree.Expr) -> Any:
    """Return a field of a struct, an element of a list or a value of a map, which is a list of pairs."""
    if owner is None or key is None:
        return None
    if isinstance(owner, list) and (not owner or isinstance(owner[0], tuple)):
        for known, value in owner:
            if (physical(known, step.type) == key) or (known != known and key != key):
                return value
        return None
    if isinstance(key, str):
        return owner[key]
    return owner[key] if 0 <= key < len(owner) else None


def _holds(value: Any, expr: tree.Call) -> bool:
    """Return whether a computed whole number fits its type; bit operations are exact."""
    match expr.type:
        case _ if expr.name.startswith("bit_") and expr.name not in ("bit_count", "bit_length"):
            return True
        case Int(bits=bits):
            return -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        case Date():
            return -(2**31) <= value < 2**31
        case Timestamp():
            return -(2**63) <= value < 2**63
        case Decimal():
            return abs(value) < 10**38
    return True


def _udf(expr: tree.Udf, rows: Sequence[Row]) -> Any:
    return physical(expr.function(*(logical(evaluate(a, rows), a.type) for a in expr.args)), expr.type)


_EVALUATE: dict[type[tree.Expr], Callable[..., Any]] = {
    tree.Column: lambda expr, rows: rows[expr.side][expr.name],
    tree.Literal: lambda expr, rows: expr.value,
    tree.Arithmetic: _arithmetic,
    tree.Compare: _compare,
    tree.Negate: _negate,
    tree.Not: _not,
    tree.IsNull: lambda expr, rows: evaluate(expr.arg, rows) is None,
    tree.Cast: lambda expr, rows: cast(evaluate(expr.arg, rows), expr.arg.type, expr.type),
    tree.And: _and,
    tree.Or: _or,
    tree.Call: _call,
    tree.Udf: _udf,
    tree.Case: _case,
}


# Windows: who is dropped at arrival, who joins.


@dataclass(frozen=True)
class Result:
    """Which rows join, by index, in the order of the loops; how many were dropped at arrival, and why."""

    pairs: list[tuple[int, ...]]
    late: int = 0
    no_time: int = 0
    dropped: frozenset[tuple[int, int]] = frozenset()
    """The late rows: stream and index."""


@dataclass(frozen=True)
class Advance:
    """In a list of arrivals, in the place of an index: no row of the stream older than this will come."""

    time: int


@dataclass(frozen=True)
class Accepted:
    """A row that was neither late nor without a time that it needs, and what had come before it."""

    stream: int
    index: int
    time: int | None
    position: int
    """How many tuples were accepted before it, of all streams."""
    seen: tuple[int, ...]
    """How many tuples of each stream were accepted before it."""


def join(
    left: Sequence[Row],
    right: Sequence[Row],
    on: tree.Expr,
    windows: Any,
    lateness: int | None = None,
    arrivals: Sequence[tuple[str, int | Advance]] | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
) -> Result:
    """Return the two-stream join; times (keys `left_time`, `right_time`) and `lateness` are nanoseconds."""
    numbered = None if arrivals is None else [(int(side == "right"), index) for side, index in arrivals]
    sides = (windows.left, windows.right)
    times = None if left_time is None or right_time is None else (left_time, right_time)
    return join_many((left, right), on, sides, lateness, numbered, times)


def join_many(
    streams: Sequence[Sequence[Row]],
    on: tree.Expr,
    windows: Sequence[Any],
    lateness: int | None = None,
    arrivals: Sequence[tuple[int, int | Advance]] | None = None,
    times: Sequence[str] | None = None,
) -> Result:
    """Return the join of any number of streams: `Column.side` of the predicate is a stream's number."""
    keys: Sequence[str | None] = times or [None] * len(streams)
    clocks = [[row[k] if k else None for row in rows] for rows, k in zip(streams, keys, strict=True)]
    order = _in_order(clocks, bool(times))
    timed = any(w is not None and w.kind == "time" for w in windows)
    accepted, late, no_time = accept(order if arrivals is None else arrivals, clocks, timed, lateness)
    pairs: list[tuple[int, ...]] = []
    for members in itertools.product(*accepted):
        if all(_is_held(r, s, windows[r.stream]) for r, s in itertools.permutations(members, 2)):
            indices = tuple(member.index for member in members)
            if evaluate(on, [rows[i] for rows, i in zip(streams, indices, strict=True)]) is True:
                pairs.append(indices)
    return Result(pairs, len(late), no_time, frozenset(late))


def _in_order(clocks: list[list[int | None]], timed: bool) -> list[tuple[int, int]]:
    """Order by time, ties by stream, then by row, rows without a time last; without times, take turns."""
    every = [(n, i) for n, clock in enumerate(clocks) for i in range(len(clock))]
    if not timed:
        return sorted(every, key=lambda at: at[::-1])
    return sorted(every, key=lambda at: (math.inf if (t := clocks[at[0]][at[1]]) is None else t, at))


def accept(
    order: Sequence[tuple[int, int | Advance]], clocks: list[list[int | None]], timed: bool,
    lateness: int | None,
) -> tuple[list[list[Accepted]], list[tuple[int, int]], int]:  # fmt: skip
    """Return the accepted rows of each stream, the late rows, and the number of rows without a time."""
    accepted: list[list[Accepted]] = [[] for _ in clocks]
    newest: list[int | None] = [None for _ in clocks]
    late, no_time = [], 0
    for stream, index in order:
        if isinstance(index, Advance):
            newest[stream] = _later(newest[stream], index.time)
            continue
        now, seen = clocks[stream][index], tuple(map(len, accepted))
        if timed and now is None:
            no_time += 1
        elif now is not None and lateness is not None and _is_late(now, newest, lateness):
            late.append((stream, index))
        else:
            accepted[stream].append(Accepted(stream, index, now, sum(seen), seen))
            if now is not None:
                newest[stream] = _later(newest[stream], now)
    return accepted, late, no_time


def _later(newest: int | None, now: int) -> int:
    return now if newest is None else max(now, newest)


def _is_late(now: int, newest: list[int | None], lateness: int) -> bool:
    known = [time for time in newest if time is not None]
    return len(known) == len(newest) and now < min(known) - lateness


def _is_held(r: Accepted, s: Accepted, window: Any) -> bool:
    """Return whether `r` is in the window of its stream as far as `s` is concerned."""
    if window is None:
        return True
    if window.kind == "time":
        assert s.time is not None  # rows without a time were dropped
        assert r.time is not None
        return s.time - r.time < window.size
    return s.position < r.position or r.seen[r.stream] >= s.seen[r.stream] - window.size


# Kinds of joins: what the results are, and when a row without a match is one.


def of_kind(name: str, result: Result, sizes: tuple[int, int]) -> list[tuple[int | None, int | None]]:
    """Return the results of a kind of join of two streams of these sizes, as pairs of indices, sorted.

    None stands for a row of NULLs, and for the side that semi and anti joins do not show.
    """
    matched = [{pair[side] for pair in result.pairs} for side in (0, 1)]
    alone = [
        [i for i in range(size) if i not in matched[side] and (side, i) not in result.dropped]
        for side, size in enumerate(sizes)
    ]
    left, right = [(i, None) for i in alone[0]], [(None, i) for i in alone[1]]
    pairs: list[tuple[int | None, int | None]] = [(i, j) for i, j in result.pairs]
    found: dict[str, list[Any]] = {
        "inner": pairs, "left": pairs + left, "right": pairs + right, "full": pairs + left + right,
        "left_semi": [(i, None) for i in matched[0]], "right_semi": [(None, i) for i in matched[1]],
        "left_anti": left, "right_anti": right,
    }  # fmt: skip
    return sorted(found[name], key=repr)


def asof(
    left: Sequence[Row], right: Sequence[Row], on: tree.Expr, direction: str, tolerance: int | None,
    exact: bool,
) -> list[int | None]:  # fmt: skip
    """Return, for each left row, the index of the right row that is best in time; None if there is none."""
    found: list[int | None] = []
    for l_row in left:
        best: tuple[Any, ...] | None = None
        for index, r_row in enumerate(right):
            if not _may_follow(l_row[TIME], r_row[TIME], direction, tolerance, exact):
                continue
            if evaluate(on, (l_row, r_row)) is True:
                distance, now = abs(l_row[TIME] - r_row[TIME]), r_row[TIME]
                if best is None or (-distance, -now, _order(r_row)) > best[0]:
                    best = ((-distance, -now, _order(r_row)), index)
        found.append(None if best is None else best[1])
    return found


def _may_follow(
    left: int | None, right: int | None, direction: str, tolerance: int | None, exact: bool
) -> bool:
    if left is None or right is None or (left == right and not exact):
        return False
    if tolerance is not None and abs(left - right) > tolerance:
        return False
    return direction == "nearest" or (right <= left if direction == "backward" else right >= left)


def _order(row: Row) -> tuple[list[Any], list[float]]:
    """Return the place of a right row among those that are equally good: by its columns, then their signs."""
    values = [value for name, value in row.items() if name != TIME]
    signs = [math.copysign(1, value) for value in values if isinstance(value, float) and value == 0]
    return [_place(value) for value in values], signs


def _place(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts NULL first, then NaN, then values."""
    if value is None:
        return (0,)
    return (1,) if value != value else (2, value)


def nearest(
    left: Sequence[Row], right: Sequence[Row], pairs: Sequence[tuple[int, ...]], by: tree.Expr, k: int
) -> dict[int, list[tuple[int, Any]]]:
    """Return, for each left row of a pair, its k best right rows, by index, and the values of the ranking.

    The least value is best; NaN and then NULL come last. Of equal values, the row that is last in the order
    of its columns is best.
    """
    found: dict[int, list[tuple[int, Any]]] = {}
    for mine, other in pairs:
        found.setdefault(mine, []).append((other, evaluate(by, (left[mine], right[other]))))
    for matches in found.values():
        matches.sort(key=lambda match: _order(right[match[0]]), reverse=True)
        matches.sort(key=lambda match: _rank(match[1]))
        del matches[k:]
    return found


def _rank(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts values first, then NaN, then NULL."""
    if value is None:
        return (2,)
    return (1,) if value != value else (0, value)
