"""Join plans: joins of two or more streams, checked and planned but not running.

Every mistake in a join is found here, before the first row arrives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import pyarrow as pa

from handshake.errors import ExpressionError, SchemaError, UnsupportedError, WindowError, suggest
from handshake.html import card
from handshake.io.frames import plain_schema
from handshake.joins.arrangements.arrangement import Arrangement, RunningJoin
from handshake.joins.arrangements.cell.cost import cost_model, model_text
from handshake.joins.arrangements.placement import placement, usable_cores
from handshake.joins.arrangements.registry import (
    ALGORITHMS,
    ARRANGEMENTS,
    check_adapt,
    check_device,
    cores_of,
    cpus_of,
)
from handshake.joins.driver import OnLate
from handshake.joins.gate import ROOM, Gate, OnShed
from handshake.joins.lengths import Length, length_of
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.spec import ManySpec, StreamSpec, many_spec
from handshake.joins.ordering import InOrder
from handshake.joins.spec import SIDES, JoinSpec, explain_unmatched, join_spec
from handshake.joins.tuning import TUNING, Tuning
from handshake.kinds import JoinKind, kind_of_join
from handshake.options import CoreOptions, Options, PairOptions, check_names
from handshake.plan.build import Expression
from handshake.plan.expr import Expr, Literal, show
from handshake.plan.parse import parse
from handshake.schema import BOOL, UNITS, Schema
from handshake.windows import Spec, Window, settle_now, windows_of

__all__ = [
    "ALGORITHMS",
    "JoinOptions",
    "JoinPlan",
    "MultiPlan",
    "PlannedJoin",
    "StreamOptions",
    "cores_of",
    "lateness_of",
    "named_streams",
    "predicate_of",
    "prepare",
    "prepare_streams",
    "usable_cores",
]

SpecT = TypeVar("SpecT", JoinSpec, ManySpec)


@dataclass(frozen=True)
class PlannedJoin(ABC, Generic[SpecT]):
    """A join that is checked and planned but not running."""

    spec: SpecT
    lateness: int | None
    """The allowed lateness in whole units; None if rows are never late (see `StreamDriver`)."""
    algorithm: str
    cores: int
    """The number of cores; with `adapt`, the most."""
    ordered: bool = False
    overload: str = "block"
    """The rule for a full queue: `block` makes the source wait, `shed` drops the newest batch."""
    room: int = ROOM
    """Rows of a stream that may wait at the gate, if there is one."""
    adapt: bool = False
    cpus: tuple[int, ...] = ()
    """The processors that cores are pinned to; none if they are not pinned."""

    def __post_init__(self) -> None:
        self.ordering()  # raises if the results have no order

    def ordering(self) -> InOrder | None:
        """Return a buffer that puts results in order, if the plan asks for it."""
        return InOrder(self.spec) if self.ordered else None

    @property
    def tracks(self) -> bool:
        """True if rows without a match are results, or rows with several are results once."""
        return any(self.spec.kind.tracked)

    @property
    def preserves(self) -> bool:
        """True if rows without a match are results."""
        return self.spec.kind.preserves

    @abstractmethod
    def start(self, on_late: OnLate | None = None) -> RunningJoin:
        """Start the join cores.

        Args:
            on_late: Called with late rows, and with rows that are dropped without a time.
        """

    def gate(self, on_shed: OnShed | None = None, engine: RunningJoin | None = None) -> Gate:
        """Return a running join behind a queue, so that callers do not wait for the join."""
        return Gate(
            engine or self.start(), [stream.name for stream in self.spec.streams],
            shed=self.overload == "shed", room=self.room, on_shed=on_shed,
            punctuated=self.ordered or self.tracks,
        )  # fmt: skip

    @abstractmethod
    def explain(self) -> str:
        """Describe the plan."""

    def _repr_html_(self) -> str:
        streams = zip(self.spec.streams, self.spec.windows, strict=True)
        facts = [(s.name, "no window" if w is None else f"window of {w}") for s, w in streams]
        return card("Plan of a join", facts, self.explain())

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results: all columns of each stream, in the order of the streams."""
        return self.spec.output


