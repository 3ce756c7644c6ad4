"""The command line: join, demo, bench. Errors are one line; the exit status says which kind."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from handshake import __version__
from handshake.cli.compile import register as register_compile
from handshake.cli.demo import show_demo
from handshake.cli.demo_spark import show_spark_demo
from handshake.cli.join import (
    ALGORITHMS,
    BACKENDS,
    DEMO_BACKENDS,
    METHODS,
    OVERLOAD,
    JoinRequest,
    join_files,
)
from handshake.cli.multijoin import register
from handshake.cli.options import check_options
from handshake.cli.query import register as register_queries
from handshake.cli.receive import register as register_receive
from handshake.cli.spark import Place, join_files_on_spark
from handshake.errors import HandshakeError, QueryError, UnsupportedError
from handshake.io import describe_formats, one_line

__all__ = ["app", "main", "run"]

BAD_USAGE, INTERRUPTED, TERMINATED = 2, 130, 143
UsageError: Any = typer.BadParameter.__mro__[1]
"""The base of what the parser of options raises; its home differs between versions of Typer."""

app = typer.Typer(
    name="handshake",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Join streams over sliding windows, on any predicate, exactly.

\b
Examples:
  handshake demo
  handshake join trades.parquet quotes.parquet --time time --window "5 seconds" \\
      --on "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05"
  handshake join --help
  handshake run query.sql --input Trades=trades.parquet

\b
On Spark, streams and clusters included, from Python:
  handshake.join(left_df, right_df, "l.price BETWEEN r.bid AND r.ask", window="5 seconds", time="time")
""",
)
bench = typer.Typer(
    rich_markup_mode=None,
    help="""Measure joins on this machine, and reproduce the figures of the papers.

\b
Examples:
  handshake bench scan
  handshake bench batch --rows 100000
  handshake bench sustained --window "10 minutes" --method scan
""",
)
app.add_typer(bench, name="bench")


def main() -> NoReturn:
    """The `handshake` program."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # never fail over a character that the terminal lacks
            stream.reconfigure(errors="backslashreplace")
    status = run(sys.argv[1:])
    _close_output()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status is 0, or 2 for bad usage or input, or 130 after Ctrl-C."""
    try:
        status = app(list(arguments), prog_name="handshake", standalone_mode=False)
    except UsageError as error:
        _complain(_usage_message(error))
        return BAD_USAGE
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return INTERRUPTED
    return status if isinstance(status, int) else 0


@contextlib.contextmanager
def reporting(interrupted: str = "interrupted") -> Iterator[None]:
    """Turn what may go wrong in a command into a line on standard error and an exit status."""
    try:
        yield
    except QueryError as error:
        _fail(error.message, BAD_USAGE, error.excerpt)
    except HandshakeError as error:
        _fail(str(error), BAD_USAGE)
    except MemoryError:
        _fail("not enough memory for these inputs; a smaller window or shorter inputs may fit", BAD_USAGE)
    except KeyboardInterrupt:
        _fail(interrupted, INTERRUPTED)
    except BrokenPipeError:  # the reader of standard output has seen enough
        _close_output()
        raise typer.Exit(0) from None


def _fail(message: str, status: int, excerpt: str = "") -> NoReturn:
    _complain(message)
    if excerpt:
        print(excerpt, file=sys.stderr, flush=True)
    raise typer.Exit(status) from None


def _complain(message: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"handshake: {one_line(message, limit=2000)}", file=sys.stderr, flush=True)


