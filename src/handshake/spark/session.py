"""The front door for DataFrames: check, define, choose how it runs."""

from __future__ import annotations

import atexit
import itertools
import os
import uuid
import warnings

from pyspark.sql import DataFrame, SparkSession

from handshake.errors import ExpressionError, UnsupportedError, WindowError
from handshake.plan.build import E
from handshake.plan.expr import Expr, Literal
from handshake.plan.parse import parse
from handshake.schema import BOOL
from handshake.spark.definition import Definition
from handshake.spark.frames import arrow_schema, event_time, watermark_delay
from handshake.spark.join import join_batches, join_static, join_streams, with_event_time
from handshake.spark.store import open_store
from handshake.window import Spec, Windows, windows_of

__all__ = ["define", "join_frames"]

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_STATE = "spark.handshake.stateDir"
_numbers = itertools.count(1)


def join_frames(
    left: DataFrame,
    right: DataFrame,
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
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    segments: int | None = None,
    state_dir: str | None = None,
    name: str | None = None,
    result_time: str | None = None,
) -> DataFrame:
    """Join DataFrames; streaming if one of them is."""
    if how != "inner":
        raise UnsupportedError(f"how='{how}' is not supported; stream joins here are inner joins")
    windows, times = windows_of(window, left_window, right_window), (left_time or time, right_time or time)
    definition = define(
        left, right, on, windows, times, method=method, suffix=suffix, aliases=aliases, segments=segments,
        state_dir=state_dir,
    )  # fmt: skip
    label = name or _label()
    if left.isStreaming and right.isStreaming:
        _prepare_session(left.sparkSession)
        joined = join_streams(left, right, definition, label)
    elif left.isStreaming or right.isStreaming:
        joined = join_static(left, right, definition)
    else:
        joined = join_batches(left, right, definition)
    return joined if result_time is None else _timed(joined, left, right, definition, result_time)


def define(
    left: DataFrame, right: DataFrame, on: str | E | None, windows: Windows,
    times: tuple[str | None, str | None], *, method: str = "auto", suffix: str = "_right",
    aliases: tuple[str, str] | None = None, segments: int | None = None, state_dir: str | None = None,
) -> Definition:  # fmt: skip
    """Everything that can be wrong about a join, found before it runs."""
    frames, session = (left, right), left.sparkSession
    streaming = [frame.isStreaming for frame in frames]
    _check_windows(windows, streaming)
    schemas = tuple(arrow_schema(frame, side) for side, frame in enumerate(frames))
    named = tuple(event_time(frame, side, times[side], windows) for side, frame in enumerate(frames))
    if (named[0] is None) != (named[1] is None):
        if windows.timed:
            raise WindowError("a time column is named for one input only; name one for both")
        named = (None, None)
    root = _root(session, state_dir)
    partitions = _setting(session, _PARTITIONS, 200)
    definition = Definition(
        schemas[0], schemas[1], _predicate(on), windows, (named[0], named[1]), method, suffix, aliases,
        segments=_segments(session, segments, partitions), partitions=partitions, root=root,
        marker=_marked(root), retain=_setting(session, "spark.sql.streaming.minBatchesToRetain", 100),
        scratch=f"batch-{uuid.uuid4().hex}", spread=any(streaming) and not all(streaming),
    )  # fmt: skip
    definition.spec  # noqa: B018 - refuses what cannot be joined
    if not all(streaming):
        atexit.register(open_store(root).remove_folder, definition.scratch)
    return definition


def _check_windows(windows: Windows, streaming: list[bool]) -> None:
    if all(streaming) and (windows.left is None or windows.right is None):
        raise WindowError(
            "a join of two streams needs a window on both, or its state would grow for ever; give one, such "
            'as window="15 minutes"'
        )
    if any(streaming) and not all(streaming) and (windows.left is not None or windows.right is not None):
        raise WindowError(
            "a stream joins a static DataFrame without windows: every row of it is there all the time; "
            "leave the window out"
        )


def _predicate(on: str | E | None) -> Expr:
    if on is None:
        return Literal(True, type=BOOL)
    if isinstance(on, str):
        return parse(on)
    if isinstance(on, E):
        return on.expr
    raise ExpressionError(f"the predicate must be SQL text or a built expression, not {type(on).__name__}")


def _segments(session: SparkSession, segments: int | None, partitions: int) -> int:
    if segments is not None:
        if segments < 1:
            raise UnsupportedError(f"segments is a whole number from 1 up; {segments!r} was given")
        return segments
    return max(min(partitions, _cores(session)), 1)


def _setting(session: SparkSession, name: str, default: int) -> int:
    return int(session.conf.get(name, None) or default)


def _cores(session: SparkSession) -> int:
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context to ask
        return 8


def _root(session: SparkSession, given: str | None) -> str:
    root = given or session.conf.get(_STATE, None)
    if root is None:
        checkpoints = session.conf.get("spark.sql.streaming.checkpointLocation", None)
        root = None if checkpoints is None else f"{checkpoints.rstrip('/')}/handshake-state"
    if root is None:
        if not (session.conf.get("spark.master", None) or "").startswith("local"):
            raise UnsupportedError(
                "a join on a cluster needs a directory that every executor reaches for its window's tuples; "
                f'pass state_dir="s3://…" (or a shared mount), or set {_STATE}'
            )
        root = "handshake-state"
    return root if "://" in root else os.path.abspath(root)


def _marked(root: str) -> str:
    """A file by which executors see that they look at the driver's directory."""
    marker = "handshake-state.marker"
    store = open_store(root)
    if not store.exists(marker):
        store.write(marker, [b"Tuples of stream joins; checkpoints refer to files in here.\n"])
    return marker


def _prepare_session(session: SparkSession) -> None:
    """Python state needs RocksDB; queries that began with another store keep it in their checkpoint."""
    if session.conf.get(_PROVIDER, None) != _ROCKSDB:
        session.conf.set(_PROVIDER, _ROCKSDB)
    partitions, cores = _setting(session, _PARTITIONS, 200), _cores(session)
    if partitions > 8 * cores:
        warnings.warn(
            f"{_PARTITIONS} is {partitions} on {cores} cores: every micro-batch runs that many tasks, most "
            f'of them empty; before the query first starts, call spark.conf.set("{_PARTITIONS}", {cores})',
            stacklevel=4,
        )


def _label() -> str:
    number = next(_numbers)
    return "handshake" if number == 1 else f"handshake_{number}"


def _timed(
    joined: DataFrame, left: DataFrame, right: DataFrame, definition: Definition, name: str
) -> DataFrame:
    if definition.times[0] is None or definition.times[1] is None:
        raise WindowError("result_time needs time columns on both inputs; name them (time=…)")
    if name in joined.columns:
        raise UnsupportedError(f"result_time='{name}' is the name of a column already; choose another")
    width = len(left.columns)
    left_at = [c.casefold() for c in left.columns].index(definition.times[0].casefold())
    right_at = width + [c.casefold() for c in right.columns].index(definition.times[1].casefold())
    columns = joined.columns
    delay = max(watermark_delay(left, definition.times[0]), watermark_delay(right, definition.times[1]))
    return with_event_time(joined, (columns[left_at], columns[right_at]), name, delay)
