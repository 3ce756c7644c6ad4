"""`handshake.join` for DataFrames: check the request, define the join, choose how it runs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from handshake.engines.spark.failures import reason
from handshake.engines.spark.joins.columns import translate_column
from handshake.engines.spark.joins.dataflow import join_batches, join_static, join_streams
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.directories import (
    check_root,
    new_scratch,
    prepare_folders,
    root_of,
    with_directory,
    with_folders,
)
from handshake.engines.spark.joins.explain import FramePlan, remember
from handshake.engines.spark.joins.files import check_late, check_results
from handshake.engines.spark.joins.inputs import (
    arrow_schema,
    check_idle,
    check_output,
    check_texts,
    event_time,
    qualifiers,
    watermark_delay,
)
from handshake.engines.spark.joins.late import LateListener
from handshake.engines.spark.joins.native import is_native, join_natively
from handshake.engines.spark.joins.pipelines import readable
from handshake.engines.spark.joins.refresh import check_refresh
from handshake.engines.spark.joins.result_time import add_result_time, check_result_time
from handshake.engines.spark.private import has_class
from handshake.engines.spark.workers import (
    check_driver_python,
    check_workers,
    use_this_python,
    versions,
)
from handshake.errors import ExpressionError, UnsupportedError, WindowError
from handshake.joins.numbered import add_mark, add_number
from handshake.joins.ranking import Ranking
from handshake.joins.spec import SIDES
from handshake.joins.waiting import BestMatch
from handshake.kinds import INNER, JoinKind, kind_of_join
from handshake.options import Options
from handshake.plan.build import Expression
from handshake.plan.expr import Expr, Literal
from handshake.plan.parse import parse
from handshake.schema import BOOL
from handshake.windows import Spec, Windows, windows_of

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_numbers = itertools.count(1)

Predicate = str | Expression | Column | None
"""SQL text, a built expression, or a condition in Spark's own notation."""


@dataclass(frozen=True)
class JoinRequest:
    """A join of two DataFrames as a value, without its options."""

    on: Predicate
    windows: Windows
    times: tuple[str | None, str | None]
    kind: JoinKind = INNER
    suffix: str = "_right"
    aliases: tuple[str, str] | None = None
    best: BestMatch | None = None
    ranking: Ranking | None = None


def join_frames(left: DataFrame, right: DataFrame, request: JoinRequest, options: Options) -> DataFrame:
    """Join DataFrames; the result streams if one of them does."""
    left, right = readable(left, 0), readable(right, 1)
    use_this_python(left.sparkSession)
    plan = plan_frames(left, right, request, options)
    if plan.name is None:
        number = next(_numbers)
        plan = replace(plan, name="handshake" if number == 1 else f"handshake_{number}")
    joined = _run_plan(left, right, plan)
    if callable(options.late_to):
        left.sparkSession.streams.addListener(LateListener(plan, options.late_to))
    return remember(joined, plan)


def explain_frames(
    left: DataFrame, right: DataFrame, on: Predicate, options: Options, *, window: Spec = None,
    left_window: Spec = None, right_window: Spec = None, time: str | None = None,
    left_time: str | None = None, right_time: str | None = None, how: str = "inner",
    suffix: str = "_right", aliases: tuple[str, str] | None = None, ordered: bool = False,
) -> str:  # fmt: skip
    """Explain how a join of DataFrames would run; it takes the arguments of `handshake.join`."""
    left, right = readable(left, 0), readable(right, 1)
    windows = windows_of(window, left_window, right_window)
    times = (left_time or time, right_time or time)
    request = JoinRequest(on, windows, times, kind_of_join(how), suffix, aliases)
    return plan_frames(left, right, request, options).explain()


