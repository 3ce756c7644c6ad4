"""`handshake bench scan`: comparisons per second and core of the compiled scan.

Compared with a naive loop compiled by Numba and, if there is a C compiler, hand-written intrinsics. All scan
the same tuples and must find the same pairs. Times are the best of interleaved rounds.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from handshake.joins.basic_window import BasicWindow
from handshake.joins.coding import Coding
from handshake.joins.core import JoinCore
from handshake.joins.join import prepare
from handshake.kernels.scan import STATE, scan_kernel
from handshake_bench import report
from handshake_bench.workload import BAND, GENERAL

__all__ = ["best_of", "kernel_of", "run", "tuples"]

OUTER, INNER = 4_000, 1 << 16
Array = np.ndarray[Any, Any]


def run(seconds: float = 10.0) -> None:
    """Measure, print a table, and give `scan_vs_c`, `general_vs_c` and `codes_vs_scan`."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled_c(Path(folder))
        figures: dict[str, float | str] = {}
        rows = []
        for name, predicate in (("scan", BAND), ("general", GENERAL)):
            rates, compile_s = _measure(name, predicate, library, seconds / 2)
            rows += _rows(name, rates)
            ratio = rates["compiled scan"] / rates["C intrinsics"] if library else "no_compiler"
            figures[f"{name}_vs_c"] = ratio
            figures[f"{name}_compile_s"] = compile_s
            if "scan with codes" in rates:
                figures["codes_vs_scan"] = rates["scan with codes"] / rates["compiled scan"]
        heads = ("predicate, how", "billion comparisons/s/core", "of C", "of naive")
        report.table(f"{OUTER:,} tuples against a window of {INNER:,}", heads, rows)
        print(f"scan: {BAND}\ngeneral: {GENERAL}")
        report.result(**figures)


def _rows(name: str, rates: dict[str, float]) -> list[tuple[str, ...]]:
    reference = rates.get("C intrinsics")
    return [
        (
            f"{name}, {how}",
            f"{rate / 1e9:.2f}",
            f"{rate / reference:.2f}" if reference else "-",
            f"{rate / rates['naive loop']:.1f}",
        )
        for how, rate in rates.items()
    ]


def _measure(name: str, predicate: str, library: Any, seconds: float) -> tuple[dict[str, float], float]:
    left, right = tuples(OUTER, 1, ("x", "y", "w")), tuples(INNER, 2, ("a", "b"))
    _, compiled, compile_s = kernel_of(predicate, left, right)
    runs: dict[str, Callable[[], int]] = {"compiled scan": compiled}
    if name == "scan":  # the other predicate has no two bands
        runs["scan with codes"] = kernel_of(predicate, left, right, coded=True)[1]
    if library is not None:
        runs["C intrinsics"] = _in_c(library, name, left, right)
    naive = _naive(name, left, right)
    found = {how: call() for how, call in {**runs, "naive loop": naive}.items()}
    if len(set(found.values())) != 1:
        raise AssertionError(f"the scans disagree: {found}")
    best = best_of(runs, seconds)
    best["naive loop"] = best_of({"naive loop": naive}, seconds / 10)["naive loop"]
    order = ("naive loop", "compiled scan", "scan with codes", "C intrinsics")
    return {how: OUTER * INNER / best[how] for how in order if how in best}, compile_s


def best_of(runs: dict[str, Callable[[], int]], seconds: float) -> dict[str, float]:
    """Return the least seconds per run; rounds are interleaved so that a busy machine slows all equally."""
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for how, call in runs.items():
            start = time.perf_counter()
            call()
            best[how] = min(best[how], time.perf_counter() - start)
    return best


def tuples(rows: int, seed: int, names: tuple[str, ...]) -> pa.RecordBatch:
    """Return one integer column and some float columns, uniform as in the papers' workload."""
    random = np.random.default_rng(seed)
    columns = [random.integers(1, 10_001, rows, dtype=np.int32)]
    columns += [random.uniform(1, 10_000, rows).astype(np.float32) for _ in names[1:]]
    if len(names) > 2:
        columns[2] = random.uniform(0, 10, rows).astype(np.float32)
    return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=list(names))


def kernel_of(
    predicate: str, left: pa.RecordBatch, right: pa.RecordBatch, *, coded: bool = False
) -> tuple[Any, Callable[[], int], float]:
    """Compile the scan of a predicate, with codes or without.

    Returns:
        The kernel, a call of it on these tuples, and the seconds of compilation.
    """
    start = time.perf_counter()
    spec = prepare(left.schema, right.schema, predicate, method="scan").spec
    outer, inner = BasicWindow(spec.sides[0], left), BasicWindow(spec.sides[1], right)
    headroom = outer.columns.headroom and inner.columns.headroom
    nullable = outer.columns.nullable or inner.columns.nullable
    bands = Coding(spec).bands[1] if coded else ()
    kernel = scan_kernel(JoinCore(spec).program(True, headroom, nullable), 1, bands)
    ends = np.empty(1, np.int64)
    out = np.empty(1 << 20, np.int32), np.empty(1 << 20, np.int32)

    def call() -> int:
        table = np.array([inner.scan_row])  # built here, so that the columns stay alive
        return int(kernel(outer.addresses(True), outer.rows, table, np.zeros(STATE, np.int64), ends, *out))

    call()
    return kernel, call, time.perf_counter() - start


def _naive(name: str, left: pa.RecordBatch, right: pa.RecordBatch) -> Callable[[], int]:
    arrays = [c.to_numpy() for c in (*left.columns, *right.columns)]
    loop = {"scan": _naive_band, "general": _naive_general}[name]
    return lambda: int(loop(*arrays))


@numba.njit(nogil=True)
def _naive_band(x, y, w, a, b):  # type: ignore[no-untyped-def]
    out = np.empty((1 << 20, 2), np.int32)
    count = 0
    for i in range(x.shape[0]):
        for j in range(a.shape[0]):
            close = a[j] - 10 <= x[i] and x[i] <= a[j] + 10
            if close and b[j] - np.float32(10) <= y[i] and y[i] <= b[j] + np.float32(10):
                out[count, 0], out[count, 1] = i, j
                count += 1
    return count


@numba.njit(nogil=True)
def _naive_general(x, y, w, a, b):  # type: ignore[no-untyped-def]
    out = np.empty((1 << 20, 2), np.int32)
    count = 0
    for i in range(x.shape[0]):
        for j in range(a.shape[0]):
            near = abs(x[i] - a[j]) <= 2 or y[i] > b[j] + np.float32(9990)
            if near and abs(y[i] - b[j]) <= w[i] + np.float32(9990):
                out[count, 0], out[count, 1] = i, j
                count += 1
    return count


def compiled_c(folder: Path) -> Any:
    """Compile the C reference for this processor; return None without a compiler or vector unit."""
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        return None
    target = folder / "reference.so"
    source = files("handshake_bench") / "reference.c"
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(target), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except subprocess.CalledProcessError:
        return None
    return ctypes.CDLL(str(target))


def _in_c(library: Any, name: str, left: pa.RecordBatch, right: pa.RecordBatch) -> Callable[[], int]:
    function = getattr(library, {"scan": "band", "general": "general"}[name])
    function.restype = ctypes.c_long
    arrays = [c.to_numpy() for c in (*left.columns, *right.columns)]
    out = np.empty(1 << 20, np.int32), np.empty(1 << 20, np.int32)
    sizes = ctypes.c_long(left.num_rows), ctypes.c_long(right.num_rows)

    def call() -> int:
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, *out)]  # the arrays stay referenced
        return int(function(*pointers[:5], *sizes, *pointers[5:]))

    return call
