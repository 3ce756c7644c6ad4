"""Loops that are compiled once for their shape, with the parts of one predicate after the other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic
from test_joins import numbered, pairs_of

import handshake.kernels.ondisk as ondisk
from handshake.joins.join import Replay, prepare
from handshake.kernels.ondisk import compiled, made_for, part
from handshake.kernels.parts import Part, frame_of
from handshake.windows import windows_of
from strategies import Case, expect

I64 = ir.IntType(64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what is compiled meanwhile lies."""
    monkeypatch.setattr(ondisk, "folder_for", lambda function: tmp_path)
    return tmp_path


def times_intrinsic(number: int) -> Any:
    kind = ir.FunctionType(I64, [I64])
    function = part("times", kind, lambda builder, args: builder.mul(args[0], ir.Constant(I64, number)))

    @intrinsic
    def times(typing_context, value):
        def code(context, builder, signature, args):
            return function.call(context, builder, args)

        return types.int64(types.int64), code

    return times


def total(number: int, shape: object) -> Any:
    """The sum of some values, each times a number that only a part knows of."""
    with made_for(("total", number), shape):
        times = times_intrinsic(number)

        @compiled()
        def add(values):
            result = 0
            for k in range(values.shape[0]):
                result += times(values[k])
            return result

        return add


def compilations(loop: Any) -> int:
    return sum(loop.stats.cache_misses.values())


def test_the_next_of_a_shape_is_filled_in_and_does_not_take_over_what_the_last_one_did(folder: Path) -> None:
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


def test_a_frame_that_is_damaged_is_not_used(folder: Path) -> None:
    total(3, "sums")(np.arange(5))
    for path in folder.glob("*.nbc"):
        path.write_bytes(path.read_bytes()[:-9])
    loop = total(5, "sums")
    assert (loop(np.arange(5)), compilations(loop)) == (50, 1)


def nested(number: int) -> Any:
    """A loop that calls another one, which is compiled for the same number."""
    with made_for(("nested", number), "nested"):
        times = times_intrinsic(number)

        @compiled()
        def twice(value):
            return times(value) * 2

        @compiled()
        def add(values):
            result = times(1)
            for k in range(values.shape[0]):
                result += twice(values[k])
            return result

        return add


def test_a_loop_that_calls_another_with_parts_leaves_no_frame(folder: Path) -> None:
    for number in (3, 5):
        loop = nested(number)
        assert (loop(np.arange(5)), compilations(loop)) == (21 * number, 1)


def test_nothing_is_left_of_a_part_but_its_declaration() -> None:
    module, made = ir.Module(), Part("handshake.a0.12", ir.FunctionType(I64, [I64]), lambda _, args: args[0])
    other = Part("handshake.a0.123", ir.FunctionType(I64, [I64]), lambda _, args: args[0])
    for each in (made, other):
        each.define(module)
    text = made.without_body(str(binding.parse_assembly(str(module))))
    assert text.count("define ") == 1
    assert "declare i64 @handshake.a0.12(i64)\n" in text


def test_what_numba_has_not_shown_makes_no_frame() -> None:
    assert frame_of(SimpleNamespace(library=SimpleNamespace()), (), ()) is None


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
    """In an empty folder: the first of each is compiled, the others are filled in."""
    for nulls in (False, True):
        for on in PREDICATES[name]:
            case = Case(table(1, nulls), table(2, nulls), on, windows_of("30 tuples"))
            left, right = numbered(case)
            for algorithm in ("three_step", "low_latency"):
                plan = prepare(left.schema, right.schema, on, window="30 tuples", algorithm=algorithm)
                assert pairs_of(list(Replay(plan, left, right))) == sorted(expect(case).pairs), (on, nulls)
