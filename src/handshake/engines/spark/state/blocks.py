"""Chunks of new rows as blocks, of which a segment reads only those with its cells.

The rows of a chunk are sorted by cell. A block holds the rows of a few cells, behind their checksum. The
checksum also covers the name of the chunk and the number of the block, so a block of another file or
another place is an error too. Inside a block, rows lie one after the other with a fixed width; texts follow
them. Inputs with nested types have Arrow streams as blocks instead.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.batches import to_stream
from handshake.engines.spark.state.store import StateError
from handshake.schema import concat_batches

Array = np.ndarray[Any, Any]
Ranges = list[tuple[int, int]]
_CHECK = struct.Struct("<I")
_PER_SHARE = 8
"""Blocks per fair share of a segment. A segment reads at most one block too much, at the ends of a range."""
_LEAST_STREAM_ROWS = 4
"""Rows of a block that is an Arrow stream, at least: its header takes hundreds of bytes."""


@dataclass(frozen=True)
class Layout:
    """The places of a chunk's rows in its bytes."""

    schema: pa.Schema
    rows: Array
    """The first row of each block, and the end."""
    ends: Array
    """The first byte of each block, and the end."""
    has_nulls: bool

    def cover(self, ranges: Ranges) -> Ranges:
        """Return the ranges of blocks that hold ranges of rows; ranges that touch become one."""
        found: Ranges = []
        for start, stop in sorted(ranges):
            first = int(np.searchsorted(self.rows, start, "right")) - 1
            last = int(np.searchsorted(self.rows, stop, "left"))
            if stop <= start:
                continue
            if found and first <= found[-1][1]:
                found[-1] = (found[-1][0], max(last, found[-1][1]))
            else:
                found.append((first, last))
        return found

    def rows_of(self, blocks: Ranges) -> Ranges:
        """Return the rows in ranges of blocks."""
        return [(int(self.rows[a]), int(self.rows[b])) for a, b in blocks]

    def bytes_of(self, blocks: Ranges) -> Ranges:
        """Return the bytes of ranges of blocks."""
        return [(int(self.ends[a]), int(self.ends[b])) for a, b in blocks]

    def dump(self, given: pa.Schema) -> bytes:
        """Serialise what does not follow from the input's own columns and the rows per cell."""
        hidden = pa.schema(list(self.schema)[len(given) :])
        names = hidden.serialize().to_pybytes() if len(hidden) else b""
        sizes = np.diff(self.ends).astype("<u4").tobytes() if _codec(self.schema).varies else b""
        return zlib.compress(struct.pack("<?I", self.has_nulls, len(names)) + names + sizes, 1)

    @classmethod
    def load(cls, data: bytes, given: pa.Schema, rows: Array) -> Layout:
        """Return the layout that `dump` wrote.

        Args:
            data: The result of `dump`.
            given: The columns of the input.
            rows: The first row of each block, and the end.
        """
        text = zlib.decompress(data)
        has_nulls, length = struct.unpack_from("<?I", text)
        start = struct.calcsize("<?I")
        schema = given
        if length:
            hidden = pa.ipc.read_schema(pa.py_buffer(text[start : start + length]))
            schema = pa.schema([pa.field(f.name, f.type) for f in [*given, *hidden]])
        codec = _codec(schema)
        sizes = np.frombuffer(text[start + length :], "<u4") if codec.varies else codec.sizes(rows, has_nulls)
        return cls(schema, rows, _edges(sizes), has_nulls)


