"""One field of packed tuples as an Arrow column and back: one codec per kind of type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import SchemaError

__all__ = ["Codec", "codec_for"]

Unpacked = tuple[pa.Array, "np.ndarray | None"]
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


class Codec(Protocol):
    """How a type is written."""

    @property
    def width(self) -> int:
        """Bytes that a value takes."""

    @property
    def raw(self) -> tuple[Any, ...]:
        """What NumPy calls it: a type, and for bytes how many."""

    def unpack(self, values: np.ndarray) -> Unpacked:
        """An Arrow column, and which values are of the type (None: all); the others hold anything."""

    def pack(self, column: pa.Array) -> np.ndarray:
        """The bytes of a column without NULLs; ValueError says what does not fit."""


@dataclass(frozen=True)
class _Number:
    """Whole numbers, floats, and what Arrow counts as such: dates, instants, durations."""

    type: pa.DataType
    native: np.dtype[Any]
    limit: int | None = None
    """Values lie in 0 ≤ v < limit: a time of day."""

    @property
    def width(self) -> int:
        return self.native.itemsize

    @property
    def raw(self) -> tuple[Any, ...]:
        return (self.native.newbyteorder(">"),)

    def unpack(self, values: np.ndarray) -> Unpacked:
        numbers = np.ascontiguousarray(values.astype(self.native))
        good = None if self.limit is None else _all_or((numbers >= 0) & (numbers < self.limit))
        if good is not None:
            numbers[~good] = 0
        return pa.Array.from_buffers(self.type, len(numbers), [None, pa.py_buffer(numbers)]), good

    def pack(self, column: pa.Array) -> np.ndarray:
        plain = column.view(pa.from_numpy_dtype(self.native))
        return plain.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Bool:
    """A byte, 0 or 1."""

    width: int = 1
    raw: tuple[Any, ...] = ("u1",)

    def unpack(self, values: np.ndarray) -> Unpacked:
        return pa.array(values == 1), _all_or(values <= 1)

    def pack(self, column: pa.Array) -> np.ndarray:
        return column.to_numpy(zero_copy_only=False).astype(np.uint8)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Bytes:
    """Exactly `width` bytes."""

    width: int

    @property
    def raw(self) -> tuple[Any, ...]:
        return "u1", (self.width,)

    def unpack(self, values: np.ndarray) -> Unpacked:
        flat = np.ascontiguousarray(values)
        return pa.Array.from_buffers(pa.binary(self.width), len(flat), [None, pa.py_buffer(flat)]), None

    def pack(self, column: pa.Array) -> np.ndarray:
        return _fixed(column, self.width)


@dataclass(frozen=True)
class _Text:
    """UTF-8 text of up to `width` bytes; what is left is filled with zero bytes."""

    width: int

    @property
    def raw(self) -> tuple[Any, ...]:
        return "u1", (self.width,)

    def unpack(self, values: np.ndarray) -> Unpacked:
        flat = np.ascontiguousarray(values)
        column = self._column(flat)
        if not len(flat) or flat.max() < 128 or _valid(column):
            return column, None
        good = np.array([_is_utf8(row.tobytes()) for row in flat])
        flat = np.where(good[:, None], flat, np.uint8(0))
        return self._column(flat), _all_or(good)

    def _column(self, flat: np.ndarray) -> pa.Array:
        lengths = _lengths(flat)
        offsets = np.zeros(len(flat) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        full = len(flat) * self.width == offsets[-1]
        data = flat if full else flat[np.arange(self.width) < lengths[:, None]]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
        return pa.Array.from_buffers(pa.string(), len(flat), buffers)

    def pack(self, column: pa.Array) -> np.ndarray:
        lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
        if len(column) and lengths.max() > self.width:
            text = column[int(lengths.argmax())].as_py()
            raise ValueError(f"holds '{text}', of {lengths.max()} bytes, but the wire has {self.width}")
        if pc.any(pc.ends_with(column, "\0")).as_py():
            raise ValueError("holds text that ends with a zero byte, which the wire cannot tell from filling")
        packed = np.zeros((len(column), self.width), np.uint8)
        packed[np.arange(self.width) < lengths[:, None]] = _data(column)
        return packed


@dataclass(frozen=True)
class _Decimal:
    """The unscaled number, two's complement of 16 bytes."""

    type: pa.DataType
    width: int = 16

    @property
    def raw(self) -> tuple[Any, ...]:
        return "u1", (16,)

    def unpack(self, values: np.ndarray) -> Unpacked:
        little = np.ascontiguousarray(values[:, ::-1])
        good = _all_or(_within(little, 10**self.type.precision))
        if good is not None:
            little[~good] = 0
        return pa.Array.from_buffers(self.type, len(little), [None, pa.py_buffer(little)]), good

    def pack(self, column: pa.Array) -> np.ndarray:
        return _fixed(column, 16)[:, ::-1]


def codec_for(kind: pa.DataType, width: int | None) -> Codec:
    """The codec of an Arrow type; `width` is that of a string."""
    if pa.types.is_boolean(kind):
        return _Bool()
    if pa.types.is_string(kind) and width is not None:
        return _Text(width)
    if pa.types.is_fixed_size_binary(kind):
        return _Bytes(kind.byte_width)
    if pa.types.is_decimal128(kind):
        return _Decimal(kind)
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _Number(kind, np.dtype(kind.to_pandas_dtype()))
    if pa.types.is_date32(kind):
        return _Number(kind, np.dtype("i4"))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return _Number(kind, np.dtype("i8"))
    if pa.types.is_time(kind):
        return _Number(kind, np.dtype(f"i{kind.bit_width // 8}"), _DAY[kind.unit])
    raise SchemaError(
        f"{kind} has no form on the wire; it takes numbers, bool, decimal128, date32, timestamps, durations, "
        "times, binary of a fixed size and strings of a declared width"
    )


def _all_or(good: np.ndarray) -> np.ndarray | None:
    return None if good.all() else good


def _lengths(flat: np.ndarray) -> np.ndarray:
    """How many bytes are left of each row without the zeros at its end."""
    rows, width = flat.shape
    return np.char.str_len(flat.view(f"S{width}").reshape(rows)) if rows else np.zeros(0, np.int64)


def _valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fixed(column: pa.Array, width: int) -> np.ndarray:
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _data(column: pa.Array) -> np.ndarray:
    """The bytes of a string column's rows, one after the other."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.zeros(0, np.uint8)


def _within(little: np.ndarray, limit: int) -> np.ndarray:
    """Which numbers of 16 bytes, low byte first, have a magnitude below `limit`."""
    low, high = little.view("<u8").reshape(-1, 2).T
    high = high.view("<i8")
    top, bottom = divmod(limit, 1 << 64)
    below = (high < top) | ((high == top) & (low < np.uint64(bottom)))
    # above -limit: the smallest allowed is 1 - limit
    top, bottom = divmod(1 - limit, 1 << 64)
    return np.asarray(below & ((high > top) | ((high == top) & (low >= np.uint64(bottom)))))
