"""Examples in processes of their own, which tests may kill."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pyarrow.parquet as pq

from spark_cluster import end
from waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 600
"""Seconds after which an example that does not go on is an error."""
WINDOW, BAND = timedelta(seconds=20), 0.5
"""The windows and the band of the examples that join bids with offers."""


def load_example(name: str) -> Any:
    """Load an example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(EXAMPLES))  # as `python examples/NAME.py` does
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def expected_pairs(bids: Iterable[dict[str, Any]], offers: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the ids of matching bids and offers, by a plain loop."""
    offers = list(offers)
    return sorted(
        (bid["id"], offer["id"])
        for bid in bids
        for offer in offers
        if abs(bid["time"] - offer["time"]) < WINDOW and abs(bid["price"] - offer["price"]) <= BAND
    )


def sink_pairs(folder: str, files: fs.FileSystem | None = None) -> list[tuple[int, int]]:
    """Return the pairs of ids in Parquet files that Spark's file sink has committed, sorted.

    Files of a micro-batch that failed are there too; the log of the sink does not name them.
    """
    files = files or fs.LocalFileSystem()
    names = set()
    for batch in files.get_file_info(fs.FileSelector(f"{folder}/_spark_metadata")):
        if not batch.base_name.startswith("."):
            lines = files.open_input_file(batch.path).read().decode().splitlines()[1:]
            names |= {json.loads(line)["path"].rpartition("/")[2] for line in lines}
    tables = [pq.read_table(f"{folder}/{name}", filesystem=files) for name in sorted(names)]
    return sorted((row["id"], row["id_right"]) for table in tables for row in table.to_pylist())


def start_example(
    name: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen:
    """Start an example; its output goes to a log file, which later runs extend."""
    from handshake.engines.spark.java import java_home

    with open(log, "ab") as sink:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, cwd=log.parent,
            env={**os.environ, "JAVA_HOME": java_home(), **(environment or {})},
        )  # fmt: skip


def kill_when(process: subprocess.Popen, reached: Callable[[], bool], log: Path) -> None:
    """Kill a process, its JVM and its workers when something is reached, which must be before its end."""

    def look() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        return reached()

    try:
        wait_until(look, PATIENCE, what="the moment to kill the example")
    finally:
        end(process)


def finish(process: subprocess.Popen, log: Path) -> None:
    """Wait for the end of an example, which must succeed."""
    try:
        process.wait(PATIENCE)
    finally:
        end(process)
    assert process.returncode == 0, log.read_text(errors="replace")[-4000:]


def spark_defaults(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Write Spark's settings to a file and return the variable of the environment that names its folder."""
    place = folder / "conf"
    place.mkdir()
    (place / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
    return {"SPARK_CONF_DIR": str(place)}


def run_with_kills(
    name: str, *arguments: str, folder: Path, settings: Mapping[str, str], checkpoints: Iterable[str]
) -> None:
    """Run an example to its end; kill it after the first micro-batch of each of its queries.

    Args:
        name: The example.
        *arguments: Its arguments.
        folder: The folder that has its checkpoints.
        settings: Spark's settings for it.
        checkpoints: The checkpoints of its queries, in the order in which they run.
    """
    log, environment = folder / "log", spark_defaults(folder, settings)
    for checkpoint in checkpoints:
        commits = folder / checkpoint / "commits"
        started = start_example(name, *arguments, log=log, environment=environment)
        kill_when(started, (commits / "0").exists, log)
        assert not (commits / "2").exists(), "the example was killed after its last micro-batch"
    finish(start_example(name, *arguments, log=log, environment=environment), log)
