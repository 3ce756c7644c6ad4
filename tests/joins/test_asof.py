"""As-of joins: every direction, with and without keys and predicates, agrees with the oracle."""

from __future__ import annotations

import math
import re
from datetime import date, timedelta
from random import Random

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from handshake.engines.engine import engine
from handshake.engines.joins import best_plan
from handshake.joins.asof import AsOf
from handshake.options import Options
from handshake.plan import bind, parse
from handshake.testing.oracle import asof, rows
from pairs import EXAMPLES
from strategies import scope_of

DIRECTIONS = ("backward", "forward", "nearest")
CONDITIONS = (None, "l.x BETWEEN r.x - 1 AND r.x + 1", "l.k < r.k")
TIMES = st.sampled_from((pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.int64(), pa.float64()))


def make_table(rng: Random, size: int, key: pa.DataType, kind: pa.DataType) -> pa.Table:
    """Return rows in any order, with a few keys, ties of times, NULL and NaN."""
    times = pa.array(rng.choices((None, *range(-3, 12)), k=size), pa.int64())
    return pa.table(
        {
            "k": pa.array(rng.choices((None, 1, 2, 3), k=size), pa.int64()).cast(key),
            "x": pa.array(rng.choices((None, math.nan, -0.0, 0.0, 0.5, 2.0), k=size), pa.float64()),
            "t": times.cast(kind if pa.types.is_floating(kind) else pa.int64()).cast(kind),
        }
    )


def values(row: dict) -> tuple:
    return tuple("NaN" if value != value else value for value in row.values())


def check(
    left: pa.Table, right: pa.Table, on: str | None, by: str | None, most_pairs: int = 64, **options
) -> None:
    condition = None if on is None else parse(on)
    found = AsOf(left.schema, right.schema, condition, by, ("t", "t"), most_pairs=most_pairs, **options)
    found = found.find(left, right).table
    parts = [part for part in (on and f"({on})", by and f"l.{by} = r.{by}") if part]
    predicate = bind(parse(" AND ".join(parts) or "TRUE"), scope_of(left.schema, right.schema))
    tolerance = options.get("tolerance")
    want = asof(
        rows(left, "t"), rows(right, "t"), predicate, options["direction"],
        None if tolerance is None else int(tolerance.split()[0]) * 10**9, options["allow_exact_matches"],
    )  # fmt: skip
    mine, theirs = left.to_pylist(), right.to_pylist()
    missing = (None,) * right.num_columns
    expected = [
        values(mine[at]) + (missing if other is None else values(theirs[other]))
        for at, other in enumerate(want)
        if other is not None or options["how"] == "left"
    ]
    assert [values(row) for row in found.to_pylist()] == expected, (on, by, options)


@settings(EXAMPLES, max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1), sizes=st.tuples(st.integers(0, 25), st.integers(0, 25)), kind=TIMES,
    key=st.sampled_from((pa.int64(), pa.string())), exact=st.booleans(),
    how=st.sampled_from(("left", "inner")),
    tolerance=st.sampled_from((None, "0 seconds", "1 second", "4 seconds")),
)  # fmt: skip
def test_every_direction_agrees_with_the_oracle(seed, sizes, kind, key, exact, how, tolerance):
    rng = Random(seed)
    left, right = (make_table(rng, size, key, kind) for size in sizes)
    options = {"allow_exact_matches": exact, "how": how, "tolerance": tolerance}
    for direction in DIRECTIONS:
        for by in (None, "k"):
            check(left, right, None, by, direction=direction, **options)


@settings(EXAMPLES, max_examples=6)
@given(
    seed=st.integers(0, 2**32 - 1), sizes=st.tuples(st.integers(0, 25), st.integers(0, 25)),
    exact=st.booleans(), tolerance=st.sampled_from((None, "0 seconds", "4 seconds")),
    most_pairs=st.sampled_from((-1, 64)), on=st.sampled_from(CONDITIONS[1:]), by=st.sampled_from((None, "k")),
)  # fmt: skip
def test_predicates_agree_with_the_oracle(seed, sizes, exact, tolerance, most_pairs, on, by):
    """All pairs at once, and under windows that grow."""
    rng = Random(seed)
    left, right = (make_table(rng, size, pa.int64(), pa.timestamp("s")) for size in sizes)
    for direction in DIRECTIONS:
        options = {"direction": direction, "allow_exact_matches": exact, "tolerance": tolerance}
        check(left, right, on, by, most_pairs, how="left", **options)


