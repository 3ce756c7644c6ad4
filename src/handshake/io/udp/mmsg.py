"""Many datagrams per system call: recvmmsg and sendmmsg, with their headers in NumPy arrays.

Without these calls (macOS), datagrams are received and sent one by one.
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

LINUX = sys.platform == "linux"
_UDP, _SEGMENT, _GRO = 17, 103, 104
_RCVBUFFORCE, _MEMINFO, _DROPS = 33, 55, 8
_TRUNCATED = 0x20
_CONTROL, _NAME = 64, 28
SEGMENTS = 64
"""Datagrams per call with segment offload (UDP_MAX_SEGMENTS of older kernels)."""
_LARGEST = 65_000

# struct mmsghdr of Linux on 64-bit machines: msghdr (56 bytes), then the transferred length.
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
    """Datagrams in a buffer: start, length, whether it was truncated, and sender."""

    flat: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    cut: np.ndarray
    senders: tuple[bytes, ...]
    """Socket addresses, padded with zeros."""
    sender: np.ndarray | None = None
    """Index into `senders` per datagram; None if the first one sent them all."""

    def __len__(self) -> int:
        return len(self.starts)

    def bytes(self, index: int) -> bytes:
        """Return the bytes of one datagram."""
        start = int(self.starts[index])
        return self.flat[start : start + int(self.lengths[index])].tobytes()


def open_receiver(host: str, port: int, buffer: int, coalesce: bool) -> socket.socket:
    """Return a bound socket with a kernel buffer of up to `buffer` bytes, as the system grants it."""
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
    """Return the number of datagrams dropped because the socket's buffer was full; None if unknown."""
    if not LINUX:
        return None
    figures = opened.getsockopt(socket.SOL_SOCKET, _MEMINFO, 4 * (_DROPS + 1))
    return int(struct.unpack_from("I", figures, 4 * _DROPS)[0])


class Inbox:
    """A buffer for datagrams. It is filled by one or more calls, read, and then emptied."""

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
        return self.count == self.slots

    def fill(self, opened: socket.socket) -> int:
        """Receive the datagrams that the kernel holds and that fit; return their number."""
        taken = self._take(opened)
        self.count += taken
        return taken

    def clear(self) -> None:
        """Empty the buffer."""
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
        return _count_moved(taken, (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED))

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
            cut = _TRUNCATED if flags & socket.MSG_TRUNC else 0
            header["length"], header["flags"], header["controllen"] = length, cut, 0
            name = repr(sender).encode()[-_NAME:]
            self._names[slot, : len(name)] = np.frombuffer(name, np.uint8)
            taken += 1
        return taken

    def datagrams(self) -> Datagrams:
        """Return the datagrams, which are valid until the next `clear`."""
        held = self._headers[: self.count]
        starts = np.arange(self.count, dtype=np.int64) * self.size
        lengths = held["length"].astype(np.int64)
        cut = held["flags"] & _TRUNCATED != 0
        senders, sender = _distinct(self._names[: self.count])
        # coalesced segments come with a control message that holds their size
        if not (held["controllen"] != 0).any():
            return Datagrams(self._flat, starts, lengths, cut, senders, sender)
        return self._split_runs(Datagrams(self._flat, starts, lengths, cut, senders, sender))

    def _split_runs(self, runs: Datagrams) -> Datagrams:
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
    """Return the distinct names and the index of each row's name (None: all have the first)."""
    if not len(names) or (names == names[0]).all():
        return tuple(name.tobytes() for name in names[:1]), None
    kinds, which = np.unique(names, axis=0, return_inverse=True)
    return tuple(kind.tobytes() for kind in kinds), which.reshape(-1)


def _addresses(array: np.ndarray, count: int, stride: int) -> np.ndarray:
    return (array.ctypes.data + np.arange(count, dtype=np.uint64) * np.uint64(stride)).astype(np.uint64)


def _count_moved(moved: int, harmless: tuple[int, ...]) -> int:
    """Return the number of datagrams that a call moved, 0 after a harmless error."""
    if moved >= 0:
        return moved
    number = ctypes.get_errno()
    if number in harmless:
        return 0
    raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class Messages:
    """Datagrams of equal length and the headers that send them, for repeated sending."""

    rows: np.ndarray
    """One datagram per row. Changes take effect with the next sending."""
    headers: np.ndarray
    iov: np.ndarray
    together: int
    """Datagrams per header: more than one with segment offload."""

    @classmethod
    def of(cls, rows: np.ndarray, together: int) -> Messages:
        """Make the headers for rows of equal length."""
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
    """A socket that sends rows of bytes as datagrams of equal length."""

    def __init__(self, host: str, port: int, offload: bool = False) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.connect(address)
        self._offload = offload and LINUX
        self._segment = 0

    def prepare(self, rows: np.ndarray) -> Messages:
        """Make the headers for sending these rows, once or repeatedly."""
        data = np.ascontiguousarray(rows)
        size = data.shape[1]
        together = min(SEGMENTS, max(_LARGEST // max(size, 1), 1)) if self._offload and size else 1
        return Messages.of(data, together)

    def send(self, rows: np.ndarray) -> None:
        """Send every row in order. Waits while the kernel's buffer is full."""
        self.send_some(self.prepare(rows), 0, len(rows))

    def send_some(self, messages: Messages, first: int, end: int) -> None:
        """Send the rows from `first` up to `end`, multiples of `together` except at the end."""
        if _LIBC is None:
            self._send_each(messages.rows[first:end])
            return
        self._set_segment(messages.rows.shape[1] if messages.together > 1 else 0)
        self._push(messages.headers[first // messages.together : -(-end // messages.together)])

    def _set_segment(self, size: int) -> None:
        """Set the size at which the kernel splits a message (0: not at all)."""
        if size != self._segment:
            self._socket.setsockopt(_UDP, _SEGMENT, size)
            self._segment = size

    def _push(self, headers: np.ndarray) -> None:
        done = 0
        while done < len(headers):
            at = headers.ctypes.data + done * _HEADER.itemsize
            room = min(len(headers) - done, 1024)
            moved = _LIBC.sendmmsg(self._socket.fileno(), ctypes.c_void_p(at), room, 0)
            # ECONNREFUSED reports once that an earlier datagram met no receiver; sending can go on
            done += _count_moved(moved, (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED, errno.ENOBUFS))

    def _send_each(self, rows: np.ndarray) -> None:
        for row in rows:
            while True:
                try:
                    self._socket.send(row.tobytes())
                    break
                except ConnectionRefusedError:
                    continue

    def close(self) -> None:
        self._socket.close()
