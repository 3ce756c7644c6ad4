"""Queries on times at the ends of what clocks show: windows, unions and joins, also in the tasks of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.engines.inputs import Address, read_inputs, slices
from handshake.errors import HandshakeError, InputError, QueryError
from handshake.io.declared import BadRows
from handshake.operators.query import Query
from handshake.plan.algebra import Source, walk
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from query_backends import Local, by_time, check, plain
from query_streams import Item, as_physical

SOME = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
FAR = 2**62 - 1
"""The largest time, and less zero the smallest."""
UNITS = {"SECONDS": 10**9, "NANOSECONDS": 1}
QUERIES = {
    "panes": """SELECT g, count() AS n, sum(v) AS s, max(v) AS m, window_end() AS z
        FROM S [SIZE {k} ADVANCE {l} TIME] GROUP BY g""",
    "tuples": "SELECT count() AS n, median(v) AS m, window_start() AS z FROM S [SIZE {k} ADVANCE {l} TIME]",
    "union": """SELECT count() AS n, max(v) AS m
        FROM (SELECT v FROM S UNION SELECT v FROM R) [SIZE {k} ADVANCE {l} TIME]""",
    "join": "SELECT S.v AS a, R.v AS b FROM S [SIZE {k} TIME], R [SIZE {l} TIME] WHERE S.v <= R.v",
    "three": """SELECT S.v AS a, R.v AS b FROM S [SIZE {k} TIME], R [SIZE {l} TIME], S [SIZE {l} TIME] T
        WHERE S.v <= R.v AND T.v <= S.v""",
}


def in_seconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09}"


def text_of(name: str, unit: str, size: int, advance: int, lateness: int = 0) -> str:
    """Return a query whose streams count `unit`s; windows and lateness are given in these units."""
    k, step, late = (in_seconds(n * UNITS[unit]) for n in (size, advance, lateness))
    fields = f"(g int, v int, t long) TIMESTAMP BY t IN {unit} LATENESS {late}"
    declared = f"CREATE INPUT STREAM S {fields}; CREATE INPUT STREAM R {fields};"
    return declared + QUERIES[name].format(k=k, l=step)


@st.composite
def items(draw: Any, streams: str) -> list[Item]:
    """Draw tuples near one or two of the ends, or near zero."""
    ends = draw(st.lists(st.sampled_from([-FAR, 0, FAR, -FAR // 2]), min_size=1, max_size=2))
    found = []
    for _ in range(draw(st.integers(1, 7))):
        time = max(-FAR, min(FAR, draw(st.sampled_from(ends)) + draw(st.integers(-9, 9))))
        row = {"g": draw(st.integers(0, 1)), "v": draw(st.integers(0, 3)), "t": time}
        found.append((draw(st.sampled_from(streams)), row))
    return found


def shapes(unit: str, name: str = "panes") -> st.SearchStrategy[tuple[int, int, int]]:
    """Return a strategy for SIZE, ADVANCE and LATENESS, some as large as they can be written."""
    most = (10**19 - 10**9) // UNITS[unit]
    if name in ("join", "three"):  # each is a compiled predicate of its own
        return st.sampled_from([(3, 5, 0), (min(FAR, most), most, min(FAR, most))])
    small = st.tuples(st.integers(1, 10), st.integers(1, 10), st.sampled_from([0, 3, 10, FAR + 5, most]))
    large = [min(size, most) for size in (FAR // 2, FAR, FAR + 1)]
    return small.map(lambda s: (*s[:2], min(s[2], most))) | st.sampled_from([(n, n, 3) for n in large])


@pytest.mark.parametrize(
    ("name", "unit"),
    [(n, u) for n in QUERIES for u in UNITS if u == "NANOSECONDS" or n not in ("join", "three")],
)
@SOME
@given(data=st.data())
def test_results_are_the_oracles(name: str, unit: str, data: st.DataObject) -> None:
    streams = "S" if name in ("panes", "tuples") else "SR"
    plan = parse_query(text_of(name, unit, *data.draw(shapes(unit, name))))
    check(Local(), plan, [data.draw(items(streams))], data.draw)


# Panes, and tuples, in the tasks of Spark.


def in_time_order(plan: Any, batches: list[list[Item]]) -> list[Item]:
    return [item for batch in batches for item in by_time(plan, batch)]


@pytest.mark.parametrize("unit", UNITS)
@SOME
@given(data=st.data())
@example(data=None)
def test_panes_of_a_partition_are_never_late_in_it(unit: str, data: st.DataObject | None) -> None:
    pytest.importorskip("pyspark")
    from handshake.engines.spark.queries.panes import PaneQuery
    from query_state import SavedState, blob_of_panes, run_to_end

    if data is None:  # the clock of what comes first must not keep out what comes after, wherever it is
        shape, batches = (2, 1, 0), [[row(FAR), row(-100), row(-FAR)], [row(FAR), row(-FAR)]]
    else:
        shape = data.draw(shapes(unit))
        batches = [data.draw(items("S")) for _ in range(data.draw(st.integers(1, 3)))]
    plan = parse_query(text_of("panes", unit, *shape))
    query, counts = Query(plan), query_oracle.Counts()
    wanted = query_oracle.run(plan, as_physical(query, in_time_order(plan, batches)), counts)
    (output,) = optimise(plan).outputs
    source = next(node for node in walk(output) if isinstance(node, Source))
    blobs = [
        [blob_of_panes(query, output, source, part, [item], None) for part, item in enumerate(batch[:1])]
        + [blob_of_panes(query, output, source, 1, batch[1:], None)]
        for batch in batches
    ]
    state = SavedState(lambda: PaneQuery(output))
    assert plain({output.name: run_to_end(state, blobs)}) == plain(wanted)
    assert state.last.figures[1] == counts.late


def row(time: int, value: int = 1) -> Item:
    return "S", {"g": 0, "v": value, "t": time}


@pytest.mark.parametrize("unit", UNITS)
@SOME
@given(data=st.data())
@example(data=None)
def test_tuples_of_a_micro_batch_arrive_by_time(unit: str, data: st.DataObject | None) -> None:
    pytest.importorskip("pyspark")
    from handshake.engines.spark.queries.tuples import TupleQuery
    from query_state import SavedState, blob_of_rows, run_to_end

    batches = [[row(2 * 10**10), row(10**10), row(3 * 10**10)]]
    if data is not None:
        batches = [data.draw(items("S")) for _ in range(data.draw(st.integers(1, 3)))]
    plan = optimise(parse_query(text_of("tuples", unit, 4, 2)))
    query = Query(plan)
    wanted = query_oracle.run(plan, as_physical(query, in_time_order(plan, batches)))
    sources = tuple(source for source in plan.inputs if source.name == "S")
    state = SavedState(lambda: TupleQuery(plan.outputs[0], sources))
    found = run_to_end(state, [[blob_of_rows(query, ["S"], batch)] for batch in batches])
    assert plain({"result": found}) == plain(wanted)


# Files.

REPLAYED = """CREATE INPUT STREAM S (v int, t long) TIMESTAMP BY t IN SECONDS;
CREATE INPUT STREAM R (v int, t long) TIMESTAMP BY t IN MILLISECONDS;
SELECT v FROM S UNION SELECT v FROM R"""


def arriving(tmp_path: Path, s: str, r: str, pace: float | None = None) -> list[int]:
    for name, text in (("S", s), ("R", r)):
        (tmp_path / f"{name}.csv").write_text("v,t\n" + text)
    query = Query(REPLAYED)
    given = {name: Address(str(tmp_path / f"{name}.csv"), BadRows()) for name in "SR"}
    found = []
    for piece in slices(query.plan, read_inputs(query.plan, given), pace=pace):
        found += query.push_together(piece.batches)["result"]
    return [value for batch in found for value in batch.column("v").to_pylist()]


def test_files_are_replayed_by_time_however_large_times_are(tmp_path: Path) -> None:
    s = "3,1700000000002\n1,1700000000000\n4,1700000000003\n"  # beyond nanoseconds in 64 bits
    assert arriving(tmp_path, s, "2,1700000000001000\n0,-1700000000001000\n") == [0, 1, 2, 3, 4]


def test_tuples_without_a_time_are_not_waited_for(tmp_path: Path) -> None:
    assert arriving(tmp_path, "1,0\n3,\n", "2,1\n", pace=1.0) == [1, 2, 3]


# What is refused.


def push_and_finish(
    kind: str, time: int, *more: tuple[str, str, int], query: str = QUERIES["tuples"]
) -> None:
    given = [("S", kind, time), *more]
    streams = [f"CREATE INPUT STREAM {n} (v int, t {k}) TIMESTAMP BY t;" for n, k, _ in given]
    made = Query("".join(streams) + query.format(k="4", l="4"))
    for name, _, at in given:
        made.push(name, {"v": [1], "t": [at]})
    made.finish()


@pytest.mark.parametrize("time", [2**62, -(2**62), 2**63 - 1, -(2**63)])
def test_a_time_beyond_62_bits(time: int) -> None:
    text = f"a time in column 't' of stream S is beyond 62 bits: {time}; times lie between -2\\^62 and 2\\^62"
    with pytest.raises(InputError, match=text):
        push_and_finish("long", time)


def test_a_time_beyond_63_bits() -> None:
    with pytest.raises(
        InputError, match="a time in column 't' of stream S is beyond 62 bits: 18446744073709551615; "
    ):
        push_and_finish("uint64", 2**64 - 1)


def test_a_time_that_another_stream_counts_too_finely() -> None:
    with pytest.raises(
        InputError,
        match="a time of 10000000000 s is beyond 62 bits in ns, which the other streams of a union or a join "
        r"count; declare all times in the same unit, such as timestamp\(0\)",
    ):
        push_and_finish("long", 10**10, ("R", "timestamp(9)", 5), query=QUERIES["union"])


def test_a_window_of_results_that_end_too_late() -> None:
    text = "SELECT count() AS n FROM (SELECT max(v) AS v FROM S [SIZE {k} ADVANCE {l} TIME]) [SIZE 8 TIME]"
    with pytest.raises(
        HandshakeError, match=f"the time of a result of a window is beyond 62 bits: {2**62 + 3}; "
    ):
        push_and_finish("long", FAR, query=text.replace("{k}", "8"))


@pytest.mark.parametrize("slide", ["SIZE 4611686019 ADVANCE 1", "SIZE 1 ADVANCE 9999999999"])
def test_a_window_that_is_longer_than_times_go(slide: str) -> None:
    text = f"CREATE INPUT STREAM S (t timestamp(9)) TIMESTAMP BY t; SELECT count() AS n FROM S [{slide} TIME]"
    with pytest.raises(
        QueryError,
        match=r"the window is longer than 2\^62 ns, in which the stream counts its times; declare times in a "
        r"coarser unit, such as timestamp\(0\)",
    ):
        parse_query(text)
