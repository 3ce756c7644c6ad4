"""The DataFrames of a query's inputs, given directly or carried with other streams in one DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from handshake.engines.spark.joins.inputs import session_zone
from handshake.engines.spark.queries.expressions import quote_names
from handshake.engines.spark.queries.joins import TIME
from handshake.engines.spark.types import arrow_type, carrier, spark_schema
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
    missing = next((field.name for field in fields if field.name not in frame.columns), None)
    if missing is not None:
        raise SchemaError(
            f"the DataFrame of '{source.name}' lacks the column '{missing}' ({', '.join(frame.columns)})"
            f"{suggest(missing, frame.columns)}"
        )
    zone, given = session_zone(frame), dict[str | None, pa.DataType]()
    for found in frame.select(*quote_names(field.name for field in fields)).schema.fields:
        try:
            given[found.name] = arrow_type(found.dataType, zone)
        except InputError:
            raise SchemaError(
                f"column '{found.name}' of the DataFrame of '{source.name}' is "
                f"{found.dataType.simpleString()}, which Spark does not pass to Python; cast it"
            ) from None
    columns = [_declared_column(given[field.name], field, source, to_arrow) for field in fields]
    if len(fields) < len(source.fields.fields):
        columns.append(_time(given[source.time], source))
    return frame.select(*columns)


def _declared_column(given: pa.DataType, field: Field, source: Source, to_arrow: bool) -> Column:
    """Return a column of an input with its declared type."""
    wanted = carrier(arrow_of(field.type))
    column = F.col(f"`{field.name}`")
    if given == wanted:
        return column
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        same = to_arrow or (given.tz is None) == (wanted.tz is None)
        return column if same else _shift_zone(field.name, wanted.tz)
    integers = pa.types.is_integer(given) and pa.types.is_integer(wanted)
    if (integers and given.bit_width <= wanted.bit_width) or (given, wanted) == (pa.float32(), pa.float64()):
        return column.cast(spark_schema(pa.schema([("c", wanted)]))[0].dataType).alias(field.name)
    raise SchemaError(
        f"column '{field.name}' of the DataFrame of '{source.name}' is {given}, but {field.type} is "
        "declared; cast it, or declare the other type"
    )


def _shift_zone(name: str, zone: str | None) -> Column:
    """Convert an instant to a UTC wall-clock time, or back: the number of microseconds is the same."""
    if zone is None:
        return F.expr(f"timestampadd(MICROSECOND, unix_micros(`{name}`), TIMESTAMP_NTZ'1970-01-01')").alias(
            name
        )
    since = F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', `{name}`)")
    return F.timestamp_micros(since).alias(name)


def _time(given: pa.DataType, source: Source) -> Column:
    """Return the time of tuples as an instant, whatever its unit; an error in Spark if it does not fit."""
    assert source.time is not None
    time = F.col(f"`{source.time}`")
    if pa.types.is_timestamp(given):
        return (time if given.tz is not None else _shift_zone(source.time, "UTC")).alias(TIME)
    factor = UNITS[source.clock.unit] // UNITS["us"]
    most = (2**63 - 1) // factor
    message = F.format_string(
        f"a time in column '{source.time}' of stream {source.name} is %s {source.clock.unit}, which Spark's "
        "timestamps, microseconds in 64 bits, do not hold", time.cast("string")
    )  # fmt: skip
    fits = time.isNull() | time.between(-most, most)
    micros = F.when(fits, time.cast("long") * factor).otherwise(F.raise_error(message))
    return F.timestamp_micros(micros).alias(TIME)
