"""Benchmarks of the join circuit: that they run, say what they found, and go on where they were."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from circuits import SMALL
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.errors import InputError
from handshake_bench import circuit_published as published
from handshake_bench import circuit_rates, circuit_speed, circuit_synth, circuit_tables
from handshake_bench.circuit_workload import papers_condition
from handshake_synth.yosys_netlist import count_cells, netlist, resources


def test_rates_against_match_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    circuit_rates.run(quick=True, out=str(tmp_path))
    data = json.loads((tmp_path / "circuit_rates.json").read_text())
    kept = {(r["circuit"], r["inputs"], r["rate"]): r for r in data["rows"]}
    assert {name for name, _, _ in kept} == set(circuit_rates.CIRCUITS)
    # As published: many matches slow the original down; local admission is at least as fast as nested loops.
    slow, fast = (kept["original", 48, rate]["cycles"] for rate in (1.0, 0.1))
    assert slow > fast
    assert kept["local", 48, 1.0]["cycles"] < min(
        kept[n, 48, 1.0]["cycles"] for n in circuit_rates.CIRCUITS[1:]
    )
    assert "Least input throughput over that of nested loops" in (tmp_path / "circuit_rates.txt").read_text()
    assert (tmp_path / "circuit_rates.svg").exists() == (find_spec("matplotlib") is not None)
    capsys.readouterr()
    circuit_rates.run(quick=True, out=str(tmp_path))
    assert capsys.readouterr().err.count(": 0 of 4 points to simulate") == 3
    circuit_rates.run(length=1, quick=True, out=str(tmp_path))
    assert capsys.readouterr().err.count(": 0 of 2 points to simulate") == 3
    assert "48 tuples" not in (tmp_path / "circuit_rates.txt").read_text()
    circuit_rates.run(source=str(tmp_path / "circuit_rates.json"))
    assert capsys.readouterr().out.splitlines()[-1].startswith("RESULT local_over_nested=")


def test_speed_of_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    circuit_speed.run(cores=2, tuples=8, rounds=2, engine="amaranth")
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith("RESULT cycles_per_second=")
    told = dict(part.split("=") for part in shown[-1].split()[1:])
    rates = [float(told[f"match_rate_{rate:g}"]) for rate in circuit_speed.MATCH_RATES]
    assert float(told["cycles_per_second"]) == min(rates)
    assert float(told["best"]) >= max(rates)
    assert {"processor", "built_seconds"} <= told.keys()


def test_clock_for_a_given_rate(tmp_path: Path) -> None:
    circuit_tables.run(quick=True, out=str(tmp_path))
    rows = json.loads((tmp_path / "circuit_tables.json").read_text())["rows"]
    assert [row["cores"] for row in rows] == [1, 2]
    assert [row["cycles"] for row in rows] == [201, 101]
    assert [circuit_tables.clock(row) for row in rows] == [50.25, 25.25]
    assert [row.clock for row in published.TABLE[:2]] == [50, 25]


def _write_known(folder: Path, cores: int, clocks: dict[int, float]) -> None:
    """Write files as a run leaves them."""
    seedless, digest = (circuit_synth._Task(folder, "local", cores, seed).digest for seed in (None, 1))
    cells = {"luts": 100 * cores, "registers": 9}
    common = {"design": "local", "cores": cores, "digest": digest}
    both = {"ecp5": cells, "xilinx": cells}
    found: list[dict[str, Any]] = [{**common, "digest": seedless, "seed": None, "resources": both}]
    found += [{**common, "seed": seed, "fmax": fmax, "used": {}, "path": []} for seed, fmax in clocks.items()]
    for each in found:
        tail = "" if each["seed"] is None else f"_{each['seed']}"
        (folder / f"local_{cores}{tail}.json").write_text(json.dumps(each))


def test_synthesis_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / circuit_synth.FOLDER
    folder.mkdir()
    _write_known(folder, 2, {1: 100.0, 2: 120.0, 3: 110.0})
    _write_known(folder, 4, {1: 90.0, 2: 99.0, 3: 105.0})
    circuit_synth.run(cores="2,4", designs="local", seeds="1,2,3", out=str(tmp_path))
    said = capsys.readouterr()
    assert "0 of 8 tasks to run" in said.err
    assert "From 2 to 4 cores the median clock goes from 110.0 to 99.0 MHz (-10.0%)" in said.out
    assert said.out.splitlines()[-1] == "RESULT local_4=99"


def test_synthesis_ends_within_the_time_that_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circuit_synth.run(cores="2", designs="local", seeds="1", within=1e-9, out=str(tmp_path))
    said = capsys.readouterr().err
    assert "local_2.json not begun: no time left" in said
    assert "local_2_1.json not begun: no time left" in said
    assert not list((tmp_path / circuit_synth.FOLDER).iterdir())


def test_files_of_other_circuits_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / circuit_synth.FOLDER
    folder.mkdir()
    _write_known(folder, 2, {1: 100.0, 2: 120.0})
    stale = folder / "local_2_2.json"
    stale.write_text(stale.read_text().replace('"digest": "', '"digest": "x'))
    circuit_synth.run(cores="2", designs="local", seeds="1", out=str(tmp_path))
    said = capsys.readouterr()
    assert "1 files of other circuits or options are left out" in said.err
    assert said.out.splitlines()[-1] == "RESULT local_2=100"


def test_other_circuits_are_not_taken_for_known(tmp_path: Path) -> None:
    _write_known(tmp_path, 2, {1: 100.0})
    task = circuit_synth._Task(tmp_path, "local", 2, 1)
    assert task.known
    task.path.write_text(task.path.read_text().replace(task.digest, "0" * 16))
    assert not task.known


def test_what_synthesis_cannot_make(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no design 'locale'; choose from local, global, original, block;"):
        circuit_synth.run(designs="locale", out=str(tmp_path))
    with pytest.raises(InputError, match=r"^no router 'router3'; choose from router1, router2$"):
        circuit_synth.run(router="router3", out=str(tmp_path))
    with pytest.raises(InputError, match=r"^'2,x' is not a list of whole numbers from 1 up; write it"):
        circuit_synth.run(cores="2,x", out=str(tmp_path))


def test_cells_by_kind() -> None:
    cells = {"LUT6": 5, "LUT2": 2, "FDRE": 7, "RAM32M": 3, "RAMB36E1": 1, "SRL16E": 4, "CARRY4": 6, "BUFG": 1}
    assert count_cells(cells) == {
        "luts": 7, "registers": 7, "block_ram": 1, "distributed_ram": 3, "shift_registers": 4, "carries": 6
    }  # fmt: skip


def test_windows_go_into_block_ram_when_they_are_long() -> None:
    found = {
        tuples: resources(HandshakeJoin(papers_condition(), Design(1, tuples, tuples)), "ecp5")
        for tuples in (8, 128)
    }
    assert "block_ram" not in found[8]
    assert found[128]["block_ram"] > 0


def test_ports_that_lie_apart_have_registers_of_their_own() -> None:
    """Were registers of inputs merged with the chain that feeds them, the chain would span the chip."""
    hops = 2
    cells = json.loads(netlist(Fifo(SMALL, 2), hops=hops))["modules"]["top"]["cells"]
    registers = {
        cell["connections"]["Q"][0]: name for name, cell in cells.items() if cell["type"] == "TRELLIS_FF"
    }
    read = Counter(
        bit
        for cell in cells.values()
        for port, bits in cell["connections"].items()
        if cell["port_directions"][port] == "input"
        for bit in bits
    )
    inwards = SMALL.bits + 3  # payload, valid and eos of what comes in, ready of what goes out
    fed = [
        name
        for name in registers.values()
        if (source := cells[name]["connections"]["DI"][0]) in registers
        and read[source] == 1
        and "held" in registers[source]
    ]
    assert len(fed) == hops * inwards
