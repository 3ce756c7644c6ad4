"""`handshake run --backend spark`: a query's inputs as DataFrames, its results to files or shown live."""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from handshake.api import spark_module
from handshake.cli.preview import Preview, plain_table
from handshake.cli.query import RunRequest, on_interrupt
from handshake.errors import HandshakeError, InputError, UnsupportedError
from handshake.io import check_output, one_line, sink_for
from handshake.io.declared import BAD, BadRows
from handshake.io.files import read_declared
from handshake.io.udp.receive import direct, streams_for
from handshake.operators.query import output_schema
from handshake.plan.algebra import Plan, Source

__all__ = ["Where", "parse_input", "run_query"]

_EVERY = 1.0
_WAIT = 0.2
_LOST = {"late": "late", "no_time": "without a time", "unknown": "of no stream"}
_DELTA = (
    "io.delta:delta-spark_2.13:VERSION --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
_PACKAGES = {
    "kafka": ("org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}", ""),
    "delta": (_DELTA, ", where VERSION is one that is made for Spark {spark}"),
}
"""Formats that Spark knows when it is started with these packages, and what there is to say of them."""
_NOT_FOUND = "DATA_SOURCE_NOT_FOUND|Failed to find( the)? data source"


@dataclass(frozen=True)
class Where:
    """Where an input comes from: a file or folder, datagrams, or a format of Spark's with its options."""

    kind: str
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether it does not end."""
        return self.kind != "file"


def parse_input(text: str) -> Where:
    """What stands behind `NAME=`.

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
    if (
        not colon
        or not kind.replace("-", "").replace(".", "").isalnum()
        or "/" in kind
        or Path(text).exists()
    ):
        return Where("file", text) if text not in ("rate", "socket") else Where(text)
    options, path, last = dict[str, str](), "", ""
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if equals:
            options[name], last = value, name
        elif last:  # a list, such as that of Kafka's servers
            options[last] += f",{part}"
        elif path:
            raise InputError(f"'{part}' in --input '{text}' is no option; write FORMAT:PATH,option=value,…")
        else:
            path = name
    return Where(kind, path, options)


def run_query(request: RunRequest) -> int:
    """Run a request; the exit status."""
    plan = request.plan
    given = {name: parse_input(path) for name, path in request.input_paths(plan).items()}
    if "-" in (where.path for where in given.values()):
        raise UnsupportedError(
            "--backend spark does not read standard input; give a file, or use --backend local"
        )
    outputs = request.output_paths(plan)
    if request.bad is not None:
        check_output(request.bad)
    cluster_module = spark_module("cluster")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(cluster_module.started("handshake run", cores=request.cores))
        bad = BadRows(request.strict, kept=request.bad is not None)
        receivers = [
            stack.enter_context(_receiving(request, name, where.path, folder))
            for name, where in given.items()
            if where.kind == "udp"
        ]
        run = _Run(request, plan, cluster.session, folder, outputs, bad)
        frames = run.frames(given)
        if any(where.live for where in given.values()):
            stop = stack.enter_context(on_interrupt())
            delivered = run.stream(frames, receivers, stop)
        else:
            delivered = run.batch(frames)
        for receiver in receivers:
            receiver.stop()
            receiver.tell(bad)
        if request.bad is not None:
            stack.enter_context(sink_for(request.bad, BAD)).write(bad.take())
        _report(request, delivered, bad, receivers)
        return 130 if delivered.stopped else 0


@dataclass
class _Delivered:
    """Rows of each result, and how long it took."""

    rows: dict[str, int] = field(default_factory=dict)
    previews: dict[str, Preview] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LOST, 0))
    """Rows that are in no result, by the reason."""
    seconds: float = 0.0
    stopped: bool = False


