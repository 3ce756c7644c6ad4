"""Files of a segment beside its chunks, and the removal of those that no version of its state needs.

Spark's state store has the manifests that count. Each segment writes a copy beside its chunks when it has
run a micro-batch, by which others than the query's tasks can read its state. The copies of the last two
micro-batches are kept, so that there is one of every segment after a micro-batch that was not committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import Store

FIRST = -1
"""The first micro-batch of the first generation, whatever its number is."""
_SWEEP = 32
"""Updates between two searches for files without references."""
_CLAIM = "claim"
"""The end of the name of the file by which an owner claims its files."""
_COPY = "state.manifest"
"""The end of the names of copies of a manifest."""
_KEPT = 2


class Generation(NamedTuple):
    """A period in which the definition of a join stays the same."""

    since: int
    """Its first micro-batch."""
    fingerprint: str


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
        _remove_past(manifest, store, batch - retain)


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


def _remove_past(manifest: Manifest, store: Store, oldest: int) -> None:
    """Remove the folders of earlier generations that ended before the micro-batch `oldest`."""
    if manifest.about.segment or manifest.about.since >= oldest:
        return
    folder, _, mine = manifest.place.rpartition("/")
    for name in store.folders(folder):
        generation = generation_of(name)
        if generation is not None and generation < (manifest.about.since, "") and name != mine:
            store.remove_folder(f"{folder}/{name}")


def generation_of(name: str) -> Generation | None:
    """Return the generation of a segment from the name of its folder; None for other folders.

    >>> generation_of("segment-0f3a-2"), generation_of("segment-0f3a-2-17")
    (Generation(since=-1, fingerprint='0f3a'), Generation(since=17, fingerprint='0f3a'))
    """
    parts = re.fullmatch(r"segment-([0-9a-f]+)-\d+(?:-(\d+))?", name)
    return Generation(int(parts[2] or FIRST), parts[1]) if parts else None


def claimed_by(names: Iterable[str]) -> set[str]:
    """Return the owners that have claimed their files, from the names of a segment's files."""
    parts = [name.split("-") for name in names]
    return {owner for owner, what, *_ in parts if what == _CLAIM}


def stale_files(
    names: Iterable[str], place: str, oldest: int, needed: set[str], spared: set[str]
) -> Iterator[str]:
    """Yield files that were written before the micro-batch `oldest` and that are not needed.

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
