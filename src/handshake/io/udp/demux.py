"""Stream de-multiplexing (Glacier 5.3): datagrams to the streams whose tuples they carry, as batches."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError, SchemaError
from handshake.io.udp.mmsg import Datagrams
from handshake.io.udp.sequence import Numbering
from handshake.io.udp.wire import Layout

__all__ = ["HEADER", "BadFile", "Counters", "Demux", "Stream"]

HEADER = np.dtype(">i8")
"""The sequence number in front of a datagram's tuples, where there is one."""


@dataclass(frozen=True)
class Stream:
    """One of the streams of an input: its tuples, and the values of the type field that mark them."""

    name: str
    layout: Layout
    types: tuple[int, ...] = ()
    """Empty: the input carries this stream alone."""


@dataclass
class Counters:
    """What came in, and what did not."""

    datagrams: int = 0
    """Taken from the kernel, malformed and unknown ones included."""
    tuples: int = 0
    malformed: int = 0
    unknown: int = 0
    """Datagrams whose type field marks no declared stream."""
    out_of_sequence: int = 0
    repeated: int = 0
    missing: int = 0
    """Numbers passed over that have not come since: lost anywhere between sender and here."""
    kernel_dropped: int | None = 0
    """Dropped since the socket's buffer was full; None where the system does not tell."""
    ends: int = 0
    """Empty datagrams: a sender says that it is done."""
    unknown_types: dict[str, int] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """For a file or a log line."""
        return asdict(self)


class BadFile:
    """Malformed datagrams, one JSON object per line: when, why, how long, and their bytes in base64."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise InputError(f"cannot write malformed datagrams to '{path}': {error.strerror}") from None

    def __call__(self, data: bytes, reason: str) -> None:
        """Write one."""
        line = {
            "time": datetime.now(UTC).isoformat(),
            "reason": reason,
            "length": len(data),
            "bytes": base64.b64encode(data).decode(),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def refuse(data: bytes, reason: str) -> None:
    """What `--strict` does with a malformed datagram."""
    raise InputError(
        f"malformed datagram of {len(data)} bytes: {reason}; its first bytes are {data[:32].hex(' ')}. "
        "Without --strict it would be counted and left out (--bad FILE keeps it)"
    )


def _forget(data: bytes, reason: str) -> None:
    """What is done by default: it is counted, that is all."""


class Demux:
    """Takes datagrams apart. `bad` is told of malformed ones, which are counted in any case."""

    def __init__(
        self,
        streams: tuple[Stream, ...],
        type_field: str | None = None,
        sequence: bool = False,
        bad: Callable[[bytes, str], None] = _forget,
        arrival: str | None = None,
    ) -> None:
        _check(streams, type_field)
        self.streams = streams
        self.counters = Counters()
        self._bad = bad
        self._arrival = arrival
        self._header = HEADER.itemsize if sequence else 0
        self._numbering = Numbering()
        self._type = _TypeField.of(streams, type_field) if type_field is not None else None
        self._unknown: Counter[int] = Counter()

    def schema(self, stream: Stream) -> pa.Schema:
        """The schema of a stream's batches: its fields and, if asked for, the time of arrival."""
        if self._arrival is None:
            return stream.layout.schema
        return stream.layout.schema.append(pa.field(self._arrival, pa.timestamp("us", "UTC"), False))

    def take(self, got: Datagrams, now: datetime | None = None) -> dict[str, pa.RecordBatch]:
        """The tuples of some datagrams, by stream, each stream in order of arrival."""
        counters = self.counters
        counters.datagrams += len(got)
        good = np.arange(len(got))
        good = self._reject(got, good, got.cut, "longer than the receiver takes (max_datagram)")
        short = got.lengths[good] < self._header
        good = self._reject(got, good, short, f"shorter than its sequence number of {self._header} bytes")
        self._number(got, good)
        good = self._without_ends(got, good)
        if self._type is None:
            parts = {self.streams[0].name: self._tuples(got, good, self.streams[0])}
        else:
            parts = self._by_type(got, good, self._type)
        found = {name: batch for name, batch in parts.items() if batch.num_rows}
        counters.tuples += sum(batch.num_rows for batch in found.values())
        return {name: self._stamped(batch, now) for name, batch in found.items()} if self._arrival else found

    def _stamped(self, batch: pa.RecordBatch, now: datetime | None) -> pa.RecordBatch:
        time = pa.scalar(now or datetime.now(UTC), pa.timestamp("us", "UTC"))
        field = pa.field(self._arrival, time.type, False)
        return batch.append_column(field, pa.repeat(time, batch.num_rows))

    def _reject(self, got: Datagrams, those: np.ndarray, wrong: np.ndarray, reason: str) -> np.ndarray:
        """Count and tell those that are wrong; the others."""
        if not wrong.any():
            return those
        for index in those[wrong].tolist():
            self.counters.malformed += 1
            self._bad(got.bytes(index), reason)
        return np.asarray(those[~wrong])

    def _number(self, got: Datagrams, good: np.ndarray) -> None:
        if not self._header:
            return
        numbers = _at(got.flat, got.starts[good], HEADER).astype(np.int64)
        whose = None if got.sender is None else got.sender[good]
        self._numbering.observe(numbers, got.senders, whose)
        for figure in ("missing", "out_of_sequence", "repeated"):
            setattr(self.counters, figure, self._numbering.total(figure))

    def _without_ends(self, got: Datagrams, good: np.ndarray) -> np.ndarray:
        empty = got.lengths[good] == self._header
        ends = int(np.count_nonzero(empty))
        self.counters.ends += ends
        return np.asarray(good[~empty]) if ends else good

    def _by_type(self, got: Datagrams, good: np.ndarray, kind: _TypeField) -> dict[str, pa.RecordBatch]:
        short = got.lengths[good] < self._header + kind.offset + kind.raw.itemsize
        good = self._reject(got, good, short, f"too short for the type field '{kind.name}'")
        codes = _at(got.flat, got.starts[good] + self._header + kind.offset, kind.raw).astype(np.int64)
        parts, known = {}, np.zeros(len(good), bool)
        for stream in self.streams:
            mine = np.isin(codes, stream.types)
            known |= mine
            parts[stream.name] = self._tuples(got, good[mine], stream)
        self._count_unknown(codes[~known])
        return parts

    def _count_unknown(self, codes: np.ndarray) -> None:
        if len(codes):
            kinds, counts = np.unique(codes, return_counts=True)
            self._unknown.update(dict(zip(kinds.tolist(), counts.tolist(), strict=True)))
            self.counters.unknown += len(codes)
            self.counters.unknown_types = {str(kind): n for kind, n in sorted(self._unknown.items())}

    def _tuples(self, got: Datagrams, good: np.ndarray, stream: Stream) -> pa.RecordBatch:
        width = stream.layout.width
        odd = (got.lengths[good] - self._header) % width != 0
        good = self._reject(got, good, odd, f"no whole number of {stream.name}'s tuples of {width} bytes")
        counts = (got.lengths[good] - self._header) // width
        owner, offsets = _offsets(got.starts[good] + self._header, counts, width)
        packed = stream.layout.gather(got.flat, offsets)
        batch, fine = stream.layout.unpack(packed)
        if self._type is not None and len(owner) > len(good):
            fine = _both(fine, np.isin(packed[self._type.name].astype(np.int64), stream.types))
        return batch if fine is None else self._only(got, good, owner, batch, fine)

    def _only(
        self, got: Datagrams, good: np.ndarray, owner: np.ndarray, batch: pa.RecordBatch, fine: np.ndarray
    ) -> pa.RecordBatch:
        """Leave out datagrams that hold a value which is none of its field's type."""
        wrong = np.zeros(len(good), bool)
        wrong[owner[~fine]] = True
        self._reject(got, good, wrong, "a field holds bytes that are no value of its type")
        return batch.filter(pa.array(~wrong[owner]))


