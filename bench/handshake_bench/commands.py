"""The benchmarks that reproduce the papers' figures, as commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from handshake.options import OPTIONS, Option
from handshake_bench.commands_spark import add_spark_commands
from handshake_bench.options import Cores, Out, Quick, Source

__all__ = ["add_commands"]

_ALGORITHM = OPTIONS["algorithm"]
_METHOD = Option("Access method.", ("local",), choices=("band", "scan"), noun="access method")

_PLAIN = {
    "simd": "Compare the scan with and without vectors: handshake join, figure 15.",
    "overload": "Measure output and drops against the input rate: CellJoin, figures 10 and 11.",
    "batches": "Measure time per tuple against the largest batch: CellJoin, figure 12.",
    "windows": "Measure time per tuple against the size of basic windows: CellJoin, figure 13.",
    "mway": "Join two to four streams with good and bad join orders: CellJoin, section 7.1.",
    "circuit_tables": "Find the clock of the circuit for 500,000 tuples/s: handshake join, tables 1 and 2.",
}


Reporting = Callable[[], AbstractContextManager[None]]


def add_commands(bench: typer.Typer, call: Callable[..., None], reporting: Reporting) -> None:
    """Add all benchmarks to `handshake bench`.

    Args:
        bench: The command group.
        call: Runs a benchmark: `call(name, **options)`.
        reporting: Turns errors into a message and an exit status.
    """
    _add_basic(bench, call, reporting)
    for name, text in _PLAIN.items():
        bench.command(name, help=f"{text}\n\n\b\nExample:\n  handshake bench {name} --out results\n")(
            _plain(name, call)
        )
    _add_gpu(bench, call)
    _add_with_cores(bench, call)
    _add_latency(bench, call)
    _add_scaling(bench, call)
    _add_cores(bench, call)
    add_spark_commands(bench, call)
    _add_synth(bench, call)
    _add_rates(bench, call)
    _add_circuits(bench, call)
    _add_udp(bench, call)
    _add_spark_queries(bench, call)
    _add_queries(bench, call)
    _add_sessions(bench, call)
    _add_live(bench, call)


def _add_live(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Measure how much of a join's throughput an open live page costs.

\b
Example:
  handshake bench live --passes 1 --pairs 40
""",
    )
    def live(
        passes: Annotated[int, typer.Option(min=1, help="Times 200,000 rows that a turn pushes.")] = 1,
        pairs: Annotated[int, typer.Option(min=1, help="Turns with the page, and turns without it.")] = 40,
        updates: Annotated[float, typer.Option(min=1, max=50, help="Updates per second.")] = 50.0,
        window: Annotated[
            str, typer.Option(metavar="SPEC", help="Window of both streams.")
        ] = "100000 tuples",
    ) -> None:
        call("live", passes=passes, pairs=pairs, updates=updates, window=window)


_GPU_LINES = ("scan", "general", "latency", "index", "arrow", "aggregate")


