"""`handshake bench cores`: scans on many cores, compared with C on as many threads in the same minute.

The C reference scans by codes of 16 bits, with the exact test of what passes. Each thread has a slice of the
window, and all probes pass by. The arrangements join streams with full windows, results included.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from handshake.errors import UnsupportedError
from handshake.joins.plan import usable_cores
from handshake_bench import report
from handshake_bench.scan import compiled_c
from handshake_bench.search import band_plan, measure, warm

__all__ = ["run"]

ARRANGEMENTS = ("cell", "low_latency")
_PROBES, _INNER = 256, 3_000_320
_ROUNDS = 3


def run(
    cores: int | None = None, rate: float | None = None, window: float = 900.0, seconds: float = 3.0
) -> None:
    """Measure C and each arrangement in turns; give the medians and their ratios."""
    cores = cores or usable_cores()
    rate = rate or 4500.0 * (cores / 2) ** 0.5
    plans = {name: band_plan(name, cores, window) for name in ARRANGEMENTS}
    figures: dict[str, list[float]] = {name: [] for name in ("C", *ARRANGEMENTS)}
    with tempfile.TemporaryDirectory() as folder:
        reference = _Reference(Path(folder), cores)
        for plan in plans.values():
            warm(plan, window)
        for _ in range(_ROUNDS):
            for name, plan in plans.items():
                figures["C"].append(reference.measure(seconds))
                sample = measure(plan, rate, window, seconds, min(1.0, seconds / 4))
                figures[name].append(sample.comparisons / (sample.load * seconds))
                report.progress(
                    f"C {figures['C'][-1] / 1e9:.0f}, {name} {figures[name][-1] / 1e9:.0f} billion "
                    f"comparisons/s, load {sample.load:.2f}"
                )
    middle = {name: float(np.median(found)) for name, found in figures.items()}
    rows = [
        (name, f"{speed / 1e9:.0f}", f"{speed / middle['C']:.2f}", f"{(speed / (2 * window)) ** 0.5:,.0f}")
        for name, speed in middle.items()
    ]
    heads = ("scan", "billion comparisons/s", "of C", "rows/s/stream")
    report.table(f"{cores} cores, windows of {window:g} s, {rate:,.0f} rows/s per stream", heads, rows)
    ratios = {f"{name}_vs_c": round(middle[name] / middle["C"], 3) for name in ARRANGEMENTS}
    report.result(cores=cores, c_billions=round(middle["C"] / 1e9, 1), **ratios)


class _Reference:
    """The scan in C on a number of threads."""

    def __init__(self, folder: Path, threads: int) -> None:
        library = compiled_c(folder)
        if library is None or not hasattr(library, "coded"):
            raise UnsupportedError("this benchmark needs a C compiler and a processor with AVX-512")
        self._library, self._pool, self._threads = library, ThreadPoolExecutor(threads), threads
        rng = np.random.default_rng(1)
        self._probes = _columns(rng, _PROBES)
        a, b = _columns(rng, _INNER)
        codes = np.empty(_INNER, np.uint16), np.empty(_INNER, np.uint16)
        library.encode(*map(_pointer, (a, b)), ctypes.c_long(_INNER), *map(_pointer, codes))
        self._columns = (a, b, *codes)

    def measure(self, seconds: float) -> float:
        """Return comparisons per second."""
        step = _INNER // self._threads // 256 * 256
        until = time.perf_counter() + seconds
        jobs = [self._pool.submit(self._scan, k * step, step, until) for k in range(self._threads)]
        return sum(job.result() for job in jobs)

    def _scan(self, start: int, rows: int, until: float) -> float:
        """Scan a slice again and again; return comparisons per second."""
        out = np.empty(1 << 16, np.int32), np.empty(1 << 16, np.int32)
        inner = [_pointer(column[start : start + rows]) for column in self._columns]
        sizes = ctypes.c_long(_PROBES), ctypes.c_long(rows)
        turns, began = 0, time.perf_counter()
        while time.perf_counter() < until:
            self._library.coded(*map(_pointer, self._probes), *inner, *sizes, *map(_pointer, out))
            turns += 1
        return turns * _PROBES * rows / (time.perf_counter() - began)


def _columns(rng: np.random.Generator, rows: int) -> tuple[Any, Any]:
    return rng.integers(1, 10_001, rows, np.int32), rng.uniform(1, 10_000, rows).astype(np.float32)


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
