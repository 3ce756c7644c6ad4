"""A join, checked and planned: everything that can be wrong about it is found here, before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from handshake.errors import ExpressionError, UnsupportedError, WindowError
from handshake.io.frames import plain_schema
from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.arrangements.cell.cost import cost_model, model_text
from handshake.joins.arrangements.placement import usable_cores
from handshake.joins.arrangements.registry import (
    ALGORITHMS,
    ARRANGEMENTS,
    check_adapt,
    cores_of,
    cpus_of,
)
from handshake.joins.gate import OVERLOAD, ROOM, Gate, OnShed
from handshake.joins.ordering import InOrder
from handshake.joins.spec import SIDES, JoinSpec, join_spec
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan.build import Expression
from handshake.plan.expr import Expr, Literal, show
from handshake.plan.parse import parse
from handshake.schema import BOOL, UNITS, Schema
from handshake.windows import Duration, Spec, windows_of

__all__ = [
    "ALGORITHMS",
    "JoinPlan",
    "cores_of",
    "lateness_of",
    "overload_of",
    "predicate_of",
    "prepare",
    "room_of",
    "usable_cores",
]


@dataclass(frozen=True)
class JoinPlan:
    """A join that is checked and planned but not running."""

    spec: JoinSpec
    lateness: int
    algorithm: str
    cores: int
    """How many cores; under adaptation, the most."""
    ordered: bool = False
    overload: str = "block"
    """What happens when a queue is full: `block` holds back the source, `shed` drops the newest batch."""
    room: int = ROOM
    """Tuples of a side that may wait at the gate, where there is one."""
    adapt: bool = False
    cpus: tuple[int, ...] = ()
    """The processors that cores are pinned to; none: they are not."""

    def __post_init__(self) -> None:
        self.ordering()  # refuses what has no order

    def ordering(self) -> InOrder | None:
        """What puts results in order, if that was asked for."""
        return InOrder(self.spec) if self.ordered else None

    @property
    def runs_as(self) -> str:
        """Where the tuples meet: without windows, one side is held and the other dealt out to the cores."""
        return "unbounded" if self.spec.windows.unbounded else self.algorithm

    def start(self) -> Arrangement:
        """Arrange the cores and let them run."""
        return ARRANGEMENTS[self.algorithm].build(self)

    def gate(self, on_shed: OnShed | None = None) -> Gate:
        """The same behind a queue of its own, so that whoever pushes need not wait for the join."""
        return Gate(
            self.start(), shed=self.overload == "shed", room=self.room, on_shed=on_shed,
            punctuated=self.ordered,
        )  # fmt: skip

    @property
    def method(self) -> str:
        """The access method: scan, hash or band."""
        return self.spec.method

    @property
    def why(self) -> str:
        """Why that method."""
        return self.spec.why

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results: all of the left input's, then all of the right's."""
        return self.spec.output

    def explain(self) -> str:
        """The plan, for people."""
        return "\n".join((self.spec.explain(), *self._explain_cores()))

    def _explain_cores(self) -> Iterator[str]:
        cores = f"1 to {self.cores}, as the load asks for" if self.adapt else str(self.cores)
        yield f"algorithm   {self.runs_as}, cores: {cores}"
        if self.cpus:
            yield f"pinned      to processors {', '.join(map(str, self.cpus))}"
        if self.overload == "shed":
            yield f"overload    a batch is shed when {self.room:,} tuples of its side wait before the join"
        coded = [show(a.inner) for side in self.spec.sides for a in side.coded]
        if coded and self.runs_as == "low_latency":
            yield f"codes       of {', '.join(coded)}, a byte each, for scans of a few tuples"
        if self.runs_as == "cell":
            yield f"cost model  {model_text(cost_model(), self._held, self.method)}"

    @property
    def _held(self) -> int | None:
        """Tuples in the larger window, where they are counted."""
        return max((w.capacity for w in self.spec.windows if w is not None and w.capacity), default=None)


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
    method: str = "auto",
    algorithm: str = "low_latency",
    cores: int | None = None,
    suffix: str = "_right",
    lateness: str | None = None,
    ordered: bool = False,
    aliases: tuple[str, str] | None = None,
    overload: str = "block",
    room: int | None = None,
    adapt: bool = False,
    pin: bool = False,
    tuning: Tuning = TUNING,
) -> JoinPlan:
    """Check and plan a join; everything that can be wrong about it is found here.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("x", pa.int32())])
    >>> prepare(schema, schema, "ABS(l.x - r.x) <= 10").method
    'band'
    """
    left, right = plain_schema(left), plain_schema(right)
    windows = windows_of(window, left_window, right_window)
    times = (left_time or time, right_time or time)
    if (times[0] is None) != (times[1] is None):
        raise WindowError("a time column is named for one input only; name one for both, or for neither")
    for name, schema, stream in zip(times, (left, right), SIDES, strict=True):
        if name is not None:
            Schema.from_arrow(schema, stream).get(name)
    spec = join_spec(
        left,
        right,
        predicate_of(on),
        windows,
        times=times,
        method=method,
        suffix=suffix,
        aliases=aliases,
        tuning=tuning,
    )
    count = cores_of(algorithm, cores)
    check_adapt(algorithm, adapt)
    return JoinPlan(
        spec,
        lateness=lateness_of(lateness, spec.unit),
        algorithm=algorithm,
        cores=count,
        ordered=ordered,
        overload=overload_of(overload),
        room=room_of(room),
        adapt=adapt,
        cpus=cpus_of(algorithm, count) if pin else (),
    )


def overload_of(overload: str) -> str:
    """What to do when a queue is full, as it may be given."""
    if overload not in OVERLOAD:
        raise UnsupportedError(
            f"overload is 'block' (hold back the source) or 'shed' (drop the newest tuples), not {overload!r}"
        )
    return overload


def room_of(room: Any) -> int:
    """How many tuples may wait, as it may be given."""
    if room is None:
        return ROOM
    if isinstance(room, bool) or not isinstance(room, int) or room < 1:
        raise UnsupportedError(
            f"room is a number of tuples of a side that may wait, from 1 up; {room!r} was given"
        )
    return room


def predicate_of(on: str | Expression | None) -> Expr:
    """A predicate as it may be given; none is TRUE."""
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


def lateness_of(lateness: str | None, unit: str) -> int:
    """The allowed lateness in whole units."""
    if lateness is None:
        return 0
    if not isinstance(lateness, str):
        raise WindowError(f"lateness is a length of time such as '5 seconds', not {lateness!r}")
    length = Duration.parse(lateness).nanoseconds
    if length < 0:
        raise WindowError(f"lateness cannot be negative; '{lateness}' is")
    return length // UNITS[unit]
