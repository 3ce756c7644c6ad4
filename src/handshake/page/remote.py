"""Pages of other processes, collected on one page."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from handshake.errors import HandshakeError, InputError
from handshake.metrics.snapshot import Part, Snapshot, StreamPart
from handshake.page.board import Board
from handshake.page.directory import pages
from handshake.page.history import points_of
from handshake.page.sources import FINAL, Record, Source

_PATIENCE = 3.0
"""Seconds to wait for an answer."""
_GONE = 3
"""Questions without an answer after which a page counts as gone."""


class RemoteSource(Source):
    """The queries of a page that another process serves."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            host = None
        if parts.scheme != "http" or host is None:
            raise InputError(f"'{url}' is not the address of a live page, such as http://127.0.0.1:8642")
        self.name, self._host, self._port = f"{host}:{port}", host, port
        self._token = parse_qs(parts.query).get("token", [""])[0]
        self._last: list[Snapshot] = []
        self._missed = 0
        self._records: dict[str, Record] = {}
        self._about: dict[str, dict[str, Any]] = {}

    def _get(self, path: str, **asked: str | Sequence[str]) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_PATIENCE)
        try:
            headers = {"Authorization": f"Bearer {self._token}".encode()} if self._token else {}
            connection.request("GET", f"{path}?{urlencode(asked, doseq=True)}", headers=headers)
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
            found = self._get("/state")["queries"]
            for name, held in found.items():
                self._remember(name, held)
        except (OSError, http.client.HTTPException, ValueError):
            self._missed += 1
            self.over = self._missed >= _GONE
            if self.over:
                self._last = [s if s.state in FINAL else s.with_state("ended") for s in self._last]
            return self._last
        self._missed = 0
        self._last = [_snapshot(name, held) for name, held in found.items()]
        return self._last

    def _remember(self, name: str, held: dict[str, Any]) -> None:
        """Take over the last results of a query; its plan and its history when it is new."""
        known = self._records.get(name)
        if known is None or known.since != held["since"]:
            described = self._get("/query", name=name)
            self._about[name] = described["about"]
            known = Record(held["since"], {}, points_of(described["history"]), [])
        self._records[name] = known._replace(last=held["last"], points=held["points"])

    def about(self, query: str) -> dict[str, Any]:
        """Return what does not change of a query."""
        return self._about[query]

    def record(self, query: str) -> Record:
        """Return what the page has recorded of a query."""
        return self._records[query]

    def why(self, query: str, rows: Sequence[str]) -> str:
        """Ask the page why rows are a result, or not."""
        try:
            return str(self._get("/why", name=query, row=rows)["text"])
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise HandshakeError(f"the live page at {self.name} does not answer: {error}") from error


def _snapshot(name: str, held: dict[str, Any]) -> Snapshot:
    return Snapshot(
        name, held["engine"], held["state"], held["algorithm"],
        tuple(StreamPart(**stream) for stream in held["streams"]), held["results"], held["figures"],
        tuple(Part(results, pairs, tuple(rows), queue) for results, pairs, rows, queue in held["parts"]),
        None if held["latency"] is None else _Latency(held["latency"]), held["error"],
    )  # fmt: skip


class _Latency(SimpleNamespace):
    """A histogram that came as plain data."""

    def __init__(self, held: dict[str, Any]) -> None:
        buckets = [(float("inf") if bound is None else bound, n) for bound, n in held["buckets"]]
        super().__init__(**{**held, "buckets": buckets})
        self.to_dict = held.copy


def look_for_pages(board: Board, urls: Sequence[str] = ()) -> None:
    """Show the pages that are not shown yet: also those that were gone and may be back.

    Args:
        board: The board.
        urls: The addresses of the pages; by default those that other processes of this user announce.
    """
    found = urls or [page.url for page in pages() if page.process != os.getpid()]
    wanted = {source.name: source for source in map(RemoteSource, found)}
    shown = {source.name: source.url for source in board.sources() if isinstance(source, RemoteSource)}
    for name, source in wanted.items():
        if shown.get(name) != source.url:
            board.add(source)
