"""The task that has a Spark query's windows, without Spark: any micro-batches, partitions and restarts."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.errors import HandshakeError, UnsupportedError
from handshake.operators.joins import JoinOperator
from handshake.operators.query import Query
from handshake.operators.sources import arrow_schema
from handshake.plan.algebra import Output, Plan, Source, walk
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from query_backends import by_time, plain
from query_cases import CHAINS, JOINS, KINDS, LAYERED, NOW, PAPER, QUERIES, TRADES, TWO, WINDOWS
from query_streams import Item, arrivals, as_physical, batch_of, compare, cuts

pytest.importorskip("pyspark")
from handshake.engines.spark.queries.blobs import Blob
from handshake.engines.spark.queries.joins import join_source
from handshake.engines.spark.queries.native import spark_filter
from handshake.engines.spark.queries.panes import PaneQuery, PaneWindow
from handshake.engines.spark.queries.placement import (
    declared_sources,
    explain_placement,
    join_below,
    why_one_task,
)
from handshake.engines.spark.queries.tasks import load_query
from handshake.engines.spark.queries.translate import _replace_node
from handshake.engines.spark.queries.tuples import TupleQuery
from query_state import SavedState, blob_of_panes, blob_of_rows, run_to_end

FEW = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
TEXTS = {
    **{name: TRADES + text for name, text in PAPER.items()},
    **{k: "".join(v) for k, v in QUERIES.items()},
    **{
        name: WINDOWS[name]
        for name in (
            "cumulating", "from the first", "offset", "partial in layers", "sessions", "sessions in layers",
            "sessions of a union", "states of sessions",
        )
    },
}  # fmt: skip
PANES = [
    name for name, text in TEXTS.items() if all(PaneWindow.of(o) for o in optimise(parse_query(text)).outputs)
]
JOIN = "FROM R [SIZE .008 TIME], S [SIZE .01 TIME] WHERE R.k <= S.k AND v > 0"
OVER_JOINS = {
    "windowed": JOINS["windowed"],
    "grouped": f"""SELECT k, sum(d) AS s, median(d) AS m, window_end() AS z
        FROM (SELECT R.k, v - w AS d {JOIN}) [SIZE .01 ADVANCE .005 TIME] GROUP BY k""",
    "cascade": f"""SELECT max(n) AS m FROM (SELECT count() AS n
        FROM (SELECT v {JOIN}) [SIZE .004 ADVANCE .002 TIME]) [SIZE .01 ADVANCE .01 TIME]""",
    "sessions": f"""SELECT k, sum(d) AS s, max(d) AS m, window_end() AS z
        FROM (SELECT R.k, v - w AS d {JOIN}) [SESSION 2 ms] GROUP BY k""",
}
SAVED_KINDS = ("full", "left semi", "mixed windows", "itself outer", "windows over left", "outer of windows",
               "left left")  # fmt: skip
TUPLES = [name for name in TEXTS if name != "carried"]
_ORDERED = "needs an order, which results of a join have in one task only"
WHY = {
    "tuples over a join": f"a window of tuples {_ORDERED}",
    "weighted over a join": f"wsum {_ORDERED}",
    "aggregated": f"first {_ORDERED}",
    "of a window": "it joins results of windows",
    "of a join": "it joins results of a join",
    "of a union": "it joins a union of streams, which goes by the slowest of their clocks",
    "ahead": "it joins results of windows",
    "three by tuples": "it joins more than two streams, one of them by number of tuples",
    "backwards": "it counts tuples of streams that it does not name in the order of their declarations",
    "itself": "it counts tuples of streams that it does not name in the order of their declarations",
    "union with a join": "it has windows over a union with the results of a join",
    "nanoseconds": "it counts nanoseconds, and Spark microseconds",
    "windows over left": "it has windows over a left join, whose rows go by the clock of each tuple",
    "left left": "it joins results of a join",
}


def partitions(draw: Any, items: list[Item]) -> list[list[list[Item]]]:
    """Draw micro-batches of partitions."""
    batches: list[list[list[Item]]] = [[[]]]
    for item in items:
        where = draw(st.integers(0, 5))
        if where == 0:
            batches.append([[]])
        elif where == 1:
            batches[-1].append([])
        batches[-1][-1].append(item)
    return batches


@pytest.mark.parametrize("name", PANES)
@FEW
@given(data=st.data())
def test_panes_of_partitions_make_the_windows_of_the_oracle(name: str, data: st.DataObject) -> None:
    check_panes(name, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", PANES)
@settings(FEW, max_examples=150)
@given(data=st.data())
def test_panes_at_length(name: str, data: st.DataObject) -> None:
    check_panes(name, data)


def check_panes(name: str, data: st.DataObject) -> None:
    plan = parse_query(TEXTS[name])
    items = data.draw(arrivals(plan, step=90 if name in PAPER else 1))
    query, counts, spread = Query(plan), query_oracle.Counts(), partitions(data.draw, items)
    arrived = [item for parts in spread for item in by_time(plan, [i for part in parts for i in part])]
    wanted = query_oracle.run(plan, as_physical(query, arrived))
    query_oracle.run(
        optimise(plan), as_physical(query, arrived), counts
    )  # a filter drops rows before they are late
    (output,) = optimise(plan).outputs
    source = next(node for node in walk(output) if isinstance(node, Source))
    made = data.draw(st.sampled_from([None, spark_filter(output)]))
    batches = [
        [blob_of_panes(query, output, source, n, rows, made) for n, rows in enumerate(parts)]
        for parts in spread
    ]
    state = SavedState(lambda: PaneQuery(output))
    assert plain({output.name: run_to_end(state, batches)}) == plain(wanted)
    assert state.last.figures[1:3] == (counts.late, counts.no_time)
    assert state.last.figures[0] == len(items)


def test_python_gets_the_columns_that_panes_need() -> None:
    (output,) = optimise(parse_query(TRADES + PAPER["Q3"])).outputs
    found = spark_filter(output)
    assert found is not None
    assert found.source.fields.names == ("Ts", "\0holds")
    (output,) = optimise(parse_query(TRADES + PAPER["Q5"])).outputs
    assert spark_filter(output) is None  # there is no condition


def test_what_is_saved_of_tuple_windows_does_not_grow() -> None:
    (output,) = optimise(parse_query(TRADES + PAPER["Q4"])).outputs
    source = next(node for node in walk(output) if isinstance(node, Source))
    query, sizes = TupleQuery(output, (source,)), []
    for turn in range(3):
        row = {"Seqnr": 1, "Symbol": "UBSN", "Price": 5, "Volume": 1, "Ts": turn}
        query.step(
            [blob_of_rows(Query(TRADES + PAPER["Q4"]), ["Trades"], [("Trades", row)] * 5_000)], ended=False
        )
        sizes.append(len(pickle.dumps(query)))
    assert max(sizes) < min(sizes) + 100 < 10_000


@pytest.mark.parametrize("name", TUPLES)
@FEW
@given(data=st.data())
def test_the_engine_goes_on_from_what_was_saved(name: str, data: st.DataObject) -> None:
    check_restarts(name, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", TUPLES)
@settings(FEW, max_examples=150)
@given(data=st.data())
def test_the_engine_goes_on_at_length(name: str, data: st.DataObject) -> None:
    check_restarts(name, data)


def check_restarts(name: str, data: st.DataObject) -> None:
    plan = optimise(parse_query(TEXTS[name]))
    items = data.draw(arrivals(plan, step=90 if name in PAPER else 1, most=16))
    query, batches_of = Query(plan), cuts(data.draw, items)
    arrived = [item for batch in batches_of for item in by_time(plan, batch)]
    wanted = query_oracle.run(parse_query(TEXTS[name]), as_physical(query, arrived))
    for output in plan.outputs:
        sources = tuple(node for node in dict.fromkeys(walk(output)) if isinstance(node, Source))
        names = [source.name for source in sources]
        batches = [
            [blob_of_rows(query, names, batch)] if batch[0][0] in names else [] for batch in batches_of
        ]
        state = SavedState(lambda o=output, s=sources: TupleQuery(o, s))
        compare({output.name: run_to_end(state, batches)}, {output.name: wanted[output.name]})


@pytest.mark.parametrize("name", [*JOINS, *LAYERED])
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_joins_go_on_from_what_was_saved(name: str, data: st.DataObject) -> None:
    goes_on_from_what_was_saved(TWO + {**JOINS, **LAYERED}[name], data)


@pytest.mark.parametrize("name", ["now by time", "now by arrival", "now of three", "sessions of a join"])
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_windows_and_joins_go_on_from_what_was_saved(name: str, data: st.DataObject) -> None:
    goes_on_from_what_was_saved((NOW | WINDOWS)[name], data)


def test_a_step_does_not_expire_tuples_that_another_stream_still_joins() -> None:
    """S comes before the second tuple of R, in one micro-batch with all later ones."""
    first = [("R", {"k": 0, "v": 6, "t": 0}), ("U", {"k": 0, "z": 7, "t": 0})]
    later = [("S", {"k": 0, "w": 5, "t": 0}), *(("R", {"k": 0, "v": t, "t": t}) for t in (1, 2, 3))]
    assert run_saved(NOW["now of three"], [first, later]) == [{"v": 6, "w": 5, "z": 7}]


@pytest.mark.parametrize("name", SAVED_KINDS)
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_rows_that_wait_for_a_match_are_saved(name: str, data: st.DataObject) -> None:
    goes_on_from_what_was_saved(TWO + (KINDS | CHAINS)[name], data)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*JOINS, *LAYERED, *KINDS, *CHAINS])
@settings(FEW, max_examples=150)
@given(data=st.data())
def test_joins_go_on_at_length(name: str, data: st.DataObject) -> None:
    goes_on_from_what_was_saved(TWO + {**JOINS, **LAYERED, **KINDS, **CHAINS}[name], data)


def run_saved(text: str, batches: list[list[Item]]) -> list[dict[str, Any]]:
    """Return results over micro-batches, with a restart between them; those of the oracle, and its counts."""
    plan = optimise(parse_query(text))
    query, output = Query(plan), plan.outputs[-1]
    sources = declared_sources(output, [source.name for source in plan.inputs])
    names = [source.name for source in sources]
    counts, arrived = query_oracle.Counts(), [item for batch in batches for item in by_time(plan, batch)]
    wanted = query_oracle.run(Plan(plan.inputs, (output,)), as_physical(query, arrived), counts)
    blobs = [
        [
            blob_of_rows(query, names, own)
            for name in names
            if (own := [item for item in batch if item[0] == name])
        ]
        for batch in batches
    ]
    state = SavedState(lambda: TupleQuery(output, sources))
    found = run_to_end(state, blobs)
    compare({output.name: found}, wanted)
    assert state.last.figures[1:3] == (counts.late, counts.no_time)
    assert state.last.figures[0] == len(arrived)
    return found


def goes_on_from_what_was_saved(text: str, data: st.DataObject) -> None:
    """Micro-batches of all streams, each by time."""
    plan = optimise(parse_query(text))
    names = [s.name for s in declared_sources(plan.outputs[-1], [source.name for source in plan.inputs])]
    items = [item for item in data.draw(arrivals(plan, most=20)) if item[0] in names]
    run_saved(text, [[item for part in parts for item in part] for parts in partitions(data.draw, items)])


@pytest.mark.parametrize("name", ["of a join", "three by tuples", "full", "left left"])
def test_what_is_saved_of_joins_is_their_windows(name: str) -> None:
    plan = optimise(parse_query(TWO + {**LAYERED, **KINDS, **CHAINS}[name].replace("R.k = S.k", "v <> v")))
    sources = declared_sources(plan.outputs[0], ["R", "S", "U"])
    query, rows, sizes = TupleQuery(plan.outputs[0], sources), Query(plan), []
    for turn in range(8):
        items = [
            (source.name, {**dict.fromkeys(source.fields.names, 1), "t": t})
            for t in range(40 * turn, 40 * turn + 40)
            for source in rows.plan.inputs
        ]
        blobs = [blob_of_rows(rows, list("RSU"), [item for item in items if item[0] == n]) for n in "RSU"]
        query.step(blobs, ended=False)
        sizes.append(len(pickle.dumps(query)))
        query = pickle.loads(pickle.dumps(query))
    assert max(sizes[1:]) < min(sizes[1:]) + 500


def test_what_runs_in_one_task_and_why() -> None:
    nanoseconds = "CREATE INPUT STREAM N (k int8, t long) TIMESTAMP BY t IN NANOSECONDS;"
    by_nanoseconds = "SELECT z FROM N [SIZE .01 TIME], U [SIZE .01 TIME] WHERE N.k = U.k"
    texts = {n: TWO + t for n, t in {**LAYERED, "aggregated": JOINS["aggregated"]}.items()}
    texts |= {name: TWO + (KINDS | CHAINS)[name] for name in ("windows over left", "left left")}
    texts["nanoseconds"] = TWO + nanoseconds + by_nanoseconds
    told = {name: explain_placement(parse_query(text)) for name, text in texts.items()}
    assert {name: lines[-1].partition(", since ")[2] for name, lines in told.items()} == WHY
    assert all(": on Spark in one task, since " in line for lines in told.values() for line in lines)
    others = [text for name, text in JOINS.items() if name != "aggregated"]
    others += [KINDS[name] for name in ("left", "full", "by tuples", "anti", "right semi", "selected")]
    assert not any(explain_placement(parse_query(TWO + text)) for text in others)


def test_finite_inputs_need_one_task_less_often() -> None:
    plan, names = optimise(parse_query(TWO + LAYERED["of a union"])), ["R", "S", "U"]
    assert why_one_task(plan.outputs[-1], names, []) is None
    plan = optimise(parse_query(TWO + LAYERED["of a join"]))
    assert why_one_task(plan.outputs[-1], names, []) == "it joins results of a join"


def test_joins_on_several_cores_are_not_saved() -> None:
    for name in ("band", "three"):
        with (
            Query(TWO + JOINS[name], cores=2) as query,
            pytest.raises(UnsupportedError, match="a join that runs on several cores cannot be saved"),
        ):
            pickle.dumps(query)


def test_joins_that_an_earlier_release_saved_have_no_late_rows_by_input() -> None:
    with Query(TWO + JOINS["band"]) as query:
        (join,) = (step.operator for step in query._steps if isinstance(step.operator, JoinOperator))
        state = join.__getstate__()
        assert state.pop("late_of") == [0, 0]
        restored = JoinOperator.__new__(JoinOperator)
        restored.__setstate__({**state, "late": 3})
        assert (restored.late, restored.late_of) == (3, [0, 0])
        restored.close()


class Joining(Query):
    """A join in process, which remembers its results with their times."""

    def _deliver(self, name: str, schema: pa.Schema, flow: Any) -> list[pa.RecordBatch]:
        self.flow = flow
        return []


@pytest.mark.parametrize("name", OVER_JOINS)
@FEW
@given(data=st.data())
def test_windows_over_joins_go_by_the_clocks_that_they_are_told(name: str, data: st.DataObject) -> None:
    check_clocks(name, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", OVER_JOINS)
@settings(FEW, max_examples=150)
@given(data=st.data())
def test_windows_over_joins_at_length(name: str, data: st.DataObject) -> None:
    check_clocks(name, data)


def check_clocks(name: str, data: st.DataObject) -> None:
    text = TWO + OVER_JOINS[name]
    plan = optimise(parse_query(text))
    items = data.draw(arrivals(plan, most=20, sorted_times=True))
    wanted = query_oracle.run(parse_query(text), as_physical(Query(plan), items))
    (output,) = plan.outputs
    join = join_below(output)
    assert join is not None
    made, inputs = join_source(join), [n for n in dict.fromkeys(walk(join)) if isinstance(n, Source)]
    whole = _replace_node(output, join, made)
    joining = Joining(Plan(plan.inputs, (Output(join, "join"),)), optimised=False)
    batches = [
        [_results(joining, made, batch), *_clocks(Query(plan), inputs, batch)]
        for batch in cuts(data.draw, items)
    ]
    state = SavedState(lambda: TupleQuery(whole, (made,), len(inputs)))
    found = run_to_end(state, batches)
    assert sorted(map(str, found)) == sorted(map(str, wanted[output.name]))
    assert state.last.figures[1] == 0


def _results(query: Joining, made: Source, batch: list[Item]) -> Blob:
    """Return the results that a micro-batch adds to a join."""
    query.push(batch[0][0], batch_of(query, batch[0][0], [row for _, row in batch]))
    chunk, schema = query.flow.chunk, arrow_schema(made)
    times = pa.array(chunk.times).view(schema.field(made.time).type)
    rows = pa.RecordBatch.from_arrays(
        [*(chunk.columns[n] for n in schema.names if n != made.time), times], schema=schema
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(rows)
    return Blob(0, 0, 0, sink.getvalue().to_pybytes())


def _clocks(query: Query, inputs: list[Source], batch: list[Item]) -> list[Blob]:
    """Return the clocks of the inputs of a join after a micro-batch."""
    latest = max(row["t"] for _, row in batch)
    named = [at for at, source in enumerate(inputs, start=1) if source.name == batch[0][0]]
    return [Blob(at, 0, 0, latest.to_bytes(16, signed=True)) for at in named]


def test_several_streams_of_a_micro_batch_are_merged_by_time() -> None:
    text = "CREATE INPUT STREAM {} (t long, x int) TIMESTAMP BY t;"
    plan = parse_query(text.format("R") + text.format("S") + "SELECT x FROM R UNION SELECT x FROM S INTO A")
    (output,) = plan.outputs
    query = TupleQuery(output, plan.inputs)
    blobs = [
        blob_of_rows(Query(plan), ["R", "S"], [(name, {"t": t, "x": x}) for t, x in rows])
        for name, rows in (("S", [(1, 10), (2, 20), (2, 21)]), ("R", [(2, 2), (0, 1), (3, 3)]))
    ]
    (batch,) = query.step(blobs, ended=False)
    assert batch.column("x").to_pylist() == [1, 10, 2, 20, 21, 3]


def test_a_checkpoint_of_another_query_is_refused() -> None:
    a, b = (parse_query(TRADES + PAPER[name]).outputs[0] for name in ("Q3", "Q5"))
    with pytest.raises(HandshakeError, match=r"another query: the plan of 'PriceAverages' has changed"):
        load_query(pickle.dumps(PaneQuery(a)), PaneQuery(b))
