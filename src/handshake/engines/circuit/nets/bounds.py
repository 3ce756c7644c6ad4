"""Bounds and choices that hardware needs and a query does not state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from handshake.engines.circuit.components.group import WRITE_CYCLES


@dataclass(frozen=True)
class Bounds:
    """Bounds and choices; a missing bound that a query needs is an error that names what needs it."""

    groups: int | None = None
    """The most groups that a window has (with un-nesting: that all open windows have)."""
    text: int | None = None
    """Bytes of strings that are declared without a length."""
    nullable: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each input stream, the fields that may be NULL."""
    write_cycles: int = WRITE_CYCLES
    """Cycles for which a new group keeps the CAM busy."""
    cores: int | None = None
    """Join cores; None: four. Never more than the smaller window has tuples."""
    buffer: int = 8
    """Results that a join core's output buffer holds."""
    merger_buffer: int = 4
    """Results that the buffer of a merger of join results holds."""
    join: str = "auto"
    """How joins are arranged: `handshake`, `ordered`, or `auto`: ordered where what follows needs order."""
    window_tuples: int | None = None
    """The most tuples that a joined stream's window of time has."""
    divider: str = "pipelined"
    """The divider of averages: a pipeline, a small unit that works bit by bit, or the host."""
