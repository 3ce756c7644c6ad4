"""Commands of the benchmarks on Spark."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from handshake_bench.options import Out, Source

__all__ = ["add_spark_commands"]

Step = Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Stream time per micro-batch.")]
Window = Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Window of both.")]
LocalCores = Annotated[int, typer.Option(min=1, help="Cores of Spark's local mode.")]
Rate = Annotated[int, typer.Option(min=10, help="Tuples per second and stream.")]


class Sink(StrEnum):
    """The place for results."""

    ROWS = "rows"
    FILES = "files"


def add_spark_commands(bench: typer.Typer, call: Callable[..., None]) -> None:
    """Add the Spark benchmarks to `handshake bench`; `call(name, **options)` runs one."""
    _add_sustained(bench, call)
    _add_growth(bench, call)
    _add_kinds(bench, call)
    _add_equi(bench, call)
    _add_batch(bench, call)
    _add_latency(bench, call)
    _add_segments(bench, call)


def _add_sustained(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_sustained",
        help="""Find the rate that Spark sustains with full windows: this package and bucketed joins.

\b
Examples:
  handshake bench spark_sustained --out results
  handshake bench spark_sustained --sink files --out results
  handshake bench spark_sustained --rate 2000 --window 60 --step 10
""",
    )
    def spark_sustained(
        rate: Annotated[
            int | None,
            typer.Option(min=10, help="Tuples per second and stream; 22000, or 28000 with files."),
        ] = None,
        baseline: Annotated[
            int | None,
            typer.Option(min=50, help="First rate of the bucketed join; a tenth of --rate by default."),
        ] = None,
        step: Step = 20,
        window: Window = 900,
        cores: LocalCores = 2,
        sink: Annotated[Sink, typer.Option(help="Results as rows, or as files of the segments.")] = Sink.ROWS,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "spark_sustained", rate=rate, baseline=baseline, step=step, window=window, cores=cores,
            sink=sink.value, out=out, source=source,
        )  # fmt: skip


def _add_growth(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_growth",
        help="""Measure seconds per micro-batch on Spark while windows fill, at a constant rate.

\b
Example:
  handshake bench spark_growth --out results
""",
    )
    def spark_growth(
        rate: Rate = 2_000,
        step: Step = 10,
        window: Window = 900,
        cores: LocalCores = 2,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call("spark_growth", rate=rate, step=step, window=window, cores=cores, out=out, source=source)


def _add_kinds(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_kinds",
        help="""Compare outer and anti joins of streams, and state="store", with the inner join on Spark.

\b
Examples:
  handshake bench spark_kinds --out results
  handshake bench spark_kinds --rate 2000 --window 60 --step 10
  handshake bench spark_kinds --kinds inner,left --unmatched 50
""",
    )
    def spark_kinds(
        rate: Rate = 15_000,
        step: Step = 20,
        window: Window = 900,
        cores: LocalCores = 2,
        unmatched: Annotated[
            int, typer.Option(min=0, max=100, metavar="PERCENT", help="Left rows that match nothing.")
        ] = 0,
        kinds: Annotated[
            str | None,
            typer.Option(
                metavar="NAME,NAME,…",
                help="Runs beside inner: left, left_anti, store; all by default.",
            ),
        ] = None,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "spark_kinds", rate=rate, step=step, window=window, cores=cores, unmatched=unmatched, kinds=kinds,
            out=out, source=source,
        )  # fmt: skip


def _add_equi(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_equi",
        help="""Compare an equi-join of streams with Spark's own stream-stream join.

\b
Examples:
  handshake bench spark_equi --out results
  handshake bench spark_equi --rate 500 --window 60 --step 5
""",
    )
    def spark_equi(
        rate: Rate = 2_000,
        keys: Annotated[int, typer.Option(min=1, help="Different keys.")] = 100_000,
        step: Step = 10,
        window: Window = 300,
        cores: LocalCores = 2,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "spark_equi", rate=rate, keys=keys, step=step, window=window, cores=cores, out=out, source=source
        )


def _add_batch(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_batch",
        help="""Compare a band join and an equi-join of two tables with Spark's own plans.

\b
Examples:
  handshake bench spark_batch --out results
  handshake bench spark_batch --rows 100000 --limit 30
""",
    )
    def spark_batch(
        rows: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 5_000_000,
        limit: Annotated[
            float | None,
            typer.Option(
                min=0.1,
                metavar="SECONDS",
                help="Time limit for Spark; 21 times ours by default.",
            ),
        ] = None,
        cores: LocalCores = 2,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call("spark_batch", rows=rows, limit=limit, cores=cores, out=out, source=source)


def _add_latency(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_latency",
        help="""Measure the latency of results on Spark, from the later tuple's arrival to the sink.

\b
Example:
  handshake bench spark_latency --out results
""",
    )
    def spark_latency(
        rate: Rate = 1_000,
        trigger: Annotated[int, typer.Option(min=1, metavar="MS", help="Trigger interval.")] = 500,
        seconds: Annotated[float, typer.Option(min=1, help="Duration of the measurement.")] = 60.0,
        window: Window = 900,
        cores: LocalCores = 2,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call(
            "spark_latency", rate=rate, trigger=trigger, seconds=seconds, window=window, cores=cores, out=out,
            source=source,
        )  # fmt: skip


def _add_segments(bench: typer.Typer, call: Callable[..., None]) -> None:
    @bench.command(
        "spark_segments",
        help="""Measure planning, references and manifests of a join of up to 1,000 segments.

\b
Examples:
  handshake bench spark_segments --out results
  handshake bench spark_segments --segments 4,16 --rows 2000
""",
    )
    def spark_segments(
        segments: Annotated[str, typer.Option(help="Numbers of segments, with commas.")] = "4,16,64,250,1000",
        rows: Annotated[int, typer.Option(min=1, help="Rows per stream and micro-batch.")] = 40_000,
        partitions: Annotated[int, typer.Option(min=1, help="Source partitions per stream.")] = 32,
        out: Out = None,
        source: Source = None,
    ) -> None:
        call("spark_segments", segments=segments, rows=rows, partitions=partitions, out=out, source=source)
