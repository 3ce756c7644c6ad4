"""Access methods: how a probe finds the matching tuples of a basic window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from handshake.errors import UnsupportedError
from handshake.plan.analyse import Analysis


@dataclass(frozen=True)
class AccessMethod:
    """An access method in the registry. Its fields decide how basic windows are clustered."""

    name: str
    needs: str
    """The kind of condition that the predicate must contain."""
    fits: Callable[[Analysis], bool]
    why: Callable[[Analysis], str]
    """The reason for choosing it, for people."""
    preference: int
    """Of the methods that fit a predicate, the one with the lowest number is chosen."""
    largest: int
    """Tuples of the largest basic window; an index finds more the larger it is."""
    hashed: bool = False
    """Whether basic windows are clustered by a hash of the equality keys."""
    attributes: int = 0
    """How many bounded attributes basic windows are clustered by."""
    coded: bool = False
    """Whether bands on plain numbers get codes of one byte, which scans compare first."""


def _bands(analysis: Analysis) -> str:
    two = sum(len({bound.is_lower for bound in band}) == 2 for band in analysis.bands)
    return f"no equality; {f'{two} band(s)' if two else 'inequalities only'} between the sides"


ACCESS_METHODS = {
    method.name: method
    for method in (
        AccessMethod(
            "scan", "any predicate", lambda analysis: True,
            lambda analysis: "no equality, band or inequality that an index could use",
            preference=2, largest=1 << 17, coded=True,
        ),
        AccessMethod(
            "hash", "an equality", lambda analysis: bool(analysis.equalities),
            lambda analysis: f"{len(analysis.equalities)} equality conjunct(s) between the sides",
            preference=0, largest=1 << 21, hashed=True, attributes=1,
        ),
        AccessMethod(
            "band", "a band or inequality", lambda analysis: bool(analysis.bounds), _bands,
            preference=1, largest=1 << 21, attributes=2,
        ),
    )
}  # fmt: skip
"""All access methods by name; an entry added here can be chosen from then on."""


def choose_method(analysis: Analysis, name: str) -> tuple[AccessMethod, str]:
    """Return the access method of a join, and why.

    Raises:
        UnsupportedError: The predicate does not have what the method needs.
    """
    if name == "auto":
        fitting = [method for method in ACCESS_METHODS.values() if method.fits(analysis)]
        best = min(fitting, key=lambda method: method.preference)
        return best, best.why(analysis)
    method = ACCESS_METHODS[name]
    if not method.fits(analysis):
        *others, last = ("auto", *sorted(set(ACCESS_METHODS) - {name}))
        raise UnsupportedError(
            f"method '{name}' needs {method.needs} between the sides, and the predicate has none; "
            f"use {', '.join(others)} or {last}"
        )
    return method, "as asked"
