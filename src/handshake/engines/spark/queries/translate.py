"""Continuous queries on DataFrames: which of Spark's operators a plan becomes.

| plan | on Spark |
|---|---|
| chains and unions of inputs | Spark's select, filter and union where its values are ours; else Arrow |
| time windows of algebraic aggregates, grouped or not | panes in the source's tasks, windows in one task |
| window joins | `handshake.join` |
| time windows over a join of streams | `handshake.join`, and one stateful task with its inputs' clocks |
| all other plans, joins included (`query_ways`) | the in-process engine's operators in one stateful task |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from handshake.engines.spark.jvm.panes import java_panes
from handshake.engines.spark.jvm.row_blobs import packed, readable, unpacked
from handshake.engines.spark.queries.chains import chained_frame
from handshake.engines.spark.queries.clocks import replaced
from handshake.engines.spark.queries.inputs import given_frames, quoted, source_frame
from handshake.engines.spark.queries.joins import TIME, join_frames_of, join_results, join_source, with_times
from handshake.engines.spark.queries.selections import selected
from handshake.engines.spark.queries.state import PaneQuery, TupleQuery
from handshake.engines.spark.queries.tasks import (
    BLOBS,
    FIGURES,
    HELD,
    TOLD,
    Pack,
    carried,
    finishing,
    in_arrow,
    in_message,
    reducing,
    sending,
    stepping,
    telling,
    unpacking,
)
from handshake.engines.spark.queries.ways import declared_sources, join_below, why_in_one_task
from handshake.errors import UnsupportedError
from handshake.io.udp.receive import ARRIVAL_COLUMN
from handshake.operators.pipeline import chain
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
    rebuild,
    walk,
)
from handshake.plan.explain import label
from handshake.plan.optimise import optimise
from handshake.plan.panes import pane_shape
from handshake.plan.query import parse_query
from handshake.schema import Field, Timestamp
from handshake.windows import Windows

__all__ = ["QueryFrames", "query_frames"]


class QueryFrames(dict[str, DataFrame]):
    """The results of a query by name.

    Streams tell what was late, without a time or of no stream in their progress (`observedMetrics`), under
    the names of results and of carrying inputs; finite DataFrames in `observations`, once they have been run.
    Where time windows are made of panes, `panes` says who makes these: "Java", in Spark's own process, or
    "Python", in its workers.
    """

    def __init__(
        self,
        frames: Mapping[str, DataFrame],
        observations: Mapping[str, Observation],
        panes: Mapping[str, str],
    ) -> None:
        super().__init__(frames)
        self.observations = dict(observations)
        self.panes = dict(panes)


def query_frames(
    query: Plan | str, inputs: Mapping[str, DataFrame], *, state_dir: str | None = None
) -> QueryFrames:
    """The results of a query, by name; streaming where an input is."""
    plan = optimise(parse_query(query) if isinstance(query, str) else query, "spark")
    translation = _Translation(plan, inputs, state_dir)
    frames = {output.name: translation.output(output) for output in plan.outputs}
    return QueryFrames(frames, translation.observations, translation.panes)


class _Translation:
    """Translates the outputs of one plan."""

    def __init__(self, plan: Plan, inputs: Mapping[str, DataFrame], state_dir: str | None) -> None:
        self._plan, self._state_dir = plan, state_dir
        self.panes: dict[str, str] = {}
        self._inputs, self.observations = given_frames(plan, inputs)
        self._declared = [source.name for source in plan.inputs]

    def output(self, output: Output) -> DataFrame:
        """The DataFrame of a result."""
        timed: Any = _narrowed(rebuild(output, self._timed))
        sources = declared_sources(timed, self._declared)
        streams = [source.name for source in sources if self._inputs[source.name].isStreaming]
        streaming, why = bool(streams), why_in_one_task(timed, self._declared, streams)
        if why is not None:
            _check_alike(output, sources, self._inputs, why)
            return self._in_one_task(timed, sources, streaming)
        stateful = any(isinstance(node, Windowing) for node in walk(timed))
        return self._stateful(timed, sources, streaming) if stateful else self._frame(timed.input)

    def _timed(self, node: Node) -> Node:
        """Inputs without a time column get the one that their DataFrame has got; none is carried any more."""
        if not isinstance(node, Source):
            return node
        node = replace(node, demux=None)
        if node.time is not None or not self._needs_times:
            return node
        fields = (*node.fields.fields, Field(ARRIVAL_COLUMN, Timestamp("us", "UTC")))
        ticks = Clock(Timestamp("us", "UTC"), "us")
        return replace(node, fields=replace(node.fields, fields=fields), time=ARRIVAL_COLUMN, ticks=ticks)

    @property
    def _needs_times(self) -> bool:
        """Whether some operator asks for times."""
        nodes = [node for output in self._plan.outputs for node in walk(output)]
        return any(
            (isinstance(node, Windowing) and node.window.kind == "time")
            or (isinstance(node, WindowJoin) and Windows(*node.windows).timed)
            for node in nodes
        )

    # Without state: Spark's own operators.

    def _frame(self, node: Node) -> DataFrame:
        """The DataFrame of a plan without windows."""
        below, nodes = chain(node)
        match below:
            case Source():
                frame = self._source(below)
            case Union(inputs=inputs):
                frame = self._frame(inputs[0])
                for other in inputs[1:]:
                    frame = frame.union(self._frame(other).select(*quoted(below.schema.names)))
            case WindowJoin():
                frame = join_frames_of(below, self._sides(below), self._state_dir)
            case _:
                raise UnsupportedError(f"the Spark back end cannot run {label(below)} here")
        return chained_frame(frame, below.schema, nodes, node.schema) if nodes else frame

    def _sides(self, join: WindowJoin) -> list[DataFrame]:
        return [self._frame(with_times(child)) for child in join.inputs]

    def _source(self, source: Source, *, to_arrow: bool = False) -> DataFrame:
        return source_frame(self._inputs[source.name], source, to_arrow=to_arrow)

    # With state.

    def _stateful(self, output: Output, sources: tuple[Source, ...], streaming: bool) -> DataFrame:
        _check_alike(output, sources, self._inputs)
        if _by_panes(output) is not None:
            make = partial(PaneQuery, output)
            panes = self._panes(output)
            return self._streaming(output, panes, make) if streaming else self._batch(output, panes, make)
        if streaming and (join := join_below(output)) is not None:
            return self._over_join(output, join)
        whole = self._by_prefix(output) if streaming else None
        if whole is None:
            return self._in_one_task(output, sources, streaming)
        (made,) = _sources(whole)
        blobs = self._sent(0, made, self._inputs[made.name])
        return self._streaming(whole, blobs, partial(TupleQuery, whole, (made,)))

    def _in_one_task(self, output: Output, sources: tuple[Source, ...], streaming: bool) -> DataFrame:
        """The in-process engine; finite inputs arrive by time, as replayed files do: nothing is late."""
        blobs = _all([self._sent(at, s, self._source(s, to_arrow=True)) for at, s in enumerate(sources)])
        make = partial(TupleQuery, output, sources)
        return self._streaming(output, blobs, make) if streaming else self._batch(output, blobs, make)

    def _panes(self, output: Output) -> DataFrame:
        (source,) = _sources(output)
        frame = self._source(source, to_arrow=True)
        java = java_panes(output, frame)
        self.panes[output.name] = "Python" if java is None else "Java"
        return _python_panes(output, source, frame) if java is None else java.frame(frame, BLOBS)

    def _sent(self, at: int, source: Source, frame: DataFrame) -> DataFrame:
        return in_arrow(frame, sending(at, source), BLOBS)

    def _by_prefix(self, output: Output) -> Output | None:
        """⊞ over tuples whose results nobody asks the time of: what is below it needs no stamps but times."""
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
        return Output(replaced(output.input, window.input, made), output.name)

    def _over_join(self, output: Output, join: WindowJoin) -> DataFrame:
        """Time windows on the results of a join, which `handshake.join` makes; their clock is its inputs'."""
        frame, made = join_results(join, self._sides(join), self._state_dir), join_source(join)
        inputs = _sources(join)
        told = [self._clock(at, _times_of(s), join.clock.unit) for at, s in enumerate(inputs, start=1)]
        whole = Output(replaced(output.input, join, made), output.name)
        blobs = _all([self._sent(0, made, frame), *told])
        return self._streaming(whole, blobs, partial(TupleQuery, whole, (made,), len(inputs)))

    def _clock(self, at: int, times: Source, unit: str) -> DataFrame:
        return in_arrow(self._source(times, to_arrow=True), telling(at, times, unit), BLOBS)

    def _streaming(self, output: Output, blobs: DataFrame, make: Any) -> DataFrame:
        step = stepping(make, _packing(output, blobs))
        told = blobs.groupBy("slot").applyInPandasWithState(step, TOLD, HELD, "append", "NoTimeout")
        return _unpacked(output, told.observe(output.name, *_observed()))

    def _batch(self, output: Output, blobs: DataFrame, make: Any) -> DataFrame:
        told = blobs.repartition(1).mapInArrow(finishing(make, _packing(output, blobs)), TOLD)
        counting = self.observations.setdefault(output.name, Observation())
        return _unpacked(output, told.observe(counting, *_observed()))


