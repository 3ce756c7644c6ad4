"""`why` of as-of and nearest joins agrees with the oracle, on tables and while joins run."""

from __future__ import annotations

import math
import re
from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from handshake import AsOfJoin, InputError, NearestJoin, UnsupportedError, why
from handshake.errors import HandshakeError
from handshake.joins.tuning import Tuning
from handshake.plan import bind, parse
from handshake.plan.bind import bind_value
from handshake.testing.oracle import TIME, asof, join, nearest, rows
from handshake.windows import windows_of
from pairs import EXAMPLES
from strategies import scope_of

ROW = pa.schema([("t", pa.int64()), ("k", pa.int64()), ("x", pa.float64())])
SEEDS = st.integers(0, 2**32 - 1)
DIRECTIONS = ("backward", "forward", "nearest")
ON = "l.x <= r.x + 1"
BY = "ABS(l.x - r.x)"


def make(rng: Random, size: int, base: int = 0, first: int = 0) -> pa.Table:
    """Return rows with ties of times and values, and rows without a time or a key."""
    times = rng.choices((None, *range(base, base + 9)), (1, *[4] * 9), k=size)
    keys = rng.choices((None, 1, 2), (1, 6, 6), k=size)
    values = rng.choices((None, 0.5, 1.0, 2.5), (1, 5, 5, 5), k=size)
    columns = {"t": times, "k": keys, "x": values, "n": range(first, first + size)}
    kinds = {**dict(zip(ROW.names, ROW.types, strict=True)), "n": pa.int64()}
    return pa.table({name: pa.array(columns[name], kinds[name]) for name in columns})


def test_as_of_pairs_agree_with_the_oracle() -> None:
    seen = Counter()
    for seed in range(10):
        rng = Random(seed)
        left, right = make(rng, 5), make(rng, 8)
        direction, exact = rng.choice(DIRECTIONS), rng.random() < 0.5
        tolerance, on = rng.choice((None, 0, 2, 5)), rng.choice((None, ON))
        condition = parse(" AND ".join(["l.k = r.k", *([] if on is None else [on])]))
        bound = bind(condition, scope_of(left.schema, right.schema))
        limit = None if tolerance is None else tolerance * 10**9
        want = asof(rows(left, "t"), rows(right, "t"), bound, direction, limit, exact)
        options = {"direction": direction, "allow_exact_matches": exact, "by": "k", "time": "t"}
        options |= {} if tolerance is None else {"tolerance": f"{tolerance} seconds"}
        for i in range(left.num_rows):
            for j in range(right.num_rows):
                found = why(i, j, on, function=hs.asof, left=left, right=right, **options)
                assert found.joined is (want[i] == j), (seed, options, on, str(found))
                seen[found.reasons[-1].what if found.reasons else "joined"] += 1
    assert {"joined", "best match", "l.k = r.k", "within 2 seconds", "time of the left row"} <= set(seen)


@settings(EXAMPLES, max_examples=6)
@given(
    seed=SEEDS, k=st.sampled_from((1, 2, 3)), window=st.sampled_from((None, "3 seconds", "3 tuples")),
    by=st.sampled_from((BY, "r.k", "-l.x")),
)  # fmt: skip
def test_nearest_pairs_agree_with_the_oracle(seed: int, k: int, window: str | None, by: str) -> None:
    rng = Random(seed)
    left, right = make(rng, 3), make(rng, 6)
    scope = scope_of(left.schema, right.schema)
    mine, others = rows(left, "t"), rows(right, "t")
    times = {"left_time": TIME, "right_time": TIME}
    pairs = join(mine, others, bind(parse(ON), scope), windows_of(window), **times).pairs
    best = nearest(mine, others, pairs, bind_value(parse(by), scope), k)
    options = {"by": by, "k": k, "window": window, "time": "t", "left": left, "right": right}
    for i in range(left.num_rows):
        chosen = [j for j, _ in best.get(i, [])]
        for j in range(right.num_rows):
            found = why(i, j, ON, function=hs.nearest, **options)
            assert found.joined is (j in chosen), (options, str(found))
            if found.joined:
                assert found.conditions[-1].detail.endswith(f"rank {chosen.index(j) + 1} of {len(chosen)}")


Pairs = dict[tuple[int, int], list[hs.Why]]


