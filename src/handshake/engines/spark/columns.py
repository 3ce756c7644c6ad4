"""Spark `Column` conditions as predicates: Spark resolves the names, we read its tree."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal as PyDecimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

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
)
from handshake.plan.parse import parse_type
from handshake.plan.reader import moving
from handshake.plan.types import round_float32
from handshake.schema import DATE, FLOAT32, FLOAT64, Interval, Timestamp

__all__ = ["translate"]

_REMEDY = 'write it as SQL text, such as "l.x < r.a", or built: handshake.left.x < handshake.right.a'


def translate(condition: Column, left: DataFrame, right: DataFrame) -> Expr:
    """The predicate that a condition on two DataFrames stands for."""
    if not hasattr(condition, "_jc") or not hasattr(left, "_jdf"):
        raise ExpressionError(f"a Column of Spark Connect cannot be looked into; {_REMEDY}")
    plan = _analysed(condition, left, right)
    names = {
        attribute.exprId().id(): Name((qualifier, attribute.name()))
        for qualifier, child in (("l", plan.left()), ("r", plan.right()))
        for attribute in _sequence(child.output())
    }
    return _Reader(names, left).expr(plan.condition().get())


def _analysed(condition: Column, left: DataFrame, right: DataFrame) -> Any:
    """Spark's own join on the condition, never run: it says which column of which side each name is."""
    try:
        return left.join(right, condition)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        raise _refused(error, condition) from None


def _refused(error: PySparkException, condition: Column) -> ExpressionError:
    kind, text = error.getCondition() or "", str(error).split("\n")[0].split(" SQLSTATE")[0]
    if kind == "INVALID_NON_DETERMINISTIC_EXPRESSIONS":
        return ExpressionError(moving(_text(condition)))
    if "ambiguous" in text.lower():
        return ExpressionError(
            f"it cannot be told which DataFrame a column in {_text(condition)} belongs to; give each a name: "
            f'join(a.alias("a"), b.alias("b"), F.col("a.x") < F.col("b.x")), or {_REMEDY}'
        )
    return ExpressionError(f"Spark cannot resolve the condition {_text(condition)}: {text}; or {_REMEDY}")


def _text(condition: Column) -> str:
    return str(condition).removeprefix("Column<'").removesuffix("'>")


def _sequence(seq: Any) -> list[Any]:
    return [seq.apply(i) for i in range(seq.size())]


_ARITHMETIC = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "IntegralDivide": "div", "Remainder": "%",
    "DateAdd": "+", "DateSub": "-", "DateDiff": "-", "SubtractDates": "-", "SubtractTimestamps": "-",
    "TimestampAddInterval": "+", "TimeAdd": "+",
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
    "Minute": "minute", "Second": "second",
}  # fmt: skip
_TRIMS = {"StringTrim": "trim", "StringTrimLeft": "ltrim", "StringTrimRight": "rtrim"}
_MOVING = frozenset(
    ("CurrentDate", "CurrentTime", "CurrentTimestamp", "Now", "LocalTimestamp", "Rand", "Randn", "Uuid")
)
_REPLACED = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"


