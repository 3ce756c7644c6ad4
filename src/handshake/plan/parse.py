"""SQL text to an untyped tree. The grammar is sqlglot's; one small function per node it may yield."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal as PyDecimal
from functools import singledispatch

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from handshake.errors import ExpressionError
from handshake.plan.expr import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Compare,
    Expr,
    IsNull,
    Literal,
    Name,
    Negate,
    Not,
    Or,
    Position,
)
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    STRING,
    Decimal,
    Int,
    Interval,
    Timestamp,
    Type,
)
from handshake.window import Duration

__all__ = ["parse", "parse_type"]

_DIALECT = "spark"


def parse(text: str) -> Expr:
    """Read a predicate.

    >>> from handshake.plan.expr import show
    >>> show(parse("l.x BETWEEN r.a - 10 AND r.a + 10"))
    '(l.x >= (r.a - 10)) AND (l.x <= (r.a + 10))'
    """
    if not text.strip():
        raise ExpressionError("the predicate is empty; write a condition such as 'l.x < r.a'")
    return _Reader(text).read()


def parse_type(text: str) -> Type:
    """Read an SQL type name, `decimal(10, 2)`."""
    try:
        return _type(exp.DataType.build(text, dialect=_DIALECT))
    except (SqlglotError, ValueError) as error:
        raise ExpressionError(f"unknown type '{text}'") from error


class _Reader:
    """Translates one text; knows it, so that errors can point into it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self) -> Expr:
        try:
            tree = sqlglot.parse_one(self.text, dialect=_DIALECT)
        except SqlglotError as error:
            raise self._syntax_error(error) from None
        except RecursionError:
            raise ExpressionError("the predicate is nested too deeply") from None
        return self.expr(tree)

    def expr(self, node: exp.Expression) -> Expr:
        return _translate(node, self)

    def all(self, nodes: list[exp.Expression]) -> tuple[Expr, ...]:
        return tuple(self.expr(node) for node in nodes)

    def at(self, node: exp.Expression) -> Position | None:
        """The leftmost known position below a node."""
        starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
        if not starts:
            return None
        before = self.text[: min(starts)]
        return Position(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)

    def error(self, message: str, node: exp.Expression) -> ExpressionError:
        at = self.at(node)
        return ExpressionError(message, at.line if at else None, at.column if at else None)

    def _syntax_error(self, error: SqlglotError) -> ExpressionError:
        details = (getattr(error, "errors", None) or [{}])[0]
        found = details.get("highlight")
        what = f"cannot read the predicate near '{found}'" if found else "cannot read the predicate"
        why = str(details.get("description") or str(error).split("\n")[0]).rstrip(".")
        if "Required keyword" in why:
            why = "an operand is missing"
        line, column = details.get("line"), details.get("col")
        return ExpressionError(f"{what}: {why}", line, column)


@singledispatch
def _translate(node: exp.Expression, reader: _Reader) -> Expr:
    if type(node) in _CALLS:
        name, operands = _CALLS[type(node)], [v for v in node.args.values() if isinstance(v, exp.Expression)]
        return Call(reader.all(operands), name, at=reader.at(node))
    raise reader.error(f"{node.sql(dialect=_DIALECT)!r} has no meaning in a predicate here", node)


_CALLS: dict[type[exp.Expression], str] = {
    exp.Abs: "abs",
    exp.Sign: "sign",
    exp.Sqrt: "sqrt",
    exp.Exp: "exp",
    exp.Ln: "ln",
    exp.Pow: "power",
    exp.Sin: "sin",
    exp.Cos: "cos",
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.Substring: "substring",
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
    exp.DPipe: "concat",
    exp.RegexpLike: "regexp_like",
}
_ARITHMETIC: dict[type[exp.Expression], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "div",
    exp.Mod: "%",
}
_COMPARE: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def _binary(
    kinds: dict[type[exp.Expression], str], build: Callable[..., Expr]
) -> Callable[[exp.Expression, _Reader], Expr]:
    def translate(node: exp.Expression, reader: _Reader) -> Expr:
        operands = (reader.expr(node.this), reader.expr(node.expression))
        return build(kinds[type(node)], *operands, at=reader.at(node))

    return translate


for _kinds, _build in ((_ARITHMETIC, Arithmetic), (_COMPARE, Compare)):
    for _kind in _kinds:
        _translate.register(_kind, _binary(_kinds, _build))


@_translate.register
def _(node: exp.Column, reader: _Reader) -> Expr:
    return Name(tuple(part.name for part in node.parts), at=reader.at(node))


@_translate.register
def _(node: exp.Dot, reader: _Reader) -> Expr:
    return Name(tuple(part.name for part in node.parts), at=reader.at(node))


@_translate.register
def _(node: exp.Identifier, reader: _Reader) -> Expr:
    return Name((node.name,), at=reader.at(node))


@_translate.register
def _(node: exp.Paren, reader: _Reader) -> Expr:
    return reader.expr(node.this)


