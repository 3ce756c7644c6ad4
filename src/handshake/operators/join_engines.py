"""The join engines behind ⋈: two streams, or more; and what is saved of one, to go on from later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.driver import derived, stored
from handshake.joins.join import prepare
from handshake.joins.multiway.multi_join import prepare_streams
from handshake.joins.pieces import pieces
from handshake.kernels.columns import integers
from handshake.operators.chunk import Array
from handshake.plan.algebra import WindowJoin
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Expr, Name, transform

__all__ = ["TIME", "Engine", "Held", "engine_of"]

TIME = "\0time"
"""The column with times of tuples that are pushed, after the stream's name and a dot."""


@dataclass(frozen=True)
class Held:
    """What is left of a join when nobody runs it: tuples in its windows, stamped, and how far streams are."""

    tuples: tuple[bytes, ...]
    progress: dict[str, Any]


class Engine(Protocol):
    """What both kinds of join engine do. No tuple that is pushed is older than a clock of before."""

    def push(self, stream: int, batch: pa.RecordBatch, seen: dict[int, Array]) -> list[pa.RecordBatch]:
        """Tuples of one stream; `seen` counts those of others that came before each."""

    def advance(self, stream: int, clock: int) -> None:
        """No tuple older than this will come on a stream."""

    def held(self) -> Held:
        """What to save."""

    def refill(self, held: Held) -> None:
        """Go on from there."""

    def close(self) -> None:
        """Free what is held."""


def engine_of(node: WindowJoin, schemas: list[pa.Schema], timed: bool, cores: int) -> Engine:
    """The engine of a join whose streams have these columns, times among them where that matters."""
    return (_Two if len(schemas) == 2 else _Many)(node, schemas, timed, cores)


def _named(node: WindowJoin) -> Expr:
    """The condition with the names that columns have in the batches of the join."""

    def named(e: Expr) -> Expr:
        if not isinstance(e, Column):
            return e
        return Name((node.names[e.side], f"{node.names[e.side]}.{e.name}"), at=e.at)

    return transform(node.on, named)


class _Two:
    """Two streams: the join cores."""

    def __init__(self, node: WindowJoin, schemas: list[pa.Schema], timed: bool, cores: int) -> None:
        times = [f"{name}.{TIME}" if timed else None for name in node.names]
        plan = prepare(
            schemas[0], schemas[1], Expression(_named(node)), left_window=node.windows[0],
            right_window=node.windows[1], left_time=times[0], right_time=times[1], cores=cores,
            algorithm="three_step" if cores == 1 else "low_latency", aliases=(node.names[0], node.names[1]),
        )  # fmt: skip
        self._engine = plan.start()
        self._engine.driver.told = True

    def push(self, stream: int, batch: pa.RecordBatch, seen: dict[int, Array]) -> list[pa.RecordBatch]:
        """Join a batch."""
        return [*self._engine.push(stream, batch, seen.get(1 - stream)), *self._engine.drain()]

    def advance(self, stream: int, clock: int) -> None:
        """Let go of what no tuple to come can join."""
        self._engine.driver.advance(stream, clock)
        self._engine.expire()

    def held(self) -> Held:
        """The windows of both sides, without what is derived from tuples."""
        driver = self._engine.driver
        progress = {"newest": driver.newest, "arrived": driver.arrived, "met": driver.met}
        return Held((_packed(self._tuples(0)), _packed(self._tuples(1))), progress)

    def _tuples(self, side: int) -> Iterator[pa.RecordBatch]:
        mine, oldest = self._one_core.spec.sides[side], self._one_core.driver.oldest(side)
        gone = {name for name, _ in mine.derived}
        stamp = mine.stamps.second if side == 0 else mine.stamps.first
        for window in self._one_core.core.segments[side]:
            batch = window.batch.select([name for name in window.batch.schema.names if name not in gone])
            if stamp is None or oldest is None:
                yield batch
            else:
                yield _since(batch, integers(stored(window.batch, mine, stamp.name)), oldest)

    def refill(self, held: Held) -> None:
        """Derive again what was left out."""
        core, spec = self._one_core.core, self._one_core.spec
        for side, packed in enumerate(held.tuples):
            for batch in _unpacked(packed):
                for piece in pieces(spec, side, derived(batch, spec.sides[side])):
                    core.insert(piece)
        for name, value in held.progress.items():
            setattr(self._engine.driver, name, value)

    @property
    def _one_core(self) -> ThreeStep:
        if not isinstance(self._engine, ThreeStep):
            raise _not_saved()
        return self._engine

    def close(self) -> None:
        """Stop the cores."""
        self._engine.close()


class _Many:
    """Three and more streams."""

    def __init__(self, node: WindowJoin, schemas: list[pa.Schema], timed: bool, cores: int) -> None:
        plan = prepare_streams(
            dict(zip(node.names, schemas, strict=True)), Expression(_named(node)),
            windows=dict(zip(node.names, node.windows, strict=True)), cores=cores,
            time={name: f"{name}.{TIME}" for name in node.names} if timed else None,
        )  # fmt: skip
        self._engine = plan.start()
        self._engine.driver.told = True

    def push(self, stream: int, batch: pa.RecordBatch, seen: dict[int, Array]) -> list[pa.RecordBatch]:
        """Join a batch."""
        return [*self._engine.push(stream, batch, seen or None), *self._engine.drain()]

    def advance(self, stream: int, clock: int) -> None:
        """Let go of what no tuple to come can join."""
        self._engine.driver.advance(stream, clock)
        self._engine.expire()

    def held(self) -> Held:
        """The windows of all streams, each once, however many are kept of it."""
        if self._engine.cores > 1:
            raise _not_saved()
        driver = self._engine.driver
        progress = {"newest": driver.newest, "arrived": driver.arrived, "met": driver.met}
        streams = range(len(driver.newest))
        return Held(tuple(_packed(self._tuples(k)) for k in streams), progress)

    def _tuples(self, k: int) -> Iterator[pa.RecordBatch]:
        stamp, oldest = self._engine.spec.stamp(k), self._engine.driver.oldest(k)
        for batch in self._engine.tuples(k):
            yield batch if oldest is None else _since(batch, integers(batch.column(stamp)), oldest)

    def refill(self, held: Held) -> None:
        """Put tuples into all windows of their streams."""
        for k, packed in enumerate(held.tuples):
            self._engine.refill(k, _unpacked(packed))
        for name, value in held.progress.items():
            setattr(self._engine.driver, name, value)

    def close(self) -> None:
        """Stop the cores."""
        self._engine.close()


def _not_saved() -> UnsupportedError:
    return UnsupportedError(
        "a join that runs on several cores cannot be saved, since tuples are on their way between them; "
        "make the query with cores=1"
    )


def _since(batch: pa.RecordBatch, stamps: Array, oldest: int) -> pa.RecordBatch:
    """Tuples that one to come can still ask for: basic windows expire as a whole, what is saved need not."""
    stays = stamps >= oldest
    return batch if stays.all() else batch.take(pa.array(np.flatnonzero(stays)))


def _packed(batches: Iterable[pa.RecordBatch]) -> bytes:
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, some[0].schema) as writer:
        for batch in some:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(packed: bytes) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(packed)) if packed else []
