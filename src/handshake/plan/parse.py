"""SQL text to an untyped tree. The grammar is sqlglot's; one small function per node it may yield."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from decimal import Decimal as PyDecimal
from typing import Any, ClassVar, TypeVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.spark import SparkParser

from handshake.errors import ExpressionError, WindowError
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
    check_size,
)
from handshake.plan.functions import no_function
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
    TimeOfDay,
    Timestamp,
    Type,
)
from handshake.window import Duration

__all__ = ["parse", "parse_type"]


_Build = Callable[[list[exp.Expr]], exp.Expr]


def _exactly(count: int, name: str) -> _Build:
    """sqlglot's reading of a function, kept from dropping arguments."""
    build: _Build = SparkParser.FUNCTIONS[name]

    def checked(args: list[exp.Expr]) -> exp.Expr:
        return build(args) if len(args) == count else exp.Anonymous(this=name, expressions=args)

    return checked


_CASTS = (
    "BOOLEAN",
    "DATE",
    "DOUBLE",
    "FLOAT",
    "INT",
    "STRING",
    "TIMESTAMP",
    "TIMESTAMP_LTZ",
    "TIMESTAMP_NTZ",
)
_ARGUMENTS = {**dict.fromkeys((*_CASTS, "LOG2", "LOG10"), 1), "DIV": 2, "MOD": 2}
_INTERNAL = ("DATE_TO_DATE_STR", "TIME_TO_TIME_STR", "TS_OR_DS_TO_DATE", "TS_OR_DS_TO_DATE_STR")


class Predicate(Spark):
    """Spark's dialect, in which a doubled quote is a quote character."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
            **{name: build for name, build in SparkParser.FUNCTIONS.items() if name not in _INTERNAL},
            **{name: _exactly(n, name) for name, n in _ARGUMENTS.items() if name in SparkParser.FUNCTIONS},
        }

        def _parse_interval(self, *args: Any, **options: Any) -> Any:
            """As ever, remembering where the interval starts and what its text is."""
            tokens = [token for token in (self._curr, self._next) if token]
            node = super()._parse_interval(*args, **options)
            if tokens and isinstance(node, exp.Expr):
                texts = [token.text for token in tokens if token.token_type == TokenType.STRING]
                first = next(node.find_all(exp.Interval, bfs=False))
                first.meta.update({"start": tokens[0].start, "text": texts[0] if texts else None})
            return node

        def _parse_as_command(self, start: Any) -> Any:
            self.raise_error("a condition is needed here", start)


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
        return _type(exp.DataType.build(text, dialect=Predicate))
    except (SqlglotError, ValueError, RecursionError) as error:
        raise ExpressionError(f"unknown type '{text}'") from error


class _Reader:
    """Translates one text; knows it, so that errors can point into it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def read(self) -> Expr:
        try:
            tree = self.expr(self._parsed())
        except RecursionError:
            raise ExpressionError("the predicate is nested too deeply") from None
        check_size(tree)
        return tree

    def _parsed(self) -> exp.Expr:
        try:
            return sqlglot.parse_one(self.text, dialect=Predicate, into=exp.Condition)
        except SqlglotError as error:
            raise self._syntax_error(error) from None
        except RecursionError:
            raise
        except Exception as error:  # some of sqlglot's functions fail on arguments that they do not expect
            raise ExpressionError(f"cannot read the predicate: {error}") from error

    def expr(self, node: Any) -> Expr:
        """Translate a node; what it carries besides what its translator reads is refused, not dropped."""
        if type(node) not in _NODES:
            raise self._unknown(node)
        translate, read = _NODES[type(node)]
        self.check(node, read)
        return translate(node, self)

    def check(self, node: exp.Expr, read: frozenset[str]) -> None:
        for name, value in node.args.items():
            if name not in read and value is not None and value is not False and value != []:
                what = _FORMAT if name == "format" else f"{_sql(node)!r}: {name} has no meaning here"
                raise self.error(what, node)

    def all(self, nodes: Iterable[Any]) -> tuple[Expr, ...]:
        return tuple(self.expr(node) for node in nodes)

    def at(self, node: exp.Expr | None) -> Position | None:
        """The leftmost known position below a node, or else that of what it is part of."""
        while node is not None:
            starts = [n.meta["start"] for n in node.walk() if n._meta and "start" in n._meta]
            if starts:
                return self.position(min(starts))
            node = node.parent
        return None

    def position(self, start: int) -> Position:
        line = bisect_right(self.lines, start)
        return Position(line, start - self.lines[line - 1] + 1)

    def error(self, message: str, node: exp.Expr) -> ExpressionError:
        at = self.at(node)
        return ExpressionError(message, at.line if at else None, at.column if at else None)

    def _unknown(self, node: Any) -> ExpressionError:
        """Why a node cannot be translated."""
        if not isinstance(node, exp.Expr):
            return ExpressionError(f"{node!r} has no meaning in a predicate here")
        name = node.name if isinstance(node, exp.Anonymous) else self._name(node)
        if isinstance(node, (exp.AggFunc, *_OVER_ROWS)):
            what = f"{name}()" if name and isinstance(node, exp.AggFunc) else repr(_sql(node))
            why = f"{what} is computed from many rows; a predicate sees one pair of rows at a time"
        elif isinstance(node, (exp.Query, exp.Exists, exp.Subquery)):
            why = f"{_sql(node)!r} is a query, which a predicate cannot hold"
        elif isinstance(node, (exp.StrToDate, exp.StrToTime, exp.TimeToStr)):
            why = _FORMAT
        elif isinstance(node, exp.Anonymous) and node.name.upper() in _ARGUMENTS:
            count = _ARGUMENTS[node.name.upper()]
            why = f"{name}() takes {count} argument{'s' if count > 1 else ''}, not {len(node.expressions)}"
        elif name is not None and isinstance(node, exp.Func):
            why = no_function(name)
        else:
            why = f"{_sql(node)!r} has no meaning in a predicate here"
        return self.error(why, node)

    def _name(self, node: exp.Expr) -> str | None:
        """What a function is called in the text."""
        if "start" not in node.meta or "end" not in node.meta:
            return None
        return self.text[node.meta["start"] : node.meta["end"] + 1]

    def _syntax_error(self, error: SqlglotError) -> ExpressionError:
        unclosed = re.search(r"Missing (\S+) from \d+:(\d+)", f"{error} {error.__cause__}")
        if unclosed:
            at = self.position(min(int(unclosed[2]), len(self.text)))
            return ExpressionError(
                f"cannot read the predicate: a {unclosed[1]} is never closed", at.line, at.column
            )
        details = (getattr(error, "errors", None) or [{}])[0]
        found = details.get("highlight")
        what = f"cannot read the predicate near '{found}'" if found else "cannot read the predicate"
        why = str(details.get("description") or str(error).split("\n")[0]).rstrip(".")
        if "Required keyword" in why:
            why = "an operand is missing"
        line, column = details.get("line"), details.get("col")
        return ExpressionError(f"{what}: {why}", line, column)