def test_windows_grow_until_all_rows_have_found_a_match():
    """Some matches are near in time, some far away, some do not exist."""
    rng = np.random.default_rng(1)
    left = pa.table({"t": np.arange(3000), "x": rng.integers(0, 400, 3000)})
    right = pa.table({"t": np.arange(3000), "a": np.sort(rng.integers(0, 300, 3000))})
    join = AsOf(left.schema, right.schema, parse("l.x = r.a"), None, ("t", "t"), most_pairs=-1)
    found = join.find(left, right).table
    latest: dict[int, int] = {}
    want = []
    for x, t, a in zip(left["x"].to_pylist(), range(3000), right["a"].to_pylist(), strict=True):
        latest[a] = t
        want.append(latest.get(x))
    assert found["t_right"].to_pylist() == want
    assert hs.asof(left, right, "l.x = r.a", time="t").equals(found)


def test_the_order_of_rows_does_not_matter():
    right = pa.table(
        {"t": [1] * 6, "x": [None, math.nan, 2.0, 1.0, 2.0, -1.0], "s": ["z", "y", "a", "d", "b", "c"]}
    )
    for seed in range(6):
        order = Random(seed).sample(range(6), 6)
        for on in (None, "r.t = 1"):
            for direction in DIRECTIONS:
                found = hs.asof({"t": [1]}, right.take(order), on, time="t", direction=direction)
                assert found["s"].to_pylist() == ["b"]


def test_keys_by_pairs_of_names_and_of_different_types():
    left = {"t": [5, 5], "a": [1, 2], "s": ["x", "y"]}
    right = pa.table({"t": [1, 2, 3], "b": pa.array([1.0, 1.0, 2.0], pa.float32()), "s": ["x", "x", "z"]})
    assert hs.asof(left, right, by=[("a", "b")], time="t")["t_right"].to_pylist() == [2, 3]
    assert hs.asof(left, right, by=[("a", "b"), "s"], time="t")["t_right"].to_pylist() == [2, None]
    both = {"t": [1, 2], "k": ["u", "v"], "n": [1, 1]}
    assert hs.asof(both, both, by=["k", "n"], time="t", direction="forward")["t_right"].to_pylist() == [1, 2]


def test_extremes_of_time():
    ends = pa.array([-(2**63), 2**63 - 1], pa.int64())
    table = pa.table({"t": ends.cast(pa.timestamp("ns")), "x": [1, 2]})
    for direction, want in {"backward": [None, 1], "forward": [2, None], "nearest": [2, 1]}.items():
        for on in (None, "l.x <> r.x"):
            found = hs.asof(table, table, on, time="t", direction=direction, allow_exact_matches=False)
            assert found["x_right"].to_pylist() == want, (direction, on)


