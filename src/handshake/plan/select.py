"""One SELECT as algebra: windows, joins, grouping and aggregates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sqlglot import exp

from handshake.errors import ExpressionError, SchemaError, suggest
from handshake.kinds import INNER
from handshake.plan import algebra
from handshake.plan.aggregates import check_sortable
from handshake.plan.algebra import LONGEST, POSITIONS, Node
from handshake.plan.asof import comparison_of_times, window_of_matches
from handshake.plan.assemble import Fresh, add_filter, append_column
from handshake.plan.bind import Scope, bind, bind_value
from handshake.plan.dialect import sql_text
from handshake.plan.expr import Column, Expr, Literal, Name, conjunction, show, walk
from handshake.plan.joined import Item, Joined, join_kind
from handshake.plan.statements import AggregateCall, StatementReader
from handshake.plan.types import fail
from handshake.plan.window_syntax import WindowReader
from handshake.schema import BOOL, NULL, UNITS, List, Schema, arrow_of, finest_unit
from handshake.windows import NowWindow, Window

_CLAUSES = frozenset(("expressions", "from_", "joins", "where", "group", "having", "into"))


@dataclass(frozen=True)
class QueryScope(Scope):
    """The scope of a query: the columns of the streams in FROM."""

    hidden: tuple[str, ...] = ()
    """Streams of FROM whose columns cannot be read: the other sides of semi and anti joins."""

    def resolve_path(self, name: Name) -> tuple[Column, tuple[str, ...]]:
        """Return the column that a name begins with, and the fields below it."""
        self.check_visible(name)
        return super().resolve_path(name)

    def check_visible(self, name: Name) -> None:
        """Raise an `ExpressionError` if a name begins with a stream whose columns cannot be read."""
        if len(name.parts) > 1 and name.parts[0] in self.hidden:
            raise fail(
                f"results do not have the columns of {name.parts[0]}, which a semi or anti join only "
                "searches; read them in ON", name
            )  # fmt: skip

    def _find_unqualified(self, name: Name) -> Column:
        found = [side for side, schema in enumerate(self.schemas) if schema.find(name.parts[0])]
        if len(found) > 1:
            ways = " or ".join(f"{self.schemas[side].stream}.{name.parts[0]}" for side in found)
            raise fail(f"column '{name.parts[0]}' is in more than one stream; write {ways}", name)
        if not found and len(self.schemas) == 1:
            return self._column(0, name.parts[0], name)
        return super()._find_unqualified(name)

    def _column(self, side: int, column: str, name: Name) -> Column:
        schema = self.schemas[side]
        if schema.find(column) is None:
            hint = suggest(column, schema.names)
            raise fail(f"no field '{column}' in {schema.stream} ({', '.join(schema.names)}){hint}", name)
        return replace(super()._column(side, column, name), shown=show(name))


class SelectPlanner:
    """The planner of one SELECT.

    Args:
        plan_stream: Returns the name and the plan of a stream or a sub-query in FROM.
        reader: The reader of the text.
        node: The SELECT.
    """

    def __init__(
        self, plan_stream: Callable[[exp.Expr], tuple[str, Node]], reader: StatementReader, node: exp.Select
    ) -> None:
        self._plan_stream, self._reader, self._node = plan_stream, reader, node
        self._expr, self._windows = reader.expr, WindowReader(reader)
        self._fresh = Fresh()
        self._known_keys: dict[Expr, str] = {}
        """Keys of groups that are columns of the window's input."""

    def plan(self) -> Node:
        """Return the plan of the SELECT."""
        self._reader.check(self._node, _CLAUSES)
        items = self._items()
        return self._plan_join(items) if len(items) > 1 else self._plan_single(items[0])

    # FROM.

    def _items(self) -> list[Item]:
        first = self._node.args.get("from_")
        if first is None:
            raise self._reader.error("FROM is missing: a query reads a stream", self._node)
        joins = self._node.args.get("joins") or []
        self._kinds = [join_kind(join, self._reader.error) for join in joins]
        items = [self._item(first.this), *(self._item(join.this) for join in joins)]
        for at, item in enumerate(items):
            if item.name.casefold() in (other.name.casefold() for other in items[:at]):
                raise self._reader.error(
                    f"two streams in FROM are called '{item.name}'; give one an alias with AS", item.tree
                )
        return items

    def _item(self, tree: exp.Expr) -> Item:
        alias = tree.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise self._reader.error("an alias renames the stream, not its columns", tree)
        name, node = self._plan_stream(tree)
        return Item(name if alias is None else alias.name, node, tree)

    # One stream.

    def _plan_single(self, item: Item) -> Node:
        self._fresh.take(item.node.schema.names)
        if item.slide is None:
            return self._body(item, item.node)
        if item.slide.args["form"] == "session":
            return self._plan_sessions(item)
        if item.slide.args["form"] == "now":
            raise self._reader.error(
                "[NOW] is for a stream of a join, whose tuples are not kept; leave it out, or write a window "
                "such as [SIZE 10 MINUTES]", item.slide
            )  # fmt: skip
        window = self._windows.sliding(item.slide, item.node)
        clock = item.node.clock if window.kind == "time" else POSITIONS
        x = algebra.Parameter("x", item.node.schema, clock)
        return algebra.Windowing(item.node, "x", self._body(item, x), window)

    def _plan_sessions(self, item: Item) -> Node:
        """Compute the keys of groups below the window: each group has sessions of its own."""
        assert item.slide is not None
        gap = self._windows.gap(item.slide, item.node)
        node, keys = self._keys(item.node, _scope_of((item.schema,)))
        self._known_keys = keys
        x = algebra.Parameter("x", node.schema, node.clock)
        return algebra.Windowing(node, "x", self._body(item, x), algebra.Session(gap, tuple(keys.values())))

    def _body(self, item: Item, node: Node) -> Node:
        scope = _scope_of((item.schema,))
        where = self._node.args.get("where")
        if where is not None:
            node = add_filter(node, bind(self._expr(where.this), scope), self._fresh)
        listed = self._list(scope)
        if self._reader_noted or self._node.args.get("group") is not None:
            if item.slide is None:
                what = next((f"{call.function}()" for call in self._reader_noted), "GROUP BY")
                raise self._reader.error(
                    f"{what} over {item.name}, which never ends; give it a window, as in "
                    f"{item.name} [SIZE 600 ADVANCE 60 TIME]", item.tree
                )  # fmt: skip
            return self._plan_aggregates(node, scope, listed)
        if self._node.args.get("having") is not None:
            raise self._reader.error(
                "HAVING needs GROUP BY or aggregates; use WHERE", self._node.args["having"]
            )
        return self._compute(node, [(name, bind_value(e, scope), e) for name, e in listed])

    # The list of what is selected.

    def _list(self, scope: QueryScope) -> list[tuple[str | None, Expr]]:
        """Return the names and expressions of the list in order, and collect its aggregates."""
        self._reader.noted = {}
        listed: list[tuple[str | None, Expr]] = []
        for node in self._node.expressions:
            if isinstance(node, exp.Star) or (
                isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
            ):
                listed += self._star(node, scope)
                continue
            alias = node.alias if isinstance(node, exp.Alias) else None
            if isinstance(node, exp.Alias):
                node = node.this
            listed.append((alias or self._name_of(node), self._expr(node)))
        having = self._node.args.get("having")
        self._having = None if having is None else self._expr(having.this)
        self._reader_noted, self._reader.noted = dict(self._reader.noted), None
        return self._complete_names(listed)

    def _star(self, node: exp.Expr, scope: QueryScope) -> list[tuple[str | None, Expr]]:
        self._reader.check(node, frozenset(("this", "table")))
        sides = range(len(scope.schemas))
        if isinstance(node, exp.Column):
            table = node.args["table"].name
            if table not in scope.qualifiers:
                scope.check_visible(Name((table, "*"), at=self._reader.at(node)))
                hint = suggest(table, scope.qualifiers)
                raise self._reader.error(f"no stream '{table}' in FROM{hint}", node)
            sides = range(scope.qualifiers[table], scope.qualifiers[table] + 1)
        names = [f.name for schema in scope.schemas for f in schema]
        return [
            (
                f.name if names.count(f.name) == 1 else f"{schema.stream}_{f.name}",
                Name((schema.stream, f.name)),
            )
            for schema in (scope.schemas[side] for side in sides)
            for f in schema
        ]

    def _name_of(self, node: exp.Expr) -> str | None:
        """Return the name of a column without an alias."""
        if isinstance(node, exp.Column):
            return node.name
        plain = re.sub(r"[^0-9A-Za-z]+", "_", sql_text(node)).strip("_").lower()
        return plain or None

    def _complete_names(self, listed: list[tuple[str | None, Expr]]) -> list[tuple[str | None, Expr]]:
        names = [name or f"column{at}" for at, (name, _) in enumerate(listed, 1)]
        for at, name in enumerate(names):
            if name.casefold() in (other.casefold() for other in names[:at]):
                node = self._node.expressions[min(at, len(self._node.expressions) - 1)]
                raise self._reader.error(
                    f"two columns of the result are called '{name}'; name one with AS", node
                )
        self._fresh.take(names)
        return [(name, e) for name, (_, e) in zip(names, listed, strict=True)]

    def _compute(self, node: Node, items: list[tuple[str | None, Expr, Expr]]) -> Node:
        """Append the selected columns and keep only those."""
        columns = []
        for name, bound, written in items:
            assert name is not None
            if bound.type == NULL:
                raise fail(
                    f"column '{name}' is NULL and has no type; cast it, as in CAST(NULL AS INT)", written
                )
            if isinstance(bound.type, List) and not isinstance(bound, Column):
                raise fail(f"column '{name}' is a {bound.type}, with which nothing can be computed", written)
            free = name not in node.schema.names
            node, column = append_column(node, bound, self._fresh, name if free else None)
            _check_held(node, column, written)
            columns.append((name, column))
        same = tuple((name, name) for name in node.schema.names)
        return node if tuple(columns) == same else algebra.Project(node, tuple(columns))

    # Aggregates.

    def _plan_aggregates(self, node: Node, scope: Scope, listed: list[tuple[str | None, Expr]]) -> Node:
        node, keys = (node, self._known_keys) if self._known_keys else self._keys(node, scope)
        node, calls = self._arguments(node, scope)
        names = self._result_names(listed, keys.values())
        if keys:
            body = self._aggregates(algebra.Parameter("y", node.schema, node.clock), calls, names)
            result: Node = algebra.Group(node, "y", body, tuple(keys.values()))
        else:
            result = self._aggregates(node, calls, names)
        self._fresh.take(result.schema.names)
        columns = {Name((f"\0{at}",)): names[call] for at, call in enumerate(calls)}
        after = _Grouped(result, keys, columns, scope)
        if self._having is not None:
            condition = bind(after.rewrite(self._having), after.scope)
            result = add_filter(result, condition, self._fresh)
        items = [(name, bind_value(after.rewrite(e), after.scope), e) for name, e in listed]
        return self._compute(result, items)

    def _keys(self, node: Node, scope: Scope) -> tuple[Node, dict[Expr, str]]:
        """Append the group keys; return the expressions as written with their columns."""
        group = self._node.args.get("group")
        keys: dict[Expr, str] = {}
        if group is None:
            return node, keys
        self._reader.check(group, frozenset(("expressions",)))
        for tree in group.expressions:
            written = self._expr(tree)
            bound = bind_value(written, scope)
            if not any(isinstance(e, Column) for e in walk(bound)):
                raise self._reader.error(
                    f"GROUP BY takes a column or what is computed from one, not {sql_text(tree)}", tree
                )
            node, keys[written] = append_column(node, bound, self._fresh)
            _check_held(node, keys[written], written)
            try:
                check_sortable(node.schema.get(keys[written]).type, "GROUP BY")
            except SchemaError as error:
                raise fail(str(error), written) from None
        if len(set(keys.values())) < len(keys):
            raise self._reader.error("a column stands twice in GROUP BY; give it once", group)
        return node, keys

    def _arguments(self, node: Node, scope: Scope) -> tuple[Node, dict[AggregateCall, algebra.Aggregate]]:
        """Append what aggregates read; return each of them, without its input and its name."""
        calls: dict[AggregateCall, algebra.Aggregate] = {}
        for call in self._reader_noted:
            what, fields, order, where = f"{call.function}()", [], [], None
            for expr in call.arguments:
                node, column = self._argument(node, scope, expr, what)
                fields.append(column)
            for key in call.order:
                node, column = self._argument(node, scope, key.expr, f"ORDER BY of {what}")
                order.append(algebra.Ordering(column, key.descending, key.nulls_first))
            condition = Literal(True) if call.where is None else bind(call.where, scope)
            if not (isinstance(condition, Literal) and condition.value is True):
                node, where = append_column(node, condition, self._fresh)
            calls[call] = algebra.Aggregate(
                node, "", call.function, tuple(fields), call.constants, where, tuple(order), call.distinct
            )
            self._check_call(calls[call], call)
        return node, calls

    def _argument(self, node: Node, scope: Scope, written: Expr, what: str) -> tuple[Node, str]:
        bound = bind_value(written, scope)
        if bound.type == NULL:
            raise fail(f"{what} of NULL has no type; cast it", written)
        node, column = append_column(node, bound, self._fresh)
        _check_held(node, column, written)
        return node, column

    def _check_call(self, made: algebra.Aggregate, call: AggregateCall) -> None:
        """Refuse arguments of the wrong type."""
        types, what = made.input.schema, f"{call.function}()"
        try:
            for name in made.fields if made.distinct else ():
                check_sortable(types.get(name).type, f"DISTINCT in {what}")
            for by in made.order:
                check_sortable(types.get(by.field).type, f"ORDER BY in {what}")
            made.schema.get(made.name)  # raises if the function does not take these types
        except SchemaError as error:
            at = call.at
            raise ExpressionError(str(error), at.line if at else None, at.column if at else None) from None

    def _result_names(
        self, listed: list[tuple[str | None, Expr]], keys: Iterable[str]
    ) -> dict[AggregateCall, str]:
        """Name each aggregate's column: by its alias, if it is an item of its own and no key is named so."""
        names: dict[AggregateCall, str] = {}
        taken = {key.casefold() for key in keys}
        for at, call in enumerate(self._reader_noted):
            alone = [name for name, e in listed if e == Name((f"\0{at}",))]
            free = bool(alone and alone[0]) and str(alone[0]).casefold() not in taken
            names[call] = str(alone[0]) if free else self._fresh()
        return names

    def _aggregates(
        self, node: Node, calls: dict[AggregateCall, algebra.Aggregate], names: dict[AggregateCall, str]
    ) -> Node:
        parts = [replace(made, input=node, name=names[call]) for call, made in calls.items()]
        if not parts:  # keys alone: a group is there when a tuple is
            parts = [algebra.Aggregate(node, self._fresh(), "count")]
        return parts[0] if len(parts) == 1 else algebra.Concat(tuple(parts))

    # Several streams.

    def _plan_join(self, items: list[Item]) -> Node:
        as_of = any(kind.pairs == "best" for kind in self._kinds)
        windows = [] if as_of else [self._join_window(item) for item in items]
        where = self._node.args.get("where")
        if not as_of and all(kind == INNER for kind in self._kinds):
            conditions = [join.args.get("on") for join in self._node.args["joins"]]
            conditions += [] if where is None else [where.this]
            scope = _scope_of(tuple(item.schema for item in items))
            bound = [bind(self._expr(c), scope) for c in conditions if c is not None]
            joined = Joined.inner(items, windows, conjunction(tuple(bound)))
            node = joined.node
        else:
            joined = self._as_of(items) if as_of else self._chain(items, windows)
            scope, node = _scope_of(joined.schemas, joined.hidden), joined.node
            self._fresh.take(node.schema.names)
            if where is not None:
                node = add_filter(node, joined.flat(bind(self._expr(where.this), scope)), self._fresh)
        self._fresh.take(node.schema.names)
        listed = self._list(scope)
        for clause in ("group", "having"):
            if self._node.args.get(clause) is not None:
                raise self._no_join_window_error("GROUP BY", self._node.args[clause])
        if self._reader_noted:
            raise self._no_join_window_error(f"{next(iter(self._reader_noted)).function}()", self._node)
        return self._compute(node, [(n, joined.flat(bind_value(e, scope)), e) for n, e in listed])

    def _chain(self, items: list[Item], windows: list[Window]) -> Joined:
        """Join the streams one after the other."""
        if len(items) > 2:
            self._check_chain(items, windows)
        joined = Joined.of(items[0], windows[0])
        joins = zip(items[1:], windows[1:], self._kinds, self._node.args["joins"], strict=True)
        for item, window, kind, join in joins:
            on = self._on(join, _scope_of((*joined.schemas, item.schema), joined.hidden))
            joined = joined.join(item, window, kind, on, last=item is items[-1])
        return joined

    def _on(self, join: exp.Join, scope: Scope) -> Expr:
        """Return the condition behind ON."""
        written = join.args.get("on")
        return Literal(True, type=BOOL) if written is None else bind(self._expr(written), scope)

    def _as_of(self, items: list[Item]) -> Joined:
        """Join the streams one after the other, each as of the time of those before it."""
        windows = [None if item.slide is None else self._windows.of_join(item.slide) for item in items]
        joined = Joined.of(items[0], windows[0] or NowWindow())  # a member's window does not matter here
        joins = zip(items[1:], windows[1:], self._kinds, self._node.args["joins"], strict=True)
        for item, window, kind, join in joins:
            if kind.pairs != "best":
                raise self._reader.error(
                    "as-of joins and other joins are not in one FROM; put the first ones in parentheses, as "
                    "in FROM (SELECT …) [SIZE 10 MINUTES] LEFT JOIN …", item.tree
                )  # fmt: skip
            scope = _scope_of((*joined.schemas, item.schema))
            on, written = self._on(join, scope), join.args.get("match_condition")
            match = None if written is None else self._expr(written)
            compared = comparison_of_times(joined, item, match, scope, self._reader.error)
            near = window_of_matches(joined, item, (windows[0], window), compared, self._reader.error)
            joined = joined.as_of(item, near, kind, on, compared)
        return joined

    def _check_chain(self, items: list[Item], windows: list[Window]) -> None:
        for item, window in zip(items, windows, strict=True):
            if not window.timed:
                raise self._reader.error(
                    f"streams of several joins, not all of them inner joins, need windows of time, and "
                    f"{item.name} has one of {window}; put the first join in parentheses: "
                    "FROM (SELECT …) [SIZE 600 TIME] LEFT JOIN …", item.tree
                )  # fmt: skip
        unit = finest_unit(*(item.node.clock.unit for item in items))
        longest = max(window.size for window in windows)
        if longest * len(items) > LONGEST * UNITS[unit]:
            raise self._reader.error(
                f"the windows of the joins add up to more than 2^62 {unit}; make them shorter", self._node
            )

    def _no_join_window_error(self, what: str, node: exp.Expr) -> ExpressionError:
        return self._reader.error(
            f"{what} over the results of a join, which never end; put the join in parentheses and give it a "
            "window: FROM (SELECT …) [SIZE 600 ADVANCE 60 TIME]", node
        )  # fmt: skip

    def _join_window(self, item: Item) -> Window:
        if item.slide is None:
            raise self._reader.error(
                f"stream {item.name} of the join has no window, and would have to be kept for ever; write "
                f"{item.name} [SIZE 600 TIME]", item.tree
            )  # fmt: skip
        return self._windows.of_join(item.slide)