def _add_gpu(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Measure joins with full windows on a GPU: sustained rates by scan and index, and latency.

\b
Examples:
  handshake bench gpu --window 60 --rate 100000
  handshake bench gpu --only aggregate
""",
    )
    def gpu(
        window: Annotated[float, typer.Option(min=0.1, help="Window in seconds.")] = 900.0,
        rate: Annotated[float, typer.Option(min=1, help="Rows per second and stream, for bands.")] = 92_000.0,
        general: Annotated[float, typer.Option(min=1, help="The same for any comparisons.")] = 42_000.0,
        latency: Annotated[float, typer.Option(min=1, help="The same for batches of 1 ms.")] = 100_000.0,
        index: Annotated[float, typer.Option(min=1, help="The same for the index.")] = 200_000.0,
        aggregate: Annotated[float, typer.Option(min=1, help="The same for counts by index.")] = 200_000.0,
        count: Annotated[int, typer.Option(min=1, help="Batches of each measurement.")] = 100,
        only: Annotated[str, typer.Option(metavar="LINE", help=f"One of {', '.join(_GPU_LINES)}.")] = "",
    ) -> None:
        if only and only not in _GPU_LINES:
            raise typer.BadParameter(f"no line '{only}' ({', '.join(_GPU_LINES)})")
        rates = {"rate": rate, "general": general, "latency": latency, "index": index, "aggregate": aggregate}
        call("gpu", window=window, **rates, count=count, only=only)


def _add_basic(bench: typer.Typer, call: Callable[..., None], reporting: Reporting) -> None:
    @bench.command(
        help="""Measure comparisons per second of compiled scans, for several predicates.

\b
Example:
  handshake bench scan --seconds 1
""",
    )
    def scan(
        seconds: Annotated[float, typer.Option(min=0.01, help="Time for each measurement.")] = 1.0,
    ) -> None:
        call("scan", seconds=seconds)

    @bench.command(
        help="""Compare a band join of two tables with the other installed engines.

\b
Example:
  handshake bench batch --rows 100000 --limit 30
""",
    )
    def batch(
        rows: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 600_000,
        limit: Annotated[
            float, typer.Option(min=0.1, metavar="SECONDS", help="Give up on an engine after this long.")
        ] = 120.0,
    ) -> None:
        call("batch", rows=rows, limit=limit)

    @bench.command(
        "sustained",
        help="""Find the highest rate of two streams that the join sustains with full windows.

\b
Examples:
  handshake bench sustained
  handshake bench sustained --method scan --window "10 minutes" --rate 3000
""",
    )
    def sustained_rate(
        algorithm: Annotated[
            str, typer.Option(metavar="|".join(_ALGORITHM.choices), help=_ALGORITHM.help)
        ] = "three_step",
        method: Annotated[str, typer.Option(metavar="band|scan", help="Access method.")] = "band",
        cores: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Cores to use; all by default, three_step one.")
        ] = None,
        window: Annotated[str, typer.Option(metavar="SPEC", help="Window of both streams.")] = "15 minutes",
        rate: Annotated[
            float | None, typer.Option(min=1, help="Measure only this rate, in tuples per second and stream.")
        ] = None,
        seconds: Annotated[float, typer.Option(min=0.1, help="Stream time to measure.")] = 5.0,
    ) -> None:
        with reporting():
            _ALGORITHM.check(algorithm)
            _METHOD.check(method)
        call(
            "sustained",
            algorithm=algorithm,
            method=method,
            cores=cores,
            window=window,
            rate=rate,
            seconds=seconds,
        )

    @bench.command(
        "push",
        help="""Measure one push of a few rows into a join with full windows, by index and by scan.

\b
Examples:
  handshake bench push
  handshake bench push --rows 100000 --share 0.1
""",
    )
    def one_push(
        rows: Annotated[int, typer.Option(min=1, help="Rows of each window.")] = 1_500_000,
        share: Annotated[float, typer.Option(min=0.0, help="Share of the usual number of pushes.")] = 1.0,
    ) -> None:
        call("push", rows=rows, share=share)

    @bench.command(
        "asof",
        help="""Compare as-of joins by key with Polars and DuckDB, also with a band; measure one of streams.

\b
Examples:
  handshake bench asof
  handshake bench asof --rows 1000000 --band-rows 200000
""",
    )
    def asof_joins(
        rows: Annotated[int, typer.Option(min=1, help="Rows a side.")] = 10_000_000,
        keys: Annotated[int, typer.Option(min=1, help="Different keys.")] = 1000,
        band_rows: Annotated[int, typer.Option(min=1, help="Rows a side, with the band.")] = 1_000_000,
        rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the best counts.")] = 3,
        stream_rows: Annotated[int, typer.Option(min=1, help="Rows of each stream.")] = 4_000_000,
    ) -> None:
        call("asof", rows=rows, keys=keys, band_rows=band_rows, rounds=rounds, stream_rows=stream_rows)

    @bench.command(
        "flink",
        help="""Compare joins of streams with Flink's interval join in a local mini-cluster.

Needs Java 17 or later with its compiler, and Maven Central once.

\b
Examples:
  handshake bench flink --out results
  handshake bench flink --rate 2000 --window 10 --seconds 12
""",
    )
    def flink(
        rate: Annotated[int, typer.Option(min=10, help="Rows per second and stream, equi-join.")] = 5_000,
        keys: Annotated[int, typer.Option(min=1, help="Different keys of the equi-join.")] = 50_000,
        window: Annotated[int, typer.Option(min=1, help="Window of the equi-join in seconds.")] = 60,
        any_rate: Annotated[int, typer.Option(min=10, help="First rate of the band join.")] = 1_000,
        any_window: Annotated[int, typer.Option(min=1, help="Window of the band join in seconds.")] = 20,
        seconds: Annotated[int, typer.Option(min=1, help="Stream time to measure.")] = 30,
        cores: Annotated[int, typer.Option(min=1, help="Cores of each engine.")] = 2,
        quick: Quick = False,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "flink", rate=rate, keys=keys, window=window, any_rate=any_rate, any_window=any_window,
            seconds=seconds, cores=cores, quick=quick, out=out, source=source,
        )  # fmt: skip

    @bench.command(
        "kinds",
        help="""Compare outer, semi and anti joins with the inner join: processor time and state, or rates.

\b
Examples:
  handshake bench kinds
  handshake bench kinds --sustained
  handshake bench kinds --algorithm low_latency --window "5 minutes"
""",
    )
    def kinds_of_joins(
        algorithm: Annotated[
            str, typer.Option(metavar="|".join(_ALGORITHM.choices), help=_ALGORITHM.help)
        ] = "three_step",
        method: Annotated[str, typer.Option(metavar="band|scan", help="Access method.")] = "band",
        window: Annotated[
            str | None,
            typer.Option(metavar="SPEC", help="Window of both streams [1 minute; --sustained: 15 minutes]."),
        ] = None,
        rate: Annotated[
            float | None,
            typer.Option(min=1, help="Tuples per second and stream [15000]; --sustained: the first rate."),
        ] = None,
        seconds: Annotated[float, typer.Option(min=0.1, help="Stream time to measure.")] = 10.0,
        sustained: Annotated[
            bool, typer.Option("--sustained", help="Search for the highest rate of each kind.")
        ] = False,
    ) -> None:
        with reporting():
            _ALGORITHM.check(algorithm)
            _METHOD.check(method)
        call(
            "kinds", algorithm=algorithm, method=method, window=window, rate=rate, seconds=seconds,
            sustained=sustained,
        )  # fmt: skip


def _add_synth(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "circuit_synth",
        help="""Find clock and size of the circuit: FPGA paper, figures 10, 11; handshake join, figure 18.

Continues an earlier run with the same --out.

\b
Examples:
  handshake bench circuit_synth --cores 2,4,8 --seeds 1,2,3 --out results
  handshake bench circuit_synth --cores 64 --designs local --jobs 3 --out results
""",
    )
    def circuit_synth(
        cores: Annotated[
            str | None, typer.Option(metavar="N,N,…", help="Join cores; 2 to 64 by default.")
        ] = None,
        designs: Annotated[
            str, typer.Option(metavar="NAME,…", help="Any of local, global, original, block.")
        ] = "local,global,original,block",
        seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds of place and route.")] = "1,2,3",
        jobs: Annotated[int, typer.Option(min=1, help="Number of tools to run at once.")] = 1,
        minutes: Annotated[
            float | None,
            typer.Option(min=0.1, help="Limit per place and route."),
        ] = None,
        within: Annotated[
            float | None, typer.Option(min=0.1, help="Limit for all tasks, in minutes.")
        ] = None,
        router: Annotated[str, typer.Option(help="Router of nextpnr: router1 or router2.")] = "router1",
        quick: Quick = False,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "circuit_synth", cores=cores, designs=designs, seeds=seeds, jobs=jobs, minutes=minutes,
            within=within, router=router, quick=quick, out=out, source=source,
        )  # fmt: skip


def _add_rates(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "circuit_rates",
        help="""Measure throughput of the join circuit against the match rate: FPGA paper, figures 12 and 13.

\b
Examples:
  handshake bench circuit_rates --out results
  handshake bench circuit_rates --cores 4 --length 16
""",
    )
    def circuit_rates(
        cores: Annotated[
            int | None, typer.Option(min=1, help="Join cores of 8 and 8 tuples; 64 by default.")
        ] = None,
        length: Annotated[
            int | None, typer.Option(min=1, help="Length of each input in windows; 1 and 2 by default.")
        ] = None,
        quick: Quick = False,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call("circuit_rates", cores=cores, length=length, quick=quick, out=out, source=source)


def _add_circuits(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Simulate latency and issue rate of queries as circuits: Glacier, table 3.

\b
Example:
  handshake bench circuits --out results
"""
    )
    def circuits(out: Out = None, source: Source = None) -> None:
        call("circuits", out=out, source=source)

    @bench.command(
        "circuit_speed",
        help="""Measure simulated cycles per second of the join circuit, by wall clock and processor time.

\b
Example:
  handshake bench circuit_speed --cores 64
""",
    )
    def circuit_speed(
        cores: Annotated[int, typer.Option(min=1, help="Join cores of 8 and 8 tuples.")] = 64,
        tuples: Annotated[
            int, typer.Option(min=1, help="Tuples of each stream per round; fewer if many match.")
        ] = 8192,
        rounds: Annotated[int, typer.Option(min=1, help="Runs per match rate.")] = 5,
        engine: Annotated[str, typer.Option(help="cxxrtl, cxxrtl-quick or amaranth.")] = "cxxrtl",
    ) -> None:
        call("circuit_speed", cores=cores, tuples=tuples, rounds=rounds, engine=engine)


