"""Group keys as small whole numbers: NULL is a key, NaN equals NaN, and minus zero equals zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.operators.chunk import Array


def _canonical(array: pa.Array) -> pa.Array:
    """Give all zeros, and all NaNs, one form."""
    if not pa.types.is_floating(array.type):
        return array
    array = pc.add(array, pa.scalar(0.0, array.type))
    return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)


def _encode(array: pa.Array) -> tuple[Array, pa.Array]:
    """Number the values of a column; return the numbers and the values by number."""
    coded = _canonical(array).dictionary_encode(null_encoding="encode")
    return np.asarray(coded.indices).astype(np.int64), coded.dictionary


def codes_of(keys: Sequence[pa.Array]) -> tuple[Array, Array]:
    """Return the number of each row's combination of keys, and the first row of each combination."""
    codes, _ = _encode(keys[0])
    for key in keys[1:]:
        more, others = _encode(key)
        _, codes = np.unique(codes * max(len(others), 1) + more, return_inverse=True)
    count = int(codes.max()) + 1 if len(codes) else 0
    first = np.zeros(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return codes, first


class GroupIndex:
    """Groups by number, for as long as a query runs: Glacier's content-addressable memory."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self.keys = [pa.array([], kind) for kind in types]
        """The keys of all groups, column by column."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, keys: Sequence[pa.Array]) -> Array:
        """Return the group of each row; a new combination gets the next number."""
        codes, first = codes_of(keys)
        rows = pa.array(first)
        found = [_canonical(key.take(rows)) for key in keys]
        fresh: list[int] = []
        numbers = np.zeros(len(first), np.int32)
        for at, row in enumerate(zip(*map(_hashable, found), strict=True)):
            known = self._numbers.setdefault(row, len(self._numbers))
            numbers[at] = known
            if known == len(self.keys[0]) + len(fresh):
                fresh.append(at)
        if fresh:
            picked = pa.array(fresh)
            self.keys = [pa.concat_arrays([a, b.take(picked)]) for a, b in zip(self.keys, found, strict=True)]
        return numbers[codes] if len(codes) else np.empty(0, np.int32)

    def keep(self, numbers: Array) -> None:
        """Forget all groups but these, which get the numbers 0, 1, …"""
        order = {int(old): new for new, old in enumerate(numbers)}
        self._numbers = {row: order[n] for row, n in self._numbers.items() if n in order}
        self.keys = [key.take(pa.array(numbers)) for key in self.keys]


def _hashable(keys: pa.Array) -> list[object]:
    """Return keys as Python objects, with a text for NaN, which does not equal itself.

    Times are numbers here: Python's own reach from the year 1 to 9999 only, and have no nanoseconds.
    """
    if pa.types.is_temporal(keys.type):
        keys = keys.view(pa.int32() if keys.type.bit_width == 32 else pa.int64())
    return ["nan" if isinstance(key, float) and key != key else key for key in keys.to_pylist()]
