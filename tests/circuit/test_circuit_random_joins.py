"""Random queries with joins: circuit, in-process engine and oracle give the same, whatever is held back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit_queries import FEW_QUERIES, aggregates, bounds_of, checked_runs, conditions, numbers, plan_of
from handshake.engines.circuit.compiler import compile_plan
from handshake.engines.circuit.nets.rules import PLAN_RULES, RULES

STREAMS = {
    "R": {"n0": "int8", "n1": "long", "g": "string(4)", "b": "bool"},
    "S": {"n5": "int8", "n6": "decimal(12, 2)", "n7": "uint64"},
}


@st.composite
def sides(draw: Any, stream: str) -> tuple[str, list[str]]:
    """Draw what stands in FROM for one side of a join, with its window, and its columns."""
    fields = list(STREAMS[stream])
    window = f"[SIZE {draw(st.integers(1, 6))} TUPLES]"
    if draw(st.integers(0, 3)) == 0:
        window = f"[SIZE .00{draw(st.integers(1, 8))} TIME]"
    if draw(st.booleans()):
        return f"{stream} {window}", fields
    name = {"R": "n2", "S": "n9"}[stream]
    made = draw(numbers([f for f in fields if f.startswith("n")], 1))
    where = f" WHERE {draw(conditions(fields, 1))}" if draw(st.booleans()) else ""
    inner = f"(SELECT {', '.join(fields)}, {made} AS {name} FROM {stream}{where}) {stream.lower()}"
    return f"{inner} {window}", [*fields, name]


@st.composite
def queries(draw: Any) -> str:
    """Draw a whole text: two declarations, a join, and perhaps a window or a union over its results."""
    text = ""
    for stream, columns in STREAMS.items():
        declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        text += f"CREATE INPUT STREAM {stream} ({declared}, t timestamp(3)) TIMESTAMP BY t; "
    (left, mine), (right, theirs) = draw(sides("R")), draw(sides("S"))
    fields = [*mine, *theirs]
    kept = draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3, unique=True))
    shown = [*kept, f"{draw(numbers(fields, 1))} AS n3"]
    join = f"SELECT {', '.join(shown)} FROM {left}, {right} WHERE {draw(conditions(fields))}"
    above = draw(st.sampled_from(["", "window", "union"]))
    if above == "window":
        made, _ = draw(aggregates(f"({join})", [*kept, "n3"]))
        return f"{text}{made} INTO o"
    if above == "union":
        both = f"SELECT {kept[0]} AS x FROM o WHERE n3 > 0 UNION SELECT {kept[0]} FROM o INTO p"
        return f"{text}{join} INTO o; {both}"
    return f"{text}{join} INTO o"


def check(data: st.DataObject, most: int, *, engine: bool) -> None:
    text = data.draw(queries())
    plan = plan_of(text)
    left_out = data.draw(st.sampled_from([(), (*PLAN_RULES, *RULES)]))
    join = data.draw(st.sampled_from(["auto", "ordered"]))
    bounds = replace(bounds_of(plan, 4), cores=data.draw(st.integers(1, 4)), window_tuples=most, join=join)
    compiled = compile_plan(plan, bounds, without=left_out)
    # Late tuples of joins are dropped, which the oracle does not know: arrivals are in order of time.
    drawn = {"most": most, "sorted_times": "TIME]" in text}
    for run, _ in checked_runs(data, plan, compiled, engine=engine, **drawn):
        assert run.probes.get("evicted", 0) == 0


QUICK = settings(FEW_QUERIES, max_examples=4)


@QUICK
@given(st.data())
def test_random_queries_with_joins(data: st.DataObject) -> None:
    check(data, 10, engine=False)


@pytest.mark.soak
@settings(QUICK, max_examples=100)
@given(st.data())
def test_random_queries_with_joins_at_length(data: st.DataObject) -> None:
    check(data, 24, engine=True)