@dataclass(frozen=True)
class JoinPlan(PlannedJoin[JoinSpec]):
    """A join of two streams that is checked and planned but not running."""

    device: str = "cpu"

    @property
    def runs_as(self) -> str:
        """The arrangement, or `unbounded`: without windows, one side is held and the other passes by."""
        if self.device == "gpu":
            return "gpu"
        return "unbounded" if self.spec.windows.unbounded else self.algorithm

    def start(self, on_late: OnLate | None = None) -> Arrangement:
        """Arrange the join cores and start them; see `PlannedJoin.start`."""
        arrange = ARRANGEMENTS["gpu" if self.device == "gpu" else self.algorithm]
        return arrange(self.spec, self.lateness, self.cores, self.adapt, self.cpus, on_late)

    @property
    def method(self) -> str:
        """The access method: scan, hash or band."""
        return self.spec.method

    @property
    def why(self) -> str:
        """The reason for that method."""
        return self.spec.why

    def explain(self) -> str:
        """Describe the plan."""
        return "\n".join((self.spec.explain(), *self._explain_cores()))

    def _explain_cores(self) -> Iterator[str]:
        cores = f"1 to {self.cores}, as the load asks for" if self.adapt else str(self.cores)
        if self.device == "gpu":
            yield "device      gpu: windows are held and searched there; the host makes the results"
        else:
            yield f"algorithm   {self.runs_as}, cores: {cores}"
        yield from self._explain_kind()
        if self.cpus:
            yield f"pinned      to processors {', '.join(map(str, self.cpus))}"
        if self.overload == "shed":
            yield f"overload    a batch is shed when {self.room:,} tuples of its side wait before the join"
        coded = [show(a.inner) for side in self.spec.sides for a in side.coded]
        if coded:
            size = "16 bits" if self.device == "gpu" else "a byte"
            yield f"codes       of {', '.join(coded)}, {size} each, which scans compare first"
        if self.runs_as == "cell":
            held = max((w.capacity for w in self.spec.windows if w is not None and w.capacity), default=None)
            yield f"cost model  {model_text(cost_model(), held, self.method)}"

    def _explain_kind(self) -> Iterator[str]:
        """Describe what the kind of join holds, and when rows without a match come."""
        for name, tracked in zip(SIDES, self.spec.kind.tracked, strict=True):
            if tracked:
                yield f"held        5 bytes per {name} row in the window: its number and whether it matched"
        yield from explain_unmatched(self.spec)


@dataclass(frozen=True)
class MultiPlan(PlannedJoin[ManySpec]):
    """A join of several named streams that is checked and planned but not running."""

    def start(self, on_late: OnLate | None = None) -> MJoin:
        """Start the join cores; see `PlannedJoin.start`."""
        return MJoin(self.spec, self.lateness, self.cores, self.cpus, self.adapt, on_late=on_late)

    def explain(self) -> str:
        """Describe the plan as it begins; join orders follow the streams later."""
        return "\n".join((MJoin(self.spec, self.lateness).explain(self.cores), *self.remarks()))

    def remarks(self) -> Iterator[str]:
        """Describe the adaptation of cores and what happens under overload."""
        if self.adapt:
            yield f"adapts      from 1 to {self.cores} cores, as the load asks for"
        if self.overload == "shed":
            yield f"overload    a batch is shed when {self.room:,} tuples of its stream wait before the join"


class _PlanOptions(TypedDict, total=False):
    window: Spec
    """The window of streams that have none of their own; None keeps rows for ever."""
    lateness: Length | None
    """How far rows may be behind the watermark, such as `"5 seconds"`."""
    ordered: bool
    """Whether results come in the order of time."""
    tuning: Tuning


