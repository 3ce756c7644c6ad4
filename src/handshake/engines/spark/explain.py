"""How a join of DataFrames is run, for people; what `handshake.explain` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from handshake.engines.spark.definition import Definition
from handshake.engines.spark.frames import watermark_delay
from handshake.engines.spark.native import WHY
from handshake.errors import InputError
from handshake.windows import Duration

__all__ = ["Plan", "explained", "plan_of", "remember"]

_ATTRIBUTE = "_handshake_plan"
_RUNS = {
    "streaming": "streaming: micro-batches of both streams, results appended",
    "static": "a stream that passes by a static DataFrame, results appended",
    "batch": "batch: both inputs at once",
    "native": f"Spark's own join: {WHY}",
}


@dataclass(frozen=True)
class Plan:
    """A join that was asked for: what it is, and how it runs."""

    definition: Definition
    runs: str
    """`streaming`, `static`, `batch` or `native`."""
    name: str | None
    """What the join is called in the query's progress; None before it has been made."""
    delays: tuple[int | None, int | None]
    """Of the watermarks, in milliseconds."""

    def explain(self) -> str:
        """The plan, for people."""
        return "\n".join(_lines(self))


def _lines(plan: Plan) -> Iterator[str]:
    definition = plan.definition
    yield definition.spec.explain()
    yield from _times(plan)
    yield f"runs as     {_RUNS[plan.runs]}"
    if plan.runs == "native":
        return
    yield f"routing     {_routing(definition)}"
    yield f"segments    {definition.segments}, over {definition.partitions} shuffle partitions"
    kept = "windows" if plan.runs == "streaming" else "tuples, until the session ends,"
    yield f"state       {kept} lie under {definition.root}"
    if plan.runs == "streaming" and plan.name is not None:
        yield f"progress    observedMetrics['{plan.name}'] of the query's progress"


def _times(plan: Plan) -> Iterator[str]:
    left, right = plan.definition.times
    if left is None or right is None:
        return
    marks = [
        name if delay is None else f"{name} (watermark {_length(delay)} behind)"
        for name, delay in zip((f"l.{left}", f"r.{right}"), plan.delays, strict=True)
    ]
    yield f"time        {marks[0]}, {marks[1]}"


def _length(milliseconds: int) -> str:
    return str(Duration(milliseconds * 10**6)) if milliseconds else "0 seconds"


def _routing(definition: Definition) -> str:
    routing = definition.routing
    if definition.segments == 1:
        return "none: there is one segment"
    match routing.kind:
        case "hash":
            return f"hash: {routing.why}; a tuple goes to the segments that share its cell of {routing.cells}"
        case "range":
            return (
                f"range with overlap: {routing.why}; a tuple goes to the segments of its cell and of "
                f"{routing.overlap} to either side, of {routing.cells}"
            )
    return f"to all: {routing.why}; each tuple stays in one segment and is compared in all"


def plan_of(left: DataFrame, right: DataFrame, definition: Definition, runs: str, name: str | None) -> Plan:
    """What there is to say of a join."""
    delays = tuple(
        None if time is None or not frame.isStreaming else watermark_delay(frame, time)
        for frame, time in zip((left, right), definition.times, strict=True)
    )
    return Plan(definition, runs, name, (delays[0], delays[1]))


def remember(frame: DataFrame, plan: Plan) -> DataFrame:
    """Tie a plan to the DataFrame that it led to; it goes when that goes."""
    setattr(frame, _ATTRIBUTE, plan)
    return frame


def explained(frame: DataFrame) -> str:
    """The plan of a DataFrame that a join returned."""
    plan = vars(frame).get(_ATTRIBUTE)
    if plan is None:
        raise InputError(
            "this DataFrame is not the one that handshake.join returned, but perhaps one made from it; "
            "explain that one, or give both inputs: handshake.explain(left, right, on, window=…)"
        )
    return str(plan.explain())
