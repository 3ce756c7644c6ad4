"""The streaming algebra: Glacier's Table 1, and the window join. Frozen nodes that know their schemas.

Plans are in assembly style: arithmetic, comparison and selection are separate operators, and each operator
that computes appends one column. A plan is a value, so equal sub-plans are the same computation: a stream
that two statements read is the same node below both. See docs/queries.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Literal as OneOf

from handshake.errors import InputError, suggest
from handshake.html import card
from handshake.kinds import INNER, JoinKind
from handshake.plan.aggregates import Argument, Constant, aggregate_function, whole_weights
from handshake.plan.expr import Column, Expr
from handshake.schema import INT64, UNITS, Field, Schema, Timestamp, Type
from handshake.windows import Window


@dataclass(frozen=True)
class Clock:
    """The type and the unit of the times of a stream."""

    type: Type
    unit: str


ARRIVAL = Clock(Timestamp("us", "UTC"), "us")
"""The clock of a stream without a time column: when a tuple arrives, as its source sees it."""
POSITIONS = Clock(INT64, "tuples")
"""The clock inside tuple windows: it counts positions in their input."""


LONGEST = 2**62
"""The longest window of time, in units of its stream's clock."""


MEMBER_TIME = "\0time"
"""The name that a row's own time has in the condition of a join, and in results with the times of rows."""


@dataclass(frozen=True)
class Sliding:
    """A window that slides: SIZE and ADVANCE in nanoseconds or in tuples."""

    kind: OneOf["time", "tuples"]
    size: int
    advance: int
    offset: int | None = field(default=0, kw_only=True)
    """By how much windows of time start after 1970-01-01; None: one of them starts with the first row."""
    cumulative: bool = field(default=False, kw_only=True)
    """Whether windows of time that start every `size` grow by `advance` until they have this size."""
    partial: bool = field(default=False, kw_only=True)
    """Whether windows of tuples that would start before the first row give results."""

    def __str__(self) -> str:
        unit = UNITS["s"] if self.kind == "time" else 1
        size, advance = (_number(n, unit) for n in (self.size, self.advance))
        lengths = f"CUMULATE {advance} SIZE {size}" if self.cumulative else f"SIZE {size} ADVANCE {advance}"
        offset = "FIRST" if self.offset is None else _number(self.offset, unit)
        behind = f" OFFSET {offset}" if self.offset != 0 else " PARTIAL" if self.partial else ""
        return f"{lengths} {self.kind.upper()}{behind}"


@dataclass(frozen=True)
class Session:
    """Windows of activity: times of rows in a session follow each other by at most `gap` nanoseconds."""

    gap: int
    keys: tuple[str, ...] = ()
    """Columns of the input; each combination of their values has sessions of its own."""
    kind: OneOf["session"] = "session"

    def __str__(self) -> str:
        per = f" per {', '.join(self.keys)}" if self.keys else ""
        return f"SESSION {_number(self.gap, UNITS['s'])} SECONDS{per}"


def _number(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    return f"{whole}.{rest:09}".rstrip("0") if rest else str(whole)


@dataclass(frozen=True)
class Node(ABC):
    """An operator. `schema` has the columns of its results, `clock` how their times are counted."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns of the results."""

    @property
    def clock(self) -> Clock:
        """The clock of the results. Every row has a time, even if no column shows it."""
        return self.children[0].clock

    @property
    def children(self) -> tuple[Node, ...]:
        """The plans that this one reads, sub-plans with a parameter last."""
        return ()

    def with_children(self, children: tuple[Node, ...]) -> Node:
        """Return this operator on other plans."""
        return self


@dataclass(frozen=True)
class Demux:
    """The rows of a carrying input that belong to this stream (Glacier, section 5.3)."""

    stream: str
    """The input that carries them."""
    field: str
    """The field of that input that distinguishes the streams."""
    values: tuple[int | str, ...]
    """The values of that field in tuples of this stream."""


@dataclass(frozen=True)
class _Leaf(Node):
    name: str
    fields: Schema

    @property
    def schema(self) -> Schema:
        return self.fields


@dataclass(frozen=True)
class Source(_Leaf):
    """An input stream as declared."""

    time: str | None = None
    """The column with the tuples' times; None: they are stamped when they arrive."""
    ticks: Clock = ARRIVAL
    lateness: int = 0
    """For how many nanoseconds the stream's clock runs behind its newest tuple."""
    demux: Demux | None = None

    @property
    def clock(self) -> Clock:
        return self.ticks


@dataclass(frozen=True)
class Parameter(_Leaf):
    """The input of a sub-plan: the rows of one window, or of one group."""

    ticks: Clock

    @property
    def clock(self) -> Clock:
        return self.ticks


@dataclass(frozen=True)
class _Unary(Node):
    input: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, input=children[0])


