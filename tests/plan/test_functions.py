"""Functions on constants: the values are those that Spark 4 gave for the same text."""

from __future__ import annotations

import math
from datetime import datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from handshake.errors import ExpressionError
from handshake.kernels.evaluate import evaluate
from handshake.kernels.values import values_of
from handshake.plan import parse
from handshake.plan.bind import bind_value
from handshake.plan.casts import cast_value
from handshake.plan.expr import Column, Literal
from handshake.schema import STRING, Decimal, Float, Timestamp
from handshake.testing import oracle_values
from strategies import scope_of

SCOPE = scope_of(
    pa.schema({"s": pa.string(), "x": pa.int32(), "f": pa.float64()}), pa.schema({"b": pa.int8()})
)
SPARK = {
    "round(2.5)": "3",
    "round(1.005D,2)": "1.01",
    "round(-2.5D)": "-3.0",
    "round(25,-1)": "30",
    "round(-15,-1)": "-20",
    "round(cast(1.005 as float),2)": "1.0",
    "round(1.005,2)": "1.01",
    "round(12345.678,-2)": "12300",
    "round(2.675D,2)": "2.68",
    "ceil(3.1411,3)": "3.142",
    "ceil(3.1411D,3)": "3.142",
    "floor(-3.1411,3)": "-3.142",
    "floor(12345,-2)": "12300",
    "ceil(-0.1)": "0",
    "bround(2.5D,0)": "2.0",
    "bround(25,-1)": "20",
    "date_trunc('QUARTER',timestamp'2024-05-06 07:08:09.123456')": "2024-04-01 00:00:00",
    "date_trunc('WEEK',timestamp'2024-05-06 07:08:09.123456')": "2024-05-06 00:00:00",
    "date_trunc('week',timestamp'2024-05-05 07:08:09')": "2024-04-29 00:00:00",
    "date_trunc('MILLISECOND',timestamp'2024-05-06 07:08:09.123456')": "2024-05-06 07:08:09.123",
    "trunc(date'2024-05-06','MM')": "2024-05-01",
    "trunc(date'2024-05-06','week')": "2024-05-06",
    "trunc(timestamp'2024-05-06 07:08:09','year')": "2024-01-01",
    "date_add(date'2024-02-28',2)": "2024-03-01",
    "date_add(timestamp'2024-02-28 10:00:00',2)": "2024-03-01",
    "date_sub(date'2024-03-01',1)": "2024-02-29",
    "quarter(date'2024-05-06')": "2",
    "extract(second from timestamp'2024-05-06 07:08:09.123456')": "9.123456",
    "extract(week from date'2021-01-03')": "53",
    "extract(yearofweek from date'2021-01-03')": "2020",
    "extract(dow from date'2021-01-03')": "1",
    "extract(dow_iso from date'2021-01-03')": "7",
    "extract(doy from date'2021-01-03')": "3",
    "weekday(date'2021-01-03')": "6",
    "dayofweek(date'2021-01-03')": "1",
    "dayofyear(date'2024-12-31')": "366",
    "weekofyear(date'2021-01-03')": "53",
    "last_day(date'2024-02-03')": "2024-02-29",
    "next_day(date'2024-02-03','Sat')": "2024-02-10",
    "next_day(date'2024-02-03','TU')": "2024-02-06",
    "next_day(date'2024-02-03','xx')": None,
    "months_between(date'2024-03-31',date'2024-02-29')": "1.0",
    "months_between(timestamp'1997-02-28 10:30:00',date'1996-10-30')": "3.94959677",
    "months_between(timestamp'1997-02-28 10:30:00',date'1996-10-30',false)": "3.9495967741935485",
    "add_months(date'2024-01-31',1)": "2024-02-29",
    "add_months(date'2024-02-29',12)": "2025-02-28",
    "add_months(date'2019-02-28',1)": "2019-03-28",
    "make_date(2024,2,30)": None,
    "make_date(2024,2,29)": "2024-02-29",
    "make_timestamp(2024,2,29,23,59,59.999999)": "2024-02-29 23:59:59.999999",
    "make_timestamp(2024,2,29,23,59,60)": "2024-03-01 00:00:00",
    "make_timestamp(2024,2,29,23,59,60.5)": None,
    "make_timestamp(2024,2,29,24,0,0)": None,
    "timestampdiff(MONTH, timestamp'2024-01-31 00:00:00', timestamp'2024-02-29 00:00:00')": "0",
    "timestampdiff(MONTH, timestamp'2024-02-29 00:00:00', timestamp'2024-01-31 00:00:00')": "0",
    "timestampdiff(MONTH, timestamp'2024-01-31 12:00:00', timestamp'2024-03-31 11:00:00')": "1",
    "timestampdiff(MONTH, timestamp'2024-03-31 11:00:00', timestamp'2024-01-31 12:00:00')": "-1",
    "timestampdiff(YEAR, timestamp'2020-02-29 00:00:00', timestamp'2021-02-28 00:00:00')": "0",
    "timestampdiff(QUARTER, timestamp'2020-01-31 00:00:00', timestamp'2020-09-30 00:00:00')": "2",
    "timestampdiff(WEEK, timestamp'2020-01-01 00:00:00', timestamp'2020-01-14 23:00:00')": "1",
    "timestampdiff(DAY, timestamp'2020-01-02 00:00:00', timestamp'2020-01-01 01:00:00')": "0",
    "timestampdiff(HOUR, timestamp'2020-01-02 00:00:00', timestamp'2020-01-01 01:30:00')": "-22",
    "timestampdiff(SECOND, date'2020-01-02', timestamp'2020-01-01 01:30:00.5')": "-80999",
    "timestampdiff(MICROSECOND, date'2020-01-02', date'2020-01-03')": "86400000000",
    "timestampdiff(MILLISECOND, date'2020-01-02', timestamp'2020-01-01 01:30:00.0005')": "-80999999",
    "datediff(DAY, date'2020-01-02', date'2020-01-03')": "1",
    "date_diff(MONTH, date'2020-01-31', date'2020-03-30')": "1",
    "datediff(date'2020-01-05', date'2020-01-03')": "2",
    "timestampdiff(MONTH, NULL, date'2020-01-03')": None,
    "timestampadd(MONTH, 1, timestamp'2024-01-31 12:00:00')": "2024-02-29 12:00:00",
    "timestampadd(YEAR, -1, timestamp'2024-02-29 12:00:00')": "2023-02-28 12:00:00",
    "timestampadd(QUARTER, 1, date'2024-11-30')": "2025-02-28 00:00:00",
    "timestampadd(WEEK, 2, date'2024-11-30')": "2024-12-14 00:00:00",
    "timestampadd(DAY, -2, timestamp'2024-03-01 01:00:00')": "2024-02-28 01:00:00",
    "timestampadd(HOUR, 5, date'2024-11-30')": "2024-11-30 05:00:00",
    "timestampadd(MINUTE, 5, timestamp'2024-03-01 01:00:00')": "2024-03-01 01:05:00",
    "timestampadd(SECOND, -5, timestamp'2024-03-01 01:00:00')": "2024-03-01 00:59:55",
    "timestampadd(MILLISECOND, 5, timestamp'2024-03-01 01:00:00')": "2024-03-01 01:00:00.005",
    "timestampadd(MICROSECOND, 5, timestamp'2024-03-01 01:00:00')": "2024-03-01 01:00:00.000005",
    "timestampadd(DAYOFYEAR, 5, timestamp'2024-03-01 01:00:00')": "2024-03-06 01:00:00",
    "dateadd(DAY, 5, date'2024-03-01')": "2024-03-06 00:00:00",
    "dateadd(MONTH, 1, date'2024-01-31')": "2024-02-29 00:00:00",
    "date_add(HOUR, 1, date'2024-01-31')": "2024-01-31 01:00:00",
    "timestampadd(DAY, 1, '2024-01-31')": "2024-02-01 00:00:00",
    "timestampdiff(MONTH, timestamp'2024-01-31 12:00:00', timestamp'2024-03-01 11:00:00')": "0",
    "timestampdiff(MONTH, timestamp'2024-03-01 11:00:00', timestamp'2024-01-31 12:00:00')": "-1",
    "timestampdiff(MONTH, timestamp'2023-03-30 11:00:00', timestamp'2023-02-28 12:00:00')": "0",
    "timestampdiff(DAY, timestamp'0001-01-01 00:00:00', timestamp'9999-12-31 00:00:00')": "3652058",
    "instr('abcabc','bc')": "2",
    "instr('abc','')": "1",
    "instr('','a')": "0",
    "instr('','')": "1",
    "locate('bar','foobarbar',5)": "7",
    "locate('','abc',2)": "1",
    "locate('','abc',5)": "1",
    "locate('a','abc',0)": "0",
    "locate('a','abc',-1)": "0",
    "position('bar','foobarbar')": "4",
    "locate('😀','a😀b')": "2",
    "split_part('11.12.13','.',3)": "13",
    "split_part('11.12.13','.',-3)": "11",
    "split_part('11.12.13','.',5)": "",
    "split_part('11.12.13','',1)": "11.12.13",
    "split_part('11.12.13','',2)": "",
    "split_part('','.',1)": "",
    "split_part('','.',2)": "",
    "replace('ABCabc','abc','DEF')": "ABCDEF",
    "replace('ABCabc','')": "ABCabc",
    "replace('aaa','aa','b')": "ba",
    "replace('abc','b')": "ac",
    "lpad('hi',5,'??x')": "??xhi",
    "lpad('hi',1,'??')": "h",
    "lpad('hi',5,'')": "hi",
    "rpad('hi',5)": "hi   ",
    "rpad('hi',-1,'x')": "",
    "lpad('hi',0)": "",
    "concat_ws(' ','a',null,'b')": "a b",
    "concat_ws(null,'a')": None,
    "concat_ws(',')": "",
    "concat_ws('/','foo','','x')": "foo//x",
    "hex(17)": "11",
    "hex(-1)": "FFFFFFFFFFFFFFFF",
    "hex('Spark SQL')": "537061726B2053514C",
    "hex(cast(-1 as int))": "FFFFFFFFFFFFFFFF",
    "regexp_extract('100-200','(\\\\d+)-(\\\\d+)',1)": "100",
    "regexp_extract('100-200','(\\\\d+)-(\\\\d+)')": "100",
    "regexp_extract('foo','(\\\\d+)',1)": "",
    "regexp_extract('a','(a)|(b)',2)": "",
    "regexp_extract('abc','b',0)": "b",
    "regexp_replace('100-200','(\\\\d+)','num')": "num-num",
    "regexp_replace('100-200','(\\\\d+)-(\\\\d+)','$2-$1')": "200-100",
    "regexp_replace('abc','','-')": "-a-b-c-",
    "regexp_replace('abc','x*','-')": "-a-b-c-",
    "shiftleft(2,1)": "4",
    "shiftleft(1L,33)": "8589934592",
    "shiftright(-4,1)": "-2",
    "shiftright(4,-1)": "0",
    "shiftrightunsigned(-4L,1)": "9223372036854775806",
    "3&5": "1",
    "3^5": "6",
    "~5": "-6",
    "bit_count(-1)": "64",
    "bit_count(7)": "3",
    "bit_count(cast(-1 as tinyint))": "64",
    "getbit(11,0)": "1",
    "1<<3": "8",
    "-16>>2": "-4",
    "left('abc',2)": "ab",
    "left('abc',-1)": "",
    "right('abc',2)": "bc",
    "right('abc',0)": "",
    "right('abc',5)": "abc",
    "repeat('ab',3)": "ababab",
    "repeat('ab',-1)": "",
    "reverse('aé😀')": "😀éa",
    "initcap('sPark sql-x o''neil 1ab')": "Spark Sql-x O'neil 1ab",
    "initcap('a\\tb  c')": "A\tb  C",
    "translate('AaBbCc','abc','12')": "A1B2C",
    "translate('aab','aa','xy')": "xxb",
    "ascii('')": "0",
    "ascii('😀')": "128512",
    "ascii('é')": "233",
    "chr(65)": "A",
    "chr(256)": "\x00",
    "chr(-1)": "",
    "chr(233)": "é",
    "substring_index('www.apache.org','.',2)": "www.apache",
    "substring_index('www.apache.org','.',-2)": "apache.org",
    "substring_index('a.b','.',0)": "",
    "substring_index('a.b','',1)": "",
    "space(2)": "  ",
    "octet_length('é😀')": "6",
    "bit_length('é')": "16",
    "btrim('  a ')": "a",
    "btrim('xxaxx','x')": "a",
    "trim(both 'x' from 'xxaxx')": "a",
    "overlay('Spark SQL' placing '_' from 6)": "Spark_SQL",
    "char_length('a ')": "2",
    "tan(1)": "1.5574077246549023",
    "acos(1)": "0.0",
    "atan(1)": "0.7853981633974483",
    "atan2(0,-1)": "3.141592653589793",
    "sinh(1)": "1.1752011936438014",
    "tanh(1)": "0.7615941559557649",
    "cot(1)": "0.6420926159343306",
    "degrees(pi())": "180.0",
    "radians(180)": "3.141592653589793",
    "cbrt(27)": "3.0",
    "cbrt(-8)": "-2.0",
    "log10(1000)": "3.0",
    "log2(8)": "3.0",
    "log1p(0)": "0.0",
    "expm1(1)": "1.718281828459045",
    "hypot(3,4)": "5.0",
    "rint(2.5)": "2.0",
    "rint(-0.4)": "-0.0",
    "pmod(-7,3)": "2",
    "pmod(7,-3)": "1",
    "pmod(-7,-3)": "-1",
    "pmod(-7.5D,2)": "0.5",
    "pmod(1,0)": None,
    "e()": "2.718281828459045",
    "sec(0)": "1.0",
    "csc(1)": "1.1883951057781212",
    "asinh(1)": "0.881373587019543",
    "log(2,8)": "3.0",
    "log(10)": "2.302585092994046",
    "power(2,0.5)": "1.4142135623730951",
    "nvl2(null,1,2)": "2",
    "ifnull(null,1)": "1",
    "nvl(1,2)": "1",
    "nullif(1,1)": None,
    "zeroifnull(null)": "0",
    "nullifzero(0)": None,
    "isnull(null)": "true",
    "isnotnull(1)": "true",
    "isnan(cast('nan' as double))": "true",
    "nanvl(cast('nan' as double),1)": "1.0",
    "if(null,1,2)": "2",
    "unix_date(date'1970-01-10')": "9",
    "date_from_unix_date(10)": "1970-01-11",
    "to_date('2024-01-05')": "2024-01-05",
    "date_part('MONTH',date'2024-05-06')": "5",
    "cast('t' as boolean)": "true",
    "cast('2009-07-30 04:17:52' as date)": "2009-07-30",
    "cast('2024-2' as date)": "2024-02-01",
    "cast('2024-02-30' as date)": None,
    "try_cast('1e2' as int)": None,
    "cast(timestamp'2024-01-01 00:00:00.5' as string)": "2024-01-01 00:00:00.5",
    "cast('2024-01-01 10' as timestamp)": "2024-01-01 10:00:00",
    "cast('2024-01 10:00' as timestamp)": None,
    "upper('straße')": "STRASSE",
    "lower('ΑΣ')": "ας",
    "cast('  true ' as boolean)": "true",
    "substring('abcd',-5,2)": "a",
}
"""Text of the result of each expression in Spark; None is NULL."""


