"""Our own Java inside of Spark's process: compiled by Spark's own Janino, and kept on disk as a jar.

Only a Java that runs programs is promised, not one that compiles them. What is compiled is a file of this
package, never a text of the user's: the class gets what it is to do as data.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from handshake.errors import UnsupportedError
from handshake.kernels.compile_cache import cache_folder

__all__ = ["SOURCES", "jar_in", "java_array", "java_class", "rows_of"]

SOURCES = tuple(Path(__file__).with_name(f"{name}.java") for name in ("PaneMaker", "RowReader"))
_PACKAGE = "handshake"
_ATTRIBUTE = "_handshake_java"
_SETTING = "spark.handshake.java"


def java_class(session: SparkSession, name: str) -> Any | None:
    """A class of ours, as `java.lang.Class`, which all executors of a session know; None: it cannot be had.

    Whatever keeps it away, such as Spark Connect or a class path without a compiler, is asked about once.
    """
    context = getattr(session, "_sc", None)
    if context is None or not _wanted(session):  # Spark Connect: the virtual machine is elsewhere
        return None
    if not hasattr(context, _ATTRIBUTE):
        try:
            found = _loaded(context)
        except Exception:  # Python does the work then, as exactly
            found = None
        setattr(context, _ATTRIBUTE, found)
    loader = getattr(context, _ATTRIBUTE)
    return None if loader is None else loader.loadClass(f"{_PACKAGE}.{name}")


def _wanted(session: SparkSession) -> bool:
    """A way out, should a cluster not let anybody's Java in without telling so."""
    asked = str(session.conf.get(_SETTING, "true")).lower()
    if asked not in ("true", "false"):
        raise UnsupportedError(f"{_SETTING} is 'true' or 'false'; '{asked}' was given")
    return asked == "true"


def rows_of(frame: DataFrame, name: str, arguments: Sequence[Any], kind: StructType) -> DataFrame:
    """What a class of ours makes of each partition's rows: a `MapPartitionsFunction` made with arguments."""
    session = frame.sparkSession
    found, context = java_class(session, name), session.sparkContext
    assert found is not None
    jvm: Any = context._jvm
    given = java_array(context, jvm.java.lang.Object, arguments)
    function = found.getConstructors()[0].newInstance(given)
    schema = session._jsparkSession.parseDataType(kind.json())
    return DataFrame(
        frame._jdf.mapPartitions(function, jvm.org.apache.spark.sql.Encoders.row(schema)), session
    )


def _loaded(context: Any) -> Any:
    """Give the jar to the executors, and a loader of its classes to the driver."""
    jvm = context._jvm
    try:
        jar = jar_in(cache_folder(java_class), jvm)
    except (OSError, RuntimeError):  # neither folder can be written
        jar = jar_in(_passing_folder(), jvm)
    place = java_array(context, jvm.java.net.URL, [jvm.java.io.File(str(jar)).toURI().toURL()])
    loader = jvm.java.net.URLClassLoader(place, _class_loader(jvm))
    with zipfile.ZipFile(jar) as inside:
        for name in inside.namelist():  # the virtual machine looks through each before a task meets it
            jvm.java.lang.Class.forName(name.removesuffix(".class").replace("/", "."), True, loader)
    context._jsc.addJar(str(jar))
    return loader


def _class_loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def _passing_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="handshake-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def jar_in(folder: Path, jvm: Any) -> Path:
    """The jar for these sources and this Spark: as it lies in the folder, or made and left there."""
    texts = [source.read_text() for source in SOURCES]
    digest = hashlib.sha256("\0".join([*texts, pyspark.__version__]).encode()).hexdigest()
    jar = folder / f"handshake.java.{digest[:32]}.jar"
    if not _is_whole(jar):
        _write(jar, {name: code for text in texts for name, code in _compiled(text, jvm).items()})
    return jar


def _is_whole(jar: Path) -> bool:
    try:
        with zipfile.ZipFile(jar) as inside:
            return inside.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _compiled(text: str, jvm: Any) -> dict[str, bytes]:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(_class_loader(jvm))
    compiler.cook(text)
    found = compiler.getBytecodes()
    return {str(name): bytes(found[name]) for name in found}


def _write(jar: Path, classes: Mapping[str, bytes]) -> None:
    """It appears whole: processes that compile at the same time write the same."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    partial = jar.with_name(f"{jar.name}.{uuid.uuid4().hex}")
    try:
        with zipfile.ZipFile(partial, "w") as inside:
            for name in sorted(classes):
                inside.writestr(name.replace(".", "/") + ".class", classes[name])
        os.replace(partial, jar)
    finally:
        partial.unlink(missing_ok=True)


def java_array(context: Any, kind: Any, values: Sequence[Any]) -> Any:
    """An array of Java's."""
    array = context._gateway.new_array(kind, len(values))
    for place, value in enumerate(values):
        array[place] = value
    return array
