"""Filters against a constant, which run without compiling anything, against Python's own comparison."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.operators.query import Query

OPERATORS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
TYPES = {f"{sign}int{bits}": (bits, sign) for sign in ("", "u") for bits in (8, 32, 64)}


def kept(kind: str, condition: str, values: list[Any]) -> list[Any]:
    query = Query(f"CREATE INPUT STREAM S (x {kind}, n long); SELECT x, n FROM S WHERE {condition}")
    given = {"x": values, "n": list(range(len(values)))}
    batches = query.push("S", given)["result"]
    return [(row["x"], row["n"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whole_numbers(kind: str, data: st.DataObject) -> None:
    bits, sign = TYPES[kind]
    low, high = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    ends = [low, low + 1, 0, 1, high - 1, high]
    values = data.draw(st.lists(st.sampled_from([*ends, *([None] if data.draw(st.booleans()) else [])])))
    number = data.draw(st.sampled_from([*ends, low - 1, high + 1, -1, 7]))
    op = data.draw(st.sampled_from(list(OPERATORS)))
    found = kept(kind, f"x {op} {number} AND n >= 1", values)
    assert found == [
        (value, n)
        for n, value in enumerate(values)
        if n >= 1 and value is not None and OPERATORS[op](value, number)
    ]


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.sampled_from(["UBSN", "UBS", "", "é", None])), least=st.integers(-1, 4))
def test_texts(values: list[str | None], least: int) -> None:
    found = kept("string", f"x = 'UBSN' AND n > {least} AND x <> 'é'", values)
    assert found == [(value, n) for n, value in enumerate(values) if value == "UBSN" and n > least]


def test_what_is_saved_of_a_query_has_nothing_compiled_in_it() -> None:
    text = "CREATE INPUT STREAM S (x double, n int); SELECT x * x AS y FROM S WHERE n = 1 AND x > 0"
    query = Query(text)
    before = len(pickle.dumps([step.operator for step in query._steps]))
    query.push("S", {"x": [2.0], "n": [1]})
    assert len(pickle.dumps([step.operator for step in query._steps])) <= before + 20
