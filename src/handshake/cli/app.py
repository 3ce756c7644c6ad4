"""The command line. Errors are one line; the exit status says which kind."""

from __future__ import annotations

import errno
import importlib
import io
import signal
import sys
from collections.abc import Sequence
from functools import cache
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from handshake import __version__
from handshake.cli.errors import BAD_USAGE, INTERRUPTED, close_output, complain, fail, reporting
from handshake.errors import one_line
from handshake.options import options_table

TERMINATED = 143
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
UsageError: Any = typer.BadParameter.__mro__[1]
"""The base of the errors of the option parser; its home differs between versions of Typer."""

_COMMANDS = {
    "join": ("join:join", "Join two inputs, replayed as streams."),
    "demo": (
        "demo:demo",
        "Join two made-up streams of trades and quotes live on Spark, then check the results.",
    ),
    "multijoin": ("multijoin:multijoin", "Join two or more inputs, replayed as streams."),
    "run": ("run:run", "Run continuous queries on files, or on standard input."),
    "explain": ("explain:explain", "Show the plan of a query, in the algebra of Glacier's Table 1."),
    "compile": ("compile:compile_query", "Compile continuous queries to a circuit, as Verilog."),
    "why": ("why:why", "Show why a row of LEFT and a row of RIGHT join, or why they do not."),
    "live": ("live:live", "Show all that runs on this machine on one web page."),
    "receive": ("receive:receive", "Receive datagrams of packed rows, and put them into a durable log."),
    "send": ("receive:send", "Send the rows of a file as datagrams of packed rows."),
    "state": ("state:state", "Read the state of streaming joins on Spark, from outside of their queries."),
}
"""The place of each command below `handshake.cli`, and the first line of its help."""


@cache
def load(name: str) -> Any:
    """Import a command, with all that it runs on, and return its parser."""
    module, _, attribute = _COMMANDS[name][0].partition(":")
    found = getattr(importlib.import_module(f"handshake.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        formats = importlib.import_module("handshake.io").describe_formats()
        command, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
        found.command(name, help=str(command.__doc__).replace("{formats}", formats))(command)
    return typer.main.get_command(found)


class _Commands(typer.core.TyperGroup):
    """All commands. Only the one that runs is imported: the list of them shows within 0.3 seconds."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="handshake",
    cls=_Commands,
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
    for argument in arguments:
        if "\0" in argument:  # not from a shell, which cannot pass one
            complain(f"argument {argument!r} has a NUL character; remove it")
            return BAD_USAGE
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


for _name, (_, _help) in _COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)  # stands for the command until `load`


@app.command()
def options() -> None:
    """Show all options of runs as a table in Markdown."""
    print(options_table(), end="")


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
