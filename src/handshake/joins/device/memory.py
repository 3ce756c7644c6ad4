"""Memory of a GPU: arrays, the tuples of a window, and the pairs that a search found."""

from __future__ import annotations

import ctypes
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import stored_column
from handshake.joins.spec import SideSpec
from handshake.kernels.columns import extremes, integers
from handshake.kernels.compile import memory_bytes
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.gpu.driver import Device, DeviceError, size
from handshake.kernels.gpu.filters import small_limit
from handshake.kernels.gpu.look_up import STAGED
from handshake.kernels.gpu.target import THREADS
from handshake.kernels.intrinsics import JIT
from handshake.plan.expr import Column
from handshake.plan.ranges import storage_bits
from handshake.schema import Bool, Int

Array = np.ndarray[Any, Any]
_PAD = THREADS * 64
"""Slots behind the last one that kernels may load, but not count."""
_FEWEST = 1 << 14
"""Slots of the smallest window."""
MOST_SLOTS = 1 << 32
_COPIED = 1 << 12
"""Pairs of a scan that are copied together with their number."""
_COPIED_SLOTS = 1 << 16
"""At most as many slots of look-ups are copied together with their number."""
_HEAD = 4
"""Words before the segments: three counters."""


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
        self._checked = [
            (c, small_limit(c.type))
            for c in spec.columns
            if isinstance(c.type, Int) and storage_bits(c.type) >= 32
        ]

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
        if piece.nullable and not self.validity:
            self.validity = [Store(self.device, 1, fill=1) for _ in self.data]
            if self.slots:
                self._check_memory(self.slots, len(self.validity))
                for store in self.validity:
                    store.grow(self.slots, 0, 0)
        self._reserve(piece.rows)
        slot, row = self.next - self.base, self.next
        addresses = piece.addresses(True)
        for k, (store, column) in enumerate(zip(self.data, self.spec.columns, strict=True)):
            if isinstance(column.type, Bool):
                store.put(slot, _unpack(addresses[2 * k], piece.rows))
            elif addresses[2 * k]:
                store.write(slot, addresses[2 * k], piece.rows)
        for k, store in enumerate(self.validity):
            if piece.nullable:
                store.put(slot, _unpack(addresses[2 * k + 1], piece.rows))
            else:
                self.device.fill(store.address + slot, 1, piece.rows)
        self.headroom &= piece.headroom
        self.all_small = self.all_small and self._is_small(piece)
        self.next += piece.rows
        return row

    def _is_small(self, piece: BasicWindow) -> bool:
        stamps = self.spec.stamps
        for column, limit in self._checked:
            if column == stamps.first:
                low, high = piece.first
            elif column == stamps.second:
                low, high = piece.second
            else:
                low, high = extremes(integers(stored_column(piece.batch, self.spec, column.name)))
            if low < -limit or high >= limit:
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

    def arrays(self, nullable: bool) -> list[Store]:
        """Return the arrays of values, and of validity if searches look at it."""
        return [*self.data, *(self.validity if nullable else [])]

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


class Found(Protocol):
    """Pairs on the host, valid until the next search."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def words(self) -> Array:
        """Return a word for each pair, in any order: its slot in the upper half, its probe in the lower."""


class Output(ABC):
    """The pairs that a search found, behind counters on the device, and copied to the host."""

    def __init__(self, device: Device, room: int) -> None:
        self._device, self.room, self.start = device, 0, 0
        self.grow(room)

    @abstractmethod
    def grow(self, pairs: int) -> None:
        """Make room for `pairs` pairs."""

    @abstractmethod
    def take(self, count: int) -> Found:
        """Return the pairs, whose number is known, of probes from `start` on."""

    @abstractmethod
    def release(self) -> None:
        """Give the device's memory back."""


@dataclass(frozen=True)
class Words:
    """Pairs as words: a slot and the number of a probe."""

    found: Array

    def __len__(self) -> int:
        return len(self.found)

    def words(self) -> Array:
        """Return a word for each pair."""
        return self.found


