"""Sizes, thresholds and costs that decide how a join runs. None of them changes its results."""

from __future__ import annotations

from dataclasses import dataclass

from handshake.kernels.compile import TILE


@dataclass(frozen=True)
class Tuning:
    """Constants of the join engine, measured on two cores (`bench scan`, `bench sustained`).

    A plan carries one value of this type to all of its cores. Tests pass small numbers, so that a few tuples
    reach code that otherwise needs millions.
    """

    # Seconds of compiled work.
    scanned: float = 1e-10
    """Per pair that a scan compares."""
    looked_up: float = 3e-9
    """Per candidate pair that an index finds."""
    made: float = 3e-8
    """Per result."""

    # Basic windows.
    indexed_from: int = 2048
    """Smaller basic windows are scanned: sorting them would cost more than it saves."""
    indexed_probes: int = 512
    """Fewer probes of the smallest indexed basic window are scanned, not looked up window by window.

    A million pairs take 0.1 ms in either case, and a scan leaves the interpreter to other threads.
    """
    coded_from: int = 1 << 14
    """Smaller basic windows have no codes: they are few, and soon merged."""
    device_indexed_from: int = 1 << 18
    """Smaller basic windows are scanned on a GPU: they are soon merged, and a scan of a few is quick."""
    device_indexed_pairs: int = 1 << 31
    """With as many pairs of a batch, they are indexed too: scanning these takes 0.5 ms, an index as long."""
    clustered_after: int = 1000
    """Tuples that scan a basic window before it is clustered.

    By then scanning has cost what clustering costs (0.1 ns a pair, 0.1 us a tuple), so that never more than
    twice the least possible time is spent.
    """
    merged_at_once: int = 1 << 14
    """Up to this many tuples are merged and clustered at once; more in a thread, if the core allows it."""
    tiny: int = 128
    """Batches of up to this many tuples are merged only `tiny_batches` at a time."""
    tiny_batches: int = 12
    """Merging two batches takes as long as scanning twenty."""
    device_first_pairs: int = 1 << 17
    """Pairs that a search on a GPU returns at once, to begin with."""
    device_most_pairs: int = 1 << 26
    """Pairs beyond which a search is cut into parts, instead of making its output larger."""
    device_copied_pairs: int = 1 << 25
    """Likely pairs of a part of look-ups: the next part is searched while they are copied to the host."""
    device_tiny_batches: int = 256
    """The same on a GPU, which scans neighbours as one: so fewer than 1 push in 100 waits for a merge."""
    device_merged_at_once: int = 1 << 17
    """The same on a GPU, where no index is made: a thread's start may stop a push for longer."""

    # Chunks of new tuples on Spark.
    inline_bytes: int = 4096
    """Smaller chunks travel in their references: opening a file takes longer than sending these bytes."""

    chunk_rows: int = 1 << 20
    """Tuples of the largest chunk."""

    # Segments on Spark.
    settled_batches: int = 8
    """Batches between two moves of the cuts between segments, at least."""
    uneven: float = 1.2
    """Cuts move if a segment gets more than this multiple of its fair share."""

    # As-of joins.
    reduced_from: int = 1 << 12
    """Right tuples that are not worth reducing to the last one of each key."""
    merged_run: int = 1 << 16
    """Rows of a run that small runs are merged into, at most."""

    # Results and replays.
    coalesced_rows: int = 1 << 15
    """Small batches of results are concatenated up to this many rows."""
    slice_rows: int = 1 << 16
    """Tuples of both sides that a replay pushes between two looks at the windows."""
    first_slice_rows: int = 1 << 12
    """Tuples of the first slice, if results are put in order."""
    held_results: int = 1 << 20
    """About how many results one slice may give, if they are put in order."""
    tick_seconds: float = 0.005
    """Time between two pushes of a replay at a pace."""

    # Joins of several streams.
    first_look: int = 1 << 12
    """Tuples until the statistics that decide join orders are first looked at."""
    next_look: int = 1 << 15
    """Tuples between two later looks."""
    order_gain: float = 1.5
    """A join order is changed for one that is this many times cheaper, if it is also worth it."""
    order_worth: float = 0.25
    """The seconds that the new order would have saved so far: about what compiling new steps takes."""
    dealt_rows: int = 1 << 13
    """Batches of this many tuples are shared by all cores."""
    dealt_seconds: float = 0.005
    """Batches with this much compiled work are shared, too; with less, threads would wait for each other."""
    dealt_window: int = 1024
    """Basic windows that cores share are not made smaller than this for the sake of sharing."""
    dealt_methods: tuple[str, ...] = ("scan",)
    """Access methods whose basic windows are shared; with others, cores share the input.

    Scans are what the paper shares. An index is the better the larger a basic window is: with eight basic
    windows for each of two cores, a band join looked at four times as many candidates.
    """

    # Arrangement cell.
    fitted_from: int = 1 << 15
    """Windows of fewer tuples are not worth a cost model."""

    # Arrangement handshake.
    line_queue: int = 2
    """Pieces on their way between two neighbours."""
    line_results: int = 4
    """Batches of results per core that wait for the caller."""
    line_piece: int = 128
    """Pieces are not cut any smaller, and this many tuples gather before they enter the line."""
    line_merged: int = 128
    """Pieces of up to this many tuples are merged, however little the core holds."""

    # Arrangement low_latency.
    shared_rows: int = 8192
    """Batches of this many tuples settle on all cores."""
    shared_seconds: float = 0.0003
    """So do batches of this much compiled work; a smaller batch costs a thread as much as it saves."""
    at_once_seconds: float = 0.012
    """Batches of up to this much compiled work are joined by the caller's thread, if all cores are idle.

    All cores help with that one scan: 3 tuples with 1.4 million take 0.75 ms on one core, 0.42 ms on two.
    """
    gathered_rows: int = 4096
    """Tuples of a side that gather while cores are busy, before the source has to wait."""
    scan_buffer: int = 16 * TILE
    """Pairs that a thread of a shared scan can note before it has to give them away."""
    shared_pairs: int = 1 << 20
    """Scans of fewer pairs are not worth waking helpers (0.1 ms)."""
    selective: float = 0.03
    """If an index finds more than this share of a window, the next jobs scan instead."""
    compiles_aside: bool = True
    """Whether look-ups are compiled in a thread, with scans until they are ready."""


TUNING = Tuning()
"""The values that joins have unless they are given others."""
