"""Translation of Spark `Column` conditions: Spark resolves the names, and we read its expression tree."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal as PyDecimal
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from handshake.engines.spark.joins.connect import translate_connect
from handshake.engines.spark.private import analysed_plan, elements, is_instance, is_java_column, is_user_cast
from handshake.errors import ExpressionError
from handshake.plan.casts import round_float32
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
)
from handshake.plan.parse import parse_type
from handshake.plan.reader import moving
from handshake.schema import DATE, FLOAT32, FLOAT64, STRING, Interval, Months, Timestamp

_REMEDY = 'write it as SQL text, such as "l.x < r.a", or built: handshake.left.x < handshake.right.a'


def translate_column(condition: Column, left: DataFrame, right: DataFrame) -> Expr:
    """Return the predicate for a condition on two DataFrames."""
    if not is_java_column(condition):
        return translate_connect(condition, left, right)
    try:  # Spark's own join on the condition, which never runs, resolves the names
        plan: Any = analysed_plan(left.join(right, condition))
    except PySparkException as error:
        raise _resolve_error(error, condition) from None
    names = {
        attribute.exprId().id(): Name((qualifier, attribute.name()))
        for qualifier, child in (("l", plan.left()), ("r", plan.right()))
        for attribute in elements(child.output())
    }
    return _Reader(names, left).expr(plan.condition().get())


def _resolve_error(error: PySparkException, condition: Column) -> ExpressionError:
    kind, text = error.getCondition() or "", str(error).split("\n")[0].split(" SQLSTATE")[0]
    if kind == "INVALID_NON_DETERMINISTIC_EXPRESSIONS":
        return ExpressionError(moving(_text(condition)))
    if "ambiguous" in text.lower():
        return ExpressionError(
            f"a column in {_text(condition)} could belong to either DataFrame; give each a name: "
            f'join(a.alias("a"), b.alias("b"), F.col("a.x") < F.col("b.x")), or {_REMEDY}'
        )
    return ExpressionError(f"Spark cannot resolve the condition {_text(condition)}: {text}; or {_REMEDY}")


def _text(condition: Column) -> str:
    return str(condition).removeprefix("Column<'").removesuffix("'>")


_ARITHMETIC = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "IntegralDivide": "div", "Remainder": "%",
    "DateAdd": "+", "DateSub": "-", "DateDiff": "-", "SubtractDates": "-", "SubtractTimestamps": "-",
    "TimestampAddInterval": "+", "TimeAdd": "+", "DateAddYMInterval": "+", "TimestampAddYMInterval": "+",
}  # fmt: skip
_COMPARE = {
    "EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
}  # fmt: skip
_CALLS = {
    "Abs": "abs", "Signum": "sign", "Sqrt": "sqrt", "Exp": "exp", "Log": "ln", "Pow": "power", "Sin": "sin",
    "Cos": "cos", "Floor": "floor", "Ceil": "ceil", "Least": "least", "Greatest": "greatest",
    "Coalesce": "coalesce", "Lower": "lower", "Upper": "upper", "Length": "length", "Concat": "concat",
    "Substring": "substring", "StartsWith": "starts_with", "EndsWith": "ends_with", "Contains": "contains",
    "RLike": "regexp_like", "Year": "year", "Month": "month", "DayOfMonth": "day", "Hour": "hour",
    "Minute": "minute", "Second": "second", "SecondWithFraction": "seconds", "Quarter": "quarter",
    "DayOfWeek": "dayofweek", "WeekDay": "weekday", "DayOfYear": "dayofyear", "WeekOfYear": "weekofyear",
    "YearOfWeek": "yearofweek", "TruncTimestamp": "date_trunc", "TruncDate": "trunc", "LastDay": "last_day",
    "NextDay": "next_day", "MonthsBetween": "months_between", "AddMonths": "add_months",
    "MakeDate": "make_date", "UnixDate": "unix_date", "DateFromUnixDate": "date_from_unix_date",
    "UnixSeconds": "unix_seconds", "UnixMillis": "unix_millis", "UnixMicros": "unix_micros",
    "RoundCeil": "ceil", "RoundFloor": "floor", "BRound": "bround", "Rint": "rint", "Cbrt": "cbrt",
    "Pi": "pi", "EulerNumber": "e", "Expm1": "expm1", "Log10": "log10", "Log2": "log2", "Log1p": "log1p",
    "Hypot": "hypot", "Tan": "tan", "Cot": "cot", "Sec": "sec", "Csc": "csc", "Asin": "asin",
    "Acos": "acos", "Atan": "atan", "Atan2": "atan2", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh",
    "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "ToDegrees": "degrees", "ToRadians": "radians",
    "Pmod": "pmod", "NaNvl": "nanvl", "BitwiseAnd": "bit_and", "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor", "BitwiseNot": "bit_not", "BitwiseCount": "bit_count", "BitwiseGet": "getbit",
    "ShiftLeft": "shiftleft", "ShiftRight": "shiftright", "ShiftRightUnsigned": "shiftrightunsigned",
    "StringInstr": "instr", "StringLocate": "locate", "SplitPart": "split_part", "StringReplace": "replace",
    "StringLPad": "lpad", "StringRPad": "rpad", "ConcatWs": "concat_ws", "Hex": "hex", "Left": "left",
    "Right": "right", "RegExpExtract": "regexp_extract", "StringRepeat": "repeat", "Reverse": "reverse",
    "InitCap": "initcap", "StringTranslate": "translate", "Ascii": "ascii", "Chr": "chr",
    "SubstringIndex": "substring_index", "StringSpace": "space", "OctetLength": "octet_length",
    "BitLength": "bit_length", "Overlay": "overlay", "StringTrim": "trim", "StringTrimLeft": "ltrim",
    "StringTrimRight": "rtrim",
}  # fmt: skip
_MOVING = frozenset(
    ("CurrentDate", "CurrentTime", "CurrentTimestamp", "Now", "LocalTimestamp", "Rand", "Randn", "Uuid")
)
_REPLACED = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"


class _Reader:
    """The translation of one resolved condition; kinds of nodes that no table has are errors."""

    def __init__(self, names: dict[int, Name], frame: DataFrame) -> None:
        self.names, self.frame, self.shared = names, frame, dict[Any, Expr]()

    def expr(self, node: Any) -> Expr:
        kind = str(node.getClass().getSimpleName())
        if kind in _NODES:
            return _NODES[kind](self, node)
        if kind in _CALLS:
            return Call(self.all(node), _CALLS[kind])
        if kind in _OPERATORS:
            return _OPERATORS[kind](*self.all(node))
        if kind in _MOVING:
            raise ExpressionError(moving(node.toString()))
        if is_instance(node, _REPLACED, self.frame):
            return self.expr(node.replacement())
        raise self._unknown(node, kind)

    def all(self, node: Any) -> tuple[Expr, ...]:
        return tuple(self.expr(child) for child in elements(node.children()))

    def _unknown(self, node: Any, kind: str) -> ExpressionError:
        if "Python" in kind:
            return ExpressionError(
                f"the Python UDF in {node} cannot be read; "
                "pass the function itself: handshake.call(function, handshake.left.x, handshake.right.a)"
            )
        return ExpressionError(f"cannot read {node} ({kind}) in a Column condition; {_REMEDY}")

    def literal(self, node: Any) -> Expr:
        """Translate a constant from Spark's internal form."""
        value, kind = node.value(), str(node.dataType().typeName())
        if value is None:
            return Literal(None)
        make = _LITERALS.get(kind.split("(")[0])
        if make is None:
            make = _INTERVALS.get(str(node.dataType().getClass().getSimpleName()))
        if make is None:
            raise self._unknown(node, f"a constant of type {kind}")
        return make(value)

    def cast(self, node: Any) -> Expr:
        """Translate a cast that the user wrote; drop casts that Spark added, since our own rules apply."""
        (arg,) = self.all(node)
        if not is_user_cast(node, self.frame):
            return arg
        return Cast(arg, type=parse_type(node.dataType().simpleString()))

    def like(self, node: Any) -> Expr:
        """Translate `LIKE` and `ILIKE` with the default escape."""
        if str(node.escapeChar()) != "\\":
            raise self._unknown(node, "LIKE … ESCAPE")
        return Call(self.all(node), str(node.getClass().getSimpleName()).lower())

    def replace_pattern(self, node: Any) -> Expr:
        """Translate `regexp_replace` from the first character on."""
        *args, first = self.all(node)
        if first != Literal(1):
            raise self._unknown(node, "regexp_replace from a later position")
        return Call(tuple(args), "regexp_replace")

    def field(self, node: Any) -> Expr:
        return Call((self.expr(node.child()), Literal(str(node.extractFieldName()), type=STRING)), "path")

    def with_unit(self, node: Any) -> Expr:
        """Translate a function of a unit of time."""
        name = str(node.getClass().getSimpleName()).lower()
        return Call((Literal(str(node.unit()), type=STRING), *self.all(node)), name)

    def shared_parts(self, node: Any) -> Expr:
        """Translate an expression whose parts are used several times (`BETWEEN`)."""
        for part in elements(node.defs()):
            self.shared[part.id().id()] = self.expr(part.child())
        return self.expr(node.child())


