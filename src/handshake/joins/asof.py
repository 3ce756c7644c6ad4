"""As-of joins: each left row with the right row that is best in time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from handshake.errors import SchemaError, UnsupportedError, WindowError, suggest
from handshake.io.frames import plain_table
from handshake.joins.asof_search import ANY, Rows, Wanted, edge_rows, search_by_predicate, search_by_time
from handshake.joins.key_numbers import number_keys
from handshake.joins.lengths import Length, length_of
from handshake.joins.spec import SIDES, common_unit, result_schema
from handshake.joins.waiting import BestMatch, Found, waiting_windows
from handshake.options import AsOfOptions
from handshake.plan.bind import Scope, bind
from handshake.plan.expr import Compare, Expr, Literal, Name, conjunction, conjuncts, show
from handshake.schema import UNITS, Schema
from handshake.windows import Duration, Windows

DIRECTIONS = ("backward", "forward", "nearest")
Array = np.ndarray[Any, Any]
By = str | Sequence[str | tuple[str, str]] | None


@dataclass(frozen=True)
class AsOf(BestMatch):
    """An as-of join; `handshake.asof` documents the fields."""

    called: ClassVar[str] = "an as-of join"
    options: ClassVar[type] = AsOfOptions

    by: By
    times: tuple[str | None, str | None]
    direction: str = "backward"
    tolerance: Length | None = None
    allow_exact_matches: bool = True
    most_pairs: int = 64
    """Joins with more than about this many pairs per left row use growing windows."""

    @cached_property
    def bound(self) -> Wanted:
        """The join with its names resolved; raises a `HandshakeError` if anything is wrong with it."""
        return _bind(self)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of results."""
        return result_schema(self.left, self.right, self.suffix, self.kind)

    def _find(self, left: pa.Table, right: pa.Table) -> Found:
        wanted = self.bound
        rows = Rows((left, right), wanted)
        found = search_by_time(wanted, rows) if self.on is None else None
        if found is None:
            found = search_by_predicate(wanted, rows, self.cores, self.most_pairs)
        matched = found >= 0
        if not self.kind.preserves:
            kept = np.flatnonzero(matched)
            left, found = left.take(pa.array(kept)), found[kept]
        columns = right.take(pa.array(found, mask=found < 0)).columns
        return Found(pa.table([*left.columns, *columns], schema=self.schema), matched)

    def edge_rows(self, right: pa.Table, *, forward: bool) -> Array | None:
        """Return the last row of each key, which later left rows find; or the first one (`forward`)."""
        wanted = self.bound
        if self.on is not None or not wanted.looks("forward" if forward else "backward"):
            return None
        rows = Rows((self.left.empty_table(), plain_table(right).combine_chunks()), wanted)
        return edge_rows(wanted, rows, forward=forward)

    def condition(self) -> Expr:
        """Return what must hold for a pair, apart from times: keys are equal, and `on`."""
        names = self.aliases or ("l", "r")
        parts: list[Expr] = [
            Compare("=", *(Name((name, column)) for name, column in zip(names, pair, strict=True)))
            for pair in _pairs(self.by)
        ]
        return conjunction((*parts, *([] if self.on is None else [self.on])))

    def describe(self) -> str:
        """Return the join in a line of text."""
        exact = "" if self.allow_exact_matches else ", not at the same time"
        given = self.tolerance
        tolerance = "" if given is None else f", within {length_of(given, 'tolerance')}"
        return f"as of, {self.direction}{tolerance}{exact}, on {show(self.condition())}"

    @property
    def search(self) -> str:
        """How tables are searched."""
        tables = self.left.empty_table(), self.right.empty_table()
        if self.on is None and number_keys(self.bound.keys, tables) is not None:
            return "one pass over both inputs in the order of time"
        return "a join of all pairs if they are few, else joins under windows that grow"

    def describe_waiting(self) -> tuple[str, str]:
        """Return when a left row at time t is final, and how long right rows are held, as texts."""
        tolerance = length_of(self.tolerance, "tolerance")
        ahead = f" + {tolerance}" if self.bound.looks("forward") else ""
        held = 2 * tolerance.nanoseconds if self.direction == "nearest" else tolerance.nanoseconds
        return f"later than t{ahead}", str(Duration(held))

    def held_windows(self) -> Windows:
        """Return windows that hold rows of streams as long as left rows wait."""
        if self.tolerance is None:
            raise WindowError(
                "an as-of join of streams needs a tolerance, or right rows would be held for ever; give the "
                "largest distance in time, such as tolerance='1 minute'"
            )
        wanted = self.bound
        back, ahead = (wanted.within if wanted.looks(way) else 0 for way in ("backward", "forward"))
        return waiting_windows(wanted.unit, back, ahead)


