"""`handshake bench circuit_synth`: clock and resources of the join circuit against the number of cores.

Figures 10 and 11 of the FPGA paper and figure 18 of handshake join. Each (design, cores, seed) is
stored in its own file when it is done, so an interrupted run can be continued.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.errors import HandshakeError, InputError, UnsupportedError, suggest
from handshake_bench import circuit_published as published
from handshake_bench import report
from handshake_bench.circuit_workload import SEGMENT, papers_condition
from handshake_bench.lockstep import GlobalDesign, join_of, original
from handshake_bench.options import parse_numbers
from handshake_bench.report import Data, Report
from handshake_synth.ecp5.nextpnr import CLOSURE, OPTIONS, ROUNDS, ROUTERS, place_and_route, went_on
from handshake_synth.yosys_netlist import FAMILIES, Pinned, netlist, resources

__all__ = ["DESIGNS", "run", "show"]

BLOCK = 256
SIZES = (64, 128, 512, 1024)
"""Other numbers of tuples in block RAM, for two cores; resources only."""

DESIGNS: dict[str, tuple[str, Callable[[int], Design]]] = {
    "local": (
        "local admission, pipelined comparison, windows in distributed RAM",
        lambda n: Design(n, SEGMENT * n, SEGMENT * n),
    ),
    "global": (
        "the papers' admission, otherwise the same",
        lambda n: GlobalDesign(n, SEGMENT * n, SEGMENT * n),
    ),
    "original": (
        "the papers' circuit: shift registers, plain comparison, all cores suspended together",
        lambda n: original(n, SEGMENT * n, SEGMENT * n),
    ),
    "block": (
        f"local, {BLOCK} tuples per core and stream in block RAM", lambda n: Design(n, BLOCK * n, BLOCK * n)
    ),
}  # fmt: skip
_MOST_CORES = {"original": 32, "block": 32}
"""Beyond these the ECP5-85F has too few registers, or block RAMs, to place them."""
FOLDER = "circuit_synth"


def run(
    cores: str | None = None, designs: str = "local,global,original,block", seeds: str = "1,2,3",
    jobs: int = 1, minutes: float | None = None, within: float | None = None, router: str = ROUTERS[0],
    quick: bool = False, out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Synthesise, place and route what is missing; then show tables and pictures of all results.

    A task is skipped and reported if it fails, if it takes longer than `minutes`, or if all tasks together
    exceed `within` minutes. Rounds that shorten late paths stop at that time, and the best clock counts.
    """
    if source is None:
        counts = [2] if quick else parse_numbers(cores, "2,4,8") if cores else list(published.CORES)
        chosen = _chosen("local" if quick else designs)
        if router not in ROUTERS:
            raise InputError(f"no router '{router}'; choose from {', '.join(ROUTERS)}")
        folder = Path(out or ".") / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        tasks = _tasks(folder, counts, chosen, [1] if quick else parse_numbers(seeds, "1,2,3"), router)
        _work(tasks, chosen, jobs, _Time.of(minutes, within))
        data = _gather(folder, quick)
    else:
        data = report.load(source, "circuit_synth")
    report.publish("circuit_synth", data, show, _draw, out)


