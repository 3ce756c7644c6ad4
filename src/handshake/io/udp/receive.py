"""Receivers for the inputs of a query, and their durable logs.

`CREATE INPUT STREAM` declares the fields of a datagram.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.udp.demux import Counters, Stream
from handshake.io.udp.log import LogWriter
from handshake.io.udp.sockets import Endpoint, UdpReceiver
from handshake.io.udp.wire import WIDTH, Layout
from handshake.plan.algebra import Node, Plan, Source, rebuild
from handshake.schema import Binary, Int, String, arrow_of

ARRIVAL_COLUMN = "__arrival"
"""The time of arrival, for streams that are declared without a time."""


def layout_of(source: Source) -> Layout:
    """Return the wire format of a stream's tuples."""
    return Layout.of(pa.schema([_field(source, field) for field in source.fields]))


def _field(source: Source, field: Any) -> pa.Field:
    if isinstance(field.type, Binary):
        raise SchemaError(
            f"field '{field.name}' of stream {source.name} is binary of any length, which a datagram of "
            "tuples cannot hold; every field has a fixed width on the wire"
        )
    width = field.type.length if isinstance(field.type, String) else None
    return pa.field(field.name, arrow_of(field.type), False, None if width is None else {WIDTH: str(width)})


def streams_for(plan: Plan, name: str) -> tuple[tuple[Stream, ...], str | None]:
    """Return the streams that an input carries, and the field that distinguishes them (None for one)."""
    source = find_input(plan, name)
    carried = plan.carried_by(name)
    if not carried:
        return (Stream(name, layout_of(source)),), None
    fields = {s.demux.field for s in carried if s.demux is not None}
    if len(fields) > 1:
        raise InputError(
            f"the streams of {name} are distinguished by several fields ({', '.join(sorted(fields))})"
        )
    return tuple(Stream(s.name, layout_of(s), _types(s)) for s in carried), fields.pop()


def find_input(plan: Plan, name: str) -> Source:
    """Return an input or a carried stream of a query by its name."""
    known = {source.name: source for source in plan.inputs}
    if name not in known:
        raise InputError(f"no input stream '{name}' in the query ({', '.join(known)}){suggest(name, known)}")
    return known[name]


def _types(source: Source) -> tuple[int, ...]:
    assert source.demux is not None
    kind = source.fields.find(source.demux.field)
    if kind is None or not isinstance(kind.type, Int):
        raise InputError(
            f"stream {source.name} comes in datagrams, so it needs the field '{source.demux.field}' "
            "that marks its tuples, as a whole number"
        )
    return tuple(int(value) for value in source.demux.values)


def receiver_for(
    url: str, plan: Plan, name: str, *, bad: str | Callable[[bytes, str], None] | None = None,
    strict: bool = False, arrival: bool = False,
) -> UdpReceiver:  # fmt: skip
    """Open a receiver for an input of a query.

    With `arrival`, streams without a time get `ARRIVAL_COLUMN`.
    """
    streams, field = streams_for(plan, name)
    untimed = arrival and any(find_input(plan, stream.name).time is None for stream in streams)
    column = ARRIVAL_COLUMN if untimed else None
    return UdpReceiver(Endpoint.parse(url), streams, type_field=field, arrival=column, bad=bad, strict=strict)


def direct(plan: Plan) -> Plan:
    """Make each stream that another input carries an input of its own, since a receiver splits them."""

    def plain(node: Node) -> Node:
        return replace(node, demux=None) if isinstance(node, Source) else node

    carriers = {source.demux.stream for source in plan.inputs if source.demux is not None}
    inputs = tuple(replace(s, demux=None) for s in plan.inputs if s.name not in carriers)
    return Plan(inputs, plan.map(lambda output: rebuild(output, plain)).outputs)


_COUNTERS = "counters.json"
_UPDATE = 1.0
"""Seconds between two updates of the counters' file."""


def record(
    receiver: UdpReceiver,
    folder: str | Path,
    *,
    sync: float = 0.2,
    segment_bytes: int = 64 << 20,
    keep_bytes: int | None = None,
    idle: float | None = None,
    ends: int | None = None,
    tell: Callable[[Counters], None] | None = None,
) -> Counters:
    """Write the datagrams of a receiver into one log per stream, until the receiver ends.

    After Ctrl-C, the datagrams that the kernel holds are written before `KeyboardInterrupt` is raised.

    Args:
        receiver: The source of the datagrams.
        folder: Holds a log per stream, `folder`/<stream>/, and the receiver's counters.
        sync: Seconds between syncs to the disk, 0 for every batch.
        segment_bytes: Size of a full segment file.
        keep_bytes: The oldest segments are removed beyond this size; None keeps all.
        idle: Seconds without a datagram after which recording ends.
        ends: Ends when this number of senders have said that they are done.
        tell: Called with the counters once a second.
    """
    names = [stream.name for stream in receiver.demux.streams]
    options = {"sync": sync, "segment_bytes": segment_bytes, "keep_bytes": keep_bytes}
    logs = {name: LogWriter(Path(folder) / name, receiver.schema(name), **options) for name in names}  # type: ignore[arg-type]
    try:
        try:
            _write_logs(receiver, logs, Path(folder), idle, ends, tell)
        except KeyboardInterrupt:
            receiver.stop()
            _write_logs(receiver, logs, Path(folder), None, None, None)
            raise
    finally:
        for log in logs.values():
            log.close()
        _write_counters(Path(folder), receiver.counters)
    return receiver.counters


def _write_logs(
    receiver: UdpReceiver, logs: dict[str, LogWriter], folder: Path, idle: float | None, ends: int | None,
    tell: Callable[[Counters], None] | None,
) -> None:  # fmt: skip
    updated = time.monotonic()
    for batches in receiver.batches(idle=idle, ends=ends):
        for name, batch in batches.items():
            logs[name].append(batch)
        for log in logs.values():
            log.tick()
        if time.monotonic() - updated >= _UPDATE:
            updated = time.monotonic()
            _write_counters(folder, receiver.counters)
            if tell is not None:
                tell(receiver.counters)


def _write_counters(folder: Path, counters: Counters) -> None:
    partial = folder / f"{_COUNTERS}.partial"
    partial.write_text(json.dumps(counters.json()) + "\n")
    os.replace(partial, folder / _COUNTERS)


def read_counters(folder: str | Path) -> Counters:
    """Read the counters that a receiver last wrote into a folder of logs."""
    path = Path(folder) / _COUNTERS
    return Counters(**json.loads(path.read_text())) if path.exists() else Counters()
