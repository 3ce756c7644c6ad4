"""Latency and issue rate of the paper's five queries as circuits: Glacier, table 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.rules import RULES
from handshake.plan.query import parse_query
from handshake_bench import report
from handshake_bench.circuit_probe import Probe
from handshake_bench.report import Data, Report

__all__ = ["PUBLISHED", "QUERIES", "Case", "Figures", "compile_query", "measure", "run", "show"]

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


def run(out: str | None = None, source: str | None = None) -> None:
    """Measure all cases, or take an earlier run's figures; show them beside the published ones."""
    data = report.load(source, "circuits") if source else _measure_all()
    report.publish("circuits", data, show, None, out)


def _measure_all() -> Data:
    cases = []
    for query in QUERIES:
        for optimised in (False, True):
            report.progress(f"{query}, {'optimised' if optimised else 'as translated'}")
            found = measure(Case(query, optimised))
            cases.append({"query": query, "optimised": optimised, **vars(found)})
    cycles = {query: _cycles_by_rules(query) for query in QUERIES}
    return {"benchmark": "circuits", "machine": report.machine(), "cases": cases, "cycles": cycles}


def _cycles_by_rules(query: str) -> dict[str, int]:
    """Return the latency of a query without rules, with one rule left out, and with all."""
    without = {"no rule": tuple(RULES), **{name: (name,) for name in RULES}, "all rules": ()}
    return {name: _latency(query, left_out) for name, left_out in without.items()}


def _latency(query: str, without: Sequence[str]) -> int:
    (cycles,) = compile_query(query, without).latency.values()
    return cycles


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    found = [(Case(row["query"], row["optimised"]), row) for row in data["cases"]]
    heads = ("query", "circuit", "declared", "measured", "published", "issue rate", "published")
    page.table("Latency in cycles and issue rate (Glacier, table 3)", heads, [_row(*each) for each in found])
    rules = next(iter(data["cycles"].values()))
    rows = [(query, *map(str, cycles.values())) for query, cycles in data["cycles"].items()]
    page.table("Cycles with one rule left out", ("query", *rules), rows)
    page.result(worst_latency_ratio=max(row["latency"] / case.published for case, row in found))


def _row(case: Case, found: Data) -> tuple[str, ...]:
    new, worst = GROUPS - 1, found["worst"]
    span = f" … {worst} ({new} new groups)" if worst is not None else ""
    more = f" … {case.published} + 16 G" if worst is not None else ""
    return (
        case.query,
        "optimised" if case.optimised else "as translated",
        str(found["declared"]),
        f"{found['latency']}{span}",
        f"{case.published}{more}",
        f"{found['issue_rate']:.2f}",
        "1",
    )
