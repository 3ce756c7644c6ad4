"""Latency and issue rate of a query's circuit, as simulation shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handshake.engines.circuit.compiler import Compiled
from handshake.engines.circuit.simulation.simulate import ALWAYS, Run, Simulation, feed

__all__ = ["Probe"]

_SPACED = (True, *[False] * 120)
"""Time between tuples for a CAM to take a new group in, and for a window to find its place."""
_BURST = (*_SPACED, *[True] * 1000)
"""A tuple, time for it to settle, then one after the other."""


class Probe:
    """Simulates a circuit of one input and one result."""

    def __init__(self, compiled: Compiled, engine: str = "amaranth") -> None:
        (self._input,), (self._output,) = compiled.inputs, compiled.outputs
        self._row = compiled.inputs[self._input]
        self._simulation = Simulation(compiled.circuit(), engine)

    def _run(self, tuples: Sequence[Sequence[Any]], pattern: Sequence[bool]) -> Run:
        fed = {self._input: feed(self._row, tuples, pattern=pattern, end="none")}
        return self._simulation.run(fed, stop_at_eos=False)

    def latency(self, tuples: Sequence[Sequence[Any]], *, burst: bool = False) -> int:
        """Return the cycles from taking the last tuple, which completes the first result, to that result.

        Tuples come far apart; in a burst, all after the first come at once.
        """
        run = self._run(tuples, _BURST if burst else _SPACED)
        return run.outputs[self._output][0].cycle - run.accepted[self._input][-1]

    def issue_rate(self, tuples: Sequence[Sequence[Any]], *, after: int = 1) -> float:
        """Return tuples taken per cycle when one is always offered, counted from tuple `after` on."""
        taken = self._run(tuples, ALWAYS).accepted[self._input][after:]
        return (len(taken) - 1) / (taken[-1] - taken[0])
