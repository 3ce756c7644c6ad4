"""Streams over UDP (Glacier 5.1): a receiver that gives Arrow batches, and a sender."""

from __future__ import annotations

import contextlib
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, InputError, suggest
from handshake.io.udp.demux import HEADER, BadFile, Counters, Demux, Stream, refuse
from handshake.io.udp.mmsg import Inbox, Letters, Outbox, kernel_dropped, open_receiver
from handshake.io.udp.wire import Layout

__all__ = ["Batches", "Endpoint", "Prepared", "UdpReceiver", "UdpSender"]

Batches = dict[str, pa.RecordBatch]
"""Some tuples of each stream that brought any, by its name."""

Prepared = tuple[Letters, ...]
"""Datagrams that can be sent more than once, in blocks of equal length."""

_SLOTS, _INBOXES = 2048, 24
_NAP = 0.001
"""Seconds between looks at a busy socket: a receiver that sleeps in the kernel is woken by every datagram."""
_LINGER = 0.005
"""Seconds for which datagrams may wait for others before they are handed on."""
_FLAGS = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}


@dataclass(frozen=True)
class Endpoint:
    """Where datagrams are received, or sent to, and how they are framed.

    >>> Endpoint.parse("udp://127.0.0.1:5000?sequence=yes")  # doctest: +NORMALIZE_WHITESPACE
    Endpoint(host='127.0.0.1', port=5000, sequence=True, max_datagram=1500, buffer=67108864, coalesce=False,
             ends=None, idle=None)
    """

    host: str
    port: int
    sequence: bool = False
    """Whether a sequence number of eight bytes stands in front of each datagram's tuples."""
    max_datagram: int = 1500
    """Bytes; a longer one is malformed."""
    buffer: int = 64 << 20
    """Bytes asked of the kernel for datagrams that wait; it grants net.core.rmem_max unless run as root."""
    coalesce: bool = False
    """Take runs of datagrams as one (UDP_GRO). Faster, but the kernel then counts drops in runs."""
    ends: int | None = None
    """How many senders must say that they are done for the stream to end."""
    idle: int | None = None
    """Seconds without a datagram after which the stream ends."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """From `udp://host:port?option=value&…`."""
        parts = urlsplit(url)
        host, port = _host_and_port(url)
        if parts.scheme != "udp" or not host or not port or parts.path not in ("", "/"):
            raise InputError(f"'{url}' is not an address for UDP; write it as udp://127.0.0.1:5000")
        return cls(
            host, port, **{name: _option(url, name, value) for name, value in parse_qsl(parts.query, True)}
        )

    def __str__(self) -> str:
        return f"udp://{self.host}:{self.port}"


def _host_and_port(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port
    except ValueError:
        return None, None


def _option(url: str, name: str, value: str) -> Any:
    known = ("sequence", "max_datagram", "buffer", "coalesce", "ends", "idle")
    if name not in known:
        raise InputError(
            f"'{url}' has the unknown option '{name}'; known are {', '.join(known)}{suggest(name, known)}"
        )
    if name in ("sequence", "coalesce") and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    if name not in ("sequence", "coalesce") and value.isdigit() and int(value) > 0:
        return int(value)
    wanted = "yes or no" if name in ("sequence", "coalesce") else "a whole number from 1 up"
    raise InputError(f"{name}={value} in '{url}' is not {wanted}")


class UdpReceiver:
    """Receives datagrams on a thread of its own and hands them on as Arrow batches.

    Between the kernel's buffer and the caller there is room for some ten thousand datagrams. Beyond that the
    kernel drops, and counts: `counters.kernel_dropped`.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        streams: Stream | Sequence[Stream],
        *,
        type_field: str | None = None,
        arrival: str | None = None,
        bad: str | Callable[[bytes, str], None] | None = None,
        strict: bool = False,
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        several = (streams,) if isinstance(streams, Stream) else tuple(streams)
        self._bad_file = BadFile(bad) if isinstance(bad, str) else None
        tell = refuse if strict else self._bad_file or (None if isinstance(bad, str) else bad)
        told = {"bad": tell} if tell is not None else {}
        self.demux = Demux(several, type_field, self.endpoint.sequence, arrival=arrival, **told)
        self._socket = _opened(self.endpoint)
        if self.endpoint.port == 0:
            self.endpoint = replace(self.endpoint, port=self._socket.getsockname()[1])
        slots, size = (
            (_SLOTS, self.endpoint.max_datagram) if not self.endpoint.coalesce else (_SLOTS // 16, 65_536)
        )
        self._free: queue.LifoQueue[Inbox] = queue.LifoQueue()  # the one emptied last is still in the cache
        self._full: queue.Queue[Inbox | BaseException | None] = queue.Queue()
        for _ in range(_INBOXES):
            self._free.put(Inbox(slots, size))
        self._stopping, self._closed = threading.Event(), threading.Event()
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="handshake-udp", daemon=True)
        self._thread.start()

    @property
    def counters(self) -> Counters:
        """What came in so far."""
        if not self._closed.is_set():
            self.demux.counters.kernel_dropped = kernel_dropped(self._socket)
        return self.demux.counters

    def schema(self, name: str) -> pa.Schema:
        """The schema of a stream's batches."""
        return next(self.demux.schema(stream) for stream in self.demux.streams if stream.name == name)

    def batches(
        self, *, idle: float | None = None, ends: int | None = None, every: float = 0.1
    ) -> Iterator[Batches]:
        """Batches as they come, by stream; without end unless told.

        Ends after `stop()`, with all that the kernel still held; after `idle` seconds without a datagram; or
        when `ends` senders have said that they are done. When nothing came for `every` seconds, an empty dict
        is given, so that the caller can look at its clock.
        """
        over = False
        while not over:
            batches, over = self.poll(every, idle=idle, ends=ends)
            yield batches

    def poll(
        self, seconds: float, *, idle: float | None = None, ends: int | None = None
    ) -> tuple[Batches, bool]:
        """What has come, after at most so many seconds, and whether that was all."""
        idle = self.endpoint.idle if idle is None else idle
        ends = self.endpoint.ends if ends is None else ends
        inboxes, over = self._next(seconds)
        if inboxes:
            self._heard = time.monotonic()
        batches = self._decoded(inboxes)
        done = ends is not None and self.demux.counters.ends >= ends and self._full.empty()
        return batches, over or done or (idle is not None and time.monotonic() - self._heard >= idle)

    def _next(self, seconds: float) -> tuple[list[Inbox], bool]:
        """Inboxes that wait to be looked at, and whether no more will come."""
        found: list[Inbox] = []
        with contextlib.suppress(queue.Empty):
            item = self._full.get(timeout=seconds)
            while True:
                if item is None:
                    return found, True
                if isinstance(item, BaseException):
                    raise item
                found.append(item)
                item = self._full.get_nowait()
        return found, False

    def _decoded(self, inboxes: list[Inbox]) -> Batches:
        parts: dict[str, list[pa.RecordBatch]] = {}
        for inbox in inboxes:
            for name, batch in self.demux.take(inbox.datagrams()).items():
                parts.setdefault(name, []).append(batch)
            inbox.clear()
            self._free.put(inbox)
        return {name: pa.concat_batches(batches) for name, batches in parts.items()}

    def stop(self) -> None:
        """Receive no more; what the kernel holds is still given by `batches`."""
        self._stopping.set()

    def close(self) -> None:
        """Stop at once and close the socket."""
        if self._closed.is_set():
            return
        self.demux.counters.kernel_dropped = kernel_dropped(self._socket)
        self._closed.set()
        self._stopping.set()
        self._thread.join()
        self._socket.close()
        if self._bad_file is not None:
            self._bad_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._pump()
            self._full.put(None)
        except BaseException as error:
            self._full.put(_told(self.endpoint, error))

    def _pump(self) -> None:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while (inbox := self._empty_inbox()) is not None:
            self._fill(inbox, waiting)
            if inbox.count:
                self._full.put(inbox)
            elif self._stopping.is_set():
                return
            else:
                self._free.put(inbox)

    def _empty_inbox(self) -> Inbox | None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                return self._free.get(timeout=0.1)
        return None

    def _fill(self, inbox: Inbox, waiting: select.poll) -> None:
        """Until the inbox is full, or its first datagram has waited long enough."""
        if not inbox.fill(self._socket):
            if not self._stopping.is_set():
                waiting.poll(50)
            inbox.fill(self._socket)
        until = time.monotonic() + _LINGER
        while inbox.count and not inbox.full and time.monotonic() < until and not self._stopping.is_set():
            time.sleep(_NAP)
            inbox.fill(self._socket)


