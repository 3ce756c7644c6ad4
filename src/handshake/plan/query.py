"""The text of a query as a plan."""

from __future__ import annotations

from sqlglot import exp

from handshake.errors import ExpressionError, QueryError, suggest
from handshake.plan.algebra import Node, Output, Plan, Project, Source, Union
from handshake.plan.assemble import Fresh, append_column, column_of
from handshake.plan.declare import declare
from handshake.plan.expr import Cast
from handshake.plan.language import CreateStream
from handshake.plan.select import SelectPlanner
from handshake.plan.statements import StatementReader
from handshake.plan.types import unify
from handshake.schema import DIGITS, Decimal, Int, Type

_UNNAMED = "result"


def parse_query(text: str) -> Plan:
    """Read a query: declarations of input streams, and SELECT statements, with a semicolon between any two.

    >>> plan = parse_query('''
    ...     CREATE INPUT STREAM Trades (Symbol string(4), Price int, Volume int);
    ...     SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO UBSTrades''')
    >>> plan.output("UBSTrades").schema.names
    ('Price', 'Volume')
    """
    reader = StatementReader(text)
    try:
        return _Planner(reader).plan()
    except QueryError:
        raise
    except ExpressionError as error:
        raise QueryError(error.reason, text, error.line, error.column) from None
    except RecursionError:
        raise QueryError("the query is nested too deeply; name parts of it by INTO") from None


class _Planner:
    """The planner of all statements of a text; a SELECT is planned when it is first read."""

    def __init__(self, reader: StatementReader) -> None:
        self._reader = reader
        self.sources: dict[str, Source] = {}
        self._queries: dict[str, exp.Expr] = {}
        self._planned: dict[str, Node] = {}
        self._planning: list[str] = []

    def plan(self) -> Plan:
        statements = self._reader.statements()
        for statement in statements:
            if isinstance(statement, CreateStream):
                self._check_free(statement.this.name, statement)
                source = declare(statement, self._reader, self.sources)
                self.sources[source.name] = source
        for statement in statements:
            if not isinstance(statement, CreateStream):
                into = _into_clause(statement)
                name = _UNNAMED if into is None else into.this.name
                self._check_free(name, statement if into is None else into)
                self._queries[name] = statement
        if not self._queries:
            raise QueryError("the query selects nothing; write SELECT … FROM … INTO name")
        outputs = tuple(Output(self._query(name), name) for name in self._queries)
        return Plan(tuple(self.sources.values()), outputs)

    def _check_free(self, name: str, node: exp.Expr) -> None:
        taken = {known.casefold() for known in (*self.sources, *self._queries)}
        if name.casefold() in taken:
            hint = "; write INTO and a name" if name == _UNNAMED else ""
            raise self._reader.error(f"there are two streams named '{name}'{hint}", node)

    def stream(self, node: exp.Expr) -> tuple[str, Node]:
        """Return the declared name and the plan of a stream in FROM, or those of a sub-query."""
        if not isinstance(node, exp.Table):
            return "query", self.query(node.this)
        given = node.this.name
        names = (*self.sources, *self._queries)
        found = [name for name in names if name == given] or [
            name for name in names if name.casefold() == given.casefold()
        ]
        if not found:
            hint = suggest(given, names)
            known = ", ".join(names) or "none is declared"
            raise self._reader.error(f"no stream '{given}' ({known}){hint}", node)
        name = found[0]
        if name in self._planning:
            cycle = " reads ".join((*self._planning[self._planning.index(name) :], name))
            raise self._reader.error(f"a stream cannot feed itself: {cycle}", node)
        return name, self.sources[name] if name in self.sources else self._query(name)

    def _query(self, name: str) -> Node:
        if name not in self._planned:
            self._planning.append(name)
            self._planned[name] = self.query(self._queries[name])
            self._planning.pop()
        return self._planned[name]

    def query(self, node: exp.Expr) -> Node:
        """Return the plan of a SELECT, or of several with UNION between them."""
        if isinstance(node, exp.Subquery) and not any(v for k, v in node.args.items() if k != "this"):
            return self.query(node.this)
        if isinstance(node, exp.Union):
            self._reader.check(node, frozenset(("this", "expression", "distinct", "into")))
            return self._union(node)
        if isinstance(node, exp.Select):
            return SelectPlanner(self.stream, self._reader, node).plan()
        raise self._reader.error("a SELECT is needed here", node)

    def _union(self, node: exp.Union) -> Node:
        left, right = self.query(node.this), self.query(node.expression)
        if len(left.schema.fields) != len(right.schema.fields):
            raise self._reader.error(
                f"UNION of {len(left.schema.fields)} columns ({', '.join(left.schema.names)}) with "
                f"{len(right.schema.fields)} ({', '.join(right.schema.names)})", node.expression
            )  # fmt: skip
        kinds = []
        for a, b in zip(left.schema.names, right.schema.names, strict=True):
            kind = _common_type(left, a, right, b)
            if kind is None:
                x, y = left.schema.get(a).type, right.schema.get(b).type
                raise self._reader.error(
                    f"UNION of column '{a}' ({x}) with '{b}' ({y}), which have no common type; cast one",
                    node.expression,
                )
            kinds.append(kind)
        names = left.schema.names
        return Union(tuple(_conform_branch(branch, names, kinds) for branch in (left, right)))


def _into_clause(node: exp.Expr) -> exp.Into | None:
    """Return the INTO clause; after a UNION, it belongs to the last SELECT."""
    into = node.args.get("into")
    if into is None and isinstance(node, exp.Union):
        return _into_clause(node.expression)
    return into


def _common_type(left: Node, a: str, right: Node, b: str) -> Type | None:
    """Return the type of a column of a union."""
    x, y = column_of(left, a), column_of(right, b)
    if isinstance(x.type, Int) and isinstance(y.type, Int):
        if x.type.signed == y.type.signed:
            return max(x.type, y.type, key=lambda kind: kind.bits)
        return Int(max(x.type.bits + (not x.type.signed), y.type.bits + (not y.type.signed)))
    kind = unify(x, y)
    if isinstance(kind, Decimal) and not kind.precision:
        whole = max(_digits(x.type), _digits(y.type))
        return Decimal(min(whole + kind.scale, DIGITS), kind.scale)
    return kind


def _digits(kind: Type) -> int:
    """Return the number of digits before the decimal point."""
    if isinstance(kind, Int):
        return len(str(2 ** (kind.bits - kind.signed)))
    return kind.precision - kind.scale if isinstance(kind, Decimal) else 0


def _conform_branch(node: Node, names: tuple[str, ...], kinds: list[Type]) -> Node:
    """Give the columns of a branch the names and types of the union."""
    own = node.schema.names
    fresh = Fresh((*own, *names))
    columns = []
    for old, new, kind in zip(own, names, kinds, strict=True):
        column, source = column_of(node, old), old
        if column.type != kind:
            node, source = append_column(node, Cast(column, type=kind), fresh)
        columns.append((new, source))
    return node if all(new == old for new, old in columns) else Project(node, tuple(columns))
