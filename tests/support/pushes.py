"""Rows pushed into a running join in random batches, with promises of time between them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from handshake.joins.join import Join
from handshake.joins.tuning import TUNING, Tuning
from handshake.testing.oracle import TIME, Advance, rows
from join_plans import options
from pairs import pairs_of, with_row_numbers
from strategies import Case, expect

__all__ = ["Pushes", "check_pushes"]


class Pushes:
    """A case pushed in random batches, with promises of time between them."""

    def __init__(
        self, case: Case, seed: int, make: Callable[..., Any], read: Callable[..., list[tuple]], **chosen
    ) -> None:
        """Start a join by `make`; `read` gives the rows of each result in some batches."""
        self.rng = Random(f"pushes {seed}")
        self._read = read
        self.case, self.tables = case, with_row_numbers(case)
        late = self.rng.choice((0, 1, 5, 60))
        self.lateness = late * 10**9 if case.windows.timed else None
        self.arrivals: list = []
        self.found: list[tuple[int, int, tuple]] = []
        """Of each result: how many arrivals were before the push that gave it, and up to it, and its rows."""
        text = {"lateness": f"{late} s"} if case.windows.timed else {}
        self.join = make(
            left=self.tables[0], right=self.tables[1], on=case.on, **chosen, **options(case), **text
        )

    def run(self) -> None:
        at = [0, 0]
        while any(at[side] < self.tables[side].num_rows for side in (0, 1)):
            side = self.rng.choice((0, 1))
            count = min(self.rng.choice((1, 2, 7, 30)), self.tables[side].num_rows - at[side])
            push = self.join.push_right if side else self.join.push_left
            batch = self.tables[side].slice(at[side], count)
            self._take(
                lambda push=push, batch=batch: push(batch), [(side, at[side] + k) for k in range(count)]
            )
            at[side] += count
            if self.case.windows.timed and self.rng.random() < 0.2:
                self._advance(side)
        self._take(self.join.finish, [])

    def _advance(self, side: int) -> None:
        """Promise that a side comes to a time of one of its rows that was pushed."""
        names = (self.case.left_time, self.case.right_time)
        pushed = [i for s, i in self.arrivals if s == side and not isinstance(i, Advance)]
        if not pushed:
            return
        index = self.rng.choice(pushed)
        time = self.tables[side].column(names[side])[index]
        if time.is_valid:
            promise = Advance(self.rows(side)[index][TIME])
            word = ("left", "right")[side]
            self._take(lambda: self.join.advance(**{word: time.as_py()}), [(side, promise)])

    def _take(self, step, arrivals) -> None:
        before = len(self.arrivals)
        self.arrivals += arrivals
        self.found += [(before, len(self.arrivals), pair) for pair in self._read(step())]

    def rows(self, side: int):
        case = self.case
        return rows((case.left, case.right)[side], (case.left_time, case.right_time)[side])

    def expected_result(self):
        named = [(("left", "right")[side], index) for side, index in self.arrivals]
        return expect(self.case, self.lateness, named)


def check_pushes(
    case: Case, seed: int, method: str = "auto", tuning: Tuning = TUNING, device: str = "cpu"
) -> None:
    """Push both sides in random batches; arrival order is the order of pushes."""
    rng = Random(f"pushes {seed}")
    tables = with_row_numbers(case)
    left_at = {"left": 0, "right": 0}
    lateness = rng.choice((0, 1, 5, 60)) if case.windows.timed else None
    arrivals, batches = [], []
    text = {"lateness": f"{lateness} s"} if lateness is not None else {}
    with Join(
        left=tables[0], right=tables[1], on=case.on, method=method, tuning=tuning, device=device,
        **options(case), **text,
    ) as join:  # fmt: skip
        while any(left_at[side] < t.num_rows for side, t in zip(left_at, tables, strict=True)):
            side = rng.choice(("left", "right"))
            table, start = tables[side == "right"], left_at[side]
            rows = min(rng.choice((1, 2, 7, 30)), table.num_rows - start)
            push = join.push_left if side == "left" else join.push_right
            batches += push(table.slice(start, rows))
            arrivals += [(side, start + k) for k in range(rows)]
            left_at[side] += rows
        metrics = join.metrics()
    want = expect(case, None if lateness is None else lateness * 10**9, arrivals)
    assert pairs_of(batches) == sorted(want.pairs), (case.on, case.windows, lateness)
    assert (metrics.late, metrics.no_time) == (want.late, want.no_time)
