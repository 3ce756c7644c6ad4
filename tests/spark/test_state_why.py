"""Questions to the state of a join: why two rows are a pair, and what became of each row."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import handshake
from cli_runs import run_here
from handshake import InputError, Why
from handshake.engines.spark.state.reading import read_state
from handshake.engines.spark.state.store import Store
from handshake.engines.spark.state.why import best_match
from handshake.errors import ExpressionError
from handshake.joins.asof import AsOf
from handshake.joins.nearest import Nearest
from handshake.kinds import KINDS
from handshake.plan.parse import parse
from handshake.windows import windows_of
from spark_steps import FILES, Cluster, best_definition, definition_of
from spark_streams import BAND, RETAIN, SCHEMAS, SECOND, Stream
from strategies import Case


def run_batches(
    root: Path, window: str, how: str = "inner", on: str = BAND, aliases: tuple[str, str] | None = None
) -> tuple[Cluster, Stream, set]:
    """Run 14 micro-batches with NULL values and, under windows of time, late rows; return the pairs."""
    rng = Random(f"why {window} {how}")
    empty = tuple(schema.empty_table() for schema in SCHEMAS)
    case = Case(*empty, on, windows_of(window), "t", "u")
    definition = definition_of(
        *empty, case, 3, str(root), retain=RETAIN, tuning=FILES, kind=KINDS[how], aliases=aliases
    )
    cluster = Cluster(definition, Store(str(root)))
    stream = Stream(rng, lambda _: rng.choice((None, *range(0, 60, 3))), disorder=2 * SECOND)
    pairs = set()
    for _ in range(14):
        parts = stream.batch(4, 5)
        cluster.watermark = stream.watermark() + SECOND // 2  # a few rows are late
        for batch in cluster.run(parts):
            if {"l", "r"} <= {*batch.schema.names}:
                pairs |= {*zip(batch.column("l").to_pylist(), batch.column("r").to_pylist(), strict=True)}
    return cluster, stream, pairs


def ask(root: Path, stream: Stream, left: int, right: int) -> Why:
    rows = (
        dict(zip(schema.names, stream.rows[side][number], strict=True))
        for side, (schema, number) in enumerate(zip(SCHEMAS, (left, right), strict=True))
    )
    return handshake.why(*rows, state=root)


def outcome_of_held(found: Why, side: str) -> str:
    return next(c.outcome for c in found.conditions if c.what == f"{side} row in the state")


@pytest.mark.parametrize(
    ("window", "how"),
    [("6 seconds", "inner"), ("12 tuples", "inner"), ("6 seconds", "full"), ("6 seconds", "left_semi")],
)
def test_answers_agree_with_the_results(tmp_path: Path, window: str, how: str) -> None:
    _, stream, pairs = run_batches(tmp_path, window, how)
    rng, seen = Random(window), set()
    recent = [(n, m) for n in range(30, 56) for m in range(40, 70)]
    made = sorted(pair for pair in pairs if None not in pair)
    old = [(n, m) for n in range(20) for m in range(25) if abs(n / 4 - m / 5) < 2]
    for left, right in [*rng.sample(recent, 30), *made[-15:], *rng.sample(old, 15)]:
        found = ask(tmp_path, stream, left, right)
        seen.add(found.joined)
        both = outcome_of_held(found, "left") == outcome_of_held(found, "right") == "holds"
        assert found.joined is not True or both
        if how == "left_semi":
            continue
        if both:
            assert found.joined is ((left, right) in pairs), (left, right, str(found))
        elif found.joined is False:
            assert (left, right) not in pairs, (left, right, str(found))
    assert {True, False, None} <= seen


def test_each_row_says_what_became_of_it(tmp_path: Path) -> None:
    cluster, stream, pairs = run_batches(tmp_path, "6 seconds", "left")
    mark = cluster.watermark
    assert mark is not None
    kept = {row["l"] for row in rows_of(cluster, 0)}
    matched = {left for left, right in pairs if right is not None}
    details = {}
    for number, value, at in stream.rows[0]:
        found = ask(tmp_path, stream, number, 60)
        condition = next(c for c in found.conditions if c.what == "left row in the state")
        details[number] = str(condition)
        if value is None:
            assert condition.detail == "it can match nothing, so no segment keeps it"
        elif number in kept and at > mark - 6 * SECOND:
            state = "and it has matched" if number in matched else "and it has not matched so far"
            assert (condition.outcome, condition.detail.partition(", ")[2]) == ("holds", state)
            assert any(note.startswith("the left row waits for matches until") for note in found.notes)
        elif at <= mark - 6 * SECOND:
            assert (condition.outcome, condition.detail[:15]) == ("unknown", "it has expired,")
        else:
            assert condition.outcome == "fails"
            assert "behind the watermark: it was late, or has not come" in condition.detail
    assert found.notes[-1].startswith("this is the state after micro-batch 13, watermark 1970-01-01 00:00:")
    new = {"l": 999, "x": 3, "t": "1970-01-02 00:00:00"}
    told = handshake.why(new, {"r": 60}, state=tmp_path)
    assert "no   left row in the state: no segment holds it: it has not come" in str(told)


def rows_of(cluster: Cluster, side: int) -> list[dict[str, Any]]:
    (join,) = read_state(cluster.store.root).joins
    return [row for batch in join.rows(side) for row in batch.to_pylist()]


def test_the_command_takes_rows_by_some_of_their_columns(tmp_path: Path, capfd: Any) -> None:
    cluster, _, _ = run_batches(tmp_path, "6 seconds")
    why = partial(run_here, capfd, "state", "why", tmp_path)
    left, right = rows_of(cluster, 0)[-1], rows_of(cluster, 1)[-1]
    told = why(json.dumps({"l": left["l"]}), json.dumps({"r": right["r"]}))
    assert told.status == 0
    lines = told.out.splitlines()
    assert lines[1].split(": ")[1] == f"{left['x']} >= {right['a'] - 10}"
    assert sum(" row in the state: segment " in line for line in lines) == 2
    assert why('{"l": 0}', '{"r": 1}').complaint == (
        "the state holds no row of the left stream with these values, so the join's other columns are needed "
        "to say why: x, t"
    )
    assert "the left row is an object in JSON" in why("[1]", "{}").complaint
    assert "did you mean 'x'" in why('{"X": 0}', '{"r": 1}').complaint
    several = next(v for v in range(60) if sum(row["x"] == v for row in rows_of(cluster, 0)) > 1)
    assert (
        "rows of the left stream that the state holds have x = " in why(f'{{"x": {several}}}', "{}").complaint
    )


BANDED = parse("x BETWEEN a - 10 AND a + 10")
JOINS = {
    "the last of a key": AsOf(*SCHEMAS, None, [("x", "a")], ("t", "u"), tolerance="5 seconds"),
    "the next in a band": AsOf(
        *SCHEMAS, BANDED, None, ("t", "u"), "forward", "2 seconds", False, how="inner"
    ),
    "the next or last": AsOf(*SCHEMAS, None, [("x", "a")], ("t", "u"), "nearest", "2 seconds"),
    "the 2 nearest": Nearest(*SCHEMAS, BANDED, "ABS(l.x - r.a)", 2, windows_of("2 seconds"), ("t", "u")),
    "the nearest": Nearest(
        *SCHEMAS, None, "-l.x", 1, windows_of("now", right="3 s"), ("t", "u"), how="inner"
    ),
}


class BestMatches:
    """A join that chooses best matches, its rows, and its results by left row."""

    def __init__(self, root: Path, join: AsOf | Nearest) -> None:
        rng, tuning = Random(f"why {join}"), replace(FILES, reduced_from=1)
        self.cluster = Cluster(best_definition(join, 3, str(root), tuning), Store(str(root)))
        self.stream = Stream(rng, lambda _: rng.choice((None, *range(0, 60, 5))), disorder=2 * SECOND)
        self.results: dict[int, list[int | None]] = {}
        for _ in range(12):
            parts = self.stream.batch(4, 5)
            self.cluster.watermark = self.stream.watermark() + SECOND // 2  # a few rows are late
            self._take(self.cluster.run(parts))
            self._take(self.cluster.tick())

    def _take(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            for left, right in zip(batch.column("l").to_pylist(), batch.column("r").to_pylist(), strict=True):
                self.results.setdefault(left, []).append(right)

    def finish(self) -> None:
        """Let all left rows that wait become final."""
        self.cluster.watermark = 10**12
        self._take(self.cluster.tick())


@pytest.mark.parametrize("name", JOINS)
def test_best_matches_agree_with_the_results(tmp_path: Path, name: str) -> None:
    run = BestMatches(tmp_path, JOINS[name])
    waiting = [row["l"] for row in rows_of(run.cluster, 0)]
    known = sorted(row["r"] for row in rows_of(run.cluster, 1))
    made = [(left, right) for left, found in run.results.items() for right in found if right is not None]
    rng = Random(name)
    asked = {*product(waiting[:4], {*known, *rng.sample(range(60), 5)}), *made[-15:]}
    asked |= {(rng.randrange(48), rng.choice(known)) for _ in range(30)}
    answers = {pair: ask(tmp_path, run.stream, *pair) for pair in asked}
    run.finish()
    still_open = 0
    for (left, right), found in answers.items():
        is_result = right in run.results.get(left, [])
        assert found.joined is not True
        assert found.joined is None or not is_result, (left, right, str(found))
        assert (outcome_of_held(found, "left") == "holds") == (left in waiting)
        assert (outcome_of_held(found, "right") == "holds") == (right in known)
        if left in waiting:
            assert (found.joined is None) == is_result, (left, right, str(found))
            taken = [int(r) for r in re.findall(r"\br = (\d+)", found.notes[0])]
            assert taken == [r for r in run.results.get(left, []) if r is not None]
            still_open += is_result
    assert still_open


TEXTS = {
    "the last of a key": "as of, backward, within 5 seconds, on l.x = r.a",
    "the next in a band": (
        "as of, forward, within 2 seconds, not at the same time, on (x >= (a - 10)) AND (x <= (a + 10))"
    ),
    "the next or last": "as of, nearest, within 2 seconds, on l.x = r.a",
    "the 2 nearest": (
        "2 nearest by ABS(l.x - r.a) within 2 seconds and 2 seconds, on (x >= (a - 10)) AND (x <= (a + 10)); "
        "left rows without a match are kept, with NULLs"
    ),
    "the nearest": (
        "1 nearest by -l.x within now and 3 seconds, on all pairs; left rows without a match are dropped"
    ),
}
"""The descriptions in checkpoints, which earlier releases wrote, too."""


@pytest.mark.parametrize("name", JOINS)
def test_checkpoints_describe_best_matches(tmp_path: Path, name: str) -> None:
    join = JOINS[name]
    definition = best_definition(join, 3, str(tmp_path))
    plan = definition.properties
    assert plan["best match"] == TEXTS[name]
    named = {**plan, **{key: plan[key].replace("l.", "q.") for key in ("best match", "predicate")}}
    for given, aliases in ((plan, None), (plan, ("q", "s")), (named, ("q", "s"))):
        read = best_match(given, definition.spec, aliases)
        assert (read.kind, read.times, read.replaces) == (join.kind, join.times, join.replaces)
        assert read.held_windows() == join.held_windows()
        if isinstance(join, Nearest):
            assert (read.k, read.bound.ranking.by) == (join.k, join.bound.ranking.by)
        else:
            assert (read.direction, read.allow_exact_matches) == (join.direction, join.allow_exact_matches)


def test_best_matches_in_the_state_have_reasons(tmp_path: Path, capfd: Any) -> None:
    join = Nearest(*SCHEMAS, None, "ABS(l.x - r.a)", 2, windows_of("5 seconds"), ("t", "u"))
    cluster = Cluster(best_definition(join, 2, str(tmp_path)), Store(str(tmp_path)))
    rows = [(0, 7, 1), (1, 7, 4)], [(0, 9, 0), (1, 7, 3), (2, 8, 3), (3, 3, 5), (4, None, 5)]
    tables = (
        pa.Table.from_pylist([{a: n, b: x, c: at * SECOND} for n, x, at in side], schema)
        for side, schema in zip(rows, SCHEMAS, strict=True)
        for a, b, c in [schema.names]
    )
    cluster.run(tuple([table] for table in tables))
    cluster.watermark = 7 * SECOND
    assert [batch.column("r").to_pylist() for batch in cluster.tick()] == [[1, 2]]

    def explain(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
        found = run_here(capfd, "state", "why", tmp_path, json.dumps(left), json.dumps(right))
        return (found.out or found.complaint).splitlines()

    end = "  this is the state after micro-batch 1, watermark 1970-01-01 00:00:07.000000"
    worse = (
        "2 best by ABS(l.x - r.a): its value is 4; 2 right rows are better, the last of them r = 2, a = 8, "
        "u = 1970-01-01 00:00:03: its value is 1"
    )
    assert explain({"l": 1}, {"r": 3})[3:] == [
        "  yes  left row in the state: segment 1 holds it",
        "  yes  right row in the state: segment 0 holds it",
        f"  no   {worse}",
        "  the left row takes so far: r = 1, a = 7, u = 1970-01-01 00:00:03; r = 2, a = 8, u = 1970-01-01 "
        "00:00:03",
        "  the left row waits for matches until the watermark is 2 seconds later",
        "  the right row waits for matches until the watermark is 7.999999 seconds later",
        end,
    ]
    assert explain({"l": 1}, {"r": 1})[5] == (
        "  ?    2 best by ABS(l.x - r.a): its value is 0, rank 1 of 2 so far; the left row waits until the "
        "watermark is 2 seconds later"
    )
    final = {"l": 0, "x": 7, "t": "1970-01-01 00:00:01"}
    found = explain(final, {"r": 1})
    assert found[0] == "the rows join if what is marked ? holds"
    assert found[3::2] == [
        "  ?    left row in the state: it is final, 6 seconds behind the watermark; its result has come if "
        "it came in time",
        "  ?    2 best by ABS(l.x - r.a): its value is 0; fewer than 2 right rows that are held are better",
        end,
    ]
    assert explain(final, {"r": 3})[5] == f"  no   {worse}"
    late = {"r": 9, "a": 7, "u": "1970-01-01 00:00:06"}
    assert explain({"l": 1}, late)[4] == (
        "  no   right row in the state: no segment holds it, and it is 1 second behind the watermark: it was "
        "late, or has not come"
    )
    assert explain({"l": 1}, {"r": 9, "u": late["u"]}) == [
        "the state holds no row of the right stream with these values, so the join's other columns are "
        "needed to say why: a"
    ]


def test_right_rows_that_are_replaced_may_have_been_taken(tmp_path: Path) -> None:
    join = AsOf(*SCHEMAS, None, [("x", "a")], ("t", "u"), tolerance="1000 s")
    definition = best_definition(join, 1, str(tmp_path), replace(FILES, reduced_from=50))
    cluster, taken = Cluster(definition, Store(str(tmp_path))), []
    for start in range(0, 300, 20):
        numbers = range(start, start + 20)
        parts = (
            [pa.Table.from_pylist([{a: n, b: n % 3, c: n * SECOND} for n in numbers], schema)]
            for schema in SCHEMAS
            for a, b, c in [schema.names]
        )
        taken += cluster.run(tuple(parts))
        cluster.watermark = numbers.stop * SECOND
    assert 100 in pa.Table.from_batches(taken)["r"].to_pylist()
    assert 100 not in {row["r"] for row in rows_of(cluster, 1)}
    trade, quote = (
        {"l": 100, "x": 1, "t": "1970-01-01 00:01:40"},
        {"r": 100, "a": 1, "u": "1970-01-01 00:01:40"},
    )
    found = handshake.why(trade, quote, state=tmp_path)
    assert found.conditions[-2].detail.endswith("or a later row of its keys has replaced it")
    assert outcome_of_held(found, "right") == "unknown"
    waiting = handshake.why({"l": 298}, quote, state=tmp_path)
    assert (outcome_of_held(waiting, "right"), waiting.joined) == ("fails", False)


def test_what_a_state_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no state of a join in"):
        handshake.why({}, {}, state=tmp_path)
    with pytest.raises(InputError, match=r"says what its join is; leave window=… out"):
        handshake.why({}, {}, state=tmp_path, window="5 seconds")
    _, stream, _ = run_batches(tmp_path, "6 seconds", on="q.x < s.a", aliases=("q", "s"))
    with pytest.raises(ExpressionError, match=r"no input 'q' .*give the names of the inputs: aliases="):
        ask(tmp_path, stream, 50, 60)
    rows = {"l": 50, "x": 1, "t": 0}, {"r": 60, "a": 2, "u": 0}
    assert "s.a" not in str(handshake.why(*rows, state=tmp_path, aliases=("q", "s")))


def test_the_live_page_draws_a_join_of_dataframes(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from handshake.engines.spark.joins.explain import FramePlan, remember
    from handshake.page.about import frame_tree

    class Frame:
        """A holder of the plan, as the DataFrame of results is."""

    cluster, _, _ = run_batches(tmp_path, "6 seconds", "left")
    plan = FramePlan(cluster.definition, "streaming", "matches")
    tree = frame_tree(remember(Frame(), plan))
    assert tree["label"] == "results (l, x, t, r, a, u)"
    (join,) = tree["children"]
    assert join["label"].startswith("left join on ")
    assert [each["label"] for each in join["children"]] == ["window of 6 seconds"] * 2
    assert [each["children"][0]["label"] for each in join["children"]] == ["left", "right"]
