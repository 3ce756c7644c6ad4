"""Joins of three and more streams, in MJoin fashion (CellJoin 7.1).

A batch goes through the windows of all other streams, in the join order of its own stream. Each step is a
two-way join of the combinations so far with the next stream's window: it has its own index on that window,
and checks every conjunct that can be read for the first time. Window rules between members are conjuncts,
too, on stamps. A combination is found exactly once: when the last of its members comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.core import JoinCore
from handshake.cores.driver import Counts, Driver, times_of
from handshake.cores.pieces import coalesced, pieces
from handshake.cores.spec import JoinSpec, join_spec
from handshake.errors import SchemaError
from handshake.plan.bind import Scope
from handshake.plan.expr import Arithmetic, Compare, Expr, Literal, Name, conjunction, conjuncts, transform
from handshake.schema import BOOL, UNITS, Schema
from handshake.window import Window, Windows

__all__ = ["MJoin"]

Array = np.ndarray[Any, Any]
_NEVER_LATE = 2**64 - 1
_NEWEST = "newest"
"""A column of combinations: the newest time of their members."""


@dataclass(frozen=True)
class _Conjunct:
    """A condition as written, and the streams that it reads."""

    expr: Expr
    streams: frozenset[int]

    @property
    def rank(self) -> int:
        """How well it narrows a step: an equality best, then a band or inequality."""
        op = self.expr.op if isinstance(self.expr, Compare) else ""
        return {"": 1, "<>": 1, "=": 3}.get(op, 2)


@dataclass
class _Step:
    """Combinations of the streams `joined` meet the window of stream `target`."""

    joined: tuple[int, ...]
    target: int
    spec: JoinSpec

    def __post_init__(self) -> None:
        self.core = JoinCore(self.spec)
        self.driver = Driver(self.spec, _NEVER_LATE)  # who is late has been dropped already

    def probe(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Combinations with one member more."""
        other = _most([batch.column(_seen(k, self.target)) for k in self.joined])
        if _NEWEST in self.spec.sides[0].schema.names:
            newest = _most([batch.column(_time(k)) for k in self.joined])
            batch = batch.append_column(_NEWEST, pa.array(newest))
        for piece in pieces(self.spec, 0, self.driver.admit(0, batch, other)):
            for found in self.core.probe(piece):
                yield found.select([name for name in found.schema.names if name != _NEWEST])

    def insert(self, batch: pa.RecordBatch) -> None:
        for piece in pieces(self.spec, 1, self.driver.admit(1, batch)):
            self.core.insert(piece)

    def expire(self, oldest: int) -> int:
        return self.core.expire(1, oldest)


def _most(columns: list[pa.Array]) -> Array:
    most: Array = np.max([column.to_numpy(zero_copy_only=False) for column in columns], axis=0)
    return most


# Names of columns in combinations: `2.x` is column x of stream 2; stamps have a colon instead.


def _time(stream: int) -> str:
    return f"{stream}:time"


def _own(stream: int) -> str:
    return f"{stream}:own"


def _seen(stream: int, other: int) -> str:
    """How many tuples of another stream had come before."""
    return f"{stream}:seen {other}"


