"""Streams over UDP (Glacier 5.1): a receiver that returns Arrow batches, and a sender."""

from __future__ import annotations

import contextlib
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa

from handshake.closing import Closing
from handshake.errors import HandshakeError, InputError, one_line, suggest
from handshake.io.udp.demux import HEADER, BadFile, Counters, Demux, Stream, refuse
from handshake.io.udp.mmsg import Inbox, Messages, Outbox, kernel_dropped, open_receiver
from handshake.io.udp.wire import Layout
from handshake.schema import concat_batches

Batches = dict[str, pa.RecordBatch]
"""The new rows per stream that has any, by its name."""

Prepared = tuple[Messages, ...]
"""Datagrams that can be sent more than once, in blocks of equal length."""

_SLOTS, _INBOXES = 2048, 24
_NAP = 0.001
"""Seconds between reads of a busy socket. A receiver that blocks would be woken by every datagram."""
_LINGER = 0.005
"""Seconds for which datagrams may wait for others."""
_FLAGS = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}


@dataclass(frozen=True)
class Endpoint:
    """The address that datagrams are received at or sent to, and their framing.

    >>> Endpoint.parse("udp://127.0.0.1:5000?sequence=yes")  # doctest: +NORMALIZE_WHITESPACE
    Endpoint(host='127.0.0.1', port=5000, sequence=True, max_datagram=1500, buffer=67108864, coalesce=False,
             ends=None, idle=None)
    """

    host: str
    port: int
    sequence: bool = False
    """Whether each datagram begins with a sequence number of eight bytes."""
    max_datagram: int = 1500
    """Bytes. Longer datagrams are malformed."""
    buffer: int = 64 << 20
    """Bytes of the kernel's buffer; without root it grants at most net.core.rmem_max."""
    coalesce: bool = False
    """Receive runs of datagrams as one (UDP_GRO). Faster, but the kernel then counts dropped runs."""
    ends: int | None = None
    """Number of senders that must say that they are done before the stream ends."""
    idle: int | None = None
    """Seconds without a datagram after which the stream ends."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Parse `udp://host:port?option=value&…`."""
        wrong = InputError(f"'{one_line(url)}' is not an address for UDP; write it as udp://127.0.0.1:5000")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme != "udp" or not host or not port or parts.path not in ("", "/"):
            raise wrong
        return cls(
            host, port, **{name: _option(url, name, value) for name, value in parse_qsl(parts.query, True)}
        )

    def __str__(self) -> str:
        return f"udp://{self.host}:{self.port}"


def _option(url: str, name: str, value: str) -> Any:
    known = ("sequence", "max_datagram", "buffer", "coalesce", "ends", "idle")
    if name not in known:
        raise InputError(
            f"'{url}' has the unknown option '{name}'; known are {', '.join(known)}{suggest(name, known)}"
        )
    if name in ("sequence", "coalesce") and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    if name not in ("sequence", "coalesce") and value.isdecimal() and int(value) > 0:
        return int(value)
    wanted = "yes or no" if name in ("sequence", "coalesce") else "a whole number from 1 up"
    raise InputError(f"{name}={value} in '{url}' is not {wanted}")


