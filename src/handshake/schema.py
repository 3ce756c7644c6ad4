"""Fields and types, and their mapping to Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from handshake.errors import SchemaError, suggest

UNITS: dict[str, int] = {"d": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Time units and how many nanoseconds each one lasts."""
DIGITS = 38
"""The most digits of a decimal."""


@dataclass(frozen=True)
class Type:
    """A type of the predicate language."""

    def __str__(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Bool(Type):
    """True, false (or NULL, as every type)."""


@dataclass(frozen=True)
class Int(Type):
    """A whole number of 8 to 64 bits; arithmetic on it is exact and never wraps."""

    bits: int
    signed: bool = True

    def __str__(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"


@dataclass(frozen=True)
class Float(Type):
    """An IEEE number of 32 or 64 bits."""

    bits: int

    def __str__(self) -> str:
        return f"float{self.bits}"


@dataclass(frozen=True)
class Decimal(Type):
    """A scaled whole number: ``value = digits / 10**scale``; arithmetic on it is exact."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True)
class Date(Type):
    """Days since 1970-01-01."""


@dataclass(frozen=True)
class Timestamp(Type):
    """An instant (with a zone) or a wall-clock reading (without), counted in ``unit``."""

    unit: str
    zone: str | None = None

    def __str__(self) -> str:
        return f"timestamp[{self.unit}{', ' + self.zone if self.zone else ''}]"


@dataclass(frozen=True)
class Interval(Type):
    """A length of time, counted in ``unit``."""

    unit: str

    def __str__(self) -> str:
        return f"interval[{self.unit}]"


@dataclass(frozen=True)
class Months(Type):
    """A number of calendar months, which have no fixed length."""


@dataclass(frozen=True)
class TimeOfDay(Type):
    """Time since midnight, counted in ``unit``."""

    unit: str

    def __str__(self) -> str:
        return f"time[{self.unit}]"


@dataclass(frozen=True)
class String(Type):
    """UTF-8 text, compared by code point; a declared length in bytes bounds it and makes no other type."""

    length: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return "string" if self.length is None else f"string({self.length})"


@dataclass(frozen=True)
class Binary(Type):
    """Bytes, compared as unsigned."""


@dataclass(frozen=True)
class Null(Type):
    """The type of a bare NULL."""


@dataclass(frozen=True)
class List(Type):
    """A list of values of one type: the result of an aggregate that collects them."""

    item: Type

    def __str__(self) -> str:
        return f"list of {self.item}"


@dataclass(frozen=True)
class Opaque(Type):
    """A payload type (nested, union, …); predicates can only name fields of structs and elements of lists."""

    name: str
    arrow: pa.DataType | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


BOOL, DATE, STRING, BINARY, NULL = Bool(), Date(), String(), Binary(), Null()
INT64, FLOAT32, FLOAT64 = Int(64), Float(32), Float(64)

_FIXED: dict[pa.DataType, Type] = {
    pa.bool_(): BOOL,
    pa.null(): NULL,
    pa.date32(): DATE,
    pa.date64(): DATE,
    pa.float16(): FLOAT32,
    pa.float32(): FLOAT32,
    pa.float64(): FLOAT64,
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.binary(): BINARY,
    pa.large_binary(): BINARY,
    **{getattr(pa, f"int{b}")(): Int(b) for b in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{b}")(): Int(b, signed=False) for b in (8, 16, 32, 64)},
}
_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
"""Arrow's view types by name: PyArrow before 16 has no functions for them."""


def without_view(arrow: pa.DataType) -> pa.DataType:
    """Return the type with offsets for a view type; other types as they are."""
    return _VIEWS.get(str(arrow), arrow)


def type_from_arrow(arrow: pa.DataType) -> Type:
    """Return the predicate type of an Arrow type; nested and other payload types become `Opaque`.

    >>> import pyarrow as pa
    >>> str(type_from_arrow(pa.timestamp("us", "UTC")))
    'timestamp[us, UTC]'
    """
    arrow = without_view(arrow)
    if arrow in _FIXED:
        return _FIXED[arrow]
    if pa.types.is_dictionary(arrow):
        return type_from_arrow(arrow.value_type)
    if pa.types.is_decimal(arrow):
        fits = arrow.precision <= DIGITS and 0 <= arrow.scale <= DIGITS
        return Decimal(arrow.precision, arrow.scale) if fits else Opaque(str(arrow))
    if pa.types.is_timestamp(arrow):
        return Timestamp(arrow.unit, arrow.tz)
    if pa.types.is_duration(arrow):
        return Interval(arrow.unit)
    if pa.types.is_time(arrow):
        return TimeOfDay(arrow.unit)
    if pa.types.is_fixed_size_binary(arrow):
        return BINARY
    return Opaque(str(arrow), arrow)


_UNFIXED: dict[type[Type], Callable[[Any], pa.DataType]] = {
    Bool: lambda _: pa.bool_(),
    Null: lambda _: pa.null(),
    Date: lambda _: pa.date32(),
    String: lambda _: pa.string(),
    Binary: lambda _: pa.binary(),
    Float: lambda kind: pa.float32() if kind.bits == 32 else pa.float64(),
    Timestamp: lambda kind: pa.timestamp(kind.unit, kind.zone),
    Interval: lambda kind: pa.int64() if kind.unit == "d" else pa.duration(kind.unit),
    TimeOfDay: lambda kind: pa.time64(kind.unit) if kind.unit in ("us", "ns") else pa.time32(kind.unit),
}


def arrow_of(kind: Type) -> pa.DataType:
    """Return the Arrow type that holds the values of a type; odd widths of integers get the next larger one.

    >>> arrow_of(Int(33))
    DataType(int64)
    """
    match kind:
        case Int(bits=bits, signed=signed) if bits <= 64:
            width = next(w for w in (8, 16, 32, 64) if bits <= w)
            return getattr(pa, f"{'' if signed else 'u'}int{width}")()
        case Int(bits=bits) if bits <= 128:
            return pa.decimal128(DIGITS, 0)
        case Decimal(precision=precision, scale=scale) if precision <= DIGITS and scale <= DIGITS:
            return pa.decimal128(precision or DIGITS, scale)
        case List(item=item):
            return pa.list_(arrow_of(item))
    if type(kind) not in _UNFIXED:
        raise SchemaError(f"values of type {kind} cannot be held; cast them to a smaller type")
    return _UNFIXED[type(kind)](kind)


def finest_unit(*units: str) -> str:
    """Return the finest of some units of time.

    >>> finest_unit("s", "us", "ms")
    'us'
    """
    return min(units, key=UNITS.__getitem__)


def unit_of_times(kind: Type) -> str | None:
    """Return the unit in which times of a type count; None if it is no time. Plain numbers count seconds."""
    match kind:
        case Timestamp(unit=unit):
            return unit
        case Date() | Int() | Null():
            return "s"
        case Float() | Decimal():
            return "ns"
    return None


def scale_of(kind: Type) -> int:
    """Return the digits after the point of an exact number."""
    return kind.scale if isinstance(kind, Decimal) else 0


def joined_names(left: Sequence[str], right: Sequence[str], suffix: str) -> list[str]:
    """Return the column names of a join: right ones that the left input has too get the suffix."""
    if not isinstance(suffix, str):
        raise SchemaError(f"suffix is a text such as '_right', not {suffix!r}")
    names = list(left)
    for name in right:
        name = name + suffix if name in left else name
        if name in names:
            raise SchemaError(
                f"output column '{name}' would appear twice; rename a column or choose another suffix"
            )
        names.append(name)
    return names


@dataclass(frozen=True)
class Field:
    """A named, typed column."""

    name: str
    type: Type


@dataclass(frozen=True)
class Schema:
    """The columns of one stream.

    >>> import pyarrow as pa
    >>> Schema.from_arrow(pa.schema([("x", pa.int32())]), "left").names
    ('x',)
    """

    fields: tuple[Field, ...]
    stream: str = "input"

    @classmethod
    def from_arrow(cls, arrow: pa.Schema, stream: str) -> Schema:
        """Return the schema of an Arrow schema.

        Raises:
            SchemaError: A column name appears twice.
        """
        doubled = [name for name, n in Counter(arrow.names).items() if n > 1]
        if doubled:
            raise SchemaError(
                f"the {stream} input has more than one column named '{doubled[0]}' "
                f"({', '.join(arrow.names)}); rename one of them"
            )
        return cls(tuple(Field(f.name, type_from_arrow(f.type)) for f in arrow), stream)

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema."""
        return pa.schema([(f.name, arrow_of(f.type)) for f in self.fields])

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(f.name for f in self.fields)

    def find(self, name: str) -> Field | None:
        """Return the field of that name: the exact one, else the only one that differs in case; else None."""
        if not isinstance(name, str):
            raise SchemaError(f"a column of the {self.stream} input is named by a text, not by {name!r}")
        exact = next((f for f in self.fields if f.name == name), None)
        if exact is not None:
            return exact
        folded = [f for f in self.fields if f.name.casefold() == name.casefold()]
        return folded[0] if len(folded) == 1 else None

    def get(self, name: str) -> Field:
        """Return the field of that name.

        Raises:
            SchemaError: There is none; the message lists the columns and suggests a similar one.
        """
        field = self.find(name)
        if field is None:
            raise SchemaError(
                f"no column '{name}' in the {self.stream} input ({', '.join(self.names)})"
                f"{suggest(name, self.names)}"
            )
        return field

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)


def _concat_columns(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    schema = batches[0].schema
    columns = [pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


concat_batches: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch] = getattr(
    pa, "concat_batches", _concat_columns
)
"""Concatenate record batches of one schema; PyArrow has a function for this since version 19."""
