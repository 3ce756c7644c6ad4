"""Metrics for operators: the text, the endpoint, OpenTelemetry, the dashboard and the alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

import handshake as hs
from handshake.errors import InputError
from handshake.metrics import FAMILIES, Watch, export, families_table
from handshake.metrics.address import parse_address
from handshake.metrics.export import BOUNDS, cumulate
from handshake.metrics.registry import REPORTS, names

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD, ALERTS = (
    DOCS / "operators" / "grafana-dashboard.json",
    DOCS / "operators" / "prometheus-alerts.yml",
)
ROWS = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])
QUERY = """CREATE INPUT STREAM Trades (Price int, Ts int) TIMESTAMP BY Ts;
           SELECT max(Price) AS High FROM Trades [SIZE 60 ADVANCE 60 TIME] INTO Highs"""


def start_join(**options: Any) -> hs.Join:
    join = hs.Join(
        left=ROWS,
        right=ROWS,
        on="l.x < r.x",
        window="1 second",
        time="t",
        algorithm="cell",
        cores=2,
        **options,
    )
    join.push_left({"t": [0, 1, 2_000_000], "x": [1, 2, 3]})
    join.push_right({"t": [3, 4, 2_000_001], "x": [2, 3, 9]})
    return join


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all samples, by the official parser, which rejects what the format forbids."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    (found,) = [
        v for (n, held), v in samples(text).items() if n == name and labels.items() <= dict(held).items()
    ]
    return found


def test_the_text_has_the_figures_of_joins_and_queries() -> None:
    name = 'odd "name" \\ with\nlines and <b>'
    with start_join() as join, hs.Query(QUERY) as query:
        query.push("Trades", {"Price": [1, 2], "Ts": [0, 100]})
        text = export(join, name=name).add(query, "highs").text()
        figures = join.metrics()
    assert value(text, "handshake_rows_total", query=name, stream="right") == 3
    assert value(text, "handshake_results_total", query=name, result="join") == figures.results == 4
    assert value(text, "handshake_late_rows_total", query=name, stream="left") == figures.left_late
    assert value(text, "handshake_window_rows", query=name, stream="left") == figures.left_window_rows
    assert value(text, "handshake_state_bytes", query=name) == figures.state_bytes > 0
    assert value(text, "handshake_latency_seconds_bucket", query=name, le="+Inf") == figures.latency.results
    assert value(text, "handshake_segments", query=name) == 2
    assert value(text, "handshake_rows_total", query="highs", stream="Trades") == 2
    assert value(text, "handshake_results_total", query="highs", result="Highs") == 1
    assert value(text, "handshake_closed_windows_total", query="highs") == 1
    assert value(text, "handshake_pending_rows", query="highs") == 0


def test_queries_with_joins_count_rows_that_wait() -> None:
    text = """CREATE INPUT STREAM A (X int, T int) TIMESTAMP BY T;
        CREATE INPUT STREAM B (X int, T int) TIMESTAMP BY T;
        SELECT A.X FROM A [SIZE 10 TIME] LEFT JOIN B [SIZE 10 TIME] ON A.X = B.X INTO R"""
    with hs.Query(text) as query:
        query.push("A", {"X": [1, 2], "T": [0, 0]})
        query.push("B", {"X": [1], "T": [1]})
        text, found = export(query, name="q").text(), query.metrics()
    figures = {
        name: value(text, f"handshake_{name}")
        for name in ("matched_rows_total", "pending_rows", "finalised_rows_total")
    }
    assert (found.matched, found.pending) == (1, 1)
    assert [*figures.values()] == [found.matched, found.pending, found.finalised]


def test_queries_on_spark_count_rows_that_wait() -> None:
    query = Streaming()
    query.recentProgress = [
        {"batchId": batch, "batchDuration": 10, "sources": [{"numInputRows": 3}],
         "observedMetrics": {"q": {"matched": 2, "finalised": 2, "pending": 5 - batch, "results": 1}}}
        for batch in range(2)
    ]  # fmt: skip
    text = export(query).text()
    assert value(text, "handshake_matched_rows_total") == 4
    assert value(text, "handshake_finalised_rows_total") == 4
    assert value(text, "handshake_pending_rows") == 4


def test_a_join_of_three_streams_has_figures_of_each() -> None:
    with hs.MultiJoin(
        {"a": ROWS, "b": ROWS, "c": ROWS}, "a.x < b.x AND b.x < c.x", window="1 minute", time="t"
    ) as join:
        for stream in "abbc":
            join.push(stream, {"t": [0], "x": [ord(stream)]})
        text = export(join, name="three").text()
    assert value(text, "handshake_rows_total", stream="b") == 2
    assert value(text, "handshake_results_total") == 2


def test_every_sample_belongs_to_a_documented_family_with_its_labels() -> None:
    with start_join() as join:
        text = export(join).text()
    known = {family.sample: {*family.labels, "query", "engine"} for family in FAMILIES.values()}
    for name, labels in samples(text):
        assert dict(labels).keys() == known[name]
    assert f"\n{families_table()}\n" in (DOCS / "metrics.md").read_text()


def test_the_bounds_of_latencies_are_those_of_the_histogram_and_counts_are_cumulative() -> None:
    from handshake.joins.latency import Histogram

    histogram = Histogram()
    for bound in BOUNDS:
        histogram.add(bound * 0.999, 2)
    histogram.add(1e4, 1)
    found = cumulate(histogram.figures().buckets)
    assert [count for _, count in found] == [2 * (k + 1) for k in range(len(BOUNDS))] + [2 * len(BOUNDS) + 1]


def test_the_endpoint_serves_what_a_scraper_asks_for() -> None:
    with start_join() as join, export(join, name="served", address="127.0.0.1:0") as exporter:
        asked = urllib.request.Request(exporter.address, headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert value(answer.read().decode(), "handshake_rows_total", stream="left") == 3
        asked = urllib.request.Request(exporter.address, headers={"Host": "evil.example:9464"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(asked)
        busy = exporter.address.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(InputError, match=f"metrics cannot be served at '{busy}': Address already in use"):
            export(address=busy)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(exporter.address)


def test_opentelemetry_reads_the_same_values() -> None:
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = pytest.importorskip("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    provider = metrics.MeterProvider(metric_readers=[reader])
    with start_join() as join:
        export(join, name="otel", provider=provider)
        held = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        figures = join.metrics()
    provider.shutdown()
    found = {
        each.name: {tuple(p.attributes.items()): p.value for p in each.data.data_points} for each in held
    }
    own = (("query", "otel"), ("engine", "local"))
    assert found["handshake.rows"][(*own, ("stream", "left"))] == 3
    assert found["handshake.state"][own] == figures.state_bytes
    assert found["handshake.latency"][(*own, ("quantile", "0.99"))] == figures.latency.p99
    units = {each.name: each.unit for each in held}
    assert (units["handshake.state"], units["handshake.latency"], units["handshake.rows"]) == ("By", "s", "1")


def test_an_ended_join_keeps_its_last_figures_and_is_not_kept_alive() -> None:
    join = start_join()
    watch = Watch(join, "short")
    assert watch.snapshots()[0].state == "running"
    join.close()
    assert [(s.state, s.results) for s in watch.snapshots()] == [("ended", {"join": 4})]
    del join
    assert [(s.state, s.results) for s in watch.snapshots()] == [("ended", {"join": 4})]


class Streaming:
    """The part of Spark's `StreamingQuery` that is read, with reports as Spark writes them."""

    name, id, isActive = "q", "id", True

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> None:
        return None

    def add(self, *segments: dict[str, int]) -> None:
        figures = names("micro_batch")
        parts = [{**dict.fromkeys(figures, 0), **segment} for segment in segments]
        sums: dict[str, Any] = {name: sum(part[name] for part in parts) for name in figures}
        self.recentProgress.append(
            {
                "batchId": len(self.recentProgress), "timestamp": "2023-11-14T22:13:30.000Z",
                "batchDuration": 1500, "sources": [{"numInputRows": 30}, {"numInputRows": 20}],
                "observedMetrics": {"mine": {**sums, "segments": [json.dumps(part) for part in parts]}},
            }
        )  # fmt: skip


