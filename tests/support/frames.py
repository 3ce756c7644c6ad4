"""Ethernet frames with UDP datagrams of packed tuples; each part can be made wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from handshake.engines.circuit.components.types import Row

__all__ = ["PORT", "Frame", "checksum", "pack_tuple"]

PORT = 5001


def checksum(data: bytes) -> int:
    """Return the Internet checksum: the complement of the ones' complement sum of 16-bit words."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def pack_tuple(row: Row, values: tuple[Any, ...]) -> bytes:
    """Pack a tuple as datagrams carry it: fields in network byte order, in whole bytes."""
    sizes = [(each, (each.bits + 7) // 8) for each in row]
    return b"".join(
        (each.encode(value) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
        for (each, size), value in zip(sizes, values, strict=True)
    )


@dataclass(frozen=True)
class Frame:
    """A frame by its parts."""

    payload: bytes
    port: int = PORT
    ethertype: int = 0x0800
    protocol: int = 17
    options: bytes = b""
    version: int = 4
    fragment: int = 0
    ip_sum: int | None = None
    udp_sum: int | None = None
    udp_length: int | None = None
    padding: bytes = b""

    def bytes(self) -> bytes:
        """Return the frame as a MAC gives it: without preamble and FCS."""
        source, target = b"\x0a\0\0\1", b"\x0a\0\0\2"
        length = 8 + len(self.payload)
        head = struct.pack(">HHHH", 999, self.port, length if self.udp_length is None else self.udp_length, 0)
        pseudo = source + target + struct.pack(">BBH", 0, 17, length)
        right = checksum(pseudo + head + self.payload) or 0xFFFF
        udp = head[:6] + struct.pack(">H", right if self.udp_sum is None else self.udp_sum) + self.payload
        words_ = 5 + len(self.options) // 4
        total = 4 * words_ + len(udp)
        ip = struct.pack(
            ">BBHHHBBH", self.version << 4 | words_, 0, total, 7, self.fragment, 64, self.protocol, 0
        )
        ip += source + target + self.options
        sum_ = checksum(ip) if self.ip_sum is None else self.ip_sum
        ip = ip[:10] + struct.pack(">H", sum_) + ip[12:]
        return b"\xff" * 6 + b"\x02" * 6 + struct.pack(">H", self.ethertype) + ip + udp + self.padding
