"""Private parts of PySpark and Spark, all in one place.

Each function names its plain alternative, and `tests/spark/test_private.py` runs both. `docs/dependencies.md`
lists the gain and the risk of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyspark
from pyspark import SparkConf, TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField

WATERMARK = "spark.watermarkDelayMs"
"""The key of the metadata that marks an event-time column; plain: name the time column (`time=`)."""

NO_ANALYSIS = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""The class of the error by which Spark refuses to analyse in a pipeline; plain: none."""


# Columns


def is_padded(field: StructField) -> bool:
    """Return whether a column is CHAR, which Spark pads before it compares; plain: leave such joins to us."""
    return str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", "")).startswith("char")


# Plans, as Java objects. Plain: predicates as SQL text, with the qualifiers `l` and `r`, as in Spark Connect.


def analysed_plan(frame: DataFrame) -> Any | None:
    """Return Spark's analysed plan of a DataFrame; None with Spark Connect, which does not show it."""
    java = getattr(frame, "_jdf", None)
    return None if java is None else java.queryExecution().analyzed()


def connect_relation(frame: DataFrame) -> Any | None:
    """Return the message that describes a DataFrame of Spark Connect; None for a classic one."""
    plan = getattr(frame, "_plan", None)
    return None if plan is None else plan.to_proto(frame.sparkSession.client).root


def connect_messages(message: Any) -> Iterator[Any]:
    """Yield a message of Spark Connect and all that it contains."""
    yield message
    values = (value for field, value in message.ListFields() if field.message_type is not None)
    inner = (each for value in values for each in (value if hasattr(value, "__len__") else (value,)))
    for each in inner:
        if hasattr(each, "DESCRIPTOR"):
            yield from connect_messages(each)


def is_java_column(condition: Column) -> bool:
    """Return whether a condition is a Java object; it is not with Spark Connect."""
    return hasattr(condition, "_jc")


def elements(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def is_instance(node: Any, name: str, frame: DataFrame) -> bool:
    """Return whether a Java object is an instance of a class."""
    jvm: Any = frame.sparkSession._jvm
    return bool(jvm.java.lang.Class.forName(name).isInstance(node))


def is_user_cast(node: Any, frame: DataFrame) -> bool:
    """Return whether the user wrote a cast; Spark adds others."""
    jvm: Any = frame.sparkSession._jvm
    tag = jvm.org.apache.spark.sql.catalyst.expressions.Cast.USER_SPECIFIED_CAST()
    return not node.getTagValue(tag).isEmpty()


# Files. Plain: create the DataFrame again, or read a table that has versions, such as one of Delta Lake.


def list_files_again(frame: DataFrame) -> None:
    """Let Spark list the files of a DataFrame again; it lists them once, when the DataFrame is created."""
    plan = analysed_plan(frame)
    package = "org.apache.spark.sql.execution.datasources"
    for leaf in [] if plan is None else elements(plan.collectLeaves()):
        if is_instance(leaf, f"{package}.LogicalRelation", frame):
            relation = leaf.relation()
            if is_instance(relation, f"{package}.HadoopFsRelation", frame):
                relation.location().refresh()


# Classes. Plain: assume that the class is there, as in Spark Connect; Spark then fails with a trace.


def is_connect(session: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect, which shows no JVM."""
    return getattr(session, "_jvm", None) is None


def has_class(session: SparkSession, name: str) -> bool:
    """Return whether the JVM of a session finds a class; true if there is no JVM to ask."""
    jvm: Any = getattr(session, "_jvm", None)
    if jvm is None:
        return True
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Exception:  # of py4j, which wraps Java's ClassNotFoundException
        return False
    return True


# Settings. Plain: leave it to Spark, whose default manager starts processes for every file on a local disk:
# 350 ms per micro-batch instead of 65.


def checkpoint_manager() -> str:
    """Return the Java class that writes checkpoint files through the Hadoop file system."""
    package = "" if pyspark.__version__.startswith("4.0.") else "checkpointing."
    return f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"


# The JVM. Plain: `SparkSession.builder`, whose JVM writes to the terminal and ends with this process.
# Imported where needed: the package pyspark-client, which talks to Spark Connect alone, lacks both.


def launch_jvm(conf: SparkConf, log: IO[bytes]) -> Any:
    """Start a JVM whose output goes to a log file."""
    from pyspark.java_gateway import launch_gateway

    return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]


def release_jvm() -> None:
    """Forget the JVM, so that this process can start another."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def silence_accumulators(session: SparkSession) -> None:
    """Keep the accumulator server from writing to the terminal when the JVM ends."""
    if server := getattr(session.sparkContext, "_accumulatorServer", None):
        server.handle_error = lambda request, client_address: None


# Local properties of tasks. Plain: none; without them, streaming joins cannot name their files.


def query_id(task: TaskContext) -> str | None:
    """Return the id of the streaming query that a task belongs to; None in batch mode."""
    return task.getLocalProperty("sql.streaming.queryId")


def run_id(task: TaskContext) -> str:
    """Return the id of the run of the streaming query; empty in batch mode."""
    return str(task.getLocalProperty("spark.jobGroup.id")) if query_id(task) else ""


def batch_number(task: TaskContext) -> int:
    """Return the number of the micro-batch; 0 in batch mode."""
    return int(task.getLocalProperty("streaming.sql.batchId") or 0)