@dataclass
class MJoin:
    """A running join of any number of streams; `names` qualify columns in the predicate (s0, s1, …)."""

    schemas: Sequence[pa.Schema]
    on: Expr
    windows: Sequence[Window | None]
    times: Sequence[str | None]
    lateness: int = 0
    names: Sequence[str] = ()
    counts: list[Counts] = field(init=False)
    orders: list[tuple[int, ...]] = field(init=False)
    results: int = 0
    expired: int = 0

    def __post_init__(self) -> None:
        many = len(self.schemas)
        if many < 2 or {len(self.windows), len(self.times)} != {many}:
            raise SchemaError("a join needs two or more streams, and a window and a time (or None) for each")
        self.names = tuple(self.names) or tuple(f"s{k}" for k in range(many))
        self.counts = [Counts() for _ in range(many)]
        self.unit = self._common_unit()
        self._newest: list[int | None] = [None] * many
        self._arrived = [0] * many
        self._conjuncts = self._read(self.on)
        self.orders = [self._order(k) for k in range(many)]
        self._steps = {
            (source, at): self._step((source, *order[:at]), order[at])
            for source, order in enumerate(self.orders)
            for at in range(many - 1)
        }
        self.output = self._output()

    @property
    def timed(self) -> bool:
        """Whether a window is one of time."""
        return any(window is not None and window.kind == "time" for window in self.windows)

    # Planning.

    def _common_unit(self) -> str:
        """The finest unit of all time columns; pairs of streams that do not compare are refused here."""
        always = Literal(True, type=BOOL)
        units = []
        for k in range(1, len(self.schemas)):
            windows = Windows(self.windows[0], self.windows[k])
            pair = (self.schemas[0], self.schemas[k])
            times = (self.times[0], self.times[k])
            units.append(join_spec(*pair, always, windows, times=times, suffix="\1").unit)
        return min(units, key=lambda unit: UNITS[unit])

    def _read(self, on: Expr) -> list[_Conjunct]:
        """The conjuncts, with names that say the stream and the column."""
        schemas = tuple(Schema.from_arrow(s, n) for s, n in zip(self.schemas, self.names, strict=True))
        scope = Scope(schemas, {name: k for k, name in enumerate(self.names)})
        found = []
        for part in conjuncts(on):
            streams: set[int] = set()

            def resolved(node: Expr, streams: set[int] = streams) -> Expr:
                if not isinstance(node, Name):
                    return node
                column = scope.resolve(node)
                streams.add(column.side)
                return Name((str(column.side), column.name), at=node.at)

            found.append(_Conjunct(transform(part, resolved), frozenset(streams)))
        return found

    def _order(self, source: int) -> tuple[int, ...]:
        """Greedy: next comes the stream that the sharpest conjuncts connect with those before it."""
        joined, order = {source}, []
        while len(joined) < len(self.schemas):
            rest = [k for k in range(len(self.schemas)) if k not in joined]
            best = max(rest, key=lambda k: self._ranks(joined, k))
            order.append(best)
            joined.add(best)
        return tuple(order)

    def _ranks(self, joined: set[int], target: int) -> list[int]:
        new = [c.rank for c in self._conjuncts if {target} < c.streams <= joined | {target}]
        return sorted(new, reverse=True)

    def _step(self, joined: tuple[int, ...], target: int) -> _Step:
        within = frozenset(joined)
        first = len(joined) == 1
        parts = [
            _placed(c.expr, target)
            for c in self._conjuncts
            if c.streams <= within | {target} and (first or target in c.streams)
        ]
        window = self.windows[target]
        fields = [f for k in joined for f in self._stamped(k)]
        timed = window is not None and window.kind == "time"
        if timed:
            fields.append(pa.field(_NEWEST, pa.int64()))
        spec = join_spec(
            pa.schema(fields), pa.schema(self._stamped(target)),
            conjunction((*parts, *(rule for k in joined for rule in self._held(k, target)))),
            Windows(None, _in_units(window, self.unit)),
            times=(_NEWEST, _time(target)) if timed else (None, None),
        )  # fmt: skip
        return _Step(joined, target, spec)

    def _stamped(self, stream: int) -> list[pa.Field]:
        names = [*([_time(stream)] if self.timed else []), _own(stream)]
        names += [_seen(stream, other) for other in range(len(self.schemas)) if other != stream]
        stamps = [pa.field(name, pa.int64()) for name in names]
        return [f.with_name(f"{stream}.{f.name}") for f in self.schemas[stream]] + stamps

    def _held(self, stream: int, target: int) -> Iterator[Expr]:
        """A member of `stream` is still in its window as far as one of `target` is concerned."""
        window = self.windows[stream]
        if window is None:
            return
        timed = window.kind == "time"
        late = Name(("r", _time(target) if timed else _seen(target, stream)))
        early = Name(("l", _time(stream) if timed else _own(stream)))
        yield Compare("<=", Arithmetic("-", late, early), Literal(window.reach(self.unit)))

    def _output(self) -> pa.Schema:
        """All columns of all streams; names that are in several have the stream's before them."""
        every = [name for schema in self.schemas for name in schema.names]
        return pa.schema(
            f if every.count(f.name) == 1 else f.with_name(f"{name}.{f.name}")
            for schema, name in zip(self.schemas, self.names, strict=True)
            for f in schema
        )

    # Running.

    def push(self, stream: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch of one stream's tuples; yields the combinations that they complete."""
        return coalesced(self._push(stream, batch))

    def _push(self, stream: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        stamped = self._admit(stream, batch)
        for found in self._through(stream, 0, stamped):
            self.results += found.num_rows
            yield self._finished(found)
        for step in self._steps.values():
            if step.target == stream:
                step.insert(stamped)
        self.expire()

    def _through(self, source: int, at: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take combinations through the windows that are left in the order."""
        if at == len(self.schemas) - 1:
            yield batch
        elif batch.num_rows:
            for found in self._steps[source, at].probe(batch):
                yield from self._through(source, at + 1, found)

    def _finished(self, found: pa.RecordBatch) -> pa.RecordBatch:
        columns = [found.column(f"{k}.{name}") for k, s in enumerate(self.schemas) for name in s.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _admit(self, stream: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Stamp a batch; drop who has no time or is late."""
        counts = self.counts[stream]
        counts.rows += batch.num_rows
        stamps: list[Array] = []
        if self.timed:
            batch, times = self._timely(stream, batch)
            stamps.append(times)
        start = self._arrived[stream]
        stamps.append(np.arange(start, start + batch.num_rows))
        for other, arrived in enumerate(self._arrived):
            if other != stream:
                stamps.append(np.full(batch.num_rows, arrived))
        self._arrived[stream] += batch.num_rows
        arrays = [*batch.columns, *map(pa.array, stamps)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self._stamped(stream)))

    def _timely(self, stream: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Array]:
        name, counts = self.times[stream], self.counts[stream]
        assert name is not None
        times, valid = times_of(batch.column(name), self.unit, name, self.names[stream])
        if valid is not None:
            counts.no_time += len(times) - int(valid.sum())
            batch, times = batch.filter(pa.array(valid)), times[valid]
        late = self._late(stream, times)
        counts.late += int(late.sum())
        return batch.filter(pa.array(~late)), times[~late]

    def _late(self, stream: int, times: Array) -> Array:
        """Which tuples the watermark, the least of all streams' newest times, has passed at their arrival."""
        others = [newest for k, newest in enumerate(self._newest) if k != stream]
        mine = self._newest[stream]
        if len(times) == 0:
            return np.zeros(0, np.bool_)
        before = np.concatenate([[times[0] if mine is None else mine], times])
        peak = np.maximum.accumulate(before)
        self._newest[stream] = int(peak[-1])
        known = [newest for newest in others if newest is not None]
        if len(known) < len(others):
            return np.zeros(len(times), np.bool_)
        mark = np.minimum(peak[:-1], min(known))
        # Differences of 64-bit times fit unsigned words.
        behind = mark.view(np.uint64) - times.view(np.uint64)
        late: Array = (times < mark) & (behind > np.uint64(min(self.lateness, _NEVER_LATE)))
        return late

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Nothing waits: every push has yielded all its results."""
        return iter(())

    def expire(self) -> None:
        """Drop what no tuple to come can join."""
        for step in self._steps.values():
            oldest = self._oldest(step.target)
            if oldest is not None:
                self.expired += step.expire(oldest)

    def _oldest(self, stream: int) -> int | None:
        """The least stamp of this stream that a tuple to come can still ask for."""
        window = self.windows[stream]
        if window is None:
            return None
        if window.kind == "tuples":
            return self._arrived[stream] - window.size
        known = [newest for newest in self._newest if newest is not None]
        if len(known) < len(self._newest):
            return None
        return min(known) - self.lateness - window.reach(self.unit)

    def close(self) -> None:
        """Nothing runs between pushes."""

    def explain(self) -> str:
        """The join orders and the steps, for people."""
        lines = []
        for source, order in enumerate(self.orders):
            route = " -> ".join(self.names[k] for k in (source, *order))
            methods = ", ".join(self._steps[source, at].spec.method for at in range(len(order)))
            lines.append(f"{self.names[source]:<11} {route} ({methods})")
        return "\n".join(lines)


def _placed(expr: Expr, target: int) -> Expr:
    """The target's columns are on the right, all others on the left."""

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Name):
            return node
        stream, column = node.parts
        return Name(("r" if int(stream) == target else "l", f"{stream}.{column}"), at=node.at)

    return transform(expr, rule)


def _in_units(window: Window | None, unit: str) -> Window | None:
    """A time window over stamps that count units: whole numbers, which a specification takes for seconds."""
    if window is None or window.kind == "tuples":
        return window
    return Window("time", (window.reach(unit) + 1) * UNITS["s"])
