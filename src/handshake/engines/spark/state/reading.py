"""The state of joins, read from outside: rows held, files without references, and damage.

A reader needs the state directory alone. It reads the copies of manifests that segments publish, so it never
disturbs a query that runs, and it may be one micro-batch ahead of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from handshake.engines.spark.state.chunks import read_parts
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.segment_files import claimed_by, copies_in, stale_files
from handshake.engines.spark.state.store import StateError, Store
from handshake.errors import InputError
from handshake.joins.spec import SIDES, TIME
from handshake.kernels.prepare import HIDDEN
from handshake.schema import UNITS

SEGMENTS = pa.schema(
    [
        ("query", pa.string()), ("join", pa.string()), ("segment", pa.int32()), ("side", pa.string()),
        ("rows", pa.int64()), ("chunks", pa.int32()), ("bytes", pa.int64()), ("pending", pa.int64()),
        ("first_cell", pa.float64()), ("last_cell", pa.float64()),
        ("oldest", pa.timestamp("us", "UTC")), ("newest", pa.timestamp("us", "UTC")), ("age", pa.float64()),
        ("watermark", pa.timestamp("us", "UTC")), ("batch", pa.int64()),
    ]
)  # fmt: skip
"""A row per segment and side. `age` is that of the oldest row, in seconds before the watermark or in rows."""


class Finding(NamedTuple):
    """A file that a check reports, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class SegmentState:
    """The state of a segment after its last micro-batch."""

    place: str
    manifest: Manifest

    def describe(self, side: int) -> dict[str, Any]:
        """Return the row of a side in the table `SEGMENTS`, without query and join."""
        manifest, about = self.manifest, self.manifest.about
        refs = manifest.windows[side] + manifest.guests[side]
        states, span = manifest.states[side], about.held[side]
        cells = manifest.router.home.span(about.segment) if manifest.router.epochs else (None, None)
        timed = self.is_timed(side)
        oldest, newest = (_moment(at, about.unit) for at in span) if span and timed else (None, None)
        return {
            "segment": about.segment, "side": SIDES[side], "rows": sum(ref.rows for ref in refs),
            "chunks": len(refs), "bytes": sum(ref.bytes for ref in refs),
            "pending": None if states is None else states.pending,
            "first_cell": cells[0], "last_cell": cells[1], "oldest": oldest, "newest": newest,
            "age": None if span is None else self.age(side, span[0]),
            "watermark": _moment(manifest.watermark, about.unit), "batch": about.batch,
        }  # fmt: skip

    def is_timed(self, side: int) -> bool:
        """Return whether rows of a side expire by time."""
        return self.manifest.about.stamps[side] == TIME

    def age(self, side: int, stamp: Any) -> Any:
        """Return how old a stamp (or an array of them) is: in seconds, or in rows."""
        manifest = self.manifest
        if not self.is_timed(side):
            return manifest.arrived[side] - stamp
        if manifest.watermark is None:
            return None
        return (manifest.watermark - stamp) * (UNITS[manifest.about.unit] / UNITS["s"])


