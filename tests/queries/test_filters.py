"""Filters against a constant, which run without compiling anything, against Python's own comparison."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.operators.query import Query

OPERATORS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
TYPES = {f"{sign}int{bits}": (bits, sign) for sign in ("", "u") for bits in (8, 32, 64)}


def select_rows(kind: str, condition: str, values: list[Any]) -> list[Any]:
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
    found = select_rows(kind, f"x {op} {number} AND n >= 1", values)
    assert found == [
        (value, n)
        for n, value in enumerate(values)
        if n >= 1 and value is not None and OPERATORS[op](value, number)
    ]


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.sampled_from(["UBSN", "UBS", "", "é", None])), least=st.integers(-1, 4))
def test_texts(values: list[str | None], least: int) -> None:
    found = select_rows("string", f"x = 'UBSN' AND n > {least} AND x <> 'é'", values)
    assert found == [(value, n) for n, value in enumerate(values) if value == "UBSN" and n > least]


_FORMS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "string": lambda array: array,
    "large_string": lambda array: array.cast(pa.large_string()),
    "dictionary": lambda array: array.dictionary_encode(),
    "string_view": lambda array: pa.array(array.to_pylist(), pa.string_view()),
}
_WHERE = "x = 'UBSN' AND n > 1 AND (n + m) % 3 <> 0"


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["UBSN", "UBSN", "UBS", "UBSNX", "", "日本", "éé", None]),
            st.integers(0, 4) | st.none(),
            st.integers(-3, 3) | st.none(),
        ),
        max_size=30,
    ),
    times=st.integers(1, 5),
    form=st.sampled_from(list(_FORMS)),
    cuts=st.lists(st.integers(0, 150), max_size=3),
)
def test_batches_of_any_form(rows: list[tuple[Any, ...]], times: int, form: str, cuts: list[int]) -> None:
    rows = rows * times
    x, n, m = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    whole = pa.record_batch(
        {
            "x": _FORMS[form](pa.array(x, pa.string())),
            "n": pa.array(n, pa.int32()),
            "m": pa.array(m, pa.int64()),
        }
    )
    found = []
    with Query(
        f"CREATE INPUT STREAM S (x string, n int, m long); SELECT m, x FROM S WHERE {_WHERE}"
    ) as query:
        for start, stop in pairwise(sorted([0, *cuts, len(rows)])):
            for batch in query.push("S", whole.slice(start, stop - start))["result"]:
                found += [(row["x"], row["m"]) for row in batch.to_pylist()]
    assert found == [
        (x, m)
        for x, n, m in rows
        if x == "UBSN" and n is not None and n > 1 and m is not None and (n + m) % 3 != 0
    ]


def test_columns_that_only_times_or_results_need_are_kept() -> None:
    text = "CREATE INPUT STREAM S (x string, n int, t int) TIMESTAMP BY t; "
    rows = {"x": ["a", "b"], "n": [1, 2], "t": [0, 60]}
    with Query(text + "SELECT * FROM S INTO A; SELECT n FROM S WHERE x = 'b' INTO B") as query:
        found = query.push("S", rows)
    assert found["A"][0].to_pydict() == rows
    assert found["B"][0].to_pydict() == {"n": [2]}
    with Query(text + "SELECT count() AS c FROM S [SIZE 60 ADVANCE 60 TIME] WHERE x = 'b'") as query:
        closed = query.push("S", rows)["result"] + query.finish()["result"]
    assert [row["c"] for batch in closed for row in batch.to_pylist()] == [0, 1]


def test_what_is_saved_of_a_query_has_nothing_compiled_in_it() -> None:
    text = "CREATE INPUT STREAM S (x double, n int); SELECT x * x AS y FROM S WHERE n = 1 AND x > 0"
    query = Query(text)
    before = len(pickle.dumps([step.operator for step in query._steps]))
    query.push("S", {"x": [2.0], "n": [1]})
    assert len(pickle.dumps([step.operator for step in query._steps])) <= before + 20
