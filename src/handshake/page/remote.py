"""Pages of other processes, collected on one page."""

from __future__ import annotations

import http.client
import json
import os
import time
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from handshake.errors import HandshakeError, InputError
from handshake.metrics.snapshot import Part, Snapshot, StreamPart
from handshake.page.board import Board
from handshake.page.directory import Announced, pages

__all__ = ["RemoteSource", "look_again"]

_PATIENCE = 3.0
"""Seconds to wait for an answer."""
_GONE = 3
"""Questions without an answer after which a page counts as gone."""


class RemoteSource:
    """The queries of a page that another process serves."""

    def __init__(self, url: str, board: Board) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or parts.hostname is None:
            raise InputError(f"'{url}' is not the address of a live page, such as http://127.0.0.1:8642")
        self.name = f"{parts.hostname}:{parts.port or 80}"
        self._host, self._port = parts.hostname, parts.port or 80
        self._token = parse_qs(parts.query).get("token", [""])[0]
        self._board = board
        self._last: list[Snapshot] = []
        self._missed, self._known = 0, set[str]()
        self.gone = False

    def _get(self, path: str) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_PATIENCE)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status == 401:
            raise InputError(f"the live page at {self.name} needs its token: give …/?token=TOKEN")
        found = json.loads(text)
        if answer.status != 200:
            raise HandshakeError(str(found.get("error", answer.reason)))
        return found

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of all queries of the page; the last ones as ended, once it is gone."""
        try:
            found = self._get("/state")
        except (OSError, http.client.HTTPException, ValueError):
            self._missed += 1
            self.gone = self._missed >= _GONE
            if not self.gone:
                return self._last
            self._last = [
                each if each.state in ("ended", "failed") else each.with_state("ended") for each in self._last
            ]
            return self._last
        self._missed, self.gone = 0, False
        self._last = [_snapshot(name, held) for name, held in found["queries"].items()]
        for name, held in found["queries"].items():
            self._introduce(name, held)
        return self._last

    def _introduce(self, name: str, held: dict[str, Any]) -> None:
        """Take over the history of a query that was not known, and its last results."""
        card = self._board.cards.get(name)
        if card is None or card.source is not self:
            return
        card.since, card.rows = held["since"], held["last"]
        if name not in self._known:
            self._known.add(name)
            card.history.extend(self._get(f"/query?name={quote(name)}")["history"])

    def counts(self, name: str) -> None:
        """Return nothing: the figures of another page come together."""

    def about(self, name: str) -> dict[str, Any]:
        """Return what does not change of a query."""
        try:
            found: dict[str, Any] = self._get(f"/query?name={quote(name)}")["about"]
        except (OSError, http.client.HTTPException):
            return {"tree": None, "text": "", "windows": {}, "why": None}
        return {**found, "why": None}

    def why(self, left: Any, right: Any) -> str:
        """Refuse: the page that the process itself serves can be asked."""
        raise InputError(f"pairs are explained at http://{self.name}/, where the join runs")


def _snapshot(name: str, held: dict[str, Any]) -> Snapshot:
    return Snapshot(
        name, held["engine"], held["state"], held["algorithm"],
        tuple(StreamPart(**stream) for stream in held["streams"]), held["results"], held["figures"],
        tuple(Part(results, pairs, tuple(rows), queue) for results, pairs, rows, queue in held["parts"]),
        None if held["latency"] is None else _Latency(held["latency"]), held["error"],
    )  # fmt: skip


class _Latency:
    """A histogram that came as plain data."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.results, self.longest = held["results"], held["longest"]
        self.p50, self.p90, self.p99 = held["p50"], held["p90"], held["p99"]
        self.buckets = [(float("inf") if bound is None else bound, n) for bound, n in held["buckets"]]


def look_again(board: Board, *, discover: bool, every: float = 1.0) -> None:
    """Add the pages of this user's processes to a board as they start, until Ctrl-C.

    Args:
        board: The board.
        discover: Look for pages; otherwise only wait.
        every: Seconds between two looks.
    """
    known: set[Announced] = set()
    while True:
        for page in pages() if discover else ():
            if page not in known and page.process != os.getpid():
                known.add(page)
                board.add(RemoteSource(page.url, board))
        time.sleep(every)
