"""Translation of a query's plan to DataFrames.

| plan | on Spark |
|---|---|
| chains and unions of inputs | Spark's select, filter and union if the values are the same; else Arrow |
| time windows of algebraic aggregates, grouped or not | panes in the source tasks, windows in one task |
| window joins | `handshake.join` |
| time windows over a join of streams | `handshake.join`, and one stateful task with its inputs' clocks |
| other plans (`placement`) | the operators of continuous queries in one stateful task |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from handshake.engines.spark.queries.blobs import BLOB_COLUMNS
from handshake.engines.spark.queries.expressions import quote_names
from handshake.engines.spark.queries.inputs import input_frames, source_frame
from handshake.engines.spark.queries.joins import TIME, join_inputs, join_results, join_source, with_times
from handshake.engines.spark.queries.native import native_chain, spark_filter
from handshake.engines.spark.queries.panes import PaneQuery, PaneWindow
from handshake.engines.spark.queries.placement import (
    check_carried,
    declared_sources,
    join_below,
    why_one_task,
)
from handshake.engines.spark.queries.tasks import (
    FIGURES,
    RESULT_COLUMNS,
    STATE_COLUMNS,
    HeldQuery,
    chain_task,
    clock_task,
    finish_task,
    map_columns,
    pane_task,
    step_task,
    tuple_task,
    unpack_task,
)
from handshake.engines.spark.queries.tuples import TupleQuery
from handshake.engines.spark.types import carrier_schema, spark_schema
from handshake.engines.spark.workers import use_this_python
from handshake.errors import UnsupportedError
from handshake.io.udp.receive import ARRIVAL_COLUMN
from handshake.plan.algebra import (
    Clock,
    Node,
    Output,
    Plan,
    Project,
    Source,
    Union,
    Windowing,
    WindowJoin,
    chain,
    rebuild,
    walk,
)
from handshake.plan.explain import label
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from handshake.schema import Field, Timestamp
from handshake.windows import Windows


class QueryFrames(dict[str, DataFrame]):
    """The results of a query by name.

    The progress of a streaming query (`observedMetrics`) counts rows that were late, had no time or belonged
    to no stream, under the names of results and of inputs that carry several streams. For finite DataFrames,
    `observations` has the same counts after they have run.
    """

    def __init__(self, frames: Mapping[str, DataFrame], observations: Mapping[str, Observation]) -> None:
        super().__init__(frames)
        self.observations = dict(observations)


def query_frames(
    query: Plan | str, inputs: Mapping[str, DataFrame], *, state_dir: str | None = None
) -> QueryFrames:
    """Translate a continuous query to DataFrames; they stream if their inputs do.

    Args:
        query: The text of the query, or its plan.
        inputs: A DataFrame per input stream, by name.
        state_dir: The directory for the windows of joins, as for `handshake.join`.

    Returns:
        A DataFrame per result, by name.
    """
    plan = optimise(parse_query(query) if isinstance(query, str) else query, "spark")
    for frame in inputs.values():
        use_this_python(frame.sparkSession)
    translation = _Translation(plan, inputs, state_dir)
    frames = {output.name: translation.output(output) for output in plan.outputs}
    return QueryFrames(frames, translation.observations)


class _Translation:
    """The translation of one plan."""

    def __init__(self, plan: Plan, inputs: Mapping[str, DataFrame], state_dir: str | None) -> None:
        self._plan, self._state_dir = plan, state_dir
        self._inputs, self.observations = input_frames(plan, inputs)
        self._declared = [source.name for source in plan.inputs]
        self._timeless = frozenset(
            source.name
            for source in plan.inputs
            if source.time is None
            and source.name in self._inputs
            and ARRIVAL_COLUMN not in self._inputs[source.name].columns
        )
        """Inputs whose rows are stamped by Spark; logs of datagrams have the times of arrival."""
        self._needs_times = any(
            (isinstance(node, Windowing) and node.window.kind != "tuples")
            or (isinstance(node, WindowJoin) and Windows(*node.windows).timed)
            for output in plan.outputs
            for node in walk(output)
        )

    def output(self, output: Output) -> DataFrame:
        check_carried(output, self._plan.inputs, self._timeless)
        timed: Any = _narrow_sources(rebuild(output, self._add_time))
        sources = declared_sources(timed, self._declared)
        streams = [source.name for source in sources if self._inputs[source.name].isStreaming]
        streaming, why = bool(streams), why_one_task(timed, self._declared, streams, self._timeless)
        if why is not None:
            _check_same_kind(output, sources, self._inputs, why)
            return self._in_one_task(timed, sources, streaming)
        stateful = any(isinstance(node, Windowing) for node in walk(timed))
        return self._stateful(timed, sources, streaming) if stateful else self._frame(timed.input)

    def _add_time(self, node: Node) -> Node:
        """Use the arrival time in inputs without a time column; no input is carried by another any more."""
        if not isinstance(node, Source):
            return node
        node = replace(node, demux=None)
        if node.time is not None or not self._needs_times:
            return node
        fields = (*node.fields.fields, Field(ARRIVAL_COLUMN, Timestamp("us", "UTC")))
        ticks = Clock(Timestamp("us", "UTC"), "us")
        return replace(node, fields=replace(node.fields, fields=fields), time=ARRIVAL_COLUMN, ticks=ticks)

    # Without state

    def _frame(self, node: Node) -> DataFrame:
        below, nodes = chain(node)
        match below:
            case Source():
                frame = self._source(below)
            case Union(inputs=inputs):
                frame = self._frame(inputs[0])
                for other in inputs[1:]:
                    frame = frame.union(self._frame(other).select(*quote_names(below.schema.names)))
            case WindowJoin():
                frame = join_inputs(below, self._sides(below), self._state_dir)
            case _:
                raise UnsupportedError(f"the Spark engine cannot run {label(below)} here")
        if not nodes:
            return frame
        found = native_chain(frame, below.schema, nodes, node.schema)
        if found is not None:
            return found
        task = chain_task(below.schema, nodes, node.schema)
        return map_columns(frame, task, spark_schema(carrier_schema(node.schema)))

    def _sides(self, join: WindowJoin) -> list[DataFrame]:
        return [self._frame(with_times(child)) for child in join.inputs]

    def _source(self, source: Source, *, to_arrow: bool = False) -> DataFrame:
        return source_frame(self._inputs[source.name], source, to_arrow=to_arrow)

    # With state

    def _stateful(self, output: Output, sources: tuple[Source, ...], streaming: bool) -> DataFrame:
        _check_same_kind(output, sources, self._inputs)
        if (found := PaneWindow.of(output)) is not None:
            make = partial(PaneQuery, output)
            return self._hold(output, self._panes(output, found.source), make, streaming)
        if streaming and (join := join_below(output)) is not None:
            return self._over_join(output, join)
        whole = self._over_chain(output) if streaming else None
        if whole is None:
            return self._in_one_task(output, sources, streaming)
        (source,) = _sources(whole)
        blobs = self._send(0, source, self._inputs[source.name])
        return self._hold(whole, blobs, partial(TupleQuery, whole, (source,)), True)

    def _in_one_task(self, output: Output, sources: tuple[Source, ...], streaming: bool) -> DataFrame:
        """Run all operators in one task; finite inputs arrive by time, so no row is late."""
        sent = (self._send(at, s, self._source(s, to_arrow=True)) for at, s in enumerate(sources))
        blobs = reduce(DataFrame.union, sent)
        make = partial(TupleQuery, output, sources, timeless=self._timeless)
        return self._hold(output, blobs, make, streaming)

    def _panes(self, output: Output, source: Source) -> DataFrame:
        frame, filtered = self._source(source, to_arrow=True), spark_filter(output)
        if filtered is not None and (narrow := filtered.frame(frame)) is not None:
            return map_columns(narrow, pane_task(filtered.output, filtered.source), BLOB_COLUMNS)
        return map_columns(frame, pane_task(output, source), BLOB_COLUMNS)

    def _send(self, at: int, source: Source, frame: DataFrame) -> DataFrame:
        return map_columns(frame, tuple_task(at, source), BLOB_COLUMNS)

    def _over_chain(self, output: Output) -> Output | None:
        """Run the steps below a window of tuples in Spark, and the window on a source of their results.

        This loses the stamps of tuples except for their times; so the query must not ask for others.
        """
        window, _ = chain(output.input)
        if not isinstance(window, Windowing) or window.window.kind != "tuples":
            return None
        source, between = chain(window.input)
        if not isinstance(source, Source) or not between:
            return None
        below = with_times(window.input)
        if source.clock.unit == "ns" or TIME not in below.schema.names:
            return None
        name = f"{source.name}\0{output.name}"
        self._inputs[name] = self._frame(below)
        ticks = Clock(Timestamp("us", "UTC"), "us")
        made = Source(name, replace(below.schema, stream=name), TIME, ticks, source.lateness)
        return _replace_node(output, window.input, made)

    def _over_join(self, output: Output, join: WindowJoin) -> DataFrame:
        """Run time windows on the results of `handshake.join`, with the clocks of the join's inputs."""
        frame, made = join_results(join, self._sides(join), self._state_dir), join_source(join)
        inputs = _sources(join)
        clocks = (self._clock(at, s, join.clock.unit) for at, s in enumerate(inputs, start=1))
        whole = _replace_node(output, join, made)
        blobs = reduce(DataFrame.union, clocks, self._send(0, made, frame))
        return self._hold(whole, blobs, partial(TupleQuery, whole, (made,), len(inputs)), True)

    def _clock(self, at: int, source: Source, unit: str) -> DataFrame:
        fields = tuple(f for f in source.fields if f.name == source.time)
        times = replace(source, fields=replace(source.fields, fields=fields))
        return map_columns(self._source(times, to_arrow=True), clock_task(at, times, unit), BLOB_COLUMNS)

    def _hold(
        self, output: Output, blobs: DataFrame, make: Callable[[], HeldQuery], streaming: bool
    ) -> DataFrame:
        """Give the blobs to the one task that holds the query, and unpack its results."""
        sums = [F.sum(name).alias(name) for name in FIGURES]
        if streaming:
            held = blobs.groupBy("slot").applyInPandasWithState(
                step_task(make), RESULT_COLUMNS, STATE_COLUMNS, "append", "NoTimeout"
            )
            held = held.observe(output.name, *sums)
        else:
            held = blobs.repartition(1).mapInArrow(finish_task(make), RESULT_COLUMNS)
            held = held.observe(self.observations.setdefault(output.name, Observation()), *sums)
        results, kinds = held.where("data IS NOT NULL").select("data"), carrier_schema(output.schema)
        return results.mapInArrow(unpack_task(output), spark_schema(kinds))


