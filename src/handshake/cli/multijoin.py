"""`handshake multijoin`: read several inputs, run the join, deliver the rows and a summary."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import pyarrow as pa
import typer

from handshake.cli.join import OVERLOAD, write_metrics
from handshake.cli.preview import Preview, plain_table, progress_bar
from handshake.errors import HandshakeError, InputError
from handshake.io import check_output, read, sink_for
from handshake.joins.multiway.multi_join import MultiMetrics, MultiPlan, MultiReplay, prepare_streams
from handshake.joins.running import old_objects_spared
from handshake.plan import parse
from handshake.windows import windows_of

__all__ = ["MultiRequest", "join_many_files", "register"]

Reporting = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class MultiRequest:
    """What was asked for on the command line."""

    inputs: Sequence[str]
    on: str
    windows: Sequence[str] = ()
    times: Sequence[str] = ()
    cores: int | None = None
    pin: bool = False
    adapt: bool = False
    pace: float | None = None
    overload: str = "block"
    room: int | None = None
    output: str | None = None
    metrics: str | None = None
    explain: bool = False

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

    def paths(self) -> dict[str, str]:
        """Files or folders by the names of their streams."""
        found: dict[str, str] = {}
        for text in self.inputs:
            name, equals, path = text.partition("=")
            if not equals or not name or not path:
                raise HandshakeError(
                    f"input '{text}' has no name; write NAME=PATH, such as trades=trades.csv"
                )
            if name in found:
                raise HandshakeError(f"two inputs are called '{name}'; give each a name of its own")
            found[name] = path
        return found

    def check(self) -> None:
        """Refuse, before any file is read, what cannot work with any."""
        for spec in _named("window", self.windows, self.paths()).values():
            windows_of(spec)
        _named("time", self.times, self.paths())
        parse(self.on)
        OVERLOAD.check(self.overload)
        if self.output is not None:
            check_output(self.output)
        if self.metrics is not None and Path(self.metrics).is_dir():
            raise InputError(f"metrics file '{self.metrics}' is a folder; name a file in it")


def _named(option: str, given: Sequence[str], streams: Sequence[str] | dict[str, str]) -> dict[str, str]:
    """`NAME=VALUE` for one stream, `VALUE` for all that have none of their own."""
    common: dict[str, str] = {}
    own: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            if common:
                raise HandshakeError(f"--{option} is given twice for all inputs; write NAME={text}")
            common = dict.fromkeys(streams, text)
        elif name not in streams:
            raise HandshakeError(f"--{option} '{text}' is for no input; the inputs are {', '.join(streams)}")
        elif name in own:
            raise HandshakeError(f"--{option} is given twice for '{name}'; give it once")
        else:
            own[name] = value
    return common | own


def join_many_files(request: MultiRequest) -> None:
    """Run a request from the files to the summary."""
    request.check()
    paths = request.paths()
    tables = {name: read(path, name) for name, path in paths.items()}
    plan = prepare_streams(
        {name: table.schema for name, table in tables.items()},
        request.on,
        windows=_named("window", request.windows, paths),
        time=_named("time", request.times, paths),
        cores=request.cores,
        pin=request.pin,
        overload=request.overload,
        room=request.room,
        adapt=request.adapt,
    )
    replay = MultiReplay(plan, tables, pace=request.pace)
    if request.explain:
        print(replay.explain())
    else:
        _run(request, plan, replay)


def _run(request: MultiRequest, plan: MultiPlan, replay: MultiReplay) -> None:
    preview = Preview(plan.output_schema)
    with contextlib.ExitStack() as stack:
        deliver: Callable[[pa.RecordBatch], None] = preview.add
        if request.output is not None:
            deliver = stack.enter_context(sink_for(request.output, plan.output_schema)).write
        if sys.stderr.isatty() and not (request.output == "-" and sys.stdout.isatty()):
            stack.enter_context(progress_bar(lambda: (replay.done, replay.total)))
        stack.enter_context(old_objects_spared())
        for batch in replay:
            deliver(batch)
    if request.metrics is not None:
        write_metrics(request.metrics, replay.metrics())
    if request.output is None:
        for line in preview.lines():
            print(line)
    for line in plain_table(_summary(request, replay.metrics())):
        print(line, file=request.summary_to)


def _summary(request: MultiRequest, metrics: MultiMetrics) -> Iterator[tuple[str, str]]:
    for stream in metrics.streams:
        yield stream.name, f"{stream.rows:,} rows, joined with {', then '.join(stream.order)}"
    yield "results", f"{metrics.results:,}"
    yield "late", f"{metrics.late:,}"
    if metrics.shed:
        yield "shed", ", ".join(f"{s.name} {s.shed:,} ({s.shed_share:.2%})" for s in metrics.streams)
    if metrics.no_time:
        yield "no time", f"{metrics.no_time:,} rows without a timestamp join nothing"
    yield "elapsed", f"{metrics.elapsed:.2f} s"
    yield "rate", f"{metrics.rows / metrics.elapsed if metrics.elapsed else 0:,.0f} input rows/s"
    yield "cores", f"{len(metrics.cores)}, {metrics.algorithm}"
    if request.output not in (None, "-"):
        yield "output", str(request.output)


def register(app: typer.Typer, reporting: Reporting) -> None:
    """Add the command; `reporting` turns errors into one line and an exit status."""

    @app.command(
        help="""Join two or more inputs, replayed as streams.