def _add_spark_queries(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_queries",
        help="""Compare the paper's queries on Spark with PySpark code written by hand.

\b
Examples:
  handshake bench spark_queries --out results
  handshake bench spark_queries --rows 100000 --queries Q1,Q5
""",
    )
    def spark_queries(
        rows: Annotated[int, typer.Option(min=100, help="Tuples per micro-batch.")] = 1_000_000,
        batches: Annotated[int, typer.Option(min=2, help="Micro-batches per run.")] = 6,
        cores: Annotated[int, typer.Option(min=1, help="Cores of Spark's local mode.")] = 2,
        turns: Annotated[int, typer.Option(min=1, help="Runs of each, interleaved.")] = 2,
        queries: Annotated[
            str | None, typer.Option(metavar="Q,Q,…", help="Any of Q1 to Q5, minutes.")
        ] = None,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "spark_queries", rows=rows, batches=batches, cores=cores, turns=turns, queries=queries, out=out,
            source=source,
        )  # fmt: skip


def _add_udp(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Find the highest rate of datagrams over loopback without loss.

\b
Examples:
  handshake bench udp
  handshake bench udp --rates 300000,1000000 --modes plain --seconds 5
"""
    )
    def udp(
        rates: Annotated[
            str | None, typer.Option(metavar="N,N,…", help="Datagrams per second; searched by default.")
        ] = None,
        seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each rate.")] = 2.0,
        buffer: Annotated[int, typer.Option(min=1, metavar="MB", help="Size of the socket buffer.")] = 64,
        modes: Annotated[
            str, typer.Option(metavar="MODE,…", help="plain, offload, both; see docs/sources.md.")
        ] = "plain,offload,both",
        log: Annotated[bool, typer.Option("--log", help="Also write to a durable log.")] = False,
    ) -> None:
        call("udp", rates=rates, seconds=seconds, buffer=buffer, modes=modes, log=log)


def _add_queries(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "queries",
        help="""Measure queries Q1, Q2, Q3 and Q5 on one core; compare filters with DuckDB and Polars.

\b
Example:
  handshake bench queries --rows 1000000
""",
    )
    def queries(
        rows: Annotated[int, typer.Option(min=1000, help="Tuples of the stream.")] = 4_000_000,
        rounds: Annotated[int, typer.Option(min=1, help="Rounds; the best counts.")] = 5,
    ) -> None:
        call("queries", rows=rows, rounds=rounds)


def _add_sessions(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "sessions",
        help="""Measure session windows of many groups on one core.

\b
Example:
  handshake bench sessions --rows 1000000 --groups 1000
""",
    )
    def sessions(
        rows: Annotated[int, typer.Option(min=1000, help="Rows of the stream.")] = 4_000_000,
        groups: Annotated[int, typer.Option(min=1, help="Groups, each with sessions of its own.")] = 1000,
        rounds: Annotated[int, typer.Option(min=1, help="Rounds; the best counts.")] = 3,
    ) -> None:
        call("sessions", rows=rows, groups=groups, rounds=rounds)


def _plain(name: str, call: Callable[..., None]) -> Callable[..., None]:
    def command(quick: Quick = False, out: Out = None, source: Source = None) -> None:
        call(name, quick=quick, out=out, source=source)

    return command


def _add_with_cores(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Measure sustained rates against the number of cores: handshake join, figure 16.

\b
Example:
  handshake bench throughput --cores 1,2 --out results
"""
    )
    def throughput(cores: Cores = None, quick: Quick = False, out: Out = None, source: Source = None) -> None:
        call("throughput", cores=cores, quick=quick, out=out, source=source)

    @bench.command(
        help="""Count comparisons and messages per core on up to 64 simulated cores.

\b
Example:
  handshake bench work --cores 1,8,64 --out results
"""
    )
    def work(cores: Cores = None, quick: Quick = False, out: Out = None, source: Source = None) -> None:
        call("work", cores=cores, quick=quick, out=out, source=source)

    @bench.command(
        "tuple_windows",
        help="""Join over windows of 2^20 and 2^23 tuples: the workloads of PIM-Tree and SPO-Join.

\b
Examples:
  handshake bench tuple_windows --out results
  handshake bench tuple_windows --windows 16 --cores 1
""",
    )
    def tuple_windows(
        windows: Annotated[str, typer.Option(help="Sizes of windows as powers of two.")] = "20,23",
        batch: Annotated[int, typer.Option(min=1, help="Tuples of a batch.")] = 4096,
        cores: Cores = None,
        quick: Quick = False,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "tuple_windows", windows=windows, batch=batch, cores=cores, quick=quick, out=out, source=source
        )  # fmt: skip


