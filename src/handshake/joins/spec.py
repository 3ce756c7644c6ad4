"""A join of two streams as a value: everything that is known before the first tuple arrives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from handshake.errors import SchemaError, UnsupportedError, WindowError
from handshake.joins.access import ACCESS_METHODS, choose_method
from handshake.joins.states import RowStates
from handshake.joins.tuning import TUNING, Tuning
from handshake.kernels.arrivals import Layout
from handshake.kernels.collect import Shape, shape_of
from handshake.kernels.keys import Edges
from handshake.kernels.prepare import HIDDEN, Prepared, Source, prepare
from handshake.kernels.reduction import Reduction
from handshake.kinds import INNER, JoinKind
from handshake.plan.analyse import Analysis, Bound, analyse, describe
from handshake.plan.bind import Scope, bind
from handshake.plan.expr import (
    Arithmetic,
    Call,
    Column,
    Compare,
    Expr,
    Literal,
    conjunction,
    conjuncts,
    show,
    walk,
)
from handshake.schema import (
    BOOL,
    INT64,
    UNITS,
    Date,
    Float,
    Int,
    Schema,
    Timestamp,
    Type,
    joined_names,
    unit_of_times,
)
from handshake.windows import OTHER as OTHER_STAMP
from handshake.windows import OWN as OWN_STAMP
from handshake.windows import TIME as TIME_STAMP
from handshake.windows import Rule, Windows

SIDES = ("left", "right")
TIME, OWN, OTHER = (HIDDEN + name for name in (TIME_STAMP, OWN_STAMP, OTHER_STAMP))
"""Hidden columns that hold the stamps."""
ROW = HIDDEN + "row"
"""The hidden column that numbers the rows of a tracked side (see `matches`)."""
MOMENT = HIDDEN + "moment"
"""The column of results with the time of each pair, if results are dated."""


Rules = tuple[Rule | None, Rule | None]
"""The rules of the left window and of the right one; None for a side that never expires."""


@dataclass(frozen=True)
class Attribute:
    """An expression that an index on the inner side sorts by, and the bounds that outer tuples put on it."""

    inner: Expr
    limits: tuple[tuple[Expr, Bound], ...]
    """(outer expression, the conjunct it comes from)"""

    @property
    def two_sided(self) -> bool:
        """True if the attribute is bounded from below and above."""
        return len({bound.is_lower for _, bound in self.limits}) == 2


@dataclass(frozen=True)
class Stamps:
    """Columns that the window rules compare: `first` for the right window, `second` for the left one."""

    first: Column | None
    second: Column | None


@dataclass(frozen=True)
class SideSpec:
    """One side of a join: the hidden columns of its rows, and how its basic windows are clustered."""

    side: int
    schema: pa.Schema
    time: str | None
    derived: tuple[tuple[str, Source], ...]
    """Hidden columns that are computed once per tuple."""
    filters: tuple[Expr, ...]
    keys: tuple[Expr, ...]
    """Expressions without whose value a tuple cannot match."""
    columns: tuple[Column, ...]
    stamps: Stamps
    hashed: tuple[Expr, ...]
    attributes: tuple[Attribute, ...]
    """For an index on this side: up to two attributes, the most selective first."""
    coded: tuple[Attribute, ...] = ()
    """For scans: two attributes that also have codes of one byte (`kernels.codes`), or none."""
    tuning: Tuning = TUNING
    layouts: list[tuple[pa.Schema, Layout | None]] = dataclasses.field(
        default_factory=list, init=False, compare=False
    )
    """The layout of the last batch that was described (`kernels.arrivals`)."""
    edges: dict[int, tuple[Attribute, tuple[int, Edges] | None]] = dataclasses.field(
        default_factory=dict, init=False, compare=False
    )
    """Limits on attributes of the other side in compiled form, by identity."""

    @cached_property
    def shape(self) -> Shape | None:
        """The memory layout of its columns; None if one is of another kind."""
        return shape_of(self.schema)

    @property
    def name(self) -> str:
        """The name that errors and metrics use: left or right."""
        return SIDES[self.side]

    @cached_property
    def key_types(self) -> tuple[str, str]:
        """The NumPy types of the keys of cells and of fences, for an index of bands."""
        kinds = ["f8" if isinstance(a.inner.type, Float) else "i8" for a in self.attributes]
        return kinds[0], kinds[-1]

    @property
    def expiring(self) -> Column | None:
        """The stamp that rows of this side expire by; None if they never do."""
        return self.stamps.second if self.side == 0 else self.stamps.first


@dataclass(frozen=True)
class FirstPairs:
    """A choice among the pairs of an inner join: the first pair of each row of a side (semi and anti joins).

    The first pair of a row is the one whose other row has the least position. Each search chooses alone, so
    that a row may get several pairs; the caller takes the first of them, and then records the match.
    """

    side: int
    """The side of the rows."""
    positions: tuple[str, str]
    """Per side, the column with the positions of rows in their stream."""
    states: RowStates
    """Which rows have no match yet, by position."""


@dataclass(frozen=True)
class JoinSpec:
    """A join, analysed and ready to run on any arrangement of cores."""

    analysis: Analysis
    prepared: Prepared
    windows: Windows
    rules: Rules
    unit: str
    method: str
    why: str
    sides: tuple[SideSpec, SideSpec]
    output: pa.Schema
    interior: Expr
    """The compiled predicate for pairs that are known to be inside the windows."""
    boundary: Expr
    """The compiled predicate with the window rule."""
    text: str
    tuning: Tuning = TUNING
    kind: JoinKind = INNER
    dated: bool = False
    """Whether results of a semi join have row number and time, for the sake of their order: a row may come
    several times, and counts at its earliest time."""
    firsts: FirstPairs | None = None
    """The pairs that a caller wants; None for all that are results."""
    reduction: Reduction | None = None
    """The reduction of pairs on a GPU, which makes no results then."""

    @property
    def made(self) -> pa.Schema:
        """The columns of the results that join cores make."""
        if not self.dated:
            return self.output
        return self.output.append(pa.field(ROW, pa.uint32())).append(pa.field(MOMENT, pa.int64()))

    def reach(self, side: int) -> int | None:
        """Return how far apart stamps may be under that side's window."""
        rule = self.rules[side]
        return None if rule is None else rule.reach

    @property
    def streams(self) -> tuple[SideSpec, ...]:
        """The inputs of the join: both sides."""
        return self.sides

    def explain(self) -> str:
        """Describe the join."""
        return "\n".join(_explain(self))


