"""Latency and issue rate of the paper's five queries as circuits: Glacier, table 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.rules import RULES
from handshake.plan.query import parse_query
from handshake_bench.circuit_probe import Probe
from handshake_bench.report import progress, result, table

__all__ = ["PUBLISHED", "QUERIES", "Case", "Figures", "compile_query", "measure", "run"]

GROUPS = 3
_TRADES = """CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int, Ts timestamp(0))
TIMESTAMP BY Ts;"""
QUERIES = {
    "Q1": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO UBSTrades',
    "Q2": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" AND Volume > 100000 INTO LargeUBSTrades',
    "Q3": """SELECT count() AS Number FROM Trades [SIZE 600 ADVANCE 60 TIME]
        WHERE Symbol = "UBSN" INTO NumUBSTrades""",
    "Q4": """SELECT wsum(Price, [.5, .25, .125, .125]) AS Wprice
        FROM (SELECT * FROM Trades WHERE Symbol = "UBSN") [SIZE 4 ADVANCE 1 TUPLES] INTO WeightedUBSTrades""",
    "Q5": """SELECT Symbol, avg(Price) AS AvgPrice FROM Trades [SIZE 600 ADVANCE 60 TIME]
        GROUP BY Symbol INTO PriceAverages""",
}
PUBLISHED = {"Q1": (3, 1), "Q2": (5, 1), "Q3": (5, 2), "Q4": (5, 2), "Q5": (6, 5)}
"""Cycles without and with optimisation; Q5 takes 16 more for each new group."""
_SYMBOLS = ("UBSN", "ABBN", "NESN", "ROGN")[:GROUPS]
_WINDOW_END = 60


@dataclass(frozen=True)
class Case:
    """One circuit of the table."""

    query: str
    optimised: bool

    @property
    def published(self) -> int:
        """Cycles in the paper."""
        return PUBLISHED[self.query][self.optimised]


@dataclass(frozen=True)
class Figures:
    """Latency as the components declare it, and figures from simulation."""

    declared: int
    latency: int
    worst: int | None
    """Q5 only: latency if all groups but one arrived just before."""
    issue_rate: float


def compile_query(query: str, without: Sequence[str] = ()) -> Compiled:
    """Compile one of the queries to a circuit."""
    bounds = Bounds(groups=GROUPS, divider="host")  # the paper's average takes one cycle: no division
    return compile_plan(parse_query(_TRADES + QUERIES[query]), bounds, without=without)


def _trades(times: Sequence[int], symbols: Sequence[str] = ("UBSN",)) -> list[tuple[Any, ...]]:
    return [(n, symbols[n % len(symbols)], 100 + n, 200_000, t) for n, t in enumerate(times)]


def _completing(query: str) -> list[tuple[Any, ...]]:
    """Return trades of which the last completes the first result."""
    if query in ("Q1", "Q2"):
        return _trades([0])
    if query == "Q4":
        return _trades([0, 1, 2, 3])
    symbols = _SYMBOLS if query == "Q5" else ("UBSN",)
    return _trades([*range(GROUPS), _WINDOW_END], symbols)


def measure(case: Case) -> Figures:
    """Simulate one circuit."""
    circuit = compile_query(case.query, () if case.optimised else tuple(RULES))
    probe = Probe(circuit)
    trades = _completing(case.query)
    worst = probe.latency(trades, burst=True) if case.query == "Q5" else None
    steady = _trades([t // 2 for t in range(40)], _SYMBOLS)
    (declared,) = circuit.latency.values()
    return Figures(declared, probe.latency(trades), worst, probe.issue_rate(steady, after=GROUPS))


def run() -> None:
    """Measure all cases and print them beside the published figures."""
    rows, worst_ratio = [], 0.0
    for query in QUERIES:
        for optimised in (False, True):
            case = Case(query, optimised)
            progress(f"{query}, {'optimised' if optimised else 'as translated'}")
            found = measure(case)
            worst_ratio = max(worst_ratio, found.latency / case.published)
            rows.append(_row(case, found))
    heads = ("query", "circuit", "declared", "measured", "published", "issue rate", "published")
    table("Latency in cycles and issue rate (Glacier, table 3)", heads, rows)
    _rules_table()
    result(worst_latency_ratio=worst_ratio)


def _row(case: Case, found: Figures) -> tuple[str, ...]:
    new = GROUPS - 1
    span = f" … {found.worst} ({new} new groups)" if found.worst is not None else ""
    more = f" … {case.published} + 16 G" if found.worst is not None else ""
    return (
        case.query,
        "optimised" if case.optimised else "as translated",
        str(found.declared),
        f"{found.latency}{span}",
        f"{case.published}{more}",
        f"{found.issue_rate:.2f}",
        "1",
    )


def _rules_table() -> None:
    """Print the latency of each query with one rule left out."""
    rows = []
    for query in QUERIES:
        all_but = [_latency(query, (name,)) for name in RULES]
        rows.append((query, _latency(query, tuple(RULES)), *all_but, _latency(query, ())))
    table("Cycles with one rule left out", ("query", "no rule", *RULES, "all rules"), rows)


def _latency(query: str, without: Sequence[str]) -> str:
    (cycles,) = compile_query(query, without).latency.values()
    return str(cycles)
