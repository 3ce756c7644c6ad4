"""One family of errors. Every message says what, what was given, why, and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ExpressionError",
    "HandshakeError",
    "InputError",
    "SchemaError",
    "UnsupportedError",
    "WindowError",
    "failed",
    "suggest",
]


class HandshakeError(Exception):
    """Base class of all errors that this package raises on purpose."""


class SchemaError(HandshakeError):
    """Columns that are missing, doubled, or of a type that cannot be used."""


class WindowError(HandshakeError):
    """A window specification that has no meaning."""


class InputError(HandshakeError):
    """A file, frame or batch that cannot be read as a stream."""


class UnsupportedError(HandshakeError):
    """A request that is understood but that this engine cannot run."""


class ExpressionError(HandshakeError):
    """A predicate that cannot be parsed or typed; knows where in the text it went wrong."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        where = "" if line is None else f" (line {line}, column {column})"
        super().__init__(message + where)
        self.line = line
        self.column = column


def failed(error: BaseException, what: str) -> Exception:
    """What a thread's error becomes for the caller: of the same kind where that tells what to do."""
    if isinstance(error, MemoryError):
        return MemoryError(f"a join core ran out of memory on {what}")
    kind = type(error) if isinstance(error, HandshakeError) else HandshakeError
    reason = str(error) if isinstance(error, HandshakeError) else f"{type(error).__name__}: {error}"
    return kind(f"a join core failed on {what}: {reason}")


def suggest(name: str, choices: Iterable[str]) -> str:
    """A '; did you mean …?' tail for an unknown name, or nothing when no choice is near.

    >>> suggest("prise", ["x", "price"])
    "; did you mean 'price'?"
    """
    known = list(choices)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not near:
        folded = {choice.casefold(): choice for choice in known}
        near = [folded[n] for n in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)]
    return f"; did you mean '{near[0]}'?" if near else ""
