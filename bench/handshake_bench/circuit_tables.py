"""`handshake bench circuit_tables`: the clock that the join circuit needs for 500,000 tuples/s, and its size.

Tables 1 and 2 of handshake join, for windows of 100 tuples: cycles per step are measured by simulation, and
the clock follows. Power is not given: no open tool estimates it for these chips.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from handshake.engines.circuit.join.arrivals import feed_of
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.simulation.simulate import simulate
from handshake_bench import circuit_published as published
from handshake_bench import report
from handshake_bench.circuit_workload import keys, papers_condition
from handshake_bench.report import Data, Report
from handshake_synth.yosys_netlist import resources

__all__ = ["run", "show"]

VIRTEX6_LUTS = 474_240
"""Look-up tables of an XC6VLX760T."""
STEPS = 12


def run(quick: bool = False, out: str | None = None, source: str | None = None) -> None:
    """Measure, or take an earlier run's figures."""
    data = report.load(source, "circuit_tables") if source else _measure(quick)
    report.publish("circuit_tables", data, show, _draw, out)


def _measure(quick: bool) -> Data:
    table = published.TABLE[:2] if quick else published.TABLE
    rows = [_row(each.cores, quick) for each in table]
    return {
        "benchmark": "circuit_tables",
        "machine": "simulated; Yosys for Virtex-6",
        "quick": quick,
        "rows": rows,
    }


def _row(cores: int, quick: bool) -> Data:
    report.progress(f"{cores} cores")
    design = Design(cores, published.WINDOW, published.WINDOW)
    circuit, condition = HandshakeJoin(papers_condition(), design), papers_condition()
    beats = [(condition.left.pack(pair), condition.right.pack(pair)) for pair in keys(STEPS, 0.0)]
    taken = simulate(
        circuit, {"arrivals": feed_of(condition, beats, end=False)}, stop_at_eos=False, quiet=400
    ).accepted["arrivals"]  # fmt: skip
    cycles = (taken[-1] - taken[3]) / (len(taken) - 4)
    cells = {} if quick else resources(HandshakeJoin(condition, design), "xilinx")
    return {"cores": cores, "cycles": cycles, "cells": cells}


def clock(row: Data) -> float:
    """Return the MHz for the papers' rate, counted over both streams: a step takes one tuple of each."""
    return float(row["cycles"] / 2 * published.RATE / 1e6)


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    heads = (
        "cores", "cycles per step", "clock (MHz)", "published", "LUTs", "of the chip", "published",
        "MHz x 1,000 LUTs", "mW, published",
    )  # fmt: skip
    title = "Clock for 500,000 tuples/s of both streams, windows of 100 tuples (tables 1 and 2)"
    page.table(title, heads, _rows(data))
    page.say("Power is not given: no open tool estimates it. Dynamic power follows clock times area.")
    page.say("The published power is weighted by area.")
    page.result(**{f"clock_{row['cores']}": clock(row) for row in data["rows"]})


def _rows(data: Data) -> Iterator[tuple[str, ...]]:
    stated = {row.cores: row for row in published.TABLE}
    for row in data["rows"]:
        luts = row["cells"].get("luts", 0)
        yield (
            str(row["cores"]), f"{row['cycles']:.1f}", f"{clock(row):.2f}",
            f"{stated[row['cores']].clock:g}",
            f"{luts:,}", f"{luts / VIRTEX6_LUTS:.2%}", f"{stated[row['cores']].luts:.2f}%",
            f"{clock(row) * luts / 1000:.1f}" if luts else "-", f"{stated[row['cores']].weighted:g}",
        )  # fmt: skip


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots  # matplotlib is needed for pictures alone

    with plots.figure(folder / "circuit_tables.svg", 1, "Clock for 500,000 tuples/s") as (_, (axes,)):
        points = [(row["cores"], clock(row)) for row in data["rows"]]
        axes.plot(*zip(*points, strict=True), marker="o", color=plots.SERIES[0], label="this circuit")
        for row in published.TABLE:
            plots.mark_published(axes, row.cores, row.clock, f"{row.clock:g} MHz")
        axes.set(xlabel="join cores", ylabel="MHz", xscale="log", yscale="log")
        plots.plain_logarithmic(axes.xaxis)
        plots.plain_logarithmic(axes.yaxis)
        axes.legend()
        plots.machine(axes, data)
