"""Datagrams taken apart one by one, in plain Python: what the receiver must agree with."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
KINDS = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "uint64": "Q", "float32": "f", "float64": "d", "date": "i", "timestamp": "q",
}  # fmt: skip
EPOCH = datetime.datetime(1970, 1, 1)


class Malformed(Exception):
    """A datagram that is not what was declared."""


def width(kind: str) -> int:
    """Return the bytes of a type."""
    if kind.startswith("decimal"):
        return 16
    return int(kind[kind.index("(") + 1 : -1]) if "(" in kind else struct.calcsize(">" + KINDS[kind])


def value(kind: str, data: bytes) -> Any:
    if kind.startswith("string"):
        try:
            return data.rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise Malformed from None
    if kind.startswith("binary"):
        return data
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= 10**precision:
            raise Malformed
        return decimal.Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
    if kind == "bool" and data[0] > 1:
        raise Malformed
    number = struct.unpack(">" + KINDS[kind], data)[0]
    if kind == "timestamp":
        return number  # compared as a number: Python's datetime does not reach all of them
    return number


def rows(kinds: list[str], payload: bytes) -> list[Row]:
    """Decode the tuples of a datagram."""
    size = sum(map(width, kinds))
    if len(payload) % size:
        raise Malformed
    found = []
    for start in range(0, len(payload), size):
        row, at = [], start
        for kind in kinds:
            row.append(value(kind, payload[at : at + width(kind)]))
            at += width(kind)
        found.append(tuple(row))
    return found


@dataclass
class Receiver:
    """The receiver of one sender's datagrams; the first byte of tuples may distinguish streams."""

    streams: dict[str, tuple[list[str], int | None]]
    sequence: bool
    got: dict[str, list[Row]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    seen: list[int] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        """Take the next datagram."""
        self.counts["datagrams"] += 1
        try:
            self._take(data)
        except Malformed:
            self.counts["malformed"] += 1

    def _take(self, data: bytes) -> None:
        if self.sequence:
            if len(data) < 8:
                raise Malformed
            self._number(struct.unpack(">q", data[:8])[0])
            data = data[8:]
        if not data:
            self.counts["ends"] += 1
            return
        for name, (kinds, mark) in self.streams.items():
            if mark is None or data[0] == mark:
                found = rows(kinds, data)
                if mark is not None and any(row[0] != mark for row in found):
                    raise Malformed
                self.got.setdefault(name, []).extend(found)
                return
        self.counts["unknown"] += 1

    def _number(self, number: int) -> None:
        if self.seen and number <= max(self.seen):
            self.counts["out_of_sequence"] += 1
        if number in self.seen or (self.seen and number < self.seen[0]):
            self.counts["repeated"] += 1
        self.seen.append(number)

    @property
    def missing(self) -> int:
        """Count the numbers between the first and the highest that never came."""
        return len(set(range(self.seen[0], max(self.seen) + 1)) - set(self.seen)) if self.seen else 0
