"""Metrics: the registry of figures, snapshots of whatever runs, and their export for operators."""

from handshake.metrics.export import Exporter, export, openmetrics
from handshake.metrics.families import FAMILIES, Family, families_table
from handshake.metrics.registry import REPORTS, Kind, Metric, combine, markdown, metric, names
from handshake.metrics.snapshot import Part, Snapshot, StreamPart
from handshake.metrics.watch import Watch

__all__ = [
    "FAMILIES",
    "REPORTS",
    "Exporter",
    "Family",
    "Kind",
    "Metric",
    "Part",
    "Snapshot",
    "StreamPart",
    "Watch",
    "combine",
    "export",
    "families_table",
    "markdown",
    "metric",
    "names",
    "openmetrics",
]
