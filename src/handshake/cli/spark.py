"""`handshake join --backend spark`: the same files, options and output, run by Spark's batch mode."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from handshake.api import spark_module
from handshake.cli.join import JoinRequest, write_metrics
from handshake.cli.preview import Preview, plain_table
from handshake.errors import UnsupportedError
from handshake.io import read, sink_for
from handshake.joins.driver import times_of
from handshake.joins.join import JoinPlan, prepare
from handshake.joins.spec import SIDES

__all__ = ["Place", "join_files_on_spark"]


@dataclass(frozen=True)
class Place:
    """Where a join on Spark runs and where its tuples lie."""

    master: str | None = None
    state_dir: str | None = None

    def check(self) -> None:
        """Refuse a cluster whose executors have no folder in common."""
        if self.master is not None and not self.master.startswith("local") and self.state_dir is None:
            raise UnsupportedError(
                f"a join on '{self.master}' needs a directory that every executor reaches, for tuples on "
                "their way; name one: --state-dir s3://bucket/folder, or a shared mount"
            )


@dataclass(frozen=True)
class SparkFigures:
    """What a run on Spark did."""

    left_rows: int
    right_rows: int
    results: int
    late: int
    no_time: int
    elapsed: float
    method: str
    segments: int
    routing: str
    master: str
    spark: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)


def join_files_on_spark(request: JoinRequest, place: Place) -> None:
    """Run a request from the files to the summary."""
    request.check()
    place.check()
    left, right = read(request.left, "left"), read(request.right, "right")
    plan = prepare(left.schema, right.schema, request.on, **_options(request), cores=request.cores)
    spark = spark_module("replay")
    if request.explain:
        print(plan.spec.explain())
        print(f"segments    {plan.cores} on Spark; tuples go by {spark.dealt(plan.spec, plan.cores)}")
        return
    with spark.started(_title(request), place.master, request.cores) as cluster:
        segments = request.cores or cluster.cores
        root = place.state_dir or str(cluster.folder / "state")
        replay = spark.SparkReplay(
            cluster, left, right, plan.output_schema, _title(request), root, segments
        )  # fmt: skip
        _deliver(request, plan, replay, spark)


def _options(request: JoinRequest) -> dict[str, Any]:
    names = ("window", "left_window", "right_window", "time", "left_time", "right_time", "method")
    return {name: getattr(request, name) for name in names}


def _title(request: JoinRequest) -> str:
    return f"handshake join: {Path(request.left).name} with {Path(request.right).name} on {request.on}"


def _deliver(request: JoinRequest, plan: JoinPlan, replay: Any, spark: Any) -> None:
    preview, rows, began = Preview(plan.output_schema), 0, time.perf_counter()
    with contextlib.ExitStack() as stack:
        deliver: Callable[[pa.RecordBatch], None] = preview.add
        if request.output is not None:
            deliver = stack.enter_context(sink_for(request.output, plan.output_schema)).write
        with _status(request, replay.cluster) as meanwhile:
            results = replay.results(request.on, _options(request), meanwhile)
            for batch in results:
                rows += batch.num_rows
                deliver(batch)
    figures = _figures(plan, replay, rows, time.perf_counter() - began, spark)
    if request.metrics is not None:
        write_metrics(request.metrics, figures)
    for line in [] if request.output is not None else preview.lines():
        print(line)
    for line in _summary(request, plan, figures):
        print(line, file=request.summary_to)


def _figures(plan: JoinPlan, replay: Any, results: int, elapsed: float, spark: Any) -> Any:
    left, right = replay.left, replay.right
    return SparkFigures(
        left.num_rows, right.num_rows, results, late=0, no_time=_no_time(plan, (left, right)),
        elapsed=elapsed, method=plan.method, segments=replay.segments,
        routing=spark.dealt(plan.spec, replay.segments), spark=spark.SPARK,
        master=replay.cluster.session.sparkContext.master,
    )  # fmt: skip


def _no_time(plan: JoinPlan, inputs: tuple[pa.Table, pa.Table]) -> int:
    """Rows that no time window can hold."""
    if not plan.spec.windows.timed:
        return 0
    return sum(_untimed(plan, table, side) for side, table in enumerate(inputs))


def _untimed(plan: JoinPlan, table: pa.Table, side: int) -> int:
    name = plan.spec.sides[side].time
    assert name is not None
    column = table.column(name).combine_chunks()
    _, valid = times_of(column, plan.spec.unit, name, SIDES[side])
    return 0 if valid is None else len(column) - int(valid.sum())


def _summary(request: JoinRequest, plan: JoinPlan, figures: SparkFigures) -> Iterator[str]:
    rows = figures.left_rows + figures.right_rows
    facts = [
        ("left", f"{figures.left_rows:,} rows"),
        ("right", f"{figures.right_rows:,} rows"),
        ("results", f"{figures.results:,}"),
        ("late", f"{figures.late:,}"),
        ("elapsed", f"{figures.elapsed:.2f} s"),
        ("rate", f"{rows / figures.elapsed if figures.elapsed else 0:,.0f} input rows/s"),
        ("method", f"{plan.method}: {plan.why}"),
        ("segments", f"{figures.segments} by {figures.routing}"),
        ("spark", f"{figures.spark} on {figures.master}"),
    ]
    if figures.no_time:
        facts.insert(4, ("no time", f"{figures.no_time:,} rows without a timestamp join nothing"))
    if request.output not in (None, "-"):
        facts.append(("output", str(request.output)))
    return plain_table(facts)


@contextlib.contextmanager
def _status(request: JoinRequest, cluster: Any) -> Iterator[Callable[[], None]]:
    """Tasks on standard error, where that is a terminal and no rows are shown on one."""
    shows_rows = request.output == "-" and sys.stdout.isatty()
    if shows_rows or not sys.stderr.isatty():
        yield lambda: None
        return
    with Console(stderr=True).status("joining on Spark") as status:
        yield lambda: status.update("joining on Spark, {} of {} tasks".format(*cluster.tasks()))