def _same(a: Expr, b: Expr) -> Expr:
    """Return `a <=> b`, for which NULL equals NULL."""
    both = And((Not(IsNull(a)), Not(IsNull(b)), Compare("=", a, b)))
    return Or((both, And((IsNull(a), IsNull(b)))))


def _case(*parts: Expr) -> Expr:
    """Return `CASE`, which is NULL without an ELSE."""
    return Case(parts[:-1], parts[-1]) if len(parts) % 2 else Case(parts, Literal(None))


_LITERALS: dict[str, Callable[[Any], Literal]] = {
    **dict.fromkeys(("boolean", "byte", "short", "integer", "long"), Literal),
    "float": lambda value: Literal(round_float32(float(value)), type=FLOAT32),
    "double": lambda value: Literal(float(value), type=FLOAT64),
    "decimal": lambda value: Literal(PyDecimal(value.toString())),
    "string": lambda value: Literal(str(value.toString())),
    "binary": lambda value: Literal(bytes(value)),
    "date": lambda value: Literal(int(value), type=DATE),
    "timestamp": lambda value: Literal(int(value), type=Timestamp("us", "UTC")),
    "timestamp_ntz": lambda value: Literal(int(value), type=Timestamp("us")),
    "interval": lambda value: Literal(int(value), type=Interval("us")),
}
_INTERVALS: dict[str, Callable[[Any], Literal]] = {
    "DayTimeIntervalType": _LITERALS["interval"],
    "YearMonthIntervalType": lambda value: Literal(int(value), type=Months()),
}
_NODES: dict[str, Callable[[_Reader, Any], Expr]] = {
    "AttributeReference": lambda reader, node: reader.names[node.exprId().id()],
    "Literal": _Reader.literal,
    "Cast": _Reader.cast,
    "Like": _Reader.like,
    "ILike": _Reader.like,
    "RegExpReplace": _Reader.replace_pattern,
    "GetStructField": _Reader.field,
    "TimestampAdd": _Reader.with_unit,
    "TimestampDiff": _Reader.with_unit,
    "With": _Reader.shared_parts,
    "CommonExpressionRef": lambda reader, node: reader.shared[node.id().id()],
}
"""Translations of nodes whose children are not all that they say."""
_OPERATORS: dict[str, Callable[..., Expr]] = {
    **{kind: partial(Arithmetic, op) for kind, op in _ARITHMETIC.items()},
    **{kind: partial(Compare, op) for kind, op in _COMPARE.items()},
    "And": lambda *args: And(args),
    "Or": lambda *args: Or(args),
    "Not": Not,
    "IsNull": IsNull,
    "IsNotNull": lambda arg: Not(IsNull(arg)),
    "IsNaN": lambda arg: And((Not(IsNull(arg)), Compare("<>", arg, arg))),  # false for NULL
    "UnaryMinus": Negate,
    "UnaryPositive": lambda arg: arg,
    "Alias": lambda arg: arg,
    "EqualNullSafe": _same,
    "In": lambda value, *others: Or(tuple(Compare("=", value, other) for other in others)),
    "CaseWhen": _case,
    "If": lambda condition, a, b: Case((condition, a), b),
    "Round": lambda number, scale: Call((number,) if scale == Literal(0) else (number, scale), "round"),
    "Logarithm": lambda base, number: Arithmetic("/", Call((number,), "ln"), Call((base,), "ln")),
    "GetArrayItem": lambda *args: Call(args, "path"),
    "GetMapValue": lambda *args: Call(args, "path"),
    "NullIfResult": lambda condition, value: Case((condition, Literal(None)), value),
}
"""Expressions of the children of other nodes."""
