"""`handshake.nearest` for DataFrames: check the request, define the join, choose how it runs.

All pairs of a left row are found in its home segment, as in outer joins, and the best ones are chosen there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from handshake.engines.spark.joins.dataflow import join_batches, join_static
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.directories import check_root, with_directory
from handshake.engines.spark.joins.explain import plan_of, remember
from handshake.engines.spark.joins.frames import (
    Predicate,
    define,
    plan_frames,
    predicate_for,
    run_plan,
)
from handshake.engines.spark.joins.inputs import arrow_schema, check_output, event_time
from handshake.engines.spark.types import carrier
from handshake.engines.spark.workers import use_this_python
from handshake.errors import UnsupportedError
from handshake.joins.nearest import Nearest, NearestMatch, add_mark, add_number
from handshake.joins.ranking import Ranking, ranking_of
from handshake.joins.spec import SIDES, common_unit
from handshake.kinds import NEAREST, kind_of_best
from handshake.plan.build import Expression
from handshake.schema import Schema
from handshake.windows import Windows

__all__ = ["nearest_frames"]


def nearest_frames(
    left: DataFrame, right: DataFrame, on: Predicate, by: Any, *, windows: Windows,
    times: tuple[str | None, str | None], aliases: tuple[str, str] | None, segments: int | None = None,
    state_dir: str | None = None, name: str | None = None, **ranked: Any,
) -> DataFrame:  # fmt: skip
    """Join each row of a DataFrame with its best matches; `handshake.nearest` documents the arguments."""
    if right.isStreaming and not left.isStreaming:
        raise UnsupportedError(
            "the left DataFrame is static and the right one streams, so no left row would ever be final; "
            "make the left one a stream, too, or the right one a batch"
        )
    use_this_python(left.sparkSession)
    if right.isStreaming:
        return _nearest_streams(
            left, right, on, by, windows, times, aliases, segments, state_dir, name, **ranked
        )
    ranking = _ranking(left, right, by, aliases, **ranked)
    definition = define(
        left, right, on, windows, times, suffix=ranked["suffix"], aliases=aliases, segments=segments,
        state_dir=state_dir, kind=NEAREST,
    )  # fmt: skip
    definition = replace(
        definition, left=add_number(definition.left), right=add_mark(definition.right), ranking=ranking
    )
    check_output(definition, left.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true")
    check_root(definition)
    runs = "static" if left.isStreaming else "batch"
    return _run(left, right, with_directory(left.sparkSession, definition, runs), runs, name)


def _nearest_streams(
    left: DataFrame, right: DataFrame, on: Predicate, by: Any, windows: Windows,
    times: tuple[str | None, str | None], aliases: tuple[str, str] | None, segments: int | None,
    state_dir: str | None, name: str | None, *, k: int, how: str, rank: str | None, value: str | None,
    suffix: str,
) -> DataFrame:  # fmt: skip
    """Join two streams: left rows wait until they are final, and then take their best matches."""
    frames = (left, right)
    timed = [event_time(frame, side, times[side], windows) for side, frame in enumerate(frames)]
    ranking = _ranking(left, right, by, aliases, k=k, how=how, rank=rank, value=value, suffix=suffix)
    condition, names = predicate_for(on, left, right, aliases)
    if isinstance(by, (str, Expression)):
        names = predicate_for(by, left, right, aliases)[1]
    schemas = [arrow_schema(frame, side) for side, frame in enumerate(frames)]
    join = Nearest(
        schemas[0].empty_table(), schemas[1].empty_table(), None if on is None else Expression(condition), by,
        k, None, windows[0], windows[1], (timed[0], timed[1]), how, rank, value, suffix, names, cores=1,
    )  # fmt: skip
    known = [Schema.from_arrow(schema, side) for schema, side in zip(schemas, SIDES, strict=True)]
    unit = common_unit((known[0], known[1]), windows, (timed[0], timed[1]))
    best = NearestMatch(join, unit, ranking.output)
    held = best.windows()
    join.find()  # raises if anything is wrong
    definition = define(
        left, right, Expression(condition), held, (timed[0], timed[1]), suffix=suffix, aliases=names,
        segments=segments, state_dir=state_dir, kind=kind_of_best(how, "a nearest join"), best=best,
    )  # fmt: skip
    return run_plan(left, right, plan_frames(left, right, definition, name), None)


def _ranking(
    left: DataFrame, right: DataFrame, by: Any, aliases: tuple[str, str] | None, **ranked: Any
) -> Ranking:
    """Check the ranking; its values are in types that Spark has."""
    names = predicate_for(by, left, right, aliases)[1] if isinstance(by, (str, Expression)) else aliases
    schemas = [arrow_schema(frame, side) for side, frame in enumerate((left, right))]
    ranking = ranking_of(schemas[0], schemas[1], by, aliases=names, **ranked)
    if not ranking.valued:
        return ranking
    *fields, last = ranking.output
    return replace(ranking, output=pa.schema([*fields, last.with_type(carrier(last.type))]))


def _run(
    left: DataFrame, right: DataFrame, definition: Definition, runs: str, name: str | None
) -> DataFrame:  # fmt: skip
    joined = (join_static if runs == "static" else join_batches)(left, right, definition)
    return remember(joined, plan_of(left, right, definition, runs, name))