def plan_frames(left: DataFrame, right: DataFrame, request: JoinRequest, options: Options) -> FramePlan:
    """Define a join, and choose how it runs."""
    definition = define(left, right, request, options)
    if options.name == "":
        raise UnsupportedError("name='' is empty; give the join a name such as 'matches', or leave it out")
    if any(definition.streaming):
        runs = "streaming" if all(definition.streaming) else "static"
    else:
        runs = "native" if is_native(left, right, definition) else "batch"
    if runs != "native":
        check_root(definition)
    return FramePlan(definition, runs, options.name)


def _run_plan(left: DataFrame, right: DataFrame, plan: FramePlan) -> DataFrame:
    """Return the DataFrame of a planned join."""
    definition, options = plan.definition, plan.definition.options
    if plan.runs != "native":
        check_workers(left.sparkSession)
        if options.state == "directory":
            definition = with_directory(left.sparkSession, definition, plan.runs)
    match plan.runs:
        case "streaming":
            prepare_session(left.sparkSession)
            prepare_folders(left.sparkSession, definition)
            joined = join_streams(left, right, definition, str(plan.name))
        case "static":
            joined = join_static(left, right, definition)
        case "native":
            joined = join_natively(left, right, definition)
        case _:
            joined = join_batches(left, right, definition)
    if options.result_time is not None and options.results_to is None:
        joined = add_result_time(joined, left, right, definition)
    return joined


_CHECKS = (check_idle, check_late, check_result_time, check_results, check_refresh)
"""The checks of options by the modules that use them; each raises an error if the join cannot have one."""


def define(left: DataFrame, right: DataFrame, request: JoinRequest, options: Options) -> Definition:
    """Return the definition of a join, which is sent to its tasks; every error shows here."""
    frames, session, windows = (left, right), left.sparkSession, request.windows
    streaming = (left.isStreaming, right.isStreaming)
    check_kind(request.kind, streaming)
    check_windows(windows, streaming)
    schemas = [arrow_schema(frame, side) for side, frame in enumerate(frames)]
    if request.ranking is not None:
        schemas = [add_number(schemas[0]), add_mark(schemas[1])]
    times = tuple(event_time(frame, side, request.times[side], windows) for side, frame in enumerate(frames))
    if (times[0] is None) != (times[1] is None):
        if windows.timed:
            raise WindowError("a time column is named for one input only; name one for both")
        times = (None, None)
    delays = tuple(watermark_delay(frame, time) for frame, time in zip(frames, times, strict=True))
    predicate, aliases = predicate_for(request.on, left, right, request.aliases)
    check_state(options, windows, streams=all(streaming))
    stored = options.state == "store"
    partitions = _setting(session, _PARTITIONS, 200)
    segments = options.segments or max(min(partitions, _cores(session)), 1)
    definition = Definition(
        schemas[0], schemas[1], predicate, windows, (times[0], times[1]), request.suffix, aliases,
        segments=segments, partitions=partitions if all(streaming) else segments,
        root="" if stored else root_of(session, options.state_dir, lasting=all(streaming)), marker="",
        retain=_setting(session, "spark.sql.streaming.minBatchesToRetain", 100), kind=request.kind,
        options=with_folders(session, options, streams=all(streaming)), scratch=new_scratch(),
        streaming=streaming, delays=(delays[0], delays[1]), calls_late=callable(options.late_to),
        ranking=request.ranking, best=request.best, versions=versions(),
    )  # fmt: skip
    for check in _CHECKS:
        check(definition)
    check_texts(definition, frames)
    check_output(definition, session.conf.get("spark.sql.caseSensitive", "false") == "true")
    return definition


def check_state(options: Options, windows: Windows, *, streams: bool) -> None:
    """Refuse `state="store"` for joins that keep no windows of time, and with a directory."""
    if options.state != "store":
        return
    if not streams:
        raise UnsupportedError(
            'state="store" keeps the windows of two streams, and an input is a batch DataFrame; leave it out'
        )
    if options.state_dir is not None:
        raise UnsupportedError(
            f"state=\"store\" needs no directory, and state_dir='{options.state_dir}' was given; leave one "
            "out"
        )
    if windows.counted:
        raise UnsupportedError(
            f'state="store" keeps windows of time, and the windows are {windows}: the order of rows may '
            "change if a task runs again; pass state_dir=…"
        )


