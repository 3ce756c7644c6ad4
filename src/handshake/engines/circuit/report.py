"""The report of a circuit: latency, issue rate, and the cells that synthesis makes of it."""

from __future__ import annotations

import json

from handshake.engines.circuit.adapters.attach import describe
from handshake.engines.circuit.compiler import Compiled
from handshake.engines.circuit.components.window_join import JoinSpec
from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.yosys import run_yosys

_SYNTHESIS = (
    "hierarchy -top query",
    "synth_xilinx -family xc6v -flatten -noiopad -noclkbuf -top query",
    "tee -q -o {output} stat -json",
)


def resources(compiled: Compiled) -> dict[str, int]:
    """Return registers, LUTs, block RAMs and multipliers on a Xilinx 6-series part, by Yosys."""
    statistics = json.loads(run_yosys(to_rtlil(compiled.top(), "query"), _SYNTHESIS))
    cells = statistics["design"]["num_cells_by_type"]
    return {
        "registers": _sum(cells, ("FD",)),
        "LUTs": _sum(cells, ("LUT", "SRL", "RAM32", "RAM64", "RAM128", "RAM256")),
        "block RAMs": _sum(cells, ("RAMB",)),
        "multipliers": _sum(cells, ("DSP",)),
    }


def _sum(cells: dict[str, int], starts: tuple[str, ...]) -> int:
    return sum(int(n) for name, n in cells.items() if name.startswith(starts))


def _latency(cycles: int, drifts: bool) -> str:
    return f"latency {'at least ' if drifts else ''}{cycles} cycle{'s' if cycles != 1 else ''}"


def _nested_cost(spec: JoinSpec) -> str:
    return (
        f"up to {spec.cycles:,} cycles for an arrival, and one for each further result of {spec.lanes} "
        "tuples: a window is scanned for each combination of those before it that the condition lets through"
    )


def report(compiled: Compiled, *, synthesis: bool = True) -> list[tuple[str, str]]:
    """Return facts about a circuit, for people."""
    facts = [(name, _latency(n, compiled.drifts(name))) for name, n in compiled.latency.items()]
    nested = compiled.nested
    facts.append(("issue rate", f"{'at least ' if nested else ''}{compiled.issue_rate:g} tuples per cycle"))
    facts += [(f"join of {', '.join(spec.names)}", _nested_cost(spec)) for spec in nested]
    for name, row in compiled.inputs.items():
        facts.append((name, f"{row.bits} wires in"))
    for name, row in compiled.outputs.items():
        facts.append((name, f"{row.bits} wires out"))
    if compiled.adapters.latency:
        facts += describe(compiled.with_adapters())
    if synthesis:
        facts += [(name, f"{n:,}") for name, n in resources(compiled).items()]
    return facts
