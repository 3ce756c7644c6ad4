"""Tuples that gather while cores are busy (CellJoin 4.2.2): the same results, from fewer batches."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gathered_rows import check_gathered
from handshake.joins.arrangements.low_latency.low_latency import LowLatency
from handshake.joins.join import prepare
from handshake.joins.tuning import Tuning
from handshake.plan.build import call, col
from pairs import EXAMPLES
from strategies import known_cases

NUMBERS = pa.schema([("x", pa.int64())])


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


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
