"""Functions of texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from handshake.errors import HandshakeError
from handshake.plan.expr import Call, Expr, Literal
from handshake.plan.functions.registry import (
    BYTES,
    INT,
    TEXT,
    WHOLE,
    Argument,
    Function,
    Rule,
    check_count,
    plain,
    takes,
)
from handshake.plan.types import fail
from handshake.schema import BOOL, INT64, STRING, Binary, Int, Null, String, Type

HEXED = Argument("a whole number, text or bytes", (Int, String, Binary))


def _many(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 1, 99)
    return takes(*(TEXT,) * len(args), gives=STRING)(call, args)


def _substring(call: Call, args: tuple[Expr, ...]) -> Expr:
    if not 2 <= len(args) <= 3 or not all(isinstance(a.type, (Int, Null)) for a in args[1:]):
        raise fail("substring() takes a text, a first position and optionally a length", call)
    return takes(TEXT, WHOLE, WHOLE, gives=STRING, optional=1)(call, args)


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


def _bytes(value: str | bytes) -> int:
    return len(value.encode() if isinstance(value, str) else value)


LONGEST = 1_000_000
"""Characters of the longest text that is computed; a longer one is NULL."""


def _repeat(text: str, times: int) -> str | None:
    if not text or times <= 0:
        return ""
    return text * times if len(text) * times <= LONGEST else None


def _pad(left: bool) -> Callable[..., str | None]:
    """Return LPAD or RPAD: a text of exactly `length` characters, unless there is nothing to fill it with."""

    def pad(text: str, length: int, fill: str = " ") -> str | None:
        if length > LONGEST:
            return None
        missing = length - len(text)
        if missing <= 0 or not fill:
            return text[: max(length, 0)]
        filled = (fill * (missing // len(fill) + 1))[:missing]
        return filled + text if left else text + filled

    return pad


def _replace(text: str, old: str, new: str = "") -> str | None:
    found = text.replace(old, new) if old else text
    return found if len(found) <= LONGEST else None


def _locate(part: str, text: str, start: int = 1) -> int:
    """Return the position of a part from `start` on, counted from 1; 0 if there is none."""
    if start < 1 or not part:
        return int(start > 0)
    return text.find(part, start - 1) + 1


def _split_part(text: str, separator: str, number: int) -> str | None:
    """Return one part, counted from 1 or from the end; no part is empty text, and there is no part 0."""
    parts = text.split(separator) if separator else [text]
    if number == 0:
        return None
    place = number - 1 if number > 0 else len(parts) + number
    return parts[place] if 0 <= place < len(parts) else ""


def _up_to(text: str, separator: str, count: int) -> str:
    """Return all before the `count`-th separator, or after it from the end if `count` is negative."""
    if not separator or not count:
        return ""
    parts = text.split(separator)
    return separator.join(parts[:count] if count > 0 else parts[count:])


def _join_known(separator: str | None, *texts: str | None) -> str | None:
    """Join texts that are not NULL."""
    return None if separator is None else separator.join(text for text in texts if text is not None)


def _initial_capitals(text: str) -> str:
    """Return each word with a capital; the end of a word, not of a text, decides the form of a sigma."""
    words = text.split(" ")
    return " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in words)


def _translate(text: str, old: str, new: str) -> str:
    """Replace characters one by one; the first of doubled ones counts, and those without a partner go."""
    table = {ord(a): new[place] if place < len(new) else None for place, a in reversed(list(enumerate(old)))}
    return text.translate(table)


def _hex(value: int | str | bytes) -> str | None:
    if isinstance(value, int):
        return f"{value % 2**64:X}" if -(2**63) <= value < 2**64 else None
    return (value.encode() if isinstance(value, str) else value).hex().upper()


def _overlay(text: str, new: str, start: int, length: int = -1) -> str:
    """Replace `length` characters from `start` on; as many as the new text has if `length` is negative."""
    before = _slice(text, 1, start - 1)
    return before + new + _slice(text, start + (length if length >= 0 else len(new)))


def _matches(text: str, pattern: str) -> bool:
    return _compile(pattern).search(text) is not None


def _extract(call: Call) -> Callable[..., str | None]:
    """Return the values of REGEXP_EXTRACT: a group of the first match, or empty text."""

    def extract(text: str, pattern: str, group: int = 1) -> str | None:
        found = _compile(pattern)
        if not 0 <= group <= found.groups:
            raise HandshakeError(f"'{pattern}' has {found.groups} groups, not {group}")
        match = found.search(text)
        return "" if match is None else match[group] or ""

    return extract


def _regexp_replace(text: str, pattern: str, new: str) -> str | None:
    """Replace all matches; `$1` in the new text is the first group."""
    found = _compile(pattern)

    def fill(match: re.Match[str]) -> str:
        return re.sub(r"\\(.)|\$([0-9])", lambda r: r[1] or (_group(match, int(r[2]), pattern)), new)

    replaced = found.sub(fill, text)
    return replaced if len(replaced) <= LONGEST else None


def _group(match: re.Match[str], number: int, pattern: str) -> str:
    if number > (match.re.groups):
        raise HandshakeError(f"'{pattern}' has {match.re.groups} groups, not {number}")
    return match[number] or ""


def _with_pattern(*arguments: Argument, gives: Type, optional: int = 0) -> Rule:
    """Return a rule that checks a constant pattern, the second argument, before any row is read."""
    rule = takes(*arguments, gives=gives, optional=optional)

    def bind(call: Call, args: tuple[Expr, ...]) -> Expr:
        bound = rule(call, args)
        pattern = bound.children[1]
        if isinstance(pattern, Literal) and pattern.value is not None:
            try:
                _compile(pattern.value)
            except HandshakeError as error:
                raise fail(str(error), call) from None
        return bound

    return bind


_UNARY, _TEST = takes(TEXT, gives=STRING), takes(TEXT, TEXT, gives=BOOL)
_TRIM = takes(TEXT, TEXT, gives=STRING, optional=1)
_COUNTED = takes(TEXT, WHOLE, gives=STRING)

FUNCTIONS = (
    Function("ascii", takes(TEXT, gives=INT), plain(lambda text: ord(text[0]) if text else 0)),
    Function("bit_length", takes(BYTES, gives=INT), plain(lambda value: 8 * _bytes(value))),
    Function("chr", takes(WHOLE, gives=STRING), plain(lambda code: "" if code < 0 else chr(code % 256))),
    Function("concat", _many, plain(lambda *texts: "".join(texts))),
    Function("concat_ws", _many, plain(_join_known), strict=False),
    Function("contains", _TEST, plain(lambda text, part: part in text)),
    Function("ends_with", _TEST, plain(str.endswith), spelled=False),
    Function("hex", takes(HEXED, gives=STRING), plain(_hex)),
    Function("ilike", _TEST, plain(_like(fold=True)), spelled=False),
    Function("initcap", _UNARY, plain(_initial_capitals)),
    Function("instr", takes(TEXT, TEXT, gives=INT), plain(lambda text, part: _locate(part, text))),
    Function("left", _COUNTED, plain(lambda text, count: text[: max(count, 0)])),
    Function("length", takes(TEXT, gives=INT64), plain(len)),
    Function("like", _TEST, plain(_like(fold=False)), spelled=False),
    Function("locate", takes(TEXT, TEXT, WHOLE, gives=INT, optional=1), plain(_locate)),
    Function("lower", _UNARY, plain(str.lower)),
    Function("lpad", takes(TEXT, WHOLE, TEXT, gives=STRING, optional=1), plain(_pad(left=True))),
    Function("ltrim", _TRIM, plain(lambda text, chars=" ": text.lstrip(chars) if chars else text)),
    Function("octet_length", takes(BYTES, gives=INT), plain(_bytes)),
    Function("overlay", takes(TEXT, TEXT, WHOLE, WHOLE, gives=STRING, optional=1), plain(_overlay)),
    Function("regexp_extract", _with_pattern(TEXT, TEXT, WHOLE, gives=STRING, optional=1), _extract),
    Function("regexp_like", _with_pattern(TEXT, TEXT, gives=BOOL), plain(_matches)),
    Function("regexp_replace", _with_pattern(TEXT, TEXT, TEXT, gives=STRING), plain(_regexp_replace)),
    Function("repeat", _COUNTED, plain(_repeat)),
    Function("replace", takes(TEXT, TEXT, TEXT, gives=STRING, optional=1), plain(_replace)),
    Function("reverse", _UNARY, plain(lambda text: text[::-1])),
    Function("right", _COUNTED, plain(lambda text, count: text[-count:] if count > 0 else "")),
    Function("rpad", takes(TEXT, WHOLE, TEXT, gives=STRING, optional=1), plain(_pad(left=False))),
    Function("rtrim", _TRIM, plain(lambda text, chars=" ": text.rstrip(chars) if chars else text)),
    Function("space", takes(WHOLE, gives=STRING), plain(lambda count: _repeat(" ", count))),
    Function("split_part", takes(TEXT, TEXT, WHOLE, gives=STRING), plain(_split_part)),
    Function("starts_with", _TEST, plain(str.startswith), spelled=False),
    Function("substring", _substring, plain(_slice)),
    Function("substring_index", takes(TEXT, TEXT, WHOLE, gives=STRING), plain(_up_to)),
    Function("translate", takes(TEXT, TEXT, TEXT, gives=STRING), plain(_translate)),
    Function("trim", _TRIM, plain(lambda text, chars=" ": text.strip(chars) if chars else text)),
    Function("upper", _UNARY, plain(str.upper)),
)
ALIASES = {
    "btrim": "trim",
    "char": "chr",
    "char_length": "length",
    "character_length": "length",
    "charindex": "locate",
    "endswith": "ends_with",
    "lcase": "lower",
    "position": "locate",
    "rlike": "regexp_like",
    "startswith": "starts_with",
    "substr": "substring",
    "ucase": "upper",
}
