"""Random aggregates over a join, on a GPU or on the stand-in for one, against the oracle of queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import query_oracle
from handshake.errors import HandshakeError
from handshake.joins.plan import prepare
from handshake.joins.tuning import TUNING, Tuning
from handshake.operators import join_engines
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from handshake.schema import UNITS
from query_backends import plain
from query_streams import Item, as_physical, results, results_together

__all__ = ["STREAMS", "check_query", "random_items", "random_query", "use_tuning"]

_COLUMNS = """g string(4), k int8, i int, l long, u uint64, d decimal(12, 2), e decimal(38, 3), x double,
f float, b bool"""
STREAMS = f"""CREATE INPUT STREAM R ({_COLUMNS}, t timestamp(3)) TIMESTAMP BY t{{}};
CREATE INPUT STREAM S ({_COLUMNS}, t timestamp({{}})) TIMESTAMP BY t{{}};
"""
NUMBERS: dict[str, tuple[Any, ...]] = {
    "g": ("UBSN", "CSGN", "", "ü"), "k": (0, 1, 2, 3, -3, 127, -128),
    "i": (0, 1, 5, 9, 10, 21, -3, 2**31 - 1, -(2**31)), "l": (0, 5, 10, 20, -7, 2**62, -(2**63), 2**63 - 1),
    "u": (0, 1, 9, 2**64 - 1, 2**63, 2**63 - 1),
    "d": tuple(Decimal(n).scaleb(-2) for n in (0, 1, 150, 1050, -30, 10**12 - 1, 1 - 10**12)),
    "e": tuple(Decimal(n).scaleb(-3) for n in (0, 1, 1500, -30, 10**30, -(10**30))),
    "x": (0.0, -0.0, 0.1, 1.5, 10.0, -10.0, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan),
    "f": (0.0, -0.0, 0.5, -1.25, 3.0, 10.0, math.inf, math.nan), "b": (True, False),
}  # fmt: skip
"""Values of the columns, by name."""
_BANDS = "R.i BETWEEN S.i - 10 AND S.i + 10 AND R.x BETWEEN S.x - 10. AND S.x + 10."
_CONDITIONS = (
    _BANDS, _BANDS, "R.k = S.k", "R.k <= S.k", "R.i > S.i OR R.b", "R.l <> S.l", "R.d <= S.d AND R.k <> S.k",
    "R.k = S.k AND R.g = 'UBSN'", "R.x * S.x < 10.", "R.u >= S.u", "TRUE", "R.e < S.e", "R.f >= S.f AND S.b",
    "R.k + S.k > 1 AND R.x < 100.", "CASE WHEN R.b THEN R.k = S.k ELSE S.i > 0 END", "1 = 2",
)  # fmt: skip
_VALUES = {
    "sum": ("k", "i", "l", "u", "d", "e", "j * k", "l * m", "u + v", "d - c", "i + j", "k * d", "ABS(i - j)",
            "CASE WHEN b THEN j ELSE k END", "COALESCE(j, i)", "i div k", "l % 7"),
    "min": ("k", "i", "l", "u", "v", "d", "x", "f", "y", "x * y", "f + q", "x / y", "j - i", "t", "s",
            "d + 1", "GREATEST(x, y)", "SQRT(ABS(x - y))"),
    "any": ("b", "x > y", "i = j AND b", "g = 'UBSN'", "b IS NULL"),
    "count": ("*", "i", "x", "i, y", "x / y", "j + i", "g"),
}  # fmt: skip
"""Arguments of aggregates: columns of R, and of S by other names."""
_SELECTED = (
    "SELECT R.g, R.k, R.i, R.l, R.u, R.d, R.e, R.x, R.f, R.b, R.t, "
    "S.k AS n, S.i AS j, S.l AS m, S.u AS v, S.d AS c, S.x AS y, S.f AS q, S.t AS s"
)
_WINDOWS = ("SIZE .006 ADVANCE .003 TIME", "TUMBLE 10 MILLISECONDS", "SIZE .007 ADVANCE .003 TIME",
            "SIZE .002 ADVANCE .005 TIME", "CUMULATE 3 MILLISECONDS SIZE 9 MILLISECONDS",
            "TUMBLE 1 SECONDS", "HOP 4 ms SIZE 12 ms OFFSET 3 ms", "SIZE .04 ADVANCE .001 TIME")  # fmt: skip
_KEYS = (("k",), ("g",), ("n",), ("k", "n"), ("b", "j % 2"), ("x",), ("i > 0", "q"), ("GREATEST(k, 1)", "g"))


def random_query(seed: int) -> str:
    """Return a query with aggregates over a join of R and S."""
    rng = Random(f"query {seed}")
    late = [rng.choice(("", "", " LATENESS .004")) for _ in range(2)]
    sizes = [
        rng.choice(("SIZE .008 TIME", "SIZE .02 TIME", "SIZE .003 TIME", "SIZE 1 TIME")) for _ in range(2)
    ]
    if rng.random() < 0.2:
        sizes[rng.randrange(2)] = "NOW"
    keys = rng.choice(_KEYS) if rng.random() < 0.5 else ()
    made = [*(f"{key} AS key{n}" for n, key in enumerate(keys))]
    made += [f"{_call(rng)} AS a{n}" for n in range(rng.randint(1, 5))]
    made += ["window_start() AS start, window_end() AS stop"] if rng.random() < 0.5 else []
    where = rng.choice(("", "", " WHERE i > j", " WHERE b AND k > 0", " WHERE x < y OR g = 'UBSN'"))
    within = rng.choice(("", "", " AND R.k > 0", " AND R.i <> S.k"))
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    having = rng.choice(("", "", "", " HAVING count() > 1"))
    pairs = f"{_SELECTED} FROM R [{sizes[0]}], S [{sizes[1]}] WHERE ({rng.choice(_CONDITIONS)}){within}"
    return STREAMS.format(late[0], rng.choice((3, 3, 6)), late[1]) + (
        f"SELECT {', '.join(made)} FROM ({pairs}) [{rng.choice(_WINDOWS)}]{where}{group}{having} INTO Found"
    )


def _call(rng: Random) -> str:
    name = rng.choice(("count", "count_if", "sum", "avg", "min", "max", "any", "every"))
    kind = {"avg": "sum", "max": "min", "every": "any", "count_if": "any"}.get(name, name)
    only = rng.choice(("", "", "", " FILTER (WHERE i > j)", " FILTER (WHERE b)"))
    return f"{name}({rng.choice(_VALUES[kind])}){only}"


def random_items(seed: int, most: int) -> list[Item]:
    """Return rows of both streams as they come: out of order, or one stream far behind the other."""
    rng = Random(f"items {seed}")
    pools = {name: rng.sample(pool, rng.randint(1, len(pool))) for name, pool in NUMBERS.items()}
    nulls = rng.choice((0.0, 0.0, 0.1))
    shifts = rng.choice(((0,), (0,), (0, 0, 0, -2, -9), (0, 0, -50)))
    steps, behind = rng.choice((0, 1, 3, 10)), rng.choice((0, 0, 0, 30))
    now, items = 0, list[Item]()
    for _ in range(rng.randint(0, most)):
        name = rng.choice("RS")
        now += rng.randint(0, steps)
        row = {c: None if rng.random() < nulls else rng.choice(pool) for c, pool in pools.items()}
        row["t"] = now + rng.choice(shifts) - (behind if name == "S" else 0)
        if nulls and len(shifts) > 1 and rng.random() < 0.05:
            row["t"] = None
        items.append((name, row))
    return items


@contextmanager
def use_tuning(tuning: Tuning) -> Iterator[None]:
    """Let joins in queries have other thresholds."""
    join_engines.prepare = partial(prepare, tuning=tuning)
    try:
        yield
    finally:
        join_engines.prepare = prepare


def check_query(text: str, items: list[Item], seed: int, tuning: Tuning = TUNING) -> int:
    """Compare results and counts on a GPU with those of the oracle; return the number of results."""
    rng, plan = Random(f"cuts {seed}"), parse_query(text)
    items, optimised = _in_units(plan, items), rng.random() < 0.7
    with use_tuning(tuning):
        query, counts = Query(plan, device="gpu", optimised=optimised), query_oracle.Counts()
    arrivals, together = as_physical(query, items), rng.random() < 0.5
    wanted = query_oracle.run(optimise(plan) if optimised else plan, arrivals, counts)
    push, batches = (results_together, _slices(rng, items)) if together else (results, _cuts(rng, items))
    found, error = _outcome(push, query, batches)
    if error:
        assert _outcome(push, Query(plan, optimised=optimised), batches)[1] == error
        return 0
    ordered = "GROUP BY" not in text
    assert plain(found, ordered) == plain(wanted, ordered)
    metrics = query.metrics()
    if optimised or ordered:  # a selection within groups comes before their windows
        assert (metrics.late, metrics.no_time) == (counts.late, counts.no_time)
    return sum(map(len, wanted.values()))


def _outcome(push: Callable[..., Any], query: Query, batches: list[Any]) -> tuple[Any, str]:
    """Return the results of a query, or its error."""
    try:
        return push(query, batches), ""
    except HandshakeError as error:
        return None, str(error)


def _in_units(plan: Plan, items: list[Item]) -> list[Item]:
    """Return rows with times in the units of their streams, instead of milliseconds."""
    scale = {source.name: UNITS["ms"] // UNITS[source.clock.unit] for source in plan.inputs}
    return [(name, {**row, "t": None if row["t"] is None else row["t"] * scale[name]}) for name, row in items]


def _cuts(rng: Random, items: list[Item]) -> list[list[Item]]:
    """Return batches of one stream each; a batch of the other stream may come much later."""
    batches: list[list[Item]] = []
    for item in items:
        if batches and batches[-1][0][0] == item[0] and rng.random() < 0.8:
            batches[-1].append(item)
        else:
            batches.append([item])
    return batches


def _slices(rng: Random, items: list[Item]) -> list[list[tuple[int, Item]]]:
    """Return batches of both streams together, each row with its place among all."""
    batches: list[list[tuple[int, Item]]] = []
    most = rng.choice((0.5, 0.9, 1.0))
    for placed in enumerate(items):
        if batches and rng.random() < most:
            batches[-1].append(placed)
        else:
            batches.append([placed])
    return batches