def follow(running: AsOfJoin | NearestJoin, rng: Random) -> int:
    """Push rows and ask about every pair after each push; return how many pairs of waiting rows are results.

    A pair that is denied once is no result. Of left rows that wait at the end, only results are left open.
    """
    came, answers, taken = ([], []), Pairs(), dict[int, list[int | None]]()

    def take(batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            for i, j in zip(batch["n"].to_pylist(), batch["n_right"].to_pylist(), strict=True):
                taken.setdefault(i, []).append(j)

    for step in range(8):
        side = rng.randint(0, 1)
        some = make(rng, rng.randint(1, 4), step, len(came[side]))
        came[side].extend(some.to_pylist())
        take((running.push_left, running.push_right)[side](some))
        for one in came[0]:
            for other in came[1]:
                answers.setdefault((one["n"], other["n"]), []).append(running.why(one, other))
    waiting = {i for (i, _), found in answers.items() if is_held(found[-1], "left")} - {*taken}
    take(running.finish())
    for (i, j), found in answers.items():
        assert all(each.joined is not True for each in found)
        if any(each.joined is False for each in found):
            assert j not in taken.get(i, []), str(found[-1])
        if i in waiting:
            assert (found[-1].joined is None) == (j in taken[i]), str(found[-1])
    with pytest.raises(HandshakeError, match="this join is closed"):
        running.why({}, {})
    return sum(j is not None for i in waiting for j in taken[i])


def is_held(found: hs.Why, side: str) -> bool:
    return any(c.what == f"{side} row in the join" and c.outcome == "holds" for c in found.conditions)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("on", [None, ON])
def test_a_running_as_of_join_agrees_with_its_results(direction: str, on: str | None) -> None:
    rng, schema = Random(f"{direction} {on}"), ROW.append(pa.field("n", pa.int64()))
    options = {"by": "k", "time": "t", "tolerance": "3 seconds", "lateness": "1 second"}
    found = [
        follow(AsOfJoin(left=schema, right=schema, on=on, direction=direction, **options), rng)
        for _ in range(3)
    ]
    assert sum(found)


@pytest.mark.parametrize("window", ["4 seconds", "3 tuples"])
@pytest.mark.parametrize("k", [1, 2])
def test_a_running_nearest_join_agrees_with_its_results(window: str, k: int) -> None:
    rng, schema = Random(f"{window} {k}"), ROW.append(pa.field("n", pa.int64()))
    options = {"on": ON, "by": BY, "k": k, "window": window, "time": "t"}
    assert sum(follow(NearestJoin(left=schema, right=schema, **options), rng) for _ in range(3))


def test_a_running_as_of_join_says_what_is_better_and_what_is_missing() -> None:
    with AsOfJoin(left=ROW, right=ROW, by="k", time="t", tolerance="10 seconds") as running:
        quotes = [{"t": t, "k": 1, "x": float(t)} for t in (1, 4)]
        running.push_right([*quotes, {"t": 4, "k": 1, "x": 9.0}])
        trade = {"t": 5, "k": 1, "x": 0.0}
        running.push_left([trade, {"t": 6, "k": None, "x": 0.0}])
        ask = lambda row: [str(c) for c in running.why(trade, row).reasons]  # noqa: E731
        assert ask(quotes[0])[-1] == (
            "no   best match: another right row is better, t = 4, k = 1, x = 9.0: it is 1 second away, not 4 "
            "seconds"
        )
        assert ask(quotes[1])[-1] == (
            "no   best match: another right row is better, t = 4, k = 1, x = 9.0: of rows at one time, the "
            "last one in the order of their columns is best"
        )
        assert ask({"t": 4, "k": 1, "x": 9.0}) == [
            "?    best match: no right row is better so far; the left row waits until the watermark is 2 "
            "seconds later"
        ]
        assert ask({"t": 20, "k": 1, "x": 0.0})[:2] == [
            "no   right row at or before the left row: it is 15 seconds later",
            "no   within 10 seconds: the right row is 15 seconds later, 5 seconds too far",
        ]
        assert ask({"t": 5, "k": 1, "x": 0.0})[0].startswith("no   right row in the join: not held: it has")
        none = running.why({"t": 6, "k": None, "x": 0.0}, quotes[0])
        assert "left row in the join: it can match nothing, so it is not kept" in str(none)
        assert len(running.advance(left=50, right=50)) > 0
        gone = running.why(trade, quotes[0])
        assert "left row in the join: not held: it is 45 seconds behind the watermark: its result has" in str(
            gone
        )
        running.push_left([{"t": 2, "k": 1, "x": 0.0}])
        late = running.why({"t": 2, "k": 1, "x": 0.0}, quotes[0])
        assert "it was late, as 1 of this side" in str(late)


def test_a_right_row_that_is_replaced_may_have_been_taken() -> None:
    options = {"by": "k", "time": "t", "tolerance": "1 minute", "tuning": Tuning(reduced_from=1)}
    with AsOfJoin(left=ROW, right=ROW, **options) as running:
        trades, quotes = ([{"t": t, "k": 1, "x": 0.0} for t in times] for times in ((2, 7), (1, 4, 5, 6)))
        results = [*running.push_right(quotes[:1]), *running.push_left(trades)]
        results += [*running.push_right(quotes[1:]), *running.advance(right=7)]
        assert [batch["t_right"].to_pylist() for batch in results] == [[1]]
        taken = running.why(trades[0], quotes[0])
        assert taken.joined is None, str(taken)
        assert taken.conditions[-2].detail == (
            "not held: it is 6 seconds behind the watermark: it has not come, or a later row of its keys has "
            "replaced it"
        )
        other = running.why(trades[1], quotes[0])
        assert (other.joined, other.notes) == (False, ("the left row takes so far: t = 6, k = 1, x = 0.0",))
        assert len(running.finish()) == 1


def test_nearest_joins_show_the_last_of_the_better_rows() -> None:
    rooms, sensors = {"room": ["A"], "x": [2]}, {"sensor": [1, 2, 3], "at": [1, 4, 8]}
    found = why(0, 2, function=hs.nearest, left=rooms, right=sensors, by="ABS(l.x - r.at)", k=2)
    assert [str(c) for c in found.conditions] == [
        "no   2 best by ABS(l.x - r.at): its value is 6; 2 right rows are better, the last of them "
        "sensor = 2, at = 4: its value is 2"
    ]
    assert found.notes == ("the left row takes: sensor = 1, at = 1; sensor = 2, at = 4",)
    other = why({"room": "A", "x": 2}, {"sensor": 9, "at": 2}, function=hs.nearest, right=sensors, by="r.at")
    assert [str(c) for c in other.reasons] == [
        "no   right row in the right input: no row there has these values"
    ]
    assert why({"room": "A", "x": 2}, 0, "r.at > 1", function=hs.nearest, right=sensors, by="r.at").notes == (
        "the left row takes: sensor = 2, at = 4",
    )
    unknown = why({"x": 2}, {"at": 1}, function=hs.nearest, by="ABS(l.x - r.at)")
    assert unknown.joined is None
    assert "give the right input" in unknown.reasons[0].detail
    ties = {"sensor": [1, 2], "at": [4, 4]}
    tied = why({"x": 2}, 0, function=hs.nearest, right=ties, by="r.at").reasons[0].detail
    assert tied.endswith("; of equal values, the last row in the order of columns is best")


VALUES = {
    "struct": pa.array([{"a": math.nan}, {"a": None}, None], pa.struct([("a", pa.float64())])),
    "list": pa.array([[1], [], None], pa.list_(pa.int64())),
    "float16": pa.array([np.float16(math.nan), np.float16(1.5), None], pa.float16()),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([0, 0, 1]), None]),
    "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
    "NULL": pa.nulls(3),
    "NaN": pa.array([math.nan, 0.5, None]),
}
if hasattr(pa, "uuid"):  # older releases of PyArrow have no extension types of their own
    WORDS = pa.array([b"a" * 16, b"b" * 16, None], pa.binary(16))
    VALUES["extension"] = pa.ExtensionArray.from_storage(pa.uuid(), WORDS)