@dataclass(frozen=True)
class Project(_Unary):
    """A projection on columns in this order; each is (name in the result, name in the input)."""

    columns: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> Schema:
        known = self.input.schema  # once: each node that asked twice would double what is done below it
        types = {f.name: f.type for f in known}
        return Schema(tuple(Field(new, types[old]) for new, old in self.columns), known.stream)


@dataclass(frozen=True)
class Select(_Unary):
    """A selection of the rows in which `field` is TRUE."""

    field: str

    @property
    def schema(self) -> Schema:
        return self.input.schema


@dataclass(frozen=True)
class Apply(_Unary):
    """A computed column: one operation of arithmetic, comparison or logic on columns and constants.

    `operation` is a typed expression of one node, whose operands are `Column(0, …)` or `Literal`. `type` has
    just the bits that its values can need.
    """

    name: str
    operation: Expr
    type: Type

    @property
    def schema(self) -> Schema:
        known = self.input.schema
        return Schema((*known.fields, Field(self.name, self.type)), known.stream)


@dataclass(frozen=True)
class _Nary(Node):
    inputs: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, inputs=children)


@dataclass(frozen=True)
class Union(_Nary):
    """The rows of several streams with the same columns, in the order of arrival."""

    @property
    def schema(self) -> Schema:
        return self.inputs[0].schema

    @property
    def clock(self) -> Clock:
        return _finest(self.inputs)


def _finest(nodes: tuple[Node, ...]) -> Clock:
    """Return the clock with the finest unit."""
    return min((node.clock for node in nodes), key=lambda clock: UNITS[clock.unit])


@dataclass(frozen=True)
class Ordering:
    """A column of ORDER BY in an aggregate."""

    field: str
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        nulls = "" if self.nulls_first != self.descending else f" nulls {('last', 'first')[self.nulls_first]}"
        return f"{self.field}{' desc' if self.descending else ''}{nulls}"


@dataclass(frozen=True)
class Aggregate(_Unary):
    """One value of a finite input: `name` = `function` of `fields`. Emits that column alone."""

    name: str
    function: str
    """A name in plan.aggregates.AGGREGATES."""
    fields: tuple[str, ...] = ()
    """Empty for functions of no column: count of all tuples, window_start, window_end."""
    constants: tuple[Constant, ...] = ()
    """Weights (that of the newest tuple first), a fraction (and DESC within a group), or a separator."""
    where: str | None = None
    """FILTER: the aggregate reads only rows in which this column is TRUE."""
    order: tuple[Ordering, ...] = ()
    """ORDER BY: the order in which the rows are read; ties are read by arrival, as are all without it."""
    distinct: bool = False
    """Whether of rows with equal fields only the first to arrive is read."""

    @property
    def schema(self) -> Schema:
        known = self.input.schema
        types = tuple(known.get(field).type for field in self.fields)
        given = Argument(types, self.clock.type, self.constants)
        kind = aggregate_function(self.function).result_type(given)
        return Schema((Field(self.name, kind),), known.stream)

    @property
    def field(self) -> str | None:
        """The first column; None if there is none."""
        return self.fields[0] if self.fields else None

    @property
    def reads(self) -> frozenset[str]:
        """All columns that the aggregate reads."""
        condition = () if self.where is None else (self.where,)
        return frozenset((*self.fields, *condition, *(by.field for by in self.order)))

    @property
    def holistic(self) -> bool:
        """True if it needs all rows of a window; else its state follows from those of panes."""
        return self.distinct or aggregate_function(self.function).kind == "holistic"

    @property
    def weights(self) -> tuple[int, ...]:
        """The constants as whole numbers: times ten to the power of `scale`."""
        return whole_weights(self.constants)[0]

    @property
    def scale(self) -> int:
        """The number of decimal digits of the constants."""
        return whole_weights(self.constants)[1]