_FORMAT = "a format has no meaning here; dates and times are read and written as '2024-12-31 23:59:59'"
_OVER_ROWS = (exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def _sql(node: exp.Expr) -> str:
    """A node as text, for messages."""
    try:
        text = node.sql(dialect=Predicate, unsupported_level=ErrorLevel.IGNORE, comments=False)
    except Exception:  # it is about to be refused anyway
        return node.key
    return text if len(text) <= 80 else text[:79] + "…"


_Translate = Callable[[Any, _Reader], Expr]
_Function = TypeVar("_Function", bound=_Translate)
_NODES: dict[type[exp.Expr], tuple[_Translate, frozenset[str]]] = {}
"""What translates each kind of node, and which of its arguments that reads (or may leave aside)."""


def _reads(arguments: str, *kinds: type[exp.Expr]) -> Callable[[_Function], _Function]:
    def register(translate: _Function) -> _Function:
        for kind in kinds:
            _NODES[kind] = translate, frozenset(arguments.split())
        return translate

    return register


# Operators and plain functions.

_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "div",
    exp.Mod: "%",
}
_COMPARE: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_CALLS: dict[type[exp.Expr], str] = {
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
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
    exp.RegexpLike: "regexp_like",
    exp.Greatest: "greatest",
    exp.Least: "least",
    exp.Coalesce: "coalesce",
    exp.Concat: "concat",
}


@_reads("this expression typed safe", *_ARITHMETIC)
def _(node: exp.Binary, reader: _Reader) -> Expr:
    a, b = reader.expr(node.this), reader.expr(node.expression)
    return Arithmetic(_ARITHMETIC[type(node)], a, b, at=reader.at(node))


@_reads("this expression", *_COMPARE)
def _(node: exp.Binary, reader: _Reader) -> Expr:
    a, b = reader.expr(node.this), reader.expr(node.expression)
    return Compare(_COMPARE[type(node)], a, b, at=reader.at(node))


