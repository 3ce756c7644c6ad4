"""The registry of metrics: documentation and classes have exactly its entries."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from handshake.joins.latency import Latency
from handshake.joins.metrics import CoreMetrics, Metrics, MultiMetrics, StreamMetrics
from handshake.metrics import FAMILIES, REPORTS, combine, markdown, names
from handshake.operators.query import QueryMetrics

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


@pytest.mark.parametrize("report", REPORTS)
def test_the_page_has_the_table_of_a_report(report: str) -> None:
    assert f"\n{markdown(report)}\n" in PAGE


def test_the_page_has_no_other_table() -> None:
    rows = re.findall(r"^\| `.*$", PAGE, re.MULTILINE)
    assert len(rows) == sum(map(len, REPORTS.values())) + len(FAMILIES)


@pytest.mark.parametrize(
    ("report", "kind", "derived"),
    [
        ("core", CoreMetrics, set()),
        ("query", QueryMetrics, set()),
    ],
)
def test_a_class_has_the_figures_of_its_report(report: str, kind: type, derived: set[str]) -> None:
    assert {field.name for field in fields(kind)} | derived == set(names(report))


def test_a_histogram_has_the_figures_of_its_report() -> None:
    assert set(Latency().to_dict()) == set(names("latency"))


def test_the_figures_of_a_join_have_the_names_of_its_report() -> None:
    streams = tuple(StreamMetrics(name, 0, 0, 0, 0) for name in ("left", "right"))
    for report, kind in (("join", Metrics), ("multijoin", MultiMetrics)):
        figures = kind(streams, 0, 0, 0, 0, 0, 0.0, "three_step", ()).to_dict()
        assert set(figures) == set(names(report))


@dataclass
class Part:
    queue: int
    deepest_queue: int


def test_figures_combine_by_their_kind() -> None:
    assert combine("core", [Part(1, 5), Part(2, 3), object()]) == {"queue": 3, "deepest_queue": 5}
    assert combine("query", []) == {}
