"""Queries whose inputs do not end: formats of Spark's and datagrams in, micro-batches of results out."""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.engines.inputs import Address
from handshake.engines.spark.failures import reason
from handshake.errors import HandshakeError, InputError, one_line
from handshake.io.declared import BadRows
from handshake.io.udp.receive import streams_for
from handshake.plan.algebra import Plan

LOST = {"late": "late", "no_time": "without a time", "unknown": "of no stream"}
"""Reasons why rows are in no result, as counted and as shown."""
_WAIT = 0.2
_DELTA = (
    "io.delta:delta-spark_2.13:VERSION --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
_PACKAGES = {
    "kafka": ("org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}", ""),
    "delta": (_DELTA, ", where VERSION is one that is made for Spark {spark}"),
}
"""Formats that Spark knows if it is started with these packages, and a remark on each."""
_NOT_FOUND = "DATA_SOURCE_NOT_FOUND|Failed to find( the)? data source"


@dataclass(frozen=True)
class Where:
    """The place of an input: a file or folder, datagrams, or a format of Spark's with its options."""

    kind: str
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """True if the input does not end."""
        return self.kind != "file"


def parse_input(text: str) -> Where:
    """Read the place of an input.

    >>> parse_input("rate:rowsPerSecond=100")
    Where(kind='rate', path='', options={'rowsPerSecond': '100'})
    >>> parse_input("kafka:kafka.bootstrap.servers=a:9092,b:9092,subscribe=trades").options
    {'kafka.bootstrap.servers': 'a:9092,b:9092', 'subscribe': 'trades'}
    >>> parse_input("trades.parquet").kind
    'file'
    """
    kind, colon, rest = text.partition(":")
    if kind == "udp":
        return Where("udp", text)
    named = colon and kind.replace("-", "").replace(".", "").isalnum()
    if not named or Path(text).exists():
        return Where("file", text) if text not in ("rate", "socket") else Where(text)
    options, path, last = dict[str, str](), "", ""
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if equals:
            options[name], last = value, name
        elif last:  # a list, such as that of Kafka's servers
            options[last] += f",{part}"
        elif path:
            raise InputError(f"'{part}' in input '{text}' is no option; write FORMAT:PATH,option=value,…")
        else:
            path = name
    return Where(kind, path, options)


def unreadable(kind: str, stream: str, error: Exception) -> str:
    """Return why Spark does not read a format, and which package would let it."""
    why = f"Spark cannot read '{kind}' for stream {stream}: {str(error).splitlines()[0]}"
    if kind not in _PACKAGES or not re.search(_NOT_FOUND, str(error)):
        return why
    version = importlib.metadata.version("pyspark")
    package, more = (text.format(spark=version) for text in _PACKAGES[kind])
    return (
        f"Spark has no format '{kind}' here, from which stream {stream} is to come; it is in a package of "
        f'its own: set PYSPARK_SUBMIT_ARGS="--packages {package} pyspark-shell" and run this again{more}'
    )


def typed_batches(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows that come from Spark in the types of a result."""
    for batch in table.to_batches():
        columns = [
            column if column.type == f.type else _cast(column, f.type)
            for column, f in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp(kind.unit, column.type.tz)).view(pa.int64()).view(kind)
    return column.cast(kind)


class Live:
    """Streaming queries, whose results come by micro-batches."""

    def __init__(self, schemas: Mapping[str, pa.Schema]) -> None:
        self._schemas = schemas
        self._ready: queue.SimpleQueue[tuple[str, pa.RecordBatch]] = queue.SimpleQueue()
        self._adding = threading.Lock()
        self._delivered: dict[str, int] = {}
        """By result, the last micro-batch whose rows have been taken."""
        self._closed: set[str] = set()
        """Results that take no more rows: a micro-batch that is stopped on its way is not delivered."""
        self._figures: dict[tuple[str, int], dict[str, Any]] = {}
        self.queries: list[Any] = []
        """The streaming queries that have started, one per result."""
        self._began = time.perf_counter()
        self.lost = dict.fromkeys(LOST, 0)
        """Rows that are in no result, by the reason."""

    def results(
        self, frames: Mapping[str, Any], receivers: list[Receiver], folder: Path, stop: Callable[[], bool]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield results until all senders of datagrams are done, or `stop` asks for an end."""
        self._began = time.perf_counter()
        self.queries = [self._start(name, frame, folder) for name, frame in frames.items()]
        try:
            while not stop() and (not receivers or any(receiver.running for receiver in receivers)):
                time.sleep(_WAIT)
                self._note()
                yield from self._take()
            for receiver in receivers:
                receiver.stop()
            self._drain(endless=not receivers)
        finally:
            with self._adding:
                self._closed.update(frames)
            for query in self.queries:
                query.stop()
        yield from self._take()

    def _start(self, name: str, frame: Any, folder: Path) -> Any:
        def add(rows: Any, batch: int) -> None:
            found = list(typed_batches(rows.toArrow(), self._schemas[name]))
            with self._adding:
                if name not in self._closed:
                    self._delivered[name] = batch
                    for each in found:
                        self._ready.put((name, each))

        place = str(folder / "checkpoints" / name)
        return frame.writeStream.foreachBatch(add).option("checkpointLocation", place).queryName(name).start()

    def _take(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._ready.get_nowait()

    def _drain(self, *, endless: bool) -> None:
        """Let queries finish what their sources have; for sources that never end, one more micro-batch."""
        asked = datetime.now(UTC)
        time.sleep(_WAIT)  # an idle query looks for new rows more often than that
        for query in self.queries:
            while endless and query.isActive and not self._close_drained(query, asked):
                time.sleep(_WAIT / 4)
            if not endless:
                query.processAllAvailable()
        self._note()

    def _close_drained(self, query: Any, asked: datetime) -> bool:
        """Close a result if its query is drained and has reported each micro-batch whose rows were taken."""
        with self._adding:
            last = query.lastProgress
            reported = -1 if last is None else json.loads(last.json)["batchId"]
            if reported < self._delivered.get(query.name, -1) or not _is_drained(query, asked):
                return False
            self._closed.add(query.name)
            return True

    def _note(self) -> None:
        """Count the rows that micro-batches have lost, before Spark forgets; raise if a query has failed."""
        for query in self.queries:
            if query.exception() is not None:
                why = one_line(reason(query.exception()), 500)
                raise HandshakeError(f"result {query.name} failed on Spark: {why}")
            for progress in (json.loads(p.json) for p in query.recentProgress):
                self._figures[query.name, progress["batchId"]] = progress.get("observedMetrics") or {}
        self.lost = _lost(self._figures)

    def describe_speed(self) -> str:
        """Return the seconds so far, and the rate and the lag of the last micro-batches."""
        last = [json.loads(p.json) for p in (query.lastProgress for query in self.queries) if p is not None]
        rate = max((p.get("processedRowsPerSecond") or 0 for p in last), default=0)
        lag = max((_lag(p) for p in last), default=0)
        return f"{time.perf_counter() - self._began:6.0f} s  {rate:,.0f} rows/s  lag {lag:.1f} s"


def _lag(progress: dict[str, Any]) -> float:
    """Return the seconds since the last micro-batch began: later rows have no result yet."""
    return max((datetime.now(UTC) - _began(progress)).total_seconds(), 0.0)


def _began(progress: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))


def _is_drained(query: Any, asked: datetime) -> bool:
    """Return true if nothing is left to do, or a micro-batch that began after `asked` is done."""
    status, last = query.status, query.lastProgress
    if not status["isTriggerActive"] and not status["isDataAvailable"]:
        return True
    return last is not None and _began(json.loads(last.json)) >= asked


def _lost(figures: dict[tuple[str, int], dict[str, Any]]) -> dict[str, int]:
    """Add up the micro-batches. Results that read the same carrying input all count its unknown rows."""
    found: dict[str, dict[str, int]] = {}
    for (query, _), metrics in figures.items():
        mine = found.setdefault(query, dict.fromkeys(LOST, 0))
        for observed in metrics.values():
            for what in LOST:
                mine[what] += observed.get(what) or 0
    lost = {what: sum(one[what] for one in found.values()) for what in LOST}
    return {**lost, "unknown": max((one["unknown"] for one in found.values()), default=0)}


class Receiver:
    """`handshake receive` as a process of its own, so that Spark's work does not keep it from its socket."""

    def __init__(self, process: subprocess.Popen[str], name: str, malformed: Path) -> None:
        self._process, self.name, self._malformed = process, name, malformed
        self.counters: dict[str, Any] = {}
        self._stopped = False

    @classmethod
    @contextlib.contextmanager
    def receive(cls, plan: Plan, name: str, place: Address, folder: Path) -> Iterator[Receiver]:
        """Start a receiver that writes to a log below a folder; stop it in the end."""
        declared, malformed = folder / "query.sql", folder / f"malformed-{name}.jsonl"
        declared.write_text(place.query, "utf-8")
        command = [
            sys.executable, "-m", "handshake.cli", "receive", place.path, "--query", str(declared), "--input",
            name, "--log", str(folder / "log"), "--sync", "0.1",
        ]  # fmt: skip
        command += ["--bad", str(malformed)] if place.bad.kept else []
        command += ["--strict"] if place.bad.strict else []
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        receiver = cls(process, name, malformed)
        try:
            names = [stream.name for stream in streams_for(plan, name)[0]]
            while receiver.running and not all((folder / "log" / n / "schema.arrow").exists() for n in names):
                time.sleep(0.05)
            yield receiver
        finally:
            receiver.stop()

    @property
    def running(self) -> bool:
        """True while more may come. Raises the error of the process if it failed."""
        status = self._process.poll()
        if status not in (None, 0):
            assert self._process.stderr is not None
            raise HandshakeError(
                self._process.stderr.read().strip().splitlines()[-1].removeprefix("handshake: ")
            )
        return status is None

    def stop(self) -> None:
        """End the process when all that came is written."""
        if self._stopped:
            return
        self._stopped = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate()
        self.counters = json.loads(out.splitlines()[-1]) if out.strip() else {}

    def report(self, bad: BadRows) -> None:
        """Add the malformed datagrams to the bad rows."""
        for line in self._malformed.read_text("utf-8").splitlines() if self._malformed.exists() else ():
            datagram = json.loads(line)
            bad.add(self.name, bad.count + 1, datagram["reason"], base64.b64decode(datagram["bytes"]).hex())
