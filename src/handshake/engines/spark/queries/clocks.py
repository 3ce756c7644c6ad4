"""Sources whose tuples do not tell what their clock shows: finite inputs, and the results of joins."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa

from handshake.operators.chunk import BEGINNING, END, Array, Flow, Trace
from handshake.operators.sources import Needs, SourceOperator
from handshake.plan.algebra import Node, Source, rebuild
from handshake.schema import UNITS

__all__ = ["ToldSource", "patient", "replaced"]


def patient(source: Source) -> Source:
    """The same input with a clock that passes no window before the end: its tuples arrive by time."""
    return replace(source, lateness=(END - BEGINNING) * UNITS[source.clock.unit])


def replaced(node: Node, old: Node, new: Source) -> Node:
    """A plan that reads a source where it has computed something."""
    return rebuild(node, lambda here: new if here == old else here)


class ToldSource(SourceOperator):
    """Results of a join: their clock is the least that one of the join's inputs shows, and is told.

    Tuples have the clock that was told with the micro-batch before theirs: windows close between them.
    """

    def __init__(self, source: Source, clocks: int) -> None:
        super().__init__(source, Needs(True, False), time.time_ns)
        self._shown = [BEGINNING] * clocks

    def tell(self, which: int, clock: int) -> None:
        """What an input of the join shows, in units of this clock."""
        self._shown[which] = max(self._shown[which], clock)

    def step(self, batch: pa.RecordBatch, places: Array, *, ended: bool = False) -> Flow:
        """Results that have come; then the clock moves."""
        flow = super().step(batch, places, ended=ended)
        self._clock = max(self._clock, min(self._shown))
        trace = Trace(places[-1:], np.array([END if ended else self._clock]))
        return Flow(flow.chunk, trace, ended)

    def _clocks(self, times: Array) -> Array:
        return np.full(len(times), self._clock)