@_translate.register
def _(node: exp.Literal, reader: _Reader) -> Expr:
    if node.is_string:
        return Literal(node.this, at=reader.at(node))
    text = node.this
    if text.lstrip("-").isdigit():
        return Literal(int(text), at=reader.at(node))
    if "e" in text.lower():
        return Literal(float(text), type=FLOAT64, at=reader.at(node))
    return Literal(PyDecimal(text), at=reader.at(node))


@_translate.register
def _(node: exp.Boolean, reader: _Reader) -> Expr:
    return Literal(bool(node.this), at=reader.at(node))


@_translate.register
def _(node: exp.Null, reader: _Reader) -> Expr:
    return Literal(None, at=reader.at(node))


@_translate.register
def _(node: exp.Neg, reader: _Reader) -> Expr:
    return Negate(reader.expr(node.this), at=reader.at(node))


@_translate.register
def _(node: exp.And, reader: _Reader) -> Expr:
    return And(reader.all(list(node.flatten())), at=reader.at(node))


@_translate.register
def _(node: exp.Or, reader: _Reader) -> Expr:
    return Or(reader.all(list(node.flatten())), at=reader.at(node))


@_translate.register
def _(node: exp.Not, reader: _Reader) -> Expr:
    return Not(reader.expr(node.this), at=reader.at(node))


@_translate.register
def _(node: exp.Is, reader: _Reader) -> Expr:
    arg = reader.expr(node.this)
    if isinstance(node.expression, exp.Null):
        return IsNull(arg, at=reader.at(node))
    if isinstance(node.expression, exp.Boolean):
        same = Compare("=", arg, reader.expr(node.expression))
        return And((Not(IsNull(arg)), same), at=reader.at(node))
    raise reader.error("IS takes NULL, TRUE or FALSE", node)


@_translate.register
def _(node: exp.Between, reader: _Reader) -> Expr:
    if node.args.get("symmetric"):
        raise reader.error("BETWEEN SYMMETRIC is not known; write BETWEEN LEAST(…) AND GREATEST(…)", node)
    value = reader.expr(node.this)
    low, high = reader.expr(node.args["low"]), reader.expr(node.args["high"])
    at = reader.at(node)
    return And((Compare(">=", value, low, at=at), Compare("<=", value, high, at=at)), at=at)


@_translate.register(exp.Like)
@_translate.register(exp.ILike)
def _(node: exp.Expression, reader: _Reader) -> Expr:
    at = reader.at(node)
    matches = Call(reader.all([node.this, node.expression]), node.key, at=at)
    return Not(matches, at=at) if node.args.get("negate") else matches


@_translate.register
def _(node: exp.In, reader: _Reader) -> Expr:
    if node.args.get("query") or not node.expressions:
        raise reader.error("IN takes a list of values, such as l.x IN (1, 2, 3)", node)
    value, at = reader.expr(node.this), reader.at(node)
    return Or(tuple(Compare("=", value, other, at=at) for other in reader.all(node.expressions)), at=at)


@_translate.register
def _(node: exp.NullSafeEQ, reader: _Reader) -> Expr:
    return _null_safe_equal(node, reader)


@_translate.register
def _(node: exp.NullSafeNEQ, reader: _Reader) -> Expr:
    return Not(_null_safe_equal(node, reader), at=reader.at(node))


def _null_safe_equal(node: exp.Expression, reader: _Reader) -> Expr:
    a, b, at = reader.expr(node.this), reader.expr(node.expression), reader.at(node)
    both = And((Not(IsNull(a)), Not(IsNull(b)), Compare("=", a, b, at=at)))
    return Or((both, And((IsNull(a), IsNull(b)))), at=at)


@_translate.register
def _(node: exp.Case, reader: _Reader) -> Expr:
    subject = node.args.get("this")
    branches: list[Expr] = []
    for arm in node.args["ifs"]:
        condition = reader.expr(arm.this)
        if subject is not None:
            condition = Compare("=", reader.expr(subject), condition, at=reader.at(arm))
        branches += [condition, reader.expr(arm.args["true"])]
    default = node.args.get("default")
    otherwise = reader.expr(default) if default is not None else Literal(None)
    return Case(tuple(branches), otherwise, at=reader.at(node))


@_translate.register
def _(node: exp.If, reader: _Reader) -> Expr:
    default = node.args.get("false")
    otherwise = reader.expr(default) if default is not None else Literal(None)
    return Case((reader.expr(node.this), reader.expr(node.args["true"])), otherwise, at=reader.at(node))


@_translate.register
def _(node: exp.Nullif, reader: _Reader) -> Expr:
    value = reader.expr(node.this)
    same = Compare("=", value, reader.expr(node.expression), at=reader.at(node))
    return Case((same, Literal(None)), value, at=reader.at(node))


