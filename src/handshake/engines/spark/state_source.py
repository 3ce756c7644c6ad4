"""`format("handshake-state")`: the state of joins as a DataFrame, read from outside of their queries."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from handshake.engines.spark.state.reading import SEGMENTS, JoinState, read_state
from handshake.engines.spark.types import carriers, conform, spark_schema
from handshake.errors import InputError
from handshake.joins.spec import SIDES

FORMAT = "handshake-state"


@dataclass(frozen=True)
class _Options:
    path: str
    side: str | None
    query: str | None
    join: str | None

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> _Options:
        if not options.get("path"):
            raise InputError(
                f'format("{FORMAT}") needs the state directory of a join: .load("handshake-state")'
            )
        side = options.get("side")
        if side not in (None, *SIDES):
            raise InputError(f"option side='{side}' of format(\"{FORMAT}\") is neither left nor right")
        return cls(options["path"], side, options.get("query"), options.get("join"))

    def select(self) -> JoinState:
        """Return the join whose rows are wanted."""
        found = read_state(self.path).select(self.query, self.join)
        if len(found) > 1:
            names = ", ".join(f"'{each.name}' of query {each.query}" for each in found)
            raise InputError(f"there are several joins: {names}; choose one by the options query and join")
        return found[0]

    def columns(self) -> pa.Schema:
        """Return the columns of the rows, in types that Spark has."""
        if self.side is None:
            return SEGMENTS
        schema = self.select().columns(SIDES.index(self.side))
        if schema is None:
            raise InputError(f"the join holds no row of the {self.side} stream")
        return carriers(schema)


class StateSource(DataSource):
    """The data source.

    Options: `path`; `side` (left or right: the rows of that stream that can still join, with `_segment` and
    `_age`; without it, a row per segment and side); `query` (the start of an id) and `join` (a name), which
    choose one of several.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(_Options.of(self.options).columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(_Options.of(self.options))


@dataclass
class _Reader(DataSourceReader):
    options: _Options

    def partitions(self) -> Sequence[InputPartition]:
        if self.options.side is None:
            return [InputPartition(0)]
        return [InputPartition(number) for number in range(len(self.options.select().segments))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        if options.side is None:
            yield from read_state(options.path).segments(options.query, options.join).to_batches()
            return
        join, schema = options.select(), options.columns()
        for batch in join.segment_rows(join.segments[partition.value], SIDES.index(options.side)):
            yield conform(batch, schema)


def register(session: SparkSession) -> None:
    """Register the format in a session.

    Examples:
        >>> from handshake.engines.spark import state_source
        >>> state_source.register(spark)  # doctest: +SKIP
        >>> spark.read.format("handshake-state").load("handshake-state").show()  # doctest: +SKIP
    """
    session.dataSource.register(StateSource)
