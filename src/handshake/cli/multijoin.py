"""`handshake multijoin`: files of several streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from handshake.api import why_streams
from handshake.cli import options as flags
from handshake.cli.errors import reporting
from handshake.cli.live_page import Live, LiveAt, open_live
from handshake.cli.options import given_options, row_numbers, with_options
from handshake.cli.report import Delivery
from handshake.engines.joins import JOIN
from handshake.engines.local.engine import MultiJoinRun
from handshake.errors import HandshakeError
from handshake.io import read
from handshake.joins.join import MultiReplay, prepare_streams
from handshake.options import CoreOptions
from handshake.plan import parse
from handshake.windows import windows_of

Texts = list[str] | None


@with_options("multijoin")
def multijoin(
    context: typer.Context,
    inputs: Annotated[list[str], typer.Argument(metavar="NAME=PATH", help="The streams, by name.")],
    on: Annotated[str, typer.Option("--on", metavar="PRED", help="Condition in SQL, such as 'a.x < b.y'.")],
    window: Annotated[
        Texts, typer.Option(metavar="[NAME=]SPEC", help="Window of all inputs, or of one; may be repeated.")
    ] = None,
    time: Annotated[
        Texts,
        typer.Option(metavar="[NAME=]COL", help="Time column of all inputs, or of one; may be repeated."),
    ] = None,
    output: flags.Output = None,
    metrics: flags.Metrics = None,
    explain: flags.Explain = False,
    why: flags.Why = None,
    live: Live = False,
    live_at: LiveAt = None,
    **options: Any,
) -> None:
    """Join two or more inputs, replayed as streams.

    Each input is NAME=PATH: a file or a folder of files, as for 'handshake join'. In the predicate, NAME.x is
    column x of that input. A combination of one row of each input is a result if the predicate is true and,
    when the last of its rows arrives, all others are still in their windows. The result has all columns of
    the inputs in order; a name that an earlier input has too gets the suffix _NAME. A run that Ctrl-C
    interrupts writes no file.

    \b
    Examples:
      Orders, payments within ten minutes, and one of the last 1000 shipments of the same size:
        handshake multijoin o=orders.parquet p=payments.parquet s=shipments.csv --time t \\
            --window "10 minutes" --window "s=1000 tuples" --output matches.parquet \\
            --on "o.id = p.order_id AND ABS(o.weight - s.weight) <= 5"
      In which order each input's rows go through the windows of the others, and why:
        handshake multijoin a=a.csv b=b.csv c=c.csv --on "a.x = b.x AND b.y < c.y" --explain
      At twice the speed of the time columns; rows that the join cannot keep up with are dropped and counted:
        handshake multijoin a=a.csv b=b.csv c=c.csv --on "a.x = b.x AND b.y < c.y" --time t \\
            --window "1 minute" --pace 2 --overload shed --adapt --metrics figures.json
      Why row 4 of a, row 0 of b and row 7 of c are no result:
        handshake multijoin a=a.csv b=b.csv c=c.csv --on "a.x = b.x AND b.y < c.y" --time t \\
            --window "1 minute" --why a=4 --why b=0 --why c=7
    """
    delivery = Delivery({} if output is None else {JOIN: output}, metrics)
    with reporting(delivery.interrupted, context):
        wanted, paths = given_options(options), _paths(inputs)
        delivery = replace(delivery, inputs={f"the input {name}": path for name, path in paths.items()})
        windows, times = _by_stream("window", window or (), paths), _by_stream("time", time or (), paths)
        for spec in windows.values():
            windows_of(spec)
        parse(on)
        delivery.check()
        tables = {name: read(path, name) for name, path in paths.items()}
        plan = prepare_streams(
            {name: table.schema for name, table in tables.items()}, on, windows=windows, time=times,
            **wanted.pick(CoreOptions),
        )  # fmt: skip
        replay = MultiReplay(plan, tables, pace=wanted.pace)
        if why:
            print(why_streams(row_numbers(why), on, streams=tables, windows=windows, time=times or None))
        elif explain:
            print(replay.explain())
        else:
            with open_live(live, live_at) as page:
                delivery.deliver(MultiJoinRun(replay, JOIN, plan.output_schema), page, list(paths))


def _paths(inputs: Sequence[str]) -> dict[str, str]:
    """Return files or folders by the names of their streams."""
    found: dict[str, str] = {}
    for text in inputs:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise HandshakeError(f"input '{text}' has no name; write NAME=PATH, such as trades=trades.csv")
        if name in found:
            raise HandshakeError(f"two inputs are called '{name}'; give each a name of its own")
        found[name] = path
    return found


def _by_stream(option: str, given: Sequence[str], streams: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each stream: `NAME=VALUE` is for one, `VALUE` for all others."""
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
