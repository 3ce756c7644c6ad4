"""A streaming query of Spark, one micro-batch at a time, from files in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from handshake.api import spark_module
from handshake.errors import InputError, suggest
from handshake.io.frames import conform, table_of
from handshake.testing.assertions import assert_same_rows

_AGE = 100_000
"""Files begin to count this many seconds ago: Spark takes them in the order of their times."""


class SparkSteps:
    """A streaming query that takes one micro-batch per step, and starts from its checkpoint each time.

    Streams are read from Parquet files. A step adds one file to every stream, so its rows are one
    micro-batch. The query starts with the step and stops after it: every step is also a restart.

    Args:
        spark: The session.
        build: Your pipeline: called with a streaming DataFrame per stream, by name; returns the DataFrame of
            results. It is called again for every step, as in a program that is started anew.
        streams: The columns of each stream, by name: an Arrow schema, or Spark's (`"id int, t timestamp"`).
        folder: An empty folder for the files and the checkpoint.

    Examples:
        >>> steps = SparkSteps(spark, lambda a: a.where("id > 1"), {"a": "id int"}, folder)  # doctest: +SKIP
        >>> steps.step(a={"id": [1, 2]}).to_pylist()  # doctest: +SKIP
        [{'id': 2}]
    """

    def __init__(
        self, spark: Any, build: Callable[..., Any], streams: Mapping[str, Any], folder: str | Path
    ) -> None:
        self._spark, self._build, self._folder = spark, build, Path(folder)
        self._kinds = {
            name: each if isinstance(each, pa.Schema) else spark.createDataFrame([], each).toArrow().schema
            for name, each in streams.items()
        }
        self._schemas = {name: _spark_schema(schema) for name, schema in streams.items()}
        self._files, self._start = 0, time.time() - _AGE
        self.batches: dict[int, pa.Table] = {}
        """The results by the number of their micro-batch."""
        self.progress: dict[int, Any] = {}
        """Spark's last report on each micro-batch, by its number."""
        for name in self._schemas:
            (self._folder / name).mkdir(parents=True)

    def step(self, **rows: Any) -> pa.Table:
        """Run one micro-batch with these rows of each stream; return the results that it completes.

        Results that a step makes possible without new rows (rows of an outer join without a match) belong to
        it, too.
        """
        return self.run([rows])

    def run(self, steps: list[Mapping[str, Any]]) -> pa.Table:
        """Run several micro-batches in one start of the query; return their results."""
        for rows in steps:
            self._add(rows)
        known = set(self.batches)
        self._start_query()
        return self._table(number for number in self.batches if number not in known)

    def repeat(self) -> None:
        """Run the last micro-batch again, as after a crash before it was committed.

        Raises:
            AssertionError: Its results differ from those of the first time.
        """
        commits = self._folder / "checkpoint" / "commits"
        numbers = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
        if not numbers:
            raise InputError("no micro-batch has run that could be repeated; call step() before")
        last = max(numbers)
        before = self.batches.get(last)
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
        self._start_query()
        if before is not None:
            assert_same_rows(self.batches[last], before, message=f"micro-batch {last} gave other results")

    @property
    def results(self) -> pa.Table:
        """All results so far."""
        return self._table(self.batches)

    def _table(self, numbers: Any) -> pa.Table:
        tables = [self.batches[number] for number in sorted(numbers)]
        return pa.concat_tables(tables) if tables else pa.table({})

    def _add(self, rows: Mapping[str, Any]) -> None:
        for name in rows:
            if name not in self._schemas:
                known = ", ".join(self._schemas)
                raise InputError(f"no stream '{name}' ({known}){suggest(name, self._schemas)}")
        for name in self._schemas:
            path = self._folder / name / f"{self._files:06}.parquet"
            pq.write_table(self._rows(name, rows.get(name)), path)
            os.utime(path, (self._start + self._files, self._start + self._files))
        self._files += 1

    def _rows(self, name: str, rows: Any) -> pa.Table:
        schema = self._kinds[name]
        given = schema.empty_table() if rows is None else conform(rows, schema, name)
        return spark_module("types").to_spark_types(table_of(given), name)

    def _start_query(self) -> None:
        frames = {
            name: self._spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._folder / name))
            for name, schema in self._schemas.items()
        }
        kept = KeptBatches(self._folder)
        query = (
            kept.write(self._build(**frames))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            self.progress.update({report["batchId"]: report for report in query.recentProgress})
        finally:
            query.stop()
            self.batches.update(kept.read())


class KeptBatches:
    """The results of a streaming query by the number of their micro-batch.

    With Spark Connect, functions of `foreachBatch` run on the server's side, where this process does not see
    what they keep. Tasks then write the rows to files.

    Args:
        folder: The folder with the query's `checkpoint`; the files go to `batches` next to it.
    """

    def __init__(self, folder: Path) -> None:
        self._files, self._commits = folder / "batches", folder / "checkpoint" / "commits"
        self._batches: dict[int, pa.Table] = {}

    def write(self, frame: Any) -> Any:
        """Return the writer of a stream whose rows are kept."""
        if not spark_module("private").is_connect(frame.sparkSession):
            return frame.writeStream.foreachBatch(self._keep)
        self._files.mkdir(parents=True, exist_ok=True)
        return spark_module("tables").keep_batches(frame, str(self._files)).writeStream.format("noop")

    def read(self) -> dict[int, pa.Table]:
        """Return the micro-batches that ran since the last call."""
        found, self._batches = self._batches, {}
        parts: dict[int, list[pa.Table]] = {}
        for path in sorted(self._files.glob("*.arrow")):
            number = int(path.name.partition("-")[0])
            if (self._commits / str(number)).exists():
                parts.setdefault(number, []).append(pa.ipc.open_file(path).read_all())
            path.unlink()
        return found | {number: pa.concat_tables(tables) for number, tables in parts.items()}

    def _keep(self, frame: Any, number: int) -> None:
        self._batches[number] = frame.toArrow()


def _spark_schema(schema: Any) -> Any:
    if not isinstance(schema, pa.Schema):
        return schema
    types = spark_module("types")
    return types.spark_schema(pa.schema([(field.name, types.carrier(field.type)) for field in schema]))
