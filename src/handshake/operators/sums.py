"""States that are added up: counts, sums, averages, variances. All are whole numbers, so they are exact."""

from __future__ import annotations

import math
from decimal import Context
from decimal import Decimal as PyDecimal

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError
from handshake.kernels.keys import decimals_from_words, numbers_of
from handshake.kernels.panes import FLOAT_LIMBS, SQUARE_LIMBS, add_floats, add_limbs, add_squares, count_rows
from handshake.operators.chunk import Array
from handshake.operators.slots import Rows
from handshake.operators.sort_keys import words_of
from handshake.plan.algebra import Aggregate
from handshake.schema import Decimal, Float, Int, Type, arrow_of

_ALL = np.empty(0, np.bool_)
"""A mask that selects every row."""
_LIMB = np.int64(0xFFFFFFFF)
_SPECIAL = 3
"""Counters of NaN, infinity and minus infinity in the state of a float sum."""
_HIGHEST = 10**38 >> 64
_EXACT = Context(prec=80)
_ONE = 2**1074
_BEYOND_DOUBLE = 130
"""Bits of a square root that leave no doubt about how it is rounded."""


class Additive:
    """A state of whole numbers per slot: the count of values that are not NULL, then those of a subclass.

    The state of a pane is added when it enters a window and subtracted when it leaves. This class is `count`.
    """

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        self.aggregate, self.argument = aggregate, kind
        self.type = aggregate.schema.get(aggregate.name).type
        self.width = 1 + self.extra_width()

    def extra_width(self) -> int:
        """Return how many whole numbers follow the count."""
        return 0

    def reduce(self, rows: Rows) -> Array:
        """Return the state of each slot."""
        out = np.zeros((rows.count, self.width), np.int64)
        valid, counted = rows.valid(self.aggregate.fields), np.zeros(rows.count, np.int64)
        count_rows(rows.slots, valid, counted)
        out[:, 0] = counted
        if self.width > 1:
            self.add(rows.slots, rows.column(self.aggregate.fields[0]), valid, out[:, 1:])
        return out

    def add(self, slots: Array, array: pa.Array, valid: Array, out: Array) -> None:
        """Add values to the numbers that follow the count."""

    def combine(self, state: Array, slots: Array, count: int) -> Array:
        """Return the states of larger slots, given the larger slot of each slot."""
        out = np.zeros((count, self.width), np.int64)
        add_limbs(slots, state, _ALL, out)
        return out

    def finish(self, state: Array) -> pa.Array:
        """Return the results of slots."""
        return pa.array(np.ascontiguousarray(state[:, 0]))


class CountIf(Additive):
    """The number of rows in which a column is TRUE."""

    def reduce(self, rows: Rows) -> Array:
        """Return the state of each slot."""
        return super().reduce(rows.where(self.aggregate.fields[0]))


class Sum(Additive):
    """The sum of values, in limbs of 32 bits; that of floats is exact, too."""

    def extra_width(self) -> int:
        """Return the number of limbs, and three counters for floats that are not finite."""
        return _SPECIAL + FLOAT_LIMBS if isinstance(self.argument, Float) else self._limbs()

    def _limbs(self) -> int:
        """Return the number of limbs of a whole number or decimal."""
        assert self.argument is not None
        arrow = arrow_of(self.argument)
        return 4 if pa.types.is_decimal(arrow) else 2 if arrow.bit_width == 64 else 1

    def add(self, slots: Array, array: pa.Array, valid: Array, out: Array) -> None:
        """Add the limbs of values."""
        if not isinstance(self.argument, Float):
            add_limbs(slots, _limbs_of(array), valid, out)
            return
        values = numbers_of(array.cast(pa.float64()))
        add_floats(slots, values, values.view(np.int64), valid, out[:, _SPECIAL:], out[:, :_SPECIAL])

    def finish(self, state: Array) -> pa.Array:
        """Return the sums; NULL without a value."""
        limbs, missing = state[:, 1:], state[:, 0] == 0
        if isinstance(self.argument, Float):
            return pa.array(_float_sums(limbs), mask=missing)
        if isinstance(self.type, Int):
            return pa.array(np.ascontiguousarray(limbs[:, 0]), mask=missing)
        return _decimal_sums(limbs, self.type, missing)