def _chosen(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DESIGNS:
            raise InputError(f"no design '{name}'; choose from {', '.join(DESIGNS)}{suggest(name, DESIGNS)}")
    return names


@dataclass(frozen=True)
class _Time:
    """Seconds that a task may take, and when all of them must have ended."""

    each: float = math.inf
    end: float = math.inf

    @classmethod
    def of(cls, minutes: float | None, within: float | None) -> _Time:
        """Create limits from minutes per task and minutes in total."""
        return cls(60 * (minutes or math.inf), time.monotonic() + 60 * (within or math.inf))

    def left(self) -> float | None:
        """Return the seconds for a task that begins now; None means no limit."""
        seconds = min(self.each, self.end - time.monotonic())
        return None if seconds == math.inf else seconds


_ALWAYS = _Time()


@dataclass(frozen=True)
class _Task:
    """One measurement: resources (seed None), or the clock for one seed."""

    folder: Path
    design: str
    cores: int
    seed: int | None
    router: str = ROUTERS[0]

    @property
    def path(self) -> Path:
        tail = "" if self.seed is None else f"_{self.seed}"
        return self.folder / f"{self.design}_{self.cores}{tail}.json"

    def circuit(self) -> HandshakeJoin:
        return _circuit(self.design, self.cores)

    @property
    def digest(self) -> str:
        """A hash that is equal for the same circuit and the same tools."""
        return _digest(self.design, self.cores, "" if self.seed is None else self.router)

    @property
    def known(self) -> bool:
        """True if an earlier run has stored this result for the same circuit."""
        return self.path.exists() and json.loads(self.path.read_text())["digest"] == self.digest

    def try_out(self, allowed: _Time) -> None:
        """Run the task; report a failure instead of stopping the other tasks."""
        left = allowed.left()
        if left is not None and left <= 0:
            report.progress(f"{self.path.name} not begun: no time left")
            return
        try:
            self.find_out(allowed)
        except subprocess.TimeoutExpired as late:
            report.progress(f"{self.path.name} not done in {late.timeout / 60:.2g} minutes")
        except UnsupportedError:  # a package is missing: all other tasks would fail, too
            raise
        except HandshakeError as error:
            report.progress(f"{self.path.name}: {error}")

    def find_out(self, allowed: _Time = _ALWAYS) -> None:
        """Run the task and store its result."""
        figures = self._resources(allowed) if self.seed is None else self._clock(self.seed, allowed)
        kept = {
            "design": self.design, "cores": self.cores, "seed": self.seed, "digest": self.digest,
            "router": self.router, **figures
        }  # fmt: skip
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n")
        partial.replace(self.path)
        clock = f": {figures['fmax']:.1f} MHz" if "fmax" in figures else ""
        report.progress(f"{self.path.name} done{clock}")

    def _resources(self, allowed: _Time) -> dict[str, Any]:
        circuit = self.circuit()
        return {
            "resources": {name: resources(circuit, name, timeout=allowed.left()) for name in FAMILIES}
        }  # fmt: skip

    def _clock(self, seed: int, allowed: _Time) -> dict[str, Any]:
        design, began = self._netlist(allowed), time.monotonic()
        found = place_and_route(
            design, seed, router=self.router, rounds=_rounds(self.design), timeout=allowed.left()
        )
        best = max(found, key=lambda each: each.clock)
        return {
            "fmax": best.clock,
            "used": best.used,
            "path": best.path,
            "rounds": [round(each.clock, 1) for each in found],
            "seconds": round(time.monotonic() - began),
        }

    def _netlist(self, allowed: _Time) -> str:
        """Return the netlist, which seeds and runs share through a file in the temporary folder."""
        digest = _digest(self.design, self.cores, "any router")
        kept = _netlists() / f"{self.design}_{self.cores}_{digest}.json"
        with _lock(self.design, self.cores):
            if not kept.exists():
                partial = kept.with_suffix(".partial")
                partial.write_text(netlist(self.circuit(), hops=_hops(self.cores), timeout=allowed.left()))
                partial.replace(kept)
            return kept.read_text()


def _circuit(name: str, cores: int) -> HandshakeJoin:
    """Build a design by its name; `block512` is `block` with 512 tuples."""
    size = name.removeprefix("block")
    window = int(size) * cores if size.isdigit() else 0
    design = Design(cores, window, window) if window else DESIGNS[name][1](cores)
    return join_of(papers_condition(), design)


def _rounds(design: str) -> int:
    """Return the number of rounds that shorten late paths; only the default design has any."""
    return ROUNDS if design == "local" else 0


def _hops(cores: int) -> int:
    """Return the extra registers at the ports: from 64 cores on, the ports lie at both ends of the chip."""
    return 2 if cores > 32 else 0


def _netlists() -> Path:
    folder = Path(tempfile.gettempdir()) / f"handshake-netlists-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@lru_cache(maxsize=64)
def _lock(design: str, cores: int) -> Lock:
    return Lock()


@lru_cache(maxsize=64)
def _digest(design: str, cores: int, router: str) -> str:
    circuit = _circuit(design, cores)
    text = to_rtlil(Pinned(circuit, _hops(cores)) if router else circuit)
    closure = CLOSURE if router and _rounds(design) else ""
    return hashlib.sha256(f"{text}{FAMILIES}{OPTIONS}{router}{closure}".encode()).hexdigest()[:16]


def _tasks(
    folder: Path, cores: Sequence[int], designs: Sequence[str], seeds: Sequence[int], router: str
) -> list[_Task]:
    """List the tasks, small circuits first, so that a short run has the left part of every curve."""
    tasks = [
        _Task(folder, design, count, seed, router)
        for count in cores
        for design in designs
        for seed in (None, *(seeds if count <= _MOST_CORES.get(design, count) else ()))
    ]
    if "block" in designs and 2 in cores:
        tasks += [_Task(folder, f"block{size}", 2, None) for size in SIZES]
    return tasks


def _work(tasks: Sequence[_Task], designs: Sequence[str], jobs: int, allowed: _Time) -> None:
    """Run several tasks at once; big circuits first, so that none runs alone at the end."""
    waiting = [task for task in tasks if not task.known]
    if jobs > 1:
        order = {name: place for place, name in enumerate(designs)}
        waiting.sort(
            key=lambda task: (order[task.design.rstrip("0123456789")], task.seed is None, -task.cores)
        )
    report.progress(f"{len(waiting)} of {len(tasks)} tasks to run")
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(task.try_out, allowed) for task in waiting]:
            done.result()


