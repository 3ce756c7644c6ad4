"""Tests of `late_to`: every late row comes once, with how late it was."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import handshake
from handshake import AsOfJoin, Join, MultiJoin, NearestJoin, Query
from handshake.errors import InputError, SchemaError, UnsupportedError
from handshake.joins.late import LateRows, LateStream
from handshake.options import Options

EVENT = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("k", pa.int64())])


def pushes(rng: Random, count: int = 12):
    number = 0
    for _ in range(count):
        times = [rng.choice((None, *[rng.randint(0, 40)] * 9)) for _ in range(rng.randint(0, 5))]
        rows = [{"t": t, "n": number + i, "k": rng.choice((None, 0, 1))} for i, t in enumerate(times)]
        number += len(rows)
        yield rng.randint(0, 1), rows


def late_rows(steps, lateness: int, results: tuple[str, ...]):
    """Yield the late rows, by a plain loop: side, number, and how far behind the watermark.

    Rows without a time have no such distance; those of sides whose rows are results are not lost.
    """
    newest: list[int | None] = [None, None]
    for side, rows in steps:
        for row in rows:
            now = row["t"]
            if now is None:
                if ("left", "right")[side] not in results:
                    yield side, row["n"], None
                continue
            mark = None if None in newest else min(newest) - lateness
            if mark is not None and now < mark:
                yield side, row["n"], mark - now
            else:
                newest[side] = max(now, newest[side] if newest[side] is not None else now)


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@pytest.mark.parametrize("cores", [1, 2])
def test_every_late_row_comes_once(how, cores):
    for seed in range(15):
        steps, found = list(pushes(Random(seed))), []
        lateness = seed % 4

        def take(side, batch, found=found):
            for row in batch.to_pylist():
                seconds = None if row["late_by"] is None else row["late_by"] // timedelta(seconds=1)
                found.append((("left", "right").index(side), row["n"], seconds))

        options = {"window": "5 seconds", "time": "t", "lateness": f"{lateness} seconds", "how": how}
        join = Join(left=EVENT, right=EVENT, on="l.k = r.k", cores=cores, late_to=take, **options)
        for side, rows in steps:
            if rows:
                (join.push_left, join.push_right)[side](rows)
        join.finish()
        results = {"inner": (), "left": ("left",), "full": ("left", "right")}[how]
        assert sorted(found, key=str) == sorted(late_rows(steps, lateness, results), key=str)
        late = sum(stream.late for stream in join.metrics().streams)
        assert late == sum(seconds is not None for _, _, seconds in found)


def test_a_folder_gets_files_that_no_other_run_replaces(tmp_path):
    folder = tmp_path / "a" / "late"
    for run in range(2):
        with Join(left=EVENT, right=EVENT, on="l.k = r.k", window="5 s", time="t", late_to=folder) as join:
            join.push_left([{"t": 100, "n": 0, "k": 0}])
            join.push_right([{"t": 90, "n": 1, "k": 0}, {"t": 10, "n": 10 * run + 2, "k": 0}])
            join.push_right([{"t": 11, "n": 10 * run + 3, "k": 0}])
    assert [path.name for path in folder.iterdir()] == ["right"]
    files = sorted((folder / "right").iterdir())
    assert [pq.read_table(path)["n"].to_pylist() for path in files] == [[2, 3], [12, 13]]
    late = pq.read_table(folder / "right")
    assert late["late_by"].type == pa.duration("s")
    assert late["late_by"].to_pylist() == [timedelta(seconds=80), timedelta(seconds=79)] * 2


def test_files_appear_while_the_join_runs(tmp_path):
    """A crash loses the rows of the last minute at most, if late rows go on coming."""
    schema, now = pa.schema([("n", pa.int64())]), 0.0
    rows = LateRows(tmp_path, [LateStream("a", schema, "s")], clock=lambda: now)
    batch = pa.record_batch({"n": [1, 2]}, schema)
    for now in (0.0, 59.0, 61.0, 62.0):
        rows.add(0, batch, np.array([3, 4], np.uint64))
        assert len(list((tmp_path / "a").glob("*"))) == (now > 60.0)
    rows.add(0, batch.take(pa.array([0] * (1 << 17))), np.ones(1 << 17, np.uint64))
    assert len(list((tmp_path / "a").glob("*"))) == 2
    rows.add(0, batch, None)
    rows.close()
    assert [each.num_rows for each in map(pq.read_table, sorted((tmp_path / "a").iterdir()))] == [
        6, (1 << 17) + 2, 2,
    ]  # fmt: skip


def test_days_are_a_distance():
    found = []
    day = pa.schema([("t", pa.date32())])
    join = Join(
        left=day, right=day, window="5 days", time="t", late_to=lambda side, batch: found.append(batch)
    )
    join.push_left({"t": [date(2026, 1, 9)]})
    join.push_right({"t": [date(2026, 1, 9), date(2026, 1, 2)]})
    join.close()
    assert found[0]["late_by"].to_pylist() == [timedelta(days=7)]


@pytest.mark.parametrize("pace", [None, 1e6])
def test_tables_have_no_late_rows_but_rows_without_a_time(tmp_path, pace):
    left, right = {"t": [3, None, 1], "n": [0, 1, 2]}, {"t": [2, None], "n": [3, 4]}
    found = []
    take = lambda name, batch: found.append((name, batch.to_pylist()))  # noqa: E731
    for how, lost in (("inner", {"left", "right"}), ("left", {"right"})):
        options = {"window": "5 s", "time": "t", "how": how, "pace": pace}
        expected = handshake.join(left, right, **options)
        found.clear()
        results = handshake.join(left, right, late_to=take, **options)
        assert results.num_rows == expected.num_rows
        assert {name for name, _ in found} == lost
    assert found == [("right", [{"t": None, "n": 4, "late_by": None}])]


TEXT = """CREATE INPUT STREAM A (t int, n int) TIMESTAMP BY t LATENESS 2;
CREATE INPUT STREAM B (t int, n int) TIMESTAMP BY t;
SELECT count(*) AS c FROM A [SIZE 5 ADVANCE 5 TIME] INTO Counts;
SELECT A.n, B.n AS m FROM A [SIZE 5 TIME] JOIN B [SIZE 5 TIME] ON A.n = B.n INTO Pairs"""


def test_queries_keep_rows_that_are_behind_their_clocks(tmp_path):
    found = []
    with Query(TEXT, late_to=lambda name, batch: found.append((name, batch.to_pylist()))) as query:
        query.push("A", {"t": [10, 9, 7, None, 12], "n": [0, 1, 2, 3, 4]})
        query.push("A", {"t": [9, 10], "n": [5, 6]})
        query.push("B", {"t": [3, 2], "n": [7, 8]})
    second = timedelta(seconds=1)
    assert found == [
        ("A", [{"t": 7, "n": 2, "late_by": second}]),
        ("A", [{"t": None, "n": 3, "late_by": None}]),
        ("A", [{"t": 9, "n": 5, "late_by": second}]),
        ("B", [{"t": 2, "n": 8, "late_by": second}]),
    ]
    handshake.run(TEXT, {"A": {"t": [2, None], "n": [0, 1]}, "B": {"t": [1], "n": [2]}}, late_to=tmp_path)
    assert pq.read_table(tmp_path / "A")["n"].to_pylist() == [1]
    assert not (tmp_path / "B").exists()


def test_late_rows_of_a_query_are_all_kept():
    """A row that is late for a window or for a join is among those that are kept."""
    for seed in range(20):
        rng, found = Random(seed), []
        with Query(TEXT, late_to=lambda name, batch, found=found: found.append(batch)) as query:
            for _ in range(6):
                rows = {"t": [rng.randint(0, 20) for _ in range(4)], "n": [rng.randint(0, 3)] * 4}
                query.push(rng.choice("AB"), rows)
            figures = query.metrics()
        assert figures.late <= 2 * sum(batch.num_rows for batch in found)
        assert not figures.late or found


def test_other_running_joins_keep_late_rows():
    found = []
    take = lambda name, batch: found.append((name, batch["n"].to_pylist()))  # noqa: E731
    asof = AsOfJoin(left=EVENT, right=EVENT, by="k", time="t", tolerance="5 s", late_to=take)
    asof.push_left([{"t": 9, "n": 0, "k": 0}])
    asof.push_right([{"t": 8, "n": 1, "k": 0}, {"t": 7, "n": 2, "k": 0}])
    asof.close()
    many = MultiJoin({"a": EVENT, "b": EVENT, "c": EVENT}, window="5 s", time="t", late_to=take)
    for name, time in (("a", 5), ("b", 5), ("c", 5), ("b", 4)):
        many.push(name, [{"t": time, "n": time, "k": 0}])
    many.close()
    assert found == [("right", [2]), ("b", [4])]


def test_extreme_times_have_a_lag():
    found = []
    take = lambda name, batch: found.append(batch["late_by"].cast(pa.int64()).to_pylist())  # noqa: E731
    join = Join(left=EVENT, right=EVENT, window="5 s", time="t", late_to=take)
    join.push_left([{"t": 2**63 - 1, "n": 0, "k": 0}])
    join.push_right([{"t": 2**63 - 1, "n": 0, "k": 0}, {"t": -(2**63), "n": 0, "k": 0}])
    join.close()
    assert found == [[2**63 - 1]]


def test_mistakes_are_named(tmp_path):
    taken = pa.schema([("t", pa.int64()), ("late_by", pa.int64())])
    with pytest.raises(SchemaError, match="late rows get a column 'late_by', and the left input has one"):
        Join(left=taken, right=EVENT, window="5 s", time="t", late_to=print)
    with pytest.raises(InputError, match="late_to is a folder or a function of a stream"):
        Join(left=EVENT, right=EVENT, window="5 s", time="t", late_to=5)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="late_to: cannot make the folder"):
        Join(left=EVENT, right=EVENT, window="5 s", time="t", late_to=tmp_path / "file")
    with pytest.raises(UnsupportedError, match="only supported by the local or spark engine"):
        Options(late_to="x").check("circuit")
    with pytest.raises(UnsupportedError, match="late_to is a text or a path or a function; 5 was given"):
        Options(late_to=5)
    with pytest.raises(SchemaError, match="late rows get a column 'late_by', and the S input has one"):
        Query("CREATE INPUT STREAM S (late_by int); SELECT late_by FROM S INTO T", late_to=print)


def test_late_rows_of_a_nearest_join_have_their_own_columns() -> None:
    rows = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])
    late: list[tuple[str, dict[str, Any]]] = []
    with NearestJoin(
        left=rows, right=rows, by="ABS(l.x - r.x)", window="5 seconds", time="t",
        late_to=lambda side, batch: late.append((side, batch.to_pydict())),
    ) as join:  # fmt: skip
        for push in (join.push_left, join.push_right):
            push({"t": [100], "x": [1]})
        join.push_left({"t": [90], "x": [2]})
        join.push_right({"t": [97], "x": [3]})
        join.finish()
    times = {seconds: datetime(1970, 1, 1, 0, 1, seconds - 60) for seconds in (90, 97)}
    lags = {seconds: timedelta(seconds=seconds) for seconds in (10, 3)}
    assert late == [
        ("left", {"t": [times[90]], "x": [2], "late_by": [lags[10]]}),
        ("right", {"t": [times[97]], "x": [3], "late_by": [lags[3]]}),
    ]