@dataclass(frozen=True)
class JoinState:
    """A join of a query: its segments, and the files of earlier ones."""

    store: Store
    query: str
    name: str
    segments: list[SegmentState]
    """Segments of the current definition of the join, in order."""
    past: list[SegmentState]
    """Those of earlier definitions, whose files a checkpoint may still need."""

    @property
    def batch(self) -> int:
        """The last micro-batch."""
        return max(each.manifest.about.batch for each in self.segments)

    @property
    def plan(self) -> dict[str, Any]:
        """The properties of the join."""
        return self.segments[0].manifest.plan

    def rows(self, side: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a side that can still join, with their segment and age."""
        for segment in self.segments:
            yield from self.segment_rows(segment, side)

    def segment_rows(self, segment: SegmentState, side: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a side that a segment holds."""
        about = segment.manifest.about
        oldest = about.oldest[side]
        for ref in segment.manifest.windows[side]:
            batch, _ = read_parts(self.store, ref)
            stamps = self.stamps(segment, side, batch)
            if stamps is not None and oldest is not None:
                kept = stamps >= oldest
                batch, stamps = batch.filter(pa.array(kept)), stamps[kept]
            yield _show(batch, about.segment, None if stamps is None else segment.age(side, stamps))

    def stamps(self, segment: SegmentState, side: int, batch: pa.RecordBatch) -> Any:
        """Return the stamps by which the rows of a file expire; None if they stay for ever."""
        name = segment.manifest.about.stamps[side]
        if name is None:
            return None
        if name == TIME and name not in batch.schema.names:
            name = self.plan["time columns"][side]
        column = batch.column(name)
        return np.asarray(column.cast(pa.int64()) if column.type != pa.int64() else column)

    def columns(self, side: int) -> pa.Schema | None:
        """Return the columns of `rows`; None if no segment holds a row of the side."""
        for segment in self.segments:
            for ref in segment.manifest.windows[side]:
                return _show(read_parts(self.store, ref)[0].slice(0, 0), 0, None).schema
        return None

    def damage(self) -> Iterator[Finding]:
        """Yield files that the present segments need and that are missing or damaged."""
        for segment in self.segments:
            for ref in segment.manifest.refs:
                try:
                    read_parts(self.store, ref)
                except (StateError, pa.ArrowException) as error:
                    yield Finding(ref.name, str(error))
        missing = {*range(self.plan["segments"])} - {each.manifest.about.segment for each in self.segments}
        for number in sorted(missing):
            folder = f"{self.query}/join-{self.name}"
            yield Finding(folder, f"'{self.store.path(folder)}' has no state of segment {number}")

    def orphans(self) -> Iterator[Finding]:
        """Yield files that no version of the state needs that a checkpoint can return to.

        Files of the last micro-batches are never among them, as tasks may be writing them.
        """
        oldest = self.batch - max(each.manifest.about.retain for each in self.segments)
        present = {each.place for each in self.segments}
        places: dict[str, list[Manifest]] = {}
        for each in (*self.segments, *self.past):
            places.setdefault(each.place, []).append(each.manifest)
        for place, manifests in sorted(places.items()):
            names = self.store.list(place)
            if place not in present and all(each.about.batch < oldest for each in manifests):
                why = "its segment ended with an earlier definition of the join"
                yield from (Finding(f"{place}/{name}", why) for name in names)
                continue
            claimed = claimed_by(names)
            copies = {f"{place}/{name}" for name in copies_in(names) if name.split("-")[0] in claimed}
            alive = [m for m in manifests if m.owner in claimed or m.about.batch >= oldest]
            needed = {ref.name for m in alive for ref in m.refs}
            needed |= {name for m in alive for name, _ in m.dropped}
            spared = claimed - {m.owner for m in alive}
            for path in stale_files(names, place, oldest, needed, spared):
                if path not in copies:
                    yield Finding(path, "no manifest refers to it")


class StateDirectory:
    """All joins whose state is below a root."""

    def __init__(self, root: str) -> None:
        self.store = Store(root)
        self.joins: list[JoinState] = []
        self.unreadable: list[Finding] = []
        """Places without a manifest that could be read."""
        for query in self.store.folders(""):
            for folder in self.store.folders(query):
                if folder.startswith("join-"):
                    self._read_join(query, folder)
        if not self.joins and not self.unreadable:
            if {"commits", "offsets"} <= {*self.store.folders("")}:
                raise InputError(
                    f"'{root}' is a checkpoint of Spark, and no state directory of a join; give the one of "
                    'its state_dir=…, or if it has state="store", use a reader of Spark\'s state store'
                )
            raise InputError(
                f"no state of a join in '{root}'; give the directory that the query has (state_dir=…, "
                "spark.handshake.stateDir, or handshake-state beside its checkpoint)"
            )

    def _read_join(self, query: str, folder: str) -> None:
        found: list[SegmentState] = []
        for place in self.store.folders(f"{query}/{folder}"):
            if place.startswith("segment-"):
                found += self._read_place(f"{query}/{folder}/{place}")
        if found:
            last = max(found, key=lambda each: (each.manifest.about.batch, -each.manifest.about.since))
            plan, since = last.manifest.plan, last.manifest.about.since
            present = [e for e in found if (e.manifest.plan, e.manifest.about.since) == (plan, since)]
            # several owners of a segment: attempts at the first micro-batch
            newest: dict[int, SegmentState] = {}
            for each in sorted(present, key=lambda each: -each.manifest.about.batch):
                newest.setdefault(each.manifest.about.segment, each)
            segments = [newest[number] for number in sorted(newest)]
            past = [each for each in found if each not in segments]
            name = unquote(folder.removeprefix("join-"))
            self.joins.append(JoinState(self.store, query, name, segments, past))

    def _read_place(self, place: str) -> Iterator[SegmentState]:
        names = self.store.list(place)
        copies = copies_in(names)
        if not copies and names:
            self.unreadable.append(
                Finding(
                    place,
                    f"'{self.store.path(place)}' has no manifest: an earlier release wrote it; run its query "
                    "with this release for one micro-batch",
                )
            )
        for name in copies:
            try:
                yield SegmentState(place, Manifest.parse(self.store.read(f"{place}/{name}").to_pybytes()))
            except StateError as error:
                self.unreadable.append(Finding(f"{place}/{name}", str(error)))

    def select(self, query: str | None = None, join: str | None = None) -> list[JoinState]:
        """Return the joins of a query (the start of its id suffices) or of a name; refuse an unknown one."""
        found = [each for each in self.joins if each.query.startswith(query or "")]
        found = [each for each in found if join in (None, each.name)]
        if found:
            return found
        if not self.joins:
            raise InputError(self.unreadable[0].why)
        known = ", ".join(f"'{each.name}' of query {each.query}" for each in self.joins)
        raise InputError(
            f"no join '{join or ''}' of query '{query or ''}' in '{self.store.root}'; there are: {known}"
        )

    def segments(self, query: str | None = None, join: str | None = None) -> pa.Table:
        """Return a row per segment and side."""
        rows = [
            {"query": each.query, "join": each.name, **segment.describe(side)}
            for each in self.select(query, join)
            for segment in each.segments
            for side in (0, 1)
        ]
        return pa.Table.from_pylist(rows, SEGMENTS)

    def damage(self) -> list[Finding]:
        """Return all files that are missing, damaged or not readable."""
        return [*self.unreadable, *(found for join in self.joins for found in join.damage())]

    def orphans(self) -> list[Finding]:
        """Return all files that no query needs any more."""
        found = [orphan for join in self.joins for orphan in join.orphans()]
        for query in sorted({join.query for join in self.joins}):
            batch = max(join.batch for join in self.joins if join.query == query)
            for number in self.store.list(f"{query}/batch"):
                if number.isdigit() and int(number) < batch - 1:
                    folder = f"{query}/batch/{number}"
                    why = "new rows of an earlier micro-batch"
                    found += [Finding(f"{folder}/{name}", why) for name in self.store.list(folder)]
        return found

    def prune(self, orphans: list[Finding]) -> None:
        """Remove files that `orphans` has found."""
        for orphan in orphans:
            self.store.remove(orphan.name)


def read_state(root: str) -> StateDirectory:
    """Read the state of joins below a state directory.

    Args:
        root: The directory that queries were given as `state_dir`: a path or a URI.

    Raises:
        InputError: There is no state of a join.
    """
    return StateDirectory(root)


def _moment(stamp: int | None, unit: str) -> int | None:
    return None if stamp is None else stamp * UNITS[unit] // UNITS["us"]


def _show(batch: pa.RecordBatch, segment: int, age: Any) -> pa.RecordBatch:
    """Return rows without hidden columns, with their segment and age."""
    names = [name for name in batch.schema.names if not name.startswith(HIDDEN)]
    count = batch.num_rows
    ages = pa.nulls(count, pa.float64()) if age is None else pa.array(age, pa.float64())
    columns = [*(batch.column(name) for name in names), pa.array([segment] * count, pa.int32()), ages]
    return pa.RecordBatch.from_arrays(columns, names=[*names, "_segment", "_age"])
