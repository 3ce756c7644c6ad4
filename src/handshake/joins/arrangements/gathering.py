"""Rate-aware batches (CellJoin 4.2.2): while cores are busy, stamped tuples gather and go together.

A batch costs something whatever its size: a scan reads the whole window from memory, for one tuple as for
sixty-four. So a join that falls behind gets faster. Tuples are stamped as they come, before they gather; the
stamps say what joins, so it does not matter that tuples of two streams no longer take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from handshake.joins.arrangements.arrangement import CrewJoin, T
from handshake.joins.driver import Seen
from handshake.schema import concat_batches

Bounds = tuple[int | None, int | None]


@dataclass
class Buffer:
    """Stamped tuples of one stream that wait for the cores (4.2.2), in batches no larger than `most`."""

    most: int
    rows: int = 0
    batches: list[tuple[pa.RecordBatch, Bounds, float]] = field(default_factory=list)

    def put(self, batch: pa.RecordBatch, bounds: Bounds, arrived: float) -> None:
        """Add a batch. `bounds` are the least stamps of both windows that its tuples can still join."""
        self.rows += batch.num_rows
        for start in range(0, batch.num_rows, self.most):
            self.batches.append((batch.slice(start, self.most), bounds, arrived))

    def take(self) -> tuple[pa.RecordBatch, float]:
        """Take the oldest tuples, up to the size of a batch; also returns when the first of them came."""
        count, rows, arrived = 0, 0, self.batches[0][2]
        while count < len(self.batches) and rows + self.batches[count][0].num_rows <= self.most:
            rows += self.batches[count][0].num_rows
            count += 1
        batch, count = _together([part[0] for part in self.batches[:count]])
        del self.batches[:count]
        self.rows -= batch.num_rows
        return batch, arrived


def _together(batches: list[pa.RecordBatch]) -> tuple[pa.RecordBatch, int]:
    """Concatenate batches if one array can hold them (see `basic_window.merged`); returns their number."""
    try:
        return (concat_batches(batches), len(batches)) if len(batches) > 1 else (batches[0], 1)
    except pa.ArrowInvalid:
        return batches[0], 1


@dataclass
class GatheringJoin(CrewJoin[T]):
    """An arrangement whose tuples wait in buffers while its cores are busy."""

    _buffers: tuple[Buffer, Buffer] = field(init=False)

    def _gather(self, side: int, batch: pa.RecordBatch, seen: Seen | None, came: float) -> Buffer:
        """Stamp tuples and put them into the buffer of their side, which is returned."""
        self.watch.start()
        # Taken before stamping: these bounds hold for this batch and for all future ones.
        bounds = (self.driver.oldest(0), self.driver.oldest(1))
        buffer = self._buffers[side]
        buffer.put(self.driver.admit(side, batch, seen), bounds, came)
        return buffer

    def _waiting(self) -> bool:
        left, right = self._buffers
        return left.rows > 0 or right.rows > 0

    def _is_busy(self) -> bool:
        """Return whether a core has another batch waiting."""
        return any(len(inbox) for inbox in self.crew.inboxes)

    def _oldest(self, side: int) -> int | None:
        """Return the least expiring stamp of a side that a waiting or future tuple can still join."""
        waiting = [buffer.batches[0][1][side] for buffer in self._buffers if buffer.batches]
        if not waiting:
            return self.driver.oldest(side)
        bounds = [self.driver.oldest(side), *waiting]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if len(known) == len(bounds) else None