def join_spec(
    left: pa.Schema, right: pa.Schema, on: Expr, windows: Windows, *, times: tuple[str | None, str | None],
    method: str = "auto", suffix: str = "_right", aliases: tuple[str, str] | None = None,
    tuning: Tuning = TUNING, kind: JoinKind = INNER, ordered: bool = False, device: str = "cpu",
) -> JoinSpec:  # fmt: skip
    """Bind and analyse a predicate, and choose an access method."""
    schemas = tuple(Schema.from_arrow(s, n) for s, n in zip((left, right), SIDES, strict=True))
    check_columns(schemas)
    predicate = bind(on, Scope.of(schemas[0], schemas[1], aliases))
    analysis = analyse(predicate)
    access, why = choose_method(analysis, method)
    prepared = _prepare(conjunction(_two_sided_parts(analysis)), device)
    name = access.name
    if device == "gpu":
        access = ACCESS_METHODS["scan"]
        name, why = _on_device(method, all(_coded_bands(analysis, side, prepared.expr) for side in (0, 1)))
    unit = common_unit(schemas, windows, times)
    of_left, of_right = windows.rules(unit)
    stamps = (_stamps(0, windows), _stamps(1, windows))
    conditions = window_conditions((of_left, of_right), *stamps)
    boundary = conjunction((*conditions, *conjuncts(prepared.expr)))

    def side_spec(side: int) -> SideSpec:
        used = {node: None for node in walk(boundary) if isinstance(node, Column) and node.side == side}
        derived = tuple(
            (column.name, source)
            for column, source in prepared.sources.items()
            if column in used and source != Source(column)
        )
        time = times[side]
        equal = [(e.left, e.right)[side] for e in analysis.equalities]
        bounded = [(b.left, b.right)[side] for b in analysis.bounds]
        return SideSpec(
            side=side, schema=(left, right)[side], derived=derived,
            time=None if time is None else schemas[side].get(time).name,
            filters=(analysis.left_only, analysis.right_only)[side],
            keys=tuple(dict.fromkeys((*equal, *bounded))), columns=tuple(used), stamps=stamps[side],
            hashed=tuple(equal) if access.hashed else (),
            attributes=_attributes(analysis, side)[: access.attributes],
            coded=_coded_bands(analysis, side, boundary) if access.coded else (), tuning=tuning,
        )  # fmt: skip

    return JoinSpec(
        analysis, prepared, windows, (of_left, of_right), unit, name, why, (side_spec(0), side_spec(1)),
        result_schema(left, right, suffix, kind), prepared.expr, boundary, show(on), tuning, kind,
        dated=ordered and kind.pairs == "first",
    )  # fmt: skip


