"""`handshake run --backend circuit`: files through the simulated circuit of a query."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.cli.preview import Preview, plain_table
from handshake.cli.query import RunRequest
from handshake.engines.circuit.host import QueryRun, run_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.local.live import comes_live
from handshake.engines.local.replay import replayed
from handshake.errors import InputError, UnsupportedError
from handshake.io import check_output, sink_for
from handshake.io.declared import BAD, BadRows
from handshake.plan.algebra import Plan

__all__ = ["run_query"]

CLOCK_MHZ = 100
"""The papers' clock."""
MANY_ROWS = 2000


def run_query(request: RunRequest) -> int:
    """Read the inputs, simulate, deliver the results."""
    plan = request.plan
    paths, outputs = request.input_paths(plan), request.output_paths(plan)
    _check(request, paths)
    if request.bad is not None:
        check_output(request.bad)
    bad = BadRows(request.strict, kept=request.bad is not None)
    tables, places = _read(plan, paths, bad)
    request = dataclasses.replace(request, simulator=_simulator(request, tables))
    began = time.perf_counter()
    done = run_plan(
        plan,
        tables,
        _bounds(request),
        without=request.without,
        engine=request.simulator,
        arrival=time.time_ns() // 1000,
        places=places,
        vcd=Path(request.vcd) if request.vcd else None,
    )
    seconds = time.perf_counter() - began
    _deliver(request, done, outputs, bad)
    _report(request, done, bad, seconds)
    return 0


def _check(request: RunRequest, paths: dict[str, str]) -> None:
    """Refuse inputs that have no end: a simulation needs all rows."""
    if comes_live(paths):
        raise UnsupportedError(
            f"--backend circuit simulates what has come, and '{next(iter(paths.values()))}' comes live; give "
            "a file, or use --backend local"
        )


def _bounds(request: RunRequest) -> Bounds:
    return Bounds(
        groups=request.groups,
        text=request.text,
        cores=request.cores,
        join=request.join,
        buffer=request.buffer,
        window_tuples=request.window_tuples,
        divider=request.divider,
    )


def _simulator(request: RunRequest, tables: dict[str, pa.Table]) -> str:
    """The compiled one where there are rows enough to make up for building it."""
    if request.simulator != "auto":
        return request.simulator
    rows = sum(table.num_rows for table in tables.values())
    return "amaranth" if rows < MANY_ROWS or shutil.which("g++") is None else "cxxrtl"


def _read(
    plan: Plan, paths: dict[str, str], bad: BadRows
) -> tuple[dict[str, pa.Table], dict[str, list[int]] | None]:
    """All rows of each input in the order in which they arrive, and their places among all arrivals."""
    batches: dict[str, list[pa.RecordBatch]] = {}
    places: dict[str, list[int]] = {}
    for piece in replayed(plan, paths, bad):
        for name, (batch, at) in piece.batches.items():
            batches.setdefault(name, []).append(batch)
            places.setdefault(name, []).extend([] if at is None else at.tolist())
    known = all(places.values())  # a single stream that comes live has no places
    tables = {name: pa.Table.from_batches(parts) for name, parts in batches.items()}
    return tables, places if known else None


def _deliver(request: RunRequest, done: QueryRun, outputs: dict[str, str], bad: BadRows) -> None:
    with contextlib.ExitStack() as stack:
        for name, table in done.results.items():
            if name in outputs:
                sink = stack.enter_context(sink_for(outputs[name], table.schema))
                for batch in table.to_batches():
                    sink.write(batch)
        if request.bad is not None:
            stack.enter_context(sink_for(request.bad, BAD)).write(bad.take())


def _report(request: RunRequest, done: QueryRun, bad: BadRows, seconds: float) -> None:
    out = request.summary_to
    if not request.outputs:
        for name, table in done.results.items():
            preview = Preview(table.schema)
            for batch in table.to_batches():
                preview.add(batch)
            print(name, file=out)
            for line in preview.lines():
                print(line, file=out)
    for line in plain_table(_facts(request, done, bad, seconds)):
        print(line, file=out)
    if request.metrics is not None:
        _write_metrics(request.metrics, done, bad, seconds)


def _facts(request: RunRequest, done: QueryRun, bad: BadRows, seconds: float) -> list[tuple[str, str]]:
    run = done.run
    facts = [(name, f"{len(taken) - 1:,} rows") for name, taken in run.accepted.items()]
    facts += [(name, f"{table.num_rows:,} results") for name, table in done.results.items()]
    words = {"late": "late", "no_time": "without a time", "unknown": "of no stream"}
    facts += [(word, f"{n:,} rows") for key, word in words.items() if (n := done.counters.get(key, 0))]
    if n := done.counters.get("overflow", 0):
        facts.append(
            ("overflow", f"{n:,} rows of groups beyond {request.groups} were dropped; give more --groups")
        )
    if n := done.counters.get("evicted", 0):
        facts.append(
            (
                "evicted",
                f"{n:,} rows had to leave their window before their time; results may be missing: give more "
                f"than {request.window_tuples} --window-tuples",
            )
        )
    if bad.count:
        facts.append(("bad", f"{bad.count:,} rows{'' if request.bad else '; --bad FILE keeps them'}"))
    facts.append(("circuit", f"{run.cycles:,} cycles, {run.cycles / CLOCK_MHZ:,.1f} µs at {CLOCK_MHZ} MHz"))
    facts.append(("simulated in", f"{seconds:.2f} s by {request.simulator}"))
    return facts


def _write_metrics(path: str, done: QueryRun, bad: BadRows, seconds: float) -> None:
    figures: dict[str, Any] = {
        "cycles": done.run.cycles,
        "results": {name: table.num_rows for name, table in done.results.items()},
        "latency": done.compiled.latency,
        **done.counters,
        "bad": bad.count,
        "seconds": seconds,
    }
    try:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"metrics file '{path}' cannot be written: {error.strerror}") from None