def _python_panes(output: Output, source: Source, frame: DataFrame) -> DataFrame:
    made = selected(output)
    if made is not None and (holding := made.frame(frame)) is not None:
        return in_arrow(holding, reducing(made.output, made.source), BLOBS)
    return in_arrow(frame, reducing(output, source), BLOBS)


def _check_alike(
    output: Output, sources: tuple[Source, ...], inputs: Mapping[str, DataFrame], why: str = "it has windows"
) -> None:
    """One task takes what has come since the last micro-batch; a finite input would come with each."""
    finite = [source.name for source in sources if not inputs[source.name].isStreaming]
    if 0 < len(finite) < len(sources):
        raise UnsupportedError(
            f"{output.name} runs in one task, since {why}, and takes streams there or finite DataFrames, not "
            f"both: {', '.join(finite)} does not stream; read it as a stream (readStream)"
        )


def _observed() -> list[Any]:
    return [F.sum(name).alias(name) for name in FIGURES]


def _packing(output: Output, blobs: DataFrame) -> Pack:
    schema = carried(output.schema)
    return partial(packed, schema=schema) if readable(schema, blobs.sparkSession) else in_message


def _unpacked(output: Output, told: DataFrame) -> DataFrame:
    schema, blobs = carried(output.schema), told.where("data IS NOT NULL").select("data")
    if readable(schema, told.sparkSession):
        return unpacked(blobs, schema)
    return blobs.mapInArrow(unpacking(output), from_arrow_schema(schema))


def _all(frames: list[DataFrame]) -> DataFrame:
    whole = frames[0]
    for other in frames[1:]:
        whole = whole.union(other)
    return whole


def _sources(node: Node) -> tuple[Source, ...]:
    return tuple(here for here in dict.fromkeys(walk(node)) if isinstance(here, Source))


def _times_of(source: Source) -> Source:
    """An input with its time column alone."""
    fields = tuple(f for f in source.fields if f.name == source.time)
    return replace(source, fields=replace(source.fields, fields=fields))


def _by_panes(output: Output) -> Output | None:
    """The output itself, if it is ⊞ over time on an input, and panes will do."""
    window, _ = chain(output.input)
    if not isinstance(window, Windowing) or window.window.kind != "time":
        return None
    source, _ = chain(window.input)
    shape = pane_shape(window.body, window.parameter)
    return output if isinstance(source, Source) and shape is not None else None


def _narrowed(root: Node) -> Node:
    """Inputs with the columns alone that the projections right above them read, and their times."""
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
