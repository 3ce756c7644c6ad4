"""The statements of a query text as sqlglot trees, and their expressions with aggregates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal as PyDecimal
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from handshake.errors import ExpressionError, QueryError, suggest
from handshake.plan.aggregates import AGGREGATES, AggregateFunction, Constant, aggregate_names, find_aggregate
from handshake.plan.dialect import sql_text
from handshake.plan.expr import And, Expr, IsNull, Name, Not, Position
from handshake.plan.language import AGGREGATE_NAMES, Continuous, CreateStream
from handshake.plan.reader import Reader

Statement = CreateStream | exp.Select | exp.Union

_MOST_TEXT = 100_000


@dataclass(frozen=True)
class SortKey:
    """An expression of ORDER BY in an aggregate."""

    expr: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate as written: its function and its arguments, not bound yet."""

    function: str
    arguments: tuple[Expr, ...] = ()
    constants: tuple[Constant, ...] = ()
    where: Expr | None = None
    order: tuple[SortKey, ...] = ()
    distinct: bool = False
    at: Position | None = field(default=None, compare=False)


@dataclass
class _Written:
    """A call of an aggregate in parts: its arguments, and the clauses in and after its parentheses."""

    function: AggregateFunction
    node: exp.Expr
    arguments: list[Any]
    order: list[exp.Expr] = field(default_factory=list)
    where: exp.Expr | None = None
    distinct: bool = False
    ignore_nulls: bool | None = None

    def open_arguments(self) -> None:
        """Move DISTINCT, ORDER BY and IGNORE NULLS from the arguments to their own fields."""
        if self.arguments and isinstance(last := self.arguments[-1], exp.Order):
            self.arguments[-1], self.order = last.this, last.expressions
        if len(self.arguments) == 1 and isinstance(first := self.arguments[0], exp.Distinct):
            self.arguments, self.distinct = list(first.expressions), True
        if self.arguments and isinstance(first := self.arguments[0], (exp.IgnoreNulls, exp.RespectNulls)):
            self.arguments[0], self.ignore_nulls = first.this, isinstance(first, exp.IgnoreNulls)


_CLAUSES = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