@_translate.register
def _(node: exp.Cast, reader: _Reader) -> Expr:
    try:
        target = _type(node.to)
    except ValueError as error:
        raise reader.error(str(error), node) from None
    return Cast(reader.expr(node.this), type=target, at=reader.at(node))


@_translate.register
def _(node: exp.Interval, reader: _Reader) -> Expr:
    amount = node.this
    if not isinstance(amount, exp.Literal) or node.args.get("unit") is None:
        raise reader.error("an interval is a constant, such as INTERVAL 10 SECONDS", node)
    text = f"{amount.this} {node.args['unit'].name}".lower()
    if "month" in text or "year" in text:
        raise reader.error("months and years have no fixed length; write the interval in days", node)
    try:
        length = Duration.parse(text)
    except Exception as error:
        raise reader.error(str(error), node) from None
    unit, size = ("us", 10**3) if length.nanoseconds % 10**3 == 0 else ("ns", 1)
    return Literal(length.nanoseconds // size, type=Interval(unit), at=reader.at(node))


def _several(name: str) -> Callable[[exp.Expression, _Reader], Expr]:
    def translate(node: exp.Expression, reader: _Reader) -> Expr:
        first = [node.this] if node.this is not None else []
        return Call(reader.all([*first, *node.expressions]), name, at=reader.at(node))

    return translate


for _kind, _name in (
    (exp.Greatest, "greatest"),
    (exp.Least, "least"),
    (exp.Coalesce, "coalesce"),
    (exp.Concat, "concat"),
):
    _translate.register(_kind, _several(_name))


@_translate.register(exp.Floor)
@_translate.register(exp.Ceil)
@_translate.register(exp.Round)
def _(node: exp.Expression, reader: _Reader) -> Expr:
    if node.args.get("decimals") is not None or node.args.get("to") is not None:
        raise reader.error(f"{node.key} takes one argument here", node)
    return Call((reader.expr(node.this),), node.key, at=reader.at(node))


@_translate.register
def _(node: exp.Log, reader: _Reader) -> Expr:
    if node.expression is None:
        return Call((reader.expr(node.this),), "ln", at=reader.at(node))
    base = Call((reader.expr(node.this),), "ln")
    return Arithmetic("/", Call((reader.expr(node.expression),), "ln"), base, at=reader.at(node))


@_translate.register
def _(node: exp.Trim, reader: _Reader) -> Expr:
    if node.expression is not None:
        raise reader.error("TRIM takes one argument here", node)
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    return Call((reader.expr(node.this),), name, at=reader.at(node))


_FIELDS = ("year", "month", "day", "hour", "minute", "second")


@_translate.register
def _(node: exp.Extract, reader: _Reader) -> Expr:
    field = node.this.name.lower()
    if field not in _FIELDS:
        raise reader.error(f"EXTRACT knows {', '.join(_FIELDS)}, not {field}", node)
    return Call((reader.expr(node.expression),), field, at=reader.at(node))


@_translate.register(exp.Year)
@_translate.register(exp.Month)
@_translate.register(exp.Day)
@_translate.register(exp.Hour)
@_translate.register(exp.Minute)
@_translate.register(exp.Second)
def _(node: exp.Expression, reader: _Reader) -> Expr:
    arg = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
    return Call((reader.expr(arg),), node.key, at=reader.at(node))


@_translate.register
def _(node: exp.TsOrDsToDate, reader: _Reader) -> Expr:
    return Cast(reader.expr(node.this), type=DATE, at=reader.at(node))


_NAMED: dict[exp.DType, Type] = {
    exp.DType.BOOLEAN: BOOL,
    exp.DType.TINYINT: Int(8),
    exp.DType.SMALLINT: Int(16),
    exp.DType.INT: Int(32),
    exp.DType.BIGINT: Int(64),
    exp.DType.FLOAT: FLOAT32,
    exp.DType.DOUBLE: FLOAT64,
    exp.DType.TEXT: STRING,
    exp.DType.VARCHAR: STRING,
    exp.DType.CHAR: STRING,
    exp.DType.BINARY: BINARY,
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMP: Timestamp("us"),
    exp.DType.TIMESTAMPNTZ: Timestamp("us"),
    # In Spark's dialect a plain TIMESTAMP is an instant; without a zone to apply it is read as written.
    exp.DType.TIMESTAMPTZ: Timestamp("us"),
    exp.DType.TIMESTAMPLTZ: Timestamp("us"),
}


def _type(node: exp.DataType) -> Type:
    if node.this == exp.DType.DECIMAL:
        params = [int(p.name) for p in node.expressions] or [10, 0]
        precision, scale = params[0], params[1] if len(params) > 1 else 0
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise ValueError(f"decimal({precision}, {scale}) is not a type; precision goes up to 38")
        return Decimal(precision, scale)
    if node.this not in _NAMED:
        raise ValueError(f"type {node.sql(dialect=_DIALECT)} is not one a predicate can use")
    return _NAMED[node.this]
