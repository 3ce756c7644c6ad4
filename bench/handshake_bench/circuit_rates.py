"""`handshake bench circuit_rates`: throughput of the join circuit against the match rate.

Figures 12 and 13 of the FPGA paper: 64 cores of 8 tuples at 100 MHz, buffers of 8 and 4 results, inputs of
512 and 1,024 tuples of each stream in random order, beside the nested-loops baseline. Results are checked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.join.arrivals import feed_of
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.simulation.simulate import Simulation
from handshake.errors import HandshakeError
from handshake_bench import report
from handshake_bench.circuit_workload import SEGMENT, keys, papers_condition
from handshake_bench.lockstep import LockstepJoin, original
from handshake_bench.nested_loops import NestedLoops
from handshake_bench.report import Data, Report

__all__ = ["run", "show"]

CLOCK = 100e6
RATES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)
CORES, QUICK_CORES = 64, 3
LENGTHS = (1, 2)
"""Lengths of the paper's inputs, in windows."""
CIRCUITS = ("local", "original", "nested loops")


def run(
    cores: int | None = None, length: int | None = None, quick: bool = False, out: str | None = None,
    source: str | None = None,
) -> None:  # fmt: skip
    """Simulate all circuits on inputs `length` windows long, or take an earlier run's figures."""
    if source:
        data = report.load(source, "circuit_rates")
    else:
        lengths = LENGTHS if length is None else (length,)
        data = _measure(cores or (QUICK_CORES if quick else CORES), lengths, quick, out)
    report.publish("circuit_rates", data, show, _draw, out)


def _measure(cores: int, lengths: Sequence[int], quick: bool, out: str | None) -> Data:
    rates, inputs = (0.1, 1.0) if quick else RATES, [SEGMENT * cores * length for length in lengths]
    rows = [row for name in CIRCUITS for row in _curve(name, cores, inputs, rates, quick, out)]
    return {
        "benchmark": "circuit_rates", "machine": "simulated cycle by cycle", "quick": quick, "cores": cores,
        "window": SEGMENT * cores, "rows": rows,
    }  # fmt: skip


def _curve(
    name: str, cores: int, inputs: Sequence[int], rates: Sequence[float], quick: bool, out: str | None
) -> list[Data]:
    """Return all points of a circuit; reuse the points that an earlier run has stored."""
    circuit, window = _circuit(name, cores), SEGMENT * cores
    digest = hashlib.sha256(to_rtlil(_circuit(name, cores)).encode()).hexdigest()[:16]
    kept = None if out is None else Path(out) / "circuit_rates" / f"{name.replace(' ', '_')}_{cores}.json"
    rows = _load_rows(kept, digest)
    known = {(row["inputs"], row["rate"]) for row in rows}
    wanted = [(n, rate) for n in inputs for rate in rates]
    points = [point for point in wanted if point not in known]
    report.progress(f"{name}: {len(points)} of {len(wanted)} points to simulate")
    simulation = Simulation(circuit, "amaranth" if quick else "cxxrtl") if points else None
    for count, rate in points:
        assert simulation is not None
        rows.append(_point(name, simulation, window, count, rate))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"digest": digest, "rows": rows}, indent=1) + "\n")
    mine = [row for row in rows if (row["inputs"], row["rate"]) in wanted]
    return sorted(mine, key=lambda row: (int(row["inputs"]), float(row["rate"])))


def _load_rows(path: Path | None, digest: str) -> list[Data]:
    if path is None or not path.exists():
        return []
    data = json.loads(path.read_text())
    return list(data["rows"]) if data["digest"] == digest else []


def _circuit(name: str, cores: int) -> Any:
    condition, window = papers_condition(), SEGMENT * cores
    match name:
        case "local":
            return HandshakeJoin(condition, Design(cores, window, window))
        case "original":
            return LockstepJoin(condition, original(cores, window, window))
    return NestedLoops(condition, window, window)


def _point(name: str, simulation: Simulation, window: int, inputs: int, rate: float) -> Data:
    """Run one input through one circuit; as in the paper, the stream does not end and nothing is flushed."""
    condition, pairs = papers_condition(), list(keys(inputs, rate))
    beats = [
        (condition.left.pack((a, i)), condition.right.pack((b, i))) for i, (a, b) in enumerate(pairs)
    ]  # fmt: skip
    began = time.process_time()
    run = simulation.run(
        {"arrivals": feed_of(condition, beats, end=False)}, stop_at_eos=False, quiet=4 * window + 300
    )
    took = time.process_time() - began
    found = run.tuples("results", condition.result)
    _check(name, found, pairs, window)
    last = max([run.accepted["arrivals"][-1], *(a.cycle for a in run.outputs["results"][-1:])]) + 1
    report.progress(f"{name}, {inputs} tuples, match rate {rate:g}: {last:,} cycles, {len(found):,} results")
    return {
        "circuit": name, "inputs": inputs, "rate": rate, "cycles": last, "results": len(found),
        "simulated": run.cycles, "seconds": took,
    }  # fmt: skip