def check_windows(windows: Windows, streaming: Sequence[bool]) -> None:
    """Raise `WindowError` if windows do not fit what streams: two streams need them, one takes none."""
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


def check_kind(kind: JoinKind, streaming: tuple[bool, bool]) -> None:
    """Refuse kinds that ask which rows of a static DataFrame match: a stream that passes by has no end."""
    for side, name in enumerate(SIDES):
        if kind.tracked[side] and any(streaming) and not streaming[side]:
            raise UnsupportedError(
                f"how='{kind.name}' asks which rows of the {name} DataFrame have a match, but that one is "
                "static, and the stream may bring a match at any time; preserve the side that streams "
                f"(how='{SIDES[1 - side]}'), or join two batch DataFrames"
            )


def predicate_for(
    on: Predicate, left: DataFrame, right: DataFrame, aliases: tuple[str, str] | None
) -> tuple[Expr, tuple[str, str] | None]:
    """Return the predicate, and the qualifiers that it may use in addition to `l` and `r`."""
    if isinstance(on, Column):
        return translate_column(on, left, right), None
    if on is None:
        return Literal(True, type=BOOL), aliases
    if isinstance(on, str):
        return parse(on), aliases or qualifiers(left, right)
    if isinstance(on, Expression):  # it uses l and r, whatever the names of the DataFrames
        found = aliases or qualifiers(left, right)
        return on.expr, aliases or (None if found and {*found} & {"l", "r"} else found)
    raise ExpressionError(
        f"the predicate must be SQL text, a built expression or a Column, not {type(on).__name__}"
    )


# Settings


def _setting(session: SparkSession, name: str, default: int) -> int:
    return int(session.conf.get(name, None) or default)


def _cores(session: SparkSession) -> int:
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context
        return 8


def prepare_session(session: SparkSession) -> None:
    """Set the RocksDB state store, which Python state needs; warn about too many shuffle partitions.

    Raises:
        UnsupportedError: The installed protobuf does not fit PySpark's messages, there is no RocksDB, or the
            driver lacks the Python of the workers.
    """
    check_driver_python(session)
    try:
        import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
    except Exception as error:  # protobuf has errors of its own for releases that do not fit
        raise UnsupportedError(
            f"a join of streams needs a protobuf that fits PySpark {pyspark.__version__}: {error}; "
            "install one, such as pip install 'protobuf>=6.33.5,<7'"
        ) from error
    _set_provider(session)
    partitions, cores = _setting(session, _PARTITIONS, 200), _cores(session)
    if partitions > 8 * cores:
        warnings.warn(
            f"{_PARTITIONS} is {partitions} on {cores} cores: every micro-batch runs that many tasks, most "
            f'of them empty; before the query first starts, call spark.conf.set("{_PARTITIONS}", {cores})',
            stacklevel=5,
        )


def _set_provider(session: SparkSession) -> None:
    """Set the state store, unless the platform has a RocksDB of its own."""
    if "RocksDB" not in (session.conf.get(_PROVIDER, None) or ""):
        try:
            session.conf.set(_PROVIDER, _ROCKSDB)
        except PySparkException as error:
            raise UnsupportedError(
                f"a join of streams needs the state store RocksDB, and {_PROVIDER} cannot be set here: "
                f"{reason(error)}; set it to {_ROCKSDB} where the session is configured"
            ) from error
    if not has_class(session, "org.rocksdb.RocksDB"):
        raise UnsupportedError(
            "a join of streams needs the state store RocksDB, and this Spark has no rocksdbjni jar; add it "
            "to Spark's jars, or start the session with spark.jars.packages=org.rocksdb:rocksdbjni:<version>"
        )