def _add_latency(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Measure the latency of results at half of the sustained rate.

\b
Example:
  handshake bench latency --out results
"""
    )
    def latency(
        tick: Annotated[
            float, typer.Option(min=0.1, help="Milliseconds between two batches of a stream.")
        ] = 2.0,
        quick: Quick = False,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call("latency", tick=tick, quick=quick, out=out, source=source)


def _add_cores(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Compare scans on many cores with C on as many threads, in turns.

\b
Example:
  handshake bench cores --cores 2 --window 60
""",
    )
    def cores(
        cores: Annotated[int | None, typer.Option(min=1, help="Join cores; by default all.")] = None,
        rate: Annotated[float | None, typer.Option(min=1, help="Rows per second and stream.")] = None,
        window: Annotated[float, typer.Option(min=1, help="Seconds that the windows hold.")] = 900.0,
        seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of each measurement.")] = 3.0,
    ) -> None:
        call("cores", cores=cores, rate=rate, window=window, seconds=seconds)


def _add_scaling(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        help="""Measure rates and count work on a machine with many cores, in limited time.

\b
Examples:
  handshake bench scaling --cores 1,2,4,8,16 --minutes 8 --out results
  handshake bench scaling --from results/scaling.json --out plots
"""
    )
    def scaling(
        cores: Cores = None,
        minutes: Annotated[float, typer.Option(min=0.1, help="Approximate limit.")] = 8.0,
        quick: Quick = False,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call("scaling", cores=cores, minutes=minutes, quick=quick, out=out, source=source)
