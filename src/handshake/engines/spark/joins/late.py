"""Late rows for a function of the driver program (`late_to=function`).

Segments write late rows to files in the state directory, as they do for a folder that the user names. After a
micro-batch is committed, a listener passes them to the function and removes them. Rows that a run has not
passed on come in the next run of the query. Rows come again if the micro-batch runs again, or if the function
or the program fails before their files are removed.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.streaming.listener import StreamingQueryListener

from handshake.engines.spark.joins.explain import FramePlan
from handshake.engines.spark.joins.files import batch_of
from handshake.engines.spark.state.store import open_store
from handshake.joins.late import LateCall
from handshake.joins.spec import SIDES

IDENTITY = "definition"
"""The observed metric that says which definition a micro-batch has run with."""
BATCH = b"micro_batch"
"""The key of a micro-batch's number in the metadata of a batch of late rows."""


class LateListener(StreamingQueryListener):
    """Passes the late rows of one join to a function, in the order of micro-batches."""

    def __init__(self, plan: FramePlan, call: LateCall) -> None:
        self._store, self._identity = open_store(plan.definition.root), plan.definition.identity
        self._name, self._call = str(plan.name), call

    def onQueryStarted(self, event: Any) -> None:
        """Ignore the event: it does not say which micro-batches are committed."""

    def onQueryTerminated(self, event: Any) -> None:
        """Ignore the event: the query may start again."""

    def onQueryProgress(self, event: Any) -> None:
        """Pass on the late rows of this micro-batch, and of earlier ones that have not been passed on."""
        report = event.progress
        observed = report.observedMetrics.get(self._name)
        if observed is not None and observed.asDict().get(IDENTITY) == self._identity:
            folder = f"{report.id}/join-{quote(self._name, safe='')}/late"
            for side in SIDES:
                self._pass_on(side, f"{folder}/{side}", int(report.batchId))

    def _pass_on(self, side: str, folder: str, last: int) -> None:
        files: dict[int, list[str]] = {}
        for name in self._store.list(folder):
            batch = batch_of(name)
            if batch is not None and batch <= last:
                files.setdefault(batch, []).append(f"{folder}/{name}")
        for batch, names in sorted(files.items()):
            rows = pa.concat_tables(pq.read_table(pa.BufferReader(self._store.read(name))) for name in names)
            marked = rows.replace_schema_metadata({BATCH: str(batch)})
            for part in marked.combine_chunks().to_batches():
                self._call(side, part)
            for name in names:
                self._store.remove(name)