class _Reader:
    """Translates one resolved condition; one small function per kind of node, and the default is an error."""

    def __init__(self, names: dict[int, Name], frame: DataFrame) -> None:
        self.names, self.shared = names, dict[Any, Expr]()
        self.jvm: Any = frame.sparkSession._jvm

    def expr(self, node: Any) -> Expr:
        """Translate a node."""
        kind = str(node.getClass().getSimpleName())
        for table, make in (
            (_ARITHMETIC, self._arithmetic),
            (_COMPARE, self._compare),
            (_CALLS, self._call),
            (_TRIMS, self._trim),
        ):
            if kind in table:
                return make(node, table[kind])
        if kind in _NODES:
            return _NODES[kind](self, node)
        if kind in _MOVING:
            raise ExpressionError(moving(node.toString()))
        if self.jvm.java.lang.Class.forName(_REPLACED).isInstance(node):
            return self.expr(node.replacement())
        raise self._unknown(node, kind)

    def all(self, node: Any) -> tuple[Expr, ...]:
        """The operands of a node, translated."""
        return tuple(self.expr(child) for child in _sequence(node.children()))

    def _unknown(self, node: Any, kind: str) -> ExpressionError:
        if "Python" in kind:
            return ExpressionError(
                f"the Python UDF in {node} cannot be looked into; "
                "give the function itself: handshake.call(function, handshake.left.x, handshake.right.a)"
            )
        return ExpressionError(f"cannot read {node} ({kind}) in a Column condition; {_REMEDY}")

    def _arithmetic(self, node: Any, op: str) -> Expr:
        return Arithmetic(op, *self._two(node))

    def _compare(self, node: Any, op: str) -> Expr:
        return Compare(op, *self._two(node))

    def _two(self, node: Any) -> tuple[Expr, Expr]:
        a, b = self.all(node)[:2]
        return a, b

    def _call(self, node: Any, name: str) -> Expr:
        return Call(self.all(node), name)

    def _trim(self, node: Any, name: str) -> Expr:
        if node.children().size() != 1:
            raise self._unknown(node, name)
        return Call(self.all(node), name)

    def attribute(self, node: Any) -> Expr:
        """A column of one of the sides."""
        return self.names[node.exprId().id()]

    def literal(self, node: Any) -> Expr:
        """A constant, which Spark holds in its own form."""
        value, kind = node.value(), str(node.dataType().typeName())
        if value is None:
            return Literal(None)
        make = _LITERALS.get(kind.split("(")[0])
        if make is None:
            make = _LITERALS["interval"] if _day_time(node.dataType()) else None
        if make is None:
            raise self._unknown(node, f"a constant of type {kind}")
        return make(value)

    def cast(self, node: Any) -> Expr:
        """A cast that the user wrote; those that Spark adds are left to our own rules."""
        (arg,) = self.all(node)
        tag = self.jvm.org.apache.spark.sql.catalyst.expressions.Cast.USER_SPECIFIED_CAST()
        if node.getTagValue(tag).isEmpty():
            return arg
        return Cast(arg, type=parse_type(node.dataType().simpleString()))

    def same(self, node: Any) -> Expr:
        """`<=>`: NULL is the same as NULL."""
        a, b = self._two(node)
        both = And((Not(IsNull(a)), Not(IsNull(b)), Compare("=", a, b)))
        return Or((both, And((IsNull(a), IsNull(b)))))

    def is_nan(self, node: Any) -> Expr:
        """The one value that is not equal to itself; false of NULL."""
        (arg,) = self.all(node)
        return And((Not(IsNull(arg)), Compare("<>", arg, arg)))

    def among(self, node: Any) -> Expr:
        """`IN`."""
        value, *others = self.all(node)
        return Or(tuple(Compare("=", value, other) for other in others))

    def case(self, node: Any) -> Expr:
        """`CASE`; without an ELSE it is NULL."""
        parts = self.all(node)
        return Case(parts[:-1], parts[-1]) if len(parts) % 2 else Case(parts, Literal(None))

    def like(self, node: Any) -> Expr:
        """`LIKE` and `ILIKE` with the usual escape."""
        if str(node.escapeChar()) != "\\":
            raise self._unknown(node, "LIKE … ESCAPE")
        return Call(self.all(node), str(node.getClass().getSimpleName()).lower())

    def rounded(self, node: Any) -> Expr:
        """To whole numbers only."""
        number, scale = self._two(node)
        if scale != Literal(0):
            raise self._unknown(node, "round to a number of digits")
        return Call((number,), "round")

    def shared_parts(self, node: Any) -> Expr:
        """An expression with parts that are written once and used several times (`BETWEEN`)."""
        for part in _sequence(node.defs()):
            self.shared[part.id().id()] = self.expr(part.child())
        return self.expr(node.child())


def _day_time(kind: Any) -> bool:
    return str(kind.getClass().getSimpleName()) == "DayTimeIntervalType"


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
_NODES: dict[str, Callable[[_Reader, Any], Expr]] = {
    "AttributeReference": _Reader.attribute,
    "Literal": _Reader.literal,
    "Cast": _Reader.cast,
    "And": lambda reader, node: And(reader.all(node)),
    "Or": lambda reader, node: Or(reader.all(node)),
    "Not": lambda reader, node: Not(reader.all(node)[0]),
    "IsNull": lambda reader, node: IsNull(reader.all(node)[0]),
    "IsNotNull": lambda reader, node: Not(IsNull(reader.all(node)[0])),
    "IsNaN": _Reader.is_nan,
    "UnaryMinus": lambda reader, node: Negate(reader.all(node)[0]),
    "UnaryPositive": lambda reader, node: reader.all(node)[0],
    "Alias": lambda reader, node: reader.all(node)[0],
    "EqualNullSafe": _Reader.same,
    "In": _Reader.among,
    "CaseWhen": _Reader.case,
    "If": lambda reader, node: Case(reader.all(node)[:2], reader.all(node)[2]),
    "Like": _Reader.like,
    "ILike": _Reader.like,
    "Round": _Reader.rounded,
    "With": _Reader.shared_parts,
    "CommonExpressionRef": lambda reader, node: reader.shared[node.id().id()],
}
