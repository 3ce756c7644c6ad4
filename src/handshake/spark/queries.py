"""Continuous queries on DataFrames: which of Spark's operators a plan becomes.

| plan | on Spark |
|---|---|
| chains and unions of inputs | Spark's select, filter and union where its values are ours; else Arrow |
| time windows of algebraic aggregates, grouped or not | panes in the source's tasks, windows in one task |
| tuple windows, and all other plans of windows | the in-process engine's operators in one stateful task |
| window joins | `handshake.join` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from handshake.errors import InputError, SchemaError, UnsupportedError, suggest
from handshake.plan.algebra import (
    Apply,
    Clock,
    Node,
    Output,
    Plan,
    Project,
    Select,
    Source,
    Union,
    Windowing,
    WindowJoin,
    rebuild,
    walk,
)
from handshake.plan.assemble import fused
from handshake.plan.explain import label
from handshake.plan.expr import Column as Field_
from handshake.plan.expr import Expr, conjuncts
from handshake.plan.optimise import optimise
from handshake.plan.panes import pane_shape
from handshake.plan.query import parse_query
from handshake.queries.pipeline import chain
from handshake.schema import UNITS, Field, Schema, Timestamp, arrow_of
from handshake.sources.receive import ARRIVAL_COLUMN
from handshake.spark.expressions import native
from handshake.spark.frames import arrow_schema
from handshake.spark.query_joins import TIME, join_frames_of, with_times
from handshake.spark.query_state import PaneQuery, TupleQuery
from handshake.spark.query_tasks import (
    BLOBS,
    FIGURES,
    TOLD,
    QueryState,
    carried,
    chained,
    finishing,
    reducing,
    sending,
    unpacking,
)
from handshake.spark.session import prepare_session
from handshake.spark.tables import carrier

__all__ = ["query_frames"]


def query_frames(
    query: Plan | str, inputs: Mapping[str, DataFrame], *, state_dir: str | None = None
) -> dict[str, DataFrame]:
    """The results of a query, by name; streaming where an input is."""
    plan = optimise(parse_query(query) if isinstance(query, str) else query)
    translation = _Translation(plan, inputs, state_dir)
    return {output.name: translation.output(output) for output in plan.outputs}


@dataclass(frozen=True)
class _Step:
    """A DataFrame whose columns are a plan's."""

    frame: DataFrame
    schema: Schema


class _Translation:
    """Translates the outputs of one plan."""

    def __init__(self, plan: Plan, inputs: Mapping[str, DataFrame], state_dir: str | None) -> None:
        self._plan, self._state_dir = plan, state_dir
        self._inputs = _given(plan, inputs)

    def output(self, output: Output) -> DataFrame:
        """The DataFrame of a result."""
        timed: Any = _narrowed(rebuild(output, self._timed))
        stateful = any(isinstance(node, Windowing) for node in walk(timed))
        return self._stateful(timed) if stateful else self._frame(timed.input)

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
            or (
                isinstance(node, WindowJoin) and any(w is not None and w.kind == "time" for w in node.windows)
            )
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
                    frame = frame.union(self._frame(other).select(*_quoted(below.schema.names)))
            case WindowJoin():
                frames = [self._frame(with_times(child)) for child in below.inputs]
                frame = join_frames_of(below, frames, self._state_dir)
            case _:
                raise UnsupportedError(f"the Spark back end cannot run {label(below)} here")
        return _chain(_Step(frame, below.schema), nodes, node.schema) if nodes else frame

    def _source(self, source: Source, *, to_arrow: bool = False) -> DataFrame:
        """An input; on its way to Arrow, instants need not be made readings of a clock first."""
        frame = self._inputs[source.name]
        if source.time == ARRIVAL_COLUMN:
            known = ARRIVAL_COLUMN in frame.columns  # as logs of datagrams have it
            frame = frame if known else frame.withColumn(ARRIVAL_COLUMN, F.current_timestamp())
        fields = [field for field in source.fields if field.name != TIME]
        times = [_time(frame, source)] if len(fields) < len(source.fields.fields) else []
        return frame.select(*(_declared(frame, field, source, to_arrow) for field in fields), *times)

    # With state.

    def _stateful(self, output: Output) -> DataFrame:
        cut = _by_panes(output) or self._by_prefix(output)
        sources = [node for node in dict.fromkeys(walk(cut or output)) if isinstance(node, Source)]
        streaming = any(self._inputs[s.name].isStreaming for s in sources if s.name in self._inputs)
        if cut is None and streaming and any(isinstance(node, WindowJoin) for node in walk(output)):
            raise UnsupportedError(
                f"a window over the results of a join ({output.name}) runs on Spark for batch DataFrames "
                "only; write the join to a stream of its own (INTO) and read that, or use --backend local"
            )
        if cut is not None and _by_panes(cut) is not None:
            blobs = self._source(sources[0], to_arrow=True).mapInArrow(reducing(cut, sources[0]), BLOBS)
            return self._run(cut, blobs, partial(PaneQuery, cut), streaming)
        whole = cut or output
        sent = [
            self._prefix(source).mapInArrow(sending(at, source), BLOBS) for at, source in enumerate(sources)
        ]
        blobs = sent[0]
        for other in sent[1:]:
            blobs = blobs.union(other)
        return self._run(whole, blobs, partial(TupleQuery, whole, tuple(sources)), streaming)

    def _by_prefix(self, output: Output) -> Output | None:
        """⊞ over tuples whose results nobody asks the time of: what is below it needs no stamps."""
        window, _ = chain(output.input)
        if not isinstance(window, Windowing) or window.window.kind != "tuples":
            return None
        source, between = chain(window.input)
        if not isinstance(source, Source) or not between:
            return None
        name = f"{source.name}\0{output.name}"
        self._inputs[name] = self._frame(window.input)
        made = Source(name, replace(window.input.schema, stream=name))
        return Output(_replaced(output.input, window.input, made), output.name)

    def _prefix(self, source: Source) -> DataFrame:
        """An input, or what was computed of one already."""
        return self._inputs[source.name] if "\0" in source.name else self._source(source, to_arrow=True)

    def _run(self, output: Output, blobs: DataFrame, make: Any, streaming: bool) -> DataFrame:
        kind = from_arrow_schema(carried(output.schema))
        if not streaming:
            results = blobs.repartition(1).mapInArrow(finishing(make), "data binary")
            return results.mapInArrow(unpacking(output), kind)
        prepare_session(blobs.sparkSession)
        told = (
            blobs.groupBy("slot")
            .transformWithStateInPandas(QueryState(make), TOLD, "append", "None")
            .observe(output.name, *(F.sum(name).alias(name) for name in FIGURES))
        )
        return told.where("data IS NOT NULL").select("data").mapInArrow(unpacking(output), kind)


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


