"""⋈ as of a time: left rows wait until the clock of the join has passed the last time of a match.

Then the algorithm for tables (`joins.asof`) joins them. A right row in their reach that comes later would be
late, so results depend on the stamps of rows alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from handshake.joins.asof import AsOf, split_keys
from handshake.joins.waiting import Candidates, waiting_windows
from handshake.kernels.columns import as_array
from handshake.operators.chunk import Array, Chunk
from handshake.operators.join_engines import named_condition
from handshake.operators.join_kinds import JoinStep, KindOfJoin, Results, in_order
from handshake.operators.pending import Left
from handshake.plan.algebra import MEMBER_TIME, WindowJoin
from handshake.schema import UNITS, arrow_of
from handshake.windows import Duration


class AsOfKind(KindOfJoin):
    """The rows of both sides that an as-of join holds, and its results."""

    def __init__(self, node: WindowJoin, cores: int) -> None:
        self._cores = cores
        self._right = Candidates()
        super().__init__(node)

    _saved = (*KindOfJoin._saved, "_cores", "_right")

    def _build(self) -> None:
        super()._build()
        node, unit = self._node, self._node.clock.unit
        self._schemas = as_of_schema(node, 0), as_of_schema(node, 1)
        self._match = as_of_match(node, self._schemas, self._cores)
        window = node.windows[1]
        assert window is not None
        reach = window.reach(unit)
        self._reach = (0, reach) if node.looks_ahead else (reach, 0)
        self.waiting = waiting_windows(unit, *self._reach)
        """The windows that hold rows as long as left rows wait."""

    def step(self, step: JoinStep, pairs: Chunk, positions: Array) -> Chunk:
        """Return the left rows that have become final; no pair was found before."""
        pending, right = self._pending[0], step.chunks[1]
        assert pending is not None
        if right.rows:
            assert right.times is not None
            self._right.rows.add(self._batch(1, right), right.times)
        alone = self._enter(pending, 0, step)
        final = pending.leave(None if step.ended else step.clock)
        if final is not None:
            alone.append(self._join(final, step))
        self._right.drop(step.clock - self._reach[1], self._reach[0], self._edge_rows)
        return in_order(pairs, alone) if alone else pairs

    def _ends(self, side: int, chunk: Chunk, positions: Array) -> Array:
        assert chunk.times is not None
        ends: Array = chunk.times + (self._reach[1] + 1)
        return ends

    def _stamp(self, side: int, step: JoinStep, rows: Chunk, ends: Array, places: Array) -> Chunk:
        """Stamp rows with the last time of a match."""
        return Chunk(rows.columns, rows.rows, ends - 1, None, ends - 1, places)

    def _join(self, final: Left, step: JoinStep) -> Results:
        """Join final left rows with their best matches."""
        rows = final.chunk
        assert rows.times is not None
        first, last = int(rows.times.min()), int(rows.times.max())
        right = self._right.within(first, last, self._reach, self._edge_rows)
        batch = self._batch(0, rows)
        found = self._match.find(
            pa.Table.from_batches([batch]), pa.Table.from_batches(right, self._schemas[1])
        )
        columns = {name: as_array(found.table.column(name)) for name in self._schema}
        stamped = self._stamp(0, step, rows.with_columns(columns), final.ends, step.places_at(final))
        count = int(np.count_nonzero(found.matched))
        self.matched += count
        self.finalised += rows.rows
        if self._kind.preserved[0]:
            self.unmatched += rows.rows - count
            return Results(stamped, 0, final.positions)
        which = np.flatnonzero(found.matched)
        return Results(stamped.take(which), 0, final.positions[which])

    def held_rows(self, side: int) -> pa.Table:
        """Return the rows of a side that are held: by name, and last their times."""
        pending = self._pending[0]
        assert pending is not None
        left = (self._batch(0, chunk) for chunk in pending.chunks)
        return pa.Table.from_batches(
            [run.batch for run in self._right.rows.runs] if side else left, self._schemas[side]
        )

    def can_match(self, left: pa.RecordBatch) -> bool:
        """Return whether a left row, in the columns of `held_rows`, can match any other."""
        names = self._node.inputs[0].schema.names
        columns = dict(zip(names, left.columns[: len(names)], strict=True))
        return not self._hopeless[0].find(Chunk(columns, 1))[0]

    @property
    def replaces(self) -> bool:
        """True if right rows replace earlier ones of their keys for all left rows to come."""
        return self._match.replaces

    def _batch(self, side: int, chunk: Chunk) -> pa.RecordBatch:
        times = pa.array(chunk.times).view(pa.timestamp(self._node.clock.unit))
        columns = [chunk.columns[f.name] for f in self._node.inputs[side].schema]
        return pa.RecordBatch.from_arrays([*columns, times], schema=self._schemas[side])

    def _edge_rows(self, batch: pa.RecordBatch, forward: bool) -> Array | None:
        return self._match.edge_rows(pa.Table.from_batches([batch]), forward=forward)


def as_of_schema(node: WindowJoin, side: int) -> pa.Schema:
    """Return the columns of a side as the join reads them: by name, and last their times."""
    name = node.names[side]
    columns = [(f"{name}.{f.name}", arrow_of(f.type)) for f in node.inputs[side].schema]
    return pa.schema([*columns, (f"{name}.{MEMBER_TIME}", pa.timestamp(node.clock.unit))])


def as_of_match(node: WindowJoin, schemas: tuple[pa.Schema, pa.Schema], cores: int) -> AsOf:
    """Return the join of two tables that have the columns of the inputs, by name, and their times."""
    keys, on = split_keys(named_condition(node), {name: side for side, name in enumerate(node.names)})
    window = node.windows[1]
    assert window is not None
    unit = node.clock.unit
    return AsOf(
        *schemas, on, keys,
        (f"{node.names[0]}.{MEMBER_TIME}", f"{node.names[1]}.{MEMBER_TIME}"),
        "forward" if node.looks_ahead else "backward", Duration(window.reach(unit) * UNITS[unit]),
        node.match.endswith("="), aliases=(node.names[0], node.names[1]), cores=cores,
    )  # fmt: skip