Each input is NAME=PATH: a file or a folder of files, as for 'handshake join'. In the predicate, NAME.x is
column x of that input. A combination of one tuple of each input is a result when the predicate is true and,
when the last of its tuples arrives, all others are still in their windows. The result has all columns of the
inputs in order; a name that an input before has already gets a suffix, _NAME.

\b
Examples:
  Orders, payments within ten minutes, and one of the last 1000 shipments of the same size:
    handshake multijoin o=orders.parquet p=payments.parquet s=shipments.csv --time t \\
        --window "10 minutes" --window "s=1000 tuples" --output matches.parquet \\
        --on "o.id = p.order_id AND ABS(o.weight - s.weight) <= 5"
  In which order each input's tuples go through the windows of the others, and why:
    handshake multijoin a=a.csv b=b.csv c=c.csv --on "a.x = b.x AND b.y < c.y" --explain
  At twice the speed of the time columns; what the join cannot keep up with is shed, and counted:
    handshake multijoin a=a.csv b=b.csv c=c.csv --on "a.x = b.x AND b.y < c.y" --time t \\
        --window "1 minute" --pace 2 --overload shed --adapt --metrics figures.json
""",
    )
    def multijoin(
        inputs: Annotated[list[str], typer.Argument(metavar="NAME=PATH", help="The streams, by name.")],
        on: Annotated[
            str, typer.Option("--on", metavar="PRED", help="Condition in SQL, such as 'a.x < b.y'.")
        ],
        window: Annotated[
            list[str] | None,
            typer.Option(metavar="[NAME=]SPEC", help="Window of all inputs, or of one; may be repeated."),
        ] = None,
        time: Annotated[
            list[str] | None,
            typer.Option(metavar="[NAME=]COL", help="Time column of all inputs, or of one; may be repeated."),
        ] = None,
        cores: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Cores to use; all by default.")
        ] = None,
        pin: Annotated[
            bool, typer.Option("--pin", help="Keep each core on a processor of its own (Linux).")
        ] = False,
        adapt: Annotated[
            bool, typer.Option("--adapt", help="Use as many cores as the load asks for, from one up.")
        ] = False,
        pace: Annotated[
            float | None,
            typer.Option(metavar="X", help="Let tuples arrive X times as fast as their times say."),
        ] = None,
        overload: Annotated[
            str,
            typer.Option(
                metavar=OVERLOAD.metavar, help="When the join is behind: block (the inputs wait) or shed."
            ),
        ] = "block",
        room: Annotated[
            int | None,
            typer.Option(min=1, metavar="N", help="Tuples of an input that may wait for the join."),
        ] = None,
        output: Annotated[
            str | None,
            typer.Option(
                metavar="FILE", help="Write results there (by extension); - is CSV on standard output."
            ),
        ] = None,
        metrics: Annotated[
            str | None, typer.Option(metavar="FILE", help="Write the figures of the run there, as JSON.")
        ] = None,
        explain: Annotated[
            bool, typer.Option("--explain", help="Show how the join would run, and stop.")
        ] = False,
    ) -> None:
        request = MultiRequest(
            inputs, on, window or (), time or (), cores, pin, adapt, pace, overload, room, output, metrics,
            explain,
        )  # fmt: skip
        with reporting(request.interrupted):
            join_many_files(request)
