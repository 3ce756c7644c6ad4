"""The front door: build a plan, hand it to an engine, return results of the kind that was given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import pyarrow as pa

from handshake.engines.engine import engine as engine_of
from handshake.engines.engine import engine_module
from handshake.engines.inputs import Address
from handshake.engines.joins import JOIN, BestJoin, best_plan, fit_tables, join_plan
from handshake.errors import InputError
from handshake.io.frames import is_spark, kind_of, restore, table_of
from handshake.joins.asof import AsOf
from handshake.joins.lengths import Length
from handshake.joins.nearest import Nearest
from handshake.joins.plan import predicate_of
from handshake.joins.spec import SIDES
from handshake.joins.why.answer import Why
from handshake.joins.why.asof import explain_asof
from handshake.joins.why.nearest import explain_nearest
from handshake.joins.why.pairs import Given, ask_pair, given_rows, why_rows
from handshake.joins.why.streams import ask_streams
from handshake.joins.why.streams import why_streams as why_rows_of_streams
from handshake.kinds import kind_of_join
from handshake.operators.query import Query
from handshake.options import AsOfOptions, GivenOptions, NearestOptions, Options, check_names
from handshake.plan.algebra import Plan
from handshake.plan.build import Expression
from handshake.plan.query import parse_query
from handshake.windows import Spec, windows_of

__all__ = [
    "asof",
    "explain",
    "join",
    "listener",
    "nearest",
    "progress",
    "run",
    "spark_module",
    "watch",
    "why",
    "why_streams",
]

_UNKNOWN = pa.schema([])
"""The columns of an input that has not been looked at."""


def run(
    query: str | Plan,
    inputs: Mapping[str, Any],
    engine: str | None = None,
    **options: Unpack[GivenOptions],
) -> dict[str, Any]:
    """Run continuous queries on finite inputs, replayed as streams, or on Spark DataFrames.

    The same text gives the same results on every engine. Rows arrive by their time columns; if a stream has
    none, the streams take turns.

    Args:
        query: The text of the queries, or its plan.
        inputs: For each input stream, by name: an Arrow table or batch, a pandas or Polars frame, a dict of
            lists, a list of dicts, the path of a file or folder, or (for Spark) a DataFrame.
        engine: `local`, `spark` or `circuit`. By default `spark` for Spark DataFrames, else `local`.
        **options: See `handshake.options.Options`.

    Returns:
        The results by name: frames if all inputs are frames of one library, else Arrow tables. Spark
        DataFrames give DataFrames, which are streaming if an input is.

    Raises:
        QueryError: The text cannot be read.
        InputError: An input is missing, unknown, or does not fit its declaration.
        UnsupportedError: The engine cannot run the query, or does not take an option.

    Examples:
        >>> text = '''CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts int) TIMESTAMP BY Ts;
        ...           SELECT Symbol, max(Price) AS High FROM Trades [SIZE 60 ADVANCE 60 TIME]
        ...           GROUP BY Symbol INTO Highs'''
        >>> trades = {"Symbol": ["UBSN", "ABBN", "UBSN"], "Price": [10, 7, 12], "Ts": [0, 1, 2]}
        >>> run(text, {"Trades": trades})["Highs"].to_pylist()
        [{'Symbol': 'UBSN', 'High': 12}, {'Symbol': 'ABBN', 'High': 7}]
        >>> run(text, {"Trades": trades}, engine="circuit", groups=4)["Highs"].num_rows
        2
    """
    check_names(run, options, GivenOptions)
    plan = parse_query(query) if isinstance(query, str) else query
    text = query if isinstance(query, str) else ""
    given = {
        name: Address(str(each), query=text) if isinstance(each, (str, Path)) else each
        for name, each in inputs.items()
    }
    name = engine or ("spark" if any(map(is_spark, given.values())) else "local")
    results = engine_of(name).run(plan, given, Options(**options)).results()
    kinds = {
        "arrow" if isinstance(each, Address) or is_spark(each) else kind_of(each) for each in given.values()
    }
    return {name: each if is_spark(each) else restore(each, kinds) for name, each in results.items()}


def join(
    left: Any,
    right: Any,
    on: str | Expression | Any | None = None,
    *,
    window: Spec = None,
    left_window: Spec = None,
    right_window: Spec = None,
    time: str | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    how: str = "inner",
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    ordered: bool = False,
    engine: str | None = None,
    **options: Unpack[GivenOptions],
) -> Any:
    """Join two tables or frames on any predicate, as if they were streams under sliding windows.

    Rows arrive by time, so none is late. Without a window it is a plain join.

    Args:
        left: An Arrow table or batch, a pandas, Polars or Spark frame, a dict of lists or a list of dicts.
        right: The other input.
        on: The predicate: SQL text in which `l` and `r` are the inputs, a built expression, or (for Spark
            DataFrames) a Spark `Column`. Without one, all pairs that the windows allow are results.
        window: The window of both inputs, such as `"15 minutes"`, `"1000 tuples"`, `Time(…)`, `Tuples(…)`.
        left_window: The window of the left input, if it differs. `"now"`: its rows are not kept.
        right_window: The window of the right input, if it differs.
        time: The time column of both inputs; time windows need one.
        left_time: The time column of the left input, if it differs.
        right_time: The time column of the right input, if it differs.
        how: The kind of join: `inner`, `left`, `right`, `full`, `left_semi`, `left_anti`, `right_semi` or
            `right_anti`, or another spelling that Spark accepts. Circuits have inner joins only.
        suffix: Added to a column name of the right input that the left one has too.
        aliases: Other names for `l` and `r` in the predicate.
        ordered: Return results in the order of time.
        engine: `local`, `spark` or `circuit`. By default `spark` for Spark DataFrames, else `local`.
        **options: `method`, `algorithm`, `device`, `cores`, `pace`, `overload`, `room`, `on_shed`,
            `adapt`, `pin` and `late_to` for the local engine; `method`, `segments`, `state_dir`, `state`,
            `name`, `result_time`, `idle`, `refresh`, `late_to` and `results_to` for Spark; `cores` and
            `text` for a circuit. See `handshake.options.Options`.

    Returns:
        All columns of the left input, then those of the right; semi and anti joins have the columns of one
        input. A table or frame of the kind that was given: an Arrow table, a pandas or Polars frame, a Spark
        DataFrame (streaming if an input is); Arrow if the kinds differ.

    Raises:
        ExpressionError: The predicate cannot be read or typed.
        SchemaError: A column is missing, doubled, or no time.
        WindowError: A window has no meaning, or a time column is missing.
        UnsupportedError: The engine cannot run the join, or does not take an option.

    Examples:
        >>> join({"x": [1, 20]}, {"a": [5, 40]}, "ABS(l.x - r.a) <= 10").to_pylist()
        [{'x': 1, 'a': 5}]
        >>> join({"x": [1, 20]}, {"a": [5, 40]}, "ABS(l.x - r.a) <= 10", how="left_anti").to_pylist()
        [{'x': 20}]
    """
    check_names(join, options, GivenOptions)
    request = _plan_join(
        left, right, on, engine, window=window, left_window=left_window, right_window=right_window,
        time=time, left_time=left_time, right_time=right_time, how=how, suffix=suffix, aliases=aliases,
        ordered=ordered, **options,
    )  # fmt: skip
    return _run(request, left, right)


class _JoinRequest(NamedTuple):
    """A join of two inputs, and how to run it."""

    engine: str
    plan: Plan
    inputs: dict[str, Any]
    options: Options


def _run(request: _JoinRequest, left: Any, right: Any) -> Any:
    """Run a join; return its result in the kind of the inputs."""
    result = engine_of(request.engine).run(request.plan, request.inputs, request.options).results()[JOIN]
    return result if is_spark(result) else restore(result, {kind_of(left), kind_of(right)})


def _plan_join(
    left: Any, right: Any, on: Any, engine: str | None, *, window: Spec = None, left_window: Spec = None,
    right_window: Spec = None, time: str | None = None, left_time: str | None = None,
    right_time: str | None = None, how: str = "inner", suffix: str = "_right",
    aliases: tuple[str, str] | None = None, ordered: bool = False, **options: Unpack[GivenOptions],
) -> _JoinRequest:  # fmt: skip
    """Return the plan of a join; see `join` for the parameters."""
    options.setdefault("order", "time" if ordered else "any")
    wanted, kind = Options(**options), kind_of_join(how)
    windows, times = windows_of(window, left_window, right_window), (left_time or time, right_time or time)
    on_spark = _on_spark(left, right)
    wanted.check("spark" if on_spark else engine or "local")
    if on_spark:
        plan = engine_module("spark", "engine").frames_plan(
            left, right, on, windows, times, suffix=suffix, aliases=aliases, kind=kind
        )
        return _JoinRequest(engine or "spark", plan, {"left": left, "right": right}, wanted)
    a, b = table_of(left), table_of(right)
    plan = join_plan(
        a.schema, b.schema, predicate_of(on), windows, times, suffix=suffix, aliases=aliases, kind=kind
    )
    return _JoinRequest(engine or "local", plan, {"left": a, "right": b}, wanted)


_OF_A_JOIN = tuple(
    name
    for name, parameter in inspect.signature(_plan_join).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)
"""The keywords of `join` that are no options of runs."""


def asof(
    left: Any,
    right: Any,
    on: str | Expression | Any | None = None,
    *,
    by: str | Sequence[str | tuple[str, str]] | None = None,
    time: str | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    direction: str = "backward",
    tolerance: Length | None = None,
    allow_exact_matches: bool = True,
    how: str = "left",
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    engine: str | None = None,
    **options: Unpack[AsOfOptions],
) -> Any:
    """Join each left row with the right row that is best in time.

    Of several right rows at the best time, the one that comes last in the order of its columns is taken, so
    the result does not depend on the order of rows.

    Args:
        left: An Arrow table or batch, a pandas, Polars or Spark frame, a dict of lists or a list of dicts;
            its rows may be in any order.
        right: The other input.
        on: A further condition on pairs: SQL text in which `l` and `r` are the inputs, a built expression, or
            (for Spark DataFrames) a Spark `Column`.
        by: Columns that must be equal: a name, or names and pairs of names (left, right).
        time: The time column of both inputs.
        left_time: The time column of the left input, if it differs.
        right_time: The time column of the right input, if it differs.
        direction: `backward` takes the last right row at or before the left one, `forward` the first at or
            after it, `nearest` the nearer of both, and of equally near ones the earlier.
        tolerance: The largest distance in time, inclusive: a text such as `"5 seconds"`, a timedelta (of
            Python, NumPy or pandas) or `Time(…)`; streams need one.
        allow_exact_matches: Whether rows of equal times match.
        how: `left` keeps left rows without a match, with NULLs; `inner` drops them. As in `join`, other
            spellings such as `leftouter` are the same.
        suffix: Added to a column name of the right input that the left one has too.
        aliases: Other names for `l` and `r` in the condition.
        engine: `local` or `spark`. By default `spark` for Spark DataFrames, else `local`.
        **options: `cores` for joins with a condition, in process; `segments`, `state_dir`, `state`, `name`
            and `result_time` for Spark. See `handshake.options.Options`.

    Returns:
        All columns of the left input, then those of the right, one row per left row, in the order of the left
        input; of the kind that was given, or Arrow if the kinds differ. Spark DataFrames have no order; the
        result streams if the left one does, and a row comes once no better match can come.

    Raises:
        ExpressionError: The condition cannot be read or typed, or a key is missing.
        SchemaError: A column is missing, doubled, or no time.
        WindowError: A time column is not named, or the tolerance is no length of time.
        UnsupportedError: There is no such direction or kind, or the engine does not take an option.

    Examples:
        >>> trades = {"t": [3, 7], "symbol": ["A", "B"], "price": [10, 20]}
        >>> quotes = {"t": [1, 2, 6], "symbol": ["A", "A", "B"], "bid": [8, 9, 19]}
        >>> asof(trades, quotes, by="symbol", time="t").select(["price", "bid"]).to_pylist()
        [{'price': 10, 'bid': 9}, {'price': 20, 'bid': 19}]
        >>> asof(trades, quotes, "r.bid < 9", by="symbol", time="t", how="inner")["bid"].to_pylist()
        [8]
    """
    check_names(asof, options, AsOfOptions)
    join = AsOf(
        _UNKNOWN, _UNKNOWN, on, by, (left_time or time, right_time or time), direction, tolerance,
        allow_exact_matches, how=how, suffix=suffix, aliases=aliases,
    )  # fmt: skip
    return _run(_plan_best(left, right, join, engine, Options(**options)), left, right)


def _plan_best(
    left: Any, right: Any, join: AsOf | Nearest, engine: str | None, options: Options
) -> _JoinRequest:
    """Return the plan of a join that chooses best matches."""
    on_spark = _on_spark(left, right)
    name = engine or ("spark" if on_spark else "local")
    options.check(name)
    inputs = (left, right) if on_spark else (table_of(left), table_of(right))
    fit = spark_module("joins.best").fit_frames if on_spark else fit_tables
    return _JoinRequest(name, best_plan(fit(*inputs, join)), {"left": inputs[0], "right": inputs[1]}, options)


def _plan_named(
    function: Callable[..., Any], left: Any, right: Any, on: Any, engine: str | None, given: dict[str, Any]
) -> _JoinRequest:
    """Return the plan of `asof` or `nearest` with these keywords."""
    kind = AsOf if function is asof else Nearest
    names = [name for name in inspect.signature(function).parameters if name != "options"]
    check_names(explain, given, kind.options, names)
    options = Options(**{name: given.pop(name) for name in kind.options.__annotations__ if name in given})
    times, windows = (
        [given.pop(f"{side}{what}", None) for side in ("", "left_", "right_")] for what in ("time", "window")
    )
    if kind is Nearest:
        given["windows"] = windows_of(*windows)
    named = (times[1] or times[0], times[2] or times[0])
    join = kind(_UNKNOWN, _UNKNOWN, on, given.pop("by", None), times=named, **given)
    return _plan_best(left, right, join, engine, options)


def nearest(
    left: Any,
    right: Any,
    on: str | Expression | Any | None = None,
    *,
    by: str | Expression,
    k: int = 1,
    window: Spec = None,
    left_window: Spec = None,
    right_window: Spec = None,
    time: str | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    how: str = "left",
    rank: str | None = "rank",
    value: str | None = None,
    suffix: str = "_right",
    aliases: tuple[str, str] | None = None,
    engine: str | None = None,
    **options: Unpack[NearestOptions],
) -> Any:
    """Join each left row with its k best matches by any ranking.

    The match with the least value of `by` is best; NaN and then NULL come last. Of matches with equal values,
    the one that comes last in the order of its columns is better, so the result does not depend on the order
    of rows.

    Args:
        left: An Arrow table or batch, a pandas, Polars or Spark frame, a dict of lists or a list of dicts.
            A Spark DataFrame may stream.
        right: The other input; a Spark DataFrame may stream if the left one does.
        on: The condition on pairs: SQL text in which `l` and `r` are the inputs, a built expression, or (for
            Spark DataFrames) a Spark `Column`. Without one, all pairs that the windows allow are matches.
        by: The ranking: SQL text such as `"ABS(l.price - r.mid)"`, or a built expression.
        k: The number of matches per left row, at most.
        window: The window of both inputs, as for `join`.
        left_window: The window of the left input, if it differs.
        right_window: The window of the right input, if it differs.
        time: The time column of both inputs; time windows need one.
        left_time: The time column of the left input, if it differs.
        right_time: The time column of the right input, if it differs.
        how: `left` keeps left rows without a match, with NULLs; `inner` drops them.
        rank: The name of the column with the rank of each match, from 1 up; None leaves it out.
        value: The name of a column for the value of `by`, if it is wanted.
        suffix: Added to a column name of the right input that the left one has too.
        aliases: Other names for `l` and `r` in `on` and `by`.
        engine: `local` or `spark`. By default `spark` for Spark DataFrames, else `local`.
        **options: `cores` for tables and frames; `segments`, `state_dir` and `name` for Spark. See
            `handshake.options.Options`.

    Returns:
        All columns of the left input, those of the right, the rank and the value. Left rows are in their
        order, the matches of each by rank; Spark gives no order. Of the kind that was given, or Arrow if the
        kinds differ.

    Raises:
        ExpressionError: The condition or the ranking cannot be read or typed, or has no order.
        SchemaError: A column is missing, doubled, or no time.
        WindowError: A window has no meaning, or a time column is missing.
        UnsupportedError: k is no number from 1 up, there is no such kind, only the right input is a
            Spark stream, or an option is not for this engine.

    Examples:
        >>> rooms, sensors = {"room": ["A", "B"], "x": [2, 9]}, {"sensor": [1, 2, 3], "at": [1, 4, 8]}
        >>> found = nearest(rooms, sensors, by="ABS(l.x - r.at)", k=2, value="off")
        >>> found.select(["room", "sensor", "rank", "off"]).to_pylist()[:2]
        [{'room': 'A', 'sensor': 1, 'rank': 1, 'off': 1}, {'room': 'A', 'sensor': 2, 'rank': 2, 'off': 2}]
        >>> nearest(rooms, sensors, "r.at < l.x", by="l.x - r.at")["sensor"].to_pylist()
        [1, 3]
    """
    check_names(nearest, options, NearestOptions)
    join = Nearest(
        _UNKNOWN, _UNKNOWN, on, by, k, windows_of(window, left_window, right_window),
        (left_time or time, right_time or time), rank, value, how=how, suffix=suffix, aliases=aliases,
    )  # fmt: skip
    return _run(_plan_best(left, right, join, engine, Options(**options)), left, right)


def spark_module(name: str) -> Any:
    """Import a module of the Spark engine, whose packages come with an extra."""
    return engine_module("spark", name)


def _on_spark(left: Any, right: Any) -> bool:
    """Return true if both inputs are Spark DataFrames; refuse one alone."""
    found = is_spark(left), is_spark(right)
    if found[0] != found[1]:
        other = ("left", "right")[found.index(False)]
        kind = type((left, right)[found.index(False)])
        raise InputError(
            f"one input is a Spark DataFrame, but the {other} one is a {kind.__module__}.{kind.__name__}; "
            f"make it one, too ({other} = spark.createDataFrame({other})), or collect the other (toPandas())"
        )
    return all(found)


def explain(
    query: Any,
    right: Any = None,
    on: str | Expression | Any | None = None,
    *,
    function: Callable[..., Any] = join,
    engine: str | None = None,
    **options: Any,
) -> str:
    """Return how a query or a join would be run.

    Args:
        query: The text of a query, its plan, a running `Query` or `Join`, a Spark DataFrame that `join`
            returned, or the left input of a join.
        right: The right input of a join.
        on: The predicate of a join.
        function: The function that would join two inputs: `join`, `asof` or `nearest`.
        engine: `local`, `spark` or `circuit`. By default `spark` for Spark DataFrames, else `local`.
        **options: Those of `run` for a text or a plan, those of the function for two inputs.

    Raises:
        InputError: One input is given that is none of these.
        HandshakeError: The query or join cannot run.

    Examples:
        >>> print(explain({"x": [1]}, {"a": [5]}, "l.x = r.a").splitlines()[2])
        method      hash: 1 equality conjunct(s) between the sides
        >>> print(explain("CREATE INPUT STREAM S (a int, b int); SELECT b FROM S INTO T"))
        T (b int32)
        └─ π b
           └─ S
        >>> print(explain({"t": [1]}, {"t": [0]}, function=asof, time="t").splitlines()[2])
        search      one pass over both inputs in the order of time
    """
    if right is not None and function in (asof, nearest):
        request = _plan_named(function, query, right, on, engine, options)
        return engine_of(request.engine).explain(request.plan, request.options)
    if right is not None:
        check_names(explain, options, GivenOptions, _OF_A_JOIN)
        request = _plan_join(query, right, on, engine, **options)
        if is_spark(query) and request.engine == "spark":
            of_join = {name: options[name] for name in _OF_A_JOIN if name in options}
            frames = spark_module("joins.frames")
            return str(frames.explain_frames(query, right, on, request.options, **of_join))
        return engine_of(request.engine).explain(request.plan, request.options)
    if is_spark(query):
        return str(spark_module("joins.explain").explain_result(query))
    if isinstance(query, (str, Plan)):
        check_names(explain, options, GivenOptions)
        plan = parse_query(query) if isinstance(query, str) else query
        return engine_of(engine or "local").explain(plan, Options(**options))
    if hasattr(query, "explain"):
        return str(query.explain())
    raise InputError(
        "explain takes the text of a query, a running query or join, two inputs, or a Spark DataFrame that "
        "handshake.join returned"
    )


def progress(query: Any) -> tuple[Any, ...]:
    """Return what the joins of a streaming query on Spark did in its last micro-batch with rows.

    Args:
        query: The `StreamingQuery`, a `StreamingQueryProgress`, its dict or its JSON text.

    Returns:
        One `JoinProgress` per join: rows, results, comparisons, late rows, window sizes, state bytes, lag,
        the time of the micro-batch, and the same for each segment.
    """
    found: tuple[Any, ...] = spark_module("progress").progress(query)
    return found


def listener(tell: Callable[[Any], object]) -> Any:
    """Return a `StreamingQueryListener` that calls `tell` with the `JoinProgress` of every micro-batch.

    Register it once per session: `spark.streams.addListener(handshake.listener(print))`.

    Args:
        tell: Called with each `JoinProgress`.
    """
    return spark_module("progress").JoinListener(tell)


def watch(query: Any, seconds: float | None = None, **options: Any) -> None:
    """Show the joins of a streaming query live in the terminal, until it ends.

    If standard output is no terminal, a line per micro-batch is printed.

    Args:
        query: The `StreamingQuery`.
        seconds: Stop after this time.
        **options: See `handshake.engines.spark.console.watch`.
    """
    spark_module("console").watch(query, seconds, **options)


class _NoOptions(TypedDict):
    """The options of a function that takes none."""


def why(
    left_row: Any,
    right_row: Any,
    on: Any = None,
    *,
    function: Callable[..., Any] = join,
    window: Spec = None,
    left_window: Spec = None,
    right_window: Spec = None,
    time: str | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    how: str | None = None,
    left: Any = None,
    right: Any = None,
    watermark: Any = None,
    aliases: tuple[str, str] | None = None,
    state: str | Path | None = None,
    query: str | None = None,
    join: str | None = None,
    **options: Any,
) -> Why:
    """Explain why two rows are a pair of a join, or why they are not.

    Args:
        left_row: A row of the left input: a dict of its values, a frame of one row, or, if `left` is the
            whole input, the number of the row there, counted from 0.
        right_row: A row of the right input.
        on: The predicate, as for `handshake.join`; or a running join or a plan of `prepare`, which also say
            the rest. A running join knows what has become of the rows, too.
        function: The function that would join the inputs: `join`, `asof` or `nearest`. The last two need the
            right input (`right`) to say which row is a better match.
        window: The window of both sides.
        left_window: The window of the left side, if it differs.
        right_window: The window of the right side, if it differs.
        time: The time column of both inputs.
        left_time: The time column of the left input, if it differs.
        right_time: The time column of the right input, if it differs.
        how: The kind of join, to see what becomes of rows without a match.
        left: The left input, or its Arrow schema. Windows of tuples need the whole of both inputs.
        right: The right input, or its Arrow schema.
        watermark: The watermark when the later of the rows arrived, as a value of the time column or its
            text. If it has passed one row only, that row was late unless it came first. If it has passed
            both, one was late.
        aliases: Other names for `l` and `r` in the predicate.
        state: The state directory of a streaming join on Spark, which has its predicate and its windows. Rows
            are dicts then, and for rows that the state holds, some of the columns suffice.
        query: The start of the query's id, if the state is of several queries.
        join: The name of the join in the state, if there are several.
        **options: The other arguments of `asof` (`by`, `direction`, `tolerance`, `allow_exact_matches`) or of
            `nearest` (`by`, `k`).

    Returns:
        Each condition with its outcome and its values. `joined` says whether the rows are a pair, `reasons`
        has the conditions that do not hold.

    Raises:
        InputError: A row is not there, or has no values; or there is no state.

    Examples:
        >>> print(why({"x": 7, "t": 0}, {"a": 9, "t": 12}, "l.x BETWEEN r.a - 5 AND r.a AND r.a > 3",
        ...           window="10 seconds", time="t"))
        the rows do not join
          yes  l.x >= (r.a - 5): 7 >= 4
          yes  l.x <= r.a: 7 <= 9
          yes  r.a > 3: 9 > 3
          no   left window of 10 seconds: the right row is 12 seconds later
          yes  right window of 10 seconds: the left row is not later
        >>> quotes = {"t": [1, 4], "bid": [8, 9]}
        >>> print(why({"t": 5}, 0, function=asof, right=quotes, time="t", tolerance="10 seconds"))
        the rows do not join
          yes  right row at or before the left row: it is 4 seconds earlier
          yes  within 10 seconds: the right row is 4 seconds earlier
          no   best match: another right row is better, t = 4, bid = 9: it is 1 second away, not 4 seconds
          the left row takes: t = 4, bid = 9
    """
    given = {
        "window": window, "left_window": left_window, "right_window": right_window, "time": time,
        "left_time": left_time, "right_time": right_time, "how": how, "left": left, "right": right,
        "watermark": watermark, **options,
    }  # fmt: skip
    if state is not None:
        _check_absent({"on": on, **given}, f"the state in '{state}' says what its join is")
        ask = spark_module("state.why").why_in_state
        return cast(Why, ask(str(state), left_row, right_row, query=query, join=join, aliases=aliases))
    for name, value in (("query", query), ("join", join)):
        if value is not None:
            raise InputError(
                f"{name}=… names a join in a state, and no state is given (state=…); a running join is the "
                "third argument"
            )
    asked = ask_pair(on)
    if asked is not None:
        _check_absent({**given, "aliases": aliases}, "the join says what it is")
        return asked(left_row, right_row)
    if function in (asof, nearest):
        return _why_best(function, given_rows((left_row, right_row), (left, right)), on, aliases, given)
    check_names(why, options, _NoOptions)
    return why_rows(
        (left_row, right_row), (left, right), on, windows_of(window, left_window, right_window),
        (left_time or time, right_time or time), watermark=watermark, aliases=aliases,
        kind=kind_of_join(how or "inner"),
    )  # fmt: skip


def _why_best(
    function: Callable[..., Any], rows: Given, on: Any, aliases: tuple[str, str] | None, given: dict[str, Any]
) -> Why:
    """Explain two rows of a join that chooses best matches."""
    if given.pop("watermark") is not None:
        raise InputError(
            "no row of tables is late, so there is no watermark; leave watermark=… out, or ask a running join"
        )
    named = {name: value for name, value in given.items() if value is not None and name not in SIDES}
    left, right = (row.schema.empty_table() for row in rows.rows)
    best = _plan_named(function, left, right, on, None, {**named, "aliases": aliases}).plan.outputs[0].input
    assert isinstance(best, BestJoin)
    if isinstance(best.best, AsOf):
        others = rows.wholes[1]
        return explain_asof(best.best, rows.rows, others if isinstance(others, pa.Table) else None)
    return explain_nearest(best.best, rows)


def why_streams(
    rows: Mapping[str, Any],
    on: Any = None,
    *,
    query: str | Plan | None = None,
    streams: Mapping[str, Any] | None = None,
    window: Spec = None,
    windows: Mapping[str, Spec] | None = None,
    time: str | Mapping[str, str] | None = None,
) -> Why | tuple[Why, ...]:
    """Explain why rows of several streams, one of each, are a result of their join, or why they are not.

    Args:
        rows: A row of each stream by its name: a dict of its values, a frame of one row, or, if `streams` has
            the whole input, the number of the row there, counted from 0.
        on: The predicate, as for `join_streams`; or a running `MultiJoin` or `Query`, which also say the
            rest.
        query: The text of a query, or its plan, instead of a predicate. Streams have the names that they have
            in its joins.
        streams: The inputs by name, or their Arrow schemas. Windows of tuples need whole inputs, and as-of
            joins in a query that of the right stream.
        window: The window of streams that have none of their own.
        windows: Windows by the names of their streams.
        time: The time column: one name for all streams, or names by stream.

    Returns:
        The answer as of `why`; of a query, the answers of all its window joins that have a row of each
        stream.

    Raises:
        InputError: A row is not there, or is of no stream.
        UnsupportedError: The query joins no streams.

    Examples:
        >>> rows = {"a": {"x": 1, "t": 0}, "b": {"y": 2, "t": 3}, "c": {"z": 2, "t": 9}}
        >>> print(why_streams(rows, "a.x < b.y AND b.y < c.z", window="8 seconds", time="t"))
        the rows do not join
          yes  a.x < b.y: 1 < 2
          no   b.y < c.z: 2 < 2
          no   window of a, 8 seconds: the row of c is 9 seconds later
          yes  window of b, 8 seconds: the row of c is 6 seconds later
          yes  window of c, 8 seconds: the row of b is not later
    """
    given = {"window": window, "windows": windows, "time": time}
    if query is not None:
        _check_absent({"on": on, **given}, "the query says what its joins are")
        return Query(query, optimised=False).why(rows, streams)
    if isinstance(on, Query):
        _check_absent(given, "the query says what its joins are")
        return on.why(rows, streams)
    asked = ask_streams(on)
    if asked is not None:
        _check_absent({**given, "streams": streams}, "the join says what it is")
        return asked(rows)
    return why_rows_of_streams(rows, on, streams or {}, window=window, windows=windows, time=time)


def _check_absent(given: Mapping[str, Any], reason: str) -> None:
    extra = next((name for name, value in given.items() if value is not None), None)
    if extra is not None:
        raise InputError(f"{reason}; leave {extra}=… out")
