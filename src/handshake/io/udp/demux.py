"""De-multiplexing (Glacier 5.3): datagrams become batches of the streams whose tuples they carry."""

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
from handshake.io.udp.wire import Layout, values_at

HEADER = np.dtype(">i8")
"""The optional sequence number in front of the tuples of a datagram."""


@dataclass(frozen=True)
class Stream:
    """One stream of an input: its tuples, and the values of the type field that mark them."""

    name: str
    layout: Layout
    types: tuple[int, ...] = ()
    """Empty if the input carries this stream alone."""


@dataclass
class Counters:
    """Counts of received and lost datagrams."""

    datagrams: int = 0
    """Datagrams received, including malformed and unknown ones."""
    tuples: int = 0
    malformed: int = 0
    unknown: int = 0
    """Datagrams whose type field marks no declared stream."""
    out_of_sequence: int = 0
    repeated: int = 0
    missing: int = 0
    """Skipped numbers that have not arrived since: lost somewhere between sender and receiver."""
    kernel_dropped: int | None = 0
    """Datagrams dropped because the socket's buffer was full; None if the system does not report it."""
    ends: int = 0
    """Empty datagrams, by which a sender says that it is done."""
    unknown_types: dict[str, int] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return asdict(self)


_REMEMBERED = 10_000
"""Runs of missing numbers kept per sender. Numbers of older runs count as repeated if they still come."""


@dataclass
class Sequence:
    """The datagram numbers of one sender: 0, 1, 2, … Counting begins with the first number seen.

    >>> s = Sequence()
    >>> s.observe(np.array([7, 8, 11, 9, 9]))
    >>> s.missing, s.out_of_sequence, s.repeated
    (1, 2, 1)
    """

    missing: int = 0
    """Skipped numbers that have not arrived since."""
    out_of_sequence: int = 0
    """Datagrams that came after one with a higher number, including repeated ones."""
    repeated: int = 0
    restarts: int = 0
    _highest: int | None = None
    _holes: list[tuple[int, int]] = field(default_factory=list)
    """Runs of skipped numbers: the first, and one past the last."""

    def observe(self, numbers: np.ndarray) -> None:
        """Count the numbers of the next datagrams."""
        if not len(numbers):
            return
        if self._highest is None:
            self._highest = int(numbers[0]) - 1
        before = np.concatenate(([self._highest], numbers[:-1]))
        if (numbers > before).all():
            jumps = np.flatnonzero(numbers > before + 1)
            self._skip([(int(before[at]) + 1, int(numbers[at])) for at in jumps])
            self._highest = int(numbers[-1])
        else:
            self._observe_disorder(numbers.tolist())

    def _observe_disorder(self, numbers: list[int]) -> None:
        for number in numbers:
            awaited = self._highest + 1 if self._highest is not None else number
            if number < awaited:
                self._behind(number)
                continue
            self._skip([(awaited, number)] if number > awaited else [])
            self._highest = number

    def _skip(self, holes: list[tuple[int, int]]) -> None:
        self.missing += sum(end - first for first, end in holes)
        self._holes += holes
        del self._holes[:-_REMEMBERED]

    def _behind(self, number: int) -> None:
        for at in range(len(self._holes) - 1, -1, -1):
            first, end = self._holes[at]
            if first <= number < end:
                parts = [(first, number), (number + 1, end)]
                self._holes[at : at + 1] = [part for part in parts if part[0] < part[1]]
                self.missing -= 1
                self.out_of_sequence += 1
                return
            if end <= number:
                break
        if number == 0:  # every sender counts from 0: this one has restarted
            self.restarts += 1
            self._highest, self._holes = 0, []
            return
        self.out_of_sequence += 1
        self.repeated += 1


