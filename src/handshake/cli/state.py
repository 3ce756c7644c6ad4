"""`handshake state`: the state of joins on Spark, read from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from handshake.api import why as explain_rows
from handshake.cli.errors import reporting
from handshake.cli.report import Preview
from handshake.engines.engine import engine_module, plain_table
from handshake.errors import InputError
from handshake.io import check_output, sink_for
from handshake.joins.spec import SIDES
from handshake.joins.why.rows import parse_row

FOUND = 1
"""The exit status of a check that finds something."""

Place = Annotated[str, typer.Argument(metavar="PATH", help="State directory of queries: a path or a URI.")]
Query = Annotated[
    str | None, typer.Option(metavar="ID", help="Only this query; the start of its id will do.")
]
JoinName = Annotated[str | None, typer.Option("--join", metavar="NAME", help="Only the join of this name.")]

state = typer.Typer(
    name="state",
    add_completion=False,
    rich_markup_mode=None,
    help="""Read the state of streaming joins on Spark, from outside of their queries.

PATH is the directory that holds the windows: `state_dir` of the join, or handshake-state beside the
checkpoint. No Spark is started, and a query that runs is not disturbed.

\b
Examples:
  handshake state show handshake-state
  handshake state check s3://bucket/state
  handshake state export handshake-state rows.parquet --side left
  handshake state why handshake-state '{"id": 17}' '{"id": 3}'
  handshake state prune handshake-state --yes
