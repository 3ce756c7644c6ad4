"""`handshake why`: why two rows of files join, or do not."""

from __future__ import annotations

from typing import Annotated

import typer

from handshake.api import why as explain_rows
from handshake.cli.errors import reporting
from handshake.cli.options import (
    LeftInput,
    LeftTime,
    LeftWindow,
    Predicate,
    RightInput,
    RightTime,
    RightWindow,
    Time,
    Window,
)
from handshake.io import read
from handshake.kinds import KINDS
from handshake.plan.build import Expression
from handshake.plan.parse import parse

Text = str | None


def why(
    left: LeftInput,
    right: RightInput,
    left_row: Annotated[int, typer.Argument(metavar="N", min=0, help="Row of LEFT, counted from 0.")],
    right_row: Annotated[int, typer.Argument(metavar="M", min=0, help="Row of RIGHT, counted from 0.")],
    on: Predicate,
    window: Window = None,
    left_window: LeftWindow = None,
    right_window: RightWindow = None,
    time: Time = None,
    left_time: LeftTime = None,
    right_time: RightTime = None,
    how: Annotated[Text, typer.Option(metavar="KIND", help=f"Kind of join: {', '.join(KINDS)}.")] = None,
    watermark: Annotated[
        Text, typer.Option(metavar="TIME", help="The watermark, to see whether a row was late.")
    ] = None,
) -> None:
    """Show why a row of LEFT and a row of RIGHT join, or why they do not.

    The join is described as for `handshake join`. Each part of the predicate, each window and, with
    --watermark, each row's lateness has a line: yes, no, NULL or ? (not known), and the values behind it.
    With --how, a line says what becomes of a row without a match.

    \b
    Examples:
      handshake why trades.parquet quotes.parquet 17 3 --time time --window "5 seconds" \\
          --on "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05"
      handshake why a.csv b.csv 0 12 --window "100 tuples" --on "l.x = r.y"
    """
    with reporting():
        found = explain_rows(
            left_row, right_row, Expression(parse(on)), window=window, left_window=left_window,
            right_window=right_window, time=time, left_time=left_time, right_time=right_time,
            how=how, left=read(left, "left"), right=read(right, "right"), watermark=watermark,
        )  # fmt: skip
        print(found)