def _check_same_kind(
    output: Output, sources: tuple[Source, ...], inputs: Mapping[str, DataFrame], why: str = "it has windows"
) -> None:
    """Reject streams mixed with finite inputs: a finite input would arrive again in each micro-batch."""
    finite = [source.name for source in sources if not inputs[source.name].isStreaming]
    if 0 < len(finite) < len(sources):
        raise UnsupportedError(
            f"{output.name} runs in one task, since {why}, and takes streams there or finite DataFrames, not "
            f"both: {', '.join(finite)} does not stream; read it as a stream (readStream)"
        )


def _sources(node: Node) -> tuple[Source, ...]:
    return tuple(here for here in dict.fromkeys(walk(node)) if isinstance(here, Source))


def _replace_node(output: Output, old: Node, new: Source) -> Output:
    return Output(rebuild(output.input, lambda here: new if here == old else here), output.name)


def _narrow_sources(root: Node) -> Node:
    """Drop columns of inputs that the projections right above them do not read, except the time."""
    read: dict[Source, set[str]] = {}
    for node in walk(root):
        for child in node.children:
            if isinstance(child, Source):
                used = [old for _, old in node.columns] if isinstance(node, Project) else child.fields.names
                read.setdefault(child, {str(child.time)}).update(used)

    def narrow(here: Node) -> Node:
        if not isinstance(here, Source) or here not in read:
            return here
        fields = tuple(f for f in here.fields if f.name in read[here])
        return replace(here, fields=replace(here.fields, fields=fields))

    return rebuild(root, narrow)