class _Run:
    """Inputs to DataFrames, and results to where they go."""

    def __init__(
        self,
        request: RunRequest,
        plan: Plan,
        session: Any,
        folder: Path,
        outputs: dict[str, str],
        bad: BadRows,
    ) -> None:
        self._request, self._session, self._folder = request, session, folder
        self._plan, self._outputs, self._bad = plan, outputs, bad
        self._unknown = 0

    # Inputs.

    def frames(self, given: dict[str, Where]) -> Any:
        """The results as DataFrames, by name."""
        inputs: dict[str, Any] = {}
        for source in self._plan.inputs:
            if source.name in given:
                inputs |= self._input(source, given[source.name])
        plan = direct(self._plan) if any(where.kind == "udp" for where in given.values()) else self._plan
        return spark_module("queries.translate").query_frames(plan, inputs, state_dir=str(self._folder / "state"))

    def _input(self, source: Source, where: Where) -> dict[str, Any]:
        if where.kind == "file":
            return {source.name: self._file(source, where.path)}
        reader = self._session.readStream
        if where.kind == "udp":
            log = spark_module("udp_source")
            log.register(self._session)
            names = [stream.name for stream in streams_for(self._plan, source.name)[0]]
            return {n: reader.format(log.FORMAT).load(str(self._folder / "log" / n)) for n in names}
        try:
            opened = reader.format(where.kind).options(**where.options)
            return {source.name: opened.load(where.path) if where.path else opened.load()}
        except Exception as error:
            raise InputError(_unreadable(where.kind, source.name, error)) from None

    def _file(self, source: Source, path: str) -> Any:
        tables = spark_module("tables")
        schema = source.fields
        carried = [s for s in self._plan.inputs if s.demux is not None and s.demux.stream == source.name]
        for other in carried:
            fields = [f for f in other.fields if f.name not in schema.names]
            schema = type(schema)((*schema.fields, *fields), schema.stream)
        table = tables.carried(read_declared(path, schema, self._bad), source.name)
        self._unknown += _unclaimed(table, carried)
        store = spark_module("state.store").open_store(str(self._folder))
        return tables.frame_of(self._session, table, store, f"input-{source.name}")

    # Results.

    def batch(self, frames: Any) -> _Delivered:
        """Finite inputs: each result in turn."""
        told, began = _Delivered(), time.perf_counter()
        with contextlib.ExitStack() as stack:
            for name, frame in frames.items():
                self._deliver(stack, told, name, frame.toArrow())
                counted = frames.observations[name].get if name in frames.observations else {}
                for what in _LOST:
                    told.lost[what] += counted.get(what) or 0
        told.lost["unknown"] = self._unknown
        told.seconds = time.perf_counter() - began
        return told

    def _deliver(self, stack: contextlib.ExitStack, told: _Delivered, name: str, table: pa.Table) -> None:
        schema = output_schema(self._plan.output(name))
        batches = [_typed(batch, schema) for batch in table.to_batches()]
        told.rows[name] = table.num_rows
        if name in self._outputs:
            sink = stack.enter_context(sink_for(self._outputs[name], schema))
            for batch in batches:
                sink.write(batch)
        elif not self._outputs:
            told.previews[name] = Preview(schema)
            for batch in batches:
                told.previews[name].add(batch)

    def stream(
        self, frames: dict[str, Any], receivers: list[_Receiver], stop: Callable[[], bool]
    ) -> _Delivered:
        """Inputs without end: until Ctrl-C, or the end of all datagrams."""
        live = _Live(self._plan, self._outputs)
        with contextlib.ExitStack() as stack:
            live.open(stack)
            began = time.perf_counter()
            queries = [live.start(name, frame, self._folder) for name, frame in frames.items()]
            try:
                live.follow(queries, receivers, began, stop)
                live.told.stopped = stop()
                for receiver in receivers:
                    receiver.stop()
                live.drain(queries, endless=not receivers)
            finally:
                live.close(queries)
        live.told.seconds = time.perf_counter() - began
        return live.told


def _unreadable(kind: str, stream: str, error: Exception) -> str:
    """Why Spark does not read a format, and which package would let it."""
    why = f"Spark cannot read '{kind}' for stream {stream}: {str(error).splitlines()[0]}"
    if kind not in _PACKAGES or not re.search(_NOT_FOUND, str(error)):
        return why
    version = importlib.metadata.version("pyspark")
    package, more = (text.format(spark=version) for text in _PACKAGES[kind])
    return (
        f"Spark has no format '{kind}' here, from which stream {stream} is to come; it is in a package of "
        f'its own: set PYSPARK_SUBMIT_ARGS="--packages {package} pyspark-shell" and run this again{more}'
    )


def _unclaimed(table: pa.Table, carried: list[Source]) -> int:
    """Rows of an input that belong to none of the streams that it carries."""
    if not carried:
        return 0
    parts = [_is_of(table, source) for source in carried]
    return int(table.num_rows) - int(pc.sum(reduce(pc.or_, parts)).as_py() or 0)