def _gather(folder: Path, quick: bool) -> Data:
    kept = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = [each for each in kept if _is_current(folder, each)]
    if len(found) < len(kept):
        report.progress(f"{len(kept) - len(found)} files of other circuits or options are left out")
    rows = [
        _row(design, count, found) for design, count in sorted({(f["design"], f["cores"]) for f in found})
    ]
    return {
        "benchmark": "circuit_synth",
        "machine": "ECP5-85F by Yosys and nextpnr",
        "quick": quick,
        "rows": rows,
    }


def _is_current(folder: Path, kept: Data) -> bool:
    task = _Task(folder, kept["design"], kept["cores"], kept["seed"], kept.get("router", ROUTERS[0]))
    return bool(task.digest == kept["digest"])


def _row(design: str, cores: int, found: Sequence[Data]) -> Data:
    mine = [f for f in found if (f["design"], f["cores"]) == (design, cores)]
    clocks = sorted(f["fmax"] for f in mine if f["seed"] is not None)
    placed = [f["rounds"][0] for f in mine if f.get("rounds")]
    cut = sum(went_on(f["rounds"], _rounds(design)) for f in mine if f.get("rounds"))
    used: Data = next((f["used"] for f in mine if f["seed"] is not None), {})
    counts: Data = next((f["resources"] for f in mine if f["seed"] is None), {})
    return {
        "design": design, "cores": cores, "clocks": clocks, "placed": placed, "cut": cut,
        "used": used, "resources": counts,
    }  # fmt: skip


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """Return k of clock ~ cores ** -k, by least squares of the logarithms.

    >>> round(exponent([(2, 100.0), (8, 50.0)]), 3)
    0.5
    """
    xs, ys = ([math.log(value) for value in each] for each in zip(*points, strict=True))
    return -statistics.linear_regression(xs, ys).slope


