"""Expressions on whole columns: compiled where kernels can, else Arrow's functions, else Python per value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import HandshakeError, UnsupportedError
from handshake.kernels.columns import Columns, as_array
from handshake.kernels.compile import Program, rows_kernel
from handshake.kernels.prepare import HIDDEN, held_type, node_compiles
from handshake.plan.expr import (
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    IsNull,
    Literal,
    Udf,
    show,
    transform,
    walk,
)
from handshake.plan.ranges import ranges, width_of
from handshake.plan.types import is_exact, round_float32
from handshake.schema import (
    Binary,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    String,
    TimeOfDay,
    Timestamp,
    Type,
)

__all__ = ["Evaluator", "evaluate", "holds"]

Arrays = Mapping[Column, pa.Array]


def holds(condition: Expr, arrays: Arrays, rows: int) -> np.ndarray[Any, Any]:
    """Where a condition is TRUE, as a mask."""
    result = evaluate(condition, arrays, rows)
    return np.asarray(pc.fill_null(result, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def evaluate(expr: Expr, arrays: Arrays, rows: int, *, as_key: bool = False) -> pa.Array:
    """The values of a bound expression, as an Arrow array of its natural type.

    A whole number of more than 128 bits has none; it can be had `as_key`, held at the ends of 128 bits.
    """
    if isinstance(expr, Column):
        return arrays[expr]
    if isinstance(expr, Literal):
        return _constant(expr, rows)
    found = dict(arrays)
    core = _hoist(expr, found, rows)
    if isinstance(core, Column):
        return found[core]
    if not as_key and is_exact(core.type) and (width_of(ranges(core, False)) or 1024) > 128:
        raise UnsupportedError(
            f"{show(expr)} may need more than 128 bits; cast its operands to smaller types"
        )
    return _Compiled(core)(found, rows)


def _hoist(expr: Expr, arrays: dict[Column, pa.Array], rows: int) -> Expr:
    """Replace what kernels cannot compute by columns that hold it already."""
    if node_compiles(expr):
        children = tuple(_hoist(child, arrays, rows) for child in expr.children)
        return expr.with_children(children) if children else expr
    column = Column(0, f"{HIDDEN}{len(arrays)}", type=held_type(expr.type))
    arrays[column] = as_array(_in_arrow(expr, arrays, rows))
    return column


class _Compiled:
    """A compilable expression over aligned rows; sides no longer matter."""

    def __init__(self, expr: Expr) -> None:
        used = sorted({n for n in walk(expr) if isinstance(n, Column)}, key=lambda c: (c.side, c.name))
        self._names = {c: Column(0, f"{c.side}.{c.name}", type=c.type) for c in used}
        self._flat = transform(expr, lambda node: self._names[node] if isinstance(node, Column) else node)
        self._order = tuple(self._names.values())
        self._type = expr.type
        self._kernels: dict[tuple[bool, bool], tuple[Any, np.dtype[Any] | None]] = {}

    def __call__(self, arrays: Arrays, rows: int) -> pa.Array:
        columns = Columns.of(rows, self._order, [arrays[column] for column in self._names])
        kernel, kind = self._kernel(columns.tame, columns.nullable)
        out = np.empty((rows, 2) if kind is None else rows, np.int64 if kind is None else kind)
        valid = np.empty(rows, np.bool_)
        kernel(columns.addresses(columns.nullable), rows, out.ctypes.data, valid.ctypes.data)
        return _to_arrow(self._type, out, valid)

    def _kernel(self, tame: bool, nullable: bool) -> tuple[Any, np.dtype[Any] | None]:
        if (tame, nullable) not in self._kernels:
            program = Program(self._flat, (self._order, ()), tame, nullable)
            self._kernels[tame, nullable] = rows_kernel(program)
        return self._kernels[tame, nullable]


class Evaluator:
    """An expression that is computed for batch after batch: what depends on it alone is found out once."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr
        self._compiled = _Compiled(expr) if _compiles(expr) else None

    def __call__(self, arrays: Arrays, rows: int) -> pa.Array:
        """As `evaluate`."""
        if self._compiled is None:
            return evaluate(self._expr, arrays, rows)
        return self._compiled(arrays, rows)