@dataclass(frozen=True)
class _WithBody(Node):
    input: Node
    parameter: str
    body: Node
    """The sub-plan; its leaves named `parameter` stand for one group or window."""

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.input, self.body)

    def with_children(self, children: tuple[Node, ...]) -> Node:
        return replace(self, input=children[0], body=children[1])


@dataclass(frozen=True)
class Group(_WithBody):
    """A grouping: each group has its own sub-plan; results are the keys, then the columns of the sub-plan."""

    keys: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        known = self.input.schema
        fields = (*(Field(key, known.get(key).type) for key in self.keys), *self.body.schema.fields)
        return Schema(fields, known.stream)


@dataclass(frozen=True)
class Windowing(_WithBody):
    """A sliding window: the sub-plan runs on each window when it closes."""

    window: Sliding | Session
    pane: int | None = field(default=None, kw_only=True)
    """The length of panes, set by the optimiser: windows combine the aggregates of their panes.

    For sessions it is their gap: they keep the states of aggregates, and no rows."""

    @property
    def schema(self) -> Schema:
        return self.body.schema


@dataclass(frozen=True)
class Concat(_Nary):
    """A row-by-row concatenation of columns: each input yields one row per window or group."""

    @property
    def schema(self) -> Schema:
        known = [node.schema for node in self.inputs]
        return Schema(tuple(f for each in known for f in each), known[0].stream)


@dataclass(frozen=True)
class WindowJoin(_Nary):
    """Combinations of one row per stream for which `on` holds, all in their windows when the last arrives.

    Columns of results are named `stream.column`. In `on`, `Column(k, name)` is a column of the k-th input.
    The time of a result is the latest of its members' times; that of a row without a match is the end of its
    window (docs/queries.md).
    """

    names: tuple[str, ...]
    """The names of the streams in the query, all different."""
    windows: tuple[Window | None, ...]
    """The window of each stream; None keeps its tuples for ever."""
    on: Expr
    """The whole typed condition; each engine splits it as it needs."""
    kind: JoinKind = INNER
    """The kind of a join of two streams; of more, INNER."""
    times: bool = False
    """True if results also have the times of their members, in columns named `stream.` and `MEMBER_TIME`."""
    match: str = ""
    """How an as-of join compares the time of a left row with those of right rows: `>=`, `>`, `<=` or `<`. A
    left row then takes the match that is best in time. Both windows say how far left rows look."""

    @property
    def looks_ahead(self) -> bool:
        """True if left rows of an as-of join take later right rows, not earlier ones."""
        return self.match.startswith("<")

    @property
    def called(self) -> str:
        """The kind as messages name it: `a left join`, `an inner as-of join`."""
        words = f"{self.kind.name} as-of join" if self.match else f"{self.kind.name} join"
        return f"an {words}" if words.startswith("i") else f"a {words}"

    @property
    def shown(self) -> tuple[bool, ...]:
        """Inputs whose columns results have."""
        return self.kind.shown if len(self.inputs) == 2 else (True,) * len(self.inputs)

    @property
    def schema(self) -> Schema:
        time = (Field(MEMBER_TIME, Timestamp(self.clock.unit)),) if self.times else ()
        fields = [
            Field(f"{name}.{f.name}", f.type)
            for name, node, is_shown in zip(self.names, self.inputs, self.shown, strict=True)
            for f in ((*node.schema, *time) if is_shown else ())
        ]
        return Schema(tuple(fields), "join")

    @property
    def clock(self) -> Clock:
        return _finest(self.inputs)


