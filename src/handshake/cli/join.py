"""`handshake join`: read two inputs, run the join, deliver the rows and a summary."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa

from handshake.cli.preview import Preview, plain_table, progress_bar
from handshake.errors import HandshakeError, InputError, UnsupportedError, suggest
from handshake.io import check_output, read, sink_for
from handshake.joins import join as local
from handshake.joins.gate import OVERLOAD as OVERLOAD_NAMES
from handshake.joins.join import JoinPlan, Metrics, Replay, prepare
from handshake.joins.latency import Latency
from handshake.joins.running import old_objects_spared
from handshake.joins.spec import METHODS as METHOD_NAMES
from handshake.plan import parse
from handshake.windows import windows_of

__all__ = [
    "ALGORITHMS",
    "BACKENDS",
    "DEMO_BACKENDS",
    "METHODS",
    "OVERLOAD",
    "Choice",
    "JoinRequest",
    "join_files",
    "write_metrics",
]


@dataclass(frozen=True)
class Choice:
    """The values of an option: those that work, and those that a later release will bring."""

    name: str
    here: tuple[str, ...]
    later: tuple[str, ...] = ()

    @property
    def metavar(self) -> str:
        """All values, for the help text."""
        return "|".join(self.here + self.later)

    @property
    def help(self) -> str:
        """What the option is, and which values work."""
        if self.later:
            return f"In this release: {', '.join(self.here)}."
        return f"The {self.name}{'; auto picks one' if 'auto' in self.here else ''}."

    def check(self, value: str) -> None:
        """Refuse a value that does not work, saying which ones do."""
        choose = (
            f"choose {' or '.join(self.here)}" if len(self.here) < 3 else f"choose {', '.join(self.here)}"
        )
        if value in self.later:
            raise UnsupportedError(f"{self.name} '{value}' is not in this release; {choose}")
        if value not in self.here:
            raise HandshakeError(f"unknown {self.name} '{value}'; {choose}{suggest(value, self.here)}")


BACKENDS = Choice("backend", ("local", "spark", "circuit"))
DEMO_BACKENDS = Choice("backend", ("local", "spark"))
ALGORITHMS = Choice("algorithm", local.ALGORITHMS)
METHODS = Choice("access method", METHOD_NAMES)
OVERLOAD = Choice("overload", OVERLOAD_NAMES)


@dataclass(frozen=True)
class JoinRequest:
    """What was asked for on the command line."""

    left: str
    right: str
    on: str
    window: str | None = None
    left_window: str | None = None
    right_window: str | None = None
    time: str | None = None
    left_time: str | None = None
    right_time: str | None = None
    backend: str = "local"
    algorithm: str = "low_latency"
    cores: int | None = None
    method: str = "auto"
    output: str | None = None
    metrics: str | None = None
    explain: bool = False
    pace: float | None = None
    overload: str = "block"
    room: int | None = None
    adapt: bool = False
    pin: bool = False

    @property
    def interrupted(self) -> str:
        """What to say after Ctrl-C."""
        if self.output is None or self.output == "-":
            return "interrupted"
        return f"interrupted; '{self.output}' was not written"

    @property
    def summary_to(self) -> IO[str]:
        """Where the summary goes: not among rows."""
        return sys.stderr if self.output == "-" else sys.stdout

    def check(self) -> None:
        """Refuse, before any file is read, what cannot work with any."""
        BACKENDS.check(self.backend)
        ALGORITHMS.check(self.algorithm)
        METHODS.check(self.method)
        OVERLOAD.check(self.overload)
        windows_of(self.window, self.left_window, self.right_window)
        parse(self.on)
        if self.output is not None:
            check_output(self.output)
        if self.metrics is not None and Path(self.metrics).is_dir():
            raise InputError(f"metrics file '{self.metrics}' is a folder; name a file in it")


def join_files(request: JoinRequest) -> None:
    """Run a request from the files to the summary."""
    request.check()
    left, right = read(request.left, "left"), read(request.right, "right")
    plan = _prepare(request, left.schema, right.schema)
    if request.explain:
        print(plan.explain())
        return
    if request.cores is not None and request.cores > plan.cores:
        note = f"handshake: {request.algorithm} runs on one core; --cores {request.cores} changes nothing"
        print(note, file=sys.stderr)
    _run(request, plan, left, right)


def _prepare(request: JoinRequest, left: pa.Schema, right: pa.Schema) -> JoinPlan:
    return prepare(
        left,
        right,
        request.on,
        window=request.window,
        left_window=request.left_window,
        right_window=request.right_window,
        time=request.time,
        left_time=request.left_time,
        right_time=request.right_time,
        method=request.method,
        algorithm=request.algorithm,
        cores=request.cores,
        overload=request.overload,
        room=request.room,
        adapt=request.adapt,
        pin=request.pin,
    )


def _run(request: JoinRequest, plan: JoinPlan, left: pa.Table, right: pa.Table) -> None:
    replay = Replay(plan, left, right, pace=request.pace)
    preview = Preview(plan.output_schema)
    with contextlib.ExitStack() as stack:
        deliver: Callable[[pa.RecordBatch], None] = preview.add
        if request.output is not None:
            deliver = stack.enter_context(sink_for(request.output, plan.output_schema)).write
        stack.enter_context(_progress(request, replay))
        stack.enter_context(old_objects_spared())
        for batch in replay:
            deliver(batch)
    if request.metrics is not None:
        write_metrics(request.metrics, replay.metrics())
    if request.output is None:
        for line in preview.lines():
            print(line)
    for line in _summary(request, plan, replay.metrics()):
        print(line, file=request.summary_to)


def _summary(request: JoinRequest, plan: JoinPlan, metrics: Metrics) -> Iterator[str]:
    rows = metrics.left_rows + metrics.right_rows
    facts = [
        ("left", f"{metrics.left_rows:,} rows"),
        ("right", f"{metrics.right_rows:,} rows"),
        ("results", f"{metrics.results:,}"),
        ("late", f"{metrics.late:,}"),
        ("elapsed", f"{metrics.elapsed:.2f} s"),
        ("rate", f"{rows / metrics.elapsed if metrics.elapsed else 0:,.0f} input rows/s"),
        ("method", f"{plan.method}: {plan.why}"),
        ("cores", f"{_cores(plan, metrics)}, {metrics.algorithm}"),
    ]
    if request.pace is not None:
        facts.insert(4, ("latency", _latency(metrics.latency)))
    if request.overload == "shed":
        facts.insert(4, ("shed", _shed(metrics)))
    if metrics.no_time:
        facts.insert(4, ("no time", f"{metrics.no_time:,} rows without a timestamp join nothing"))
    if request.output not in (None, "-"):
        facts.append(("output", str(request.output)))
    return plain_table(facts)


def _cores(plan: JoinPlan, metrics: Metrics) -> str:
    """How many; under adaptation, from the fewest to the most that were in use."""
    used = [cores for _, cores in metrics.core_counts]
    return f"{min(used)} to {max(used)} of {plan.cores}" if used else str(plan.cores)


def _latency(latency: Latency) -> str:
    """Percentiles, in milliseconds."""
    p50, p99, longest = (1e3 * seconds for seconds in (latency.p50, latency.p99, latency.longest))
    return f"p50 {p50:,.1f} ms, p99 {p99:,.1f} ms, longest {longest:,.1f} ms"


def _shed(metrics: Metrics) -> str:
    """How many tuples of each side, and which share of them."""
    left, right = metrics.shed_shares
    return f"left {metrics.left_shed:,} ({left:.2%}), right {metrics.right_shed:,} ({right:.2%})"


class Figures(Protocol):
    """What a run did, as plain data."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""


def write_metrics(path: str, metrics: Figures) -> None:
    """The figures of a run as JSON, written whole or not at all."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(json.dumps(metrics.to_dict(), indent=2) + "\n")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"cannot write metrics to '{path}': {error.strerror}") from None


@contextlib.contextmanager
def _progress(request: JoinRequest, replay: Replay) -> Iterator[None]:
    """A bar on standard error, where that is a terminal and no rows are shown on one."""
    shows_rows = request.output == "-" and sys.stdout.isatty()
    if shows_rows or not sys.stderr.isatty():
        yield
        return
    with progress_bar(lambda: (replay.done, replay.total)):
        yield
