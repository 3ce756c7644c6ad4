"""Plans whose joins are reduced on a GPU: aggregates of windows over a join, with what they read of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from handshake.errors import UnsupportedError
from handshake.kernels.reduction import Word
from handshake.kinds import INNER
from handshake.operators.aggregates import State, state_of
from handshake.operators.extremes import Extreme
from handshake.operators.pipeline import held_column
from handshake.operators.sums import Sum
from handshake.plan.aggregates import BOUNDS
from handshake.plan.algebra import (
    Apply,
    Clock,
    Node,
    Plan,
    Project,
    Select,
    Sliding,
    Windowing,
    WindowJoin,
    chain,
    rebuild,
    walk,
)
from handshake.plan.assemble import substitute
from handshake.plan.explain import label
from handshake.plan.expr import (
    Column,
    Expr,
    IsNull,
    Literal,
    Not,
    conjunction,
    conjuncts,
    show,
    sides,
    transform,
)
from handshake.plan.panes import PaneShape, pane_shape
from handshake.schema import BOOL, NULL, Float, Int, Schema, arrow_of

_TRUE = Literal(True, type=BOOL)
_UNSIGNED = Int(64, signed=False)
_ADVICE = (
    'device="gpu" runs a single join of two inputs, and windows of time with count, sum, avg, min, max, any '
    "or every over an inner join of two streams with windows of time"
)


@dataclass(frozen=True)
class Key:
    """A key of the groups: an expression on one side."""

    name: str
    side: int
    value: Expr


@dataclass(frozen=True)
class ReducedJoin(Node):
    """A join whose pairs are reduced where they are found. Its results are states of panes.

    Columns in expressions are called `stream.column`, as in the results of the join.
    """

    input: Node
    """The join with the steps above it, as planned."""
    join: WindowJoin
    """The join, with the selections of these steps in its condition."""
    window: Sliding
    keys: tuple[Key, ...]
    counted: Expr
    """The pairs that aggregates read; windows without groups open with the others, too."""
    arguments: tuple[tuple[str, Expr], ...]
    """The values of pairs that aggregates read, by name."""
    shape: PaneShape

    @property
    def schema(self) -> Schema:
        return self.input.schema

    @property
    def clock(self) -> Clock:
        return self.input.clock

    @property
    def children(self) -> tuple[Node, ...]:
        return self.join.inputs

    def words(self) -> list[list[Word]]:
        """Return the words of each aggregate."""
        made = [aggregate for aggregate in self.shape.aggregates if aggregate.function not in BOUNDS]
        return [self._words(state_of(aggregate)) for aggregate in made]

    def all_words(self) -> list[Word]:
        """Return the number of all pairs, then the words of aggregates, each once."""
        return list(dict.fromkeys([Word(_TRUE), *(word for words in self.words() for word in words)]))

    def _words(self, state: State) -> list[Word]:
        aggregate, known = state.aggregate, dict(self.arguments)
        values, name = [known[field] for field in aggregate.fields], aggregate.function
        where = [*conjuncts(self.counted), *([] if aggregate.where is None else [known[aggregate.where]])]
        if name == "count_if":
            return [Word(_all((*where, *values)))]
        counts = Word(_all([*where, *(Not(IsNull(value, type=BOOL), type=BOOL) for value in values)]))
        if name == "count":
            return [counts]
        if name in ("sum", "avg") and isinstance(state, Sum) and not isinstance(state.argument, Float):
            limbs = state.extra_width()
            return [counts, *(Word(counts.where, values[0], limb, limbs) for limb in range(limbs))]
        if name in ("min", "max", "any", "every") and isinstance(state, Extreme) and state.compiled:
            unsigned = arrow_of(state.type) == arrow_of(_UNSIGNED)
            return [counts, Word(counts.where, values[0], down=state.down, unsigned=unsigned)]
        kinds = ", ".join(str(aggregate.input.schema.get(field).type) for field in aggregate.fields)
        raise UnsupportedError(f'{_ADVICE}; {name}() of {kinds} is for device="cpu"')


def _all(conditions: Sequence[Expr]) -> Expr:
    return conjunction(tuple(c for c in dict.fromkeys(conditions) if c != _TRUE))


@label.register
def _(node: ReducedJoin) -> str:
    keys = f" by {', '.join(key.name for key in node.keys)}" if node.keys else ""
    return f"{label(node.join)}, reduced{keys} on the GPU"


def reduce_joins(plan: Plan) -> Plan:
    """Return the plan with all its joins reduced; raise `UnsupportedError` if one cannot be."""
    reduced = plan.map(lambda node: rebuild(node, _reduce))
    nodes = [node for output in reduced.outputs for node in walk(output)]
    if any(isinstance(node, WindowJoin) for node in nodes):
        raise UnsupportedError(f'{_ADVICE}; here pairs are results, or go on: use device="cpu"')
    if not any(isinstance(node, ReducedJoin) for node in nodes):
        raise UnsupportedError(f'{_ADVICE}; this query has no join: use device="cpu"')
    return reduced


def _reduce(node: Node) -> Node:
    if not isinstance(node, Windowing):
        return node
    join, above = chain(node.input)
    if not isinstance(join, WindowJoin):
        return node
    shape = pane_shape(node.body, node.parameter)
    reason = _reason(node, join, shape)
    if reason is not None or shape is None or not isinstance(node.window, Sliding):
        raise UnsupportedError(f'{_ADVICE}; {reason}: use device="cpu"')
    columns = {
        f"{name}.{f.name}": replace(held_column(f"{name}.{f.name}", f.type, side), shown=f"{name}.{f.name}")
        for side, (name, child) in enumerate(zip(join.names, join.inputs, strict=True))
        for f in child.schema
    }
    known, outer = _unroll(above, dict(columns))
    known, inner = _unroll(chain(shape.before)[1], known)
    keys = tuple(_key(key, known[key]) for key in shape.keys or ())
    within = outer if shape.keys is None else [*outer, *inner]
    counted = _all(inner) if shape.keys is None else _TRUE
    on = conjunction((*conjuncts(join.on), *(_rename(condition, join) for condition in within)))
    read = sorted({name for aggregate in shape.aggregates for name in aggregate.reads})
    arguments = tuple((name, known[name]) for name in read)
    reduced = ReducedJoin(node.input, replace(join, on=on), node.window, keys, counted, arguments, shape)
    reduced.words()  # raises if an aggregate is none for a GPU
    return replace(node, input=reduced)


def _reason(node: Windowing, join: WindowJoin, shape: PaneShape | None) -> str | None:
    """Return why a join cannot be reduced; None if it can."""
    if len(join.inputs) != 2 or join.kind != INNER or join.match:
        return f"this is {join.called} of {' and '.join(join.names)}"
    if not all(window is not None and window.timed for window in join.windows):
        return f"{' and '.join(join.names)} have windows of tuples, or none"
    if not isinstance(node.window, Sliding) or node.window.kind != "time" or node.window.offset is None:
        return f"the window above the join is {node.window}"
    if shape is None:
        return "aggregates with DISTINCT, and those that need all pairs of a window,"
    return None


def _unroll(nodes: Sequence[Node], known: dict[str, Expr]) -> tuple[dict[str, Expr], list[Expr]]:
    """Return the columns behind some steps as expressions, and the conditions of selections."""
    conditions: list[Expr] = []
    for node in nodes:
        match node:
            case Apply(name=name, operation=operation, type=kind):
                value = substitute(operation, known)
                unknown = value.type == NULL and kind == BOOL
                known = {**known, name: Literal(None, type=BOOL) if unknown else value}
            case Select(field=field):
                conditions += conjuncts(known[field])
            case Project(columns=columns):
                known = {new: known[old] for new, old in columns}
    return known, conditions


def _rename(condition: Expr, join: WindowJoin) -> Expr:
    """Return a condition with the names that columns have in the inputs."""

    def rename(e: Expr) -> Expr:
        return replace(e, name=e.name[len(join.names[e.side]) + 1 :]) if isinstance(e, Column) else e

    return transform(condition, rename)


def _key(name: str, value: Expr) -> Key:
    if len(read := sides(value)) > 1:
        raise UnsupportedError(
            f"{_ADVICE}; GROUP BY {show(value)} reads both streams: group by columns of each, or use "
            'device="cpu"'
        )
    return Key(name, next(iter(read), 0), value)