def value(text: str) -> Literal:
    bound = bind_value(parse(text), SCOPE)
    assert isinstance(bound, Literal), bound
    return bound


@pytest.mark.parametrize(("text", "want"), SPARK.items(), ids=SPARK)
def test_values_of_spark(text: str, want: str | None) -> None:
    found = value(text)
    assert cast_value(found.value, found.type, STRING) == want


BERLIN = {
    "timestampdiff(DAY, '2024-03-30 12:00:00', l.t)": (datetime(2024, 3, 31, 12), 1),
    "timestampdiff(HOUR, '2024-03-30 12:00:00', l.t)": (datetime(2024, 3, 31, 12), 24),
    "timestampdiff(DAY, '2024-03-30 12:00:00', l.t )": (datetime(2024, 3, 31, 11, 59), 0),
    "timestampdiff(MONTH, '2024-02-29 23:30:00', l.t)": (datetime(2024, 3, 31, 23, 30), 1),
    "timestampdiff(WEEK, '2024-03-24 12:00:00', l.t)": (datetime(2024, 3, 31, 12), 1),
    "timestampdiff(HOUR, '2024-10-27 00:00:00', l.t)": (datetime(2024, 10, 27, 4), 4),
    "timestampadd(DAY, 1, l.t)": (datetime(2024, 3, 30, 12), "2024-03-31 12:00:00+02:00"),
    "timestampadd(HOUR, 24, l.t)": (datetime(2024, 3, 30, 12), "2024-03-31 13:00:00+02:00"),
    "timestampadd(DAY, 1, l.t )": (datetime(2024, 3, 30, 2, 30), "2024-03-31 03:30:00+02:00"),
    "timestampadd(MONTH, 1, l.t)": (datetime(2024, 2, 29, 12), "2024-03-29 12:00:00+01:00"),
    "timestampadd(DAY, -1, l.t)": (datetime(2024, 10, 28, 2, 30), "2024-10-27 02:30:00+01:00"),
    "timestampadd(DAY, 1, l.t  )": (datetime(2024, 10, 26, 2, 30), "2024-10-27 02:30:00+02:00"),
}
"""Values of Spark 4 in the session zone Europe/Berlin, for a timestamp t."""


