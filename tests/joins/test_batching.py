"""Tuples that gather while cores are busy (CellJoin 4.2.2): the same results, from fewer batches."""

from __future__ import annotations

import threading
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_joins import numbered, pairs_of, planned

from handshake.io.frames import conform
from handshake.joins.arrangements.low_latency.low_latency import LowLatency
from handshake.joins.join import prepare
from handshake.joins.tuning import Tuning
from handshake.plan.build import call, col
from strategies import Case, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
NUMBERS = pa.schema([("x", pa.int64())])


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


def check_gathered(case: Case, seed: int, tuning: Tuning) -> None:
    """Cores seem busy, and more tuples seem to wait, at random: some pass others, some are joined at once."""
    rng, tables = Random(f"gathered {seed}"), numbered(case)
    lateness = rng.choice((0, 1, 60)) if case.windows.timed else None
    text = {"lateness": f"{lateness} s"} if lateness is not None else {}
    plan = planned(
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
            more = rng.choice((False, False, True))
            batches += engine.push(side, conform(part, part.schema, "input"), more=more)
            arrivals += [(("left", "right")[side], at[side] + k) for k in range(count)]
            at[side] += count
        batches += engine.drain()
        metrics = engine.metrics()
    finally:
        engine.close()
    want = expect(case, None if lateness is None else lateness * 10**9, arrivals)
    assert pairs_of(batches) == sorted(want.pairs), (case.on, case.windows, lateness)
    assert (metrics.late, metrics.results, metrics.latency.results) == (want.late, *[len(want.pairs)] * 2)


@pytest.mark.parametrize("gather", [10, 4096])
@settings(EXAMPLES, max_examples=7)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_gathered_tuples_agree_with_the_oracle(gather, case, seed):
    check_gathered(case, seed, Tuning(gathered_rows=gather))


def test_tuples_that_come_while_cores_are_busy_are_joined_together():
    gate = threading.Event()

    def slow(a: int, b: int) -> bool:
        assert gate.wait(60)
        return a == b

    plan = prepare(NUMBERS, NUMBERS, call(slow, col("l.x"), col("r.x")), "999 tuples", cores=1)
    engine = plan.start()
    assert isinstance(engine, LowLatency)
    found = list(engine.push(0, numbers([1, 2, 3])))
    for value in [1, 2, 3] * 20:
        found += engine.push(1, numbers([value]))
    gate.set()
    found += engine.drain()
    figures = engine.metrics()
    engine.close()
    assert sum(batch.num_rows for batch in found) == 60
    # The left batch, one at work, one that waits before the core, and all that have gathered.
    assert figures.cores[0].batches <= 4
