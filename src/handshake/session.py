"""The front door: plan a join, hand it to the back end, return what was given."""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.frames import is_spark, kind_of, restored, table_of
from handshake.local import Replay, prepare
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
    segments: int | None = None,
    state_dir: str | None = None,
    name: str | None = None,
    result_time: str | None = None,
) -> Any:
    """Join two tables or frames on any predicate, as if they were streams under sliding windows.

    Returns the kind that it was given: Arrow table, pandas or Polars frame; Arrow where they differ.
    Without a window it is a plain join. Tuples arrive by time, so none is late; in no particular order come
    the results, unless `ordered=True` asks for that of time.

    Spark DataFrames give a DataFrame, streaming if one of them is. There `segments` says over how many join
    cores tuples are spread, `state_dir` where windows lie, `name` what the join is called in the query's
    progress, and `result_time` asks for a column with the later of both times, for operators on event time.

    >>> join({"x": [1, 20]}, {"a": [5, 40]}, "ABS(l.x - r.a) <= 10").to_pylist()
    [{'x': 1, 'a': 5}]
    """
    if is_spark(left) or is_spark(right):
        return _spark().join_frames(
            left, right, on, window=window, left_window=left_window, right_window=right_window, time=time,
            left_time=left_time, right_time=right_time, how=how, method=method, suffix=suffix,
            aliases=aliases, segments=segments, state_dir=state_dir, name=name, result_time=result_time,
        )  # fmt: skip
    if how != "inner":
        raise UnsupportedError(f"how='{how}' is not supported; stream joins here are inner joins")
    kinds = {kind_of(left), kind_of(right)}
    a, b = table_of(left), table_of(right)
    plan = prepare(
        a.schema, b.schema, on, window, left_window=left_window,
        right_window=right_window, time=time, left_time=left_time, right_time=right_time, method=method,
        algorithm=algorithm, cores=cores, ordered=ordered, suffix=suffix, aliases=aliases,
    )  # fmt: skip
    batches = list(Replay(plan, a, b))
    return restored(pa.Table.from_batches(batches, plan.output_schema), kinds)


def _spark() -> Any:
    """The Spark back end, whose packages come with an extra."""
    try:
        return importlib.import_module("handshake.spark.session")
    except ImportError as error:
        raise UnsupportedError(
            f"joins on Spark need more packages: {error}; pip install 'handshake[spark]'"
        ) from error


def explain(left: Any, right: Any, on: str | E | None = None, **options: Any) -> str:
    """How a join of these inputs would be run; takes the options of `prepare`.

    >>> print(explain({"x": [1]}, {"a": [5]}, "l.x = r.a").splitlines()[2])
    method      hash: 1 equality conjunct(s) between the sides
    """
    return prepare(table_of(left).schema, table_of(right).schema, on, **options).explain()
