"""Nearest joins: every ranking, window and way of feeding agrees with the oracle."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from handshake.joins.nearest import Nearest
from handshake.plan import parse
from handshake.plan.bind import bind_value
from handshake.plan.expr import Literal
from handshake.schema import BOOL
from handshake.testing.oracle import TIME, asof, nearest, rows
from handshake.windows import Windows
from oracle_steps import final_after
from pairs import EXAMPLES, with_row_numbers
from predicates import make_ranking
from pushes import Pushes
from strategies import Case, Clock, cases, expect, make_times, make_windows, scope_of

TRUE = Literal(True, type=BOOL)
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(0, 30)
PREDICATES = ("TRUE", "l.k = r.k AND l.x > 0", "l.x BETWEEN r.x - 1 AND r.x + 1", "l.k < r.k OR l.x = r.x")
RANKINGS = ("ABS(l.x - r.x)", "r.k", "ABS(l.k - r.k)", "r.s", "1", "-l.x", "r.x < l.x", "NULL")
"""Few, since each takes time to compile; with ties, NaN and NULL."""
WIDE = RANKINGS[2:3]
"""Values that may need more than 64 bits: they rank pairs exactly, but no column can hold them."""


def small_case(seed: int, sizes: tuple[int, int]) -> Case:
    """Return a join with ties, disorder, NULL and NaN, under windows of any kind."""
    rng = Random(seed)
    windows = make_windows(rng)
    timed = windows.timed or rng.random() < 0.5
    tables = []
    for size in sizes:
        columns = {
            "k": pa.array(rng.choices((None, 1, 2, 3, -(2**63), 2**63 - 1), k=size), pa.int64()),
            "x": pa.array(rng.choices((None, math.nan, -0.0, 0.0, 0.5, 1.0, math.inf), k=size), pa.float64()),
            "s": pa.array(rng.choices((None, "", "a prefix a", "a prefix b", "b"), k=size), pa.string()),
        }
        if timed:
            clock = Clock(("t", "t"), (pa.timestamp("s"), pa.timestamp("s")), 10**9, rng.choice((0, 10**18)))
            columns["t"] = make_times(rng, clock, 0, size, windows.timed)
        tables.append(pa.table(columns))
    time = "t" if timed else None
    return Case(*tables, rng.choice(PREDICATES), windows, time, time)


SMALL_CASES = st.builds(small_case, SEEDS, st.tuples(SIZES, SIZES))


def same(value: object) -> object:
    return "NaN" if value != value else value


def expected_results(case: Case, by: str, k: int, how: str, result) -> list[tuple]:
    """Return the results as row numbers, ranks and values, by left row."""
    left, right = with_row_numbers(case)
    bound = bind_value(parse(by), scope_of(left.schema, right.schema))
    mine, others = rows(left, case.left_time), rows(right, case.right_time)
    best = nearest(mine, others, result.pairs, bound, k)
    found = []
    for index in range(len(mine)):
        if index in best:
            found += [(index, o, n, same(v)) for n, (o, v) in enumerate(best[index], 1)]
        elif how == "left" and (0, index) not in result.dropped:
            found.append((index, None, None, None))
    return found


def found_in(table, value: str | None) -> list[tuple]:
    columns = rows(table.select(["row of left", "row of right", "rank", *([value] if value else [])]))
    return [tuple(same(value) for value in row.values()) for row in columns]


def check_tables(case: Case, by: str, k: int, how: str, many: int) -> None:
    left, right = with_row_numbers(case)
    join = Nearest(
        left.schema, right.schema, parse(case.on), by, k, case.windows, (case.left_time, case.right_time),
        how=how, value=None if by in WIDE else "value", many=many,
    )  # fmt: skip
    found = join.find(left, right).table
    want = [row[:3] if by in WIDE else row for row in expected_results(case, by, k, how, expect(case))]
    assert found_in(found, None if by in WIDE else "value") == want, (case.on, by, k, how, case.windows)


@settings(EXAMPLES, max_examples=25)
@given(
    case=SMALL_CASES, by=st.sampled_from(RANKINGS), k=st.sampled_from((1, 2, 3, 100)),
    how=st.sampled_from(("left", "inner")), many=st.sampled_from((0, 1 << 14)),
)  # fmt: skip
def test_tables_agree_with_the_oracle(case, by, k, how, many):
    """All at once, and sorted again for every batch."""
    check_tables(case, by, k, how, many)


@settings(EXAMPLES, max_examples=10)
@given(case=cases(max_rows=15, max_depth=1, max_conditions=1), k=st.sampled_from((1, 3)), seed=SEEDS)
def test_rankings_of_any_type_agree_with_the_oracle(case, k, seed):
    by = make_ranking(Random(seed), case.left.schema, case.right.schema, 1)
    check_tables(case, by, k, "left", 0)


@settings(EXAMPLES, max_examples=40)
@given(
    seed=SEEDS, sizes=st.tuples(SIZES, st.integers(0, 60)), k=st.sampled_from((1, 2, 3, 9)),
    kind=st.sampled_from((pa.int16(), pa.int64(), pa.uint64(), pa.float64(), pa.float32())),
)  # fmt: skip
def test_the_index_of_distances_agrees_with_the_oracle(seed, sizes, k, kind):
    """With ties, missing values, infinities and differences that overflow."""
    rng = Random(seed)
    edges = (1e308, -1e308, math.inf, -math.inf, math.nan) if kind == pa.float64() else ()
    pool = [None, *edges, *rng.choices(range(200), k=rng.choice((3, 30, 300)))]
    if kind == pa.int64() and rng.random() < 0.2:
        pool += [2**63 - 1, -(2**63)]
    left = pa.table({"x": pa.array(rng.choices(pool, k=sizes[0]), kind)})
    right = pa.table({"a": pa.array(rng.choices(pool, k=sizes[1]), kind)})
    by = rng.choice(("ABS(l.x - r.a)", "ABS(r.a - l.x)"))
    case = Case(left, right, "TRUE", Windows(None, None))
    tables, chosen = with_row_numbers(case), {"many": rng.choice((0, 100)), "share": rng.choice((0.1, 1))}
    found = Nearest(*(table.schema for table in tables), None, by, k, **chosen).find(*tables).table
    assert found_in(found, None) == [row[:3] for row in expected_results(case, by, k, "left", expect(case))]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_zeros_of_either_sign_tie(kind):
    """As ranking values and as tie breakers, beside NaN and NULL, in any order of arrival."""
    zeros = np.array([-0.0, 0.0, math.nan, 0.0, -0.0], kind.to_pandas_dtype())
    values = pa.array(zeros, mask=np.array([False] * 3 + [True, False]))
    left = pa.table({"t": [5]})
    for seed in range(6):
        order = Random(seed).sample(range(5), 5)
        right = pa.table({"t": [5] * 5, "x": values.take(order), "n": order})
        assert hs.asof(left, right, time="t")["n"].to_pylist() == [4]
        for by in ("r.x", "0"):
            found = hs.nearest(left, right, by=by, k=5)
            assert found["n"].to_pylist() == [4, 1, 0, 2, 3], (by, seed)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0], [2, 1, 0]])
def test_signs_of_zeros_break_ties_that_no_other_column_breaks(order):
    right = pa.table({"t": [1] * 3, "x": [-0.0, 0.0, -0.0], "y": [0.0, -0.0, -0.0]}).take(order)
    found = [hs.asof({"t": [1]}, right, on, time="t") for on in (None, "r.t = 1")]
    found.append(hs.nearest({"z": [1]}, right, by="r.x"))
    want = asof(rows(pa.table({"t": [1]}), "t"), rows(right, "t"), TRUE, "backward", None, True)
    for each in found:
        signs = [math.copysign(1, each[name][0].as_py()) for name in "xy"]
        assert signs == [1, -1]
        assert signs == [math.copysign(1, right[name][want[0]].as_py()) for name in "xy"]


def test_columns_of_extension_types_break_ties_by_their_storage():
    texts = pa.array(["[1]", None, "[2]"]).cast(pa.json_())
    for values in (pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()), texts):
        for order in ([0, 1, 2], [2, 1, 0]):
            right = pa.table({"t": [1] * 3, "u": values}).take(order)
            for found in (hs.asof({"t": [1]}, right, time="t"), hs.nearest({"y": [0]}, right, by="1")):
                assert found["u"].to_pylist() == values.take([2]).to_pylist()


def test_columns_that_arrow_does_not_sort_break_ties():
    spans = pa.array([(1, 2, 3), None, (1, 2, 4)], pa.month_day_nano_interval())
    right = pa.table({"t": [1, 1, 1], "span": spans})
    for found in (hs.asof(pa.table({"t": [1]}), right, time="t"), hs.nearest({"y": [0]}, right, by="1")):
        assert found["span"].to_pylist() == spans.take([2]).to_pylist()


def test_a_distance_is_searched_in_an_index():
    """Ten billion pairs would take minutes."""
    rng = np.random.default_rng(2)
    left, right = (pa.table({name: rng.integers(0, 10**9, 10**5)}) for name in "xa")
    found = hs.nearest(left, right, by="ABS(l.x - r.a)", value="off")
    sorted_right = np.sort(right["a"].to_numpy())
    places = np.searchsorted(sorted_right, left["x"].to_numpy())
    near = [np.abs(left["x"].to_numpy() - sorted_right[np.clip(places - n, 0, 10**5 - 1)]) for n in (0, 1)]
    assert found["off"].to_numpy().tolist() == np.minimum(*near).tolist()


# Streams.

ARRANGEMENTS = [("low_latency", 1), ("low_latency", 3), ("three_step", 1), ("cell", 2), ("handshake", 3)]


def pairs_in(batches) -> list[tuple]:
    return [row for batch in batches for row in found_in(pa.Table.from_batches([batch]), None)]


def check_pushes(case: Case, by: str, k: int, how: str, seed: int, many: int) -> None:
    """Check the results, and that they come with the push that makes the left row final."""
    algorithm, cores = ARRANGEMENTS[seed % len(ARRANGEMENTS)]
    chosen = {"by": by, "k": k, "how": how, "algorithm": algorithm, "cores": cores, "many": many}
    if case.windows.left is None:
        with pytest.raises(hs.WindowError, match="needs a window on the left input"):
            Pushes(case, seed, nearest_join, pairs_in, **chosen)
        return
    pushes = Pushes(case, seed, nearest_join, pairs_in, **chosen)
    pushes.run()
    result = pushes.expected_result()
    want = [row[:3] for row in expected_results(case, by, k, how, result)]
    assert sorted((row for *_, row in pushes.found), key=repr) == sorted(want, key=repr), (chosen, case)
    metrics = pushes.join.metrics()
    assert (metrics.results, metrics.late, metrics.pending) == (len(want), result.late, 0)
    assert metrics.finalised == metrics.left_rows - metrics.left_late
    check_moments(case, pushes, result)


def nearest_join(many: int, **given_options) -> hs.NearestJoin:
    join = hs.NearestJoin(**given_options)
    join._chooser.best._many = many
    return join


def check_moments(case: Case, pushes: Pushes, result) -> None:
    times = (TIME, TIME) if case.left_time else None
    final = final_after(
        [pushes.rows(0), pushes.rows(1)], case.windows, pushes.lateness, pushes.arrivals, times
    )
    matched = {left for left, _ in result.pairs}
    for before, after, (row, *_) in pushes.found:
        at_the_end = final[0, row] == math.inf and before == len(pushes.arrivals)
        if before < final[0, row] <= after or at_the_end:
            continue
        assert row not in matched  # it can match nothing, and comes with its own push
        assert before <= pushes.arrivals.index((0, row)) < after, (row, final[0, row], before, after)


@settings(EXAMPLES, max_examples=25)
@given(
    case=SMALL_CASES, by=st.sampled_from(RANKINGS), k=st.sampled_from((1, 2, 100)),
    how=st.sampled_from(("left", "inner")), seed=SEEDS, many=st.sampled_from((0, 3, 1 << 14)),
)  # fmt: skip
def test_pushed_batches_agree_with_the_oracle_in_any_interleaving(case, by, k, how, seed, many):
    check_pushes(case, by, k, how, seed, many)


EVENT = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])


def event(*pairs: tuple[int | None, int | None]) -> dict:
    return {"t": [t for t, _ in pairs], "x": [x for _, x in pairs]}


def running(**more) -> hs.NearestJoin:
    return hs.NearestJoin(
        **{"left": EVENT, "right": EVENT, "by": "ABS(l.x - r.x)", "window": "10 s", "time": "t", **more}
    )


def xs(batches) -> list[tuple]:
    return [(row["x"], row["x_right"], row["rank"]) for batch in batches for row in batch.to_pylist()]


def test_a_left_row_comes_once_when_the_watermark_has_passed_its_window():
    join = running(k=2)
    assert xs(join.push_left(event((0, 5), (5, 50), (None, 1)))) == [(1, None, None)]
    assert xs(join.push_right(event((1, 9), (2, 6), (9, 4), (9, 5)))) == []
    assert join.metrics().pending == 2
    assert xs(join.advance(left=20)) == []
    assert xs(join.push_right(event((10, 5)))) == [(5, 5, 1), (5, 4, 2)]  # a tie: 4 is newer than 6
    assert xs(join.finish()) == [(50, 9, 1), (50, 6, 2)]
    assert join.metrics().results == 5


def test_behind_a_gate_all_rows_come():
    join = running(overload="shed")
    found = [*join.push_left(event((0, 1), (0, 7))), *join.push_right(event((0, 2), (50, 3)))]
    found += [*join.advance(left=50), *join.take(0.2), *join.finish()]
    assert sorted(xs(found)) == [(1, 2, 1), (7, 2, 1)]


def test_leaving_without_the_rows_that_wait_is_an_error():
    with pytest.raises(hs.HandshakeError, match="1 results were held back and not taken"):  # noqa: SIM117
        with running() as join:
            join.push_left(event((0, 1)))
    with running(how="inner") as join:
        join.push_left(event((0, 1)))
    with running(how="inner") as join:
        join.push_left(event((0, 1), (9, 1)))
        join.push_right(event((0, 1), (8, 1)))
        assert xs(join.advance(left=12, right=12)) == [(1, 1, 1)]
        assert join._held_back() == 1
        join.finish()


def test_state_does_not_grow_with_the_stream():
    join = running(k=3, window="5 s")
    join._chooser.best._many = 50
    for second in range(400):
        join.push_left(event(*((second, second) for _ in range(5))))
        join.push_right(event((second, second), (second, second + 1)))
    assert join._chooser.best.rows <= 30
    assert len(join._chooser.best._filter._counts) < 500
    join.finish()
    assert join.metrics().results == 3 * 2000


def test_explanations_and_columns_of_running_joins():
    join = running(k=3, value="off")
    assert join.output_schema.names == ["t", "x", "t_right", "x_right", "rank", "off"]
    text = join.explain()
    assert "best        3 per left row by ABS(l.x - r.x); rows without a match are kept, with NULLs" in text
    join.finish()
    with pytest.raises(hs.UnsupportedError, match="leave ordered out"):
        running(ordered=True)
    with pytest.raises(hs.SchemaError, match="lacks column 'x'"):
        running().push_left({"t": [1]})


# By hand.

ROOMS = {"room": ["a", "b", "c"], "x": [1, 6, None]}
SENSORS = {"sensor": [1, 2, 3, 4], "at": [0, 3, 5, None]}


def test_the_columns_of_results():
    found = hs.nearest(ROOMS, SENSORS, by="ABS(l.x - r.at)", k=2, value="off", rank="place")
    assert found.schema.names == ["room", "x", "sensor", "at", "place", "off"]
    assert found.schema.field("place").type == pa.int32()
    assert [tuple(row.values())[2:] for row in found.to_pylist()] == [
        (1, 0, 1, 1), (2, 3, 2, 2), (3, 5, 1, 1), (2, 3, 2, 3), (4, None, 1, None), (3, 5, 2, None),
    ]  # fmt: skip
    assert hs.nearest(ROOMS, SENSORS, by="r.at", rank=None).schema.names == ["room", "x", "sensor", "at"]


def test_rows_without_a_match_are_kept_or_dropped():
    found = hs.nearest(ROOMS, SENSORS, "r.at > l.x", by="r.at - l.x", value="off")
    assert [tuple(row.values())[2:] for row in found.to_pylist()] == [
        (2, 3, 1, 2), (None, None, None, None), (None, None, None, None),
    ]  # fmt: skip
    assert hs.nearest(ROOMS, SENSORS, "r.at > l.x", by="r.at - l.x", how="inner")["room"].to_pylist() == ["a"]
    nothing = hs.nearest(ROOMS, SENSORS, "r.at > 9", by="r.at", value="off")
    assert nothing.to_pylist()[0] == {
        "room": "a", "x": 1, "sensor": None, "at": None, "rank": None, "off": None,
    }  # fmt: skip


def test_explanations_say_how_pairs_are_found():
    shared = {"function": hs.nearest, "by": "r.at"}
    assert hs.explain(ROOMS, SENSORS, function=hs.nearest, by="ABS(l.x - r.at)", k=2).splitlines() == [
        "join        2 nearest by ABS(l.x - r.at), on all pairs; left rows without a match are kept, with "
        "NULLs",
        "kind        left: each left row with its best match, or with NULLs",
        "search      numbers in their order, since the ranking is a distance; all pairs, if that finds many",
    ]
    text = hs.explain(ROOMS, SENSORS, "l.x = r.at", window="5 tuples", **shared)
    assert "within 5 tuples and 5 tuples, on l.x = r.at" in text
    assert "search      all pairs of a window join by hash: 1 equality" in text


def test_k_may_be_any_whole_number():
    assert hs.nearest(ROOMS, SENSORS, by="r.at", k=np.int64(2))["rank"].to_pylist() == [1, 2] * 3


def test_empty_inputs():
    none = pa.table({"sensor": pa.array([], pa.int64()), "at": pa.array([], pa.int64())})
    assert hs.nearest(ROOMS, none, by="r.at", k=3)["rank"].to_pylist() == [None] * 3
    assert hs.nearest(ROOMS, none, by="r.at", how="inner").num_rows == 0
    assert hs.nearest(none, SENSORS, by="r.at").num_rows == 0


def test_ties_do_not_depend_on_the_order_of_rows():
    """The last one in the order of columns is best: NULL, then NaN, then values."""
    right = pa.table(
        {"x": [None, math.nan, 2.0, 1.0, 2.0, -1.0], "s": ["z", "y", "a", "d", "b", "c"], "n": [[1]] * 6}
    )
    for seed in range(6):
        order = Random(seed).sample(range(6), 6)
        found = hs.nearest({"t": [1]}, right.take(order), by="1", k=6)
        assert found["s"].to_pylist() == ["b", "a", "d", "c", "y", "z"]


def test_values_beyond_64_bits_rank_exactly_and_are_an_error_in_a_column():
    left, right = {"x": [-(2**63)]}, {"a": [2**63 - 1, 2**63 - 2, 2**63 - 1 - 2**40]}
    found = hs.nearest(left, right, by="r.a - l.x", k=3)
    assert found["a"].to_pylist() == [2**63 - 1 - 2**40, 2**63 - 2, 2**63 - 1]
    with pytest.raises(hs.HandshakeError, match=r"a value of r.a - l.x does not fit int64"):
        hs.nearest(left, right, by="r.a - l.x", value="off")


def test_a_python_function_may_rank():
    by = hs.call(lambda x, a: None if a is None else (x or 0) % 3 - a, hs.left.x, hs.right.at, returns="int")
    assert hs.nearest(ROOMS, SENSORS, by=by)["at"].to_pylist() == [5, 5, 5]


def test_windows_and_aliases():
    left, right = {"t": [0, 10], "x": [5, 5]}, {"t": [1, 2, 9, 12], "x": [9, 6, 1, 5]}
    found = hs.nearest(
        left, right, "o.t <= p.t", by="ABS(o.x - p.x)", window="5 s", time="t", aliases=("o", "p")
    )
    assert found["x_right"].to_pylist() == [6, 5]
    found = hs.nearest(left, right, by="ABS(l.x - r.x)", right_window="now", left_window="1 tuples", k=9)
    assert found["x_right"].to_pylist() == [9, 5, 6, 1]


@pytest.mark.parametrize("made", [pd.DataFrame, pl.DataFrame])
def test_frames_stay_what_they_are(made):
    found = hs.nearest(made(ROOMS), made(SENSORS), by="r.at")
    assert type(found) is made
    assert list(found["at"]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"k": 0}, hs.UnsupportedError, "k is the number of matches per left row, from 1 up; 0 was given"),
        ({"k": -1}, hs.UnsupportedError, "-1 was given"),
        ({"k": 1.5}, hs.UnsupportedError, "1.5 was given"),
        ({"k": True}, hs.UnsupportedError, "True was given"),
        ({"how": "full"}, hs.UnsupportedError, "not how='full'"),
        ({"k": "2"}, hs.UnsupportedError, "'2' was given"),
        ({"by": ""}, hs.ExpressionError, "the ranking is empty; write one such as 'ABS(l.x - r.a)'"),
        ({"by": "l.price - r.a AND"}, hs.ExpressionError, "cannot read the ranking near 'AND'"),
        ({"by": "RAND()"}, hs.ExpressionError, "a ranking must give the same answer"),
        ({"by": "SUM(r.a)"}, hs.ExpressionError, "a ranking sees one pair of rows at a time"),
        (
            {"by": hs.call(lambda x: x + 0.5, hs.left.price)},
            hs.HandshakeError,
            "must return bool: Could not convert 1.5 with type float: tried to convert to boolean; "
            "name the type of its results, as in call(…, returns='double')",
        ),
        ({"by": "r.xs"}, hs.ExpressionError, "r.xs is list<item: int64>; name a field"),
        ({"by": "r.st"}, hs.ExpressionError, "r.st is struct<f: int64>; name a field"),
        ({"by": "l.price - r.z"}, hs.ExpressionError, "no column 'z' in the right input (a, xs, st)"),
        ({"by": "l.price +"}, hs.ExpressionError, "line 1"),
        ({"by": 3}, hs.ExpressionError, "the ranking must be SQL text or a built expression, not int"),
        ({"rank": 5}, hs.SchemaError, "a column for rank or value needs a name, or None to leave it out; 5"),
        ({"rank": ""}, hs.SchemaError, "'' was given"),
        ({"value": 5}, hs.SchemaError, "5 was given"),
        ({"ordered": True}, TypeError, "nearest() has no argument 'ordered'"),
        ({"engine": "circuit"}, hs.UnsupportedError, "has inner joins only, and this is a nearest join"),
        ({"engine": "gpu"}, hs.UnsupportedError, "no engine 'gpu'"),
        ({"suffix": 5}, hs.SchemaError, "suffix is a text such as '_right', not 5"),
        ({"rank": "a"}, hs.SchemaError, "output column 'a' would appear twice"),
        ({"value": "price"}, hs.SchemaError, "output column 'price' would appear twice"),
        ({"value": "rank"}, hs.SchemaError, "output column 'rank' would appear twice"),
        ({"on": "l.price"}, hs.ExpressionError, "the predicate must be true or false"),
        ({"window": "5 s"}, hs.WindowError, "for the left input; name one of price (time=…"),
        ({"left_time": "price"}, hs.WindowError, "a time column is named for one input only"),
        ({"time": "nope"}, hs.SchemaError, "no column 'nope' in the left input"),
    ],
)
def test_mistakes_are_explained(changes, kind, message):
    left, right = {"price": [1]}, {"a": [1], "xs": [[1]], "st": [{"f": 1}]}
    with pytest.raises(kind, match=re.escape(message)):
        hs.nearest(left, right, **{"by": "ABS(l.price - r.a)", **changes})


EXAMPLE = Path(__file__).parents[2] / "examples" / "nearest_sensor.py"


def test_the_example_finds_what_a_plain_loop_finds():
    module = runpy.run_path(str(EXAMPLE))
    alarms, readings = module["make_rows"]()
    expected = []
    for alarm in alarms:
        near = [r for r in readings if r["floor"] == alarm["floor"] and abs(r["t"] - alarm["t"]) < 60]
        ranked = [
            ((a["x"] - r["x"]) ** 2 + (a["y"] - r["y"]) ** 2, -r["t"], r) for a in [alarm] for r in near
        ]
        best = sorted(ranked, key=lambda each: each[:2])[:3]
        expected += [(alarm["alarm"], r["t"], rank) for rank, (_, _, r) in enumerate(best, 1)]
        expected += [] if best else [(alarm["alarm"], None, None)]
    found = [(row["alarm"], row["t_right"], row["rank"]) for row in module["run"]()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert any(None in row for row in found)


def test_the_guide_shows_the_code_that_runs():
    guide = (EXAMPLE.parents[1] / "docs" / "guide-nearest-sensor.md").read_text()
    shown = re.findall(r"```python\n(def .*?)```", guide, re.DOTALL)
    assert len(shown) == 1
    assert shown[0] in EXAMPLE.read_text()


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(EXAMPLES, max_examples=1_000, derandomize=False)
@given(case=cases(max_rows=60), seed=SEEDS, k=st.sampled_from((1, 2, 5, 70)))
def test_soak(case, seed, k):
    by = make_ranking(Random(seed), case.left.schema, case.right.schema, 2)
    for how in ("left", "inner"):
        check_tables(case, by, k, how, seed % 100)
        check_pushes(case, by, k, how, seed, seed % 100)
