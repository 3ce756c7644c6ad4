"""Why rows of several streams, one of each, are a result of their join, or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError
from handshake.joins.metrics import StreamMetrics
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.spec import ManySpec, StreamCondition
from handshake.joins.plan import MultiPlan, prepare_streams
from handshake.joins.why.answer import Condition, Why
from handshake.joins.why.conditions import Member, Places, show_parts, window_conditions
from handshake.joins.why.places import Stream, places_of
from handshake.joins.why.presence import Asked, equal_rows
from handshake.joins.why.rows import one_row, row_time, rows_by_name, whole_input
from handshake.kernels.columns import integers
from handshake.kernels.evaluate import evaluate
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Compare, walk


def why_streams(
    given: Mapping[str, Any], on: str | Expression | None, inputs: Mapping[str, Any], **options: Any
) -> Why:
    """Explain rows of several inputs; see `handshake.why_streams`.

    Args:
        given: The rows by stream: dicts, frames of one row, or their numbers in the inputs.
        on: The predicate.
        inputs: The inputs or their schemas by stream; those that are not known are left out.
        **options: `window`, `windows` and `time`, as for `handshake.join_streams`.
    """
    unknown = [name for name in inputs if name not in given]
    if unknown:
        raise InputError(
            f"no row of '{unknown[0]}' is given; give one row of each stream (rows={{'{unknown[0]}': …}})"
        )
    wholes = {name: whole_input(whole, name) for name, whole in inputs.items()}
    rows = {name: one_row(row, wholes.get(name), name) for name, row in given.items()}
    spec = prepare_streams({name: row.schema for name, row in rows.items()}, on, **options).spec
    places = None
    if all(isinstance(wholes.get(name), pa.Table) and isinstance(row, int) for name, row in given.items()):
        streams = [Stream(wholes[stream.name], stream.time, stream.name) for stream in spec.streams]
        places = places_of(streams, [given[name] for name in spec.names], spec.unit, timed=spec.timed)
    return explain_rows(spec, [rows[name] for name in spec.names], places)


def ask_streams(join: Any) -> Callable[[Mapping[str, Any]], Why] | None:
    """Return what explains rows of a running join or of a plan of several streams; None for other values."""
    if isinstance(join, MultiPlan):
        streams = {stream.name: stream.schema for stream in join.spec.streams}
        return lambda rows: explain_rows(join.spec, rows_by_name(rows, streams))
    found = None if isinstance(join, Expression) else getattr(join, "why", None)
    return found if callable(found) else None


def explain_rows(spec: ManySpec, rows: Sequence[pa.RecordBatch], places: Places | None = None) -> Why:
    """Explain rows, one batch of one row per stream.

    Args:
        spec: The join.
        rows: The rows, in the order of the streams.
        places: Where each row came; None if that is not known.
    """
    return Why(_conditions(spec, rows, _members(spec, rows), places))


def _conditions(
    spec: ManySpec, rows: Sequence[pa.RecordBatch], members: Sequence[Member], places: Places | None
) -> tuple[Condition, ...]:
    parts = [(condition.text, condition.bound) for condition in (*spec.filters, *spec.conditions)]
    columns = {node for _, part in parts for node in walk(part) if isinstance(node, Column)}
    arrays = {column: _column(spec, rows, column) for column in columns}
    predicate = show_parts(parts, arrays, lambda column: column.name)
    return (*predicate, *window_conditions(members, spec.unit, places))


def _column(spec: ManySpec, rows: Sequence[pa.RecordBatch], column: Column) -> pa.Array:
    """Return a column such as `a.x`."""
    stream, _, name = column.name.partition(".")
    return rows[spec.names.index(stream)].column(name)


def _members(spec: ManySpec, rows: Sequence[pa.RecordBatch]) -> list[Member]:
    return [
        Member(
            stream.name, stream.window, None if stream.window is None else spec.rule(k),
            row_time(rows[k], stream.time, spec.unit, stream.name), stream.time, sided=False,
        )
        for k, stream in enumerate(spec.streams)
    ]  # fmt: skip


# A running join


def explain_in_streams(
    join: MJoin, rows: Sequence[pa.RecordBatch], counts: Sequence[StreamMetrics], *, queued: bool
) -> Why:
    """Explain rows by what a running join holds.

    Args:
        join: The join; no push runs.
        rows: The rows, in the order of the streams.
        counts: The rows of each stream by what became of them.
        queued: Whether rows may wait in front of the join.
    """
    spec, mark, members = join.spec, join.driver.mark(), _members(join.spec, rows)
    held = [find_in_streams(join, k, row) for k, row in enumerate(rows)]
    found = [
        Asked(
            member, spec.unit, mark, spec.timed, is_matchable_in_streams(spec, k, rows), counts[k], queued
        ).explain(held[k] is not None)
        for k, member in enumerate(members)
    ]
    return Why((*_conditions(spec, rows, members, places_in_streams(spec, held)), *found))


def find_in_streams(join: MJoin, k: int, row: pa.RecordBatch) -> pa.RecordBatch | None:
    """Return the rows of a stream with these values that can still join, stamped; None if there is none."""
    spec, oldest = join.spec, join.driver.oldest(k)
    asked = row.rename_columns([f"{spec.names[k]}.{name}" for name in row.schema.names])
    found = []
    for batch in join.tuples(k):
        mask = equal_rows(batch, asked)
        if oldest is not None:
            mask &= integers(batch.column(spec.stamp(k))) >= oldest
        found += [batch.take(pa.array(np.flatnonzero(mask)))] if mask.any() else []
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0] if found else None


def places_in_streams(spec: ManySpec, held: Sequence[pa.RecordBatch | None]) -> Places | None:
    """Return where the rows came, if windows count rows and the join holds each once."""
    rows = [one for one in held if one is not None and one.num_rows == 1]
    if not spec.windows.counted or len(rows) < len(held):
        return None
    return [
        [_count_seen(spec, row, k, j) if other.counted else 0 for j, other in enumerate(spec.streams)]
        for k, row in enumerate(rows)
    ]


def _count_seen(spec: ManySpec, row: pa.RecordBatch, k: int, j: int) -> int:
    """Return how many rows of stream `j` came before a row of stream `k`."""
    one, other = spec.streams[k], spec.streams[j]
    return int(row.column(one.own_stamp if k == j else one.seen_stamp(other))[0].as_py())


def is_matchable_in_streams(spec: ManySpec, k: int, rows: Sequence[pa.RecordBatch]) -> bool:
    """Return whether a row can match any other: conditions on it hold, and no compared value is NULL."""
    for condition in spec.filters:
        if condition.streams == {k} and not _holds(spec, condition, rows):
            return False
    compared = {
        operand
        for condition in spec.conditions
        if isinstance(condition.bound, Compare)
        for operand in (condition.bound.left, condition.bound.right)
        if isinstance(operand, Column) and operand.name.startswith(f"{spec.names[k]}.")
    }
    return all(_column(spec, rows, column)[0].is_valid for column in compared)


def _holds(spec: ManySpec, condition: StreamCondition, rows: Sequence[pa.RecordBatch]) -> bool:
    columns = [node for node in walk(condition.bound) if isinstance(node, Column)]
    arrays = {column: _column(spec, rows, column) for column in columns}
    return evaluate(condition.bound, arrays, 1)[0].as_py() is True
