"""`handshake run` and `handshake explain`: queries from a file, on files and standard input."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any

import pyarrow as pa
import typer

from handshake.api import spark_module
from handshake.cli.compile import Buffer, Divider, Groups, JoinKind, Text, WindowTuples, Without, circuits
from handshake.cli.options import check_options, typed
from handshake.cli.preview import Preview, plain_table
from handshake.engines.local.live import Receivers, comes_live
from handshake.engines.local.replay import Slice, replayed
from handshake.errors import HandshakeError, InputError, UnsupportedError, suggest
from handshake.io import check_output, describe_formats, sink_for
from handshake.io.declared import BAD, BadRows
from handshake.io.udp.demux import Counters
from handshake.io.udp.receive import direct
from handshake.joins.running import old_objects_spared
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.explain import dot, explain_plan
from handshake.plan.optimise import optimise
from handshake.plan.picture import svg
from handshake.plan.query import parse_query

__all__ = ["BACKENDS", "RunRequest", "on_interrupt", "read_query", "register", "run_query"]

Reporting = Callable[..., AbstractContextManager[None]]
BACKENDS = ("local", "spark", "circuit")
_EVERY = 1.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class RunRequest:
    """What was asked for on the command line.

    Another back end is a module `handshake.cli_query_<name>` with a function `run_query(request)`.
    """

    query: str
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    backend: str = "local"
    bad: str | None = None
    strict: bool = False
    pace: float | None = None
    cores: int | None = None
    metrics: str | None = None
    groups: int | None = None
    text: int | None = None
    simulator: str = "auto"
    vcd: str | None = None
    without: Sequence[str] = ()
    join: str = "auto"
    buffer: int = 8
    window_tuples: int | None = None
    divider: str = "pipelined"

    @property
    def plan(self) -> Plan:
        """The query, parsed."""
        return read_query(self.query)

    def input_paths(self, plan: Plan) -> dict[str, str]:
        """Where each input comes from."""
        wanted = [source.name for source in plan.inputs if source.demux is None]
        found = named("input", self.inputs, wanted)
        missing = [name for name in wanted if name not in found]
        if missing:
            raise HandshakeError(f"no input for stream {missing[0]}; give --input {missing[0]}=PATH")
        if list(found.values()).count("-") > 1:
            raise HandshakeError("standard input can be one stream's only")
        if self.query == "-" and "-" in found.values():
            raise HandshakeError("standard input has the query, so no stream can be there; give it a file")
        return found

    def output_paths(self, plan: Plan) -> dict[str, str]:
        """Where results go; those that are not named are only counted."""
        names = [output.name for output in plan.outputs]
        given = self.outputs
        if len(names) == 1 and len(given) == 1 and "=" not in given[0]:
            given = [f"{names[0]}={given[0]}"]
        found = named("output", given, names)
        for path in found.values():
            check_output(path)
        if list(found.values()).count("-") > 1:
            raise HandshakeError("standard output can be one result's only")
        _check_apart({**found, "--bad": self.bad} if self.bad is not None else found)
        return found

    @property
    def summary_to(self) -> IO[str]:
        """Where the summary goes: not among rows."""
        return sys.stderr if any(text == "-" or text.endswith("=-") for text in self.outputs) else sys.stdout


def _check_apart(paths: dict[str, str]) -> None:
    """Two results in one file would write over each other."""
    taken: dict[Path, str] = {}
    for name, path in paths.items():
        first = taken.setdefault(Path(path).resolve(), name)
        if first != name:
            raise HandshakeError(f"{first} and {name} both go to '{path}'; give each a file of its own")


def read_query(path: str) -> Plan:
    """The plan of the query in a file; `-` is standard input."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"query '{path}' is not UTF-8 text") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"query '{path}' cannot be read: {why}") from None
    return parse_query(text)


