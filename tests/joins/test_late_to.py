"""Tests of `late_to`: every late row comes once, with how late it was."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from handshake import AsOfJoin, Join, MultiJoin, NearestJoin
from handshake.errors import InputError, SchemaError, UnsupportedError
from handshake.options import Options

EVENT = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("k", pa.int64())])


def pushes(rng: Random, count: int = 12):
    number = 0
    for _ in range(count):
        times = [rng.choice((None, *[rng.randint(0, 40)] * 9)) for _ in range(rng.randint(0, 5))]
        rows = [{"t": t, "n": number + i, "k": rng.choice((None, 0, 1))} for i, t in enumerate(times)]
        number += len(rows)
        yield rng.randint(0, 1), rows


def late_rows(steps, lateness: int):
    """The late rows by a plain loop: side, number, and how far behind the watermark."""
    newest: list[int | None] = [None, None]
    for side, rows in steps:
        for row in rows:
            now = row["t"]
            if now is None:
                continue
            mark = None if None in newest else min(newest) - lateness
            if mark is not None and now < mark:
                yield side, row["n"], mark - now
            else:
                newest[side] = max(now, newest[side] if newest[side] is not None else now)


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("cores", [1, 2])
def test_every_late_row_comes_once(how, cores):
    for seed in range(15):
        steps, found = list(pushes(Random(seed))), []
        lateness = seed % 4

        def take(side, batch, found=found):
            for row in batch.to_pylist():
                seconds = row["late_by"] // timedelta(seconds=1)
                found.append((("left", "right").index(side), row["n"], seconds))

        options = {"window": "5 seconds", "time": "t", "lateness": f"{lateness} seconds", "how": how}
        join = Join(left=EVENT, right=EVENT, on="l.k = r.k", cores=cores, late_to=take, **options)
        for side, rows in steps:
            if rows:
                (join.push_left, join.push_right)[side](rows)
        join.finish()
        assert found == list(late_rows(steps, lateness))
        assert sum(stream.late for stream in join.metrics().streams) == len(found)


def test_a_folder_gets_files_when_the_join_closes(tmp_path):
    folder = tmp_path / "a" / "late"
    with Join(left=EVENT, right=EVENT, on="l.k = r.k", window="5 s", time="t", late_to=folder) as join:
        join.push_left([{"t": 100, "n": 0, "k": 0}])
        join.push_right([{"t": 90, "n": 1, "k": 0}, {"t": 10, "n": 2, "k": 0}])
        join.push_right([{"t": 11, "n": 3, "k": 0}])
    assert [path.name for path in folder.iterdir()] == ["right.parquet"]
    late = pq.read_table(folder / "right.parquet")
    assert late["n"].to_pylist() == [2, 3]
    assert late["late_by"].type == pa.duration("s")
    assert late["late_by"].to_pylist() == [timedelta(seconds=80), timedelta(seconds=79)]


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
    with pytest.raises(UnsupportedError, match="only supported by the spark engine"):
        Options(late_to="x").check("local")


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
