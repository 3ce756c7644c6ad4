"""`handshake explain`: the plan or the circuit of a query."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from handshake.cli.errors import reporting
from handshake.cli.options import check_options, given_options, is_typed, with_options
from handshake.cli.report import read_text, write_text
from handshake.engines.engine import engine, engine_module
from handshake.errors import UnsupportedError
from handshake.plan.explain import dot
from handshake.plan.optimise import optimise
from handshake.plan.picture import svg
from handshake.plan.query import parse_query


@with_options("explain")
def explain(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY.sql", help="File with the query; - is input.")],
    dot_file: Annotated[
        str | None, typer.Option("--dot", metavar="FILE", help="Write a graph for Graphviz; - is output.")
    ] = None,
    svg_file: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Write a drawing; - is output.")
    ] = None,
    optimised: Annotated[
        bool, typer.Option("--optimised", help="The plan as it runs, after all rules.")
    ] = False,
    backend: Annotated[
        str, typer.Option(metavar="local|spark", help="Spark: also which results run in one task, and why.")
    ] = "local",
    circuit: Annotated[bool, typer.Option("--circuit", help="The circuit instead of the plan.")] = False,
    **options: Any,
) -> None:
    """Show the plan of a query, in the algebra of Glacier's Table 1.

    \b
    Examples:
      handshake explain query.sql
      handshake explain query.sql --optimised
      handshake explain query.sql --svg plan.svg
      handshake explain query.sql --backend spark
      handshake explain query.sql --circuit --svg circuit.svg
    """
    with reporting(context=context):
        if not circuit and backend == "circuit":
            raise UnsupportedError(
                "a plan is explained for --backend local or spark, not 'circuit'; --circuit shows the circuit"
            )
        check_options(context, "circuit" if circuit else backend)
        if circuit and backend != "circuit" and is_typed(context, "backend"):
            raise UnsupportedError(
                f"--circuit explains a circuit, and --backend {backend} a plan; leave one of them out"
            )
        wanted = given_options(options, optimised=optimised or circuit)
        plan = parse_query(read_text(query))
        if circuit and svg_file is not None:
            write_text(svg_file, engine_module("circuit", "engine").CircuitEngine().draw(plan, wanted))
        elif dot_file is not None or svg_file is not None:
            shown = optimise(plan) if optimised else plan
            for path, draw in ((dot_file, dot), (svg_file, svg)):
                if path is not None:
                    write_text(path, draw(shown))
        else:
            print(engine("circuit" if circuit else backend).explain(plan, wanted))
