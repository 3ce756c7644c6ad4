# ruff: noqa: PT017 - each text is either planned or refused
"""Mutated queries: each is planned, and gives what the oracle gives, or is refused with a place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.errors import HandshakeError, QueryError
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.explain import dot, explain_plan
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from query_cases import JOINS, LAYERED, NOW, ODD, ODD_JOINS, PAPER, QUERIES, TRADES, TWO, WINDOWS
from query_streams import arrivals, as_physical, compare, cuts, results, results_together, slices

VALID = (
    *(TRADES + text for text in PAPER.values()),
    *("".join(parts) for parts in QUERIES.values()),
    *(TWO + text for text in (JOINS | LAYERED).values()),
    *(ODD | ODD_JOINS | WINDOWS | NOW).values(),
)
TOKENS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[A-Za-z_]\w*|\d*\.?\d+|<=>|<>|<=|>=|\|\||::|\s+|.", re.DOTALL)
WORDS = re.findall(
    r"\S+",
    """
    SELECT FROM WHERE GROUP BY HAVING INTO UNION ALL CREATE INPUT STREAM TIMESTAMP LATENESS
    SIZE ADVANCE TIME TUPLES ( ) [ ] , ; . * AS JOIN SESSION TUMBLE HOP CUMULATE OFFSET FIRST PARTIAL NOW ms
    ON AND OR NOT NULL IN BETWEEN CASE WHEN THEN END count sum avg
    wsum median mode window_start int string decimal double 0 1 -1 .5 1e400 999999999999999999999
    'x' "y" ` -- /* */ = < % :: @ $ ? {
    stddev first max_by percentile string_agg collect_list any FILTER WITHIN IGNORE NULLS
    WITH ORDER LIMIT DISTINCT OVER PARTITION VALUES LATERAL PIVOT INTERVAL EXISTS \\ \0 é
    """,
)
LIKELY = re.findall(
    r"\S+",
    """
    count() sum avg min max median mode 0 1 2 3 .5 .005 .01 .002 1.5 -1 'UBSN' 'a' NULL TIME TUPLES AND OR NOT
    < <= > >= = <> + - * / % k v w t g h i l u d e x R.k S.k R S Price Volume Symbol ( ) , COALESCE(
    stddev variance first last any every collect_list string_agg max_by( percentile( ORDER FILTER(WHERE
    ABS( CAST( DISTINCT window_start GROUP BY HAVING WHERE LATENESS IS BETWEEN IN SIZE ADVANCE int8 int long
    SESSION TUMBLE HOP CUMULATE OFFSET FIRST PARTIAL NOW ROWS ms
    double decimal(5,2)
    """,
)
"""Words of queries that are valid, mostly: what takes such a word's place is often a query again."""


def make_mutant(random: Random, words: Sequence[str] = WORDS, most: int = 4) -> str:
    """Drop, double, swap, replace or insert some tokens of a valid query."""
    tokens = TOKENS.findall(random.choice(VALID))
    for _ in range(random.randint(1, most)):
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
                tokens[at] = random.choice(words)
            case 4:
                tokens.insert(at, f" {random.choice(words)} ")
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
        better = optimise(plan)
    except HandshakeError:
        return
    assert [o.schema for o in better.outputs] == [o.schema for o in plan.outputs]
    assert explain_plan(better)
    assert dot(plan)


@pytest.mark.parametrize("seed", range(20))
def test_mutated_queries(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        check(make_mutant(random))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_many_mutated_queries(seed: int) -> None:
    random = Random(f"long {seed}")
    for _ in range(1000):
        check(make_mutant(random))


def another(random: Random) -> Plan:
    """Plan a mutated query that is still a query."""
    while True:
        text = make_mutant(random, LIKELY, most=2)
        try:
            plan = parse_query(text)
        except QueryError:
            continue
        if text not in VALID and declares_all(plan):
            print(text)
            return plan


def declares_all(plan: Plan) -> bool:
    """Return whether inputs declare all fields of the streams that they carry, as tuples need them."""
    own = {source.name: set(source.fields.names) for source in plan.inputs}
    return all(own[s.name] <= own[s.demux.stream] for s in plan.inputs if s.demux is not None)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(500))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_queries_run(seed: int, data: st.DataObject) -> None:
    plan = another(Random(f"run {seed}"))
    items = data.draw(arrivals(plan, most=16))
    query = Query(plan, optimised=data.draw(st.booleans()))
    wanted = query_oracle.run(plan, as_physical(query, items))
    if data.draw(st.booleans()):
        compare(results(query, cuts(data.draw, items)), wanted)
    else:
        compare(results_together(query, slices(data.draw, items)), wanted)


@pytest.mark.parametrize(
    "text", ["(" * 3000, "SELECT " + "(" * 500 + "1" + ")" * 500 + " FROM R", "SELECT * " * 20_000]
)
def test_queries_that_are_too_much(text: str) -> None:
    with pytest.raises(QueryError):
        parse_query(TWO + text)
