"""Constants of a join on Spark for sizing a cluster (docs/spark/cluster.md), without a cluster.

Runs both halves of a micro-batch, packing and segments, on the benchmark's streams in this process, and
prints bytes on disk, in the shuffle and in the state store, and processor time. Times are
processor times, which other work on the machine hardly changes.

python bench/spark_constants.py --rate 2000 --window 60 --step 5 --segments 2 --partitions 2
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.segment import SegmentStep, SegmentTally
from handshake.engines.spark.joins.tasks import blobs_of, references
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PackedChunk, pack
from handshake.engines.spark.state.store import Store
from handshake.options import Options
from handshake.plan.parse import parse
from handshake.windows import windows_of
from handshake_bench.workload import Streams, left_schema, right_schema

_BAND = "l.x BETWEEN r.a - {reach} AND r.a + {reach} AND l.y BETWEEN r.b - {reach} AND r.b + {reach}"


@dataclass
class Spent:
    """Processor seconds and sizes of one micro-batch."""

    pack: float = 0.0
    segments: list[float] = field(default_factory=list)
    tallies: list[SegmentTally] = field(default_factory=list)
    references: int = 0
    new: int = 0
    """Bytes of the chunks of new tuples."""


@dataclass
class Bench:
    """A join whose segments run one after the other."""

    definition: Definition
    store: Store
    partitions: int
    states: dict[int, bytes] = field(default_factory=dict)
    batch: int = 0
    written: int = 0
    """Bytes of results, as they leave the segments."""

    def run(self, tables: tuple[pa.RecordBatch, pa.RecordBatch], watermark: int | None) -> Spent:
        """Run one micro-batch."""
        spent = Spent()
        start = time.process_time()
        arrivals = self._pack(tables)
        spent.pack = time.process_time() - start
        spent.references = sum(len(_shuffle_bytes(a, self.definition)) for a in arrivals)
        spent.new = sum(a.ref.bytes for a in arrivals)
        for segment in range(self.definition.segments):
            start = time.process_time()
            spent.tallies.append(self._join(segment, arrivals, watermark))
            spent.segments.append(time.process_time() - start)
        self.batch += 1
        return spent

    def _pack(self, tables: tuple[pa.RecordBatch, pa.RecordBatch]) -> list[PackedChunk]:
        arrivals: list[PackedChunk] = []
        for side, table in enumerate(tables):
            size = -(-table.num_rows // self.partitions)
            for number in range(self.partitions):
                part = table.slice(number * size, size)
                folder = f"query/batch/{self.batch}"
                arrivals += pack(self.definition, side, [part], self.store, folder, number)
        return arrivals

    def _join(self, segment: int, arrivals: list[PackedChunk], watermark: int | None) -> SegmentTally:
        held = self.states.get(segment)
        manifest = None if held is None else Manifest.parse(held)
        step = SegmentStep(
            self.definition, segment, manifest, arrivals, watermark, self.store, self.batch, "query"
        )
        if self.definition.options.results_to is None:
            for blob in blobs_of(step.results()):
                self.written += len(blob)
        else:
            file = step.write_results()
            self.written += 0 if file is None else file.bytes
        self.states[segment] = step.commit()
        return step.tally


def _shuffle_bytes(arrival: PackedChunk, definition: Definition) -> bytes:
    """Return an arrival's references as they go into the shuffle, one row per segment."""
    return bytes(references(arrival, definition, definition.keys).serialize())


def measure(arguments: Any, folder: str) -> tuple[Bench, list[Spent]]:
    """Run micro-batches for three times the window, so that windows are full and kernels compiled."""
    rows = arguments.rate * arguments.step
    results_to = f"{folder}/results" if arguments.sink == "files" else None
    definition = Definition(
        left_schema, right_schema, parse(_BAND.format(reach=arguments.reach)),
        windows_of(f"{arguments.window} seconds", None, None), ("ts", "ts"), "_right", None,
        segments=arguments.segments, partitions=arguments.segments, root=folder, marker="",
        options=Options(method=arguments.method, results_to=results_to),
        retain=3 * arguments.window,  # more micro-batches than there are: nothing is removed
    )  # fmt: skip
    bench, streams, spent = (
        Bench(definition, Store(folder), arguments.partitions),
        Streams(arguments.rate),
        [],
    )
    for number in range(3 * arguments.window // arguments.step):
        start = number * rows
        mark = None if number == 0 else (number * arguments.step - arguments.step) * 1_000_000
        spent.append(bench.run((streams.left(start, rows), streams.right(start, rows)), mark))
    return bench, spent


def figures(arguments: Any, folder: str) -> list[tuple[str, str]]:
    """Return the figures with full windows."""
    bench, spent = measure(arguments, folder)
    full = spent[-arguments.window // arguments.step :]
    tuples = 2 * arguments.rate * arguments.step * len(full)
    last = full[-1].tallies
    held = sum(sum(t.held) for t in last)
    kept = sum(p.stat().st_size for p in Path(folder).glob("query/segment-*/*.chunk"))
    segments = sum(sum(s.segments) for s in full)
    return [
        ("tuples in windows", f"{held:,}"),
        ("bytes per tuple in windows (state_bytes / held)", f"{sum(t.state_bytes for t in last) / held:.1f}"),
        ("bytes per tuple in new chunks", f"{sum(s.new for s in full) / tuples:.1f}"),
        ("bytes written into windows per tuple, merges included", f"{kept / tuples / 3:.1f}"),
        ("chunk files per segment", f"{sum(t.chunks for t in last) / len(last):.1f}"),
        ("bytes per reference in the shuffle", f"{_per_reference(arguments, full):.0f}"),
        ("bytes of a manifest", f"{sum(map(len, bench.states.values())) / len(bench.states):.0f}"),
        ("visits per tuple (segments that compare it)", f"{_sum(full, 'visits') / tuples:.2f}"),
        ("comparisons per tuple", f"{_sum(full, 'comparisons') / tuples:,.0f}"),
        ("bytes per result, on its way out", f"{bench.written / _results(spent):.1f}"),
        ("results per tuple", f"{_sum(full, 'results') / tuples:.3f}"),
        ("processor µs per tuple, packing", f"{sum(s.pack for s in full) / tuples * 1e6:.2f}"),
        ("processor µs per tuple, all segments", f"{segments / tuples * 1e6:.2f}"),
        ("processor ns per result, all segments", f"{segments / _results(full) * 1e9:.0f}"),
        (
            "processor ms per segment and micro-batch",
            f"{segments / len(full) / arguments.segments * 1e3:.1f}",
        ),
    ]


def _results(spent: list[Spent]) -> int:
    return max(_sum(spent, "results"), 1)


def _per_reference(arguments: Any, full: list[Spent]) -> float:
    rows = 2 * arguments.partitions * arguments.segments * len(full)
    return float(sum(s.references for s in full) / rows)


def _sum(full: list[Spent], figure: str) -> int:
    return sum(getattr(t, figure) for s in full for t in s.tallies)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, usual in (("rate", 2000), ("window", 60), ("step", 5), ("segments", 2), ("partitions", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--reach", type=int, default=10, help="half the width of both bands")
    parser.add_argument("--sink", choices=("rows", "files"), default="rows")
    parser.add_argument("--method", choices=("auto", "band", "scan"), default="auto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="handshake-") as folder:
        for what, figure in figures(arguments, folder):
            print(f"{what:58} {figure:>12}")


if __name__ == "__main__":
    main()
