"""`handshake compile`, as a command: the circuit back end, which is an extra, is imported when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from handshake.errors import UnsupportedError

__all__ = ["Groups", "Text", "Without", "circuits", "register"]

Reporting = Callable[..., AbstractContextManager[None]]
Groups = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Circuit: most groups of a window, for GROUP BY.")
]
Text = Annotated[
    int | None, typer.Option(min=1, metavar="BYTES", help="Circuit: length of strings declared without one.")
]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="RULE", help="Circuit: an optimisation to leave out; can be repeated."),
]


def circuits() -> Any:
    """The module that knows circuits."""
    try:
        return importlib.import_module("handshake.cli_circuit")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"circuits need the package {error.name}; install handshake[circuit]"
        ) from None


_HELP = """Compile continuous queries to a circuit, as Verilog.

The module has an input stream for each declared stream and an output stream for each result; docs/circuits.md
says how they are wired. Without -o it only says what the circuit is like. Rules that --without leaves out:
unnest_group_in_window, evaluate_in_parallel, multiplex_windows, eliminate_registers.

\b
Examples:
  handshake compile query.sql -o query.v --report
  handshake compile query.sql -o query.v --groups 64
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
                nullable=nullable or (),
                without=without or (),
                figures=figures,
            )
