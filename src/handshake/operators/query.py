"""A running query: push batches of its inputs, get batches of its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.closing import Closing
from handshake.errors import HandshakeError, InputError, UnsupportedError, format_count
from handshake.html import card
from handshake.io.frames import table_of
from handshake.joins.arrangements.registry import check_device
from handshake.joins.late import LateRows, LateStream, LateTo
from handshake.joins.why.answer import Why
from handshake.metrics import combine
from handshake.operators.chunk import Array, Flow
from handshake.operators.joins import JoinOperator
from handshake.operators.panes import Panes
from handshake.operators.pipeline import Pipeline
from handshake.operators.reduced_join import ReducedWindows, ReducingJoin
from handshake.operators.reduced_plan import ReducedJoin, reduce_joins
from handshake.operators.sessions import SessionOperator, SessionRows, SessionStates
from handshake.operators.sources import Needs, NowNanoseconds, SourceOperator, arrow_schema
from handshake.operators.union import UnionOperator
from handshake.operators.why import explain_query, running_joins, streams_of_joins
from handshake.operators.windows import Tuples, WindowOperator
from handshake.options import Options
from handshake.plan import algebra
from handshake.plan.algebra import Node, Plan, chain, walk
from handshake.plan.explain import explain_plan, label
from handshake.plan.optimise import optimise
from handshake.plan.panes import pane_shape
from handshake.plan.query import parse_query

Results = dict[str, list[pa.RecordBatch]]
_NOWHERE = np.empty(0, np.int64)
"""The places of rows that no operator needs."""


class _Step(NamedTuple):
    """An operator, and which of the steps before it it reads."""

    operator: Any
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class QueryMetrics:
    """The figures of a query so far; `handshake.metrics.REPORTS["query"]` says what they mean."""

    rows: dict[str, int]
    results: dict[str, int]
    late: int = 0
    no_time: int = 0
    unknown: int = 0
    windows: int = 0
    matched: int = 0
    unmatched: int = 0
    pending: int = 0
    finalised: int = 0

    def facts(self) -> list[tuple[str, str]]:
        """Return the main figures, for people."""
        facts = [(name, format_count(rows, "row")) for name, rows in self.rows.items()]
        facts += [(name, format_count(rows, "result")) for name, rows in self.results.items()]
        lost = {"late": self.late, "without a time": self.no_time, "of no stream": self.unknown}
        return facts + [(what, format_count(rows, "row")) for what, rows in lost.items() if rows]

    def _repr_html_(self) -> str:
        return card("Figures of a query", self.facts())


def output_schema(output: algebra.Output) -> pa.Schema:
    """Return the columns of a result."""
    return output.schema.to_arrow()


class Query(Closing):
    """A running query. Its results do not depend on how inputs are cut into batches.

    `late_to` is a function of an input's name and a batch, or a folder for Parquet files. It gets the rows
    that were older than the clock of their input when they came, and says in a column `late_by` how far.
    Rows without a time have NULL there. With `device="gpu"` a GPU finds and aggregates the pairs of joins
    (docs/gpu.md).

    >>> text = '''CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts timestamp) TIMESTAMP BY Ts;
    ...           SELECT max(Price) AS High FROM Trades [SIZE 60 ADVANCE 60 TIME] INTO Highs'''
    >>> with Query(text) as query:
    ...     _ = query.push("Trades", {"Symbol": ["UBSN", "UBSN"], "Price": [10, 12], "Ts": [0, 1]})
    ...     [batch.to_pylist() for batch in query.finish()["Highs"]]
    [[{'High': 12}]]
    """

    on_results: Callable[[pa.RecordBatch], object] | None = None
    """Called with the last batch of each result of a push; for the caller to set."""

    def __init__(
        self, plan: Plan | str, *, optimised: bool = True, cores: int = 1, now: NowNanoseconds = time.time_ns,
        late_to: LateTo | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        Options(optimised=optimised, cores=cores, device=device)  # raises if a value has no meaning
        made = parse_query(plan) if isinstance(plan, str) else plan
        self._written = made
        self.plan = optimise(made) if optimised else made
        if device == "gpu":
            check_device(device, "low_latency", None if cores == 1 else cores, adapt=False, pin=False)
            self.plan = reduce_joins(self.plan)
        nodes = [node for output in self.plan.outputs for node in walk(output)]
        merges = any(isinstance(n, (algebra.Union, algebra.WindowJoin, ReducedJoin)) for n in nodes)
        self._needs = Needs(merges or any(isinstance(node, algebra.Windowing) for node in nodes), merges)
        self._now, self._cores = now, cores
        inputs = self.plan.inputs
        streams = [LateStream(s.name, arrow_schema(s), s.clock.unit) for s in inputs]
        self._late = None if late_to is None else LateRows(late_to, streams)
        passed = [None if self._late is None else partial(self._late.add, k) for k in range(len(inputs))]
        self._sources = {
            s.name: SourceOperator(s, self._needs, now, on_late)
            for s, on_late in zip(inputs, passed, strict=True)
        }
        self._carriers = {s.demux.stream for s in self.plan.inputs if s.demux is not None}
        self._steps: list[_Step] = []
        known: dict[str, int] = {}
        self._outputs = [
            (output.name, output_schema(output), self._build(output.input, known))
            for output in self.plan.outputs
        ]
        self._leave_out_columns()
        self.listeners: list[Callable[[pa.RecordBatch], object]] = []
        """Called as `on_results` is; the live page adds its own."""
        self._lock = threading.RLock()
        self._place, self._ended = 0, False
        self._results, self._unknown = {output.name: 0 for output in self.plan.outputs}, 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def _build(self, node: Node, known: dict[str, int]) -> int:
        """Build operators from the inputs up, each plan once; return the number of the node's step."""
        text = repr(node)  # not the node itself: 0.0 and -0.0 are equal, but not the same
        if text not in known:
            inputs = tuple(self._build(child, known) for child in _inputs(node))
            self._steps.append(_Step(_operator(node, self), inputs))
            known[text] = len(self._steps) - 1
        return known[text]

    def _leave_out_columns(self) -> None:
        """Let inputs that only pipelines read leave out the columns that none of these reads."""
        shown = {at for _, _, at in self._outputs}
        for at, (operator, _) in enumerate(self._steps):
            readers = [step.operator for step in self._steps if at in step.inputs]
            pruned = at not in shown and all(isinstance(reader, Pipeline) for reader in readers)
            if pruned and isinstance(operator, SourceOperator):
                operator.read_only(frozenset().union(*(reader.reads for reader in readers)))

    def why(self, rows: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> tuple[Why, ...]:
        """Explain why rows, one of each stream, are a result of the window joins of this query, or not.

        It looks at the conditions of the text: selections, the condition of each join, and windows. Once rows
        have come, it also says of each row whether the join holds it, and if not, whether it can have
        expired, was late, or has not come. Windows of tuples need positions, which only a query that holds
        both rows knows.

        Args:
            rows: A row of each stream, by its name in the join or by the name of the input: a dict of values,
                a frame of one row, the number of a row in `inputs`, or None for a row of NULLs.
            inputs: Whole inputs by name. Before rows have come, as-of joins need the right one to say which
                row is better.

        Returns:
            The answer of each window join that has a row of each of its streams.
        """
        tables = {}
        for name, given in (inputs or {}).items():
            if name not in self._sources:
                self.plan.own_input(name)  # raises an error
            tables[name] = pa.Table.from_batches([self._sources[name].conform_batch(given)])
        with self._lock:
            return explain_query(self._written, rows, tables, self._running_joins())

    def _running_joins(self) -> dict[str, JoinOperator]:
        """Return the joins that rows have come to, by the text of those that were written."""
        if self._ended or not any(source.rows for source in self._sources.values()):
            return {}
        operators = [step.operator for step in self._steps if isinstance(step.operator, JoinOperator)]
        known = {repr(operator.node): operator for operator in operators}
        return {text: known[repr(join)] for text, join in running_joins(self._written, self.plan)}

    @property
    def streams(self) -> dict[str, pa.Schema]:
        """The columns of the streams that the query joins, by name; `why` asks for a row of each."""
        return streams_of_joins(self._written)

    def stamp_by(self, operator: SourceOperator) -> None:
        """Replace the operator that stamps an input, before its first row comes."""
        name = operator.source.name
        before, self._sources[name] = self._sources[name], operator
        self._steps = [
            _Step(operator, step.inputs) if step.operator is before else step for step in self._steps
        ]

    # Tuples in, results out.

    def push(self, stream: str, tuples: Any) -> Results:
        """Push rows of an input; return the results that they complete, by name."""
        return self.push_together({stream: (tuples, None)})

    def push_together(self, given: Mapping[str, tuple[Any, Array | None]]) -> Results:
        """Push rows of several inputs at once, each with its place among all arrivals.

        Places rise, from the number of rows that have come before; None: they come now.
        """
        with self._lock:
            if self._ended:
                raise HandshakeError("this query has ended; make a new one to push more tuples")
            batches: dict[str, tuple[pa.RecordBatch, Array]] = {}
            pushed = 0
            for name, (tuples, places) in given.items():
                if name not in self._sources:
                    self.plan.own_input(name)  # raises an error
                elif (demux := self._sources[name].source.demux) is not None:
                    raise InputError(f"stream '{name}' comes with {demux.stream}; push its tuples there")
                pushed += self._admit(name, tuples, places, batches)
            self._place += pushed
            return self._step(batches)

    def _admit(
        self, name: str, tuples: Any, places: Array | None, batches: dict[str, tuple[pa.RecordBatch, Array]]
    ) -> int:
        """Add a batch and those of the streams that it carries; return its number of rows."""
        source = self._sources[name]
        if name not in self._carriers:
            batch = source.conform_batch(tuples)
            batches[name] = (batch, self._places(places, batch.num_rows) if self._needs.times else _NOWHERE)
            return int(batch.num_rows)
        table = table_of(tuples)
        own = [column for column in source.schema.names if column in table.schema.names]
        batch = source.conform_batch(table.select(own))
        at = self._places(places, batch.num_rows)
        batches[name] = (batch, at)
        claimed = np.zeros(batch.num_rows, np.bool_)
        for operator in self._sources.values():
            if operator.source.demux is None or operator.source.demux.stream != name:
                continue
            part, rows = operator.pick_rows(table.combine_chunks())
            batches[operator.source.name] = (part, at[rows])
            claimed[rows] = True
        self._unknown += int(np.count_nonzero(~claimed))
        return int(batch.num_rows)

    def _places(self, places: Array | None, rows: int) -> Array:
        return np.arange(self._place, self._place + rows) if places is None else places

    def finish(self) -> Results:
        """End the inputs; return the results of windows that were still open."""
        with self._lock:
            if self._ended:
                return {output.name: [] for output in self.plan.outputs}
            results = self._step({}, ended=True)
            self.close()
            return results

    def _step(self, batches: dict[str, tuple[pa.RecordBatch, Array]], *, ended: bool = False) -> Results:
        flows: list[Flow] = []
        for operator, inputs in self._steps:
            match operator:
                case SourceOperator():
                    flows.append(self._feed(operator, batches.get(operator.source.name), ended))
                case Pipeline():
                    below = flows[inputs[0]]
                    flows.append(Flow(operator.apply(below.chunk), below.trace, below.ended))
                case UnionOperator() | JoinOperator():
                    flows.append(operator.step([flows[at] for at in inputs]))
                case _:
                    flows.append(operator.step(flows[inputs[0]]))
        found = {name: self._deliver(name, schema, flows[at]) for name, schema, at in self._outputs}
        last = [batches[-1] for batches in found.values() if batches]
        for listen in (self.on_results, *self.listeners):
            if listen is not None:
                for batch in last:
                    listen(batch)
        return found

    def _feed(
        self, operator: SourceOperator, given: tuple[pa.RecordBatch, Array] | None, ended: bool
    ) -> Flow:
        if given is None:
            schema = operator.schema
            nothing = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
            given = (nothing, np.array([self._place], np.int64))
        return operator.step(*given, ended=ended)

    def _deliver(self, name: str, schema: pa.Schema, flow: Flow) -> list[pa.RecordBatch]:
        if not flow.chunk.rows:
            return []
        self._results[name] += flow.chunk.rows
        return [pa.RecordBatch.from_arrays([flow.chunk.columns[c] for c in schema.names], schema=schema)]

    # About it.

    def schema(self, output: str) -> pa.Schema:
        """Return the columns of a result."""
        return output_schema(self.plan.output(output))

    def input_schema(self, stream: str) -> pa.Schema:
        """Return the columns of an input."""
        return arrow_schema(self._sources[stream].source)

    def explain(self) -> str:
        """Return the plan as it runs, as text."""
        return explain_plan(self.plan)

    def metrics(self) -> QueryMetrics:
        """Return the figures so far."""
        operators = [step.operator for step in self._steps]
        kinds = [operator.kind for operator in operators if isinstance(operator, JoinOperator)]
        figures = combine("query", [*operators, *kinds])
        figures |= {"rows": {name: operator.rows for name, operator in self._sources.items()}}
        return QueryMetrics(**{**figures, "results": dict(self._results), "unknown": self._unknown})

    def counts(self) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return the rows of each input and the results so far, as `metrics` has them, but sooner."""
        return tuple(operator.rows for operator in self._sources.values()), dict(self._results)

    def _repr_html_(self) -> str:
        return card(f"Query, {'ended' if self.closed else 'running'}", self.metrics().facts(), self.explain())

    @property
    def closed(self) -> bool:
        """True once the query has ended and takes no more rows."""
        return self._ended

    def close(self) -> None:
        """Free what is held."""
        with self._lock:
            if not self._ended:
                for operator, _ in self._steps:
                    if isinstance(operator, JoinOperator):
                        operator.close()
                if self._late is not None:
                    self._late.close()
            self._ended = True


def _inputs(node: Node) -> tuple[Node, ...]:
    """Return the plans that an operator reads, without its sub-plans."""
    if isinstance(node, (algebra.Windowing, algebra.Group)):
        return (node.input,)
    below, nodes = chain(node)
    return (below,) if nodes else node.children


def _operator(node: Node, query: Query) -> Any:
    match node:
        case algebra.Source(name=name):
            return query._sources[name]
        case algebra.Union():
            return UnionOperator(node)
        case algebra.WindowJoin():
            return JoinOperator(node, query._cores)
        case ReducedJoin():
            return ReducingJoin(node)
        case algebra.Windowing():
            return _windows(node)
    below, nodes = chain(node)
    if nodes:
        return Pipeline(below.schema.fields, nodes)
    raise UnsupportedError(f"the local engine cannot run {label(node)} outside of a window")


def _windows(node: algebra.Windowing) -> WindowOperator | SessionOperator:
    if isinstance(node.input, ReducedJoin):
        return ReducedWindows(node, node.input)
    shape = pane_shape(node.body, node.parameter) if node.pane is not None else None
    if isinstance(node.window, algebra.Session):
        return SessionOperator(node, SessionRows(node) if shape is None else SessionStates(node, shape))
    return WindowOperator(node, Tuples(node) if shape is None else Panes(node, shape))
