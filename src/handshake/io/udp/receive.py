"""Receivers for inputs as a query declares them: `CREATE INPUT STREAM …` says what lies in a datagram."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.udp.demux import Stream
from handshake.io.udp.sockets import Endpoint, UdpReceiver
from handshake.io.udp.wire import WIDTH, Layout
from handshake.plan.algebra import Node, Plan, Source, rebuild
from handshake.schema import Binary, Int, String, arrow_of

__all__ = ["ARRIVAL_COLUMN", "direct", "layout_of", "receiver_for", "streams_for"]

ARRIVAL_COLUMN = "__arrival"
"""When a datagram came, for streams that are declared without a time."""


def layout_of(source: Source) -> Layout:
    """How tuples of a stream lie in datagrams."""
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
    """The streams that an input carries, and the field that tells them apart (None: it carries one)."""
    source = _input(plan, name)
    carried = [s for s in plan.inputs if s.demux is not None and s.demux.stream == name]
    if not carried:
        return (Stream(name, layout_of(source)),), None
    fields = {s.demux.field for s in carried if s.demux is not None}
    if len(fields) > 1:
        raise InputError(
            f"the streams of {name} are told apart by several fields ({', '.join(sorted(fields))})"
        )
    return tuple(Stream(s.name, layout_of(s), _types(s)) for s in carried), fields.pop()


def _input(plan: Plan, name: str) -> Source:
    known = {source.name: source for source in plan.inputs}
    if name not in known:
        raise InputError(f"no input stream '{name}' in the query ({', '.join(known)}){suggest(name, known)}")
    return known[name]


def _types(source: Source) -> tuple[int, ...]:
    assert source.demux is not None
    kind = source.fields.find(source.demux.field)
    if kind is None or not isinstance(kind.type, Int):
        raise InputError(
            f"stream {source.name} comes in datagrams, so that it needs the field '{source.demux.field}' "
            "that marks its tuples, as a whole number"
        )
    return tuple(int(value) for value in source.demux.values)


def receiver_for(
    url: str, plan: Plan, name: str, *, bad: str | Callable[[bytes, str], None] | None = None,
    strict: bool = False, arrival: bool = False,
) -> UdpReceiver:  # fmt: skip
    """A receiver of an input's datagrams; with `arrival`, streams without a time get a column that has it."""
    streams, field = streams_for(plan, name)
    stamped = arrival and any(_input(plan, stream.name).time is None for stream in streams)
    column = ARRIVAL_COLUMN if stamped else None
    return UdpReceiver(Endpoint.parse(url), streams, type_field=field, arrival=column, bad=bad, strict=strict)


def direct(plan: Plan) -> Plan:
    """The same plan with streams that another carries as inputs of their own: a receiver tells them apart."""

    def plain(node: Node) -> Node:
        return replace(node, demux=None) if isinstance(node, Source) else node

    carriers = {source.demux.stream for source in plan.inputs if source.demux is not None}
    inputs = tuple(replace(s, demux=None) for s in plan.inputs if s.name not in carriers)
    return Plan(inputs, plan.map(lambda output: rebuild(output, plain)).outputs)
