"""Sliding windows on wires: their measures, and the hidden fields that travel with tuples."""

from __future__ import annotations

from dataclasses import dataclass

from handshake.engines.circuit.components.types import Row, Wire
from handshake.schema import INT64

TIME, CLOCK, START = "@time", "@clock", "@start"
"""Hidden fields: a tuple's time, its source's clock, and where the window starts that a beat closes."""
HERE = "@here"
"""Hidden field of streams in lock step: whether the beat has a tuple (see components.sequence)."""
SHOWN = "@shown"
"""Hidden field of streams in lock step that have times: what the stream's clock shows, tuple or none."""


@dataclass(frozen=True)
class Slide:
    """A sliding window on wires: `size` and `advance` in units of the clock, or in tuples."""

    kind: str
    size: int
    advance: int
    spread: int = 0
    """By how much a tuple's time can be beyond its clock (the lateness of its source)."""
    bounds: bool = False
    """Whether the sub-plan reads where its window starts."""
    timed: bool = False
    """Whether results need a time and a clock."""

    @property
    def copies(self) -> int:
        """Windows that can be open at once, plus one that sends results."""
        return -(-(self.size + self.spread) // self.advance) + 1


def body_row(row: Row, slide: Slide) -> Row:
    """Return the wires that the sub-plan reads: the input, and the start of its window."""
    if not slide.bounds:
        return row
    kept = row[TIME] if slide.kind == "time" else Wire(TIME, INT64, 64, True)
    return Row((*row.wires, Wire(START, kept.type, kept.bits, kept.signed)))


def window_row(after: Row, slide: Slide) -> Row:
    """Return the wires of results: the sub-plan's, with their time if it is read later on."""
    hidden = {START} if slide.timed else {START, TIME, CLOCK}
    return Row(tuple(w for w in after if w.name not in hidden))
