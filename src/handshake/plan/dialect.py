"""The SQL dialect of predicates: Spark's, as sqlglot reads it, but no argument is dropped."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel
from sqlglot.parsers.spark import SparkParser

from handshake.plan.functions.registry import ALIASES, FUNCTIONS
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    STRING,
    Decimal,
    Int,
    TimeOfDay,
    Timestamp,
    Type,
)

_Build = Callable[[list[exp.Expr]], exp.Expr]


def _exactly(count: int, name: str) -> _Build:
    """Build a function as sqlglot does, unless it has more arguments than sqlglot reads."""
    build: _Build = SparkParser.FUNCTIONS[name]

    def build_exactly(args: list[exp.Expr]) -> exp.Expr:
        return build(args) if len(args) == count else exp.Anonymous(this=name, expressions=args)

    return build_exactly


def as_written(name: str) -> _Build:
    """Build a function with its name and all its arguments, which binding checks."""
    return lambda args: exp.Anonymous(this=name, expressions=args)


_REWRITTEN = ("concat", "like", "ilike", "rlike", "regexp_like", "substring", "substr")
"""Functions that sqlglot also builds from other syntax; parse.py translates its nodes."""
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
ARGUMENTS = {**dict.fromkeys((*_CASTS, "LOG2", "LOG10"), 1), "DIV": 2, "MOD": 2}
"""Functions of which sqlglot would drop surplus arguments, and how many they take."""
_INTERNAL = ("DATE_TO_DATE_STR", "TIME_TO_TIME_STR", "TS_OR_DS_TO_DATE", "TS_OR_DS_TO_DATE_STR")


class Predicate(Spark):
    """Spark's dialect, in which a doubled quote is a quote character."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
            **{name: build for name, build in SparkParser.FUNCTIONS.items() if name not in _INTERNAL},
            **{name: _exactly(n, name) for name, n in ARGUMENTS.items() if name in SparkParser.FUNCTIONS},
            **{name.upper(): as_written(name) for name in (*FUNCTIONS, *ALIASES) if name not in _REWRITTEN},
        }

        def _parse_interval(self, *args: Any, **options: Any) -> Any:
            """Parse an interval and remember its position and its text."""
            tokens = [token for token in (self._curr, self._next) if token]
            node = super()._parse_interval(*args, **options)
            if tokens and isinstance(node, exp.Expr):
                texts = [token.text for token in tokens if token.token_type == TokenType.STRING]
                first = next(node.find_all(exp.Interval, bfs=False))
                first.meta.update({"start": tokens[0].start, "text": texts[0] if texts else None})
            return node

        def _parse_as_command(self, start: Any) -> Any:
            self.raise_error("a condition is needed here", start)


def sql_text(node: exp.Expr) -> str:
    """Return a node as text for messages."""
    try:
        text = node.sql(dialect=Predicate, unsupported_level=ErrorLevel.IGNORE, comments=False)
    except Exception:  # it is about to be refused anyway
        return node.key
    return text if len(text) <= 80 else text[:79] + "…"


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


def type_of(node: exp.DataType) -> Type:
    """Return the type that a type name stands for; raise ValueError if it is not supported."""
    unread = {name for name, value in node.args.items() if value and name not in ("this", "expressions")}
    if node.this == exp.DType.DECIMAL and not unread:
        return _decimal(node)
    if not isinstance(node.this, exp.DType) or node.this not in _NAMED or unread:
        raise ValueError(f"type {sql_text(node)} is not one a predicate can use")
    if node.expressions and node.this not in _SIZED:
        raise ValueError(f"type {_NAMED[node.this]} takes no size here")
    return _NAMED[node.this]


def _decimal(node: exp.DataType) -> Type:
    sizes = [param.name for param in node.expressions] or ["10", "0"]
    if len(sizes) > 2 or not all(re.fullmatch("[0-9]{1,9}", size) for size in sizes):
        raise ValueError(f"{sql_text(node)} is not a type; write DECIMAL(precision, scale)")
    precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise ValueError(f"decimal({precision}, {scale}) is not a type; precision goes up to 38")
    return Decimal(precision, scale)
