"""The removal of files that no recoverable version of a segment's state needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import StateError, Store

__all__ = ["check_is_first", "claimed_by", "clean_up", "stale_files"]

_SWEEP = 32
"""Updates between two searches for files without references."""
_CLAIM = "claim"
"""The end of the name of the file by which an owner claims its files."""


def check_is_first(store: Store, place: str, batch: int, partitions: int) -> None:
    """Refuse a segment without state whose files are older: it lost its state, or has another key."""
    for name in store.list(place):
        number = name.split("-")[1]
        if number.isdigit() and int(number) < batch:
            raise StateError(
                f"'{store.path(place)}' holds tuples of batch {number}, but the checkpoint has no state that "
                f"refers to them; spark.sql.shuffle.partitions is {partitions} now: set the number that the "
                "checkpoint began with before handshake.join is called"
            )


def clean_up(manifest: Manifest, store: Store, batch: int, retain: int) -> None:
    """Remove files that were dropped long ago, and now and then files without references.

    Args:
        manifest: The state of the segment.
        store: The files.
        batch: The number of the micro-batch.
        retain: The number of past micro-batches that a checkpoint can return to.
    """
    past = manifest.updates - retain - 1
    for name in [name for name, update in manifest.dropped if update <= past]:
        store.remove(name)
    manifest.dropped = [(name, update) for name, update in manifest.dropped if update > past]
    if manifest.updates == 2:  # the first update is in the checkpoint now
        store.write(f"{manifest.place}/{manifest.owner}-{_CLAIM}", [])
    if manifest.updates % _SWEEP == 0:
        _sweep(manifest, store, batch - retain)


def _sweep(manifest: Manifest, store: Store, oldest: int) -> None:
    """Remove files of tasks that failed or ran twice, written before the micro-batch `oldest`.

    Each attempt at a segment's first batch has its own owner, and one of them is committed. That owner
    claims its files in the second batch. If a query uses a join twice, several owners live on; they have
    the same input, so each has made its claim long before the first sweep.
    """
    needed = {ref.name for ref in manifest.refs} | {name for name, _ in manifest.dropped}
    names = store.list(manifest.place)
    others = claimed_by(names) - {manifest.owner}
    for path in stale_files(names, manifest.place, oldest, needed, others):
        store.remove(path)


def claimed_by(names: Iterable[str]) -> set[str]:
    """Return the owners that have claimed their files, from the names of a segment's files."""
    parts = [name.split("-") for name in names]
    return {owner for owner, what, *_ in parts if what == _CLAIM}


def stale_files(
    names: Iterable[str], place: str, oldest: int, needed: set[str], spared: set[str]
) -> Iterator[str]:
    """Yield files that were written before the micro-batch `oldest` and that nobody needs.

    Args:
        names: The names of a segment's files.
        place: Their folder.
        oldest: Files of this micro-batch and of later ones stay.
        needed: Paths that manifests refer to.
        spared: Owners whose files stay.
    """
    for name in names:
        owner, number, *_ = name.split("-")
        path = f"{place}/{name}"
        if number.isdigit() and int(number) < oldest and owner not in spared and path not in needed:
            yield path
