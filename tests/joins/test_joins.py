"""Every method, window kind and way of feeding the engine gives what the oracle gives."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.joins.join import Replay
from handshake.joins.tuning import TUNING, Tuning
from join_plans import METHODS, plan_join
from pairs import pairs_of, with_row_numbers
from pushes import check_pushes
from strategies import Case, cases, expect, known_cases, make_case

ARRANGEMENTS = [
    ("three_step", 1),
    ("low_latency", 1),
    ("low_latency", 2),
    ("low_latency", 3),
    ("low_latency", 8),
]
EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


ALL_INDEXED = Tuning(
    indexed_from=1, indexed_probes=1, clustered_after=0, merged_at_once=4, slice_rows=37, shared_seconds=-1.0
)
"""Every basic window indexed, merges in threads, slices of a few tuples, and batches shared by all cores."""
THRESHOLDS = (TUNING, ALL_INDEXED)
"""Once as users run it. Both in one example: its predicate is compiled once, which is what takes time."""


def check_replay(case: Case, methods: tuple[str, ...] = METHODS, tuning: Tuning = TUNING) -> int:
    """Replay a case by each method that its predicate allows; says how many joins that made."""
    want, (left, right) = expect(case), with_row_numbers(case)
    run = 0
    for method in methods:
        algorithm, cores = ARRANGEMENTS[(left.num_rows + len(case.on)) % len(ARRANGEMENTS)]
        chosen = {"method": method, "algorithm": algorithm, "cores": cores, "tuning": tuning}
        plan = plan_join(left, right, case, chosen)
        if plan is None:
            continue
        replay = Replay(plan, left, right)
        got = pairs_of(list(replay))
        assert got == sorted(want.pairs), (chosen, case.on, case.windows)
        metrics = replay.metrics()
        assert (metrics.late, metrics.no_time, metrics.results) == (0, want.no_time, len(got))
        run += 1
    return run


@settings(EXAMPLES, max_examples=9)
@given(case=cases())
def test_replayed_tables_agree_with_the_oracle(case):
    for tuning in THRESHOLDS:
        check_replay(case, tuning=tuning)


@settings(EXAMPLES, max_examples=4)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.tuples(st.integers(60, 200), st.integers(60, 200)))
def test_blocks_and_tiles_agree_with_the_oracle(seed, sizes):
    """Enough tuples for whole blocks, and for a rest beside them."""
    for tuning in THRESHOLDS:
        check_replay(make_case(seed, *sizes), tuning=tuning)


@settings(EXAMPLES, max_examples=8)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_pushed_batches_agree_with_the_oracle_in_any_interleaving(case, seed):
    for tuning in THRESHOLDS:
        check_pushes(case, seed, tuning=tuning)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(EXAMPLES, max_examples=9_000, derandomize=False)
@given(case=cases(max_rows=60), seed=st.integers(0, 2**32 - 1))
def test_soak(case, seed):
    """Some 50,000 joins with both thresholds: about 2.2 methods a case, and the pushes."""
    for tuning in THRESHOLDS:
        check_replay(case, tuning=tuning)
        check_pushes(case, seed, tuning=tuning)
