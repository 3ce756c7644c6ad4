"""Many datagrams per system call: recvmmsg and sendmmsg, their headers kept as NumPy arrays.

Where the C library has neither (macOS), the same is done one datagram at a time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Datagrams", "Inbox", "Letters", "Outbox", "kernel_dropped", "open_receiver"]

LINUX = sys.platform == "linux"
_UDP, _SEGMENT, _GRO = 17, 103, 104
_RCVBUFFORCE, _MEMINFO, _DROPS = 33, 55, 8
_TRUNCATED = 0x20
_CONTROL, _NAME = 64, 28
SEGMENTS = 64
"""Datagrams that the kernel takes as one with segment offload (UDP_MAX_SEGMENTS of older kernels)."""
_LARGEST = 65_000

# struct mmsghdr of Linux on 64-bit machines: msghdr (56 bytes), then the length that was moved.
_HEADER = np.dtype(
    {
        "names": ["name", "namelen", "iov", "iovlen", "control", "controllen", "flags", "length"],
        "formats": ["u8", "u4", "u8", "u8", "u8", "u8", "i4", "u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)


def _libc() -> Any:
    if not LINUX or struct.calcsize("P") != 8:
        return None
    return ctypes.CDLL(None, use_errno=True)


_LIBC = _libc()


@dataclass(frozen=True)
class Datagrams:
    """Datagrams in a buffer: where each begins, its length, whether it was cut, and who sent it."""

    flat: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    cut: np.ndarray
    senders: tuple[bytes, ...]
    """Socket addresses, zeros behind them."""
    sender: np.ndarray | None = None
    """Which of them sent each datagram; None: the first one sent them all."""

    def __len__(self) -> int:
        return len(self.starts)

    def bytes(self, index: int) -> bytes:
        """One datagram's bytes."""
        start = int(self.starts[index])
        return self.flat[start : start + int(self.lengths[index])].tobytes()


def open_receiver(host: str, port: int, buffer: int, coalesce: bool) -> socket.socket:
    """A bound socket with as large a kernel buffer as the system grants, up to `buffer` bytes."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )[0]
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        _enlarge(opened, buffer)
        if coalesce:
            opened.setsockopt(_UDP, _GRO, 1)
        opened.setblocking(False)
        opened.bind(address)
    except BaseException:
        opened.close()
        raise
    return opened


def _enlarge(opened: socket.socket, size: int) -> None:
    try:  # beyond net.core.rmem_max, which only the superuser may
        opened.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE if LINUX else socket.SO_RCVBUF, size)
    except OSError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def kernel_dropped(opened: socket.socket) -> int | None:
    """Datagrams that came while the socket's buffer was full, since it was opened; None if not known."""
    if not LINUX:
        return None
    figures = opened.getsockopt(socket.SOL_SOCKET, _MEMINFO, 4 * (_DROPS + 1))
    return int(struct.unpack_from("I", figures, 4 * _DROPS)[0])