@_reads("this expression expressions ignore_nulls is_nvl is_null safe", *_CALLS)
def _(node: exp.Expr, reader: _Reader) -> Expr:
    args = [node.args.get("this"), node.args.get("expression"), *node.expressions]
    given = reader.all(arg for arg in args if arg is not None)
    return Call(given, _CALLS[type(node)], at=reader.at(node))


@_reads("this expression safe", exp.DPipe)
def _(node: exp.DPipe, reader: _Reader) -> Expr:
    return Call(reader.all(node.flatten()), "concat", at=reader.at(node))


@_reads("this start length", exp.Substring)
def _(node: exp.Substring, reader: _Reader) -> Expr:
    length = node.args.get("length")
    start = node.args.get("start") or (length and exp.Literal.number(1))
    args = (node.this, start, length)
    return Call(reader.all(a for a in args if a is not None), "substring", at=reader.at(node))


@_reads("this decimals to", exp.Floor, exp.Ceil, exp.Round)
def _(node: exp.Expr, reader: _Reader) -> Expr:
    if node.args.get("decimals") is not None or node.args.get("to") is not None:
        raise reader.error(f"{node.key} takes one argument here", node)
    return Call((reader.expr(node.this),), node.key, at=reader.at(node))


@_reads("this expression", exp.Log)
def _(node: exp.Log, reader: _Reader) -> Expr:
    if node.args.get("expression") is None:
        return Call((reader.expr(node.this),), "ln", at=reader.at(node))
    base = Call((reader.expr(node.this),), "ln")
    return Arithmetic("/", Call((reader.expr(node.expression),), "ln"), base, at=reader.at(node))


@_reads("this expression position", exp.Trim)
def _(node: exp.Trim, reader: _Reader) -> Expr:
    if node.args.get("expression") is not None:
        raise reader.error("TRIM takes one argument here", node)
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    return Call((reader.expr(node.this),), name, at=reader.at(node))


# Names and constants.


@_reads("this table db catalog", exp.Column)
@_reads("this expression", exp.Dot)
def _(node: exp.Column | exp.Dot, reader: _Reader) -> Expr:
    if not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise reader.error(f"{_sql(node)!r} is not a column", node)
    return Name(tuple(part.name for part in node.parts), at=reader.at(node))


@_reads("this quoted", exp.Identifier)
def _(node: exp.Identifier, reader: _Reader) -> Expr:
    return Name((node.name,), at=reader.at(node))


@_reads("this", exp.Paren)
def _(node: exp.Paren, reader: _Reader) -> Expr:
    return reader.expr(node.this)


_MOST_DIGITS = 1000