@pytest.mark.parametrize("kind", VALUES)
def test_rows_with_values_of_any_type_are_found(kind: str) -> None:
    """The row that the join takes is among those of the right input, and so is one of a running join."""
    rows = pa.table({"t": [1, 2, 3], "v": VALUES[kind]})
    for function, options in ((hs.asof, {}), (hs.nearest, {"by": "ABS(l.t - r.t)"})):
        for n in range(3):
            found = why(n, n, function=function, left=rows, right=rows, time="t", **options)
            assert found.joined is True, str(found)
    with hs.Join(left=rows.schema, right=rows.schema, window="9 s", time="t") as running:
        running.push_left(rows)
        running.push_right(rows)
        for n in range(3):
            assert running.why(rows.slice(n, 1), rows.slice(n, 1)).joined is True


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"watermark": 5}, InputError, "no row of tables is late, so there is no watermark"),
        ({"direction": "backwards"}, UnsupportedError, "no direction 'backwards' of an as-of join"),
        ({"tolerence": "5 s"}, TypeError, "no argument 'tolerence'; did you mean 'tolerance'?"),
        ({"time": None}, HandshakeError, "an as-of join needs a time column"),
    ],
)
def test_wrong_questions_about_as_of_joins(options: dict, error: type[Exception], message: str) -> None:
    rows = pa.table({"t": [1]})
    with pytest.raises(error, match=re.escape(message)):
        why(0, 0, function=hs.asof, left=rows, right=rows, **{"time": "t", **options})


def test_a_join_of_pairs_takes_no_options_of_best_matches() -> None:
    with pytest.raises(TypeError, match="no argument 'direction'"):
        why({"x": 1}, {"x": 1}, "l.x = r.x", direction="forward")
    with AsOfJoin(left=ROW, right=ROW, time="t", tolerance="5 s") as running:
        with pytest.raises(InputError, match="the left row is given by its number, 0; a join has no numbers"):
            running.why(0, 1)
        with pytest.raises(InputError, match=re.escape("the join says what it is; leave direction=… out")):
            why({}, {}, running, direction="forward")
