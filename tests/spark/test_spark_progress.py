"""Figures of streaming joins from Spark's progress, and the live view."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import handshake
from handshake.errors import HandshakeError, InputError
from handshake.metrics.watch import Watch

pytest.importorskip("pyspark")

from handshake.engines.spark.console import JoinView, watch
from handshake.engines.spark.failures import join_error, reason
from handshake.engines.spark.joins.tasks import FIGURES
from handshake.engines.spark.progress import SegmentProgress, joins_in, progress
from spark_session import Feed
from waiting import wait_until

NEWEST = 1_700_000_010_000


def segment(number: int, **figures: int) -> dict[str, int]:
    return {**dict.fromkeys(FIGURES, 0), "segment": number, **figures}


def report(batch: int, *segments: dict[str, int], **changes: Any) -> dict[str, Any]:
    """Return a micro-batch in the form of Spark's JSON."""
    sums = {name: sum(s[name] for s in segments) if segments else None for name in FIGURES}
    times = {name: max((s[name] for s in segments), default=None) for name in FIGURES[-2:]}
    seen = {**sums, **times, "segments": [json.dumps(s) for s in segments]}
    return {
        "name": "q",
        "batchId": batch,
        "timestamp": (datetime(2023, 11, 14, 22, 13, 30) + timedelta(seconds=2 * batch)).isoformat()
        + ".000Z",
        "batchDuration": 1500,
        "observedMetrics": {"mine": seen, "somebody's": {"rows": 3}},
        **changes,
    }


def busy(batch: int) -> dict[str, Any]:
    first = segment(
        0, rows=30, late=1, results=7, pending=2, held_left=10, held_right=20, comparisons=100, state_bytes=5
    )
    second = segment(1, rows=10, results=1, held_left=4, held_right=6, newest=NEWEST, watermark=NEWEST - 3000)
    return report(batch, first, second)


def test_figures_of_a_micro_batch() -> None:
    (join,) = joins_in(busy(4))
    assert (join.join, join.query, join.batch, join.duration) == ("mine", "q", 4, timedelta(seconds=1.5))
    assert (join.rows, join.late, join.results, join.held_left, join.held_right) == (40, 1, 8, 14, 26)
    assert (join.matched, join.unmatched, join.pending, join.finalised) == (0, 0, 2, 0)
    assert join.newest == datetime(2023, 11, 14, 22, 13, 30, tzinfo=UTC)
    assert join.behind == timedelta(seconds=3)
    assert join.lag == timedelta(seconds=9.5)
    assert join.imbalance == pytest.approx(1.5)
    assert join.segments[0] == SegmentProgress(0, 30, 1, 0, 100, 7, 2, 10, 20, 0, 5, 0, 0)
    assert str(join) == (
        "mine batch 4: 40 rows in 1.5 s, 8 results, windows 14 + 26, state 0.0 MB, late 1, lag 9.5 s"
    )


def test_micro_batches_without_tuples_say_nothing() -> None:
    assert list(joins_in(report(1))) == []
    assert list(joins_in({"batchId": 0})) == []


def test_figures_in_the_form_of_spark_connect() -> None:
    """Its reports have a row as values and schema."""
    plain = busy(4)
    seen = plain["observedMetrics"]["mine"]
    fields = [{"name": name, "type": "long"} for name in seen]
    row = {"values": list(seen.values()), "schema": {"type": "struct", "fields": fields}}
    assert progress({**plain, "observedMetrics": {"mine": row}}) == progress(plain)
    own = {"values": 3, "schema": 4}  # somebody's figures of these names
    assert progress({**plain, "observedMetrics": {"mine": seen, "own": own}}) == progress(plain)


def test_windows_that_do_not_look_at_time_have_no_lag() -> None:
    (join,) = joins_in(report(0, segment(0, rows=1)))
    assert (join.newest, join.watermark, join.lag, join.behind) == (None, None, None, None)
    assert join.imbalance == 1.0


class Query:
    """A streaming query as far as `progress` and `watch` use it."""

    def __init__(self, *reports: dict[str, Any], failure: Exception | None = None) -> None:
        self.reports, self.failure = reports, failure

    @property
    def lastProgress(self) -> Any:
        return self.reports[-1] if self.reports else None

    @property
    def recentProgress(self) -> Any:
        return list(self.reports)

    isActive = False

    def exception(self) -> Exception | None:
        return self.failure