def _medians(data: Data, design: str) -> list[tuple[int, float]]:
    rows = sorted((r for r in data["rows"] if r["design"] == design), key=lambda row: int(row["cores"]))
    return [(r["cores"], statistics.median(r["clocks"])) for r in rows if r["clocks"]]


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    heads = (
        "design", "cores", "clock (MHz)", "spread", "seeds", "to 2 cores", "as placed", "LUT4", "registers",
        "RAM16", "block RAM",
    )  # fmt: skip
    page.table(
        "Clock and resources, ECP5-85F (figures 10, 11; handshake figure 18)", heads, _clock_rows(data)
    )
    page.table(
        "Resources, Virtex-6 (figure 11; no clock: no open place and route)", _XILINX, _xilinx_rows(data)
    )
    if all(
        r["resources"]["xilinx"] == r["resources"].get("xilinx7")
        for r in _design_rows(data)
        if r["resources"]
    ):
        page.say("7-series: the same numbers of cells in every row.")
    page.table("Block RAM by tuples per core and stream, two cores", _RAM, _ram_rows(data))
    for name, (text, _) in DESIGNS.items():
        for line in _trend(data, name, text):
            page.say(line)
    page.say("As placed: before the rounds that shorten late paths, which only the default design has.")
    for row in _design_rows(data):
        if row.get("cut"):
            page.say(f"{row['design']}, {row['cores']} cores: {row['cut']} seeds reached the time limit.")
    page.beside(list(_beside(data)))
    page.say("Published: on Virtex-6; its slices hold four look-up tables each.")
    page.result(**_figures(data))


def _beside(data: Data) -> Iterator[tuple[str, str, str]]:
    clocks = [clock for _, clock in _medians(data, "local")]
    shares = {(row[0], row[1]): row[-1] for row in _xilinx_rows(data)}
    low, high = published.TEUBNER_CLOCK
    here = f"{min(clocks):.0f} to {max(clocks):.0f} (ECP5)" if clocks else "-"
    yield "clock at 2 to 64 cores, MHz: local", here, f"nearly {published.OGE_CLOCK:g}"
    yield "clock at up to 200 cores, MHz", "-", f"{low:g} to {high:g}"
    share = f"nearly {published.OGE_SLICES_AT_64:.0%} of slices"
    yield "XC6VLX240T that 64 cores take: local", shares.get(("local", "64"), "-"), share


def _trend(data: Data, name: str, text: str) -> Iterator[str]:
    medians = _medians(data, name)
    if len(medians) > 1:
        (few, first), (many, last) = medians[0], medians[-1]
        yield f"{name}: {text}."
        yield (
            f"  From {few} to {many} cores the median clock goes from {first:.1f} to {last:.1f} MHz "
            f"({last / first - 1:+.1%}); clock ~ cores^-k with k = {exponent(medians):.3f}."
        )


def _figures(data: Data) -> dict[str, float | str]:
    kept = {name: _medians(data, name) for name in DESIGNS}
    return {f"{name}_{m[-1][0]}": m[-1][1] for name, m in kept.items() if m}


def _design_rows(data: Data) -> list[Data]:
    """Return the rows of the designs, sorted by design and cores."""
    mine = [row for row in data["rows"] if row["design"] in DESIGNS]
    return sorted(mine, key=lambda row: (list(DESIGNS).index(row["design"]), row["cores"]))


def _clock_rows(data: Data) -> Iterator[tuple[str, ...]]:
    for row in _design_rows(data):
        clocks, cells = row["clocks"], row["resources"].get("ecp5", {})
        first = dict(_medians(data, row["design"])).get(2)
        middle = f"{statistics.median(clocks):.1f}" if clocks else "not placed"
        spread = f"{clocks[0]:.1f} to {clocks[-1]:.1f}" if clocks else ""
        change = f"{statistics.median(clocks) / first - 1:+.1%}" if clocks and first else ""
        placed = f"{statistics.median(row['placed']):.1f}" if row.get("placed") else ""
        kinds = ("luts", "registers", "distributed_ram", "block_ram")
        yield (
            row["design"], str(row["cores"]), middle, spread, str(len(clocks)), change, placed,
            *(f"{cells[k]:,}" if k in cells else "-" for k in kinds),
        )  # fmt: skip


VIRTEX6 = {"luts": 150_720, "registers": 301_440, "slices": 37_680}
"""Resources of the papers' XC6VLX240T (table I)."""
_XILINX = (
    "design",
    "cores",
    "LUTs",
    "as RAM",
    "registers",
    "block RAM",
    "of LUTs",
    "of registers",
    "slices >=",
)
_RAM = ("tuples", "bits per core", "ECP5 (18 kbit)", "Virtex-6 (36 kbit)", "7-series (36 kbit)")


