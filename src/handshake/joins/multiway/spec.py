"""A join of several streams as a value: its conditions, and the two-way steps that join orders are made of.

A step joins combinations of the streams `joined` with the window of stream `target`. It checks all conditions
that can be read for the first time. Window rules between members are conditions, too, on stamps: columns
`a:time`, `a:own` (the position in its stream) and `a:seen b` (how many tuples of b had come before).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from handshake.errors import ExpressionError, HandshakeError, SchemaError, WindowError, suggest
from handshake.joins.access import ACCESS_METHODS, AccessMethod, choose_method
from handshake.joins.spec import (
    JoinSpec,
    SideSpec,
    Stamps,
    check_columns,
    common_unit,
    join_spec,
    window_conditions,
)
from handshake.joins.tuning import TUNING, Tuning
from handshake.kernels.prepare import HIDDEN
from handshake.kinds import INNER, JoinKind
from handshake.plan.analyse import analyse
from handshake.plan.bind import Scope, bind
from handshake.plan.expr import (
    Column,
    Compare,
    Expr,
    Name,
    Udf,
    conjunction,
    conjuncts,
    show,
    transform,
    walk,
)
from handshake.schema import INT64, Field, Schema
from handshake.windows import TIME, Rule, Window, Windows

FIRST, SECOND = HIDDEN + "first", HIDDEN + "second"
"""Hidden columns of combinations: what the target's window and the members' windows look at."""


@dataclass(frozen=True)
class StreamSpec:
    """One stream: its name in the predicate, its columns, its window, its time column."""

    name: str
    schema: pa.Schema
    window: Window | None = None
    time: str | None = None

    @property
    def timed(self) -> bool:
        """True if its window needs times."""
        return self.window is not None and self.window.timed

    @property
    def counted(self) -> bool:
        """True if its window counts tuples."""
        return self.window is not None and self.window.counted

    @property
    def time_stamp(self) -> str:
        """The stamp that holds the time."""
        return f"{self.name}:time"

    @property
    def own_stamp(self) -> str:
        """The stamp that holds the position in this stream."""
        return f"{self.name}:own"

    def seen_stamp(self, other: StreamSpec) -> str:
        """Return the stamp that holds how many tuples of another stream had come before."""
        return f"{self.name}:seen {other.name}"


@dataclass(frozen=True)
class StreamCondition:
    """One conjunct: as written, with resolved names, bound to one row of all columns; and what it reads."""

    text: str
    expr: Expr
    bound: Expr
    streams: frozenset[int]

    @property
    def kind(self) -> str:
        """How well it narrows a step: `equality` best, then `inequality`, else `other`."""
        op = self.expr.op if isinstance(self.expr, Compare) else ""
        return {"": "other", "<>": "other", "=": "equality"}.get(op, "inequality")

    @property
    def calls_python(self) -> bool:
        """True if it calls a Python function of the user."""
        return any(isinstance(node, Udf) for node in walk(self.expr))


@dataclass(frozen=True, eq=False)
class NewConditions:
    """The conditions that a step into the window of `target` checks; shared by steps that check the same."""

    target: int
    conditions: tuple[StreamCondition, ...]
    method: str
    """The access method that they allow."""

    @cached_property
    def groups(self) -> frozenset[frozenset[int]]:
        """The sets of streams that they read."""
        return frozenset(condition.streams for condition in self.conditions)


@dataclass(frozen=True)
class StepSpec:
    """Combinations of the streams `joined` (in order of their numbers) meet the window of `target`."""

    joined: tuple[int, ...]
    target: int
    spec: JoinSpec


@dataclass
class ManySpec:
    """A join of several streams, checked; `step` plans what a join order asks for."""

    streams: tuple[StreamSpec, ...]
    conditions: tuple[StreamCondition, ...]
    filters: tuple[StreamCondition, ...]
    """Conditions on one stream alone: looked at once per tuple, at its arrival."""
    unit: str
    output: pa.Schema
    text: str
    tuning: Tuning = TUNING
    kind: ClassVar[JoinKind] = INNER
    dated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._steps: dict[tuple[frozenset[int], int], StepSpec] = {}
        self._new: dict[tuple[int, tuple[int, ...]], NewConditions] = {}
        self._joins: dict[NewConditions, JoinSpec] = {}
        self._layouts: dict[tuple[NewConditions, bool], int] = {}
        self._clusterings: dict[object, int] = {}

    @property
    def timed(self) -> bool:
        """True if a window needs times."""
        return any(stream.timed for stream in self.streams)

    @cached_property
    def windows(self) -> Windows:
        """The windows of all streams."""
        return Windows(*(stream.window for stream in self.streams))

    def check(self) -> None:
        """Refuse a condition that no kernel can compute, before the first tuple."""
        everyone = frozenset(range(len(self.streams)))
        for target in everyone:
            self._join(self.new_conditions(everyone - {target}, target))

    def step(self, joined: frozenset[int], target: int) -> StepSpec:
        """Return the step from combinations of `joined` into the window of `target`; planned once."""
        if (joined, target) not in self._steps:
            self._steps[joined, target] = self._step(joined, target)
        return self._steps[joined, target]

    def new_conditions(self, joined: frozenset[int], target: int) -> NewConditions:
        """Return the conditions that can be read once `target` has joined, and could not before.

        The first step of an order also checks those that read no stream.
        """
        first = len(joined) == 1
        numbers = tuple(n for n, others in self._reading[target] if (others <= joined if others else first))
        if (target, numbers) not in self._new:
            found = [self._methods[n, target] for n in numbers]
            method = min(found, key=lambda method: method.preference, default=ACCESS_METHODS["scan"])
            conditions = tuple(self.conditions[n] for n in numbers)
            self._new[target, numbers] = NewConditions(target, conditions, method.name)
        return self._new[target, numbers]

    def layout(self, joined: frozenset[int], target: int) -> int:
        """Return the number of the clustering of the target's window; steps of one number share a window."""
        key = (self.new_conditions(joined, target), self.member_reach(joined) is not None)
        if key not in self._layouts:
            clustering = self._clustering(*key)
            self._layouts[key] = self._clusterings.setdefault(clustering, len(self._clusterings))
        return self._layouts[key]

    @cached_property
    def _reading(self) -> tuple[tuple[tuple[int, frozenset[int]], ...], ...]:
        """For each stream, the conditions that read it or no stream, and the other streams that they read."""
        return tuple(
            tuple(
                (n, c.streams - {k}) for n, c in enumerate(self.conditions) if k in c.streams or not c.streams
            )
            for k in range(len(self.streams))
        )

    @cached_property
    def _methods(self) -> dict[tuple[int, int], AccessMethod]:
        """The access method that each condition allows alone, for each target that it reads."""
        return {
            (n, k): choose_method(analyse(self._split(self.conditions[n], k)), "auto")[0]
            for k, reading in enumerate(self._reading)
            for n, _ in reading
        }

    def _step(self, joined: frozenset[int], target: int) -> StepSpec:
        members, new = tuple(sorted(joined)), self.new_conditions(joined, target)
        base = self._join(new)
        schemas = self._joined_schema(members), self.stamped[target]
        left, right = (replace(side, schema=s) for side, s in zip(base.sides, schemas, strict=True))
        wide = replace(base, sides=(left, right), output=self._joined_schema((*members, target)))
        return StepSpec(members, target, self._add_windows(wide, members, target))

    def _join(self, new: NewConditions) -> JoinSpec:
        """Return the join of a target with the streams that its conditions read, without stamps.

        Steps that check the same conditions differ in the combinations' columns and in window rules alone.
        """
        if new not in self._joins:
            others = sorted(frozenset().union(*new.groups) - {new.target})
            left = pa.schema([column for k in others for column in self._columns(k)])
            right = pa.schema(self._columns(new.target))
            on = conjunction(tuple(self._place(c, new.target) for c in new.conditions))
            with _in_their_words(self.names):
                self._joins[new] = join_spec(
                    left, right, on, Windows(None, None), times=(None, None), tuning=self.tuning
                )
        return self._joins[new]

    def _clustering(self, new: NewConditions, reached: bool) -> object:
        spec = self._join(new)
        side = _stamped_side(spec.sides[1], *self._stamps(new.target, reached))
        return (
            new.target, spec.method, side.derived, side.filters, side.keys, side.columns, side.stamps,
            side.hashed, tuple(attribute.inner for attribute in side.attributes),
        )  # fmt: skip

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The streams' names."""
        return tuple(stream.name for stream in self.streams)

    def _joined_schema(self, members: Iterable[int]) -> pa.Schema:
        return pa.schema([column for k in members for column in self.stamped[k]])

    @cached_property
    def stamped(self) -> tuple[pa.Schema, ...]:
        """The columns of each stream, prefixed with its name, and its stamps."""
        return tuple(map(self._add_stamps, range(len(self.streams))))

    def _add_stamps(self, k: int) -> pa.Schema:
        stream = self.streams[k]
        stamps = [stream.time_stamp] if self.timed else []
        stamps += [stream.own_stamp] if stream.counted else []
        stamps += [stream.seen_stamp(o) for n, o in enumerate(self.streams) if n != k and o.counted]
        return pa.schema([*self._columns(k), *(pa.field(name, pa.int64()) for name in stamps)])

    def _columns(self, k: int) -> list[pa.Field]:
        """Return a stream's columns, prefixed with its name."""
        name, schema = self.streams[k].name, self.streams[k].schema
        return [column.with_name(f"{name}.{column.name}") for column in schema]

    def _place(self, condition: StreamCondition, target: int) -> Expr:
        """Put the target's columns on the right side, and all others on the left."""
        own = f"{self.names[target]}."

        def rule(node: Expr) -> Expr:
            if not isinstance(node, Name):
                return node
            side = "r" if node.parts[1].startswith(own) else "l"
            return Name((side, *node.parts[1:]), at=node.at)

        return transform(condition.expr, rule)

    def _split(self, condition: StreamCondition, target: int) -> Expr:
        """Return a bound condition with the target's columns on the right side."""
        own = f"{self.names[target]}."

        def rule(node: Expr) -> Expr:
            return replace(node, side=1) if isinstance(node, Column) and node.name.startswith(own) else node

        return transform(condition.bound, rule)

    def _add_windows(self, base: JoinSpec, members: tuple[int, ...], target: int) -> JoinSpec:
        """Add the window rules: that of the target, and those of members with time windows.

        Tuple windows of members are looked at afterwards (see `mjoin_step`): tuples that are pushed as they
        come cannot break them.
        """
        window, reach = self.streams[target].window, self.member_reach(members)
        own = None if window is None else window.rule(self.unit)
        rules = (None if reach is None else Rule(TIME, TIME, reach), own)
        stamps = self._stamps(target, reach is not None)
        left, right = (_stamped_side(side, *stamps) for side in base.sides)
        conditions = window_conditions(rules, left.stamps, right.stamps)
        boundary = conjunction((*conditions, *conjuncts(base.interior)))
        return replace(base, rules=rules, sides=(left, right), boundary=boundary)

    def _stamps(self, target: int, reached: bool) -> tuple[tuple[str, str] | None, ...]:
        """Return the stamps of combinations and target that the target's window and the members' read."""
        first = None if self.streams[target].window is None else (FIRST, self.stamp(target))
        return first, (SECOND, self.streams[target].time_stamp) if reached else None

    def stamp(self, k: int) -> str:
        """Return the stamp of a stream by which its rows expire."""
        stream = self.streams[k]
        return stream.time_stamp if stream.timed else stream.own_stamp

    def member_reach(self, members: Iterable[int]) -> int | None:
        """Return the least reach of the members' time windows; None if there are none."""
        return min((self.rule(k).reach for k in members if self.streams[k].timed), default=None)

    def rule(self, k: int) -> Rule:
        """Return the rule of a stream's window."""
        window = self.streams[k].window
        assert window is not None
        return window.rule(self.unit)


