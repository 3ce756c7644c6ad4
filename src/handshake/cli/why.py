"""`handshake why`: why two rows of files join, or do not."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from handshake import api
from handshake.api import why as explain_rows
from handshake.cli import options as flags
from handshake.cli.errors import reporting
from handshake.errors import InputError, UnsupportedError
from handshake.io import read
from handshake.joins.asof import DIRECTIONS
from handshake.kinds import KINDS
from handshake.plan.build import Expression
from handshake.plan.parse import parse

Text = str | None


def why(
    left: flags.LeftInput,
    right: flags.RightInput,
    left_row: Annotated[int, typer.Argument(metavar="N", min=0, help="Row of LEFT, counted from 0.")],
    right_row: Annotated[int, typer.Argument(metavar="M", min=0, help="Row of RIGHT, counted from 0.")],
    on: Annotated[
        Text, typer.Option("--on", metavar="PRED", help="Condition in SQL, such as 'l.x < r.a'.")
    ] = None,
    window: flags.Window = None,
    left_window: flags.LeftWindow = None,
    right_window: flags.RightWindow = None,
    time: flags.Time = None,
    left_time: flags.LeftTime = None,
    right_time: flags.RightTime = None,
    how: Annotated[Text, typer.Option(metavar="KIND", help=f"Kind of join: {', '.join(KINDS)}.")] = None,
    watermark: Annotated[
        Text, typer.Option(metavar="TIME", help="The watermark, to see whether a row was late.")
    ] = None,
    asof: Annotated[
        Text, typer.Option(metavar="|".join(DIRECTIONS), help="An as-of join, in this direction.")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="COL", help="As of: a column of both that must be equal.")
    ] = None,
    tolerance: Annotated[
        Text, typer.Option(metavar="LENGTH", help="As of: the largest distance in time, such as '5 s'.")
    ] = None,
    nearest: Annotated[
        Text, typer.Option(metavar="RANKING", help="A nearest join, such as 'ABS(l.x - r.a)'.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Nearest: the matches per left row, at most.")] = 1,
) -> None:
    """Show why a row of LEFT and a row of RIGHT join, or why they do not.

    The join is described as for `handshake join`. Each part of the predicate, each window and, with
    --watermark, each row's lateness has a line: yes, no, NULL or ? (not known), and the values behind it.
    With --how, a line says what becomes of a row without a match. In as-of joins (--asof) and nearest joins
    (--nearest), the last condition is that no other row of RIGHT is a better match. For more streams, see
    `handshake multijoin --why`; for queries, `handshake run --why`.

    \b
    Examples:
      handshake why trades.parquet quotes.parquet 17 3 --time time --window "5 seconds" \\
          --on "l.price BETWEEN r.bid - 0.05 AND r.ask + 0.05"
      handshake why a.csv b.csv 0 12 --window "100 tuples" --on "l.x = r.y"
      handshake why trades.csv quotes.csv 17 3 --time t --asof backward --by symbol --tolerance "1 minute"
      handshake why rooms.csv sensors.csv 0 2 --nearest "ABS(l.x - r.at)" -k 3
    """
    with reporting():
        found = explain_rows(
            left_row, right_row, None if on is None else Expression(parse(on)), window=window,
            left_window=left_window, right_window=right_window, time=time, left_time=left_time,
            right_time=right_time, how=how, left=read(left, "left"), right=read(right, "right"),
            watermark=watermark, **_best(asof, by, tolerance, nearest, k, on),
        )  # fmt: skip
        print(found)


def _best(
    asof: Text, by: list[str] | None, tolerance: Text, nearest: Text, k: int, on: Text
) -> dict[str, Any]:
    """Return the arguments of a join that chooses best matches; none for a join of pairs."""
    if asof is not None and nearest is not None:
        raise UnsupportedError("--asof and --nearest are two kinds of joins; leave one of them out")
    if asof is None and (by or tolerance is not None):
        raise UnsupportedError(f"{'--by' if by else '--tolerance'} is for as-of joins; give --asof, too")
    if nearest is None and k != 1:
        raise UnsupportedError("-k is for nearest joins; give --nearest, too")
    if asof is not None:
        return {"function": api.asof, "direction": asof, "by": by, "tolerance": tolerance}
    if nearest is not None:
        return {"function": api.nearest, "by": nearest, "k": k}
    if on is None:
        raise InputError("a join needs a condition; give --on, such as --on 'l.x < r.a'")
    return {}
