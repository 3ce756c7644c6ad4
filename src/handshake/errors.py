"""One family of errors. Every message says what is wrong, the value, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HandshakeError(Exception):
    """Base class of all errors that this package raises on purpose. A message is one line."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(_in_one_line(part) if isinstance(part, str) else part for part in parts))


def _in_one_line(text: str) -> str:
    """Return a text with spaces in the place of line breaks, which values from the input may hold."""
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


class SchemaError(HandshakeError):
    """A column that is missing, doubled, or of a type that cannot be used."""


class WindowError(HandshakeError):
    """A window specification that has no meaning."""


class InputError(HandshakeError):
    """A file, frame or batch that cannot be read as a stream."""


class UnsupportedError(HandshakeError):
    """A request that is understood but that this engine cannot run."""


class ExpressionError(HandshakeError):
    """A predicate that cannot be read or typed.

    Attributes:
        reason: The message without the place of the error.
        line: The line of the error in the text, from 1; None if unknown.
        column: The column of the error, from 1.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        where = "" if line is None else f" (line {line}, column {column})"
        super().__init__(message + where)
        self.reason = message
        self.line = line
        self.column = column


class QueryError(ExpressionError):
    """A continuous query that cannot be read or planned; its text ends with the line and a caret."""

    def __init__(
        self, message: str, text: str = "", line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(message, line, column)
        self.message = str(self)
        self.excerpt = _excerpt(text, line, column)

    def __str__(self) -> str:
        excerpt = getattr(self, "excerpt", "")
        return f"{super().__str__()}\n{excerpt}" if excerpt else super().__str__()


def _excerpt(text: str, line: int | None, column: int | None) -> str:
    """Return the line of an error, and a caret below its column."""
    lines = text.split("\n")
    if line is None or column is None or not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].replace("\t", " ").replace("\r", " ")
    start = max(0, column - 1 - _ROOM) if len(shown) > 2 * _ROOM else 0
    return f"  {shown[start : start + 2 * _ROOM]}\n  {' ' * (column - 1 - start)}^"


_ROOM = 60
"""Characters of a long line on each side of the caret."""


def core_error(error: BaseException, what: str) -> Exception:
    """Return the error to raise for the caller when a join core fails; a `HandshakeError` keeps its class."""
    if isinstance(error, MemoryError):
        return MemoryError(f"a join core ran out of memory on {what}")
    kind = type(error) if isinstance(error, HandshakeError) else HandshakeError
    reason = str(error) if isinstance(error, HandshakeError) else f"{type(error).__name__}: {error}"
    return kind(f"a join core failed on {what}: {reason}")


def one_line(text: object, limit: int = 200) -> str:
    """Return a text without line breaks, cut at `limit` characters."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return '; did you mean …?' for an unknown name, or an empty text if no choice is close.

    >>> suggest("prise", ["x", "price"])
    "; did you mean 'price'?"
    """
    known = list(choices)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not near:
        folded = {choice.casefold(): choice for choice in known}
        near = [folded[n] for n in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)]
    return f"; did you mean '{near[0]}'?" if near else ""


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one.

    >>> format_count(1, "row"), format_count(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
