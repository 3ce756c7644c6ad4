"""Runs of queries on tables, files, datagrams and formats of Spark's: finite runs, and those without end."""

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
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from handshake.engines.engine import Run
from handshake.engines.inputs import Address, read_inputs
from handshake.engines.spark.cluster import start_cluster
from handshake.engines.spark.failures import reason
from handshake.engines.spark.queries.translate import QueryFrames, query_frames
from handshake.engines.spark.state.store import open_store
from handshake.engines.spark.tables import table_frame
from handshake.engines.spark.types import conform, to_spark_types
from handshake.engines.spark.udp_source import FORMAT, register
from handshake.errors import HandshakeError, InputError, UnsupportedError, format_count, one_line
from handshake.io.declared import BadRows
from handshake.io.frames import is_spark
from handshake.io.udp.receive import direct, streams_for
from handshake.metrics.spark_progress import new_reports, observed_figures
from handshake.operators.query import output_schema
from handshake.options import Options
from handshake.plan.algebra import Plan, Source

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


def place_of(given: Any) -> Where | None:
    """Return where an input comes from; None if its rows are given."""
    if not isinstance(given, Address):
        return None
    place = parse_input(given.path)
    if place.path == "-":
        raise UnsupportedError('Spark does not read standard input; give a file, or use engine="local"')
    return place


class BatchRun(Run):
    """A query on finite inputs: each result in turn."""

    def __init__(
        self, plan: Plan, inputs: Mapping[str, Any], options: Options, places: Mapping[str, Where | None]
    ) -> None:
        self._plan, self._inputs, self._options, self._places = plan, inputs, options, places
        self.schemas = {output.name: output_schema(output) for output in plan.outputs}
        self._rows = {output.name: 0 for output in plan.outputs}
        self._lost = dict.fromkeys(LOST, 0)
        self._unknown, self._seconds = 0, 0.0
        self._receivers: list[Receiver] = []

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = stack.enter_context(
                start_cluster("handshake run", self._options.master, self._options.cores)
            )
            for name, place in self._places.items():
                if place is not None and place.kind == "udp":
                    receiving = Receiver.receive(self._plan, name, self._inputs[name], folder)
                    self._receivers.append(stack.enter_context(receiving))
            frames = self._frames(cluster.session, folder)
            yield from self._results(frames, folder)

    def _frames(self, session: SparkSession, folder: Path) -> QueryFrames:
        inputs: dict[str, Any] = {}
        for source in self._plan.inputs:
            if source.name in self._places:
                inputs |= self._input(session, source, folder)
        plan = direct(self._plan) if self._receivers else self._plan
        state = self._options.state_dir or str(folder / "state")
        return query_frames(plan, inputs, state_dir=state)

    def _input(self, session: SparkSession, source: Source, folder: Path) -> dict[str, Any]:
        place, reader = self._places[source.name], session.readStream
        if place is None or place.kind == "file":
            return {source.name: self._table(session, source, folder)}
        if place.kind == "udp":
            register(session)
            names = [stream.name for stream in streams_for(self._plan, source.name)[0]]
            return {name: reader.format(FORMAT).load(str(folder / "log" / name)) for name in names}
        try:
            opened = reader.format(place.kind).options(**place.options)
            return {source.name: opened.load(place.path) if place.path else opened.load()}
        except Exception as error:
            raise InputError(unreadable(place.kind, source.name, error)) from None

    def _table(self, session: SparkSession, source: Source, folder: Path) -> Any:
        """Return the DataFrame of a finite input."""
        if is_spark(self._inputs[source.name]):
            return self._inputs[source.name]
        read = read_inputs(self._plan, {source.name: self._inputs[source.name]})[source.name]
        table = to_spark_types(read, source.name)
        self._unknown += _count_unclaimed(self._plan, source, table)
        return table_frame(session, table, open_store(str(folder)), f"input-{source.name}")

    def _results(self, frames: QueryFrames, folder: Path) -> Iterator[tuple[str, pa.RecordBatch]]:
        began = time.perf_counter()
        for name, frame in frames.items():
            for batch in (conform(each, self.schemas[name]) for each in frame.toArrow().to_batches()):
                self._rows[name] += batch.num_rows
                yield name, batch
            counted = frames.observations[name].get if name in frames.observations else {}
            for what in LOST:
                self._lost[what] += counted.get(what) or 0
        self._lost["unknown"] = self._unknown
        self._seconds = time.perf_counter() - began

    def metrics(self) -> dict[str, Any]:
        """Return results, rows that were lost, and the counters of datagrams."""
        received = {receiver.name: receiver.counters for receiver in self._receivers}
        return {"results": self._rows, **self._lost, "seconds": self._seconds, "datagrams": received}

    def facts(self) -> list[tuple[str, str]]:
        """Return results, rows that were lost, datagrams and the time."""
        facts = [(name, format_count(rows, "result")) for name, rows in self._rows.items()]
        facts += [(LOST[what], format_count(rows, "row")) for what, rows in self._lost.items() if rows]
        for receiver in self._receivers:
            shown = ", ".join(f"{what} {n}" for what, n in receiver.counters.items() if n)
            facts.append((f"{receiver.name}, datagrams", shown))
        return [*facts, ("time", f"{self._seconds:.2f} s on Spark")]