""",
)


@state.command()
def show(path: Place, query: Query = None, join: JoinName = None) -> None:
    """Show the rows that segments hold, with their age.

    There is a line per segment and side. rows and bytes count the files, which expire as a whole. cells is
    the part of the cells whose new rows the segment keeps. age is that of the oldest row: seconds before the
    watermark, or rows before the last one. pending counts rows without a match so far, in outer joins.

    \b
    Examples:
      handshake state show handshake-state
      handshake state show s3://bucket/state --query 5f0c --join matches
    """
    with reporting():
        directory = _read(path)
        for each in directory.select(query, join):
            for line in plain_table(_facts(each)):
                print(line)
            print()
            preview = Preview(_SHOWN, rows=2 * len(each.segments))
            for batch in _table(each).to_batches():
                preview.add(batch)
            for line in preview.lines():
                print(line)
        for found in directory.unreadable:
            print(found.why)


@state.command()
def check(path: Place) -> None:
    """Check all files of the state: damage, and files that nothing needs.

    Every chunk is read and compared with its size and checksum. The exit status is 0 if all is well, 1 if a
    file is missing, damaged or an orphan, and 2 if there is nothing to check. `handshake state prune` removes
    orphans.

    \b
    Example:
      handshake state check handshake-state
    """
    with reporting():
        directory = _read(path)
        damage, orphans = directory.damage(), directory.orphans()
        chunks = sum(len(s.manifest.refs) for each in directory.joins for s in each.segments)
        for found in damage:
            print(f"damage  {found.why}")
        for found in orphans:
            print(f"orphan  {found.name}: {found.why}")
        print(f"{chunks:,} chunks checked, {len(damage):,} damaged, {len(orphans):,} orphans")
    if damage or orphans:
        raise typer.Exit(FOUND)


@state.command()
def export(
    path: Place,
    output: Annotated[str, typer.Argument(metavar="FILE", help="File; its suffix names the format.")],
    side: Annotated[str, typer.Option(metavar="left|right", help="The stream whose rows to write.")],
    query: Query = None,
    join: JoinName = None,
) -> None:
    """Write the rows of one stream that can still join to a file.

    The columns are those of the stream, the segment (_segment) and the age (_age, as in `state show`). In
    outer joins, rows of the side that is not preserved are in every segment that they visit.

    \b
    Examples:
      handshake state export handshake-state left.parquet --side left
      handshake state export handshake-state right.csv --side right --join matches
    """
    with reporting():
        if side not in SIDES:
            raise InputError(f"--side is left or right, not '{side}'")
        check_output(output)
        found = _read(path).select(query, join)
        if len(found) > 1:
            names = ", ".join(f"'{each.name}' of query {each.query}" for each in found)
            raise InputError(f"there are several joins: {names}; choose one with --query and --join")
        schema = found[0].columns(SIDES.index(side))
        if schema is None:
            raise InputError(f"join '{found[0].name}' holds no row of the {side} stream")
        rows = 0
        with sink_for(output, schema) as sink:
            for batch in found[0].rows(SIDES.index(side)):
                rows += batch.num_rows
                sink.write(batch)
        if output != "-":
            print(f"{rows:,} rows of the {side} stream written to {Path(output)}")


@state.command()
def why(
    path: Place,
    left: Annotated[str, typer.Argument(metavar="LEFT", help='Left row in JSON, such as {"id": 17}.')],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Right row in JSON.")],
    query: Query = None,
    join: JoinName = None,
    aliases: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="L R", help="Names of the inputs in the predicate, if they are not l and r."),
    ] = None,
) -> None:
    """Show why two rows are a pair of the join, or why not, by the rows that its segments hold.

    For each row: held, matched or still pending, expired, late, unable to match, or not there. In as-of and
    nearest joins, the last condition is that no right row that is held is a better match. If the state holds
    exactly one row with the given values, some of its columns will do.

    \b
    Examples:
      handshake state why handshake-state '{"id": 17}' '{"id": 3}'
      handshake state why handshake-state '{"t": "2026-01-01 12:00:00", "x": 5}' '{"id": 3}' --join matches
    """
    with reporting():
        rows = (parse_row(left, "left"), parse_row(right, "right"))
        print(explain_rows(*rows, state=path, query=query, join=join, aliases=aliases))


@state.command()
def prune(
    path: Place,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without it, they are only listed.")
    ] = False,
) -> None:
    """Remove files that no query needs any more; without --yes, list them.

    These are files of tasks that died, of finished micro-batches, and of segments that a change of the join
    has ended. Files stay if a checkpoint may return to them, and if they are recent: a query may be running.

    \b
    Examples:
      handshake state prune handshake-state
      handshake state prune handshake-state --yes
    """
    with reporting():
        directory = _read(path)
        orphans = directory.orphans()
        for found in orphans:
            print(f"{found.name}: {found.why}")
        if yes:
            directory.prune(orphans)
        print(
            f"{len(orphans):,} files {'removed' if yes else 'to remove'}"
            + ("" if yes else "; --yes removes them")
        )


def _read(path: str) -> Any:
    return engine_module("spark", "state.reading").read_state(path)


def _facts(join: Any) -> list[tuple[str, str]]:
    plan, about = join.plan, join.segments[0].manifest.about
    facts = [
        ("join", join.name), ("query", join.query), ("predicate", plan["predicate"]),
        ("windows", plan["windows"]), ("kind", plan.get("kind", "inner")),
        ("segments", str(plan["segments"])), ("micro-batch", str(join.batch)),
    ]  # fmt: skip
    return [*facts, ("definition since", f"micro-batch {about.since}")] if about.since > 0 else facts


_SHOWN = pa.schema(
    [
        ("segment", pa.int32()), ("side", pa.string()), ("rows", pa.int64()), ("chunks", pa.int32()),
        ("bytes", pa.int64()), ("cells", pa.string()), ("oldest", pa.string()), ("newest", pa.string()),
        ("age", pa.float64()), ("pending", pa.int64()),
    ]
)  # fmt: skip


def _table(join: Any) -> pa.Table:
    rows = [segment.describe(side) for segment in join.segments for side in (0, 1)]
    shown = [
        {
            **row,
            "cells": None
            if row["first_cell"] is None
            else f"{row['first_cell']:.1f} to {row['last_cell']:.1f}",
            **{name: _time(row[name]) for name in ("oldest", "newest")},
        }
        for row in rows
    ]
    return pa.Table.from_pylist(shown, _SHOWN)


def _time(moment: int | None) -> str | None:
    if moment is None:
        return None
    return str(pa.scalar(moment, pa.timestamp("us")).cast(pa.string()).as_py()).removesuffix(".000000")