class Average(Sum):
    """The sum of values over their count."""

    def finish(self, state: Array) -> pa.Array:
        """Return the averages; NULL without a value."""
        limbs, missing = state[:, 1:], state[:, 0] == 0
        counts = np.where(missing, 1, state[:, 0])
        if isinstance(self.argument, Float):
            with np.errstate(invalid="ignore"):
                return pa.array(_float_sums(limbs) / counts, mask=missing)
        if isinstance(self.argument, Decimal):
            return self._decimals(limbs, counts, missing)
        if limbs.shape[1] == 1 and np.all(np.abs(limbs) < 2**53):
            return pa.array(limbs[:, 0] / counts, mask=missing)
        totals = [total / int(n) for total, n in zip(_totals(limbs), counts, strict=True)]
        return pa.array(np.array(totals, np.float64), mask=missing)

    def _decimals(self, limbs: Array, counts: Array, missing: Array) -> pa.Array:
        assert isinstance(self.type, Decimal)
        assert isinstance(self.argument, Decimal)
        factor = 10 ** (self.type.scale - self.argument.scale)
        values = [
            None if null else PyDecimal(_divide(total * factor, int(n))).scaleb(-self.type.scale, _EXACT)
            for total, n, null in zip(_totals(limbs), counts, missing, strict=True)
        ]
        try:
            return pa.array(values, arrow_of(self.type))
        except pa.ArrowInvalid:
            raise HandshakeError(
                f"an average has more digits than {self.type} holds; cast its argument"
            ) from None


class Variance(Sum):
    """The variance, from the exact sums of values and of their squares: n Σx² - (Σx)², over n² or n (n - 1).

    It is rounded once, so it does not depend on the order of rows or on how they are cut into panes.
    """

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        super().__init__(aggregate, kind)
        self._sample = int(aggregate.function.endswith("samp"))

    def extra_width(self) -> int:
        """Return the limbs of the sum, then those of the sum of squares, which are twice as long."""
        self._sums = super().extra_width()
        return self._sums + (SQUARE_LIMBS if isinstance(self.argument, Float) else 2 * self._limbs())

    def add(self, slots: Array, array: pa.Array, valid: Array, out: Array) -> None:
        """Add values and their squares."""
        super().add(slots, array, valid, out[:, : self._sums])
        if isinstance(self.argument, Float):
            digits, shifts, finite = _float_digits(numbers_of(array.cast(pa.float64())))
            valid = finite if not len(valid) else valid & finite
        else:
            digits = _magnitudes(array)
            shifts = np.zeros(len(digits), np.int64)
        add_squares(slots, digits, shifts, valid, out[:, self._sums :])

    def finish(self, state: Array) -> pa.Array:
        """Return the variances; NULL without enough values, NaN with one that is not finite."""
        return pa.array([self._variance(row) for row in state], pa.float64())

    def _variance(self, state: Array) -> float | None:
        count, parts = int(state[0]), state[1:]
        if count <= self._sample:
            return None
        sums, squares = parts[: self._sums], parts[self._sums :]
        scale = 1
        if isinstance(self.argument, Float):
            if sums[:_SPECIAL].any():
                return math.nan
            sums, scale = sums[_SPECIAL:], _ONE
        elif isinstance(self.argument, Decimal):
            scale = 10**self.argument.scale
        above = count * _whole(squares) - _whole(sums) ** 2
        return self.divide(above, count * (count - self._sample) * scale**2)

    def divide(self, above: int, below: int) -> float:
        """Return the quotient, rounded once."""
        try:
            return above / below
        except OverflowError:
            return math.inf