def test_micro_batches_of_spark_add_up_also_those_that_were_not_looked_at() -> None:
    query = Streaming()
    exporter = export(query)
    assert value(exporter.text(), "handshake_query_info", query="q", engine="spark") == 1
    for batch in range(3):
        query.add(
            {"segment": 0, "rows": 30, "results": 7, "late": 1, "held_left": 10, "held_right": 2,
             "newest": 1_700_000_010_000, "state_bytes": 5},
            *({"segment": 1, "rows": 20, "results": 1, "held_left": 4},)[: batch % 2],
        )  # fmt: skip
        if batch != 1:
            text = exporter.text()
    assert value(text, "handshake_rows_total", stream="left") == 90
    assert value(text, "handshake_results_total") == 22
    assert value(text, "handshake_late_rows_total") == 3
    assert value(text, "handshake_segment_results_total", segment="1") == 1
    assert value(text, "handshake_window_rows", stream="left") == 10
    assert value(text, "handshake_batches_total") == 3
    assert value(text, "handshake_lag_seconds") == 1.5  # 22:13:31.5 less 22:13:30


def test_what_has_no_metrics_is_refused() -> None:
    with pytest.raises(InputError, match="dict has no metrics to read; give a Join"):
        export({})
    with pytest.raises(InputError, match="name 'a' is for one thing, and 0 are given"):
        export(name="a")


