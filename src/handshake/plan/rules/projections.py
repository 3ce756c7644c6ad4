"""Projection push-down: unread columns are not computed, stored in windows, or joined."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from handshake.plan import algebra
from handshake.plan.algebra import Node, reads, rebuild, walk
from handshake.plan.assemble import keep_columns
from handshake.plan.expr import Column
from handshake.plan.expr import walk as walk_expr
from handshake.schema import Schema

Names = frozenset[str]


def push_down_projections(node: Node) -> Node:
    """Remove unread columns, from the result down."""
    assert isinstance(node, algebra.Output)
    return replace(node, input=_prune(node.input, frozenset(node.schema.names)))


@singledispatch
def _prune(node: Node, needed: Names) -> Node:
    """Return a plan with at least the needed columns, in their old order."""
    return node


@_prune.register
def _(node: algebra.Project, needed: Names) -> Node:
    columns = tuple((new, old) for new, old in node.columns if new in needed) or node.columns[:1]
    below = _prune(node.input, frozenset(old for _, old in columns))
    if isinstance(below, algebra.Project):
        inner = dict(below.columns)
        columns, below = tuple((new, inner[old]) for new, old in columns), below.input
    same = tuple((name, name) for name in below.schema.names)
    return below if columns == same else algebra.Project(below, columns)


@_prune.register
def _(node: algebra.Select, needed: Names) -> Node:
    return replace(node, input=_prune(node.input, needed | {node.field}))


@_prune.register
def _(node: algebra.Apply, needed: Names) -> Node:
    if node.name not in needed:
        return _prune(node.input, needed)
    return replace(node, input=_prune(node.input, (needed - {node.name}) | reads(node.operation)))


@_prune.register
def _(node: algebra.Union, needed: Names) -> Node:
    return algebra.Union(tuple(_exactly(child, needed) for child in node.inputs))


@_prune.register
def _(node: algebra.WindowJoin, needed: Names) -> Node:
    read: list[set[str]] = [set() for _ in node.inputs]
    for e in walk_expr(node.on):
        if isinstance(e, Column):
            read[e.side].add(e.name)
    if node.match:  # the columns of right rows decide which one of several at one time is taken
        read[1].update(node.inputs[1].schema.names)
    inputs = []
    for name, child, own in zip(node.names, node.inputs, read, strict=True):
        wanted = own | {f.name for f in child.schema if f"{name}.{f.name}" in needed}
        inputs.append(_exactly(child, frozenset(wanted)))
    return replace(node, inputs=tuple(inputs))


def _exactly(node: Node, needed: Names) -> Node:
    """Return a plan with exactly the needed columns; with its first one, if none is needed."""
    names = [name for name in node.schema.names if name in needed] or [node.schema.names[0]]
    below = _prune(node, frozenset(names))
    if list(below.schema.names) == names:
        return below
    return _prune(keep_columns(below, names), frozenset(names))


@_prune.register
def _(node: algebra.Windowing, needed: Names) -> Node:
    body = _prune(node.body, needed)
    keys = node.window.keys if isinstance(node.window, algebra.Session) else ()
    below = _exactly(node.input, _columns_used(body, node.parameter) | set(keys))
    return replace(node, input=below, body=_set_columns(body, node.parameter, below.schema))


@_prune.register
def _(node: algebra.Group, needed: Names) -> Node:
    body = _prune(node.body, needed)
    used = _columns_used(body, node.parameter) | set(node.keys)
    below = _prune(node.input, frozenset(used))
    return replace(node, input=below, body=_set_columns(body, node.parameter, below.schema))


def _set_columns(body: Node, parameter: str, schema: Schema) -> Node:
    """Give the parameter of a sub-plan other columns."""

    def put(node: Node) -> Node:
        if isinstance(node, algebra.Parameter) and node.name == parameter:
            return replace(node, fields=Schema(schema.fields, node.fields.stream))
        return node

    changed = rebuild(body, put)
    return rebuild(changed, _refresh_groups)


def _refresh_groups(node: Node) -> Node:
    """Update the columns of parameters inside groups."""
    if isinstance(node, algebra.Group):
        wanted = node.input.schema.fields
        own = [leaf for leaf in walk(node.body) if isinstance(leaf, algebra.Parameter)]
        if any(leaf.name == node.parameter and leaf.fields.fields != wanted for leaf in own):
            return replace(node, body=_set_columns(node.body, node.parameter, node.input.schema))
    return node


def _columns_used(body: Node, parameter: str) -> Names:
    """Return the columns of the parameter that a sub-plan reads."""
    return _columns_read(body, frozenset(body.schema.names), parameter)


def _columns_read(node: Node, needed: Names, parameter: str) -> Names:
    match node:
        case algebra.Parameter(name=name):
            return needed if name == parameter else frozenset()
        case algebra.Project(input=below, columns=columns):
            return _columns_read(below, frozenset(old for _, old in columns), parameter)
        case algebra.Select(input=below, field=field):
            return _columns_read(below, needed | {field}, parameter)
        case algebra.Apply(input=below, name=name, operation=operation):
            return _columns_read(below, (needed - {name}) | reads(operation), parameter)
        case algebra.Aggregate(input=below):
            return _columns_read(below, node.reads, parameter)
        case algebra.Concat(inputs=inputs):
            return frozenset().union(*(_columns_read(i, needed, parameter) for i in inputs))
        case algebra.Group(input=below, body=body, keys=keys, parameter=inner):
            own = _columns_read(body, needed - set(keys), inner) | set(keys)
            return _columns_read(below, frozenset(own), parameter) | _columns_read(
                body, needed - set(keys), parameter
            )
    return needed


@_prune.register
def _(node: algebra.Concat, needed: Names) -> Node:
    wanted = [child for child in node.inputs if needed & set(child.schema.names)] or [node.inputs[0]]
    made = _side_by_side([child for child in wanted if isinstance(child, algebra.Aggregate)])
    if len(made) < len(wanted):
        made = tuple(_prune(child, needed) for child in wanted)
    return made[0] if len(made) == 1 else algebra.Concat(made)


def _side_by_side(aggregates: list[algebra.Aggregate]) -> tuple[Node, ...]:
    """Prune the common input of aggregates once, to the columns that any of them needs."""
    fields: dict[Node, set[str]] = {}
    for aggregate in aggregates:
        fields.setdefault(aggregate.input, set()).update(aggregate.reads)
    inputs = {below: _prune(below, frozenset(names)) for below, names in fields.items()}
    return tuple(replace(aggregate, input=inputs[aggregate.input]) for aggregate in aggregates)


@_prune.register
def _(node: algebra.Aggregate, needed: Names) -> Node:
    return replace(node, input=_prune(node.input, node.reads))
