"""Conditions of Spark Connect: `Column` predicates and aliases, read from the messages of its protocol.

A condition becomes SQL text, which is parsed like the text that a user writes. Columns are resolved here: by
the DataFrame that they come from (`left.x`), by its alias (`F.col("t.x")`), or because one input has the
name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame

from handshake.engines.spark.private import connect_relation
from handshake.errors import ExpressionError
from handshake.plan.expr import Expr, Name
from handshake.plan.parse import parse

_SAME = (
    "=", "<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "%", "&", "|", "^", "AND", "OR", "LIKE", "ILIKE",
    "RLIKE",
)  # fmt: skip
_INFIX = {"==": "=", "!=": "<>", **{operator.lower(): operator for operator in _SAME}}
_FORMS: dict[str, Callable[..., str]] = {
    "not": lambda a: f"(NOT {a})",
    "~": lambda a: f"(~ {a})",
    "negative": lambda a: f"(- {a})",
    "isnull": lambda a: f"({a} IS NULL)",
    "isnotnull": lambda a: f"({a} IS NOT NULL)",
    "in": lambda a, *others: f"({a} IN ({', '.join(others)}))",
    "substr": lambda *args: f"SUBSTRING({', '.join(args)})",
    "**": lambda a, b: f"POWER({a}, {b})",
    "when": lambda *parts: _case(parts),
}
_EPOCH = datetime(1970, 1, 1)


def translate_connect(condition: Column, left: DataFrame, right: DataFrame) -> Expr:
    """Return the predicate for a condition of Spark Connect on two DataFrames."""
    column: Any = condition
    return parse(_Writer((left, right)).text(column.to_plan(left.sparkSession.client)))


def connect_alias(frame: DataFrame) -> str | None:
    """Return the alias of a DataFrame of Spark Connect."""
    relation = connect_relation(frame)
    if relation is None or relation.WhichOneof("rel_type") != "subquery_alias":
        return None
    return str(relation.subquery_alias.alias)


class _Writer:
    """The translation of one condition to SQL text."""

    def __init__(self, frames: tuple[DataFrame, DataFrame]) -> None:
        self._columns = [frame.columns for frame in frames]
        self._aliases = [connect_alias(frame) for frame in frames]
        self._plans = [_plan_ids(frame) for frame in frames]

    def text(self, message: Any) -> str:
        kind = message.WhichOneof("expr_type")
        match kind:
            case "literal":
                value = message.literal.WhichOneof("literal_type")
                if value not in _LITERALS:
                    raise ExpressionError(f"cannot read a constant of type {value} in the condition")
                return _LITERALS[value](getattr(message.literal, value))
            case "unresolved_attribute":
                return self._attribute(message.unresolved_attribute)
            case "unresolved_function":
                return self._function(message.unresolved_function)
            case "alias":
                return self.text(message.alias.expr)
            case "cast":
                return f"CAST({self.text(message.cast.expr)} AS {_type(message.cast)})"
            case "expression_string":
                return f"({message.expression_string.expression})"
        raise ExpressionError(
            f"cannot read a part of the condition ({kind}); write it as SQL text, such as "
            '"l.x < r.a", or built: handshake.left.x < handshake.right.a'
        )

    def _function(self, call: Any) -> str:
        name, args = call.function_name, [self.text(argument) for argument in call.arguments]
        form = _FORMS.get(name.lower())
        if form is not None:
            return form(*args)
        if name.lower() in _INFIX and len(args) == 2:
            return f"({args[0]} {_INFIX[name.lower()]} {args[1]})"
        return f"{name}({', '.join(args)})"

    def _attribute(self, attribute: Any) -> str:
        name = parse(attribute.unparsed_identifier)
        if not isinstance(name, Name):
            raise ExpressionError(f"cannot read the column {attribute.unparsed_identifier}")
        parts = name.parts
        if attribute.HasField("plan_id"):
            found = [side for side in (0, 1) if attribute.plan_id in self._plans[side]]
        elif len(parts) > 1 and parts[0] in self._aliases:
            found = [side for side in (0, 1) if self._aliases[side] == parts[0]]
            parts = parts[1:]
        else:
            folded = parts[0].casefold()
            found = [side for side in (0, 1) if folded in map(str.casefold, self._columns[side])]
        if len(found) != 1:
            owner = "could belong to either DataFrame" if found else "belongs to neither DataFrame"
            raise ExpressionError(
                f"the column {attribute.unparsed_identifier} {owner}; give each a name: "
                'join(a.alias("a"), b.alias("b"), F.col("a.x") < F.col("b.x"))'
            )
        quoted = (part.replace("`", "``") for part in ("lr"[found[0]], *parts))
        return ".".join(f"`{part}`" for part in quoted)


def _plan_ids(frame: DataFrame) -> set[int]:
    """Return the numbers of the plans whose columns are those of a DataFrame: its own, and below an alias."""
    relation, found = connect_relation(frame), set()
    while relation is not None:
        found.add(relation.common.plan_id)
        aliased = relation.WhichOneof("rel_type") == "subquery_alias"
        relation = relation.subquery_alias.input if aliased else None
    return found


def _case(parts: tuple[str, ...]) -> str:
    branches = [f"WHEN {a} THEN {b}" for a, b in zip(parts[::2], parts[1::2], strict=False)]
    otherwise = f" ELSE {parts[-1]}" if len(parts) % 2 else ""
    return f"CASE {' '.join(branches)}{otherwise} END"


def _type(cast: Any) -> str:
    if cast.WhichOneof("cast_to_type") == "type_str":
        return str(cast.type_str)
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return proto_schema_to_pyspark_data_type(cast.type).simpleString()


def _float(value: float) -> str:
    return f"{value!r}D" if math.isfinite(value) else f"CAST('{value!r}' AS DOUBLE)"


def _string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_LITERALS: dict[str, Callable[[Any], str]] = {
    "null": lambda value: "NULL",
    "boolean": lambda value: "TRUE" if value else "FALSE",
    **dict.fromkeys(("byte", "short", "integer", "long"), str),
    "float": lambda value: f"CAST({_float(value)} AS FLOAT)",
    "double": _float,
    "decimal": lambda value: f"{Decimal(value.value):f}BD",
    "string": _string,
    "binary": lambda value: f"X'{value.hex()}'",
    "date": lambda value: f"DATE '{date(1970, 1, 1) + timedelta(days=value)}'",
    "timestamp": lambda value: f"TIMESTAMP '{_EPOCH + timedelta(microseconds=value)}+00:00'",
    "timestamp_ntz": lambda value: f"TIMESTAMP '{_EPOCH + timedelta(microseconds=value)}'",
    "day_time_interval": lambda value: f"INTERVAL {value} MICROSECOND",
}
