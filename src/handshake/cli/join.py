"""`handshake join`: two files, on any engine."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from handshake.cli import options as flags
from handshake.cli.errors import reporting
from handshake.cli.live_page import Live, LiveAt, open_live
from handshake.cli.options import check_options, given_options, with_options
from handshake.cli.report import Delivery
from handshake.engines.engine import engine
from handshake.engines.joins import JOIN, join_plan
from handshake.engines.local.engine import JoinRun
from handshake.io import read
from handshake.kinds import KINDS, kind_of_join
from handshake.plan import parse
from handshake.windows import windows_of


@with_options("join")
def join(
    context: typer.Context,
    left: flags.LeftInput,
    right: flags.RightInput,
    on: flags.Predicate,
    window: flags.Window = None,
    left_window: flags.LeftWindow = None,
    right_window: flags.RightWindow = None,
    time: flags.Time = None,
    left_time: flags.LeftTime = None,
    right_time: flags.RightTime = None,
    how: Annotated[str, typer.Option(metavar="KIND", help=f"Kind of join: {', '.join(KINDS)}.")] = "inner",
    backend: flags.Backend = "local",
    output: flags.Output = None,
    metrics: flags.Metrics = None,
    explain: flags.Explain = False,
    live: Live = False,
    live_at: LiveAt = None,
    **options: Any,
) -> None:
    """Join two inputs, replayed as streams.

    LEFT and RIGHT are files or folders of files: {formats}. In the predicate, l.x is column x of LEFT and
    r.a column a of RIGHT. A pair joins if the predicate is true and each row arrives while the other is
    still in its window; without a window every pair is compared. The result has all columns of LEFT, then
    those of RIGHT; a name that both have gets the suffix _right there. --how left, right and full also
    give rows without a match; left_semi and left_anti give rows of LEFT with a match, or without one, and
    right_semi and right_anti those of RIGHT. A run that Ctrl-C interrupts writes no file.

    \b
    Examples:
      Trades within the spread of a quote of the last five seconds:
        handshake join trades.parquet quotes.parquet --time time --window "5 seconds" \\
            --on "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05" --output matches.parquet
      The last 1000 rows of each stream, results to another program:
        handshake join a.csv b.csv --window "1000 tuples" --on "ABS(l.x - r.y) <= 10" --output - | head
      Orders without a payment within an hour:
        handshake join orders.parquet payments.parquet --time time --window "1 hour" --how left_anti \\
            --on "l.order = r.order" --output unpaid.parquet
      As fast as the times say, dropping what the join cannot keep up with, and counting it:
        handshake join a.parquet b.parquet --time t --window 1min --on "l.x < r.y" --pace 1 --overload shed
      The same files and options, run by Spark on this machine, or on a cluster:
        handshake join trades.parquet quotes.parquet --time time --window "5 seconds" \\
            --on "l.price BETWEEN r.bid AND r.ask" --backend spark
        … --backend spark --master spark://host:7077 --state-dir /mnt/shared
      In a circuit of 8 join cores, simulated:
        handshake join a.csv b.csv --window "64 tuples" --on "l.key = r.key" --backend circuit --cores 8
      Different windows and time columns, and how the join would run:
        handshake join a.csv b.csv --left-window 10min --right-window 90s --left-time sent --right-time got \\
            --on "l.id = r.id AND l.size > r.size" --explain
    """
    read_from = {"the left input": left, "the right input": right}
    delivery = Delivery({} if output is None else {JOIN: output}, metrics, inputs=read_from)
    with reporting(delivery.interrupted, context):
        check_options(context, backend)
        wanted = given_options(options, order="any")
        windows, times = (
            windows_of(window, left_window, right_window),
            (left_time or time, right_time or time),
        )
        predicate, kind = parse(on), kind_of_join(how)
        delivery.check()
        tables = {"left": read(left, "left"), "right": read(right, "right")}
        schemas = tables["left"].schema, tables["right"].schema
        plan = join_plan(*schemas, predicate, windows, times, kind=kind)
        if explain:
            print(engine(backend).explain(plan, wanted))
            return
        run = engine(backend).run(plan, tables, wanted)
        if isinstance(run, JoinRun) and wanted.cores is not None and wanted.cores > run.plan.cores:
            note = f"{wanted.algorithm} runs on one core; --cores {wanted.cores} changes nothing"
            print(f"handshake: {note}", file=sys.stderr)
        with open_live(live, live_at) as page:
            delivery.deliver(run, page, (left, right))
