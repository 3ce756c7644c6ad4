"""Conditions in Spark's own notation, and DataFrame aliases in SQL text."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pytest

import handshake
from handshake.errors import ExpressionError
from handshake.plan.expr import show

pytest.importorskip("pyspark")
from pyspark.sql import functions as F

from handshake.engines.spark.joins.columns import translate_column


@pytest.fixture(scope="module")
def frames(spark):
    when = datetime(2024, 1, 1, 12)
    rows = [
        (
            i,
            float(i) / 2,
            "abc"[i % 3],
            date(2024, 1, 1 + i),
            when.replace(second=i * 7),
            Decimal(i) / 4,
            None,
        )
        for i in range(8)
    ]
    names = "x int, y double, s string, d date, t timestamp, m decimal(10,2), e int"
    left = spark.createDataFrame(rows, names)
    right = spark.createDataFrame(rows, names).withColumnRenamed("x", "a").withColumnRenamed("y", "b")
    return left.cache(), right.cache()


def conditions(left, right):
    """Return conditions in Spark's notation, and as SQL text."""
    seconds = F.expr("INTERVAL 10 SECONDS")
    return {
        "band": (left.x.between(right.a - 1, right.a + 1), "l.x BETWEEN r.a - 1 AND r.a + 1"),
        "between": (F.expr("x BETWEEN a - 1 AND a + 1"), "l.x BETWEEN r.a - 1 AND r.a + 1"),
        "difference": (F.abs(left.y - right.b) <= 0.5, "ABS(l.y - r.b) <= 0.5e0"),
        "equal": ((left.s == right.s) & (left.x < right.a), "l.s = r.s AND l.x < r.a"),
        "unequal": (left.s != right.s, "l.s <> r.s"),
        "either": ((left.x == 3) | ~(right.a > 2), "l.x = 3 OR NOT (r.a > 2)"),
        "nulls": (left.e.isNull() & right.a.isNotNull(), "l.e IS NULL AND r.a IS NOT NULL"),
        "same": (left.e.eqNullSafe(right.e), "l.e <=> r.e"),
        "among": (left.s.isin("a", "b") & (left.x == right.a), "l.s IN ('a', 'b') AND l.x = r.a"),
        "text": (left.s.like("a%") & right.s.startswith("b"), "l.s LIKE 'a%' AND STARTSWITH(r.s, 'b')"),
        "texts": (
            F.upper(F.concat(left.s, F.lit("x"))) == F.upper(F.concat(right.s, F.trim(F.lit(" x")))),
            "UPPER(l.s || 'x') = UPPER(r.s || TRIM(' x'))",
        ),
        "part": (F.substring(left.s, 1, 1) == right.s, "SUBSTRING(l.s, 1, 1) = r.s"),
        "numbers": (
            F.sqrt(left.x) + F.greatest(left.x, right.a) > F.floor(right.b) * 2 - F.lit(1.5),
            "SQRT(l.x) + GREATEST(l.x, r.a) > FLOOR(r.b) * 2 - 1.5e0",
        ),
        "modulo": ((left.x * right.a) % 3 == -F.lit(-1), "(l.x * r.a) % 3 = 1"),
        "whole": (F.expr("x div 2 = a div 3"), "l.x div 2 = r.a div 3"),
        "choice": (
            F.when(left.x > 3, 1).otherwise(2) == F.coalesce(right.e, F.lit(2)),
            "CASE WHEN l.x > 3 THEN 1 ELSE 2 END = COALESCE(r.e, 2)",
        ),
        "if": (F.expr("if(x > 3, x, a) > 4"), "IF(l.x > 3, l.x, r.a) > 4"),
        "cast": (left.x.cast("double") / 2 == right.b, "CAST(l.x AS DOUBLE) / 2 = r.b"),
        "date": (F.date_add(left.d, 2) >= right.d, "l.d + 2 >= r.d"),
        "days": (F.datediff(left.d, right.d) > 1, "l.d - r.d > 1"),
        "day": (left.d > F.lit(date(2024, 1, 3)), "l.d > DATE '2024-01-03'"),
        "fields": (F.dayofmonth(left.d) == F.minute(right.t) + 2, "DAY(l.d) = MINUTE(r.t) + 2"),
        "digits": (F.round(left.y, 1) == F.ceil(right.b, F.lit(1)), "ROUND(l.y, 1) = CEIL(r.b, 1)"),
        "bits": (
            F.expr("(x & 6 | 1) ^ ~a << 1 = -4 OR pmod(x, 3) = shiftright(a, 1)"),
            "(l.x & 6 | 1) ^ ~r.a << 1 = -4 OR PMOD(l.x, 3) = SHIFTRIGHT(r.a, 1)",
        ),
        "more texts": (
            (F.lpad(left.s, 3, "-") == "--a") & (F.instr(F.concat_ws(".", left.s, right.s), "c") == 3),
            "LPAD(l.s, 3, '-') = '--a' AND INSTR(CONCAT_WS('.', l.s, r.s), 'c') = 3",
        ),
        "months": (
            (F.add_months(left.d, 1) > right.d) & (left.d + F.expr("INTERVAL '1' MONTH") < date(2024, 2, 5)),
            "ADD_MONTHS(l.d, 1) > r.d AND l.d + INTERVAL 1 MONTH < DATE '2024-02-05'",
        ),
        "units": (
            F.date_trunc("minute", left.t) == F.date_trunc("hour", right.t),
            "DATE_TRUNC('minute', l.t) = DATE_TRUNC('hour', r.t)",
        ),
        "time band": (
            left.t.between(right.t - seconds, right.t + seconds),
            "l.t BETWEEN r.t - INTERVAL 10 SECONDS AND r.t + INTERVAL 10 SECONDS",
        ),
        "time difference": (left.t - right.t < seconds, "l.t - r.t < INTERVAL 10 SECONDS"),
        "instant": (left.t > F.lit(datetime(2024, 1, 1, 12, 0, 20)), "l.t > '2024-01-01 12:00:20'"),
        "instant as text": (left.t > "2024-01-01 12:00:20", "l.t > '2024-01-01 12:00:20'"),
        "decimals": (left.m + 1 > right.m * 2, "l.m + 1 > r.m * 2"),
        "decimal": (left.m >= Decimal("1.25"), "l.m >= 1.25"),
    }  # fmt: skip


