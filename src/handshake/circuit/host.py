"""Tables through the simulated circuit of a query: what a driver on the host does before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.circuit.compiler import Compiled, compile_plan
from handshake.circuit.simulate import ALWAYS, Feed, Run, feed, simulate
from handshake.circuit.tables import nullable_in, rows_of, table_of_payloads
from handshake.circuit.translate import Bounds
from handshake.circuit.types import Row
from handshake.errors import InputError, suggest
from handshake.frames import conform
from handshake.plan.algebra import Output, Plan, Source
from handshake.schema import arrow_of

__all__ = ["QueryRun", "run_plan"]


@dataclass(frozen=True)
class QueryRun:
    """What a simulated circuit gave: the results by name, the circuit, and the simulation's own record."""

    results: dict[str, pa.Table]
    compiled: Compiled
    run: Run

    @property
    def counters(self) -> dict[str, int]:
        """Tuples that were late, had no time, were of an unknown kind, or of one group too many."""
        return self.run.probes


def run_plan(
    plan: Plan,
    inputs: Mapping[str, Any],
    bounds: Bounds | None = None,
    *,
    without: Iterable[str] = (),
    engine: str = "cxxrtl",
    arrival: int = 0,
    ready: Mapping[str, Sequence[bool]] | None = None,
    patterns: Mapping[str, Sequence[bool]] | None = None,
    vcd: Path | None = None,
) -> QueryRun:
    """Feed tables through the simulated circuit of a plan and collect the tables of its results.

    Columns that have a NULL get a wire for it. `patterns` and `ready` hold inputs and outputs back by cycle,
    as `simulate` has it; results do not depend on them.
    """
    tables = {name: _table(plan, name, given) for name, given in inputs.items()}
    given = bounds or Bounds()
    nullable = {**nullable_in(tables), **given.nullable}
    compiled = compile_plan(plan, replace(given, nullable=nullable), without=without)
    feeds = {
        name: _feed(row, tables.get(name), (patterns or {}).get(name, ALWAYS), arrival)
        for name, row in compiled.inputs.items()
    }
    run = simulate(compiled.circuit(), feeds, engine=engine, ready=ready, vcd=vcd)
    results = {o.name: _result(o, run, compiled) for o in plan.outputs}
    return QueryRun(results, compiled, run)


def _feed(row: Row, table: pa.Table | None, pattern: Sequence[bool], arrival: int) -> Feed:
    return feed(row, () if table is None else rows_of(table, row, arrival), pattern=pattern)


def _result(output: Output, run: Run, compiled: Compiled) -> pa.Table:
    row = compiled.outputs[output.name]
    return table_of_payloads(run.tuples(output.name, row), row, output.schema)


def _table(plan: Plan, name: str, given: Any) -> pa.Table:
    """The declared columns of an input, and those of the streams that it carries."""
    source = next((s for s in plan.inputs if s.name == name and s.demux is None), None)
    if source is None:
        known = [s.name for s in plan.inputs if s.demux is None]
        raise InputError(f"no input '{name}' ({', '.join(known)}){suggest(name, known)}")
    carried = [s for s in plan.inputs if s.demux is not None and s.demux.stream == name]
    if not carried:
        return pa.Table.from_batches([conform(given, _arrow(source), name)])
    return given if isinstance(given, pa.Table) else pa.table(given)


def _arrow(source: Source) -> pa.Schema:
    return pa.schema([(f.name, arrow_of(f.type)) for f in source.fields])
