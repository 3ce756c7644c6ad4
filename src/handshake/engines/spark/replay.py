"""Two Arrow tables joined by Spark's batch mode, as if they were streams; Arrow batches come back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark

from handshake.engines.spark.cluster import Cluster, started
from handshake.engines.spark.routing import routing_of
from handshake.engines.spark.session import join_frames
from handshake.engines.spark.state.store import open_store
from handshake.engines.spark.tables import batches_in, carried, frame_of, restored, results_of
from handshake.joins.spec import SIDES, JoinSpec
from handshake.plan.build import Expression

__all__ = ["SPARK", "SparkReplay", "dealt", "started"]

SPARK = pyspark.__version__


def dealt(spec: JoinSpec, segments: int) -> str:
    """How tuples go to segments, for people."""
    routing = routing_of(spec, segments)
    return f"{routing.kind}: {routing.why}"


@dataclass(frozen=True)
class SparkReplay:
    """Tables replayed as streams on a cluster; `options` are those of `handshake.join`."""

    cluster: Cluster
    left: pa.Table
    right: pa.Table
    output: pa.Schema
    """The columns of results, with the types that the tables had."""
    title: str
    root: str
    segments: int

    def results(
        self, on: str | Expression, options: dict[str, Any], meanwhile: Callable[[], None] = lambda: None
    ) -> Iterator[pa.RecordBatch]:
        """Run the join to its end, then hand out its results; `meanwhile` is called while it runs."""
        store, folder = open_store(self.root), f"join-{uuid.uuid4().hex}"
        try:
            names = self.cluster.run(lambda: self._run(on, options, folder), meanwhile)
            origins = [*self.left.columns, *self.right.columns]
            for name in names:
                yield from (restored(batch, self.output, origins) for batch in batches_in(store, name))
        finally:
            store.remove_folder(folder)

    def _run(self, on: str | Expression, options: dict[str, Any], folder: str) -> list[str]:
        """Names of files with results."""
        session, store = self.cluster.session, open_store(self.root)
        session.sparkContext.setJobDescription(self.title)
        left, right = (
            frame_of(session, carried(table, side), store, f"{folder}/{side}")
            for table, side in zip((self.left, self.right), SIDES, strict=True)
        )
        joined = join_frames(left, right, on, segments=self.segments, state_dir=self.root, **options)
        return results_of(joined, store, f"{folder}/results")
