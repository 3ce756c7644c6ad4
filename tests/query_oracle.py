"""docs/queries.md as a program: plain Python, one tuple and one window at a time, nothing clever.

`run` takes a plan as it was parsed and all arrivals, and gives the rows of every result, with physical values
(see oracle_values.py), in the order in which they come.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Context
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import Any

from handshake.plan import algebra
from handshake.plan.algebra import MEMBER_TIME, Node, Plan, Source
from handshake.plan.expr import Compare, conjuncts, sides
from handshake.schema import UNITS, Decimal, Float
from handshake.testing.oracle import evaluate

Row = dict[str, Any]
BEGINNING, END = -math.inf, math.inf


@dataclass(frozen=True)
class Stamped:
    """A tuple: its time (None: it has none), its clock, and where it came among all arrivals."""

    row: Row
    time: int | None
    clock: float
    place: float


@dataclass(frozen=True)
class Stream:
    """All tuples of a stream, and how its clock moves: (place, what it shows from then on)."""

    tuples: list[Stamped]
    trace: list[tuple[float, float]]


@dataclass
class Counts:
    """Counts of tuples that were not in a window, by reason."""

    late: int = 0
    no_time: int = 0


Arrivals = Sequence[tuple[str, Row]]


def run(plan: Plan, arrivals: Arrivals, counts: Counts | None = None) -> dict[str, list[Row]]:
    """Return the rows of each result."""
    found = counts if counts is not None else Counts()
    seen: dict[str, Stream] = {}
    return {
        output.name: [dict(t.row) for t in _stream(output.input, arrivals, found, seen).tuples]
        for output in plan.outputs
    }


def _stream(node: Node, arrivals: Arrivals, counts: Counts, seen: dict[str, Stream]) -> Stream:
    text = repr(node)  # equal plans are one computation, whose late tuples count once
    if text not in seen:
        if isinstance(node, Source):
            seen[text] = _source(node, arrivals)
        else:
            inputs = node.children[:1] if isinstance(node, algebra.Windowing) else node.children
            below = [_stream(child, arrivals, counts, seen) for child in inputs]
            below = [_in_unit(s, child, node) for s, child in zip(below, inputs, strict=True)]
            seen[text] = _OPERATORS[type(node)](node, below, counts)
    return seen[text]


def _in_unit(stream: Stream, child: Node, node: Node) -> Stream:
    factor = UNITS[child.clock.unit] // UNITS[node.clock.unit]
    tuples = [
        replace(t, time=None if t.time is None else t.time * factor, clock=t.clock * factor)
        for t in stream.tuples
    ]
    return Stream(tuples, [(place, clock * factor) for place, clock in stream.trace])


# Streams.


def _source(node: Source, arrivals: Arrivals) -> Stream:
    clock, behind = BEGINNING, node.lateness // UNITS[node.clock.unit]
    tuples, trace = [], []
    for place, (name, row) in enumerate(arrivals):
        demux = node.demux
        if name != (node.name if demux is None else demux.stream):
            continue
        if demux is not None and row[demux.field] not in demux.values:
            continue
        assert node.time is not None
        time = row[node.time]
        clock = clock if time is None else max(clock, time - behind)
        tuples.append(Stamped({f.name: row[f.name] for f in node.fields}, time, clock, place))
        trace.append((place, clock))
    return Stream(tuples, [*trace, (len(arrivals), END)])


def _project(node: algebra.Project, below: list[Stream], counts: Counts) -> Stream:
    return _each(below[0], lambda rows: _project_rows(node, rows))


def _select(node: algebra.Select, below: list[Stream], counts: Counts) -> Stream:
    return _each(below[0], lambda rows: _select_rows(node, rows))


def _apply(node: algebra.Apply, below: list[Stream], counts: Counts) -> Stream:
    return _each(below[0], lambda rows: _apply_rows(node, rows))


def _each(stream: Stream, step: Callable[[list[Row]], list[Row]]) -> Stream:
    return Stream([replace(t, row=row) for t in stream.tuples for row in step([t.row])], stream.trace)


def _union(node: algebra.Union, below: list[Stream], counts: Counts) -> Stream:
    tuples = sorted((t for stream in below for t in stream.tuples), key=lambda t: t.place)
    return Stream(tuples, _slowest(below))


def _slowest(streams: list[Stream]) -> list[tuple[float, float]]:
    """Return the least that the clocks of several streams show."""
    places = sorted({place for stream in streams for place, _ in stream.trace})
    return [(place, min(_shows(stream, place) for stream in streams)) for place in places]


def _shows(stream: Stream, place: float) -> float:
    return max((clock for at, clock in stream.trace if at <= place), default=BEGINNING)


def _join(node: algebra.WindowJoin, below: list[Stream], counts: Counts) -> Stream:
    clock, given = _slowest(below), below
    if any(window is not None and window.kind == "time" for window in node.windows):
        below = [Stream(list(_timely(stream, clock, counts)), stream.trace) for stream in below]
    if node.match:
        return _asof(node, below, given[0], clock)
    pairs = [
        (_together(node, [t for _, t in members]), [own for own, _ in members])
        for members in itertools.product(*(enumerate(stream.tuples) for stream in below))
        if _meet(node, below, members) and evaluate(node.on, [_with_time(t) for _, t in members]) is True
    ]
    pairs.sort(key=lambda found: found[0][0])
    if node.kind.name == "inner":
        return Stream([t for (_, t), _ in pairs], clock)
    tuples = list(_of_pairs(node, pairs))
    for side in (0, 1):
        if node.kind.preserved[side]:
            matched = {own[side] for _, own in pairs}
            alone = [(own, t) for own, t in enumerate(below[side].tuples) if own not in matched]
            tuples += [_alone(node, below[side], clock, side, own, t) for own, t in alone]
            tuples += [_without_time(node, side, t) for t in _timeless(given[side], below[side])]
    tuples.sort(key=lambda found: found[0])
    return Stream([t for _, t in tuples], clock)


# As-of joins: each left row once, when no better match can come.


def _asof(
    node: algebra.WindowJoin, below: list[Stream], given: Stream, clock: list[tuple[float, float]]
) -> Stream:
    ahead = -(-node.windows[0].size // UNITS[node.clock.unit]) - 1 if node.match in ("<", "<=") else 0
    found: list[tuple[Any, Stamped]] = []
    for own, t in enumerate(below[0].tuples):
        matches = [
            ((-abs(t.time - r.time), [_place(value) for value in r.row.values()]), r)
            for other, r in enumerate(below[1].tuples)
            if _MATCHES[node.match](t.time, r.time)
            and _meet(node, below, [(own, t), (other, r)])
            and evaluate(node.on, [_with_time(t), _with_time(r)]) is True
        ]
        if not matches and not node.kind.preserved[0]:
            continue
        end = t.time + ahead
        row = _pad(node, 0, t)
        if matches:
            best = max(matches, key=lambda match: match[0])[1]
            row |= {f"{node.names[1]}.{name}": value for name, value in best.row.items()}
        at_once = _can_match_nothing(node, 0, t)
        place = t.place if at_once else max(t.place, min(at for at, shown in clock if shown > end))
        found.append(((place, end, own), Stamped(row, end, end, place)))
    if node.kind.preserved[0]:
        for own, t in _timeless(given, below[0]):
            found.append(((t.place, BEGINNING, own), replace(t, row=_pad(node, 0, t))))
    return Stream([t for _, t in sorted(found, key=lambda match: match[0])], clock)


_MATCHES: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt
}  # fmt: skip


def _place(value: Any) -> tuple[Any, ...]:
    """Return the order of equally good rows: NULL, then NaN, then values. The last one is taken."""
    if value is None:
        return (0,)
    return (1,) if _key(value) == "NaN" else (2, value)


# Kinds of joins: rows with a match once, and rows without a match.


def _of_pairs(node: algebra.WindowJoin, pairs: list[Any]) -> Iterable[tuple[Any, Stamped]]:
    """Yield the results of pairs, which come before rows without a match that have the same place."""
    given = set()
    for (key, t), own in pairs:
        if node.kind.pairs == "first":
            shown = own[node.kind.shown.index(True)]
            if shown in given:
                continue
            given.add(shown)
        if node.kind.pairs != "none":
            yield (key[0], 0, *key[1:], *own), t


def _alone(
    node: algebra.WindowJoin,
    stream: Stream,
    clock: list[tuple[float, float]],
    side: int,
    own: int,
    t: Stamped,
) -> tuple[Any, Stamped]:
    """Place a row without a match: when it is final, or at once if it can match nothing."""
    window = node.windows[side]
    end = None
    if window is not None and window.kind == "time":
        end = t.time - (-window.size // UNITS[node.clock.unit])
    if _can_match_nothing(node, side, t):
        place = t.place
    elif end is not None:
        place = max(t.place, min(at for at, shown in clock if shown >= end))
    else:
        after = [] if window is None else stream.tuples[own + window.size :]
        place = after[0].place if after else clock[-1][0]
    if end is None:
        passed = max((shown for at, shown in clock if at <= place and shown < END), default=BEGINNING)
        end = None if t.time is None else max(t.time, passed)
        shown = max(t.clock, passed) if end is None else end
    else:
        shown = end
    found = Stamped(_pad(node, side, t), end, shown, place)
    return (place, 1, BEGINNING if end is None else end, side, own), found


def _can_match_nothing(node: algebra.WindowJoin, side: int, t: Stamped) -> bool:
    """Return whether a part of the condition fails for any other row."""
    rows = [_with_time(t), _with_time(t)]
    for part in conjuncts(node.on):
        if sides(part) <= {side} and evaluate(part, rows) is not True:
            return True
        if isinstance(part, Compare) and part.op != "<>":
            values = [evaluate(e, rows) for e in part.children if sides(e) == {side}]
            if any(value is None or _key(value) == "NaN" for value in values):
                return True
    return False


def _timeless(given: Stream, timely: Stream) -> list[tuple[int, Stamped]]:
    """Return the rows that have no time although one is needed, with their numbers."""
    kept = [id(t) for t in timely.tuples]
    return [(own, t) for own, t in enumerate(given.tuples) if t.time is None and id(t) not in kept]


def _without_time(node: algebra.WindowJoin, side: int, found: tuple[int, Stamped]) -> tuple[Any, Stamped]:
    """Place a row without a time under a time window: it comes at once."""
    own, t = found
    return (t.place, 1, BEGINNING, side, own), replace(t, row=_pad(node, side, t))


def _pad(node: algebra.WindowJoin, side: int, t: Stamped) -> Row:
    own = {f"{node.names[side]}.{k}": v for k, v in _shown_row(node, t).items()}
    return {f.name: own.get(f.name) for f in node.schema}


def _with_time(t: Stamped) -> Row:
    """Add its time to a row, as chains of joins compare the times of rows."""
    return {**t.row, MEMBER_TIME: t.time}


def _shown_row(node: algebra.WindowJoin, t: Stamped) -> Row:
    return _with_time(t) if node.times else t.row


def _timely(stream: Stream, trace: list[tuple[float, float]], counts: Counts) -> Iterable[Stamped]:
    """Yield tuples that have a time which the clock of the join had not passed when they came."""
    for t in stream.tuples:
        if t.time is None:
            counts.no_time += 1
        elif t.time < max((clock for place, clock in trace if place < t.place), default=BEGINNING):
            counts.late += 1
        else:
            yield t


def _together(node: algebra.WindowJoin, members: list[Stamped]) -> tuple[Any, Stamped]:
    row = {
        f"{name}.{k}": v
        for name, t in zip(node.names, members, strict=True)
        for k, v in _shown_row(node, t).items()
    }
    row = {f.name: row[f.name] for f in node.schema}
    times = [t.time for t in members if t.time is not None]
    places = [t.place for t in members]
    stamped = Stamped(row, max(times, default=None), max(t.clock for t in members), max(places))
    return (max(places), *places), stamped


def _meet(node: algebra.WindowJoin, below: list[Stream], members: Sequence[tuple[int, Stamped]]) -> bool:
    """Return whether each member is in its window when the last of them arrives."""
    for (i, (own, a)), (j, (_, b)) in itertools.permutations(enumerate(members), 2):
        window = node.windows[i]
        if window is None:
            continue
        if window.kind == "time":
            if b.time - a.time >= -(-window.size // UNITS[node.clock.unit]):
                return False
        elif (a.place, i) < (b.place, j):
            before = sum((t.place, i) < (b.place, j) for t in below[i].tuples)
            if own < before - window.size:
                return False
    return True


# Windows.


def _windowing(node: algebra.Windowing, below: list[Stream], counts: Counts) -> Stream:
    by = {"time": _by_time, "tuples": _by_count, "session": _by_session}[node.window.kind]
    tuples = []
    for start, end, members, closing in by(node, below[0], counts):
        for row in _body(node.body, {node.parameter: [t.row for t in members]}, (start, end)):
            tuples.append(replace(closing, row=row))
    return Stream(tuples, below[0].trace)


def _by_time(
    node: algebra.Windowing, stream: Stream, counts: Counts
) -> Iterable[tuple[int, int, list[Stamped], Stamped]]:
    windows: dict[tuple[int, int], list[Stamped]] = {}
    times = [t.time for t in stream.tuples if t.time is not None]
    for t in stream.tuples:
        if t.time is None:
            counts.no_time += 1
            continue
        covering = _covering(node, t.time, times[0])
        open_ones = [(end, start) for end, start in covering if end > t.clock]
        counts.late += len(open_ones) < len(covering)
        for window in open_ones:
            windows.setdefault(window, []).append(t)
    for (end, start), members in sorted(windows.items()):
        place = min(place for place, clock in stream.trace if clock >= end)
        yield start, end, members, Stamped({}, end - 1, end - 1, place)


def _covering(node: algebra.Windowing, time: int, first: int) -> list[tuple[int, int]]:
    """Return the ends and starts of the windows that a time is in."""
    unit, window = UNITS[node.clock.unit], node.window
    size, advance = window.size // unit, window.advance // unit
    offset = first if window.offset is None else window.offset // unit
    if window.cumulative:
        start = (time - offset) // size * size + offset
        ends = range(start + advance, start + size + 1, advance)
        return [(end, start) for end in ends if end > time]
    starts = [
        j * advance + offset for j in range((time - offset - size) // advance, (time - offset) // advance + 1)
    ]
    return [(start + size, start) for start in starts if start <= time < start + size]


def _by_count(
    node: algebra.Windowing, stream: Stream, counts: Counts
) -> Iterable[tuple[int, int, list[Stamped], Stamped]]:
    size, advance = node.window.size, node.window.advance
    lowest = -size * advance if node.window.partial else 0
    for start in range(lowest, len(stream.tuples) - size + 1, advance):
        if start + size <= 0:
            continue
        members = stream.tuples[max(start, 0) : start + size]
        times = [t.time for t in members if t.time is not None]
        clock = max(t.clock for t in members)
        closing = Stamped({}, max(times, default=None), clock, members[-1].place)
        yield max(start, 0), start + size, members, closing


def _by_session(
    node: algebra.Windowing, stream: Stream, counts: Counts
) -> Iterable[tuple[int, int, list[Stamped], Stamped]]:
    gap = node.window.gap // UNITS[node.clock.unit]
    sessions: list[tuple[Any, list[tuple[int, Stamped]]]] = []
    for number, t in enumerate(stream.tuples):
        if t.time is None:
            counts.no_time += 1
            continue
        if t.time + gap < t.clock:
            counts.late += 1
            continue
        key, members = tuple(_key(t.row[name]) for name in node.window.keys), [(number, t)]
        for session in list(sessions):
            times = [m.time for _, m in session[1]]
            is_open = max(times) + gap >= t.clock
            if session[0] == key and is_open and min(times) - gap <= t.time <= max(times) + gap:
                members += session[1]
                sessions.remove(session)
        sessions.append((key, sorted(members, key=lambda member: member[0])))
    found = []
    for _, members in sessions:
        times = [m.time for _, m in members]
        found.append((max(times) + gap, min(times), members[0][0], [m for _, m in members]))
    for end, start, _, tuples in sorted(found, key=lambda session: session[:3]):
        place = min(place for place, clock in stream.trace if clock > end)
        yield start, end, tuples, Stamped({}, end, end, place)


_OPERATORS: dict[type[Node], Callable[..., Stream]] = {
    algebra.Project: _project,
    algebra.Select: _select,
    algebra.Apply: _apply,
    algebra.Union: _union,
    algebra.WindowJoin: _join,
    algebra.Windowing: _windowing,
}


# Sub-plans: rows of one window or group to rows.


def _body(node: Node, given: dict[str, list[Row]], bounds: tuple[int, int]) -> list[Row]:
    match node:
        case algebra.Parameter(name=name):
            return given[name]
        case algebra.Project():
            return _project_rows(node, _body(node.input, given, bounds))
        case algebra.Select():
            return _select_rows(node, _body(node.input, given, bounds))
        case algebra.Apply():
            return _apply_rows(node, _body(node.input, given, bounds))
        case algebra.Concat(inputs=inputs):
            parts = zip(*(_body(child, given, bounds) for child in inputs), strict=True)
            return [{k: v for row in rows for k, v in row.items()} for rows in parts]
        case algebra.Group():
            return _group_rows(node, _body(node.input, given, bounds), given, bounds)
        case algebra.Aggregate():
            return [{node.name: _aggregate(node, _body(node.input, given, bounds), bounds)}]
    raise AssertionError(node)


def _project_rows(node: algebra.Project, rows: list[Row]) -> list[Row]:
    return [{new: row[old] for new, old in node.columns} for row in rows]


def _select_rows(node: algebra.Select, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row[node.field] is True]


def _apply_rows(node: algebra.Apply, rows: list[Row]) -> list[Row]:
    return [{**row, node.name: evaluate(node.operation, [row])} for row in rows]


def _group_rows(
    node: algebra.Group, rows: list[Row], given: dict[str, list[Row]], bounds: tuple[int, int]
) -> list[Row]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_key(row[key]) for key in node.keys), []).append(row)
    return [
        {**{key: members[0][key] for key in node.keys}, **result}
        for members in groups.values()
        for result in _body(node.body, {**given, node.parameter: members}, bounds)
    ]


def _key(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


# Aggregates.


def _aggregate(node: algebra.Aggregate, rows: list[Row], bounds: tuple[int, int]) -> Any:
    if node.function in ("window_start", "window_end"):
        return bounds[node.function == "window_end"]
    rows = [row for row in rows if node.where is None or row[node.where] is True]
    if node.distinct:
        rows = _distinct(node, rows)
    for by in reversed(node.order):
        rows = _sort_rows(by, rows)
    if node.function in _OF_ROWS:
        return _OF_ROWS[node.function](node, rows)
    values = [row[node.fields[0]] for row in rows if row[node.fields[0]] is not None]
    if node.function in ("collect_list", "collect_set"):
        return values
    kind, result = node.input.schema.get(node.fields[0]).type, node.schema.get(node.name).type
    if node.function in _WITH_CONSTANTS:
        return _WITH_CONSTANTS[node.function](node, values, kind) if values else None
    return _FUNCTIONS[node.function](values, kind, result) if values else None


def _distinct(node: algebra.Aggregate, rows: list[Row]) -> list[Row]:
    """Return the first of the rows with equal fields, and none with NULL."""
    found: dict[Any, Row] = {}
    for row in rows:
        if None not in [row[name] for name in node.fields]:
            found.setdefault(tuple(_key(row[name]) for name in node.fields), row)
    return list(found.values())


def _sort_rows(by: algebra.Ordering, rows: list[Row]) -> list[Row]:
    nulls = [row for row in rows if row[by.field] is None]
    others = [row for row in rows if row[by.field] is not None]
    others.sort(key=lambda row: _order(row[by.field]), reverse=by.descending)
    return nulls + others if by.nulls_first else others + nulls


def _count(node: algebra.Aggregate, rows: list[Row]) -> int:
    return sum(all(row[name] is not None for name in node.fields) for row in rows)


def _by(node: algebra.Aggregate, rows: list[Row]) -> Any:
    """Return the value of the last row in which the second column is an extreme."""
    value, key = node.fields
    best = None
    for row in rows:
        if row[key] is None:
            continue
        if best is not None:
            a, b = _order(best[key]), _order(row[key])
            if (a > b) if node.function == "max_by" else (a < b):
                continue
        best = row
    return None if best is None else best[value]


_OF_ROWS: dict[str, Callable[[algebra.Aggregate, list[Row]], Any]] = {
    "count": _count,
    "count_if": lambda node, rows: sum(row[node.fields[0]] is True for row in rows),
    "first": lambda node, rows: rows[0][node.fields[0]] if rows else None,
    "last": lambda node, rows: rows[-1][node.fields[0]] if rows else None,
    "max_by": _by,
    "min_by": _by,
}


def _sum(values: list[Any], kind: Any, result: Any) -> Any:
    return _exact(values) if isinstance(kind, Float) else sum(values)


def _exact(values: list[float]) -> float:
    """Sum floats as if with unlimited digits, then round."""
    if any(math.isnan(v) for v in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    if any(math.isinf(v) for v in values):
        return next(v for v in values if math.isinf(v))
    try:
        return math.fsum(values)
    except OverflowError:  # on the way, or at the end
        halved = math.fsum(v / 4 for v in values)
        return halved * 4


def _avg(values: list[Any], kind: Any, result: Any) -> Any:
    if isinstance(kind, Decimal):
        number, count = sum(values) * 10 ** (result.scale - kind.scale), len(values)
        away = (2 * abs(number) + count) // (2 * count)
        return -away if number < 0 else away
    return _sum(values, kind, result) / len(values)


def _order(value: Any) -> Any:
    return (math.isnan(value), value) if isinstance(value, float) else value


def _median(values: list[Any], kind: Any, result: Any) -> Any:
    ranked = sorted(values, key=_order)
    low, high = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
    if isinstance(kind, Decimal):
        return (low + high) * 10 ** (result.scale - kind.scale) // 2
    if isinstance(kind, Float) and math.isinf(low + high):
        return low / 2 + high / 2
    return (low + high) / 2


def _mode(values: list[Any], kind: Any, result: Any) -> Any:
    counted = {_key(v): sum(_key(w) == _key(v) for w in values) for v in values}
    most = max(counted.values())
    return min((v for v in values if counted[_key(v)] == most), key=_order)


def _variance(values: list[Any], kind: Any, less: int) -> Fraction | None:
    """Compute the exact variance; None if there are too few values."""
    if len(values) <= less:
        return None
    numbers = [_number(value, kind) for value in values]
    mean = sum(numbers) / len(numbers)
    return Fraction(sum((number - mean) ** 2 for number in numbers), len(numbers) - less)


def _number(value: Any, kind: Any) -> Fraction:
    return Fraction(value, 10**kind.scale) if isinstance(kind, Decimal) else Fraction(value)


def _spread(less: int, root: bool) -> Callable[[list[Any], Any, Any], Any]:
    """Return a function for a variance or its square root, rounded once."""

    def spread(values: list[Any], kind: Any, result: Any) -> Any:
        if isinstance(kind, Float) and not all(map(math.isfinite, values)):
            return None if len(values) <= less else math.nan
        exact = _variance(values, kind, less)
        if exact is None:
            return None
        if root:
            digits = Context(prec=1500)
            return float(digits.divide(PyDecimal(exact.numerator), PyDecimal(exact.denominator)).sqrt(digits))
        try:
            return float(exact)
        except OverflowError:
            return math.inf

    return spread


def _percentile(node: algebra.Aggregate, values: list[Any], kind: Any) -> float:
    """Compute a percentile step by step, as Spark does."""
    ranked = _rank(node, values)
    place = (len(ranked) - 1) * float(node.constants[0])
    below, above = math.floor(place), math.ceil(place)
    low, high = (_double(ranked[at], kind) for at in (below, above))
    if _key(ranked[below]) == _key(ranked[above]):
        return low
    return (above - place) * low + (place - below) * high


def _double(value: Any, kind: Any) -> float:
    return value if isinstance(value, float) else float(_number(value, kind))


def _rank(node: algebra.Aggregate, values: list[Any]) -> list[Any]:
    """Sort the values of a percentile, with DESC the largest first."""
    ranked = sorted(values, key=_order)
    return ranked[::-1] if node.constants[1:] == ("DESC",) else ranked


def _quantile(node: algebra.Aggregate, values: list[Any], kind: Any) -> Any:
    fraction = Fraction(node.constants[0])
    return _rank(node, values)[max(1, math.ceil(fraction * len(values))) - 1]


def _join_texts(node: algebra.Aggregate, values: list[Any], kind: Any) -> str:
    return str(node.constants[0]).join(values)


def _wsum(node: algebra.Aggregate, values: list[Any], kind: Any) -> Any:
    count = len(node.weights)
    if len(values) < count:
        return None
    newest = values[::-1][:count]
    if isinstance(kind, Float):
        return _exact([v * (w / 10**node.scale) for v, w in zip(newest, node.weights, strict=True)])
    return sum(v * w for v, w in zip(newest, node.weights, strict=True))


_FUNCTIONS: dict[str, Callable[[list[Any], Any, Any], Any]] = {
    "sum": _sum,
    "avg": _avg,
    "min": lambda values, kind, result: min(values, key=_order),
    "max": lambda values, kind, result: max(values, key=_order),
    "median": _median,
    "mode": _mode,
    "any": lambda values, kind, result: any(values),
    "every": lambda values, kind, result: all(values),
    "var_pop": _spread(0, False),
    "var_samp": _spread(1, False),
    "stddev_pop": _spread(0, True),
    "stddev_samp": _spread(1, True),
}
_WITH_CONSTANTS: dict[str, Callable[[algebra.Aggregate, list[Any], Any], Any]] = {
    "wsum": _wsum,
    "percentile": _percentile,
    "percentile_cont": _percentile,
    "percentile_disc": _quantile,
    "approx_percentile": _quantile,
    "string_agg": _join_texts,
}
