"""Inputs that arrive while a query runs: datagrams over UDP, and rows on standard input."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from handshake.closing import Closing
from handshake.engines.inputs import Address, Slice, carried_schema
from handshake.errors import UnsupportedError
from handshake.io.csv_declared import read_standard_input
from handshake.io.declared import BadRows
from handshake.io.udp.demux import Counters
from handshake.io.udp.receive import receiver_for
from handshake.io.udp.sockets import Batches, UdpReceiver
from handshake.operators.sources import times_in
from handshake.plan.algebra import Plan, Source
from handshake.schema import UNITS

_WAIT = 0.05
"""Seconds for which one receiver is polled before the next one."""


def all_over_udp(inputs: Mapping[str, Any]) -> bool:
    """Return true if all inputs come over UDP, false if none does.

    Raises:
        UnsupportedError: One input comes over UDP, another one does not.
    """
    live = [
        name for name, each in inputs.items() if isinstance(each, Address) and each.path.startswith("udp:")
    ]
    if live and len(live) < len(inputs):
        other = next(name for name in inputs if name not in live)
        raise UnsupportedError(
            f"stream {live[0]} comes over UDP and {other} from a file, which have no common order of "
            f"arrival; send the file: handshake send"
        )
    return bool(live)


class Receivers(Closing):
    """One UDP receiver per input. Streams that an input carries come out by their own names."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Address]) -> None:
        self._sources = {source.name: source for source in plan.inputs}
        self._receivers: dict[str, UdpReceiver] = {}
        try:
            for name, place in inputs.items():
                self._receivers[name] = receiver_for(
                    place.path, plan, name, bad=_count_malformed(name, place.bad)
                )
        except BaseException:
            self.close()
            raise

    def slices(self, stop: Callable[[], bool]) -> Iterator[Slice]:
        """Yield what arrives until all senders have ended; after `stop`, what the kernel still holds."""
        open_ = dict(self._receivers)
        while open_:
            for name, receiver in list(open_.items()):
                if stop():
                    receiver.stop()
                batches, over = receiver.poll(_WAIT / len(open_))
                if batches:
                    yield Slice(
                        {stream: (batch, None) for stream, batch in batches.items()}, self._lag(batches)
                    )
                if over:
                    del open_[name]

    def _lag(self, batches: Batches) -> float | None:
        known = [age for n, batch in batches.items() if (age := _age(self._sources[n], batch)) is not None]
        return min(known, default=None)

    @property
    def counters(self) -> dict[str, Counters]:
        """The counters of each input."""
        return {name: receiver.counters for name, receiver in self._receivers.items()}

    def close(self) -> None:
        """Close all sockets."""
        for receiver in self._receivers.values():
            receiver.close()


def _count_malformed(name: str, bad: BadRows) -> Callable[[bytes, str], None]:
    return lambda data, reason: bad.add(name, bad.count + 1, reason, data.hex())


def standard_input(plan: Plan, source: Source, bad: BadRows, stop: Callable[[], bool]) -> Iterator[Slice]:
    """Yield batches from standard input as they come. A thread reads them, so that Ctrl-C need not wait."""
    waiting: queue.Queue[Any] = queue.Queue(maxsize=4)

    def read() -> None:
        try:
            for batch in read_standard_input(carried_schema(plan, source), bad.add):
                waiting.put(batch)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            batch = waiting.get(timeout=0.1)
        except queue.Empty:
            if stop():  # what has been read is still taken
                return
            continue
        if isinstance(batch, BaseException):
            raise batch
        if batch is None:
            return
        yield Slice({source.name: (batch, None)}, _age(source, batch))


def _age(source: Source, batch: pa.RecordBatch) -> float | None:
    """Return the seconds from the newest time of a batch to now."""
    if source.time is None or not batch.num_rows:
        return None
    times, _ = times_in(source, dict(zip(batch.schema.names, batch.columns, strict=True)))
    return max(0.0, time.time() - int(times.max()) * UNITS[source.clock.unit] / 1e9)
