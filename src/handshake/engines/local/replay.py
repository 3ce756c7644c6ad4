"""Files and standard input as streams that arrive: by time, or taking turns."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import WindowError
from handshake.io.csv_files import read_standard_input
from handshake.io.declared import BadRows
from handshake.io.files import read_declared
from handshake.operators.chunk import END, Array
from handshake.operators.sources import instants, times_in
from handshake.plan.algebra import Plan, Source
from handshake.schema import UNITS, Field, Schema

__all__ = ["Slice", "carried_schema", "replayed"]

_SLICE = 1 << 16
_TICK = 0.02


@dataclass(frozen=True)
class Slice:
    """Tuples that arrive together, with their places among all."""

    batches: dict[str, tuple[Any, Array | None]]
    lag: float | None = None
    """How many seconds behind their times they are, where they have a pace or come live."""


def carried_schema(plan: Plan, source: Source) -> Schema:
    """What an input's rows have: its own fields, and those of streams that it carries."""
    fields: dict[str, Field] = {f.name: f for f in source.fields}
    for other in plan.inputs:
        if other.demux is not None and other.demux.stream == source.name:
            fields |= {f.name: f for f in other.fields if f.name not in fields}
    return Schema(tuple(fields.values()), source.name)


def replayed(
    plan: Plan, paths: dict[str, str], bad: BadRows, *, pace: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Slice]:  # fmt: skip
    """Slices of all inputs in the order of arrival, until they end or `stop` says so."""
    sources = [source for source in plan.inputs if source.name in paths]
    if len(sources) == 1 and paths[sources[0].name] == "-":
        yield from _live(sources[0], carried_schema(plan, sources[0]), bad, stop)
        return
    tables = [_read(carried_schema(plan, source), paths[source.name], bad) for source in sources]
    if pace is not None and (pace <= 0 or not all(source.time for source in sources)):
        raise WindowError("a pace is more than 0, and goes by the time columns of all inputs")
    yield from _merged(sources, tables, pace, stop)


def _read(schema: Schema, path: str, bad: BadRows) -> pa.RecordBatch:
    table = read_declared(path, schema, bad)
    combined = table.combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=table.schema)


def _live(source: Source, schema: Schema, bad: BadRows, stop: Callable[[], bool]) -> Iterator[Slice]:
    """Batches from standard input as they come; read on a thread, so that Ctrl-C need not wait for one."""
    waiting: queue.Queue[Any] = queue.Queue(maxsize=4)

    def read() -> None:
        try:
            for batch in read_standard_input(schema, bad.add):
                waiting.put(batch)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            batch = waiting.get(timeout=0.1)
        except queue.Empty:
            if stop():  # what has been read is still taken
                return
            continue
        if isinstance(batch, BaseException):
            raise batch
        if batch is None:
            return
        yield Slice({source.name: (batch, None)}, _behind(source, batch))


def _behind(source: Source, batch: pa.RecordBatch) -> float | None:
    """How old the newest tuple is."""
    if source.time is None or not batch.num_rows:
        return None
    times, _ = times_in(source, dict(zip(batch.schema.names, batch.columns, strict=True)))
    return max(0.0, time.time() - int(times.max()) * UNITS[source.clock.unit] / 1e9)


def _merged(
    sources: list[Source], tables: list[pa.RecordBatch], pace: float | None, stop: Callable[[], bool]
) -> Iterator[Slice]:
    rows, places, times = _arrivals(sources, tables)
    tables = [t if _in_order(r) else t.take(pa.array(r)) for t, r in zip(tables, rows, strict=True)]
    total = sum(table.num_rows for table in tables)
    began, start = time.perf_counter(), 0
    while start < total and not stop():
        end, lag = (start + _SLICE, None) if pace is None else _paced(times, start, pace, began)
        batches: dict[str, tuple[Any, Array | None]] = {}
        for source, table, place in zip(sources, tables, places, strict=True):
            low, high = np.searchsorted(place, [start, end])
            if low < high:
                batches[source.name] = (table.slice(low, high - low), place[low:high])
        if batches:
            yield Slice(batches, lag)
        start = min(end, total)


def _paced(times: Array, start: int, pace: float, began: float) -> tuple[int, float]:
    """Wait for the next tuple's time; the place up to which tuples have come, and how late that is."""
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
    """For each stream its rows in the order of arrival and their places; and the seconds until each."""
    sizes = [table.num_rows for table in tables]
    streams = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    if all(source.time is not None for source in sources):
        known = [_instants(s, t) for s, t in zip(sources, tables, strict=True)]
        seconds, rest = (np.concatenate(parts) for parts in zip(*known, strict=True))
        order = np.lexsort((rows, streams, rest, seconds))
    else:
        seconds = rest = np.zeros(len(rows), np.int64)
        order = np.lexsort((streams, rows))
    places = [np.flatnonzero(streams[order] == k) for k in range(len(sizes))]
    return [rows[order[place]] for place in places], places, _since_first(seconds[order], rest[order])


def _since_first(seconds: Array, rest: Array) -> Array:
    """How many seconds after the first tuple each one comes; those without a time come with the last."""
    since = (seconds.astype(np.float64) - seconds[:1]) + (rest - rest[:1]) / 1e9
    known = int(np.searchsorted(seconds, END))
    return np.where(seconds < END, since, since[known - 1] if known else 0.0)


def _instants(source: Source, table: pa.RecordBatch) -> tuple[Array, Array]:
    return instants(source, dict(zip(table.schema.names, table.columns, strict=True)))