def _prepare(predicate: Expr, device: str) -> Prepared:
    if device != "gpu":
        return prepare(predicate)
    from handshake.kernels.gpu.exact import compiles

    prepared = prepare(predicate, compiles)
    if all(isinstance(part, Call) and part.name == "maybe" for part in conjuncts(prepared.expr)):
        raise UnsupportedError(
            f"a GPU cannot decide any condition of {show(predicate)}, so every pair would be tested on the "
            'host; use device="cpu"'
        )
    return prepared


def _on_device(asked: str, banded: bool) -> tuple[str, str]:
    """Return the access method on a GPU, and why."""
    if asked == "hash" or (asked == "band" and not banded):
        raise UnsupportedError(
            f"a GPU has an index for bands on two plain numbers alone, and method '{asked}' was given; "
            "use auto or scan"
        )
    if asked == "scan" or not banded:
        return "scan", "a GPU compares all pairs"
    return "band", "bands on two plain numbers"


def check_columns(schemas: tuple[Schema, ...]) -> None:
    """Raise `SchemaError` if a column may be taken for a hidden one."""
    for schema in schemas:
        if any(name.startswith(HIDDEN) for name in schema.names):
            raise SchemaError(f"a column name of the {schema.stream} input begins with a NUL; rename it")


def _two_sided_parts(analysis: Analysis) -> tuple[Expr, ...]:
    """Conditions on one side filter its tuples at arrival; the kernels see the others."""
    single = {*analysis.left_only, *analysis.right_only}
    return tuple(part for part in conjuncts(analysis.predicate) if part not in single)


def common_unit(schemas: tuple[Schema, ...], windows: Windows, times: tuple[str | None, ...]) -> str:
    """Return the finest unit of all time columns; raise if the times do not compare."""
    units = []
    _check_zones(schemas, times)
    for schema, time in zip(schemas, times, strict=True):
        if time is None:
            if windows.timed:
                raise WindowError(
                    f"a time window needs a time column, and none is named for the {schema.stream} input; "
                    f"name one of {', '.join(schema.names)} (time=…)"
                )
            continue
        units.append(_unit_of(schema.get(time).type, time, schema.stream))
    return min(units, key=lambda unit: UNITS[unit], default="ns")


def _check_zones(schemas: tuple[Schema, ...], times: tuple[str | None, ...]) -> None:
    """Instants and wall-clock readings do not compare."""
    kinds = [s.get(t).type for s, t in zip(schemas, times, strict=True) if t is not None]
    zoned = [k for k in kinds if isinstance(k, Timestamp) and k.zone is not None]
    naive = [k for k in kinds if isinstance(k, Date) or (isinstance(k, Timestamp) and k.zone is None)]
    if zoned and naive:
        raise SchemaError(
            f"the time columns do not compare: one is {zoned[0]}, the other {naive[0]} without a zone; "
            "give both a zone, or neither"
        )


def _unit_of(kind: Type, name: str, stream: str) -> str:
    unit = unit_of_times(kind)
    if unit is not None:
        return unit
    raise SchemaError(
        f"column '{name}' of the {stream} input is {kind}, which is not a time; "
        "a timestamp, a date or a number of seconds is"
    )


def _stamps(side: int, windows: Windows) -> Stamps:
    """Return the columns of one side that the rules of the right window and of the left one read."""
    names = [
        None if window is None else HIDDEN + (window.held if own == side else window.asked)
        for own, window in ((1, windows.right), (0, windows.left))
    ]
    return Stamps(*(None if name is None else Column(side, name, type=INT64) for name in names))


