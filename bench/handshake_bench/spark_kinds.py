"""`handshake bench spark_kinds`: kinds of joins of streams on Spark against the inner join.

The run `store` is the inner join with its windows in Spark's state store. With `--unmatched`, a part of the
left rows matches nothing: these rows are pending until they have left their window.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from handshake.errors import InputError
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
    unmatched: int = 0, kinds: str | None = None, out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure seconds per micro-batch with full windows for each kind, one after the other."""
    if source:
        data = report.load(source, "spark_kinds")
    else:
        data = _measure(_chosen(kinds), rate, step, window, cores, batches, unmatched)
    report.publish("spark_kinds", data, _show, _draw, out)


def _chosen(kinds: str | None) -> list[str]:
    """Return the names of the runs; the inner join is always the first."""
    names = list(_MEASURED) if kinds is None else [name.strip() for name in kinds.split(",")]
    for name in names:
        if name not in _MEASURED:
            raise InputError(f"spark_kinds has no run '{name}'; choose among {', '.join(_MEASURED)}")
    return [name for name in _MEASURED if name in {"inner", *names}]


def _measure(
    names: list[str], rate: int, step: int, window: int, cores: int, batches: int, unmatched: int
) -> Data:
    runs = []
    with session(cores) as spark:
        for name in names:
            kind, state = _MEASURED[name]
            progress(f"{name} at {rate:,} tuples/s per stream")
            engine = partial(handshake_join, how=kind, state=state)
            found = measure(
                spark, engine, rate, step, window, batches=batches, unmatched=unmatched, patient=True
            )
            runs.append(_summary(name, found))
    head = {"benchmark": "spark_kinds", "machine": report.machine(), "cores": cores, "window": window}
    return {**head, "step": step, "rate": rate, "unmatched": unmatched, "runs": runs}


def _summary(kind: str, one: Run) -> Data:
    last = one.batches[-1].figures
    return {
        "kind": kind, "took": one.took, "worked": one.worked, "full": bool(one.full),
        "sustained": one.sustained, "state": last["state_bytes"], "results": last["results"],
        "pending": last["pending"],
        "batches": [(b.stream, b.took, b.spent.total, b.figures["pending"]) for b in one.batches],
    }  # fmt: skip


def _show(page: Report, data: Data) -> None:
    inner = data["runs"][0]
    rows = [
        (
            one["kind"], "yes" if one["full"] else "no", f"{one['took']:.1f}",
            f"{inner['took'] / one['took']:.2f}", *_of_processor(inner, one),
            f"{one['state'] / max(inner['state'], 1):.2f}",
            f"{one['results']:,}", f"{one['pending']:,}",
        )
        for one in data["runs"]
    ]  # fmt: skip
    page.table(
        f"Band join on Spark, local[{data['cores']}], {data['rate']:,} tuples/s per stream, windows of "
        f"{data['window']} s, micro-batches of {data['step']} s",
        (
            "kind", "full", "s per batch", "rate / inner", "processor s", "by processor", "state / inner",
            "results", "pending",
        ), rows,
    )  # fmt: skip
    _show_growth(page, data)
    if data.get("unmatched"):
        page.say(f"{data['unmatched']} % of the left rows match nothing.")
    page.say(f"Goal: a left join has at least {_GOAL} of the rate of an inner join.")
    page.say(
        '"by processor" is the rate by processor time, in terms of that of inner. The run "store" is the '
        'inner join with state="store".'
    )
    shares = {one["kind"]: round(inner["took"] / one["took"], 3) for one in data["runs"]}
    worked = {f"{one['kind']}_processor": round(inner["worked"] / one["worked"], 3) for one in data["runs"]}
    page.result(**shares, **worked, rate=data["rate"], load=round(inner["took"] / data["step"], 3))


def _show_growth(page: Report, data: Data) -> None:
    """Show the processor seconds of micro-batches, and the pending rows, while the windows fill."""
    rows = []
    for quarter in range(5):
        first, last = (data["window"] * share / 4 for share in (quarter, quarter + 1))
        row = ["full" if quarter == 4 else f"{25 * quarter} to {25 * quarter + 25} %"]
        for one in data["runs"]:
            # the first micro-batch compiles
            here = [b for b in one["batches"][1:] if first < b[0] <= last or (quarter == 4 and b[0] > first)]
            worked = [worked for _, _, worked, _ in here]
            row += [f"{sum(worked) / len(worked):.1f}", f"{here[-1][3]:,}"] if here else ["-", "-"]
        rows.append(row)
    heads = [head for one in data["runs"] for head in (one["kind"], "pending")]
    page.table("Processor seconds of a micro-batch while the windows fill", ("windows", *heads), rows)


def _of_processor(inner: Data, one: Data) -> tuple[str, str]:
    """Return the processor seconds of a micro-batch, and the rate by them in terms of the inner join's."""
    return f"{one['worked']:.1f}", f"{inner['worked'] / one['worked']:.2f}"


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table says it all."""
