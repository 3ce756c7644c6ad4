"""Predicate push-down: rows are filtered as early as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import Any

from handshake.kinds import INNER
from handshake.plan import algebra
from handshake.plan import expr as tree
from handshake.plan.algebra import Node, chain, rebuild
from handshake.plan.assemble import Fresh, add_filter, column_of, keep_columns, substitute
from handshake.plan.expr import Expr, columns_of, conjunction, conjuncts, sides, transform
from handshake.schema import BOOL


def push_down_filters(node: Node) -> Node:
    """Move selections below operators that do not need the rows that they drop."""
    return rebuild(node, _push)


def _push(node: Node) -> Node:
    match node:
        case algebra.Select(input=below, field=field):
            return _sink(below, column_of(below, field))
        case algebra.WindowJoin():
            return _into_inputs(node)
        case algebra.Windowing():
            return _out_of_window(node)
    return node


def _put_here(node: Node, condition: Expr) -> Node:
    """Put a condition right above a plan and keep its columns."""
    names = node.schema.names
    made = add_filter(node, condition, Fresh(names))
    return made if made.schema.names == names else keep_columns(made, names)


@singledispatch
def _sink(node: Any, condition: Expr) -> Node:
    """Push a condition into a plan as far down as it may go."""
    return _put_here(node, condition)


@_sink.register
def _(node: algebra.Project, condition: Expr) -> Node:
    names = {new: column_of(node.input, old) for new, old in node.columns}
    return replace(node, input=_sink(node.input, substitute(condition, dict(names))))


@_sink.register
def _(node: algebra.Apply, condition: Expr) -> Node:
    below = substitute(condition, {node.name: node.operation})
    if isinstance(below, tree.Literal):
        return node if below.value is True else _put_here(node, condition)
    return replace(node, input=_sink(node.input, below))


@_sink.register
def _(node: algebra.Select, condition: Expr) -> Node:
    return replace(node, input=_sink(node.input, condition))


@_sink.register
def _(node: algebra.Union, condition: Expr) -> Node:
    return algebra.Union(tuple(_sink(child, condition) for child in node.inputs))


@_sink.register
def _(node: algebra.Windowing, condition: Expr) -> Node:
    """Filter the results inside the window."""
    return _out_of_window(replace(node, body=_sink(node.body, condition)))


@_sink.register
def _(node: algebra.Group, condition: Expr) -> Node:
    """Push conditions on keys below the grouping."""
    on_keys, others = list[Expr](), list[Expr]()
    for part in conjuncts(condition):
        read = {column.name for column in columns_of(part)}
        (on_keys if read and read <= set(node.keys) else others).append(part)
    if not on_keys:
        return _put_here(node, condition)
    group = replace(node, input=_sink(node.input, conjunction(tuple(on_keys))))
    return _put_here(group, conjunction(tuple(others))) if others else group


@_sink.register
def _(node: algebra.WindowJoin, condition: Expr) -> Node:
    """Add the condition to that of an inner join; of others, push parts on a side that is never NULL."""
    if node.kind != INNER:
        return _below_kind(node, condition)
    on = transform(condition, _read_inputs(node))
    parts = (*conjuncts(node.on), *conjuncts(on))
    wanted = tuple(part for part in parts if not (isinstance(part, tree.Literal) and part.value is True))
    return _into_inputs(replace(node, on=conjunction(wanted)))


def _below_kind(node: algebra.WindowJoin, condition: Expr) -> Node:
    """Push parts of a condition below a join that is not an inner join.

    Dropping a row before the join, instead of its results, is the same if every result has such a row: so
    rows of the other side must not be preserved. Right rows of an as-of join stay: without one of them, a
    left row would take another.
    """
    inputs, staying = list(node.inputs), []
    for part in conjuncts(condition):
        on = transform(part, _read_inputs(node))
        side = next(iter(sides(on)), 0)
        movable = not node.kind.preserved[1 - side] and not _counts(node, side) and not (node.match and side)
        if len(sides(on)) == 1 and movable:
            inputs[side] = _sink(inputs[side], _alone(on))
        else:
            staying.append(part)
    below = replace(node, inputs=tuple(inputs)) if len(staying) < len(conjuncts(condition)) else node
    return _put_here(below, conjunction(tuple(staying))) if staying else below


def _read_inputs(node: algebra.WindowJoin) -> Callable[[Expr], Expr]:
    """Return the function that turns columns of results into those of inputs."""
    names = {
        f"{name}.{f.name}": tree.Column(side, f.name, type=f.type, shown=f"{name}.{f.name}")
        for side, (name, child) in enumerate(zip(node.names, node.inputs, strict=True))
        for f in child.schema
    }
    return lambda e: names[e.name] if isinstance(e, tree.Column) else e


def _counts(node: algebra.WindowJoin, side: int) -> bool:
    """Return whether the window of a side counts rows, also those that a filter would drop."""
    window = node.windows[side]
    return window is not None and window.counted


def _into_inputs(node: algebra.WindowJoin) -> Node:
    """Push conditions on one input below the join.

    They stay if a tuple window counts the dropped rows, and if rows without a match are results: there, the
    condition says which rows match.
    """
    inputs = list(node.inputs)
    staying = []
    for part in conjuncts(node.on):
        read = sides(part)
        side = min(read, default=0)
        if (
            len(read) == 1
            and not _counts(node, side)
            and not (node.kind.preserves and node.kind.preserved[side])
        ):
            inputs[side] = _sink(inputs[side], _alone(part))
        else:
            staying.append(part)
    if len(staying) == len(conjuncts(node.on)):
        return node
    on = conjunction(tuple(staying)) if staying else tree.Literal(True, type=BOOL)
    return replace(node, inputs=tuple(inputs), on=on)


def _alone(expr: Expr) -> Expr:
    return transform(expr, lambda e: replace(e, side=0) if isinstance(e, tree.Column) else e)


def _out_of_window(node: algebra.Windowing) -> Node:
    """Push a filter below a time window if empty windows produce no row."""
    if (
        not isinstance(node.window, algebra.Sliding)
        or node.window.kind != "time"
        or node.window.offset is None
    ):
        return node  # these windows depend on the rows that the filter drops
    body, above = chain(node.body)
    if isinstance(body, algebra.Group):
        condition, before = _lift(body.input)
        made: Node = replace(body, input=before)
    elif isinstance(body, algebra.Parameter) and above:
        condition, made = _lift(node.body)
        above = []
    else:
        return node
    if condition is None:
        return node
    for step in above:
        made = step.with_children((made,))
    return replace(node, input=_sink(node.input, condition), body=made)


def _lift(node: Node) -> tuple[Expr | None, Node]:
    """Return the conditions of a chain in terms of the window's rows, and the chain without selections."""
    if not isinstance(node, (algebra.Project, algebra.Select, algebra.Apply)):
        return None, node
    condition, below = _lift(node.input)
    if isinstance(node, algebra.Select):
        own = _in_terms(node.input, node.field)
        if own is not None:
            return own if condition is None else conjunction((*conjuncts(condition), *conjuncts(own))), below
    return condition, node.with_children((below,))


def _in_terms(node: Node, name: str) -> Expr | None:
    """Express a column of a chain by the columns of the parameter below it."""
    expr: Expr = column_of(node, name)
    while not isinstance(node, algebra.Parameter):
        match node:
            case algebra.Apply(input=below, name=called, operation=operation):
                expr = substitute(expr, {called: operation})
            case algebra.Project(input=below, columns=columns):
                names = {new: column_of(below, old) for new, old in columns}
                expr = substitute(expr, dict(names))
            case algebra.Select(input=below):
                pass
            case _:
                return None
        node = below
    return expr
