"""The wire format: tuples with fields of fixed width, in network byte order.

A `Layout` packs Arrow columns into bytes and unpacks bytes into Arrow columns, one batch at a time.
docs/sources.md has the format as a table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.declared import is_utf8

WIDTH = b"width"
"""Metadata key of an Arrow field: the number of bytes of a string on the wire."""
_LARGEST = 65_507
"""Bytes of the largest datagram."""

_NAMES: dict[str, pa.DataType] = {
    **dict.fromkeys(("bool", "boolean"), pa.bool_()),
    **dict.fromkeys(("byte", "tinyint"), pa.int8()),
    **dict.fromkeys(("short", "smallint"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("long", "bigint"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    **{f"{u}int{bits}": getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": pa.float32(),
    "float64": pa.float64(),
    **{f"timestamp_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"instant_{unit}": pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
}
_SIZED = ("string", "char", "varchar", "binary", "decimal")
_DECLARED = re.compile(r"\s*(\w+)\s+(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*")


@dataclass(frozen=True)
class WireField:
    """One field: its name, its Arrow type, and its width in bytes."""

    name: str
    type: pa.DataType
    width: int

    @cached_property
    def codec(self) -> Codec:
        return _codec_for(self.type, self.width)

    def __str__(self) -> str:
        return f"{self.name} {self.type}{f'({self.width})' if pa.types.is_string(self.type) else ''}"


@dataclass(frozen=True)
class Layout:
    """The fields of a tuple in wire order.

    >>> trades = Layout.parse("Seqnr int, Symbol string(4), Price int, Volume int")
    >>> trades.width, trades.pack({"Seqnr": [1], "Symbol": ["UBS"], "Price": [-1], "Volume": [7]}).tobytes()
    (16, b'\\x00\\x00\\x00\\x01UBS\\x00\\xff\\xff\\xff\\xff\\x00\\x00\\x00\\x07')
    """

    fields: tuple[WireField, ...]

    def __post_init__(self) -> None:
        doubled = [name for name, n in Counter(f.name for f in self.fields).items() if n > 1]
        if doubled:
            raise SchemaError(f"more than one field is named '{doubled[0]}' ({self}); rename one of them")
        if not self.fields:
            raise SchemaError("a tuple on the wire needs at least one field, such as 'price int'")

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Parse fields as in `CREATE INPUT STREAM`: `Seqnr int, Symbol string(4), Price int`."""
        return cls(tuple(_parse_field(part) for part in re.split(r",(?![^(]*\))", text)))

    @classmethod
    def of(cls, schema: pa.Schema) -> Layout:
        """Return the layout of an Arrow schema. Strings need their width as metadata (`WIDTH`)."""
        return cls(tuple(_field(f.name, f.type, (f.metadata or {}).get(WIDTH)) for f in schema))

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of unpacked tuples. No field is ever NULL."""
        texts = {f.name: {WIDTH: str(f.width).encode()} for f in self.fields if pa.types.is_string(f.type)}
        return pa.schema([pa.field(f.name, f.type, False, texts.get(f.name)) for f in self.fields])

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of a packed tuple."""
        return np.dtype([(f.name, *f.codec.raw) for f in self.fields])

    @property
    def width(self) -> int:
        """Bytes per tuple."""
        return self.dtype.itemsize

    def offset(self, name: str) -> int:
        """Return the position of a field in the tuple, in bytes."""
        places: Mapping[str, Any] = self.dtype.fields or {}
        if name not in places:
            raise SchemaError(f"no field '{name}' in the tuple ({self}){suggest(name, places)}")
        return int(places[name][1])

    def gather(self, flat: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Copy the packed tuples that begin at `offsets` of a buffer."""
        return values_at(flat, offsets, self.dtype)

    def unpack(self, packed: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """Return the Arrow columns and a mask of the tuples without an invalid value (None: all)."""
        columns, good = [], None
        for field in self.fields:
            column, fine = field.codec.unpack(packed[field.name])
            columns.append(column)
            good = fine if good is None else good if fine is None else good & fine
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), good

    def pack(self, tuples: Any) -> np.ndarray:
        """Pack columns: a table, a batch, or a dict of lists."""
        table = pa.table(tuples) if isinstance(tuples, dict) else tuples
        packed = np.zeros(table.num_rows, self.dtype)
        for field in self.fields:
            column = _column(table, field)
            try:
                packed[field.name] = field.codec.pack(column)
            except ValueError as error:
                raise InputError(f"column '{field.name}' {error}") from None
        return packed

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))


def values_at(flat: np.ndarray, offsets: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Copy the values of a type that begin at `offsets` of a buffer."""
    # A view with a value at every byte: indexing it copies each value once, from any address.
    anywhere = np.ndarray(max(len(flat) - dtype.itemsize + 1, 0), dtype, flat.data, strides=(1,))
    return np.asarray(anywhere[offsets])


def _parse_field(text: str) -> WireField:
    match = _DECLARED.fullmatch(text)
    if match is None:
        raise SchemaError(f"'{text.strip()}' is not a field; write its name and type, such as 'price int'")
    name, kind, *sizes = match.groups()
    return _field(name, *_type(name, kind.lower(), [int(size) for size in sizes if size is not None]))


def _type(name: str, kind: str, sizes: list[int]) -> tuple[pa.DataType, bytes | None]:
    if kind == "decimal" and len(sizes) == 2 and 1 <= sizes[0] <= 38 and sizes[1] <= sizes[0]:
        return pa.decimal128(*sizes), None
    if kind == "binary" and len(sizes) == 1 and sizes[0] > 0:
        return pa.binary(sizes[0]), None
    if kind == "char" and not sizes:
        return pa.string(), b"1"
    if kind in ("string", "char", "varchar") and len(sizes) <= 1:
        return pa.string(), str(sizes[0]).encode() if sizes else None
    if kind in _NAMES and not sizes:
        return _NAMES[kind], None
    raise SchemaError(
        f"field '{name}' has the type '{kind}{tuple(sizes) if sizes else ''}', which has no form on the "
        f"wire; use {', '.join(_NAMES)}, string(n), binary(n) or decimal(p, s)"
        f"{suggest(kind, (*_NAMES, *_SIZED))}"
    )


def _field(name: str, kind: pa.DataType, width: bytes | None) -> WireField:
    if pa.types.is_string(kind) and not (width and width.isdigit() and width.strip(b"0")):
        raise SchemaError(
            f"field '{name}' is a string without a width; every field has a fixed width on the wire: "
            f"declare it as string(n), n bytes of UTF-8"
        )
    digits = width or b"" if pa.types.is_string(kind) else str(_codec_for(kind, None).width).encode()
    if len(digits) > 9 or int(digits) > _LARGEST:
        raise SchemaError(f"field '{name}' is wider than a datagram, which has at most {_LARGEST} bytes")
    return WireField(name, kind, int(digits))


def _column(table: pa.Table | pa.RecordBatch, field: WireField) -> pa.Array:
    if field.name not in table.schema.names:
        raise SchemaError(
            f"no column '{field.name}' to send ({', '.join(table.schema.names)})"
            f"{suggest(field.name, table.schema.names)}"
        )
    column = table.column(field.name)
    if column.null_count:
        raise InputError(f"column '{field.name}' has {column.null_count} NULLs; a field on the wire has none")
    try:
        column = column.cast(field.type)
    except pa.ArrowException as error:
        raise InputError(f"column '{field.name}' does not fit {field.type}: {error}") from None
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


# Codecs: one per kind of type.

Unpacked = tuple[pa.Array, "np.ndarray | None"]
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


class Codec(Protocol):
    """The encoding of one Arrow type in packed tuples."""

    @property
    def width(self) -> int:
        """Bytes per value."""

    @property
    def raw(self) -> tuple[Any, ...]:
        """The NumPy type, followed by the number of elements for bytes."""

    def unpack(self, values: np.ndarray) -> Unpacked:
        """Return an Arrow column and a mask of the valid values (None: all are valid)."""

    def pack(self, column: pa.Array) -> np.ndarray:
        """Return the bytes of a column without NULLs; raise ValueError for a value that does not fit."""


@dataclass(frozen=True)
class _Number:
    """Whole numbers, floats, dates, timestamps, times of day and durations."""

    type: pa.DataType
    native: np.dtype[Any]
    limit: int | None = None
    """Upper limit of a time of day: 0 ≤ v < limit."""

    @property
    def width(self) -> int:
        return self.native.itemsize

    @property
    def raw(self) -> tuple[Any, ...]:
        return (self.native.newbyteorder(">"),)

    def unpack(self, values: np.ndarray) -> Unpacked:
        numbers = np.ascontiguousarray(values.astype(self.native))
        good = None if self.limit is None else _unless_all((numbers >= 0) & (numbers < self.limit))
        if good is not None:
            numbers[~good] = 0
        return pa.Array.from_buffers(self.type, len(numbers), [None, pa.py_buffer(numbers)]), good

    def pack(self, column: pa.Array) -> np.ndarray:
        plain = column.view(pa.from_numpy_dtype(self.native))
        return plain.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Bool:
    """A Boolean in one byte, 0 or 1."""

    width: int = 1
    raw: tuple[Any, ...] = ("u1",)

    def unpack(self, values: np.ndarray) -> Unpacked:
        return pa.array(values == 1), _unless_all(values <= 1)

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
        return _rows_of(column, self.width)


@dataclass(frozen=True)
class _Text:
    """UTF-8 text of up to `width` bytes, padded with zero bytes."""

    width: int

    @property
    def raw(self) -> tuple[Any, ...]:
        return "u1", (self.width,)

    def unpack(self, values: np.ndarray) -> Unpacked:
        flat = np.ascontiguousarray(values)
        column = self._column(flat)
        if not len(flat) or flat.max() < 128 or _valid(column):
            return column, None
        good = np.array([is_utf8(row.tobytes()) for row in flat])
        flat = np.where(good[:, None], flat, np.uint8(0))
        return self._column(flat), _unless_all(good)

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
            raise ValueError("holds text that ends with a zero byte, which looks like padding on the wire")
        packed = np.zeros((len(column), self.width), np.uint8)
        packed[np.arange(self.width) < lengths[:, None]] = _data(column)
        return packed


@dataclass(frozen=True)
class _Decimal:
    """The unscaled number in 16 bytes, two's complement."""

    type: pa.DataType
    width: int = 16

    @property
    def raw(self) -> tuple[Any, ...]:
        return "u1", (16,)

    def unpack(self, values: np.ndarray) -> Unpacked:
        little = np.ascontiguousarray(values[:, ::-1])
        good = _unless_all(_within(little, 10**self.type.precision))
        if good is not None:
            little[~good] = 0
        return pa.Array.from_buffers(self.type, len(little), [None, pa.py_buffer(little)]), good

    def pack(self, column: pa.Array) -> np.ndarray:
        return _rows_of(column, 16)[:, ::-1]


def _codec_for(kind: pa.DataType, width: int | None) -> Codec:
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


def _unless_all(good: np.ndarray) -> np.ndarray | None:
    return None if good.all() else good


def _lengths(flat: np.ndarray) -> np.ndarray:
    """Return the number of bytes per row without the zeros at its end."""
    rows, width = flat.shape
    return np.char.str_len(flat.view(f"S{width}").reshape(rows)) if rows else np.zeros(0, np.int64)


def _valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _rows_of(column: pa.Array, width: int) -> np.ndarray:
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _data(column: pa.Array) -> np.ndarray:
    """Return the concatenated bytes of a string column."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.zeros(0, np.uint8)


def _within(little: np.ndarray, limit: int) -> np.ndarray:
    """Return a mask of the 16-byte little-endian numbers whose magnitude is below `limit`."""
    low, high = little.view("<u8").reshape(-1, 2).T
    high = high.view("<i8")
    top, bottom = divmod(limit, 1 << 64)
    below = (high < top) | ((high == top) & (low < np.uint64(bottom)))
    # the smallest allowed number is 1 - limit
    top, bottom = divmod(1 - limit, 1 << 64)
    return np.asarray(below & ((high > top) | ((high == top) & (low >= np.uint64(bottom)))))