@dataclass(frozen=True)
class Output(_Unary):
    """A named result: `INTO name`."""

    name: str

    @property
    def schema(self) -> Schema:
        return Schema(self.input.schema.fields, self.name)


@dataclass(frozen=True)
class Plan:
    """All statements of a text: the inputs that it declares, and its results by name."""

    inputs: tuple[Source, ...]
    outputs: tuple[Output, ...]

    @property
    def own_inputs(self) -> dict[str, Source]:
        """The inputs that a caller gives, by name; the others are carried by one of them."""
        return {source.name: source for source in self.inputs if source.demux is None}

    def own_input(self, name: str) -> Source:
        """Return the input of this name; raise `InputError` if callers give none of this name."""
        known = self.own_inputs
        if name not in known:
            raise InputError(f"no input '{name}' ({', '.join(known)}){suggest(name, known)}")
        return known[name]

    def carried_by(self, name: str) -> list[Source]:
        """Return the streams that an input carries."""
        return [s for s in self.inputs if s.demux is not None and s.demux.stream == name]

    def output(self, name: str) -> Output:
        """Return the result with this name."""
        return next(output for output in self.outputs if output.name == name)

    def map(self, rule: Callable[[Node], Node]) -> Plan:
        """Return the plan with every result rewritten."""
        outputs = []
        for output in self.outputs:
            rewritten = rule(output)
            assert isinstance(rewritten, Output)
            outputs.append(rewritten)
        return Plan(self.inputs, tuple(outputs))

    def _repr_html_(self) -> str:
        facts = {
            "inputs": [each.name for each in self.inputs],
            "results": [each.name for each in self.outputs],
        }
        shown = [(what, ", ".join(names)) for what, names in facts.items()]
        return card("Plan of a query", shown, explain_plan(self).rstrip("\n"))


def explain_plan(plan: Plan) -> str:
    """Return a plan as text: each result with its operators below it, down to the inputs."""
    return "\n\n".join("\n".join(_lines(output)) for output in plan.outputs) + "\n"


def _lines(node: Node) -> list[str]:
    lines = [label(node)]
    for at, child in enumerate(node.children):
        first, rest = ("└─ ", "   ") if at == len(node.children) - 1 else ("├─ ", "│  ")
        below = _lines(child)
        lines += [first + below[0], *(rest + line for line in below[1:])]
    return lines


@singledispatch
def label(node: Node) -> str:
    """Return an operator as one line; `plan.explain` has the text of each kind."""
    return type(node).__name__


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything below it, parents first."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(here.children))


def chain(node: Node) -> tuple[Node, list[Node]]:
    """Return the plan below a chain of Project, Select and Apply, and the chain, first applied first."""
    above: list[Node] = []
    while isinstance(node, (Project, Select, Apply)):
        above.append(node)
        node = node.input
    return node, above[::-1]


def rebuild(node: Node, rule: Callable[[Node], Node]) -> Node:
    """Rewrite a plan bottom-up; what two parents share is rewritten once and stays shared."""
    done: dict[int, Node] = {}

    def rewrite(here: Node) -> Node:
        if id(here) not in done:
            children = tuple(rewrite(child) for child in here.children)
            same = all(a is b for a, b in zip(children, here.children, strict=True))
            done[id(here)] = rule(here if same else here.with_children(children))
        return done[id(here)]

    return rewrite(node)


def reads(operation: Expr) -> frozenset[str]:
    """Return the columns that an operation reads."""
    return frozenset(child.name for child in operation.children if isinstance(child, Column))