class BadFile:
    """A file of malformed datagrams, one JSON object per line: time, reason, length, bytes in base64."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise InputError(f"cannot write malformed datagrams to '{path}': {error.strerror}") from None

    def __call__(self, data: bytes, reason: str) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(),
            "reason": reason,
            "length": len(data),
            "bytes": base64.b64encode(data).decode(),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def refuse(data: bytes, reason: str) -> None:
    """Raise `InputError` for a malformed datagram, as `--strict` asks."""
    raise InputError(
        f"malformed datagram of {len(data)} bytes: {reason}; its first bytes are {data[:32].hex(' ')}. "
        "Unless strict=True, it is counted and left out"
    )


def _ignore(data: bytes, reason: str) -> None:
    """Do nothing: malformed datagrams are counted in any case."""


class Demux:
    """Splits datagrams into streams. `bad` is called for malformed ones, which are always counted."""

    def __init__(
        self,
        streams: tuple[Stream, ...],
        type_field: str | None = None,
        sequence: bool = False,
        bad: Callable[[bytes, str], None] = _ignore,
        arrival: str | None = None,
    ) -> None:
        _check(streams, type_field)
        self.streams = streams
        self.counters = Counters()
        self._bad = bad
        self._arrival = arrival
        self._header = HEADER.itemsize if sequence else 0
        self._sequences: dict[bytes, Sequence] = {}  # by the socket address of the sender
        self._type = _TypeField.of(streams, type_field) if type_field is not None else None
        self._unknown: Counter[int] = Counter()

    def schema(self, stream: Stream) -> pa.Schema:
        """Return the schema of a stream's batches: its fields and, if asked for, the time of arrival."""
        if self._arrival is None:
            return stream.layout.schema
        return stream.layout.schema.append(pa.field(self._arrival, pa.timestamp("us", "UTC"), False))

    def take(self, got: Datagrams, now: datetime | None = None) -> dict[str, pa.RecordBatch]:
        """Return the tuples of some datagrams by stream, each stream in order of arrival."""
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
        return (
            {name: self._add_arrival(batch, now) for name, batch in found.items()} if self._arrival else found
        )

    def _add_arrival(self, batch: pa.RecordBatch, now: datetime | None) -> pa.RecordBatch:
        time = pa.scalar(now or datetime.now(UTC), pa.timestamp("us", "UTC"))
        field = pa.field(self._arrival, time.type, False)
        times = pa.repeat(time, batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, times], schema=batch.schema.append(field))

    def _reject(self, got: Datagrams, those: np.ndarray, wrong: np.ndarray, reason: str) -> np.ndarray:
        """Count and report the wrong ones; return the others."""
        if not wrong.any():
            return those
        for index in those[wrong].tolist():
            self.counters.malformed += 1
            self._bad(got.bytes(index), reason)
        return np.asarray(those[~wrong])

    def _number(self, got: Datagrams, good: np.ndarray) -> None:
        if not self._header:
            return
        numbers = values_at(got.flat, got.starts[good], HEADER).astype(np.int64)
        whose = None if got.sender is None else got.sender[good]
        for at in np.unique(whose).tolist() if whose is not None else range(min(len(numbers), 1)):
            sequence = self._sequences.setdefault(got.senders[at], Sequence())
            sequence.observe(numbers if whose is None else numbers[whose == at])
        for figure in ("missing", "out_of_sequence", "repeated"):
            setattr(self.counters, figure, sum(getattr(s, figure) for s in self._sequences.values()))

    def _without_ends(self, got: Datagrams, good: np.ndarray) -> np.ndarray:
        empty = got.lengths[good] == self._header
        ends = int(np.count_nonzero(empty))
        self.counters.ends += ends
        return np.asarray(good[~empty]) if ends else good

    def _by_type(self, got: Datagrams, good: np.ndarray, kind: _TypeField) -> dict[str, pa.RecordBatch]:
        short = got.lengths[good] < self._header + kind.offset + kind.raw.itemsize
        good = self._reject(got, good, short, f"too short for the type field '{kind.name}'")
        codes = values_at(got.flat, got.starts[good] + self._header + kind.offset, kind.raw).astype(np.int64)
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
        return batch if fine is None else self._drop_invalid(got, good, owner, batch, fine)

    def _drop_invalid(
        self, got: Datagrams, good: np.ndarray, owner: np.ndarray, batch: pa.RecordBatch, fine: np.ndarray
    ) -> pa.RecordBatch:
        """Drop datagrams that hold an invalid value."""
        wrong = np.zeros(len(good), bool)
        wrong[owner[~fine]] = True
        self._reject(got, good, wrong, "a field holds bytes that are no value of its type")
        return batch.filter(pa.array(~wrong[owner]))


@dataclass(frozen=True)
class _TypeField:
    """The field that distinguishes streams: at the same place and of the same type in each."""

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
        raise InputError(f"several streams ({names}) in one input need a type field that distinguishes them")
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


def _offsets(starts: np.ndarray, counts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the datagram and the start of every tuple."""
    if (counts == 1).all():
        return np.arange(len(starts)), starts
    owner = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, starts[owner] + within * width


def _both(a: np.ndarray | None, b: np.ndarray) -> np.ndarray | None:
    both = b if a is None else a & b
    return None if both.all() else both
