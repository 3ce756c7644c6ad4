"""Mutated predicates: each is read and bound, or refused with an error of this package, nothing else."""

from __future__ import annotations

import re
from random import Random

import pyarrow as pa
import pytest

from handshake.errors import ExpressionError, UnsupportedError
from handshake.plan import Expr, bind, parse
from handshake.plan.analyse import analyse, describe
from handshake.plan.expr import show
from strategies import scope_of

LEFT = pa.schema(
    {
        "x": pa.int32(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "d": pa.float64(),
        "n": pa.decimal128(10, 2),
        "day": pa.date32(),
        "ts": pa.timestamp("us"),
        "tz": pa.timestamp("ms", "Europe/Berlin"),
        "du": pa.duration("ms"),
        "clock": pa.time64("us"),
        "s": pa.string(),
        "raw": pa.binary(),
        "b": pa.bool_(),
    }
)
SCOPE = scope_of(LEFT, pa.schema([(name, LEFT.field(name).type) for name in LEFT.names]))

VALID = (
    "l.x BETWEEN r.x - 10 AND r.x + 10 AND l.f < r.f",
    "l.s LIKE 'a!%_' ESCAPE '!' OR NOT l.b AND r.s NOT ILIKE '%x'",
    "ABS(l.n - r.n) <= 0.50 AND l.d / 2 <> -1e-3",
    "l.ts - r.ts < INTERVAL 10 SECONDS AND l.tz > TIMESTAMP '2024-01-01 00:00:00' + INTERVAL '1' DAY",
    "CASE WHEN l.x > 1 THEN 'it''s' WHEN r.b THEN l.s ELSE NULL END = r.s",
    "CASE l.x WHEN 1 THEN 2 END IN (1, 2, r.x) OR l.u IS NOT NULL",
    "CAST(l.s AS DECIMAL(10, 2)) = r.n AND TRY_CAST(r.d AS INT) % 7 = l.x DIV 3",
    "l.day + 3 >= DATE '2024-02-29' AND (l.day - r.day) + 1 < 5 AND 3 + r.day <> l.day",
    "LEAST(l.x, r.x, 3) = GREATEST(l.u, 0) AND COALESCE(l.f, r.d, 0.1) > POWER(l.d, 2)",
    "SUBSTRING(l.s, -3, 2) || TRIM(LEADING FROM r.s) = CONCAT(UPPER(l.s), LOWER('É'))",
    "YEAR(l.ts) = EXTRACT(MONTH FROM r.day) AND HOUR(l.tz) < 12 AND l.clock > TIME '10:00:00.5'",
    "l.x <=> r.x AND l.s IS DISTINCT FROM r.s AND l.b IS NOT TRUE AND NULLIF(l.x, 0) IS NULL",
    "REGEXP_LIKE(l.s, 'a+\\\\d') AND STARTSWITH(r.s, \"b\") AND LENGTH(l.s) > 3 AND `l`.`x` = 1",
    "l.tz > '2024-07-01T00:00:00+02:00' -- a comment\n AND l.du * 2 < INTERVAL '1 hour 30 minutes'",
    "IF(l.b, l.x, r.x) = 1 AND ROUND(l.n) = FLOOR(r.d) AND LOG(2, l.d) > LN(r.d) AND l.ts + NULL = r.ts",
    "9223372036854775807 + l.x > 99999999999999999999.5 AND l.x::BIGINT = 1L AND 0.1 + 0.2 = 0.3",
)
TOKENS = re.compile(r"'(?:[^']|'')*'|[A-Za-z_]\w*|\d+(?:\.\d+)?|<=>|<>|<=|>=|\|\||::|\s+|.", re.DOTALL)
WORDS = (
    *re.findall(
        r"\S+",
        """AND OR NOT NULL TRUE IS IN LIKE ESCAPE BETWEEN CASE WHEN THEN END ELSE CAST AS INTERVAL DAY MONTH
        DATE TIME TIMESTAMP DECIMAL STRING INT SUM COUNT OVER SELECT FROM WHERE EXISTS ANY ALL UNNEST COLLATE
        DISTINCT MAP DATE_TRUNC ARRAY STRUCT EXTRACT TRIM BOTH FORMAT AT ZONE FILTER ABS ( ) , . ; ' " ` *
        % [ ] { } ? : @ $ # ! -> => || :: /* */ -- é 😀 ² 0x1F 1e999 1e 1. .5 '' 'x' -1 0 x l r.s l.tz
        l.raw r.clock""",
    ),
    *("\\", "\n", "\0", "\u0661", "1" * 400),
)


def make_mutant(rng: Random) -> str:
    """Delete, double, replace or move a few tokens or characters of a valid predicate."""
    text = rng.choice(VALID)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        parts = TOKENS.findall(text) if rng.random() < 0.7 else list(text)
        if not parts:
            break
        at = rng.randrange(len(parts))
        match rng.randrange(6):
            case 0:
                del parts[at]
            case 1:
                parts.insert(at, parts[at])
            case 2:
                parts[at] = rng.choice(WORDS)
            case 3:
                parts.insert(at, rng.choice((" ", "")) + rng.choice(WORDS) + rng.choice((" ", "")))
            case 4:
                parts[at] = rng.choice(TOKENS.findall(rng.choice(VALID)))
            case _:
                parts.insert(rng.randrange(len(parts)), parts.pop(at))
        text = "".join(parts)
    return text


def outcome(text: str) -> Expr | None:
    """Bind a predicate, analyse and show it as `explain` does; return None if it is refused."""
    try:
        tree = parse(text)
        assert isinstance(tree, Expr)
        assert show(tree)
        bound = bind(tree, SCOPE)
    except (ExpressionError, UnsupportedError):
        return None
    assert show(bound)
    assert list(describe(analyse(bound))) is not None
    return bound


@pytest.mark.parametrize("text", VALID)
def test_the_predicates_to_mutate_are_valid(text: str) -> None:
    assert outcome(text) is not None


def run(seed: int, count: int) -> int:
    """Count the mutants that are still predicates, of a given number."""
    rng = Random(seed)
    accepted = 0
    for _ in range(count):
        text = make_mutant(rng)
        try:
            accepted += outcome(text) is not None
        except Exception as error:
            raise AssertionError(f"{text!r} ends in {error!r}") from error
    return accepted


@pytest.mark.parametrize("seed", range(4))
def test_mutants_are_predicates_or_refused(seed: int) -> None:
    assert 25 < run(seed, 500) < 475


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_mutants(seed: int) -> None:
    assert 500 < run(seed, 10_000) < 9_500
