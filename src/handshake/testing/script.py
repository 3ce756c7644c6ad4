"""Scripted streams: rows in steps, with disorder, promises and restarts, run on any engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import handshake
from handshake.errors import InputError, SchemaError, UnsupportedError, WindowError
from handshake.io.frames import conform, schema_of, table_of
from handshake.joins.join import Join
from handshake.joins.plan import JoinPlan
from handshake.joins.spec import SIDES, common_unit
from handshake.metrics.spark_progress import observed_figures
from handshake.options import ENGINES
from handshake.schema import UNITS, Schema
from handshake.testing.assertions import as_table, assert_same_rows, row_counts
from handshake.testing.oracle import TIME, Advance, Result, of_kind, rows
from handshake.testing.reference import Described, JoinLike, check_join, describe, reference, result_table
from handshake.testing.steps import SparkSteps
from handshake.windows import Duration, Windows


@dataclass(frozen=True)
class Outcome:
    """The results of a script."""

    results: pa.Table
    late: int = 0
    """The number of late rows."""
    waiting: pa.Table | None = None
    """Rows without a match that may still wait for one in the end; None if the streams have ended."""


@dataclass(frozen=True)
class _Step:
    """Rows of both sides, promises about their times, or a restart."""

    left: pa.Table | None = None
    right: pa.Table | None = None
    promises: tuple[tuple[int, Any], ...] = ()
    restart: bool = False


@dataclass(frozen=True)
class Script:
    """The rows of two streams, step by step; frozen, so that each method returns a longer script.

    Args:
        left: The columns of the left stream: an Arrow schema, or anything that has one.
        right: The columns of the right stream.

    Examples:
        >>> import pyarrow as pa
        >>> event = pa.schema([("t", pa.timestamp("s")), ("id", pa.int64())])
        >>> script = Script(event, event).push(left={"t": [0], "id": [1]}, right={"t": [9], "id": [2]})
        >>> script = script.restart().push(right={"t": [4], "id": [1]})
        >>> join = {"on": "l.id = r.id", "window": "10 seconds", "time": "t", "lateness": "5 seconds"}
        >>> script.check(join).results.to_pylist()[0]["id"]
        1
    """

    left: Any
    right: Any
    steps: tuple[_Step, ...] = ()

    def push(self, left: Any = None, right: Any = None) -> Script:
        """Add a step that brings rows of one side or of both; on Spark it is one micro-batch.

        Args:
            left: Rows in any form that `handshake.join` takes. In process they arrive before the right ones.
            right: Rows of the right stream.
        """
        tables = [
            None if rows is None else table_of(conform(rows, schema, side))
            for rows, schema, side in zip((left, right), self._schemas(), SIDES, strict=True)
        ]
        return replace(self, steps=(*self.steps, _Step(tables[0], tables[1])))

    def advance(self, left: Any = None, right: Any = None) -> Script:
        """Promise that no older row of a side will come, as `Join.advance` does; not for Spark."""
        given = tuple((side, time) for side, time in enumerate((left, right)) if time is not None)
        return replace(self, steps=(*self.steps, _Step(promises=given)))

    def restart(self) -> Script:
        """Stop and start again.

        Spark repeats its last micro-batch from the checkpoint, as after a crash. A join in process has no
        checkpoint: a new one is fed all steps so far, as by a source with a log, and must give the same
        results.
        """
        return replace(self, steps=(*self.steps, _Step(restart=True)))

    def table(self, side: str) -> pa.Table:
        """Return all rows of the `left` or the `right` stream, in the order in which they come."""
        if side not in SIDES:
            raise InputError(f"a script has the streams left and right, and no '{side}'")
        tables = [t for step in self.steps if (t := getattr(step, side)) is not None]
        return pa.concat_tables([self._schemas()[SIDES.index(side)].empty_table(), *tables]).combine_chunks()

    def run(self, join: JoinLike, engine: str = "local", *, spark: Any = None, folder: Any = None) -> Outcome:
        """Run all steps on an engine, and end the streams.

        Args:
            join: The join, as for `reference`. `lateness` is also the delay of Spark's watermarks.
            engine: `local`, `spark` or `circuit`. A circuit takes all rows at once, by their times.
            spark: The session, for Spark.
            folder: An empty folder for files and checkpoint, for Spark.

        Returns:
            All results, and the number of late rows.

        Raises:
            AssertionError: A restart changed results.
            UnsupportedError: The engine cannot run such a script.
        """
        if engine == "local":
            return self._run_local(join)
        if engine == "spark":
            return self._run_spark(join, spark, folder)
        if engine == "circuit":
            return self._run_circuit(join)
        raise _no_engine(engine)

    def expect(self, join: JoinLike, engine: str = "local") -> Outcome:
        """Return what the engine must give, by the oracle and the rules of arrival on that engine.

        Args:
            join: The join, as for `reference`.
            engine: `local`, `spark` or `circuit`: they differ in which rows are late.
        """
        if engine not in ENGINES:
            raise _no_engine(engine)
        left, right = self.table("left"), self.table("right")
        described = describe(join, left.schema, right.schema)
        if engine == "circuit":
            return Outcome(reference(join, left, right))
        clocks = [_clock(t, n) for t, n in zip((left, right), described.times, strict=True)]
        if engine == "local":
            lateness = described.lateness if described.windows.timed else None
            result = described.match(left, right, lateness, list(self._arrivals(described)))
            return _outcome(described, left, right, result)
        pushes = [step for step in self.steps if not step.restart and not step.promises]
        arrivals, late, mark = _micro_batches(pushes, described, clocks)
        result = replace(
            described.match(left, right, None, arrivals), late=len(late), dropped=frozenset(late)
        )
        return _outcome(described, left, right, result, _final(described, arrivals, clocks, mark))

    def check(
        self, join: JoinLike, engine: str = "local", *, spark: Any = None, folder: Any = None
    ) -> Outcome:
        """Run the script, and assert that its results are the expected ones; return the outcome.

        Raises:
            AssertionError: They differ; the text shows how.
        """
        found = self.run(join, engine, spark=spark, folder=folder)
        expected = self.expect(join, engine)
        got = found.results
        if expected.waiting is not None:
            got = _without(got, expected.waiting, expected.results)
        assert_same_rows(got, expected.results, message=f"the {engine} engine differs from the reference")
        return found

    def _schemas(self) -> tuple[pa.Schema, pa.Schema]:
        return schema_of(self.left, "left"), schema_of(self.right, "right")

    def _arrivals(self, described: Described) -> Iterator[tuple[str, Any]]:
        """Return one row after the other, as a join in process takes them."""
        counts = [0, 0]
        for step in self.steps:
            for side, table in enumerate((step.left, step.right)):
                for _ in range(0 if table is None else len(table)):
                    yield SIDES[side], counts[side]
                    counts[side] += 1
            for side, time in step.promises:
                name = described.times[side]
                if name is None:
                    raise WindowError(f"no time column is named for the {SIDES[side]} input")
                one = conform({name: [time]}, pa.schema([self._schemas()[side].field(name)]), SIDES[side])
                yield SIDES[side], Advance(rows(table_of(one), name)[0][TIME])

    def _run_local(self, join: JoinLike) -> Outcome:
        made: list[list[pa.RecordBatch]] = []
        running = self._start(join)
        for number, step in enumerate(self.steps):
            if step.restart:
                running.close()
                running = self._start(join)
                again = [_do(running, earlier) for earlier in self.steps[:number]]
                message = f"results before the restart in step {number + 1} differ"
                assert_same_rows(_table(running, again), _table(running, made), message=message)
            made.append([] if step.restart else _do(running, step))
        made.append(running.finish())
        late = sum(stream.late for stream in running.metrics().streams)
        return Outcome(_table(running, made), late)

    def _start(self, join: JoinLike) -> Join:
        left, right = self._schemas()
        return Join(left=left, right=right, **_keywords(join))

    def _run_circuit(self, join: JoinLike) -> Outcome:
        if any(step.restart or step.promises for step in self.steps):
            raise UnsupportedError("a circuit takes all rows at once; leave restart() and advance() out")
        given = {name: value for name, value in _keywords(join).items() if name != "lateness"}
        found = handshake.join(self.table("left"), self.table("right"), engine="circuit", **given)
        return Outcome(as_table(found))

    def _run_spark(self, join: JoinLike, spark: Any, folder: str | Path | None) -> Outcome:
        if spark is None or folder is None:
            raise InputError("a script on Spark needs a session and an empty folder (spark=…, folder=…)")
        if any(step.promises for step in self.steps):
            raise UnsupportedError("on Spark only rows move the watermark; leave advance() out")
        given = dict(_keywords(join))
        late = given.pop("lateness", None) or "0 seconds"
        times = [given.get(f"{side}_time") or given.get("time") for side in SIDES]
        given.setdefault("name", "script")
        for time, schema, side in zip(times, self._schemas(), SIDES, strict=True):
            if time is not None:
                _check_event_time(schema.field(time), side)

        def build(left: Any, right: Any) -> Any:
            dated = (
                frame if time is None else frame.withWatermark(time, late)
                for frame, time in zip((left, right), times, strict=True)
            )
            return handshake.join(*dated, **given)

        steps = SparkSteps(spark, build, dict(zip(SIDES, self._schemas(), strict=True)), folder)
        for parts in _between_restarts(self.steps):
            if parts is None:
                steps.repeat()
            else:
                steps.run([{"left": step.left, "right": step.right} for step in parts])
        reports = (observed_figures(each).get(given["name"], {}) for each in steps.progress.values())
        return Outcome(steps.results, sum(figures.get("late") or 0 for figures in reports))


def scramble(
    left: Any,
    right: Any,
    *,
    time: str | None = None,
    disorder: str = "0 seconds",
    steps: int = 8,
    restarts: int = 0,
    seed: int = 0,
) -> Script:
    """Return a script that brings the rows of two tables in random steps, out of order.

    Args:
        left: The rows of the left stream, in any form that `handshake.join` takes.
        right: The rows of the right stream.
        time: The time column of both; rows come in its order, up to `disorder`. Without one, in their order.
        disorder: How far a row may come behind newer rows of its own stream.
        steps: The number of steps.
        restarts: The number of restarts, at random places.
        seed: Scripts of one seed are equal.

    Examples:
        >>> script = scramble({"x": [1, 2, 3]}, {"a": [2, 3]}, steps=2, restarts=1)
        >>> script.check({"on": "l.x = r.a"}).results.num_rows
        2
    """
    if steps < 1:
        raise InputError(f"a script has a number of steps from 1 up; {steps} was given")
    rng, tables = Random(seed), [table_of(left), table_of(right)]
    if time is not None:
        schemas = [Schema.from_arrow(table.schema, side) for table, side in zip(tables, SIDES, strict=True)]
        common_unit((schemas[0], schemas[1]), Windows(None, None), (time, time))  # raises if it is no time
        most = _length(disorder)
        tables = [_shuffle(rng, table, time, most) for table in tables]
    script = Script(tables[0].schema, tables[1].schema)
    edges = [[0, *sorted(rng.randint(0, len(t)) for _ in range(steps - 1)), len(t)] for t in tables]
    stops = {rng.randrange(steps) for _ in range(restarts)}
    for n in range(steps):
        parts = [t.slice(e[n], e[n + 1] - e[n]) for t, e in zip(tables, edges, strict=True)]
        script = script.push(*(part if len(part) else None for part in parts))
        script = script.restart() if n in stops else script
    return script


def _length(disorder: str) -> int:
    """Return a length of time in nanoseconds, or raise."""
    if not isinstance(disorder, str):
        raise WindowError(f"disorder is a length of time such as '5 seconds', not {disorder!r}")
    length = Duration.parse(disorder).nanoseconds
    if length < 0:
        raise WindowError(f"disorder cannot be negative; '{disorder}' is")
    return length


def _shuffle(rng: Random, table: pa.Table, time: str, most: int) -> pa.Table:
    clock = _clock(table, time)
    places = [(math.inf if now is None else now + rng.randint(0, most), n) for n, now in enumerate(clock)]
    return table.take(pa.array([n for _, n in sorted(places)], pa.int64()))


def _no_engine(engine: str) -> UnsupportedError:
    return UnsupportedError(f"there is no engine '{engine}'; there are {', '.join(ENGINES)}")


def _keywords(join: JoinLike) -> dict[str, Any]:
    if isinstance(join, (Join, JoinPlan)):
        raise UnsupportedError("a script starts joins itself; give the join as a dictionary of arguments")
    check_join(join)
    return dict(join)


def _clock(table: pa.Table, time: str | None) -> list[int | None]:
    return [row.get(TIME) for row in rows(table, time)]


def _check_event_time(field: pa.Field, side: str) -> None:
    if not pa.types.is_timestamp(field.type) or field.type.tz is None:
        raise SchemaError(
            f"Spark takes watermarks on timestamps with a zone only, and column '{field.name}' of the {side} "
            f"input is {field.type}; make it pyarrow.timestamp('us', 'UTC')"
        )


def _do(running: Join, step: _Step) -> list[pa.RecordBatch]:
    """Run a step in process."""
    made: list[pa.RecordBatch] = []
    if step.left is not None:
        made += running.push_left(step.left)
    if step.right is not None:
        made += running.push_right(step.right)
    if step.promises:
        made += running.advance(**{SIDES[side]: time for side, time in step.promises})
    return made


def _table(running: Join, made: Sequence[list[pa.RecordBatch]]) -> pa.Table:
    return pa.Table.from_batches([batch for step in made for batch in step], running.output_schema)


def _between_restarts(steps: Sequence[_Step]) -> Iterator[list[_Step] | None]:
    """Yield runs of steps; None stands for a restart that has steps before it."""
    part: list[_Step] = []
    begun = False
    for step in steps:
        if not step.restart:
            part.append(step)
            continue
        if part:
            yield part
            part, begun = [], True
        if begun:
            yield None
    if part:
        yield part


def _micro_batches(
    pushes: Sequence[_Step], described: Described, clocks: list[list[int | None]]
) -> tuple[list[tuple[str, int]], list[tuple[int, int]], float]:
    """Return the arrivals on Spark, the late rows, and the watermark at the last micro-batch, in nanoseconds.

    The watermark is that of the side that is further behind, in whole milliseconds. It moves between
    micro-batches. Inside one, rows arrive by time, ties left first; without times the sides take turns.
    """
    order: list[tuple[str, int]] = []
    late: list[tuple[int, int]] = []
    start, newest = [0, 0], [-math.inf, -math.inf]
    mark = -math.inf
    for step in pushes:
        mark = max(mark, min(newest) - described.lateness)
        here: list[tuple[float, int, int]] = []
        for side, table in enumerate((step.left, step.right)):
            for turn in range(0 if table is None else len(table)):
                index = start[side] + turn
                now = clocks[side][index]
                if described.windows.timed and now is None:
                    continue
                if described.windows.timed and now is not None and now < mark:
                    late.append((side, index))
                    continue
                here.append(
                    (turn if described.times[0] is None else math.inf if now is None else now, side, index)
                )
            known = [t for t in clocks[side][start[side] : start[side] + _size(table)] if t is not None]
            newest[side] = max([newest[side], *(t // UNITS["ms"] * UNITS["ms"] for t in known)])
            start[side] += _size(table)
        order += [(SIDES[side], index) for _, side, index in sorted(here)]
    return order, late, mark


def _size(table: pa.Table | None) -> int:
    return 0 if table is None else len(table)


def _final(
    described: Described, arrivals: Sequence[tuple[str, int]], clocks: list[list[int | None]], mark: float
) -> set[tuple[int, int]]:
    """Return the rows that have left their window for certain, so that a missing match is final."""
    final, counts = set(), {side: sum(s == side for s, _ in arrivals) for side in SIDES}
    seen = dict.fromkeys(SIDES, 0)
    for name, index in arrivals:
        side = SIDES.index(name)
        window, now = described.windows[side], clocks[side][index]
        if window is not None and (
            now is not None and now + window.size <= mark
            if window.timed
            else counts[name] > seen[name] + window.size
        ):
            final.add((side, index))
        seen[name] += 1
    return final


def _outcome(
    described: Described, left: pa.Table, right: pa.Table, result: Result,
    final: set[tuple[int, int]] | None = None,
) -> Outcome:  # fmt: skip
    """Return the results as tables; rows without a match that are not final may still wait."""
    pairs = of_kind(described.kind.name, result, (len(left), len(right)))
    if final is None or described.kind.pairs == "first":
        return Outcome(result_table(described, left, right, pairs), result.late)
    waits = [p for p in pairs if None in p and (int(p[0] is None), p[int(p[0] is None)]) not in final]
    sure = [p for p in pairs if p not in waits]
    tables = [result_table(described, left, right, each) for each in (sure, waits)]
    return Outcome(tables[0], result.late, tables[1])


def _without(found: pa.Table, waiting: pa.Table, expected: pa.Table) -> pa.Table:
    """Leave out rows that may be there or not."""
    spare = row_counts(found) - row_counts(expected)
    drop, kept = spare & row_counts(waiting), []
    for index in range(len(found)):
        (row,) = row_counts(found.slice(index, 1))
        if drop[row]:
            drop[row] -= 1
        else:
            kept.append(index)
    return found.take(pa.array(kept, pa.int64()))