def _xilinx_rows(data: Data) -> Iterator[tuple[str, ...]]:
    for row in _design_rows(data):
        cells = row["resources"].get("xilinx")
        if cells:
            whole = tables(cells)
            shares = whole / VIRTEX6["luts"], cells.get("registers", 0) / VIRTEX6["registers"]
            kinds = ("registers", "block_ram")
            yield (
                row["design"], str(row["cores"]), f"{whole:,}", f"{whole - cells.get('luts', 0):,}",
                *(f"{cells.get(kind, 0):,}" for kind in kinds), *(f"{share:.1%}" for share in shares),
                f"{max(shares):.1%}",
            )  # fmt: skip


def tables(cells: Data) -> int:
    """Return the look-up tables of a Xilinx chip, including those used as memory or shift register.

    >>> tables({"luts": 10, "distributed_ram": 2, "shift_registers": 3})
    21
    """
    return int(cells.get("luts", 0) + 4 * cells.get("distributed_ram", 0) + cells.get("shift_registers", 0))


def _ram_rows(data: Data) -> Iterator[tuple[str, ...]]:
    found = {row["design"]: row["resources"] for row in data["rows"] if row["cores"] == 2}
    bits = sum(row.bits + 1 for row in (papers_condition().left, papers_condition().right))
    for size in sorted((*SIZES, BLOCK)):
        cells = found.get("block" if size == BLOCK else f"block{size}")
        if cells:
            counts = (cells[family].get("block_ram", 0) for family in ("ecp5", "xilinx", "xilinx7"))
            yield (str(size), f"{bits * size:,}", *(f"{count:g}" for count in counts))


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots  # matplotlib is needed for pictures alone

    with plots.figure(folder / "circuit_synth.svg", 3, "Handshake join in hardware") as (_, axes):
        left, *others = axes
        for colour, name in zip(plots.SERIES, DESIGNS, strict=False):
            _draw_clock(left, data, name, colour)
            for view, value in zip(others, (tables, lambda cells: cells.get("registers", 0)), strict=True):
                _draw_cells(view, data, name, colour, value)
        left.axhline(published.OGE_CLOCK, color=plots.COLOURS["published"], linestyle=":", label="FPGA paper")
        left.axhspan(*published.TEUBNER_CLOCK, color="#bbbbbb", alpha=0.4, label="handshake join, figure 18")
        left.set(
            title="Clock, median and range of seeds (ECP5-85F)",
            xlabel="join cores",
            ylabel="MHz",
            ylim=(0, None),
        )
        others[0].set(title="Look-up tables (Virtex-6)", xlabel="join cores", ylabel="LUTs", yscale="log")
        others[1].set(title="Registers (Virtex-6)", xlabel="join cores", ylabel="registers", yscale="log")
        for view in axes:
            view.set_xscale("log", base=2)
            plots.plain_logarithmic(view.xaxis)
            if view.get_legend_handles_labels()[0]:
                view.legend(fontsize=8, ncols=2 if view is left else 1)
        for view in others:
            plots.plain_logarithmic(view.yaxis)
        plots.machine(left, data)


def _draw_clock(axes: Any, data: Data, name: str, colour: str) -> None:
    rows = sorted(
        (r for r in data["rows"] if r["design"] == name and r["clocks"]), key=lambda r: int(r["cores"])
    )
    if rows:
        xs = [r["cores"] for r in rows]
        middle = [statistics.median(r["clocks"]) for r in rows]
        below = [m - r["clocks"][0] for m, r in zip(middle, rows, strict=True)]
        above = [r["clocks"][-1] - m for m, r in zip(middle, rows, strict=True)]
        axes.errorbar(xs, middle, [below, above], marker="o", capsize=3, color=colour, label=name)


def _draw_cells(axes: Any, data: Data, name: str, colour: str, value: Callable[[Data], int]) -> None:
    rows = sorted((r for r in data["rows"] if r["design"] == name), key=lambda r: int(r["cores"]))
    points = [(r["cores"], value(r["resources"]["xilinx"])) for r in rows if r["resources"]]
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
