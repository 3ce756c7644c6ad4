"""Joins through Spark Connect: a real server, and a client in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="Spark Connect needs the extra 'connect'")

SUPPORT = Path(__file__).parents[1] / "support"


def test_predicates_kinds_and_streams_through_connect(tmp_path: Path) -> None:
    from handshake.engines.spark.java import java_home

    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java_home()}
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "connect_client.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=500, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "done"
