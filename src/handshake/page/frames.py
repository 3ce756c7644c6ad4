"""Frames: the figures of a moment as plain data, and the news that a page which is open gets."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handshake.page.cards import Card
from handshake.page.history import Errors

FASTEST = 50
"""Updates per second, at most."""
Frame = dict[str, Any]
_SLOWEST = 0.2
_POINTS = 5
"""Points of the history in a whole frame, so that a page that reads it late misses none."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def encode(frame: Frame) -> str:
    """Return a frame as JSON."""
    return _ENCODER.encode(frame)


def whole(cards: Mapping[str, Card], errors: Errors) -> Frame:
    """Return all figures of this moment."""
    found: Frame = {"t": round(time.time(), 3), "queries": {}, "errors": errors.last()}
    for title, card in cards.items():
        card.look()
        points = card.history.after(card.history.count - _POINTS)
        found["queries"][title] = {**card.figures(), **card.details, "points": points}
    return found


@dataclass
class _Got:
    """The figures of a query that a viewer has got: the last update, details and point, by their numbers."""

    updates: int = -1
    looks: int = -1
    points: int | None = None
    """None before the first frame: the page asks for the history itself."""


class Viewer:
    """A page that is open: the updates per second that it gets, and the figures that it has got."""

    def __init__(self, rate: float) -> None:
        self.rate = min(max(rate, _SLOWEST), FASTEST)
        self._got: dict[str, _Got] = {}
        self._errors = -1

    def news(self, cards: Mapping[str, Card], errors: Errors) -> Frame | None:
        """Return the figures that the viewer has not got; None if there are none."""
        queries = {title: self._changes(title, card) for title, card in cards.items()}
        gone = self._got.keys() - queries.keys()
        for title in gone:
            del self._got[title]
        found: Frame = {"t": round(time.time(), 3), "queries": queries}
        if self._errors != errors.count:
            self._errors = errors.count
            found["errors"] = errors.last()
        return found if gone or "errors" in found or any(queries.values()) else None

    def _changes(self, title: str, card: Card) -> dict[str, Any]:
        """Return all figures of a query if they are new; otherwise the rows and results of this moment."""
        card.look()
        got = self._got.setdefault(title, _Got())
        counts = card.source.counts(card.query)
        moment: dict[str, Any] = {} if counts is None else {"rows": counts[0], "results": counts[1]}
        if got.updates == card.updates:
            return moment
        found = {**card.figures(), **moment}
        if got.looks != card.looks:
            found |= card.details
        points = card.history.count
        if got.points is not None and got.points != points:
            found["points"] = card.history.after(got.points)
        got.updates, got.looks, got.points = card.updates, card.looks, points
        return found
