# ruff: noqa: E501 - a query is easier to read in one line
"""Random queries of aggregates: every function with the clauses that it takes, in windows of all kinds."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

__all__ = ["EVERY", "MEASURES", "batches", "query", "rows", "window"]

MEASURES = """CREATE INPUT STREAM M (g string, h double, i int8, j int, l long, u uint64, d decimal(12, 2),
  e decimal(38, 3), x double, f float, b bool, y binary, a date, s timestamp(3), t timestamp(3))
TIMESTAMP BY t LATENESS .004;"""
NUMBERS = ("i", "j", "l", "u", "d", "x", "f")
SORTED = (*NUMBERS, "e", "g", "a", "s", "t")
VALUES = (*SORTED, "b", "y", "h")
CONDITIONS = ("b", "i > 0", "x > 1", "g = 'UBSN'", "NULL", "TRUE")
ADDED = ("sum", "avg", "mean", "median")
SPREADS = ("var_samp", "variance", "var_pop", "stddev", "std", "stddev_samp", "stddev_pop")
EXTREMES = ("min", "max", "mode")
TRUTHS = ("any", "some", "every", "bool_or", "bool_and", "count_if")
PICKS = ("first", "last", "first_value", "last_value", "any_value")
FRACTIONS = ("0", ".1", ".25", ".5", "0.999", "1", "1.0")
FIELDS: dict[str, list[Any]] = {
    "g": ["UBSN", "CSGN", "", "ü", "UBSN"],
    "h": [0.0, -0.0, math.nan],
    "i": [-128, -1, 0, 1, 2, 2, 127],
    "j": [-(2**31), -3, 0, 5, 2**31 - 1],
    "l": [-(2**63), -1, 0, 7, 2**63 - 1],
    "u": [0, 3, 2**64 - 1],
    "d": [Decimal("-9999999999.99"), Decimal("0.01"), Decimal("-0.05"), Decimal("12.34")],
    "e": [Decimal("9" * 35 + ".999"), Decimal("0.001"), Decimal("-1" + "0" * 34 + ".000")],
    "x": [0.0, -0.0, 0.1, 1e300, -1e300, 1.5, 5e-324, math.inf, -math.inf, math.nan, 2.0, 3.0],
    "f": [0.5, -1.25, 3.0, 0.0],
    "b": [True, False],
    "y": [b"", b"a", b"\0", b"\xff"],
    "a": [0, 1, -5, 20_000],
    "s": [0, 50, -7],
}
EVERY = (
    "count(DISTINCT g) a, count(DISTINCT x, i) b, sum(DISTINCT i) c, avg(DISTINCT d) d, count(g, x) e, count_if(i > 0) f",
    "count(*) FILTER (WHERE b) a, sum(l) FILTER (WHERE i > 0) b, avg(x) FILTER (WHERE b) c, min(d) FILTER (WHERE b) d, max(g) FILTER (WHERE i > 0) e, wsum(i, [1, 2]) FILTER (WHERE b) f, median(i) FILTER (WHERE b) h, mode(g) FILTER (WHERE b) k",
    "stddev(i) a, stddev_pop(l) b, var_samp(d) c, var_pop(x) d, variance(f) e, stddev_samp(u) f, var_pop(e) FILTER (WHERE b) h",
    "any(b) a, every(b) b, bool_or(i > 0) c, bool_and(i > 0) FILTER (WHERE b) d, some(x > 1) e",
    "first(x) a, last(g) b, first(i) IGNORE NULLS c, last(e ORDER BY l) d, first(t ORDER BY g DESC NULLS LAST, i) e, last(b, true) FILTER (WHERE i > 0) f",
    "max_by(g, i) a, min_by(x, l) b, max_by(l, g) c, min_by(i, x) FILTER (WHERE b) d, max_by(t, b) e",
    "percentile(i, .3) a, percentile(x, .5) b, percentile(d, .25) FILTER (WHERE b) c, approx_percentile(g, .5) d, approx_percentile(l, .75, 100) e, percentile_approx(d, 1) f",
    "percentile_cont(.3) WITHIN GROUP (ORDER BY i) a, percentile_cont(.1) WITHIN GROUP (ORDER BY x DESC) b, percentile_disc(.25) WITHIN GROUP (ORDER BY g DESC) FILTER (WHERE b) c, percentile_disc(1) WITHIN GROUP (ORDER BY d) e",
    "string_agg(g) a, listagg(g, ', ') WITHIN GROUP (ORDER BY i DESC) b, string_agg(DISTINCT g, ';') FILTER (WHERE i > 0) c",
    "collect_list(i) a, collect_set(g) b, array_agg(t ORDER BY l) c, collect_list(x) FILTER (WHERE b) d, collect_list(d) e",
)  # fmt: skip
"""Select lists that have every aggregate."""


def _order(random: Random) -> str:
    keys = random.sample(VALUES, random.randint(1, 2))
    ways, nulls = ("", " DESC"), ("", " NULLS FIRST", " NULLS LAST")
    return " ORDER BY " + ", ".join(f"{key}{random.choice(ways)}{random.choice(nulls)}" for key in keys)


def _call(random: Random) -> str:
    """Return a call of any aggregate, with any of the clauses that it takes."""
    one, distinct = random.choice, random.choice(["", "", "DISTINCT "])
    order, after = one(["", _order(random)]), ""
    match random.randrange(13):
        case 0:
            call = f"{one((*ADDED, *SPREADS))}({distinct}{one(NUMBERS)})"
        case 1:
            call = f"{one(SPREADS)}({distinct}{one((*NUMBERS, 'e'))})"
        case 2:
            call = f"{one((*EXTREMES, 'count'))}({distinct}{one(SORTED)})"
        case 3:
            call = f"count({distinct}{one(VALUES)}, {one(VALUES)})"
        case 4:
            call = one(["count()", "count(*)", "mode(b)", "wsum(i, [1, -2, .5])", "wsum(x, [.5, 2])"])
        case 5:
            call = f"{one(TRUTHS)}({one(CONDITIONS[:4])})"
        case 6:
            call, after = f"{one(PICKS)}({one(VALUES)}{order})", one(["", " IGNORE NULLS"])
        case 7:
            call = f"{one(['max_by', 'min_by'])}({one(VALUES)}, {one(VALUES)})"
        case 8:
            call = f"percentile({one((*NUMBERS, 'e'))}, {one(FRACTIONS)})"
        case 9:
            call = f"approx_percentile({distinct}{one(SORTED)}, {one(FRACTIONS)})"
        case 10:
            call = f"{one(['collect_list', 'collect_set'])}({distinct}{one(VALUES)}{order})"
        case 11:
            column, way = one((*NUMBERS, "e")), one(["", " DESC", " NULLS LAST"])
            name = one(["percentile_cont", "percentile_disc"])
            call = f"{name}({one(FRACTIONS)}) WITHIN GROUP (ORDER BY {column}{way})"
        case _:
            separator = one([", ', '", ", ''", ""])
            call = f"string_agg({distinct}g{separator}{order})"
    return call + one(["", f" FILTER (WHERE {one(CONDITIONS)})"]) + after


def window(random: Random) -> str:
    """Return a window of any kind."""
    size, advance = random.randint(1, 9), random.randint(1, 9)
    times, tuples = f"SIZE .{size:03} ADVANCE .{advance:03} TIME", f"SIZE {size} ADVANCE {advance} TUPLES"
    others = (
        f"SESSION {size} ms", f"TUMBLE {size} ms OFFSET {advance} ms", f"{times} OFFSET FIRST",
        f"CUMULATE {size} ms SIZE {size * random.randint(1, 3)} ms", f"{tuples} PARTIAL",
    )  # fmt: skip
    return f"[{random.choice([times, times, tuples, random.choice(others)])}]"


def query(random: Random) -> str:
    """Return a query of some aggregates."""
    listed = [f"{_call(random)} AS c{at}" for at in range(random.randint(1, 4))]
    keys = random.choice(["", "", "g", "h, b", "i"])
    where = random.choice(["", "", " WHERE i > 0"])
    grouped = f" GROUP BY {keys}" if keys else ""
    having = random.choice(["", "", " HAVING count() > 1", " HAVING any(b)"])
    columns = ", ".join([*filter(None, [keys]), *listed])
    return f"{MEASURES} SELECT {columns} FROM M {window(random)}{where}{grouped}{having}"


def rows(random: Random, most: int = 20) -> list[dict[str, Any]]:
    """Return rows of M: times in any order, ties, NULLs, and the ends of the types."""
    nulls, made, now = random.choice([0, 0.1, 0.5]), list[dict[str, Any]](), 0
    for _ in range(random.randint(0, most)):
        now += random.randint(0, 3)
        row = {
            name: None if random.random() < nulls else random.choice(some) for name, some in FIELDS.items()
        }
        made.append(
            {**row, "t": None if random.random() < nulls / 8 else now - random.choice([0, 0, 0, 2, 9])}
        )
    return made


def batches(random: Random, given: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Cut rows into batches."""
    cuts = sorted(random.sample(range(len(given) + 1), random.randint(0, min(4, len(given)))))
    return [given[a:b] for a, b in pairwise([0, *cuts, len(given)])]
