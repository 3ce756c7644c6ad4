"""Schema to bits on wires: how each value of a tuple lies on the payload of a stream.

Values here are *physical*, as constants of the expression tree are: dates, timestamps, intervals and
decimals are their scaled whole numbers, text is text. NULL is a bit beside the value, for fields that
may be NULL; the wires of a NULL value carry zero.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amaranth.hdl import Format, Shape, Value
from amaranth.lib.data import StructLayout

from handshake.errors import InputError, SchemaError, UnsupportedError
from handshake.schema import (
    Binary,
    Bool,
    Date,
    Decimal,
    Field,
    Float,
    Int,
    Interval,
    Null,
    String,
    TimeOfDay,
    Timestamp,
    Type,
)

SUPPORTED = "integers, fixed-length strings, bool, dates, times, intervals and decimals"


def null_of(name: str) -> str:
    """Return the name of the bit that says whether the field `name` is NULL."""
    return f"{name}.null"


def count_of(name: str) -> str:
    """Return the name of the wires with the count that an average is divided by."""
    return f"{name}.count"


def bits_of_range(least: int, most: int) -> tuple[int, bool]:
    """Return the narrowest (bits, signed) that holds every whole number from `least` to `most`.

    >>> bits_of_range(0, 255), bits_of_range(-1, 255)
    ((8, False), (9, True))
    """
    if least >= 0:
        return max(1, most.bit_length()), False
    return max((-least - 1).bit_length(), most.bit_length()) + 1, True


@dataclass(frozen=True)
class Wire:
    """One field of a stream: a bundle of `bits` wires, and one more for NULL where it may be NULL."""

    name: str
    type: Type
    bits: int
    signed: bool = False
    nullable: bool = False
    count_bits: int = 0
    """Bits of the count of an average, which travels as a sum and a count; its reader divides. Else 0."""

    @property
    def width(self) -> int:
        """Number of wires of the field."""
        return self.bits + self.nullable + self.count_bits

    @property
    def shape(self) -> Shape:
        """The shape of the value, without its NULL bit."""
        return Shape(self.bits, signed=self.signed)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest whole number that the wires can carry."""
        if self.signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def encode(self, value: Any) -> int:
        """Return the whole number that the wires carry for a value, which is not NULL."""
        match self.type:
            case String() | Binary():
                return self._encode_bytes(value)
            case Float(bits=bits):
                return int.from_bytes(struct.pack(">f" if bits == 32 else ">d", value), "big")
        number = int(value)
        least, most = self.range
        if not least <= number <= most:
            raise InputError(
                f"{value} does not fit field '{self.name}' ({self.type}), whose {self.bits} wires carry "
                f"{least} to {most}"
            )
        return number

    def _encode_bytes(self, value: str | bytes) -> int:
        data = value.encode() if isinstance(value, str) else bytes(value)
        length = self.bits // 8
        if len(data) > length:
            raise InputError(
                f"{value!r} has {len(data)} bytes, field '{self.name}' has room for {length} on its wires"
            )
        if b"\0" in data:
            raise InputError(f"{value!r} in field '{self.name}' holds a zero byte, which ends text on wires")
        # The first byte on the most significant wires: comparing the numbers compares the texts.
        return int.from_bytes(data.ljust(length, b"\0"), "big")

    def decode(self, number: int) -> Any:
        """Return the value that the wires carry."""
        match self.type:
            case Bool():
                return bool(number)
            case String():
                return number.to_bytes(self.bits // 8, "big").rstrip(b"\0").decode()
            case Binary():
                return number.to_bytes(self.bits // 8, "big").rstrip(b"\0")
            case Float(bits=bits):
                return struct.unpack(">f" if bits == 32 else ">d", number.to_bytes(bits // 8, "big"))[0]
        return number

    def average(self, total: int, count: int) -> Any:
        """Return the average that a sum and a count stand for; NULL for a count of zero."""
        if count == 0:
            return None
        if isinstance(self.type, Decimal):  # halves away from zero; the sum has the scale already
            return (2 * abs(total) + count) // (2 * count) * (1 if total >= 0 else -1)
        return total / count


def wire(field: Field, *, length: int | None = None, nullable: bool = False) -> Wire:
    """Return the wires of a field; `length` is the number of bytes of a string.

    >>> from handshake.schema import Int
    >>> wire(Field("Price", Int(32))).bits
    32
    """
    bits, signed = _bits(field, length)
    return Wire(field.name, field.type, bits, signed, nullable or isinstance(field.type, Null))


def _bits(field: Field, length: int | None) -> tuple[int, bool]:
    match field.type:
        case Bool():
            return 1, False
        case Int(bits=bits, signed=signed):
            return bits, signed
        case Decimal(precision=precision):
            return bits_of_range(-(10**precision) + 1, 10**precision - 1)
        case Date():
            return 32, True
        case Timestamp() | Interval() | TimeOfDay():
            return 64, True
        case String() | Binary():
            return 8 * _length(field, length), False
        case Float(bits=bits):  # carried and compared; whatever computes on it refuses it
            return bits, False
        case Null():  # no wire but the one that says so, and one that a field cannot do without
            return 1, False
    raise UnsupportedError(
        f"field '{field.name}' is {field.type}, for which the circuit has no unit; it carries {SUPPORTED}"
    )


def _length(field: Field, length: int | None) -> int:
    if length is None or length < 1:
        raise UnsupportedError(
            f"field '{field.name}' is a {field.type} without a length; wires need one, such as "
            "string(4) in CREATE INPUT STREAM, or text=… for all that have none"
        )
    return length


def plain(name: str) -> str:
    """Return a name without characters that end a name in emitted texts and waveforms."""
    return re.sub(r"[^\w.@]", "_", name)


_MOST_SHOWN = 64
"""Fields of the widest row whose fields are shown one by one."""


class Packed(StructLayout):
    """A layout of consecutive fields, the first on the least significant wires."""

    def format(self, value: Any, format_spec: str) -> Any:
        """Return the fields as emitted modules and waveforms show them; of a wide row, its bits.

        Each signal of a layout has a format of its own, and a row of hundreds of fields goes through
        hundreds of signals.
        """
        parts = Value.cast(value)
        if len(self.members) > _MOST_SHOWN:
            return Format("{}", parts)
        fields: dict[str, Any] = {}
        for at, (name, each) in enumerate(self):
            part = parts[each.offset : each.offset + each.width]
            known = plain(name) if plain(name) not in fields else f"{plain(name)}_{at}"
            fields[known] = Format("{}", part.as_signed() if Shape.cast(each.shape).signed else part)
        return Format.Struct(parts, fields)


@dataclass(frozen=True)
class Row:
    """The wires of one stream, in the order of its fields."""

    wires: tuple[Wire, ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self._members()]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise SchemaError(f"more than one field named '{doubled[0]}' ({', '.join(names)}); rename one")

    def _members(self) -> Iterator[tuple[str, Shape]]:
        for each in self.wires:
            yield each.name, each.shape
            if each.nullable:
                yield null_of(each.name), Shape(1)
            if each.count_bits:
                yield count_of(each.name), Shape(each.count_bits)

    @cached_property
    def layout(self) -> StructLayout:
        """The layout of the fields on the payload, the first on the least significant wires."""
        return Packed(dict(self._members()))

    @property
    def bits(self) -> int:
        """The width of the payload."""
        return sum(shape.width for _, shape in self._members())

    @property
    def names(self) -> tuple[str, ...]:
        """Field names in order."""
        return tuple(w.name for w in self.wires)

    def __iter__(self) -> Iterator[Wire]:
        return iter(self.wires)

    def __getitem__(self, name: str) -> Wire:
        for each in self.wires:
            if each.name == name:
                return each
        raise SchemaError(f"no field '{name}' on the wires ({', '.join(self.names)})")

    def pack(self, values: Sequence[Any]) -> int:
        """Return one tuple as the whole number that the payload carries.

        >>> from handshake.schema import Int
        >>> Row((Wire("a", Int(8), 8, True), Wire("b", Int(8), 8, True))).pack((1, -1))
        65281
        """
        number, offset = 0, 0
        for each, value in zip(self.wires, values, strict=True):
            number |= self._pack_one(each, value) << offset
            offset += each.width
        return number

    def _pack_one(self, each: Wire, value: Any) -> int:
        if value is not None:
            return each.encode(value) & ((1 << each.bits) - 1)
        if not each.nullable:
            raise InputError(
                f"NULL in field '{each.name}', which has no wire for it; declare the field as nullable"
            )
        return 1 << each.bits

    def unpack(self, payload: int) -> tuple[Any, ...]:
        """Return the tuple that a payload carries."""
        values: list[Any] = []
        for each in self.wires:
            values.append(_unpack(each, payload & ((1 << each.width) - 1)))
            payload >>= each.width
        return tuple(values)


def _unpack(each: Wire, bits: int) -> Any:
    number = bits & ((1 << each.bits) - 1)
    if each.signed and number >> (each.bits - 1):
        number -= 1 << each.bits
    rest = bits >> each.bits
    if each.count_bits:
        return each.average(number, rest >> each.nullable)
    return None if each.nullable and rest & 1 else each.decode(number)