def test_pandas_and_polars_agree():
    rng = np.random.default_rng(0)
    left = pd.DataFrame({"t": np.sort(rng.permutation(4000)[:1000]), "k": rng.integers(0, 7, 1000)})
    right = pd.DataFrame({"t": np.sort(rng.permutation(4000)[:900]), "k": rng.integers(0, 7, 900)})
    right["v"] = np.arange(900.0)
    for direction in DIRECTIONS:
        want = pd.merge_asof(left, right, on="t", by="k", direction=direction, tolerance=50)["v"]
        found = hs.asof(left, right, by="k", time="t", direction=direction, tolerance="50 seconds")
        assert isinstance(found, pd.DataFrame)
        pd.testing.assert_series_equal(found["v"], want)
    found = hs.asof(pl.from_pandas(left), pl.from_pandas(right), by="k", time="t")
    ordered = pl.from_pandas(left).join_asof(pl.from_pandas(right), on="t", by="k", check_sortedness=False)
    assert found["v"].to_list() == ordered["v"].to_list()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, hs.WindowError, "an as-of join needs a time column, and none is named for the left input"),
        ({"left_time": "t"}, hs.WindowError, "none is named for the right input; name one of t, k"),
        ({"time": "tt"}, hs.SchemaError, "no column 'tt' in the left input"),
        ({"time": "k"}, hs.SchemaError, "which is not a time"),
        ({"time": "t", "direction": "up"}, hs.UnsupportedError, "choose one of backward, forward, nearest"),
        ({"time": "t", "direction": "back"}, hs.UnsupportedError, "did you mean 'backward'?"),
        ({"time": "t", "how": "left-outer"}, hs.UnsupportedError, "did you mean 'leftouter'?"),
        (
            {"time": "t", "allow_exact_matches": "no"},
            hs.UnsupportedError,
            "allow_exact_matches is True or False; 'no' was given",
        ),
        ({"time": "t", "allow_exact_matches": None}, hs.UnsupportedError, "None was given"),
        ({"time": "t", "how": "full"}, hs.UnsupportedError, "not how='full'"),
        ({"time": "t", "tolerance": "-1 s"}, hs.WindowError, "tolerance cannot be negative"),
        ({"time": "t", "tolerance": 5}, hs.WindowError, "tolerance is a length of time"),
        (
            {"time": "t", "tolerance": "5 tuples"},
            hs.WindowError,
            "cannot read '5 tuples' as a length of time",
        ),
        ({"time": "t", "tolerance": np.timedelta64("NaT")}, hs.WindowError, "tolerance is a length of time"),
        ({"time": "t", "tolerance": np.timedelta64(1, "M")}, hs.WindowError, "tolerance is a length of time"),
        ({"time": "t", "tolerance": timedelta(-1)}, hs.WindowError, "tolerance cannot be negative"),
        ({"time": "t", "by": 3}, hs.SchemaError, "3 is neither a name nor a pair of names"),
        ({"time": "t", "by": {"k": "k"}}, hs.SchemaError, "by=['day', ('symbol', 'ticker')]; {'k': 'k'} is"),
        ({"time": "t", "by": "z"}, hs.ExpressionError, "no column 'z'"),
        ({"time": "t", "by": [("t", "k")]}, hs.ExpressionError, "cannot compare l.t"),
        ({"time": "t", "suffix": ""}, hs.SchemaError, "would appear twice"),
        ({"time": "t", "suffix": None}, hs.SchemaError, "suffix is a text such as '_right', not None"),
        ({"time": "t", "method": "scan"}, TypeError, "asof() has no argument 'method'"),
        ({"time": "t", "window": "5 s"}, TypeError, "asof() has no argument 'window'"),
        (
            {"time": "t", "engine": "circuit"},
            hs.UnsupportedError,
            "the circuit engine has inner joins only, and this is an as-of join; the local engine and Spark",
        ),
    ],
)
def test_mistakes_are_explained(options, kind, message):
    table = {"t": [1], "k": ["a"]}
    with pytest.raises(kind, match=re.escape(message)):
        hs.asof(table, table, **options)


def test_ties_of_nested_values_do_not_depend_on_the_order_of_rows():
    for values in ([[1], [2]], [{"a": 1}, {"a": 2}]):
        found = []
        for order in (values, values[::-1]):
            right = pa.table({"t": [3, 3], "xs": pa.array(order)})
            found += hs.asof({"t": [5]}, right, time="t")["xs"].to_pylist()
        assert found == [values[1], values[1]]


def test_a_tolerance_is_a_text_or_a_timedelta_of_any_library():
    times = pa.array([0, 1_000_001], pa.timestamp("ns"))
    left, right = pa.table({"t": times.take([1])}), pa.table({"t": times.take([0])})
    exact = ["1000001 ns", pd.Timedelta(1_000_001, "ns"), np.timedelta64(1_000_001, "ns"), timedelta(days=1)]
    for tolerance in (*exact, np.timedelta64(1, "D"), hs.Time("1 s"), None):
        assert hs.asof(left, right, time="t", tolerance=tolerance)["t_right"].null_count == 0, tolerance
    for tolerance in ("1 ms", timedelta(milliseconds=1), pd.Timedelta(1_000_000, "ns"), hs.Time("1 ms")):
        assert hs.asof(left, right, time="t", tolerance=tolerance)["t_right"].null_count == 1, tolerance
    lengths = {"tolerance": timedelta(seconds=90), "lateness": timedelta(1)}
    join = hs.AsOfJoin(left=left, right=right, time="t", **lengths)
    assert "as of, backward, within 90 seconds," in join.explain()


