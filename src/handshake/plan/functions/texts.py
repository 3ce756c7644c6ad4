"""Functions of texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from handshake.errors import HandshakeError
from handshake.plan.expr import Call, Expr, Literal
from handshake.plan.functions.registry import TEXT, WHOLE, Function, check_count, plain, takes
from handshake.plan.types import fail
from handshake.schema import BOOL, INT64, STRING, Int, Null

__all__ = ["ALIASES", "FUNCTIONS"]


def _many(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 1, 99)
    return takes(*(TEXT,) * len(args), gives=STRING)(call, args)


def _substring(call: Call, args: tuple[Expr, ...]) -> Expr:
    if not 2 <= len(args) <= 3 or not all(isinstance(a.type, (Int, Null)) for a in args[1:]):
        raise fail("substring() takes a text, a first position and optionally a length", call)
    return takes(TEXT, WHOLE, WHOLE, gives=STRING, optional=1)(call, args)


def _regexp(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Check a constant pattern before any row is read."""
    bound = takes(TEXT, TEXT, gives=BOOL)(call, args)
    pattern = bound.children[1]
    if isinstance(pattern, Literal) and pattern.value is not None:
        try:
            _compile(pattern.value)
        except HandshakeError as error:
            raise fail(str(error), call) from None
    return bound


# Values.


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise HandshakeError(f"'{pattern}' is not a regular expression: {error}") from None


@lru_cache(maxsize=4096)
def _like_pattern(pattern: str, fold: bool) -> re.Pattern[str]:
    parts, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(char, re.escape(char)))
        at += 1
    return re.compile("".join(parts), re.DOTALL | (re.IGNORECASE if fold else 0))


def _like(fold: bool) -> Callable[[str, str], bool]:
    return lambda text, pattern: _like_pattern(pattern, fold).fullmatch(text) is not None


def _slice(text: str, start: int, length: int | None = None) -> str:
    """Cut a substring as SQL does: positions count from 1, or from the end if negative."""
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    stop = len(text) if length is None else first + max(length, 0)
    return text[max(first, 0) : max(stop, 0)]


_UNARY, _TEST = takes(TEXT, gives=STRING), takes(TEXT, TEXT, gives=BOOL)

FUNCTIONS = (
    Function("lower", _UNARY, plain(str.lower)),
    Function("upper", _UNARY, plain(str.upper)),
    Function("trim", _UNARY, plain(lambda text: text.strip(" "))),
    Function("ltrim", _UNARY, plain(lambda text: text.lstrip(" "))),
    Function("rtrim", _UNARY, plain(lambda text: text.rstrip(" "))),
    Function("length", takes(TEXT, gives=INT64), plain(len)),
    Function("concat", _many, plain(lambda *texts: "".join(texts))),
    Function("substring", _substring, plain(_slice)),
    Function("like", _TEST, plain(_like(fold=False)), spelled=False),
    Function("ilike", _TEST, plain(_like(fold=True)), spelled=False),
    Function("regexp_like", _regexp, plain(lambda text, p: _compile(p).search(text) is not None)),
    Function("starts_with", _TEST, plain(str.startswith), spelled=False),
    Function("ends_with", _TEST, plain(str.endswith), spelled=False),
    Function("contains", _TEST, plain(lambda text, part: part in text)),
)
ALIASES = {
    "char_length": "length",
    "character_length": "length",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "rlike": "regexp_like",
    "substr": "substring",
}
