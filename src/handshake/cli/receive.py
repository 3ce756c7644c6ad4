"""`handshake receive`: datagrams into a durable log; `handshake send`: a file as datagrams."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from handshake.cli.errors import reporting
from handshake.cli.report import read_text
from handshake.io import read
from handshake.io.udp.demux import Counters
from handshake.io.udp.receive import find_input, layout_of, receiver_for, record
from handshake.io.udp.sockets import UdpReceiver, UdpSender
from handshake.plan.query import parse_query

_DECLARED = "File with the query, whose declarations say what comes; - is standard input."


def receive(
    context: typer.Context,
    address: Annotated[str, typer.Argument(metavar="URL", help="As udp://127.0.0.1:5000?sequence=yes.")],
    query: Annotated[str, typer.Option("--query", metavar="FILE", help=_DECLARED)],
    stream: Annotated[str, typer.Option("--input", metavar="NAME", help="The input that comes here.")],
    log: Annotated[str, typer.Option("--log", metavar="DIR", help="Where the log is written.")],
    bad: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keep malformed datagrams there, as JSON lines.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a malformed datagram.")] = False,
    sync: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Between syncs to the disk; 0: each batch.")
    ] = 0.2,
    keep: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="Remove the oldest of more than this.")
    ] = None,
    idle: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="End after this long without any.")
    ] = None,
    ends: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End when N senders say that they are done.")
    ] = None,
) -> None:
    """Receive datagrams of packed rows, and put them into a durable log.

    The query's CREATE INPUT STREAM says what a datagram holds. The log is a folder per stream, which Spark
    reads as format("handshake-udp"). Ctrl-C ends it when all that came is written.

    \b
    Example:
      handshake receive udp://127.0.0.1:5000?sequence=yes --query trades.sql --input Trades --log log
    """
    with reporting(context=context):
        plan = parse_query(read_text(query))
        with receiver_for(address, plan, stream, bad=bad, strict=strict, arrival=True) as receiver:
            _record(receiver, log, sync, keep, idle, ends)


def send(
    rows: Annotated[str, typer.Argument(metavar="FILE", help="File or folder of files.")],
    address: Annotated[str, typer.Argument(metavar="URL", help="As udp://127.0.0.1:5000?sequence=yes.")],
    query: Annotated[str, typer.Option("--query", metavar="FILE", help=_DECLARED)],
    stream: Annotated[str, typer.Option("--input", metavar="NAME", help="The input whose rows these are.")],
    rate: Annotated[
        float | None, typer.Option(min=1, help="Datagrams per second; as fast as can be.")
    ] = None,
    tuples: Annotated[int, typer.Option(min=1, help="Rows in a datagram.")] = 1,
    offload: Annotated[
        bool, typer.Option("--offload", help="Hand runs of datagrams to the kernel as one (Linux).")
    ] = False,
) -> None:
    """Send the rows of a file as datagrams of packed rows.

    \b
    Example:
      handshake send trades.parquet udp://127.0.0.1:5000?sequence=yes --query trades.sql --input Trades
    """
    with reporting():
        plan = parse_query(read_text(query))
        layout = layout_of(find_input(plan, stream))
        with UdpSender(address, layout, per_datagram=tuples, offload=offload) as sender:
            sent = sender.send(read(rows, stream), rate=rate)
            sender.end()
        print(f"{sent:,} datagrams")


def _record(
    receiver: UdpReceiver, log: str, sync: float, keep: int | None, idle: float | None, ends: int | None
) -> None:
    names = ", ".join(stream.name for stream in receiver.demux.streams)
    print(f"receiving {names} on {receiver.endpoint}", file=sys.stderr, flush=True)
    try:
        kept = None if keep is None else keep << 20
        record(receiver, log, sync=sync, keep_bytes=kept, idle=idle, ends=ends, tell=_report)
    finally:
        print(json.dumps(receiver.counters.json()), flush=True)


def _report(counters: Counters) -> None:
    dropped = "?" if counters.kernel_dropped is None else f"{counters.kernel_dropped:,}"
    print(
        f"{counters.datagrams:,} datagrams, {counters.tuples:,} tuples; malformed {counters.malformed:,}, "
        f"unknown {counters.unknown:,}, missing {counters.missing:,}, kernel dropped {dropped}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
