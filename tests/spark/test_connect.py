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
import pyspark

from handshake.engines.spark.java import java_home

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"
CLIENT = Path(__file__).parents[2] / "build" / "connect" / "bin" / "python"
"""An environment with the package pyspark-client, which has no JVM."""
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


FEATURES = [
    "test_spark_progress.py::test_a_running_query",
    "test_spark_idle.py::test_a_silent_stream_does_not_hold_back_results",
    "test_spark_refresh.py::test_a_static_side_is_read_again",
    "test_late_to_spark.py::test_late_rows_are_in_the_files_once[left-store]",
    "test_results_to.py::test_results_are_in_the_files_once[inner-directory-segments0]",
]
"""Tests of classic sessions that run with a client session in every run of the suite."""
MORE = ["test_asof_spark.py", "test_spark_nearest.py", "test_spark_damage.py", "test_udp_spark.py"]
MORE += ["test_testing_spark.py", "test_spark_refresh.py", "test_results_to.py", "test_late_to_spark.py"]
MORE += ["test_state_reading.py", "test_spark_changes.py::test_an_outer_join_changes_on_its_checkpoint"]
"""Tests that also run with a client session in soak, but for those that are marked as classic."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server in a process of its own, for all tests of this file."""
    with connect_server(tmp_path_factory.mktemp("server")) as address:
        yield address


def test_predicates_kinds_and_streams_through_connect(server: str, tmp_path: Path) -> None:
    run_client([sys.executable, str(SUPPORT / "connect_client.py"), str(tmp_path), server])


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark Connect joins streams from 4.1 on")
def test_features_of_classic_sessions_through_connect(server: str) -> None:
    run_features(server, FEATURES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark Connect joins streams from 4.1 on")
def test_more_of_the_suite_through_connect(server: str) -> None:
    run_features(server, MORE)


@pytest.mark.soak
def test_a_server_that_pyspark_starts(tmp_path: Path) -> None:
    # with SPARK_TESTING the server takes any free port; its fixed one may be in use
    own = {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java_home(), "SPARK_TESTING": "1"}
    run_client([sys.executable, str(SUPPORT / "connect_client.py"), str(tmp_path), "local[2]"], own)


def run_client(command: list[str], own: dict[str, str] | None = None) -> None:
    """Run the checks of a client."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, env=os.environ | (own or {}), check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "done"


def run_features(server: str, tests: list[str]) -> None:
    """Run tests of this folder with a session that is a client of the server."""
    given = [str(HERE / test) for test in tests]
    # When its session stops, PySpark's thread of listeners warns that the channel is closed, and a socket may
    # be left to the garbage collector. pytest would report both as errors at its end.
    quiet = ["no:cacheprovider", "no:xdist", "no:unraisableexception", "no:threadexception"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"-p{each}" for each in quiet), *given],
        cwd=HERE.parents[1], capture_output=True, text=True, timeout=7000, check=False,
        env={**os.environ, "HANDSHAKE_CONNECT": server},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


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
            env={
                **os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java_home(),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
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