class StatementReader(Reader):
    """The reader of a query; in a SELECT list it collects the aggregates."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.what = "the query"
        self.noted: dict[AggregateCall, str] | None = None
        """Aggregates of the SELECT at hand by the names that stand for them; None where none may be."""

    def statements(self) -> list[Statement]:
        """Return all statements of the text."""
        if len(self.text) > _MOST_TEXT:
            raise QueryError(f"the query has {len(self.text)} characters; {_MOST_TEXT} are allowed")
        trees = self.parse(lambda: sqlglot.parse(self.text, dialect=Continuous))
        nodes: list[Any] = [node for node in trees if node is not None]
        for node in nodes:
            if not isinstance(node, (CreateStream, exp.Select, exp.Union)):
                raise self.error(
                    f"a statement is CREATE INPUT STREAM … or SELECT …, not {sql_text(node)!r}", node
                )
        return nodes

    def syntax_error(self, error: SqlglotError) -> ExpressionError:
        """Return an error that points at the first character that cannot be read."""
        plain = super().syntax_error(error)
        details = (getattr(error, "errors", None) or [{}])[0]
        found = details.get("highlight") or ""
        if plain.line is None or plain.column is None or "\n" in found:
            return plain
        return ExpressionError(plain.reason, plain.line, max(1, plain.column - len(found) + 1))

    def expr(self, node: Any) -> Expr:
        """Translate a node; an aggregate becomes a name that stands for it."""
        written = self._aggregate(node)
        if written is None:
            return super().expr(node)
        if self.noted is None:
            raise self.error(
                f"{written.function.name}() has no meaning here; aggregates stand in SELECT and HAVING", node
            )
        noted, self.noted = self.noted, None  # no aggregates of aggregates
        try:
            call = self._call(written)
        finally:
            self.noted = noted
        name = self.noted.setdefault(call, f"\0{len(self.noted)}")
        return Name((name,), at=self.at(node))

    # Aggregates.

    def _aggregate(self, node: Any) -> _Written | None:
        """Take a call of an aggregate apart; None if the node is something else."""
        if isinstance(node, exp.Window):
            raise self.error(
                "OVER has no meaning here; the window of an aggregate is that of its stream, as in "
                "FROM S [SIZE 600 ADVANCE 60 TIME]", node
            )  # fmt: skip
        inner = node
        while isinstance(inner, _CLAUSES):
            inner = inner.this
        function = self._function(inner)
        if function is None:
            if inner is not node:
                raise self.error(
                    f"{sql_text(inner)!r} is no aggregate; FILTER, WITHIN GROUP and IGNORE NULLS follow an "
                    "aggregate", node
                )  # fmt: skip
            return None
        written = _Written(function, node, self._arguments(inner))
        written.open_arguments()
        while node is not inner:
            match node:
                case exp.Filter():
                    written.where = node.expression.this
                case exp.WithinGroup():
                    written.order = node.expression.expressions
                case _:
                    written.ignore_nulls = isinstance(node, exp.IgnoreNulls)
            node = node.this
        return written

    def _function(self, node: Any) -> AggregateFunction | None:
        if not isinstance(node, exp.Func):
            return None
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_names()[0]
        function = find_aggregate(name)
        if function is None and name.upper() in AGGREGATE_NAMES:
            hint = suggest(name.lower(), aggregate_names()) or f"; there are {', '.join(AGGREGATES)}"
            raise self.error(f"no aggregate function {name.lower()}(){hint}", node)
        return function

    def _arguments(self, node: exp.Expr) -> list[Any]:
        if isinstance(node, exp.Anonymous):
            return list(node.expressions)
        self.check(node, frozenset(("this", "expressions")))
        return [node.this, *node.expressions] if node.args.get("this") is not None else []

    def _call(self, written: _Written) -> AggregateCall:
        function, given = written.function, written.arguments
        self._check_clauses(written)
        if function.keeps_nulls and len(given) == 2 and isinstance(given[1], exp.Boolean):
            written.ignore_nulls = bool(given.pop().this)  # as in Spark: first(x, true)
        constants: tuple[Constant, ...] = ()
        if function.constants == "fraction within group":
            columns, constants = self._within_group(written)
        elif function.constants is not None:
            columns = given[:1]
            constants = self._constants(written, given[1:])
        else:
            columns = self._columns(written)
        arguments = self.all(columns)
        where = None if written.where is None else self.expr(written.where)
        if written.ignore_nulls:
            some = Not(IsNull(arguments[0]))
            where = some if where is None else And((where, some))
        distinct = function.distinct == "always" or (written.distinct and function.distinct == "allowed")
        order = tuple(map(self._sort_key, written.order))
        return AggregateCall(
            function.name, arguments, constants, where, order, distinct, self.at(written.node)
        )

    def _check_clauses(self, written: _Written) -> None:
        """Refuse clauses that the function does not take."""
        function = written.function
        refused = {
            "DISTINCT": written.distinct and function.distinct == "refused",
            "ORDER BY": bool(written.order) and not function.sorts,
            "IGNORE NULLS": written.ignore_nulls is not None and not function.keeps_nulls,
            "FILTER": written.where is not None and function.kind == "bound",
        }
        for clause, given in refused.items():
            if given:
                why = "; it ignores NULL anyway" if clause == "IGNORE NULLS" else ""
                raise self.error(f"{function.name}() takes no {clause}{why}", written.node)

    def _columns(self, written: _Written) -> list[Any]:
        """Check the number of columns of a call."""
        function, given = written.function, written.arguments
        allowed = function.arguments
        if allowed is None and len(given) == 1 and isinstance(given[0], exp.Star) and not written.distinct:
            return []
        wrong = any(isinstance(a, exp.Star) for a in given) or (written.distinct and not given)
        if wrong or (allowed is not None and len(given) not in allowed):
            raise self.error(f"{function.name}() takes {_count_text(allowed)}", written.node)
        return given

    def _sort_key(self, node: Any) -> SortKey:
        self.check(node, frozenset(("this", "desc", "nulls_first")))
        return SortKey(self.expr(node.this), bool(node.args.get("desc")), bool(node.args.get("nulls_first")))

    def _constants(self, written: _Written, given: list[Any]) -> tuple[Constant, ...]:
        """Read the constants that follow the column of a call."""
        name, kind = written.function.name, written.function.constants
        match kind, given:
            case "weights", [exp.Array(expressions=weights)] if weights and written.arguments:
                return tuple(self._number(weight, "a weight", written.node) for weight in weights)
            case "separator", [] if written.arguments:
                return ("",)
            case "separator", [exp.Literal(is_string=True, this=text)]:
                return (text,)
            case "fraction and accuracy", [fraction, accuracy]:
                if not re.fullmatch("[1-9][0-9]{0,9}", sql_text(accuracy)):
                    raise self.error(f"an accuracy is a whole number, not {sql_text(accuracy)}", written.node)
                return (self._fraction(fraction, written.node),)
            case "fraction" | "fraction and accuracy", [fraction]:
                return (self._fraction(fraction, written.node),)
        raise self.error(f"{name}() takes {_WANTED[str(kind)].format(name)}", written.node)

    def _within_group(self, written: _Written) -> tuple[list[Any], tuple[Constant, ...]]:
        """Read the column of WITHIN GROUP and the fraction before it; the order is no clause of its own."""
        given, order = written.arguments, written.order
        if len(given) != 1 or len(order) != 1:
            name = written.function.name
            raise self.error(f"{name}() takes {_WANTED['fraction within group'].format(name)}", written.node)
        written.order = []
        self.check(order[0], frozenset(("this", "desc", "nulls_first")))
        fraction = self._fraction(given[0], written.node)
        return [order[0].this], (fraction, "DESC") if order[0].args.get("desc") else (fraction,)

    def _fraction(self, node: Any, call: exp.Expr) -> PyDecimal:
        fraction = self._number(node, "a fraction", call)
        if not 0 <= fraction <= 1:
            raise self.error(f"a fraction lies between 0 and 1, which {fraction} does not", call)
        return fraction

    def _number(self, node: Any, what: str, call: exp.Expr) -> PyDecimal:
        """Return a constant number, exactly."""
        sign, literal = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
        text = str(literal.this) if isinstance(literal, exp.Literal) and not literal.is_string else ""
        if not re.fullmatch(r"[0-9]{0,15}\.?[0-9]{0,15}", text) or not re.search("[0-9]", text):
            raise self.error(f"{what} is a number such as .25, not {sql_text(node)!r}", call)
        return sign * PyDecimal(text)


def _count_text(allowed: tuple[int, ...] | None) -> str:
    """Say how many arguments a function takes."""
    words = {0: "no argument", 1: "one argument", 2: "two arguments"}
    return " or ".join(words.get(n, f"{n} arguments") for n in allowed) if allowed else "columns or *"


_WANTED = {
    "weights": "a field and its weights, as in {}(Price, [.5, .25, .25])",
    "separator": "text and a constant that separates it, as in {}(Symbol, ', ')",
    "fraction": "a column and a constant fraction, as in {}(Price, .25)",
    "fraction within group": "a fraction and one column, as in {}(.25) WITHIN GROUP (ORDER BY Price)",
    "fraction and accuracy": "a column, a constant fraction and an accuracy, as in {}(Price, .25)",
}
