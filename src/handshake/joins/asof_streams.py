"""As-of joins of streams: left rows wait until they are final, then the algorithm for tables joins them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handshake.io.frames import schema_of
from handshake.joins.asof import AsOf
from handshake.joins.join import TwoStreamPush
from handshake.joins.late import LateTo
from handshake.joins.lengths import Length
from handshake.joins.plan import lateness_of, predicate_of
from handshake.joins.spec import join_spec
from handshake.joins.tuning import TUNING, Tuning
from handshake.joins.waiting import WaitingJoin, WaitingPlan
from handshake.joins.why.answer import Why
from handshake.joins.why.asof import explain_waiting_asof
from handshake.joins.why.rows import conform_pair
from handshake.plan.build import Expression


def plan_asof(join: AsOf, lateness: Length | None = None, tuning: Tuning = TUNING) -> WaitingPlan:
    """Plan an as-of join of streams."""
    spec = join_spec(
        join.left, join.right, join.condition(), join.held_windows(), times=join.bound.times,
        suffix=join.suffix, aliases=join.aliases, tuning=tuning, kind=join.kind,
    )  # fmt: skip
    return WaitingPlan(spec, lateness_of(lateness, spec.unit), "waiting", 1, best=join)


class AsOfJoin(TwoStreamPush[WaitingPlan]):
    """A running as-of join of two streams; each push returns the left rows that it makes final.

    A left row is final once the watermark has passed it (`backward`), or passed it by more than the tolerance
    (`forward`, `nearest`): then no better match can come. Results come in the order of the times of left
    rows, except for left rows that can match nothing, which come at once.

    Args:
        left: The schema of the left stream: a PyArrow schema, a dict of names to types, or a frame.
        right: The schema of the right stream.
        on: A further condition on pairs: SQL text in which `l` and `r` are the inputs, or a built expression.
        by: Columns that must be equal: a name, or names and pairs of names (left, right).
        tolerance: The largest distance in time, inclusive: `"5 seconds"`, a timedelta or `Time(…)`.
        time: The time column of both streams.
        left_time: The time column of the left stream, if it differs.
        right_time: The time column of the right stream, if it differs.
        direction: `backward`, `forward` or `nearest`, as in `handshake.asof`.
        allow_exact_matches: Whether rows of equal times match.
        how: `left` keeps left rows without a match, with NULLs; `inner` drops them.
        lateness: How far rows may be behind the watermark, such as `"5 seconds"`.
        suffix: Added to a column name of the right stream that the left one has too.
        aliases: Other names for `l` and `r` in the condition.
        cores: The number of cores for joins with a condition; all by default.
        late_to: A function or a folder that gets late rows, as in `Join`.
        tuning: Thresholds, for tests and measurements.

    Raises:
        WindowError: There is no tolerance, or a time column is not named.
        HandshakeError: Anything else is wrong with the join.

    Examples:
        >>> import pyarrow as pa
        >>> trade = pa.schema([("t", pa.timestamp("s")), ("symbol", pa.string()), ("price", pa.int64())])
        >>> quote = pa.schema([("t", pa.timestamp("s")), ("symbol", pa.string()), ("bid", pa.int64())])
        >>> with AsOfJoin(left=trade, right=quote, by="symbol", time="t", tolerance="1 minute") as join:
        ...     _ = join.push_right({"t": [1, 3], "symbol": ["A", "A"], "bid": [8, 9]})
        ...     _ = join.push_left({"t": [4], "symbol": ["A"], "price": [10]})
        ...     [batch["bid"].to_pylist() for batch in join.advance(left=5, right=5)]
        [[9]]
    """

    def __init__(
        self, *, left: Any, right: Any, on: str | Expression | None = None,
        by: str | Sequence[str | tuple[str, str]] | None = None, tolerance: Length | None = None,
        time: str | None = None, left_time: str | None = None, right_time: str | None = None,
        direction: str = "backward", allow_exact_matches: bool = True, how: str = "left",
        lateness: Length | None = None, suffix: str = "_right", aliases: tuple[str, str] | None = None,
        cores: int | None = None, late_to: LateTo | None = None, tuning: Tuning = TUNING,
    ) -> None:  # fmt: skip
        join = AsOf(
            schema_of(left, "left"), schema_of(right, "right"), None if on is None else predicate_of(on), by,
            (left_time or time, right_time or time), direction, tolerance, allow_exact_matches, how=how,
            suffix=suffix, aliases=aliases, cores=cores,
        )  # fmt: skip
        self._request = join
        super().__init__(plan_asof(join, lateness, tuning), None, late_to)

    def why(self, left_row: Any, right_row: Any) -> Why:
        """Explain why a left row takes a right row as its best match so far, or takes another one.

        Left rows that are final are not kept; for them the answer is not known. See `handshake.why`.

        Args:
            left_row: A dict of all values of the row, or a frame of one row.
            right_row: The right row.
        """
        with self._lock:
            self._running()
            assert isinstance(self._joined, WaitingJoin)
            rows = conform_pair(self.plan.spec, left_row, right_row)
            return explain_waiting_asof(self._joined, self._request, rows, self.metrics().streams)
