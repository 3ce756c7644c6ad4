"""Copies of manifests in the state directory, by which others than the query's tasks can read its state.

Spark's state store has the manifests that count. Each segment writes a copy beside its chunks when it has
run a micro-batch. The copies of the last two micro-batches are kept, so that there is one of every segment
after a micro-batch that was not committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import Store

_COPY = "state.manifest"
_KEPT = 2


def publish(manifest: Manifest, store: Store, batch: int) -> bytes:
    """Write a copy of a manifest, and remove copies that are no longer needed.

    Args:
        manifest: The state of a segment after a micro-batch.
        store: The state directory.
        batch: The number of the micro-batch.

    Returns:
        The manifest for the state store.
    """
    about = manifest.about
    known = sorted({*(number for number in about.published if number < batch), batch})
    about.batch, about.published = batch, known[-_KEPT:]
    data = manifest.dump()
    store.write(_name(manifest.place, manifest.owner, batch), [data])
    for number in known[:-_KEPT]:
        store.remove(_name(manifest.place, manifest.owner, number))
    return data


def withdraw(manifest: Manifest, store: Store, batch: int) -> None:
    """Remove the copy that a segment wrote in a micro-batch that was not committed, if there is one."""
    store.remove(_name(manifest.place, manifest.owner, batch))


def copies_in(names: Iterable[str], before: int | None = None) -> list[str]:
    """Return the newest copy of each owner among the names of a segment's files.

    Args:
        names: The names of the files in the folder of a segment.
        before: Take only copies of earlier micro-batches than this one.
    """
    newest: dict[str, tuple[int, str]] = {}
    for name in names:
        owner, number, *rest = name.split("-")
        if rest == [_COPY] and number.isdigit() and (before is None or int(number) < before):
            newest[owner] = max(newest.get(owner, (-1, "")), (int(number), name))
    return sorted(name for _, name in newest.values())


def _name(place: str, owner: str, batch: int) -> str:
    return f"{place}/{owner}-{batch}-{_COPY}"