@pytest.mark.parametrize(("text", "moment", "want"), [(k, *v) for k, v in BERLIN.items()], ids=BERLIN)
def test_units_follow_the_wall_clock_of_the_zone(text: str, moment: datetime, want: object) -> None:
    kind = pa.timestamp("s", "Europe/Berlin")
    column = pa.array([moment.replace(tzinfo=ZoneInfo("Europe/Berlin"))], kind)
    bound = bind_value(parse(text), scope_of(pa.schema({"t": kind}), pa.schema({"b": pa.int8()})))
    (found,) = values_of(evaluate(bound, {Column(0, "t", type=Timestamp("s", "Europe/Berlin")): column}, 1))
    assert (cast_value(found, bound.type, STRING) if isinstance(want, str) else found) == want


SPARK["initcap('ab  ΑΣ ß')"] = "Ab  Ας Ss"
SPARK["6 ^ 3 | 1"] = "5"
SPARK["1 << 2 + 1"] = "8"
OURS = {
    "log10(0)": -math.inf,
    "log1p(-1)": -math.inf,
    "cot(0)": math.inf,
    "atanh(-1)": -math.inf,
    "shiftleft(1, 33)": 2**33,
    "truncate(-1.59, 1)": -15,
    "truncate(1234.5D, -2)": 1200.0,
    "split_part('a.b', '.', 0)": None,
    "getbit(5, 64)": None,
    "repeat('abc', 1000000)": None,
    "repeat('', 99999999999999999999)": "",
    "cast('1.23' as int)": None,
    "extract(second from timestamp '2024-05-06 07:08:09.5')": 9_500_000,
}
"""Values that differ from Spark's, or that Spark has no function for; docs/semantics.md says why."""