def _is_of(table: pa.Table, source: Source) -> pa.ChunkedArray:
    assert source.demux is not None
    column = table.column(source.demux.field)
    return pc.is_in(column, value_set=pa.array(source.demux.values, column.type))


class _Live:
    """Streaming queries whose results come by micro-batches."""

    def __init__(self, plan: Plan, outputs: dict[str, str]) -> None:
        self._plan, self._outputs = plan, outputs
        self._sinks: dict[str, Any] = {}
        self._writing, self._closed = threading.Lock(), False
        self._figures: dict[tuple[str, int], dict[str, Any]] = {}
        self.told = _Delivered({output.name: 0 for output in plan.outputs})

    def open(self, stack: contextlib.ExitStack) -> None:
        for output in self._plan.outputs:
            schema = output_schema(output)
            if output.name in self._outputs:
                self._sinks[output.name] = stack.enter_context(sink_for(self._outputs[output.name], schema))
            elif not self._outputs:
                self.told.previews[output.name] = Preview(schema)

    def start(self, name: str, frame: Any, folder: Path) -> Any:
        schema = output_schema(self._plan.output(name))

        def take(rows: Any, batch: int) -> None:
            for given in rows.toArrow().to_batches():
                self._deliver(name, _typed(given, schema))

        place = str(folder / "checkpoints" / name)
        return (
            frame.writeStream.foreachBatch(take).option("checkpointLocation", place).queryName(name).start()
        )

    def _deliver(self, name: str, batch: pa.RecordBatch) -> None:
        with self._writing:
            if self._closed:  # the micro-batch was stopped while it was on its way
                return
            self.told.rows[name] += batch.num_rows
            if name in self._sinks:
                self._sinks[name].write(batch)
            elif name in self.told.previews:
                self.told.previews[name].add(batch)

    def follow(
        self, queries: list[Any], receivers: list[_Receiver], began: float, stop: Callable[[], bool]
    ) -> None:
        """Until the senders of all datagrams are done, or somebody asks for an end."""
        last = time.perf_counter()
        while not stop() and (not receivers or any(receiver.running for receiver in receivers)):
            time.sleep(_WAIT)
            self._note(queries)
            if time.perf_counter() - last >= _EVERY:
                last = time.perf_counter()
                self._tell(queries, last - began)

    def drain(self, queries: list[Any], *, endless: bool) -> None:
        """Let queries take what their sources have; of sources that never end, one more micro-batch."""
        asked = datetime.now(UTC)
        time.sleep(_WAIT)  # an idle query looks for new rows more often than that
        for query in queries:
            while endless and query.isActive and not _drained(query, asked):
                time.sleep(_WAIT / 4)
            if not endless:
                query.processAllAvailable()
        self._note(queries)

    def close(self, queries: list[Any]) -> None:
        """End queries; what they may still be at is not delivered any more."""
        with self._writing:
            self._closed = True
        for query in queries:
            query.stop()

    def _note(self, queries: list[Any]) -> None:
        """Add what micro-batches have lost, before Spark forgets them; raises if a query has failed."""
        for query in queries:
            if query.exception() is not None:
                why = one_line(spark_module("failures").reason(query.exception()), 500)
                raise HandshakeError(f"result {query.name} failed on Spark: {why}")
            for told in (json.loads(p.json) for p in query.recentProgress):
                self._figures[query.name, told["batchId"]] = told.get("observedMetrics") or {}
        self.told.lost = _summed(self._figures)

    def _tell(self, queries: list[Any], seconds: float) -> None:
        told = [json.loads(p.json) for p in (query.lastProgress for query in queries) if p is not None]
        results = ", ".join(f"{name} {rows:,}" for name, rows in self.told.rows.items())
        rate = max((p.get("processedRowsPerSecond") or 0 for p in told), default=0)
        lag = max((_lag(p) for p in told), default=0)
        print(
            f"{seconds:6.0f} s  {rate:,.0f} rows/s  lag {lag:.1f} s  {results}", file=sys.stderr, flush=True
        )


def _lag(progress: dict[str, Any]) -> float:
    """Seconds since the last micro-batch began: no result of what came later is there yet."""
    return max((datetime.now(UTC) - _began(progress)).total_seconds(), 0.0)


def _began(progress: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))


