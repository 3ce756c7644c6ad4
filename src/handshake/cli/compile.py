"""`handshake compile`, as a command: the circuit back end, which is an extra, is imported when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from handshake.errors import UnsupportedError

__all__ = [
    "Buffer",
    "Divider",
    "Groups",
    "JoinKind",
    "Text",
    "WindowTuples",
    "Without",
    "circuits",
    "register",
]

Reporting = Callable[..., AbstractContextManager[None]]
Groups = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Circuit: most groups of a window, for GROUP BY.")
]
Text = Annotated[
    int | None, typer.Option(min=1, metavar="BYTES", help="Circuit: length of strings declared without one.")
]
JoinKind = Annotated[
    str,
    typer.Option(
        "--join",
        metavar="auto|handshake|ordered",
        help="Circuit: join cores in a line, or results in order; auto: by what reads them.",
    ),
]
Buffer = Annotated[
    int, typer.Option(min=1, metavar="N", help="Circuit: results that the buffer of a join core holds.")
]
WindowTuples = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Circuit: most tuples of a joined stream's window of time."),
]
Divider = Annotated[
    str,
    typer.Option(
        metavar="pipelined|serial|host",
        help="Circuit: who divides averages: a pipeline, a small unit bit by bit, or the host.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="RULE", help="Circuit: an optimisation to leave out; can be repeated."),
]


def circuits() -> Any:
    """The module that knows circuits."""
    try:
        return importlib.import_module("handshake.cli.circuit")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"circuits need the package {error.name}; install handshake[circuit]"
        ) from None


_HELP = """Compile continuous queries to a circuit, as Verilog.

The module has an input stream for each declared stream and an output stream for each result; docs/circuits.md
says how they are wired. Without -o it only says what the circuit is like. Rules that --without leaves out:
narrow_joins, unnest_group_in_window, evaluate_in_parallel, multiplex_windows, eliminate_registers.

\b
Examples:
  handshake compile query.sql -o query.v --report
  handshake compile query.sql -o query.v --groups 64
  handshake compile join.sql -o join.v --cores 16 --report
"""


def register(app: typer.Typer, reporting: Reporting) -> None:
    """Add the command."""

    @app.command(name="compile", help=_HELP)
    def compile_(
        query: Annotated[str, typer.Argument(metavar="QUERY.sql", help="File with the query; - is input.")],
        output: Annotated[
            str | None,
            typer.Option("--output", "-o", metavar="FILE.v", help="Verilog goes there; - is output."),
        ] = None,
        figures: Annotated[
            bool,
            typer.Option("--report", help="Latency, issue rate, registers and LUTs (6-series, by Yosys)."),
        ] = False,
        groups: Groups = None,
        text: Text = None,
        cores: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Join cores; 4 unless a window is smaller.")
        ] = None,
        join: JoinKind = "auto",
        buffer: Buffer = 8,
        window_tuples: WindowTuples = None,
        divider: Divider = "pipelined",
        nullable: Annotated[
            list[str] | None,
            typer.Option(metavar="STREAM.FIELD", help="A field that may be NULL; can be repeated."),
        ] = None,
        without: Without = None,
    ) -> None:
        with reporting():
            circuits().compile_query(
                query,
                output,
                groups=groups,
                text=text,
                cores=cores,
                join=join,
                buffer=buffer,
                window_tuples=window_tuples,
                divider=divider,
                nullable=nullable or (),
                without=without or (),
                figures=figures,
            )
