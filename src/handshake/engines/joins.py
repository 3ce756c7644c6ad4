"""Joins as plans: `join_plan` builds one, `plain_join` recognises it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from handshake.engines.inputs import Address, read_inputs
from handshake.errors import UnsupportedError, WindowError
from handshake.io.frames import plain_schema, table_of
from handshake.joins.asof import AsOf
from handshake.joins.nearest import Nearest
from handshake.joins.plan import JoinPlan, predicate_of, prepare
from handshake.joins.spec import SIDES
from handshake.joins.waiting import explain_best
from handshake.kinds import INNER, JoinKind
from handshake.options import Options
from handshake.plan.algebra import ARRIVAL, Clock, Node, Output, Plan, Project, Source, WindowJoin, walk
from handshake.plan.bind import Scope, bind
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Expr, Name, transform
from handshake.schema import Opaque, Schema, arrow_of, joined_names, unit_of_times
from handshake.windows import Windows

JOIN = "join"
"""The name of the result."""
SUFFIX = "\0right"
"""Keeps the columns of both inputs apart until the result gives them their names."""
_STRUCT = pa.struct([])


def join_plan(
    left: pa.Schema,
    right: pa.Schema,
    on: Expr,
    windows: Windows,
    times: tuple[str | None, str | None],
    *,
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    kind: JoinKind = INNER,
) -> Plan:
    """Build the plan of a join of two inputs, `left` and `right`.

    Args:
        left: The columns of the left input.
        right: The columns of the right input.
        on: The predicate, in which `l` and `r` stand for the inputs.
        windows: The windows of both.
        times: The time columns of both, or neither.
        suffix: Added to a name of the right input that the left one has too.
        aliases: Other names for `l` and `r` in the predicate.
        kind: The kind of join.

    Returns:
        A plan with one result, `join`: all columns of the left input, then those of the right, or those of
        one input in semi and anti joins.
    """
    if (times[0] is None) != (times[1] is None):
        raise WindowError("a time column is named for one input only; name one for both, or for neither")
    schemas = [Schema.from_arrow(plain_schema(s), n) for s, n in zip((left, right), SIDES, strict=True)]
    if windows.timed and times[0] is None:
        raise WindowError(
            f"a time window needs a time column, and none is named for the left input; name one of "
            f"{', '.join(schemas[0].names)} (time=…)"
        )
    sources = tuple(_source(schema, time) for schema, time in zip(schemas, times, strict=True))
    bound = bind(on, Scope.of(schemas[0], schemas[1], aliases))
    join = WindowJoin(sources, SIDES, (windows.left, windows.right), bound, kind)
    shown = [schema.names if is_shown else () for schema, is_shown in zip(schemas, kind.shown, strict=True)]
    names = joined_names(shown[0], shown[1], suffix)
    columns = tuple(zip(names, join.schema.names, strict=True))
    return Plan(sources, (Output(Project(join, columns), JOIN),))


def _source(schema: Schema, time: str | None) -> Source:
    if time is None:
        return Source(schema.stream, schema)
    field = schema.get(time)
    return Source(
        schema.stream, schema, field.name, Clock(field.type, unit_of_times(field.type) or ARRIVAL.unit)
    )


@dataclass(frozen=True)
class PlainJoin:
    """A plan that is one join of two inputs and nothing else."""

    name: str
    """The name of the result."""
    sources: tuple[Source, Source]
    windows: Windows
    on: Expr
    columns: tuple[tuple[str, int], ...]
    """Each column of the result: its name, and its number among the columns of the inputs that are shown."""
    kind: JoinKind = INNER

    @property
    def times(self) -> tuple[str | None, str | None]:
        """The time columns of both inputs."""
        return self.sources[0].time, self.sources[1].time

    @property
    def named_predicate(self) -> Expr:
        """The predicate with names instead of typed columns, for inputs that carry values in other types."""

        def name(node: Expr) -> Expr:
            return Name(("lr"[node.side], node.name), at=node.at) if isinstance(node, Column) else node

        return transform(self.on, name)

    @property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of both inputs; a type that predicates cannot look into is only a placeholder."""
        left, right = (
            pa.schema([(f.name, _STRUCT if isinstance(f.type, Opaque) else arrow_of(f.type)) for f in fields])
            for fields in (source.fields for source in self.sources)
        )
        return left, right

    def prepare(self, left: pa.Schema, right: pa.Schema, **options: Any) -> JoinPlan:
        """Return the join with access methods and cores, for inputs with these columns."""
        return prepare(
            left, right, Expression(self.on), left_window=self.windows.left, right_window=self.windows.right,
            left_time=self.times[0], right_time=self.times[1], how=self.kind.name, suffix=SUFFIX, **options,
        )  # fmt: skip

    def output(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the result, where the inputs have these columns."""
        return pa.schema([columns.field(at).with_name(name) for name, at in self.columns])

    def select(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch of the result from one with the columns of both inputs."""
        return pa.RecordBatch.from_arrays([batch.column(at) for _, at in self.columns], schema=schema)


def plain_join(plan: Plan) -> PlainJoin | None:
    """Return the join that a plan consists of; None if the plan does anything else."""
    node = plan.outputs[0].input
    join = node.input if isinstance(node, Project) else node
    if len(plan.outputs) > 1 or not isinstance(join, WindowJoin) or len(join.inputs) != 2:
        return None
    left, right = join.inputs
    if not isinstance(left, Source) or not isinstance(right, Source) or join.match:
        return None
    sources, windows = (left, right), Windows(join.windows[0], join.windows[1])
    if any(source.demux is not None for source in sources):
        return None
    clocks = [source.clock for source in sources if source.time is not None]
    if any(unit_of_times(clock.type) not in (None, clock.unit) for clock in clocks):
        return None  # joins would count these times in another unit
    if (left.time is None) != (right.time is None) or (windows.timed and left.time is None):
        return None
    numbers = {name: at for at, name in enumerate(join.schema.names)}
    renamed = node.columns if isinstance(node, Project) else tuple((n, n) for n in numbers)
    columns = tuple((new, numbers[old]) for new, old in renamed)
    return PlainJoin(plan.outputs[0].name, sources, windows, join.on, columns, join.kind)


def plan_as_join(plan: Plan, options: Options) -> PlainJoin | None:
    """Return the join that a plan consists of, if its results may come in another order than rows arrive."""
    return None if options.order == "arrival" else plain_join(plan)


@dataclass(frozen=True)
class BestJoin(Node):
    """Left rows with their best matches: in time, or by a ranking."""

    sources: tuple[Source, Source]
    best: AsOf | Nearest

    @property
    def schema(self) -> Schema:
        return Schema.from_arrow(self.best.schema, JOIN)

    @property
    def children(self) -> tuple[Node, ...]:
        return self.sources

    def explain(self) -> str:
        """Describe how tables are joined."""
        return f"{explain_best(self.best)}\nsearch      {self.best.search}"


def fit_tables(left: pa.Table, right: pa.Table, join: AsOf | Nearest) -> AsOf | Nearest:
    """Return a join with the columns of tables."""
    on = None if join.on is None else predicate_of(join.on)
    return replace(join, left=left.schema, right=right.schema, on=on)


def best_plan(best: AsOf | Nearest) -> Plan:
    """Build the plan of a join that chooses best matches; its inputs are `left` and `right`."""
    _ = best.bound  # raises if anything is wrong
    schemas = [Schema.from_arrow(s, n) for s, n in zip((best.left, best.right), SIDES, strict=True)]
    left, right = (_source(schema, time) for schema, time in zip(schemas, best.times, strict=True))
    return Plan((left, right), (Output(BestJoin((left, right), best), JOIN),))


def best_join(plan: Plan, options: Options) -> BestJoin | None:
    """Return the join that a plan consists of, if it chooses best matches; refuse options that it ignores."""
    node = plan.outputs[0].input
    if not isinstance(node, BestJoin):
        return None
    taken = node.best.options.__annotations__
    for option in fields(options):
        if option.name not in taken and getattr(options, option.name) != option.default:
            raise UnsupportedError(f"{node.best.called} takes {', '.join(taken)}, not {option.name}")
    return node


def check_inner(plan: Plan, engine: str) -> None:
    """Raise `UnsupportedError` if a plan has a join that is not an inner join."""
    for output in plan.outputs:
        for node in walk(output):
            if isinstance(node, BestJoin):
                raise UnsupportedError(
                    f"the {engine} engine has inner joins only, and this is {node.best.called}; "
                    "the local engine and Spark run it"
                )
            if isinstance(node, WindowJoin) and node.kind != INNER:
                streams = " and ".join(node.names)
                raise UnsupportedError(
                    f"the {engine} engine has inner joins only, and the join of {streams} is "
                    f"{node.called}; the local engine and Spark run every kind"
                )


def join_tables(
    plan: Plan, join: PlainJoin | BestJoin, inputs: Mapping[str, Any]
) -> tuple[pa.Table, pa.Table]:
    """Return both inputs of a join as tables; Arrow types that a plan does not know stay as they are."""
    left, right = (_table(plan, source, inputs[source.name]) for source in join.sources)
    return left, right


def _table(plan: Plan, source: Source, given: Any) -> pa.Table:
    if not isinstance(given, Address):
        table = table_of(given)
        if Schema.from_arrow(plain_schema(table.schema), source.name) == source.fields:
            return table
    return read_inputs(plan, {source.name: given})[source.name]
