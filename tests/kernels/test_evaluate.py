"""Expressions on whole columns, where they leave the compiled path."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import handshake as hs


def pick(column: pa.Array, condition: str) -> list:
    """Return the values of `l.x` for which a condition on it holds."""
    return hs.join(pa.table({"x": column}), {"k": [1]}, condition).column("x").to_pylist()


def test_a_day_is_the_zone_s_own():
    early = pa.array([datetime(2023, 12, 31, 23, 30)], pa.timestamp("us", "UTC")).cast(
        pa.timestamp("us", "Europe/Berlin")
    )
    assert len(pick(early, "CAST(l.x AS DATE) = DATE '2024-01-01'")) == 1
    assert len(pick(early.cast(pa.timestamp("us", "UTC")), "CAST(l.x AS DATE) = DATE '2024-01-01'")) == 0


def test_text_with_an_offset_is_an_instant():
    texts = pa.array(["2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00", "soon", None])
    assert len(pick(texts, "CAST(l.x AS TIMESTAMP) = TIMESTAMP '2024-01-01 00:00:00'")) == 2


@pytest.mark.parametrize(
    ("values", "condition", "want"),
    [
        (["12", " 7 ", "x", None], "CAST(l.x AS INT) > 6", ["12", " 7 "]),
        (["1e3", "nan"], "CAST(l.x AS DOUBLE) > 6", ["1e3"]),
        (["1.005", "1.004"], "CAST(l.x AS DECIMAL(5, 2)) = 1.01", ["1.005"]),
        (["true", "FALSE", "1", "y", "T", "no"], "CAST(l.x AS BOOLEAN)", ["true", "1", "y", "T"]),
        (["f", "NO", "0", "n", "2"], "NOT CAST(l.x AS BOOLEAN)", ["f", "NO", "0", "n"]),
        (
            ["2009-07-30 04:17:52", "2009-7", "x"],
            "CAST(l.x AS DATE) > DATE '2009-07-01'",
            ["2009-07-30 04:17:52"],
        ),
        (["2024-02-29", "2024-02-30"], "CAST(l.x AS DATE) = DATE '2024-02-29'", ["2024-02-29"]),
        (["abc", "ABC"], "LOWER(l.x) = 'abc' AND UPPER(l.x) LIKE 'A_C'", ["abc", "ABC"]),
        (["abc", "b"], "SUBSTRING(l.x, -2) = 'bc' OR l.x RLIKE '^b$'", ["abc", "b"]),
        (["a", None], "COALESCE(l.x, 'z') = 'z'", [None]),
        (["a", "b"], "CASE WHEN l.x = 'a' THEN 'p' ELSE 'q' END = 'q'", ["b"]),
        ([1.5, -1.5], "CAST(CAST(l.x AS DECIMAL(4, 0)) AS INT) = -2", [-1.5]),
        ([1, 2], "CAST(l.x AS STRING) = '2'", [2]),
        ([date(2024, 5, 6)], "MONTH(l.x) = 5 AND DAY(l.x) = 6", [date(2024, 5, 6)]),
        (
            [Decimal("12345678901234567890.5")],
            "CAST(l.x AS DOUBLE) > 1e19",
            [Decimal("12345678901234567890.5")],
        ),
    ],
)
def test_what_kernels_leave_to_arrow_and_python(values, condition, want):
    assert sorted(pick(pa.array(values), condition), key=str) == sorted(want, key=str)
