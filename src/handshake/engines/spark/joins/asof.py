"""`handshake.asof` for DataFrames: left rows that are final take their best matches in their own segment.

The rows go to segments as in a left outer join on the keys and the condition. So rows of one key meet in one
segment; if there is neither a key nor a band, right rows go to all segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from handshake.engines.spark.joins.explain import FramePlan
from handshake.engines.spark.joins.frames import Predicate, define, plan_frames, predicate_for, run_plan
from handshake.engines.spark.joins.inputs import arrow_schema, event_time
from handshake.engines.spark.joins.result_time import check_result_time
from handshake.engines.spark.workers import use_this_python
from handshake.errors import UnsupportedError
from handshake.joins.asof import AsOf, By
from handshake.joins.asof_streams import AsOfMatch
from handshake.joins.lengths import Length
from handshake.joins.waiting import waiting_windows
from handshake.kinds import kind_of_best
from handshake.plan.build import Expression
from handshake.windows import Windows

__all__ = ["asof_frames"]


@dataclass(frozen=True)
class _AsOfRequest:
    """The arguments of `handshake.asof` for DataFrames."""

    left: DataFrame
    right: DataFrame
    on: Predicate
    by: By
    times: tuple[str | None, str | None]
    direction: str
    tolerance: Length | None
    allow_exact_matches: bool
    how: str
    suffix: str
    aliases: tuple[str, str] | None
    segments: int | None = None
    state_dir: str | None = None
    state: str = "directory"
    name: str | None = None
    result_time: str | None = None

    def plan(self) -> FramePlan:
        """Check the request and plan the join; every error shows here, before the join runs."""
        frames = (self.left, self.right)
        if self.right.isStreaming and not self.left.isStreaming:
            raise UnsupportedError(
                "the left DataFrame is static and the right one streams, so no left row would ever be final; "
                "make the left one a stream, too, or the right one a batch"
            )
        both = all(frame.isStreaming for frame in frames)
        timed = waiting_windows("s", 0, 0) if both else Windows(None, None)
        times = tuple(event_time(frame, side, self.times[side], timed) for side, frame in enumerate(frames))
        on, aliases = predicate_for(self.on, self.left, self.right, self.aliases)
        schemas = [arrow_schema(frame, side) for side, frame in enumerate(frames)]
        join = AsOf(
            schemas[0].empty_table(), schemas[1].empty_table(), None if self.on is None else on, self.by,
            (times[0], times[1]), self.direction, self.tolerance, self.allow_exact_matches, self.how,
            self.suffix, aliases, cores=1,
        )  # fmt: skip
        join.find()  # raises if anything is wrong
        best, kind = AsOfMatch(join), kind_of_best(self.how, "an as-of join")
        definition = define(
            self.left, self.right, Expression(join.condition()), best.windows() if both else timed,
            join.times, suffix=self.suffix, aliases=aliases, segments=self.segments, state_dir=self.state_dir,
            state=self.state, kind=kind, result_time=self.result_time, best=best,
        )  # fmt: skip
        check_result_time(definition, self.result_time)
        return plan_frames(self.left, self.right, definition, self.name)


def asof_frames(left: DataFrame, right: DataFrame, on: Predicate, **options: Any) -> DataFrame:
    """Join DataFrames as of a time; the result streams if the left one does."""
    request = _AsOfRequest(left, right, on, **options)
    use_this_python(left.sparkSession)
    return run_plan(left, right, request.plan(), request.result_time)
