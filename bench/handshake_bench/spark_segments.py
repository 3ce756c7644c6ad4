"""`handshake bench spark_segments`: the costs of 4 to 1,000 segments of a join, without a cluster.

Runs the engine's own code in this process: planning, packing, references as they go through the shuffle, all
segments one after the other with their manifests, and the progress that the driver reads. Spark itself
(scheduling, shuffle, state store) is not part of it. Times are processor times.
"""

from __future__ import annotations

import json
import pickle
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.segment import SegmentStep
from handshake.engines.spark.joins.tasks import figures_row, packed_chunk, references
from handshake.engines.spark.progress import joins_in
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PackedChunk, pack
from handshake.engines.spark.state.store import Store
from handshake.errors import InputError
from handshake.plan.parse import parse
from handshake.windows import windows_of
from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["run"]

_BATCHES = 4
"""Micro-batches: the first compiles, and windows are full from the third on."""
_STEP = 10
"""Seconds of stream per micro-batch; windows are twice as long."""
_QUERY = "query"


def run(
    segments: str = "4,16,64,250,1000", rows: int = 40_000, partitions: int = 32, out: str | None = None,
    source: str | None = None,
) -> None:  # fmt: skip
    """Measure one micro-batch with full windows for each number of segments."""
    data = report.load(source, "spark_segments") if source else _measure(segments, rows, partitions)
    report.publish("spark_segments", data, _show, _draw, out)


def _measure(segments: str, rows: int, partitions: int) -> Data:
    points = []
    for count in _counts(segments):
        progress(f"{count:,} segments")
        with tempfile.TemporaryDirectory(prefix="handshake-") as folder:
            points.append(_Simulation(count, rows, partitions, folder).run())
    head = {"benchmark": "spark_segments", "machine": report.machine(), "rows": rows}
    return {**head, "partitions": partitions, "points": points}


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InputError(f"--segments takes numbers with commas, such as 4,16,64, not '{text}'")
    return counts