def test_progress_is_that_of_the_last_micro_batch_with_tuples() -> None:
    assert progress(Query()) == ()
    assert [join.batch for join in progress(Query(busy(1), busy(2)))] == [2]
    assert [join.batch for join in progress(Query(busy(1), report(2), report(3)))] == [1]
    assert progress(busy(7)) == progress(json.dumps(busy(7)))
    with pytest.raises(InputError, match="read from a StreamingQuery or a StreamingQueryProgress, not int"):
        progress(5)


def test_view_adds_up_and_takes_rates_between_micro_batches() -> None:
    view = JoinView()
    assert view.line() == "batch waiting for the first"
    joins = [join for batch in (1, 1, 2, 3) for join in joins_in(busy(batch))]
    assert [view.add(join) for join in joins] == [True, False, True, True]
    assert (view.rows, view.results, view.late) == (120, 24, 3)
    assert view.rate("rows") == pytest.approx(20)  # 40 rows every 2 s
    assert "rows 120  20/s  results 24  4/s  windows 14 + 26 rows" in view.line()


def show_progress(query: Query, **options: Any) -> str:
    out = io.StringIO()
    watch(query, console=Console(file=out, width=100, **options))
    return out.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    lines = show_progress(Query(busy(0), busy(1), report(2))).splitlines()
    assert [line.split(",")[0] for line in lines] == ["batch 0", "batch 1"]


def test_table_in_a_terminal() -> None:
    drawn = show_progress(Query(busy(0), busy(1)), force_terminal=True)
    for word in ("segment", "comparisons", "results", "windows", "lag", "watermark"):
        assert word in drawn


def test_a_query_that_failed_says_why() -> None:
    trace = "Traceback (most recent call last):\n  x\nhandshake.spark.store.StateError: no room\n\n\tat org.x"
    with pytest.raises(HandshakeError, match=r"^the join failed on Spark: no room$"):
        show_progress(Query(busy(0), failure=RuntimeError(trace)))


def test_reasons_are_one_sentence() -> None:
    assert reason(RuntimeError("[SOME.CLASS] it is so. SQLSTATE: 1\nmore")) == "it is so."
    assert reason(RuntimeError("Traceback\nValueError: bad value\n\n\tat")) == "ValueError: bad value"
    missing = reason(RuntimeError("Traceback\nModuleNotFoundError: No module named 'handshake'"))
    assert missing.startswith(
        "the Python of an executor has no package 'handshake'; install Handshake and its extra 'spark'"
    )
    own = InputError("mine")
    assert join_error(own) is own


def test_a_running_query(spark: Any, tmp_path: Path) -> None:
    """Figures of a query as Spark reports them, by asking, by listening and by watching."""
    feeds = [Feed(tmp_path / side, "t timestamp, x int") for side in ("left", "right")]
    moments = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in range(20)]
    for feed in feeds:
        for half in (moments[:10], moments[10:]):
            feed.add(
                pa.table(
                    {"t": pa.array(half, pa.timestamp("us", "UTC")), "x": pa.array(range(10), pa.int32())}
                )
            )
    left, right = (feed.read(spark).withWatermark("t", "1 second") for feed in feeds)
    heard: list[Any] = []
    listener = handshake.listener(heard.append)
    spark.streams.addListener(listener)
    joined = handshake.join(left, right, "ABS(l.x - r.x) <= 1", window="5 seconds", time="t", name="near",
                            how="left", state_dir=str(tmp_path / "state"))  # fmt: skip
    query = (
        joined.writeStream.format("noop").queryName("near ones").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    out = io.StringIO()
    handshake.watch(query, console=Console(file=out))
    joins = [join for past in query.recentProgress for join in joins_in(past)]
    expected = sum(abs(i % 10 - j % 10) <= 1 and abs(i - j) < 5 for i in range(20) for j in range(20))
    sums = [
        sum(getattr(join, name) for join in joins)
        for name in ("rows", "results", "late", "matched", "finalised")
    ]
    assert sums == [40, expected, 0, 20, 20]
    assert handshake.progress(query) == (joins[-1],)
    assert (joins[-1].join, joins[-1].query) == ("near", "near ones")
    assert joins[-1].newest == moments[-1]
    assert {s.segment for s in joins[-1].segments} == {0, 1}
    assert sum(s.held for s in joins[-1].segments) == joins[-1].held_left + joins[-1].held_right > 0
    assert joins[-1].state_bytes > 0
    assert out.getvalue().count("windows") == len(joins)
    (snapshot,) = Watch(query).snapshots()
    assert (snapshot.name, snapshot.state, snapshot.results) == ("near ones", "ended", {"join": expected})
    wait_until(lambda: len(heard) >= len(joins), 60)
    spark.streams.removeListener(listener)
    assert heard == joins
