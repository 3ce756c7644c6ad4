"""The expected result of a join, by the oracle: every pair of rows is looked at, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from handshake.errors import InputError, UnsupportedError, suggest
from handshake.io.frames import plain_schema, table_of
from handshake.joins.join import Join
from handshake.joins.plan import JoinPlan, predicate_of
from handshake.kinds import KINDS, JoinKind, kind_of_join
from handshake.plan.bind import Scope, bind
from handshake.plan.expr import Expr
from handshake.schema import UNITS, Schema
from handshake.testing.oracle import TIME, Result, join, of_kind, rows
from handshake.windows import Duration, Windows, windows_of

JoinLike = Mapping[str, Any] | JoinPlan | Join
"""A join as a value: the keyword arguments of `handshake.join`, a plan, or a running join."""
Arrivals = Sequence[tuple[str, Any]]
_KEYWORDS = (
    "on", "window", "left_window", "right_window", "time", "left_time", "right_time", "how", "suffix",
    "aliases", "lateness",
)  # fmt: skip
"""The keywords that decide on results; all others are left to the engine."""
_OTHERS = ("method", "algorithm", "cores", "ordered", "segments", "state_dir", "name", "pin", "adapt")


@dataclass(frozen=True)
class Described:
    """The parts of a join that decide on its results."""

    on: Expr
    windows: Windows
    times: tuple[str | None, str | None]
    kind: JoinKind
    suffix: str = "_right"
    lateness: int = 0
    """In nanoseconds."""

    def match(
        self, left: pa.Table, right: pa.Table, lateness: int | None = None, arrivals: Arrivals | None = None
    ) -> Result:
        """Return the pairs of row numbers, and the rows that are late."""
        sides = [rows(table, time) for table, time in zip((left, right), self.times, strict=True)]
        key = None if self.times[0] is None else TIME
        return join(sides[0], sides[1], self.on, self.windows, lateness, arrivals, key, key)


def reference(join: JoinLike, left: Any, right: Any) -> pa.Table:
    """Return the result that `handshake.join` must give for two inputs, computed by a double loop.

    It takes time in proportion to the product of the row counts: a thousand rows on each side are a few
    seconds.

    Args:
        join: The join: the keyword arguments of `handshake.join` as a dictionary (`on`, `window`, `time`,
            `how` …), a plan of `handshake.prepare`, or a running `handshake.Join`.
        left: An Arrow table or batch, a frame, a dict of lists or a list of dicts.
        right: The other input.

    Returns:
        The columns of the join, in an order of rows that means nothing; see `assert_same_rows`.

    Raises:
        UnsupportedError: The dictionary has a key that is no argument of a join.

    Examples:
        >>> import handshake
        >>> from handshake import testing
        >>> near = {"on": "ABS(l.x - r.a) <= 10", "how": "left"}
        >>> left, right = {"x": [1, 20]}, {"a": [5, 40]}
        >>> expected = testing.reference(near, left, right)
        >>> testing.assert_same_rows(handshake.join(left, right, **near), expected)
    """
    tables = table_of(left), table_of(right)
    described = describe(join, tables[0].schema, tables[1].schema)
    pairs = of_kind(described.kind.name, described.match(*tables), (len(tables[0]), len(tables[1])))
    return result_table(described, tables[0], tables[1], pairs)


def describe(join: JoinLike, left: pa.Schema, right: pa.Schema) -> Described:
    """Return what decides on the results of a join of two schemas."""
    if isinstance(join, Join):
        join = join.plan
    if isinstance(join, JoinPlan):
        spec = join.spec
        late = (join.lateness or 0) * UNITS[spec.unit]
        times = (spec.sides[0].time, spec.sides[1].time)
        return Described(spec.analysis.predicate, spec.windows, times, spec.kind, _suffix(join), late)
    check_join(join)
    schemas = [Schema.from_arrow(plain_schema(s), n) for s, n in ((left, "left"), (right, "right"))]
    names = [join.get(f"{side}_time") or join.get("time") for side in ("left", "right")]
    left_time, right_time = (
        None if n is None else s.get(n).name for n, s in zip(names, schemas, strict=True)
    )
    windows = windows_of(join.get("window"), join.get("left_window"), join.get("right_window"))
    on = bind(predicate_of(join.get("on")), Scope.of(schemas[0], schemas[1], join.get("aliases")))
    late = Duration.parse(join["lateness"]).nanoseconds if join.get("lateness") else 0
    kind = kind_of_join(join.get("how", "inner"))
    return Described(on, windows, (left_time, right_time), kind, join.get("suffix", "_right"), late)


def check_join(join: Mapping[str, Any]) -> None:
    """Refuse what is no dictionary of arguments, and arguments that no test can take."""
    if not isinstance(join, Mapping):
        raise InputError(
            "a join is a dictionary of arguments, a plan of handshake.prepare or a handshake.Join, not "
            f"{type(join).__name__}"
        )
    for name in join:
        if name not in (*_KEYWORDS, *_OTHERS):
            known = (*_KEYWORDS, *_OTHERS)
            raise UnsupportedError(
                f"a join has no argument '{name}' that a test can take{suggest(name, known)}; "
                f"results depend on {', '.join(_KEYWORDS)}"
            )


def _suffix(plan: JoinPlan) -> str:
    """Return the suffix that a plan gives to doubled names."""
    names = [side.schema.names for side in plan.spec.sides]
    made = plan.output_schema.names[len(names[0]) :]
    doubled = ((n, m) for n, m in zip(names[1], made, strict=False) if n in names[0])
    return next((made.removeprefix(name) for name, made in doubled), "_right")


def result_table(
    described: Described, left: pa.Table, right: pa.Table, pairs: Iterable[tuple[int | None, int | None]]
) -> pa.Table:
    """Return results given as pairs of row numbers; None stands for a row of NULLs."""
    pairs, columns = list(pairs), dict[str, pa.ChunkedArray]()
    shown = KINDS[described.kind.name].shown
    for side, table in enumerate((left, right)):
        taken = table.take(pa.array([pair[side] for pair in pairs], pa.int64()))
        for name in table.column_names if shown[side] else ():
            columns[name + described.suffix if name in columns else name] = taken[name]
    return pa.table(columns)
