"""DataFrames in, a DataFrame out: what can be known about a join before it runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from handshake.cores.spec import SIDES
from handshake.errors import SchemaError, WindowError
from handshake.spark.definition import Definition
from handshake.window import Windows

__all__ = ["WATERMARK", "arrow_schema", "event_time", "output_type", "watermark_delay"]

WATERMARK = "spark.watermarkDelayMs"
"""The metadata by which Spark knows an event-time column."""


def arrow_schema(frame: DataFrame, side: int) -> pa.Schema:
    """The columns of a DataFrame as tasks see them."""
    names = [name.casefold() for name in frame.columns]
    for name in frame.columns:
        if names.count(name.casefold()) > 1:
            raise SchemaError(
                f"the {SIDES[side]} DataFrame has two columns '{name}'; rename or drop one before the join"
            )
    return to_arrow_schema(frame.schema, timezone="UTC")


def event_time(frame: DataFrame, side: int, named: str | None, windows: Windows) -> str | None:
    """The time column: the one that is named, else the one that has a watermark."""
    marked = [field.name for field in frame.schema.fields if WATERMARK in field.metadata]
    if not frame.isStreaming:
        return named
    if named is None:
        if windows.timed and not marked:
            raise _no_watermark(side, _some_time(frame) or "time")
        return marked[0] if marked else None
    if windows.timed and named.casefold() not in [name.casefold() for name in marked]:
        raise _no_watermark(side, named)
    return named


def _no_watermark(side: int, column: str) -> WindowError:
    name = SIDES[side]
    return WindowError(
        f"the {name} stream has no watermark on '{column}', so nothing would ever leave its window; "
        f'add one: {name} = {name}.withWatermark("{column}", "10 seconds")'
    )


def _some_time(frame: DataFrame) -> str | None:
    times = [f.name for f in frame.schema.fields if f.dataType.typeName() in ("timestamp", "timestamp_ntz")]
    return times[0] if times else None


def output_type(definition: Definition, left: DataFrame, right: DataFrame) -> StructType:
    """The columns of results with the types that Spark gave them."""
    fields = [*left.schema.fields, *right.schema.fields]
    return StructType(
        [
            StructField(name, field.dataType, field.nullable, _unmarked(field.metadata))
            for name, field in zip(definition.spec.output.names, fields, strict=True)
        ]
    )


def _unmarked(metadata: dict[str, Any]) -> dict[str, Any]:
    """Without the watermark: a result may be older than it on one side, and would be taken for late."""
    return {key: value for key, value in metadata.items() if key != WATERMARK}


def watermark_delay(frame: DataFrame, time: str) -> int:
    """The delay of the watermark on a column, in milliseconds; 0 where there is none."""
    return int(
        next(f for f in frame.schema.fields if f.name.casefold() == time.casefold()).metadata.get(
            WATERMARK, 0
        )
    )