def _stamped_side(side: SideSpec, first: tuple[str, str] | None, second: tuple[str, str] | None) -> SideSpec:
    """Return a side with the stamps that the window rules read."""
    stamps = [Column(side.side, pair[side.side], type=INT64) if pair else None for pair in (first, second)]
    columns = dict.fromkeys((*side.columns, *(stamp for stamp in stamps if stamp is not None)))
    return replace(side, columns=tuple(columns), stamps=Stamps(*stamps))


# Reading a join.


def many_spec(streams: Sequence[StreamSpec], on: Expr, tuning: Tuning = TUNING) -> ManySpec:
    """Check streams and predicate, and plan their join."""
    streams = tuple(streams)
    schemas = tuple(Schema.from_arrow(stream.schema, stream.name) for stream in streams)
    _check_streams(streams, schemas)
    unit = common_unit(schemas, Windows(), tuple(stream.time for stream in streams))
    found = tuple(_read(schemas, on))
    joint = tuple(c for c in found if len(c.streams) != 1)
    single = tuple(c for c in found if len(c.streams) == 1)
    spec = ManySpec(streams, joint, single, unit, _output(streams), show(on), tuning)
    spec.check()
    return spec


def _check_streams(streams: tuple[StreamSpec, ...], schemas: tuple[Schema, ...]) -> None:
    if len(streams) < 2:
        raise SchemaError(f"a join needs two or more streams; {len(streams)} was given")
    for stream in streams:
        if not stream.name.isidentifier():
            raise SchemaError(
                f"{stream.name!r} cannot name a stream; a name is letters, digits and _, "
                "not beginning with a digit, so that a predicate can say name.column"
            )
        if any(each.timed for each in streams) and stream.time is None:
            raise WindowError(
                f"a time window needs a time column for every stream, and none is named for the "
                f"{stream.name} input; name one of {', '.join(stream.schema.names)} (time=…)"
            )
    check_columns(schemas)
    folded = [stream.name.casefold() for stream in streams]
    for stream in streams:
        if folded.count(stream.name.casefold()) > 1:
            raise SchemaError(f"two streams are called '{stream.name}' (case does not matter); rename one")


