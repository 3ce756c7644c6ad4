"""Nearest joins of streams: a window join finds the pairs, and left rows take the best ones when final."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError, WindowError
from handshake.io.frames import conform, schema_of
from handshake.joins.arrangements.arrangement import Arrangement, RunningJoin
from handshake.joins.gate import Gate, OnShed
from handshake.joins.join import TwoStreamPush
from handshake.joins.late import LateStream, LateTo
from handshake.joins.metrics import Metrics
from handshake.joins.nearest import Chooser
from handshake.joins.numbered import APART, add_mark, add_number
from handshake.joins.plan import JoinOptions, JoinPlan, prepare
from handshake.joins.ranking import ranking_of
from handshake.joins.spec import SIDES
from handshake.joins.why.answer import Why
from handshake.joins.why.nearest import explain_running_nearest
from handshake.joins.why.rows import conform_row
from handshake.kinds import NEAREST
from handshake.options import check_names
from handshake.plan.build import Expression


class NearestJoin(TwoStreamPush[JoinPlan]):
    """A running nearest join of two streams; each push returns the left rows that it makes final.

    A left row is final once no match of it can come any more: when the watermark has passed its window, or
    when its window is full of newer rows. It then comes with its k best matches.

    Args:
        left: The schema of the left stream, or a frame to take it from.
        right: The schema of the right stream.
        on: The condition on pairs; without one, all pairs that the windows allow are matches.
        by: The ranking, as for `nearest`; the least value is best.
        k: The number of matches per left row, at most.
        rank: The name of the column with the rank of each match, from 1 up; None leaves it out.
        value: The name of a column for the value of `by`, if it is wanted.
        on_shed: Called with the name of the side and each batch that is shed.
        late_to: A function or a folder that gets late rows, as in `Join`.
        **options: See `JoinOptions`. The left input needs a window. `how` is `left` (the default) or `inner`.

    >>> import pyarrow as pa
    >>> event = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])
    >>> join = NearestJoin(left=event, right=event, by="ABS(l.x - r.x)", window="10 s", time="t")
    >>> join.push_left({"t": [0], "x": [5]}), join.push_right({"t": [1, 2], "x": [9, 6]})
    ([], [])
    >>> [batch["x_right"].to_pylist() for batch in join.advance(left=20, right=10)]
    [[6]]
    """

    def __init__(
        self, *, left: Any, right: Any, on: str | Expression | None = None, by: str | Expression, k: int = 1,
        rank: str | None = "rank", value: str | None = None, on_shed: OnShed | None = None,
        late_to: LateTo | None = None, **options: Unpack[JoinOptions],
    ) -> None:  # fmt: skip
        check_names(NearestJoin, options, JoinOptions)
        if options.get("ordered"):
            raise UnsupportedError(
                "a nearest join gives left rows as they become final; leave ordered out, and sort the results"
            )
        mine, theirs = schema_of(left, "left"), schema_of(right, "right")
        rest: dict[str, Any] = {**options}
        self._ranking = ranking_of(
            mine, theirs, by, k=k, how=rest.pop("how", "left"), rank=rank, value=value,
            suffix=rest.pop("suffix", "_right"), aliases=rest.get("aliases"),
        )  # fmt: skip
        self._schemas = mine, theirs
        plan = prepare(add_number(mine), add_mark(theirs), on, how=NEAREST, suffix=APART, **rest)
        if plan.spec.windows[0] is None:
            raise WindowError(
                "a nearest join of streams needs a window on the left input: without one, no left row is "
                "ever final; give it a window (left_window=…), or join tables (handshake.nearest)"
            )
        self._chooser = Chooser(self._ranking, mine, theirs)
        self._rows = 0
        super().__init__(plan, on_shed, late_to)

    def _late_streams(self) -> list[LateStream]:
        sides = zip(self.plan.spec.sides, self._schemas, strict=True)
        return [LateStream(side.name, schema, self.plan.spec.unit) for side, schema in sides]

    def push_left(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push rows of the left stream: an Arrow batch or table, a frame, a dict of lists, or dicts."""
        with self._lock:
            batch = conform(tuples, self._schemas[0], "left")
            numbers = pa.array(np.arange(self._rows, self._rows + batch.num_rows))
            self._rows += batch.num_rows
            return self._push(0, _add_column(batch, self.plan.spec.sides[0].schema, numbers))

    def push_right(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push rows of the right stream, in the same forms."""
        batch = conform(tuples, self._schemas[1], "right")
        marks = pa.array(np.ones(batch.num_rows, np.bool_))
        return self._push(1, _add_column(batch, self.plan.spec.sides[1].schema, marks))

    def _in_order(
        self, results: list[pa.RecordBatch], engine: RunningJoin | Gate | None
    ) -> list[pa.RecordBatch]:
        return self._chooser.choose(results)

    def _held_back(self) -> int:
        return self.metrics().pending if self._ranking.keeps_all else self._chooser.best.rows

    def why(self, left_row: Any, right_row: Any) -> Why:
        """Explain why a right row is among the best matches of a left row so far, or is not.

        Left rows that are final are not kept; for them the answer is not known. See `handshake.why`.

        Args:
            left_row: A dict of all values of the row, or a frame of one row.
            right_row: The right row.
        """
        with self._lock:
            engine = self._running()
            assert isinstance(self._joined, Arrangement)
            given = zip((left_row, right_row), self.streams.items(), strict=True)
            rows = [conform_row(row, schema, name) for row, (name, schema) in given]
            return explain_running_nearest(
                self._joined, self._chooser, rows, self.metrics().streams, queued=isinstance(engine, Gate)
            )

    @property
    def streams(self) -> dict[str, pa.Schema]:
        """The columns of both streams, by name."""
        return dict(zip(SIDES, self._schemas, strict=True))

    def metrics(self) -> Metrics:
        """Return counts and sizes so far; after closing, the last ones. Left rows are pending until final."""
        figures = super().metrics()
        chooser = self._chooser
        return replace(
            figures, results=chooser.given, pending=figures.left_rows - figures.left_late - chooser.final,
            finalised=chooser.final, state_bytes=figures.state_bytes + chooser.best.nbytes,
        )  # fmt: skip

    def counts(self) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return the rows of each stream and the results so far."""
        return super().counts()[0], {"join": self._chooser.given}

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results."""
        return self._ranking.output

    def explain(self) -> str:
        """Describe the plan."""
        return "\n".join((self.plan.explain(), self._ranking.explain()))


def _add_column(batch: pa.RecordBatch, schema: pa.Schema, column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)