def _check(name: str, found: Sequence[Any], pairs: Sequence[tuple[int, int]], window: int) -> None:
    """Check that each result matches, is inside its windows and comes once; nested loops must find all."""
    seen = Counter(found)
    wrong = [
        (key, i, j) for key, i, j in seen
        if not (pairs[i][0] == key == pairs[j][1] and (i - window <= j < i or i <= j < i + window))
    ]  # fmt: skip
    doubled = [result for result, times in seen.items() if times > 1]
    if wrong or doubled:
        raise HandshakeError(f"{name} gave wrong results {wrong[:3]} or duplicates {doubled[:3]}")
    if name == "nested loops":
        wanted = sum(
            a == pairs[j][1]
            for i, (a, _) in enumerate(pairs)
            for j in range(max(0, i - window), min(len(pairs), i + window))
        )
        if wanted != len(found):
            raise HandshakeError(f"nested loops gave {len(found)} results instead of {wanted}")


def _rate(row: Data, what: str) -> float:
    """Millions per second at 100 MHz: tuples of both streams, or results."""
    count = 2 * row["inputs"] if what == "input" else row["results"]
    return float(count / row["cycles"] * CLOCK / 1e6)


def _find(data: Data, circuit: str, inputs: int, rate: float) -> Data:
    found: Data = next(
        r for r in data["rows"] if (r["circuit"], r["inputs"], r["rate"]) == (circuit, inputs, rate)
    )
    return found


def _sizes(data: Data) -> list[int]:
    return sorted({row["inputs"] for row in data["rows"]})


def show(page: Report, data: Data) -> None:
    """Show the figures."""
    rates = sorted({r["rate"] for r in data["rows"]})
    for what, number in (("input", 13), ("output", 12)):
        for inputs in _sizes(data):
            gains = ("local / nested", "original / nested") if what == "input" else ()
            heads = ("match rate", *CIRCUITS, *gains)
            page.table(
                f"{what} in M tuples/s, {data['cores']} cores, 100 MHz, {inputs} tuples (figure {number})",
                heads, _rows(data, rates, inputs, what),
            )  # fmt: skip
    worst = min(_gain(data, "local", inputs, rate) for inputs in _sizes(data) for rate in rates)
    first = min(_gain(data, "original", inputs, rate) for inputs in _sizes(data) for rate in rates)
    page.say(f"Least input throughput over that of nested loops: local {worst:.3f}, original {first:.3f}.")
    page.say("Published: faster than nested loops if few tuples match, slower if many do, since every full")
    page.say(
        "buffer stops all cores. As in the paper, streams do not end, so pairs that would meet later are not"
    )
    page.say("counted, and handshake join has fewer results.")
    page.result(local_over_nested=worst, original_over_nested=first, **_measure_speed(data))


def _measure_speed(data: Data) -> dict[str, float]:
    """Return simulated cycles of the local circuit per second of processor time, if measured."""
    mine = [r for r in data["rows"] if r["circuit"] == "local" and r["seconds"]]
    cycles, seconds = (sum(r[name] for r in mine) for name in ("simulated", "seconds"))
    return {"cycles_per_second": float(cycles / seconds)} if seconds else {}


def _gain(data: Data, circuit: str, inputs: int, rate: float) -> float:
    mine, theirs = (_rate(_find(data, name, inputs, rate), "input") for name in (circuit, "nested loops"))
    return mine / theirs


def _rows(data: Data, rates: Sequence[float], inputs: int, what: str) -> Iterator[tuple[str, ...]]:
    for rate in rates:
        values = [f"{_rate(_find(data, name, inputs, rate), what):.3f}" for name in CIRCUITS]
        gains = [f"{_gain(data, name, inputs, rate):.2f}" for name in CIRCUITS[:2]]
        yield (f"{rate:.1%}", *values, *(gains if what == "input" else ()))


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots  # matplotlib is needed for pictures alone

    title = f"{data['cores']} join cores at 100 MHz, windows of {data['window']} tuples"
    with plots.figure(folder / "circuit_rates.svg", 2, title) as (_, axes):
        for view, what in zip(axes, ("input", "output"), strict=True):
            for colour, name in zip(plots.SERIES, CIRCUITS, strict=False):
                for inputs, style in zip(_sizes(data), cycle(("-", "--", ":")), strict=False):
                    rows = [r for r in data["rows"] if (r["circuit"], r["inputs"]) == (name, inputs)]
                    points = [(100 * r["rate"], _rate(r, what)) for r in rows]
                    view.plot(
                        *zip(*points, strict=True),
                        style,
                        color=colour,
                        marker="o",
                        label=f"{name}, {inputs} tuples",
                    )
            view.set(xlabel="match rate (%)", ylabel="M tuples/s", title=f"{what} throughput")
            view.set_yscale("symlog" if what == "output" else "log")
            plots.plain_logarithmic(view.yaxis)
            view.legend(fontsize=7)
        plots.machine(axes[0], data)