def _opened(endpoint: Endpoint) -> Any:
    try:
        return open_receiver(endpoint.host, endpoint.port, endpoint.buffer, endpoint.coalesce)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot receive on {endpoint}: {reason}; is the address this machine's, and free?"
        ) from None


def _told(endpoint: Endpoint, error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        return HandshakeError(f"receiving on {endpoint} failed: {error.strerror}")
    return error


class UdpSender:
    """Sends tuples as datagrams: `per_datagram` of them in each, in order.

    >>> from handshake.sources.wire import Layout
    >>> with UdpSender("udp://127.0.0.1:9?sequence=yes", Layout.parse("x int")) as sender:
    ...     sender.send({"x": [1, 2, 3]})
    3
    """

    def __init__(
        self, endpoint: Endpoint | str, layout: Layout, *, per_datagram: int = 1, offload: bool = False
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        self._layout, self._per = layout, per_datagram
        self._outbox = Outbox(self.endpoint.host, self.endpoint.port, offload)
        self.sent = 0
        """Datagrams, which is also the next one's number."""

    def send(
        self, tuples: Any, *, rate: float | None = None, layout: Layout | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:  # fmt: skip
        """Send columns (a table, a batch or a dict of lists), at `rate` datagrams per second; how many.

        `layout`: tuples of another stream, where the receiver tells streams apart by a type field.
        """
        return self.send_prepared(self.prepare(tuples, layout), rate=rate, clock=clock)

    def prepare(self, tuples: Any, layout: Layout | None = None) -> Prepared:
        """Tuples as datagrams, for `send_prepared`: to be packed once and sent more than once."""
        packed = (layout or self._layout).pack(tuples)
        whole = len(packed) // self._per
        blocks = [
            packed[: whole * self._per].reshape(whole, self._per),
            packed[whole * self._per :].reshape(1, -1),
        ]
        return tuple(
            self._outbox.prepared(self._framed(block.view(np.uint8).reshape(len(block), -1)))
            for block in blocks
            if block.size
        )

    def send_prepared(
        self, prepared: Prepared, *, rate: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> int:
        """Send prepared tuples, with the next sequence numbers; how many datagrams."""
        for letters in prepared:
            self._number(letters.rows)
            self._paced(letters, rate, clock)
        return sum(map(len, prepared))

    def end(self, copies: int = 3) -> None:
        """Say that this sender is done: an empty datagram, more than once since one may be lost."""
        for _ in range(copies):
            rows = self._framed(np.zeros((1, 0), np.uint8))
            self._number(rows)
            self._outbox.send(rows)

    def _framed(self, payload: np.ndarray) -> np.ndarray:
        """Datagrams with room for their numbers, where they have such."""
        if not self.endpoint.sequence:
            return payload
        framed = np.empty((len(payload), HEADER.itemsize + payload.shape[1]), np.uint8)
        framed[:, HEADER.itemsize :] = payload
        return framed

    def _number(self, rows: np.ndarray) -> None:
        first, self.sent = self.sent, self.sent + len(rows)
        if self.endpoint.sequence:
            places = np.ndarray(len(rows), HEADER, rows.data, strides=(rows.shape[1],))
            places[:] = np.arange(first, self.sent)

    def _paced(self, letters: Letters, rate: float | None, clock: Callable[[], float]) -> None:
        if rate is None:
            self._outbox.send_some(letters, 0, len(letters))
            return
        runs = max(1, int(rate / 1000) // letters.together)
        step, begun = runs * letters.together, clock()
        for at in range(0, len(letters), step):
            early = begun + at / rate - clock()
            if early > 0:
                time.sleep(early)
            self._outbox.send_some(letters, at, min(at + step, len(letters)))

    def close(self) -> None:
        """Close the socket."""
        self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
