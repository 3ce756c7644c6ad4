"""Binding: resolves names to columns and gives every node a type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import pyarrow as pa

from handshake.errors import ExpressionError, suggest
from handshake.plan import expr as tree
from handshake.plan.calendar import read_timestamp
from handshake.plan.expr import UNBOUND, Expr, check_size, show, walk
from handshake.plan.fold import fold, fold_node
from handshake.plan.functions.registry import bind_call
from handshake.plan.types import coerce, common, fail, is_boolean, literal_of, remedy, unify
from handshake.schema import (
    BOOL,
    DATE,
    FLOAT64,
    INT64,
    NULL,
    STRING,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    Months,
    Null,
    Opaque,
    Schema,
    String,
    TimeOfDay,
    Timestamp,
    Type,
    finest_unit,
    type_from_arrow,
)


@dataclass(frozen=True)
class Scope:
    """The meaning of names: which qualifier is which side, and the columns of each side."""

    schemas: tuple[Schema, ...]
    qualifiers: Mapping[str, int]

    @classmethod
    def of(cls, left: Schema, right: Schema, aliases: tuple[str, str] | None = None) -> Scope:
        """Return the scope of a two-way join: `l` and `r`, and aliases if given."""
        names = {"l": 0, "r": 1, "left": 0, "right": 1}
        if aliases is not None:
            given: Any = aliases  # of any type, if a caller is not typed
            two = isinstance(given, (tuple, list)) and [type(name) for name in given] == [str, str]
            if not two or given[0] == given[1]:
                raise ExpressionError(f"aliases are two different names, left and right, not {aliases!r}")
            # They win over l and r, so that a self-join may call its sides what it likes.
            names = {k: v for k, v in names.items() if k not in aliases} | {aliases[0]: 0, aliases[1]: 1}
        return cls((left, right), names)

    def resolve(self, name: tree.Name) -> tree.Column:
        """Return the column that a name stands for."""
        column, fields = self.resolve_path(name)
        if fields:
            raise fail(f"'{show(name)}' is a field of a column, and a column is needed here", name)
        return column

    def resolve_path(self, name: tree.Name) -> tuple[tree.Column, tuple[str, ...]]:
        """Return the column that a name begins with, and the fields below it."""
        first, *rest = name.parts
        if not rest:
            return self._find_unqualified(name), ()
        side = self.qualifiers.get(first, self.qualifiers.get(first.lower()))
        if side is not None:
            return self._column(side, rest[0], replace(name, parts=name.parts[:2])), tuple(rest[1:])
        if any(isinstance(f.type, Opaque) for s in self.schemas if (f := s.find(first)) is not None):
            return self._find_unqualified(replace(name, parts=(first,))), tuple(rest)
        known = ", ".join(self.qualifiers)
        raise fail(f"no input '{first}' ({known}){suggest(first, self.qualifiers)}", name)

    def _column(self, side: int, column: str, name: tree.Name) -> tree.Column:
        schema = self.schemas[side]
        field = schema.find(column)
        if field is None:
            columns = ", ".join(schema.names)
            hint = suggest(column, schema.names)
            raise fail(f"no column '{column}' in the {schema.stream} input ({columns}){hint}", name)
        return tree.Column(side, field.name, type=field.type, at=name.at)

    def _find_unqualified(self, name: tree.Name) -> tree.Column:
        found = [side for side, schema in enumerate(self.schemas) if schema.find(name.parts[0])]
        if len(found) == 1:
            return self._column(found[0], name.parts[0], name)
        if found:
            raise fail(f"column '{name.parts[0]}' is in both inputs; write l. or r. before it", name)
        columns = [column for schema in self.schemas for column in schema.names]
        raise fail(f"no column '{name.parts[0]}'{suggest(name.parts[0], columns)}", name)


def bind(expr: Expr, scope: Scope) -> Expr:
    """Resolve, type and fold a predicate; it must be a condition.

    A predicate that is bound already stays as it is.
    """
    check_size(expr)
    bound = expr if _is_bound(expr) else bind_value(expr, scope)
    if not is_boolean(bound.type):
        raise fail(
            f"the predicate must be true or false, but {show(expr)} is {bound.type}; "
            "compare it with something", expr
        )  # fmt: skip
    return coerce(bound, BOOL)


def bind_value(expr: Expr, scope: Scope) -> Expr:
    """Resolve, type and fold an expression of any type."""
    check_size(expr)
    try:
        return fold(_operand(expr, scope))
    except RecursionError:
        raise ExpressionError("the expression is nested too deeply; take it apart") from None


def _is_bound(expr: Expr) -> bool:
    """Return true if all nodes have types; binding such a tree again could refuse casts that binding adds."""
    nodes = list(walk(expr))
    reads = any(isinstance(node, tree.Column) for node in nodes)
    return reads and all(node.type != UNBOUND for node in nodes)


def _operand(expr: Expr, scope: Scope) -> Expr:
    """Bind and fold: a constant is computed before it takes the type (and zone) of the other operand."""
    bound = _bind(expr, scope)
    return bound if _casts_an_offset(bound) else fold_node(bound)


def _casts_an_offset(expr: Expr) -> bool:
    """Return whether a constant text with an offset is cast to a timestamp, which is in UTC then.

    It is folded last and binds like a column of texts until then. As a constant it would be read in the zone
    of the column that it meets, although it has been converted to UTC.
    """
    match expr:
        case tree.Cast(arg=tree.Literal(value=str() as text), type=Timestamp()):
            found = read_timestamp(text)
            return found is not None and found[1]
    return False


@singledispatch
def _bind(expr: Expr, scope: Scope) -> Expr:
    raise fail(f"{type(expr).__name__} cannot be bound", expr)


@_bind.register
def _(expr: tree.Name, scope: Scope) -> Expr:
    return _plain_value(_bind_nested(expr, scope), expr)


def _plain_value(bound: Expr, expr: Expr) -> Expr:
    """Return a column, field or element, unless it is nested itself."""
    if isinstance(bound.type, Opaque):
        raise fail(
            f"{show(bound)} is {bound.type}; name a field of a struct, as in s.name, "
            "an element of a list, as in s[0], or a key of a map, as in s['key']",
            expr,
        )
    return tree.Literal(None, type=NULL, at=expr.at) if isinstance(bound.type, Null) else bound


def _bind_nested(expr: Expr, scope: Scope) -> Expr:
    """Bind a column, a field of a struct, an element of a list or a value of a map, which may be nested."""
    match expr:
        case tree.Name():
            column, fields = scope.resolve_path(expr)
            found: Expr = column
            for name in fields:
                found = _step(found, tree.Literal(name, type=STRING), expr)
            return found
        case tree.Call(name="path", args=(owner, key)):
            step = key if isinstance(key.type, String) else _operand(key, scope)
            return _step(_bind_nested(owner, scope), step, expr)
        case tree.Call(name="element_at", args=(owner, key)):
            return _element_at(_bind_nested(owner, scope), _operand(key, scope), expr)
    return _operand(expr, scope)


def _element_at(owner: Expr, key: Expr, expr: Expr) -> Expr:
    """Return a value of a map, or an element of a list counted from 1."""
    arrow = owner.type.arrow if isinstance(owner.type, Opaque) else None
    if arrow is not None and not pa.types.is_map(arrow):
        if not isinstance(key, tree.Literal) or not isinstance(key.value, int) or key.value < 1:
            raise fail("element_at() takes a constant from 1 on; or write xs[i], from 0 on", expr)
        key = replace(key, value=key.value - 1)
    return _step(owner, key, expr)


def _step(owner: Expr, key: Expr, expr: Expr) -> Expr:
    """Return a field, element or value of a nested value; steps below one column are one call."""
    arrow = owner.type.arrow if isinstance(owner.type, Opaque) else None
    found: pa.DataType | None = None
    if arrow is not None and pa.types.is_map(arrow):
        key, found = _map_key(owner, key, arrow, expr), arrow.item_type
    elif isinstance(key, tree.Literal) and isinstance(key.type, String):
        if arrow is not None and pa.types.is_struct(arrow):
            key = _field_name(owner, key, arrow, expr)
            found = arrow.field(key.value).type
    elif arrow is not None and (
        pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)
    ):
        if not isinstance(key.type, (Int, Null)):
            raise fail(f"the number of an element is a whole number, but {show(key)} is {key.type}", expr)
        found = arrow.value_type
    if found is None:
        what = "fields" if isinstance(key.type, String) else "elements"
        raise fail(f"{show(owner)} is {owner.type} and has no {what}", expr)
    args = (*owner.args, key) if isinstance(owner, tree.Call) else (owner, key)
    return tree.Call(args, "path", type=type_from_arrow(found), at=expr.at)


def _field_name(owner: Expr, key: tree.Literal, arrow: pa.DataType, expr: Expr) -> tree.Literal:
    """Return the name of a field of a struct as declared."""
    names = [field.name for field in arrow]
    same = [n for n in names if n == key.value] or [n for n in names if n.casefold() == key.value.casefold()]
    if len(same) != 1:
        hint = suggest(key.value, names)
        raise fail(f"{show(owner)} has no field '{key.value}' ({', '.join(names)}){hint}", expr)
    return replace(key, value=same[0])


def _map_key(owner: Expr, key: Expr, arrow: pa.DataType, expr: Expr) -> Expr:
    """Return the key of a map in the type of its keys."""
    kind = type_from_arrow(arrow.key_type)
    whole = isinstance(kind, Int) and isinstance(key.type, Int)
    if isinstance(kind, Opaque) or not (whole or unify(key, tree.Column(0, "key", type=kind)) == kind):
        raise fail(f"{show(owner)} has keys of type {kind}, but {show(key)} is {key.type}; cast it", expr)
    return coerce(key, kind)


@_bind.register
def _(expr: tree.Column, scope: Scope) -> Expr:
    return expr


@_bind.register
def _(expr: tree.Literal, scope: Scope) -> Expr:
    return expr if expr.type != UNBOUND else literal_of(expr.value, expr)


@_bind.register
def _(expr: tree.Compare, scope: Scope) -> Expr:
    a, b = _operand(expr.left, scope), _operand(expr.right, scope)
    kind = unify(a, b)
    if kind is None:
        hint = remedy(a, b, "cast one of them")
        raise fail(f"cannot compare {show(a)} ({a.type}) with {show(b)} ({b.type}); {hint}", expr)
    return tree.Compare(expr.op, coerce(a, kind), coerce(b, kind), type=BOOL, at=expr.at)


@_bind.register(tree.And)
@_bind.register(tree.Or)
def _(expr: tree.And | tree.Or, scope: Scope) -> Expr:
    return replace(expr, args=tuple(_condition(arg, scope) for arg in expr.args), type=BOOL)


@_bind.register
def _(expr: tree.Not, scope: Scope) -> Expr:
    return tree.Not(_condition(expr.arg, scope), type=BOOL, at=expr.at)


def _condition(expr: Expr, scope: Scope) -> Expr:
    bound = _operand(expr, scope)
    if not is_boolean(bound.type):
        raise fail(f"a condition is needed here, but {show(bound)} is {bound.type}", expr)
    return coerce(bound, BOOL)


@_bind.register
def _(expr: tree.IsNull, scope: Scope) -> Expr:
    return tree.IsNull(_operand(expr.arg, scope), type=BOOL, at=expr.at)


@_bind.register
def _(expr: tree.Negate, scope: Scope) -> Expr:
    arg = _operand(expr.arg, scope)
    if not isinstance(arg.type, (Int, Decimal, Float, Interval, Months, Null)):
        raise fail(f"cannot negate {show(arg)} ({arg.type})", expr)
    if isinstance(arg, tree.Literal) and arg.value is not None:
        return tree.Literal(-arg.value, type=arg.type, at=expr.at)
    kind = INT64 if isinstance(arg.type, Int) else _without_precision(arg.type)
    return tree.Negate(arg, type=kind, at=expr.at)


@_bind.register
def _(expr: tree.Cast, scope: Scope) -> Expr:
    arg = _operand(expr.arg, scope)
    text = arg.value if isinstance(arg, tree.Literal) and isinstance(arg.type, String) else None
    if not _castable(arg.type, expr.type) and not (text is not None and isinstance(expr.type, TimeOfDay)):
        raise fail(f"cannot cast {show(arg)} ({arg.type}) to {expr.type}", expr)
    if isinstance(arg.type, Date) and isinstance(expr.type, Timestamp):
        return coerce(arg, expr.type)
    if isinstance(arg.type, Timestamp) and isinstance(expr.type, Timestamp):
        return coerce(arg, Timestamp(expr.type.unit, arg.type.zone))
    # Whole numbers outgrow their type in arithmetic, so casting one to its own type may still be NULL.
    bounded = isinstance(arg, (tree.Column, tree.Cast)) or not isinstance(arg.type, Int)
    return arg if arg.type == expr.type and bounded else tree.Cast(arg, type=expr.type, at=expr.at)


_NUMBERS = (Int, Decimal, Float)


def _castable(source: Type, target: Type) -> bool:
    if isinstance(source, Null) or source == target:
        return True
    if isinstance(target, String):
        return isinstance(source, (*_NUMBERS, type(BOOL), Date, Timestamp, String))
    if isinstance(source, String):
        return isinstance(target, (*_NUMBERS, Date, Timestamp, type(BOOL)))
    if isinstance(source, _NUMBERS):
        return isinstance(target, _NUMBERS)
    if isinstance(source, type(BOOL)):
        return isinstance(target, Int)
    if isinstance(source, (Date, Timestamp)):
        return isinstance(target, (Date, Timestamp))
    return isinstance(source, Interval) and isinstance(target, Interval)


@_bind.register
def _(expr: tree.Case, scope: Scope) -> Expr:
    conditions = [_condition(c, scope) for c, _ in expr.pairs]
    values = [_operand(v, scope) for _, v in expr.pairs]
    *values, default = common((*values, _operand(expr.default, scope)), expr)
    branches = tuple(e for pair in zip(conditions, values, strict=True) for e in pair)
    kind = INT64 if isinstance(default.type, Int) else default.type
    return tree.Case(branches, default, type=kind, at=expr.at)


@_bind.register
def _(expr: tree.Call, scope: Scope) -> Expr:
    if expr.name in ("path", "element_at"):
        return _plain_value(_bind_nested(expr, scope), expr)
    return bind_call(expr, tuple(_operand(arg, scope) for arg in expr.args))


@_bind.register
def _(expr: tree.Udf, scope: Scope) -> Expr:
    return replace(expr, args=tuple(_operand(arg, scope) for arg in expr.args))


@_bind.register
def _(expr: tree.Arithmetic, scope: Scope) -> Expr:
    a, b = _operand(expr.left, scope), _operand(expr.right, scope)
    bound = _temporal(expr, a, b) or _numeric(expr, a, b)
    if bound is None:
        hint = "; use || to join texts" if isinstance(a.type, String) and expr.op == "+" else ""
        raise fail(f"cannot compute {show(a)} ({a.type}) {expr.op} {show(b)} ({b.type}){hint}", expr)
    return bound


def _numeric(expr: tree.Arithmetic, a: Expr, b: Expr) -> Expr | None:
    if not all(isinstance(e.type, (*_NUMBERS, Null)) for e in (a, b)):
        return None
    if isinstance(a.type, Null) or isinstance(b.type, Null):
        return tree.Literal(None, type=b.type if isinstance(a.type, Null) else a.type, at=expr.at)
    if expr.op == "/":
        return _make(expr, coerce(a, FLOAT64), coerce(b, FLOAT64), FLOAT64)
    if isinstance(a.type, Float) or isinstance(b.type, Float):
        if expr.op == "div":
            return None
        a, b = common((a, b), expr)
        return _make(expr, a, b, a.type)
    return _exact(expr, a, b)


def _exact(expr: tree.Arithmetic, a: Expr, b: Expr) -> Expr | None:
    if isinstance(a.type, Int) and isinstance(b.type, Int):
        return _make(expr, a, b, INT64)
    if expr.op == "div":
        return None
    if expr.op == "*":
        scale = sum(e.type.scale for e in (a, b) if isinstance(e.type, Decimal))
        return _make(expr, a, b, Decimal(0, scale))
    a, b = common((a, b), expr)
    return _make(expr, a, b, _without_precision(a.type))


def _without_precision(kind: Type) -> Type:
    """Return the type of a result that may need more digits than its operands."""
    return Decimal(0, kind.scale) if isinstance(kind, Decimal) else kind


def _make(expr: tree.Arithmetic, a: Expr, b: Expr, kind: Type) -> Expr:
    return tree.Arithmetic(expr.op, a, b, type=kind, at=expr.at)


def _temporal(expr: tree.Arithmetic, a: Expr, b: Expr) -> Expr | None:
    match a.type, expr.op, b.type:
        case (
            (Timestamp() | Date() | Interval() | Months(), "+" | "-", Null())
            | (Null(), "+" | "-", Timestamp() | Date() | Interval() | Months())
            | (Interval() | Months(), "*", Null())
            | (Null(), "*", Interval() | Months())
        ):
            return tree.Literal(None, type=NULL, at=expr.at)
        case Timestamp() | Date(), "-", Timestamp() | Date():
            return _difference(expr, a, b)
        case Timestamp(), "+" | "-", Interval():
            return _shift(expr, a, b)
        case Interval() | Months(), "+", Timestamp() | Date():
            return _temporal(replace(expr, op="+"), b, a)
        case Date(), "+" | "-", Interval():
            return _shift_date(expr, a, b)
        case Date(), "+" | "-", Int():
            return _make(expr, a, b, DATE)
        case Int(), "+", Date():
            return _make(expr, b, a, DATE)
        case (
            (Interval(), "+" | "-", Interval())
            | (Interval(unit="d"), "+" | "-", Int())
            | (Int(), "+" | "-", Interval(unit="d"))
        ):
            a, b = common((a, b), expr)
            return _make(expr, a, b, a.type)
        case (Interval() | Months() as kind, "*", Int()) | (Int(), "*", Interval() | Months() as kind):
            return _make(expr, a, b, kind)
        case Months(), "+" | "-", Months():
            return _make(expr, a, b, a.type)
        case Date() | Timestamp(), "+" | "-", Months():
            months = b if expr.op == "+" else fold_node(tree.Negate(b, type=b.type, at=b.at))
            return tree.Call((a, months), "plus_months", type=a.type, at=expr.at)
    return None


def _difference(expr: tree.Arithmetic, a: Expr, b: Expr) -> Expr | None:
    if isinstance(a.type, Date) and isinstance(b.type, Date):
        return _make(expr, a, b, Interval("d"))
    kind = unify(a, b)
    if not isinstance(kind, Timestamp):
        return None
    return _make(expr, coerce(a, kind), coerce(b, kind), Interval(kind.unit))


def _shift(expr: tree.Arithmetic, a: Expr, b: Expr) -> Expr:
    assert isinstance(a.type, Timestamp)
    b = _in_unit(b, a.type.unit)
    assert isinstance(b.type, Interval)
    unit = finest_unit(a.type.unit, b.type.unit)
    kind = Timestamp(unit, a.type.zone)
    return _make(expr, coerce(a, kind), coerce(b, Interval(unit)), kind)


def _shift_date(expr: tree.Arithmetic, a: Expr, b: Expr) -> Expr:
    days = _in_unit(b, "d")
    if days.type == Interval("d"):
        return _make(expr, a, days, DATE)
    return _shift(expr, coerce(a, Timestamp("us")), b)


def _in_unit(interval: Expr, unit: str) -> Expr:
    """Convert a constant interval to the unit of what it shifts, if that is exact."""
    converted = coerce(interval, Interval(unit))
    return converted if isinstance(converted, tree.Literal) else interval