class UdpReceiver(Closing):
    """Receives datagrams in a thread of its own and returns them as Arrow batches.

    Some ten thousand datagrams fit between the kernel's buffer and the caller. Beyond that the kernel drops
    datagrams and counts them: `counters.kernel_dropped`.

    Args:
        endpoint: The address to receive at; port 0 chooses a free one.
        streams: The streams that the datagrams carry.
        type_field: The field that distinguishes several streams.
        arrival: Name of a column to add with the time of arrival.
        bad: A file, or a function of bytes and reason, for malformed datagrams.
        strict: Raise `InputError` at the first malformed datagram.
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
        report = refuse if strict else self._bad_file or (None if isinstance(bad, str) else bad)
        options = {"bad": report} if report is not None else {}
        self.demux = Demux(several, type_field, self.endpoint.sequence, arrival=arrival, **options)
        self._socket = _open(self.endpoint)
        if self.endpoint.port == 0:
            self.endpoint = replace(self.endpoint, port=self._socket.getsockname()[1])
        slots, size = (
            (_SLOTS, self.endpoint.max_datagram) if not self.endpoint.coalesce else (_SLOTS // 16, 65_536)
        )
        self._free: queue.LifoQueue[Inbox] = queue.LifoQueue()  # the last one emptied is still in the cache
        self._full: queue.Queue[Inbox | BaseException | None] = queue.Queue()
        for _ in range(_INBOXES):
            self._free.put(Inbox(slots, size))
        self._stopping, self._closed = threading.Event(), threading.Event()
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="handshake-udp", daemon=True)
        self._thread.start()

    @property
    def counters(self) -> Counters:
        """Counts of received and lost datagrams so far."""
        if not self._closed.is_set():
            self.demux.counters.kernel_dropped = kernel_dropped(self._socket)
        return self.demux.counters

    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a stream's batches."""
        return next(self.demux.schema(stream) for stream in self.demux.streams if stream.name == name)

    def batches(
        self, *, idle: float | None = None, ends: int | None = None, every: float = 0.1
    ) -> Iterator[Batches]:
        """Yield batches by stream as they arrive, or an empty dict after `every` seconds without any.

        Ends after `stop()` with everything that the kernel still held, after `idle` seconds without a
        datagram, or when `ends` senders have said that they are done.
        """
        over = False
        while not over:
            batches, over = self.poll(every, idle=idle, ends=ends)
            yield batches

    def poll(
        self, seconds: float, *, idle: float | None = None, ends: int | None = None
    ) -> tuple[Batches, bool]:
        """Wait up to `seconds`; return the new batches, and whether the stream has ended."""
        idle = self.endpoint.idle if idle is None else idle
        ends = self.endpoint.ends if ends is None else ends
        inboxes, over = self._next(seconds)
        if inboxes:
            self._heard = time.monotonic()
        batches = self._decode(inboxes)
        done = ends is not None and self.demux.counters.ends >= ends and self._full.empty()
        return batches, over or done or (idle is not None and time.monotonic() - self._heard >= idle)

    def _next(self, seconds: float) -> tuple[list[Inbox], bool]:
        """Return the filled inboxes, and whether no more will come."""
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

    def _decode(self, inboxes: list[Inbox]) -> Batches:
        parts: dict[str, list[pa.RecordBatch]] = {}
        for inbox in inboxes:
            for name, batch in self.demux.take(inbox.datagrams()).items():
                parts.setdefault(name, []).append(batch)
            inbox.clear()
            self._free.put(inbox)
        return {name: concat_batches(batches) for name, batches in parts.items()}

    def stop(self) -> None:
        """Receive no more. `batches` still yields what the kernel holds."""
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

    def _run(self) -> None:
        try:
            self._pump()
            self._full.put(None)
        except BaseException as error:
            if isinstance(error, OSError):
                error = HandshakeError(f"receiving on {self.endpoint} failed: {error.strerror}")
            self._full.put(error)

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
        """Fill the inbox until it is full or its first datagram has waited for `_LINGER` seconds."""
        if not inbox.fill(self._socket):
            if not self._stopping.is_set():
                waiting.poll(50)
            inbox.fill(self._socket)
        until = time.monotonic() + _LINGER
        while inbox.count and not inbox.full and time.monotonic() < until and not self._stopping.is_set():
            time.sleep(_NAP)
            inbox.fill(self._socket)


def _open(endpoint: Endpoint) -> Any:
    try:
        return open_receiver(endpoint.host, endpoint.port, endpoint.buffer, endpoint.coalesce)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot receive on {endpoint}: {reason}; is the address this machine's, and free?"
        ) from None


class UdpSender(Closing):
    """Sends tuples in order, `per_datagram` of them in each datagram.

    >>> from handshake.io.udp.wire import Layout
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
        """Datagrams sent, which is also the number of the next one."""

    def send(
        self, tuples: Any, *, rate: float | None = None, layout: Layout | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:  # fmt: skip
        """Send tuples and return the number of datagrams.

        Args:
            tuples: A table, a batch or a dict of lists.
            rate: Datagrams per second; None sends as fast as possible.
            layout: The layout of another stream that goes to the same receiver.
            clock: Time in seconds, for tests.
        """
        return self.send_prepared(self.prepare(tuples, layout), rate=rate, clock=clock)

    def prepare(self, tuples: Any, layout: Layout | None = None) -> Prepared:
        """Pack tuples into datagrams, which `send_prepared` can send more than once."""
        packed = (layout or self._layout).pack(tuples)
        whole = len(packed) // self._per
        blocks = [
            packed[: whole * self._per].reshape(whole, self._per),
            packed[whole * self._per :].reshape(1, -1),
        ]
        return tuple(
            self._outbox.prepare(self._add_header(block.view(np.uint8).reshape(len(block), -1)))
            for block in blocks
            if block.size
        )

    def send_prepared(
        self, prepared: Prepared, *, rate: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> int:
        """Send packed datagrams with the next sequence numbers; return their number."""
        for messages in prepared:
            self._number(messages.rows)
            self._send_paced(messages, rate, clock)
        return sum(map(len, prepared))

    def end(self, copies: int = 3) -> None:
        """Send empty datagrams, which say that this sender is done. Several, because one may be lost."""
        for _ in range(copies):
            rows = self._add_header(np.zeros((1, 0), np.uint8))
            self._number(rows)
            self._outbox.send(rows)

    def _add_header(self, payload: np.ndarray) -> np.ndarray:
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

    def _send_paced(self, messages: Messages, rate: float | None, clock: Callable[[], float]) -> None:
        if rate is None:
            self._outbox.send_some(messages, 0, len(messages))
            return
        runs = max(1, int(rate / 1000) // messages.together)
        step, begun = runs * messages.together, clock()
        for at in range(0, len(messages), step):
            early = begun + at / rate - clock()
            if early > 0:
                time.sleep(early)
            self._outbox.send_some(messages, at, min(at + step, len(messages)))

    def close(self) -> None:
        self._outbox.close()