def _usage_message(error: Any) -> str:
    """The parser's message in one line, with what would work."""
    message, context = one_line(error.format_message(), limit=500).rstrip("."), getattr(error, "ctx", None)
    if context is None:
        return message
    commands = getattr(context.command, "commands", None)
    if commands:
        return f"{message}; the commands of '{context.command_path}' are {', '.join(commands)}"
    return f"{message}; see '{context.command_path} --help'"


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through the usual doors, so that temporary files go."""
    raise SystemExit(TERMINATED)


def _close_output() -> None:
    """Flush standard output; where nobody reads it any more, leave it without a word."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"handshake {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _handshake(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    help=f"""Join two inputs, replayed as streams.

LEFT and RIGHT are files or folders of files: {describe_formats()}. In the predicate,
l.x is column x of LEFT and r.a column a of RIGHT. A pair
joins when the predicate is true and each tuple arrives while the other is still in its window; without a
window every pair is compared. The result has all columns of LEFT, then those of RIGHT, a name that both have
getting the suffix _right there.

\b
Examples:
  Trades within the spread of a quote of the last five seconds:
    handshake join trades.parquet quotes.parquet --time time --window "5 seconds" \\
        --on "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05" --output matches.parquet
  The last 1000 tuples of each stream, rows to another program:
    handshake join a.csv b.csv --window "1000 tuples" --on "ABS(l.x - r.y) <= 10" --output - | head
  As fast as the times say, dropping what the join cannot keep up with, and counting it:
    handshake join a.parquet b.parquet --time t --window 1min --on "l.x < r.y" --pace 1 --overload shed
  The same files and options, run by Spark on this machine, or on a cluster:
    handshake join trades.parquet quotes.parquet --time time --window "5 seconds" \\
        --on "l.price BETWEEN r.bid AND r.ask" --backend spark
    … --backend spark --master spark://host:7077 --state-dir /mnt/shared
  In a circuit of 8 join cores, simulated:
    handshake join left.csv right.csv --window "64 tuples" --on "l.key = r.key" --backend circuit --cores 8
  Different windows and time columns, and how the join would run:
    handshake join a.csv b.csv --left-window 10min --right-window 90s --left-time sent --right-time got \\
        --on "l.id = r.id AND l.size > r.size" --explain
""",
)
def join(
    context: typer.Context,
    left: Annotated[str, typer.Argument(metavar="LEFT", help="File or folder of the left stream.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="File or folder of the right stream.")],
    on: Annotated[str, typer.Option("--on", metavar="PRED", help="Condition in SQL, such as 'l.x < r.a'.")],
    window: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Window of both: '15 minutes', '900s' or '1000 tuples'."),
    ] = None,
    left_window: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Window of LEFT, if it differs.")
    ] = None,
    right_window: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Window of RIGHT, if it differs.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COL", help="Time column of both; a time window needs one.")
    ] = None,
    left_time: Annotated[
        str | None, typer.Option(metavar="COL", help="Time column of LEFT, if it differs.")
    ] = None,
    right_time: Annotated[
        str | None, typer.Option(metavar="COL", help="Time column of RIGHT, if it differs.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(metavar=BACKENDS.metavar, help="In this process, by Spark, or in a simulated circuit."),
    ] = "local",
    algorithm: Annotated[str, typer.Option(metavar=ALGORITHMS.metavar, help=ALGORITHMS.help)] = "low_latency",
    cores: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cores to use, on Spark segments; all by default.")
    ] = None,
    method: Annotated[str, typer.Option(metavar=METHODS.metavar, help=METHODS.help)] = "auto",
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write results there (by extension); - is CSV on standard output."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the figures of the run there, as JSON.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how the join would run, and stop.")
    ] = False,
    pace: Annotated[
        float | None,
        typer.Option(metavar="X", help="Let rows arrive X times as fast as their times; at once by default."),
    ] = None,
    overload: Annotated[
        str,
        typer.Option(
            metavar=OVERLOAD.metavar,
            help="When the join is behind the pace: hold rows back, or drop and count.",
        ),
    ] = "block",
    room: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows of a side that may wait at a pace.")
    ] = None,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Begin with one core, use more as the load grows; cell only.")
    ] = False,
    pin: Annotated[
        bool, typer.Option("--pin", help="Keep each core on a processor of its own (Linux).")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark: the cluster, as in spark://host:7077; else this machine."),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Spark: a folder or URI that every executor reaches."),
    ] = None,
    text_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Circuit: the most bytes that a text has.")
    ] = None,
) -> None:
    request = JoinRequest(
        left, right, on, window, left_window, right_window, time, left_time, right_time,
        backend, algorithm, cores, method, output, metrics, explain, pace, overload, room, adapt, pin,
    )  # fmt: skip
    place = Place(master, state_dir)
    with reporting(request.interrupted):
        check_options(context, backend)
        if backend == "spark":
            join_files_on_spark(request, place)
        elif backend == "circuit":
            _circuit_module().join_files_on_circuit(request, text_bytes)
        else:
            join_files(request)


def _circuit_module() -> Any:
    try:
        return importlib.import_module("handshake.cli.join_circuit")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"the circuit back end needs '{error.name}', which is not installed; "
            "pip install 'handshake[circuit]'"
        ) from None


@app.command(
    help="""Join two made-up streams of trades and quotes live on Spark, then check the results.

The predicate has no equality, so that Spark's own stream join would refuse it. A plain double loop checks the
results in the end. Nothing is written unless --save asks for it. Without Spark or Java, --backend local runs
the same join in process.

\b
Examples:
  handshake demo
  handshake demo --seconds 60 --rate 10000 --ui
  handshake demo --backend local --save demo-data
""",
)
def demo(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long the streams last: 30, in process 10.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Tuples per second and stream: 4000, in process 20000.")
    ] = None,
    save: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write both streams there, as Parquet.")
    ] = None,
    backend: Annotated[str, typer.Option(metavar=DEMO_BACKENDS.metavar, help="Where it runs.")] = "spark",
    ui: Annotated[bool, typer.Option("--ui", help="Serve Spark's own pages too, on this machine.")] = False,
) -> None:
    with reporting():
        DEMO_BACKENDS.check(backend)
        check_options(context, backend)
        if backend == "spark":
            right = show_spark_demo(seconds or 30.0, rate or 4_000, save, ui=ui)
        else:
            right = show_demo(seconds or 10.0, rate or 20_000, save)
        if not right:
            raise typer.Exit(1)


register(app, reporting)
register_queries(app, reporting)
register_compile(app, reporting)
register_receive(app, reporting)


def _bench(name: str, **options: Any) -> None:
    with reporting():
        try:
            module = importlib.import_module(f"handshake_bench.{name}")
        except ModuleNotFoundError as error:
            _fail(
                f"bench {name} needs '{error.name}', which is not installed; pip install 'handshake[bench]'",
                BAD_USAGE,
            )
        module.run(**options)


def _add_benchmarks() -> None:
    """Add the benchmarks of the source checkout; the wheel has none, and says so when asked for one."""
    try:
        commands = importlib.import_module("handshake_bench.commands")
    except ModuleNotFoundError as error:
        if error.name != "handshake_bench":
            raise

        @bench.callback(invoke_without_command=True, context_settings={"ignore_unknown_options": True})
        def missing(name: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
            _fail("benchmarks are part of the source checkout, not of the installed package", BAD_USAGE)
    else:
        commands.add_commands(bench, _bench, reporting)


_add_benchmarks()
