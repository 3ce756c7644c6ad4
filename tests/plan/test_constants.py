"""Constants: each has the value that a column of the same value has, and none raises a foreign error."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

import handshake as hs
from handshake.errors import HandshakeError

LEFT = pa.table({"a": pa.array([1, 2, 3], pa.int32())})
CONSTANTS = {
    "l.a > -128Y": 3,
    "l.a > -32768S": 3,
    "l.a > -9223372036854775808L": 3,
    "128Y IS NULL": 3,
    "l.a = LENGTH('abc')": 1,
    "l.a = CAST('abc' AS INT)": 0,
    "l.a = CAST('1.23' AS INT)": 0,
    "l.a = CAST(' 2 ' AS INT)": 1,
    "l.a < CAST('23.45' AS DECIMAL(4, 2))": 3,
    "CAST('123.45' AS DECIMAL(4, 2)) IS NULL": 3,
    "l.a < 1e35BD": 3,
    "l.a < 1.5BD": 1,
    "INTERVAL 106751992 DAY * 2 > INTERVAL 1 DAY": 3,
    "CAST('2009-07-30 04:17:52' AS DATE) = DATE '2009-07-30'": 3,
    "CAST('soon' AS DATE) IS NULL": 3,
    "TRY_CAST('soon' AS TIMESTAMP) IS NULL": 3,
    "CAST('y' AS BOOLEAN) AND NOT CAST('0' AS BOOLEAN)": 3,
    "CASE WHEN 'a' < 'b' THEN l.a ELSE 0 END > 1": 2,
    "UPPER('straße') = 'STRASSE'": 3,
    "SUBSTRING('abcd', 2, l.a) = 'bcd'": 1,
    "YEAR(DATE '2024-01-01' + 99999999999999) IS NULL": 3,
}


@pytest.mark.parametrize(("text", "rows"), CONSTANTS.items(), ids=CONSTANTS)
def test_constants(text: str, rows: int) -> None:
    assert hs.join(LEFT, {"k": [1]}, text).num_rows == rows


@pytest.mark.parametrize(("value", "length"), [("{}", 4996), ("DATE '1970-01-01' + {}", 1 + 4993 + 6)])
def test_texts_of_numbers_that_python_refuses_to_write(value: str, length: int) -> None:
    long = " * ".join(["1" + "0" * 999] * 5)
    assert hs.join(LEFT, {"k": [1]}, f"LENGTH(CAST({value.format(long)} AS STRING)) = {length}").num_rows == 3


def select(value: str) -> pa.Table:
    text = f"CREATE INPUT STREAM L (a int); SELECT {value} AS v FROM L INTO O"
    return hs.run(text, {"L": LEFT})["O"].column("v").to_pylist()[:1]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("9223372036854775808", 2**63),
        ("9223372036854775807 + 1", 2**63),
        ("LENGTH('abc')", 3),
        ("1e35BD", 10**35),
    ],
)
def test_selected_constants(value: str, want: object) -> None:
    assert select(value) == [want]


@pytest.mark.parametrize("value", ["INTERVAL 106751992 DAY * 2", "DATE '2024-01-01' + 999999999999"])
def test_selected_constants_that_do_not_fit(value: str) -> None:
    with pytest.raises(HandshakeError, match="a value of v does not fit"):
        select(value)


def test_text_upper_case_follows_unicode_in_columns_too() -> None:
    words = pa.table({"s": ["straße", "Σας", "abc", None]})
    assert hs.join(words, {"k": [1]}, "UPPER(l.s) = 'STRASSE'").num_rows == 1


def test_zones_know_summer_time_after_2037() -> None:
    moment = pa.array([datetime(2042, 7, 1, 22, 30, tzinfo=UTC)], pa.timestamp("s", "Europe/Berlin"))
    condition = "HOUR(l.t) = 0 AND CAST(l.t AS DATE) = DATE '2042-07-02'"
    assert hs.join(pa.table({"t": moment}), {"k": [1]}, condition).num_rows == 1


@pytest.mark.parametrize("kind", ["Int128", "UInt128"])
def test_wide_integers_of_polars(kind: str) -> None:
    polars = pytest.importorskip("polars")
    wide = polars.Series([1, 10**30], dtype=getattr(polars, kind))
    found = hs.join(
        polars.DataFrame({"k": [1, 2], "wide": wide}), polars.DataFrame({"k": [1, 2]}), "l.k = r.k"
    )
    assert sorted(map(int, found["wide"].to_list())) == [1, 10**30]
    assert hs.join(polars.DataFrame({"k": wide}), polars.DataFrame({"k": [1, 2]}), "l.k = r.k").height == 1


def test_wide_integers_of_polars_beyond_38_digits() -> None:
    polars = pytest.importorskip("polars")
    wide = polars.DataFrame({"k": polars.Series([2**127 - 1], dtype=polars.Int128)})
    with pytest.raises(hs.InputError, match="column 'k' is Int128 and has values of more than 38 digits"):
        hs.join(wide, {"k": [1]}, "l.k = r.k")
