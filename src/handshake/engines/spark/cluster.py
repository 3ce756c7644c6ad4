"""A Spark session of our own, which is quiet and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from handshake.engines.spark import private
from handshake.engines.spark.failures import join_error, reason
from handshake.engines.spark.java import prepare_environment
from handshake.errors import UnsupportedError

T = TypeVar("T")
_LABEL = re.compile(r'^(?:Exception in thread "\w+" )?(?:[\w.]+(?:Error|Exception): )?')
_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Options for Arrow in Java: without a check of bounds per value, a quarter of the JVM's time per result."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_PATIENCE = 20.0
"""Seconds to wait for Spark to stop."""


@dataclass(frozen=True)
class Cluster:
    """A session, and a folder that exists as long as the session."""

    session: SparkSession
    folder: Path

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time."""
        return int(self.session.sparkContext.defaultParallelism)

    @property
    def address(self) -> str | None:
        """The URL of Spark's web pages; None if they are off."""
        return self.session.sparkContext.uiWebUrl

    def run(self, work: Callable[[], T]) -> T:
        """Run a function that waits for Spark in a thread, so that this one reacts to Ctrl-C at once."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
        if failure:
            raise join_error(failure[0])
        return outcome[0]

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks of the running jobs are done, and how many there are."""
        tracker = self.session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


@contextlib.contextmanager
def start_cluster(
    name: str, master: str | None = None, cores: int | None = None, *, ui: bool = False, **settings: str
) -> Iterator[Cluster]:
    """Start a session on `master`, or on this machine's cores, and stop it at the end.

    Uses the active session of this process if there is one.

    Raises:
        UnsupportedError: Spark does not start here.
    """
    folder = Path(tempfile.mkdtemp(prefix="handshake-"))
    try:
        running = SparkSession.getActiveSession()
        if running is not None and not private.is_connect(running):
            yield Cluster(running, folder)
            return
        if running is not None or is_remote_only():
            raise UnsupportedError(
                "a client of Spark Connect runs joins and queries on DataFrames only; read the inputs as "
                "DataFrames, or use a classic session (the package pyspark, without builder.remote)"
            )
        prepare_environment()
        with _launch(_settings(name, master, cores, ui, settings), folder) as spark:
            cluster = Cluster(spark, folder)
            if _PARTITIONS not in settings:
                spark.conf.set(_PARTITIONS, max(cluster.cores, cores or 1))
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settings(
    name: str, master: str | None, cores: int | None, ui: bool, settings: dict[str, str]
) -> SparkConf:
    place = master or f"local[{cores or '*'}]"
    given = {
        "spark.app.name": name,
        "spark.master": place,
        "spark.ui.enabled": str(ui or not place.startswith("local")).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # small references stand for many rows
        "spark.driver.maxResultSize": "0",
        "spark.python.daemon.module": "handshake.engines.spark.daemon",
        "spark.python.unix.domain.socket.enabled": "true",  # TCP may stall: docs/spark.md
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",  # ten times the default
        "spark.driver.extraJavaOptions": _UNCHECKED,
        "spark.executor.extraJavaOptions": _UNCHECKED,
    }
    if place.startswith("local"):
        given |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            _FILES: private.checkpoint_manager(),
        }
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # its pages are for this machine only
    return SparkConf().setAll(list((given | settings).items()))


@contextlib.contextmanager
def _keep_interrupts() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which Spark replaces with one that may wait for the job."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _launch(conf: SparkConf, folder: Path) -> Iterator[SparkSession]:
    log = folder / "spark.log"
    try:
        with open(log, "wb") as sink:  # keeps output of the JVM and its Python workers off the terminal
            gateway = private.launch_jvm(conf, sink)
    except PySparkException as error:
        raise UnsupportedError(f"Spark did not start: {_last_line(log) or reason(error)}") from error
    session = None
    try:
        session = _session(conf, gateway)
        yield session
    finally:
        _stop(gateway, session)


def _session(conf: SparkConf, gateway: Any) -> SparkSession:
    from pyspark import SparkContext  # not in pyspark-client

    try:
        with _keep_interrupts():
            SparkContext(conf=conf, gateway=gateway).setLogLevel("ERROR")
            return SparkSession.builder.getOrCreate()
    except Exception as error:
        master = conf.get("spark.master")
        raise UnsupportedError(f"Spark did not start on '{master}': {reason(error)}") from error


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return _LABEL.sub("", (errors or lines or [""])[-1].strip())


def _stop(gateway: Any, session: SparkSession | None) -> None:
    """Stop the session and the JVM.

    Uses another thread: after Ctrl-C, the reply to an earlier request may still be on its way to this one.
    """
    if session is not None:
        private.silence_accumulators(session)
    ending = threading.Thread(target=_end_session, args=(session,), daemon=True)
    ending.start()
    ending.join(_PATIENCE)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    with contextlib.suppress(OSError):
        gateway.proc.stdin.close()  # ends the JVM
    try:
        gateway.proc.wait(_PATIENCE)
    except Exception:
        gateway.proc.kill()
        gateway.proc.wait()
    private.release_jvm()


def _end_session(session: SparkSession | None) -> None:
    if session is not None:
        with contextlib.suppress(Exception):
            for query in session.streams.active:
                query.stop()
        with contextlib.suppress(Exception):
            session.stop()