def _replaced(node: Node, old: Node, new: Node) -> Node:
    return rebuild(node, lambda here: new if here == old else here)


# Inputs.


def _given(plan: Plan, inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The DataFrame of each source: as given, or taken out of the one that carries it (section 5.3)."""
    names = {source.name for source in plan.inputs}
    for name in inputs:
        if name not in names:
            raise InputError(
                f"no input stream '{name}' in the query ({', '.join(sorted(names))}){suggest(name, names)}"
            )
    found = dict(inputs)
    for source in plan.inputs:
        if source.name in found:
            continue
        if source.demux is not None and source.demux.stream in inputs:
            found[source.name] = inputs[source.demux.stream].where(
                F.col(source.demux.field).isin(*source.demux.values)
            )
        elif any(node == source for output in plan.outputs for node in walk(output)):
            raise InputError(f"no DataFrame is given for the input stream '{source.name}'")
    return found


def _declared(frame: DataFrame, field: Field, source: Source, to_arrow: bool) -> Column:
    """A column of an input in the type that it is declared with."""
    if field.name not in frame.columns:
        raise SchemaError(
            f"the DataFrame of '{source.name}' lacks the column '{field.name}' ({', '.join(frame.columns)})"
            f"{suggest(field.name, frame.columns)}"
        )
    given = arrow_schema(frame.select(_quoted([field.name])[0]), 0).field(0).type
    wanted = carrier(arrow_of(field.type))
    column = F.col(f"`{field.name}`")
    if given == wanted:
        return column
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        alike = to_arrow or (given.tz is None) == (wanted.tz is None)
        return column if alike else _zoned(field.name, wanted.tz)
    if _widens(given, wanted):
        return column.cast(from_arrow_schema(pa.schema([("c", wanted)]))[0].dataType).alias(field.name)
    raise SchemaError(
        f"column '{field.name}' of the DataFrame of '{source.name}' is {given}, but {field.type} is "
        "declared; cast it, or declare the other type"
    )


def _zoned(name: str, zone: str | None) -> Column:
    """An instant as a reading of UTC's clock, or the other way round: the same number of microseconds."""
    if zone is None:
        return F.expr(f"timestampadd(MICROSECOND, unix_micros(`{name}`), TIMESTAMP_NTZ'1970-01-01')").alias(
            name
        )
    since = F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', `{name}`)")
    return F.timestamp_micros(since).alias(name)


def _time(frame: DataFrame, source: Source) -> Column:
    """The time of tuples as an instant, whatever it is counted in."""
    assert source.time is not None
    given = arrow_schema(frame.select(_quoted([source.time])[0]), 0).field(0).type
    if pa.types.is_timestamp(given):
        return (F.col(f"`{source.time}`") if given.tz is not None else _zoned(source.time, "UTC")).alias(TIME)
    factor = UNITS[source.clock.unit] // UNITS["us"]
    return F.timestamp_micros(F.col(f"`{source.time}`").cast("long") * F.lit(factor)).alias(TIME)


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value stays what it is."""
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    return bool(pa.types.is_float32(given) and pa.types.is_float64(wanted))


def _quoted(names: Any) -> list[Column]:
    return [F.col(f"`{name}`") for name in names]


# Chains of projections, selections and operations.


def _chain(step: _Step, nodes: list[Node], result: Schema) -> DataFrame:
    """By Spark's own operators, if they compute the same; else by Arrow's."""
    found = _natively(step, nodes, result)
    if found is not None:
        return found
    task = chained(step.schema, nodes, result)
    return step.frame.mapInArrow(task, from_arrow_schema(carried(result)))


def _natively(step: _Step, nodes: list[Node], result: Schema) -> DataFrame | None:
    columns = dict(zip(step.schema.names, _quoted(step.schema.names), strict=True))
    known: dict[str, Expr] = {f.name: Field_(0, f.name, type=f.type) for f in step.schema}
    frame = step.frame
    for node in nodes:
        match node:
            case Apply(name=name, operation=operation):
                known[name] = fused(operation, known)
            case Select(field=field):
                for part in conjuncts(known[field]):
                    condition = native(part, columns)
                    if condition is None:
                        return None
                    frame = frame.where(condition)
            case Project(columns=kept):
                known = {new: known[old] for new, old in kept}
    values = {name: native(expr, columns) for name, expr in known.items()}
    kinds = from_arrow_schema(carried(result))
    made = [
        None if values[f.name] is None else values[f.name].cast(kind.dataType).alias(f.name)  # type: ignore[union-attr]
        for f, kind in zip(result, kinds, strict=True)
    ]
    return None if any(m is None for m in made) else frame.select(*made)  # type: ignore[arg-type]
