"""Tables through the simulated circuit of a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.components.sequence import PLACE, PLACE_BITS
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.simulation.simulate import Run, feed, simulate
from handshake.engines.circuit.tables import nullable_in, rows_of, table_of_payloads
from handshake.io.frames import conform
from handshake.operators.sources import arrival_places, instants_in
from handshake.plan.algebra import Plan


@dataclass(frozen=True)
class QueryRun:
    """The outcome of a simulated query: results by name, the circuit, and the record of the simulation."""

    results: dict[str, pa.Table]
    compiled: Compiled
    run: Run

    @property
    def counters(self) -> dict[str, int]:
        """Tuples that were late, had no time, were of an unknown kind, or that there was no room for."""
        return self.run.probes


def run_plan(
    plan: Plan,
    inputs: Mapping[str, Any],
    bounds: Bounds | None = None,
    *,
    without: Iterable[str] = (),
    engine: str = "cxxrtl",
    arrival: int = 0,
    vcd: Path | None = None,
) -> QueryRun:
    """Feed tables through the simulated circuit of a plan and collect the tables of its results.

    Columns that have a NULL get a wire for it. Rows arrive in the order that docs/queries.md defines.
    """
    tables = {name: _table(plan, name, given) for name, given in inputs.items()}
    given = bounds or Bounds()
    nullable = {**nullable_in(tables), **given.nullable}
    compiled = compile_plan(plan, replace(given, nullable=nullable), without=without)
    tables = _add_places(plan, compiled, tables)
    feeds = {
        name: feed(row, rows_of(tables[name], row, arrival) if name in tables else ())
        for name, row in compiled.inputs.items()
    }
    run = simulate(compiled.circuit(), feeds, engine=engine, vcd=vcd)
    results = {}
    for output in plan.outputs:
        row = compiled.outputs[output.name]
        results[output.name] = table_of_payloads(run.tuples(output.name, row), row, output.schema)
    return QueryRun(results, compiled, run)


def _add_places(plan: Plan, compiled: Compiled, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables; joined inputs get a column with the places of their rows among all arrivals."""
    placed = {name for name, row in compiled.inputs.items() if PLACE in row.names and name in tables}
    joined = [source.name for source in plan.inputs if source.name in placed]
    keys = _arrivals(plan, tables)
    order = sorted((keys[name][i], at, i) for at, name in enumerate(joined) for i in range(len(keys[name])))
    found: dict[str, list[int]] = {name: [0] * len(keys[name]) for name in joined}
    for place, (_, at, i) in enumerate(order):
        found[joined[at]][i] = place % (1 << PLACE_BITS)
    added = {name: tables[name].append_column(PLACE, pa.array(at, pa.int64())) for name, at in found.items()}
    return {**tables, **added}


def _arrivals(plan: Plan, tables: Mapping[str, pa.Table]) -> dict[str, Sequence[int]]:
    """Return the places of rows: without a time column first and in turns, then by time."""
    sources = [source for source in plan.inputs if source.name in tables]
    found = arrival_places([instants_in(plan, source, tables[source.name]) for source in sources])
    return {source.name: places.tolist() for source, places in zip(sources, found, strict=True)}


def _table(plan: Plan, name: str, given: Any) -> pa.Table:
    """Return the declared columns of an input, and those of the streams that it carries."""
    source = plan.own_input(name)
    if not plan.carried_by(name):
        return pa.Table.from_batches([conform(given, source.fields.to_arrow(), name)])
    return given if isinstance(given, pa.Table) else pa.table(given)
