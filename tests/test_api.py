"""The public interface: what goes in, what comes out, and what is said when it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import handshake as hs
from spark_session import spark

__all__ = ["spark"]

X = {"x": [1, 20, 300]}
A = {"a": [5, 40, 295]}
ON = "ABS(l.x - r.a) <= 10"
WANT = [{"x": 1, "a": 5}, {"x": 300, "a": 295}]


def rows(table):
    return sorted(table.to_pylist(), key=str)


def test_arrow_in_arrow_out():
    result = hs.join(pa.table(X), pa.table(A), ON)
    assert isinstance(result, pa.Table)
    assert rows(result) == WANT


def test_batches_and_readers_are_tables_too():
    batch = pa.record_batch(X)
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    assert rows(hs.join(reader, pa.record_batch(A), ON)) == WANT


def test_pandas_in_pandas_out():
    result = hs.join(pd.DataFrame(X, index=[7, 8, 9]), pd.DataFrame(A), ON)
    assert isinstance(result, pd.DataFrame)
    assert sorted(result.to_dict("records"), key=str) == WANT


def test_polars_in_polars_out():
    result = hs.join(pl.DataFrame(X), pl.DataFrame(A).lazy(), ON)
    assert isinstance(result, pl.DataFrame)
    assert rows(result.to_arrow()) == WANT


def test_polars_text_survives():
    result = hs.join(pl.DataFrame({"s": ["a", None]}), pl.DataFrame({"q": ["a", "b"]}), "l.s = r.q")
    assert result.rows() == [("a", "a")]


def test_different_kinds_give_arrow():
    result = hs.join(pd.DataFrame(X), pl.DataFrame(A), ON)
    assert isinstance(result, pa.Table)
    assert rows(result) == WANT


def test_plain_python_in_arrow_out():
    assert rows(hs.join([{"x": 1}, {"x": 300}], A, ON)) == WANT


def test_output_columns_are_left_then_right_with_a_suffix_for_doubles():
    result = hs.join({"k": [1], "v": [2]}, {"v": [2], "k": [3]}, "l.v = r.v")
    assert result.column_names == ["k", "v", "v_right", "k_right"]


def test_another_suffix():
    assert hs.join({"k": [1]}, {"k": [1]}, "l.k = r.k", suffix="_r").column_names == ["k", "k_r"]


def test_a_suffix_that_makes_a_double_is_refused():
    with pytest.raises(hs.SchemaError, match="output column 'k_right' would appear twice"):
        hs.join({"k": [1], "k_right": [1]}, {"k": [1]}, "l.k = r.k")


def test_builder_and_text_agree():
    built = hs.left.x.between(hs.right.a - 10, hs.right.a + 10)
    assert rows(hs.join(X, A, built)) == rows(hs.join(X, A, ON)) == WANT


def test_python_callables_run_on_candidates():
    odd = hs.call(lambda x, a: None if x is None else (x + a) % 2 == 1, hs.left.x, hs.right.a)
    assert rows(hs.join(X, A, hs.sql(ON) & odd)) == [{"x": 300, "a": 295}]


def test_a_python_callable_that_fails_is_named():
    def broken(x, a):
        raise ValueError("boom")

    with pytest.raises(hs.HandshakeError, match=r"function broken failed.*boom"):
        hs.join(X, A, hs.call(broken, hs.left.x, hs.right.a))


def test_a_bare_callable_as_predicate_is_explained():
    with pytest.raises(hs.ExpressionError, match=r"wrap a Python function as handshake\.call"):
        hs.join(X, A, lambda x, a: True)


def test_aliases():
    assert rows(hs.join(X, A, "trades.x - quotes.a BETWEEN -10 AND 10", aliases=("trades", "quotes"))) == WANT


def test_no_predicate_joins_all_that_windows_allow():
    assert hs.join(X, A).num_rows == 9
    assert hs.join(X, A, window=hs.Tuples(1)).num_rows == 5


def test_unknown_kind_of_join():
    kinds = "inner, left, right, full, left_semi, left_anti, right_semi, right_anti"
    with pytest.raises(hs.UnsupportedError, match=f"no kind of join 'lef'; choose one of {kinds}; did you"):
        hs.join(X, A, ON, how="lef")


def test_circuits_have_inner_joins_only():
    with pytest.raises(
        hs.UnsupportedError, match="inner joins only, and the join of left and right is a left join"
    ):
        hs.join(X, A, ON, how="leftouter", engine="circuit")


@pytest.mark.parametrize(
    ("on", "method", "message"),
    [
        ("l.x < r.a", "hash", "method 'hash' needs an equality"),
        ("l.x <> r.a", "band", "method 'band' needs a band or inequality"),
        ("l.x = r.a", "tree", "unknown access method 'tree'; choose auto, scan, hash, band"),
    ],
)
def test_methods_that_cannot_be_used(on, method, message):
    with pytest.raises(hs.UnsupportedError, match=message):
        hs.join(X, A, on, method=method)


@pytest.mark.parametrize("method", ["auto", "scan", "band"])
@pytest.mark.parametrize("empty", [(True, False), (False, True), (True, True)])
def test_empty_inputs(method, empty):
    sides = [pa.table(t).slice(0, 0) if e else pa.table(t) for t, e in zip((X, A), empty, strict=True)]
    result = hs.join(*sides, ON, method=method)
    assert result.num_rows == 0
    assert result.column_names == ["x", "a"]


def test_payload_of_any_type_is_untouched():
    payload = {
        "list": pa.array([[1, None], []]),
        "struct": pa.array([{"p": 1, "q": "a"}, None]),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        "dict": pa.array(["u", "v"]).dictionary_encode(),
        "time": pa.array([1, 2], pa.timestamp("ns", "Europe/Berlin")),
        "bytes": pa.array([b"\x00\xff", None]),
        "none": pa.nulls(2),
        "decimal": pa.array([1, 2], pa.decimal256(60, 3)),
    }
    left = pa.table({"k": [1, 2], **payload})
    result = hs.join(left, {"j": [2, 1]}, "l.k = r.j").sort_by("k")
    assert result.select(left.column_names).equals(left)


def test_time_columns_must_both_have_a_zone_or_neither():
    naive = pa.table({"t": pa.array([0], pa.timestamp("s"))})
    zoned = pa.table({"t": pa.array([0], pa.timestamp("ms", "UTC"))})
    with pytest.raises(hs.SchemaError, match="the time columns do not compare"):
        hs.join(naive, zoned, window="1 s", time="t")
    assert hs.join(zoned, zoned, window="1 s", time="t").num_rows == 1


def test_a_time_column_of_nulls_joins_nothing():
    left = pa.table({"t": pa.nulls(2), "x": [1, 2]})
    right = pa.table({"t": pa.array([0], pa.timestamp("s")), "a": [1]})
    plan = hs.prepare(left.schema, right.schema, window="1 s", time="t")
    replay = hs.Replay(plan, left, right)
    assert list(replay) == []
    assert replay.metrics().no_time == 2


@pytest.mark.parametrize(
    ("kind", "values", "step"),
    [
        (pa.timestamp("s"), [0, 10], 1),
        (pa.timestamp("ns"), [0, 10 * 10**9], 1),
        (pa.int32(), [0, 10], 1),
        (pa.float64(), [0.0, 10.0], 1),
        (pa.decimal128(12, 2), [0, 10], 1),
        (pa.date32(), [0, 10], 86_400),
    ],
)
def test_times_of_many_types(kind, values, step):
    """Windows are strict: 10 s apart is outside a window of 10 s, and inside one of a nanosecond more."""
    table = pa.table({"t": pa.array(values, kind)})
    assert hs.join(table, table, window=f"{10 * step} s", time="t").num_rows == 2
    assert hs.join(table, table, window=f"{10 * step * 10**9 + 1} ns", time="t").num_rows == 4


def test_a_text_column_is_no_time():
    table = pa.table({"t": ["noon"]})
    with pytest.raises(hs.SchemaError, match="column 't' of the left input is string, which is not a time"):
        hs.join(table, table, window="1 s", time="t")


def test_times_that_do_not_fit_the_finer_unit_are_refused():
    left = pa.table({"t": pa.array([2**62], pa.timestamp("s"))})
    right = pa.table({"t": pa.array([0], pa.timestamp("ns"))})
    with pytest.raises(hs.InputError, match="does not fit 64 bits in ns"):
        hs.join(left, right, window="1 s", time="t")


def test_explain_shows_method_and_conjuncts():
    text = hs.explain(
        {"x": [1], "s": ["a"]}, {"a": [1], "s": ["a"]}, "l.x < r.a AND l.s LIKE '%a' AND r.s > l.s"
    )
    assert "method      band: no equality; inequalities only" in text
    assert "inequality  l.x < r.a" in text
    assert "checked     r.s > l.s on candidate pairs, in Arrow batches" in text


def test_explain_shows_what_scans_look_at_first():
    tables, on = ({"x": [1], "y": [1.5]},) * 2, "ABS(l.x - r.x) <= 10 AND ABS(l.y - r.y) <= 10"
    scan = {"window": "9 tuples", "method": "scan", "cores": 2}
    codes = "codes       of l.x, l.y, r.x, r.y, a byte each, which scans compare first"
    assert codes in hs.explain(*tables, on, **scan)
    assert codes in hs.explain(*tables, on, **scan, algorithm="cell")
    assert "codes " not in hs.explain(*tables, on, window="9 tuples", cores=2)


# One text, several engines.

TRADES = """CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts int) TIMESTAMP BY Ts;
SELECT Symbol, max(Price) AS High FROM Trades [SIZE 4 ADVANCE 2 TIME] GROUP BY Symbol INTO Highs"""
PAIRS = """CREATE INPUT STREAM R (k int, v int, t int) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int, w int, t int) TIMESTAMP BY t;
SELECT R.k AS k, v, w FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES] WHERE R.k = S.k AND v > w INTO Pairs"""


def trades():
    symbols = [("UBSN", "ABBN", "ROG")[n * 7 % 3] for n in range(20)]
    return {
        "Symbol": symbols,
        "Price": [n * 5 % 11 for n in range(20)],
        "Ts": [n * 3 % 17 for n in range(20)],
    }


def pairs():
    r = {
        "k": [n % 3 for n in range(20)],
        "v": [7 * n % 11 for n in range(20)],
        "t": [2 * n for n in range(20)],
    }
    s = {
        "k": [n % 2 for n in range(15)],
        "w": [5 * n % 7 for n in range(15)],
        "t": [3 * n for n in range(15)],
    }
    return {"R": r, "S": s}


@pytest.mark.parametrize("engine", ["circuit", "spark"])
@pytest.mark.parametrize(
    ("text", "inputs", "name"), [(TRADES, {"Trades": trades()}, "Highs"), (PAIRS, pairs(), "Pairs")]
)
def test_one_text_gives_the_same_on_every_engine(request, engine, text, inputs, name):
    options = {"groups": 4} if engine == "circuit" else {}
    if engine == "spark":
        pytest.importorskip("pyspark")
        request.getfixturevalue("spark")
    local = hs.run(text, inputs)[name]
    assert local.num_rows > 10
    found = hs.run(text, inputs, engine=engine, **options)[name]
    assert found.schema == local.schema
    assert rows(found) == rows(local)


def test_spark_dataframes_give_spark_dataframes(spark):
    frame = spark.createDataFrame(pd.DataFrame(trades()).astype({"Price": "int32", "Ts": "int32"}))
    found = hs.run(TRADES, {"Trades": frame})["Highs"]
    assert type(found).__module__.startswith("pyspark.sql")
    assert rows(found.toArrow()) == rows(hs.run(TRADES, {"Trades": trades()})["Highs"])


def test_a_join_of_tables_runs_on_every_engine(spark):
    left, right = pa.table({"k": [1, 2, 3], "v": [1, 2, 3]}), pa.table({"k": [2, 3, 4], "w": [5, 6, 7]})
    found = [
        hs.join(left, right, "l.k <= r.k", window="2 tuples", engine=engine)
        for engine in ("local", "spark", "circuit")
    ]
    assert found[0].schema == found[1].schema == found[2].schema
    assert rows(found[0]) == rows(found[1]) == rows(found[2]) != []


def test_results_of_run_are_of_the_kind_that_was_given(tmp_path):
    table = pa.table(trades())
    assert isinstance(hs.run(TRADES, {"Trades": table})["Highs"], pa.Table)
    assert isinstance(hs.run(TRADES, {"Trades": pd.DataFrame(trades())})["Highs"], pd.DataFrame)
    assert isinstance(hs.run(TRADES, {"Trades": pl.DataFrame(trades())})["Highs"], pl.DataFrame)
    parquet.write_table(table, tmp_path / "t.parquet")
    for path in (tmp_path / "t.parquet", str(tmp_path / "t.parquet")):
        assert rows(hs.run(TRADES, {"Trades": path})["Highs"]) == rows(
            hs.run(TRADES, {"Trades": table})["Highs"]
        )


def test_a_text_that_is_one_join_may_run_as_one():
    arrival = hs.run(PAIRS, pairs())["Pairs"]
    found = hs.run(PAIRS, pairs(), order="any", cores=2)["Pairs"]
    assert found.schema == arrival.schema
    assert rows(found) == rows(arrival) != []
    assert "algorithm   low_latency, cores: 2" in hs.explain(PAIRS, order="any", cores=2)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ({}, {}, "no input is given for stream 'Trades'; the streams are Trades"),
        ({"Trads": {}}, {}, r"no input 'Trads' \(Trades\); did you mean 'Trades'\?"),
        ({"Trades": trades()}, {"engine": "circiut"}, "no engine 'circiut' .*did you mean 'circuit'"),
        ({"Trades": trades()}, {"groups": 3}, "groups=3 is only supported by the circuit engine"),
        ({"Trades": trades()}, {"engine": "spark", "pace": 2.0}, "pace=2.0 is only supported by the local"),
        ({"Trades": {"Symbol": ["UBSN"], "Price": [1]}}, {}, "lacks column 'Ts'"),
        ({"Trades": 5}, {}, "cannot read rows from int"),
    ],
)
def test_runs_that_are_refused(inputs, options, message):
    with pytest.raises(hs.HandshakeError, match=message):
        hs.run(TRADES, inputs, **options)


def test_rows_of_a_file_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("Symbol,Price,Ts\nUBSN,x,1\n")
    with pytest.raises(hs.InputError, match="Trades input, row 1: 'x' in column 'Price' is not int32"):
        hs.run(TRADES, {"Trades": tmp_path / "t.csv"})


def test_explain_takes_texts_queries_and_joins():
    assert "panes of 2 seconds" in hs.explain(TRADES)
    assert "panes of" not in hs.explain(TRADES, optimised=False)
    assert "Highs" in hs.explain(TRADES, engine="circuit", groups=2)
    assert hs.explain(TRADES, engine="spark") == hs.explain(TRADES)
    with hs.Query(TRADES) as query, running() as join:
        assert hs.explain(query) == query.explain()
        assert hs.explain(join) == join.explain()
    with pytest.raises(hs.InputError, match="explain takes the text of a query, a running query or join"):
        hs.explain(5)


def test_a_join_is_explained_by_the_engine_that_is_asked():
    rows, on = {"x": [1]}, "l.x = r.x"
    join = {"window": "4 tuples", "cores": 2}
    assert "circuit     2 join cores in a line" in hs.explain(rows, rows, on, engine="circuit", **join)
    assert "on Spark; tuples go by hash" in hs.explain(rows, rows, on, engine="spark", **join)
    assert "algorithm   low_latency, cores: 2" in hs.explain(rows, rows, on, **join)
    times = {"time": "x", "window": "4 s", "pace": 2.0, "ordered": True}
    assert "windows     4 s" in hs.explain(rows, rows, on, **times)
    with pytest.raises(hs.UnsupportedError, match=r"^no engine 'nonsense' \(local, spark, circuit\)$"):
        hs.explain(rows, rows, on, engine="nonsense")
    with pytest.raises(hs.UnsupportedError, match=r"^segments=2 is only supported by the spark engine$"):
        hs.explain(rows, rows, on, segments=2)


def test_errors_name_options_as_python_does():
    text, rows = {"s": ["a"]}, {"x": [1]}
    for message, join in (
        (r"the left input has no window, .* such as window=.1000 tuples.$", {}),
        (r"window is 5 seconds: .* such as window=.1000 tuples., or use engine=.local.$",
         {"window": "5 s", "time": "x"}),
    ):  # fmt: skip
        with pytest.raises(hs.UnsupportedError, match=message):
            hs.join(rows, rows, engine="circuit", **join)
    with pytest.raises(
        hs.UnsupportedError, match=r"has with text=…, drop the column, or use engine=.local.$"
    ):
        hs.join(text, text, engine="circuit", window="4 tuples")
    with pytest.raises(hs.WindowError, match=r"name one of x \(time=…\)$"):
        hs.join(rows, rows, window="5 s")
    with pytest.raises(hs.UnsupportedError, match=r"give one with groups=…$"):
        hs.explain(TRADES, engine="circuit")
    with pytest.raises(hs.InputError, match=r"^nullable='Trades.q': Trades has no field 'q' "):
        hs.explain(TRADES, engine="circuit", groups=2, nullable=["Trades.q"])
    with pytest.raises(hs.UnsupportedError, match=r"^pace=2 is for files, and S comes from '-' at"):
        hs.run(SQL, {"S": "-"}, pace=2.0)


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"numba", "numpy", "pyarrow", "sqlglot", "typer"}
    code = f"import sys, handshake; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
    assert set(hs.__all__) <= set(dir(hs))
    with pytest.raises(AttributeError, match="module 'handshake' has no attribute 'jion'"):
        hs.jion


# Running joins.

SCHEMA = pa.schema([("t", pa.timestamp("us")), ("v", pa.int64())])


def running(**options):
    return hs.Join(left=SCHEMA, right=SCHEMA, on="l.v = r.v", window="10 s", time="t", **options)


def at(seconds, v=1):
    return {"t": [datetime(2024, 1, 1) + timedelta(seconds=s) for s in seconds], "v": [v] * len(seconds)}


def test_each_push_returns_the_results_it_completes():
    with running() as join:
        assert join.push_left(at([0])) == []
        (batch,) = join.push_right(at([1, 2]))
        assert batch.schema == join.output_schema
        assert batch.num_rows == 2


@pytest.mark.parametrize(
    "tuples",
    [
        pa.record_batch({"t": pa.array([1], pa.timestamp("us")), "v": pa.array([1])}),
        pa.table({"v": pa.array([1], pa.int32()), "t": pa.array([1], pa.timestamp("us"))}),
        pd.DataFrame({"t": [pd.Timestamp(1, unit="us")], "v": [1]}),
        pl.DataFrame({"t": [datetime(1970, 1, 1)], "v": [1]}),
        {"t": [datetime(1970, 1, 1)], "v": [1]},
        [{"t": datetime(1970, 1, 1), "v": 1}],
    ],
)
def test_pushes_of_every_kind(tuples):
    with running() as join:
        join.push_left(tuples)
        assert sum(b.num_rows for b in join.push_right(tuples)) == 1


def test_late_tuples_are_dropped_and_counted():
    with running(lateness="5 s") as join:
        join.push_left(at([100]))
        join.push_right(at([100]))
        assert sum(b.num_rows for b in join.push_left(at([95, 94]))) == 1
        assert join.metrics().late == 1


def test_expired_tuples_leave_in_whole_basic_windows():
    with running() as join:
        for second in range(0, 200, 2):
            join.push_left(at([second]))
            join.push_right(at([second]))
        metrics = join.metrics()
        assert metrics.expired > 100
        assert metrics.left_window_rows + metrics.expired // 2 >= 5
        assert metrics.left_window_rows < 60


def test_a_silent_stream_can_be_advanced():
    with running() as join:
        join.push_left(at([0]))
        join.push_right(at([0]))
        join.push_left(at(range(100, 1300)))
        held = join.metrics().right_window_rows
        join.advance(right=int(datetime(2024, 1, 1, 1).timestamp() * 1e6))
        assert (held, join.metrics().right_window_rows) == (1, 0)


@pytest.mark.parametrize(
    ("tuples", "error", "message"),
    [
        ({"t": [1]}, hs.SchemaError, r"lacks column 'v' \(it has t\)"),
        ({"t": [1], "v": [1], "w": [1]}, hs.SchemaError, "has column 'w', which its schema"),
        ({"t": [1], "v": ["a"]}, hs.HandshakeError, "cannot read rows|was announced"),
        (42, hs.InputError, "cannot read rows from int"),
        ("text", hs.InputError, "cannot read rows from str"),
    ],
)
def test_batches_that_do_not_fit(tuples, error, message):
    with running() as join, pytest.raises(error, match=message):
        join.push_left(tuples)


def test_a_closed_join_says_so():
    with running() as join:
        join.push_left(at([0]))
    assert join.metrics().left_rows == 1
    with pytest.raises(hs.HandshakeError, match="this join is closed"):
        join.push_left(at([0]))


def test_pushes_from_two_threads_lose_nothing():
    batches = {"left": [], "right": []}
    with hs.Join(left=SCHEMA, right=SCHEMA, on="l.v = r.v", window=hs.Tuples(10**6)) as join:

        def feed(side):
            push = getattr(join, f"push_{side}")
            for _ in range(20):
                batches[side] += push(at(range(10)))

        threads = [threading.Thread(target=feed, args=(side,)) for side in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(b.num_rows for side in batches.values() for b in side) == 200 * 200


def test_state_is_little_more_than_the_tuples():
    rng = np.random.default_rng(1)
    n = 100_000
    table = pa.table(
        {"x": rng.integers(0, 10**6, n, dtype=np.int32), "y": rng.random(n), "z": ["z" * 20] * n}
    )
    with hs.Join(left=table, right=table, on="ABS(l.x - r.x) < 3 AND ABS(l.y - r.y) < 0.1") as join:
        join.push_left(table)
        join.push_right(table)
        assert join.metrics().state_bytes < 1.5 * 2 * table.nbytes


@pytest.mark.parametrize("algorithm", ["three_step", "low_latency"])
def test_a_join_that_fails_is_closed(algorithm):
    def broken(x, a):
        raise ValueError("boom")

    on = hs.call(broken, hs.left.v, hs.right.v)
    join = hs.Join(left=SCHEMA, right=SCHEMA, on=on, window="10 s", time="t", algorithm=algorithm)
    join.push_left(at([0]))
    with pytest.raises(hs.HandshakeError, match="boom"):
        join.push_right(at([0]))
    with pytest.raises(hs.HandshakeError, match="this join is closed"):
        join.push_right(at([0]))


def test_constants_that_are_equal_but_not_the_same_are_compiled_apart():
    table = pa.table({"x": [1.0]})
    found = [
        hs.join(table, {"k": [1]}, f"POWER(l.x * {zero}, -1) > 0").num_rows for zero in ("0e0", "-0e0", "0e0")
    ]
    assert found == [1, 0, 1]


# Order.


def moments(batches):
    times = [[out.column(name).to_pylist() for name in ("t", "t_right")] for out in batches]
    return [max(pair) for columns in times for pair in zip(*columns, strict=True)]


@pytest.mark.parametrize("algorithm", ["three_step", "low_latency"])
def test_ordered_results_come_by_the_time_of_their_later_tuple(algorithm):
    rng = np.random.default_rng(4)
    table = pa.table({"t": rng.integers(0, 500, 3000), "v": rng.integers(0, 9, 3000)})
    result = hs.join(table, table, "l.v = r.v", window="3 s", time="t", ordered=True, algorithm=algorithm)
    free = hs.join(table, table, "l.v = r.v", window="3 s", time="t", algorithm=algorithm)
    assert moments([result]) == sorted(moments([free]))


def test_ordered_pushes_hold_back_until_the_watermark_has_passed():
    with running(ordered=True, lateness="1 s") as join:
        join.push_left(at([0, 5]))
        assert moments(join.push_right(at([1, 4]))) == at([1])["t"]
        assert moments(join.finish()) == [at([4])["t"][0], *at([5, 5])["t"]]


def test_leaving_with_results_held_back_is_an_error():
    join = running(ordered=True, lateness="10 s")
    join.push_left(at([0]))
    join.push_right(at([1]))
    with pytest.raises(hs.HandshakeError, match=r"1 results were held back and not taken; call finish\(\)"):
        join.__exit__(None, None, None)


def test_order_needs_time():
    with pytest.raises(hs.UnsupportedError, match="ordered results need a time window"):
        hs.join(X, A, window=hs.Tuples(3), ordered=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lateness": 5}, "a length of time such as .5 seconds., a timedelta or Time.…., not 5"),
        ({"cores": 0}, "cores is a whole number from 1 up; 0 was given"),
        ({"cores": 2.5}, "cores is a whole number from 1 up"),
        (
            {"algorithm": "quick"},
            "unknown algorithm 'quick'; choose three_step, cell, handshake, low_latency",
        ),
        ({"aliases": ("a", "a")}, "aliases are two different names"),
        ({"left_time": "x"}, "a time column is named for one input only"),
        ({"on": "l.x RLIKE '('"}, "cannot|takes text"),
    ],
)
def test_options_that_mean_nothing(options, message):
    with pytest.raises(hs.HandshakeError, match=message):
        hs.prepare(pa.schema([("x", pa.int64())]), pa.schema([("a", pa.int64())]), **options)


NUMBERS = pa.schema([("x", pa.int64())])
TABLE = {"x": [1]}
SQL = "CREATE INPUT STREAM S (a int); SELECT a FROM S INTO T"


@pytest.mark.parametrize(
    ("function", "given", "wrong", "similar"),
    [
        (hs.join, (TABLE, TABLE), "windw", "window"),
        (hs.join, (TABLE, TABLE), "core", "cores"),
        (hs.asof, (TABLE, TABLE), "tolerence", "tolerance"),
        (partial(hs.nearest, by="1"), (TABLE, TABLE), "xyz", None),
        (hs.run, (SQL, {}), "cors", "cores"),
        (hs.explain, (SQL,), "optimized", "optimised"),
        (hs.explain, (TABLE, TABLE), "algoritm", "algorithm"),
        (partial(hs.Join, left=NUMBERS, right=NUMBERS), (), "orderd", "ordered"),
        (partial(hs.NearestJoin, left=NUMBERS, right=NUMBERS, by="1"), (), "windw", "window"),
        (hs.MultiJoin, ({"a": NUMBERS},), "windos", "windows"),
        (hs.join_streams, ({"a": TABLE},), "tme", "time"),
        (hs.explain_streams, ({"a": TABLE},), "tme", "time"),
    ],
)
def test_an_unknown_keyword_is_refused_with_a_similar_one(function, given, wrong, similar):
    name = getattr(function, "func", function).__name__
    hint = f"; did you mean '{similar}'?" if similar else ""
    message = f"{name}() has no argument '{wrong}'{hint}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        function(*given, **{wrong: 1})


@pytest.mark.parametrize("function", [hs.asof, partial(hs.nearest, by="l.x")], ids=("asof", "nearest"))
def test_options_of_other_engines_are_refused(function):
    with pytest.raises(hs.UnsupportedError, match="segments=2 is only supported by the spark engine"):
        function(TABLE, TABLE, segments=2)


def test_a_pandas_frame_that_arrow_cannot_read_is_refused():
    doubled = pd.DataFrame([[1, 2]], columns=["x", "x"])
    mixed = pd.DataFrame({"x": [1, "a"]})
    for join in (hs.join, partial(hs.nearest, by="1"), partial(hs.asof, time="x")):
        with pytest.raises(hs.SchemaError, match=r"has more than one column named 'x' \(x, x\); rename"):
            join(doubled, TABLE)
        with pytest.raises(hs.InputError, match=r"cannot read rows from the given pandas frame: .* column x"):
            join(mixed, TABLE)


def test_a_broken_regular_expression_is_found_before_any_tuple():
    text = pa.schema([("s", pa.string())])
    with pytest.raises(hs.ExpressionError, match=r"'\(a' is not a regular expression.*line 1, column 1"):
        hs.prepare(text, text, "l.s RLIKE '(a'")
    with pytest.raises(hs.HandshakeError, match=r"'\(' is not a regular expression"):
        hs.join({"s": ["x"]}, {"p": ["("]}, "l.s RLIKE r.p")


def test_aliases_may_swap_the_usual_names():
    assert rows(hs.join({"x": [1]}, {"a": [2]}, "r.x < l.a", aliases=("r", "l"))) == [{"x": 1, "a": 2}]


def test_advancing_a_silent_stream_releases_ordered_results():
    with running(ordered=True) as join:
        join.push_left(at([0, 5]))
        assert join.push_right(at([0])) != []
        join.push_right(at([1]))
        released = join.advance(left=at([20])["t"][0], right=at([20])["t"][0])
        assert join.finish() == []
        assert moments(released) == sorted(moments(released))
