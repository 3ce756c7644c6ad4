"""Holistic aggregates: functions of all values of a slot, such as the median."""

from __future__ import annotations

import math
from decimal import Context
from decimal import Decimal as PyDecimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import HandshakeError
from handshake.operators.chunk import Array
from handshake.operators.slots import Values
from handshake.operators.sort_keys import decimals_of, keys_of
from handshake.plan.algebra import Aggregate
from handshake.schema import Decimal, Float, arrow_of

_EXACT = Context(prec=80)
_LONG = 18
"""Decimal digits that fit 64 bits."""


def weighted_sums(aggregate: Aggregate, values: Values) -> pa.Array:
    """Weigh the last n values of each slot, the newest one with the first weight; NULL with fewer values."""
    kind, n = aggregate.schema.get(aggregate.name).type, len(aggregate.weights)
    enough = np.diff(values.bounds) >= n
    rows = values.bounds[1:][enough][:, None] - 1 - np.arange(n)
    newest = values.array.take(pa.array(rows.ravel()))
    if isinstance(kind, Float):
        matrix = np.asarray(newest.cast(pa.float64())).reshape(-1, n)
        sums = pa.array(_float_sums(aggregate, matrix), arrow_of(kind))
    else:
        assert isinstance(kind, Decimal)
        sums = _exact_sums(aggregate, newest, kind)
    return sums if enough.all() else sums.take(pa.array(np.cumsum(enough) - 1, mask=~enough))


def _float_sums(aggregate: Aggregate, values: Array) -> list[float]:
    weights = [weight / 10**aggregate.scale for weight in aggregate.weights]
    with np.errstate(invalid="ignore", over="ignore"):
        products = values * np.array(weights)
    return [exact_sum(row) for row in products.tolist()]


def exact_sum(values: list[float]) -> float:
    """Return the sum of floats, rounded once; infinities of both signs make NaN."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:  # perhaps of an intermediate sum only
        special = [value for value in values if not math.isfinite(value)]
        if special:
            return sum(special)
        total = sum(map(Fraction, values), Fraction())
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


def _exact_sums(aggregate: Aggregate, values: pa.Array, kind: Decimal) -> pa.Array:
    """Multiply whole numbers by whole weights, with 64 bits if the type of the sums fits them."""
    n, weights = len(aggregate.weights), aggregate.weights
    short = not pa.types.is_decimal(values.type) or values.type.precision <= _LONG
    if short and (kind.precision or _EXACT.prec) <= _LONG:
        matrix = keys_of(values, values.type, False).reshape(-1, n)
        return decimals_of(matrix @ np.array(weights, np.int64), None, arrow_of(kind))
    scale = kind.scale - aggregate.scale
    whole = [int(v.scaleb(scale, _EXACT)) if isinstance(v, PyDecimal) else v for v in values.to_pylist()]
    sums = [
        sum(weight * value for weight, value in zip(weights, whole[at : at + n], strict=True))
        for at in range(0, len(whole), n)
    ]
    return pa.array([PyDecimal(total).scaleb(-kind.scale, _EXACT) for total in sums], arrow_of(kind))


def modes(aggregate: Aggregate, values: Values) -> pa.Array:
    """Return the most frequent value of each slot; of several, the least."""
    ranked, keys = values.rank()
    rows: list[int | None] = []
    for start, stop in pairwise(values.bounds):
        if start == stop:
            rows.append(None)
            continue
        _, first, counts = np.unique(keys[start:stop], return_index=True, return_counts=True)
        rows.append(int(start + first[np.argmax(counts)]))
    return ranked.take(pa.array(rows, pa.int64()))


def medians(aggregate: Aggregate, values: Values) -> pa.Array:
    """Return the median of each slot."""
    kind, counts = aggregate.schema.get(aggregate.name).type, np.diff(values.bounds)
    ranked, _ = values.rank()
    some = np.flatnonzero(counts)
    low = ranked.take(pa.array(values.bounds[:-1][some] + (counts[some] - 1) // 2)).to_pylist()
    high = ranked.take(pa.array(values.bounds[:-1][some] + counts[some] // 2)).to_pylist()
    out: list[Any] = [None] * len(counts)
    for at, a, b in zip(some, low, high, strict=True):
        out[at] = _mean(a, b)
    try:
        return pa.array(out, arrow_of(kind))
    except pa.ArrowInvalid:
        raise HandshakeError(f"a median has more digits than {kind} holds; cast its argument") from None


def _mean(a: Any, b: Any) -> Any:
    if isinstance(a, PyDecimal):
        return _EXACT.multiply(_EXACT.add(a, b), PyDecimal("0.5"))
    if isinstance(a, float) and math.isinf(a + b):  # the sum overflows, the mean may not
        return a / 2 + b / 2
    return (a + b) / 2


def percentiles(aggregate: Aggregate, values: Values) -> pa.Array:
    """Return the value at a fraction of each slot as Spark does: between two values, by the distance."""
    counts = np.diff(values.bounds)
    some = np.flatnonzero(counts)
    ranked, keys = values.rank()
    place = (counts[some] - 1) * float(aggregate.constants[0])
    below, above = np.floor(place), np.ceil(place)
    low, high = (_ranked_rows(aggregate, values, part.astype(np.int64), some) for part in (below, above))
    a, b = (_doubles(ranked.take(pa.array(rows))) for rows in (low, high))
    with np.errstate(invalid="ignore", over="ignore"):
        between = (above - place) * a + (place - below) * b
    out = np.zeros(len(counts))
    out[some] = np.where(keys[low] == keys[high], a, between)
    return pa.array(out, mask=counts == 0)


def _ranked_rows(aggregate: Aggregate, values: Values, places: Array, slots: Array | slice) -> Array:
    """Return the rows at these places of sorted slots, counted from the largest value with DESC."""
    if "DESC" in aggregate.constants:
        return values.bounds[1:][slots] - 1 - places
    return values.bounds[:-1][slots] + places


def _doubles(numbers: pa.Array) -> Array:
    if pa.types.is_decimal(numbers.type):
        return np.array([float(number) for number in numbers.to_pylist()], np.float64)
    return np.asarray(numbers.cast(pa.float64(), safe=False))


def quantiles(aggregate: Aggregate, values: Values) -> pa.Array:
    """Return the least value of each slot such that a fraction of the slot's values is not larger."""
    counts, (fraction,) = np.diff(values.bounds), aggregate.weights
    ranks = [-(-int(n) * fraction // 10**aggregate.scale) for n in counts]
    rows = _ranked_rows(aggregate, values, np.maximum(np.array(ranks, np.int64), 1) - 1, slice(None))
    return values.rank()[0].take(pa.array(rows, mask=counts == 0))


def list_values(aggregate: Aggregate, values: Values) -> pa.Array:
    """Return the values of each slot as a list."""
    return pa.ListArray.from_arrays(pa.array(values.bounds, pa.int32()), values.array)


def join_texts(aggregate: Aggregate, values: Values) -> pa.Array:
    """Return the texts of each slot as one, with a separator between them; NULL without any."""
    joined = pc.binary_join(list_values(aggregate, values), str(aggregate.constants[0]))
    return pc.if_else(pa.array(np.diff(values.bounds) > 0), joined, pa.scalar(None, joined.type))
