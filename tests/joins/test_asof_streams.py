"""As-of joins of streams: every left row comes once, with its best match, and when the oracle says so."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from asof_streams import CONDITIONS, DIRECTIONS, SECOND, make_stream, pairs, predicate_of, seconds
from handshake.joins.tuning import TUNING, Tuning
from handshake.joins.waiting import TimedRows
from handshake.testing.oracle import Advance, rows
from oracle_steps import asof_steps
from pairs import EXAMPLES


class Pushes:
    """Two streams pushed in random batches and order, with promises of time between them."""

    def __init__(self, seed: int, sizes: tuple[int, int], **options) -> None:
        self.rng = Random(f"pushes {seed}")
        kind = self.rng.choice((pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.int64(), pa.float64()))
        self.tables = [
            make_stream(self.rng, size, kind, side)
            for size, side in zip(sizes, ("left", "right"), strict=True)
        ]
        self.late, self.options = self.rng.choice((0, 1, 5, 60)), options
        left, right = self.tables
        self.join = hs.AsOfJoin(left=left, right=right, time="t", lateness=f"{self.late} s", **options)
        self.steps: list[tuple[int, list[int] | Advance]] = []
        self.found: list[list[tuple[int, int | None]]] = []

    def run(self) -> None:
        at = [0, 0]
        while any(at[side] < self.tables[side].num_rows for side in (0, 1)):
            side = self.rng.choice((0, 1))
            if self.rng.random() < 0.1:
                self.promise(side, at[side] // 2 - 3)
            count = min(self.rng.choice((1, 2, 7, 30)), self.tables[side].num_rows - at[side])
            push = self.join.push_right if side else self.join.push_left
            self.note(
                (side, list(range(at[side], at[side] + count))),
                push(self.tables[side].slice(at[side], count)),
            )
            at[side] += count
        for side in (0, 1):
            self.promise(side, max(at) // 2 + self.rng.choice((-5, 0, 3, 70)))
        self.metrics = self.join.metrics()
        self.found.append(pairs(self.join.finish()))

    def promise(self, side: int, time: int) -> None:
        moment = seconds([time], self.tables[side].schema.field("t").type)[0].as_py()
        step = (side, Advance(time * SECOND))
        self.note(step, self.join.advance(**{("left", "right")[side]: moment}))

    def note(self, step, batches) -> None:
        self.steps.append(step)
        self.found.append(pairs(batches))


def check(
    seed: int, sizes: tuple[int, int], on: str | None, by: str | None, how: str, tuning: Tuning = TUNING,
    **options,
) -> None:  # fmt: skip
    pushes = Pushes(seed, sizes, on=on, by=by, how=how, tuning=tuning, **options)
    pushes.run()
    left, right = pushes.tables
    want, late = asof_steps(
        rows(left, "t"), rows(right, "t"), predicate_of(left, right, on, by), options["direction"],
        int(options["tolerance"].split()[0]) * SECOND, options["allow_exact_matches"], pushes.steps,
        pushes.late * SECOND, [*CONDITIONS[on], *([by] if by else [])],
    )  # fmt: skip
    kept = [[pair for pair in step if pair[1] is not None or how == "left"] for step in want]
    assert [sorted(step) for step in pushes.found] == [sorted(step) for step in kept], (on, by, options)
    metrics = pushes.join.metrics()
    assert [metrics.left_late, metrics.right_late] == late
    assert metrics.results == sum(map(len, kept))
    assert metrics.matched == sum(pair[1] is not None for step in kept for pair in step)
    assert (metrics.pending, pushes.metrics.pending) == (0, len(want[-1]))
    hopeless = metrics.streams[0].no_time + metrics.streams[0].unmatchable  # they never wait
    assert metrics.finalised == metrics.left_rows - metrics.left_late - (0 if how == "left" else hopeless)


OPTIONS = {
    "seed": st.integers(0, 2**32 - 1),
    "sizes": st.tuples(st.integers(0, 60), st.integers(0, 60)),
    "exact": st.booleans(),
    "how": st.sampled_from(("left", "inner")),
    "tolerance": st.sampled_from(("0 seconds", "1 second", "4 seconds", "100 seconds")),
}


SMALL = replace(TUNING, reduced_from=0, merged_run=4)
"""Right rows are reduced often, and runs are merged or not."""


@pytest.mark.parametrize("tuning", [TUNING, SMALL], ids=["as shipped", "small runs"])
@settings(EXAMPLES, max_examples=12)
@given(**OPTIONS)
def test_every_direction_agrees_with_the_oracle(tuning, seed, sizes, exact, how, tolerance):
    for direction in DIRECTIONS:
        for by in (None, "k"):
            options = {"direction": direction, "allow_exact_matches": exact, "tolerance": tolerance}
            check(seed, sizes, None, by, how, tuning, **options)


@settings(EXAMPLES, max_examples=3)
@given(**OPTIONS, on=st.sampled_from([*CONDITIONS][1:]), by=st.sampled_from((None, "k")))
def test_conditions_agree_with_the_oracle(seed, sizes, exact, how, tolerance, on, by):
    direction = DIRECTIONS[seed % 3]
    options = {"direction": direction, "allow_exact_matches": exact, "tolerance": tolerance}
    check(seed, sizes, on, by, how, **options)


@pytest.mark.soak
@settings(EXAMPLES, max_examples=300)
@given(**OPTIONS, on=st.sampled_from([*CONDITIONS]), by=st.sampled_from((None, "k")))
def test_many_streams_agree_with_the_oracle(seed, sizes, exact, how, tolerance, on, by):
    for direction in DIRECTIONS:
        options = {"direction": direction, "allow_exact_matches": exact, "tolerance": tolerance}
        check(seed, sizes, on, by, how, **options)


def test_results_come_in_the_order_of_left_times():
    schema = pa.schema([("t", pa.int64()), ("n", pa.int64())])
    join = hs.AsOfJoin(left=schema, right=schema, time="t", tolerance="5 s", lateness="10 s")
    join.push_left({"t": [5, 3, 5, 4], "n": [0, 1, 2, 3]})
    join.push_left({"t": [3, 6], "n": [4, 5]})
    found = [batch["n"].to_pylist() for batch in join.advance(left=16, right=16)]
    assert found + [batch["n"].to_pylist() for batch in join.finish()] == [[1, 4, 3, 0, 2], [5]]


def test_right_rows_that_later_ones_replace_are_dropped():
    """A backward join without a condition holds about as many right rows as there are keys."""
    schema = pa.schema([("t", pa.int64()), ("k", pa.int64())])
    join = hs.AsOfJoin(left=schema, right=schema, by="k", time="t", tolerance="1 day")
    for start in range(0, 50_000, 5_000):
        batch = {"t": np.arange(start, start + 5_000), "k": np.arange(5_000) % 100}
        join.push_right(batch)
        join.push_left(batch)
    held = join.metrics()
    assert (held.left_window_rows, held.pending) == (1, 1)
    assert held.right_window_rows <= TUNING.reduced_from + 100
    assert held.expired + held.right_window_rows == 50_000
    join.close()


def test_many_small_pushes_make_few_runs():
    held = TimedRows()
    for time in range(1000):
        held.add(pa.record_batch({"n": [time]}), np.array([time]))
    assert len(held.runs) <= 12
    taken = held.take_before(400)
    assert taken is not None
    assert taken.batch["n"].to_pylist() == list(range(400))
    assert (held.rows, held.count_before(500), held.take_before(400)) == (600, 100, None)
    assert sum(batch.num_rows for batch in held.between(450, 459, lambda batch: batch, 459)) == 10


def test_extremes_of_time():
    ends = pa.array([-(2**63), 2**63 - 1], pa.int64()).cast(pa.timestamp("ns"))
    table = pa.table({"t": ends, "x": [1, 2]})
    for direction, want in {"backward": [None, 1], "forward": [2, None], "nearest": [2, 1]}.items():
        for tolerance, found in (("1 day", [None, None]), ("300000 days", want)):
            join = hs.AsOfJoin(
                left=table, right=table, time="t", direction=direction, tolerance=tolerance,
                allow_exact_matches=False,
            )  # fmt: skip
            results = [*join.push_left(table), *join.push_right(table), *join.finish()]
            assert pa.Table.from_batches(results)["x_right"].to_pylist() == found, (direction, tolerance)


def test_the_schema_and_the_text_of_a_plan():
    left = pa.schema([pa.field("t", pa.int64(), False), pa.field("k", pa.string(), False)])
    join = hs.AsOfJoin(
        left=left, right=left, by="k", time="t", tolerance="1 minute", direction="nearest", how="inner"
    )
    assert join.output_schema == left.append(left.field("t").with_name("t_right")).append(
        left.field("k").with_name("k_right")
    )
    assert hs.explain(join).splitlines() == [
        "join        as of, nearest, within 1 minute, on l.k = r.k",
        "kind        inner: each left row that has a match, with its best one",
        "final       left rows at t, when the watermark is later than t + 1 minute",
        "held        right rows, for 2 minutes, unless later ones of their keys replace them",
    ]
    join.close()


def test_leaving_without_finish_is_an_error():
    schema = pa.schema([("t", pa.int64())])
    with (
        pytest.raises(hs.HandshakeError, match="1 results were held back"),
        hs.AsOfJoin(left=schema, right=schema, time="t", tolerance="1 s") as join,
    ):
        join.push_left({"t": [1]})
    with pytest.raises(hs.HandshakeError, match="this join is closed"):
        join.push_left({"t": [1]})


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"time": "t"}, hs.WindowError, "an as-of join of streams needs a tolerance"),
        ({"tolerance": "1 s"}, hs.WindowError, "an as-of join needs a time column"),
        ({"time": "t", "tolerance": "5 tuples"}, hs.WindowError, "cannot read '5 tuples'"),
        ({"time": "t", "tolerance": "1 s", "how": "full"}, hs.UnsupportedError, "not how='full'"),
        ({"time": "t", "tolerance": "1 s", "direction": "up"}, hs.UnsupportedError, "no direction 'up'"),
        ({"time": "t", "tolerance": "1 s", "lateness": "-1 s"}, hs.WindowError, "cannot be negative"),
        ({"time": "t", "tolerance": "1 s", "on": "l.k = r.z"}, hs.ExpressionError, "no column 'z'"),
    ],
)
def test_mistakes_are_explained(options, kind, message):
    table = {"t": [1], "k": ["a"]}
    with pytest.raises(kind, match=re.escape(message)):
        hs.AsOfJoin(left=table, right=table, **options)