NAMES = (
    *(
        "band",
        "between",
        "difference",
        "equal",
        "unequal",
        "either",
        "nulls",
        "same",
        "among",
        "text",
        "texts",
    ),
    *("part", "numbers", "modulo", "whole", "choice", "if", "cast", "date", "days", "day", "fields"),
    *("digits", "bits", "more texts", "months", "units"),
    *("time band", "time difference", "instant", "instant as text", "decimals", "decimal"),
)


@pytest.fixture(scope="module")
def in_arrow(frames):
    return tuple(frame.toArrow() for frame in frames)


@pytest.mark.parametrize("name", NAMES)
def test_a_column_condition_means_what_the_text_means(frames, in_arrow, name):
    left, right = frames
    condition, text = conditions(left, right)[name]
    found = handshake.join(
        *in_arrow, handshake.plan.build.Expression(translate_column(condition, left, right)), method="scan"
    )
    wanted = handshake.join(*in_arrow, text, method="scan")
    assert found.num_rows > 0
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, wanted.to_pylist()))


def test_every_condition_is_tried(frames):
    assert set(conditions(*frames)) == set(NAMES)


def test_band_conditions_keep_their_index(frames):
    left, right = frames
    near = left.x.between(right.a - 1, right.a + 1) & (F.abs(left.y - right.b) <= 1)
    assert "method      band: no equality; 2 band(s)" in handshake.explain(left, right, near)


def test_spark_agrees_with_its_own_condition(frames):
    left, right = frames
    near = (F.abs(left.y - right.b) <= 0.5) & (left.s != right.s)
    found = handshake.join(left, right, near, segments=2)
    wanted = left.join(right, near)
    assert sorted(map(str, found.collect())) == sorted(map(str, wanted.toDF(*found.columns).collect()))
    assert found.count() > 0


def test_functions_agree_with_spark(frames):
    left, right = frames
    condition = (
        (F.round(left.y, 1) + F.pmod(right.a, F.lit(3)) > F.expr("CAST(1.5 AS DOUBLE)"))
        & (F.last_day(F.add_months(left.d, 1)) == F.last_day(F.add_months(right.d, 1)))
        & (F.quarter(left.t) == 1)
        & (F.timestamp_add("MINUTE", left.x, left.t) >= F.timestamp_add("MINUTE", right.a, right.t))
        & (F.timestamp_diff("SECOND", left.t, right.t) < 7)
        & (F.length(F.rpad(left.s, 3, "xy")) == F.locate("c", F.lit("abc")))
        & (F.shiftleft(left.x, 1) > F.bit_count(right.a))
    )
    found = handshake.join(left, right, condition, segments=2)
    wanted = left.join(right, condition)
    assert sorted(map(str, found.collect())) == sorted(map(str, wanted.toDF(*found.columns).collect()))
    assert found.count() > 0


