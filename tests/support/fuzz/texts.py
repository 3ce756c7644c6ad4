# ruff: noqa: E501, PT017 - texts to mutate, and errors to look at
"""Mutated texts: predicates, queries, declarations, windows and addresses."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import query_oracle
from expressions import FAMILIES, make_expression, make_rows
from fuzz.mutate import mutate_text
from fuzz.run import refusal
from handshake.errors import HandshakeError, QueryError
from handshake.io.udp.receive import layout_of
from handshake.io.udp.sockets import Endpoint
from handshake.io.udp.wire import Layout
from handshake.operators.query import Query
from handshake.plan import parse
from handshake.plan.algebra import Plan
from handshake.plan.analyse import analyse, describe
from handshake.plan.bind import bind, bind_value
from handshake.plan.explain import dot, explain_plan
from handshake.plan.expr import Column, Expr, Literal, show, transform
from handshake.plan.fold import fold
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from handshake.schema import BOOL, arrow_of
from handshake.testing import oracle
from handshake.windows import parse_window
from query_cases import JOINS, LAYERED, NOW, ODD, ODD_JOINS, PAPER, QUERIES, TRADES, TWO, WINDOWS
from query_streams import as_physical, compare, results
from strategies import scope_of

__all__ = [
    "PREDICATES",
    "check_address",
    "check_declaration",
    "check_predicate",
    "check_query",
    "check_window",
    "make_address",
    "make_declaration",
    "make_predicate",
    "make_query",
    "make_window",
]

PREDICATES = (
    "l.i32 BETWEEN l.i8 - 10 AND l.i64 + 10 AND l.f32 < l.f64",
    "l.s LIKE 'a!%_' ESCAPE '!' OR NOT l.b AND l.code NOT ILIKE '%x'",
    "ABS(l.n2 - l.n9) <= 0.50 AND l.f64 / 2 <> -1e-3",
    "l.ts - TIMESTAMP '2024-01-01 00:00:00' < INTERVAL 10 SECONDS OR l.ts > DATE '2024-01-01' + INTERVAL '1' DAY",
    "CASE WHEN l.i32 > 1 THEN 'it''s' WHEN l.b THEN l.s ELSE NULL END = l.code",
    "CASE l.i32 WHEN 1 THEN 2 END IN (1, 2, l.i8) OR l.u8 IS NOT NULL",
    "CAST(l.s AS DECIMAL(10, 2)) = l.n2 AND TRY_CAST(l.f64 AS INT) % 7 = l.i32 DIV 3",
    "l.day + 3 >= DATE '2024-02-29' AND (l.day - DATE '2024-01-01') + 1 < 5 AND 3 + l.day <> l.day",
    "LEAST(l.i32, l.i8, 3) = GREATEST(l.i64, 0) AND COALESCE(l.f32, l.f64, 0.1) > POWER(l.f64, 2)",
    "SUBSTRING(l.s, -3, 2) || TRIM(LEADING FROM l.code) = CONCAT(UPPER(l.s), LOWER('É'))",
    "YEAR(l.ts) = EXTRACT(MONTH FROM l.day) AND HOUR(l.ts) < 12 AND l.ts > TIMESTAMP '2024-01-01 10:00:00.5'",
    "l.i32 <=> l.i8 AND l.s IS DISTINCT FROM l.code AND l.b IS NOT TRUE AND NULLIF(l.i32, 0) IS NULL",
    "REGEXP_LIKE(l.s, 'a+\\\\d') AND STARTSWITH(l.code, \"b\") AND LENGTH(l.s) > 3 AND `l`.`i32` = 1",
    "IF(l.b, l.i32, l.i8) = 1 AND ROUND(l.n2) = FLOOR(l.f64) AND LOG(2, l.f64) > LN(l.f64) AND l.i8 + NULL = 1",
    "9223372036854775807 + l.i32 > 99999999999999999999.5 AND l.i32::BIGINT = 1L AND 0.1 + 0.2 = 0.3",
)
QUERY_TEXTS = (
    *(TRADES + text for text in PAPER.values()),
    *("".join(parts) for parts in QUERIES.values()),
    *(TWO + text for text in (JOINS | LAYERED).values()),
    *(ODD | ODD_JOINS | WINDOWS | NOW).values(),
)
DECLARATIONS = (
    "CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int);",
    "CREATE INPUT STREAM R (k int8, v decimal(5, 2), t timestamp, s string) TIMESTAMP BY t LATENESS 2;",
    "CREATE INPUT STREAM S (a uint64, b float, c double, d bool, e date, f long, g binary, h timestamp_ns);",
    *(re.split(r"(?=SELECT|INSERT)", text)[0] for text in QUERY_TEXTS),
)
LAYOUTS = (
    "Seqnr int, Symbol string(4), Price int, Volume int",
    "kind uint8, price decimal(10, 2), t timestamp_us, s char(8), b binary(3), d date, f float, ok bool",
)
WINDOW_TEXTS = (
    "15 minutes",
    "1000 tuples",
    "1.5 seconds",
    "250 ms",
    "now",
    "1 hour 30 minutes",
    "3 rows",
    "2 days",
)
ADDRESSES = (
    "udp://127.0.0.1:5000?sequence=yes", "udp://[::1]:5000", "udp://host:9?ends=2&idle=3&buffer=1024&coalesce=no",
)  # fmt: skip
WORDS = (
    *re.findall(
        r"\S+",
        """
    SELECT FROM WHERE GROUP BY HAVING INTO UNION ALL CREATE INPUT STREAM TIMESTAMP LATENESS SIZE ADVANCE TIME
    TUPLES ( ) [ ] , ; . * AS JOIN SESSION TUMBLE HOP CUMULATE OFFSET FIRST PARTIAL NOW ms ON AND OR NOT NULL IN
    BETWEEN CASE WHEN THEN END ELSE CAST TRY_CAST LIKE ESCAPE IS DAY MONTH YEAR DATE INTERVAL DECIMAL STRING INT
    count sum avg wsum median mode window_start int string decimal double bool 0 1 -1 .5 1. 1e 1e400 1e-400
    999999999999999999999 'x' '' "y" ` -- /* */ = < % :: @ $ ? { } -> => || # ! é 😀 ² 0x1F stddev first max_by
    percentile string_agg collect_list any FILTER WITHIN IGNORE NULLS WITH ORDER LIMIT DISTINCT OVER PARTITION
    VALUES LATERAL PIVOT EXISTS ABS( COALESCE( ROUND( SUBSTRING( REPEAT( LPAD( POWER( x l k v t R.k l.s l.i32 l.f64
    """,
    ),
    *("\\", "\n", "\0", "\u0661", "1" * 400, "(" * 50, "'2024-02-30'", "'99999-01-01'", "INTERVAL '1' DAY"),
)
LIKELY = re.findall(
    r"\S+",
    """
    count() sum avg min max median mode 0 1 2 3 .5 .005 .01 .002 1.5 -1 'UBSN' 'a' NULL TIME TUPLES AND OR NOT
    < <= > >= = <> + - * / % k v w t g h i l u d e x R.k S.k R S Price Volume Symbol ( ) , COALESCE(
    stddev variance first last any every collect_list string_agg max_by( percentile( ORDER FILTER(WHERE
    ABS( CAST( DISTINCT window_start GROUP BY HAVING WHERE LATENESS IS BETWEEN IN SIZE ADVANCE int8 int long
    SESSION TUMBLE HOP CUMULATE OFFSET FIRST PARTIAL NOW ROWS ms double decimal(5,2)
    """,
)
"""Words of queries: with one of them in the place of another, a text is often a query again."""


# Predicates


@lru_cache(maxsize=8)
def _table(seed: int) -> tuple[Any, list[Any]]:
    table = make_rows(Random(seed), 8)
    return scope_of(table.schema, pa.schema({"none": pa.int8()})), oracle.rows(table)


def make_predicate(rng: Random) -> tuple[int, str]:
    """Make a mutated predicate, and the number of the table for it."""
    table, own = rng.randrange(8), rng.random() < 0.5
    text = rng.choice(PREDICATES) if own else make_expression(rng, rng.choice(FAMILIES), 2)
    return table, mutate_text(rng, text, WORDS, PREDICATES)


def check_predicate(given: tuple[int, str], rng: Random, folder: Path) -> bool | str:
    """Bind a predicate; if it has a meaning, its value for a row is that of the oracle."""
    table, text = given
    scope, rows = _table(table)
    try:
        tree = parse(text)
        assert show(tree)
        bound = bind_value(tree, scope)
    except HandshakeError as error:
        return refusal(error)
    assert show(bound)
    if bound.type == BOOL:
        try:
            assert list(describe(analyse(bind(tree, scope)))) is not None
        except HandshakeError as error:
            return refusal(error)
    row = rng.choice(rows)
    found, want = _fold(bound, row), oracle.evaluate(bound, [row])
    same = (
        repr(found) == repr(want) if isinstance(found, float) else type(found) is type(want) and found == want
    )
    assert same, f"{text!r} is {found!r} instead of {want!r} for {row}"
    return True


def _fold(bound: Expr, row: Any) -> Any:
    folded = fold(
        transform(bound, lambda e: Literal(row[e.name], type=e.type) if isinstance(e, Column) else e)
    )
    assert isinstance(folded, Literal), folded
    return folded.value


# Queries


def make_query(rng: Random) -> str:
    """Make a mutated query."""
    likely = rng.random() < 0.3
    return mutate_text(rng, rng.choice(QUERY_TEXTS), LIKELY if likely else WORDS, QUERY_TEXTS)


def check_query(text: str, rng: Random, folder: Path) -> bool | str:
    """Plan a query; one in fifty that have a meaning is run, and gives what the oracle gives."""
    try:
        plan = parse_query(text)
    except QueryError as error:
        if error.line is not None:
            assert 1 <= error.line <= text.count("\n") + 1
            assert error.excerpt.endswith("^")
        return refusal(error)
    better = optimise(plan)
    assert [o.schema for o in better.outputs] == [o.schema for o in plan.outputs]
    assert explain_plan(better)
    assert dot(plan)
    if rng.random() < 0.02 and _declares_all(plan):
        _run_query(rng, plan)
        return "compared"
    return True


def _declares_all(plan: Plan) -> bool:
    """Return whether inputs declare all fields of the streams that they carry, as rows need them."""
    own = {source.name: set(source.fields.names) for source in plan.inputs}
    return all(own[s.name] <= own[s.demux.stream] for s in plan.inputs if s.demux is not None)


def _run_query(rng: Random, plan: Plan) -> None:
    items = [_arrival(rng, plan, at) for at in range(rng.randrange(14))]
    query = Query(plan, optimised=rng.random() < 0.5)
    wanted = query_oracle.run(plan, as_physical(query, items))
    compare(results(query, [[item] for item in items]), wanted)


def _arrival(rng: Random, plan: Plan, at: int) -> tuple[str, dict[str, Any]]:
    source = rng.choice([source for source in plan.inputs if source.demux is None])
    row: dict[str, Any] = {}
    for field in source.fields:
        if field.name == source.time:
            row[field.name] = at + rng.choice((0, 0, 1, -2))
        else:
            row[field.name] = _value(rng, arrow_of(field.type))
    return source.name, row


def _value(rng: Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.1:
        return None
    if pa.types.is_string(kind):
        return rng.choice(("", "a", "b", "UBSN"))
    if pa.types.is_binary(kind):
        return rng.choice((b"", b"a"))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_timestamp(kind):
        return rng.randrange(20)
    number = rng.choice((0, 1, 2, 3, 5, 68, 70))
    if pa.types.is_decimal(kind):
        return Decimal(number if kind.precision - kind.scale > 1 else 0)
    return pa.array([number]).cast(pa.int32()).cast(kind)[0].as_py() if not pa.types.is_time(kind) else None


# Declarations, windows and addresses


def make_declaration(rng: Random) -> tuple[str, str]:
    """Make a mutated declaration of fields on the wire, or of streams."""
    if rng.random() < 0.3:
        return "fields", mutate_text(rng, rng.choice(LAYOUTS), WORDS, LAYOUTS)
    return "streams", mutate_text(rng, rng.choice(DECLARATIONS), WORDS, DECLARATIONS)


def check_declaration(given: tuple[str, str], rng: Random, folder: Path) -> bool | str:
    """Read a declaration of streams, or of fields on the wire."""
    what, text = given
    if what == "fields":
        layout = Layout.parse(text)
        assert layout.width == layout.dtype.itemsize > 0
        batch, _ = layout.unpack(layout.gather(_zeros(layout.width), _zeros(1).astype("int64")))
        assert batch.schema.names == [f.name for f in layout.fields]
        return True
    name = re.search(r"STREAM\s+(\w+)", text)
    plan = parse_query(f"{text} SELECT * FROM {name[1] if name else 'R'}")
    for source in plan.inputs:
        assert pa.schema([(f.name, arrow_of(f.type)) for f in source.fields]).names == list(
            source.fields.names
        )
        try:
            layout_of(source)
        except HandshakeError as error:
            refusal(error)
    return True


def _zeros(count: int) -> Any:
    import numpy as np

    return np.zeros(count, np.uint8)


def make_window(rng: Random) -> str:
    """Make a mutated window."""
    return mutate_text(rng, rng.choice(WINDOW_TEXTS), (*WORDS, *WINDOW_TEXTS, "second", "week", "us"))


def check_window(text: str, rng: Random, folder: Path) -> bool | str:
    """Read a window; what it shows is read as the same window."""
    window = parse_window(text)
    assert parse_window(str(window)) == window, str(window)
    for unit in ("s", "ms", "us", "ns"):
        try:
            window.reach(unit)
        except HandshakeError as error:
            refusal(error)
    return True


def make_address(rng: Random) -> str:
    """Make a mutated address of datagrams."""
    return mutate_text(rng, rng.choice(ADDRESSES), ("?", "&", "=", ":", "/", "%", "[", "]", *WORDS))


def check_address(text: str, rng: Random, folder: Path) -> bool | str:
    """Read an address of datagrams."""
    end = Endpoint.parse(text)
    assert end.host
    assert 0 < end.port < 65536
    return True
