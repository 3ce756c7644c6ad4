"""Sessions that lack something, run as a script: each lack is one sentence at the first call.

python spark_failures.py FOLDER

Workers find no Handshake, the JVM has no RocksDB, and this process has neither grpc nor protobuf.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import handshake
from handshake.engines.spark.joins.frames import prepare_session
from handshake.errors import UnsupportedError

PROTOBUF = "pyspark.sql.streaming.proto.StateMessage_pb2"


def lame_python(folder: Path) -> str:
    """Return a Python that is this one, but finds no Handshake."""
    (folder / "handshake.py").write_text("raise ModuleNotFoundError('none here', name='handshake')\n")
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def lame_spark(folder: Path) -> str:
    """Return a home of Spark without the jar of RocksDB."""
    real = Path(pyspark.__file__).parent
    (folder / "jars").mkdir(parents=True)
    links = [(folder / each.name, each) for each in real.iterdir() if each.name != "jars"]
    jars = [each for each in (real / "jars").iterdir() if not each.name.startswith("rocksdbjni")]
    for link, target in [*links, *((folder / "jars" / jar.name, jar) for jar in jars)]:
        link.symlink_to(target)
    return str(folder)


def check(spark: Any) -> None:
    left, right = (spark.range(3).withColumnRenamed("id", name) for name in "ab")
    with pytest.raises(UnsupportedError) as lame:
        handshake.join(left, right, "l.a < r.b")
    assert str(lame.value).startswith("the Python of Spark's workers, ")
    assert "python, has no package 'handshake'; name a Python that has handshake-join" in str(lame.value)
    assert "PYSPARK_PYTHON or spark.pyspark.python" in str(lame.value)
    assert handshake.join(left, right, "l.a = r.b").count() == 3  # Spark's own join
    sys.modules[PROTOBUF] = None  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match=r"a protobuf that fits PySpark .*; install one, such as"):
        prepare_session(spark)
    del sys.modules[PROTOBUF]
    with pytest.raises(UnsupportedError, match="RocksDB, and this Spark has no rocksdbjni jar; add it to"):
        prepare_session(spark)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.modules["grpc"] = None  # type: ignore[assignment]
    os.environ["SPARK_HOME"] = lame_spark(folder / "spark")
    os.environ["PYSPARK_PYTHON"] = lame_python(folder)
    check(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate())
    print("done")
