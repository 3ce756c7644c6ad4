"""The front door: plan a join, hand it to the back end, return what was given."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from handshake.errors import InputError, UnsupportedError
from handshake.io.frames import is_spark, kind_of, restore, table_of
from handshake.joins.gate import OnShed
from handshake.joins.join import Metrics, Replay, prepare
from handshake.plan.build import E
from handshake.windows import Spec

__all__ = ["explain", "join", "listener", "progress", "spark_module", "watch"]


def join(
    left: Any,
    right: Any,
    on: str | E | Any | None = None,
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
    segments: int | None = None,
    state_dir: str | None = None,
    name: str | None = None,
    result_time: str | None = None,
) -> Any:
    """Join two tables or frames on any predicate, as if they were streams under sliding windows.

    Returns the kind that it was given: Arrow table, pandas or Polars frame; Arrow where they differ.
    Without a window it is a plain join. Tuples arrive by time, so none is late; in no particular order come
    the results, unless `ordered=True` asks for that of time. With a `pace` tuples arrive that many times as
    fast as their times say; a join that is behind holds them back, or sheds them with `overload="shed"`.

    Spark DataFrames give a DataFrame, streaming if one of them is. There `segments` says over how many join
    cores tuples are spread, `state_dir` where windows lie, `name` what the join is called in the query's
    progress, and `result_time` asks for a column with the later of both times, for operators on event time.

    >>> join({"x": [1, 20]}, {"a": [5, 40]}, "ABS(l.x - r.a) <= 10").to_pylist()
    [{'x': 1, 'a': 5}]
    """
    if _on_spark(left, right):
        _check_local_only(
            algorithm=(algorithm, "low_latency"), cores=(cores, None), ordered=(ordered, False),
            pace=(pace, None), overload=(overload, "block"), room=(room, None), on_shed=(on_shed, None),
            adapt=(adapt, False), pin=(pin, False),
        )  # fmt: skip
        return spark_module("session").join_frames(
            left, right, on, window=window, left_window=left_window, right_window=right_window, time=time,
            left_time=left_time, right_time=right_time, how=how, method=method, suffix=suffix,
            aliases=aliases, segments=segments, state_dir=state_dir, name=name, result_time=result_time,
        )  # fmt: skip
    if how != "inner":
        raise UnsupportedError(f"how='{how}' is not supported; stream joins here are inner joins")
    _check_spark_only(segments=segments, state_dir=state_dir, name=name, result_time=result_time)
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
    return restore(pa.Table.from_batches(batches, plan.output_schema), kinds)


def _report_shed(metrics: Metrics, on_shed: OnShed | None) -> None:
    """Nothing is lost without a word: who did not ask to be told is warned."""
    if on_shed is None and metrics.left_shed + metrics.right_shed:
        message = (
            f"the join was behind and shed {metrics.left_shed:,} left and {metrics.right_shed:,} right tuples"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def spark_module(name: str) -> Any:
    """A module of the Spark back end, whose packages come with an extra."""
    try:
        return importlib.import_module(f"handshake.engines.spark.{name}")
    except ImportError as error:
        raise UnsupportedError(
            f"joins on Spark need more packages: {error}; pip install 'handshake[spark]'"
        ) from error


def _on_spark(left: Any, right: Any) -> bool:
    """Whether both inputs are DataFrames of Spark's; one alone is refused."""
    found = is_spark(left), is_spark(right)
    if found[0] != found[1]:
        other = ("left", "right")[found.index(False)]
        kind = type((left, right)[found.index(False)])
        raise InputError(
            f"one input is a Spark DataFrame, but the {other} one is a {kind.__module__}.{kind.__name__}; "
            f"make it one, too ({other} = spark.createDataFrame({other})), or collect the other (toPandas())"
        )
    return all(found)


def _check_local_only(**options: tuple[Any, Any]) -> None:
    for name, (given, usual) in options.items():
        if given != usual:
            hint = "segments=… says how far a join is spread there" if name == "cores" else "leave it out"
            raise UnsupportedError(
                f"{name}={given!r} is for joins in this process; Spark decides that for DataFrames: {hint}"
            )


def _check_spark_only(**options: Any) -> None:
    for name, given in options.items():
        if given is not None:
            raise UnsupportedError(f"{name}={given!r} is for joins of Spark DataFrames; leave it out")


def explain(left: Any, right: Any = None, on: str | E | Any | None = None, **options: Any) -> str:
    """How a join of these inputs would be run; takes the options of `prepare`.

    Of Spark DataFrames: takes those of `join`. Alone, a DataFrame that `join` returned says how it runs.

    >>> print(explain({"x": [1]}, {"a": [5]}, "l.x = r.a").splitlines()[2])
    method      hash: 1 equality conjunct(s) between the sides
    """
    if right is None:
        if not is_spark(left):
            raise InputError("explain takes two inputs, or a Spark DataFrame that handshake.join returned")
        return str(spark_module("session").explained(left))
    if _on_spark(left, right):
        return str(spark_module("session").explain_frames(left, right, on, **options))
    return prepare(table_of(left).schema, table_of(right).schema, on, **options).explain()


def progress(query: Any) -> tuple[Any, ...]:
    """What the joins of a streaming query on Spark did in its last micro-batch that brought tuples.

    One `JoinProgress` per join: rows, results, comparisons, late tuples, window sizes, state bytes, lag, how
    long the micro-batch took, and the same for each segment. `query` may also be a `StreamingQueryProgress`,
    its dict or its JSON text.
    """
    found: tuple[Any, ...] = spark_module("progress").progress(query)
    return found


def listener(tell: Callable[[Any], object]) -> Any:
    """A `StreamingQueryListener` that calls `tell` with the `JoinProgress` of every micro-batch.

    Register it once per session: `spark.streams.addListener(handshake.listener(print))`.
    """
    return spark_module("progress").JoinListener(tell)


def watch(query: Any, seconds: float | None = None, **options: Any) -> None:
    """Show the joins of a streaming query live in the terminal, until it ends or `seconds` are over.

    Where standard output is no terminal, it is a line for each micro-batch.
    """
    spark_module("console").watch(query, seconds, **options)
