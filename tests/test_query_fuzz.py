# ruff: noqa: PT017 - each text is either planned or refused
"""Mutated queries: each is planned, or refused with an error of this package that says where."""

from __future__ import annotations

import re
from random import Random

import pytest

from handshake.errors import HandshakeError, QueryError
from handshake.plan.algebra import Plan
from handshake.plan.explain import dot, explain_plan
from handshake.plan.optimise import RULES, optimise
from handshake.plan.query import parse_query
from query_cases import JOINS, PAPER, QUERIES, TRADES, TWO

VALID = (
    *(TRADES + text for text in PAPER.values()),
    *("".join(parts) for parts in QUERIES.values()),
    *(TWO + text for text in JOINS.values()),
)
TOKENS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[A-Za-z_]\w*|\d*\.?\d+|<=>|<>|<=|>=|\|\||::|\s+|.", re.DOTALL)
WORDS = re.findall(
    r"\S+",
    """
    SELECT FROM WHERE GROUP BY HAVING INTO UNION ALL CREATE INPUT STREAM TIMESTAMP LATENESS
    SIZE ADVANCE TIME TUPLES ( ) [ ] , ; . * AS JOIN
    ON AND OR NOT NULL IN BETWEEN CASE WHEN THEN END count sum avg
    wsum median mode window_start int string decimal double 0 1 -1 .5 1e400 999999999999999999999
    'x' "y" ` -- /* */ = < % :: @ $ ? {
    WITH ORDER LIMIT DISTINCT OVER PARTITION VALUES LATERAL PIVOT INTERVAL EXISTS \\ \0 é
    """,
)


def mutated(random: Random) -> str:
    """A valid query with some tokens dropped, doubled, swapped, replaced or put in."""
    tokens = TOKENS.findall(random.choice(VALID))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(tokens))
        match random.randrange(6):
            case 0:
                del tokens[at]
            case 1:
                tokens.insert(at, tokens[at])
            case 2:
                other = random.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at] = random.choice(WORDS)
            case 4:
                tokens.insert(at, f" {random.choice(WORDS)} ")
            case 5:
                tokens = tokens[:at] or tokens
        tokens = tokens or [" "]
    return "".join(tokens)


def check(text: str) -> None:
    try:
        plan = parse_query(text)
    except QueryError as error:
        assert error.message
        if error.line is not None:
            assert 1 <= error.line <= text.count("\n") + 1
            assert error.excerpt.endswith("^")
        return
    assert isinstance(plan, Plan)
    try:
        better = optimise(plan, RULES)
    except HandshakeError:
        return
    assert [o.schema for o in better.outputs] == [o.schema for o in plan.outputs]
    assert explain_plan(better)
    assert dot(plan)


@pytest.mark.parametrize("seed", range(20))
def test_mutated_queries(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        check(mutated(random))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_many_mutated_queries(seed: int) -> None:
    random = Random(f"long {seed}")
    for _ in range(1000):
        check(mutated(random))


@pytest.mark.parametrize(
    "text", ["(" * 3000, "SELECT " + "(" * 500 + "1" + ")" * 500 + " FROM R", "SELECT * " * 20_000]
)
def test_queries_that_are_too_much(text: str) -> None:
    with pytest.raises(QueryError):
        parse_query(TWO + text)
