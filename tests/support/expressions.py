"""Random expressions of all types as SQL text. Each family of types lists the forms that give it.

In a form, `{family}` stands for an expression of that family and `{a|b|c}` for one of these words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

__all__ = ["FAMILIES", "as_constants", "make_expression", "make_rows", "mutate"]

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "int": {"i8": pa.int8(), "i32": pa.int32(), "i64": pa.int64(), "u64": pa.uint64()},
    "float": {"f32": pa.float32(), "f64": pa.float64()},
    "decimal": {"n2": pa.decimal128(10, 2), "n9": pa.decimal128(38, 9)},
    "bool": {"b": pa.bool_()},
    "text": {"s": pa.string(), "code": pa.dictionary(pa.int32(), pa.string())},
    "bytes": {"raw": pa.binary()},
    "date": {"day": pa.date32()},
    "naive": {"ts": pa.timestamp("us"), "tn": pa.timestamp("ns"), "sec": pa.timestamp("s")},
    "zoned": {"tz": pa.timestamp("ms", "Europe/Berlin"), "fixed": pa.timestamp("us", "-03:30")},
    "span": {"du": pa.duration("ms"), "dn": pa.duration("ns")},
    "clock": {"clock": pa.time64("us")},
}
FAMILIES = (*COLUMNS, *(family for family in COLUMNS if family not in ("bytes", "clock", "span")))
"""Families to choose from; the rare ones come once."""

TEXTS = (
    *(
        "",
        " ",
        "a",
        "abc",
        "ABC",
        "Straße",
        "ΑΣ",
        "a%b",
        "a_b",
        "\\",
        "x,y,,z",
        "é",
        "😀z",
        "  pad ",
        "a.b.c",
    ),
    *("0", "7", "-12", " 42 ", "1.5", "-0.05", "1e3", "nan", "inf", "9223372036854775808", "1_0", "0x1"),
    *(
        "true",
        "F",
        "yes",
        "no",
        "T",
        "2024-02-29",
        "2023-02-29",
        "2024-2",
        "2009-07-30 04:17:52",
        "0000-01-01",
    ),
    *("2024-01-01T10:00:00.1234567", "2024-01-01 25:00", "2024-03-31 02:30:00+02:00", "12:30", "99999-01-01"),
)
NUMBERS = (0, 1, -1, 2, 3, 7, 10, -12, 63, 64, 100, 127, -128, 255, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1)
REALS = (0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1e-3, 1e10, 1e300, -1e-300, 0.1, 3.0, float("inf"), float("nan"))
DAYS = (
    date(1970, 1, 1),
    date(2024, 2, 29),
    date(2023, 12, 31),
    date(1, 1, 1),
    date(9999, 12, 31),
    date(1900, 3, 1),
)
MOMENTS = (
    *(datetime(1970, 1, 1), datetime(2024, 2, 29, 23, 59, 59, 999_999), datetime(2024, 3, 31, 2, 30)),
    *(datetime(1883, 11, 18, 12), datetime(2050, 7, 1, 22, 30), datetime(2024, 10, 27, 0, 30, 0, 500_000)),
)


def _value(family: str, kind: pa.DataType, rng: Random) -> Any:
    if rng.random() < 0.12:
        return None
    match family:
        case "int":
            low, high = (0, 2**kind.bit_width - 1) if kind == pa.uint64() else _limits(kind)
            return min(max(rng.choice((*NUMBERS, low, high)), low), high)
        case "float":
            return rng.choice((*REALS, rng.uniform(-100, 100)))
        case "decimal":
            digits = rng.choice(
                (0, 1, -1, 5, 150, -250, 99_999, 10**kind.precision - 1, rng.randrange(-(10**9), 10**9))
            )
            return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -kind.scale))
        case "bool":
            return rng.random() < 0.5
        case "text":
            return rng.choice(TEXTS)
        case "bytes":
            return rng.choice((b"", b"a", b"\x00\xff", b"abc"))
        case "date":
            return rng.choice(DAYS)
        case "naive" | "zoned":
            moment = rng.choice(MOMENTS) + timedelta(seconds=rng.choice((0, 0, 1, 86_399)))
            return moment if family == "naive" else moment.replace(tzinfo=UTC)
        case "span":
            return timedelta(milliseconds=rng.choice((0, 1, -1, 1500, 86_400_000, -90_061_001)))
    return rng.choice((time(0), time(10, 0, 0, 5), time(23, 59, 59, 999_999)))


def _limits(kind: pa.DataType) -> tuple[int, int]:
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def make_rows(rng: Random, rows: int) -> pa.Table:
    """Return a table with the columns of all families; values are special ones of their type, or NULL."""
    arrays = {
        name: pa.array([_value(family, kind, rng) for _ in range(rows)], _plain(kind)).cast(kind)
        for family, columns in COLUMNS.items()
        for name, kind in columns.items()
    }
    return pa.table(arrays)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(kind) else kind


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


CONSTANTS: dict[str, tuple[str, ...]] = {
    "int": (*map(str, NUMBERS), "7L", "-128Y", "-32768S", "18446744073709551615", "NULL"),
    "float": ("0e0", "5e-1", "1.5D", "2F", "-1e3", "1e300", "CAST('nan' AS DOUBLE)", "CAST('inf' AS FLOAT)"),
    "decimal": ("0.5", "-1.25", "0.00", "12345.6789", "1.5BD", "99999999999999999999.5", "2e0BD"),
    "bool": ("TRUE", "FALSE", "CAST(NULL AS BOOLEAN)"),
    "text": (*map(_quote, TEXTS), "CAST(NULL AS STRING)"),
    "bytes": ("CAST(NULL AS BINARY)",),
    "date": (*(f"DATE '{day}'" for day in DAYS), "CAST(NULL AS DATE)"),
    "naive": tuple(f"TIMESTAMP '{moment}'" for moment in MOMENTS),
    "zoned": tuple(f"TIMESTAMP '{moment}+00:00'" for moment in MOMENTS),
    "span": ("INTERVAL 1 DAY", "INTERVAL '90' MINUTES", "INTERVAL 1 MICROSECOND", "INTERVAL -3 SECONDS"),
    "clock": ("TIME '10:00:00'", "TIME '23:59:59.5'"),
}

_ANY = ("int", "float", "decimal", "bool", "text", "date", "naive", "zoned", "span")


def _general(family: str) -> tuple[str, ...]:
    """Return the forms that every family has."""
    some = "{" + family + "}"
    return (
        f"CASE WHEN {{bool}} THEN {some} ELSE {some} END",
        f"CASE WHEN {{bool}} THEN {some} WHEN {{bool}} THEN {some} END",
        f"COALESCE({some}, {some})",
        f"IF({{bool}}, {some}, {some})",
        f"NULLIF({some}, {some})",
        f"{{IFNULL|NVL}}({some}, {some})",
        *(
            (f"{{LEAST|GREATEST}}({some}, {some}, {some})",)
            if family not in ("text", "bool", "bytes")
            else ()
        ),
    )


_COMPARED = ("int", "float", "decimal", "bool", "text", "bytes", "date", "naive", "zoned", "span", "clock")
_LENGTHS = "YEAR|QUARTER|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND|MILLISECOND|microsecond"
FORMS: dict[str, tuple[str, ...]] = {
    "int": (
        *("({int} + {int})", "({int} - {int})", "({int} * {int})", "({int} DIV {int})", "({int} % {int})"),
        *("(- {int})", "ABS({int})", "SIGN({int})", "SIGN({decimal})", "{FLOOR|CEIL|ROUND}({decimal})"),
        *("CAST({int} AS {TINYINT|SMALLINT|INT|BIGINT})", "CAST({float} AS {TINYINT|INT|BIGINT})"),
        *("CAST({decimal} AS {INT|BIGINT})", "CAST({text} AS {INT|BIGINT})", "CAST({bool} AS INT)"),
        *("LENGTH({text})", "{YEAR|MONTH|DAY}({date})", "{YEAR|MONTH|DAY|HOUR|MINUTE|SECOND}({naive})"),
        *(
            "{YEAR|MONTH|DAY|HOUR|MINUTE|SECOND}({zoned})",
            "EXTRACT({YEAR|MONTH|DAY|HOUR|MINUTE} FROM {naive})",
        ),
        *(f"TIMESTAMPDIFF({{{_LENGTHS}}}, {{{f}}}, {{{f}}})" for f in ("naive", "zoned", "date")),
        "DATEDIFF({DAY|MONTH}, {date}, {naive})",
    ),
    "float": (
        *("({float} + {float})", "({float} - {number})", "({number} * {float})", "({number} / {number})"),
        *("({float} % {number})", "(- {float})", "{ABS|SIGN|FLOOR|CEIL|ROUND|SQRT}({float})"),
        *("CAST({number} AS {DOUBLE|FLOAT})", "CAST({text} AS {DOUBLE|FLOAT})", "SQRT({number})"),
        # Libraries differ in the last bit of these functions, so that bit is not looked at.
        "FLOOR({EXP|LN|SIN|COS}({float} % 50) * 4 + 0.3)",
        "FLOOR(POWER({float} % 20, {float} % 5) * 4 + 0.3)",
        "FLOOR({TAN|ASIN|ACOS|ATAN|SINH|COSH|TANH}({float} % 10) * 4 + 0.3)",
        "FLOOR({COT|SEC|CSC|LOG10|LOG2|LOG1P|EXPM1}({float} % 10) * 4 + 0.3)",
        "FLOOR({ASINH|ACOSH|ATANH|DEGREES|RADIANS|CBRT|RINT}({number}) * 4 + 0.3)",
        *("FLOOR({ATAN2|HYPOT}({float}, {float}) * 4 + 0.3)", "PI()", "E()", "NANVL({float}, {float})"),
        *("{ROUND|CEIL|FLOOR|BROUND|TRUNCATE}({float}, {2|0|-1|1|5})", "PMOD({float}, {float})"),
        *(
            "MONTHS_BETWEEN({date}, {naive})",
            "MONTHS_BETWEEN({zoned}, {zoned}, {bool})",
            "ZEROIFNULL({float})",
        ),
    ),
    "decimal": (
        *("({decimal} + {exact})", "({exact} - {decimal})", "({decimal} * {exact})", "({decimal} % {exact})"),
        *("(- {decimal})", "ABS({decimal})", "CAST({number} AS DECIMAL({5, 2|38, 10|12, 0|38, 37}))"),
        "CAST({text} AS DECIMAL({5, 2|38, 10|12, 0}))",
        *("{ROUND|CEIL|FLOOR|BROUND|TRUNCATE}({decimal}, {1|2|-1|8|-9})", "EXTRACT(SECOND FROM {naive})"),
        "PMOD({decimal}, {exact})",
    ),
    "bool": (
        *(
            "({bool} AND {bool})",
            "({bool} OR {bool})",
            "(NOT {bool})",
            "({bool} IS {|NOT }{NULL|TRUE|FALSE})",
        ),
        *(f"({{{f}}} {{=|<>|<|<=|>|>=}} {{{f}}})" for f in _COMPARED),
        *("({number} {=|<|>=} {number})", "({date} {=|<|>} {naive})", "({int} BETWEEN {int} AND {int})"),
        *(
            "({int} IN ({int}, {int}))",
            "({text} {LIKE|ILIKE} {text})",
            "({text} IS NULL)",
            "({float} <=> {float})",
        ),
        *("{STARTSWITH|ENDSWITH|CONTAINS}({text}, {text})", "({text} RLIKE {'a|b'|'^a'|'[0-9]+$'})"),
        *("{ISNULL|ISNOTNULL}({any})", "ISNAN({number})"),
        *("({text} IS DISTINCT FROM {text})", "CAST({text} AS BOOLEAN)", "({date} IN ({date}, {date}))"),
    ),
    "text": (
        *("{LOWER|UPPER|TRIM|LTRIM|RTRIM}({text})", "({text} || {text})", "CONCAT({text}, {text}, {text})"),
        *("SUBSTRING({text}, {small})", "SUBSTRING({text}, {small}, {small})", "CAST({int} AS STRING)"),
        *("CAST({decimal} AS STRING)", "CAST({bool} AS STRING)", "CAST({date} AS STRING)"),
        *("CAST({naive} AS STRING)", "CAST({zoned} AS STRING)"),
        *(
            "SPLIT_PART({text}, {text}, {small})",
            "SPLIT_PART({text}, '.', {small})",
            "REPLACE({text}, {text}, {text})",
        ),
        *("REPLACE({text}, {text})", "{LPAD|RPAD}({text}, {small}, {text})", "{LPAD|RPAD}({text}, {small})"),
        *("CONCAT_WS({text}, {text}, {text})", "HEX({int})", "HEX({text})", "HEX({bytes})", "CHR({int})"),
        *(
            "REGEXP_EXTRACT({text}, {'([a-z])(.?)'|'([0-9]+)'})",
            "REGEXP_REPLACE({text}, '([a-z])', {'<$1>'|'-'})",
        ),
        *("{LEFT|RIGHT|REPEAT}({text}, {small})", "{REVERSE|INITCAP|LCASE|UCASE}({text})", "SPACE({small})"),
        *(
            "TRANSLATE({text}, {text}, {text})",
            "SUBSTRING_INDEX({text}, {text}, {small})",
            "BTRIM({text}, {text})",
        ),
        *(
            "OVERLAY({text} PLACING {text} FROM {small} FOR {small})",
            "TRIM({|BOTH |LEADING |TRAILING }'a' FROM {text})",
        ),
    ),
    "bytes": ("COALESCE({bytes}, {bytes})",),
    "date": (
        *("({date} + {small})", "({date} - {int})", "({date} + INTERVAL {1 DAY|-3 DAYS})"),
        "({date} {+|-} INTERVAL {1 MONTH|13 MONTHS|-1 YEAR|2 QUARTERS})",
        "({date} + INTERVAL 1 MONTH * {small})",
        *(
            "{DATE_ADD|DATE_SUB|ADD_MONTHS}({date}, {small})",
            "DATE_ADD({naive}, {small})",
            "LAST_DAY({date})",
        ),
        *("TRUNC({date}, {'year'|'MM'|'quarter'|'week'})", "NEXT_DAY({date}, {'mon'|'SU'|'friday'|'x'})"),
        *(
            "MAKE_DATE({small}, {small}, {small})",
            "MAKE_DATE(2024, {small}, {int})",
            "DATE_FROM_UNIX_DATE({int})",
        ),
        *("ADD_MONTHS({zoned}, {int})", "LAST_DAY({naive})"),
        *("CAST({naive} AS DATE)", "CAST({zoned} AS DATE)", "CAST({text} AS DATE)"),
    ),
    "naive": (
        *("({naive} {+|-} {span})", "CAST({date} AS TIMESTAMP)", "CAST({text} AS TIMESTAMP)"),
        *(
            "({date} + INTERVAL '36' HOURS)",
            "DATE_TRUNC({unit}, {naive})",
            "DATE_TRUNC({unit}, {date})",
        ),
        *("MAKE_TIMESTAMP(2024, {small}, {small}, {small}, {small}, {exact})", "TIMESTAMP_SECONDS({number})"),
        *(f"TIMESTAMPADD({{{_LENGTHS}}}, {{small}}, {{{f}}})" for f in ("naive", "date")),
        *("TIMESTAMP_{MILLIS|MICROS}({int})", "({naive} {+|-} INTERVAL '1-2' YEAR TO MONTH)"),
    ),
    "zoned": (
        "({zoned} {+|-} {span})",
        "CAST({zoned} AS TIMESTAMP)",
        "DATE_TRUNC({unit}, {zoned})",
        f"TIMESTAMPADD({{{_LENGTHS}}}, {{small}}, {{zoned}})",
        "({zoned} {+|-} INTERVAL 1 MONTH)",
    ),
    "span": (
        "({span} {+|-} {span})",
        "({span} * {small})",
        "(- {span})",
        "ABS({span})",
        "({naive} - {naive})",
    ),
    "clock": ("COALESCE({clock}, {clock})",),
}
GROUPS = {"number": ("int", "float", "decimal"), "exact": ("int", "decimal"), "any": _ANY}
WORDS = {
    "bar": ("|",),
    "unit": (
        "'year'",
        "'quarter'",
        "'MONTH'",
        "'week'",
        "'day'",
        "'hour'",
        "'MINUTE'",
        "'second'",
        "'millisecond'",
    ),
}
SMALL = ("0", "1", "2", "3", "-1", "-2", "5", "12", "{int}")
_HOLE = re.compile(r"\{([^{}]*)\}")


def make_expression(rng: Random, family: str, depth: int, constants: float = 0.3) -> str:
    """Draw an expression of a family; `constants` is the share of leaves that are not columns."""
    family = rng.choice(GROUPS.get(family, (family,)))
    if depth <= 0 or rng.random() < 0.1:
        if rng.random() < constants:
            return rng.choice(CONSTANTS[family])
        return f"l.{rng.choice(tuple(COLUMNS[family]))}"
    forms = _general(family) if rng.random() < 0.2 and family != "bytes" else FORMS[family]

    def fill(hole: re.Match[str]) -> str:
        name = hole[1]
        if name in FORMS or name in GROUPS:
            return make_expression(rng, name, depth - rng.choice((1, 1, 2)), constants)
        if name in WORDS:
            return rng.choice(WORDS[name])
        if name == "small":
            return _HOLE.sub(fill, rng.choice(SMALL))
        return (
            rng.choice(name.split("|"))
            if not name.startswith("'")
            else rng.choice(re.findall(r"'[^']*'", name))
        )

    return _HOLE.sub(fill, rng.choice(forms))


_TOKENS = re.compile(r"'(?:[^']|'')*'|[A-Za-z_]\w*|\d+(?:\.\d+)?|<=>|<>|<=|>=|\|\||\s+|.", re.DOTALL)
_WORDS = (
    *(
        "AND",
        "NOT",
        "NULL",
        "IN",
        "CASE",
        "END",
        "CAST",
        "AS",
        "INT",
        "DATE",
        "INTERVAL",
        "MONTH",
        "(",
        ")",
        ",",
    ),
    *(
        ".",
        "'",
        "[",
        "]",
        "-",
        "*",
        "~",
        "<<",
        "0",
        "-1",
        "1e999",
        "1" * 400,
        "'x'",
        "l",
        "l.s",
        "l.tz",
        "l.none",
    ),
)


def mutate(rng: Random, text: str) -> str:
    """Delete, double, replace or move a few tokens of a text, or copy parts of it elsewhere."""
    parts = _TOKENS.findall(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(parts))
        match rng.randrange(5):
            case 0 if len(parts) > 1:
                del parts[at]
            case 1:
                parts.insert(at, parts[at])
            case 2:
                parts[at] = rng.choice(_WORDS)
            case 3:
                parts.insert(at, f" {rng.choice(_WORDS)} ")
            case _:
                parts.insert(rng.randrange(len(parts)), parts.pop(at))
    return "".join(parts)


_CASTS = {"i8": "TINYINT", "i32": "INT", "i64": "BIGINT", "n2": "DECIMAL(10, 2)", "n9": "DECIMAL(38, 9)"}
_PREFIXES = {"day": "DATE ", "ts": "TIMESTAMP "}
_NULLS = {**_CASTS, "b": "BOOLEAN", "s": "STRING", "code": "STRING", "day": "DATE", "ts": "TIMESTAMP"}


def as_constants(text: str, row: Mapping[str, Any]) -> str:
    """Replace columns by constants of the same values and types, if there are such constants."""
    return re.sub(
        rf"l\.({'|'.join(_NULLS)})\b", lambda found: f"({_constant(found[1], row[found[1]])})", text
    )


def _constant(name: str, value: Any) -> str:
    if value is None:
        return f"CAST(NULL AS {_NULLS[name]})"
    if name in _CASTS:
        return f"CAST({value} AS {_CASTS[name]})"
    if name == "b":
        return str(value)
    return f"{_PREFIXES.get(name, '')}{_quote(str(value))}"
