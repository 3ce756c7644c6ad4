"""Input and output of a simulation, the same for all simulators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from amaranth.lib import wiring

from handshake.engines.circuit.components.stream import StreamSignature
from handshake.engines.circuit.components.types import Row
from handshake.errors import UnsupportedError

ALWAYS: tuple[bool, ...] = (True,)


class Beat(NamedTuple):
    """The beat of one cycle: a tuple's payload (None: no tuple) and whether the stream ends."""

    payload: int | None
    eos: bool = False


class Arrival(NamedTuple):
    """A beat that left the circuit, and the cycle in which it did."""

    cycle: int
    payload: int | None
    eos: bool = False


@dataclass(frozen=True)
class Feed:
    """Beats for an input stream; a new one is offered in cycle c only where `pattern[c % len]` says so."""

    beats: Sequence[Beat]
    pattern: Sequence[bool] = ALWAYS


def feed(
    row: Row, tuples: Iterable[Sequence[Any]], *, pattern: Sequence[bool] = ALWAYS, end: str = "alone"
) -> Feed:
    """Return tuples as beats. `end`: "alone" (a beat of its own), "last" (with the last tuple) or "none"."""
    beats = [Beat(row.pack(each)) for each in tuples]
    if end == "last" and beats:
        beats[-1] = beats[-1]._replace(eos=True)
    elif end != "none":
        beats.append(Beat(None, True))
    return Feed(beats, pattern)


@dataclass
class Run:
    """The record of a simulation."""

    cycles: int = 0
    accepted: dict[str, list[int]] = field(default_factory=dict)
    """For each input stream, the cycle in which each of its beats was taken."""
    outputs: dict[str, list[Arrival]] = field(default_factory=dict)
    """For each output stream, the beats that left."""
    probes: dict[str, int] = field(default_factory=dict)
    """The other outputs of the circuit (counters, flags), as they stood after the last cycle."""

    def tuples(self, stream: str, row: Row) -> list[tuple[Any, ...]]:
        """Return the tuples that left on `stream`, in order."""
        return [row.unpack(a.payload) for a in self.outputs[stream] if a.payload is not None]


@dataclass(frozen=True)
class Ports:
    """The ports of a circuit by what they are: streams in, streams out, other outputs, other inputs."""

    sources: Mapping[str, Row]
    sinks: Mapping[str, Row]
    probes: Mapping[str, int]
    levels: Mapping[str, int]

    @classmethod
    def of(cls, circuit: Any) -> Ports:
        """Sort the members of the circuit's signature; deeper interfaces are not understood."""
        sorted_: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
        for name, member in circuit.signature.members.items():
            inward = member.flow == wiring.In
            if member.is_port:
                sorted_[3 if inward else 2][name] = len(getattr(circuit, name))
            elif isinstance(member.signature, StreamSignature):
                sorted_[0 if inward else 1][name] = member.signature.row
            else:
                raise UnsupportedError(f"port '{name}' is neither a stream nor a signal")
        return cls(*sorted_)


@dataclass(frozen=True)
class Task:
    """All that a simulator needs for one run."""

    feeds: Mapping[str, Feed]
    ready: Mapping[str, Sequence[bool]]
    levels: Mapping[str, int]
    """Values of the inputs that are no stream, constant throughout."""
    limit: int
    quiet: int
    stop_at_eos: bool


Prepared = Callable[[Task, Path | None], Run]
"""A circuit made ready: runs a task, keeping the waveform in a file if one is given."""


class Simulator(Protocol):
    """A simulator of circuits."""

    def prepare(self, circuit: Any, ports: Ports, *, waveform: bool) -> Prepared:
        """Make a circuit ready for any number of runs."""
