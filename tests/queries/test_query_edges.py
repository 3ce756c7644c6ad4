"""Queries on values at the ends of their types."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from handshake.engines.circuit.host import run_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.errors import HandshakeError
from handshake.operators.query import Query
from handshake.plan.query import parse_query


def first_result(text: str, **columns: Any) -> pa.Table:
    """Run a query on a stream S, which has a time of its own, and return its first result."""
    query = Query(text)
    rows = len(next(iter(columns.values())))
    name = query.plan.outputs[0].name
    batches = query.push("S", pa.table({**columns, "tick": pa.array(range(rows), pa.int64())}))[name]
    return pa.Table.from_batches([*batches, *query.finish()[name]], query.schema(name))


def declare_stream(fields: str) -> str:
    return f"CREATE INPUT STREAM S ({fields}, tick long) TIMESTAMP BY tick; "


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("timestamp(9)", pa.timestamp("ns")),
        ("timestamp", pa.timestamp("us")),
        ("timestamp(0)", pa.timestamp("s")),
        ("date", pa.date32()),
    ],
)
def test_groups_of_times_that_python_has_no_objects_for(kind: str, type_: pa.DataType) -> None:
    whole = pa.int32() if kind == "date" else pa.int64()
    far = 2 ** (whole.bit_width - 2)
    values = pa.array([far, -far, far, None], whole)
    text = declare_stream(f"s {kind}") + "SELECT s, count() AS n FROM S [SIZE 9 ADVANCE 9 TIME] GROUP BY s"
    found = first_result(text, s=values.view(type_))
    assert found.column("s").combine_chunks().view(whole).to_pylist() == [far, -far, None]
    assert found.column("n").to_pylist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308),
        ([-1.7e308, 1.7e308, 1.7e308], 1.7e308),
        ([1.7e308, 1.7e308, 1.0], math.inf),
        ([-1.7e308, -1.7e308, 1.0], -math.inf),
        ([1.7e308, 1.7e308, -math.inf], -math.inf),
    ],
)
def test_weighted_sums_are_exact_beyond_the_largest_float(values: list[float], total: float) -> None:
    text = declare_stream("x double") + "SELECT wsum(x, [1, 1, 1]) AS w FROM S [SIZE 3 ADVANCE 3 TUPLES]"
    assert first_result(text, x=values).column("w").to_pylist() == [total]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", [2**31 - 1, -(2**31), -(2**31), None]),
        ("long", [2**63 - 1, -(2**63), -(2**63), None]),
        ("uint64", [2**64 - 1, 0, 2**64 - 1, None]),
        ("decimal(12, 2)", [Decimal("9999999999.99"), Decimal("-9999999999.99"), Decimal("-0.01"), None]),
        ("decimal(20, 2)", [Decimal("9" * 18 + ".99"), Decimal("-" + "9" * 18), Decimal("-0.01"), None]),
    ],
)
@pytest.mark.parametrize("weights", [["0.5", "-2.25"], ["0", "0"]])
def test_weighted_sums_are_exact_at_the_ends_of_types(
    kind: str, values: list[Any], weights: list[str]
) -> None:
    text = declare_stream(f"x {kind}") + f"SELECT wsum(x, [{', '.join(weights)}]) AS w FROM S [SIZE 2 TUPLES]"
    given_as = pa.array(values, pa.uint64()) if kind == "uint64" else values
    found = first_result(text, x=given_as).column("w").to_pylist()
    newest, before = (Fraction(weight) for weight in weights)
    exact = [newest * Fraction(b) + before * Fraction(a) for a, b in pairwise(values[:-1])]
    assert [None if w is None else Fraction(w) for w in found] == [*exact, None]


def test_a_median_with_too_many_digits_is_told() -> None:
    text = declare_stream("e decimal(38, 3)") + "SELECT median(e) AS m FROM S [SIZE 9 ADVANCE 9 TIME]"
    most = pa.array([Decimal("9" * 35 + ".999")], pa.decimal128(38, 3))
    with pytest.raises(
        HandshakeError, match=r"a median has more digits than decimal\(38, 4\) holds; cast its argument"
    ):
        first_result(text, e=most)


def test_a_sum_that_is_read_twice_keeps_its_range() -> None:
    ends = [2**63 - 1, -(2**63), None]
    text = declare_stream("l long") + "SELECT (l + l) + (l + l) AS n FROM S WHERE l + l = l + l OR l IS NULL"
    found = first_result(text, l=pa.array(ends, pa.int64())).column("n").to_pylist()
    assert found == [4 * ends[0], 4 * ends[1], None]


def test_zero_and_minus_zero_are_different_constants() -> None:
    text = declare_stream("x double") + "SELECT x * 0e0 AS p, x * -0e0 AS q FROM S INTO A; "
    found = first_result(text, x=[1.0]).to_pylist()
    assert [math.copysign(1, found[0][name]) for name in ("p", "q")] == [1, -1]
    query = Query(
        declare_stream("x double") + "SELECT x * 0e0 AS p FROM S INTO A; SELECT x * -0e0 AS p FROM S INTO B"
    )
    both = query.push("S", {"x": [1.0], "tick": [0]})
    assert [math.copysign(1, both[name][0].column("p")[0].as_py()) for name in ("A", "B")] == [1, -1]


@pytest.mark.parametrize("op", ["<=", "<"])
def test_bands_of_float32_end_where_the_arithmetic_says(op: str) -> None:
    text = f"""CREATE INPUT STREAM A (y float); CREATE INPUT STREAM B (z float);
        SELECT y, z FROM A [SIZE 999 TUPLES], B [SIZE 999 TUPLES] WHERE ABS(y - z) {op} 0.1"""
    tenths = (np.arange(-40, 40) / 10).astype(np.float32)
    near = np.concatenate([np.nextafter(tenths, np.float32(way)) for way in (-9, 9)])
    query = Query(text)
    query.push("A", {"y": tenths})
    found = query.push("B", {"z": near})["result"]
    distances = np.abs(tenths[None, :] - near[:, None]).astype(np.float64)
    wanted = distances <= 0.1 if op == "<=" else distances < 0.1
    assert sum(batch.num_rows for batch in found) == np.count_nonzero(wanted)
    assert [(row["y"], row["z"]) for batch in found for row in batch.to_pylist()] == [
        (float(tenths[j]), float(near[i])) for i, j in zip(*np.nonzero(wanted), strict=True)
    ]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("third", ["", ", R [SIZE .009 TIME] z"])
def test_a_union_that_is_ahead_makes_no_result_of_a_window_late(cores: int, third: str) -> None:
    """R is at 5 ms when the window of S closes, whose result, of 2 ms, is to meet the tuple of R at 0 ms."""
    fields = "(k int, v int, t timestamp(3)) TIMESTAMP BY t"
    text = f"""CREATE INPUT STREAM R {fields}; CREATE INPUT STREAM S {fields};
        SELECT count() AS k, 7 AS v FROM S [SIZE .003 ADVANCE .003 TIME] INTO Counts;
        SELECT k, v FROM Counts UNION SELECT k, v FROM R INTO Both;
        SELECT x.k AS a, x.v AS b, y.k AS c FROM Both [SIZE 1 TIME] x, R [SIZE .004 TIME] y{third}
        WHERE x.v - y.v = 7 INTO Pairs"""

    def rows(*values: tuple[int, int, int]) -> pa.Table:
        columns = [pa.array(each, pa.int32()) for each in list(zip(*values, strict=True))[:2]]
        times = pa.array([value[2] for value in values], pa.int64()).cast(pa.timestamp("ms"))
        return pa.table([*columns, times], names=["k", "v", "t"])

    with Query(text, cores=cores) as query:
        steps = [
            ("R", rows((1, 0, 0))),
            ("S", rows((2, 0, 2))),
            ("R", rows((3, 0, 5))),
            ("S", rows((4, 0, 9))),
        ]
        found = [batch for name, table in steps for batch in query.push(name, table)["Pairs"]]
        assert query.metrics().late == 0
    met = sorted({(row["a"], row["b"], row["c"]) for batch in found for row in batch.to_pylist()})
    assert met == [(1, 7, 1), (1, 7, 3)]


def test_what_the_clocks_of_all_streams_have_passed_is_late() -> None:
    text = """CREATE INPUT STREAM R (k int, t long) TIMESTAMP BY t;
        CREATE INPUT STREAM S (k int, t long) TIMESTAMP BY t;
        SELECT k FROM R UNION SELECT k FROM S INTO Both;
        SELECT x.k AS a, y.k AS b FROM Both [SIZE 5 TIME] x, R [SIZE 5 TIME] y INTO Pairs"""
    with Query(text) as query:
        query.push("R", {"k": [1], "t": [0]})
        query.push("S", {"k": [2], "t": [9]})
        query.push("R", {"k": [3], "t": [9]})  # now both are at 9
        found = query.push("S", {"k": [4], "t": [3]})["Pairs"]
        assert (found, query.metrics().late) == ([], 1)


@pytest.mark.parametrize("below", ["Both", "R", "S"])
@pytest.mark.parametrize("window", ["5 TIME", "2 TUPLES"])
def test_who_is_late_does_not_depend_on_how_streams_are_cut(below: str, window: str) -> None:
    """A tuple of 3 comes when both streams are at 9; with it in one batch come tuples of before and after."""
    text = f"""CREATE INPUT STREAM R (k int, t long) TIMESTAMP BY t;
        CREATE INPUT STREAM S (k int, t long) TIMESTAMP BY t;
        SELECT k FROM R UNION SELECT k FROM S INTO Both;
        SELECT x.k AS a, y.k AS b FROM {below} [SIZE {window}] x, R [SIZE 5 TIME] y INTO Pairs"""
    arrivals = [("R", 0), ("S", 9), ("S", None), ("S", 3), ("R", 9), ("S", 3), ("S", 9), ("R", 4), ("R", 10)]

    def run(cuts: list[int]) -> tuple[list[Any], int, int]:
        found, edges = list[Any](), [0, *cuts, len(arrivals)]
        with Query(text) as query:
            for start, end in pairwise(edges):
                given = {}
                for name in ("R", "S"):
                    own = [at for at in range(start, end) if arrivals[at][0] == name]
                    columns = {"k": own, "t": [arrivals[at][1] for at in own]}
                    given[name] = (columns, np.array(own, np.int64))
                found += [row for batch in query.push_together(given)["Pairs"] for row in batch.to_pylist()]
            return found, query.metrics().late, query.metrics().no_time

    whole = run([])
    assert whole[0]
    assert whole[1] == {"Both": 3, "R": 2, "S": 2}[below]  # R's own tuple of 4 is late on both sides
    assert all(run(cuts) == whole for cuts in ([4], [2, 6], [1, 5, 7], list(range(1, len(arrivals)))))


def test_results_of_one_window_are_joined_in_their_order() -> None:
    """Three groups come at one place, on both sides: pairs by the first side's tuples, then the second's."""
    text = """CREATE INPUT STREAM R (k int, t long) TIMESTAMP BY t;
        SELECT k FROM R [SIZE 1 ADVANCE 1 TIME] GROUP BY k INTO Groups;
        SELECT x.k AS a, y.k AS b FROM Groups [SIZE 9 TIME] x, Groups [SIZE 5 TUPLES] y INTO Pairs"""
    with Query(text) as query:
        query.push("R", {"k": [3, 1, 2], "t": [0, 0, 0]})
        found = [row for batch in query.finish()["Pairs"] for row in batch.to_pylist()]
    assert [(row["a"], row["b"]) for row in found] == [(a, b) for a in (3, 1, 2) for b in (3, 1, 2)]


@pytest.mark.parametrize(
    ("selected", "wanted"),
    [
        ("g AS k, count() AS g", [{"k": 7, "g": 2}, {"k": 8, "g": 2}]),
        ("sum(v) AS G, g + 1 AS h", [{"G": 3, "h": 8}, {"G": 7, "h": 9}]),
        ("max(v) AS g, min(v) AS v, g AS w", [{"g": 2, "v": 1, "w": 7}, {"g": 4, "v": 3, "w": 8}]),
    ],
)
def test_an_aggregate_may_be_called_like_a_key(selected: str, wanted: list[dict[str, int]]) -> None:
    window = "[SIZE 2 ADVANCE 2 TUPLES]"
    text = declare_stream("g int, v int") + f"SELECT {selected} FROM S {window} GROUP BY g HAVING max(g) > 0"
    rows = {"g": pa.array([7, 7, 8, 8], pa.int32()), "v": pa.array([1, 2, 3, 4], pa.int32())}
    assert first_result(text, **rows).to_pylist() == wanted
    done = run_plan(parse_query(text), {"S": {**rows, "tick": range(4)}}, Bounds(groups=2), engine="amaranth")
    assert done.results["result"].to_pylist() == wanted
