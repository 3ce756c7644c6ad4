"""Union: rows of several streams in the order of arrival, with the slowest of their clocks."""

from __future__ import annotations

import numpy as np

from handshake.errors import InputError
from handshake.operators.chunk import BEGINNING, END, Array, Flow, Trace, concat_chunks
from handshake.plan.algebra import Node
from handshake.schema import UNITS


def in_unit(flow: Flow, own: str, unit: str) -> Flow:
    """Convert the times of a flow to a finer unit."""
    factor = UNITS[own] // UNITS[unit]
    if factor == 1 or flow.chunk.times is None:
        return flow
    chunk = flow.chunk
    assert chunk.times is not None
    assert chunk.clocks is not None
    times = np.where(chunk.timed, chunk.times, 0) if chunk.timed is not None else chunk.times
    _check_scaled(times, flow.trace.clocks, own, unit)
    scaled = chunk._replace(times=times * factor, clocks=_scale_clocks(chunk.clocks, factor))
    return Flow(scaled, Trace(flow.trace.places, _scale_clocks(flow.trace.clocks, factor)), flow.ended)


def _scale_clocks(clocks: Array, factor: int) -> Array:
    """Convert clocks to a finer unit; one below the first possible time has not moved yet."""
    inside = np.clip(clocks, BEGINNING // factor, END // factor)
    return np.where(clocks >= END, END, np.where(inside > BEGINNING // factor, inside * factor, BEGINNING))


def _check_scaled(times: Array, clocks: Array, own: str, unit: str) -> None:
    """Refuse times that are too large in the finer unit."""
    shown = clocks[clocks < END]  # less than times can be, with much lateness, is as good as the beginning
    ends = [int(end) for some in (times, shown[shown > 0]) if len(some) for end in (some.min(), some.max())]
    far = max(ends, key=abs, default=0)
    if abs(far) * (UNITS[own] // UNITS[unit]) >= END:
        raise InputError(
            f"a time of {far} {own} is beyond 62 bits in {unit}, which the other streams of a union or a "
            "join count; declare all times in the same unit, such as timestamp(0)"
        )


class Clocks:
    """The clock of an operator with several inputs: the least that one of them shows."""

    def __init__(self, count: int) -> None:
        self._shown = [BEGINNING] * count
        self.least = BEGINNING
        """The time that it shows at the end of the last step."""

    def step(self, flows: list[Flow]) -> Trace:
        """Advance by the clocks of the inputs."""
        # Runs in order are quick to merge; np.unique takes 0.4 us per row, since it hashes them.
        places = np.sort(np.concatenate([flow.trace.places for flow in flows]), kind="stable")
        places = places[np.diff(places, prepend=-1) > 0]
        shown = []
        for k, flow in enumerate(flows):
            known = np.concatenate([[self._shown[k]], flow.trace.clocks])
            shown.append(known[np.searchsorted(flow.trace.places, places, "right")])
            self._shown[k] = int(known[-1])
        least = np.maximum(np.min(shown, axis=0), self.least) if len(places) else places
        if len(least):
            self.least = int(least[-1])
        return Trace(places, least)


class UnionOperator:
    """A union of streams by arrival."""

    def __init__(self, node: Node) -> None:
        self._units = [child.clock.unit for child in node.children]
        self._unit = node.clock.unit
        self._clocks = Clocks(len(self._units))

    def step(self, flows: list[Flow]) -> Flow:
        """Merge the new rows of all inputs."""
        flows = [in_unit(flow, own, self._unit) for flow, own in zip(flows, self._units, strict=True)]
        chunk = concat_chunks([flow.chunk for flow in flows])
        assert chunk.places is not None
        if np.any(chunk.places[1:] < chunk.places[:-1]):
            chunk = chunk.take(np.argsort(chunk.places, kind="stable"))
        return Flow(chunk, self._clocks.step(flows), all(flow.ended for flow in flows))
