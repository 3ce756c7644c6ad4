"""Batches cut into pieces on the way in, and put together on the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import stored_column
from handshake.joins.segment import SHARE, SMALL
from handshake.joins.spec import JoinSpec
from handshake.joins.tuning import TUNING
from handshake.kernels.columns import integers
from handshake.schema import concat_batches

_PIECE = 1 << 20
_COALESCE_BYTES = 1 << 25
_LARGE = 1 << 12


def pieces(spec: JoinSpec, side: int, batch: pa.RecordBatch) -> Iterator[BasicWindow]:
    """Cut a batch so that no piece spans much of the window: then extremes skip what cannot join."""
    if batch.num_rows == 0:
        return
    mine = spec.sides[side]
    if batch.num_rows <= SMALL:
        yield BasicWindow(mine, batch)
        return
    stamp = mine.expiring
    reach = spec.reach(side)
    if stamp is None or reach is None:
        cuts = list(range(0, batch.num_rows, _PIECE))
    else:
        stamps = integers(stored_column(batch, mine, stamp.name))
        if np.any(stamps[1:] < stamps[:-1]):
            order = np.argsort(stamps, kind="stable")
            batch, stamps = batch.take(pa.array(order)), stamps[order]
        cuts = _cuts(stamps, max(reach // SHARE, 1))
    for start, stop in zip(cuts, [*cuts[1:], batch.num_rows], strict=True):
        yield BasicWindow(mine, batch.slice(start, stop - start))


def _cuts(stamps: np.ndarray[Any, Any], span: int) -> list[int]:
    """Starts of pieces of `SMALL` to `_PIECE` tuples, spanning at most `span` where that allows it."""
    cuts, start = [], 0
    while start < len(stamps):
        cuts.append(start)
        end = int(stamps[start]) + span
        within = int(np.searchsorted(stamps[start : start + _PIECE], end, "right")) if end < 2**63 else _PIECE
        start += max(min(within, _PIECE), SMALL)
    return cuts


def coalesce(
    batches: Iterator[pa.RecordBatch], most: int = TUNING.coalesced_rows
) -> Iterator[pa.RecordBatch]:
    """Few large batches instead of many small ones; large ones are passed on as they are."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows >= _LARGE:
            yield from _concatenate(waiting)
            yield batch
            waiting, rows, size = [], 0, 0
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
        # The memory behind slices may be much more than they are; what they are takes longer to find.
        if rows >= most or (size >= _COALESCE_BYTES and sum(b.nbytes for b in waiting) >= _COALESCE_BYTES):
            yield from _concatenate(waiting)
            waiting, rows, size = [], 0, 0
    yield from _concatenate(waiting)


def _concatenate(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Concatenate batches into one; leave them as they are if one array cannot hold them (see `merged`)."""
    if len(batches) < 2:
        return batches
    try:
        return [concat_batches(batches)]
    except pa.ArrowInvalid:
        return batches
