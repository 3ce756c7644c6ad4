"""Random joins on a GPU, or on the stand-in for one, against the oracle."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.join import Replay
from handshake.joins.tuning import TUNING, Tuning
from handshake.windows import windows_of
from join_plans import plan_join
from pairs import pairs_of, with_row_numbers
from strategies import Case, expect

__all__ = ["BANDS", "CODED", "SMALL", "TUNINGS", "band_case", "on_gpu", "plan_for"]

BANDS = "l.x BETWEEN r.x - 10 AND r.x + 10 AND l.y BETWEEN r.y - 10. AND r.y + 10."
CODED = Tuning(coded_from=1, slice_rows=37)
"""Codes from the first tuple on, and slices of a few tuples."""
SMALL = Tuning(coded_from=1, device_indexed_from=3, slice_rows=37)
"""The same, and indexes of a few tuples."""
TUNINGS = (TUNING, CODED, SMALL)

VALUES = {
    pa.int32(): (0, 1, 5, 9, 10, 11, 20, 21, -3, 100, 2**31 - 1, -(2**31), 2**30),
    pa.int64(): (0, 5, 10, 15, 20, -7, 2**62, -(2**63), 2**63 - 1, 2**53 + 1),
    pa.float32(): (0.0, -0.0, 1.5, 10.0, 10.1, 20.0, 1e30, -1e30, float("inf"), -float("inf"),
                   float("nan"), 3e-45),
    pa.float64(): (0.0, 0.1, 10.1, 1e300, -1e300, float("inf"), float("nan"), 5.0, 2.0**53),
}  # fmt: skip


def plan_for(case: Case, tables: tuple[pa.Table, ...], tuning: Tuning):
    """Return the plan of a case, or None if its predicate is not one for a GPU."""
    try:
        return plan_join(*tables, case, {"method": "auto", "device": "gpu", "tuning": tuning})
    except UnsupportedError as error:
        if "GPU cannot decide" not in str(error):
            raise
        return None


def on_gpu(case: Case, tuning: Tuning) -> bool:
    """Replay a case; says whether its predicate is one for a GPU."""
    want, tables = expect(case), with_row_numbers(case)
    plan = plan_for(case, tables, tuning)
    if plan is None:
        return False
    replay = Replay(plan, *tables)
    assert pairs_of(list(replay)) == sorted(want.pairs), (case.on, case.windows)
    metrics = replay.metrics()
    assert (metrics.late, metrics.no_time, metrics.results) == (0, want.no_time, len(want.pairs))
    return True


def band_case(seed: int, rows: int) -> Case:
    """Return a join on two bands, with extremes, NULL, NaN and infinities, ties and clumps."""
    rng = Random(f"bands {seed}")
    window = rng.choice(("30 ms", "1 s", "9 tuples"))
    on = rng.choice((BANDS, "l.x BETWEEN r.x - 3 AND r.x + 200 AND l.y >= r.y - 0.1 AND l.y < r.y + 10"))
    kinds = rng.choice((pa.int32(), pa.int64(), pa.float64())), rng.choice((pa.float32(), pa.float64()))
    tables = []
    for _ in range(2):
        columns = [pa.array(sorted(rng.choices(range(200), k=rows)), pa.timestamp("ms"))]
        for kind in kinds:
            pool = rng.sample(VALUES[kind], rng.randint(1, len(VALUES[kind])))
            pool += [None] * rng.randint(0, 2) if rng.random() < 0.3 else []
            columns.append(pa.array(rng.choices(pool, k=rows), kind))
        tables.append(pa.table(columns, ["t", "x", "y"]))
    times = (None, None) if "tuples" in window else ("t", "t")
    return Case(*tables, on, windows_of(window), *times)
