"""A check of `low_latency` joins whose rows gather while cores are busy."""

from __future__ import annotations

from random import Random

from handshake.io.frames import conform
from handshake.joins.tuning import Tuning
from join_plans import plan_join
from pairs import pairs_of, with_row_numbers
from strategies import Case, expect


def check_gathered(case: Case, seed: int, tuning: Tuning, *, at_once: bool = False) -> None:
    """Join a case whose cores report at random that they are busy; compare with the oracle.

    With `at_once`, every push waits for its results, as in `Join`, so that no rows gather.
    """
    rng, tables = Random(f"gathered {seed}"), with_row_numbers(case)
    lateness = rng.choice((0, 1, 60)) if case.windows.timed else None
    text = {"lateness": f"{lateness} s"} if lateness is not None else {}
    plan = plan_join(
        *tables,
        case,
        {"method": "auto", "algorithm": "low_latency", "cores": rng.randint(1, 8), "tuning": tuning, **text},
    )
    if plan is None:
        return
    engine, at, arrivals, batches = plan.start(), [0, 0], [], []
    engine._is_busy = lambda: rng.random() < 0.8
    try:
        while any(at[side] < table.num_rows for side, table in enumerate(tables)):
            side = rng.randint(0, 1)
            count = min(rng.choice((1, 2, 7, 30)), tables[side].num_rows - at[side])
            part = tables[side].slice(at[side], count)
            batch, more = conform(part, part.schema, "input"), rng.choice((False, False, True))
            batches += engine.push_and_drain(side, batch) if at_once else engine.push(side, batch, more=more)
            arrivals += [(("left", "right")[side], at[side] + k) for k in range(count)]
            at[side] += count
        batches += engine.drain()
        metrics = engine.metrics()
    finally:
        engine.close()
    want = expect(case, None if lateness is None else lateness * 10**9, arrivals)
    assert pairs_of(batches) == sorted(want.pairs), (case.on, case.windows, lateness)
    assert (metrics.late, metrics.results, metrics.latency.results) == (want.late, *[len(want.pairs)] * 2)
