"""CREATE INPUT STREAM as sources: names, types, clocks, and inputs that carry several streams."""

from __future__ import annotations

import re

from sqlglot import exp

from handshake.errors import WindowError, suggest
from handshake.plan.algebra import ARRIVAL, Clock, Demux, Source
from handshake.plan.dialect import sql_text
from handshake.plan.language import CreateStream, FieldDefinition
from handshake.plan.statements import StatementReader
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    Decimal,
    Field,
    Int,
    Schema,
    String,
    Timestamp,
    Type,
)
from handshake.windows import Duration

_PLAIN: dict[str, Type] = {
    **dict.fromkeys(("bool", "boolean"), BOOL),
    **dict.fromkeys(("byte", "tinyint", "int8"), Int(8)),
    **dict.fromkeys(("short", "smallint", "int16"), Int(16)),
    **dict.fromkeys(("int", "integer", "int32"), Int(32)),
    **dict.fromkeys(("long", "bigint", "int64"), Int(64)),
    **{f"uint{bits}": Int(bits, signed=False) for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("float", "real", "float32"), FLOAT32),
    **dict.fromkeys(("double", "float64"), FLOAT64),
    "date": DATE,
    "binary": BINARY,
}
_TEXTS = ("string", "char", "varchar", "text")
TYPES = (*_PLAIN, *_TEXTS, "decimal", "timestamp")
"""The names of types that a field can have."""
_PRECISIONS = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_WORDS = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def declare(node: CreateStream, reader: StatementReader, known: dict[str, Source]) -> Source:
    """Return the source of a declaration; `known` are the sources declared before it."""
    name = node.this.name
    fields = tuple(Field(f.this.name, _type(f, reader)) for f in node.expressions)
    _check_names(name, [f.name for f in fields], node, reader)
    schema = Schema(fields, name)
    time, clock = _clock(node, schema, reader)
    lateness = node.args.get("lateness")
    behind = 0 if lateness is None else duration(lateness, reader)
    demux = _demux(node, schema, reader, known) if node.args.get("mux") is not None else None
    source = Source(name, schema, time, clock, behind, demux)
    _check_times(node, source, reader, known)
    return source


def _check_names(stream: str, names: list[str], node: CreateStream, reader: StatementReader) -> None:
    for at, name in enumerate(names):
        if name.casefold() in (other.casefold() for other in names[:at]):
            raise reader.error(f"stream {stream} has two fields named '{name}'", node.expressions[at])


def _type(node: FieldDefinition, reader: StatementReader) -> Type:
    name, sizes = node.args["kind"].lower(), [_size(size, reader) for size in node.expressions]
    if name in _PLAIN and not sizes:
        return _PLAIN[name]
    if name in _TEXTS and len(sizes) <= 1:
        length = sizes[0] if sizes else 1 if name == "char" else None
        if length != 0:
            return String(length)
    if name in ("decimal", "numeric") and len(sizes) <= 2:
        precision, scale = (*sizes, *(10, 0)[len(sizes) :])
        if 1 <= precision <= 38 and scale <= precision:
            return Decimal(precision, scale)
    if name == "timestamp" and (sizes or [6])[0] in _PRECISIONS and len(sizes) <= 1:
        return Timestamp(_PRECISIONS[(sizes or [6])[0]])
    written = f"{name}({', '.join(map(str, sizes))})" if sizes else name
    hint = suggest(name, TYPES) if name not in TYPES else ""
    raise reader.error(f"field '{node.this.name}' has the unknown type {written}{hint}", node)


def _size(node: exp.Literal, reader: StatementReader) -> int:
    if not re.fullmatch("[0-9]{1,6}", str(node.this)):
        raise reader.error(f"the size of a type is a whole number, not {sql_text(node)}", node)
    return int(node.this)


def duration(node: exp.Literal, reader: StatementReader, unit: str = "s") -> int:
    """Return a length of time in nanoseconds; `unit` is a word of `handshake.windows.UNIT_WORDS`."""
    text = str(node.this)
    if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{0,9})?|\.[0-9]{1,9}", text):
        what = "seconds, of at most nine decimals" if unit == "s" else unit
        raise reader.error(f"{text} is not a number of {what}", node)
    whole, _, digits = text.partition(".")
    try:
        return Duration.parse(f"{whole or 0}.{digits or 0} {unit}").nanoseconds
    except WindowError as error:
        raise reader.error(str(error), node) from None