def block_edges(offsets: Array, rows: int, segments: int, schema: pa.Schema) -> Array:
    """Return the first row of each block, and the end.

    Args:
        offsets: The first row of each cell, and the end.
        rows: The number of rows.
        segments: The number of segments that share the rows.
        schema: The columns of the input.
    """
    least = max(rows // (_PER_SHARE * segments), 1 if _is_plain(schema) else _LEAST_STREAM_ROWS)
    edges = offsets[1:-1]
    _, first = np.unique(edges // least, return_index=True)
    return np.unique(np.concatenate([[0], edges[first], [rows]])).astype(np.int64)


def encode_blocks(name: str, batch: pa.RecordBatch, rows: Array) -> tuple[bytes, Layout, int]:
    """Return the bytes of a chunk, its layout and its checksum.

    Args:
        name: The name of the chunk.
        batch: Its rows.
        rows: The first row of each block, and the end.
    """
    has_nulls = any(column.null_count for column in batch.columns)
    parts: list[bytes] = []
    checks: list[bytes] = []
    sizes = []
    for number, pieces in enumerate(_codec(batch.schema).encode(batch, rows, has_nulls)):
        check = _seed(name, number)
        for piece in pieces:
            check = zlib.crc32(piece, check)
        checks.append(_CHECK.pack(check))
        parts += [checks[-1], *pieces]
        sizes.append(_CHECK.size + sum(map(len, pieces)))
    layout = Layout(batch.schema, rows, _edges(sizes), has_nulls)
    return b"".join(parts), layout, zlib.crc32(b"".join(checks))


def decode_blocks(
    path: str, name: str, layout: Layout, blocks: Ranges, buffers: Sequence[Any]
) -> pa.RecordBatch:
    """Return the rows of ranges of blocks; verify each block.

    Args:
        path: The full path of the chunk, for messages.
        name: The name that it was written with.
        layout: Its layout.
        blocks: The ranges of blocks.
        buffers: The bytes of each range.
    """
    payloads, counts = [], []
    for (first, last), buffer in zip(blocks, buffers, strict=True):
        data, ends = memoryview(buffer), layout.ends[first : last + 1].tolist()
        base = ends[0]
        if len(data) != ends[-1] - base:
            raise _damage_error(path, f"{len(data)} bytes from byte {base} on instead of {ends[-1] - base}")
        for number, (start, stop) in enumerate(pairwise(ends), first):
            check = _CHECK.unpack_from(data, start - base)[0]
            payload = data[start - base + _CHECK.size : stop - base]
            if zlib.crc32(payload, _seed(name, number)) != check:
                raise _damage_error(path, f"the bytes from {start} on do not match their checksum")
            payloads.append(payload)
            counts.append(int(layout.rows[number + 1] - layout.rows[number]))
    if not payloads:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in layout.schema], schema=layout.schema)
    return _codec(layout.schema).decode(payloads, counts, layout.has_nulls)


def _damage_error(path: str, what: str) -> StateError:
    return StateError(f"'{path}' is damaged: {what}; restart the query, which writes the new rows again")


def _seed(name: str, number: int) -> int:
    return zlib.crc32(f"{name}#{number}".encode())


def _edges(sizes: Any) -> Array:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


# The content of blocks


@lru_cache(maxsize=256)
def _codec(schema: pa.Schema) -> _RowCodec | _StreamCodec:
    return _RowCodec(schema) if _is_plain(schema) else _StreamCodec(schema)


def _is_plain(schema: pa.Schema) -> bool:
    kinds = [field.type for field in schema]
    fixed = pa.types.is_primitive, pa.types.is_decimal
    return bool(kinds) and all(_is_text(kind) or any(test(kind) for test in fixed) for kind in kinds)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


class _StreamCodec:
    """Blocks as Arrow streams, for nested types."""

    varies = True

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def sizes(self, rows: Array, has_nulls: bool) -> Array:
        raise NotImplementedError  # its blocks vary

    def encode(self, batch: pa.RecordBatch, rows: Array, has_nulls: bool) -> list[list[Any]]:
        slices = (batch.slice(start, stop - start) for start, stop in pairwise(rows.tolist()))
        return [[to_stream(self.schema, [part]).to_pybytes()] for part in slices]

    def decode(self, payloads: list[memoryview], counts: list[int], has_nulls: bool) -> pa.RecordBatch:
        return concat_batches([pa.ipc.open_stream(payload).read_next_batch() for payload in payloads])


