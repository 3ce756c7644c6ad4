"""`handshake run --backend spark`: a query's inputs as DataFrames, its results to files or shown live."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.cli_query import RunRequest
from handshake.errors import HandshakeError, InputError, UnsupportedError
from handshake.plan.algebra import Plan, Source
from handshake.preview import Preview, plain_table
from handshake.queries.engine import output_schema
from handshake.session import spark_module
from handshake.sources import sink_for
from handshake.sources.declared import BadRows, read_declared
from handshake.sources.receive import direct, streams_for

__all__ = ["Where", "parse_input", "run_query"]

_EVERY = 1.0
_WAIT = 0.2


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
    options, path = {}, ""
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if equals:
            options[name] = value
        elif path:
            raise InputError(f"'{part}' in --input '{text}' is no option; write FORMAT:PATH,option=value,…")
        else:
            path = name
    return Where(kind, path, options)


def run_query(request: RunRequest) -> int:
    """Run a request; the exit status."""
    if request.pace is not None:
        raise UnsupportedError("--pace is for --backend local; Spark takes files as they are")
    plan = request.plan
    given = {name: parse_input(path) for name, path in request.input_paths(plan).items()}
    if "-" in (where.path for where in given.values()):
        raise UnsupportedError(
            "--backend spark does not read standard input; give a file, or use --backend local"
        )
    outputs = request.output_paths(plan)
    cluster_module = spark_module("cluster")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(cluster_module.started("handshake run", cores=request.cores or 1))
        bad = BadRows(request.strict)
        receivers = [
            stack.enter_context(_receiving(request, name, where.path, folder))
            for name, where in given.items()
            if where.kind == "udp"
        ]
        run = _Run(request, plan, cluster.session, folder, outputs, bad)
        frames = run.frames(given)
        delivered = (
            run.stream(frames, receivers) if any(w.live for w in given.values()) else run.batch(frames)
        )
        _report(request, delivered, bad, receivers)
        return 130 if delivered.stopped else 0


@dataclass
class _Delivered:
    """Rows of each result, and how long it took."""

    rows: dict[str, int] = field(default_factory=dict)
    previews: dict[str, Preview] = field(default_factory=dict)
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

    # Inputs.

    def frames(self, given: dict[str, Where]) -> dict[str, Any]:
        """The results as DataFrames."""
        inputs: dict[str, Any] = {}
        for source in self._plan.inputs:
            if source.name in given:
                inputs |= self._input(source, given[source.name])
        plan = direct(self._plan) if any(where.kind == "udp" for where in given.values()) else self._plan
        made = spark_module("queries").query_frames(plan, inputs, state_dir=str(self._folder / "state"))
        found: dict[str, Any] = made
        return found

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
            raise InputError(
                f"Spark cannot read '{where.kind}' for stream {source.name}: {str(error).splitlines()[0]}"
            ) from None

    def _file(self, source: Source, path: str) -> Any:
        tables = spark_module("tables")
        schema = source.fields
        carried = [s for s in self._plan.inputs if s.demux is not None and s.demux.stream == source.name]
        for other in carried:
            fields = [f for f in other.fields if f.name not in schema.names]
            schema = type(schema)((*schema.fields, *fields), schema.stream)
        table = tables.carried(read_declared(path, schema, self._bad), source.name)
        store = spark_module("store").open_store(str(self._folder))
        return tables.frame_of(self._session, table, store, f"input-{source.name}")

    # Results.

    def batch(self, frames: dict[str, Any]) -> _Delivered:
        """Finite inputs: each result in turn."""
        told, began = _Delivered(), time.perf_counter()
        with contextlib.ExitStack() as stack:
            for name, frame in frames.items():
                self._deliver(stack, told, name, frame.toArrow())
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

    def stream(self, frames: dict[str, Any], receivers: list[_Receiver]) -> _Delivered:
        """Inputs without end: until Ctrl-C, or the end of all datagrams."""
        live = _Live(self._plan, self._outputs)
        told = live.told
        with contextlib.ExitStack() as stack:
            live.open(stack)
            queries = [live.start(name, frame, self._folder) for name, frame in frames.items()]
            began = time.perf_counter()
            try:
                live.follow(queries, receivers, began)
            except KeyboardInterrupt:
                told.stopped = True
                for receiver in receivers:
                    receiver.stop()
                live.drain(queries)
            finally:
                for query in queries:
                    query.stop()
        told.seconds = time.perf_counter() - began
        return told


class _Live:
    """Streaming queries whose results come by micro-batches."""

    def __init__(self, plan: Plan, outputs: dict[str, str]) -> None:
        self._plan, self._outputs = plan, outputs
        self._sinks: dict[str, Any] = {}
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
                typed = _typed(given, schema)
                self.told.rows[name] += typed.num_rows
                if name in self._sinks:
                    self._sinks[name].write(typed)
                elif name in self.told.previews:
                    self.told.previews[name].add(typed)

        place = str(folder / "checkpoints" / name)
        return (
            frame.writeStream.foreachBatch(take).option("checkpointLocation", place).queryName(name).start()
        )

    def follow(self, queries: list[Any], receivers: list[_Receiver], began: float) -> None:
        """Until the senders of all datagrams are done, and what came is queried; or for ever."""
        last = time.perf_counter()
        while not receivers or any(receiver.running for receiver in receivers):
            time.sleep(_WAIT)
            _check(queries)
            if time.perf_counter() - last >= _EVERY:
                last = time.perf_counter()
                self._tell(queries, last - began)
        self.drain(queries)

    def drain(self, queries: list[Any]) -> None:
        """Let queries take what their sources have."""
        for query in queries:
            query.processAllAvailable()
        _check(queries)

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
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
    return max((datetime.now(UTC) - began).total_seconds(), 0.0)


def _check(queries: list[Any]) -> None:
    for query in queries:
        if query.exception() is not None:
            raise HandshakeError(
                f"result {query.name} failed on Spark: {str(query.exception()).splitlines()[0]}"
            )


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

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self.name = process, name
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


@contextlib.contextmanager
def _receiving(request: RunRequest, name: str, url: str, folder: Path) -> Iterator[_Receiver]:
    command = [
        sys.executable, "-m", "handshake.cli", "receive", url, "--query", request.query, "--input", name,
        "--log", str(folder / "log"), "--sync", "0.1",
    ]  # fmt: skip
    command += ["--bad", request.bad] if request.bad is not None else []
    command += ["--strict"] if request.strict else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    receiver = _Receiver(process, name)
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
    for receiver in receivers:
        receiver.stop()
        shown = ", ".join(f"{what} {n}" for what, n in receiver.counters.items() if n)
        facts.append((f"{receiver.name}, datagrams", shown))
    if bad.count:
        facts.append(("bad", f"{bad.count:,} rows"))
    facts.append(("time", f"{told.seconds:.2f} s on Spark"))
    for line in plain_table(facts):
        print(line, file=out)
    if request.metrics is not None:
        received = {receiver.name: receiver.counters for receiver in receivers}
        figures = {"results": told.rows, "bad": bad.count, "seconds": told.seconds, "datagrams": received}
        Path(request.metrics).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