def _read(schemas: tuple[Schema, ...], on: Expr) -> Iterator[StreamCondition]:
    """Yield the conjuncts, with every name resolved to a column such as `a.x`."""
    names = _Names(schemas)
    row = Scope((names.row,), {"l": 0})
    with _in_their_words(names.names):
        for part in conjuncts(on):
            expr, read = names.resolve(part)
            yield StreamCondition(show(part), expr, bind(expr, row), read)


class _Names:
    """The columns that names in a predicate stand for."""

    def __init__(self, schemas: tuple[Schema, ...]) -> None:
        self.names = tuple(schema.stream for schema in schemas)
        self.schemas = schemas
        self.row = Schema(
            tuple(Field(f"{s.stream}.{f.name}", f.type) for s in self.schemas for f in s.fields), "joined"
        )
        self._scope = Scope(self.schemas, {name: k for k, name in enumerate(self.names)})
        self._folded = {name.casefold(): name for name in self.names}

    def resolve(self, part: Expr) -> tuple[Expr, frozenset[int]]:
        """Return a condition with resolved names, and the streams that it reads."""
        read: set[int] = set()

        def rule(node: Expr) -> Expr:
            if not isinstance(node, Name):
                return node
            stream, column = self._column(node)
            read.add(stream)
            return Name(("l", f"{self.names[stream]}.{column}", *node.parts[2:]), at=node.at)

        return transform(part, rule), frozenset(read)

    def _column(self, name: Name) -> tuple[int, str]:
        if len(name.parts) == 1:
            return self._find_unqualified(name)
        qualifier = self._folded.get(name.parts[0].casefold(), name.parts[0])
        found = self._scope.resolve(replace(name, parts=(qualifier, name.parts[1])))
        return found.side, found.name

    def _find_unqualified(self, name: Name) -> tuple[int, str]:
        owners = [k for k, schema in enumerate(self.schemas) if schema.find(name.parts[0])]
        if len(owners) == 1:
            return owners[0], self.schemas[owners[0]].get(name.parts[0]).name
        if owners:
            which = ", ".join(self.names[k] for k in owners)
            first = f"{self.names[owners[0]]}.{name.parts[0]}"
            raise _wrong(f"column '{name.parts[0]}' is in several inputs ({which}); write {first}, say", name)
        columns = [column for schema in self.schemas for column in schema.names]
        raise _wrong(f"no column '{name.parts[0]}'{suggest(name.parts[0], columns)}", name)


def _wrong(message: str, name: Name) -> ExpressionError:
    at = name.at
    return ExpressionError(message) if at is None else ExpressionError(message, at.line, at.column)


@contextlib.contextmanager
def _in_their_words(names: Sequence[str]) -> Iterator[None]:
    """Write `a.x` for `l.a.x` in errors, as the user did."""
    try:
        yield
    except HandshakeError as error:
        pattern = rf"\b[lr]\.(?=(?:{'|'.join(map(re.escape, names))})\.)"
        error.args = tuple(re.sub(pattern, "", str(arg)) for arg in error.args)
        raise


def _output(streams: tuple[StreamSpec, ...]) -> pa.Schema:
    """Return all columns of all streams in order; a repeated name gets `_` and its stream's name."""
    taken: dict[str, str] = {}
    fields = []
    for stream in streams:
        before = set(taken)
        for column in stream.schema:
            name = f"{column.name}_{stream.name}" if column.name in before else column.name
            if name in taken:
                raise SchemaError(
                    f"output column '{name}' would appear twice, from {taken[name]} and from {stream.name}; "
                    "rename a column or a stream"
                )
            taken[name] = stream.name
            fields.append(column.with_name(name))
    return pa.schema(fields)