def _scope_of(schemas: tuple[Schema, ...], hidden: tuple[str, ...] = ()) -> QueryScope:
    names = {str(schema.stream): side for side, schema in enumerate(schemas)}
    return QueryScope(schemas, names, hidden)


def _check_held(node: Node, column: str, written: Expr) -> None:
    """Refuse values that no column can hold."""
    try:
        arrow_of(node.schema.get(column).type)
    except SchemaError as error:
        raise fail(str(error), written) from None


class _Grouped:
    """The scope after grouping: only keys and aggregates."""

    def __init__(self, node: Node, keys: dict[Expr, str], columns: dict[Name, str], scope: Scope) -> None:
        self._keys, self._columns, self._before = keys, columns, scope
        self.scope = QueryScope((Schema(node.schema.fields, "the groups"),), {})

    def rewrite(self, expr: Expr) -> Expr:
        """Replace keys and aggregates in an expression by columns of the groups."""
        for known, column in (*self._keys.items(), *self._columns.items()):
            if expr == known or self._is_same_column(expr, known):
                return Name((column,), at=expr.at)
        if isinstance(expr, Name):
            self._before.resolve(expr)  # an unknown name is a plainer mistake
            raise fail(
                f"column '{show(expr)}' is neither grouped nor aggregated; put it in GROUP BY, or in an "
                f"aggregate such as max({show(expr)})", expr
            )  # fmt: skip
        children = tuple(self.rewrite(child) for child in expr.children)
        return expr.with_children(children) if children else expr

    def _is_same_column(self, expr: Expr, key: Expr) -> bool:
        """Return whether two names stand for the same column."""
        if not isinstance(expr, Name) or not isinstance(key, Name) or expr.parts[0].startswith("\0"):
            return False
        if key.parts[0].startswith("\0"):
            return False
        return self._before.resolve(expr) == self._before.resolve(key)
