"""Results of outer, semi and anti joins of streams: the oracle's, as far as rows are final."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from handshake.joins.driver import can_match, derive_columns
from handshake.joins.spec import SIDES
from handshake.schema import concat_batches
from handshake.testing.oracle import of_kind
from handshake.testing.oracle_values import TIME, rows
from spark_steps import definition_of
from strategies import Case, expect

__all__ = ["expected_kind", "matchable_rows"]

Arrivals = Sequence[tuple[str, int]]


def expected_kind(case: Case, kind: str, arrivals: Arrivals, mark: float = math.inf) -> list[tuple]:
    """Return the results of a kind, without rows that are not final at a watermark, in nanoseconds."""
    sides = ((case.left, case.left_time), (case.right, case.right_time))
    clocks = [[row.get(TIME) for row in rows(table, name)] for table, name in sides]
    arrived = set(arrivals)
    late = frozenset(
        (side, index)
        for side, clock in enumerate(clocks)
        for index, time in enumerate(clock)
        if (SIDES[side], index) not in arrived and not (case.windows.timed and time is None)
    )
    result = replace(expect(case, None, arrivals), dropped=late)
    final = final_rows(case, arrivals, clocks, mark)
    shown = of_kind(kind, result, (case.left.num_rows, case.right.num_rows))
    if kind.endswith("semi"):
        return shown
    return [pair for pair in shown if None not in pair or final(pair)]


def final_rows(case: Case, arrivals: Arrivals, clocks: list[list], mark: float) -> Callable[[tuple], bool]:
    """Return a test of whether a row is final: it has left its window, or can match nothing."""
    places = {}
    counts = [0, 0]
    for name, index in arrivals:
        side = SIDES.index(name)
        places[side, index] = counts[side]
        counts[side] += 1

    def final(pair: tuple) -> bool:
        side = 0 if pair[0] is not None else 1
        window, index = case.windows[side], pair[side]
        if (side, index) not in places or not matchable_rows(case, side)[index]:
            return True
        if window is not None and window.timed:
            return clocks[side][index] + window.size <= mark
        return window is not None and counts[side] > places[side, index] + window.size

    return final


def matchable_rows(case: Case, side: int) -> list[bool]:
    """Return which rows can match a row, and so enter the window."""
    spec = definition_of(case.left, case.right, case, 1, "").spec.sides[side]
    batches = [case.left, case.right][side].to_batches()
    if not batches:
        return []
    batch = concat_batches(batches)
    mask = can_match(derive_columns(batch, spec), spec)
    return [True] * batch.num_rows if mask is None else mask.tolist()
