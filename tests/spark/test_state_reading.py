"""The state of joins, read from outside: the command, and the format of Spark."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import handshake
from cli_runs import run_here
from handshake.engines.spark.state.reading import read_state
from spark_session import Feed, Sink
from spark_steps import FOLDER, Cluster
from spark_streams import BAND, RETAIN, SECOND, Stream, cluster_of
from waiting import wait_until


@pytest.fixture
def state(capfd: pytest.CaptureFixture[str]) -> Any:
    return partial(run_here, capfd, "state")


def run_batches(root: Path, batches: int, window: str = "8 seconds") -> tuple[Cluster, Stream]:
    rng = Random(f"state {window}")
    cluster = cluster_of(BAND, window, root, segments=2)
    stream = Stream(rng, lambda _: rng.randint(0, 300), disorder=SECOND)
    for _ in range(batches):
        parts = stream.batch(4, 6)
        cluster.watermark = stream.watermark()
        cluster.run(parts)
    return cluster, stream


def test_show_has_a_line_per_segment_and_side(state: Any, tmp_path: Path) -> None:
    cluster, _ = run_batches(tmp_path, 12)
    shown = state("show", tmp_path)
    assert shown.status == 0
    lines = shown.out.splitlines()
    assert lines[0] == "join         test"
    assert "windows      8 seconds" in lines
    assert "micro-batch  11" in lines
    table = [line.split() for line in lines if line.strip()[:1].isdigit()]
    held = [[sum(r.rows for r in m.windows[side]) for side in (0, 1)] for m in cluster.manifests()]
    assert [(int(row[0]), row[1], int(row[2])) for row in table] == [
        (k, side, held[k][at]) for k in (0, 1) for at, side in enumerate(("left", "right"))
    ]


@pytest.mark.parametrize("window", ["8 seconds", "20 tuples"])
def test_export_has_the_rows_that_can_still_join(state: Any, tmp_path: Path, window: str) -> None:
    cluster, stream = run_batches(tmp_path / "state", 20, window)
    for side, (name, reader) in enumerate((("left.parquet", pq.read_table), ("right.csv", csv.read_csv))):
        key = "lr"[side]
        told = state("export", tmp_path / "state", tmp_path / name, "--side", ("left", "right")[side])
        assert told.status == 0, told.err
        table = reader(tmp_path / name)
        assert table.column_names[-2:] == ["_segment", "_age"]
        rows, mark = stream.rows[side], cluster.watermark
        assert mark is not None
        if window == "8 seconds":
            expected = {row[0] for row in rows if row[2] > mark - 8 * SECOND}
            ages = {row[0]: (mark - row[2]) / SECOND for row in rows}
            assert table["_age"].to_pylist() == pytest.approx([ages[k] for k in table[key].to_pylist()])
        else:
            size = (4, 6)[side]  # rows of a micro-batch arrive by their times
            order = sorted(rows, key=lambda row: (row[0] // size, row[2]))
            expected = {row[0] for row in order[-20:]}
        assert sorted(table[key].to_pylist()) == sorted(expected)


def test_check_finds_damage_and_orphans_and_prune_removes_orphans_only(state: Any, tmp_path: Path) -> None:
    cluster, stream = run_batches(tmp_path, 12)
    assert state("check", tmp_path).status == 0
    manifest = cluster.manifests()[0]
    old = tmp_path / manifest.place / f"{manifest.owner}-1-{'0' * 32}.chunk"
    recent = tmp_path / manifest.place / f"{manifest.owner}-{12 - RETAIN}-{'1' * 32}.chunk"
    for path in (old, recent):
        path.write_bytes(b"left by a task that died")
    found = state("check", tmp_path)
    assert (found.status, found.out.splitlines()[-1].split(", ")[1:]) == (1, ["0 damaged", "1 orphans"])
    listed = state("prune", tmp_path)
    assert listed.status == 0
    assert listed.out.endswith("1 files to remove; --yes removes them\n")
    assert old.exists()
    assert state("prune", tmp_path, "--yes").out.endswith("1 files removed\n")
    assert not old.exists()
    assert recent.exists()
    cluster.run(stream.batch(4, 6))  # all that it needs is still there
    ref = cluster.manifests()[1].windows[0][0]
    with open(tmp_path / ref.name, "r+b") as file:
        file.seek(ref.bytes // 2)
        byte = file.read(1)
        file.seek(ref.bytes // 2)
        file.write(bytes([byte[0] ^ 1]))
    damaged = state("check", tmp_path)
    assert damaged.status == 1
    assert damaged.out.startswith(f"damage  '{tmp_path / ref.name}' is damaged: ")
    os.unlink(tmp_path / ref.name)
    assert "which the join's state needs" in state("check", tmp_path).out


def test_prune_never_removes_a_file_that_a_restart_needs(tmp_path: Path) -> None:
    rng = Random("prune")
    cluster = cluster_of(BAND, "8 seconds", tmp_path, segments=2)
    stream = Stream(rng, lambda _: rng.randint(0, 300), disorder=SECOND)
    versions: list[set[str]] = []
    for _ in range(40):
        parts = stream.batch(rng.randint(1, 4), rng.randint(1, 4))
        cluster.watermark = stream.watermark()
        cluster.run(parts, again=[0] if rng.random() < 0.4 else [])
        versions.append({ref.name for manifest in cluster.manifests() for ref in manifest.refs})
        directory = read_state(str(tmp_path))
        directory.prune(directory.orphans())
        for needed in versions[-RETAIN - 1 :]:
            assert all((tmp_path / name).exists() for name in needed)


def test_messages_name_what_would_work(state: Any, tmp_path: Path) -> None:
    assert state("show", tmp_path).complaint == (
        f"no state of a join in '{tmp_path}'; give the directory that the query has (state_dir=…, "
        "spark.handshake.stateDir, or handshake-state beside its checkpoint)"
    )
    run_batches(tmp_path, 2)
    assert state("export", tmp_path, "x.parquet", "--side", "up").complaint == (
        "--side is left or right, not 'up'"
    )
    assert state("show", tmp_path, "--join", "other").complaint == (
        f"no join 'other' of query '' in '{tmp_path}'; there are: 'test' of query query"
    )


def test_places_without_a_manifest_are_reported(state: Any, tmp_path: Path) -> None:
    run_batches(tmp_path, 2)
    for path in (tmp_path / FOLDER).glob("segment-*-1/*.manifest"):
        path.unlink()
    checked = state("check", tmp_path)
    assert checked.status == 1
    assert "has no manifest: an earlier release wrote it" in checked.out
    assert "has no state of segment 1" in checked.out


def test_spark_reads_the_state_of_a_query(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    from handshake.engines.spark.state_source import FORMAT, register
    from handshake.page.board import Board
    from handshake.page.sources import ThingSource

    register(spark)
    feeds = [
        Feed(tmp_path / name, f"{key} long, v int, t timestamp")
        for name, key in (("left", "l"), ("right", "r"))
    ]
    for batch in range(3):
        for feed, key in zip(feeds, "lr", strict=True):
            numbers = list(range(batch * 10, batch * 10 + 10))
            times = pa.array([(1_700_000_000 + n) * SECOND for n in numbers], pa.timestamp("us", "UTC"))
            feed.add(pa.table({key: numbers, "v": pa.array(numbers, pa.int32()), "t": times}))
    frames = [feed.read(spark).withWatermark("t", "0 seconds") for feed in feeds]
    root = str(tmp_path / "state")
    joined = handshake.join(
        *frames, "l.v = r.v", window="10 seconds", state_dir=root, name="matches", segments=2
    )
    sink = Sink(tmp_path / "sink")
    sink.run(joined)
    assert len(sink.rows()) == 30
    table = spark.read.format(FORMAT).load(root).toArrow()
    assert Counter(table["segment"].to_pylist()) == {0: 2, 1: 2}
    assert set(table["join"].to_pylist()) == {"matches"}
    left = spark.read.format(FORMAT).option("side", "left").option("join", "matches").load(root)
    watermark = 1_700_000_019
    assert sorted(row["l"] for row in left.collect()) == [
        n for n in range(30) if 1_700_000_000 + n > watermark - 10
    ]
    assert {row["_segment"] for row in left.collect()} <= {0, 1}

    source = ThingSource(sink.query, "matches", joined)  # as on the live page
    asked = [("left", ["l", "v", "t"]), ("right", ["r", "v", "t"])]
    assert source.about("matches")["why"] == [{"name": name, "columns": columns} for name, columns in asked]
    board = Board()
    board.add(source)
    wait_until(lambda: not board.sources())
    shown = board.frame()["queries"]["matches"]
    assert (shown["state"], shown["results"], [s["rows"] for s in shown["streams"]]) == (
        "ended",
        {"join": 30},
        [30, 30],
    )
    told = board.why("matches", ['{"l": 25}', '{"r": 25}']).splitlines()
    assert (told[0], told[1]) == ("the rows join", "  yes  l.v = r.v: 25 = 25")
    later = '{"r": 999, "v": 25, "t": "2023-11-14 22:13:35+00:00"}'
    told = board.why("matches", ['{"l": 25}', later]).splitlines()
    assert told[0] == "the rows do not join"
    assert "no   right row in the state: no segment holds it, and it is 4 seconds behind" in "\n".join(told)
