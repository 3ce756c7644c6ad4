"""Random queries: circuit, in-process engine and oracle give the same, whatever is held back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, reject, settings
from hypothesis import strategies as st
from test_circuit_queries import bounds_of, check_run, feeds_of

import query_oracle
from circuits import patterns, physical
from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.nets.rules import RULES
from handshake.engines.circuit.simulation.simulate import Simulation
from handshake.engines.circuit.simulation.testbench import Run
from handshake.errors import QueryError
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query
from query_streams import arrivals, compare, cuts, results

COLUMNS = {
    "g": "string(4)",
    "i": "int8",
    "j": "int8",
    "l": "long",
    "u": "uint64",
    "d": "decimal(12, 2)",
    "b": "bool",
}
NUMBERS = ("i", "j", "l", "u", "d")


@st.composite
def numbers(draw: Any, fields: list[str], depth: int = 2) -> str:
    """An expression whose value is a number."""
    known = [name for name in fields if name in NUMBERS or name.startswith("n")]
    if depth == 0 or not known or draw(st.booleans()):
        return draw(st.sampled_from([*known, "1", "-3", "2.5"]))
    a, b = (draw(numbers(fields, depth - 1)) for _ in range(2))
    form = draw(
        st.sampled_from(["({a} + {b})", "({a} - {b})", "({a} * {b})", "abs({a})", "greatest({a}, {b})"])
    )
    return form.format(a=a, b=b)


@st.composite
def conditions(draw: Any, fields: list[str], depth: int = 2) -> str:
    """An expression whose value is a truth."""
    if depth and draw(st.integers(0, 2)) == 0:
        a, b = (draw(conditions(fields, depth - 1)) for _ in range(2))
        return draw(st.sampled_from(["({a} AND {b})", "({a} OR {b})", "NOT {a}"])).format(a=a, b=b)
    forms = ["{a} {op} {b}", "{a} IS NULL", "{a} BETWEEN {b} AND 50"]
    forms += ["b"] if "b" in fields else []
    forms += ["g {op} 'UBSN'", "g IS NOT NULL", "g IN ('', 'ü')"] if "g" in fields else []
    op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    a, b = (draw(numbers(fields, 1)) for _ in range(2))
    return draw(st.sampled_from(forms)).format(a=a, b=b, op=op)


@st.composite
def windows(draw: Any, loose: bool) -> str:
    size, advance = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    if -(-size // advance) > 3:
        advance = -(-size // 3)
    if not loose and draw(st.booleans()):
        return f"[SIZE {size} ADVANCE {advance} TUPLES]"
    return f"[SIZE .00{size} ADVANCE .00{advance} TIME]"


@st.composite
def aggregated(draw: Any, source: str, fields: list[str]) -> tuple[str, list[str]]:
    """A SELECT with aggregates over windows of a source, and the names of its columns.

    The groups of a window come in any order, so what is made of them must not depend on one.
    """
    loose = "GROUP BY" in source
    where = f" WHERE {draw(conditions(fields, 1))}" if draw(st.booleans()) else ""
    known = [name for name in fields if name in NUMBERS or name.startswith("n")]
    functions = ["count()", "sum({x})", "min({x})", "max({x})"]
    functions += [] if loose else ["wsum({x}, [2, -1])"]
    calls = draw(st.lists(st.sampled_from(functions), min_size=1, max_size=2))
    items = [f"{call.format(x=draw(st.sampled_from(known)))} AS n{k}" for k, call in enumerate(calls)]
    names = [f"n{k}" for k in range(len(items))]
    group = ""
    if "b" in fields and draw(st.booleans()):
        group, items, names = " GROUP BY b", ["b", *items], ["b", *names]
    window = draw(windows(loose))
    return f"SELECT {', '.join(items)} FROM {source} {window}{where}{group}", names


@st.composite
def queries(draw: Any) -> str:
    """A whole text: a declaration and a query of one to three levels."""
    fields = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=2, max_size=4, unique=True))
    if not set(fields) & set(NUMBERS):
        fields.append("i")
    late = draw(st.sampled_from(["", " LATENESS .002"]))
    declared = ", ".join(f"{name} {COLUMNS[name]}" for name in fields)
    text = f"CREATE INPUT STREAM S ({declared}, t timestamp(3)) TIMESTAMP BY t{late}; "
    source, names, made = "S", fields, ""
    if draw(st.booleans()):
        source = f"(SELECT * FROM S WHERE {draw(conditions(fields))})"
    for level in range(draw(st.integers(0, 2))):
        made, names = draw(aggregated(source if level == 0 else f"({made})", names))
    if source == "S" and names is fields:
        where = draw(conditions(fields))
        return f"{text}SELECT {draw(numbers(fields))} AS n0, S.* FROM S WHERE {where} INTO o"
    if names is fields:
        return f"{text}SELECT {draw(numbers(fields))} AS n0 FROM {source} INTO o"
    return f"{text}{made} INTO o"


def plan_of(text: str) -> Plan:
    """The plan of a random text; one without a type for its values is no example."""
    note(text)
    try:
        return parse_query(text)
    except QueryError as error:  # a product of more than 38 digits has no type to be held in
        if "cannot be held; cast them to a smaller type" in str(error):
            reject()
        raise


def checked_runs(
    data: st.DataObject, plan: Plan, compiled: Compiled, *, engine: bool, **drawn: Any
) -> Iterator[tuple[Run, query_oracle.Counts]]:
    """Two random inputs through one circuit: its results are the oracle's, and the engine's where asked."""
    made = Simulation(compiled.circuit())
    for _ in range(2):
        items, counts = data.draw(arrivals(plan, **drawn)), query_oracle.Counts()
        given_ = physical(plan, items)
        wanted = query_oracle.run(plan, given_, counts)
        if engine:
            compare(results(Query(plan), cuts(data.draw, items)), wanted)
        ready = {name: data.draw(patterns) for name in compiled.outputs}
        run = made.run(feeds_of(compiled, given_, data.draw), ready=ready)
        check_run(plan, compiled, run, wanted)
        yield run, counts


def check(data: st.DataObject, most: int, *, engine: bool) -> None:
    plan, optimised = plan_of(data.draw(queries())), data.draw(st.booleans())
    compiled = compile_plan(plan, bounds_of(plan, 4), without=() if optimised else tuple(RULES))
    for run, counts in checked_runs(data, plan, compiled, engine=engine, most=most):
        if not optimised:
            assert (run.probes.get("late", 0), run.probes.get("no_time", 0)) == (counts.late, counts.no_time)


# Shrinking would build hundreds of circuits; the text of the query is noted instead.
QUICK = settings(
    max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
LONG = settings(QUICK, max_examples=300)


@QUICK
@given(st.data())
def test_random_queries(data: st.DataObject) -> None:
    check(data, 10, engine=False)


@pytest.mark.soak  # four minutes on a core
@LONG
@given(st.data())
def test_random_queries_at_length(data: st.DataObject) -> None:
    check(data, 30, engine=True)