class _Simulation:
    """A join of a number of segments, whose tasks run one after the other."""

    def __init__(self, segments: int, rows: int, partitions: int, folder: str) -> None:
        self.segments, self.rows, self.partitions, self.store = segments, rows, partitions, Store(folder)
        self.streams = Streams(max(rows // _STEP, 1))
        self.planning, self.definition = _measure_time(lambda: self._plan(folder))
        self.states: dict[int, bytes] = {}

    def run(self) -> Data:
        """Return the figures of the last micro-batch."""
        for batch in range(_BATCHES - 1):
            self._run_batch(batch)
        return self._run_batch(_BATCHES - 1)

    def _plan(self, folder: str) -> Definition:
        """Define the join, with all that the driver computes once per query."""
        definition = Definition(
            left_schema, right_schema, parse(BAND), windows_of(f"{2 * _STEP} seconds", None, None),
            ("ts", "ts"), "_right", None, segments=self.segments, partitions=self.segments,
            root=folder, marker="", retain=3,
        )  # fmt: skip
        pickle.dumps((definition, definition.keys, definition.routing, definition.fingerprint))
        return definition

    def _run_batch(self, batch: int) -> Data:
        chunks = self._pack(batch)
        spent, shuffled = _measure_time(
            lambda: [references(chunk, self.definition, self.definition.keys) for chunk in chunks]
        )
        sent = [bytes(rows.serialize()) for rows in shuffled]
        mark = (batch - 1) * _STEP * 1_000_000 if batch else None
        opening, steps, manifests, told = [], [], [], []
        for segment in range(self.segments):
            took, mine = _measure_time(partial(self._open, shuffled, segment))
            opening.append(took)
            took, kept, figures = self._join(batch, segment, mine, mark)
            steps.append(took)
            manifests.append(kept)
            told.append(figures)
        reading, bytes_told = self._read_progress(batch, told)
        return {
            "segments": self.segments, "cells": self.definition.routing.cells, "planning": self.planning,
            "references": len(chunks) * self.segments, "reference_bytes": sum(map(len, sent)),
            "referring": spent, "opening": sum(opening), "segment": median(steps), "all": sum(steps),
            "manifest_bytes": median(manifests), "manifests": sum(manifests),
            "manifest": self._manifest_time(), "progress_bytes": bytes_told, "progress": reading,
        }  # fmt: skip

    def _pack(self, batch: int) -> list[PackedChunk]:
        chunks: list[PackedChunk] = []
        size = -(-self.rows // self.partitions)
        for side, make in enumerate((self.streams.left, self.streams.right)):
            table = make(batch * self.rows, self.rows)
            for number in range(self.partitions):
                part = table.slice(number * size, size)
                folder = f"{_QUERY}/batch/{batch}"
                chunks += pack(self.definition, side, [part], self.store, folder, number)
        return chunks

    def _open(self, shuffled: list[pa.RecordBatch], segment: int) -> list[PackedChunk]:
        """Return the chunks of a segment from its references, as a task does."""
        return [packed_chunk(rows.slice(segment, 1).to_pylist()[0], self.definition) for rows in shuffled]

    def _join(
        self, batch: int, segment: int, chunks: list[PackedChunk], mark: int | None
    ) -> tuple[float, int, str]:
        """Run a segment; return its processor seconds, the bytes of its manifest, and its figures."""

        def work() -> SegmentStep:
            held = self.states.get(segment)
            manifest = None if held is None else Manifest.parse(held)
            step = SegmentStep(self.definition, segment, manifest, chunks, mark, self.store, batch, _QUERY)
            for result in step.results():
                result.serialize()
            self.states[segment] = step.commit()
            return step

        took, step = _measure_time(work)
        return took, len(self.states[segment]), str(figures_row(step)["segment"][0])

    def _manifest_time(self) -> float:
        """Return the processor seconds to read and write the manifest of one segment."""
        return median(_measure_time(partial(_rewrite, data))[0] for data in self.states.values())

    def _read_progress(self, batch: int, told: list[str]) -> tuple[float, int]:
        """Return the processor seconds of reading the progress on the driver, and its bytes."""
        totals = dict.fromkeys(json.loads(told[0]), 1)
        text = json.dumps(
            {
                "batchId": batch, "timestamp": "2026-01-01T00:00:00Z", "batchDuration": 1,
                "observedMetrics": {"join": {**totals, "segments": told}},
            }
        )  # fmt: skip
        took, found = _measure_time(lambda: list(joins_in(text)))
        if len(found[0].segments) != self.segments:
            raise AssertionError(f"the progress has {len(found[0].segments)} of {self.segments} segments")
        return took, len(text)


def _rewrite(manifest: bytes) -> bytes:
    return Manifest.parse(manifest).dump()


def _measure_time(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def _show(page: Report, data: Data) -> None:
    points = data["points"]
    page.table(
        f"Processor time and bytes by number of segments: 2 · {data['rows']:,} rows in "
        f"2 · {data['partitions']} chunks per micro-batch",
        ("", *(f"{p['segments']:,}" for p in points)),
        [(name, *(show(p) for p in points)) for name, show in _LINES],
    )
    last = points[-1]
    page.result(
        segments=last["segments"], planning_ms=1e3 * last["planning"],
        reference_bytes=last["reference_bytes"],
        manifest_bytes=last["manifest_bytes"], progress_ms=1e3 * last["progress"],
        segment_ms=1e3 * last["segment"],
    )  # fmt: skip


def _ms(name: str) -> Callable[[Data], str]:
    return lambda point: f"{1e3 * point[name]:,.1f}"


_LINES: tuple[tuple[str, Callable[[Data], str]], ...] = (
    ("driver: planning, once per query, ms", _ms("planning")),
    ("driver: reading the progress, ms", _ms("progress")),
    ("driver: progress, KB", lambda p: f"{p['progress_bytes'] / 1e3:,.1f}"),
    ("source tasks: making references, all, ms", _ms("referring")),
    ("shuffle: references", lambda p: f"{p['references']:,}"),
    ("shuffle: bytes per reference", lambda p: f"{p['reference_bytes'] / p['references']:,.0f}"),
    ("shuffle: all references, MB", lambda p: f"{p['reference_bytes'] / 1e6:,.1f}"),
    ("segment: opening references, ms", lambda p: f"{1e3 * p['opening'] / p['segments']:,.1f}"),
    ("segment: its micro-batch, ms", _ms("segment")),
    ("segment: of that, reading and writing its manifest, ms", _ms("manifest")),
    ("all segments: their micro-batches, s", lambda p: f"{p['all']:,.2f}"),
    ("manifest, bytes", lambda p: f"{p['manifest_bytes']:,.0f}"),
    ("all manifests, MB", lambda p: f"{p['manifests'] / 1e6:,.1f}"),
)


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table says it all."""
