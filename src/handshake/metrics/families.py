"""The families of metrics that operators see: one table for OpenMetrics and for OpenTelemetry.

Most families are derived from figures of the registry, so joins in process and on Spark have the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from handshake.metrics.registry import REPORTS

Type = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True)
class Family:
    """One family of metrics; its samples have the labels `query`, `engine` and those named here."""

    name: str
    """The name without the prefix `handshake_`, and without the suffix `_total` of counters."""
    type: Type
    help: str
    labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """`seconds` or `bytes` if the name ends with it; empty for numbers of things."""
        last = self.name.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""

    @property
    def sample(self) -> str:
        """The name of its samples in the text format.

        >>> FAMILIES["late_rows"].sample
        'handshake_late_rows_total'
        """
        suffix = {"counter": "_total", "histogram": "_bucket", "info": "_info"}.get(self.type, "")
        return f"handshake_{self.name}{suffix}"


_LABELS: dict[str, tuple[str, ...]] = {"stream": ("stream",), "join": (), "query": (), "micro_batch": ()}
"""The reports whose figures are exported, and the labels of these."""


def derived_families() -> Iterator[Family]:
    """Yield the families of the registry; the first report that exports one says what it means."""
    seen: set[str] = set()
    for report, labels in _LABELS.items():
        for metric in REPORTS[report]:
            shown = metric.exported
            if shown is not None and shown.family not in seen:
                seen.add(shown.family)
                yield Family(shown.family, shown.type, shown.help or metric.help, labels)


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("query", "info", "the arrangement of a query, and its state (waiting, running, ended, failed)",
               ("algorithm", "state")),
        Family("results", "counter", "result rows", ("result",)),
        *derived_families(),
        Family("batches", "counter", "micro-batches on Spark that had rows"),
        Family("batch_seconds", "gauge", "the duration of the last micro-batch on Spark"),
        Family("lag_seconds", "gauge", "the age of the newest row when its results were ready, if times are "
               "real ones"),
        Family("watermark_seconds", "gauge", "the watermark, in seconds of the epoch"),
        Family("latency_seconds", "histogram", "seconds from the push of a result's later row to the result",
               ("le",)),
        Family("segments", "gauge", "join cores, or segments on Spark"),
        Family("segment_results", "counter", "result rows of one join core; on Spark, of one segment",
               ("segment",)),
        Family("segment_comparisons", "counter", "pairs that one join core or segment has compared",
               ("segment",)),
        Family("segment_window_rows", "gauge", "rows of a window that one join core or segment holds",
               ("segment", "stream")),
        Family("segment_queue", "gauge", "messages that wait for one join core", ("segment",)),
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
