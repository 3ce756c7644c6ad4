"""A join of several streams as a value: checked and planned, but not running."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa

from handshake.errors import SchemaError, UnsupportedError, WindowError, suggest
from handshake.io.frames import plain_schema
from handshake.joins.arrangements.placement import placement
from handshake.joins.gate import ROOM, OnShed
from handshake.joins.multiway.gate import ManyGate
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.ordering import ManyInOrder
from handshake.joins.multiway.plan import ManySpec, StreamSpec, many_spec
from handshake.joins.plan import cores_of, lateness_of, overload_of, predicate_of, room_of
from handshake.plan.build import Expression
from handshake.schema import Schema
from handshake.windows import Spec, Window, windows_of

__all__ = ["MultiPlan", "StreamOptions", "listed", "named", "prepare_streams"]


@dataclass(frozen=True)
class MultiPlan:
    """A join of several streams that is checked and planned but not running."""

    spec: ManySpec
    lateness: int
    cores: int
    """How many cores; under adaptation, the most."""
    ordered: bool
    cpus: tuple[int, ...] = ()
    """The processors that cores are pinned to; none: they are not."""
    overload: str = "block"
    """What happens when a queue is full: `block` holds back the source, `shed` drops the newest batch."""
    room: int = ROOM
    """Tuples of a stream that may wait at the gate, where there is one."""
    adapt: bool = False

    def ordering(self) -> ManyInOrder | None:
        """What puts results in order, if that was asked for."""
        return ManyInOrder(self.spec) if self.ordered else None

    def start(self) -> MJoin:
        """Arrange the cores and let them run."""
        return MJoin(self.spec, self.lateness, self.cores, self.cpus, self.adapt)

    def gate(self, engine: MJoin, on_shed: OnShed | None = None) -> ManyGate:
        """A running join behind a queue of its own, so that whoever pushes need not wait for it."""
        return ManyGate(
            engine, shed=self.overload == "shed", room=self.room, on_shed=on_shed, punctuated=self.ordered
        )

    def remarks(self) -> Iterator[str]:
        """What an explanation says of cores that come and go, and of overload."""
        if self.adapt:
            yield f"adapts      from 1 to {self.cores} cores, as the load asks for"
        if self.overload == "shed":
            yield f"overload    a batch is shed when {self.room:,} tuples of its stream wait before the join"

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results: all of each stream's, in the order of the streams."""
        return self.spec.output


class StreamOptions(TypedDict, total=False):
    """What `prepare_streams` takes by name."""

    window: Spec
    windows: Mapping[str, Spec] | None
    time: str | Mapping[str, str] | None
    cores: int | None
    lateness: str | None
    ordered: bool
    pin: bool
    overload: str
    room: int | None
    adapt: bool


def prepare_streams(
    streams: Mapping[str, pa.Schema],
    on: str | Expression | None = None,
    *,
    window: Spec = None,
    windows: Mapping[str, Spec] | None = None,
    time: str | Mapping[str, str] | None = None,
    cores: int | None = None,
    lateness: str | None = None,
    ordered: bool = False,
    pin: bool = False,
    overload: str = "block",
    room: int | None = None,
    adapt: bool = False,
) -> MultiPlan:
    """Check and plan a join of several streams; everything that can be wrong about it is found here.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("x", pa.int32())])
    >>> prepare_streams({"a": schema, "b": schema, "c": schema}, "a.x = b.x").output_schema.names
    ['x', 'x_b', 'x_c']
    """
    sizes, times = _windows(streams, window, windows), _times(streams, time)
    specs = [StreamSpec(n, plain_schema(s), sizes[n], times[n]) for n, s in streams.items()]
    spec = many_spec(specs, predicate_of(on))
    count = cores_of("cell", cores)
    plan = MultiPlan(
        spec, lateness_of(lateness, spec.unit), count, ordered, _cpus(count) if pin else (),
        overload_of(overload), room_of(room), adapt,
    )  # fmt: skip
    plan.ordering()  # refuses what has no order
    return plan


def _cpus(cores: int) -> tuple[int, ...]:
    if cores == 1:
        raise UnsupportedError(
            "one core runs in the caller's thread, which is not pinned; ask for more cores, or leave pin out"
        )
    return placement(cores)


def named(streams: Any) -> Mapping[str, Any]:
    """Streams by name, or an error."""
    if not isinstance(streams, Mapping) or not all(isinstance(name, str) for name in streams):
        raise SchemaError(
            f"streams are given by name, such as {{'a': …, 'b': …, 'c': …}}, not as {type(streams).__name__}"
        )
    return streams


def _check_known(given: Iterable[str], streams: Mapping[str, Any], what: str) -> None:
    for name in given:
        if name not in streams:
            raise WindowError(
                f"{what} for '{name}', but the streams are {listed(streams)}{suggest(name, streams)}"
            )


def listed(streams: Iterable[str]) -> str:
    """Names of streams for an error's text."""
    return ", ".join(streams)


def _windows(
    streams: Mapping[str, Any], window: Spec, windows: Mapping[str, Spec] | None
) -> dict[str, Window | None]:
    """The window of each stream: its own, or the one for all."""
    if windows is not None and not isinstance(windows, Mapping):
        raise WindowError(
            f"windows= takes one for each stream, by name; for one window for all, window={windows!r}"
        )
    own = windows or {}
    _check_known(own, streams, "a window is given")
    return {name: _window(own.get(name, window), name) for name in streams}


def _window(spec: Spec, name: str) -> Window | None:
    both = windows_of(spec)
    if both.left != both.right:
        raise WindowError(f"the window of stream '{name}' has a left and a right size; give it one")
    return both.left


def _times(streams: Mapping[str, Any], time: str | Mapping[str, str] | None) -> dict[str, str | None]:
    """The time column of each stream."""
    if not isinstance(time, Mapping):
        named: dict[str, str | None] = dict.fromkeys(streams, time)
    else:
        _check_known(time, streams, "a time column is named")
        named = {name: time.get(name) for name in streams}
        missing = [name for name, column in named.items() if column is None]
        if missing and len(missing) < len(named):
            raise WindowError(
                f"no time column is named for the {missing[0]} input; name one for every stream, or for none"
            )
    return {
        name: None if column is None else Schema.from_arrow(streams[name], name).get(column).name
        for name, column in named.items()
    }
