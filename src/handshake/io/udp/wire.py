"""How tuples lie in datagrams: fields of fixed width, one after the other, in network byte order.

A `Layout` packs Arrow columns into bytes and unpacks bytes into Arrow columns, whole batches at a time.
docs/sources.md has the format as a table.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.udp.codecs import Codec, codec_for

__all__ = ["WIDTH", "Layout", "WireField", "layout"]

WIDTH = b"width"
"""Key in an Arrow field's metadata: how many bytes a string has on the wire."""

_NAMES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    **{
        f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float32": pa.float32(),
    "float64": pa.float64(),
    **{f"timestamp_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"instant_{unit}": pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
}
_SIZED = ("string", "char", "varchar", "binary", "decimal")
_DECLARED = re.compile(r"\s*(\w+)\s+(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*")


@dataclass(frozen=True)
class WireField:
    """A field: its name, its Arrow type, and how many bytes it takes."""

    name: str
    type: pa.DataType
    width: int

    @cached_property
    def codec(self) -> Codec:
        """From bytes and back."""
        return codec_for(self.type, self.width)

    def __str__(self) -> str:
        return f"{self.name} {self.type}{f'({self.width})' if pa.types.is_string(self.type) else ''}"


@dataclass(frozen=True)
class Layout:
    """The fields of a tuple, in their order on the wire.

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
        """Fields as `CREATE INPUT STREAM` has them: `Seqnr int, Symbol string(4), Price int`."""
        return cls(tuple(_declared(part) for part in re.split(r",(?![^(]*\))", text)))

    @classmethod
    def of(cls, schema: pa.Schema) -> Layout:
        """The fields of an Arrow schema; strings need their width as metadata (`WIDTH`)."""
        return cls(tuple(_field(f.name, f.type, (f.metadata or {}).get(WIDTH)) for f in schema))

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of unpacked tuples; no field is ever NULL."""
        return pa.schema([pa.field(f.name, f.type, False, _metadata(f)) for f in self.fields])

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """A packed tuple, as NumPy sees it."""
        return np.dtype([(f.name, *f.codec.raw) for f in self.fields])

    @property
    def width(self) -> int:
        """Bytes of a tuple."""
        return sum(f.width for f in self.fields)

    def offset(self, name: str) -> int:
        """Where a field begins in a tuple."""
        before = [f.name for f in self.fields]
        if name not in before:
            raise SchemaError(f"no field '{name}' in the tuple ({self}){suggest(name, before)}")
        return sum(f.width for f in self.fields[: before.index(name)])

    def gather(self, flat: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The packed tuples that begin at `offsets` of a buffer, copied one after the other."""
        # A view with a tuple at every byte: taking elements of it copies each tuple once, at any address.
        anywhere = np.ndarray(max(len(flat) - self.width + 1, 0), self.dtype, flat.data, strides=(1,))
        return np.asarray(anywhere[offsets])

    def unpack(self, packed: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """Arrow columns, and which tuples hold only values of their types (None: all of them)."""
        columns, good = [], None
        for field in self.fields:
            column, fine = field.codec.unpack(packed[field.name])
            columns.append(column)
            good = fine if good is None else good if fine is None else good & fine
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), good

    def pack(self, tuples: Any) -> np.ndarray:
        """Columns (a table, a batch, or a dict of lists) as packed tuples."""
        table = pa.table(tuples) if isinstance(tuples, dict) else tuples
        packed = np.zeros(table.num_rows, self.dtype)
        for field in self.fields:
            packed[field.name] = _packed(field, _column(table, field))
        return packed

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))


def layout(given: str | pa.Schema | Layout) -> Layout:
    """A layout from its text, from an Arrow schema, or as it is."""
    if isinstance(given, Layout):
        return given
    return Layout.parse(given) if isinstance(given, str) else Layout.of(given)


def _declared(text: str) -> WireField:
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
    if pa.types.is_string(kind) and not (width and width.isdigit() and int(width) > 0):
        raise SchemaError(
            f"field '{name}' is a string without a width; every field has a fixed width on the wire: "
            f"declare it as string(n), n bytes of UTF-8"
        )
    size = int(width) if pa.types.is_string(kind) and width else codec_for(kind, None).width
    return WireField(name, kind, size)


def _metadata(field: WireField) -> dict[bytes, bytes] | None:
    return {WIDTH: str(field.width).encode()} if pa.types.is_string(field.type) else None


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
    return _single(column)


def _single(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _packed(field: WireField, column: pa.Array) -> np.ndarray:
    try:
        return field.codec.pack(column)
    except ValueError as error:
        raise InputError(f"column '{field.name}' {error}") from None
