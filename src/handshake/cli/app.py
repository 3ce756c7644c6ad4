"""The command line. Errors are one line; the exit status says which kind."""

from __future__ import annotations

import errno
import importlib
import io
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from handshake import __version__
from handshake.cli.compile import compile_query
from handshake.cli.demo import demo
from handshake.cli.explain import explain
from handshake.cli.join import join
from handshake.cli.live import live
from handshake.cli.multijoin import multijoin
from handshake.cli.receive import receive, send
from handshake.cli.report import BAD_USAGE, INTERRUPTED, close_output, complain, fail, reporting
from handshake.cli.run import run as run_query
from handshake.cli.state import state
from handshake.cli.why import why
from handshake.io import describe_formats, one_line
from handshake.options import options_table

TERMINATED = 143
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
UsageError: Any = typer.BadParameter.__mro__[1]
"""The base of the errors of the option parser; its home differs between versions of Typer."""

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
app.add_typer(state, name="state")


def main() -> NoReturn:
    """Run the `handshake` program."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # never fail over a character that the terminal lacks
            stream.reconfigure(errors="backslashreplace")
    status = run(sys.argv[1:])
    sys.exit(close_output() or status)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The command line without the name of the program.

    Returns:
        The exit status: 0, 2 for bad usage or input, or 130 after Ctrl-C.
    """
    try:
        status = _program()(list(arguments), prog_name="handshake", standalone_mode=False)
    except UsageError as error:
        complain(_usage_message(error))
        return BAD_USAGE
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:  # not the failure of a print
            raise
        return close_output(error)
    return status if isinstance(status, int) else 0


@cache
def _program() -> Any:
    """Return the parser of all commands; making it takes longer than most uses of it."""
    return typer.main.get_command(app)


def _usage_message(error: Any) -> str:
    """Return the parser's message in one line, with what would work."""
    message, context = one_line(error.format_message(), limit=500).rstrip("."), getattr(error, "ctx", None)
    if context is None:
        return message
    commands = getattr(context.command, "commands", None)
    if commands:
        return f"{message}; the commands of '{context.command_path}' are {', '.join(commands)}"
    return f"{message}; see '{context.command_path} --help'"


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Exit by an exception, so that temporary files are removed."""
    raise SystemExit(TERMINATED)


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


def options() -> None:
    """Show all options of runs as a table in Markdown."""
    print(options_table(), end="")


_COMMANDS: dict[str, Callable[..., None]] = {
    "join": join, "demo": demo, "multijoin": multijoin, "run": run_query, "explain": explain,
    "compile": compile_query, "why": why, "live": live, "receive": receive, "send": send, "options": options,
}  # fmt: skip
for _name, _command in _COMMANDS.items():
    _help = str(_command.__doc__).replace("{formats}", describe_formats())
    app.command(_name, help=_help)(_command)


def _bench(name: str, **options: Any) -> None:
    with reporting():
        try:
            module = importlib.import_module(f"handshake_bench.{name}")
        except ModuleNotFoundError as error:
            fail(
                f"bench {name} needs '{error.name}', which is not installed; "
                "from a checkout: pip install -e '.[bench]'"
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
            fail("benchmarks are part of the source checkout, not of the installed package")
    else:
        commands.add_commands(bench, _bench, reporting)


_add_benchmarks()