class LiveRun(BatchRun):
    """A query on inputs without end: until it is stopped, or all senders of datagrams are done."""

    stoppable = endless = True

    def __init__(
        self, plan: Plan, inputs: Mapping[str, Any], options: Options, places: Mapping[str, Where | None]
    ) -> None:
        super().__init__(plan, inputs, options, places)
        self._ready: queue.SimpleQueue[tuple[str, pa.RecordBatch]] = queue.SimpleQueue()
        self._adding = threading.Lock()
        self._delivered: dict[str, int] = {}
        """By result, the last micro-batch whose rows have been taken."""
        self._closed: set[str] = set()
        """Results that take no more rows: a micro-batch that is stopped on its way is not delivered."""
        self._counted: dict[str, int] = {}
        """By result, the last micro-batch whose lost rows have been counted."""
        self._lost_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """The lost rows of each result."""
        self._queries: list[Any] = []
        """The streaming queries that have started, one per result."""
        self._began = time.perf_counter()

    def _results(self, frames: QueryFrames, folder: Path) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield results until all senders of datagrams are done, or the run is stopped."""
        self._began = time.perf_counter()
        self._queries = [self._start(name, frame, folder) for name, frame in frames.items()]
        try:
            while not self.stopped and (not self._receivers or any(r.running for r in self._receivers)):
                time.sleep(_WAIT)
                self._count_lost()
                yield from self._take()
            for receiver in self._receivers:
                receiver.stop()
            self._drain()
        finally:
            with self._adding:
                self._closed.update(frames)
            for query in self._queries:
                query.stop()
        yield from self._take()
        for receiver in self._receivers:
            receiver.report(self._inputs[receiver.name].bad)
        self._seconds = time.perf_counter() - self._began

    def _start(self, name: str, frame: Any, folder: Path) -> Any:
        def add(rows: Any, batch: int) -> None:
            found = [conform(each, self.schemas[name]) for each in rows.toArrow().to_batches()]
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
                name, batch = self._ready.get_nowait()
                self._rows[name] += batch.num_rows
                yield name, batch

    def _drain(self) -> None:
        """Let queries finish what their sources have; for sources that never end, one more micro-batch."""
        asked = datetime.now(UTC)
        time.sleep(_WAIT)  # an idle query looks for new rows more often than that
        for query in self._queries:
            if self._receivers:
                query.processAllAvailable()
                continue
            while query.isActive and not self._close_drained(query, asked):
                time.sleep(_WAIT / 4)
        self._count_lost()

    def _close_drained(self, query: Any, asked: datetime) -> bool:
        """Close a result if its query is drained and has reported each micro-batch whose rows were taken."""
        with self._adding:
            last = query.lastProgress
            reported = -1 if last is None else last["batchId"]
            if reported < self._delivered.get(query.name, -1) or not _is_drained(query, asked):
                return False
            self._closed.add(query.name)
            return True

    def _count_lost(self) -> None:
        """Count the rows that micro-batches have lost, before Spark forgets; raise if a query has failed."""
        for query in self._queries:
            if query.exception() is not None:
                why = one_line(reason(query.exception()), 500)
                raise HandshakeError(f"result {query.name} failed on Spark: {why}")
            for report in new_reports(query, self._counted.get(query.name, -1)):
                self._counted[query.name] = report["batchId"]
                for observed in observed_figures(report).values():
                    self._lost_of[query.name].update({what: observed.get(what) or 0 for what in LOST})
        counts = self._lost_of.values()
        self._lost = {what: sum(each[what] for each in counts) for what in LOST}
        # results that read the same carrying input all count its unknown rows
        self._lost["unknown"] = max((each["unknown"] for each in counts), default=0)

    def sources_of_figures(self) -> list[Any]:
        """Return the streaming queries that have started."""
        return self._queries

    def progress(self) -> tuple[str, int, int | None]:
        """Return the rate and the lag of the last micro-batches, and the rows of each result."""
        last = [report for report in (query.lastProgress for query in self._queries) if report is not None]
        rate = max((report.get("processedRowsPerSecond") or 0 for report in last), default=0)
        # rows that came after a micro-batch began have no result yet
        lag = max(((datetime.now(UTC) - _began(report)).total_seconds() for report in last), default=0)
        results = ", ".join(f"{name} {rows:,}" for name, rows in self._rows.items())
        seconds = time.perf_counter() - self._began
        speed = f"{seconds:6.0f} s  {rate:,.0f} rows/s  lag {max(lag, 0):.1f} s"
        return f"{speed}  {results}", sum(self._rows.values()), None


def _began(report: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(report["timestamp"])


def _is_drained(query: Any, asked: datetime) -> bool:
    """Return true if nothing is left to do, or a micro-batch that began after `asked` is done."""
    status, last = query.status, query.lastProgress
    if not status["isTriggerActive"] and not status["isDataAvailable"]:
        return True
    return last is not None and _began(last) >= asked


def _count_unclaimed(plan: Plan, source: Source, table: pa.Table) -> int:
    """Return the number of rows of an input that belong to none of the streams that it carries."""
    values = [s.demux for s in plan.inputs if s.demux is not None and s.demux.stream == source.name]
    if not values:
        return 0
    parts = []
    for demux in values:
        column = table.column(demux.field)
        parts.append(pc.is_in(column, value_set=pa.array(demux.values, column.type)))
    return int(table.num_rows) - int(pc.sum(reduce(pc.or_, parts)).as_py() or 0)


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
