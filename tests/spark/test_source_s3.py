"""Joins whose windows lie on S3, served by moto on loopback; checkpoints and rows are local."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from example_runs import (
    expected_pairs,
    finish,
    kill_when,
    load_example,
    sink_pairs,
    start_example,
)
from handshake.engines.spark.state.store import StateError, open_store
from moto_server import ObjectStore, object_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("moto")) as started:
        yield started


def test_files_of_a_bucket(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, read, list and remove files, by the names of pyarrow and of Hadoop."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    bucket = open_store(store.uri("files"))
    bucket.write("a/one", [b"1", b"11"])
    bucket.write("a/two", [b"2"])
    again = open_store(store.uri("files").replace("s3://", "s3a://"))
    assert bucket.publish("b/three", pa.py_buffer(b"3")).to_pybytes() == b"3"
    assert again.publish("b/three", pa.py_buffer(b"4")).to_pybytes() == b"3"
    assert (again.list("a"), again.list("none")) == (["one", "two"], [])
    assert again.read("a/one").to_pybytes() == b"111"
    again.remove("a/one")
    again.remove("a/one")
    assert (again.exists("a/one"), again.exists("a/two")) == (False, True)
    again.remove_folder("a")
    again.remove_folder("a")
    assert again.list("a") == []
    with pytest.raises(StateError, match="cannot read 's3a://handshake/files"):
        again.read("a/two")


def test_windows_on_s3_survive_a_kill(store: ObjectStore, tmp_path: Path) -> None:
    """Kill the driver in the middle; the next one finds the windows in the bucket."""
    rows = load_example("_offers").make_rows()
    for side, given in rows.items():
        load_example("_scaffold").write_files(given, tmp_path / side, files=4)
    log, commits = tmp_path / "log", tmp_path / "checkpoint" / "commits"

    def start():
        return start_example(
            "on_s3", str(tmp_path), store.uri("state"), log=log, environment=store.environment
        )

    kill_when(start(), lambda: (commits / "0").exists(), log)
    assert not (commits / "3").exists()
    held = store.names("state")
    assert any(name.endswith(".chunk") for name in held), held
    finish(start(), log)
    assert (commits / "3").exists()
    wanted = expected_pairs(*rows.values())
    assert sink_pairs(str(tmp_path / "matches")) == wanted
    assert len(wanted) > 1000
