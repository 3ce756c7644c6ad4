"""`handshake run`: queries from a file, on any engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from handshake.cli import options as flags
from handshake.cli.errors import reporting
from handshake.cli.live_page import Live, LiveAt, open_live
from handshake.cli.options import check_options, given_options, row_numbers, with_options
from handshake.cli.report import Delivery, read_text
from handshake.engines.engine import engine
from handshake.engines.inputs import Address
from handshake.engines.local.engine import explain_inputs
from handshake.errors import HandshakeError, suggest
from handshake.io.declared import BadRows
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query


@with_options("run")
def run(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY.sql", help="File with the query; - is input.")],
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="Where a stream comes from.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Where a result goes (by extension); - is CSV."),
    ] = None,
    backend: flags.Backend = "local",
    bad: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keep rows that do not fit there, with the reason.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a row that does not fit.")] = False,
    metrics: flags.Metrics = None,
    why: flags.Why = None,
    live: Live = False,
    live_at: LiveAt = None,
    **options: Any,
) -> None:
    """Run continuous queries on files, or on standard input.

    QUERY.sql declares input streams and selects from them; docs/queries.md has the language. Inputs are
    files or folders: {formats}; - is CSV on standard input, and udp://HOST:PORT datagrams
    (docs/sources.md). Files are replayed by time. Rows that do not fit the declared types are counted and
    left out; --bad keeps them, --strict stops at the first. Ctrl-C ends the input, and finishes what has
    come. --backend spark also takes any format of Spark's, with options:
    NAME=kafka:kafka.bootstrap.servers=host:9092,subscribe=trades.

    \b
    Examples:
      handshake run query.sql --input Trades=trades.parquet
      handshake run query.sql --input Trades=trades.csv --output PriceAverages=averages.parquet --bad bad.csv
      cat trades.csv | handshake run query.sql --input Trades=- --output UBSTrades=- | head
      handshake run query.sql --input Trades=trades.csv --backend circuit --vcd waves.vcd
      handshake run query.sql --input Trades=a.csv --input Quotes=b.csv --why Trades=17 --why Quotes=3
    """
    with reporting(context=context):
        check_options(context, backend)
        wanted, text = given_options(options), read_text(query)
        plan = parse_query(text)
        paths = _input_paths(plan, input or (), query)
        rows = BadRows(strict, kept=bad is not None)
        outputs = _output_paths(plan, output or ())
        read = {"the query": query, **{f"the input of {name}": path for name, path in paths.items()}}
        delivery = Delivery(outputs, metrics, rows, bad, named=True, inputs=read)
        delivery.check()
        inputs = {name: Address(path, rows, text) for name, path in paths.items()}
        if why:
            print("\n\n".join(map(str, explain_inputs(plan, inputs, row_numbers(why)))))
            return
        with open_live(live, live_at) as page:
            status = delivery.deliver(engine(backend).run(plan, inputs, wanted), page)
    if status:
        raise typer.Exit(status)


def _input_paths(plan: Plan, given: Sequence[str], query: str) -> dict[str, str]:
    """Return where each input comes from."""
    wanted = list(plan.own_inputs)
    found = _by_name("input", given, wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise HandshakeError(f"no input for stream {missing[0]}; give --input {missing[0]}=PATH")
    if list(found.values()).count("-") > 1:
        raise HandshakeError("only one stream can come from standard input; give each other one a file")
    if query == "-" and "-" in found.values():
        raise HandshakeError("standard input has the query, so no stream can be there; give it a file")
    return found


def _output_paths(plan: Plan, given: Sequence[str]) -> dict[str, str]:
    """Return where results go; a query with one result need not name it."""
    names = [output.name for output in plan.outputs]
    if len(names) == 1 and len(given) == 1 and "=" not in given[0]:
        given = [f"{names[0]}={given[0]}"]
    return _by_name("output", given, names)


def _by_name(option: str, given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE` by the names of streams."""
    found: dict[str, str] = {}
    known = {name.casefold(): name for name in names}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise HandshakeError(f"--{option} '{text}' has no name; write NAME=PATH")
        if name.casefold() not in known:
            hint = suggest(name, names)
            raise HandshakeError(
                f"--{option} '{text}': the query has no {option} '{name}' ({', '.join(names)}){hint}"
            )
        if known[name.casefold()] in found:
            raise HandshakeError(f"--{option} is given twice for '{name}'; give it once")
        found[known[name.casefold()]] = value
    return found
