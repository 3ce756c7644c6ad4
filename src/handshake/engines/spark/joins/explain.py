"""The text that `handshake.explain` prints for a join of DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.native import WHY
from handshake.errors import InputError
from handshake.joins.spec import SIDES, explain_unmatched
from handshake.joins.waiting import explain_best, explain_waiting
from handshake.windows import Duration

_ATTRIBUTE = "_handshake_plan"
_RUNS = {
    "streaming": "streaming: micro-batches of both streams, results appended",
    "static": "a stream that passes by a static DataFrame, results appended",
    "batch": "batch: both inputs at once",
    "native": f"Spark's own join: {WHY}",
}


@dataclass(frozen=True)
class FramePlan:
    """A join of DataFrames, and how it runs."""

    definition: Definition
    runs: str
    """`streaming`, `static`, `batch` or `native`."""
    name: str | None
    """The name of the join in the query's progress; None before the join is made."""

    def explain(self) -> str:
        """Return the plan as text."""
        return "\n".join(_lines(self))


def _lines(plan: FramePlan) -> Iterator[str]:
    definition = plan.definition
    yield definition.spec.explain() if definition.best is None else explain_best(definition.best)
    if definition.ranking is not None:
        yield definition.ranking.explain()
    yield from _times(plan)
    yield f"runs as     {_RUNS[plan.runs]}"
    if plan.runs == "native":
        return
    yield f"routing     {_routing(definition)}"
    yield f"segments    {definition.segments}, over {definition.partitions} shuffle partitions"
    yield from _kind(plan)
    kept = "windows" if plan.runs == "streaming" else "tuples, until the session ends,"
    stored = definition.options.state == "store"
    place = "lie in Spark's state store" if stored else f"lie under {definition.root}"
    yield f"state       {kept} {place}"
    results_to = definition.options.results_to
    if results_to is not None:
        yield f"results     in Parquet files under {results_to}; the DataFrame has a row per file"
    if plan.runs == "streaming" and plan.name is not None:
        yield f"progress    observedMetrics['{plan.name}'] of the query's progress"


def _kind(plan: FramePlan) -> Iterator[str]:
    """Describe where pairs are found if the join must know which rows match, and what it holds longer."""
    definition, anchored = plan.definition, plan.definition.anchored
    if not any(anchored):
        return
    names = " and ".join(name for name, is_so in zip(SIDES, anchored, strict=True) if is_so)
    others = " and ".join(name for name, is_so in zip(SIDES, anchored[::-1], strict=True) if is_so)
    yield f"matches     {names} rows find them in their own segment; {others} rows stay wherever they visit"
    if plan.runs == "streaming":
        yield f"held        a number of 4 bytes and 2 bits of state per {names} row in the window"
        best = definition.best
        yield from explain_unmatched(definition.spec) if best is None else [explain_waiting(best)]


def _times(plan: FramePlan) -> Iterator[str]:
    left, right = plan.definition.times
    if left is None or right is None:
        return
    marks = [f"l.{left}", f"r.{right}"]
    for side, delay in enumerate(plan.definition.delays):
        if delay is not None:
            behind = Duration(delay * 10**6) if delay else "0 seconds"
            marks[side] += f" (watermark {behind} behind)"
    yield f"time        {', '.join(marks)}"


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


def remember(frame: DataFrame, plan: FramePlan) -> DataFrame:
    """Attach a plan to the DataFrame of its results."""
    setattr(frame, _ATTRIBUTE, plan)
    return frame


def recall(frame: DataFrame) -> FramePlan | None:
    """Return the plan of a DataFrame that `handshake.join` returned; None for others."""
    plan: FramePlan | None = vars(frame).get(_ATTRIBUTE)
    return plan


def explain_result(frame: DataFrame) -> str:
    """Return the plan of a DataFrame that `handshake.join` returned, as text."""
    plan = recall(frame)
    if plan is None:
        raise InputError(
            "this DataFrame is not the one that handshake.join returned, but perhaps one made from it; "
            "explain that one, or give both inputs: handshake.explain(left, right, on, window=…)"
        )
    return str(plan.explain())