def _compiles(expr: Expr) -> bool:
    """Whether kernels compute all of it, within 128 bits; what is refused is told when it is evaluated."""
    if isinstance(expr, (Column, Literal)):
        return False
    try:
        fits = not is_exact(expr.type) or (width_of(ranges(expr, False)) or 1024) <= 128
        return fits and all(node_compiles(node) for node in walk(expr))
    except UnsupportedError:
        return False


def _to_arrow(kind: Type, out: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> pa.Array:
    missing = None if valid.all() else ~valid
    if out.ndim == 2 or isinstance(kind, Decimal):
        return _decimals(kind, out, missing)
    if isinstance(kind, (Bool, Float)):
        return pa.array(out, mask=missing)
    whole = pa.array(out.astype(np.int64, copy=False), mask=missing)
    natural = _natural(kind)
    return whole.cast(pa.int32()).view(natural) if natural.bit_width == 32 else whole.view(natural)


def _decimals(kind: Type, out: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None) -> pa.Array:
    if out.ndim == 1:
        out = np.stack([out, out >> 63], axis=1)
    scale = kind.scale if isinstance(kind, Decimal) else 0
    bitmap = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(out))]
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(out), buffers)


def _natural(kind: Type) -> pa.DataType:
    match kind:
        case Bool():
            return pa.bool_()
        case Int():
            return pa.int64()
        case Float(bits=bits):
            return pa.float32() if bits == 32 else pa.float64()
        case Decimal(scale=scale):
            return pa.decimal128(38, scale)
        case Date():
            return pa.date32()
        case Timestamp(unit=unit, zone=zone):
            return pa.timestamp(unit, zone)
        case Interval(unit=unit) if unit != "d":
            return pa.duration(unit)
        case Interval():
            return pa.int64()
        case TimeOfDay(unit=unit):
            return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
        case String():
            return pa.large_string()
        case Binary():
            return pa.large_binary()
    raise UnsupportedError(f"a value of type {kind} cannot be computed")


def _constant(expr: Literal, rows: int) -> pa.Array:
    natural = _natural(expr.type)
    if expr.value is None:
        return pa.nulls(rows, natural)
    value = expr.value
    if isinstance(expr.type, Decimal):
        value = PyDecimal(value).scaleb(-expr.type.scale)
    elif pa.types.is_temporal(natural):
        return pa.array([value] * rows, pa.int64()).cast(
            pa.int32() if natural.bit_width == 32 else pa.int64()
        ).view(natural)  # fmt: skip
    return pa.repeat(pa.scalar(value, natural), rows)


# What kernels cannot compute.


def _in_arrow(expr: Expr, arrays: Arrays, rows: int) -> pa.Array:
    constant = isinstance(expr, Compare) and isinstance(expr.right, Literal)
    plain = constant and isinstance(expr.children[1].type, (String, Binary))
    read = expr.children[:1] if plain else expr.children
    operands = [evaluate(child, arrays, rows) for child in read]
    match expr:
        case Compare(op=op):
            return _COMPARE[op](*_comparable(expr, operands))
        case IsNull():
            return pc.is_null(operands[0])
        case Case():
            return _case(expr, operands)
        case Cast():
            return _cast(expr, operands[0])
        case Udf(function=function):
            return _apply(function, operands, expr, rows)
        case Call(name="coalesce"):
            return pc.coalesce(*(_text(a) for a in operands))
        case Call(name=name) if name in _TEXT:
            return _TEXT[name](expr, [_text(a) for a in operands])
        case Call(name=name):
            field = getattr(pc, name)(operands[0])
            return field.cast(pa.int64())
    raise UnsupportedError(f"{show(expr)} cannot be computed")


def _comparable(expr: Compare, operands: list[pa.Array]) -> list[Any]:
    """Operands in one layout; a constant on the right stays one, which spares a column of it."""
    if len(operands) > 1:
        return [_text(a) for a in operands]
    assert isinstance(expr.right, Literal)
    column = operands[0] if operands[0].type in (pa.string(), pa.binary()) else _text(operands[0])
    return [column, pa.scalar(expr.right.value, column.type)]