def named(option: str, given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` by names of streams."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise HandshakeError(f"--{option} '{text}' has no name; write NAME=PATH")
        known = {n.casefold(): n for n in names}
        if name.casefold() not in known:
            hint = suggest(name, names)
            raise HandshakeError(
                f"--{option} '{text}': the query has no {option} '{name}' ({', '.join(names)}){hint}"
            )
        if known[name.casefold()] in found:
            raise HandshakeError(f"--{option} is given twice for '{name}'; give it once")
        found[known[name.casefold()]] = value
    return found


def run_query(request: RunRequest) -> int:
    """Run a request, wherever it asks to; the exit status."""
    if request.backend not in BACKENDS:
        hint = suggest(request.backend, BACKENDS)
        raise UnsupportedError(f"no back end '{request.backend}' ({', '.join(BACKENDS)}){hint}")
    if request.backend == "local":
        return _run_here(request)
    try:
        module = importlib.import_module(f"handshake.cli.query_{request.backend}")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"the {request.backend} back end cannot run queries here: {error.name} is not installed; "
            "--backend local runs them in this process"
        ) from None
    return int(module.run_query(request) or 0)


def _run_here(request: RunRequest) -> int:
    plan = request.plan
    paths, outputs = request.input_paths(plan), request.output_paths(plan)
    if request.bad is not None:
        check_output(request.bad)
    bad = BadRows(request.strict, kept=request.bad is not None)
    live = comes_live(paths)
    _check_pace(request, paths, live)
    query = Query(direct(plan) if live else plan, cores=request.cores or 1)
    with contextlib.ExitStack() as stack:
        receivers = stack.enter_context(Receivers(plan, paths, bad)) if live else None
        delivery = _Delivery(query, outputs, stack)
        aside = None if request.bad is None else stack.enter_context(sink_for(request.bad, BAD))
        stop = stack.enter_context(on_interrupt())
        watch = _Watch(query)
        stack.enter_context(old_objects_spared())
        pieces = (
            receivers.slices(stop) if receivers else replayed(plan, paths, bad, pace=request.pace, stop=stop)
        )
        for piece in pieces:
            delivery.take(query.push_together(piece.batches))
            watch.look(piece)
            if aside is not None and bad.rows:
                aside.write(bad.take())
        delivery.take(query.finish())
        watch.clear()
        if aside is not None and bad.rows:
            aside.write(bad.take())
        counters = receivers.counters if receivers else {}
    _report(request, query, delivery, watch, bad, stop(), counters)
    return 130 if stop() else 0


def _check_pace(request: RunRequest, paths: dict[str, str], live: bool) -> None:
    """Rows that come one by one have the pace of who sends them."""
    if request.pace is not None and (live or list(paths.values()) == ["-"]):
        name, path = next(iter(paths.items()))
        raise UnsupportedError(
            f"--pace is for files, and {name} comes from '{path}' at the pace of its sender; leave it out"
        )


@contextlib.contextmanager
def on_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks for an end: what has come is finished first. A second one does not wait."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Delivery:
    """Results on their way to files, to standard output, or to a look at their first rows."""

    def __init__(self, query: Query, outputs: dict[str, str], stack: contextlib.ExitStack) -> None:
        self.previews: dict[str, Preview] = {}
        self._deliver: dict[str, Callable[[pa.RecordBatch], None]] = {}
        for output in query.plan.outputs:
            schema = query.schema(output.name)
            if output.name in outputs:
                sink = stack.enter_context(sink_for(outputs[output.name], schema))
                self._deliver[output.name] = sink.write
            elif not outputs:
                self.previews[output.name] = Preview(schema)
                self._deliver[output.name] = self.previews[output.name].add

    def take(self, results: dict[str, list[pa.RecordBatch]]) -> None:
        """Deliver what a step has given."""
        for name, batches in results.items():
            for batch in batches:
                if name in self._deliver:
                    self._deliver[name](batch)


class _Watch:
    """A line on standard error that says how a long run goes: rows, rows/s, lag and results."""

    def __init__(self, query: Query) -> None:
        self._query, self._shown = query, False
        self.began = self._last = time.perf_counter()
        self._visible = sys.stderr.isatty()

    def look(self, piece: Slice) -> None:
        """Show where things stand, once a second."""
        now = time.perf_counter()
        if not self._visible or now - self._last < _EVERY:
            return
        self._last, self._shown = now, True
        print(f"\r\x1b[K{self.line(piece.lag)}", end="", file=sys.stderr, flush=True)

    def line(self, lag: float | None) -> str:
        """Where things stand."""
        counts = self._query.metrics()
        rows, results = sum(counts.rows.values()), sum(counts.results.values())
        rate = rows / max(time.perf_counter() - self.began, 1e-9)
        behind = "" if lag is None else f"  lag {lag:.1f} s"
        return f"{rows:,} rows  {rate:,.0f} rows/s{behind}  {results:,} results"

    def clear(self) -> None:
        """Leave an empty line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report(
    request: RunRequest, query: Query, delivery: _Delivery, watch: _Watch, bad: BadRows, stopped: bool,
    counters: dict[str, Counters],
) -> None:  # fmt: skip
    counts, seconds = query.metrics(), time.perf_counter() - watch.began
    out = request.summary_to
    for name, preview in delivery.previews.items():
        print(name, file=out)
        for line in preview.lines():
            print(line, file=out)
    rows = sum(counts.rows.values())
    facts = [(name, f"{n:,} rows") for name, n in counts.rows.items()]
    facts += [(name, f"{n:,} results") for name, n in counts.results.items()]
    lost = {"late": counts.late, "without a time": counts.no_time, "of no stream": counts.unknown}
    facts += [(what, f"{n:,} rows") for what, n in lost.items() if n]
    if bad.count:
        facts.append(("bad", f"{bad.count:,} rows{'' if request.bad else '; --bad FILE keeps them'}"))
    facts += [(f"{name}, datagrams", _datagrams(counts)) for name, counts in counters.items()]
    facts.append(("time", f"{seconds:.2f} s, {rows / max(seconds, 1e-9):,.0f} rows/s"))
    if stopped:
        facts.append(("ended by", "Ctrl-C, after the rows above"))
    for line in plain_table(facts):
        print(line, file=out)
    if request.metrics is not None:
        received = {name: counts.json() for name, counts in counters.items()}
        figures = {**dataclasses.asdict(counts), "bad": bad.count, "seconds": seconds}
        _write_metrics(request.metrics, {**figures, **({"datagrams": received} if received else {})})


def _datagrams(counts: Counters) -> str:
    """What came, and what did not."""
    lost = {
        "malformed": counts.malformed, "of unknown type": counts.unknown,
        "out of sequence": counts.out_of_sequence, "missing": counts.missing,
        "dropped by the kernel": counts.kernel_dropped or 0,
    }  # fmt: skip
    return ", ".join((f"{counts.datagrams:,}", *(f"{n:,} {what}" for what, n in lost.items() if n)))


def _write_metrics(path: str, figures: dict[str, Any]) -> None:
    try:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"metrics file '{path}' cannot be written: {error.strerror}") from None


def explain_query(
    path: str, dot_file: str | None, svg_file: str | None, optimised: bool, backend: str = "local"
) -> None:
    """Show a plan as text, or write it as a graph or a drawing."""
    if backend not in ("local", "spark"):
        raise UnsupportedError(
            f"a plan is explained for --backend local or spark, not '{backend}'; --circuit shows the circuit"
        )
    plan = read_query(path)
    if optimised:
        plan = optimise(plan)
    for target, made in ((dot_file, dot), (svg_file, svg)):
        if target == "-":
            print(made(plan), end="")
        elif target is not None:
            try:
                Path(target).write_text(made(plan), "utf-8")
            except OSError as error:
                raise InputError(f"'{target}' cannot be written: {error.strerror}") from None
    if dot_file is None and svg_file is None:
        print(explain_plan(plan), end="")
        for line in spark_module("queries.ways").told_ways(plan) if backend == "spark" else ():
            print(line)


_RUN_HELP = f"""Run continuous queries on files, or on standard input.

QUERY.sql declares input streams and selects from them; docs/queries.md has the language. Inputs are files or
folders: {describe_formats()}; - is
CSV on standard input, and udp://HOST:PORT datagrams (docs/sources.md). Files are replayed by time. Rows that
do not fit the declared types are counted and left out; --bad keeps them, --strict stops at the first. Ctrl-C
ends the input, and finishes what has come. --backend spark takes any format of Spark's as well, with options:
NAME=kafka:kafka.bootstrap.servers=host:9092,subscribe=trades.

\b
Examples:
  handshake run query.sql --input Trades=trades.parquet
  handshake run query.sql --input Trades=trades.csv --output PriceAverages=averages.parquet --bad bad.csv
  cat trades.csv | handshake run query.sql --input Trades=- --output UBSTrades=- | head
  handshake run query.sql --input Trades=trades.csv --backend circuit --vcd waves.vcd
"""
_EXPLAIN_HELP = """Show the plan of a query, in the algebra of Glacier's Table 1.

\b
Examples:
  handshake explain query.sql
  handshake explain query.sql --optimised
  handshake explain query.sql --svg plan.svg
  handshake explain query.sql --backend spark
  handshake explain query.sql --circuit --svg circuit.svg
"""


def register(app: typer.Typer, reporting: Reporting) -> None:
    """Add the commands."""

    @app.command(help=_RUN_HELP)
    def run(
        context: typer.Context,
        query: Annotated[str, typer.Argument(metavar="QUERY.sql", help="File with the query; - is input.")],
        input: Annotated[
            list[str] | None, typer.Option(metavar="NAME=PATH", help="Where a stream comes from.")
        ] = None,
        output: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME=PATH", help="Where a result goes (by extension); - is CSV."),
        ] = None,
        backend: Annotated[str, typer.Option(metavar="|".join(BACKENDS), help="Where it runs.")] = "local",
        bad: Annotated[
            str | None, typer.Option(metavar="FILE", help="Keep rows that do not fit there, with the reason.")
        ] = None,
        strict: Annotated[bool, typer.Option("--strict", help="Stop at a row that does not fit.")] = False,
        pace: Annotated[
            float | None,
            typer.Option(metavar="X", help="Let rows arrive X times as fast as their times say."),
        ] = None,
        cores: Annotated[
            int | None,
            typer.Option(min=1, metavar="N", help="Cores that joins may use: 1, in a circuit 4 unless told."),
        ] = None,
        metrics: Annotated[
            str | None, typer.Option(metavar="FILE", help="Write the figures of the run there, as JSON.")
        ] = None,
        groups: Groups = None,
        text: Text = None,
        simulator: Annotated[
            str,
            typer.Option(
                metavar="auto|amaranth|cxxrtl",
                help="Circuit: the simulator in Python, or a compiled one; by the number of rows.",
            ),
        ] = "auto",
        vcd: Annotated[
            str | None, typer.Option(metavar="FILE", help="Circuit: keep the waveform there.")
        ] = None,
        join: JoinKind = "auto",
        buffer: Buffer = 8,
        window_tuples: WindowTuples = None,
        divider: Divider = "pipelined",
        without: Without = None,
    ) -> None:
        request = RunRequest(query, input or (), output or (), backend, bad, strict, pace, cores, metrics)
        request = dataclasses.replace(request, groups=groups, text=text, simulator=simulator, vcd=vcd)
        request = dataclasses.replace(
            request,
            without=without or (),
            join=join,
            buffer=buffer,
            window_tuples=window_tuples,
            divider=divider,
        )
        with reporting():
            check_options(context, backend)
            status = run_query(request)
        if status:
            raise typer.Exit(status)

    @app.command(name="explain", help=_EXPLAIN_HELP)
    def explain(
        context: typer.Context,
        query: Annotated[str, typer.Argument(metavar="QUERY.sql", help="File with the query; - is input.")],
        dot_file: Annotated[
            str | None, typer.Option("--dot", metavar="FILE", help="Write a graph for Graphviz; - is output.")
        ] = None,
        svg_file: Annotated[
            str | None, typer.Option("--svg", metavar="FILE", help="Write a drawing; - is output.")
        ] = None,
        optimised: Annotated[
            bool, typer.Option("--optimised", help="The plan as it runs, after all rules.")
        ] = False,
        backend: Annotated[
            str,
            typer.Option(metavar="local|spark", help="Spark: also which results run in one task, and why."),
        ] = "local",
        circuit: Annotated[bool, typer.Option("--circuit", help="The circuit instead of the plan.")] = False,
        groups: Groups = None,
        text: Text = None,
        cores: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Circuit: join cores; 4 unless told.")
        ] = None,
        join: JoinKind = "auto",
        window_tuples: WindowTuples = None,
        divider: Divider = "pipelined",
        without: Without = None,
    ) -> None:
        with reporting():
            check_options(context, "circuit" if circuit else backend)
            if circuit and backend != "circuit" and typed(context, "backend"):
                raise UnsupportedError(
                    f"--circuit explains a circuit, and --backend {backend} a plan; leave one of them out"
                )
            if circuit:
                circuits().explain_circuit(
                    query,
                    svg_file,
                    groups=groups,
                    text=text,
                    cores=cores,
                    join=join,
                    window_tuples=window_tuples,
                    divider=divider,
                    without=without or (),
                )
            else:
                explain_query(query, dot_file, svg_file, optimised, backend)
