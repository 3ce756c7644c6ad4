"""Expressions on whole columns: compiled if kernels can, else by Arrow, else by Python per value."""

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
    """Return a mask of the rows for which a condition is TRUE."""
    result = evaluate(condition, arrays, rows)
    return np.asarray(pc.fill_null(result, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def evaluate(expr: Expr, arrays: Arrays, rows: int, *, as_key: bool = False) -> pa.Array:
    """Return the values of a bound expression as an Arrow array of its natural type.

    Args:
        expr: The expression.
        arrays: The columns that it reads.
        rows: Their length.
        as_key: Saturate whole numbers beyond 128 bits, which serve as sort keys, instead of raising
            `UnsupportedError`.
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
    """Replace operations that kernels cannot compute by columns of their values."""
    if node_compiles(expr):
        children = tuple(_hoist(child, arrays, rows) for child in expr.children)
        return expr.with_children(children) if children else expr
    column = Column(0, f"{HIDDEN}{len(arrays)}", type=held_type(expr.type))
    arrays[column] = as_array(_in_arrow(expr, arrays, rows))
    return column


class _Compiled:
    """A compilable expression over aligned rows, whose sides no longer matter."""

    def __init__(self, expr: Expr) -> None:
        used = sorted({n for n in walk(expr) if isinstance(n, Column)}, key=lambda c: (c.side, c.name))
        self._names = {c: Column(0, f"{c.side}.{c.name}", type=c.type) for c in used}
        self._flat = transform(expr, lambda node: self._names[node] if isinstance(node, Column) else node)
        self._order = tuple(self._names.values())
        self._type = expr.type
        self._kernels: dict[tuple[bool, bool], tuple[Any, np.dtype[Any] | None]] = {}

    def __call__(self, arrays: Arrays, rows: int) -> pa.Array:
        columns = Columns.of(rows, self._order, [arrays[column] for column in self._names])
        kernel, kind = self._kernel(columns.headroom, columns.nullable)
        out = np.empty((rows, 2) if kind is None else rows, np.int64 if kind is None else kind)
        valid = np.empty(rows, np.bool_)
        kernel(columns.addresses(columns.nullable), rows, out.ctypes.data, valid.ctypes.data)
        return _to_arrow(self._type, out, valid)

    def _kernel(self, headroom: bool, nullable: bool) -> tuple[Any, np.dtype[Any] | None]:
        if (headroom, nullable) not in self._kernels:
            program = Program(self._flat, (self._order, ()), headroom, nullable)
            self._kernels[headroom, nullable] = rows_kernel(program)
        return self._kernels[headroom, nullable]


class Evaluator:
    """An expression that is computed for many batches and analysed once."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr
        self._compiled = _Compiled(expr) if _compiles(expr) else None

    def __call__(self, arrays: Arrays, rows: int) -> pa.Array:
        """Evaluate it; see `evaluate`."""
        if self._compiled is None:
            return evaluate(self._expr, arrays, rows)
        return self._compiled(arrays, rows)


def _compiles(expr: Expr) -> bool:
    """Return whether kernels can compute all of it within 128 bits. `evaluate` reports errors."""
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
        case Int() | Interval(unit="d"):
            return pa.int64()
        case Float(bits=bits):
            return pa.float32() if bits == 32 else pa.float64()
        case Decimal(scale=scale):
            return pa.decimal128(38, scale)
        case Date():
            return pa.date32()
        case Timestamp(unit=unit, zone=zone):
            return pa.timestamp(unit, zone)
        case Interval(unit=unit):
            return pa.duration(unit)
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


# Operations that kernels cannot compute.


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
    """Return the operands in one layout. A constant on the right stays a scalar."""
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
    """Return text and bytes in one layout, so that Arrow's functions accept any two of them."""
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
    """Return values for a Python function. Whole numbers that were computed as decimals become int."""
    values: list[Any] = array.to_pylist()
    if isinstance(kind, Int) and pa.types.is_decimal(array.type):
        return [None if value is None else int(value) for value in values]
    return values


def _matcher(
    match: Callable[[str, str], bool], match_column: Callable[[pa.Array, str], pa.Array] | None = None
) -> Callable[[Call, list[pa.Array]], pa.Array]:
    """Return a pattern function. `match_column` serves constant patterns if it is given."""

    def match_values(expr: Call, operands: list[pa.Array]) -> pa.Array:
        pattern = expr.args[1].value if isinstance(expr.args[1], Literal) else None
        if pattern is None:
            return _per_value(match, operands, pa.bool_())
        if match_column is not None:
            return match_column(operands[0], pattern)
        return _per_value(lambda text: match(text, pattern), operands[:1], pa.bool_())

    return match_values


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


def _matches(text: str, pattern: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise HandshakeError(f"'{pattern}' is not a regular expression: {error}") from None


def _slice(text: str, start: int, length: int | None = None) -> str:
    """Cut a substring as SQL does: positions count from 1, or from the end if negative."""
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    stop = len(text) if length is None else first + max(length, 0)
    return text[max(first, 0) : max(stop, 0)]


_NO_TEXT = pa.scalar("", pa.large_string())
_TEXT: dict[str, Callable[[Call, list[pa.Array]], pa.Array]] = {
    "lower": lambda _, a: pc.utf8_lower(a[0]),
    "upper": lambda _, a: pc.utf8_upper(a[0]),
    "trim": lambda _, a: pc.utf8_trim(a[0], " "),
    "ltrim": lambda _, a: pc.utf8_ltrim(a[0], " "),
    "rtrim": lambda _, a: pc.utf8_rtrim(a[0], " "),
    "length": lambda _, a: pc.utf8_length(a[0]).cast(pa.int64()),
    "concat": lambda _, a: pc.binary_join_element_wise(*a, _NO_TEXT, null_handling="emit_null"),
    "substring": lambda _, a: _per_value(_slice, a, pa.large_string()),
    "like": _matcher(lambda text, pattern: bool(_like_pattern(pattern, False).fullmatch(text))),
    "ilike": _matcher(lambda text, pattern: bool(_like_pattern(pattern, True).fullmatch(text))),
    "regexp_like": _matcher(_matches),
    "starts_with": _matcher(str.startswith, pc.starts_with),
    "ends_with": _matcher(str.endswith, pc.ends_with),
    "contains": _matcher(lambda text, pattern: pattern in text, pc.match_substring),
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


def _check_bits(value: int, bits: int) -> int | None:
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def _read_float(text: str, target: Type) -> float | None:
    if not _NUMBER.fullmatch(text) and not _SPECIAL.fullmatch(text):
        return None
    return round_float32(float(text)) if target == Float(32) else float(text)


# SQL's forms of numbers and dates. Python's own parsers accept more, such as 1_000 or a date without dashes.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _read_timestamp(text: str) -> datetime | None:
    if not _DAY.match(text):
        return None
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


_TEXT_READERS: dict[type[Type], Callable[[str, Any], Any]] = {
    Int: lambda text, target: _check_bits(int(text), target.bits) if _WHOLE.fullmatch(text) else None,
    Float: _read_float,
    Decimal: lambda text, target: _quantise(PyDecimal(text), target) if _NUMBER.fullmatch(text) else None,
    Bool: lambda text, _: {"true": True, "false": False}.get(text.lower()),
    Date: lambda text, _: date.fromisoformat(text) if _DAY.fullmatch(text) else None,
    Timestamp: lambda text, _: _read_timestamp(text),
}


def _quantise(value: PyDecimal, target: Type) -> PyDecimal | None:
    """Round half away from zero to the target's scale; return None if it does not fit."""
    assert isinstance(target, Decimal)
    if not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    whole = int("".join(map(str, digits)))
    shift = int(exponent) + target.scale
    if whole and len(digits) + shift > 80:
        return None  # far too large to write out
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
    return _quantise(PyDecimal(value), target)
