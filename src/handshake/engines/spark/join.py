"""`handshake.join` on DataFrames: which of Spark's operators a join becomes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from handshake.engines.spark.definition import Definition
from handshake.engines.spark.frames import WATERMARK, output_type
from handshake.engines.spark.operators import (
    FIGURES,
    REFERENCES,
    RESULTS,
    Segments,
    joining,
    packing,
    probing,
    unpacking,
)

__all__ = ["join_batches", "join_static", "join_streams", "with_event_time"]

_SQL = {"int32": "int", "int64": "bigint", "string": "string", "binary": "binary"}
_REFERENCES = ", ".join(f"`{field.name}` {_SQL[str(field.type)]}" for field in REFERENCES)


def join_streams(left: DataFrame, right: DataFrame, definition: Definition, name: str) -> DataFrame:
    """Two streams: references through the shuffle, segments as join cores, blobs of results out."""
    mode = "EventTime" if definition.windows.timed else "None"
    joined = (
        _packed(left, definition, 0)
        .union(_packed(right, definition, 1))
        .groupBy("segment")
        .transformWithStateInPandas(Segments(definition, name), RESULTS, "append", mode)
        .observe(name, *_observed())
    )
    blobs = joined.where("blob IS NOT NULL").select("blob")
    return _unpacked(blobs, definition, output_type(definition, left, right))


def join_batches(left: DataFrame, right: DataFrame, definition: Definition) -> DataFrame:
    """Two finite inputs: the same without state."""
    references = _packed(left, definition, 0).union(_packed(right, definition, 1))
    # By number: adaptive execution would put small references, and so all segments, into one task.
    references = references.repartition(definition.partitions, "segment")
    blobs = references.groupBy("segment").applyInArrow(joining(definition), "blob binary")
    return _unpacked(blobs, definition, output_type(definition, left, right))


def join_static(left: DataFrame, right: DataFrame, definition: Definition) -> DataFrame:
    """A stream and a finite input, which is packed once and dealt out to the segments."""
    streaming = 0 if left.isStreaming else 1
    frames = (left, right)
    moving = _packed(frames[streaming], definition, streaming)
    held = _packed(frames[1 - streaming], definition, 1 - streaming).persist()
    pairs = (
        moving.select("segment", F.struct("*").alias("moving"))
        .join(held.select("segment", F.struct("*").alias("held")), "segment")
        .repartition(definition.partitions, "segment")
    )
    blobs = pairs.mapInArrow(probing(definition, streaming), "blob binary")
    return _unpacked(blobs, definition, output_type(definition, left, right))


def _packed(frame: DataFrame, definition: Definition, side: int) -> DataFrame:
    return frame.mapInArrow(packing(definition, side, finite=not frame.isStreaming), _REFERENCES)


def _unpacked(blobs: DataFrame, definition: Definition, kind: StructType) -> DataFrame:
    return blobs.mapInArrow(unpacking(definition), kind)


def _observed() -> list[Any]:
    """Sums over the segments, the latest times, and the segments one by one as JSON."""
    sums = [F.sum(name).alias(name) for name in FIGURES[:-2]]
    latest = [F.max(name).alias(name) for name in FIGURES[-2:]]
    return [*sums, *latest, F.collect_list("segment").alias("segments")]


def with_event_time(joined: DataFrame, times: tuple[str, str], name: str, delay: int) -> DataFrame:
    """The later of both times as a column that Spark's event-time operators accept.

    No result is later than the watermark by that column, though it may be by one of the two.
    """
    return joined.withColumn(name, F.greatest(*times)).withMetadata(name, {WATERMARK: delay})
