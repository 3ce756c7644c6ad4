"""Amaranth's own simulator, in Python: starts at once, runs some thousand cycles per second."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockDomain, Module
from amaranth.sim import Simulator

from handshake.engines.circuit.simulation.testbench import Arrival, Beat, Feed, Ports, Prepared, Run, Task


class AmaranthSimulator:
    """Drives the circuit from a test bench in Python."""

    def prepare(self, circuit: Any, ports: Ports, *, waveform: bool) -> Prepared:
        """Elaborate the circuit once; each run starts from reset."""
        return _Prepared(circuit, ports).run


class _Prepared:
    """A simulator that is reset before each run: making one costs more than a short run."""

    def __init__(self, circuit: Any, ports: Ports) -> None:
        self._circuit, self._ports = circuit, ports
        self._bench: _Bench | None = None
        self._simulator: Simulator | None = None

    def _make(self) -> Simulator:
        top = Module()
        top.domains.sync = ClockDomain()  # circuits of gates alone have none, and the bench waits for ticks
        top.submodules.circuit = self._circuit
        simulator = Simulator(top)
        simulator.add_clock(1e-8)  # the papers' 100 MHz
        simulator.add_testbench(self._drive)
        return simulator

    async def _drive(self, ctx: Any) -> None:
        assert self._bench is not None
        await self._bench.drive(ctx)

    def run(self, task: Task, vcd: Path | None) -> Run:
        """Run a task from reset."""
        self._bench = _Bench(self._circuit, self._ports, task)
        if self._simulator is None:
            self._simulator = self._make()
        else:
            self._simulator.reset()
        with self._simulator.write_vcd(str(vcd)) if vcd else nullcontext():
            self._simulator.run()
        return self._bench.run


class _Source:
    """Offers the beats of one feed."""

    def __init__(self, stream: Any, feed: Feed) -> None:
        self.stream, self.feed = stream, feed
        self.next, self.offered = 0, False

    @property
    def done(self) -> bool:
        return self.next == len(self.feed.beats)

    def offer(self, ctx: Any, cycle: int) -> None:
        allowed = self.offered or self.feed.pattern[cycle % len(self.feed.pattern)]
        self.offered = allowed and not self.done
        beat = self.feed.beats[self.next] if self.offered else Beat(None)
        ctx.set(self.stream.valid, beat.payload is not None)
        ctx.set(self.stream.eos, beat.eos)
        ctx.set(self.stream.payload.as_value(), beat.payload or 0)

    def take(self, ctx: Any) -> bool:
        if not self.offered or not ctx.get(self.stream.ready):
            return False
        self.next, self.offered = self.next + 1, False
        return True


class _Bench:
    def __init__(self, circuit: Any, ports: Ports, task: Task) -> None:
        self.circuit, self.ports, self.task = circuit, ports, task
        self.sources = {n: _Source(getattr(circuit, n), feed) for n, feed in task.feeds.items()}
        self.run = Run(accepted={n: [] for n in ports.sources}, outputs={n: [] for n in ports.sinks})

    async def drive(self, ctx: Any) -> None:
        for name, value in self.task.levels.items():
            ctx.set(getattr(self.circuit, name), value)
        last = 0
        while self.run.cycles < self.task.limit and not self._is_over(last):
            if self._cycle(ctx, self.run.cycles):
                last = self.run.cycles
            self.run.cycles += 1
            await ctx.tick()
        self.run.probes = {n: ctx.get(getattr(self.circuit, n)) for n in self.ports.probes}

    def _cycle(self, ctx: Any, cycle: int) -> bool:
        for source in self.sources.values():
            source.offer(ctx, cycle)
        for name, pattern in self.task.ready.items():
            ctx.set(getattr(self.circuit, name).ready, pattern[cycle % len(pattern)])
        taken = [name for name, source in self.sources.items() if source.take(ctx)]
        for name in taken:
            self.run.accepted[name].append(cycle)
        left = [self._collect(ctx, name, cycle) for name in self.ports.sinks]
        return bool(taken) or any(left)

    def _collect(self, ctx: Any, name: str, cycle: int) -> bool:
        stream = getattr(self.circuit, name)
        valid, eos = ctx.get(stream.valid), bool(ctx.get(stream.eos))
        if not ((valid or eos) and ctx.get(stream.ready)):
            return False
        payload = ctx.get(stream.payload.as_value()) if valid else None
        self.run.outputs[name].append(Arrival(cycle, payload, eos))
        return True

    def _is_over(self, last: int) -> bool:
        if not all(source.done for source in self.sources.values()):
            return self.run.cycles - last > self.task.quiet
        ended = all(beats and beats[-1].eos for beats in self.run.outputs.values())
        return (self.task.stop_at_eos and ended) or self.run.cycles - last > self.task.quiet
