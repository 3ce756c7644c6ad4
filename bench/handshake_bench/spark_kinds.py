"""`handshake bench spark_kinds`: kinds of joins of streams on Spark against the inner join.

The last run is the inner join with its windows in Spark's state store.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.spark_streams import Run, handshake_join, measure, session

__all__ = ["run"]

_MEASURED = {
    "inner": ("inner", "directory"),
    "left": ("left", "directory"),
    "left_anti": ("left_anti", "directory"),
    "store": ("inner", "store"),
}
"""By name of the run, the kind of join and the place of its windows."""
_GOAL = 0.7
"""Goal for the rate of a left join in terms of that of an inner join."""


def run(
    rate: int = 15_000, step: int = 20, window: int = 900, cores: int = 2, batches: int = 3,
    out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure seconds per micro-batch with full windows for each kind, one after the other."""
    data = report.load(source, "spark_kinds") if source else _measure(rate, step, window, cores, batches)
    report.publish("spark_kinds", data, _show, _draw, out)


def _measure(rate: int, step: int, window: int, cores: int, batches: int) -> Data:
    runs = []
    with session(cores) as spark:
        for name, (kind, state) in _MEASURED.items():
            progress(f"{name} at {rate:,} tuples/s per stream")
            engine = partial(handshake_join, how=kind, state=state)
            runs.append(_summary(name, measure(spark, engine, rate, step, window, batches=batches)))
    head = {"benchmark": "spark_kinds", "machine": report.machine(), "cores": cores, "window": window}
    return {**head, "step": step, "rate": rate, "runs": runs}


def _summary(kind: str, one: Run) -> Data:
    last = one.batches[-1].figures
    return {
        "kind": kind, "took": one.took, "full": bool(one.full), "sustained": one.sustained,
        "state": last["state_bytes"], "results": last["results"], "pending": last["pending"],
    }  # fmt: skip


def _show(page: Report, data: Data) -> None:
    inner = data["runs"][0]
    rows = [
        (
            one["kind"], "yes" if one["full"] else "no", f"{one['took']:.1f}",
            f"{inner['took'] / one['took']:.2f}", f"{one['state'] / max(inner['state'], 1):.2f}",
            f"{one['results']:,}", f"{one['pending']:,}",
        )
        for one in data["runs"]
    ]  # fmt: skip
    page.table(
        f"Band join on Spark, local[{data['cores']}], {data['rate']:,} tuples/s per stream, windows of "
        f"{data['window']} s, micro-batches of {data['step']} s",
        ("kind", "windows full", "s per micro-batch", "rate / inner", "state / inner", "results", "pending"),
        rows,
    )
    page.say(f"Goal: a left join has at least {_GOAL} of the rate of an inner join.")
    page.say('The run "store" is the inner join with state="store".')
    shares = {one["kind"]: round(inner["took"] / one["took"], 3) for one in data["runs"]}
    page.result(**shares, rate=data["rate"], load=round(inner["took"] / data["step"], 3))


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table says it all."""
