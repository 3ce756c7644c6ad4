"""`format("handshake-udp")`: a durable log of datagrams as a replayable Spark source.

`handshake receive` writes the log. Offsets are row numbers in it, so a micro-batch that runs again reads the
same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from handshake.engines.spark.types import carriers, conform, spark_schema
from handshake.errors import InputError, UnsupportedError
from handshake.io.udp.log import LogReader

FORMAT = "handshake-udp"
_TASK_ROWS = 1 << 16
"""Rows per task, at least."""


@dataclass(frozen=True)
class _Options:
    path: str
    most: int | None
    start: str
    partitions: int

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> _Options:
        if not options.get("path"):
            raise InputError(f'format("{FORMAT}") needs the folder of a stream\'s log: .load("log/Trades")')
        most = options.get("maxRowsPerTrigger")
        return cls(
            options["path"],
            None if most is None else _number("maxRowsPerTrigger", most, 1),
            _start(options.get("startingOffset", "earliest")),
            _number("partitions", options.get("partitions", "8"), 1),
        )


def _number(name: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise InputError(
            f"option {name}='{text}' of format(\"{FORMAT}\") is not a whole number from {least} up"
        )
    return int(text)


def _start(text: str) -> str:
    if text not in ("earliest", "latest") and not text.isdigit():
        raise InputError(f"startingOffset='{text}' is none of earliest, latest and a row number")
    return text


class UdpLog(DataSource):
    """The data source.

    Options: `path`, `maxRowsPerTrigger`, `startingOffset` (earliest, latest or a row number), `partitions`.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(carriers(LogReader(_Options.of(self.options).path).schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(_Options.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _Options.of(self.options)
        if find_spec("pyspark.sql.streaming.datasource"):
            limits: Any = import_module("handshake.engines.spark.udp_limits")
            return cast(DataSourceStreamReader, limits.LimitedReader(options))
        if options.most is not None:
            raise UnsupportedError(
                f'option maxRowsPerTrigger={options.most} of format("{FORMAT}") needs Spark 4.2 or later, '
                f"and this is {pyspark.__version__}; leave it out: micro-batches then take all rows there are"
            )
        return StreamReader(options)


def register(session: SparkSession) -> None:
    """Register the format in a session."""
    session.dataSource.register(UdpLog)


def _read(path: str, rows: InputPartition) -> Iterator[pa.RecordBatch]:
    reader = LogReader(path)
    schema = carriers(reader.schema)
    for batch in reader.read(*rows.value):
        yield conform(batch, schema)


def _ranges(options: _Options, start: int, stop: int) -> Sequence[InputPartition]:
    """Split rows into ranges, one per partition, in order of arrival."""
    count = min(options.partitions, -(-(stop - start) // _TASK_ROWS))
    edges = [start + (stop - start) * part // max(count, 1) for part in range(count + 1)]
    return [InputPartition(rows) for rows in pairwise(edges)]


@dataclass
class _BatchReader(DataSourceReader):
    options: _Options

    def partitions(self) -> Sequence[InputPartition]:
        reader = LogReader(self.options.path)
        return _ranges(self.options, _first(self.options, reader), reader.end) or [InputPartition((0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options.path, partition)


def _first(options: _Options, reader: LogReader) -> int:
    if options.start == "latest":
        return reader.end
    return reader.first if options.start == "earliest" else int(options.start)


@dataclass
class StreamReader(DataSourceStreamReader):
    """A reader whose micro-batches take all rows that there are."""

    options: _Options

    def initialOffset(self) -> dict[str, int]:
        return {"row": _first(self.options, LogReader(self.options.path))}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # before Spark 4.2
        return {"row": LogReader(self.options.path).end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _ranges(self.options, start["row"], end["row"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options.path, partition)
