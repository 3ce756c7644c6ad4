"""Simulation cycle by cycle, behind one interface: feed streams in, collect streams and probes.

    run = simulate(circuit, {"trades": feed(row, tuples)}, engine="cxxrtl")
    run.tuples("o", row)

All simulators do the same in each cycle: sources offer, sinks say whether they are ready, the
combinational logic settles, what moves is noted, and the clock ticks. They agree cycle for cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from handshake.engines.circuit.components.trees import deep
from handshake.engines.circuit.simulation.amaranth_engine import AmaranthSimulator
from handshake.engines.circuit.simulation.cxxrtl.engine import CxxrtlSimulator
from handshake.engines.circuit.simulation.testbench import (
    ALWAYS,
    Arrival,
    Beat,
    Feed,
    Ports,
    Run,
    Simulator,
    Task,
    feed,
)
from handshake.errors import HandshakeError, InputError, UnsupportedError

__all__ = ["ALWAYS", "SIMULATORS", "Arrival", "Beat", "Feed", "Run", "Simulation", "feed", "simulate"]

SIMULATORS: dict[str, Simulator] = {
    "amaranth": AmaranthSimulator(),
    "cxxrtl": CxxrtlSimulator(),
    "cxxrtl-quick": CxxrtlSimulator("-O0"),
    "cxxrtl-plain": CxxrtlSimulator("-O0", plain=True),
}
"""Amaranth's simulator starts at once; CXXRTL takes seconds to build and is 100 times faster. The quick
one is built without optimisation, in half the time: for many short runs. The plain one takes the C++ as Yosys
writes it."""

QUIET = 300
"""Cycles without any movement that end a run whose inputs do not end."""
PATIENCE = 50_000_000
"""Cycles without any movement that a run whose inputs end may take: long windows are searched in silence."""
LIMIT = 10_000_000
"""Cycles of a run whose inputs do not end."""
_ENDLESS = 2**62


def simulate(
    circuit: Any,
    feeds: Mapping[str, Feed],
    *,
    ready: Mapping[str, Sequence[bool]] | None = None,
    levels: Mapping[str, int] | None = None,
    engine: str = "amaranth",
    limit: int | None = None,
    stop_at_eos: bool = True,
    quiet: int | None = None,
    vcd: Path | None = None,
) -> Run:
    """Run `circuit` on `feeds`; `ready` holds outputs back by pattern, as a feed's pattern holds input back.

    If all inputs end, the run ends when every output has given `eos` (`stop_at_eos`); a missing `eos` is an
    error. Other runs end when nothing has moved for `quiet` cycles, or after `limit` cycles. That is an error
    if input is left.
    """
    _check_waveform(vcd)
    made = Simulation(circuit, engine, waveform=vcd is not None)
    return made.run(
        feeds, ready=ready, levels=levels, limit=limit, stop_at_eos=stop_at_eos, quiet=quiet, vcd=vcd
    )


class Simulation:
    """A circuit made ready by a simulator, for more than one run of the same circuit."""

    @deep()
    def __init__(self, circuit: Any, engine: str = "amaranth", *, waveform: bool = False) -> None:
        self.ports = Ports.of(circuit)
        self._prepared = _simulator(engine).prepare(circuit, self.ports, waveform=waveform)

    @deep()
    def run(
        self,
        feeds: Mapping[str, Feed],
        *,
        ready: Mapping[str, Sequence[bool]] | None = None,
        levels: Mapping[str, int] | None = None,
        limit: int | None = None,
        stop_at_eos: bool = True,
        quiet: int | None = None,
        vcd: Path | None = None,
    ) -> Run:
        """Run from reset; see `simulate`."""
        ends = stop_at_eos and all(n in feeds and _has_ended(feeds[n].beats) for n in self.ports.sources)
        most = limit or (_ENDLESS if ends else LIMIT)
        patience = quiet or (PATIENCE if ends else QUIET)
        task = _task(self.ports, feeds, ready or {}, levels or {}, most, patience, stop_at_eos)
        run = self._prepared(task, vcd)
        left = {name: len(each.beats) - len(run.accepted[name]) for name, each in task.feeds.items()}
        if run.cycles >= most and any(left.values()):
            raise HandshakeError(f"the circuit was stopped after {most} cycles with beats left: {left}")
        if ends and (open_ones := [name for name, beats in run.outputs.items() if not _has_ended(beats)]):
            raise HandshakeError(
                f"the circuit was stopped after {run.cycles} cycles, of which the last {patience} moved "
                f"nothing, before its output '{open_ones[0]}' ended; beats left: {left}"
            )
        return run


def _check_waveform(vcd: Path | None) -> None:
    """Check that the waveform can be written before anything is built; an existing file stays."""
    if vcd is None:
        return
    try:
        existed = vcd.exists()
        vcd.open("a").close()
        if not existed:
            vcd.unlink()
    except OSError as error:
        raise InputError(f"waveform '{vcd}' cannot be written: {error.strerror}") from None


def _has_ended(beats: Sequence[Beat | Arrival]) -> bool:
    return bool(beats) and beats[-1].eos


def _task(
    ports: Ports,
    feeds: Mapping[str, Feed],
    ready: Mapping[str, Sequence[bool]],
    levels: Mapping[str, int],
    limit: int,
    quiet: int,
    stop_at_eos: bool,
) -> Task:
    _check_known(feeds, ports.sources, "input stream")
    _check_known(ready, ports.sinks, "output stream")
    _check_known(levels, ports.levels, "input")
    patterns = {name: ready.get(name, ALWAYS) for name in ports.sinks}
    longest = max((len(p) for p in (*patterns.values(), *(f.pattern for f in feeds.values()))), default=0)
    return Task(
        {name: feeds.get(name, Feed(())) for name in ports.sources},
        patterns,
        {name: levels.get(name, 0) for name in ports.levels},
        limit,
        quiet + longest,
        stop_at_eos,
    )


def _check_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    strange = sorted(set(given) - set(known))
    if strange:
        raise HandshakeError(
            f"the circuit has no {what} '{strange[0]}' (it has: {', '.join(known) or 'none'})"
        )


def _simulator(name: str) -> Simulator:
    if name not in SIMULATORS:
        raise UnsupportedError(f"no simulator '{name}'; choose one of {', '.join(SIMULATORS)}")
    return SIMULATORS[name]
