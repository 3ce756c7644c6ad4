"""Fields of structs, elements of lists and values of maps in predicates."""

from __future__ import annotations

import math
from datetime import date

import pyarrow as pa
import pytest

import handshake as hs
from handshake.errors import ExpressionError
from handshake.plan import bind, parse
from handshake.testing import oracle
from strategies import scope_of

LEFT = pa.table(
    {
        "row": [0, 1, 2, 3],
        "s": pa.array([{"f": 1, "g": {"h": "x"}}, {"f": None, "g": None}, None, {"f": 2, "g": {"h": None}}]),
        "xs": pa.array([[1, 2], [], None, [None, 5, 7]], pa.list_(pa.int32())),
        "ys": pa.array(
            [[{"b": 1.5}], [{"b": None}], None, []], pa.large_list(pa.struct({"b": pa.float64()}))
        ),
        "pair": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int16(), 2)),
        "when": pa.array([{"at": date(2024, 1, day)} for day in (1, 2, 3, 4)]),
        "m": pa.array([[("x", 1), ("y", None)], [], None, [("y", 7)]], pa.map_(pa.string(), pa.int32())),
        "n": pa.array([[(1, "x"), (2, "y")], None, [(7, "y")], []], pa.map_(pa.int16(), pa.string())),
        "deep": pa.array(
            [[("a", {"b": [2, 1]})]] * 4, pa.map_(pa.string(), pa.struct({"b": pa.list_(pa.int8())}))
        ),
        "real": pa.array(
            [[(0.0, 1)], [(math.nan, 2)], [(1.5, 7)], None], pa.map_(pa.float64(), pa.decimal128(5, 2))
        ),
        "days": pa.array([[(date(2024, 1, n), n)] for n in (1, 2, 3, 4)], pa.map_(pa.date32(), pa.int64())),
        "i": [1, 0, None, 2],
    }
)
RIGHT = pa.table({"k": [1, 2, 7], "w": ["x", "y", None]})
CONDITIONS = (
    *("l.s.f = r.k", "l.s.g.h = r.w", "l.s.g.h < r.w", "l.s.F + 1 = r.k", "s.f = 1", "l.s['f'] = r.k"),
    *("l.xs[0] = r.k", "l.xs[l.i] = r.k", "l.xs[5] IS NULL", "l.xs[-1] IS NULL", "ELEMENT_AT(l.xs, 2) = r.k"),
    *("l.ys[0].b > r.k", "l.pair[1] % 2 = 0 AND l.pair[0] >= r.k", "l.when.at < '2024-01-03'", "xs[r.k] = 5"),
    *("l.m['x'] = r.k", "l.m.y = r.k", "m[r.w] IS NULL", "l.m['z'] IS NULL", "ELEMENT_AT(l.m, 'y') = r.k"),
    *(
        "l.n[2] = r.w",
        "l.n[r.k] = 'y'",
        "ELEMENT_AT(l.n, 1) = r.w",
        "l.n[NULL] IS NULL",
        "l.n[l.i] LIKE 'x%'",
    ),
    *(
        "l.deep['a'].b[0] = r.k",
        "l.real[-0.0] = r.k",
        "l.real[CAST('nan' AS DOUBLE)] = r.k",
        "l.real[1.5] = r.k",
    ),
    *(
        "l.days['2024-01-02'] = r.k",
        "l.days[DATE '2024-01-01' + r.k] = r.k + 1",
        "l.m[CONCAT('', r.w)] = r.k",
    ),
    *("UPPER(l.s.g.h) = 'X'", "l.s.g.h LIKE 'x%' OR l.xs[2] = r.k", "YEAR(l.when.at) + r.k = 2025"),
)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("start", [0, 1])
def test_nested_values_join_as_in_the_oracle(condition: str, start: int) -> None:
    left = LEFT.slice(start)
    bound = bind(parse(condition), scope_of(left.schema, RIGHT.schema))
    rows, others = oracle.rows(left), oracle.rows(RIGHT)
    want = sorted((a["row"], b["k"]) for a in rows for b in others if oracle.evaluate(bound, [a, b]) is True)
    found = hs.join(left, RIGHT, condition).select(["row", "k"]).to_pylist()
    assert sorted((row["row"], row["k"]) for row in found) == want


def test_several_streams() -> None:
    streams = {"a": LEFT, "b": RIGHT, "c": RIGHT}
    with hs.MultiJoin(streams, "a.s.f = b.k AND a.pair[1] = c.k") as join:
        found = [batch for name, rows in streams.items() for batch in join.push(name, rows)]
    assert [row for batch in found for row in batch.column("row").to_pylist()] == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l.m[1] = 1", "l.m has keys of type string, but 1 is int64; cast it"),
        ("l.n['a'] = 'x'", "l.n has keys of type int16, but 'a' is string; cast it"),
        ("l.m = 1", "l.m is map<string, int32>; name a field of a struct, as in s.name"),
        (
            "ELEMENT_AT(l.xs, 0) = 1",
            r"element_at\(\) takes a constant from 1 on; or write xs\[i\], from 0 on",
        ),
        ("ELEMENT_AT(l.i, 1) = 1", "l.i is int64 and has no elements"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        bind(parse(text), scope_of(LEFT.schema, RIGHT.schema))