class Inbox:
    """Room for some datagrams; filled by one or more calls, then looked at, then emptied."""

    def __init__(self, slots: int, size: int) -> None:
        self.slots, self.size = slots, size
        self._flat = np.zeros(slots * size, np.uint8)
        self._names = np.zeros((slots, _NAME), np.uint8)
        self._control = np.zeros((slots, _CONTROL), np.uint8)
        self._iov = np.zeros((slots, 2), np.uint64)
        self._iov[:, 0] = _addresses(self._flat, slots, size)
        self._iov[:, 1] = size
        self._headers = np.zeros(slots, _HEADER)
        self._headers["name"] = _addresses(self._names, slots, _NAME)
        self._headers["iov"] = _addresses(self._iov, slots, 16)
        self._headers["iovlen"] = 1
        self._headers["control"] = _addresses(self._control, slots, _CONTROL)
        self._take: Callable[[socket.socket], int] = self._take_many if _LIBC is not None else self._take_each
        self.count = 0
        self._reset(slots)

    @property
    def full(self) -> bool:
        """Whether no slot is left."""
        return self.count == self.slots

    def fill(self, opened: socket.socket) -> int:
        """Take what the kernel holds, as far as there is room; how many came."""
        taken = self._take(opened)
        self.count += taken
        return taken

    def clear(self) -> None:
        """Forget what is held."""
        self._reset(self.count)
        self.count = 0

    def _reset(self, slots: int) -> None:
        self._headers["namelen"][:slots] = _NAME
        self._headers["controllen"][:slots] = _CONTROL
        self._names[:slots] = 0

    def _take_many(self, opened: socket.socket) -> int:
        at = self._headers.ctypes.data + self.count * _HEADER.itemsize
        taken = _LIBC.recvmmsg(
            opened.fileno(), ctypes.c_void_p(at), self.slots - self.count, socket.MSG_DONTWAIT, None
        )
        return _checked(taken, (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED))

    def _take_each(self, opened: socket.socket) -> int:
        taken = 0
        while self.count + taken < self.slots:
            slot = self.count + taken
            view = self._flat[slot * self.size : (slot + 1) * self.size].data
            try:
                length, _, flags, sender = opened.recvmsg_into([view])
            except (BlockingIOError, InterruptedError):
                break
            header = self._headers[slot]
            header["length"], header["flags"], header["controllen"] = length, _cut_flag(flags), 0
            name = repr(sender).encode()[-_NAME:]
            self._names[slot, : len(name)] = np.frombuffer(name, np.uint8)
            taken += 1
        return taken

    def datagrams(self) -> Datagrams:
        """What is held; good until the next `clear`."""
        held = self._headers[: self.count]
        starts = np.arange(self.count, dtype=np.int64) * self.size
        lengths = held["length"].astype(np.int64)
        cut = held["flags"] & _TRUNCATED != 0
        senders, sender = _distinct(self._names[: self.count])
        # segments that the kernel has coalesced come with a control message that tells their size
        if not (held["controllen"] != 0).any():
            return Datagrams(self._flat, starts, lengths, cut, senders, sender)
        return self._parted(Datagrams(self._flat, starts, lengths, cut, senders, sender))

    def _parted(self, runs: Datagrams) -> Datagrams:
        starts, lengths, sender = runs.starts, runs.lengths, runs.sender
        sizes = self._control[: self.count, 16:20].copy().view("<i4").reshape(-1).astype(np.int64)
        sizes = np.where(self._headers["controllen"][: self.count] != 0, sizes, np.maximum(lengths, 1))
        pieces = np.maximum(-(-lengths // sizes), 1)
        owner = np.repeat(np.arange(self.count), pieces)
        behind = (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * sizes[owner]
        left = np.minimum(sizes[owner], lengths[owner] - behind)
        whose = None if sender is None else sender[owner]
        return Datagrams(self._flat, starts[owner] + behind, left, runs.cut[owner], runs.senders, whose)


def _distinct(names: np.ndarray) -> tuple[tuple[bytes, ...], np.ndarray | None]:
    """The names that there are, and which of them each row has (None: all have the first)."""
    if not len(names) or (names == names[0]).all():
        return tuple(name.tobytes() for name in names[:1]), None
    kinds, which = np.unique(names, axis=0, return_inverse=True)
    return tuple(kind.tobytes() for kind in kinds), which.reshape(-1)


def _cut_flag(flags: int) -> int:
    return _TRUNCATED if flags & socket.MSG_TRUNC else 0


def _addresses(array: np.ndarray, count: int, stride: int) -> np.ndarray:
    return (array.ctypes.data + np.arange(count, dtype=np.uint64) * np.uint64(stride)).astype(np.uint64)


def _checked(moved: int, harmless: tuple[int, ...]) -> int:
    """How many were moved; an error number that does not matter is none."""
    if moved >= 0:
        return moved
    number = ctypes.get_errno()
    if number in harmless:
        return 0
    raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class Letters:
    """Rows of bytes, and the headers that send them, which hold their addresses; good for many sendings."""

    rows: np.ndarray
    """One datagram each; what is written into them goes out with the next sending."""
    headers: np.ndarray
    iov: np.ndarray
    together: int
    """Datagrams that a header sends: more than one with segment offload."""

    @classmethod
    def of(cls, rows: np.ndarray, together: int) -> Letters:
        """The headers of rows, each as long as the others."""
        count, size = rows.shape
        messages = -(-count // together)
        iov = np.zeros((messages, 2), np.uint64)
        iov[:, 0] = _addresses(rows, messages, together * size)
        iov[:, 1] = together * size
        iov[-1:, 1] = (count - (messages - 1) * together) * size
        headers = np.zeros(messages, _HEADER)
        headers["iov"] = _addresses(iov, messages, 16)
        headers["iovlen"] = 1
        return cls(rows, headers, iov, together)

    def __len__(self) -> int:
        return len(self.rows)


class Outbox:
    """Sends rows of bytes as datagrams of equal length."""

    def __init__(self, host: str, port: int, offload: bool = False) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.connect(address)
        self._offload = offload and LINUX
        self._segment = 0

    def prepared(self, rows: np.ndarray) -> Letters:
        """Rows to be sent, perhaps more than once."""
        data = np.ascontiguousarray(rows)
        size = data.shape[1]
        together = min(SEGMENTS, max(_LARGEST // max(size, 1), 1)) if self._offload and size else 1
        return Letters.of(data, together)

    def send(self, rows: np.ndarray) -> None:
        """Send every row, in order; waits while the kernel has no room."""
        self.send_some(self.prepared(rows), 0, len(rows))

    def send_some(self, letters: Letters, first: int, end: int) -> None:
        """Send the rows from `first` up to `end`, both multiples of `together` unless there are no more."""
        if _LIBC is None:
            self._send_each(letters.rows[first:end])
            return
        self._segments(letters.rows.shape[1] if letters.together > 1 else 0)
        self._push(letters.headers[first // letters.together : -(-end // letters.together)])

    def _segments(self, size: int) -> None:
        """Tell the kernel where to part what is sent together (0: nowhere)."""
        if size != self._segment:
            self._socket.setsockopt(_UDP, _SEGMENT, size)
            self._segment = size

    def _push(self, headers: np.ndarray) -> None:
        done = 0
        while done < len(headers):
            at = headers.ctypes.data + done * _HEADER.itemsize
            room = min(len(headers) - done, 1024)
            moved = _LIBC.sendmmsg(self._socket.fileno(), ctypes.c_void_p(at), room, 0)
            # refused: an earlier datagram met no receiver; the kernel says so once, this one goes out next
            done += _checked(moved, (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED, errno.ENOBUFS))

    def _send_each(self, rows: np.ndarray) -> None:
        for row in rows:
            while True:
                try:
                    self._socket.send(row.tobytes())
                    break
                except ConnectionRefusedError:
                    continue

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