@pytest.mark.parametrize("address", ["", "localhost", "host:", "host:x", "host:65536", "host:²"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"address '{address}' is not HOST:PORT")):
        parse_address(address)


# The files for operators


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [
        rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    variables = [
        each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"
    ]
    return [*panels, *rules, *variables]


@pytest.mark.parametrize("expression", expressions())
def test_dashboard_and_alerts_name_families_and_labels_that_exist(expression: str) -> None:
    known = {family.sample: {*family.labels, "query", "engine"} for family in FAMILIES.values()}
    used = re.findall(r"handshake_\w+", expression)
    assert used
    assert set(used) <= known.keys()
    labels = set().union(*(known[name] for name in used))
    selected = re.findall(r"[{,]\s*(\w+)\s*=", expression)
    grouped = [name for by in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for name in by.split(", ")]
    assert {*selected, *grouped} <= labels


def test_alerts_cover_lag_late_rows_imbalance_and_growth() -> None:
    text = ALERTS.read_text()
    for name in ("lag_seconds", "late_rows", "imbalance", "state_bytes"):
        assert FAMILIES[name].sample in text


def test_prometheus_accepts_the_alerts() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (package prometheus)")
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, capture_output=True)


def test_every_counted_figure_of_a_join_is_exported_or_derived() -> None:
    exported = {*FAMILIES, *(family.removesuffix("_rows") for family in FAMILIES)}
    renamed = {
        "left_rows": "rows", "right_rows": "rows", "left_late": "late", "right_late": "late",
        "left_shed": "shed", "right_shed": "shed", "no_time": "untimed",
        "left_window_rows": "window", "right_window_rows": "window",
        "elapsed": "busy_seconds", "latency": "latency_seconds", "cores": "segments",
    }  # fmt: skip
    left_out = {
        "left_shed_share",
        "right_shed_share",
        "most_waiting_rows",
        "skipped",
        "algorithm",
        "core_counts",
    }
    figures = {metric.name for metric in REPORTS["join"]} - left_out
    assert {renamed.get(name, name) for name in figures} <= exported
