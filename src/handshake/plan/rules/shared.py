"""Common sub-expressions are computed once."""

from __future__ import annotations

from dataclasses import replace

from handshake.plan.algebra import Apply, Node, Project, Select, rebuild
from handshake.plan.expr import Column, Expr


def share_expressions(node: Node) -> Node:
    """Replace an operation that an earlier column holds by a second name for that column."""
    return rebuild(node, _share)


def _share(node: Node) -> Node:
    if not isinstance(node, Apply):
        return node
    known, same = known_operations(node.input)
    operation = _rename(node.operation, same)
    found = known.get(operation)
    types = {f.name: f.type for f in node.input.schema}
    if found is None or types[found] != node.type:
        return node
    columns = (*((name, name) for name in node.input.schema.names), (node.name, found))
    return Project(node.input, columns)


def _rename(operation: Expr, same: dict[str, str]) -> Expr:
    if not same:
        return operation
    operands = tuple(
        replace(child, name=same.get(child.name, child.name)) if isinstance(child, Column) else child
        for child in operation.children
    )
    return operation.with_children(operands) if operands else operation


def known_operations(node: Node) -> tuple[dict[Expr, str], dict[str, str]]:
    """Return the operations that columns hold, and the columns that copy earlier ones."""
    match node:
        case Apply(input=below, name=name, operation=operation):
            known, same = known_operations(below)
            return {**known, _rename(operation, same): name}, same
        case Select(input=below):
            return known_operations(below)
        case Project(input=below, columns=columns):
            return _through(columns, *known_operations(below))
    return {}, {}


def _through(
    columns: tuple[tuple[str, str], ...], known: dict[Expr, str], same: dict[str, str]
) -> tuple[dict[Expr, str], dict[str, str]]:
    """Rename known operations and copies by the columns of a projection."""
    first: dict[str, str] = {}
    copies: dict[str, str] = {}
    for new, old in columns:
        origin = same.get(old, old)
        if origin in first:
            copies[new] = first[origin]
        else:
            first[origin] = new
    kept = {}
    for operation, name in known.items():
        reads = [child.name for child in operation.children if isinstance(child, Column)]
        if name in first and all(read in first for read in reads):
            kept[_rename(operation, first)] = first[name]
    return kept, copies
