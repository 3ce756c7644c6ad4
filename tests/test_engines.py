"""One suite for every engine: the same text and inputs give the rows of the oracle.

A gap of an engine is declared below and strict: closing it makes the test fail until the mark is removed.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import handshake as hs
import query_oracle
from handshake.engines.engine import engine as find_engine
from handshake.errors import UnsupportedError
from handshake.operators.query import Query
from handshake.options import ENGINES, Options
from handshake.plan.algebra import Plan, Source
from handshake.plan.query import parse_query
from handshake.schema import arrow_of
from query_backends import by_time, plain, restore_rows, tables
from query_cases import ASOF, CHAINS, JOINS, KINDS, NOW, PAPER, QUERIES, TRADES, TWO, WINDOWS
from query_streams import Item, as_physical

NOT_EVERYWHERE = (
    "cumulating from the first",
    "from the first",
    "now and now",
    "now in layers",
    "now of three by arrival",
    "partial in layers",
    "session contents",
    "sessions in layers",
    "sessions of all",
    "states of sessions",
)
"""Cases that add nothing on engines other than the local one."""
KINDS_EVERYWHERE = ("left", "full", "left semi", "anti", "selected", "left left", "backward")
CASES = {
    # Two windows at a time instead of ten: a window of a circuit is a copy of its sub-plan.
    **{name: TRADES + text.replace("SIZE 600 ADVANCE", "SIZE 120 ADVANCE") for name, text in PAPER.items()},
    **{name: "".join(case) for name, case in QUERIES.items()},
    **{f"join {name}": TWO + text for name, text in JOINS.items()},
    **{name: TWO + text for name, text in (KINDS | CHAINS | ASOF).items() if name in KINDS_EVERYWHERE},
    **{name: text for name, text in (WINDOWS | NOW).items() if name not in NOT_EVERYWHERE},
}
GAPS: dict[str, dict[str, str]] = {
    "circuit": {
        "aggregates of sessions": "no session windows",
        "anti": "the join of R and S is a left_anti join",
        "arithmetic": "float64",
        "backward": "the join of R and S is a left as-of join",
        "averages": "no unit for avg",
        "collected": r"string_agg\(\) needs all tuples of a window",
        "computed keys": "float64",
        "contents": "would have to be kept whole",
        "cumulating": "not CUMULATE 0.002 SIZE 0.006 TIME OFFSET 0.005",
        "distinct": r"count\(DISTINCT\) needs all tuples of a window",
        "extremes": "no unit for min",
        "full": "the join of R and S is a full join",
        "grouped from the first": "not SIZE 0.005 ADVANCE 0.002 TIME OFFSET FIRST",
        "holistic sessions": "no session windows",
        "holistic": "needs all",
        "join aggregated": r"stddev_samp\(\) has no component",
        "join mixed": "float64",
        "keys": "cannot group by 'h'",
        "left": "inner joins only, and the join of R and S is a left join; the local engine and Spark",
        "left left": r"the join of \(R, S\) and U is a left join",
        "left semi": "the join of R and S is a left_semi join",
        "now by arrival": r"goes by arrival without a window \(NOW\)",
        "offset": "not SIZE 0.005 ADVANCE 0.002 TIME OFFSET 0.001",
        "partial": "not SIZE 5 ADVANCE 2 TUPLES PARTIAL",
        "picks of tuples": r"first\(\) has no component",
        "picks": r"first\(\) has no component",
        "selected": "the join of R and S is a left join",
        "sessions of a join": "no session windows",
        "sessions of a union": "no session windows",
        "sessions of some": "no session windows",
        "sessions": "no session windows",
        "spreads": r"stddev_samp\(\) has no component",
        "sums": "no unit for sum",
        "uneven": "no unit for sum",
        "union of results": "depends on the order",
        "union": "a time window over a union",
        "weighted": "no unit for wsum",
    }
}
"""For each engine the cases that it refuses, and words of its message."""
OPTIONS: dict[str, dict[str, Any]] = {"circuit": {"groups": 9, "window_tuples": 24}}
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, 2, 3, -3, 127, -128],
    pa.int32(): [0, 5, 7, 100_001, -4],
    pa.int64(): [1, 2, 3, -(2**63), 2**63 - 1],
    pa.uint64(): [0, 2**64 - 1],
    pa.string(): ["UBSN", "UBSN", "CSGN", ""],
    pa.float64(): [0.1, -0.0, 1e300, float("nan"), float("-inf")],
    pa.float32(): [0.5, 3.0],
    pa.bool_(): [True, False],
}


ELSEWHERE: dict[str, tuple[str, ...]] = {
    "spark": ("Q2", "Q3", "Q4", "uneven", "lateness", "cascade", "union", "carried", "computed keys",
              "weighted", "holistic", "full", "left left", "left semi", "backward",
              *(f"join {name}" for name in JOINS if name != "band")),
    "circuit": ("Q2", "Q3", "Q4", "Q5", "counts", "positions", "gaps", "tuple gaps", "no advance",
                "late extremes", "constants", "lateness", "cascade", "filtered", "filtered groups"),
}  # fmt: skip
"""For each engine the cases that its own tests compare with the oracle; here they run in `make soak`."""


def parameters() -> list[Any]:
    """Return engine and case for every test, with strict marks on the gaps."""
    gap = pytest.mark.xfail(raises=UnsupportedError, strict=True)
    return [
        pytest.param(engine, name, marks=[gap] if name in GAPS.get(engine, {}) else _marks(engine, name))
        for engine in ENGINES
        for name in CASES
    ]


def _marks(engine: str, name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.soak] if name in ELSEWHERE.get(engine, ()) else []


@pytest.mark.parametrize(("engine", "name"), parameters())
def test_engine_agrees_with_the_oracle(request: pytest.FixtureRequest, engine: str, name: str) -> None:
    start_spark(request, engine)
    plan = parse_query(CASES[name])
    query, items = Query(plan), by_time(plan, rows_for(plan))
    found = hs.run(plan, tables(query, items), engine=engine, **OPTIONS.get(engine, {}))
    wanted = query_oracle.run(plan, as_physical(query, items))
    assert any(wanted.values())
    rows = {output: restore_rows(table, query.schema(output)) for output, table in found.items()}
    assert plain(rows) == plain(wanted)


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_takes_empty_inputs(request: pytest.FixtureRequest, engine: str) -> None:
    start_spark(request, engine)
    for name in ("Q1", "Q5", "join band"):
        plan = parse_query(CASES[name])
        found = hs.run(plan, tables(Query(plan), []), engine=engine, **OPTIONS.get(engine, {}))
        assert [table.num_rows for table in found.values()] == [0]


@pytest.mark.parametrize(("engine", "name"), [(e, name) for e, gaps in GAPS.items() for name in gaps])
def test_refusals_name_what_is_missing(engine: str, name: str) -> None:
    plan = parse_query(CASES[name])
    with pytest.raises(UnsupportedError, match=GAPS[engine][name]):
        hs.run(plan, tables(Query(plan), []), engine=engine, **OPTIONS.get(engine, {}))


MIXED = """CREATE INPUT STREAM P (t int) TIMESTAMP BY t; CREATE INPUT STREAM L (v int);
    CREATE INPUT STREAM M (w int); CREATE INPUT STREAM Q (u int) TIMESTAMP BY u;"""
MIXED_ROWS = {"P": {"t": [25, 5, 17]}, "L": {"v": [1, 2, 3]}, "M": {"w": [4, 5]}, "Q": {"u": [17, 6]}}


MIXED_CASES: list[tuple[str, list[dict[str, int]]]] = [
    ("SELECT count() AS n FROM P [SIZE 10 ADVANCE 10 TIME]", [{"n": 1}] * 3),
    ("SELECT sum(v) AS s FROM L [SIZE 2 ADVANCE 1 TUPLES]", [{"s": 3}, {"s": 5}]),
    # L and M take turns (1 4 2 5 3), then P and Q come by time (5 6 17 17 25).
    ("SELECT t, w FROM P [SIZE 2 TUPLES], M [SIZE 1 TUPLES]", [{"t": t, "w": 5} for t in (5, 17, 25)]),
    (
        "SELECT v, w FROM L [SIZE 1 TUPLES], M [SIZE 1 TUPLES]",
        [{"v": v, "w": w} for v, w in ((1, 4), (2, 4), (2, 5), (3, 5))],
    ),
    (
        "SELECT v, u FROM L [SIZE 2 TUPLES], Q [SIZE 1 TUPLES]",
        [{"v": v, "u": u} for u in (6, 17) for v in (2, 3)],
    ),
    (
        "SELECT t, u FROM P [SIZE 1 TUPLES], Q [SIZE 1 TUPLES]",
        [{"t": t, "u": u} for t, u in ((5, 6), (17, 6), (17, 17), (25, 17))],
    ),
]


@pytest.mark.parametrize(
    ("engine", "text", "wanted"),
    [(e, *case) for e in ENGINES for case in (MIXED_CASES[2:4] if e == "spark" else MIXED_CASES)],
)
def test_inputs_without_times_arrive_first(
    request: pytest.FixtureRequest, engine: str, text: str, wanted: list[dict[str, int]]
) -> None:
    start_spark(request, engine)
    plan = parse_query(f"{MIXED} {text} INTO A; SELECT count() AS n FROM Q [SIZE 9 ADVANCE 9 TIME] INTO B")
    run = find_engine(engine).run(plan, MIXED_ROWS, Options(**OPTIONS.get(engine, {})))
    found = run.results()
    assert (run.metrics().get("late") or 0) == 0
    assert plain({"A": found["A"].to_pylist()}) == plain({"A": wanted})
    assert found["B"].num_rows == 2


CARRIED = """CREATE INPUT STREAM Mux (kind byte, t int, u int);
    CREATE INPUT STREAM A (kind byte, t int) FROM Mux WHERE kind = 1 TIMESTAMP BY t;
    CREATE INPUT STREAM B (kind byte, u int) FROM Mux WHERE kind = 2 TIMESTAMP BY u;
    CREATE INPUT STREAM C (kind byte, u int) FROM Mux WHERE kind = 3;
    SELECT count() AS n, max(t) AS t FROM A [SIZE 10 ADVANCE 10 TIME] INTO X;
    SELECT t, u FROM A [SIZE 1 TUPLES], B [SIZE 1 TUPLES] INTO Y;
    SELECT max(u) AS u FROM C [SIZE 2 ADVANCE 1 TUPLES] INTO Z"""
CARRIED_ROWS = {
    "Mux": {
        "kind": [1, 2, 3, 1, 9, 1, 3, 2, 3],
        "t": [25, 0, 0, 5, 0, 17, 0, 0, 0],
        "u": [0, 20, 8, 0, 1, 0, 7, 6, 5],
    }
}


@pytest.mark.parametrize("engine", ENGINES)
def test_carried_streams_arrive_by_their_own_times(request: pytest.FixtureRequest, engine: str) -> None:
    start_spark(request, engine)
    run = find_engine(engine).run(parse_query(CARRIED), CARRIED_ROWS, Options(**OPTIONS.get(engine, {})))
    found = run.results()
    assert (run.metrics().get("late") or 0) == 0
    assert plain({name: table.to_pylist() for name, table in found.items()}) == plain(
        {
            "X": [{"n": 1, "t": t} for t in (5, 17, 25)],
            # A and B arrive as 5 (A), 6 (B), 17 (A), 20 (B), 25 (A).
            "Y": [{"t": t, "u": u} for t, u in ((5, 6), (17, 6), (17, 20), (25, 20))],
            "Z": [{"u": 8}, {"u": 7}],
        }
    )


def test_spark_refuses_to_count_tuples_in_the_order_of_a_carrier(spark: Any) -> None:
    text = CARRIED.partition("SELECT")[0]
    for query, name in (
        ("SELECT t, u FROM A [SIZE 1 TUPLES], C [SIZE 1 TUPLES]", "C"),
        ("SELECT max(u) AS u FROM (SELECT u FROM B UNION SELECT u FROM C) [SIZE 2 ADVANCE 1 TUPLES]", "C"),
        ("SELECT max(u) AS u FROM Mux [SIZE 2 ADVANCE 1 TUPLES]", "Mux"),
    ):
        with pytest.raises(UnsupportedError, match=f"tuples of {name} arrive .* number the rows of Mux"):
            hs.run(text + query, CARRIED_ROWS, engine="spark")


def start_spark(request: pytest.FixtureRequest, engine: str) -> None:
    """Let the Spark engine use the session of the tests."""
    if engine == "spark":
        request.getfixturevalue("spark")


def rows_for(plan: Plan, count: int = 24) -> list[Item]:
    """Return rows of all inputs: ties and gaps in time, some NULLs, the extremes of the types."""
    draw, now, items = random.Random(7), 0, list[Item]()
    inputs = [source for source in plan.inputs if source.demux is None]
    step = 30 if inputs[0].name == "Trades" else 1
    for _ in range(count):
        source = draw.choice(inputs)
        now += draw.randrange(0, 3) * step
        items.append((source.name, row_for(draw, source, now)))
    return items


def row_for(draw: random.Random, source: Source, now: int) -> dict[str, Any]:
    """Return one row that arrives at `now`."""
    row = {f.name: None if draw.random() < 0.05 else value_for(draw, arrow_of(f.type)) for f in source.fields}
    return {**row, str(source.time): now}


def value_for(draw: random.Random, kind: pa.DataType) -> Any:
    """Return a value of a type."""
    if pa.types.is_decimal(kind):
        return Decimal(draw.randrange(-30, 30)).scaleb(-kind.scale)
    return draw.choice(VALUES.get(kind, [0]))
