"""The oracle of running joins: when a row is final, and the results of as-of joins after each step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from handshake.plan import expr as tree
from handshake.testing.oracle import TIME, Accepted, Advance, accept, asof

__all__ = ["asof_steps", "final_after"]

Row = Mapping[str, Any]


def final_after(
    streams: Sequence[Sequence[Row]],
    windows: Any,
    lateness: int | None,
    arrivals: Sequence[tuple[int, int | Advance]],
    times: Sequence[str] | None,
) -> dict[tuple[int, int], float]:
    """Count the arrivals after which no match of a row can come; infinite if only the end is after it.

    The row must have left its window: under a time window, the watermark is `size` later than its time; under
    a tuple window, `size` further rows of its stream have arrived. A row without a time can match nothing.
    """
    keys: Sequence[str | None] = times or [None] * len(streams)
    clocks = [[row[k] if k else None for row in each] for each, k in zip(streams, keys, strict=True)]
    timed = any(w is not None and w.kind == "time" for w in windows)
    final: dict[tuple[int, int], float] = {}
    for count in range(1, len(arrivals) + 1):
        accepted, _, _ = accept(arrivals[:count], clocks, timed, lateness)
        newest = _newest(arrivals[:count], accepted)
        for stream, held in enumerate(accepted):
            for r in held:
                if (stream, r.index) not in final and _left(r, held, windows[stream], newest, lateness):
                    final[stream, r.index] = count
        stream, index = arrivals[count - 1]
        if timed and not isinstance(index, Advance) and clocks[stream][index] is None:
            final[stream, index] = count
    every = ((n, i) for n, each in enumerate(streams) for i in range(len(each)))
    return {at: final.get(at, math.inf) for at in every}


def _newest(arrivals: Sequence[tuple[int, Any]], accepted: list[list[Accepted]]) -> list[int | None]:
    newest: list[int | None] = []
    for stream, held in enumerate(accepted):
        promised = [at.time for n, at in arrivals if n == stream and isinstance(at, Advance)]
        newest.append(max([*promised, *(r.time for r in held if r.time is not None)], default=None))
    return newest


def _left(
    r: Accepted, held: list[Accepted], window: Any, newest: list[int | None], lateness: int | None
) -> bool:
    """Return whether `r` has left its window: no row to come can be in it together with `r`."""
    if window is None:
        return False
    if window.kind == "time":
        known = [time for time in newest if time is not None]
        assert r.time is not None
        return len(known) == len(newest) and min(known) - (lateness or 0) - r.time >= window.size
    return len(held) > r.seen[r.stream] + window.size


def asof_steps(
    left: Sequence[Row], right: Sequence[Row], on: tree.Expr, direction: str, tolerance: int, exact: bool,
    steps: Sequence[tuple[int, Sequence[int] | Advance]], lateness: int, needed: Sequence[str],
) -> tuple[list[list[tuple[int, int | None]]], list[int]]:  # fmt: skip
    """Return the as-of join of streams: pairs of indices after each step, and late rows per stream.

    The last step is the end. A step brings rows of a stream, by index, or a promise. A left row is joined
    with all right rows that are ever accepted. It is final when the watermark has passed the latest time of a
    match; or at once if it has no time, or no value in a column that is needed.
    """
    clocks = [[row[TIME] for row in side] for side in (left, right)]
    arrivals: list[tuple[int, Any]] = []
    ends = []
    for stream, step in steps:
        arrivals += [(stream, step)] if isinstance(step, Advance) else [(stream, index) for index in step]
        ends.append(len(arrivals))
    accepted, late, _ = accept(arrivals, clocks, True, lateness)
    known = [r.index for r in accepted[1]]
    best = asof(left, [right[index] for index in known], on, direction, tolerance, exact)
    ahead = 0 if direction == "backward" else tolerance
    found: list[list[tuple[int, int | None]]] = []
    done = {index for stream, index in late if stream == 0}
    for end in [*ends, None]:
        newest = _newest(arrivals[:end], accept(arrivals[:end], clocks, True, lateness)[0])
        mark = None if None in newest else min(time for time in newest if time is not None) - lateness
        final = []
        for stream, index in arrivals[:end]:
            if stream == 1 or isinstance(index, Advance) or index in done:
                continue
            now, values = clocks[0][index], [left[index][name] for name in needed]
            alone = now is None or any(value is None or value != value for value in values)
            if end is None or alone or (mark is not None and mark > now + ahead):
                other = best[index]
                final.append((index, None if other is None else known[other]))
                done.add(index)
        found.append(final)
    return found, [sum(stream == side for stream, _ in late) for side in (0, 1)]
