"""Joins of a SELECT: their kinds as written, and the streams that are joined so far.

Inner joins of any number of streams are one node. Other kinds are nodes of two inputs: `a LEFT JOIN b … LEFT
JOIN c …` joins the results of the first join with c. Windows of such a chain compare the times of the rows
themselves, not those of intermediate results. So each join but the last keeps the times of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlglot import exp

from handshake.errors import ExpressionError
from handshake.kinds import BEST, INNER, JoinKind, kind_of_join
from handshake.plan import expr as tree
from handshake.plan.algebra import MEMBER_TIME, Node, WindowJoin
from handshake.plan.bind import Scope, bind
from handshake.plan.expr import Expr, conjunction, conjuncts, transform
from handshake.schema import UNITS, Field, Interval, Schema, Timestamp, finest_unit
from handshake.windows import TimeWindow, Window, settle_now

_PLAIN = ("", "CROSS", "INNER")
_AS_OF = {("", ""): "inner", ("", "INNER"): "inner", ("LEFT", ""): "left", ("LEFT", "OUTER"): "left"}
"""The kinds of as-of joins by side and kind as written: without a side they are inner joins, as in Spark."""


def join_kind(join: exp.Join, error: Callable[[str, exp.Expr], ExpressionError]) -> JoinKind:
    """Return the kind of a join as written; `error` makes an error that points at a node."""
    method, side, kind = (str(join.args.get(part) or "").upper() for part in ("method", "side", "kind"))
    written = " ".join(word for word in (method, side, kind, "JOIN") if word)
    if join.args.get("using"):
        raise error(f"{written} … USING is not known; write the condition, as in ON a.x = b.x", join)
    if join.this.args.get("joins"):
        raise error(f"{written} has its condition behind another join; write ON behind its stream", join)
    if method == "ASOF" and (side, kind) in _AS_OF:
        return BEST[_AS_OF[side, kind]]
    unread = {k for k, v in join.args.items() if v and k not in ("this", "side", "kind", "on")}
    odd = kind in ("CROSS", "INNER") if side else kind not in (*_PLAIN, "SEMI", "ANTI")
    if unread or odd:
        raise error(
            f"no kind of join '{written}'; streams are joined with a comma, or with JOIN, LEFT JOIN, RIGHT "
            "JOIN, FULL JOIN, LEFT SEMI JOIN, LEFT ANTI JOIN, RIGHT SEMI JOIN or RIGHT ANTI JOIN … ON, or "
            "with ASOF JOIN or LEFT ASOF JOIN … MATCH_CONDITION (…) ON", join
        )  # fmt: skip
    if not side and kind in _PLAIN:
        return INNER
    if join.args.get("on") is None:
        raise error(f"{written} has no condition; write {written} … ON and when rows match", join)
    return kind_of_join(f"{side} {kind}")


@dataclass(frozen=True)
class Item:
    """A stream of FROM: its name, its plan, and where the text has it."""

    name: str
    node: Node
    tree: exp.Expr

    @property
    def slide(self) -> exp.Expr | None:
        """The window as written."""
        slide: exp.Expr | None = self.tree.args.get("slide")
        return slide

    @property
    def schema(self) -> Schema:
        """The columns, under the name that the query has for the stream."""
        return Schema(self.node.schema.fields, self.name)


@dataclass(frozen=True)
class _Member:
    """A stream whose columns the results so far have."""

    item: Item
    window: Window
    prefix: str = ""
    """The start of the names of its columns in these results."""
    nullable: bool = False
    """Whether results may have NULLs for it."""

    @property
    def time(self) -> str:
        """The column with the time of its row."""
        return self.prefix + MEMBER_TIME


@dataclass(frozen=True)
class Joined:
    """The streams of FROM that are joined so far."""

    node: Node
    members: tuple[_Member, ...]
    hidden: tuple[str, ...] = ()
    """Streams whose columns results do not have: the other sides of semi and anti joins."""
    delay: int = 0
    """The most nanoseconds by which the time of a result is later than those of all its rows."""

    @classmethod
    def of(cls, item: Item, window: Window) -> Joined:
        """Return the first stream, which is not joined yet."""
        return cls(item.node, (_Member(item, window),))

    @classmethod
    def inner(cls, items: list[Item], windows: list[Window], on: Expr) -> Joined:
        """Return the inner join of all streams; `on` has their columns by number."""
        names = tuple(item.name for item in items)
        join = WindowJoin(tuple(item.node for item in items), names, settle_now(windows), on)
        each = zip(items, windows, strict=True)
        return cls(join, tuple(_Member(item, window, f"{item.name}.") for item, window in each))

    @property
    def schemas(self) -> tuple[Schema, ...]:
        """The columns of each stream, as expressions may read them."""
        return tuple(member.item.schema for member in self.members)

    @property
    def name(self) -> str:
        """The name of the results: that of the first stream, or those of all in parentheses."""
        names = ", ".join(member.item.name for member in self.members)
        return f"({names})" if self.members[0].prefix else names

    def flat(self, expr: Expr) -> Expr:
        """Turn an expression on the streams into one on the results; a further stream is the right side."""

        def flat(e: Expr) -> Expr:
            if not isinstance(e, tree.Column):
                return e
            if e.side == len(self.members):
                return replace(e, side=1)
            return replace(e, side=0, name=self.members[e.side].prefix + e.name)

        return transform(expr, flat)

    def join(self, item: Item, window: Window, kind: JoinKind, on: Expr, *, last: bool) -> Joined:
        """Join another stream.

        Args:
            item: The stream.
            window: Its window.
            kind: The kind of the join.
            on: The condition; the new stream has the number behind those of `schemas`.
            last: Whether no other stream follows, so that the times of rows are not needed any more.
        """
        first, name = self.members[0], self.name
        unit = finest_unit(self.node.clock.unit, item.node.clock.unit)
        if first.prefix == "":
            windows, on = (first.window, window), self.flat(on)
        else:
            longest = max(member.window.size for member in self.members)
            windows = (TimeWindow(longest), TimeWindow(_whole(window, unit) + self.delay))
            on = conjunction((*conjuncts(self.flat(on)), *self._in_windows(item, window)))
        node = WindowJoin((self.node, item.node), (name, item.name), settle_now(windows), on, kind, not last)
        left = [
            replace(m, prefix=f"{name}.{m.prefix}", nullable=m.nullable or kind.preserved[1])
            for m in self.members
        ]
        right = _Member(item, window, f"{item.name}.", kind.preserved[0])
        shown = (*(left if kind.shown[0] else ()), *((right,) if kind.shown[1] else ()))
        hidden = (*(() if kind.shown[0] else left), *(() if kind.shown[1] else (right,)))
        waits = (self.delay + _whole(windows[0], unit), _whole(windows[1], unit))
        delays = [wait for wait, tracked in zip(waits, kind.tracked, strict=True) if tracked]
        delay = max([self.delay if kind.pairs == "all" else 0, *delays])
        return Joined(node, shown, (*self.hidden, *(member.item.name for member in hidden)), delay)

    def as_of(self, item: Item, window: Window, kind: JoinKind, on: Expr, match: str) -> Joined:
        """Join another stream as of the time of these; results have that time if the join looks back."""
        name = self.name
        node = WindowJoin(
            (self.node, item.node), (name, item.name), (window, window), self.flat(on), kind, match=match
        )
        left = (replace(member, prefix=f"{name}.{member.prefix}") for member in self.members)
        return Joined(node, (*left, _Member(item, window, f"{item.name}.", kind.preserved[0])))

    def _in_windows(self, item: Item, window: Window) -> list[Expr]:
        """Return the conditions that the new row and each other row are in each other's windows."""
        times = tuple(Field(member.time, Timestamp(self.node.clock.unit)) for member in self.members)
        new = (Field(MEMBER_TIME, Timestamp(item.node.clock.unit)),)
        scope = Scope.of(Schema(times, "left"), Schema(new, "right"))
        return [bind(_in_window(member, window), scope) for member in self.members]


def _in_window(member: _Member, window: Window) -> Expr:
    old, new = tree.Name(("l", member.time)), tree.Name(("r", MEMBER_TIME))
    near = tree.And((
        tree.Compare("<", new, tree.Arithmetic("+", old, _length(member.window))),
        tree.Compare("<", old, tree.Arithmetic("+", new, _length(window))),
    ))  # fmt: skip
    return tree.Or((tree.IsNull(old), near)) if member.nullable else near


def _length(window: Window) -> Expr:
    return tree.Literal(window.size, type=Interval("ns"))


def _whole(window: Window, unit: str) -> int:
    """Return the length of a time window in nanoseconds, as whole units."""
    return -(-window.size // UNITS[unit]) * UNITS[unit]
