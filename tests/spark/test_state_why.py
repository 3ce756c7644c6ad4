"""Questions to the state of a join: why two rows are a pair, and what became of each row."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import handshake
from cli_runs import run_here
from handshake import InputError, Why
from handshake.engines.spark.state.reading import read_state
from handshake.engines.spark.state.store import Store
from handshake.errors import ExpressionError
from handshake.kinds import KINDS
from handshake.windows import windows_of
from spark_steps import FILES, Cluster, definition_of
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


def held(found: Why, side: str) -> str:
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
        both = held(found, "left") == held(found, "right") == "holds"
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