def _clock(node: CreateStream, schema: Schema, reader: StatementReader) -> tuple[str | None, Clock]:
    named, unit = node.args.get("time"), node.args.get("unit")
    if named is None:
        return None, ARRIVAL
    field = schema.find(named.name)
    if field is None:
        hint = suggest(named.name, schema.names)
        raise reader.error(f"no field '{named.name}' in stream {schema.stream}{hint}", named)
    match field.type:
        case Timestamp(unit=own) if unit is None:
            return field.name, Clock(field.type, own)
        case Int(bits=bits) if bits <= 64:
            word = "seconds" if unit is None else unit.name.lower()
            if word not in _WORDS:
                raise reader.error(f"no unit {word}; there are {', '.join(_WORDS)}", unit or named)
            return field.name, Clock(field.type, _WORDS[word])
    what = "has a unit of its own" if isinstance(field.type, Timestamp) else f"is {field.type}"
    raise reader.error(
        f"field '{field.name}' {what}; a time is a timestamp, or a whole number with its unit, "
        "as in TIMESTAMP BY ts IN MICROSECONDS", named
    )  # fmt: skip


def _demux(node: CreateStream, schema: Schema, reader: StatementReader, known: dict[str, Source]) -> Demux:
    carrier = node.args["mux"]
    mux = known.get(carrier.name)
    if mux is None:
        hint = suggest(carrier.name, known)
        raise reader.error(f"no input stream '{carrier.name}' is declared before{hint}", carrier)
    if mux.demux is not None:
        raise reader.error(f"stream {mux.name} is itself carried by {mux.demux.stream}", carrier)
    for field in mux.fields:
        own = schema.find(field.name)
        if own is not None and own.type != field.type:
            raise reader.error(
                f"field '{field.name}' is {own.type} in {schema.stream} but {field.type} in {mux.name}", node
            )
    return _read_demux(node.args["condition"], mux, reader)


def _check_times(
    node: CreateStream, source: Source, reader: StatementReader, known: dict[str, Source]
) -> None:
    """Refuse two times for the tuples of a carrier that has none: they could not be replayed by both."""
    if source.demux is None or source.time is None or known[source.demux.stream].time is not None:
        return
    for other in known.values():
        same = (other.time, other.clock) in ((None, ARRIVAL), (source.time, source.clock))
        a, b = source.demux, other.demux
        if b is None or same or a.stream != b.stream:
            continue
        if a.field != b.field or not set(a.values).isdisjoint(b.values):  # both may claim the same tuple
            raise reader.error(
                f"a tuple of {source.demux.stream} may be one of {other.name} and of {source.name}, which "
                f"have times of their own; declare TIMESTAMP BY for {source.demux.stream}",
                node,
            )


def _read_demux(condition: exp.Expr, mux: Source, reader: StatementReader) -> Demux:
    """Read `field = constant` or `field IN (constant, …)`."""
    constants = [condition.expression] if isinstance(condition, exp.EQ) else condition.expressions
    column = condition.this
    if isinstance(condition, (exp.EQ, exp.In)) and isinstance(column, exp.Column) and constants:
        field = mux.fields.find(column.name)
        if field is None:
            hint = suggest(column.name, mux.fields.names)
            raise reader.error(f"no field '{column.name}' in stream {mux.name}{hint}", column)
        values = tuple(_constant(value, field.type, reader) for value in constants)
        return Demux(mux.name, field.name, values)
    raise reader.error(
        "streams are distinguished by a field of the input that carries them, as in WHERE MsgType = 68",
        condition,
    )


def _constant(node: exp.Expr, kind: Type, reader: StatementReader) -> int | str:
    if isinstance(node, exp.Literal) and node.is_string and isinstance(kind, String):
        return str(node.this)
    if isinstance(kind, Int) and re.fullmatch("-?[0-9]{1,20}", sql_text(node)):
        return int(sql_text(node))
    raise reader.error(f"{sql_text(node)} is no constant of type {kind}", node)
