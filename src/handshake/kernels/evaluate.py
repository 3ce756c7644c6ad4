"""Expressions on whole columns: compiled if kernels can, else by Arrow, else by Python per value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import HandshakeError, UnsupportedError
from handshake.kernels.columns import Columns, as_array
from handshake.kernels.compile import Program, rows_kernel
from handshake.kernels.keys import decimals_from_words
from handshake.kernels.prepare import HIDDEN, held_type, node_compiles
from handshake.kernels.values import array_of, natural_type, values_of
from handshake.plan.casts import cast_value
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
from handshake.plan.functions.registry import call_values
from handshake.plan.ranges import ranges, width_of
from handshake.plan.types import is_exact
from handshake.schema import (
    UNITS,
    Binary,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    String,
    Timestamp,
    Type,
    without_view,
)

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

    def compute(self, arrays: Arrays, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the values, and a mask of those that are not NULL. A condition that is NULL has no TRUE."""
        columns = Columns.of(rows, self._order, [arrays[column] for column in self._names])
        kernel, kind = self._kernel(columns.headroom, columns.nullable)
        out = np.empty((rows, 2) if kind is None else rows, np.int64 if kind is None else kind)
        valid = np.empty(rows, np.bool_)
        kernel(columns.addresses(columns.nullable), rows, out.ctypes.data, valid.ctypes.data)
        return out, valid

    def __call__(self, arrays: Arrays, rows: int) -> pa.Array:
        return _to_arrow(self._type, *self.compute(arrays, rows))

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

    def where(self, arrays: Arrays, rows: int) -> np.ndarray[Any, Any]:
        """Return the rows for which a condition is TRUE, in ascending order."""
        if self._compiled is None:
            return np.flatnonzero(holds(self._expr, arrays, rows))
        return np.flatnonzero(self._compiled.compute(arrays, rows)[0])


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
        words = np.stack([out, out >> 63], axis=1) if out.ndim == 1 else out
        scale = kind.scale if isinstance(kind, Decimal) else 0
        return decimals_from_words(words, missing, pa.decimal128(38, scale))
    if isinstance(kind, (Bool, Float)):
        return pa.array(out, mask=missing)
    whole = pa.array(out.astype(np.int64, copy=False), mask=missing)
    natural = natural_type(kind)
    if natural.bit_width == 64:
        return whole.view(natural)
    span = pc.min_max(whole)
    fits = (span["min"].as_py() or 0) >= -(2**31) and (span["max"].as_py() or 0) < 2**31
    return whole.cast(pa.int32()).view(natural) if fits else whole