def test_fields_and_elements_on_spark(spark):
    left = spark.createDataFrame(
        [((1, "a"), [1, 2], {"a": 1, "c": 2}), ((2, None), [], {}), (None, None, None)],
        "s struct<f:int,g:string>, xs array<int>, m map<string,int>",
    )
    right = spark.createDataFrame([(1, "a"), (2, "b")], "k int, w string")
    for text, wanted in (("l.s.f = r.k", 2), ("l.s.g = r.w", 1), ("l.xs[1] = r.k", 1), ("l.m['c'] = r.k", 1)):
        assert handshake.join(left, right, text, segments=2).count() == wanted
    condition = (left.s.f == right.k) & (left.xs[0] == right.k) & (left.m[right.w] == right.k)
    assert handshake.join(left, right, condition, segments=2).count() == 1


def test_not_a_number_is_found(spark):
    left = spark.createDataFrame([(float("nan"),), (1.0,), (None,)], "x double")
    right = spark.createDataFrame([(1,)], "a int")
    found = handshake.join(
        left.toArrow(),
        right.toArrow(),
        handshake.plan.build.Expression(translate_column(F.isnan(left.x), left, right)),
    )
    assert found.num_rows == 1


# Names


def test_aliases_of_dataframes_are_qualifiers(frames):
    left, right = frames
    text = handshake.explain(left.alias("trades"), right.alias("quotes"), "trades.x = quotes.a")
    assert text.startswith("join on     trades.x = quotes.a")
    built = handshake.left.x == handshake.right.a
    assert handshake.explain(left.alias("r"), right.alias("l"), built).startswith("join on     l.x = r.a")
    found = handshake.explain(left.alias("r"), right.alias("l"), "r.x < l.a AND r.y < 1")
    assert "left only   l.y < 1" in found
    assert handshake.explain(left.alias("t"), right, "t.x = right.a AND l.x = r.a")


def test_given_aliases_win(frames):
    left, right = frames
    assert handshake.explain(left.alias("t"), right.alias("u"), "a.x = b.a", aliases=("a", "b"))
    with pytest.raises(ExpressionError, match="no input 't'"):
        handshake.explain(left.alias("t"), right.alias("u"), "t.x = b.a", aliases=("a", "b"))


def test_names_of_tables_are_qualifiers(spark, frames):
    left, right = frames
    left.createOrReplaceTempView("some_trades")
    right.createOrReplaceTempView("some_quotes")
    tables = spark.table("some_trades"), spark.table("some_quotes").where("a > 2")
    assert handshake.explain(*tables, "some_trades.x = some_quotes.a")


def test_columns_by_qualifier(frames):
    left, right = frames
    found = translate_column(F.col("t.x") < F.col("u.x"), left.alias("t"), left.alias("u"))
    assert show(found) == "l.x < r.x"
    assert show(translate_column(F.col("x") < F.col("a"), left, right)) == "l.x < r.a"


def test_a_dataframe_joined_with_itself(frames):
    left, _ = frames
    later = left.where("x > 2")
    assert show(translate_column(left.x == left.x, left, left)) == "l.x = r.x"  # as Spark reads it
    with pytest.raises(
        ExpressionError, match=r"a column in .* could belong to either DataFrame; give each a name"
    ):
        translate_column(left.x < left.x + 1, left, left)
    with pytest.raises(ExpressionError, match="could belong to either DataFrame"):
        translate_column(left.x < later.x, left, later)


# What is not understood


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            lambda: F.col("x") < F.hash("a"),
            r"cannot read hash\(.*\(Murmur3Hash\) in a Column condition; write it as SQL",
        ),
        (lambda: F.udf(lambda x: x > 1, "boolean")("x"), r"the Python UDF in .* handshake\.call\(function, "),
        (lambda: F.rand() < 0.5, r"gives another value each time; a predicate must give the same answer"),
        (
            lambda: F.lit(datetime(2024, 1, 1)) < F.current_timestamp(),
            r"current_timestamp\(\) gives another value each time",
        ),
        (
            lambda: F.col("nope") == F.col("a"),
            r"Spark cannot resolve the condition .*`nope` cannot be resolved",
        ),
        (lambda: F.col("x") + F.col("a"), r"Spark cannot resolve the condition .*BOOLEAN"),
    ],
)
def test_what_cannot_be_read_is_refused(frames, condition, message):
    with pytest.raises(ExpressionError, match=message):
        translate_column(condition(), *frames)
