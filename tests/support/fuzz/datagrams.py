"""Mutated datagrams."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from fuzz.mutate import mutate_bytes
from handshake.io.udp.demux import Demux, Stream
from handshake.io.udp.mmsg import Datagrams
from handshake.io.udp.wire import Layout
from oracle_wire import Receiver, width

__all__ = ["check_datagrams", "comparable", "datagrams", "layout_of", "make_datagrams", "plain"]

KINDS = (
    "int8",
    "uint16",
    "int32",
    "uint64",
    "float32",
    "float64",
    "bool",
    "timestamp",
    "string(3)",
    "decimal(5,2)",
)


def datagrams(payloads: list[bytes], gap: int = 3) -> Datagrams:
    """Lay out payloads as an inbox holds them, with other bytes between them."""
    starts, flat = [], b"\xee" * gap
    for payload in payloads:
        starts.append(len(flat))
        flat += payload + b"\xee" * gap
    count = len(payloads)
    return Datagrams(
        np.frombuffer(flat, np.uint8).copy(),
        np.array(starts, np.int64),
        np.array([len(p) for p in payloads], np.int64),
        np.zeros(count, bool),
        (bytes(28),),
    )


def plain(batch: pa.RecordBatch | None) -> list[tuple[Any, ...]]:
    """Return rows that compare: timestamps and dates as numbers, and NaN as a text."""
    if batch is None:
        return []
    columns = [_numbers(batch.column(n)).to_pylist() for n in range(batch.num_columns)]
    return [comparable(row) for row in zip(*columns, strict=True)]


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row)


def _numbers(column: pa.Array) -> pa.Array:
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def layout_of(fields: list[str]) -> Layout:
    return Layout.parse(", ".join(f"f{n} {kind}" for n, kind in enumerate(fields)))


def make_datagrams(rng: Random) -> dict[str, Any]:
    """Make streams, and mutated datagrams for them."""
    several, sequence = rng.random() < 0.5, rng.random() < 0.5
    streams = {
        f"s{n}": (["uint8"] * several + rng.choices(KINDS, k=rng.randint(1, 4)), mark)
        for n, mark in enumerate((68, 70) if several else (None,))
    }
    return {"streams": streams, "sequence": sequence, "payloads": _payloads(rng, streams, sequence)}


def check_datagrams(given: dict[str, Any], rng: Random, folder: Path) -> bool | str:
    """Decode mutated datagrams: rows and counts are those of a decoder that goes byte by byte."""
    streams, sequence, payloads = given["streams"], given["sequence"], given["payloads"]
    receiver, bad = Receiver(streams, sequence), []
    demux = Demux(
        tuple(Stream(n, layout_of(f), () if m is None else (m,)) for n, (f, m) in streams.items()),
        "f0" if len(streams) > 1 else None, sequence, bad=lambda data, reason: bad.append(data),
    )  # fmt: skip
    got: dict[str, list[Any]] = {}
    step = rng.randint(1, 4)
    for start in range(0, len(payloads), step):
        for name, batch in demux.take(datagrams(payloads[start : start + step])).items():
            batch.validate(full=True)
            got.setdefault(name, []).extend(plain(batch))
    for payload in payloads:
        receiver.take(payload)
    wanted = {name: [comparable(row) for row in rows] for name, rows in receiver.got.items() if rows}
    assert got == wanted, (streams, payloads, got, wanted)
    for figure in ("datagrams", "malformed", "unknown", "ends"):
        assert getattr(demux.counters, figure) == receiver.counts[figure], (figure, streams, payloads)
    assert len(bad) == demux.counters.malformed
    return "compared"


def _payloads(rng: Random, streams: dict[str, tuple[list[str], int | None]], sequence: bool) -> list[bytes]:
    payloads, number = [], 1
    for _ in range(rng.randrange(6)):
        fields, mark = rng.choice(list(streams.values()))
        size = sum(map(width, fields))
        row = rng.choice((rng.randbytes(size), bytes(size), (b"A\0\xff" * size)[:size]))
        payload = (row if mark is None else bytes([mark]) + row[1:]) * rng.randrange(3)
        number += rng.choice((1, 1, 1, 2, 5))
        payload = struct.pack(">q", number) + payload if sequence else payload
        payloads.append(mutate_bytes(rng, payload) if rng.random() < 0.6 else payload)
    return payloads
