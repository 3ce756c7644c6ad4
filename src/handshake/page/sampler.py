"""The threads that read the figures of sources."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from handshake.metrics.snapshot import Snapshot
from handshake.page.sources import Source


class Reader(Protocol):
    """The receiver of the figures: a board."""

    @property
    def pause(self) -> float:
        """Seconds between two samples now."""

    def take(self, source: Source, snapshots: list[Snapshot]) -> None:
        """Take over the figures of a source."""

    def note(self, query: str, error: str) -> None:
        """Add an error to the list of errors."""

    def drop(self, source: Source) -> None:
        """Read a source no more."""


class Sampler(threading.Thread):
    """The thread that reads one source: a source that is slow to answer does not hold up the others."""

    def __init__(self, reader: Reader, source: Source) -> None:
        super().__init__(name="handshake-live-sampler", daemon=True)
        self._reader, self.source = reader, source
        self._stopped, self._awake = threading.Event(), threading.Event()
        self._failure = ""

    def run(self) -> None:
        """Sample until the source is over, or another takes its place, or the page is closed."""
        while not self._stopped.is_set():
            began = time.monotonic()
            self._sample()
            if self.source.over:
                self._reader.drop(self.source)
                return
            self._awake.wait(max(self._reader.pause - (time.monotonic() - began), 0.001))
            self._awake.clear()

    def _sample(self) -> None:
        try:
            found = self.source.snapshots()
        except Exception as error:  # the page goes on, whatever one source does
            text = f"{type(error).__name__}: {error}"
            if text != self._failure:
                self._reader.note(self.source.name, f"figures cannot be read: {text}")
            self._failure = text
        else:
            self._failure = ""
            self._reader.take(self.source, found)

    def wake(self) -> None:
        """Let the thread sample now instead of later."""
        self._awake.set()

    def stop(self) -> None:
        """End the thread after its present sample, and let go of the source."""
        self._stopped.set()
        self._awake.set()
        self.source.close()
