"""The inputs of a join: types, event times and names, checked before the join runs."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from handshake.engines.spark.joins.connect import connect_alias
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.private import WATERMARK, analysed_plan, elements
from handshake.engines.spark.types import arrow_type, spark_schema
from handshake.errors import InputError, SchemaError, UnsupportedError, WindowError, suggest
from handshake.joins.spec import SIDES
from handshake.plan.expr import Column, walk
from handshake.windows import Windows


def arrow_schema(frame: DataFrame, side: int) -> pa.Schema:
    """Return the columns of a DataFrame with the Arrow types that tasks see."""
    names = [name.casefold() for name in frame.columns]
    for name in frame.columns:
        if names.count(name.casefold()) > 1:
            raise SchemaError(
                f"the {SIDES[side]} DataFrame has two columns '{name}'; rename or drop one before the join"
            )
    zone, fields = session_zone(frame), []
    for field in frame.schema.fields:
        try:
            fields.append(pa.field(field.name, arrow_type(field.dataType, zone), field.nullable))
        except InputError:
            raise SchemaError(
                f"column '{field.name}' of the {SIDES[side]} DataFrame is {field.dataType.simpleString()}, "
                "which Spark does not pass to Python and back in Arrow; cast it to another type, or drop it"
            ) from None
    return pa.schema(fields)


def session_zone(frame: DataFrame) -> str:
    """Return the time zone of a session in a spelling that Python knows; Java knows others."""
    name = frame.sparkSession.conf.get("spark.sql.session.timeZone", None) or "UTC"
    offset = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", name)
    if offset is not None:
        return f"{offset[1]}{int(offset[2]):02}:{offset[3] or '00'}"
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise SchemaError(
            f"spark.sql.session.timeZone is '{name}', which Python's zone database does not have; set it to "
            "a region such as 'Europe/Zurich' or an offset such as '+02:00'"
        ) from None
    return name


# Event time


def event_time(frame: DataFrame, side: int, named: str | None, windows: Windows) -> str | None:
    """Return the time column: the given one, else the one with a watermark."""
    label, fields = SIDES[side], frame.schema.fields
    if named is not None:
        found = next((name for name in frame.columns if name.casefold() == named.casefold()), None)
        if found is None:
            raise SchemaError(
                f"no column '{named}' in the {label} DataFrame ({', '.join(frame.columns)}) to take the time "
                f"from{suggest(named, frame.columns)}"
            )
        named = found
    if not frame.isStreaming:
        return named
    marked = [field.name for field in fields if WATERMARK in field.metadata]
    if named is None and len(marked) > 1:
        raise WindowError(
            f"the {label} stream has watermarks on {' and '.join(marked)}; say which one is its time: "
            f'{label}_time="{marked[0]}"'
        )
    time = named or next(iter(marked), None)
    if windows.timed and time not in marked:
        kinds = ("timestamp", "timestamp_ntz")
        column = time or next((f.name for f in fields if f.dataType.typeName() in kinds), "time")
        raise WindowError(
            f"the {label} stream has no watermark on '{column}', so nothing would ever leave its window; "
            f'add one: {label} = {label}.withWatermark("{column}", "10 seconds")'
        )
    return time


def watermark_delay(frame: DataFrame, time: str | None) -> int | None:
    """Return the delay of the watermark on a stream's column, in milliseconds; None if it is no stream."""
    if time is None or not frame.isStreaming:
        return None
    field = next(f for f in frame.schema.fields if f.name.casefold() == time.casefold())
    return int(field.metadata.get(WATERMARK, 0))


def check_idle(definition: Definition) -> None:
    """Raise if silent streams are to be left out of the watermark and cannot be.

    Raises:
        UnsupportedError: An input does not stream.
        WindowError: No window is one of time, or the text is no length of time.
    """
    text = definition.options.idle
    if text is None:
        return
    if not all(definition.streaming):
        raise UnsupportedError(
            f"idle='{text}' is for joins of two streams, and an input is a batch DataFrame; leave it out"
        )
    if not definition.windows.timed or None in definition.times:
        raise WindowError(
            f"idle='{text}' moves the watermark, which windows of tuples do not follow; leave it out"
        )
    if definition.idle is None or definition.idle.after <= 0:
        raise WindowError(f"idle must be a millisecond or longer; '{text}' is not")


def check_texts(definition: Definition, frames: tuple[DataFrame, DataFrame]) -> None:
    """Reject predicates on columns with a collation: we compare texts by code point."""
    used = {(n.side, n.name) for n in walk(definition.spec.analysis.predicate) if isinstance(n, Column)}
    for side, name in sorted(used):
        kind = next(f.dataType for f in frames[side].schema.fields if f.name == name)
        if isinstance(kind, StringType) and kind != StringType():
            raise SchemaError(
                f"column '{name}' of the {SIDES[side]} DataFrame has the collation {kind.collation}, but a "
                f"predicate compares texts by code point; compare LOWER({name}) or the like of a column "
                f'without one: {SIDES[side]}.withColumn("{name}", F.expr("{name} COLLATE UTF8_BINARY"))'
            )


# Results


def check_output(definition: Definition, case_sensitive: bool) -> None:
    """Reject output names that differ only in case, unless the session distinguishes them."""
    seen: dict[str, str] = {}
    for name in definition.output.names if not case_sensitive else ():
        if name.casefold() in seen:
            raise SchemaError(
                f"output columns '{seen[name.casefold()]}' and '{name}' differ in case only, which Spark "
                "does not distinguish; rename one of them"
            )
        seen[name.casefold()] = name


def output_type(definition: Definition, left: DataFrame, right: DataFrame) -> StructType:
    """Return the columns of results with their Spark types."""
    shown, preserved = definition.kind.shown, definition.kind.preserved
    fields = [
        StructField(field.name, field.dataType, field.nullable or preserved[1 - side], field.metadata)
        for side, frame in enumerate((left, right))
        for field in (frame.schema.fields if shown[side] else ())
    ]
    named = []
    for name, field in zip(definition.output.names, fields, strict=False):
        # no watermark: one side of a result may be older, and Spark would treat it as late
        metadata = {key: value for key, value in field.metadata.items() if key != WATERMARK}
        named.append(StructField(name, field.dataType, field.nullable, metadata))
    if definition.ranking is not None or (definition.best is not None and definition.best.output is not None):
        named += spark_schema(pa.schema(list(definition.output)[len(named) :])).fields  # rank and value
    if definition.result_time is not None:
        named.append(StructField(definition.result_time, left.schema[str(definition.times[0])].dataType))
    return StructType(named)


# Names


def qualifiers(left: DataFrame, right: DataFrame) -> tuple[str, str] | None:
    """Return the names of the inputs (`left.alias("t")`, or a table's name); None if they are unclear."""
    found = _qualifier(left), _qualifier(right)
    if found[0] == found[1]:
        return None
    names = [found[0] or "left", found[1] or "right"]
    if names[0] == names[1]:  # one has the default name of the other
        names = [found[0] or "l", found[1] or "r"]
    return names[0], names[1]


def _qualifier(frame: DataFrame) -> str | None:
    plan = analysed_plan(frame)
    if plan is None:
        return connect_alias(frame)
    names = [column.qualifier() for column in elements(plan.output())]
    found = {str(name.last()) for name in names if not name.isEmpty()}
    return found.pop() if len(found) == 1 else None
