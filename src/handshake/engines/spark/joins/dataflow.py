"""Spark's operators for a join of DataFrames."""

from __future__ import annotations

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.finite import join_task, probe_task
from handshake.engines.spark.joins.inputs import output_type
from handshake.engines.spark.joins.late import IDENTITY
from handshake.engines.spark.joins.processor import SegmentProcessor
from handshake.engines.spark.joins.refresh import Refresher
from handshake.engines.spark.joins.tasks import (
    REFERENCES,
    RESULTS,
    pack_task,
    unpack_task,
)
from handshake.engines.spark.types import spark_schema
from handshake.errors import UnsupportedError
from handshake.metrics import REPORTS

_REFERENCES = spark_schema(REFERENCES)
_BLOBS = StructType([StructField("blob", BinaryType())])
_FILE = "path string, batch bigint, segment int, rows bigint, bytes bigint, watermark bigint"
"""A file of results; the watermark in milliseconds."""


def join_streams(left: DataFrame, right: DataFrame, definition: Definition, name: str) -> DataFrame:
    """Join two streams: shuffle references, run segments as join cores, unpack serialised results."""
    mode = "EventTime" if definition.windows.timed else "None"
    segments = _pack(left, definition, 0).union(_pack(right, definition, 1)).groupBy("segment")
    if not hasattr(segments, "transformWithStateInPandas"):
        raise UnsupportedError(
            f"PySpark {pyspark.__version__} has no stateful operators in Spark Connect, which a join of "
            "streams needs; use a client from 4.1 on, or a classic session"
        )
    # each figure of all segments together, each segment's as JSON, and what the segments ran
    kinds = {"sum": F.sum, "max": F.max}
    figures = [kinds[metric.kind](metric.name).alias(metric.name) for metric in REPORTS["micro_batch"]]
    which = F.max(F.lit(definition.identity)).alias(IDENTITY)
    processor = SegmentProcessor(definition, name)
    joined = segments.transformWithStateInPandas(processor, RESULTS, "append", mode)
    joined = joined.observe(name, *figures, F.collect_list("segment").alias("segments"), which)
    if definition.options.results_to is not None:
        return _file_rows(joined)
    # `to` tells PySpark the columns; it would ask Spark for them, which pipelines do not allow
    blobs = joined.where("blob IS NOT NULL").select("blob").to(_BLOBS)
    return _unpack(blobs, definition, output_type(definition, left, right))


def _file_rows(joined: DataFrame) -> DataFrame:
    """Return a row per file of results."""
    file = F.from_json(F.col("blob").cast("string"), _FILE).alias("file")
    rows = joined.where("blob IS NOT NULL").select(file).select("file.*")
    return rows.withColumn("watermark", F.timestamp_millis("watermark"))


def join_batches(left: DataFrame, right: DataFrame, definition: Definition) -> DataFrame:
    """Join two finite inputs: as two streams, but without state."""
    references = _pack(left, definition, 0).union(_pack(right, definition, 1))
    # explicit, because adaptive execution would put the small references of all segments into one task
    references = references.repartition(definition.partitions, "segment")
    blobs = references.mapInArrow(join_task(definition), _BLOBS)
    return _unpack(blobs, definition, output_type(definition, left, right))


def join_static(left: DataFrame, right: DataFrame, definition: Definition) -> DataFrame:
    """Join a stream with a finite input, which is packed and divided among the segments.

    It is packed once, or again by the rule of the definition.
    """
    streaming = 0 if left.isStreaming else 1
    frames = (left, right)
    moving, static = _pack(frames[streaming], definition, streaming), frames[1 - streaming]
    packed = _pack(static, definition, 1 - streaming)
    held = packed.groupBy("segment").agg(F.collect_list(F.struct("*")).alias("held"))
    if definition.refresh != 0:
        held = held.persist()
    pairs = (
        moving.select("segment", F.struct("*").alias("moving"))
        .join(held, "segment", "left")
        .repartition(definition.partitions, "segment")
    )
    blobs = pairs.mapInArrow(probe_task(definition, streaming), _BLOBS)
    if definition.refresh is not None:
        refresher = Refresher(static, held if definition.refresh else None, definition)
        static.sparkSession.streams.addListener(refresher)
        blobs = blobs.observe(refresher.metric, F.count(F.lit(1)).alias("blobs"))
    return _unpack(blobs, definition, output_type(definition, left, right))


def _pack(frame: DataFrame, definition: Definition, side: int) -> DataFrame:
    return frame.mapInArrow(pack_task(definition, side, finite=not frame.isStreaming), _REFERENCES)


def _unpack(blobs: DataFrame, definition: Definition, kind: StructType) -> DataFrame:
    return blobs.mapInArrow(unpack_task(definition), kind)
