"""The thread of one core of the handshake line: figure 9's main loop around the state machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa

from handshake.cores.basic_window import BasicWindow
from handshake.cores.channels import Bell, Channel, Stopped
from handshake.cores.core import JoinCore
from handshake.cores.handshake_core import LEFT, RIGHT, HandshakeCore, Message
from handshake.cores.pieces import coalesced
from handshake.cores.spec import SIDES, JoinSpec

__all__ = ["Queue", "Worker"]

Queue = Channel[Message[BasicWindow]]
_DIRECTIONS = (LEFT, RIGHT)


class Worker(threading.Thread):
    """One core. It waits for room in no queue but that of its results, which the caller empties.

    Acknowledgements that find no room wait in the outbox; there are never more than pieces in flight. Nothing
    else is sent while one waits, nor without room. While a stream's next piece finds no room ahead, nothing
    more of that stream is taken: a fast source is held back and cannot fill the first core. R waits only for
    what is to its right and S for what is to its left, down to the driver, so they never wait for each other.
    """

    def __init__(
        self, spec: JoinSpec, number: int, cores: int, two_phase: bool,
        inward: tuple[Queue, Queue], outward: tuple[Queue, Queue], results: Channel[pa.RecordBatch],
    ) -> None:  # fmt: skip
        self.place = f"core {number + 1} of {cores}"
        super().__init__(name=f"handshake {self.place}", daemon=True)
        self.join_core = JoinCore(spec)
        self.core = HandshakeCore(self._match, number == 0, number == cores - 1, two_phase)
        self.results = results
        self.error: BaseException | None = None
        self._inward, self._outward = inward, outward
        self._outbox: tuple[deque[Message[BasicWindow]], ...] = (deque(), deque())
        self._bell: Bell = results.bell
        self._idle = False
        self._at: BasicWindow | None = None
        self.matching = True
        """Whether tuples that meet are compared; benchmarks fill windows without that."""

    @property
    def at(self) -> str:
        """What the core was at, for an error's text."""
        if self._at is None:
            return "a message"
        return f"a batch of {self._at.rows} tuples of the {SIDES[self._at.spec.side]} input"

    @property
    def deepest(self) -> int:
        """The most messages that have waited for this core in one queue."""
        return max(queue.deepest for queue in self._inward)

    def run(self) -> None:
        """Until the bell stops, or something goes wrong, which stops everyone."""
        try:
            while True:
                self._rest()
                for origin in _DIRECTIONS:
                    self._receive(origin)
                for direction in _DIRECTIONS:
                    self._forward(direction)
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
            self._bell.stop()

    def at_rest(self) -> bool:
        """Whether the core has nothing to do, and nothing will come of it (asked under the bell's lock)."""
        waiting = any(self._outbox) or any(len(queue) for queue in self._inward)
        return self._idle and not waiting and not self._ready()

    def _rest(self) -> None:
        with self._bell.condition:
            self._idle = not self._ready()
            if self._idle:
                self._bell.ring()
            self._bell.wait_for(self._ready)
            self._idle = False

    def _ready(self) -> bool:
        return any(len(self._inward[d]) and not self._held_back(d) for d in _DIRECTIONS) or any(
            self._room(d) and (bool(self._outbox[d]) or self.core.wants(d)) for d in _DIRECTIONS
        )

    def _held_back(self, origin: int) -> bool:
        return not self._room(1 - origin) and self.core.moves(origin)

    def _room(self, direction: int) -> bool:
        queue = self._outward[direction]
        return len(queue) < queue.capacity

    def _receive(self, origin: int) -> None:
        """Take messages up to the next piece: what else waits before it costs next to nothing."""
        message: Message[BasicWindow] | None = None
        while message is None or message.kind != "tuples":
            message = None if self._held_back(origin) else self._inward[origin].poll()
            if message is None:
                return
            self._digest(origin, message)

    def _digest(self, origin: int, message: Message[BasicWindow]) -> None:
        self._at = message.piece
        results, reply = self.core.receive(origin, message)
        for batch in coalesced(iter(results)):
            self.results.put(batch)
        self._at = None
        if reply is not None:
            self._outbox[origin].append(reply)

    def _forward(self, direction: int) -> None:
        outbox, queue = self._outbox[direction], self._outward[direction]
        while outbox and queue.offer(outbox[0]):
            outbox.popleft()
        if not outbox and self._room(direction):  # no one else writes there
            message = self.core.forward(direction)
            if message is not None:
                queue.put(message)

    def _match(self, piece: BasicWindow, windows: Sequence[BasicWindow]) -> Iterator[pa.RecordBatch]:
        for window in windows if self.matching else ():
            if self._bell.stopped:
                raise Stopped
            yield from self.join_core.probe(piece, (window,))
