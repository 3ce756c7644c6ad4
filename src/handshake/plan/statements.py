"""The statements of a query text as sqlglot trees, and their expressions with aggregates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal as PyDecimal
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from handshake.errors import ExpressionError, QueryError
from handshake.plan.aggregates import AGGREGATES
from handshake.plan.dialect import sql_text
from handshake.plan.expr import Expr, Name, Position
from handshake.plan.language import Continuous, CreateStream
from handshake.plan.reader import Reader

__all__ = ["AggregateCall", "Statement", "StatementReader"]

Statement = CreateStream | exp.Select | exp.Union

_MOST_TEXT = 100_000


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate as written: its function, its argument (not bound yet), and weights with their scale."""

    function: str
    argument: Expr | None = None
    weights: tuple[int, ...] = ()
    scale: int = 0
    at: Position | None = field(default=None, compare=False)


class StatementReader(Reader):
    """The reader of a query; in a SELECT list it collects the aggregates."""

    what = "the query"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.noted: dict[AggregateCall, str] | None = None
        """Aggregates of the SELECT at hand by the names that stand for them; None where none may be."""

    def statements(self) -> list[Statement]:
        """Return all statements of the text."""
        if len(self.text) > _MOST_TEXT:
            raise QueryError(f"the query has {len(self.text)} characters; {_MOST_TEXT} are allowed")
        nodes = [node for node in self._trees() if node is not None]
        for node in nodes:
            if not isinstance(node, (CreateStream, exp.Select, exp.Union)):
                raise self.error(
                    f"a statement is CREATE INPUT STREAM … or SELECT …, not {sql_text(node)!r}", node
                )
        return nodes

    def _trees(self) -> list[Any]:
        try:
            return sqlglot.parse(self.text, dialect=Continuous)
        except SqlglotError as error:
            raise self.syntax_error(error) from None
        except RecursionError:
            raise QueryError("the query is nested too deeply") from None
        except Exception as error:  # some of sqlglot's functions fail on arguments that they do not expect
            raise QueryError(f"cannot read the query: {error}") from error

    def syntax_error(self, error: SqlglotError) -> ExpressionError:
        """Return an error that points at the first character that cannot be read."""
        plain = super().syntax_error(error)
        details = (getattr(error, "errors", None) or [{}])[0]
        found = details.get("highlight") or ""
        if plain.line is None or plain.column is None or "\n" in found:
            return plain
        message = re.sub(r" \(line \d+, column \d+\)$", "", str(plain))
        return ExpressionError(message, plain.line, max(1, plain.column - len(found) + 1))

    def expr(self, node: Any) -> Expr:
        """Translate a node; an aggregate becomes a name that stands for it."""
        function = self._function(node)
        if function is None:
            return super().expr(node)
        if self.noted is None:
            raise self.error(f"{function}() has no meaning here; aggregates stand in SELECT and HAVING", node)
        call = self._call(function, node)
        name = self.noted.setdefault(call, f"\0{len(self.noted)}")
        return Name((name,), at=self.at(node))

    def _function(self, node: Any) -> str | None:
        if not isinstance(node, exp.Func):
            return None
        name = (node.name if isinstance(node, exp.Anonymous) else node.sql_names()[0]).lower()
        return name if name in AGGREGATES else None

    def _call(self, function: str, node: exp.Expr) -> AggregateCall:
        arguments = self._arguments(function, node)
        noted, self.noted = self.noted, None  # no aggregates of aggregates
        try:
            if AGGREGATES[function].weighted:
                return self._weighted_call(function, arguments, node)
            self._check_count(function, arguments, node)
            argument = self.expr(arguments[0]) if arguments else None
            return AggregateCall(function, argument, at=self.at(node))
        finally:
            self.noted = noted

    def _arguments(self, function: str, node: exp.Expr) -> list[Any]:
        if isinstance(node, exp.Anonymous):
            return list(node.expressions)
        self.check(node, frozenset(("this", "expressions", "big_int")))
        given = [node.this, *node.expressions] if node.args.get("this") is not None else []
        return (
            [] if given and isinstance(given[0], exp.Star) and 0 in AGGREGATES[function].arguments else given
        )

    def _check_count(self, function: str, arguments: list[Any], node: exp.Expr) -> None:
        allowed = AGGREGATES[function].arguments
        if len(arguments) not in allowed or any(isinstance(a, exp.Star) for a in arguments):
            wanted = {(0,): "no argument", (1,): "one argument", (0, 1): "one argument or none"}[allowed]
            raise self.error(f"{function}() takes {wanted}", node)

    def _weighted_call(self, function: str, arguments: list[Any], node: exp.Expr) -> AggregateCall:
        if len(arguments) != 2 or not isinstance(arguments[1], exp.Array) or not arguments[1].expressions:
            raise self.error(
                f"{function}() takes a field and its weights, as in {function}(Price, [.5, .25, .25])", node
            )
        weights = [self._number(weight, node) for weight in arguments[1].expressions]
        scale = max(max(0, -int(weight.as_tuple().exponent)) for weight in weights)
        whole = tuple(int(weight.scaleb(scale)) for weight in weights)
        return AggregateCall(function, self.expr(arguments[0]), whole, scale, at=self.at(node))

    def _number(self, node: Any, call: exp.Expr) -> PyDecimal:
        """Return a constant weight, exactly."""
        sign, literal = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
        text = str(literal.this) if isinstance(literal, exp.Literal) and not literal.is_string else ""
        if not re.fullmatch(r"[0-9]{0,15}\.?[0-9]{0,15}", text) or not re.search("[0-9]", text):
            raise self.error(f"a weight is a number such as .25, not {sql_text(node)!r}", call)
        return sign * PyDecimal(text)
