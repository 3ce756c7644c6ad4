"""The families of metrics that operators see: one table for OpenMetrics and for OpenTelemetry.

Most families are figures of the registry with labels, so joins in process and on Spark have the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handshake.metrics.registry import metric

__all__ = ["FAMILIES", "Family", "families_table"]

Type = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True)
class Family:
    """One family of metrics; its samples have the labels `query`, `engine` and those named here."""

    name: str
    """The name without the prefix `handshake_`, and without the suffix `_total` of counters."""
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """`seconds` or `bytes`, with which the name then ends; empty for numbers of things."""

    @property
    def sample(self) -> str:
        """The name of its samples in the text format.

        >>> FAMILIES["late_rows"].sample
        'handshake_late_rows_total'
        """
        suffix = {"counter": "_total", "histogram": "_bucket", "info": "_info"}.get(self.type, "")
        return f"handshake_{self.name}{suffix}"


def _family_of(report: str, figure: str, name: str, type: Type, *labels: str, unit: str = "") -> Family:
    """Return the family of a figure of the registry, with its help."""
    return Family(name, type, metric(report, figure).help, labels, unit)


_STREAM, _SEGMENT = "stream", "segment"
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("query", "info", "the arrangement of a query, and its state (waiting, running, ended, failed)",
               ("algorithm", "state")),
        _family_of("stream", "rows", "rows", "counter", _STREAM),
        Family("results", "counter", "result rows", ("result",)),
        _family_of("stream", "late", "late_rows", "counter", _STREAM),
        _family_of("stream", "no_time", "untimed_rows", "counter", _STREAM),
        _family_of("stream", "unmatchable", "unmatchable_rows", "counter", _STREAM),
        _family_of("stream", "shed", "shed_rows", "counter", _STREAM),
        _family_of("query", "unknown", "unknown_rows", "counter"),
        _family_of("join", "matched", "matched_rows", "counter"),
        _family_of("join", "unmatched", "unmatched_rows", "counter"),
        _family_of("join", "pending", "pending_rows", "gauge"),
        _family_of("join", "finalised", "finalised_rows", "counter"),
        Family("waiting_rows", "gauge", "rows that wait at the gate, because of a pace or an overload"),
        _family_of("join", "comparisons", "comparisons", "counter"),
        Family("window_rows", "gauge", "rows in the window of a stream", (_STREAM,)),
        Family("basic_windows", "gauge", "basic windows that hold the rows"),
        Family("chunks", "gauge", "files on Spark that hold the rows"),
        Family("state_bytes", "gauge", "memory of the windows and their indexes; on Spark, the size of their "
               "files", unit="bytes"),
        _family_of("join", "expired", "expired_rows", "counter"),
        _family_of("query", "windows", "closed_windows", "counter"),
        Family("imbalance", "gauge", "the largest segment's share of the window rows over the mean share; "
               "1 is even"),
        Family("load_imbalance", "gauge", "the busiest segment's comparisons over the mean; 1 is even"),
        Family("busy_seconds", "counter", "seconds spent in the engine; on Spark, in micro-batches",
               unit="seconds"),
        Family("batches", "counter", "micro-batches on Spark that had rows"),
        Family("batch_seconds", "gauge", "the duration of the last micro-batch on Spark", unit="seconds"),
        Family("lag_seconds", "gauge", "the age of the newest row when its results were ready, if times are "
               "real ones", unit="seconds"),
        Family("watermark_seconds", "gauge", "the watermark, in seconds of the epoch", unit="seconds"),
        Family("latency_seconds", "histogram", "seconds from the push of a result's later row to the result",
               ("le",), unit="seconds"),
        Family("segments", "gauge", "join cores, or segments on Spark"),
        Family("segment_results", "counter", "result rows of one join core; on Spark, of one segment",
               (_SEGMENT,)),
        Family("segment_comparisons", "counter", "pairs that one join core or segment has compared",
               (_SEGMENT,)),
        Family("segment_window_rows", "gauge", "rows of a window that one join core or segment holds",
               (_SEGMENT, _STREAM)),
        Family("segment_queue", "gauge", "messages that wait for one join core", (_SEGMENT,)),
    )
}  # fmt: skip
"""All families by name, in the order in which they are written."""


def families_table() -> str:
    """Return the table of families for the documentation."""
    rows = [
        f"| `{family.sample}` | {family.type} | {', '.join(family.labels)} | {family.help} |"
        for family in FAMILIES.values()
    ]
    return "\n".join(["| sample | type | labels | what |", "|---|---|---|---|", *rows])
