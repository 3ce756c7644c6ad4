"""Aggregate functions that a user registers, run like those that are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from handshake import Query
from handshake.errors import QueryError, UnsupportedError
from handshake.operators.aggregates import Additive, register, unregister
from handshake.operators.holistic import Values
from handshake.plan.aggregates import AGGREGATES, AggregateFunction, Argument
from handshake.plan.algebra import Aggregate
from handshake.plan.query import parse_query
from handshake.schema import INT64, Type

TEXT = """CREATE INPUT STREAM R (g int, v int, t timestamp(0)) TIMESTAMP BY t;
          SELECT g, {}(v) AS r FROM R [SIZE 4 ADVANCE 2 TIME] GROUP BY g INTO Q"""
ROWS = {"g": [1, 1, 2, 1], "v": [3, 4, None, 5], "t": [0, 1, 1, 2]}
WANTED = {
    "squares": [(1, 25), (2, 0), (1, 50), (2, 0), (1, 25)],
    "span": [(1, 1), (2, None), (1, 2), (2, None), (1, 0)],
}


def integer(argument: Argument) -> Type:
    return INT64


class SumOfSquares(Additive):
    def extra_width(self) -> int:
        return 1

    def add(self, slots: Any, array: pa.Array, valid: Any, out: Any) -> None:
        np.add.at(out[:, 0], slots, np.asarray(array.fill_null(0)).astype(np.int64) ** 2)

    def finish(self, state: Any) -> pa.Array:
        return pa.array(np.ascontiguousarray(state[:, 1]))


def spans(aggregate: Aggregate, values: Values) -> pa.Array:
    slots = zip(values.bounds[:-1], values.bounds[1:], strict=True)
    parts = [values.array[int(a) : int(b)].to_pylist() for a, b in slots]
    return pa.array([max(part) - min(part) if part else None for part in parts], pa.int64())


@pytest.fixture(params=["squares", "span"])
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "squares":
        register(AggregateFunction("squares", integer, "algebraic"), SumOfSquares)
    else:
        register(AggregateFunction("span", integer, "holistic"), spans)
    yield request.param
    unregister(request.param)


@pytest.mark.parametrize("optimised", [True, False])
def test_a_registered_function_runs_on_the_local_engine(name: str, optimised: bool) -> None:
    with Query(TEXT.format(name), optimised=optimised) as query:
        first = query.push("R", {key: pa.array(values, pa.int64()) for key, values in ROWS.items()})["Q"]
        batches = [*first, *query.finish()["Q"]]
    found = [(row["g"], row["r"]) for batch in batches for row in batch.to_pylist()]
    assert found == WANTED[name]


def test_an_engine_without_a_form_refuses_it_by_name(name: str) -> None:
    compiler = pytest.importorskip("handshake.engines.circuit.compiler")
    from handshake.engines.circuit.nets.bounds import Bounds

    with pytest.raises(UnsupportedError, match=rf"^{name}\(\) "):
        compiler.compile_plan(parse_query(TEXT.format(name)), Bounds(groups=4))


def test_a_function_is_gone_after_it_was_unregistered() -> None:
    assert "squares" not in AGGREGATES
    with pytest.raises(QueryError, match="squares"):
        parse_query(TEXT.format("squares"))


def test_a_name_and_a_form_are_checked() -> None:
    with pytest.raises(UnsupportedError, match=r"sum\(\) is registered already"):
        register(AggregateFunction("sum", integer, "algebraic"), Additive)
    with pytest.raises(UnsupportedError, match=r"stddev\(\) is registered already"):
        register(AggregateFunction("mine", integer, "algebraic", aliases=("stddev",)), Additive)
    with pytest.raises(UnsupportedError, match=r"thing\(\) is holistic"):
        register(AggregateFunction("thing", integer, "holistic"), Additive)
