# ruff: noqa: E501 - texts to mutate, and errors to look at
"""Mutations of texts, of bytes and of JSON values. All of them follow from a generator of random numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Any

__all__ = ["Mutant", "mutate_bytes", "mutate_json", "mutate_text", "odd_value"]

TOKENS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[A-Za-z_]\w*|\d*\.?\d+|<=>|<>|<=|>=|\|\||::|\s+|.", re.DOTALL)
_ODD_BYTES = (
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b'"',
    b",",
    b"'",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"9" * 40,
    b"-",
    b"1e999",
)
_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, float("nan"), float("inf"), 1e300, 2**31, 2**63, -(2**63), 10**30,
    "", " ", "x", "0", "-1", "1 second", "nan", "é", "😀", "\0", "a\nb", "x" * 300, "auto", [], [1], ["x"], {},
    {"x": 1}, [[]], (), b"x",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """Mutated bytes that show only where they differ from the original."""

    whole: bytes
    data: bytes

    def __repr__(self) -> str:
        start = _alike(self.whole, self.data)
        old, new = self.whole[start:], self.data[start:]
        same = _alike(old[::-1], new[::-1])
        old, new = old[: len(old) - same], new[: len(new) - same]
        return f"{new!r} instead of {old!r} at byte {start} of {len(self.whole)}"


def _alike(some: bytes, others: bytes) -> int:
    """Return the number of bytes that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))


def odd_value(rng: Random) -> Any:
    """Draw a value of any type, often one that is not wanted."""
    return rng.choice(_ODD_VALUES)


def mutate_text(rng: Random, text: str, words: Sequence[str], others: Sequence[str] = ()) -> str:
    """Delete, double, swap, replace, insert or cut off some tokens or characters of a text."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        parts = TOKENS.findall(text) if rng.random() < 0.8 else list(text)
        if not parts:
            break
        at = rng.randrange(len(parts))
        match rng.randrange(8):
            case 0:
                del parts[at]
            case 1:
                parts.insert(at, parts[at])
            case 2:
                other = rng.randrange(len(parts))
                parts[at], parts[other] = parts[other], parts[at]
            case 3:
                parts[at] = rng.choice(words)
            case 4:
                parts.insert(at, f" {rng.choice(words)} ")
            case 5 if others:
                parts[at] = rng.choice(TOKENS.findall(rng.choice(others)) or [""])
            case 6 if rng.random() < 0.2:
                parts = parts[:at]
            case _:
                parts.insert(rng.randrange(len(parts)), parts.pop(at))
        text = "".join(parts)
    return text


def mutate_bytes(rng: Random, data: bytes) -> bytes:
    """Flip, replace, delete, double, insert or cut off some bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(found) + 1)
        to = min(len(found), at + rng.choice((1, 1, 1, 2, 4, 8, 64)))
        match rng.randrange(7):
            case 0 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(found):
                found[at] = rng.randrange(256)
            case 2:
                del found[at:to]
            case 3:
                found[at:at] = found[at:to]
            case 4:
                found[at:at] = rng.choice(_ODD_BYTES)
            case 5:
                found[at:to] = bytes(to - at) if rng.random() < 0.5 else b"\xff" * (to - at)
            case _ if rng.random() < 0.2:
                del found[at:]
    return bytes(found)


def mutate_json(rng: Random, value: Any) -> Any:
    """Delete, double or replace a part of a JSON value."""
    copy = json.loads(json.dumps(value))
    places = list(_places(copy))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        owner, key = rng.choice(places)
        if (isinstance(owner, list) and not 0 <= key < len(owner)) or (
            isinstance(owner, dict) and key not in owner
        ):
            continue
        match rng.randrange(4):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, list):
                owner.insert(key, owner[key])
            case 2:
                other, name = rng.choice(places)
                found = (isinstance(other, dict) and name in other) or (
                    isinstance(other, list) and name < len(other)
                )
                owner[key] = json.loads(json.dumps(other[name])) if found else None
            case _:
                odd = odd_value(rng)
                owner[key] = None if isinstance(odd, bytes) else odd
    return copy


def _places(value: Any) -> Any:
    """Yield all containers of a value with their keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])