@dataclass(frozen=True)
class _TypeField:
    """The field that tells streams apart: at the same place, of the same type, in each of them."""

    name: str
    offset: int
    raw: np.dtype[Any]

    @classmethod
    def of(cls, streams: tuple[Stream, ...], name: str) -> _TypeField:
        places = {s.name: (s.layout.offset(name), s.layout.dtype[name]) for s in streams}
        first, (offset, raw) = next(iter(places.items()))
        for other, place in places.items():
            if place != (offset, raw):
                raise SchemaError(
                    f"the type field '{name}' is at byte {offset} of {first}'s tuples but at byte {place[0]} "
                    f"of {other}'s, or of another type; it must be at the same place in all of an input's"
                )
        if raw.kind not in "iu":
            raise SchemaError(
                f"the type field '{name}' is not a whole number; declare it as byte, short or int"
            )
        return cls(name, offset, raw)


def _check(streams: tuple[Stream, ...], type_field: str | None) -> None:
    if not streams:
        raise InputError("a receiver needs at least one stream to receive")
    if type_field is None and len(streams) > 1:
        names = ", ".join(s.name for s in streams)
        raise InputError(f"several streams ({names}) in one input need a type field that tells them apart")
    taken: dict[int, str] = {}
    for stream in streams:
        if type_field is not None and not stream.types:
            raise InputError(
                f"no value of '{type_field}' marks the stream {stream.name}; give it at least one"
            )
        for kind in stream.types:
            if taken.setdefault(kind, stream.name) != stream.name:
                raise InputError(
                    f"{type_field} = {kind} marks both {taken[kind]} and {stream.name}; keep one"
                )


def _at(flat: np.ndarray, offsets: np.ndarray, raw: np.dtype[Any]) -> np.ndarray:
    """The values of a type at any bytes of a buffer."""
    anywhere = np.ndarray(max(len(flat) - raw.itemsize + 1, 0), raw, flat.data, strides=(1,))
    return np.asarray(anywhere[offsets])


def _offsets(starts: np.ndarray, counts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """For every tuple the datagram that holds it, and where it begins."""
    if (counts == 1).all():
        return np.arange(len(starts)), starts
    owner = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, starts[owner] + within * width


def _both(a: np.ndarray | None, b: np.ndarray) -> np.ndarray | None:
    both = b if a is None else a & b
    return None if both.all() else both