@_reads("this is_string", exp.Literal)
def _(node: exp.Literal, reader: _Reader) -> Expr:
    text, at = str(node.this), reader.at(node)
    if node.is_string:
        return Literal(text, at=at)
    if len(text) > _MOST_DIGITS:
        raise reader.error(f"a number has {len(text)} digits; {_MOST_DIGITS} are allowed", node)
    if re.fullmatch(r"-?[0-9]+", text):
        return Literal(int(text), at=at)
    if not re.fullmatch(r"-?([0-9]+\.?|[0-9]*\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        raise reader.error(f"'{text}' is not a number", node)
    if "e" in text.lower():
        return Literal(float(text), type=FLOAT64, at=at)
    return Literal(PyDecimal(text), at=at)


@_reads("this", exp.Boolean)
def _(node: exp.Boolean, reader: _Reader) -> Expr:
    return Literal(bool(node.this), at=reader.at(node))


@_reads("", exp.Null)
def _(node: exp.Null, reader: _Reader) -> Expr:
    return Literal(None, at=reader.at(node))


@_reads("this unit fraction_in_string", exp.Interval)
def _(node: exp.Interval, reader: _Reader) -> Expr:
    amount, unit = node.this, node.args.get("unit")
    if not isinstance(amount, exp.Literal) or not (unit is None or isinstance(unit, exp.Var)):
        raise reader.error("an interval is a constant, such as INTERVAL 10 SECONDS", node)
    # Of a text with a unit in it, sqlglot keeps what it understands.
    text = node.meta.get("text") or str(amount.this)
    if unit is not None and not re.search("[a-z]", text, re.IGNORECASE):
        text = f"{text} {unit.name}"
    if re.search("month|quarter|year|decade|centur", text, re.IGNORECASE):
        raise reader.error("months and years have no fixed length; write the interval in days", node)
    if len(text) > _MOST_DIGITS:
        raise reader.error(f"a number has {len(text)} digits; {_MOST_DIGITS} are allowed", node)
    try:
        length = Duration.parse(text.lower())
    except WindowError as error:
        raise reader.error(str(error), node) from None
    step, size = ("us", 10**3) if length.nanoseconds % 10**3 == 0 else ("ns", 1)
    return Literal(length.nanoseconds // size, type=Interval(step), at=reader.at(node))


# Logic and comparisons.


@_reads("this", exp.Neg)
def _(node: exp.Neg, reader: _Reader) -> Expr:
    return Negate(reader.expr(node.this), at=reader.at(node))


@_reads("this expression", exp.And)
def _(node: exp.And, reader: _Reader) -> Expr:
    return And(reader.all(node.flatten()), at=reader.at(node))


@_reads("this expression", exp.Or)
def _(node: exp.Or, reader: _Reader) -> Expr:
    return Or(reader.all(node.flatten()), at=reader.at(node))


@_reads("this", exp.Not)
def _(node: exp.Not, reader: _Reader) -> Expr:
    return Not(reader.expr(node.this), at=reader.at(node))


@_reads("this expression negate", exp.Is)
def _(node: exp.Is, reader: _Reader) -> Expr:
    arg, at = reader.expr(node.this), reader.at(node)
    if isinstance(node.expression, exp.Null):
        found: Expr = IsNull(arg, at=at)
    elif isinstance(node.expression, exp.Boolean):
        same = Compare("=", arg, reader.expr(node.expression), at=at)
        found = And((Not(IsNull(arg)), same), at=at)
    else:
        raise reader.error("IS takes NULL, TRUE or FALSE", node)
    return Not(found, at=at) if node.args.get("negate") else found


@_reads("this low high symmetric", exp.Between)
def _(node: exp.Between, reader: _Reader) -> Expr:
    if node.args.get("symmetric"):
        raise reader.error("BETWEEN SYMMETRIC is not known; write BETWEEN LEAST(…) AND GREATEST(…)", node)
    value = reader.expr(node.this)
    low, high = reader.expr(node.args["low"]), reader.expr(node.args["high"])
    at = reader.at(node)
    return And((Compare(">=", value, low, at=at), Compare("<=", value, high, at=at)), at=at)


@_reads("this expression negate", exp.Like, exp.ILike)
def _(node: exp.Expr, reader: _Reader) -> Expr:
    return _like(node, reader, reader.expr(node.expression))


def _like(node: exp.Expr, reader: _Reader, pattern: Expr) -> Expr:
    at = reader.at(node)
    matches = Call((reader.expr(node.this), pattern), node.key, at=at)
    return Not(matches, at=at) if node.args.get("negate") else matches


@_reads("this expression", exp.Escape)
def _(node: exp.Escape, reader: _Reader) -> Expr:
    like, escape = node.this, node.expression
    if not isinstance(like, (exp.Like, exp.ILike)):
        raise reader.error("ESCAPE follows LIKE or ILIKE", node)
    pattern = like.expression
    if not all(isinstance(text, exp.Literal) and text.is_string for text in (pattern, escape)):
        raise reader.error("LIKE … ESCAPE takes constants, such as LIKE '10!%' ESCAPE '!'", node)
    if len(escape.name) != 1:
        raise reader.error(f"ESCAPE takes one character, not '{escape.name}'", node)
    rewritten = _escaped_by_backslash(pattern.name, escape.name)
    if rewritten is None:
        raise reader.error(f"'{pattern.name}' ends in its escape character", node)
    reader.check(like, _NODES[type(like)][1])
    return _like(like, reader, Literal(rewritten, at=reader.at(pattern)))


def _escaped_by_backslash(pattern: str, escape: str) -> str | None:
    """The pattern with a backslash for its escape character; None if that ends it."""
    pieces = iter(pattern)
    written = ""
    for char in pieces:
        if char == escape:
            follows = next(pieces, None)
            if follows is None:
                return None
            written += "\\" + follows
        else:
            written += "\\\\" if char == "\\" else char
    return written


@_reads("this expressions query unnest field", exp.In)
def _(node: exp.In, reader: _Reader) -> Expr:
    if not node.expressions or any(node.args.get(other) for other in ("query", "unnest", "field")):
        raise reader.error("IN takes a list of values, such as l.x IN (1, 2, 3)", node)
    value, at = reader.expr(node.this), reader.at(node)
    return Or(tuple(Compare("=", value, other, at=at) for other in reader.all(node.expressions)), at=at)


@_reads("this expression", exp.NullSafeEQ, exp.NullSafeNEQ)
def _(node: exp.Binary, reader: _Reader) -> Expr:
    a, b, at = reader.expr(node.this), reader.expr(node.expression), reader.at(node)
    both = And((Not(IsNull(a)), Not(IsNull(b)), Compare("=", a, b, at=at)))
    same = Or((both, And((IsNull(a), IsNull(b)))), at=at)
    return Not(same, at=at) if isinstance(node, exp.NullSafeNEQ) else same


# Choice and casts.


@_reads("this ifs default", exp.Case)
def _(node: exp.Case, reader: _Reader) -> Expr:
    subject = node.args.get("this")
    value = reader.expr(subject) if subject is not None else None
    branches: list[Expr] = []
    for arm in node.args["ifs"]:
        reader.check(arm, frozenset(("this", "true")))
        condition = reader.expr(arm.this)
        if value is not None:
            condition = Compare("=", value, condition, at=reader.at(arm))
        branches += [condition, reader.expr(arm.args["true"])]
    default = node.args.get("default")
    otherwise = reader.expr(default) if default is not None else Literal(None)
    return Case(tuple(branches), otherwise, at=reader.at(node))


@_reads("this true false", exp.If)
def _(node: exp.If, reader: _Reader) -> Expr:
    default = node.args.get("false")
    otherwise = reader.expr(default) if default is not None else Literal(None)
    return Case((reader.expr(node.this), reader.expr(node.args["true"])), otherwise, at=reader.at(node))


@_reads("this expression", exp.Nullif)
def _(node: exp.Nullif, reader: _Reader) -> Expr:
    value = reader.expr(node.this)
    same = Compare("=", value, reader.expr(node.expression), at=reader.at(node))
    return Case((same, Literal(None)), value, at=reader.at(node))


@_reads("this to safe", exp.Cast, exp.TryCast)
def _(node: exp.Cast, reader: _Reader) -> Expr:
    try:
        target = _type(node.to)
    except ValueError as error:
        raise reader.error(str(error), node) from None
    return Cast(reader.expr(node.this), type=target, at=reader.at(node))


@_reads("this safe", exp.TsOrDsToDate)
def _(node: exp.TsOrDsToDate, reader: _Reader) -> Expr:
    return Cast(reader.expr(node.this), type=DATE, at=reader.at(node))


# Fields of dates.

_FIELDS = ("year", "month", "day", "hour", "minute", "second")


@_reads("this expression", exp.Extract)
def _(node: exp.Extract, reader: _Reader) -> Expr:
    field = node.this.name.lower()
    if field not in _FIELDS:
        raise reader.error(f"EXTRACT knows {', '.join(_FIELDS)}, not {field}", node)
    return Call((reader.expr(node.expression),), field, at=reader.at(node))


@_reads("this", exp.Year, exp.Month, exp.Day, exp.DayOfMonth, exp.Hour, exp.Minute, exp.Second)
def _(node: exp.Expr, reader: _Reader) -> Expr:
    arg = node.this
    if isinstance(arg, exp.TsOrDsToDate) and not any(v for k, v in arg.args.items() if k != "this"):
        arg = arg.this  # sqlglot's addition
    return Call((reader.expr(arg),), _FIELD_NAMES.get(node.key, node.key), at=reader.at(node))


_FIELD_NAMES = {"dayofmonth": "day"}


# Types.

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
    exp.DType.TIME: TimeOfDay("us"),
    exp.DType.TIMESTAMP: Timestamp("us"),
    exp.DType.TIMESTAMPNTZ: Timestamp("us"),
    # In Spark's dialect a plain TIMESTAMP is an instant; without a zone to apply it is read as written.
    exp.DType.TIMESTAMPTZ: Timestamp("us"),
    exp.DType.TIMESTAMPLTZ: Timestamp("us"),
}
_SIZED = (exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR)
"""Types whose length is left aside, as Spark does."""


def _type(node: exp.DataType) -> Type:
    unread = {name for name, value in node.args.items() if value and name not in ("this", "expressions")}
    if node.this == exp.DType.DECIMAL and not unread:
        return _decimal(node)
    if not isinstance(node.this, exp.DType) or node.this not in _NAMED or unread:
        raise ValueError(f"type {_sql(node)} is not one a predicate can use")
    if node.expressions and node.this not in _SIZED:
        raise ValueError(f"type {_NAMED[node.this]} takes no size here")
    return _NAMED[node.this]


def _decimal(node: exp.DataType) -> Type:
    sizes = [param.name for param in node.expressions] or ["10", "0"]
    if len(sizes) > 2 or not all(re.fullmatch("[0-9]{1,9}", size) for size in sizes):
        raise ValueError(f"{_sql(node)} is not a type; write DECIMAL(precision, scale)")
    precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise ValueError(f"decimal({precision}, {scale}) is not a type; precision goes up to 38")
    return Decimal(precision, scale)