class _RowCodec:
    """Rows of a fixed width, followed by the texts of each column; a text has its length in the row."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.texts = [k for k, field in enumerate(schema) if _is_text(field.type)]
        self.varies = bool(self.texts)

    def _dtype(self, has_nulls: bool) -> np.dtype[Any]:
        fields = [(f"c{k}", _storage_type(field.type)) for k, field in enumerate(self.schema)]
        mask = [("nulls", "u1", (-(-len(self.schema) // 8),))] if has_nulls else []
        return np.dtype([*fields, *mask])

    def sizes(self, rows: Array, has_nulls: bool) -> Array:
        """Return the bytes of each block, if there is no text."""
        return np.asarray(np.diff(rows) * self._dtype(has_nulls).itemsize + _CHECK.size)

    def encode(self, batch: pa.RecordBatch, rows: Array, has_nulls: bool) -> list[list[Any]]:
        """Return the parts of each block."""
        records = np.zeros(batch.num_rows, self._dtype(has_nulls))
        texts = []
        for k, column in enumerate(batch.columns):
            if k in self.texts:
                offsets, data = _text_parts(column)
                records[f"c{k}"] = np.diff(offsets)
                texts.append((offsets[rows], data))
            else:
                records[f"c{k}"] = _fixed_values(column)
        if has_nulls:
            masks = np.stack([np.asarray(column.is_null()) for column in batch.columns], 1)
            records["nulls"] = np.packbits(masks, axis=1)
        width = records.itemsize
        view = memoryview(records.tobytes())
        return [
            [
                view[int(rows[b]) * width : int(rows[b + 1]) * width],
                *(text[int(edges[b]) : int(edges[b + 1])] for edges, text in texts),
            ]
            for b in range(len(rows) - 1)
        ]

    def decode(self, payloads: list[memoryview], counts: list[int], has_nulls: bool) -> pa.RecordBatch:
        """Return the rows of several blocks."""
        dtype = self._dtype(has_nulls)
        widths = [count * dtype.itemsize for count in counts]
        fixed = [payload[:width] for payload, width in zip(payloads, widths, strict=True)]
        records = np.frombuffer(b"".join(fixed), dtype)
        nulls = None
        if has_nulls:
            nulls = np.unpackbits(records["nulls"], axis=1, count=len(self.schema)).astype(np.bool_)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        at, columns = widths, []
        for k, field in enumerate(self.schema):
            mask = None if nulls is None or not nulls[:, k].any() else nulls[:, k]
            if k not in self.texts:
                columns.append(_fixed_array(field.type, records[f"c{k}"], mask))
                continue
            sizes = np.add.reduceat(records[f"c{k}"].astype(np.int64), starts).tolist()
            ends = [start + size for start, size in zip(at, sizes, strict=True)]
            data = b"".join(p[a:b] for p, a, b in zip(payloads, at, ends, strict=True))
            columns.append(_text_array(field.type, records[f"c{k}"], data, mask))
            at = ends
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _storage_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "u1"
    return "<u4" if _is_text(kind) else f"V{kind.bit_width // 8}"


def _fixed_values(column: pa.Array) -> Array:
    if pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False).cast(pa.uint8()))
    width = column.type.bit_width // 8
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column), f"V{width}")
    return np.frombuffer(data, f"V{width}", len(column), column.offset * width)


def _fixed_array(kind: pa.DataType, values: Array, nulls: Array | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(np.bool_), mask=nulls)
    data = pa.py_buffer(np.ascontiguousarray(values).tobytes())
    return pa.Array.from_buffers(kind, len(values), [_validity(nulls), data])


def _text_parts(column: pa.Array) -> tuple[Array, memoryview]:
    """Return where each text begins, and the end, in the bytes of all."""
    wide = column.type in (pa.large_string(), pa.large_binary())
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(len(column) + 1, np.int64), memoryview(b"")
    dtype = np.dtype(np.int64 if wide else np.int32)
    edges = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * dtype.itemsize)
    return edges.astype(np.int64), memoryview(b"" if data is None else data)


def _text_array(kind: pa.DataType, lengths: Array, data: bytes, nulls: Array | None) -> pa.Array:
    wide = kind in (pa.large_string(), pa.large_binary())
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    edges = pa.py_buffer(offsets.astype(np.int64 if wide else np.int32).tobytes())
    return pa.Array.from_buffers(kind, len(lengths), [_validity(nulls), edges, pa.py_buffer(data)])


def _validity(nulls: Array | None) -> pa.Buffer | None:
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