_COMPARE: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _text(array: pa.Array) -> pa.Array:
    """Text and bytes in one layout, so that Arrow's kernels take any two of them."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _text(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array


def _case(expr: Case, operands: list[pa.Array]) -> pa.Array:
    conditions = [pc.fill_null(c, False) for c in operands[:-1:2]]
    values = [_text(v) for v in (*operands[1:-1:2], operands[-1])]
    return pc.case_when(
        pa.StructArray.from_arrays(conditions, [str(i) for i in range(len(conditions))]), *values
    )


def _apply(function: Callable[..., Any], operands: list[pa.Array], expr: Expr, rows: int) -> pa.Array:
    name = getattr(function, "__name__", "function")
    try:
        values = [_for_python(a, e.type) for a, e in zip(operands, expr.children, strict=True)]
        results = [function(*row) for row in (zip(*values, strict=True) if values else [()] * rows)]
    except Exception as error:
        raise HandshakeError(f"the Python function {name} failed on a candidate pair: {error!r}") from error
    try:
        return pa.array(results, _natural(expr.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise HandshakeError(f"the Python function {name} must return {expr.type}: {error}") from error


def _for_python(array: pa.Array, kind: Type) -> list[Any]:
    """Values for a callable; whole numbers of more than 64 bits are computed as decimals but stay int."""
    values: list[Any] = array.to_pylist()
    if isinstance(kind, Int) and pa.types.is_decimal(array.type):
        return [None if value is None else int(value) for value in values]
    return values


def _literal_text(expr: Call) -> str | None:
    pattern = expr.args[1]
    return pattern.value if isinstance(pattern, Literal) else None


def _matcher(
    whole: Callable[[pa.Array, str], pa.Array], single: Callable[[str, str], bool]
) -> Callable[[Call, list[pa.Array]], pa.Array]:
    """A pattern function: over a whole column where the pattern is constant, else value by value."""

    def match(expr: Call, operands: list[pa.Array]) -> pa.Array:
        if (pattern := _literal_text(expr)) is not None:
            return whole(operands[0], pattern)
        return _per_value(single, operands, pa.bool_())

    return match


def _per_value(function: Callable[..., Any], operands: list[pa.Array], kind: pa.DataType) -> pa.Array:
    rows = zip(*(a.to_pylist() for a in operands), strict=True)
    return pa.array([None if None in row else function(*row) for row in rows], kind)


@lru_cache(maxsize=4096)
def _like_pattern(pattern: str, fold: bool) -> re.Pattern[str]:
    parts, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(char, re.escape(char)))
        at += 1
    return re.compile("".join(parts), re.DOTALL | (re.IGNORECASE if fold else 0))


def _searched(text: str, pattern: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise HandshakeError(f"'{pattern}' is not a regular expression: {error}") from None


def _substring(expr: Call, operands: list[pa.Array]) -> pa.Array:
    return _per_value(_slice, operands, pa.large_string())


def _slice(text: str, start: int, length: int | None = None) -> str:
    """SQL's substring: positions count from 1, or from the end when negative."""
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    stop = len(text) if length is None else first + max(length, 0)
    return text[max(first, 0) : max(stop, 0)]


def _concat(expr: Call, operands: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*operands, pa.scalar("", pa.large_string()), null_handling="emit_null")


