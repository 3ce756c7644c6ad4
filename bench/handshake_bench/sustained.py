"""`handshake bench sustained`: the highest rate per stream that the join sustains with full windows.

Windows are filled without joining, to save fifteen minutes. Then a few seconds of both streams are pushed,
with results as Arrow batches, and the time is compared with the duration of the streams. The clock runs until
every pair has been compared, in all arrangements.
"""

from __future__ import annotations

from handshake.joins.join import JoinPlan, prepare
from handshake.windows import Duration
from handshake_bench import report
from handshake_bench.search import Sample, best_of, highest, measure, warm
from handshake_bench.workload import BAND, left_schema, right_schema

__all__ = ["START", "run"]

START = {"scan": 2_500.0, "band": 30_000.0}
"""The rate at which the search starts, by access method."""


def run(
    algorithm: str = "three_step", method: str = "band", cores: int | None = None,
    window: str = "15 minutes", rate: float | None = None, seconds: float = 10.0, batch: float = 1.0,
) -> None:  # fmt: skip
    """Find the sustained rate, or measure at a given one; print a table and `rate`."""
    plan = prepare(
        left_schema, right_schema, BAND, window, time="ts", method=method, algorithm=algorithm, cores=cores
    )
    size = Duration.parse(window).nanoseconds / 1e9
    warm(plan, size)
    if rate is not None:
        samples = [measure(plan, rate, size, seconds, batch)]
    else:
        samples = highest(plan, size, START.get(method, 20_000.0), seconds, 5, batch)[1]
    best = best_of(samples)
    _table(samples, plan, window)
    report.result(rate=round(best.rate) if best else 0, **_figures(best or samples[-1], plan, seconds))


def _figures(sample: Sample, plan: JoinPlan, seconds: float) -> dict[str, float | str]:
    return {
        "load": sample.load,
        "algorithm": plan.algorithm,
        "method": plan.method,
        "cores": plan.cores,
        "state_ratio": sample.state_ratio,
        "results_per_s": round(sample.results / seconds),
        "comparisons_per_s": sample.comparisons / seconds,
    }


def _table(samples: list[Sample], plan: JoinPlan, window: str) -> None:
    rows = [
        (
            f"{s.rate:,.0f}",
            f"{s.load:.2f}",
            f"{s.window_rows:,}",
            f"{s.results:,}",
            f"{s.comparisons / 1e9:.2f}",
            f"{s.state_ratio:.2f}",
        )
        for s in samples
    ]
    heads = ("tuples/s/stream", "load", "tuples held", "results", "billion comparisons", "state / raw bytes")
    title = f"{plan.algorithm}, cores: {plan.cores}, {plan.method}, windows of {window}"
    report.table(title, heads, rows)
