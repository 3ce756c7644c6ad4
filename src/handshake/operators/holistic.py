"""wsum, median and mode: aggregates that need the values of a segment, not just a few numbers of it."""

from __future__ import annotations

import math
from decimal import Context
from decimal import Decimal as PyDecimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError
from handshake.operators.aggregates import decimals_of, keys_of
from handshake.operators.chunk import Array
from handshake.plan.algebra import Aggregate
from handshake.schema import Decimal, Float, arrow_of

__all__ = ["holistic"]

_EXACT = Context(prec=80)
_LONG = 18
"""Decimal digits that fit 64 bits."""


def holistic(aggregate: Aggregate, segments: Array, count: int, array: pa.Array) -> pa.Array:
    """The aggregate of each segment; rows of a segment are in the order of their arrival."""
    valid = np.asarray(array.is_valid())
    if not valid.all():
        array, segments = array.filter(pa.array(valid)), segments[valid]
    order = np.argsort(segments, kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        array, segments = array.take(pa.array(order)), segments[order]
    bounds = np.searchsorted(segments, np.arange(count + 1))
    if aggregate.function == "wsum":
        return _weighted(aggregate, array, bounds)
    return _ranked(aggregate, array, segments, bounds)


def _weighted(aggregate: Aggregate, array: pa.Array, bounds: Array) -> pa.Array:
    """The last n values of each segment by their weights, the newest by the first."""
    kind, n = aggregate.schema.get(aggregate.name).type, len(aggregate.weights)
    enough = np.diff(bounds) >= n
    rows = bounds[1:][enough][:, None] - 1 - np.arange(n)
    values = array.take(pa.array(rows.ravel()))
    if isinstance(kind, Float):
        matrix = np.asarray(values.cast(pa.float64())).reshape(-1, n)
        made = pa.array(_weighted_floats(aggregate, matrix), arrow_of(kind))
    else:
        assert isinstance(kind, Decimal)
        made = _weighted_exactly(aggregate, values, kind)
    return made if enough.all() else made.take(pa.array(np.cumsum(enough) - 1, mask=~enough))


def _weighted_floats(aggregate: Aggregate, values: Array) -> list[float]:
    weights = [weight / 10**aggregate.scale for weight in aggregate.weights]
    with np.errstate(invalid="ignore", over="ignore"):
        products = values * np.array(weights)
    return [exact_sum(row) for row in products.tolist()]


def exact_sum(values: list[float]) -> float:
    """The sum of floats, rounded once; infinities of both signs make NaN."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:  # perhaps only on the way
        odd = [value for value in values if not math.isfinite(value)]
        return sum(odd) if odd else _as_float(sum(map(Fraction, values), Fraction()))


def _as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _weighted_exactly(aggregate: Aggregate, values: pa.Array, kind: Decimal) -> pa.Array:
    """Whole numbers by whole weights: of 64 bits, if the type of the sums says that they are not beyond."""
    short = not pa.types.is_decimal(values.type) or values.type.precision <= _LONG
    if short and (kind.precision or _EXACT.prec) <= _LONG:
        matrix = keys_of(values, values.type, False).reshape(-1, len(aggregate.weights))
        return decimals_of(matrix @ np.array(aggregate.weights, np.int64), None, arrow_of(kind))
    return pa.array(_weighted_slowly(aggregate, values, kind), arrow_of(kind))


def _weighted_slowly(aggregate: Aggregate, values: pa.Array, kind: Decimal) -> list[PyDecimal]:
    scale = kind.scale - aggregate.scale
    whole = [int(v.scaleb(scale, _EXACT)) if isinstance(v, PyDecimal) else v for v in values.to_pylist()]
    n, weights = len(aggregate.weights), aggregate.weights
    sums = (
        sum(weight * value for weight, value in zip(weights, whole[at : at + n], strict=True))
        for at in range(0, len(whole), n)
    )
    return [PyDecimal(total).scaleb(-kind.scale, _EXACT) for total in sums]


def _ranked(aggregate: Aggregate, array: pa.Array, segments: Array, bounds: Array) -> pa.Array:
    """Values in order inside of each segment, then the one that is asked for."""
    keys = keys_of(array, array.type, False)
    if keys.dtype == object:
        ranks = {value: rank for rank, value in enumerate(sorted(set(keys)))}
        keys = np.array([ranks[value] for value in keys], np.int64)
    order = np.lexsort((keys, segments))
    values, sorted_keys = array.take(pa.array(order)), keys[order]
    if aggregate.function == "mode":
        return values.take(pa.array(_modes(sorted_keys, bounds), pa.int64()))
    return _medians(aggregate, values, bounds)


def _modes(keys: Array, bounds: Array) -> list[int | None]:
    """Where the most frequent key of each segment is; of several, the least."""
    found: list[int | None] = []
    for start, stop in pairwise(bounds):
        if start == stop:
            found.append(None)
            continue
        _, first, counts = np.unique(keys[start:stop], return_index=True, return_counts=True)
        found.append(int(start + first[np.argmax(counts)]))
    return found


def _medians(aggregate: Aggregate, values: pa.Array, bounds: Array) -> pa.Array:
    kind, counts = aggregate.schema.get(aggregate.name).type, np.diff(bounds)
    some = np.flatnonzero(counts)
    low = values.take(pa.array(bounds[:-1][some] + (counts[some] - 1) // 2)).to_pylist()
    high = values.take(pa.array(bounds[:-1][some] + counts[some] // 2)).to_pylist()
    out: list[Any] = [None] * len(counts)
    for at, a, b in zip(some, low, high, strict=True):
        out[at] = _middle(a, b)
    try:
        return pa.array(out, arrow_of(kind))
    except pa.ArrowInvalid:
        raise HandshakeError(f"a median has more digits than {kind} holds; cast its argument") from None


def _middle(a: Any, b: Any) -> Any:
    """The mean of two values, which may be the same one."""
    if isinstance(a, PyDecimal):
        return _EXACT.multiply(_EXACT.add(a, b), PyDecimal("0.5"))
    if isinstance(a, float) and math.isinf(a + b):  # perhaps only on the way
        return a / 2 + b / 2
    return (a + b) / 2
