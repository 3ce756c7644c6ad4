"""The rows of delimited text as bytes. A line break between quotes is part of a field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from handshake.errors import InputError

_LONGEST = 1 << 24


@cache
def _row(delimiter: str) -> re.Pattern[bytes]:
    """Return the pattern of a row and its line break.

    A CR at the very end may be half of a line break, so it waits for more bytes.
    """
    mark = delimiter.encode()
    quoted = rb'"(?:[^"]|"")*+"[^%b\r\n]*+' % mark
    field = rb'(?:%b|(?!")[^%b\r\n]*+)' % (quoted, mark)
    return re.compile(rb"%b(?:%b%b)*+(?:\r?\n|\r(?=.))" % (field, mark, field), re.DOTALL)


def rows_of(blocks: Iterable[bytes], delimiter: str = ",") -> Iterator[bytes]:
    """Yield each row without its line break, the header first; lines without a byte are no rows."""
    rest = b""
    for block in blocks:
        rest += block
        passed = 0
        for row, end in _whole_rows(rest, delimiter):
            passed = end
            if row := row.rstrip(b"\r\n"):
                yield row
        rest = rest[passed:]
    if rest := rest.rstrip(b"\r\n"):
        yield rest


def split_rows(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield pieces of whole rows, each with the header in front; nothing if there is no header."""
    header, rest, any_rows = b"", b"", False
    for text in iter(read, b""):
        rest += text
        while not header.strip() and (first := _row(",").match(rest)):
            header, rest = first.group(), rest[first.end() :]
        end = _end_of_rows(rest, ",") if header.strip() else 0
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


def _end_of_rows(text: bytes, delimiter: str) -> int:
    """Find the end of the last whole row."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1)) + 1
    return max((end for _, end in _whole_rows(text, delimiter)), default=0)


def _whole_rows(text: bytes, delimiter: str) -> Iterator[tuple[bytes, int]]:
    """Yield the whole rows at the beginning of a text, and their ends."""
    if b'"' not in text:
        end = 0
        for line in text[: _end_of_rows(text, delimiter)].splitlines(keepends=True):
            end += len(line)
            yield line, end
        return
    end = 0
    while row := _row(delimiter).match(text, end):
        end = row.end()
        yield row.group(), end
