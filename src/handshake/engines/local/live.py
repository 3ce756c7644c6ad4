"""Inputs that come over UDP, as slices for a query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from handshake.engines.local.replay import Slice
from handshake.errors import UnsupportedError
from handshake.io.declared import BadRows
from handshake.io.udp.demux import Counters
from handshake.io.udp.receive import receiver_for
from handshake.io.udp.sockets import Batches, UdpReceiver
from handshake.plan.algebra import Plan, Source
from handshake.schema import UNITS

__all__ = ["Receivers", "comes_live"]

_WAIT = 0.05
"""Seconds for which one receiver is listened to before the next one's turn."""


def comes_live(paths: dict[str, str]) -> bool:
    """Whether inputs come over UDP; then all of them do."""
    live = [name for name, path in paths.items() if path.startswith("udp:")]
    if live and len(live) < len(paths):
        other = next(name for name in paths if name not in live)
        raise UnsupportedError(
            f"stream {live[0]} comes over UDP and {other} from a file, which have no common order of "
            f"arrival; send the file: handshake send"
        )
    return bool(live)


class Receivers:
    """One receiver per input; streams that an input carries come out by their own names."""

    def __init__(self, plan: Plan, paths: dict[str, str], bad: BadRows) -> None:
        self._sources = {source.name: source for source in plan.inputs}
        self._receivers: dict[str, UdpReceiver] = {}
        try:
            for name, path in paths.items():
                self._receivers[name] = receiver_for(path, plan, name, bad=_telling(name, bad))
        except BaseException:
            self.close()
            raise

    def slices(self, stop: Callable[[], bool]) -> Iterator[Slice]:
        """What comes, until all have ended; after `stop`, what the kernel holds is still taken."""
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
        """Seconds from the newest time to now."""
        newest = [_newest(self._sources[name], batch) for name, batch in batches.items()]
        known = [at for at in newest if at is not None]
        return None if not known else max(time.time() - max(known), 0.0)

    @property
    def counters(self) -> dict[str, Counters]:
        """Of each input."""
        return {name: receiver.counters for name, receiver in self._receivers.items()}

    def close(self) -> None:
        """Close all sockets."""
        for receiver in self._receivers.values():
            receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _telling(name: str, bad: BadRows) -> Callable[[bytes, str], None]:
    return lambda data, reason: bad.add(name, bad.count + 1, reason, data.hex())


def _newest(source: Source, batch: object) -> float | None:
    if source.time is None:
        return None
    column = batch.column(source.time)  # type: ignore[attr-defined]
    last = column[len(column) - 1]
    whole = last.value if hasattr(last, "value") else last.as_py()
    return None if whole is None else int(whole) * UNITS[source.clock.unit] / 1e9
