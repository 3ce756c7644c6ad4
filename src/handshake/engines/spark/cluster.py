"""A Spark session of one's own: quiet, and gone without trace when it is no longer needed."""

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

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from handshake.engines.spark.failures import reason, told
from handshake.engines.spark.java import prepare_environment
from handshake.errors import UnsupportedError

__all__ = ["Cluster", "started"]

T = TypeVar("T")
_LABEL = re.compile(r'^(?:Exception in thread "\w+" )?(?:[\w.]+(?:Error|Exception): )?')
_PARTITIONS = "spark.sql.shuffle.partitions"
_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""On a local disk the default starts processes for every file: 350 ms of a micro-batch, instead of 65."""
_PATIENCE = 20.0
"""Seconds that Spark gets to end by itself."""


@dataclass(frozen=True)
class Cluster:
    """A session, and a folder that lasts as long as it does."""

    session: SparkSession
    folder: Path

    @property
    def cores(self) -> int:
        """Tasks that run at the same time."""
        return int(self.session.sparkContext.defaultParallelism)

    @property
    def address(self) -> str | None:
        """Where a browser sees Spark's own pages."""
        return self.session.sparkContext.uiWebUrl

    def run(self, work: Callable[[], T], meanwhile: Callable[[], None] = lambda: None) -> T:
        """Do work that waits for Spark in a thread of its own, so that Ctrl-C is heard at once."""
        outcome: list[T] = []
        failure: list[BaseException] = []
        thread = threading.Thread(target=_caught, args=(work, outcome, failure), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
            meanwhile()
        if failure:
            raise told(failure[0])
        return outcome[0]

    def tasks(self) -> tuple[int, int]:
        """Tasks of the running jobs: done, and in all."""
        tracker = self.session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


def _caught(work: Callable[[], T], outcome: list[T], failure: list[BaseException]) -> None:
    try:
        outcome.append(work())
    except BaseException as error:
        failure.append(error)


@contextlib.contextmanager
def started(
    name: str, master: str | None = None, cores: int | None = None, *, ui: bool = False, **settings: str
) -> Iterator[Cluster]:
    """A session on `master`, or on this machine's cores; the one that this process already has, if it has."""
    folder = Path(tempfile.mkdtemp(prefix="handshake-"))
    try:
        running = SparkSession.getActiveSession()
        if running is not None:
            yield Cluster(running, folder)
            return
        prepare_environment()
        with _launched(_settings(name, master, cores, ui, settings), folder) as spark:
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
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # references are small, their tuples not
        "spark.driver.maxResultSize": "0",
        "spark.python.daemon.module": "handshake.engines.spark.daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",  # ten times as many as by default
    }
    if place.startswith("local"):
        given |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            _FILES: _BY_FILE_SYSTEM,
        }
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else need see its pages
    return SparkConf().setAll(list((given | settings).items()))


@contextlib.contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Spark replaces what Ctrl-C does by something that may wait for the job; this keeps what it did."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _launched(conf: SparkConf, folder: Path) -> Iterator[SparkSession]:
    log = folder / "spark.log"
    with open(log, "wb") as sink:  # what the JVM and its Python workers say is not for the terminal
        gateway = _gateway(conf, sink, log)
    session = None
    try:
        session = _session(conf, gateway)
        yield session
    finally:
        _stop(gateway, session)


def _gateway(conf: SparkConf, sink: Any, log: Path) -> Any:
    try:
        return launch_gateway(conf, {"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        raise UnsupportedError(f"Spark did not start: {_last_line(log) or reason(error)}") from error


def _session(conf: SparkConf, gateway: Any) -> SparkSession:
    try:
        with _keeping_interrupts():
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
    """End the session and the JVM.

    From a thread of its own: after Ctrl-C, the answer to an earlier question may still be on the way to this
    one.
    """
    _hush(session)
    ending = threading.Thread(target=_end_session, args=(session,), daemon=True)
    ending.start()
    ending.join(_PATIENCE)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    _end_process(gateway.proc)
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def _hush(session: SparkSession | None) -> None:
    """What counts for Spark in this process writes to the terminal when the JVM goes in mid-sentence."""
    if session is not None and (server := getattr(session.sparkContext, "_accumulatorServer", None)):
        server.handle_error = lambda request, client_address: None


def _end_session(session: SparkSession | None) -> None:
    if session is not None:
        with contextlib.suppress(Exception):
            for query in session.streams.active:
                query.stop()
        with contextlib.suppress(Exception):
            session.stop()


def _end_process(process: Any) -> None:
    """The JVM goes when its standard input ends; if it does not, it is killed."""
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except Exception:
        process.kill()
        process.wait()
