"""Between Arrow tables and wires: what a driver on the host does before and after a circuit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context
from decimal import Decimal as PyDecimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.circuit.compiler import Compiled, compile_plan
from handshake.circuit.simulate import ALWAYS, Feed, Run, feed, simulate
from handshake.circuit.slide import TIME
from handshake.circuit.translate import Bounds
from handshake.circuit.types import Row, Wire
from handshake.errors import InputError, suggest
from handshake.frames import conform
from handshake.plan.algebra import Output, Plan, Source
from handshake.schema import Date, Decimal, Interval, Schema, TimeOfDay, Timestamp, arrow_of, type_from_arrow

__all__ = ["QueryRun", "nullable_in", "rows_of", "run_plan", "table_of_payloads"]

_COUNTED = (Date, Timestamp, Interval, TimeOfDay)
_EXACT = Context(prec=80)


def physical(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column as wires see them: times and dates as whole numbers, decimals scaled."""
    kind = type_from_arrow(column.type)
    if isinstance(kind, _COUNTED):
        narrow = isinstance(kind, Date) or pa.types.is_time32(column.type)
        return list(column.cast(pa.int32() if narrow else pa.int64()).to_pylist())
    values = column.to_pylist()
    if isinstance(kind, Decimal):
        return [None if v is None else int(v.scaleb(kind.scale, _EXACT)) for v in values]
    return list(values)


def rows_of(table: pa.Table, row: Row, arrival: int = 0) -> Iterator[tuple[Any, ...]]:
    """Tuples of a table in the order of a row's wires; `arrival` is the time of those that have none."""
    columns = [_column(table, each, arrival) for each in row]
    return zip(*columns, strict=True) if columns else iter(())


def _column(table: pa.Table, each: Wire, arrival: int) -> list[Any]:
    if each.name in table.column_names:
        return physical(table.column(each.name))
    return [arrival if each.name == TIME else None] * table.num_rows


def table_of_payloads(payloads: Iterable[tuple[Any, ...]], row: Row, schema: Schema) -> pa.Table:
    """Unpacked tuples as a table with the columns of a result."""
    columns = list(zip(*payloads, strict=True)) or [()] * len(row.wires)
    named = dict(zip(row.names, columns, strict=True))
    arrays = [_array(named[field.name], arrow_of(field.type)) for field in schema]
    return pa.table(arrays, names=list(schema.names))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else _scaled(v, kind.scale) for v in values], kind)
    if isinstance(type_from_arrow(kind), _COUNTED):
        narrow = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        return pa.array(values, pa.int32() if narrow else pa.int64()).cast(kind)
    return pa.array(values, kind)


def _scaled(value: int, scale: int) -> PyDecimal:
    return PyDecimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale))


def nullable_in(tables: Mapping[str, pa.Table]) -> dict[str, frozenset[str]]:
    """The columns of each table that have a NULL: these need a wire for it."""
    return {
        name: frozenset(column for column in table.column_names if table.column(column).null_count)
        for name, table in tables.items()
    }


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
