"""Joins through Spark Connect: a real server, and a client in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="Spark Connect needs the extra 'connect'")

SUPPORT = Path(__file__).parents[1] / "support"
CLIENT = Path(__file__).parents[2] / "build" / "connect" / "bin" / "python"
"""An environment with the package pyspark-client, which has no JVM."""
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def test_predicates_kinds_and_streams_through_connect(tmp_path: Path) -> None:
    from handshake.engines.spark.java import java_home

    # with SPARK_TESTING the server takes any free port; its fixed one may be in use
    own = {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java_home(), "SPARK_TESTING": "1"}
    environment = {**os.environ, **own}
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "connect_client.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=500, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "done"


@pytest.mark.sources
@pytest.mark.timeout(1800)
def test_a_client_without_java_joins_on_a_server(tmp_path: Path) -> None:
    """The client has an environment of its own, with an earlier release of PySpark."""
    if not CLIENT.exists():
        pytest.skip("there is no environment of a client; make sources installs it")
    (tmp_path / "data").mkdir()
    unwanted = ("JAVA_HOME", "SPARK_HOME", "SPARK_SUBMIT_OPTS")
    own = {name: value for name, value in os.environ.items() if name not in unwanted}
    with connect_server(tmp_path) as address:
        done = subprocess.run(
            [CLIENT, str(SUPPORT / "connect_client.py"), str(tmp_path / "data"), address],
            capture_output=True, text=True, timeout=1500, env={**own, "PATH": ""}, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "done"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a server of Spark Connect with this environment's Spark; give its address."""
    import pyspark

    from handshake.engines.spark.java import java_home

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false", "spark.local.dir": str(folder / "local"),
    }  # fmt: skip
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            [*command, *given, "--class", SERVER, "spark-internal"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java_home()},
        )  # fmt: skip

    def answers() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()[-4000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, 300, pause=0.2, what="the start of the server")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
