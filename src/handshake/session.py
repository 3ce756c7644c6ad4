"""The front door: plan a join, hand it to the back end, return what was given."""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa

from handshake.cores.admission import OnShed
from handshake.errors import UnsupportedError
from handshake.frames import kind_of, restored, table_of
from handshake.local import Metrics, Replay, prepare
from handshake.plan.build import E
from handshake.window import Spec

__all__ = ["explain", "join"]


def join(
    left: Any,
    right: Any,
    on: str | E | None = None,
    *,
    window: Spec = None,
    left_window: Spec = None,
    right_window: Spec = None,
    time: str | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    how: str = "inner",
    method: str = "auto",
    algorithm: str = "low_latency",
    cores: int | None = None,
    ordered: bool = False,
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    pace: float | None = None,
    overload: str = "block",
    room: int | None = None,
    on_shed: OnShed | None = None,
    adapt: bool = False,
    pin: bool = False,
) -> Any:
    """Join two tables or frames on any predicate, as if they were streams under sliding windows.

    Returns the kind that it was given: Arrow table, pandas or Polars frame; Arrow where they differ.
    Without a window it is a plain join. Tuples arrive by time, so none is late; in no particular order come
    the results, unless `ordered=True` asks for that of time. With a `pace` tuples arrive that many times as
    fast as their times say; a join that is behind holds them back, or sheds them with `overload="shed"`.

    >>> join({"x": [1, 20]}, {"a": [5, 40]}, "ABS(l.x - r.a) <= 10").to_pylist()
    [{'x': 1, 'a': 5}]
    """
    if how != "inner":
        raise UnsupportedError(f"how='{how}' is not supported; stream joins here are inner joins")
    kinds = {kind_of(left), kind_of(right)}
    a, b = table_of(left), table_of(right)
    plan = prepare(
        a.schema, b.schema, on, window, left_window=left_window,
        right_window=right_window, time=time, left_time=left_time, right_time=right_time, method=method,
        algorithm=algorithm, cores=cores, ordered=ordered, suffix=suffix, aliases=aliases, overload=overload,
        room=room, adapt=adapt, pin=pin,
    )  # fmt: skip
    replay = Replay(plan, a, b, pace=pace, on_shed=on_shed)
    batches = list(replay)
    _report_shed(replay.metrics(), on_shed)
    return restored(pa.Table.from_batches(batches, plan.output_schema), kinds)


def _report_shed(metrics: Metrics, on_shed: OnShed | None) -> None:
    """Nothing is lost without a word: who did not ask to be told is warned."""
    if on_shed is None and metrics.left_shed + metrics.right_shed:
        message = (
            f"the join was behind and shed {metrics.left_shed:,} left and {metrics.right_shed:,} right tuples"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def explain(left: Any, right: Any, on: str | E | None = None, **options: Any) -> str:
    """How a join of these inputs would be run; takes the options of `prepare`.

    >>> print(explain({"x": [1]}, {"a": [5]}, "l.x = r.a").splitlines()[2])
    method      hash: 1 equality conjunct(s) between the sides
    """
    return prepare(table_of(left).schema, table_of(right).schema, on, **options).explain()
