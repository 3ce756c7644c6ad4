"""How many tuples a second Spark sustains over full windows: this package, and the bucketed workaround."""

from __future__ import annotations

from handshake.bench.report import progress, result, table
from handshake.bench.spark_streams import Run, bucketed, handshaken, measure, session

__all__ = ["run"]


def run(
    rate: int = 15_000, baseline: int | None = None, step: int = 20, window: int = 900, cores: int = 2,
    bucket: int = 50, batches: int = 3,
) -> None:  # fmt: skip
    """Our rate with full windows; then the highest that the workaround keeps, going down from a tenth."""
    spark = session(cores)
    try:
        progress(f"handshake at {rate:,} tuples/s per stream")
        ours = measure(spark, handshaken, rate, step, window, batches=batches)
        theirs = _descend(spark, baseline or rate // 10, step, window, bucket, batches)
    finally:
        spark.stop()
    rows = [_row("handshake", ours), *(_row(f"bucketed ({bucket} wide)", one) for one in theirs)]
    table(
        f"Section 8 on Spark, local[{cores}], windows of {window} s, micro-batches of {step} s",
        ("engine", "tuples/s", "windows full", "s per micro-batch", "kept up"), rows,
    )  # fmt: skip
    kept = max((one.rate for one in theirs if one.sustained), default=0)
    sustained = ours.rate if ours.sustained else 0
    result(
        rate=sustained, load=round(ours.took / step, 3), bucketed=kept,
        vs_bucketed=round(sustained / kept, 1) if kept else "inf",
    )  # fmt: skip


def _descend(spark: object, rate: int, step: int, window: int, bucket: int, batches: int) -> list[Run]:
    """Runs of the workaround at falling rates, until it keeps up."""
    runs: list[Run] = []
    while rate >= 50:
        progress(f"bucketed equi-join at {rate:,} tuples/s per stream")
        runs.append(measure(spark, bucketed(bucket), rate, step, window, batches=batches))  # type: ignore[arg-type]
        if runs[-1].sustained:
            break
        rate = rate * 2 // 3
    return runs


def _row(name: str, one: Run) -> tuple[str, ...]:
    full = "yes" if one.full else f"at {one.batches[-1].stream:.0f} s" if one.batches else "no"
    return name, f"{one.rate:,}", full, f"{one.took:.1f}", "yes" if one.sustained else "no"