class JoinOptions(_PlanOptions, PairOptions, total=False):
    """The keyword options of `Join` and `prepare`, with those of `PairOptions`."""

    left_window: Spec
    right_window: Spec
    time: str | None
    """The time column of both inputs; time windows need one."""
    left_time: str | None
    right_time: str | None
    how: str | JoinKind
    """The kind of join: `inner`, `left`, `right`, `full`, `left_semi`, `left_anti`; `handshake.kinds`."""
    suffix: str
    """Added to a column name of the right input that the left one has too."""
    aliases: tuple[str, str] | None
    """Other names for `l` and `r` in the predicate."""


class StreamOptions(_PlanOptions, CoreOptions, total=False):
    """The keyword options of `MultiJoin` and `prepare_streams`, with those of `CoreOptions`."""

    windows: Mapping[str, Spec] | None
    """Windows by the names of their streams."""
    time: str | Mapping[str, str] | None
    """The time column: one name for all streams, or names by stream."""


def prepare(
    left: pa.Schema,
    right: pa.Schema,
    on: str | Expression | None = None,
    window: Spec = None,
    *,
    left_window: Spec = None,
    right_window: Spec = None,
    time: str | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    how: str | JoinKind = "inner",
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    lateness: Length | None = None,
    ordered: bool = False,
    tuning: Tuning = TUNING,
    **options: Unpack[PairOptions],
) -> JoinPlan:
    """Check and plan a join of two streams.

    Args:
        left: The columns of the left input.
        right: The columns of the right input.
        on: The predicate, as for `join`.
        window: The window of both inputs.
        left_window: The window of the left input, if it differs.
        right_window: The window of the right input, if it differs.
        time: The time column of both inputs; time windows need one.
        left_time: The time column of the left input, if it differs.
        right_time: The time column of the right input, if it differs.
        how: The kind of join.
        suffix: Added to a column name of the right input that the left one has too.
        aliases: Other names for `l` and `r` in the predicate.
        lateness: How far rows may be behind the watermark, such as `"5 seconds"`.
        ordered: Whether results come in the order of time.
        tuning: Thresholds, for tests and measurements.
        **options: `method`, `algorithm`, `device`, `cores`, `overload`, `room`, `adapt` and `pin`. See
            `handshake.options.Options`.

    Raises:
        HandshakeError: If anything is wrong with the join.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("x", pa.int32())])
    >>> prepare(schema, schema, "ABS(l.x - r.x) <= 10").method
    'band'
    """
    check_names(prepare, options, PairOptions)
    wanted = Options(**options)
    check_device(wanted.device, wanted.algorithm, wanted.cores, adapt=wanted.adapt, pin=wanted.pin)
    left, right = plain_schema(left), plain_schema(right)
    windows = windows_of(window, left_window, right_window)
    times = (left_time or time, right_time or time)
    if (times[0] is None) != (times[1] is None):
        raise WindowError("a time column is named for one input only; name one for both, or for neither")
    for name, schema, stream in zip(times, (left, right), SIDES, strict=True):
        if name is not None:
            Schema.from_arrow(schema, stream).get(name)
    spec = join_spec(
        left, right, predicate_of(on), windows, times=times, method=wanted.method, suffix=suffix,
        aliases=aliases, tuning=tuning, kind=kind_of_join(how), ordered=ordered, device=wanted.device,
    )  # fmt: skip
    count = cores_of(wanted.algorithm, wanted.cores)
    check_adapt(wanted.algorithm, wanted.adapt)
    return JoinPlan(
        spec,
        lateness=lateness_of(lateness, spec.unit),
        algorithm=wanted.algorithm,
        cores=count,
        ordered=ordered,
        overload=wanted.overload,
        room=wanted.room or ROOM,
        adapt=wanted.adapt,
        cpus=cpus_of(wanted.algorithm, count) if wanted.pin else (),
        device=wanted.device,
    )


