"""Addresses to serve at: their texts, and which of them only this machine can reach."""

from __future__ import annotations

import ipaddress

from handshake.errors import InputError


def parse_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Args:
        address: `HOST:PORT`, `:PORT` or `PORT`; the host is loopback by default.

    >>> parse_address("[::1]:8642"), parse_address("8642")
    (('::1', 8642), ('127.0.0.1', 8642))
    """
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(f"address '{address}' is not HOST:PORT with a port up to 65535")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Return true if an address can be reached from this machine only.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.1.2.3")]
    [True, True, True, False, False]
    """
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def asks_for_loopback(header: str) -> bool:
    """Return true if the `Host` of a request is loopback, not another name that was bound to this machine.

    >>> [asks_for_loopback(host) for host in ("localhost:8642", "[::1]:8642", "::1", "evil.example:8642")]
    [True, True, False, False]
    """
    name = header.rpartition(":")[0] if ":" in header and not header.endswith("]") else header
    return is_loopback(name.removeprefix("[").removesuffix("]"))
