"""The interface of all arrangements, and how a plan starts one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from handshake.joins.driver import Driver, Seen
from handshake.joins.latency import Latencies
from handshake.joins.metrics import Metrics
from handshake.joins.spec import JoinSpec

__all__ = ["Arrangement", "Entry", "Planned"]


class Arrangement(Protocol):
    """A running join. All arrangements give the same results; they differ in when and on which core."""

    spec: JoinSpec
    driver: Driver

    @property
    def latencies(self) -> Latencies:
        """Histograms of how long results took, per core."""

    def push(
        self, side: int, batch: pa.RecordBatch, seen: Seen | None = None,
        came: float | None = None, *, more: bool = False,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Take tuples of one side and yield the results that are ready.

        The iterator must be exhausted, and always from the same thread.

        Args:
            side: 0 for the left stream, 1 for the right.
            batch: The tuples.
            seen: Per tuple, how many of the other stream came before it; None if all pushed so far did.
            came: When the tuples came, in seconds of `perf_counter`; None for now.
            more: Whether further batches follow at once; if not, the caller waits for these results.
        """

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them; benchmarks fill windows this way."""

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Wait until everything pushed so far is joined; yields the remaining results."""

    def settle(self, until: Callable[[], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Wait until the cores are at rest, or until `until` holds; yields results as they come.

        Unlike `drain`, this leaves tuples that drift towards each other where they are.
        """

    def wake(self) -> None:
        """Make a running `settle` call `until` again; any thread may call this."""

    def expire(self) -> None:
        """Drop tuples that no future tuple can join."""

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""

    def close(self) -> None:
        """Stop and end all threads."""


class Planned(Protocol):
    """The part of a plan that an arrangement is built from."""

    @property
    def spec(self) -> JoinSpec:
        """The analysed join."""

    @property
    def lateness(self) -> int:
        """The allowed lateness in whole units."""

    @property
    def cores(self) -> int:
        """The number of cores; with `adapt`, the most."""

    @property
    def adapt(self) -> bool:
        """True if the number of cores follows the load."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The processors to pin cores to; none if they are not pinned."""


@dataclass(frozen=True)
class Entry:
    """An arrangement in the registry."""

    name: str
    help: str
    build: Callable[[Planned], Arrangement]
    threads: bool = True
    """Whether it has threads of its own; otherwise it has one core, which is not pinned."""
    adapts: bool = False
    """Whether its number of cores can follow the load."""
