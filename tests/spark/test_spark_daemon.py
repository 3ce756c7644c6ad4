"""Workers of our own sessions are forked with everything imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
import pyspark

from handshake.engines.spark.daemon import preload, without_archives

WANTED = ("handshake.engines.spark.joins.tasks", "handshake.engines.spark.queries.tasks", "numba", "pandas")


@pytest.mark.classic("the session sets the daemon of its workers")
def test_workers_have_what_they_need_when_they_are_forked(spark: Any) -> None:
    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        import pyarrow as pa

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        known = [name for name in WANTED if name in sys.modules]
        found = [entry for entry in sys.path_importer_cache if entry.endswith("pyspark.zip")]
        archives = [entry for entry in found if os.path.exists(entry)]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"parent": [parent], "known": [known], "archives": [archives]})

    columns = "parent string, known array<string>, archives array<string>"
    rows = spark.range(1, numPartitions=1).mapInArrow(look, columns).collect()
    assert "handshake.engines.spark.daemon" in rows[0].parent
    assert rows[0].known == list(WANTED)
    assert rows[0].archives == []  # Spark's modules lie beside it


def test_the_archive_of_the_installed_package_is_left_out() -> None:
    packages = Path(pyspark.__file__).parents[1]
    archive = packages / "pyspark" / "python" / "lib" / "pyspark.zip"
    assert archive.exists()
    assert without_archives([str(archive), str(packages)]) == [str(packages)]


def test_an_archive_is_left_out_only_where_the_same_package_lies_open(tmp_path: Path) -> None:
    archives = []
    for name in ("whole", "half"):
        library = tmp_path / name / "pyspark" / "python" / "lib"
        library.mkdir(parents=True)
        (library / "pyspark.zip").touch()
        archives.append(str(library / "pyspark.zip"))
    (tmp_path / "whole" / "pyspark" / "__init__.py").touch()
    path = [*archives, "/opt/spark/python/lib/pyspark.zip", str(tmp_path / "whole"), str(tmp_path / "half")]
    assert without_archives(path) == path[1:]
    assert without_archives(path[:3]) == path[:3]


def test_a_module_that_is_missing_is_the_workers_business() -> None:
    preload("handshake.engines.spark.no_such_module", "colorsys")
    assert "colorsys" in sys.modules


def test_the_process_that_declares_states_imports_no_join() -> None:
    """Spark starts one per start of a query, and waits for it."""
    code = (
        "import sys, handshake.engines.spark.joins.processor\n"
        "print({'numba', 'pandas', 'pyarrow', 'sqlglot'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
