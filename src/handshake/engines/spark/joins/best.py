"""`handshake.asof` and `handshake.nearest` for DataFrames.

The rows go to segments as in a left outer join on the keys and the condition. So rows of one key meet in one
segment; if there is neither a key nor a band, right rows go to all segments. There, left rows that are final
take their best matches. Pairs of a nearest join with a static DataFrame are ranked as they come.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from handshake.engines.spark.joins.frames import JoinRequest, join_frames, predicate_for
from handshake.engines.spark.joins.inputs import arrow_schema, event_time
from handshake.engines.spark.types import carrier
from handshake.errors import UnsupportedError
from handshake.joins.asof import AsOf
from handshake.joins.nearest import NO_WINDOWS, Nearest
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
    if isinstance(join, Nearest):
        join = _carry(join)
    windows = join.held_windows() if right.isStreaming else NO_WINDOWS
    request = JoinRequest(
        Expression(join.condition()), windows, join.times, join.kind, join.suffix, join.aliases
    )
    if isinstance(join, Nearest) and not right.isStreaming:  # pairs are found and ranked in one segment
        ranking = replace(join.bound.ranking, output=join.schema)
        request = replace(request, windows=join.windows, kind=NEAREST, ranking=ranking)
    else:
        request = replace(request, best=replace(join, cores=1))
    return join_frames(left, right, request, options)


def _carry(join: Nearest) -> Nearest:
    """Return the join with values of its ranking in a type that Spark has."""
    ranking = join.bound.ranking
    if not ranking.valued:
        return join
    *fields, last = ranking.output
    return replace(join, carried=pa.schema([*fields, last.with_type(carrier(last.type))]))
