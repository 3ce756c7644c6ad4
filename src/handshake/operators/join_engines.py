"""The join engine behind ⋈, for two or more streams, and the state from which it can go on later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.arrangements.arrangement import Arrangement, RunningJoin
from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.core import JoinCore
from handshake.joins.driver import Seen, derive_columns, stored_column
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.pieces import pieces
from handshake.joins.plan import JoinPlan, MultiPlan, prepare, prepare_streams
from handshake.joins.spec import FirstPairs, JoinSpec
from handshake.joins.why.conditions import Places, is_matchable
from handshake.joins.why.presence import find_held, held_places
from handshake.joins.why.streams import find_in_streams, is_matchable_in_streams, places_in_streams
from handshake.kernels.columns import integers
from handshake.operators.chunk import Array
from handshake.options import PairOptions
from handshake.plan.algebra import MEMBER_TIME, WindowJoin
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Expr, Name, transform
from handshake.schema import concat_batches

_PROGRESS = ("newest", "arrived", "met")


@dataclass(frozen=True)
class Held:
    """The saved state of a join: the stamped rows in its windows, and how far the streams have come."""

    tuples: tuple[bytes, ...]
    progress: dict[str, Any]


class JoinEngine:
    """An inner join of streams whose columns, and times if they matter, are given.

    Names of columns begin with the stream's name and a dot; `MEMBER_TIME` has the times of rows.
    `firsts` restricts the results of two streams to first pairs. `reduce` gives the join of two streams that
    runs on a GPU instead. Callers must not push rows older than the last `advance()`.
    """

    def __init__(
        self, node: WindowJoin, schemas: list[pa.Schema], timed: bool, cores: int,
        firsts: FirstPairs | None = None, reduce: Callable[[JoinSpec], JoinSpec] | None = None,
    ) -> None:  # fmt: skip
        if len(schemas) == 2:
            two = _prepare_two(node, schemas, timed, cores, "cpu" if reduce is None else "gpu")
            spec = replace(two.spec, firsts=firsts) if reduce is None else reduce(two.spec)
            self._join: RunningJoin = replace(two, lateness=None, spec=spec).start()
        else:
            self._join = replace(_prepare_many(node, schemas, timed, cores), lateness=None).start()

    def push(self, stream: int, batch: pa.RecordBatch, seen: Seen | None) -> list[pa.RecordBatch]:
        """Join rows of one stream.

        `seen` counts the rows of other streams before each row, where windows count rows. None if the rows
        arrive after all that were pushed.
        """
        return [*self._join.push(stream, batch, seen), *self._join.drain()]

    def meet_all(self) -> None:
        """Record that rows to come arrive after all that were pushed."""
        self._join.driver.meet_all()

    def advance(self, stream: int, clock: int) -> None:
        """Record that no older row of a stream will come, and drop rows that expired."""
        self._join.driver.advance(stream, clock)
        self._join.expire()

    def save(self) -> Held:
        """Return the state to save, without columns that are derived from others."""
        join = self._join
        if not isinstance(join, ThreeStep) and not (isinstance(join, MJoin) and join.cores == 1):
            raise UnsupportedError(
                "a join that runs on several cores cannot be saved, since tuples are on their way between "
                "them; make the query with cores=1"
            )
        tuples = tuple(_pack(_rows(join, k)) for k in range(len(join.driver.newest)))
        return Held(tuples, {name: getattr(join.driver, name) for name in _PROGRESS})

    def refill(self, held: Held) -> None:
        """Go on from a saved state."""
        join = self._join
        for k, packed in enumerate(held.tuples):
            if isinstance(join, MJoin):
                join.refill(k, _unpack(packed))
            elif isinstance(join, ThreeStep):
                for batch in _unpack(packed):
                    for piece in pieces(join.spec, k, derive_columns(batch, join.spec.sides[k])):
                        join.core.insert(piece)
        for name, value in held.progress.items():
            setattr(join.driver, name, value)

    @property
    def core(self) -> JoinCore:
        """The only core of a join of two streams."""
        assert isinstance(self._join, ThreeStep)
        return self._join.core

    def find(
        self, rows: Sequence[pa.RecordBatch | None]
    ) -> tuple[list[pa.RecordBatch | None], Places | None]:
        """Return the rows with some values that can still join, stamped, and where they came if that matters.

        Args:
            rows: A row of each stream; None for one to leave out.
        """
        join = self._join
        if isinstance(join, MJoin):
            several = [None if row is None else find_in_streams(join, k, row) for k, row in enumerate(rows)]
            return several, places_in_streams(join.spec, several)
        assert isinstance(join, Arrangement)
        two = [None if row is None else find_held(join, side, row) for side, row in enumerate(rows)]
        return [None if held is None else concat_batches(held.rows) for held in two], held_places(
            join.spec, two
        )

    def can_match(self, k: int, row: pa.RecordBatch) -> bool:
        """Return whether a row of a stream can match any other."""
        spec = self._join.spec
        return (
            is_matchable(spec, k, row)
            if isinstance(spec, JoinSpec)
            else is_matchable_in_streams(spec, k, [row] * len(spec.streams))
        )

    def close(self) -> None:
        """Stop the cores and free the windows."""
        self._join.close()


def _prepare_two(
    node: WindowJoin, schemas: list[pa.Schema], timed: bool, cores: int, device: str
) -> JoinPlan:
    on_cores: PairOptions = {"cores": cores, "algorithm": "three_step" if cores == 1 else "low_latency"}
    options: PairOptions = on_cores if device == "cpu" else {"device": device}
    times = [f"{name}.{MEMBER_TIME}" if timed else None for name in node.names]
    return prepare(
        schemas[0], schemas[1], Expression(named_condition(node)), left_window=node.windows[0],
        right_window=node.windows[1], left_time=times[0], right_time=times[1],
        aliases=(node.names[0], node.names[1]), **options,
    )  # fmt: skip


def _prepare_many(node: WindowJoin, schemas: list[pa.Schema], timed: bool, cores: int) -> MultiPlan:
    return prepare_streams(
        dict(zip(node.names, schemas, strict=True)), Expression(named_condition(node)),
        windows=dict(zip(node.names, node.windows, strict=True)), cores=cores,
        time={name: f"{name}.{MEMBER_TIME}" for name in node.names} if timed else None,
    )  # fmt: skip


def named_condition(node: WindowJoin) -> Expr:
    """Return the condition with the names that columns have in the batches of the join."""

    def rename(e: Expr) -> Expr:
        if not isinstance(e, Column):
            return e
        return Name((node.names[e.side], f"{node.names[e.side]}.{e.name}"), at=e.at)

    return transform(node.on, rename)


def _rows(join: ThreeStep | MJoin, k: int) -> Iterator[pa.RecordBatch]:
    """Return the rows in the window of a stream, stamped."""
    oldest = join.driver.oldest(k)
    if isinstance(join, MJoin):
        for batch in join.tuples(k):
            stamps = None if oldest is None else integers(batch.column(join.spec.stamp(k)))
            yield _drop_expired(batch, stamps, oldest)
        return
    side = join.spec.sides[k]
    hidden = {name for name, _ in side.derived}
    for window in join.core.segments[k]:
        batch = window.batch.select([name for name in window.batch.schema.names if name not in hidden])
        stamp = side.expiring
        stamps = None if stamp is None else integers(stored_column(window.batch, side, stamp.name))
        yield _drop_expired(batch, stamps, oldest)


def _drop_expired(batch: pa.RecordBatch, stamps: Array | None, oldest: int | None) -> pa.RecordBatch:
    """Return the rows that a row to come can still join; basic windows hold some that expired."""
    if stamps is None or oldest is None:
        return batch
    stays = stamps >= oldest
    return batch if stays.all() else batch.take(pa.array(np.flatnonzero(stays)))


def _pack(batches: Iterable[pa.RecordBatch]) -> bytes:
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, some[0].schema) as writer:
        for batch in some:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpack(packed: bytes) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(packed)) if packed else []
