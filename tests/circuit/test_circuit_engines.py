"""Simulators and texts: simulators agree cycle for cycle; Verilog has each component once and simulates."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from circuits import SMALL
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.union import Union
from handshake.engines.circuit.emit import to_verilog
from handshake.engines.circuit.nets.rules import RULES, optimise
from handshake.engines.circuit.simulation.simulate import Beat, Feed, Simulation, feed, simulate
from handshake.engines.circuit.yosys import run_yosys
from handshake.errors import HandshakeError, InputError, UnsupportedError
from handshake_bench.circuits import PUBLISHED, Case, compile_query, measure

HELD = (True, False, False, True, True)
TRADES = [(n, ("UBSN", "ABBN")[n % 3 == 1], 10 * n, 90_000 + 5_000 * n, 20 * n) for n in range(12)]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@needs_compiler
def test_engines_agree_on_a_union_and_waveforms_are_kept(tmp_path: Path) -> None:
    streams = {
        f"i{n}": feed(SMALL, [(n, k) for k in range(4 * n)], pattern=HELD[n:] + HELD[:n]) for n in range(3)
    }
    for ready in ((True,), HELD):
        runs = [
            simulate(Union(SMALL, 3), streams, engine=engine, ready={"o": ready}, vcd=tmp_path / engine)
            for engine in ("amaranth", "cxxrtl-quick")
        ]
        assert runs[0] == runs[1]
        assert len(runs[0].outputs["o"]) >= 12
    texts = [file.read_text() for file in tmp_path.iterdir()]
    assert len(texts) == 2
    assert all("$enddefinitions" in text for text in texts)
    if Path("/dev/full").exists():  # the same circuit, so it is not built again
        with pytest.raises(
            HandshakeError, match=r"^the waveform could not be kept: '/dev/full' cannot be wri"
        ):
            simulate(Union(SMALL, 3), streams, engine="cxxrtl-quick", vcd=Path("/dev/full"))
    made = Simulation(Union(SMALL, 3), "cxxrtl-quick", waveform=True)
    with _interrupted_after(0.1), pytest.raises(KeyboardInterrupt):
        made.run({"i0": Feed([Beat(0)])}, limit=2**62, quiet=2**62, vcd=Path("/dev/null"))


@needs_compiler
def test_engines_agree_on_a_query() -> None:
    """Q4: windows, a multiplexer, arithmetic, and memories of the order of windows."""
    circuit = compile_query("Q4")
    fed = {"Trades": feed(circuit.inputs["Trades"], TRADES, pattern=HELD)}
    ready = {"WeightedUBSTrades": HELD[::-1]}
    here, there = (
        simulate(circuit.circuit(), fed, ready=ready, engine=engine)
        for engine in ("amaranth", "cxxrtl-quick")
    )
    assert here == there
    assert len(here.tuples("WeightedUBSTrades", circuit.outputs["WeightedUBSTrades"])) == 5


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Interrupt once, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_run_that_fails_leaves_the_waveforms_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "old.vcd").write_text("kept")
    (tmp_path / "shut").mkdir()
    for name in ("old", "new"):
        with pytest.raises(HandshakeError, match=r"^the circuit has no input stream 'else"):
            simulate(Union(SMALL, 3), {"elsewhere": feed(SMALL, [])}, vcd=tmp_path / f"{name}.vcd")
    with pytest.raises(InputError, match=r"^waveform '.*shut' cannot be written: Is a directory$"):
        simulate(Union(SMALL, 3), {}, vcd=tmp_path / "shut")
    assert (tmp_path / "old.vcd").read_text() == "kept"
    assert not (tmp_path / "new.vcd").exists()


def test_a_waveform_that_cannot_be_written_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^waveform '.*nowhere/w.vcd' cannot be written: No such file or"):
        simulate(Fifo(SMALL, 2), {}, engine="no such engine", vcd=tmp_path / "nowhere" / "w.vcd")


def test_a_simulation_can_be_run_again() -> None:
    made = Simulation(Fifo(SMALL, 2))
    runs = [made.run({"i": feed(SMALL, [(n, n)])}).tuples("o", SMALL) for n in range(3)]
    assert runs == [[(0, 0)], [(1, 1)], [(2, 2)]]


def test_what_simulations_refuse() -> None:
    with pytest.raises(UnsupportedError, match=r"^no simulator 'verilog'; choose one of amaranth, cxxrtl, "):
        simulate(Fifo(SMALL, 2), {}, engine="verilog")
    with pytest.raises(HandshakeError, match=r"^the circuit has no input stream 'x' \(it has: i\)$"):
        simulate(Fifo(SMALL, 2), {"x": Feed(())})
    with pytest.raises(
        HandshakeError, match=r"^the circuit was stopped after 5 cycles with beats left: {'i': 1}$"
    ):
        simulate(Fifo(SMALL, 1), {"i": Feed([Beat(0)] * 2)}, ready={"o": (False,)}, limit=5)


def test_verilog_has_each_component_once_and_names_its_fields() -> None:
    text = compile_query("Q4").verilog()
    modules = re.findall(r"^module (\S+?)\(", text, re.MULTILINE)
    assert len(modules) == len(set(modules))
    assert {"query", "equal", "select", "windows", "wsum", "sub_plan"} <= set(modules)
    assert len(re.findall(r"^  sub_plan ", text, re.MULTILINE)) == 5  # one module, five copies
    assert "Trades__payload.Price" in text


def test_verilog_can_be_read_back(tmp_path: Path) -> None:
    file = tmp_path / "fifo.v"
    file.write_text(to_verilog(Fifo(SMALL, 2), "fifo"))
    told = run_yosys("", (f"read_verilog {file}", "hierarchy -check -top fifo", "tee -o {output} stat"))
    assert "fifo" in told


def test_a_failure_of_yosys_is_told() -> None:
    with pytest.raises(HandshakeError, match=r"^Yosys failed: .*No such command: nonsense"):
        run_yosys("", ("nonsense",))


# Table 3.


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("query", ["Q1", "Q2", "Q4"])
def test_table_3(query: str, optimised: bool) -> None:
    found = measure(Case(query, optimised))
    assert found.declared == found.latency == PUBLISHED[query][optimised]
    assert found.issue_rate == 1.0


@pytest.mark.soak
@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("query", ["Q3", "Q5"])
def test_table_3_of_large_circuits(query: str, optimised: bool) -> None:
    found = measure(Case(query, optimised))
    assert found.declared == found.latency == PUBLISHED[query][optimised]
    assert found.issue_rate == 1.0
    assert query == "Q3" or found.worst == found.latency + 2 * 16


@pytest.mark.parametrize("query", PUBLISHED)
def test_declared_latencies_are_the_papers(query: str) -> None:
    (plain,) = compile_query(query, tuple(RULES)).latency.values()
    (best,) = compile_query(query).latency.values()
    assert (plain, best) == PUBLISHED[query]


def test_each_rule_can_be_left_out() -> None:
    cycles = {
        (query, name): next(iter(compile_query(query, (name,)).latency.values()))
        for query in PUBLISHED
        for name in RULES
    }
    assert cycles["Q1", "eliminate_registers"] == 3
    assert cycles["Q2", "eliminate_registers"] == 4  # parallel comparisons save one of five
    assert cycles["Q3", "multiplex_windows"] == 3
    assert cycles["Q4", "multiplex_windows"] == 3
    assert cycles["Q5", "multiplex_windows"] == 6
    with pytest.raises(UnsupportedError, match=r"^no rule 'unnest'; there are narrow_joins, unnest_"):
        optimise({}, ["unnest"])