class ScanOutput(Output):
    """The pairs of a scan: words behind two counters."""

    def __init__(self, device: Device, room: int) -> None:
        self._store = Store(device, 8)
        self._is_read = False
        super().__init__(device, room)

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
        self._is_read = False
        self._device.fill(self.address, 0, 16)

    def to_copy(self) -> tuple[Array, int]:
        """Return a copy that the caller makes after the scan, for the next `read`: it need not wait then."""
        self._copied, self._is_read = min(_COPIED, self.room), True
        return self._host[: self._copied + 2], self.address

    def read(self) -> tuple[int, int]:
        """Wait for the scan; return both counters, and copy the first pairs."""
        if not self._is_read:
            self._device.download(self.to_copy())
        self._is_read = False
        return int(self._host[0]), int(self._host[1])

    def take(self, count: int) -> Found:
        """Return the pairs, whose number is known, of probes from `start` on."""
        if count > self._copied:
            rest = slice(self._copied + 2, count + 2)
            self._device.fetch(self._host[rest], self.address + 8 * rest.start)
        found = self._host[2 : count + 2]
        if self.start:
            found += np.uint64(self.start)
        return Words(found)

    def release(self) -> None:
        """Give the device's memory back."""
        self._store.release()


@dataclass(frozen=True)
class Lists:
    """Pairs as the slots of probes: each segment names a probe, and where its slots are."""

    segments: Array
    """Two words each: the number of slots and, in the lower half, the probe; then the place of the first."""
    slots: Array
    start: int
    """The number of the first probe."""

    def __len__(self) -> int:
        return len(self.slots)

    def words(self) -> Array:
        """Return a word for each pair."""
        found = np.empty(len(self.slots), np.uint64)
        _write_words(self.segments, self.slots, np.uint64(self.start), found)
        return found


@compile_loop(**JIT)
def _write_words(segments, slots, first, words):  # type: ignore[no-untyped-def]
    for segment in range(segments.shape[0]):
        probe = first + (segments[segment, 0] & np.uint64(0xFFFFFFFF))
        start = np.int64(segments[segment, 1])
        for place in range(start, start + np.int64(segments[segment, 0] >> np.uint64(32))):
            words[place] = np.uint64(slots[place]) << np.uint64(32) | probe


class ListOutput(Output):
    """The pairs of look-ups: counters and segments in one array, slots in another."""

    def __init__(self, device: Device, room: int) -> None:
        self._heads, self._slots = Store(device, 8), Store(device, 4)
        self.segments = 0
        """Segments that fit."""
        super().__init__(device, room)

    @property
    def counters(self) -> int:
        """The address of the counters."""
        return self._heads.address

    @property
    def places(self) -> tuple[int, int]:
        """The addresses of the segments and of the slots."""
        return self._heads.address + 8 * _HEAD, self._slots.address

    def grow(self, pairs: int) -> None:
        """Make room for `pairs` pairs."""
        self.room = 1 << (pairs - 1).bit_length()
        self._slots.grow(self.room, 0, 0)
        self._host = self._device.host_array(4 * self.room).view(np.uint32)
        self._copied = 0

    def begin(self, start: int, probes: int, warps: int) -> None:
        """Set the counters to 0, and make room for the segments of some probes with some warps each."""
        # A segment is the last of its warp, or almost fills what a warp holds back.
        most = probes * warps + self.room // (STAGED - self._device.target.lanes)
        if most > self.segments:
            self.segments = 2 * most
            self._heads.grow(_HEAD + 2 * self.segments, 0, 0)
            self._host_heads = self._device.host_array(8 * (_HEAD + 2 * self.segments)).view(np.uint64)
        self.start, self._likely = start, probes * warps
        self._device.fill(self.counters, 0, 8 * _HEAD)

    def read(self, *more: tuple[Array, int]) -> tuple[int, int]:
        """Wait for the look-ups; return two counters, and copy as many pairs as there were lately.

        Args:
            more: Other copies to make on the way.
        """
        self._copied = min(self._copied, self.room)
        heads = self._host_heads[: _HEAD + 2 * self._likely]
        self._device.download(
            (heads, self.counters), (self._host[: self._copied], self._slots.address), *more
        )
        return int(heads[0]), int(heads[1])

    def take(self, count: int) -> Found:
        """Return the pairs, whose number is known, of probes from `start` on."""
        segments = int(self._host_heads[2])
        if segments > self._likely:
            rest = slice(_HEAD + 2 * self._likely, _HEAD + 2 * segments)
            self._device.fetch(self._host_heads[rest], self.counters + 8 * rest.start)
        if count > self._copied:
            rest = slice(self._copied, count)
            self._device.fetch(self._host[rest], self._slots.address + 4 * rest.start)
        self._copied = min(count + count // 4, _COPIED_SLOTS)
        heads = self._host_heads[_HEAD : _HEAD + 2 * segments].reshape(-1, 2)
        return Lists(heads, self._host[:count], self.start)

    def release(self) -> None:
        """Give the device's memory back."""
        self._heads.release()
        self._slots.release()
