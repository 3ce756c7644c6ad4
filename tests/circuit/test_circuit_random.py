"""Random queries: circuit, in-process engine and oracle give the same, whatever is held back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit_queries import (
    COLUMNS,
    FEW_QUERIES,
    NUMBERS,
    aggregates,
    bounds_of,
    checked_runs,
    conditions,
    numbers,
    plan_of,
)
from handshake.engines.circuit.compiler import compile_plan
from handshake.engines.circuit.nets.rules import RULES


@st.composite
def queries(draw: Any) -> str:
    """Draw a whole text: a declaration and a query of one to three levels."""
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
        made, names = draw(aggregates(source if level == 0 else f"({made})", names))
    if source == "S" and names is fields:
        where = draw(conditions(fields))
        return f"{text}SELECT {draw(numbers(fields))} AS n0, S.* FROM S WHERE {where} INTO o"
    if names is fields:
        return f"{text}SELECT {draw(numbers(fields))} AS n0 FROM {source} INTO o"
    return f"{text}{made} INTO o"


def check(data: st.DataObject, most: int, *, engine: bool) -> None:
    plan, optimised = plan_of(data.draw(queries())), data.draw(st.booleans())
    compiled = compile_plan(plan, bounds_of(plan, 4), without=() if optimised else tuple(RULES))
    for run, counts in checked_runs(data, plan, compiled, engine=engine, most=most):
        if not optimised:
            assert (run.probes.get("late", 0), run.probes.get("no_time", 0)) == (counts.late, counts.no_time)


LONG = settings(FEW_QUERIES, max_examples=300)


@FEW_QUERIES
@given(st.data())
def test_random_queries(data: st.DataObject) -> None:
    check(data, 10, engine=False)


@pytest.mark.soak  # four minutes on a core
@LONG
@given(st.data())
def test_random_queries_at_length(data: st.DataObject) -> None:
    check(data, 30, engine=True)
