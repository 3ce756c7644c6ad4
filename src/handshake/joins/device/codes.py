"""Codes of 16 bits for the two bands of a side, which a scan on a GPU compares first."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.spec import SideSpec
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT
from handshake.kernels.keys import sort_key

Array = np.ndarray[Any, Any]


class Coder:
    """16-bit codes of the two bands of a side: parts of equal width, counted from some value on.

    Codes wrap, so values may drift. A tuple in a band has a code at most `most` above that of its
    lower limit.
    """

    def __init__(self, spec: SideSpec) -> None:
        self.attributes = spec.coded
        self.rows = 0
        """Tuples that the parts were chosen by; none if they have not been."""
        self._parts: list[tuple[float, float]] = []

    def calibrate(self, values: list[Array], limits: list[tuple[Array, Array]]) -> None:
        """Choose parts by the values of a window, and by the bands of some probes."""
        self.rows = len(values[0])
        spans = [(least, max(span, 1e-30)) for least, span in map(span_of, values)]
        widths = [float(np.median(floats(high) - floats(low))) for low, high in limits]
        shares = [w / s for w, (_, s) in zip(widths, spans, strict=True) if np.isfinite(w) and w > 0]
        parts = min(max(65536.0 * min(shares, default=0.0), 16.0), 8192.0)
        self._parts = []
        for (least, span), width in zip(spans, widths, strict=True):
            scale = parts / width if np.isfinite(width) and width > 0 else 65536.0 / span
            self._parts.append((least, scale if np.isfinite(scale) else 1.0))

    def codes(self, values: list[Array]) -> list[Array]:
        """Return the codes of tuples."""
        made = [np.empty(len(v), np.uint16) for v in values]
        for (least, scale), v, codes in zip(self._parts, values, made, strict=True):
            _encode(v, least, scale, codes)
        return made

    def words(self, limits: list[tuple[Array, Array]]) -> tuple[Array, int]:
        """Return two words for each probe, and the largest distance of codes in a band."""
        words, most = np.empty((len(limits[0][0]), len(limits)), np.uint32), 0
        for column, (parts, (low, high)) in enumerate(zip(self._parts, limits, strict=True)):
            most = max(most, _encode_limits(low, high, *parts, words, column))
        return words, min(most + 1, 0xFFFF)


def floats(values: Array) -> Array:
    return values.astype(np.float64)


def span_of(values: Array) -> tuple[float, float]:
    """Return the least finite value, and how far the largest is from it; as if 0 if there is none."""
    least, most = _finite_extremes(values)
    return (least, most - least) if least <= most else (0.0, 0.0)


@compile_loop(**JIT)
def _finite_extremes(values):  # type: ignore[no-untyped-def]
    least, most = np.inf, -np.inf
    for row in range(values.shape[0]):
        value = np.float64(values[row])
        if np.isfinite(value):
            least, most = min(least, value), max(most, value)
    return least, most


@numba.njit(**JIT, inline="always")
def part_of(value, least, scale):  # type: ignore[no-untyped-def]
    """Return the number of a value's part; never less than that of a smaller value."""
    part = np.floor((np.float64(value) - least) * scale)
    return np.int64(min(max(part, -(2.0**61)), 2.0**61))


@compile_loop(**JIT)
def _encode(values, least, scale, codes):  # type: ignore[no-untyped-def]
    for row in range(values.shape[0]):
        codes[row] = np.uint16(part_of(values[row], least, scale) & 0xFFFF)


@compile_loop(**JIT)
def _encode_limits(low, high, least, scale, words, column):  # type: ignore[no-untyped-def]
    most = 0
    for row in range(low.shape[0]):
        first = part_of(low[row], least, scale)
        most = max(most, part_of(high[row], least, scale) - first)
        back = np.uint32(-first & 0xFFFF)
        words[row, column] = back | (back << np.uint32(16))
    return most


def coded_values(window: BasicWindow) -> list[Array]:
    return [sort_key(window.values(attribute.inner)) for attribute in window.spec.coded]
