"""Compiled simulation of circuits with many equal instances: rewritten to settle in one pass, and plain."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

import join_circuits as jc
from circuits import SMALL
from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import stream_in, stream_out
from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.simulation.cxxrtl import engine as cxxrtl_engine
from handshake.engines.circuit.simulation.cxxrtl.engine import IN_MODULES, write_cxx
from handshake.engines.circuit.simulation.cxxrtl.one_pass import has_many_instances, one_pass
from handshake.engines.circuit.simulation.simulate import Simulation, feed
from handshake.engines.circuit.simulation.testbench import Ports

BITS = SMALL.bits + 2
PLACES = 5
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


class Slow(Block):
    """Takes a word, waits while nothing around it changes, and offers it out of a memory.

    Beside what it needs it has what a simulation may get wrong: a copy of a register that depends on itself
    and one that begins otherwise, memories written in halves and read at the clock.
    """

    def __init__(self, wait: int, at_once: bool = False) -> None:
        self.wait, self.at_once = wait, at_once
        ports = {"valid": In(1), "data": In(BITS), "ready": Out(1)}
        outputs = {"o_valid": Out(1), "o_data": Out(BITS), "o_ready": In(1)}
        super().__init__({**ports, **outputs}, (wait, at_once))

    def build(self) -> Module:
        m = Module()
        has, full, held = Signal(), Signal(), Signal(BITS)
        left = Signal(range(self.wait + 1))
        places = [Signal(range(PLACES), name=f"place_{n}") for n in ("first", "copy")]
        other = Signal(range(PLACES), name="place_other", init=1)
        stores = Signal()
        m.d.comb += [self.ready.eq(~has & ~full), self.o_valid.eq(full), stores.eq(has & (left == 0))]
        if self.at_once:
            m.d.comb += self.o_valid.eq(full & self.valid)
        with m.If(self.valid & self.ready):
            m.d.sync += [has.eq(1), held.eq(self.data), left.eq(self.wait)]
        with m.If(has):
            m.d.sync += left.eq(left - 1)
        with m.If(stores):
            m.d.sync += [has.eq(0), full.eq(1)]
        with m.If(full & self.o_ready):
            m.d.sync += full.eq(0)
            for place in (*places, other):
                with m.If(place == PLACES - 1):
                    m.d.sync += place.eq(0)
                with m.Else():
                    m.d.sync += place.eq(place + 1)
        words = [self._memory(m, f"words{i}", place, stores, held) for i, place in enumerate(places)]
        m.d.comb += self.o_data.eq(Mux(other == 3, words[0], ~words[1]))
        return m

    def _memory(self, m: Module, name: str, place: Signal, stores: Signal, held: Signal) -> Any:
        m.submodules[name] = memory = Memory(shape=BITS, depth=PLACES, init=range(PLACES))
        low, high = memory.write_port(granularity=1), memory.write_port()
        read, late = memory.read_port(domain="comb"), memory.read_port()
        odd = Signal(name=f"{name}_odd")
        m.d.sync += odd.eq(late.data.xor())
        m.d.comb += [
            low.addr.eq(place), low.data.eq(held), low.en.eq(stores.replicate(BITS) & 0x55555555),
            high.addr.eq(place), high.data.eq(held), high.en.eq(stores & odd),
            read.addr.eq(place), late.addr.eq(held[:2]), late.en.eq(stores),
        ]  # fmt: skip
        return read.data


class Turning(Block):
    """Offers a place, which changes in every cycle, and the inverse of a memory's word there."""

    def __init__(self) -> None:
        super().__init__({"data": In(BITS), "place": Out(3), "word": Out(BITS)}, ())

    def build(self) -> Module:
        m = Module()
        count = Signal(3)
        m.submodules.words = memory = Memory(shape=BITS, depth=8, init=[3 * n + 1 for n in range(8)])
        read, write = memory.read_port(domain="comb"), memory.write_port()
        m.d.comb += [write.addr.eq(count), write.data.eq(self.data), write.en.eq(self.data[1])]
        m.d.sync += count.eq(count + Mux(self.data[0], 3, 1))
        m.d.comb += [self.place.eq(~count), read.addr.eq(self.place), self.word.eq(~read.data)]
        return m


class Ring(Block):
    """Nine turning parts in a ring: each has the word of the one before it."""

    def __init__(self) -> None:
        super().__init__({"i": stream_in(SMALL), "o": stream_out(SMALL), "cycles": Out(8)}, ())

    def build(self) -> Module:
        m = Module()
        parts = [Turning() for _ in range(9)]
        for index, part in enumerate(parts):
            m.submodules[f"part{index}"] = part
            m.d.comb += part.data.eq(parts[index - 1].word)
        m.d.sync += self.cycles.eq(self.cycles + parts[0].place[0])
        m.d.comb += [
            self.o.payload.as_value().eq(parts[0].word), self.o.valid.eq(self.i.valid),
            self.o.eos.eq(self.i.eos), self.i.ready.eq(self.o.ready),
        ]  # fmt: skip
        return m