class StandardDeviation(Variance):
    """The square root of the exact variance, rounded once."""

    def divide(self, above: int, below: int) -> float:
        """Return the square root of the quotient."""
        shift = max(0, _BEYOND_DOUBLE - above.bit_length() + below.bit_length()) // 2
        root = math.isqrt((above << 2 * shift) // below)
        rest = root * root * below != above << 2 * shift  # a digit that only says: the root is a little more
        return (2 * root + rest) / (2 << shift)


def _divide(number: int, by: int) -> int:
    """Divide and round to the nearest whole number, halves away from zero."""
    quotient = (2 * abs(number) + by) // (2 * by)
    return -quotient if number < 0 else quotient


def _limbs_of(array: pa.Array) -> Array:
    """Split whole numbers into limbs of 32 bits, the highest with the sign."""
    if pa.types.is_decimal(array.type):
        low, high = words_of(array)
        return np.stack([low & _LIMB, (low >> 32) & _LIMB, high & _LIMB, high >> 32], axis=1)
    values = numbers_of(array)
    if values.dtype.itemsize < 8:
        return values.astype(np.int64)[:, None]
    low = (values & np.array(0xFFFFFFFF, values.dtype)).astype(np.int64)
    return np.stack([low, (values >> 32).astype(np.int64)], axis=1)


def _magnitudes(array: pa.Array) -> Array:
    """Split the absolute values of whole numbers into limbs of 32 bits."""
    if pa.types.is_decimal(array.type):
        low, high = (word.view(np.uint64) for word in map(np.ascontiguousarray, words_of(array)))
        minus = high >> np.uint64(63) == 1
        high = np.where(minus, ~high + (low == 0), high)
        low = np.where(minus, ~low + np.uint64(1), low)
        words = [low, high]
    else:
        values = numbers_of(array)
        whole = values.astype(np.uint64)
        words = [np.where(values < 0, ~whole + np.uint64(1), whole)]
    halves = [half for word in words for half in (word & np.uint64(_LIMB), word >> np.uint64(32))]
    wanted = 1 if array.type.bit_width <= 32 else len(halves)
    return np.stack(halves[:wanted], axis=1).astype(np.int64)


def _float_digits(values: Array) -> tuple[Array, Array, Array]:
    """Return the 53 digits of floats as limbs, how far their squares are shifted, and which are finite."""
    bits = values.view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    digits = (bits & (2**52 - 1)) | np.where(exponent > 0, 2**52, 0)
    limbs = np.stack([digits & _LIMB, digits >> 32], axis=1)
    return limbs, 2 * np.maximum(exponent - 1, 0), exponent < 0x7FF


def _whole(limbs: Array) -> int:
    """Return a sum of limbs as a Python integer."""
    return sum(int(limbs[k]) << (32 * int(k)) for k in np.flatnonzero(limbs))


def _totals(limbs: Array) -> list[int]:
    """Return sums of limbs as Python integers."""
    return [sum(int(limb) << 32 * k for k, limb in enumerate(row)) for row in limbs]


def _decimal_sums(limbs: Array, kind: Type, missing: Array) -> pa.Array:
    """Carry over between limbs to make decimals of 128 bits."""
    pieces, carry = [], np.zeros(len(limbs), np.int64)
    for k in range(4):
        carry = carry + (limbs[:, k] if k < limbs.shape[1] else 0)
        pieces.append(carry & _LIMB)
        carry >>= 32
    low, high = (pieces[0] | pieces[1] << 32), (pieces[2] | pieces[3] << 32)
    if np.any(carry != high >> 63) or np.any((high >= _HIGHEST) | (high < -_HIGHEST)):
        raise HandshakeError("a sum has more than 38 digits, which no column can hold; cast its argument")
    words = np.stack([low, high], axis=1)
    return decimals_from_words(words, missing if missing.any() else None, arrow_of(kind))


def _float_sums(state: Array) -> Array:
    """Round exact sums of floats once."""
    out = np.zeros(len(state))
    special = state[:, :_SPECIAL]
    for row in np.flatnonzero(special.any(axis=1)):
        nan, plus, minus = special[row]
        out[row] = np.nan if nan or (plus and minus) else np.inf if plus else -np.inf
    for row in np.flatnonzero(~special.any(axis=1)):
        total = _whole(state[row, _SPECIAL:])
        try:
            out[row] = total / _ONE
        except OverflowError:
            out[row] = np.inf if total > 0 else -np.inf
    return out
