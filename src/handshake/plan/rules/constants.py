"""Constant folding: constants replace columns that hold them, and true conditions are dropped."""

from __future__ import annotations

from dataclasses import replace

from handshake.plan.algebra import Apply, Node, Project, Select, rebuild
from handshake.plan.expr import Column, Expr, Literal
from handshake.plan.fold import fold_node
from handshake.schema import Decimal, Int, Type


def fold_constants(node: Node) -> Node:
    """Compute expressions of constants."""
    return rebuild(node, _fold)


def _fold(node: Node) -> Node:
    if isinstance(node, Apply):
        return _apply(node)
    if isinstance(node, Select):
        constant = constants(node.input).get(node.field)
        if constant is not None and constant.value is True:
            return node.input
    return node


def _apply(node: Apply) -> Node:
    known = constants(node.input)
    operands = tuple(_constant(child, known) for child in node.operation.children)
    if operands == node.operation.children:
        return node
    operation = node.operation.with_children(operands)
    folded = fold_node(operation)
    return replace(node, operation=folded if _one_step(folded) else operation)


def _constant(operand: Expr, known: dict[str, Literal]) -> Expr:
    found = known.get(operand.name) if isinstance(operand, Column) else None
    return found if found is not None and _can_replace(found.type, operand.type) else operand


def _can_replace(constant: Type, column: Type) -> bool:
    """Return whether a constant can replace the column that holds it."""
    match constant, column:
        case Int(), Int():
            return True
        case Decimal(scale=x), Decimal(scale=y):
            return x == y
    return constant == column


def _one_step(expr: Expr) -> bool:
    """Return whether an expression is a constant, or an operation on columns and constants."""
    return isinstance(expr, Literal) or (
        bool(expr.children) and all(isinstance(child, (Column, Literal)) for child in expr.children)
    )


def constants(node: Node) -> dict[str, Literal]:
    """Return the columns of a plan's results that always hold the same constant."""
    match node:
        case Apply(input=below, name=name, operation=operation):
            known = constants(below)
            return {**known, name: operation} if isinstance(operation, Literal) else known
        case Select(input=below):
            return constants(below)
        case Project(input=below, columns=columns):
            known = constants(below)
            return {new: known[old] for new, old in columns if old in known}
    return {}