@pytest.mark.parametrize("on", [None, "l.t = r.t"])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_keys_without_any_value_match_nothing(on, how):
    for other in ([None], [1]):
        found = hs.asof({"t": [1], "k": [None]}, {"t": [1], "k": other}, on, by="k", time="t", how=how)
        assert found["t_right"].to_pylist() == ([None] if how == "left" else [])
    table = pa.table({"t": [1], "k": [None]})
    with hs.AsOfJoin(left=table, right=table, on=on, by="k", time="t", tolerance="1 s", how=how) as join:
        join.push_right(table)
        found = [*join.push_left(table), *join.finish()]
    assert [batch["t_right"].to_pylist() for batch in found] == ([[None]] if how == "left" else [])


@pytest.mark.parametrize(
    "pool",
    [
        pa.array([1, 2]).cast(pa.decimal128(21, 2)), pa.array([1, 2**63 + 1], pa.uint64()),
        pa.array([True, False]), pa.array([date(2024, 1, 1), date(2024, 1, 2)]), pa.array([b"u", b""]),
        pa.array(["u", "v"]).dictionary_encode(), pa.array(["u", "v"], pa.large_string()),
    ],
    ids=lambda pool: str(pool.type).split("<")[0],
)  # fmt: skip
def test_keys_of_other_types_agree_with_the_oracle(pool):
    tables = []
    for seed in (1, 2):
        rng = Random(seed)
        keys = pool.take(pa.array(rng.choices((None, 0, 1), k=25), pa.int64()))
        tables.append(pa.table({"k": keys, "t": rng.choices(range(12), k=25)}))
    for direction in DIRECTIONS:
        check(*tables, None, "k", direction=direction, allow_exact_matches=True, how="left")


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (pa.array([2**40], pa.timestamp("s")), pa.array([1], pa.timestamp("ns")), "bits in ns, in which the"),
        (pa.array([date(9999, 12, 31)]), pa.array([1], pa.timestamp("ns")), "cast those to a coarser unit"),
        (pa.array([math.inf]), pa.array([1.0]), "'t' of the left input is infinite, or does not fit 64 bits"),
    ],
)
def test_times_that_do_not_fit_say_which_input_causes_it(left, right, message):
    with pytest.raises(hs.InputError, match=re.escape(message)):
        hs.asof(pa.table({"t": left}), pa.table({"t": right}), time="t")


def test_explanations_say_how_tables_are_searched():
    table = {"t": [1], "k": ["a"], "x": [1.5]}
    shared = {"function": hs.asof, "time": "t"}
    assert hs.explain(
        table, table, by="k", direction="forward", tolerance="1 min", **shared
    ).splitlines() == [
        "join        as of, forward, within 1 minute, on l.k = r.k",
        "kind        left: each left row with its best match, or with NULLs",
        "search      one pass over both inputs in the order of time",
    ]
    text = hs.explain(table, table, "l.x < r.x", how="inner", **shared)
    assert text.splitlines()[1:] == [
        "kind        inner: each left row that has a match, with its best one",
        "search      a join of all pairs if they are few, else joins under windows that grow",
    ]
    with pytest.raises(TypeError, match=re.escape("explain() has no argument 'widow'")):
        hs.explain(table, table, widow=1, **shared)
    with pytest.raises(hs.UnsupportedError, match="the circuit engine has inner joins only"):
        hs.explain(table, table, engine="circuit", **shared)


def test_a_plan_runs_on_engines_and_takes_the_options_of_the_function():
    table = pa.table({"t": [1, 2]})
    plan = best_plan(AsOf(table.schema, table.schema, None, None, ("t", "t")))
    inputs = {"left": table, "right": table}
    assert engine("local").run(plan, inputs, Options(cores=1)).results()["join"]["t_right"].to_pylist() == [
        1,
        2,
    ]
    assert hs.run(plan, inputs)["join"].num_rows == 2
    assert hs.explain(plan).startswith("join        as of, backward, on TRUE\n")
    with pytest.raises(hs.UnsupportedError, match=r"an as-of join takes cores, .*, not method"):
        hs.run(plan, inputs, method="hash")
    with pytest.raises(hs.UnsupportedError, match="an as-of join runs on Spark DataFrames; make them with"):
        hs.asof(table, table, time="t", engine="spark")