def _drained(query: Any, asked: datetime) -> bool:
    """Whether a micro-batch is done that began when an end had been asked for, or nothing was left to do."""
    status, last = query.status, query.lastProgress
    if not status["isTriggerActive"] and not status["isDataAvailable"]:
        return True
    return last is not None and _began(json.loads(last.json)) >= asked


def _summed(figures: dict[tuple[str, int], dict[str, Any]]) -> dict[str, int]:
    """What all micro-batches have lost. Results that read one carrying input all count its unknown ones."""
    found: dict[str, dict[str, int]] = {}
    for (query, _), metrics in figures.items():
        mine = found.setdefault(query, dict.fromkeys(_LOST, 0))
        for told in metrics.values():
            for what in _LOST:
                mine[what] += told.get(what) or 0
    lost = {what: sum(one[what] for one in found.values()) for what in _LOST}
    return {**lost, "unknown": max((one["unknown"] for one in found.values()), default=0)}


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == f.type else _cast(column, f.type)
        for column, f in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp(kind.unit, column.type.tz)).view(pa.int64()).view(kind)
    return column.cast(kind)


# Datagrams


class _Receiver:
    """`handshake receive` as a process of its own: Spark's work does not keep it from its socket."""

    def __init__(self, process: subprocess.Popen[str], name: str, malformed: Path) -> None:
        self._process, self.name, self._malformed = process, name, malformed
        self.counters: dict[str, Any] = {}
        self._stopped = False

    @property
    def running(self) -> bool:
        """Whether more may come; an error of its own is raised here."""
        status = self._process.poll()
        if status not in (None, 0):
            assert self._process.stderr is not None
            raise HandshakeError(
                self._process.stderr.read().strip().splitlines()[-1].removeprefix("handshake: ")
            )
        return status is None

    def stop(self) -> None:
        """End it when what came is written."""
        if self._stopped:
            return
        self._stopped = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate()
        self.counters = json.loads(out.splitlines()[-1]) if out.strip() else {}

    def tell(self, bad: BadRows) -> None:
        """Hand on what it put aside."""
        for line in self._malformed.read_text("utf-8").splitlines() if self._malformed.exists() else ():
            told = json.loads(line)
            bad.add(self.name, bad.count + 1, told["reason"], base64.b64decode(told["bytes"]).hex())


@contextlib.contextmanager
def _receiving(request: RunRequest, name: str, url: str, folder: Path) -> Iterator[_Receiver]:
    command = [
        sys.executable, "-m", "handshake.cli", "receive", url, "--query", request.query, "--input", name,
        "--log", str(folder / "log"), "--sync", "0.1",
    ]  # fmt: skip
    malformed = folder / f"malformed-{name}.jsonl"
    command += ["--bad", str(malformed)] if request.bad is not None else []
    command += ["--strict"] if request.strict else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    receiver = _Receiver(process, name, malformed)
    try:
        names = [stream.name for stream in streams_for(request.plan, name)[0]]
        while receiver.running and not all((folder / "log" / n / "schema.arrow").exists() for n in names):
            time.sleep(0.05)
        yield receiver
    finally:
        receiver.stop()


def _report(request: RunRequest, told: _Delivered, bad: BadRows, receivers: list[_Receiver]) -> None:
    out = request.summary_to
    for name, preview in told.previews.items():
        print(name, file=out)
        for line in preview.lines():
            print(line, file=out)
    facts = [(name, f"{rows:,} results") for name, rows in told.rows.items()]
    facts += [(_LOST[what], f"{rows:,} rows") for what, rows in told.lost.items() if rows]
    for receiver in receivers:
        shown = ", ".join(f"{what} {n}" for what, n in receiver.counters.items() if n)
        facts.append((f"{receiver.name}, datagrams", shown))
    if bad.count:
        facts.append(("bad", f"{bad.count:,} rows{'' if request.bad else '; --bad FILE keeps them'}"))
    facts.append(("time", f"{told.seconds:.2f} s on Spark"))
    if told.stopped:
        facts.append(("ended by", "Ctrl-C, after the rows above"))
    for line in plain_table(facts):
        print(line, file=out)
    if request.metrics is not None:
        received = {receiver.name: receiver.counters for receiver in receivers}
        figures = {
            "results": told.rows, **told.lost, "bad": bad.count, "seconds": told.seconds,
            "datagrams": received,
        }  # fmt: skip
        Path(request.metrics).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