class Line(Block):
    """Nine slow parts in a row."""

    def __init__(self, wait: int, at_once: bool = False) -> None:
        self.wait, self.at_once = wait, at_once
        ports = {"i": stream_in(SMALL), "o": stream_out(SMALL), "taken": Out(8)}
        super().__init__(ports, (wait, at_once))

    def build(self) -> Module:
        m = Module()
        parts = [Slow(self.wait, self.at_once) for _ in range(9)]
        for index, part in enumerate(parts):
            m.submodules[f"part{index}"] = part
        for part, after in pairwise(parts):
            m.d.comb += [
                after.valid.eq(part.o_valid), after.data.eq(part.o_data), part.o_ready.eq(after.ready)
            ]  # fmt: skip
        first, last = parts[0], parts[-1]
        given = Cat(self.i.valid, self.i.eos, self.i.payload.as_value())
        m.d.comb += [
            first.valid.eq(self.i.valid | self.i.eos), first.data.eq(given), self.i.ready.eq(first.ready),
            self.o.valid.eq(last.o_valid), self.o.payload.as_value().eq(last.o_data[2:]),
            last.o_ready.eq(self.o.ready),
        ]  # fmt: skip
        with m.If((self.i.valid | self.i.eos) & self.i.ready):
            m.d.sync += self.taken.eq(self.taken + 1)
        return m


def _model(circuit: Block) -> str:
    text = to_rtlil(circuit)
    assert has_many_instances(text)
    return write_cxx(text, IN_MODULES)


def test_an_output_that_does_not_wait_for_the_clock_is_left_to_the_flattened_circuit() -> None:
    assert one_pass(_model(Line(2, at_once=True))) is None


def test_the_text_of_the_installed_yosys_is_as_expected() -> None:
    """Another release may write other C++: runs stay right, but take the plain path and are slower."""
    assert one_pass(_model(Line(2))) is not None, f"pyosys {version('pyosys')} writes C++ of another form"


def test_an_unexpected_text_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(Line(2))
    for old, new in (
        ("struct p_", "class p_"),
        ("wire<", "reg<"),
        ("\t// cell", "\t/// cell"),
        (".eval(", ".run("),
    ):
        assert old in model
        assert one_pass(model.replace(old, new)) is None
    compiled: list[str] = []
    monkeypatch.setattr(cxxrtl_engine, "_compile", lambda text, level: compiled.append(text))
    monkeypatch.setattr(cxxrtl_engine, "one_pass", lambda text: None)
    cxxrtl_engine.build(Line(2), Ports.of(Line(2)))
    cxxrtl_engine.build(Line(2), Ports.of(Line(2)), plain=True)
    assert compiled[0] == compiled[1]
    assert compiled[0].startswith(model)


@needs_compiler
def test_parts_that_wait_are_left_alone_and_see_the_same_cycles() -> None:
    """Long gaps before, between and behind parts that wait: they wake by themselves, or by a neighbour."""
    rng = Random(3)
    engines = [Simulation(Line(6), engine) for engine in ("amaranth", "cxxrtl-quick", "cxxrtl-plain")]
    for gap in (0, 3, 30):
        words = feed(SMALL, [(rng.randrange(8), rng.randrange(8)) for _ in range(11)])
        fed = type(words)(words.beats, (True,) + (False,) * gap)
        ready = {"o": tuple(rng.random() < 0.5 for _ in range(7)) + (True,) + (False,) * gap}
        runs = [each.run({"i": fed}, ready=ready, stop_at_eos=False) for each in engines]
        assert runs[0] == runs[1] == runs[2], gap
        assert runs[0].probes["taken"] == 12
        assert len(runs[0].outputs["o"]) == 12


@needs_compiler
def test_a_memory_is_read_at_an_output_of_the_same_cycle() -> None:
    fed = {"i": feed(SMALL, [(n, n) for n in range(8)])}
    here, there = (Simulation(Ring(), engine).run(fed) for engine in ("amaranth", "cxxrtl-quick"))
    assert here == there


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_random_joins_in_parts_see_the_same_cycles(seed: int) -> None:
    rng = Random(seed)
    cores = rng.randint(8, 10)
    left, right = (rng.randint(cores, 4 * cores) for _ in range(2))
    changes = {"windows": rng.choice(["registers", "memory"]), "pipeline": rng.choice([0, 1, 4])}
    changes |= {"block_ram_from": 3} if seed % 2 else {}
    design = Design(cores, left, right, merger_buffer=rng.randint(3, 5), **changes)
    order, offered, taken = jc.make_order(rng, 40), jc.make_pattern(rng), jc.make_pattern(rng)
    here, there = (
        jc.run_circuit(jc.key_condition(), design, order, offered=offered, taken=taken, engine=engine)
        for engine in ("amaranth", "cxxrtl-quick")
    )
    assert here == there