def _constant(expr: Literal, rows: int) -> pa.Array:
    if expr.value is None:
        return pa.nulls(rows, natural_type(expr.type))
    one = array_of([expr.value], expr.type)
    return one.take(pa.repeat(pa.scalar(0), rows))


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
        case Call(name=name):
            return _FAST.get(name, _call_per_value)(expr, [_text(a) for a in operands])
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
    if pa.types.is_string(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array.cast(without_view(kind))


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
        return pa.array(results, natural_type(expr.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise HandshakeError(
            f"the Python function {name} must return {expr.type}: {error}; "
            "name the type of its results, as in call(…, returns='double')"
        ) from error


def _for_python(array: pa.Array, kind: Type) -> list[Any]:
    """Return values for a Python function. Whole numbers that were computed as decimals become int."""
    values: list[Any] = array.to_pylist()
    if isinstance(kind, Int) and pa.types.is_decimal(array.type):
        return [None if value is None else int(value) for value in values]
    return values


def _matcher(match_column: Callable[[pa.Array, str], pa.Array]) -> _Columns:
    """Return a text test that Arrow computes if the pattern is a constant."""

    def test(expr: Call, operands: list[pa.Array]) -> pa.Array:
        if isinstance(expr.args[1], Literal):
            return match_column(operands[0], expr.args[1].value)
        return _call_per_value(expr, operands)

    return test


def _change_case(convert: Callable[[pa.Array], pa.Array]) -> _Columns:
    """Return a function for ASCII text. Arrow's tables lack characters whose other case is longer."""

    def change(expr: Call, operands: list[pa.Array]) -> pa.Array:
        plain = pc.all(pc.string_is_ascii(operands[0])).as_py() is not False
        return convert(operands[0]) if plain else _call_per_value(expr, operands)

    return change


def _trim(strip: Callable[[pa.Array, str], pa.Array]) -> _Columns:
    """Return a function that strips spaces."""
    return lambda expr, a: strip(a[0], " ") if len(a) == 1 else _call_per_value(expr, a)


def _field(expr: Call, operands: list[pa.Array]) -> pa.Array:
    """Compute a field of dates and timestamps on the wall clock."""
    wall = _wall_clocks(operands[0])
    if wall is None:
        return _call_per_value(expr, operands)
    return getattr(pc, expr.name)(wall).cast(pa.int64())


_ZONES_KNOWN = 2_114_380_800
"""Seconds to 2037: Arrow applies no summer time in the years after it."""


def _wall_clocks(array: pa.Array) -> pa.Array | None:
    """Return wall clocks of timestamps, or None if Arrow cannot compute them."""
    if not pa.types.is_temporal(array.type):
        return None
    if getattr(array.type, "tz", None) is None:
        return array
    latest = pc.max(array.view(pa.int64())).as_py() or 0
    if latest * UNITS[array.type.unit] >= _ZONES_KNOWN * UNITS["s"]:
        return None
    return pc.local_timestamp(array)


def _path(expr: Call, operands: list[pa.Array]) -> pa.Array:
    """Return fields of structs, elements of lists and values of maps."""
    found, *_ = operands
    for key, index in zip(expr.args[1:], operands[1:], strict=True):
        if pa.types.is_map(found.type):
            found = _looked_up(found, values_of(index))
        elif isinstance(key.type, String):
            assert isinstance(key, Literal)
            found = pc.struct_field(found, [key.value])
        else:
            found = _elements(found, values_of(index))
    found = _text(found)
    return found if isinstance(expr.type, (String, Binary)) else array_of(values_of(found), expr.type)


def _elements(lists: pa.Array, numbers: list[int | None]) -> pa.Array:
    """Return one element of each list; NULL if the list has none of that number."""
    if pa.types.is_fixed_size_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_field))
    starts, lengths = lists.offsets.to_pylist(), pc.list_value_length(lists).to_pylist()
    places = [
        start + number if number is not None and length is not None and 0 <= number < length else None
        for start, number, length in zip(starts[:-1], numbers, lengths, strict=True)
    ]
    return lists.values.take(pa.array(places, pa.int64()))


def _looked_up(maps: pa.Array, wanted: list[Any]) -> pa.Array:
    """Return the value of one key of each map; NULL if the map has none of that key."""
    starts, valid, keys = maps.offsets.to_pylist(), maps.is_valid().to_pylist(), values_of(maps.keys)
    places = [
        _place_of(key, keys, start, stop) if some and key is not None else None
        for key, some, start, stop in zip(wanted, valid, starts[:-1], starts[1:], strict=True)
    ]
    return maps.items.take(pa.array(places, pa.int64()))


def _place_of(key: Any, keys: list[Any], start: int, stop: int) -> int | None:
    """Return the first place of a key; NaN is a key like any other."""
    nan = key != key
    return next((n for n in range(start, stop) if keys[n] == key or (nan and keys[n] != keys[n])), None)


def _call_per_value(expr: Call, operands: list[pa.Array]) -> pa.Array:
    return _per_value(call_values(expr), operands, expr.type)


def _per_value(function: Callable[..., Any], operands: list[pa.Array], kind: Type) -> pa.Array:
    rows = zip(*(values_of(a) for a in operands), strict=True)
    return array_of([function(*row) for row in rows], kind)


_Columns = Callable[[Call, list[pa.Array]], pa.Array]
_FAST: dict[str, _Columns] = {
    "lower": _change_case(pc.utf8_lower),
    "upper": _change_case(pc.utf8_upper),
    "trim": _trim(pc.utf8_trim),
    "ltrim": _trim(pc.utf8_ltrim),
    "rtrim": _trim(pc.utf8_rtrim),
    "length": lambda _, a: pc.utf8_length(a[0]).cast(pa.int64()),
    "coalesce": lambda _, a: pc.coalesce(*a),
    "concat": lambda _, a: pc.binary_join_element_wise(
        *a, pa.scalar("", pa.large_string()), null_handling="emit_null"
    ),  # a scalar of the module would import pandas, which takes 0.2 s
    "starts_with": _matcher(pc.starts_with),
    "ends_with": _matcher(pc.ends_with),
    "contains": _matcher(pc.match_substring),
    **dict.fromkeys(("year", "month", "day", "hour", "minute", "second"), _field),
    "path": _path,
}
"""Functions that Arrow computes with the same values, column by column."""


# Casts that kernels do not compute.


def _cast(expr: Cast, operand: pa.Array) -> pa.Array:
    source, target = expr.arg.type, expr.type
    if isinstance(source, String):
        operand = _text(operand)
    if isinstance(source, Timestamp) and isinstance(target, Date):
        wall = _wall_clocks(operand)
        if wall is not None:
            return pc.floor_temporal(wall, unit="day").cast(pa.date32())
    return _per_value(lambda value: cast_value(value, source, target), [operand], target)
