"""Merging and clustering aside: basic windows never change, so they serve on until their merger is ready."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from handshake.joins.basic_window import BasicWindow, merge_windows, seal

__all__ = ["Compaction", "put_together"]


def put_together(group: list[BasicWindow]) -> tuple[list[BasicWindow], BasicWindow] | None:
    """Merge a group, oldest first, into one basic window, or as many of its newest as one can hold."""
    while len(group) > 1:
        together = merge_windows(*group)
        if together is not None:
            return group, together
        group = group[1:]
    return None


@dataclass
class Compaction:
    """A thread that makes one clustered basic window of some."""

    group: list[BasicWindow]
    cluster: bool
    """Whether what comes of it is clustered."""
    made: tuple[list[BasicWindow], BasicWindow] | None = field(default=None, init=False)
    """Which of the group have been put together, and what came of it."""
    error: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            made = (self.group, self.group[0]) if len(self.group) == 1 else put_together(self.group)
            if made is not None:
                together = seal(made[1]) if self.cluster else made[1]
                if any(window.has_codes for window in made[0]):
                    together.codes()
                self.made = (made[0], together)
        except BaseException as error:  # raised when the result is used
            self.error = error

    @property
    def done(self) -> bool:
        """True if the thread has ended."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join()