def window_conditions(rules: Rules, left: Stamps, right: Stamps) -> Iterator[Expr]:
    """Return the rules of both windows as conditions: a stamp of the right side against one of the left."""
    of_left, of_right = rules
    if of_right is not None and left.first is not None and right.first is not None:
        yield _within(">=", right.first, "-", left.first, of_right)
    if of_left is not None and left.second is not None and right.second is not None:
        yield _within("<=", right.second, "+", left.second, of_left)


def _within(op: str, right: Column, sign: str, left: Column, rule: Rule) -> Expr:
    limit = Arithmetic(sign, left, Literal(rule.reach, type=INT64), type=INT64)
    return Compare(op, right, limit, type=BOOL)


def _attributes(analysis: Analysis, side: int) -> tuple[Attribute, ...]:
    """Return the expressions of this side that have bounds; two-sided ones first."""
    groups: dict[Expr, list[tuple[Expr, Bound]]] = {}
    for bound in analysis.bounds:
        inner, outer = (bound.left, bound.right) if side == 0 else (bound.right, bound.left)
        groups.setdefault(inner, []).append((outer, bound))
    found = [Attribute(inner, tuple(limits)) for inner, limits in groups.items()]
    return tuple(sorted(found, key=lambda attribute: not attribute.two_sided))


def _coded_bands(analysis: Analysis, side: int, compiled: Expr) -> tuple[Attribute, ...]:
    """Return two bands on plain numbers, or none: by one band alone, too many blocks would pass."""
    columns = {node for node in walk(compiled) if isinstance(node, Column)}
    found = [a for a in _attributes(analysis, side) if a.two_sided and _can_be_coded(a, columns)]
    return tuple(found[:2]) if len(found) > 1 else ()


def _can_be_coded(attribute: Attribute, columns: set[Column]) -> bool:
    outer = {expr for expr, _ in attribute.limits}
    plain = all(
        isinstance(e, Column) and e in columns and _is_plain_number(e.type) for e in (attribute.inner, *outer)
    )
    return plain and len(outer) == 1 and all(abs(b.offset) < 2**62 for _, b in attribute.limits)


def _is_plain_number(kind: Type) -> bool:
    return isinstance(kind, Float) or (isinstance(kind, Int) and (kind.signed or kind.bits < 64))


def result_schema(left: pa.Schema, right: pa.Schema, suffix: str, kind: JoinKind) -> pa.Schema:
    """Return the columns of results; those of a side that may be missing are nullable."""
    if not all(kind.shown):
        return left if kind.shown[0] else right
    names = joined_names(left.names, right.names, suffix)
    mine = (_nullable(field, kind.preserved[1]) for field in left)
    theirs = (_nullable(field, kind.preserved[0]) for field in right)
    return pa.schema([f.with_name(name) for f, name in zip((*mine, *theirs), names, strict=True)])


def _nullable(field: pa.Field, may_miss: bool) -> pa.Field:
    return field.with_nullable(True) if may_miss and not field.nullable else field


def explain_unmatched(spec: JoinSpec) -> Iterator[str]:
    """Describe when rows without a match are results."""
    for name, window, preserved in zip(SIDES, spec.windows, spec.kind.preserved, strict=True):
        if preserved:
            end = "at the end of the input" if window is None else f"when they have left {window}"
            yield f"unmatched   {name} rows come {end}; those that can match nothing come at once"


def _explain(spec: JoinSpec) -> Iterator[str]:
    yield f"join on     {spec.text}"
    if spec.kind != INNER:
        yield f"kind        {spec.kind.name}: {spec.kind.help}"
    yield f"windows     {spec.windows}"
    yield f"method      {spec.method}: {spec.why}"
    for line in describe(spec.analysis):
        yield f"  {line}"
    for part in spec.prepared.doubtful:
        yield f"checked     {show(part)} on candidate pairs, in Arrow batches"
    for side in spec.sides:
        name = SIDES[side.side]
        for _, source in side.derived:
            yield f"derived     {source.form} of {show(source.expr)}, once per {name} tuple"
        if side.attributes or side.hashed:
            yield f"{name + ' index':<11} {_index_text(side)}"


def _index_text(side: SideSpec) -> str:
    parts = []
    if side.hashed:
        parts.append("hash of " + ", ".join(show(e) for e in side.hashed))
    parts += [f"{'band' if a.two_sided else 'order'} on {show(a.inner)}" for a in side.attributes]
    return ", then ".join(parts)
