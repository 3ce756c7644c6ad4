"""Tests of loop templates: a loop is compiled once per shape and filled with the functions of predicates."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

from handshake.joins.join import Replay, prepare
from handshake.kernels.compile_cache import PredicateFunction, building, compile_loop, predicate_function
from handshake.kernels.numba_internals import is_available, template_of
from handshake.windows import windows_of
from pairs import pairs_of, with_row_numbers
from strategies import Case, expect

I64 = ir.IntType(64)
pytestmark = pytest.mark.skipif(not is_available(), reason="the plain path has no templates")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for compiled code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def times_intrinsic(number: int) -> Any:
    kind = ir.FunctionType(I64, [I64])
    function = predicate_function(
        "times", kind, lambda builder, args: builder.mul(args[0], ir.Constant(I64, number))
    )

    @intrinsic
    def times(typing_context, value):
        def code(context, builder, signature, args):
            return function.call(context, builder, args)

        return types.int64(types.int64), code

    return times


def total(number: int, shape: object) -> Any:
    """Return a loop that sums values times a number, which only a predicate function depends on."""
    with building(("total", number), shape):
        times = times_intrinsic(number)

        @compile_loop()
        def add(values):
            result = 0
            for k in range(values.shape[0]):
                result += times(values[k])
            return result

        return add


def compilations(loop: Any) -> int:
    return sum(loop.stats.cache_misses.values())


def test_the_next_loop_of_a_shape_is_filled_in_with_its_own_functions(folder: Path) -> None:
    values = np.arange(5)
    first, second, third = (total(number, "sums") for number in (3, 7, 11))
    assert (first(values), compilations(first)) == (30, 1)
    assert (second(values), compilations(second)) == (70, 0)
    assert (third(values), compilations(third)) == (110, 0)
    assert (first(values), second(values)) == (30, 70)
    again = total(7, "sums")
    assert (again(values), compilations(again)) == (70, 0)


def test_other_shapes_and_other_arguments_are_compiled(folder: Path) -> None:
    first, second = total(3, "sums"), total(5, "other sums")
    assert (first(np.arange(5)), second(np.arange(5)), compilations(second)) == (30, 50, 1)
    third = total(7, "sums")
    assert (third(np.arange(6)[::2]), compilations(third)) == (42, 1)
    assert (third(np.arange(5)), compilations(third)) == (70, 1)


def test_without_a_shape_nothing_is_shared(folder: Path) -> None:
    for number in (3, 5):
        loop = total(number, None)
        assert (loop(np.arange(5)), compilations(loop)) == (10 * number, 1)


def test_a_damaged_template_is_not_used(folder: Path) -> None:
    total(3, "sums")(np.arange(5))
    for path in folder.rglob("*.nbc"):
        path.write_bytes(path.read_bytes()[:-9])
    loop = total(5, "sums")
    assert (loop(np.arange(5)), compilations(loop)) == (50, 1)


def compile_nested(number: int) -> Any:
    """Return a loop that calls another one, which is compiled for the same number."""
    with building(("nested", number), "nested"):
        times = times_intrinsic(number)

        @compile_loop()
        def twice(value):
            return times(value) * 2

        @compile_loop()
        def add(values):
            result = times(1)
            for k in range(values.shape[0]):
                result += twice(values[k])
            return result

        return add


def test_a_loop_that_calls_another_with_predicate_functions_leaves_no_template(folder: Path) -> None:
    for number in (3, 5):
        loop = compile_nested(number)
        assert (loop(np.arange(5)), compilations(loop)) == (21 * number, 1)


def test_a_template_only_declares_predicate_functions() -> None:
    module, made = (
        ir.Module(),
        PredicateFunction("handshake.a0.12", ir.FunctionType(I64, [I64]), lambda _, args: args[0]),
    )
    other = PredicateFunction("handshake.a0.123", ir.FunctionType(I64, [I64]), lambda _, args: args[0])
    for each in (made, other):
        each.define(module)
    text = made.without_body(str(binding.parse_assembly(str(module))))
    assert text.count("define ") == 1
    assert "declare i64 @handshake.a0.12(i64)\n" in text


def test_without_the_text_of_the_loop_there_is_no_template() -> None:
    assert template_of(SimpleNamespace(library=SimpleNamespace()), (), ()) is None


# Predicates in the loops of joins.

PREDICATES = {
    "whole numbers": ("l.x < r.x", "l.x + 1 = r.x", "l.x % 3 = r.x", "ABS(l.x - r.x) <= 1"),
    "NULL": ("l.x IS NULL OR r.x > 3", "(l.x > r.x) IS NULL", "COALESCE(l.x, 1) = COALESCE(r.x, 2)"),
    "floats": ("l.y < r.y", "l.y = r.y", "l.y BETWEEN r.y - 1 AND r.y + 0.5", "SQRT(l.y) <> r.y"),
    "a side without": ("l.x > 2", "l.x IS NOT NULL", "l.y <= 0.5"),
    "both": ("l.x <= r.x AND l.y > r.y", "l.x = r.x OR l.y = r.y", "l.x = r.x AND l.y < r.y + 1"),
}  # fmt: skip


def table(seed: int, nulls: bool) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.integers(-5, 6, 90).tolist()
    y = rng.choice([0.0, -0.0, 0.5, 1.5, 2.0, np.nan, np.inf], 90).tolist()
    if nulls:
        x, y = ([None if rng.random() < 0.2 else v for v in values] for values in (x, y))
    return pa.table({"x": pa.array(x, pa.int32()), "y": pa.array(y, pa.float64())})


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates_of_one_shape_agree_with_the_oracle(name: str, folder: Path) -> None:
    """Use an empty folder, so that the first predicate is compiled and the others are filled in."""
    for nulls, algorithm in ((False, "three_step"), (True, "low_latency")):
        for on in PREDICATES[name]:
            case = Case(table(1, nulls), table(2, nulls), on, windows_of("30 tuples"))
            left, right = with_row_numbers(case)
            plan = prepare(left.schema, right.schema, on, window="30 tuples", algorithm=algorithm)
            assert pairs_of(list(Replay(plan, left, right))) == sorted(expect(case).pairs), (on, nulls)