def prepare_streams(
    streams: Mapping[str, pa.Schema],
    on: str | Expression | None = None,
    *,
    window: Spec = None,
    windows: Mapping[str, Spec] | None = None,
    time: str | Mapping[str, str] | None = None,
    lateness: Length | None = None,
    ordered: bool = False,
    tuning: Tuning = TUNING,
    **options: Unpack[CoreOptions],
) -> MultiPlan:
    """Check and plan a join of several streams.

    Args:
        streams: The columns of each stream, by its name.
        on: The predicate, as for `join_streams`.
        window: The window of streams that have none of their own; None keeps rows for ever.
        windows: Windows by the names of their streams.
        time: The time column: one name for all streams, or names by stream.
        lateness: How far rows may be behind the watermark, such as `"5 seconds"`.
        ordered: Whether results come in the order of time.
        tuning: Thresholds, for tests and measurements.
        **options: `cores`, `overload`, `room`, `adapt` and `pin`. See `handshake.options.Options`.

    Raises:
        HandshakeError: If anything is wrong with the join.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("x", pa.int32())])
    >>> prepare_streams({"a": schema, "b": schema, "c": schema}, "a.x = b.x").output_schema.names
    ['x', 'x_b', 'x_c']
    """
    check_names(prepare_streams, options, CoreOptions)
    wanted = Options(**options)
    sizes, times = _windows(streams, window, windows), _times(streams, time)
    specs = [StreamSpec(n, plain_schema(s), sizes[n], times[n]) for n, s in streams.items()]
    spec = many_spec(specs, predicate_of(on), tuning)
    count = cores_of("cell", wanted.cores)
    if wanted.pin and count == 1:
        raise UnsupportedError(
            "one core runs in the caller's thread, which is not pinned; ask for more cores, or leave pin out"
        )
    return MultiPlan(
        spec, lateness_of(lateness, spec.unit), "mjoin", count, ordered, wanted.overload,
        wanted.room or ROOM, wanted.adapt, placement(count) if wanted.pin else (),
    )  # fmt: skip


def named_streams(streams: Any) -> Mapping[str, Any]:
    """Return streams by name, or raise."""
    if not isinstance(streams, Mapping) or not all(isinstance(name, str) for name in streams):
        raise SchemaError(
            f"streams are given by name, such as {{'a': …, 'b': …, 'c': …}}, not as {type(streams).__name__}"
        )
    return streams


def _check_known(given: Iterable[str], streams: Mapping[str, Any], what: str) -> None:
    for name in given:
        if name not in streams:
            raise WindowError(
                f"{what} for '{name}', but the streams are {', '.join(streams)}{suggest(name, streams)}"
            )


def _windows(
    streams: Mapping[str, Any], window: Spec, windows: Mapping[str, Spec] | None
) -> dict[str, Window | None]:
    """Return the window of each stream: its own, or the one for all."""
    if windows is not None and not isinstance(windows, Mapping):
        raise WindowError(
            f"windows= takes one for each stream, by name; for one window for all, window={windows!r}"
        )
    own = windows or {}
    _check_known(own, streams, "a window is given")
    each = settle_now(_window(own.get(name, window), name) for name in streams)
    return dict(zip(streams, each, strict=True))


def _window(spec: Spec, name: str) -> Window | None:
    both = windows_of(spec)
    if both.left != both.right:
        raise WindowError(f"the window of stream '{name}' has a left and a right size; give it one")
    return both.left


def _times(streams: Mapping[str, Any], time: str | Mapping[str, str] | None) -> dict[str, str | None]:
    """Return the time column of each stream."""
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


def predicate_of(on: str | Expression | None) -> Expr:
    """Return a predicate as an expression; None stands for TRUE."""
    if on is None:
        return Literal(True, type=BOOL)
    if isinstance(on, str):
        return parse(on)
    if isinstance(on, Expression):
        return on.expr
    raise ExpressionError(
        f"the predicate must be SQL text or a built expression, not {type(on).__name__}; "
        "wrap a Python function as handshake.call(function, left.x, right.a)"
    )


def lateness_of(lateness: Length | None, unit: str) -> int:
    """Return the allowed lateness in whole units."""
    return 0 if lateness is None else length_of(lateness, "lateness").nanoseconds // UNITS[unit]
