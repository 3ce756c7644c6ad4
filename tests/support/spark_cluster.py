"""A standalone Spark cluster on loopback: a master, two workers and drivers, all of them real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from waiting import wait_until

HERE = Path(__file__).parent
PORTS = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
PATIENCE = 240
"""Seconds after which something that does not come is an error."""


@dataclass
class Cluster:
    """`start`, `driver`, `find`, `restart_worker` and `stop`."""

    folder: Path
    workers: int = 2
    url: str = ""
    started: list[subprocess.Popen] = field(default_factory=list)

    def start(self) -> None:
        """Start a master, then workers of one core each."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._daemon("master", ["org.apache.spark.deploy.master.Master", *PORTS])
        self.url = wait_until(
            lambda: self._find_in_log("master", r"Starting Spark master at (spark://\S+)"),
            PATIENCE,
            what="the start of the master",
        )
        for k in range(self.workers):
            self._start_worker(k)
        for k in range(self.workers):
            wait_until(
                lambda k=k: self._find_in_log(f"worker-{k}", "(Successfully registered)"),
                PATIENCE,
                what=f"the start of worker {k}",
            )

    def driver(self, folder: Path, log: str, kind: str, state: str = "directory") -> subprocess.Popen:
        """Start a driver program that runs a kind of join."""
        program = str(HERE / "spark_driver.py")
        return self._process(log, [sys.executable, program, self.url, str(folder), kind, state])

    def find(self, text: str, parent: str = "") -> list[int]:
        """Return processes of the cluster, without drivers, by texts in their and their parents' commands."""
        known = _processes()
        roots = {p.pid for p in self.started[: self.workers + 1]}
        named = [
            pid
            for pid, (above, args) in known.items()
            if text in args and parent in known.get(above, (0, ""))[1]
        ]
        return [pid for pid in named if _below(pid, roots, known)]

    def jvm_of(self, driver: subprocess.Popen) -> list[int]:
        """Return the virtual machine of a driver, once it is there."""
        known = _processes()
        return [
            pid
            for pid, (above, args) in known.items()
            if above == driver.pid and "org.apache.spark.deploy.SparkSubmit" in args
        ]

    def restart_worker(self, number: int) -> None:
        """Kill a worker, its executor and their Python processes at once; start another worker instead."""
        self._end_all(self.started[1 + number : 2 + number])
        self._start_worker(number)
        self.started[1 + number] = self.started.pop()

    def stop(self) -> None:
        """Stop all processes, whatever happened."""
        self._end_all(self.started)

    def _end_all(self, roots: list[subprocess.Popen]) -> None:
        known = _processes()
        numbers = {p.pid for p in roots}
        below = [pid for pid in known if _below(pid, numbers, known)]
        for process in roots:
            end(process)
        for pid in below:
            kill(pid)

    def _start_worker(self, number: int) -> None:
        size = ["--cores", "1", "--memory", "700m", "--work-dir", f"{self.folder}/work-{number}"]
        self._daemon(f"worker-{number}", ["org.apache.spark.deploy.worker.Worker", *PORTS, *size, self.url])

    def _daemon(self, log: str, command: list[str]) -> None:
        home = Path(pyspark.__file__).parent
        self._process(log, [str(home / "bin" / "spark-class"), *command])

    def _process(self, log: str, command: list[str]) -> subprocess.Popen:
        with open(self.folder / f"{log}.log", "ab") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env=self._environment(), cwd=self.folder,
            )  # fmt: skip
        self.started.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        paths = [str(HERE.parent / "src"), str(HERE)]
        return {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": f"{self.folder}/local",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def _find_in_log(self, log: str, pattern: str) -> str | None:
        found = re.search(pattern, (self.folder / f"{log}.log").read_text(errors="replace"))
        return found and found[1]


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start a cluster and stop it at the end."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def end(process: subprocess.Popen) -> None:
    """Kill a process and those it started in its group, by `kill -9`."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill(pid: int) -> None:
    """Kill a process by `kill -9`; it may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the command line of every process."""
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}


def _below(pid: int, roots: set[int], known: dict[int, tuple[int, str]]) -> bool:
    while pid in known and pid not in roots:
        pid = known[pid][0]
    return pid in roots
