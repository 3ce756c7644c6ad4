"""The registry of metrics: the name, the kind and the meaning of every figure that a report has.

A report is a set of figures about one thing: a join, one of its cores, a query, a micro-batch. Classes with
figures have the fields that are listed here, and `markdown()` makes the tables of docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["sum", "max", "latest"]


@dataclass(frozen=True)
class Exported:
    """The family in which operators see a figure."""

    family: str
    """The name without the prefix `handshake_`; it ends with the unit, if that is seconds or bytes."""
    type: Literal["counter", "gauge"] = "counter"
    """`counter` for a number that only grows while a join or query runs; micro-batches are added up."""
    help: str = ""
    """The meaning, if that of the figure does not fit all engines."""


@dataclass(frozen=True)
class Metric:
    """One figure of a report."""

    name: str
    kind: Kind
    """How the figures of several parts (cores, segments, operators) make one: their sum, the largest one, or
    the latest one, if they can be neither added nor compared."""
    help: str
    exported: Exported | None = None

    def combine(self, values: Sequence[Any]) -> Any:
        """Return the figure of several parts together; the latest part comes last."""
        return values[-1] if self.kind == "latest" else max(values) if self.kind == "max" else sum(values)


def _report(**figures: tuple[Kind, str] | tuple[Kind, str, Exported]) -> tuple[Metric, ...]:
    return tuple(Metric(name, *entry) for name, entry in figures.items())


_MATCHED, _UNMATCHED = Exported("matched_rows"), Exported("unmatched_rows")
_PENDING, _FINALISED = Exported("pending_rows", "gauge"), Exported("finalised_rows")
_LATE, _NO_TIME, _UNMATCHABLE = map(Exported, ("late_rows", "untimed_rows", "unmatchable_rows"))
_COMPARISONS = Exported("comparisons")
_IMBALANCE = Exported(
    "imbalance", "gauge", "the largest segment's share of the window rows over the mean share; 1 is even"
)
_LOAD_IMBALANCE = Exported(
    "load_imbalance", "gauge", "the busiest segment's comparisons over the mean; 1 is even"
)
_STATE_BYTES = Exported(
    "state_bytes", "gauge", "memory of the windows and their indexes; on Spark, the size of their files"
)


REPORTS: dict[str, tuple[Metric, ...]] = {
    "join": _report(
        left_rows=("sum", "rows taken in from the left stream, without those shed"),
        right_rows=("sum", "the same for the right stream"),
        results=("sum", "result rows"),
        late=("sum", "rows dropped because the watermark had passed them"),
        left_late=("sum", "late rows of the left stream"),
        right_late=("sum", "late rows of the right stream"),
        no_time=("sum", "rows dropped because they have no time and a time window needs one"),
        unmatchable=("sum", "rows that can match nothing (NULL key, one-sided condition fails); not stored"),
        matched=("sum", "outer, semi and anti joins: rows of the preserved sides that have matched",
                 _MATCHED),
        unmatched=("sum", "outer and anti joins: rows that came as results without a match", _UNMATCHED),
        pending=("sum", "outer, semi and anti joins: rows in the window that have not matched yet", _PENDING),
        finalised=("sum", "rows of these sides that wait no more: they matched, or no match can come",
                   _FINALISED),
        left_shed=("sum", 'rows of the left stream dropped because the join was behind (`overload="shed"`)'),
        right_shed=("sum", "the same for the right stream"),
        left_shed_share=("latest", "`left_shed` over all rows offered"),
        right_shed_share=("latest", "`right_shed` over all rows offered"),
        waiting_rows=("sum", "rows that wait at the gate (a pace, or `overload=\"shed\"`)",
                      Exported("waiting_rows", "gauge")),
        most_waiting_rows=("max", "the most rows that have waited at the gate"),
        comparisons=("sum", "pairs compared", _COMPARISONS),
        skipped=("sum", "basic windows that a probe skipped because none of their rows could match"),
        left_window_rows=("sum", "rows in the left window"),
        right_window_rows=("sum", "rows in the right window"),
        basic_windows=("sum", "basic windows that hold them",
                       Exported("basic_windows", "gauge", "basic windows that hold the rows")),
        state_bytes=("sum", "memory of the basic windows and their indexes", _STATE_BYTES),
        expired=("sum", "rows that have left the windows", Exported("expired_rows")),
        elapsed=("sum", "seconds spent in the engine",
                 Exported("busy_seconds", help="seconds spent in the engine; on Spark, in micro-batches")),
        algorithm=("latest", "the arrangement"),
        imbalance=("latest", "the largest core's share of the window rows over the mean share; 1 is even",
                   _IMBALANCE),
        load_imbalance=("latest", "the busiest core's comparisons over the mean; 1 is even",
                        _LOAD_IMBALANCE),
        latency=("sum", "a histogram, see below"),
        core_counts=("latest", "with `adapt`: pairs of seconds since the start and the number of cores from "
                     "then on, at most the last 1,000"),
        cores=("latest", "one report per core"),
    ),
    "core": _report(
        results=("sum", "result rows that it found"),
        comparisons=("sum", "pairs that it compared"),
        left_window_rows=("sum", "rows of the left window that it holds (`cell`: that it searches)"),
        right_window_rows=("sum", "the same for the right window"),
        batches=("sum", "batches that it probed with"),
        forwarded=("sum", "`handshake`: batches passed on to a neighbour, or to the driver at the far end"),
        acknowledged=("sum", "`handshake`: acknowledgements that made it drop a forwarded batch"),
        queue=("sum", "messages that wait for it"),
        deepest_queue=("max", "the most messages that have waited in one of its queues"),
        results_waiting=("sum", "batches of results that wait for the caller"),
        deepest_results=("max", "the most batches of results that have waited"),
        held_back=("sum", "how often it waited for the caller to take results"),
        latency=("sum", "the histogram of its own results"),
    ),
    "latency": _report(
        results=("sum", "results counted"),
        p50=("latest", "seconds: upper bound of the percentile's bucket; at most 2.4 % too high"),
        p90=("latest", "the same for 90 %"),
        p99=("latest", "the same for 99 %"),
        longest=("max", "seconds, exact"),
        buckets=("sum", "pairs of an upper bound in seconds and a number of results, without empty buckets; "
                 "bounds are `1e-6 * 10 ** (k / 100)`, the last one `null`"),
    ),
    "multijoin": _report(
        streams=("latest", "one report per stream"),
        steps=("latest", "one report per step of a join order"),
        results=("sum", "result rows"),
        late=("sum", "rows dropped because the watermark had passed them"),
        no_time=("sum", "rows dropped because they have no time and a time window needs one"),
        shed=("sum", "rows of all streams dropped because the join was behind"),
        waiting_rows=("sum", "rows that wait at the gate"),
        most_waiting_rows=("max", "the most rows that have waited at the gate"),
        comparisons=("sum", "pairs compared"),
        basic_windows=("sum", "basic windows that hold the rows"),
        state_bytes=("sum", "their memory with indexes"),
        expired=("sum", "rows that have left a window; a row that is held in two ways counts twice"),
        replans=("sum", "how often a join order was changed for a better one"),
        elapsed=("sum", "seconds spent in the engine"),
        algorithm=("latest", "the arrangement"),
        load_imbalance=("latest", "the busiest core's comparisons over the mean; 1 is even"),
        latency=("sum", "a histogram, see above"),
        core_counts=("latest", "with `adapt`: pairs of seconds since the start and the number of cores"),
        cores=("latest", "one report per core: `results`, `comparisons`, `batches` and `deepest_queue`"),
    ),
    "stream": _report(
        name=("latest", "what the stream is called"),
        rows=("sum", "rows taken in, without those shed", Exported("rows")),
        late=("sum", "rows dropped because the watermark had passed them", _LATE),
        no_time=("sum", "rows dropped because they have no time", _NO_TIME),
        unmatchable=("sum", "rows that a condition on this stream alone has ruled out", _UNMATCHABLE),
        window_rows=("sum", "rows in its window", Exported("window_rows", "gauge")),
        order=("latest", "the windows that its rows go through"),
        shed=("sum", "rows dropped because the join was behind", Exported("shed_rows")),
        shed_share=("latest", "`shed` over all rows offered"),
    ),
    "step": _report(
        joined=("latest", "the streams joined so far"),
        target=("latest", "the stream whose window is probed"),
        method=("latest", "its access method"),
        probed=("sum", "combinations that came in"),
        comparisons=("sum", "pairs compared"),
        found=("sum", "combinations that came out"),
    ),
    "query": _report(
        rows=("sum", "rows of each input stream"),
        results=("sum", "result rows of each `INTO`"),
        late=("sum", "rows that missed a window, counted once per operator that they were late for", _LATE),
        no_time=("sum", "rows dropped because they have no time and a time window needs one", _NO_TIME),
        unknown=("sum", "rows of an input that carries several streams, but of no declared one",
                 Exported("unknown_rows")),
        windows=("sum", "windows that have closed", Exported("closed_windows")),
        matched=("sum", "outer, semi, anti and as-of joins: rows of sides that wait for a match, with one",
                 _MATCHED),
        unmatched=("sum", "outer, anti and left as-of joins: rows that came as results without a match",
                   _UNMATCHED),
        pending=("sum", "rows of these sides that wait now", _PENDING),
        finalised=("sum", "rows of these sides that wait no more: they matched, or no match can come",
                   _FINALISED),
    ),
    "micro_batch": _report(
        rows=("sum", "new rows that segments keep"),
        late=("sum", "rows dropped because the watermark had passed them", _LATE),
        no_time=("sum", "rows without a time, which no time window can hold", _NO_TIME),
        unmatchable=("sum", "rows that can match nothing, because a value that the predicate needs is NULL",
                     _UNMATCHABLE),
        visits=("sum", "new rows compared with what segments hold, once per segment"),
        comparisons=("sum", "pairs compared", _COMPARISONS),
        results=("sum", "result rows"),
        matched=("sum", "outer, semi and anti joins: rows of the preserved sides that matched first now",
                 _MATCHED),
        unmatched=("sum", "outer and anti joins: rows that came as results without a match", _UNMATCHED),
        pending=("sum", "outer, semi and anti joins: rows in the windows that have not matched yet",
                 _PENDING),
        finalised=("sum", "rows of these sides that wait no more: they matched, or no match can come",
                   _FINALISED),
        held_left=("sum", "rows in the left window"),
        held_right=("sum", "rows in the right window"),
        chunks=("sum", "files that hold them",
                Exported("chunks", "gauge", "files on Spark that hold the rows")),
        state_bytes=("sum", "the size of these files", _STATE_BYTES),
        read_bytes=("sum", "bytes of new rows that segments have read"),
        written_bytes=("sum", "`results_to`: the size of the files of results"),
        newest=("max", "the latest event time, if windows are of time"),
        watermark=("max", "Spark's watermark"),
    ),
}  # fmt: skip
"""All figures by report, in the order in which they are shown."""


def names(report: str) -> tuple[str, ...]:
    """Return the names of a report's figures.

    >>> names("query")[:6]
    ('rows', 'results', 'late', 'no_time', 'unknown', 'windows')
    """
    return tuple(metric.name for metric in REPORTS[report])


def metric(report: str, name: str) -> Metric:
    """Return one figure of a report."""
    return next(metric for metric in REPORTS[report] if metric.name == name)


def select_exported(report: str, found: Mapping[str, Any], type: str = "") -> dict[str, Any]:
    """Return the figures of a report that operators see, by family.

    Args:
        report: The report's name in `REPORTS`.
        found: Figures by name; not all need to be there.
        type: `counter` or `gauge` for figures of this type only.
    """
    return {
        metric.exported.family: found[metric.name]
        for metric in REPORTS[report]
        if metric.exported is not None and metric.name in found and type in ("", metric.exported.type)
    }


def combine(report: str, parts: Iterable[object]) -> dict[str, Any]:
    """Combine the figures that several parts have as attributes, each figure by its kind.

    Args:
        report: the report's name in `REPORTS`.
        parts: objects with some of the figures as attributes; the latest part comes last.

    Returns:
        The figures that at least one part has.
    """
    held = list(parts)
    figures: dict[str, Any] = {}
    for metric in REPORTS[report]:
        values = [getattr(part, metric.name) for part in held if hasattr(part, metric.name)]
        if values:
            figures[metric.name] = metric.combine(values)
    return figures


def markdown(report: str) -> str:
    """Return the table of a report for the documentation."""
    rows = [f"| `{metric.name}` | {metric.kind} | {metric.help} |" for metric in REPORTS[report]]
    return "\n".join(["| name | kind | what |", "|---|---|---|", *rows])