_TEXT: dict[str, Callable[[Call, list[pa.Array]], pa.Array]] = {
    "lower": lambda _, a: pc.utf8_lower(a[0]),
    "upper": lambda _, a: pc.utf8_upper(a[0]),
    "trim": lambda _, a: pc.utf8_trim(a[0], " "),
    "ltrim": lambda _, a: pc.utf8_ltrim(a[0], " "),
    "rtrim": lambda _, a: pc.utf8_rtrim(a[0], " "),
    "length": lambda _, a: pc.utf8_length(a[0]).cast(pa.int64()),
    "concat": _concat,
    "substring": _substring,
    "like": _matcher(
        lambda a, p: _per_value(lambda t: bool(_like_pattern(p, False).fullmatch(t)), [a], pa.bool_()),
        lambda t, p: bool(_like_pattern(p, False).fullmatch(t)),
    ),
    "ilike": _matcher(
        lambda a, p: _per_value(lambda t: bool(_like_pattern(p, True).fullmatch(t)), [a], pa.bool_()),
        lambda t, p: bool(_like_pattern(p, True).fullmatch(t)),
    ),
    "regexp_like": _matcher(
        lambda a, p: _per_value(lambda t: _searched(t, p), [a], pa.bool_()),
        lambda t, p: _searched(t, p),
    ),
    "starts_with": _matcher(pc.starts_with, str.startswith),
    "ends_with": _matcher(pc.ends_with, str.endswith),
    "contains": _matcher(pc.match_substring, lambda t, p: p in t),
}


# Casts that only Python does exactly.


def _cast(expr: Cast, operand: pa.Array) -> pa.Array:
    target = expr.type
    natural = _natural(target)
    if isinstance(target, String):
        return _per_value(_to_text, [operand], natural)
    if isinstance(expr.arg.type, Timestamp):  # with a zone, to a date: the day on the zone's wall clocks
        return pc.floor_temporal(pc.local_timestamp(operand), unit="day").cast(natural)
    convert = _from_text if isinstance(expr.arg.type, String) else _from_number
    return _per_value(lambda value: convert(value, target), [operand], natural)


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_text(text: str, target: Type) -> Any:
    try:
        return _TEXT_READERS[type(target)](text.strip(), target)
    except (ValueError, ArithmeticError):
        return None


def _read_int(text: str, target: Type) -> int | None:
    assert isinstance(target, Int)
    return _bounded(int(text), target.bits) if _WHOLE.fullmatch(text) else None


def _bounded(value: int, bits: int) -> int | None:
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def _read_float(text: str, target: Type) -> float | None:
    if not _NUMBER.fullmatch(text) and not _SPECIAL.fullmatch(text):
        return None
    return round_float32(float(text)) if target == Float(32) else float(text)


def _read_decimal(text: str, target: Type) -> PyDecimal | None:
    return _quantised(PyDecimal(text), target) if _NUMBER.fullmatch(text) else None


# What SQL reads; Python's own readers take more, such as 1_000 or a date without dashes.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _read_date(text: str, target: Type) -> date | None:
    return date.fromisoformat(text) if _DAY.fullmatch(text) else None


def _read_timestamp(text: str, target: Type) -> datetime | None:
    return _in_utc(datetime.fromisoformat(text)) if _DAY.match(text) else None


def _read_bool(text: str, target: Type) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


_TEXT_READERS: dict[type[Type], Callable[[str, Any], Any]] = {
    Int: _read_int,
    Float: _read_float,
    Decimal: _read_decimal,
    Bool: _read_bool,
    Date: _read_date,
    Timestamp: _read_timestamp,
}


def _in_utc(read: datetime) -> datetime:
    """A timestamp read from text: with an offset it is an instant, held in UTC."""
    return read if read.tzinfo is None else read.astimezone(UTC).replace(tzinfo=None)


def _quantised(value: PyDecimal, target: Type) -> PyDecimal | None:
    """A decimal of the target's scale, rounded half away from zero; None where it does not fit."""
    assert isinstance(target, Decimal)
    if not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    whole = int("".join(map(str, digits)))
    shift = int(exponent) + target.scale
    if whole and len(digits) + shift > 80:
        return None  # far too large; do not write it out
    if len(digits) + shift < 0:
        return PyDecimal(0).scaleb(-target.scale)
    scaled = whole * 10**shift if shift >= 0 else (whole * 2 + 10**-shift) // (2 * 10**-shift)
    if target.precision and scaled >= 10**target.precision:
        return None
    return PyDecimal((sign, tuple(map(int, str(scaled))), -target.scale))


def _from_number(value: Any, target: Type) -> Any:
    if isinstance(target, Float):
        number = float(value)
        return round_float32(number) if target.bits == 32 else number
    return _quantised(PyDecimal(value), target)
