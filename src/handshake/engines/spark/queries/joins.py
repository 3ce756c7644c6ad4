"""Window joins of a query as a sequence of two-stream joins by `handshake.join`.

A combination of several streams is a result if its last tuple finds all others in their windows, that is, if
t_j - t_i < T_i for any two of its tuples. So joins of two with these additional conditions are exact. A join
of two streams may be of any kind. Joins of other shapes run in one task (`placement`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from handshake.engines.spark.joins.best import best_frames
from handshake.engines.spark.joins.frames import JoinRequest, join_frames
from handshake.engines.spark.joins.inputs import arrow_schema
from handshake.engines.spark.types import carrier, spark_schema
from handshake.joins.asof import AsOf, split_keys
from handshake.options import Options
from handshake.plan.algebra import Node, Project, Source, WindowJoin, rebuild, walk
from handshake.plan.build import Expression
from handshake.plan.expr import (
    Arithmetic,
    Column,
    Compare,
    Expr,
    Literal,
    Name,
    columns_of,
    conjunction,
    conjuncts,
    transform,
)
from handshake.schema import UNITS, Field, Int, Interval, Schema, Timestamp, arrow_of
from handshake.windows import Duration, Window, Windows

TIME = "__time"
"""The column with the time of a join's tuples, in case a projection drops their own."""
_MILLISECOND = 10**6


def with_times(node: Node) -> Node:
    """Add the column `TIME` to the sources and projections of a plan below a join."""

    def add_time(here: Node) -> Node:
        if isinstance(here, Source) and here.time is not None:
            fields = (*here.fields.fields, Field(TIME, Timestamp("us", "UTC")))
            return replace(here, fields=replace(here.fields, fields=fields), demux=None)
        if isinstance(here, Project) and TIME in here.input.schema.names:
            return Project(here.input, (*here.columns, (TIME, TIME)))
        return here

    return rebuild(node, add_time)


@dataclass(frozen=True)
class _Side:
    """The streams joined so far. Column `k_i` is the i-th of stream k, and `k_t` is its time."""

    frame: DataFrame
    streams: tuple[int, ...]
    time: str | None
    window: Window | None


def join_inputs(
    node: WindowJoin, frames: list[DataFrame], state_dir: str | None, *, timed: bool = False
) -> DataFrame:
    """Join the inputs of a node; result columns are named `stream.column`.

    Args:
        node: The join.
        frames: A DataFrame per input; it may have a column `TIME`.
        state_dir: The directory for windows, as for `handshake.join`.
        timed: Whether to add a column `TIME` with the latest time of a result's members.
    """
    sides = [_side(node, k, frame) for k, frame in enumerate(frames)]
    waiting = list(conjuncts(node.on))
    held = sides[0]
    for side in sides[1:]:
        held, waiting = _join_next(node, held, side, waiting, state_dir, timed)
    shown = [(k, child) for k, child in enumerate(node.inputs) if node.shown[k]]
    names = [f"`{k}_{i}`" for k, child in shown for i in range(len(child.schema.fields))]
    if not timed:
        return held.frame.select(*names).toDF(*node.schema.names)
    return held.frame.select(*names, str(held.time)).toDF(*node.schema.names, TIME)


def join_source(node: WindowJoin) -> Source:
    """Return a source that stands for the results of a join, with their times."""
    name = "\0join"
    return Source(name, Schema((*node.schema.fields, Field(TIME, node.clock.type)), name), TIME, node.clock)


def join_results(node: WindowJoin, frames: list[DataFrame], state_dir: str | None) -> DataFrame:
    """Return the DataFrame for `join_source`."""
    joined, ticks = join_inputs(node, frames, state_dir, timed=True), node.clock
    if not isinstance(ticks.type, Int):
        return joined
    kind = spark_schema(pa.schema([("t", carrier(arrow_of(ticks.type)))]))[0].dataType
    counted = F.expr(f"unix_micros({TIME}) DIV {UNITS[ticks.unit] // UNITS['us']}").cast(kind)
    return joined.withColumn(TIME, counted)


def _side(node: WindowJoin, k: int, frame: DataFrame) -> _Side:
    names = [c for c in frame.columns if c != TIME]
    columns = [F.col(f"`{name}`").alias(f"{k}_{i}") for i, name in enumerate(names)]
    timed = TIME in frame.columns
    made = frame.select(*columns, *([F.col(TIME).alias(f"{k}_t")] if timed else []))
    if timed and frame.isStreaming:
        behind = max(source.lateness for source in walk(node.inputs[k]) if isinstance(source, Source))
        made = made.withWatermark(f"{k}_t", f"{-(-behind // _MILLISECOND)} milliseconds")
    return _Side(made, (k,), f"{k}_t" if timed else None, node.windows[k])


def _join_next(
    node: WindowJoin, left: _Side, right: _Side, waiting: list[Expr], state_dir: str | None, timed: bool
) -> tuple[_Side, list[Expr]]:
    streams = (*left.streams, *right.streams)
    now = [part for part in waiting if all(c.side in streams for c in columns_of(part))]
    later = [part for part in waiting if part not in now]
    on = conjunction((*(_name_columns(part, node, left) for part in now), *_further(node, left, right)))
    at = f"{streams[-1]}_at" if timed or len(streams) < len(node.inputs) else None
    if node.match:
        return _Side(_join_as_of(node, left, right, now, state_dir), streams, None, None), later
    windows, times = Windows(left.window, right.window), (left.time, right.time)
    request = JoinRequest(Expression(on), windows, times, node.kind)
    joined = join_frames(left.frame, right.frame, request, Options(state_dir=state_dir, result_time=at))
    # the next tuple must be in both windows of the later member
    held = [window for window in (left.window, right.window) if window is not None]
    return _Side(joined, streams, at, min(held, key=lambda window: window.size, default=None)), later


def _join_as_of(
    node: WindowJoin, left: _Side, right: _Side, parts: list[Expr], state_dir: str | None
) -> DataFrame:
    """Join by `handshake.asof`; a window of T allows distances less than T."""
    window = node.windows[1]
    assert window is not None
    named = conjunction(tuple(_name_columns(part, node, left) for part in parts))
    keys, on = split_keys(named, {"l": 0, "r": 1})
    join = AsOf(
        arrow_schema(left.frame, 0), arrow_schema(right.frame, 1), on, keys, (left.time, right.time),
        "forward" if node.looks_ahead else "backward",
        Duration(window.reach(node.clock.unit) * UNITS[node.clock.unit]), node.match.endswith("="),
        how=node.kind.name,
    )  # fmt: skip
    return best_frames(left.frame, right.frame, join, Options(state_dir=state_dir))


def _name_columns(expr: Expr, node: WindowJoin, left: _Side) -> Expr:

    def rename(e: Expr) -> Expr:
        if not isinstance(e, Column):
            return e
        place = node.inputs[e.side].schema.names.index(e.name)
        return Name(("l" if e.side in left.streams else "r", f"{e.side}_{place}"))

    return transform(expr, rename)


def _further(node: WindowJoin, left: _Side, right: _Side) -> list[Expr]:
    """Return the conditions that the new tuple is in the window of each member, not just the latest."""
    found: list[Expr] = []
    for k in left.streams if len(left.streams) > 1 else ():
        window = node.windows[k]
        assert window is not None
        reach = Literal(window.rule("us").reach, type=Interval("us"))
        last = Arithmetic("+", Name(("l", f"{k}_t")), reach)
        found.append(Compare("<=", Name(("r", f"{right.streams[0]}_t")), last))
    return found
