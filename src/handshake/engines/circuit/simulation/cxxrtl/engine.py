"""CXXRTL: the circuit as C++ by Yosys, built with g++ in seconds, run without leaving compiled code."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.simulation.cxxrtl.one_pass import has_many_instances, one_pass
from handshake.engines.circuit.simulation.testbench import Arrival, Feed, Ports, Prepared, Run, Task
from handshake.engines.circuit.yosys import run_yosys, runtime
from handshake.errors import HandshakeError, UnsupportedError

_COMMON = ("hierarchy -top top", "proc")
_FLAT = (
    *_COMMON,
    "flatten",
    "delete -input top/w:rst",  # registers start as after a reset, and no bench resets them again
    "setundef -undriven -zero",
    "opt",  # halves the time that g++ takes
    "write_cxxrtl -O6 -g{debug} {output}",
)
IN_MODULES = (
    *_COMMON,
    "delete -input */w:rst",
    "setundef -undriven -zero",
    "opt",
    "write_cxxrtl -noflatten -O6 -g0 {output}",
)
"""Passes that keep the hierarchy: of many equal instances g++ compiles one."""
LARGE = 1_500_000
"""Bytes of C++ from which on it is built with less optimisation."""
SLICE = 4096
"""Cycles between two checks whether the simulation is to stop."""
_HARNESS = Path(__file__).with_name("harness.h")
_POINTER = ctypes.c_void_p


class CxxrtlSimulator:
    """Builds a shared library of the circuit and its test bench, once per circuit and process."""

    def __init__(self, level: str = "-O2", *, plain: bool = False) -> None:
        self._level, self._plain = level, plain

    def prepare(self, circuit: Any, ports: Ports, *, waveform: bool) -> Prepared:
        """Build the simulation, ready for any number of runs."""
        library = build(circuit, ports, waveform=waveform, level=self._level, plain=self._plain)
        return lambda task, vcd: run_built(library, ports, task, vcd)


def build(
    circuit: Any, ports: Ports, *, waveform: bool = False, level: str = "-O2", plain: bool = False
) -> ctypes.CDLL:
    """Compile the simulation of a circuit.

    Args:
        circuit: The circuit.
        ports: Its ports.
        waveform: Keep all nets, so that a waveform can be written.
        level: Optimisation level of g++.
        plain: Take the C++ as Yosys writes it. Otherwise a circuit of many equal instances is rewritten to
            settle in one pass; where the text is not as expected, it is taken as it is.
    """
    text = to_rtlil(circuit)
    if waveform or not has_many_instances(text):
        model = write_cxx(text, tuple(step.replace("{debug}", "4" if waveform else "0") for step in _FLAT))
    else:
        written = write_cxx(text, IN_MODULES)
        model = written if plain else one_pass(written) or written
    quick = level == "-O2" and len(model) > LARGE  # -O2 would take minutes to gain a third
    return _compile(model + "\n" + _bench(ports, waveform), "-O1" if quick else level)


def write_cxx(rtlil: str, passes: tuple[str, ...]) -> str:
    """Return the C++ of a design.

    The address of a memory of one place gets one bit: CXXRTL reads the first word of an address, and an
    address of no bits has none.
    """
    return run_yosys(rtlil, passes).replace("memory_index(value<0>(), ", "memory_index(value<1>(), ")


@lru_cache(maxsize=256)
def _compile(text: str, level: str) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        raise UnsupportedError(
            'compiled simulation needs g++ on the path; install it or use simulator="amaranth"'
        )
    with tempfile.TemporaryDirectory(prefix="handshake-cxxrtl-") as folder:
        source, library = Path(folder) / "circuit.cc", Path(folder) / "circuit.so"
        source.write_text(text)
        command = ["g++", "-std=c++17", level, "-march=native", "-w", "-shared", "-fPIC", f"-I{runtime()}"]
        command += [f"-I{_HARNESS.parent}", "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HandshakeError(f"g++ failed on the simulation: {done.stderr[-500:]}")
        return ctypes.CDLL(str(library))


def _mangle(*path: str) -> str:
    """Return the C++ name of a port: CXXRTL doubles underscores."""
    return "top.p_" + "__".join(path).replace("_", "__")


def _bench(ports: Ports, waveform: bool) -> str:
    """Return the part of the test bench that names the ports; the rest is in harness.h."""
    lines = [f"#define WAVEFORM {int(waveform)}", '#include "harness.h"', "BENCH_BEGIN"]
    for index, (name, row) in enumerate(ports.sources.items()):
        lines.append(f"  SOURCE({index}, {_stream(name, row)})")
    for index, (name, row) in enumerate(ports.sinks.items()):
        lines.append(f"  SINK({index}, {_stream(name, row)})")
    lines += [f"  LEVEL({index}, {_mangle(name)})" for index, name in enumerate(ports.levels)]
    lines += [f"  PROBE({index}, {_mangle(name)})" for index, name in enumerate(ports.probes)]
    return "\n".join([*lines, "BENCH_END", ""])


def _stream(name: str, row: Row) -> str:
    payload = _mangle(name, "payload") if row.bits else "bench.nothing"
    rest = ", ".join(_mangle(name, part) for part in ("valid", "eos", "ready"))
    return f"{_words(row)}, {payload}, {rest}"


def _words(row: Row) -> int:
    return (row.bits + 31) // 32


def run_built(library: ctypes.CDLL, ports: Ports, task: Task, vcd: Path | None = None) -> Run:
    """Run a task on a compiled simulation."""
    library.bench_end.restype = library.bench_count.restype = ctypes.c_longlong
    library.bench_create.restype = _POINTER
    handle = _POINTER(library.bench_create())
    try:
        keep = _give_task(library, handle, ports, task)
        library.bench_begin(handle, str(vcd).encode() if vcd else None)
        numbers = (ctypes.c_longlong(n) for n in (task.limit, task.quiet))
        options = (*numbers, int(task.stop_at_eos), ctypes.c_longlong(SLICE))
        while not library.bench_run(handle, *options):
            pass  # signals are looked at: a long run can be interrupted
        cycles = library.bench_end(handle)
        del keep  # the bench reads the arrays in place
        if cycles < 0:
            raise HandshakeError(f"the waveform could not be kept: '{vcd}' cannot be written to its end")
        return _take(library, handle, ports, cycles)
    finally:
        library.bench_destroy(handle)


def _give_task(library: ctypes.CDLL, handle: Any, ports: Ports, task: Task) -> list[Any]:
    keep: list[Any] = []
    for index, (name, row) in enumerate(ports.sources.items()):
        arrays = _source_arrays(task.feeds[name], _words(row))
        keep += arrays
        words, flags, pattern = arrays
        library.bench_feed(handle, index, *_array(words), *_array(flags), *_array(pattern))
    for index, name in enumerate(ports.sinks):
        pattern = np.asarray(task.ready[name], dtype=np.uint8)
        keep.append(pattern)
        library.bench_ready(handle, index, *_array(pattern))
    for index, (name, bits) in enumerate(ports.levels.items()):
        words = _to_words([task.levels[name]], (bits + 31) // 32)
        keep.append(words)
        library.bench_level(handle, index, *_array(words))
    return keep


def _source_arrays(feed: Feed, words: int) -> list[Any]:
    flags = np.array([(b.payload is not None) | b.eos << 1 for b in feed.beats], dtype=np.uint8)
    payloads = [b.payload or 0 for b in feed.beats]
    return [_to_words(payloads, words), flags, np.asarray(feed.pattern, dtype=np.uint8)]


def _to_words(numbers: Sequence[int], words: int) -> Any:
    mask = (1 << (32 * words)) - 1
    data = b"".join((n & mask).to_bytes(4 * words, "little") for n in numbers)
    return np.frombuffer(data, dtype=np.uint32)


def _array(array: Any) -> tuple[Any, Any]:
    return ctypes.c_void_p(array.ctypes.data), ctypes.c_longlong(len(array))


def _take(library: ctypes.CDLL, handle: Any, ports: Ports, cycles: int) -> Run:
    run = Run(cycles=int(cycles))
    for index, name in enumerate(ports.sources):
        taken = np.empty(library.bench_count(handle, 0, index), dtype=np.int64)
        library.bench_taken(handle, index, ctypes.c_void_p(taken.ctypes.data))
        run.accepted[name] = taken.tolist()
    for index, (name, row) in enumerate(ports.sinks.items()):
        run.outputs[name] = _arrivals(library, handle, index, row)
    for index, (name, bits) in enumerate(ports.probes.items()):
        words = np.empty(max(1, (bits + 31) // 32), dtype=np.uint32)
        library.bench_probe(handle, index, ctypes.c_void_p(words.ctypes.data))
        run.probes[name] = int.from_bytes(words.tobytes(), "little")
    return run


def _arrivals(library: ctypes.CDLL, handle: Any, index: int, row: Row) -> list[Arrival]:
    count, words = library.bench_count(handle, 1, index), _words(row)
    cycles, flags = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.uint8)
    payloads = np.empty(count * words, dtype=np.uint32)
    library.bench_left(handle, index, *(ctypes.c_void_p(a.ctypes.data) for a in (cycles, flags, payloads)))
    numbers: Iterable[int | None] = _numbers(payloads, words) if words else [0] * count
    if not (flags & 1).all():
        numbers = (n if flag & 1 else None for n, flag in zip(numbers, flags.tolist(), strict=True))
    with _no_collection():
        return list(map(Arrival._make, zip(cycles.tolist(), numbers, (flags > 1).tolist(), strict=True)))


def _numbers(payloads: Any, words: int) -> list[int]:
    data, step = payloads.tobytes(), 4 * words
    return [int.from_bytes(data[i : i + step], "little") for i in range(0, len(data), step)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which would scan all arrivals again and again while they are made."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