def _bind(join: AsOf) -> Wanted:
    """Check an as-of join."""
    if join.direction not in DIRECTIONS:
        raise UnsupportedError(
            f"no direction {join.direction!r} of an as-of join; choose one of {', '.join(DIRECTIONS)}"
            f"{suggest(str(join.direction), DIRECTIONS)}"
        )
    if not isinstance(join.allow_exact_matches, (bool, np.bool_)):
        raise UnsupportedError(
            f"allow_exact_matches is True or False; {join.allow_exact_matches!r} was given"
        )
    schemas = [Schema.from_arrow(s, n) for s, n in zip((join.left, join.right), SIDES, strict=True)]
    _ = join.schema
    times = [_time(name, schema) for name, schema in zip(join.times, schemas, strict=True)]
    scope, names = Scope.of(schemas[0], schemas[1], join.aliases), join.aliases or ("l", "r")
    keys = tuple(
        bind(Compare("=", Name((names[0], mine)), Name((names[1], theirs))), scope)
        for mine, theirs in _pairs(join.by)
    )
    on = None if join.on is None else bind(join.on, scope)
    unit = common_unit((schemas[0], schemas[1]), Windows(None, None), (times[0], times[1]))
    within = ANY
    if join.tolerance is not None:
        within = min(length_of(join.tolerance, "tolerance").nanoseconds // UNITS[unit], ANY)
    strict = not join.allow_exact_matches
    return Wanted((times[0], times[1]), unit, join.direction, within, strict, keys, on)


def _time(name: str | None, schema: Schema) -> str:
    """Return the name of a time column in the spelling of the schema."""
    if name is None:
        raise WindowError(
            f"an as-of join needs a time column, and none is named for the {schema.stream} input; "
            f"name one of {', '.join(schema.names)} (time=…, or {schema.stream}_time=…)"
        )
    return schema.get(name).name


def split_keys(condition: Expr, sides: Mapping[str, int]) -> tuple[list[tuple[str, str]], Expr | None]:
    """Return the pairs of columns that a condition wants equal, and the rest of it; None if nothing is left.

    Args:
        condition: A condition that names columns as in `l.x = r.a`.
        sides: The side that each name of an input stands for.
    """
    keys, others = [], []
    for part in conjuncts(condition):
        match part:
            case Compare(op="=", left=Name(parts=(a, x)), right=Name(parts=(b, y))) if {
                sides.get(a),
                sides.get(b),
            } == {0, 1}:
                keys.append((y, x) if sides[a] else (x, y))
            case Literal(value=True):
                pass
            case _:
                others.append(part)
    return keys, conjunction(tuple(others)) if others else None


_DESCRIBED = re.compile(r"as of, (\w+)(?:, within ([^,]+))?(, not at the same time)?, on .*", re.DOTALL)
"""The text of `AsOf.describe`, which checkpoints have."""


def read_described(text: str) -> dict[str, Any] | None:
    """Return the fields of the join that `AsOf.describe` describes, without its condition; None if none.

    >>> read_described("as of, backward, within 5 seconds, not at the same time, on l.k = r.k")
    {'direction': 'backward', 'tolerance': '5 seconds', 'allow_exact_matches': False}
    """
    found = _DESCRIBED.fullmatch(text)
    if found is None:
        return None
    return {"direction": found[1], "tolerance": found[2], "allow_exact_matches": found[3] is None}


def _pairs(by: Any) -> list[tuple[str, str]]:
    """Return the pairs of columns that must be equal."""
    if by is None:
        return []
    pairs = []
    for each in by if isinstance(by, (list, tuple)) else [by]:
        pair = (each, each) if isinstance(each, str) else each
        if isinstance(pair, (list, tuple)) and [type(name) for name in pair] == [str, str]:
            pairs.append((pair[0], pair[1]))
        else:
            raise SchemaError(
                "by is a column of both inputs, or a list of such columns and of pairs (left, right), as in "
                f"by=['day', ('symbol', 'ticker')]; {each!r} is neither a name nor a pair of names"
            )
    return pairs
