"""`handshake compile`: the circuit of a query, as Verilog."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from handshake.cli.errors import reporting
from handshake.cli.options import given_options, with_options
from handshake.cli.report import read_text, write_text
from handshake.engines.engine import engine_module, plain_table
from handshake.plan.query import parse_query


@with_options("compile")
def compile_query(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY.sql", help="File with the query; - is input.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE.v", help="Verilog goes there; - is output.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--report", help="Latency, issue rate, registers and LUTs (6-series, by Yosys).")
    ] = False,
    **options: Any,
) -> None:
    """Compile continuous queries to a circuit, as Verilog.

    The module has an input stream for each declared stream and an output stream for each result;
    docs/circuits.md says how they are wired. Without -o it only says what the circuit is like. Rules that
    --without leaves out: narrow_joins, unnest_group_in_window, evaluate_in_parallel, multiplex_windows,
    eliminate_registers.

    \b
    Examples:
      handshake compile query.sql -o query.v --report
      handshake compile query.sql -o query.v --groups 64
      handshake compile join.sql -o join.v --cores 16 --report
      handshake compile query.sql -o query.v --input-adapter udp --output-adapter cpu --report
    """
    with reporting(context=context):
        circuits = engine_module("circuit", "engine")
        compiled = circuits.CircuitEngine().compile(parse_query(read_text(query)), given_options(options))
        if output is not None:
            write_text(output, compiled.verilog())
        if figures or output is None:
            for line in plain_table(circuits.report(compiled, synthesis=figures)):
                print(line)
