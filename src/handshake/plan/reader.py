"""The reader: translates sqlglot's tree and refuses what no translator reads."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from handshake.errors import ExpressionError
from handshake.plan.dialect import ARGUMENTS, Predicate, sql_text
from handshake.plan.expr import Expr, Position, check_size
from handshake.plan.functions.registry import no_function

_CLAUSES = {
    "distinct": "SELECT DISTINCT has no meaning on streams without an end; use GROUP BY in a window",
    "order": "ORDER BY has no meaning on streams without an end; sort the results, or leave it out",
    "limit": "LIMIT has no meaning on streams without an end; leave it out",
    "offset": "OFFSET has no meaning on streams without an end; leave it out",
    "with_": "WITH is not read; give that query a name by INTO, in a statement of its own",
}
"""Clauses of queries that SQL has and streams have not."""
_FORMAT = "a format has no meaning here; dates and times are read and written as '2024-12-31 23:59:59'"
_OVER_ROWS = (exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_MOVING = (
    *(exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentTimestampLTZ, exp.CurrentDate),
    *(exp.CurrentTime, exp.CurrentDatetime, exp.Localtimestamp, exp.Localtime),
)
_MOVING_NAMES = ("monotonically_increasing_id", "now", "rand", "randn", "random", "shuffle", "uuid")


def moving(text: str, what: str = "predicate") -> str:
    """Return the error message for a function whose value changes between calls; `what` has a call of it."""
    return (
        f"{text} gives another value each time; a {what} must give the same answer whenever two tuples "
        "are compared, also after a restart; put what it gives into a column of an input, and use that"
    )


_Parsed = TypeVar("_Parsed")


class Reader:
    """The translator of one text; errors point into the text.

    Args:
        text: The text.
        kind: The word for its expressions in errors.
    """

    def __init__(self, text: str, kind: str = "predicate") -> None:
        self.text, self.kind = text, kind
        self.what = f"the {kind}"
        """The name of the text in errors."""
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def read(self) -> Expr:
        """Parse and translate the whole text."""
        try:
            parsed = self.parse(lambda: sqlglot.parse_one(self.text, dialect=Predicate, into=exp.Condition))
            tree = self.expr(parsed)
        except RecursionError:
            raise ExpressionError(f"{self.what} is nested too deeply; take it apart") from None
        check_size(tree)
        return tree

    def parse(self, parse: Callable[[], _Parsed]) -> _Parsed:
        """Call sqlglot's parser; turn its errors, but for a `RecursionError`, into an `ExpressionError`."""
        try:
            return parse()
        except SqlglotError as error:
            raise self.syntax_error(error) from None
        except RecursionError:
            raise
        except Exception as error:  # some of sqlglot's functions fail on arguments that they do not expect
            raise ExpressionError(f"cannot read {self.what}: {error}") from error

    def expr(self, node: Any) -> Expr:
        """Translate a node; refuse arguments that its translator does not read."""
        if type(node) not in NODES:
            raise self.unknown(node)
        translate, read = NODES[type(node)]
        self.check(node, read)
        return translate(node, self)

    def check(self, node: exp.Expr, read: frozenset[str]) -> None:
        """Refuse arguments that a translator does not read."""
        for name, value in node.args.items():
            if name not in read and value is not None and value is not False and value != []:
                what = _FORMAT if name == "format" else f"{sql_text(node)!r}: {name} has no meaning here"
                if isinstance(node, exp.Query) and name in _CLAUSES:
                    what = _CLAUSES[name]
                raise self.error(what, node)

    def all(self, nodes: Iterable[Any]) -> tuple[Expr, ...]:
        """Translate several nodes."""
        return tuple(self.expr(node) for node in nodes)

    def at(self, node: exp.Expr | None) -> Position | None:
        """Return the leftmost known position below a node, or that of its parent."""
        while node is not None:
            starts = [n.meta["start"] for n in node.walk() if n._meta and "start" in n._meta]
            if starts:
                return self.position(min(starts))
            node = node.parent
        return None

    def position(self, start: int) -> Position:
        """Return the line and column of an offset in the text."""
        line = bisect_right(self.lines, start)
        return Position(line, start - self.lines[line - 1] + 1)

    def error(self, message: str, node: exp.Expr) -> ExpressionError:
        """Return an error that points at a node."""
        at = self.at(node)
        return ExpressionError(message, at.line if at else None, at.column if at else None)

    def unknown(self, node: Any) -> ExpressionError:
        """Return the error for a node that cannot be translated."""
        if not isinstance(node, exp.Expr):
            return ExpressionError(f"{node!r} has no meaning in a {self.kind} here")
        name: str | None = node.name if isinstance(node, exp.Anonymous) else None
        if name is None and "start" in node.meta and "end" in node.meta:
            name = self.text[node.meta["start"] : node.meta["end"] + 1]
        if isinstance(node, (exp.AggFunc, *_OVER_ROWS)):
            what = f"{name}()" if name and isinstance(node, exp.AggFunc) else repr(sql_text(node))
            why = f"{what} is computed from many rows; a {self.kind} sees one pair of rows at a time"
        elif isinstance(node, (exp.Query, exp.Exists, exp.Subquery)):
            why = f"{sql_text(node)!r} is a query, which a {self.kind} cannot hold"
        elif isinstance(node, _MOVING) or (name or "").lower() in _MOVING_NAMES:
            why = moving(sql_text(node), self.kind)
        elif isinstance(node, (exp.StrToDate, exp.StrToTime, exp.TimeToStr)):
            why = _FORMAT
        elif isinstance(node, exp.Anonymous) and node.name.upper() in ARGUMENTS:
            count = ARGUMENTS[node.name.upper()]
            why = f"{name}() takes {count} argument{'s' if count > 1 else ''}, not {len(node.expressions)}"
        elif name is not None and isinstance(node, exp.Func):
            why = no_function(name)
        else:
            why = f"{sql_text(node)!r} has no meaning in a {self.kind} here"
        return self.error(why, node)

    def syntax_error(self, error: SqlglotError) -> ExpressionError:
        unclosed = re.search(r"Missing (\S+) from \d+:(\d+)", f"{error} {error.__cause__}")
        if unclosed:
            at = self.position(min(int(unclosed[2]), len(self.text)))
            return ExpressionError(
                f"cannot read {self.what}: a {unclosed[1]} is never closed", at.line, at.column
            )
        details = (getattr(error, "errors", None) or [{}])[0]
        found = details.get("highlight")
        what = f"cannot read {self.what} near '{found}'" if found else f"cannot read {self.what}"
        why = str(details.get("description") or str(error).split("\n")[0]).rstrip(".")
        if "Required keyword" in why:
            why = "an operand is missing"
        line, column = details.get("line"), details.get("col")
        return ExpressionError(f"{what}: {why}", line, column)


_Translate = Callable[[Any, Reader], Expr]
_Function = TypeVar("_Function", bound=_Translate)
NODES: dict[type[exp.Expr], tuple[_Translate, frozenset[str]]] = {}
"""The translator of each kind of node, and the arguments of the node that it reads or may ignore."""


def reads(arguments: str, *kinds: type[exp.Expr]) -> Callable[[_Function], _Function]:
    """Register a translator for these kinds of node, and name the arguments that it reads."""

    def register(translate: _Function) -> _Function:
        for kind in kinds:
            NODES[kind] = translate, frozenset(arguments.split())
        return translate

    return register