@pytest.mark.parametrize(("text", "want"), OURS.items(), ids=OURS)
def test_values_of_our_own(text: str, want: object) -> None:
    assert value(text).value == want


ERRORS = {
    "round(f, x)": "round() takes the number of digits as a constant, not l.x",
    "round(f, 99)": "round() takes -38 to 38 digits, not 99",
    "round(f, 1, 2)": "round() takes 1 to 2 arguments, not 3",
    "date_trunc('eon', s)": "date_trunc() knows year, yyyy, yy, quarter, month, mm, mon, week, day, ",
    "timestampadd(eon, 1, '2024-01-01')": "timestampadd() knows year, quarter, month, week, day, dayofyear",
    "timestampdiff(dayofyear, '2024-01-01', '2024-01-02')": "timestampdiff() knows year, quarter, month",
    "timestampadd(day, f, '2024-01-01')": "timestampadd() takes a whole number, but l.f is float64",
    "timestampadd(day, 1, s)": "timestampadd() takes a date or timestamp, but l.s is string",
    "timestampdiff(day, '2024-01-01', x)": "timestampdiff() takes a date or timestamp, but l.x is int32",
    "timestampdiff(day, '2024-01-01')": "timestampdiff() takes 3 arguments, not 2",
    "lpad(x, 1)": "lpad() takes text, but l.x is int32",
    "instr(s)": "instr() takes 2 arguments, not 1",
    "regexp_extract(s, '(')": "'(' is not a regular expression: missing )",
    "regexp_extract('a', 'a', 1)": "'a' has 0 groups, not 1",
    "f & 1": "bit_and() takes a whole number, but l.f is float64",
}


@pytest.mark.parametrize(("text", "message"), ERRORS.items(), ids=ERRORS)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as error:
        bind_value(parse(text), SCOPE)
    assert str(error.value).startswith(message)


SPARK_DECIMALS = [
    (0.1, 38, 20, 10**19), (1e22, 38, 0, 10**22), (2.675, 10, 2, 268), (1.005, 10, 2, 101), (4.35, 10, 1, 44),
    (-0.125, 10, 2, -13), (0.10000000149011612, 38, 20, 10000000149011612000), (1e-7, 38, 20, 10**13),
    (1e39, 38, 0, None), (math.nan, 10, 2, None),
]  # fmt: skip
"""Values of Spark 4.3: a float goes to a decimal by its shortest text."""


@pytest.mark.parametrize(("value", "precision", "scale", "want"), SPARK_DECIMALS)
def test_floats_become_decimals_by_their_shortest_text(
    value: float, precision: int, scale: int, want: int | None
) -> None:
    target = Decimal(precision, scale)
    assert cast_value(value, Float(64), target) == oracle_values.cast(value, Float(64), target) == want
