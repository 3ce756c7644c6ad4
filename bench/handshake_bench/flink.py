"""`handshake bench flink`: Flink's interval join in a local mini-cluster, on the same streams.

Flink joins streams by an equality and an interval of time. `equi` is such a join, compared with the hash
method. `any` is the papers' band join: in Flink, all rows get one constant key and pairs are filtered. Both
engines make the rows themselves, push them as fast as they are taken, and sum up the positions of all pairs.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, UnsupportedError
from handshake.joins.join import Join
from handshake_bench import report
from handshake_bench.maven import UnreachableError, fetch, java
from handshake_bench.pairs import Pairs
from handshake_bench.report import Data, Report, progress

__all__ = ["PACKAGE", "run"]

PACKAGE = "org.apache.flink:flink-clients:2.3.0"
_ON = {
    "equi": "l.k = r.k",
    "any": "l.x BETWEEN r.x - 10 AND r.x + 10 AND l.y BETWEEN r.y - 10 AND r.y + 10",
}
_SCHEMA = pa.schema(
    [("n", pa.int64()), ("t", pa.timestamp("ms")), ("k", pa.int32()), ("x", pa.int32()), ("y", pa.int32())]
)
_PAIR = pa.schema([("n", pa.int64()), ("n_right", pa.int64())])
_VALUES = 10_000
_BATCH = 0.1
"""Seconds of stream in a batch of ours; Flink flushes its buffers when they are full or this old."""
_WARM = 20_000
_AIM = 0.95
"""The load of Flink at the rate of `any`."""
_JVM = ("java.base/java.util", "java.base/java.lang")


@dataclass(frozen=True)
class _Work:
    """One measurement: both streams at `rate` rows/s, counted for `seconds` after windows are full."""

    kind: str
    rate: int
    keys: int
    window: int
    seconds: int
    cores: int

    @property
    def filled(self) -> int:
        """Rows of each stream before the measurement."""
        return self.rate * self.window

    @property
    def rows(self) -> int:
        """Rows of each stream."""
        return self.rate * (self.window + self.seconds)


def run(
    rate: int = 5_000, keys: int = 50_000, window: int = 60, any_rate: int = 1_000, any_window: int = 20,
    seconds: int = 30, cores: int = 2, quick: bool = False, out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure both joins by Flink and by this package.

    Args:
        rate: The rows per second of each stream of `equi`, in the time of the stream.
        keys: The different keys of `equi`.
        window: The window of `equi` in seconds.
        any_rate: The first rate of `any`; the second one is what Flink should sustain.
        any_window: The window of `any` in seconds.
        seconds: The seconds of stream that are measured with full windows; for `any` a third of them.
        cores: The cores of each engine.
        quick: Take low rates, short windows, and one rate of `any`.
        out: The folder for the table and the figures.
        source: The figures of an earlier run, instead of measuring.
    """
    equi = _Work("equi", rate, keys, window, seconds, cores)
    hardest = _Work("any", any_rate, 1, any_window, max(1, seconds // 3), cores)
    if quick:
        equi, hardest = _Work("equi", 500, 100, 2, 2, cores), _Work("any", 500, 1, 2, 2, cores)
    if source:
        data = report.load(source, "flink")
    else:
        try:
            program = _compile(fetch(PACKAGE))
        except UnreachableError as error:
            print(f"Flink is not measured: {error}")
            report.result(flink="skipped")
            return
        data = _measure(program, equi, hardest if quick else _settle(program, hardest))
    report.publish("flink", data, _show, _draw, out)


def _measure(program: list[str], equi: _Work, hardest: _Work) -> Data:
    runs = [_flink(program, equi), _handshake(equi, "hash")]
    runs += [_flink(program, hardest), *(_handshake(hardest, method) for method in ("scan", "band"))]
    _check(runs)
    return {"benchmark": "flink", "machine": report.machine(), "package": PACKAGE, "runs": runs}


def _compile(jars: Path) -> list[str]:
    """Compile the Java program; return the command that runs it."""
    compiler, classes = java("javac"), jars.parent / "flink-classes"
    if not Path(compiler).exists():
        raise UnsupportedError(
            f"Flink's job needs a Java compiler, and there is no '{compiler}'; install a JDK"
        )
    with as_file(files("handshake_bench") / "FlinkJoin.java") as program:
        subprocess.run([compiler, "-cp", f"{jars}/*", "-d", str(classes), str(program)], check=True)
    opened = [f"--add-opens={module}=ALL-UNNAMED" for module in _JVM]
    return [java(), "-Xmx3g", *opened, "-cp", f"{jars}/*{os.pathsep}{classes}", "FlinkJoin"]


def _flink(program: list[str], work: _Work) -> Data:
    numbers = (work.rows, work.rate, work.keys, work.window * 1000, work.filled, work.cores)
    command = [*program, work.kind, *(str(number) for number in numbers)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise HandshakeError(f"Flink's job failed with status {done.returncode}: {done.stderr[-2000:]}")
    return _summary("Flink", work, json.loads(done.stdout.splitlines()[-1]))


def _settle(program: list[str], work: _Work) -> _Work:
    """Return the work at the rate that Flink should sustain; it grows with the square of the rate."""
    load = _flink(program, work)["load"]
    return replace(work, rate=max(10, int(round(work.rate * math.sqrt(_AIM / load), -1))))


def _handshake(work: _Work, method: str) -> Data:
    _join(_Work(work.kind, work.rate, work.keys, work.window, 1, work.cores), method, _WARM)
    return _summary(f"handshake, {method}", work, _join(work, method, work.rows))


def _join(work: _Work, method: str, rows: int) -> dict[str, Any]:
    """Join the streams; return the pairs, and the times after the windows were full."""
    step, found, began = max(1, round(work.rate * _BATCH)), Pairs(), (0.0, 0.0)
    join = Join(
        left=_SCHEMA, right=_SCHEMA, on=_ON[work.kind], window=f"{work.window} seconds", time="t",
        method=method, cores=work.cores,
    )  # fmt: skip
    with join:
        for start in range(0, rows, step):
            if start <= work.filled < start + step:
                began = time.perf_counter(), time.process_time()
            for side, push in enumerate((join.push_left, join.push_right)):
                found += _pairs(push(_rows(work, side, start, min(step, rows - start))))
        found += _pairs(join.finish())
    times = {"wall": time.perf_counter() - began[0], "processor": time.process_time() - began[1]}
    return {**asdict(found), **times}


def _pairs(batches: list[pa.RecordBatch]) -> Pairs:
    table = pa.Table.from_batches(batches, schema=None if batches else _PAIR)
    return Pairs.of(*(table.column(name).to_numpy() for name in _PAIR.names))


def _rows(work: _Work, side: int, start: int, rows: int) -> pa.RecordBatch:
    """Make the rows that FlinkJoin.java makes; rows of both streams have indexes in turn."""
    n = np.arange(start, start + rows)
    columns = [n, n * 1000 // work.rate]
    index = (2 * n + side).astype(np.uint64)
    limits = (work.keys, _VALUES, _VALUES)
    columns += [_value(index, column, limit) for column, limit in enumerate(limits)]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


def _value(index: np.ndarray[Any, Any], column: int, limit: int) -> np.ndarray[Any, Any]:
    """Mix an index to a whole number from 0 to below a limit: splitmix64."""
    z = (index * np.uint64(3) + np.uint64(column)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (((z ^ (z >> np.uint64(31))) >> np.uint64(33)) % np.uint64(limit)).astype(np.int32)


def _summary(engine: str, work: _Work, seen: dict[str, Any]) -> Data:
    load = seen["processor"] / work.seconds
    one = {"engine": engine, **asdict(work), **seen, "load": load}
    progress(f"{engine}, {work.kind}, {work.rate:,} rows/s per stream: load {load:.2f}")
    return one


def _check(runs: list[Data]) -> None:
    """Compare all pairs that the engines found."""
    for kind in _ON:
        found = [
            (one["engine"], Pairs(*(one[field.name] for field in fields(Pairs))))
            for one in runs
            if one["kind"] == kind
        ]
        for engine, pairs in found[1:]:
            if pairs != found[0][1]:
                raise AssertionError(f"{kind}: {engine} found {pairs}, {found[0][0]} {found[0][1]}")


def _show(page: Report, data: Data) -> None:
    rows = [
        (
            f"{one['kind']}, {one['engine']}", f"{one['rate']:,}", f"{one['window']}",
            f"{one['load']:.3f}", f"{one['wall'] / one['seconds']:.3f}", f"{_highest(one):,.0f}",
            f"{one['count']:,}",
        )
        for one in data["runs"]
    ]  # fmt: skip
    heads = ("join, engine", "rate", "window s", "processor s per s", "wall s per s", "highest", "pairs")
    page.table(f"Interval joins of two streams, cores: {data['runs'][0]['cores']}; {PACKAGE}", heads, rows)
    page.say("equi: l.k = r.k; any: two band conditions, in Flink by a constant key and a filter.")
    page.say(
        "Rates are rows/s of each stream; highest has one second of processor time per second. The work of "
        "equi grows with the rate, if the windows keep their rows; that of any with its square. Flink keeps "
        "state on the heap, without checkpoints. All engines found the same pairs."
    )
    flink = {one["kind"]: one for one in data["runs"] if one["engine"] == "Flink"}
    figures: dict[str, float | str] = {f"{kind}_flink": round(_highest(one)) for kind, one in flink.items()}
    for one in data["runs"]:
        if one["engine"] != "Flink":
            method = one["engine"].split()[-1]
            figures[f"{one['kind']}_{method}_vs_flink"] = flink[one["kind"]]["load"] / one["load"]
    page.result(**figures)


def _highest(one: Data) -> float:
    """Return the rate of each stream at which the load is 1."""
    rate = float(one["rate"])
    return rate / one["load"] if one["kind"] == "equi" else rate / math.sqrt(one["load"])


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table says it all."""
