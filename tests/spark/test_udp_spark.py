"""The log of datagrams as a source of Spark's: by offset, in order, and again after a restart."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from handshake.io.udp.log import LogWriter
from spark_session import Sink, spark

__all__ = ["spark"]

SCHEMA = pa.schema(
    [("n", pa.uint32()), ("s", pa.string()), ("at", pa.timestamp("us", "UTC")), ("d", pa.decimal128(9, 2))]
)


def batch(start: int, count: int) -> pa.RecordBatch:
    numbers = list(range(start, start + count))
    columns = [
        pa.array(numbers, pa.uint32()), pa.array([f"s{n}" for n in numbers]),
        pa.array([n * 1000 for n in numbers], pa.timestamp("us", "UTC")),
        pa.array([Decimal(n) for n in numbers], pa.decimal128(9, 2)),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_rows_come_by_offset_and_again_after_a_restart(spark: Any, tmp_path: Path) -> None:
    if spark.version < "4.2":
        pytest.skip("sources in Python have no limits before Spark 4.2")
    from handshake.engines.spark.udp_source import FORMAT, register

    register(spark)
    log = LogWriter(tmp_path / "log", SCHEMA, sync=0, segment_bytes=2000)
    for start in range(0, 100, 10):
        log.append(batch(start, 10))
    whole = spark.read.format(FORMAT).load(str(tmp_path / "log"))
    assert [row["n"] for row in whole.collect()] == list(range(100))
    assert whole.dtypes == [("n", "bigint"), ("s", "string"), ("at", "timestamp"), ("d", "decimal(9,2)")]

    stream = spark.readStream.format(FORMAT).option("maxRowsPerTrigger", 35).load(str(tmp_path / "log"))
    sink = Sink(tmp_path / "sink")
    sink.run(stream)
    assert [sorted(t.column("n").to_pylist()) for t in sink.batches.values()] == [
        list(range(35)), list(range(35, 70)), list(range(70, 100)),
    ]  # fmt: skip
    log.append(batch(100, 5))
    sink.run(stream)
    assert sink.batches[3].column("n").to_pylist() == list(range(100, 105))

    for name in ("3", ".3.crc"):  # as if it had stopped before it was done
        (tmp_path / "sink" / "checkpoint" / "commits" / name).unlink()
    del sink.batches[3]
    log.append(batch(105, 5))
    sink.run(stream)
    assert sink.batches[3].column("n").to_pylist() == list(range(100, 105))
    assert sink.batches[4].column("n").to_pylist() == list(range(105, 110))
    late = spark.readStream.format(FORMAT).option("startingOffset", "107").load(str(tmp_path / "log"))
    other = Sink(tmp_path / "other")
    other.run(late)
    assert [row["n"] for row in other.rows()] == [107, 108, 109]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "is not a log of a stream: it holds no schema.arrow"),
        ({"maxRowsPerTrigger": "many"}, "option maxRowsPerTrigger='many' of format"),
        (
            {"startingOffset": "never"},
            "startingOffset='never' is none of earliest, latest and a row number",
        ),
    ],
)
def test_options_that_have_no_meaning(
    spark: Any, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    from handshake.engines.spark.udp_source import FORMAT, register

    register(spark)
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE") as error:
        spark.read.format(FORMAT).options(**options).load(str(tmp_path)).collect()
    assert message in str(error.value)
