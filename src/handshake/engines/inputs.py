"""Inputs of plans: read by their declarations, and in the order in which their rows arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError, WindowError, suggest
from handshake.io.declared import BadRows
from handshake.io.files import read_declared
from handshake.io.frames import conform, table_of
from handshake.operators.chunk import END, Array
from handshake.operators.sources import arrow_schema, instants
from handshake.plan.algebra import Plan, Source
from handshake.schema import Field, Schema

__all__ = [
    "Address",
    "Slice",
    "arrival_order",
    "carried_schema",
    "check_inputs",
    "comes_live",
    "read_inputs",
    "slices",
]

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
    known = [source.name for source in plan.inputs if source.demux is None]
    for name in inputs:
        if name not in known:
            raise InputError(f"no input '{name}' ({', '.join(known)}){suggest(name, known)}")
    for name in known:
        if name not in inputs:
            raise InputError(f"no input is given for stream '{name}'; the streams are {', '.join(known)}")


def comes_live(given: Any) -> bool:
    """Return true if an input arrives while the plan runs: on standard input, or as datagrams."""
    return isinstance(given, Address) and (given.path == "-" or given.path.startswith("udp:"))


def carried_schema(plan: Plan, source: Source) -> Schema:
    """Return the fields of an input: its own, and those of the streams that it carries."""
    fields: dict[str, Field] = {f.name: f for f in source.fields}
    for other in plan.inputs:
        if other.demux is not None and other.demux.stream == source.name:
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
    """Return the tables in the order of arrival: by time if all have one, else as they are."""
    sources = [source for source in plan.inputs if source.name in tables]
    rows, _, _ = _arrivals(sources, [_whole(tables[source.name]) for source in sources])
    return {
        source.name: tables[source.name] if _in_order(order) else tables[source.name].take(pa.array(order))
        for source, order in zip(sources, rows, strict=True)
    }


def slices(
    plan: Plan, given: Mapping[str, pa.Table], *, pace: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Slice]:  # fmt: skip
    """Yield slices of all inputs in the order of arrival, until they end or `stop` says so."""
    sources = [source for source in plan.inputs if source.name in given]
    if pace is not None and (pace <= 0 or not all(source.time for source in sources)):
        raise WindowError("a pace is more than 0, and goes by the time columns of all inputs")
    tables = [_whole(given[source.name]) for source in sources]
    rows, places, times = _arrivals(sources, tables)
    tables = [t if _in_order(r) else t.take(pa.array(r)) for t, r in zip(tables, rows, strict=True)]
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


def _in_order(rows: Array) -> bool:
    return bool(np.array_equal(rows, np.arange(len(rows))))


def _arrivals(sources: list[Source], tables: list[pa.RecordBatch]) -> tuple[list[Array], list[Array], Array]:
    """Return each stream's rows in the order of arrival, their places, and the seconds until each place."""
    sizes = [table.num_rows for table in tables]
    streams = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    if all(source.time is not None for source in sources):
        known = [
            instants(s, dict(zip(t.schema.names, t.columns, strict=True)))
            for s, t in zip(sources, tables, strict=True)
        ]
        seconds, rest = (np.concatenate(parts) for parts in zip(*known, strict=True))
        order = np.lexsort((rows, streams, rest, seconds))
    else:
        seconds = rest = np.zeros(len(rows), np.int64)
        order = np.lexsort((streams, rows))
    places = [np.flatnonzero(streams[order] == k) for k in range(len(sizes))]
    return [rows[order[place]] for place in places], places, _since_first(seconds[order], rest[order])


def _since_first(seconds: Array, rest: Array) -> Array:
    """Return the seconds from the first row to each; rows without a time come with the last."""
    since = (seconds.astype(np.float64) - seconds[:1]) + (rest - rest[:1]) / 1e9
    known = int(np.searchsorted(seconds, END))
    return np.where(seconds < END, since, since[known - 1] if known else 0.0)
