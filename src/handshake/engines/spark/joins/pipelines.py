"""DataFrames in the query functions of declarative pipelines, where Spark analyses nothing.

A pipeline calls its query functions before its tables exist, so Spark refuses to show the columns of a
DataFrame there. The plan of a DataFrame holds them if it declares them: `frame.to(schema)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from handshake.engines.spark.private import NO_ANALYSIS, WATERMARK, connect_messages, connect_relation
from handshake.errors import SchemaError
from handshake.joins.spec import SIDES
from handshake.windows import Duration

_TRANSPARENT = ("filter", "subquery_alias", "to_schema", "with_watermark")
"""Parts of a plan that keep the columns of their input, or declare them."""


def readable(frame: DataFrame, side: int) -> DataFrame:
    """Return a DataFrame whose columns can be read without Spark if its plan declares them.

    Raises:
        SchemaError: The DataFrame belongs to a pipeline's query function and declares no columns.
    """
    parts = list(_parts(connect_relation(frame)))
    declared = [part.to_schema.schema for part in parts if part.HasField("to_schema")]
    if declared:
        reads = [each for each in connect_messages(parts[-1]) if each.DESCRIPTOR.name == "Read"]
        streams = any(each.is_streaming for each in reads)
        marks = [part.with_watermark for part in parts if part.HasField("with_watermark")]
        delays = {mark.event_time: Duration.parse(mark.delay_threshold) for mark in marks}
        return cast(DataFrame, _DeclaredFrame(frame, _schema(declared[0]), delays, streams))
    try:
        frame.isStreaming  # noqa: B018  (asks Spark)
    except PySparkException as error:
        if NO_ANALYSIS not in str(error):
            raise
        raise SchemaError(
            f"the columns of the {SIDES[side]} DataFrame are unknown: Spark analyses nothing in the query "
            'function of a pipeline; declare them: spark.readStream.table("…").to(schema), followed by '
            "withWatermark, alias and where only"
        ) from None
    return frame


class _DeclaredFrame:
    """A DataFrame, and the columns that its plan declares."""

    def __init__(
        self, frame: DataFrame, schema: StructType, delays: dict[str, Duration], streams: bool
    ) -> None:
        self._frame, self._declared = frame, schema
        self.isStreaming = streams
        self.schema = StructType.fromJson(schema.jsonValue())
        for field in self.schema.fields:
            if field.name in delays:
                field.metadata = {**field.metadata, WATERMARK: delays[field.name].nanoseconds // 1_000_000}
        self.columns = self.schema.names

    def mapInArrow(self, function: Callable[..., Any], schema: StructType) -> DataFrame:
        # `to` also tells PySpark the columns, which it would ask Spark for
        return self._frame.to(self._declared).mapInArrow(function, schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)


def _parts(relation: Any) -> Iterator[Any]:
    """Yield the parts of a plan from the last one to the first one that may have other columns."""
    while relation is not None:
        yield relation
        kind = relation.WhichOneof("rel_type")
        relation = getattr(relation, kind).input if kind in _TRANSPARENT else None


def _schema(message: Any) -> StructType:
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return cast(StructType, proto_schema_to_pyspark_data_type(message))
