"""The windows of a segment: chunks in files, to which its manifest refers, as basic windows in memory."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from handshake.engines.spark.state.chunks import ChunkCache, ChunkRef, write_chunk
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.segment_files import clean_up
from handshake.engines.spark.state.store import Chunks, Store
from handshake.joins.basic_window import BasicWindow
from handshake.joins.segment import Segment
from handshake.joins.spec import JoinSpec

chunks = ChunkCache()


class HeldWindows:
    """The windows and guests of a segment in one micro-batch; changes go to the manifest.

    Args:
        spec: The join.
        manifest: The next manifest of the segment.
        store: The state directory, or Spark's state store.
        batch: The number of the micro-batch.
    """

    def __init__(self, spec: JoinSpec, manifest: Manifest, store: Chunks, batch: int) -> None:
        self._spec, self._manifest, self._store, self._batch = spec, manifest, store, batch

    def open(self, held: tuple[list[ChunkRef], list[ChunkRef]]) -> list[list[BasicWindow]]:
        """Return chunks of both sides as basic windows."""
        sides = zip(held, self._spec.sides, strict=True)
        return [[chunks.get(self._store, ref, spec) for ref in refs] for refs, spec in sides]

    def read_ahead(self) -> None:
        """Begin to read the windows while new tuples are read."""
        for sides in (self._manifest.windows, self._manifest.guests):
            for refs, spec in zip(sides, self._spec.sides, strict=True):
                chunks.read_ahead(self._store, refs, spec)

    def expire(self, limits: tuple[int | None, int | None], sides: Sequence[bool]) -> None:
        """Drop chunks of some sides that have expired.

        Args:
            limits: The oldest stamp of each side that later tuples can still join; None if all can.
            sides: Which sides; chunks of tracked ones are dropped after their last tuples without a match.
        """
        for side, oldest in enumerate(limits):
            if oldest is not None and sides[side]:
                for held in (self._manifest.windows[side], self._manifest.guests[side]):
                    self.replace(held, [ref for ref in held if ref.newest >= oldest])

    def merge(
        self, side: int, refs: list[ChunkRef], held: list[BasicWindow], new: list[BasicWindow]
    ) -> list[BasicWindow]:
        """Merge new tuples into the windows, write windows that changed, and return all."""
        known = dict(zip(map(id, held), refs, strict=True))
        segment = Segment(self._spec, side, list(held))
        for window in new:
            segment.insert(window)
        self.replace(refs, [known.get(id(w)) or self.write(side, w) for w in segment.windows])
        return segment.windows

    def insert(self, side: int, refs: list[ChunkRef], batches: list[pa.RecordBatch]) -> None:
        """Write tuples that this segment takes over, as windows to which `refs` refers then."""
        windows = [BasicWindow(self._spec.sides[side], batch) for batch in batches if batch.num_rows]
        self.merge(side, refs, [], windows)

    def write(self, side: int, window: BasicWindow) -> ChunkRef:
        """Write a basic window to a chunk."""
        manifest = self._manifest
        name = f"{manifest.place}/{manifest.owner}-{self._batch}-{uuid.uuid4().hex}.chunk"
        newest = (window.second if side == 0 else window.first)[1]
        return write_chunk(self._store, name, window, newest)

    def replace(self, held: list[ChunkRef], refs: list[ChunkRef]) -> None:
        """Replace references; chunks without one are dropped."""
        kept = {ref.name for ref in refs}
        for ref in held:
            if ref.name not in kept:
                chunks.drop(self._store, ref)
                self._manifest.dropped.append((ref.name, self._manifest.updates))
        held[:] = refs

    def clean_up(self, retain: int) -> None:
        """Remove files that are no longer needed.

        Args:
            retain: The number of past micro-batches that a checkpoint can return to.
        """
        if isinstance(self._store, Store):
            clean_up(self._manifest, self._store, self._batch, retain)
            return
        for name, _ in self._manifest.dropped:  # a state store keeps earlier versions itself
            self._store.remove(name)
        self._manifest.dropped = []
