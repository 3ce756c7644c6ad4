"""Workers of our own sessions are forked with everything imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from handshake.spark.daemon import preload

WANTED = ("handshake.spark.operators", "handshake.spark.query_tasks", "numba", "pandas")


def test_workers_have_what_they_need_when_they_are_forked(spark: Any) -> None:
    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        import pyarrow as pa

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        known = [name for name in WANTED if name in sys.modules]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"parent": [parent], "known": [known]})

    rows = spark.range(1, numPartitions=1).mapInArrow(look, "parent string, known array<string>").collect()
    assert "handshake.spark.daemon" in rows[0].parent
    assert rows[0].known == list(WANTED)


def test_a_module_that_is_missing_is_the_workers_business() -> None:
    preload("handshake.spark.no_such_module", "colorsys")
    assert "colorsys" in sys.modules
