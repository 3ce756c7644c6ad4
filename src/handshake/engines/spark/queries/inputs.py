"""The DataFrames of a query's inputs: as given, or taken out of one that carries several streams."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from handshake.engines.spark.frames import arrow_schema
from handshake.engines.spark.queries.joins import TIME
from handshake.engines.spark.tables import carrier
from handshake.errors import InputError, SchemaError, suggest
from handshake.io.udp.receive import ARRIVAL_COLUMN
from handshake.plan.algebra import Demux, Plan, Source, walk
from handshake.schema import UNITS, Field, arrow_of

__all__ = ["UNKNOWN", "given_frames", "quoted", "source_frame"]

UNKNOWN = "unknown"
"""The figure that tells how many tuples of a carrying input belong to no declared stream."""


def given_frames(
    plan: Plan, inputs: Mapping[str, DataFrame]
) -> tuple[dict[str, DataFrame], dict[str, Observation]]:
    """The DataFrame of each source, and who counts the tuples of finite inputs that no stream claims."""
    _check_names(plan, inputs)
    found, counting = dict(inputs), dict[str, Observation]()
    for name, frame in inputs.items():
        carried = [s.demux for s in plan.inputs if s.demux is not None and s.demux.stream == name]
        if carried:
            observed = name if frame.isStreaming else counting.setdefault(name, Observation())
            found[name] = frame.observe(observed, _unclaimed(carried))
    for source in plan.inputs:
        if source.name in found:
            continue
        if source.demux is not None and source.demux.stream in inputs:
            found[source.name] = found[source.demux.stream].where(_claims(source.demux))
        elif any(node == source for output in plan.outputs for node in walk(output)):
            raise InputError(f"no DataFrame is given for the input stream '{source.name}'")
    return found, counting


def _check_names(plan: Plan, inputs: Mapping[str, DataFrame]) -> None:
    names = {source.name for source in plan.inputs}
    for name in inputs:
        if name not in names:
            raise InputError(
                f"no input stream '{name}' in the query ({', '.join(sorted(names))}){suggest(name, names)}"
            )


def _claims(demux: Demux) -> Column:
    """Which tuples of the carrying input are a stream's (section 5.3)."""
    return F.col(f"`{demux.field}`").isin(*demux.values)


def _unclaimed(carried: list[Demux]) -> Column:
    claimed = reduce(lambda a, b: a | b, [F.coalesce(_claims(demux), F.lit(False)) for demux in carried])
    return F.count_if(~claimed).alias(UNKNOWN)


def source_frame(frame: DataFrame, source: Source, *, to_arrow: bool = False) -> DataFrame:
    """An input; on its way to Arrow, instants need not be made readings of a clock first."""
    if source.time == ARRIVAL_COLUMN:
        known = ARRIVAL_COLUMN in frame.columns  # as logs of datagrams have it
        frame = frame if known else frame.withColumn(ARRIVAL_COLUMN, F.current_timestamp())
    fields = [field for field in source.fields if field.name != TIME]
    times = [_time(frame, source)] if len(fields) < len(source.fields.fields) else []
    return frame.select(*(_declared(frame, field, source, to_arrow) for field in fields), *times)


def _declared(frame: DataFrame, field: Field, source: Source, to_arrow: bool) -> Column:
    """A column of an input in the type that it is declared with."""
    if field.name not in frame.columns:
        raise SchemaError(
            f"the DataFrame of '{source.name}' lacks the column '{field.name}' ({', '.join(frame.columns)})"
            f"{suggest(field.name, frame.columns)}"
        )
    given = _type(frame, field.name)
    wanted = carrier(arrow_of(field.type))
    column = F.col(f"`{field.name}`")
    if given == wanted:
        return column
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        alike = to_arrow or (given.tz is None) == (wanted.tz is None)
        return column if alike else _zoned(field.name, wanted.tz)
    if _widens(given, wanted):
        return column.cast(from_arrow_schema(pa.schema([("c", wanted)]))[0].dataType).alias(field.name)
    raise SchemaError(
        f"column '{field.name}' of the DataFrame of '{source.name}' is {given}, but {field.type} is "
        "declared; cast it, or declare the other type"
    )


def _type(frame: DataFrame, name: str) -> pa.DataType:
    return arrow_schema(frame.select(quoted([name])[0]), 0).field(0).type


def _zoned(name: str, zone: str | None) -> Column:
    """An instant as a reading of UTC's clock, or the other way round: the same number of microseconds."""
    if zone is None:
        return F.expr(f"timestampadd(MICROSECOND, unix_micros(`{name}`), TIMESTAMP_NTZ'1970-01-01')").alias(
            name
        )
    since = F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', `{name}`)")
    return F.timestamp_micros(since).alias(name)


def _time(frame: DataFrame, source: Source) -> Column:
    """The time of tuples as an instant, whatever it is counted in."""
    assert source.time is not None
    given = _type(frame, source.time)
    if pa.types.is_timestamp(given):
        return (F.col(f"`{source.time}`") if given.tz is not None else _zoned(source.time, "UTC")).alias(TIME)
    return F.timestamp_micros(_micros(F.col(f"`{source.time}`"), source)).alias(TIME)


def _micros(time: Column, source: Source) -> Column:
    """A whole number of the clock's units in microseconds; an error where that is no number of 64 bits."""
    factor = UNITS[source.clock.unit] // UNITS["us"]
    most = (2**63 - 1) // factor
    told = F.format_string(
        f"a time in column '{source.time}' of stream {source.name} is %s {source.clock.unit}, which Spark's "
        "timestamps, microseconds in 64 bits, do not hold", time.cast("string")
    )  # fmt: skip
    return F.when(time.isNull() | time.between(-most, most), time.cast("long") * factor).otherwise(
        F.raise_error(told)
    )


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value stays what it is."""
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    return bool(pa.types.is_float32(given) and pa.types.is_float64(wanted))


def quoted(names: Any) -> list[Column]:
    """Columns by name, whatever is in the name."""
    return [F.col(f"`{name}`") for name in names]
