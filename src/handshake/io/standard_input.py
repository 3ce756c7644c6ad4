"""Standard input as it comes: bytes cut into whole rows of CSV, without waiting for more of them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator

from handshake.errors import InputError

__all__ = ["piped", "whole_rows"]

_MOST = 1 << 20
_LONGEST = 1 << 24
_QUOTED = rb'"(?:[^"]|"")*+"[^,\r\n]*+'
_FIELD = rb"(?:" + _QUOTED + rb'|(?!")[^,\r\n]*+)'
_ROW = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+(?:\r?\n|\r(?=.))", re.DOTALL)
"""A row and its end. The last byte that has come may be half an end: a CR alone waits for what follows."""


def piped() -> Callable[[], bytes]:
    """What reads the next bytes of standard input, and none at its end.

    It reads the descriptor itself. A thread that waits there may outlive the run after Ctrl-C, and one inside
    of Python's buffer, or of Arrow's reader, would bring the interpreter down as it ends.
    """
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # not a file, as in a notebook
        return lambda: sys.stdin.buffer.readline(_MOST)
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not a pipe, or not Linux
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _MOST)
    return lambda: os.read(descriptor, _MOST)


def whole_rows(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Pieces of whole rows, each with the header before it; none where not even a header comes."""
    header, rest, any_rows = b"", b"", False
    for text in iter(read, b""):
        rest += text
        while not header.strip() and (first := _ROW.match(rest)):
            header, rest = first.group(), rest[first.end() :]
        end = _end_of_rows(rest) if header.strip() else 0
        whole, rest = rest[:end], rest[end:]
        if whole:
            yield header + whole
            any_rows = True
        if len(rest) > _LONGEST:
            raise InputError(
                f"standard input has a row of more than {_LONGEST >> 20} MiB; is a quote left open before it?"
            )
    if (header + rest).strip() and (rest or not any_rows):
        yield header + rest if header.strip() else rest + b"\n"


def _end_of_rows(text: bytes) -> int:
    """Where the last whole row ends; a line's end between quotes is part of a field."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1)) + 1
    end = 0
    while row := _ROW.match(text, end):
        end = row.end()
    return end
