"""Between Arrow tables and tuples on wires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Context
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa

from handshake.engines.circuit.components.slide import TIME
from handshake.engines.circuit.components.types import Row, Wire
from handshake.schema import Date, Decimal, Interval, Schema, TimeOfDay, Timestamp, arrow_of, type_from_arrow

_COUNTED = (Date, Timestamp, Interval, TimeOfDay)
_EXACT = Context(prec=80)


def physical(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return the values of a column as wires carry them: times as whole numbers, decimals scaled."""
    kind = type_from_arrow(column.type)
    if isinstance(kind, _COUNTED):
        narrow = isinstance(kind, Date) or pa.types.is_time32(column.type)
        return list(column.cast(pa.int32() if narrow else pa.int64()).to_pylist())
    values = column.to_pylist()
    if isinstance(kind, Decimal):
        return [None if v is None else int(v.scaleb(kind.scale, _EXACT)) for v in values]
    return list(values)


def rows_of(table: pa.Table, row: Row, arrival: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield tuples of a table in the order of a row's wires; `arrival` is the time of rows without one."""
    columns = [_column(table, each, arrival) for each in row]
    return zip(*columns, strict=True) if columns else iter(())


def _column(table: pa.Table, each: Wire, arrival: int) -> list[Any]:
    if each.name in table.column_names:
        return physical(table.column(each.name))
    return [arrival if each.name == TIME else None] * table.num_rows


def table_of_payloads(payloads: Iterable[tuple[Any, ...]], row: Row, schema: Schema) -> pa.Table:
    """Return unpacked tuples as a table with the columns of a result."""
    columns = list(zip(*payloads, strict=True)) or [()] * len(row.wires)
    named = dict(zip(row.names, columns, strict=True))
    arrays = [_array(named[field.name], arrow_of(field.type)) for field in schema]
    return pa.table(arrays, names=list(schema.names))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else _scale(v, kind.scale) for v in values], kind)
    if isinstance(type_from_arrow(kind), _COUNTED):
        narrow = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        return pa.array(values, pa.int32() if narrow else pa.int64()).cast(kind)
    return pa.array(values, kind)


def _scale(value: int, scale: int) -> PyDecimal:
    return PyDecimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale))


def nullable_in(tables: Mapping[str, pa.Table]) -> dict[str, frozenset[str]]:
    """Return the columns of each table that have a NULL, which need a wire for it."""
    return {
        name: frozenset(column for column in table.column_names if table.column(column).null_count)
        for name, table in tables.items()
    }
