"""Inputs of plans: read by their declarations, and in the order in which their rows arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError
from handshake.io.declared import BadRows
from handshake.io.files import read_declared
from handshake.io.frames import conform, table_of
from handshake.joins.replay import check_pace
from handshake.operators.chunk import END, Array
from handshake.operators.sources import arrival_places, arrow_schema, instants_in
from handshake.plan.algebra import Plan, Source
from handshake.schema import Field, Schema

_SLICE = 1 << 16
_TICK = 0.02


@dataclass(frozen=True)
class Address:
    """An input by its place: a file or folder, `-`, `udp://…`, or a format of Spark's."""

    path: str
    bad: BadRows = field(default_factory=lambda: BadRows(strict=True))
    """Rows that do not fit the declaration."""
    query: str = ""
    """The text that declares the input."""


@dataclass(frozen=True)
class Slice:
    """Rows that arrive together: for each stream a batch, and the places of its rows among all arrivals."""

    batches: dict[str, tuple[Any, Array | None]]
    lag: float | None = None
    """Seconds by which the rows are behind their times, if they have a pace or come live."""


def check_inputs(plan: Plan, inputs: Mapping[str, Any]) -> None:
    """Raise `InputError` unless each input of a plan is given, and nothing else."""
    for name in inputs:
        plan.own_input(name)
    known = plan.own_inputs
    for name in known:
        if name not in inputs:
            raise InputError(f"no input is given for stream '{name}'; the streams are {', '.join(known)}")


def comes_live(given: Any) -> bool:
    """Return true if an input arrives while the plan runs: on standard input, or as datagrams."""
    return isinstance(given, Address) and (given.path == "-" or given.path.startswith("udp:"))


def carried_schema(plan: Plan, source: Source) -> Schema:
    """Return the fields of an input: its own, and those of the streams that it carries."""
    fields: dict[str, Field] = {f.name: f for f in source.fields}
    for other in plan.carried_by(source.name):
        fields |= {f.name: f for f in other.fields if f.name not in fields}
    return Schema(tuple(fields.values()), source.name)


def read_inputs(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, pa.Table]:
    """Return each finite input as a table with the declared columns and types."""
    return {
        source.name: _read(plan, source, inputs[source.name])
        for source in plan.inputs
        if source.name in inputs
    }


def _read(plan: Plan, source: Source, given: Any) -> pa.Table:
    carried = carried_schema(plan, source)
    if isinstance(given, Address):
        return read_declared(given.path, carried, given.bad)
    if carried.names != source.fields.names:
        return table_of(given)
    return pa.Table.from_batches([conform(given, arrow_schema(source), source.name)])


def arrival_order(plan: Plan, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables in the order of arrival: those with a time column by time, others as they are."""
    sources = [source for source in plan.inputs if source.name in tables]
    found = {}
    for source in sources:
        table = tables[source.name]
        seconds, rest = instants_in(plan, source, _whole(table))
        later = (seconds[1:] > seconds[:-1]) | ((seconds[1:] == seconds[:-1]) & (rest[1:] >= rest[:-1]))
        found[source.name] = table if later.all() else table.take(pa.array(np.lexsort((rest, seconds))))
    return found


def slices(
    plan: Plan, given: Mapping[str, pa.Table], *, pace: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Slice]:  # fmt: skip
    """Yield slices of all inputs in the order of arrival, until they end or `stop` says so."""
    sources = [source for source in plan.inputs if source.name in given]
    pace = check_pace(pace, timed=all(source.time for source in sources))
    ordered = arrival_order(plan, given)
    tables = [_whole(ordered[source.name]) for source in sources]
    known = [instants_in(plan, source, table) for source, table in zip(sources, tables, strict=True)]
    places = arrival_places(known)
    times = np.empty(0) if pace is None else _since_first(known, places)
    total = sum(table.num_rows for table in tables)
    began, start = time.perf_counter(), 0
    while start < total and not stop():
        end, lag = (start + _SLICE, None) if pace is None else _wait_for_rows(times, start, pace, began)
        batches: dict[str, tuple[Any, Array | None]] = {}
        for source, table, place in zip(sources, tables, places, strict=True):
            low, high = np.searchsorted(place, [start, end])
            if low < high:
                batches[source.name] = (table.slice(low, high - low), place[low:high])
        if batches:
            yield Slice(batches, lag)
        start = min(end, total)


def _whole(table: pa.Table) -> pa.RecordBatch:
    combined = table.combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=table.schema)


def _wait_for_rows(times: Array, start: int, pace: float, began: float) -> tuple[int, float]:
    """Wait for the next row's time; return the place up to which rows have come, and their lag."""
    due = times / pace
    early = due[start] - (time.perf_counter() - began)
    if early > 0:
        time.sleep(min(early, _TICK))
    now = time.perf_counter() - began
    end = int(np.searchsorted(due, now, "right"))
    return min(end, start + _SLICE), max(0.0, now - float(due[start])) if end > start else 0.0


def _since_first(known: list[tuple[Array, Array]], places: list[Array]) -> Array:
    """Return the seconds from the first row to each place; rows without a time come with the last."""
    order = np.argsort(np.concatenate(places))
    seconds, rest = (np.concatenate(parts)[order] for parts in zip(*known, strict=True))
    since = (seconds.astype(np.float64) - seconds[:1]) + (rest - rest[:1]) / 1e9
    dated = int(np.searchsorted(seconds, END))
    return np.where(seconds < END, since, since[dated - 1] if dated else 0.0)
