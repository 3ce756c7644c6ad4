"""One core, Kang's procedure: probe the other window, insert into one's own, expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from handshake.errors import core_error
from handshake.joins.arrangements.arrangement import Arrangement, Task
from handshake.joins.core import JoinCore
from handshake.joins.driver import Seen
from handshake.joins.latency import Latencies
from handshake.joins.pieces import pieces


@dataclass
class ThreeStep(Arrangement):
    """A running join on one core, in the caller's thread."""

    name: ClassVar[str] = "three_step"
    threads: ClassVar[bool] = False

    core: JoinCore = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.core = self._make_core()
        self._cores = [self.core]
        self.latencies = Latencies(1)

    def _make_core(self) -> JoinCore:
        return JoinCore(self.spec, self.driver.tracked)

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        for found in self.watch.time(self._join(stream, batch, seen)):
            self.latencies.note(0, found.num_rows, came)
            yield found

    def _join(self, side: int, batch: pa.RecordBatch, seen: Seen | None) -> Iterator[pa.RecordBatch]:
        admitted = self.driver.admit(side, batch, seen)
        for piece in pieces(self.spec, side, admitted):
            try:
                yield from self.core.probe(piece)
                self.core.insert(piece)
            except Exception as error:
                raise core_error(error, Task(piece, 0.0).describe()) from error
        self.expire()

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        return iter(())  # every push has yielded all its results

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
            self.core.insert(piece)

    def expire(self) -> None:
        """Drop tuples that no future tuple can join."""
        for side in (0, 1):
            oldest = self.driver.oldest(side)
            if oldest is not None:
                self._expired += self.core.expire(side, oldest)
