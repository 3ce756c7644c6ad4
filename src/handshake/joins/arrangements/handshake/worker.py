"""The thread of one core of the handshake line: figure 9's main loop around the state machine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from handshake.joins.arrangements.channels import Channel, Monitor, Stopped
from handshake.joins.arrangements.handshake.core import LEFT, RIGHT, HandshakeCore, Message, R, S
from handshake.joins.arrangements.placement import pin_to
from handshake.joins.basic_window import BasicWindow, merge_windows, seal
from handshake.joins.core import JoinCore
from handshake.joins.driver import Tracked
from handshake.joins.pieces import coalesce
from handshake.joins.spec import SIDES, JoinSpec

_DIRECTIONS = (LEFT, RIGHT)
_SCANNED = 1 << 15
"""To a scan longer pieces are of no use: per comparison, 8,192 tuples by 32,768 take 2 % longer than by
131,072, and 8,192 by 8,192 take 8 % longer."""
_INDEXED = 1 << 21
_SHORT, _QUARTERS, _SIXTHS = 4, 4, 6
"""Lines of up to `_SHORT` cores share work evenly within 10 % with pieces of a quarter of a core's window,
longer ones with a sixth (`bench work`, skewed)."""


class Queue(Channel[Message[BasicWindow]]):
    """A queue between neighbours. Its capacity is in pieces that settle; all else is small and never waits.

    There are never more acknowledgements than pieces in the line, nor more visitors.
    """

    pieces = 0

    @property
    def room(self) -> bool:
        """True if there is room for a piece."""
        return self.pieces < self.capacity

    def offer(self, item: Message[BasicWindow]) -> bool:
        """Put a message if there is room."""
        with self.monitor.condition:
            fits = self.room or item.kind != "tuples"
            if fits:
                self._append(item)
            return fits

    def put(self, item: Message[BasicWindow]) -> None:
        """Put a message; before a piece, the caller must have checked `room`."""
        with self.monitor.condition:
            self._append(item)

    def _append(self, item: Message[BasicWindow]) -> None:
        self.items.append(item)
        self.pieces += item.kind == "tuples"
        self.deepest = max(self.deepest, self.pieces)
        if len(self.items) == 1:  # readers wait for something, never for more of it
            self.monitor.condition.notify_all()

    def _pop(self) -> Message[BasicWindow]:
        item = self.items.popleft()
        if item.kind == "tuples":
            if not self.room:
                self.monitor.condition.notify_all()
            self.pieces -= 1
        return item


class Found(NamedTuple):
    """Results on their way to the caller."""

    core: int
    batch: pa.RecordBatch
    notes: list[tuple[int, float]]
    """How many of them have a later tuple that came when."""


class Worker(threading.Thread):
    """One core. It waits for room in no queue but that of its results, which the caller empties.

    While a stream's next piece finds no room ahead, nothing more of that stream is taken: a fast source is
    held back and cannot fill the first core. R waits only for what is to its right and S for what is to its
    left, down to the driver, so they never wait for each other. A core sends before it compares, so that its
    neighbours need not wait for it.
    """

    def __init__(
        self, spec: JoinSpec, number: int, cores: int, two_phase: bool,
        inward: tuple[Queue, Queue], outward: tuple[Queue, Queue], results: Channel[Found],
        cpu: int | None = None, tracked: tuple[Tracked | None, ...] = (None, None),
    ) -> None:  # fmt: skip
        self.number, self.cores, self.cpu = number, cores, cpu
        self.place = f"core {number + 1} of {cores}"
        super().__init__(name=f"handshake {self.place}", daemon=True)
        self.join_core = JoinCore(spec, tracked, check=results.monitor.check)
        ends = (number == 0, number == cores - 1)
        self.core = HandshakeCore(self._match, newest, *ends, two_phase, self._merge)
        self.ahead: list[HandshakeCore[BasicWindow, pa.RecordBatch] | None] = [None, None]
        """The next core of each stream, at whose window sizes this one looks; nothing else is shared."""
        self.results = results
        self.error: BaseException | None = None
        self._inward, self._outward = inward, outward
        self._monitor: Monitor = results.monitor
        self._idle = False
        self._announced = 0
        self._at: BasicWindow | None = None
        self._notes: list[tuple[int, float]] = []
        self.matching = True
        """Whether tuples that meet are compared; benchmarks fill windows without that."""

    @property
    def at(self) -> str:
        """The batch that the core was working on, for error messages."""
        if self._at is None:
            return "a message"
        return f"a batch of {self._at.rows} tuples of the {SIDES[self._at.spec.side]} input"

    @property
    def deepest(self) -> int:
        """The most pieces that have waited for this core in one queue."""
        return max(queue.deepest for queue in self._inward)

    @property
    def queued(self) -> int:
        """Messages that wait for this core now."""
        return sum(len(queue) for queue in self._inward)

    def run(self) -> None:
        """Until the monitor stops, or something goes wrong, which stops everyone."""
        try:
            if self.cpu is not None:
                pin_to(self.cpu)
            while True:
                self._rest()
                for origin in _DIRECTIONS:
                    self._receive(origin)
                self._forward()
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
            self._monitor.stop()

    def at_rest(self) -> bool:
        """Return whether the core is idle and will stay so; to be called under the monitor's lock."""
        return self._idle and not any(len(queue) for queue in self._inward) and not self._ready()

    def _rest(self) -> None:
        with self._monitor.condition:
            self._idle = not self._ready()
            if self._idle:
                self._monitor.wake_all()
            self._monitor.wait_for(self._ready)
            self._idle = False

    def _ready(self) -> bool:
        self._look()
        return any(len(self._inward[d]) and not self._held_back(d) for d in _DIRECTIONS) or any(
            self._outward[d].room and self.core.wants(d) for d in _DIRECTIONS
        )

    def _look(self) -> None:
        """Read how much the next cores hold; a stale value does no harm."""
        for side, core in enumerate(self.ahead):
            if core is not None:
                self.core.ahead[side] = core.sizes[side]

    def _held_back(self, origin: int) -> bool:
        return not self._outward[1 - origin].room and self.core.moves(origin)

    def _receive(self, origin: int) -> None:
        """Take messages up to the next piece: what else waits before it costs next to nothing."""
        compares = False
        while not compares and not self._held_back(origin):
            message = self._inward[origin].poll()
            if message is None:
                return
            self._digest(origin, message)
            compares = message.kind in ("tuples", "visit")

    def _digest(self, origin: int, message: Message[BasicWindow]) -> None:
        self._at = message.piece
        results, replies = self.core.receive(origin, message)
        for direction, reply in replies:
            self._outward[direction].put(reply)
        self._forward()
        self._deliver(results)
        self._at = None

    def _deliver(self, results: Iterable[pa.RecordBatch]) -> None:
        for batch in coalesce(iter(results), self.join_core.spec.tuning.coalesced_rows):
            notes, self._notes = self._notes, []
            self.results.put(Found(self.number, batch, notes))

    def _forward(self) -> None:
        """Send what there is to send and room for, and let neighbours look who may send more now."""
        while any(self._send(direction) for direction in _DIRECTIONS):
            pass
        if self.core.gone > self._announced:
            self._announced = self.core.gone
            self._monitor.wake_all()

    def _send(self, direction: int) -> bool:
        queue = self._outward[direction]
        self._look()
        message = self.core.forward(direction) if queue.room else None  # no one else writes there
        if message is not None:
            queue.put(message)
        return message is not None

    def _match(self, piece: BasicWindow, windows: Sequence[BasicWindow]) -> Iterator[pa.RecordBatch]:
        for made in self.join_core.search(piece, windows if self.matching else ()):
            self._notes += [(count, max(piece.arrived, window.arrived)) for window, count in made.counts]
            yield made.batch

    def _merge(self, older: BasicWindow, newer: BasicWindow, held: int) -> BasicWindow | None:
        """Merge pieces of like size, so that a tuple is copied few times."""
        spec = self.join_core.spec
        limit = max(spec.tuning.line_merged, largest(spec, held, self.cores))
        if older.rows >= 2 * newer.rows or older.rows + newer.rows >= limit:
            return None
        both = merge_windows(older, newer)
        return None if both is None else seal(replace(both, arrived=older.arrived))


def in_line(workers: Sequence[Worker]) -> None:
    """Let each core see its neighbours."""
    for left, right in pairwise(workers):
        left.ahead[R], right.ahead[S] = right.core, left.core


def largest(spec: JoinSpec, held: int, cores: int) -> int:
    """Return the most tuples that a piece should have on a core that holds `held` of its stream.

    Pieces should be few, since each costs a fixed time to look at, and an index is better when it is large;
    and not too large to share a window out evenly. With an index, work grows with the number of pieces: with
    sixths for quarters two cores compare 1.3 times as much in 1.1 to 1.4 times the processor time.
    """
    if spec.method == "scan" or held < 4 * spec.tuning.indexed_from:
        return min(held // 32, _SCANNED)
    return min(held // (_QUARTERS if cores <= _SHORT else _SIXTHS), _INDEXED)


def newest(piece: BasicWindow) -> int:
    """Return the newest of the stamps that a piece's tuples expire by."""
    return (piece.second if piece.spec.side == 0 else piece.first)[1]
