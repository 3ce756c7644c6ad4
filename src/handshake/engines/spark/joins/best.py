"""`handshake.asof` and `handshake.nearest` for DataFrames.

The rows go to segments as in a left outer join on the keys and the condition. So rows of one key meet in one
segment; if there is neither a key nor a band, right rows go to all segments. There, left rows that are final
take their best matches. Pairs of a nearest join with a static DataFrame are ranked as they come.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from handshake.engines.spark.joins.dataflow import join_batches, join_static
from handshake.engines.spark.joins.directories import check_root, with_directory
from handshake.engines.spark.joins.explain import FramePlan, remember
from handshake.engines.spark.joins.frames import (
    JoinRequest,
    define,
    plan_frames,
    predicate_for,
    run_plan,
)
from handshake.engines.spark.joins.inputs import arrow_schema, check_output, event_time
from handshake.engines.spark.types import carrier
from handshake.engines.spark.workers import use_this_python
from handshake.errors import UnsupportedError
from handshake.joins.asof import AsOf
from handshake.joins.nearest import NO_WINDOWS, Nearest
from handshake.joins.numbered import add_mark, add_number
from handshake.joins.waiting import waiting_windows
from handshake.kinds import NEAREST
from handshake.options import Options
from handshake.plan.build import Expression


def fit_frames(left: DataFrame, right: DataFrame, join: AsOf | Nearest) -> AsOf | Nearest:
    """Return a join with the columns of DataFrames; streams have the times of their watermarks."""
    frames = left, right
    if right.isStreaming and not left.isStreaming:
        raise UnsupportedError(
            "the left DataFrame is static and the right one streams, so no left row would ever be final; "
            "make the left one a stream, too, or the right one a batch"
        )
    asof_windows = waiting_windows("s", 0, 0) if right.isStreaming else NO_WINDOWS
    windows = join.windows if isinstance(join, Nearest) else asof_windows
    times = [event_time(frame, side, join.times[side], windows) for side, frame in enumerate(frames)]
    if isinstance(join, Nearest) and None in times and not windows.timed:
        times = [None, None]
    on, aliases = predicate_for(join.on, left, right, join.aliases)
    if isinstance(join, Nearest) and isinstance(join.by, (str, Expression)):
        named = "TRUE" if isinstance(join.by, str) else join.by
        aliases = predicate_for(named, left, right, join.aliases)[1]
    return replace(
        join, left=arrow_schema(left, 0), right=arrow_schema(right, 1), times=(times[0], times[1]),
        on=None if join.on is None else on, aliases=aliases,
    )  # fmt: skip


def best_frames(left: DataFrame, right: DataFrame, join: AsOf | Nearest, options: Options) -> DataFrame:
    """Join DataFrames; the result streams if the left one does."""
    use_this_python(left.sparkSession)
    if isinstance(join, Nearest):
        join = _carry(join)
        if not right.isStreaming:
            return _rank_pairs(left, right, join, options)
    windows = join.held_windows() if right.isStreaming else NO_WINDOWS
    request = JoinRequest(
        Expression(join.condition()), windows, join.times, join.kind, join.suffix, join.aliases,
        best=replace(join, cores=1),
    )  # fmt: skip
    return run_plan(left, right, plan_frames(left, right, define(left, right, request, options)))


def _carry(join: Nearest) -> Nearest:
    """Return the join with values of its ranking in a type that Spark has."""
    ranking = join.bound.ranking
    if not ranking.valued:
        return join
    *fields, last = ranking.output
    return replace(join, carried=pa.schema([*fields, last.with_type(carrier(last.type))]))


def _rank_pairs(left: DataFrame, right: DataFrame, join: Nearest, options: Options) -> DataFrame:
    """Join with a batch DataFrame: the pairs of a left row are found and ranked in its home segment."""
    request = JoinRequest(
        Expression(join.condition()), join.windows, join.times, NEAREST, join.suffix, join.aliases
    )
    definition = define(left, right, request, options)
    definition = replace(
        definition, left=add_number(definition.left), right=add_mark(definition.right),
        ranking=replace(join.bound.ranking, output=join.schema),
    )  # fmt: skip
    check_output(definition, left.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true")
    check_root(definition)
    runs = "static" if left.isStreaming else "batch"
    definition = with_directory(left.sparkSession, definition, runs)
    joined = (join_static if runs == "static" else join_batches)(left, right, definition)
    return remember(joined, FramePlan(definition, runs, options.name))
