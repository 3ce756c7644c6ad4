"""Memory of a GPU: arrays, the tuples of a window, and the pairs that a search found."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import stored_column
from handshake.joins.spec import SideSpec
from handshake.kernels.columns import extremes, integers
from handshake.kernels.compile import memory_bytes
from handshake.kernels.gpu.driver import Device, DeviceError, size
from handshake.kernels.gpu.filters import small
from handshake.kernels.gpu.target import THREADS
from handshake.plan.expr import Column
from handshake.plan.ranges import storage_bits
from handshake.schema import Bool, Int

__all__ = ["MOST_SLOTS", "DeviceWindow", "Output", "Store"]

Array = np.ndarray[Any, Any]
_PAD = THREADS * 64
"""Slots behind the last one that kernels may load, but not count."""
_FEWEST = 1 << 14
"""Slots of the smallest window."""
MOST_SLOTS = 1 << 32
_COPIED = 1 << 12
"""Pairs that are copied together with their number."""


class Store:
    """An array on the device with an element per slot."""

    def __init__(self, device: Device, width: int, fill: int = 0) -> None:
        self.device, self.width, self.fill = device, width, fill
        self.address = self.slots = 0
        self._held: weakref.finalize[Any, Any] | None = None

    def grow(self, slots: int, start: int, used: int) -> None:
        """Make room for `slots` slots; keep `used` ones from `start` on, which become the first."""
        size = (slots + _PAD) * self.width
        made = self.device.allocate(size)
        if self.fill:
            self.device.fill(made, self.fill, size)
        if used:
            self.device.move(made, self.address + start * self.width, used * self.width)
        self.release()
        self.address, self.slots = made, slots
        self._held = weakref.finalize(self, self.device.free, made)
        self._held.atexit = False

    def shift(self, start: int, used: int) -> None:
        """Move slots to the front."""
        if used:
            self.device.move(self.address, self.address + start * self.width, used * self.width)

    def put_all(self, values: Array) -> None:
        """Write an array from the first slot on, and make room for it."""
        if len(values) > self.slots:
            self.grow(2 * len(values), 0, 0)
        self.put(0, values)

    def put(self, slot: int, values: Array) -> None:
        """Write an array of the host, which is alive until it has been read."""
        self.device.upload(self.address + slot * self.width, values.ctypes.data, values.nbytes)

    def write(self, slot: int, source: int, count: int) -> None:
        """Write elements from an address of the host."""
        self.device.upload(self.address + slot * self.width, source, count * self.width)

    def release(self) -> None:
        """Give the memory back."""
        if self._held is not None:
            self._held()
            self._held = None


class DeviceWindow:
    """The tuples of one side on the device, in the order of arrival, in one run of slots."""

    def __init__(self, device: Device, spec: SideSpec) -> None:
        self.device, self.spec = device, spec
        self.data = [Store(device, _width(column)) for column in spec.columns]
        self.validity: list[Store] = []
        self.codes = [Store(device, 2) for _ in spec.coded]
        self.base = self.first = self.next = 0
        """Rows: of the first slot, the oldest that counts, and the one that comes next."""
        self.slots = 0
        self.headroom = self.all_small = True
        self._checked = [c for c in spec.columns if isinstance(c.type, Int) and storage_bits(c.type) >= 32]

    @property
    def stores(self) -> list[Store]:
        """The arrays of values, validity and codes."""
        return [*self.data, *self.validity, *self.codes]

    @property
    def nbytes(self) -> int:
        """The memory of all arrays."""
        return (self.slots + _PAD) * sum(store.width for store in self.stores) if self.slots else 0

    def append(self, piece: BasicWindow) -> int:
        """Copy tuples to the device; return the number of their first row."""
        columns = piece.columns
        if columns.nullable and not self.validity:
            self.validity = [Store(self.device, 1, fill=1) for _ in self.data]
            if self.slots:
                self._check_memory(self.slots, len(self.validity))
                for store in self.validity:
                    store.grow(self.slots, 0, 0)
        self._reserve(piece.rows)
        slot, row = self.next - self.base, self.next
        for store, column, view in zip(self.data, self.spec.columns, columns.views, strict=True):
            if isinstance(column.type, Bool):
                store.put(slot, _unpack(view.data, piece.rows))
            elif view.data:
                store.write(slot, view.data, piece.rows)
        for store, view in zip(self.validity, columns.views, strict=False):
            if view.validity:
                store.put(slot, _unpack(view.validity, piece.rows))
            else:
                self.device.fill(store.address + slot, 1, piece.rows)
        self.headroom &= columns.headroom
        self.all_small = self.all_small and self._is_small(piece)
        self.next += piece.rows
        return row

    def _is_small(self, piece: BasicWindow) -> bool:
        for column in self._checked:
            values = integers(stored_column(piece.batch, self.spec, column.name))
            if len(values) and not small(column.type, *map(int, extremes(values))):
                return False
        return True

    def write_codes(self, row: int, codes: list[Array]) -> None:
        """Write the codes of some rows."""
        for store, values in zip(self.codes, codes, strict=True):
            store.put(row - self.base, values)

    def addresses(self, nullable: bool) -> list[int]:
        """Return the addresses of data and validity of each column."""
        if nullable and not self.validity:
            self.validity = [Store(self.device, 1, fill=1) for _ in self.data]
            self._check_memory(self.slots, len(self.validity))
            for store in self.validity:
                store.grow(self.slots, 0, 0)
        places = self.validity if nullable else self.data
        return [address for a, b in zip(self.data, places, strict=True) for address in (a.address, b.address)]

    def _reserve(self, rows: int) -> None:
        used, start = self.next - self.first, self.first - self.base
        if self.slots and self.next - self.base + rows <= self.slots:
            return
        if self.slots and used <= start and used + rows <= self.slots:
            for store in self.stores:
                store.shift(start, used)
        else:
            slots = max(2 * (used + rows), _FEWEST)
            if slots > MOST_SLOTS:
                raise DeviceError(
                    f"the {self.spec.name} window has {used + rows:,} rows, and a GPU holds up to "
                    f'{MOST_SLOTS // 2:,}; use a shorter window, or device="cpu"'
                )
            self._check_memory(slots, sum(store.width for store in self.stores))
            for store in self.stores:
                store.grow(slots, start, used)
            self.slots = slots
        self.base = self.first

    def _check_memory(self, slots: int, width: int) -> None:
        need, (free, total) = (slots + _PAD) * width, self.device.memory()
        if need > free:
            raise DeviceError(
                f"the {self.spec.name} window has outgrown the GPU's memory: {slots:,} rows of {width} bytes "
                f"need {size(need)}, and {size(free)} of {size(total)} are free; use a "
                'shorter window, or device="cpu"'
            )

    def release(self) -> None:
        """Give all memory back."""
        for store in self.stores:
            store.release()
        self.slots = 0


def _width(column: Column) -> int:
    return 1 if isinstance(column.type, Bool) else memory_bytes(column)


def _unpack(address: int, rows: int) -> Array:
    """Return a bitmap as bytes."""
    packed = np.ctypeslib.as_array((ctypes.c_uint8 * ((rows + 7) // 8)).from_address(address))
    return np.unpackbits(packed, count=rows, bitorder="little")


class Output:
    """The pairs that a search found, behind two counters; on the device, and copied to the host."""

    def __init__(self, device: Device, room: int) -> None:
        self._device, self._store = device, Store(device, 8)
        self.room = 0
        self.grow(room)

    @property
    def address(self) -> int:
        """The address of the counters."""
        return self._store.address

    def grow(self, pairs: int) -> None:
        """Make room for `pairs` pairs."""
        self.room = 1 << (pairs - 1).bit_length()
        self._store.grow(self.room + 2, 0, 0)
        self._host = self._device.host_array(8 * (self.room + 2)).view(np.uint64)

    def clear(self) -> None:
        """Set the counters to 0."""
        self._device.fill(self.address, 0, 16)

    def read(self) -> tuple[int, int]:
        """Return both counters, and copy the first pairs."""
        self._copied = min(_COPIED, self.room)
        self._device.download(self._host[: self._copied + 2], self.address)
        return int(self._host[0]), int(self._host[1])

    def take(self, count: int, start: int) -> Array:
        """Return the pairs of probes from `start` on, valid until the next search."""
        if count > self._copied:
            rest = slice(self._copied + 2, count + 2)
            self._device.download(self._host[rest], self.address + 8 * rest.start)
        found = self._host[2 : count + 2]
        if start:
            found += np.uint64(start)
        return found

    def release(self) -> None:
        """Give the device's memory back."""
        self._store.release()
