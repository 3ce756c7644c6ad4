"""SQL text to an untyped tree. The grammar is sqlglot's; one small function per node it may yield."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal as PyDecimal

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.helper import ensure_list

from handshake.errors import ExpressionError, WindowError
from handshake.plan import expr as tree
from handshake.plan.dialect import Predicate, sql_text, type_of
from handshake.plan.expr import Expr
from handshake.plan.functions.registry import ALIASES, FUNCTIONS
from handshake.plan.functions.times import FIELDS
from handshake.plan.reader import NODES, Reader, reads
from handshake.plan.types import parse_date, parse_time, parse_timestamp
from handshake.schema import DATE, FLOAT64, STRING, Date, Interval, Months, TimeOfDay, Timestamp, Type
from handshake.windows import Duration


def parse(text: str, kind: str = "predicate") -> Expr:
    """Read a predicate, or an expression of another kind, which errors name.

    >>> from handshake.plan.expr import show
    >>> show(parse("l.x BETWEEN r.a - 10 AND r.a + 10"))
    '(l.x >= (r.a - 10)) AND (l.x <= (r.a + 10))'
    """
    if not text.strip():
        example = "a condition such as 'l.x < r.a'" if kind == "predicate" else "one such as 'ABS(l.x - r.a)'"
        raise ExpressionError(f"the {kind} is empty; write {example}")
    return Reader(text, kind).read()


def parse_type(text: str) -> Type:
    """Read an SQL type name, `decimal(10, 2)`."""
    try:
        return type_of(exp.DataType.build(text, dialect=Predicate))
    except (SqlglotError, ValueError, RecursionError) as error:
        raise ExpressionError(
            f"unknown type '{text}'; write one such as int, double, string, timestamp or decimal(10, 2)"
        ) from error


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
_CALLS: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Abs: ("abs", "this"),
    exp.Sign: ("sign", "this"),
    exp.Floor: ("floor", "this decimals"),
    exp.Ceil: ("ceil", "this decimals"),
    exp.Sqrt: ("sqrt", "this"),
    exp.Exp: ("exp", "this"),
    exp.Ln: ("ln", "this"),
    exp.Pow: ("power", "this expression"),
    exp.Sin: ("sin", "this"),
    exp.Cos: ("cos", "this"),
    exp.BitwiseNot: ("bit_not", "this"),
    exp.Lower: ("lower", "this"),
    exp.Upper: ("upper", "this"),
    exp.Length: ("length", "this"),
    exp.StartsWith: ("starts_with", "this expression"),
    exp.EndsWith: ("ends_with", "this expression"),
    exp.Contains: ("contains", "this expression"),
    exp.RegexpLike: ("regexp_like", "this expression"),
    exp.StrPosition: ("locate", "substr this position"),
    exp.Overlay: ("overlay", "this expression from_ for_"),
    exp.Chr: ("chr", "expressions"),
    exp.Concat: ("concat", "expressions"),
    exp.Greatest: ("greatest", "this expressions"),
    exp.Least: ("least", "this expressions"),
    exp.Coalesce: ("coalesce", "this expressions"),
}
"""The function that a node calls, and the arguments of the node in the order of the function."""
_IGNORED = "charset ignore_nulls is_nvl is_null safe"


@reads("this expression typed safe", *_ARITHMETIC)
def _(node: exp.Binary, reader: Reader) -> Expr:
    a, b = reader.expr(node.this), reader.expr(node.expression)
    return tree.Arithmetic(_ARITHMETIC[type(node)], a, b, at=reader.at(node))


@reads("this expression", *_COMPARE)
def _(node: exp.Binary, reader: Reader) -> Expr:
    a, b = reader.expr(node.this), reader.expr(node.expression)
    return tree.Compare(_COMPARE[type(node)], a, b, at=reader.at(node))


def _read_call(node: exp.Expr, reader: Reader) -> Expr:
    name, arguments = _CALLS[type(node)]
    given = [each for argument in arguments.split() for each in ensure_list(node.args.get(argument))]
    return tree.Call(reader.all(given), name, at=reader.at(node))


for _kind, (_name, _arguments) in _CALLS.items():
    reads(f"{_arguments} {_IGNORED}", _kind)(_read_call)


@reads("this expressions", exp.Anonymous)
def _(node: exp.Anonymous, reader: Reader) -> Expr:
    name = node.name.lower()
    name = ALIASES.get(name, name)
    if name not in FUNCTIONS:
        raise reader.unknown(node)
    given = node.expressions
    if name in _WITH_UNIT and given and (len(given) == 3 or name == _WITH_UNIT[name]):
        args = (_unit(given[0], reader), *reader.all(given[1:]))
        return tree.Call(args, _WITH_UNIT[name], at=reader.at(node))
    return tree.Call(reader.all(given), name, at=reader.at(node))


_WITH_UNIT = {
    **dict.fromkeys(("timestampadd", "date_add"), "timestampadd"),
    **dict.fromkeys(("timestampdiff", "datediff"), "timestampdiff"),
}
"""Functions with a unit as the first of three arguments; DATE_ADD and DATEDIFF of two count days."""


def _unit(node: exp.Expr, reader: Reader) -> Expr:
    """Read a unit, which looks like a column."""
    plain = isinstance(node, exp.Column) and len(node.parts) == 1
    return tree.Literal(node.name, type=STRING, at=reader.at(node)) if plain else reader.expr(node)


@reads("this expression safe", exp.DPipe)
def _(node: exp.DPipe, reader: Reader) -> Expr:
    return tree.Call(reader.all(node.flatten()), "concat", at=reader.at(node))


@reads("this start length", exp.Substring)
def _(node: exp.Substring, reader: Reader) -> Expr:
    length = node.args.get("length")
    start = node.args.get("start") or (length and exp.Literal.number(1))
    args = [arg for arg in (node.this, start, length) if arg is not None]
    return tree.Call(reader.all(args), "substring", at=reader.at(node))


_BITS: dict[type[exp.Expr], str] = {
    exp.BitwiseAnd: "bit_and",
    exp.BitwiseOr: "bit_or",
    exp.BitwiseXor: "bit_xor",
    exp.BitwiseLeftShift: "shiftleft",
    exp.BitwiseRightShift: "shiftright",
}


_BINDING: tuple[tuple[str, ...], ...] = (("shiftleft", "shiftright"), ("bit_and",), ("bit_xor",), ("bit_or",))
"""Operators of bits, those that bind most closely first."""


@reads("this expression", *_BITS)
def _(node: exp.Binary, reader: Reader) -> Expr:
    """Read a chain of operators, which sqlglot nests to the left whatever they are."""
    operands, operators = [node.expression], [_BITS[type(node)]]
    first = node.this
    while type(first) in _BITS:
        operands.append(first.expression)
        operators.append(_BITS[type(first)])
        first = first.this
    values, names = list(reader.all((first, *reversed(operands)))), operators[::-1]
    for level in _BINDING:
        for name in [name for name in names if name in level]:
            place = names.index(name)
            pair = tuple(values[place : place + 2])
            values[place : place + 2] = [tree.Call(pair, name, at=reader.at(node))]
            del names[place]
    return values[0]


@reads("this expression", exp.Initcap)
def _(node: exp.Initcap, reader: Reader) -> Expr:
    if node.expression != exp.Literal.string(" "):  # sqlglot's addition
        raise reader.error("initcap() takes 1 argument, not 2", node)
    return tree.Call((reader.expr(node.this),), "initcap", at=reader.at(node))


@reads("this expression", exp.Log)
def _(node: exp.Log, reader: Reader) -> Expr:
    if node.args.get("expression") is None:
        return tree.Call((reader.expr(node.this),), "ln", at=reader.at(node))
    base = tree.Call((reader.expr(node.this),), "ln")
    return tree.Arithmetic("/", tree.Call((reader.expr(node.expression),), "ln"), base, at=reader.at(node))


@reads("this expression position", exp.Trim)
def _(node: exp.Trim, reader: Reader) -> Expr:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    characters = node.args.get("expression")
    args = (node.this,) if characters is None else (node.this, characters)
    return tree.Call(reader.all(args), name, at=reader.at(node))


# Names and constants.


@reads("this table db catalog", exp.Column)
def _(node: exp.Column, reader: Reader) -> Expr:
    if not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise reader.error(f"{sql_text(node)!r} is not a column", node)
    return tree.Name(tuple(part.name for part in node.parts), at=reader.at(node))


@reads("this expression", exp.Dot)
def _(node: exp.Dot, reader: Reader) -> Expr:
    if not isinstance(node.this, (exp.Column, exp.Dot, exp.Bracket)) or not isinstance(
        node.expression, exp.Identifier
    ):
        raise reader.error(f"{sql_text(node)!r} is not a column", node)
    owner, name, at = reader.expr(node.this), node.expression.name, reader.at(node)
    if isinstance(owner, tree.Name):
        return tree.Name((*owner.parts, name), at=at)
    return tree.Call((owner, tree.Literal(name, type=STRING)), "path", at=at)


@reads("this expressions offset safe", exp.Bracket)
def _(node: exp.Bracket, reader: Reader) -> Expr:
    """Read `xs[0]`, `m['key']` and `ELEMENT_AT(xs, 1)`, which counts from 1 unless it is of a map."""
    if len(node.expressions) != 1 or not isinstance(node.this, (exp.Column, exp.Dot, exp.Bracket)):
        raise reader.error(f"{sql_text(node)!r} has no meaning in a predicate here", node)
    owner, index, at = reader.expr(node.this), reader.expr(node.expressions[0]), reader.at(node)
    if isinstance(index, tree.Literal) and isinstance(index.value, str):
        return tree.Call((owner, replace(index, type=STRING)), "path", at=at)
    if node.args.get("offset"):
        return tree.Call((owner, index), "element_at", at=at)
    return tree.Call((owner, index), "path", at=at)


@reads("this quoted", exp.Identifier)
def _(node: exp.Identifier, reader: Reader) -> Expr:
    return tree.Name((node.name,), at=reader.at(node))


@reads("this", exp.Paren)
def _(node: exp.Paren, reader: Reader) -> Expr:
    return reader.expr(node.this)


_MOST_DIGITS = 1000


@reads("this is_string", exp.Literal)
def _(node: exp.Literal, reader: Reader) -> Expr:
    text, at = str(node.this), reader.at(node)
    if node.is_string:
        return tree.Literal(text, at=at)
    if len(text) > _MOST_DIGITS:
        raise reader.error(f"a number has {len(text)} digits; {_MOST_DIGITS} are allowed", node)
    if re.fullmatch(r"-?[0-9]+", text):
        return tree.Literal(int(text), at=at)
    if not re.fullmatch(r"-?([0-9]+\.?|[0-9]*\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        raise reader.error(f"'{text}' is not a number", node)
    if "e" in text.lower():
        return tree.Literal(float(text), type=FLOAT64, at=at)
    return tree.Literal(PyDecimal(text), at=at)


@reads("this", exp.Boolean)
def _(node: exp.Boolean, reader: Reader) -> Expr:
    return tree.Literal(bool(node.this), at=reader.at(node))


@reads("", exp.Null)
def _(node: exp.Null, reader: Reader) -> Expr:
    return tree.Literal(None, at=reader.at(node))


@reads("this unit fraction_in_string", exp.Interval)
def _(node: exp.Interval, reader: Reader) -> Expr:
    amount, unit = node.this, node.args.get("unit")
    if isinstance(unit, exp.IntervalSpan):
        return _years_and_months(node, reader)
    if not isinstance(amount, exp.Literal) or not (unit is None or isinstance(unit, exp.Var)):
        raise reader.error("an interval is a constant, such as INTERVAL 10 SECONDS", node)
    # Of a text with a unit in it, sqlglot keeps what it understands.
    text = node.meta.get("text") or str(amount.this)
    if unit is not None and not re.search("[a-z]", text, re.IGNORECASE):
        text = f"{text} {unit.name}"
    if len(text) > _MOST_DIGITS:
        raise reader.error(f"a number has {len(text)} digits; {_MOST_DIGITS} are allowed", node)
    if re.search("month|quarter|year|decade|centur", text, re.IGNORECASE):
        return _months(text, node, reader)
    try:
        length = Duration.parse(text.lower())
    except WindowError as error:
        raise reader.error(str(error), node) from None
    step, size = ("us", 10**3) if length.nanoseconds % 10**3 == 0 else ("ns", 1)
    return tree.Literal(length.nanoseconds // size, type=Interval(step), at=reader.at(node))


_MONTHS = {"month": 1, "months": 1, "quarter": 3, "quarters": 3, "year": 12, "years": 12}
_MONTH_PARTS = re.compile(r"\s*([+-]?[0-9]+)\s+([a-z]+)", re.IGNORECASE)


def _months(text: str, node: exp.Interval, reader: Reader) -> Expr:
    """Read an interval of months and years."""
    parts = _MONTH_PARTS.findall(text)
    known = all(unit.lower() in _MONTHS for _, unit in parts)
    if not known or _MONTH_PARTS.sub("", text).strip():
        raise reader.error(
            f"'{text}' is neither whole months and years nor a fixed length; write two intervals, such as "
            "INTERVAL 1 MONTH and INTERVAL 2 DAYS",
            node,
        )
    months = sum(int(count) * _MONTHS[unit.lower()] for count, unit in parts)
    return tree.Literal(months, type=Months(), at=reader.at(node))


def _years_and_months(node: exp.Interval, reader: Reader) -> Expr:
    """Read `INTERVAL '1-2' YEAR TO MONTH`."""
    span = node.args["unit"]
    found = re.fullmatch(r"\s*([+-]?)([0-9]{1,9})-([0-9]{1,9})\s*", node.this.name)
    if (span.this.name.upper(), span.expression.name.upper()) != ("YEAR", "MONTH") or found is None:
        raise reader.error("an interval is a constant, such as INTERVAL 10 SECONDS", node)
    months = int(found[2]) * 12 + int(found[3])
    return tree.Literal(-months if found[1] == "-" else months, type=Months(), at=reader.at(node))


# Logic and comparisons.


@reads("this", exp.Neg)
def _(node: exp.Neg, reader: Reader) -> Expr:
    match node.this:
        case exp.TryCast(this=exp.Literal(is_string=False) as literal) as suffixed:
            # sqlglot reads 128Y as a cast. The sign belongs to the number: 128Y does not fit, -128Y does.
            number, target = reader.expr(literal), _target(suffixed, reader)
            return tree.Cast(tree.Negate(number, at=number.at), type=target, at=reader.at(node))
    return tree.Negate(reader.expr(node.this), at=reader.at(node))


@reads("this expression", exp.And)
def _(node: exp.And, reader: Reader) -> Expr:
    return tree.And(reader.all(node.flatten()), at=reader.at(node))


@reads("this expression", exp.Or)
def _(node: exp.Or, reader: Reader) -> Expr:
    return tree.Or(reader.all(node.flatten()), at=reader.at(node))


@reads("this", exp.Not)
def _(node: exp.Not, reader: Reader) -> Expr:
    return tree.Not(reader.expr(node.this), at=reader.at(node))


@reads("this expression negate", exp.Is)
def _(node: exp.Is, reader: Reader) -> Expr:
    arg, at = reader.expr(node.this), reader.at(node)
    if isinstance(node.expression, exp.Null):
        found: Expr = tree.IsNull(arg, at=at)
    elif isinstance(node.expression, exp.Boolean):
        same = tree.Compare("=", arg, reader.expr(node.expression), at=at)
        found = tree.And((tree.Not(tree.IsNull(arg)), same), at=at)
    else:
        raise reader.error("IS takes NULL, TRUE or FALSE", node)
    return tree.Not(found, at=at) if node.args.get("negate") else found


@reads("this low high symmetric", exp.Between)
def _(node: exp.Between, reader: Reader) -> Expr:
    if node.args.get("symmetric"):
        raise reader.error("BETWEEN SYMMETRIC is not known; write BETWEEN LEAST(…) AND GREATEST(…)", node)
    value = reader.expr(node.this)
    low, high = reader.expr(node.args["low"]), reader.expr(node.args["high"])
    at = reader.at(node)
    return tree.And((tree.Compare(">=", value, low, at=at), tree.Compare("<=", value, high, at=at)), at=at)


@reads("this expression negate", exp.Like, exp.ILike)
def _(node: exp.Expr, reader: Reader) -> Expr:
    return _like(node, reader, reader.expr(node.expression))


def _like(node: exp.Expr, reader: Reader, pattern: Expr) -> Expr:
    at = reader.at(node)
    matches = tree.Call((reader.expr(node.this), pattern), node.key, at=at)
    return tree.Not(matches, at=at) if node.args.get("negate") else matches


@reads("this expression", exp.Escape)
def _(node: exp.Escape, reader: Reader) -> Expr:
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
    reader.check(like, NODES[type(like)][1])
    return _like(like, reader, tree.Literal(rewritten, at=reader.at(pattern)))


def _escaped_by_backslash(pattern: str, escape: str) -> str | None:
    """Replace the escape character of a pattern by a backslash; return None if the pattern ends with it."""
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


@reads("this expressions query unnest field", exp.In)
def _(node: exp.In, reader: Reader) -> Expr:
    if not node.expressions or any(node.args.get(other) for other in ("query", "unnest", "field")):
        raise reader.error("IN takes a list of values, such as l.x IN (1, 2, 3)", node)
    value, at = reader.expr(node.this), reader.at(node)
    return tree.Or(
        tuple(tree.Compare("=", value, other, at=at) for other in reader.all(node.expressions)), at=at
    )


@reads("this expression", exp.NullSafeEQ, exp.NullSafeNEQ)
def _(node: exp.Binary, reader: Reader) -> Expr:
    a, b, at = reader.expr(node.this), reader.expr(node.expression), reader.at(node)
    both = tree.And((tree.Not(tree.IsNull(a)), tree.Not(tree.IsNull(b)), tree.Compare("=", a, b, at=at)))
    same = tree.Or((both, tree.And((tree.IsNull(a), tree.IsNull(b)))), at=at)
    return tree.Not(same, at=at) if isinstance(node, exp.NullSafeNEQ) else same


# Choice and casts.


@reads("this ifs default", exp.Case)
def _(node: exp.Case, reader: Reader) -> Expr:
    subject = node.args.get("this")
    value = reader.expr(subject) if subject is not None else None
    branches: list[Expr] = []
    for arm in node.args["ifs"]:
        reader.check(arm, frozenset(("this", "true")))
        condition = reader.expr(arm.this)
        if value is not None:
            condition = tree.Compare("=", value, condition, at=reader.at(arm))
        branches += [condition, reader.expr(arm.args["true"])]
    default = node.args.get("default")
    otherwise = reader.expr(default) if default is not None else tree.Literal(None)
    return tree.Case(tuple(branches), otherwise, at=reader.at(node))


@reads("this true false", exp.If)
def _(node: exp.If, reader: Reader) -> Expr:
    default = node.args.get("false")
    otherwise = reader.expr(default) if default is not None else tree.Literal(None)
    return tree.Case((reader.expr(node.this), reader.expr(node.args["true"])), otherwise, at=reader.at(node))


@reads("this expression", exp.Nullif)
def _(node: exp.Nullif, reader: Reader) -> Expr:
    value = reader.expr(node.this)
    same = tree.Compare("=", value, reader.expr(node.expression), at=reader.at(node))
    return tree.Case((same, tree.Literal(None)), value, at=reader.at(node))


@reads("this to safe", exp.TryCast)
def _(node: exp.TryCast, reader: Reader) -> Expr:
    return tree.Cast(reader.expr(node.this), type=_target(node, reader), at=reader.at(node))


def _target(node: exp.Cast, reader: Reader) -> Type:
    try:
        return type_of(node.to)
    except ValueError as error:
        raise reader.error(str(error), node) from None


@reads("this to safe", exp.Cast)
def _(node: exp.Cast, reader: Reader) -> Expr:
    """Read `DATE '2024-12-31'` and the like: a constant, which must be readable. Others are casts."""
    target, arg = _target(node, reader), reader.expr(node.this)
    if isinstance(arg, tree.Literal) and isinstance(arg.value, str):
        match target:
            case Date():
                return tree.Literal(parse_date(arg.value, arg), type=target, at=arg.at)
            case Timestamp():
                return parse_timestamp(arg.value, arg)
            case TimeOfDay():
                return parse_time(arg.value, arg)
    return tree.Cast(arg, type=target, at=reader.at(node))


@reads("this safe", exp.TsOrDsToDate)
def _(node: exp.TsOrDsToDate, reader: Reader) -> Expr:
    return tree.Cast(reader.expr(node.this), type=DATE, at=reader.at(node))


# Fields of dates.


@reads("this expression", exp.Extract)
def _(node: exp.Extract, reader: Reader) -> Expr:
    field = node.this.name.lower()
    if field not in FIELDS:
        raise reader.error(f"EXTRACT knows {', '.join(sorted(FIELDS))}, not {field}", node)
    return tree.Call((reader.expr(node.expression),), FIELDS[field], at=reader.at(node))
