"""Random expressions: folding, kernels, Arrow and the oracle agree, and no error is foreign."""

from __future__ import annotations

import os
import re
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import handshake as hs
from expressions import FAMILIES, as_constants, make_expression, make_rows, mutate
from handshake.errors import HandshakeError
from handshake.kernels.evaluate import evaluate
from handshake.kernels.values import values_of
from handshake.plan import Expr, parse
from handshake.plan.bind import bind_value
from handshake.plan.expr import Column, Literal, sides, transform
from handshake.plan.fold import fold
from handshake.schema import FLOAT64, UNITS, Interval, Opaque, Timestamp, Type
from handshake.testing import oracle
from strategies import scope_of

ROWS = 12


class Case:
    """A table of special values, and expressions over it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.table = make_rows(self.rng, ROWS)
        self.scope = scope_of(self.table.schema, pa.schema({"none": pa.int8()}))
        self.rows = oracle.rows(self.table)

    def expression(self) -> tuple[str, Expr | None]:
        """Draw a text; return it with its bound tree, which is None if the text is refused."""
        rng = self.rng
        text = make_expression(
            rng, rng.choice(FAMILIES), rng.choice((1, 1, 2, 2, 3)), rng.choice((0.2, 0.5, 1.0))
        )
        try:
            return text, bind_value(parse(text), self.scope)
        except HandshakeError:
            return text, None

    def fold_row(self, bound: Expr, row: int) -> Any:
        """Compute the value for one row by folding: each column is replaced by a constant."""
        values = self.rows[row]
        folded = fold(
            transform(bound, lambda e: Literal(values[e.name], type=e.type) if isinstance(e, Column) else e)
        )
        assert isinstance(folded, Literal), folded
        return folded.value

    def columns(self) -> dict[Column, pa.Array]:
        return {
            Column(0, field.name, type=field.type): self.table.column(field.name).chunk(0)
            for field in self.scope.schemas[0]
        }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b)  # NaN is NaN, and -0.0 is not 0.0
    return type(a) is type(b) and a == b


def in_nanoseconds(value: Any, kind: Type) -> Any:
    """Convert times and spans to nanoseconds, as constants take on the coarsest unit that is exact."""
    if value is None or not isinstance(kind, (Timestamp, Interval)):
        return value
    return value * UNITS[kind.unit]


def check_folding(seed: int, count: int) -> int:
    """Compare folding with the oracle; return how many expressions were not refused."""
    case, accepted = Case(seed), 0
    for number in range(count):
        if number % 500 == 499:
            case = Case(seed * 1_000_003 + number)
        text, bound = "", None
        try:
            text, bound = case.expression()
            if bound is None:
                continue
            accepted += 1
            row = case.rng.randrange(ROWS)
            found, want = case.fold_row(bound, row), oracle.evaluate(bound, [case.rows[row]])
        except Exception as error:
            raise AssertionError(f"{text} ends in {error!r}") from error
        assert same(found, want), (text, case.rows[row], found, want)
    return accepted


def check_columns(seed: int, count: int) -> int:
    """Compare the evaluation of columns, which compiles kernels, with the oracle."""
    case, accepted = Case(seed), 0
    for _ in range(count):
        text, bound = "", None
        try:
            text, bound = case.expression()
            if bound is None:
                continue
            found = values_of(evaluate(bound, case.columns(), ROWS))
        except HandshakeError:
            continue
        except Exception as error:
            raise AssertionError(f"{text} ends in {error!r}") from error
        accepted += 1
        for row, value in enumerate(found):
            want = oracle.evaluate(bound, [case.rows[row]])
            assert same(value, want), (text, case.rows[row], value, want)
    return accepted


def check_constants(seed: int, count: int) -> None:
    """Compare expressions of columns with the same ones of constants in their place."""
    case = Case(seed)
    given = case.table.to_pylist()
    for _ in range(count):
        text, bound = case.expression()
        if bound is None or re.search("f32|FLOAT|2F", text):  # constants do not widen float32 columns
            continue
        row = case.rng.randrange(ROWS)
        written = as_constants(text, given[row])
        try:
            constant = bind_value(parse(written), case.scope)
            found = in_nanoseconds(case.fold_row(constant, row), constant.type)
        except Exception as error:
            raise AssertionError(f"{written} ends in {error!r}") from error
        want = in_nanoseconds(oracle.evaluate(bound, [case.rows[row]]), bound.type)
        assert same(found, want), (text, written, found, want)


def check_mutants(seed: int, count: int) -> int:
    """Bind and fold mutated expressions; return how many still have a meaning."""
    case, accepted = Case(seed), 0
    for _ in range(count):
        text = mutate(case.rng, make_expression(case.rng, case.rng.choice(FAMILIES), 2))
        try:
            bound = bind_value(parse(text), case.scope)
            if not isinstance(bound.type, Opaque) and sides(bound) <= {0}:
                case.fold_row(bound, 0)
            accepted += 1
        except HandshakeError:
            continue
        except Exception as error:
            raise AssertionError(f"{text!r} ends in {error!r}") from error
    return accepted


@pytest.mark.parametrize("seed", range(2))
def test_folding_agrees_with_the_oracle(seed: int) -> None:
    assert check_folding(seed, 5_000) > 4_900


@pytest.mark.parametrize("seed", range(2))
def test_columns_agree_with_the_oracle(seed: int) -> None:
    assert check_columns(seed, 50) > 40


def test_constants_agree_with_columns() -> None:
    check_constants(5, 1_500)


@pytest.mark.parametrize("text", ["CEIL(l.x)", "FLOOR(l.x)", "ROUND(l.x)", "SIGN(l.x)", "1 / CEIL(l.x, 0)"])
def test_zeros_keep_their_sign(text: str) -> None:
    table = pa.table({"x": [-0.5, -0.0, 0.0, 0.3]})
    bound = bind_value(parse(text), scope_of(table.schema, table.schema))
    column = Column(0, "x", type=FLOAT64)
    found = values_of(evaluate(bound, {column: table.column("x").chunk(0)}, 4))
    assert list(map(repr, found)) == [repr(oracle.evaluate(bound, [row])) for row in oracle.rows(table)]


def test_mutants_have_a_meaning_or_are_refused() -> None:
    assert 50 < check_mutants(3, 1_000) < 900


def test_conditions_of_joins_agree_with_the_oracle() -> None:
    case = Case(4)
    for _ in range(8):
        text = make_expression(case.rng, "bool", 2)
        bound = bind_value(parse(text), case.scope)
        want = [row for row in range(ROWS) if oracle.evaluate(bound, [case.rows[row]]) is True]
        found = hs.join(case.table.append_column("row", pa.array(range(ROWS))), {"none": [1]}, text)
        assert sorted(found.column("row").to_pylist()) == want, text


PARTS = int(os.environ.get("EXPRESSION_PARTS", "20"))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_a_million_expressions(part: int) -> None:
    size = 1_000_000 // PARTS
    assert check_folding(1000 + part, size) > 0.9 * size
    assert check_columns(2000 + part, 500) > 400
    check_constants(4000 + part, size // 10)
    assert check_mutants(3000 + part, size // 10) > 0
