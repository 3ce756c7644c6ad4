"""The size of basic windows (CellJoin 6), with constants measured on this machine.

A window of `rate * seconds` tuples in basic windows of h tuples costs `alpha` for each of them, whatever
its size; and the cores' runs differ by one basic window, so that a batch waits for one, `beta` times its
bytes. That wait is here what the transfer of the first basic window is in the paper: the part that
nothing overlaps. The rest of the work does not depend on h. With L = rate * seconds / h basic windows the
sum `alpha * L + beta * bytes * h` is least at equation 4.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import stored_column
from handshake.joins.spec import JoinSpec, join_spec
from handshake.plan.parse import parse
from handshake.windows import Windows

UNIT_BLOCK = 16
"""b: tuples in a unit block (3.3), one for each lane of the kernels' vectors."""
_FEWEST, _MOST = 1 << 10, 1 << 17
_SMALL, _LARGE, _PARTS = 2048, 16384, 16
_CONTENDED = 2.0
"""The factor by which a basic window costs more with several cores: its cost is the interpreter's work, and
cores wait for each other there. With two cores it takes 2.2 times as long as with one (bench windows)."""
_REFERENCE = "l.x BETWEEN r.x - 10 AND r.x + 10 AND l.y BETWEEN r.y - 10 AND r.y + 10"


@dataclass(frozen=True)
class CostModel:
    """The cost of scanning a basic window."""

    alpha: float
    """Seconds for a basic window of any size: alpha_m, handing it over, and alpha_n, starting its scan."""
    beta: float
    """Seconds for each byte of join attributes, for a batch of one unit block."""
    row_bytes: float
    """s(A): bytes of join attributes in a tuple."""

    def best_rows(self, rate: float, window_seconds: float, batch: int = UNIT_BLOCK) -> int:
        """Tuples in a basic window by equation 4, as a power of two: b * d.

        `batch` tuples meet a basic window at once; beta grows with their unit blocks.
        """
        blocks = max(batch / UNIT_BLOCK, 1.0)
        best = math.sqrt(self.alpha * rate * window_seconds / (self.beta * blocks * self.row_bytes))
        return min(max(1 << round(math.log2(max(best, 1.0))), _FEWEST), _MOST)


@lru_cache(maxsize=1)
def cost_model() -> CostModel:
    """Measure the scan of two bands on 32-bit columns, once per process."""
    schema = pa.schema([("x", pa.int32()), ("y", pa.float32())])
    spec = join_spec(
        schema, schema, parse(_REFERENCE), Windows(None, None), times=(None, None), method="scan"
    )
    return measure_costs(spec, _reference(spec, 0, UNIT_BLOCK), _reference(spec, 1, _LARGE))


def _reference(spec: JoinSpec, side: int, rows: int) -> BasicWindow:
    numbers = np.arange(1, rows + 1, dtype=np.int32) * (100 if side else -100)
    arrays = [pa.array(numbers), pa.array(numbers.astype(np.float32))]
    return BasicWindow(spec.sides[side], pa.RecordBatch.from_arrays(arrays, schema=spec.sides[side].schema))


def measure_costs(spec: JoinSpec, batch: BasicWindow, window: BasicWindow) -> CostModel:
    """Time the scan of a basic window at two sizes, and of one in parts; a few milliseconds once its kernel
    is compiled."""
    block = _part(batch, UNIT_BLOCK)
    small, large = _part(window, min(_SMALL, max(window.rows // 8, 1))), _part(window, _LARGE)
    row_bytes = max(_attribute_bytes(large), 1.0)
    core = JoinCore(spec)
    fast, slow, cut = (_best(core, block, run) for run in ([small], [large], _cut(large)))
    blocks = max(block.rows / UNIT_BLOCK, 1 / UNIT_BLOCK)
    per_row = max((slow - fast) / max(large.rows - small.rows, 1), 1e-12)
    alpha = max(_CONTENDED * (cut - slow) / (_PARTS - 1), 1e-6)
    return CostModel(alpha, per_row / row_bytes / blocks, row_bytes)


def _cut(window: BasicWindow) -> list[BasicWindow]:
    """Cut a window into many; the extra time of scanning them is the cost per basic window."""
    bounds = pairwise(window.rows * n // _PARTS for n in range(_PARTS + 1))
    return [BasicWindow(window.spec, window.batch.slice(start, stop - start)) for start, stop in bounds]


def _part(window: BasicWindow, rows: int) -> BasicWindow:
    return BasicWindow(window.spec, window.batch.slice(0, rows))


def _attribute_bytes(window: BasicWindow) -> float:
    size = sum(stored_column(window.batch, window.spec, column.name).nbytes for column in window.spec.columns)
    return float(size / window.rows)


def _best(core: JoinCore, batch: BasicWindow, windows: list[BasicWindow]) -> float:
    """Return the least time of several probes; the first one compiles."""
    times = []
    for _ in range(12):
        start = time.perf_counter()
        for _ in core.probe(batch, windows):
            pass
        times.append(time.perf_counter() - start)
    return min(times)


def model_text(model: CostModel, held: int | None, method: str) -> str:
    """Describe the measured constants and the best size of basic windows for `held` tuples."""
    rows = held or 900_000
    size = model.best_rows(rows, 1.0)
    example = f"a window of {rows:,} tuples is best cut into basic windows of {min(size, rows):,}"
    if method != "scan":
        example = "for scans; basic windows that an index clusters get as large as they can"
    return (
        f"{model.alpha * 1e6:.1f} us for a basic window of any size, {model.beta * 1e9:.3f} ns for a byte of "
        f"join attributes and a unit block of {UNIT_BLOCK}, measured here; {example}"
    )
