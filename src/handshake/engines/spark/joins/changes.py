"""Changes of a join that has state: another window, predicate, column or number of segments.

A *generation* is a period in which the definition of a join stays the same. Its segments have folders of
their own. In the first micro-batch with rows after a change, every new segment reads the copies of the
manifests that the last generation has published, and takes over the rows whose home it becomes. Files are
read, not changed, so a micro-batch that fails can run again, with the old definition too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.files import SegmentFiles
from handshake.engines.spark.joins.limits import check_change, check_state, windows_in
from handshake.engines.spark.joins.routing import (
    Epoch,
    Routing,
    balance,
    choose_routing,
    home_rows,
    visit_ranges,
    visited_cells,
)
from handshake.engines.spark.joins.segment import SegmentStep, without
from handshake.engines.spark.state.chunks import ChunkRef, read_parts
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.segment_files import (
    FIRST,
    Generation,
    claimed_by,
    copies_in,
    generation_of,
    withdraw,
)
from handshake.engines.spark.state.store import Chunks, StateError, Store, open_store
from handshake.joins.driver import add_columns, derive_columns, matchable, number_rows, stored_column
from handshake.joins.matches import lone_rows
from handshake.joins.spec import OTHER, OWN, ROW, TIME, SideSpec
from handshake.kernels.columns import integers
from handshake.kernels.sorting import order_of
from handshake.windows import Windows

Array = np.ndarray[Any, Any]


def place_of(definition: Definition, folder: str, segment: int, since: int = FIRST) -> str:
    """Return the folder of a segment.

    Args:
        definition: The join.
        folder: The folder of the join.
        segment: The number of the segment.
        since: The first micro-batch of its generation.
    """
    name = f"{folder}/segment-{definition.fingerprint}-{segment}"
    return name if since == FIRST else f"{name}-{since}"


def prepare_change(
    definition: Definition, folder: str, store: Chunks, batch: int, held: Manifest | None, run: str
) -> Change | None:  # fmt: skip
    """Return the change that a segment has to make before its next micro-batch; None if there is none.

    Folders of other definitions whose first micro-batch did not end are removed.

    Args:
        definition: The join as it is now.
        folder: The folder of the join.
        store: The state directory, or Spark's state store.
        batch: The number of the micro-batch.
        held: The state of the segment, as far as it has one.
        run: The run of the query. The definition stays the same in a run, so a segment asks only once.

    Raises:
        StateError: The join cannot change in this way, or the state to go on from is lost.
    """
    if held is not None and held.about.run == run:
        return None
    if held is not None:
        check_state(held.plan, definition)
    if not isinstance(store, Store):
        return None
    if held is not None and _folder_of(held) != folder:
        _check_name(held, definition, folder)
        return None
    places = _places(store, folder)
    last = _last(store, places, batch)
    for each, folders in places.items():
        failed = last is None or each.since >= batch
        for place in folders if failed and each.fingerprint != definition.fingerprint else ():
            store.remove_folder(place)
    if last is None:
        return None
    if held is not None and held.place in places[last] and held.plan == definition.properties:
        return None
    manifests = _manifests(store, places[last], batch)
    if held is not None and not manifests:
        raise StateError(
            "an earlier release wrote the checkpoint, and its segments cannot read each other's state; run "
            "the query for one micro-batch without a change first, or start from a new checkpoint"
        )
    if not manifests or manifests[0].plan == definition.properties:
        raise StateError(
            f"'{store.path(places[last][0])}' holds rows of micro-batches before {batch}, but the checkpoint "
            "has no state that refers to them; restore the checkpoint, or start from a new one"
        )
    return Change(definition, manifests, batch)


def _folder_of(held: Manifest) -> str:
    """Return the folder of the join that a segment belongs to."""
    return held.place.rpartition("/")[0]


def _check_name(held: Manifest, definition: Definition, folder: str) -> None:
    """Refuse a change of a join that also has another name: new segments would not find its rows."""
    if held.plan == definition.properties:
        return
    old, new = (unquote(each.rpartition("/")[2].removeprefix("join-")) for each in (_folder_of(held), folder))
    raise StateError(
        f"the join '{old}' of this checkpoint has changed, and is called '{new}' now: a join that changes "
        f"finds its rows by its name; pass name='{old}', or put back the old definition"
    )


def _places(store: Store, folder: str) -> dict[Generation, list[str]]:
    """Return the folders of segments by generation."""
    found: dict[Generation, list[str]] = {}
    for name in store.folders(folder):
        generation = generation_of(name)
        if generation is not None:
            found.setdefault(generation, []).append(f"{folder}/{name}")
    return found


def _last(store: Store, places: dict[Generation, list[str]], batch: int) -> Generation | None:
    """Return the last generation that has run a micro-batch before this one."""
    for generation in sorted((each for each in places if each.since < batch), reverse=True):
        for place in places[generation]:
            numbers = [name.split("-")[1] for name in store.list(place)]
            if any(number.isdigit() and int(number) < batch for number in numbers):
                return generation
    return None


def _manifests(store: Store, places: list[str], batch: int) -> list[Manifest]:
    """Return the manifests of all segments of a generation after the micro-batch before this one."""
    candidates: list[list[Manifest]] = []
    for place in places:
        names = store.list(place)
        copies = copies_in(names, batch)
        claimed = claimed_by(names)
        chosen = [name for name in copies if name.split("-")[0] in claimed] or copies
        found = [Manifest.parse(store.read(f"{place}/{name}").to_pybytes()) for name in chosen]
        newest = max((each.about.batch for each in found), default=0)
        candidates.append([each for each in found if each.about.batch == newest])
    if not all(candidates) or len(candidates) != candidates[0][0].plan["segments"]:
        return []
    # attempts at the first micro-batch have owners of their own; those of one run belong together
    runs = set.intersection(*({each.about.run for each in mine} for mine in candidates))
    run = min(runs, default=None)
    chosen_ones = [next((m for m in mine if m.about.run == run), mine[0]) for mine in candidates]
    return sorted(chosen_ones, key=lambda manifest: manifest.about.segment)


def postpone(
    definition: Definition, held: Manifest, store: Store, batch: int, folder: str, run: str
) -> None:  # fmt: skip
    """Let a segment wait for a change, which needs new rows, in a micro-batch without any.

    An attempt at this micro-batch with the earlier definition may have written state and results of the
    segment. They are removed, because they were not committed, and the change reads what is there.

    Args:
        definition: The join as it is now.
        held: The state of the segment.
        store: The state directory.
        batch: The number of the micro-batch.
        folder: The folder of the join.
        run: The run of the query.
    """
    withdraw(held, store, batch)
    results_to = definition.options.results_to
    if results_to is not None:
        files = SegmentFiles(0, 1, batch, folder, run, begins=True)
        files.remove_uncommitted(open_store(results_to), "")


@dataclass(frozen=True)
class _Piece:
    """Rows of a chunk of the last generation, sorted by cell."""

    side: int
    seed: int
    batch: pa.RecordBatch
    offsets: Array
    matched: Array | None
    """Which rows have matched, if their side is tracked."""
    newest: int


@dataclass(frozen=True)
class Change:
    """A change of a join: the segments of the last generation, and the definition from now on."""

    definition: Definition
    old: list[Manifest]
    batch: int

    def __post_init__(self) -> None:
        check_change(self.old[0].plan, self.definition)

    def begin(self, folder: str, segment: int, owner: str) -> Manifest:
        """Return the manifest of a new segment, which has no rows yet."""
        place = place_of(self.definition, folder, segment, self.batch)
        first = self.old[0]
        made = Manifest.fresh(self.definition, place, owner)
        marks = [each.watermark for each in self.old if each.watermark is not None]
        made.watermark, made.arrived = max(marks, default=None), list(first.arrived)
        made.clocks, made.about.since = first.clocks, self.batch
        return made

    def take_over(self, step: SegmentStep) -> Iterator[pa.RecordBatch]:
        """Take over the rows whose home the segment is; yield those that have left without a match.

        Args:
            step: The first micro-batch of the new segment; its watermark is known.
        """
        pieces: list[_Piece] = []
        left: list[_Piece] = []
        for side in (0, 1):
            rule = self._windows.rules(step.spec.unit)[side]
            manifest = step.manifest
            limit = None if rule is None else rule.oldest(manifest.watermark, manifest.arrived[side])
            for number, old in enumerate(self.old):
                for ref in old.windows[side]:
                    for found, kept in zip(
                        self._read(step, side, number, ref, limit), (pieces, left), strict=True
                    ):
                        if found is not None:
                            kept.append(found)
        self._cut(step, pieces)
        yield from self._leave(step, left)
        for side in (0, 1):
            self._keep(step, side, [piece for piece in pieces if piece.side == side])

    @cached_property
    def _windows(self) -> Windows:
        return windows_in(self.old[0].plan)

    # Read

    def _read(
        self, step: SegmentStep, side: int, number: int, ref: ChunkRef, limit: int | None
    ) -> tuple[_Piece | None, _Piece | None]:
        """Return the rows of a chunk that can still join, and those that have left without a match."""
        batch, _ = read_parts(step.store, ref)
        spec, states = step.spec.sides[side], self.old[number].states[side]
        if states is None and any(self.definition.anchored):
            # All rows of a cell have visited by the oldest cuts, so they are in several segments. The first
            # segment in reach of a cell has all of its rows, and is the one to read.
            readers = self._readers[self._routing.cells_of(batch, side)]
            batch = batch.filter(pa.array(readers == number))
        stamp, here = spec.expiring, np.ones(batch.num_rows, np.bool_)
        if stamp is not None and limit is not None:
            here = integers(stored_column(batch, spec, stamp.name)) >= limit
        if states is None:
            kept = matchable(adapt(batch.filter(pa.array(here)), spec), spec)
            return self._piece(step, side, ref, kept, None), None
        numbers = integers(batch.column(ROW))
        matched, pending = states.are_matched(numbers), states.are_pending(numbers)
        alive, gone = here & (matched | pending), ~here & pending
        return (
            self._piece(step, side, ref, adapt(batch.filter(pa.array(alive)), spec), matched[alive]),
            self._piece(step, side, ref, adapt(batch.filter(pa.array(gone)), spec), None),
        )

    @cached_property
    def _routing(self) -> Routing:
        """The routing of the last generation, whose predicate is the same if rows are in several segments."""
        return choose_routing(self.definition.spec, len(self.old))

    @cached_property
    def _readers(self) -> Array:
        """By cell, the segment of the last generation that reads its rows."""
        readers = np.full(self._routing.cells, -1)
        epochs = self.old[0].router.epochs[:1]
        for number in reversed(range(len(self.old))):
            readers[visited_cells(epochs, self._routing, number)] = number
        return readers

    def _piece(
        self, step: SegmentStep, side: int, ref: ChunkRef, batch: pa.RecordBatch, matched: Array | None
    ) -> _Piece | None:
        if not batch.num_rows:
            return None
        routing, stamp = self.definition.routing, step.spec.sides[side].expiring
        cells = routing.cells_of(batch, side)
        offsets = np.zeros(routing.cells + 1, np.int64)
        np.cumsum(np.bincount(cells, minlength=routing.cells), out=offsets[1:])
        order = order_of(cells.astype(np.int64))
        newest = 0
        if stamp is not None:
            newest = int(integers(stored_column(batch, step.spec.sides[side], stamp.name)).max())
        sorted_rows = batch.take(pa.array(order))
        return _Piece(
            side, ref.check, sorted_rows, offsets, None if matched is None else matched[order], newest
        )

    # Keep

    def _cut(self, step: SegmentStep, pieces: list[_Piece]) -> None:
        """Divide the cells by the rows that are held; every segment computes the same cuts."""
        router = step.manifest.router
        counts = sum((np.diff(piece.offsets) for piece in pieces), np.zeros(router.cells))
        router.weights = np.asarray(counts, np.float64)
        router.epochs = [Epoch(balance(router.weights, router.segments))]
        for piece in pieces:
            router.note(piece.side, piece.newest, self.definition.anchored)

    def _home(self, step: SegmentStep, piece: _Piece) -> tuple[int, int]:
        return home_rows(piece.offsets, step.manifest.router.home.span(step.segment), piece.seed)

    def _leave(self, step: SegmentStep, pieces: list[_Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            tracked = step.tracked[piece.side]
            start, stop = self._home(step, piece)
            if tracked is not None and stop > start:
                tracked.states.unmatched += stop - start
                if tracked.preserved:
                    rows = piece.batch.slice(start, stop - start)
                    yield lone_rows(step.spec, piece.side, rows, None)

    def _keep(self, step: SegmentStep, side: int, pieces: list[_Piece]) -> None:
        anchored, tracked = self.definition.anchored, step.tracked[side]
        kept: list[pa.RecordBatch] = []
        guests: list[pa.RecordBatch] = []
        for piece in pieces:
            home = self._home(step, piece)
            visits = visit_ranges(piece.offsets, step.manifest.router, self.definition.routing, step.segment)
            for start, stop in [home] if anchored[side] or not any(anchored) else visits:
                rows = piece.batch.slice(start, stop - start)
                if tracked is not None and rows.num_rows:
                    rows = number_rows(rows, tracked)
                    assert piece.matched is not None
                    tracked.states.mark(integers(rows.column(ROW))[piece.matched[start:stop]])
                kept.append(rows)
            if all(anchored):
                guests += [piece.batch.slice(a, b - a) for a, b in without(visits, home)]
        step.held.insert(side, step.manifest.windows[side], kept)
        step.held.insert(side, step.manifest.guests[side], guests)


def adapt(batch: pa.RecordBatch, spec: SideSpec) -> pa.RecordBatch:
    """Return stored rows as the join has them now: its columns, NULL if they are new, and hidden ones.

    Args:
        batch: Rows of a chunk that an earlier definition of the join wrote.
        spec: The side of the join as it is now.
    """
    names = batch.schema.names
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in spec.schema
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=spec.schema)
    times = {TIME: batch.column(TIME)} if TIME in names else {}
    counts = {name: batch.column(name) for name in (OWN, OTHER) if name in names}
    return add_columns(derive_columns(add_columns(rows, times), spec), counts)
