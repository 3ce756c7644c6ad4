"""The Spark engine: plans on DataFrames, streaming if an input is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from handshake.engines.engine import Run
from handshake.engines.inputs import check_inputs
from handshake.engines.joins import JOIN, SUFFIX, PlainJoin, best_join, join_plan, join_tables, plan_as_join
from handshake.engines.spark.cluster import Cluster, start_cluster
from handshake.engines.spark.joins.best import best_frames
from handshake.engines.spark.joins.explain import recall
from handshake.engines.spark.joins.frames import (
    JoinRequest,
    Predicate,
    check_windows,
    join_frames,
    predicate_for,
)
from handshake.engines.spark.joins.inputs import arrow_schema, event_time
from handshake.engines.spark.joins.pipelines import readable
from handshake.engines.spark.joins.routing import describe_routing
from handshake.engines.spark.queries import query_frames
from handshake.engines.spark.queries.placement import explain_placement
from handshake.engines.spark.queries.runs import BatchRun, LiveRun, place_of
from handshake.engines.spark.state.store import open_store
from handshake.engines.spark.tables import table_frame, write_results
from handshake.engines.spark.types import from_spark_types, to_spark_types
from handshake.errors import UnsupportedError, format_count
from handshake.io.frames import is_spark
from handshake.joins.driver import times_of
from handshake.joins.plan import JoinPlan
from handshake.joins.spec import SIDES
from handshake.joins.waiting import explain_best
from handshake.kinds import INNER, JoinKind
from handshake.options import OPTIONS, Options
from handshake.plan.algebra import Plan
from handshake.plan.build import Expression
from handshake.plan.explain import explain_plan
from handshake.plan.optimise import optimise
from handshake.windows import Windows


class SparkEngine:
    """Runs plans on a Spark session: the one that this process has, or one of its own."""

    name = "spark"

    def check(self, plan: Plan, options: Options) -> None:
        """Raise a `HandshakeError` if the plan cannot run with these options."""
        options.check(self.name)
        if best_join(plan, options) is None and plan_as_join(plan, options) is None:
            _refuse_for_frames_only(options, "queries")
        if (
            options.master is not None
            and not options.master.startswith("local")
            and options.state_dir is None
        ):
            raise UnsupportedError(
                f"a join on '{options.master}' needs a directory that every executor reaches, for tuples on "
                'their way; name one: state_dir="s3://bucket/folder", or a shared mount'
            )

    def explain(self, plan: Plan, options: Options) -> str:
        """Return the operators of a query and what runs in one task, or how a join is spread."""
        self.check(plan, options)
        best = best_join(plan, options)
        if best is not None:
            return explain_best(best.best)
        join = plan_as_join(plan, options)
        if join is None:
            shown = explain_plan(optimise(plan) if options.optimised else plan).rstrip("\n")
            return "\n".join([shown, *explain_placement(plan)])
        prepared = _prepare(join, *join.schemas, options)
        segments = options.segments or prepared.cores
        spread = f"segments    {segments} on Spark; tuples go by {describe_routing(prepared.spec, segments)}"
        return f"{prepared.spec.explain()}\n{spread}"

    def run(self, plan: Plan, inputs: Mapping[str, Any], options: Options) -> Run:
        """Start a plan; see `Engine.run`. DataFrames give DataFrames, other inputs Arrow tables."""
        self.check(plan, options)
        check_inputs(plan, inputs)
        best, join = best_join(plan, options), plan_as_join(plan, options)
        if all(is_spark(each) for each in inputs.values()):
            if options.cores is not None:
                raise UnsupportedError(
                    f"cores={options.cores} has no effect on Spark DataFrames; use segments={options.cores}"
                )
            if best is not None:
                return _FrameRun({JOIN: best_frames(inputs["left"], inputs["right"], best.best, options)})
            if join is not None:
                return _FrameRun({join.name: _join_frames(join, inputs, options)})
            return _FrameRun(query_frames(plan, inputs, state_dir=options.state_dir))
        if best is not None:
            raise UnsupportedError(
                f"{best.best.called} runs on Spark DataFrames; make them with spark.createDataFrame, or take "
                "the local engine"
            )
        _refuse_for_frames_only(options, "tables")
        if join is not None:
            return _TableJoinRun(join, join_tables(plan, join, inputs), options)
        places = {name: place_of(each) for name, each in inputs.items()}
        if any(place is not None and place.live for place in places.values()):
            return LiveRun(plan, inputs, options, places)
        return BatchRun(plan, inputs, options, places)


def _refuse_for_frames_only(options: Options, given: str) -> None:
    """Raise if an option is set that only joins of DataFrames take."""
    for field in fields(options):
        kind, value = OPTIONS[field.name].frames, getattr(options, field.name)
        if kind and value != field.default:
            raise UnsupportedError(f"{field.name}={value!r} is for joins of {kind}, not of {given}")


def _prepare(join: PlainJoin, left: pa.Schema, right: pa.Schema, options: Options) -> JoinPlan:
    return join.prepare(left, right, method=options.method, cores=options.segments or options.cores)


def frames_plan(
    left: DataFrame,
    right: DataFrame,
    on: Predicate,
    windows: Windows,
    times: tuple[str | None, str | None],
    *,
    suffix: str,
    aliases: tuple[str, str] | None,
    kind: JoinKind = INNER,
) -> Plan:
    """Build the plan of a join of DataFrames; see `join_plan`. Streams have the times of their watermarks."""
    left, right = readable(left, 0), readable(right, 1)
    check_windows(windows, [left.isStreaming, right.isStreaming])
    schemas = [arrow_schema(frame, side) for side, frame in enumerate((left, right))]
    found = [event_time(frame, side, times[side], windows) for side, frame in enumerate((left, right))]
    if None in found and not windows.timed:
        found = [None, None]
    predicate, names = predicate_for(on, left, right, aliases)
    return join_plan(
        schemas[0],
        schemas[1],
        predicate,
        windows,
        (found[0], found[1]),
        suffix=suffix,
        aliases=names,
        kind=kind,
    )


class _FrameRun(Run):
    """DataFrames in, DataFrames out; nothing runs before Spark is asked for rows."""

    def __init__(self, frames: Mapping[str, DataFrame]) -> None:
        self._frames = frames
        self.schemas = {name: frame.schema for name, frame in frames.items()}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name, frame in self._frames.items():
            for batch in frame.toArrow().to_batches():
                yield name, batch

    def results(self) -> Mapping[str, Any]:
        """Return the DataFrames of the results by name."""
        return self._frames

    def facts(self) -> list[tuple[str, str]]:
        """Return nothing: DataFrames have not run."""
        return []

    def metrics(self) -> dict[str, Any]:
        """Return nothing: DataFrames have not run."""
        return {}


def _join_frames(join: PlainJoin, inputs: Mapping[str, Any], options: Options) -> Any:
    left, right = (inputs[source.name] for source in join.sources)
    names = [name for name, _ in join.columns]
    right_names = join.sources[1].fields.names
    renamed = zip(names[-len(right_names) :], right_names, strict=False)
    suffix = next((new.removeprefix(old) for new, old in renamed if new != old), "_right")
    predicate = Expression(join.named_predicate)
    request = JoinRequest(predicate, join.windows, join.times, join.kind, suffix)
    frame = join_frames(left, right, request, options)
    if frame.columns[: len(names)] == names:
        return frame
    if options.results_to is not None:
        plan = recall(frame)
        if plan is not None and plan.definition.output.names[: len(names)] == names:
            return frame
        raise UnsupportedError(
            "results_to writes all columns of both inputs, by their names, and the query selects or renames "
            f"some ({', '.join(names)}); join the inputs with handshake.join, or leave results_to out"
        )
    return frame.select(*(frame[frame.columns[at]].alias(name) for name, at in join.columns))


class _TableJoinRun(Run):
    """Two tables joined by Spark's batch mode, as if they were streams."""

    def __init__(self, join: PlainJoin, tables: tuple[pa.Table, pa.Table], options: Options) -> None:
        self._join, self._options = join, options
        self._left, self._right = tables
        self._plan = _prepare(join, self._left.schema, self._right.schema, options)
        self.schemas = {join.name: join.output(self._plan.output_schema)}
        self._figures: dict[str, Any] = {}
        self._cluster: Cluster | None = None

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        options, join = self._options, self._join
        title = f"handshake join on {self._plan.spec.text}"
        with start_cluster(title, options.master, options.cores) as cluster:
            self._cluster = cluster
            segments = options.segments or options.cores or cluster.cores
            root = options.state_dir or str(cluster.folder / "state")
            predicate = Expression(join.named_predicate)
            request = JoinRequest(predicate, join.windows, join.times, join.kind, SUFFIX)
            wanted = replace(options, segments=segments, state_dir=root)
            rows, began = 0, time.perf_counter()
            for batch in self._results(cluster, request, wanted, title):
                rows += batch.num_rows
                yield join.name, join.select(batch, self.schemas[join.name])
            self._figures = {
                "left_rows": self._left.num_rows, "right_rows": self._right.num_rows, "results": rows,
                "late": 0, "no_time": self._no_time(), "elapsed": time.perf_counter() - began,
                "method": self._plan.method, "segments": segments,
                "routing": describe_routing(self._plan.spec, segments),
                "master": cluster.session.sparkContext.master, "spark": cluster.session.version,
            }  # fmt: skip
        self._cluster = None

    def _results(
        self, cluster: Cluster, request: JoinRequest, options: Options, title: str
    ) -> Iterator[pa.RecordBatch]:
        """Join the tables as if they were streams; yield the results with the types of the tables."""
        store, folder = open_store(str(options.state_dir)), f"join-{uuid.uuid4().hex}"
        tables = (self._left, self._right)

        def run() -> list[str]:
            cluster.session.sparkContext.setJobDescription(title)
            left, right = (
                table_frame(cluster.session, to_spark_types(table, side), store, f"{folder}/{side}")
                for table, side in zip(tables, SIDES, strict=True)
            )
            return write_results(join_frames(left, right, request, options), store, f"{folder}/results")

        try:
            shown = zip(tables, request.kind.shown, strict=True)
            origins = [column for table, is_shown in shown if is_shown for column in table.columns]
            for name in cluster.run(run):
                for batch in pa.ipc.open_stream(store.read(name)):
                    yield from_spark_types(batch, self._plan.output_schema, origins)
        finally:
            store.remove_folder(folder)

    def _no_time(self) -> int:
        """Return the number of rows that no time window can hold."""
        missing = 0
        for side, (table, name) in enumerate(zip((self._left, self._right), self._join.times, strict=True)):
            if self._join.windows.timed and name is not None:
                column = table.column(name).combine_chunks()
                _, valid = times_of(column, self._plan.spec.unit, name, SIDES[side])
                missing += 0 if valid is None else len(column) - int(valid.sum())
        return missing

    def progress(self) -> tuple[str, int, int | None]:
        """Return how many tasks are done."""
        done, total = (0, 0) if self._cluster is None else self._cluster.tasks()
        return f"joining on Spark, {done} of {total} tasks", done, None

    def metrics(self) -> dict[str, Any]:
        """Return rows, results, segments and where it ran."""
        return self._figures

    def facts(self) -> list[tuple[str, str]]:
        """Return rows, results, rate, access method and segments."""
        figures = self._figures
        rows, elapsed = figures["left_rows"] + figures["right_rows"], figures["elapsed"]
        facts = [
            ("left", format_count(figures["left_rows"], "row")),
            ("right", format_count(figures["right_rows"], "row")),
            ("results", f"{figures['results']:,}"),
            ("late", f"{figures['late']:,}"),
        ]
        if figures["no_time"]:
            untimed = format_count(figures["no_time"], "row")
            facts.append(("no time", f"{untimed} without a timestamp, so without a match"))
        return [
            *facts,
            ("elapsed", f"{elapsed:.2f} s"),
            ("rate", f"{rows / elapsed if elapsed else 0:,.0f} input rows/s"),
            ("method", f"{self._plan.method}: {self._plan.why}"),
            ("segments", f"{figures['segments']} by {figures['routing']}"),
            ("spark", f"{figures['spark']} on {figures['master']}"),
        ]
