"""Chunk files: rows in their memory layout, so that loading a file only maps it.

A file is an Arrow stream with the rows, an Arrow stream with the arrays of their index, and the length of the
first. The reference to a file has its size and checksum: a damaged file is an error, never a wrong result.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.batches import to_stream
from handshake.engines.spark.state.store import Chunks, StateError
from handshake.joins.basic_window import BasicWindow
from handshake.joins.spec import SideSpec
from handshake.kernels.cluster import Cells
from handshake.kernels.keys import sort_key

_TRAILER = struct.Struct("<8sQ")
_MAGIC = b"handshk1"
_INDEX = pa.schema([("name", pa.string()), ("dtype", pa.string()), ("data", pa.binary())])


@dataclass(frozen=True)
class ChunkRef:
    """A reference to a chunk file."""

    name: str
    rows: int
    bytes: int
    check: int
    newest: int
    """The newest expiry stamp in it."""


def write_chunk(store: Chunks, name: str, window: BasicWindow, newest: int = 0) -> ChunkRef:
    """Write the rows of a basic window with their index."""
    tuples = to_stream(window.batch.schema, [window.batch])
    index = to_stream(_INDEX, [_index_batch(window.cells)])
    trailer = _TRAILER.pack(_MAGIC, len(tuples))
    check = zlib.crc32(trailer, zlib.crc32(index, zlib.crc32(tuples)))
    store.write(name, (tuples, index, trailer))
    return ChunkRef(name, window.rows, len(tuples) + len(index) + len(trailer), check, newest)


def read_chunk(store: Chunks, ref: ChunkRef, spec: SideSpec) -> BasicWindow:
    """Map a chunk file and verify its checksum."""
    batch, index = read_parts(store, ref)
    cells = _cells(index)
    bare = BasicWindow(spec, batch, cells)
    if cells is None or not (spec.hashed and spec.attributes):  # bands have fences instead
        return bare
    return BasicWindow(spec, batch, cells, sort_key(bare.values(spec.attributes[-1].inner)))


def read_parts(store: Chunks, ref: ChunkRef) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows and the index of a chunk file, after a check of its checksum."""
    data = store.read(ref.name)
    if data.size != ref.bytes or zlib.crc32(data) != ref.check:
        raise StateError(
            f"'{store.path(ref.name)}' is damaged: {data.size} bytes that do not match the {ref.bytes} bytes "
            "and checksum in the join's state; restore the file, or start from a new checkpoint"
        )
    magic, length = _TRAILER.unpack(data[data.size - _TRAILER.size :])
    if magic != _MAGIC:
        raise StateError(f"'{store.path(ref.name)}' has a layout that this release does not read")
    batch = pa.ipc.open_stream(data[:length]).read_next_batch()
    index = pa.ipc.open_stream(data[length : data.size - _TRAILER.size]).read_next_batch()
    return batch, index


def _index_batch(cells: Cells | None) -> pa.RecordBatch:
    parts = {} if cells is None else {f.name: getattr(cells, f.name) for f in fields(cells)}
    arrays = {name: np.atleast_1d(np.asarray(part)) for name, part in parts.items() if part is not None}
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(arrays), pa.string()),
            pa.array([a.dtype.str for a in arrays.values()], pa.string()),
            pa.array([a.tobytes() for a in arrays.values()], pa.binary()),
        ],
        schema=_INDEX,
    )


def _cells(index: pa.RecordBatch) -> Cells | None:
    if index.num_rows == 0:
        return None
    parts: dict[str, Any] = {
        name.as_py(): np.frombuffer(data.as_buffer(), dtype.as_py())
        for name, dtype, data in zip(*index.columns, strict=True)
    }
    if "shift" in parts:
        parts["shift"] = int(parts["shift"][0])
    return Cells(**parts)


class ChunkCache:
    """The chunks that this process has mapped and verified; the least recently used are dropped first."""

    def __init__(self, room: int = 2048) -> None:
        self._room = room
        self._held: OrderedDict[tuple[str, int], tuple[BasicWindow, Any]] = OrderedDict()
        self._coming: dict[tuple[str, int], Callable[[], BasicWindow]] = {}

    def read_ahead(self, store: Chunks, refs: Iterable[ChunkRef], spec: SideSpec) -> None:
        """Begin to read the chunks that are not cached, if files are not local."""
        for ref in () if store.is_local else refs:
            key = (store.path(ref.name), ref.check)
            if key not in self._held:
                self._coming[key] = store.ahead(read_chunk, store, ref, spec)

    def get(self, store: Chunks, ref: ChunkRef, spec: SideSpec) -> BasicWindow:
        """Return a chunk; map and verify it unless it is cached and unchanged on disk."""
        key, version = (store.path(ref.name), ref.check), store.version(ref.name)
        held = self._held.get(key)
        if held is None or held[1] != version or held[0].spec is not spec:
            coming = self._coming.pop(key, None)
            held = (read_chunk(store, ref, spec) if coming is None else coming(), version)
            self._held[key] = held
        self._held.move_to_end(key)
        while len(self._held) > self._room:
            self._held.popitem(last=False)
        return held[0]

    def drop(self, store: Chunks, ref: ChunkRef) -> None:
        """Drop a chunk that is no longer needed."""
        self._held.pop((store.path(ref.name), ref.check), None)
        self._coming.pop((store.path(ref.name), ref.check), None)
