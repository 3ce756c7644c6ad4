"""The DataFrames of a query's inputs, given directly or carried with other streams in one DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from handshake.engines.spark.joins.inputs import arrow_schema
from handshake.engines.spark.queries.expressions import quote_names
from handshake.engines.spark.queries.joins import TIME
from handshake.engines.spark.types import carrier, spark_schema
from handshake.errors import InputError, SchemaError, suggest
from handshake.io.udp.receive import ARRIVAL_COLUMN
from handshake.plan.algebra import Demux, Plan, Source, walk
from handshake.schema import UNITS, Field, arrow_of

UNKNOWN = "unknown"
"""The metric that counts tuples of a carrying input that belong to no declared stream."""


def input_frames(
    plan: Plan, inputs: Mapping[str, DataFrame]
) -> tuple[dict[str, DataFrame], dict[str, Observation]]:
    """Return the DataFrame of each source, and observations that count unclaimed tuples of finite inputs."""
    _check_names(plan, inputs)
    found, counting = dict(inputs), dict[str, Observation]()
    for name, frame in inputs.items():
        carried = [s.demux for s in plan.inputs if s.demux is not None and s.demux.stream == name]
        if carried:
            observed = name if frame.isStreaming else counting.setdefault(name, Observation())
            found[name] = frame.observe(observed, _count_unclaimed(carried))
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
    """Return the condition for a tuple of the carrying input to belong to a stream (Glacier, 5.3)."""
    return F.col(f"`{demux.field}`").isin(*demux.values)


def _count_unclaimed(carried: list[Demux]) -> Column:
    claimed = reduce(lambda a, b: a | b, [F.coalesce(_claims(demux), F.lit(False)) for demux in carried])
    return F.count_if(~claimed).alias(UNKNOWN)


def source_frame(frame: DataFrame, source: Source, *, to_arrow: bool = False) -> DataFrame:
    """Select the declared columns of an input; with `to_arrow`, timestamps keep their kind."""
    if source.time == ARRIVAL_COLUMN:
        known = ARRIVAL_COLUMN in frame.columns  # logs of datagrams have it
        frame = frame if known else frame.withColumn(ARRIVAL_COLUMN, F.current_timestamp())
    fields = [field for field in source.fields if field.name != TIME]
    times = [_time(frame, source)] if len(fields) < len(source.fields.fields) else []
    return frame.select(*(_declared_column(frame, field, source, to_arrow) for field in fields), *times)


def _declared_column(frame: DataFrame, field: Field, source: Source, to_arrow: bool) -> Column:
    """Return a column of an input with its declared type."""
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
        same = to_arrow or (given.tz is None) == (wanted.tz is None)
        return column if same else _shift_zone(field.name, wanted.tz)
    if _widens(given, wanted):
        return column.cast(spark_schema(pa.schema([("c", wanted)]))[0].dataType).alias(field.name)
    raise SchemaError(
        f"column '{field.name}' of the DataFrame of '{source.name}' is {given}, but {field.type} is "
        "declared; cast it, or declare the other type"
    )


def _type(frame: DataFrame, name: str) -> pa.DataType:
    return arrow_schema(frame.select(quote_names([name])[0]), 0).field(0).type


def _shift_zone(name: str, zone: str | None) -> Column:
    """Convert an instant to a UTC wall-clock time, or back: the number of microseconds is the same."""
    if zone is None:
        return F.expr(f"timestampadd(MICROSECOND, unix_micros(`{name}`), TIMESTAMP_NTZ'1970-01-01')").alias(
            name
        )
    since = F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', `{name}`)")
    return F.timestamp_micros(since).alias(name)


def _time(frame: DataFrame, source: Source) -> Column:
    """Return the time of tuples as an instant, whatever its unit."""
    assert source.time is not None
    given = _type(frame, source.time)
    if pa.types.is_timestamp(given):
        time = F.col(f"`{source.time}`") if given.tz is not None else _shift_zone(source.time, "UTC")
        return time.alias(TIME)
    return F.timestamp_micros(_micros(F.col(f"`{source.time}`"), source)).alias(TIME)


def _micros(time: Column, source: Source) -> Column:
    """Convert an integer time to microseconds; raise an error in Spark if it does not fit 64 bits."""
    factor = UNITS[source.clock.unit] // UNITS["us"]
    most = (2**63 - 1) // factor
    message = F.format_string(
        f"a time in column '{source.time}' of stream {source.name} is %s {source.clock.unit}, which Spark's "
        "timestamps, microseconds in 64 bits, do not hold", time.cast("string")
    )  # fmt: skip
    return F.when(time.isNull() | time.between(-most, most), time.cast("long") * factor).otherwise(
        F.raise_error(message)
    )


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    return bool(pa.types.is_float32(given) and pa.types.is_float64(wanted))
