# ruff: noqa: E501, RUF001 - texts as they are said, signs as they are printed
"""The language: plans as they are printed, types, and what is said of mistakes."""

from __future__ import annotations

import pytest

from handshake.errors import QueryError
from handshake.plan.algebra import Demux, Session, Windowing, WindowJoin, walk
from handshake.plan.explain import dot, explain_plan
from handshake.plan.picture import svg
from handshake.plan.query import parse_query
from handshake.schema import Int, String, arrow_of
from query_cases import PAPER, TRADES, TWO

GOLDEN = {
    "Q1": """UBSTrades (Price int32, Volume int32)
└─ π Price, Volume
   └─ σ a
      └─ ⊛ a: Symbol = 'UBSN'
         └─ Trades by Ts
""",
    "Q2": """LargeUBSTrades (Price int32, Volume int32)
└─ π Price, Volume
   └─ σ c
      └─ ⊛ c: a AND b
         └─ ⊛ b: Volume > 100000
            └─ ⊛ a: Symbol = 'UBSN'
               └─ Trades by Ts
""",
    "Q3": """NumUBSTrades (Number int64)
└─ ⊞ x|SIZE 600 ADVANCE 60 TIME
   ├─ Trades by Ts
   └─ count Number: ()
      └─ σ a
         └─ ⊛ a: Symbol = 'UBSN'
            └─ x
""",
    "Q4": """WeightedUBSTrades (Wprice decimal(13, 3))
└─ ⊞ x|SIZE 4 ADVANCE 1 TUPLES
   ├─ π Seqnr, Symbol, Price, Volume, Ts
   │  └─ σ a
   │     └─ ⊛ a: Symbol = 'UBSN'
   │        └─ Trades by Ts
   └─ wsum Wprice: (Price, [0.500, 0.250, 0.125, 0.125])
      └─ x
""",
    "Q5": """PriceAverages (Symbol string(4), AvgPrice float64)
└─ ⊞ x|SIZE 600 ADVANCE 60 TIME
   ├─ Trades by Ts
   └─ grp y|Symbol
      ├─ x
      └─ avg AvgPrice: (Price)
         └─ y
""",
}


@pytest.mark.parametrize("name", PAPER)
def test_plans_of_the_paper(name: str) -> None:
    assert explain_plan(parse_query(TRADES + PAPER[name])) == GOLDEN[name]


def test_the_paper_s_declaration_needs_no_time() -> None:
    declared = "CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int);"
    for text in PAPER.values():
        source = parse_query(declared + text).inputs[0]
        assert source.time is None
        assert source.clock.unit == "us"


def test_pictures() -> None:
    plan = parse_query(TRADES + PAPER["Q5"])
    graph = dot(plan)
    assert graph.count("->") == 6
    assert "[style=dashed]" in graph
    drawing = svg(plan)
    assert drawing.startswith("<svg ")
    assert drawing.count("<rect") == 7
    assert drawing.count("stroke-dasharray") == 2


def test_a_stream_read_twice_is_planned_once() -> None:
    text = "SELECT k FROM R INTO A; SELECT k FROM A INTO B; SELECT k FROM A INTO C"
    plan = parse_query(TWO + text)
    a = plan.output("A").input
    assert all(any(node is a for node in walk(plan.output(name))) for name in "BC")


def test_carried_streams() -> None:
    text = """CREATE INPUT STREAM Mux (MsgType byte);
        CREATE INPUT STREAM New (MsgType byte, ClOrdId int, Side char, At long) FROM Mux WHERE MsgType = 68
            TIMESTAMP BY At IN MICROSECONDS LATENESS 1.5;
        SELECT ClOrdId FROM New"""
    source = parse_query(text).inputs[1]
    assert source.demux == Demux("Mux", "MsgType", (68,))
    assert (source.time, source.clock.unit, source.lateness) == ("At", "us", 1_500_000_000)
    assert [f.type for f in source.fields] == [Int(8), Int(32), String(1), Int(64)]


def test_computed_columns_have_the_bits_that_they_need() -> None:
    fields = (
        parse_query(TWO + "SELECT k + k AS a, v * v AS b, v * v * v AS c FROM R").outputs[0].schema.fields
    )
    assert [f.type for f in fields] == [Int(9), Int(64), Int(96)]
    assert [str(arrow_of(f.type)) for f in fields] == ["int16", "int64", "decimal128(38, 0)"]


_R, _S = "R [SIZE 1 TIME]", "S [SIZE 1 TIME]"
WRONG = {
    "CREATE INPUT STREAM X (k int8) FROM R WHERE ": "cannot read the query near 'WHERE': a condition is missing, as in WHERE MsgType = 68",
    "SELECT v*v*v*v*v*v AS c FROM R": "values of type int192 cannot be held; cast them to a smaller type",
    "SELECT k FORM R": "cannot read the query near 'R'",
    "SELECT kk FROM R": "no field 'kk' in R (k, v, t); did you mean 'k'? (line 4, column 8)",
    "SELECT k FROM T": "no stream 'T' (R, S, U, result)",
    "SELECT S.k FROM R": "no input 'S' (R)",
    "SELECT k FROM R, S": "stream R of the join has no window, and would have to be kept for ever; "
    "write R [SIZE 600 TIME]",
    "SELECT k FROM R [SIZE 1 TIME], S [SIZE 1 TIME]": "column 'k' is in more than one stream; write R.k or S.k",
    "SELECT v FROM R [SIZE 1 ADVANCE 1 TIME], S [SIZE 1 TIME]": "a window of a join slides with every tuple; "
    "leave out ADVANCE",
    "SELECT count() FROM R": "count() over R, which never ends; give it a window, as in R [SIZE 600 ADVANCE 60 TIME]",
    "SELECT k FROM R GROUP BY k": "GROUP BY over R, which never ends",
    "SELECT count() FROM R [SIZE 1 TIME], S [SIZE 1 TIME]": "count() over the results of a join, which never end; put "
    "the join in parentheses and give it a window",
    "SELECT v, count() FROM R [SIZE 1 TIME] GROUP BY k": "column 'v' is neither grouped nor aggregated; put it in "
    "GROUP BY, or in an aggregate such as max(v)",
    "SELECT max(count()) FROM R [SIZE 1 TIME]": "count() has no meaning here; aggregates stand in SELECT and HAVING",
    "SELECT sum(t) FROM R [SIZE 1 TIME]": "sum() takes numbers, not timestamp[ms]",
    "SELECT wsum(v) FROM R [SIZE 1 TIME]": "wsum() takes a field and its weights, as in wsum(Price, [.5, .25, .25])",
    "SELECT k FROM R [SIZE 0 TUPLES]": "a length of a window is more than 0; 0 tuples was given",
    "SELECT k FROM R [SIZE 1.5 TUPLES]": "a number of tuples is whole, not 1.5",
    "SELECT k FROM R [SIZE .5 TIME]": "a SIZE of broken seconds needs an ADVANCE",
    "SELECT k FROM R [SIZE 1 ADVANCE .0001 TIME]": "the window is finer than the times of the stream, which count ms",
    "SELECT k FROM R [SIZE 1]": "cannot read the query near ']': TIME or TUPLES is missing; a window is "
    "[SIZE 600 ADVANCE 60 TIME] or [SIZE 4 ADVANCE 1 TUPLES]",
    "SELECT k FROM R [SESSION 5 TUPLES]": "a session ends after a time without tuples; write [SESSION 30 SECONDS]",
    "SELECT k FROM R [SESSION 1 us]": "the window is finer than the times of the stream, which count ms",
    "SELECT k FROM R [SESSION 9999999999 w]": "the window is longer than 2^62 ms",
    "SELECT k FROM R [SESSION 0]": "a length of a window is more than 0; 0 s was given",
    "SELECT k FROM R [SESSION 30s]": "a window ends with ] behind lengths such as 30 SECONDS or 5 TUPLES",
    "SELECT k FROM R [NOW]": "[NOW] is for a stream of a join, whose tuples are not kept; leave it out, or write a "
    "window such as [SIZE 10 MINUTES]",
    "SELECT k FROM R [NOW 5], S [SIZE 1 TIME]": "a window ends with ]",
    "SELECT k FROM R [TUMBLE]": "TUMBLE takes a number",
    "SELECT k FROM R [TUMBLE 5 PARSECS]": "a window ends with ] behind lengths such as 30 SECONDS",
    "SELECT k FROM R [HOP 5 SECONDS]": "HOP needs a SIZE, as in [HOP 1 MINUTE SIZE 10 MINUTES]",
    "SELECT k FROM R [HOP 5 SECONDS SIZE 5 ROWS]": "a window is of time or of tuples, not of both",
    "SELECT k FROM R [SIZE 5 ROWS ADVANCE 5 TIME]": "a window is of time or of tuples, not of both",
    "SELECT k FROM R [LAST 5 ROWS]": "a window is [SIZE 600 ADVANCE 60 TIME] or [SIZE 4 ADVANCE 1 TUPLES], "
    "[TUMBLE 10 MINUTES], [HOP 1 MINUTE SIZE 10 MINUTES], [CUMULATE 1 MINUTE SIZE 1 HOUR] or [SESSION 30 SECONDS]",
    "SELECT k FROM R [CUMULATE 5 SECONDS]": "CUMULATE needs a SIZE, as in [CUMULATE 1 MINUTE SIZE 10 MINUTES]",
    "SELECT k FROM R [CUMULATE 2 SIZE 5]": "the SIZE of cumulating windows is a multiple of their step",
    "SELECT k FROM R [CUMULATE 2 SIZE 4 ROWS]": "cumulating windows are of time, as in [CUMULATE 1 MINUTE SIZE 1 HOUR]",
    "SELECT k FROM R [TUMBLE 2 ROWS OFFSET 1]": "OFFSET is for windows of time; leave it out",
    "SELECT k FROM R [TUMBLE 2 OFFSET 1 us]": "the window is finer than the times of the stream, which count ms",
    "SELECT k FROM R [TUMBLE 2 OFFSET]": "OFFSET takes a number, or FIRST",
    "SELECT k FROM R [TUMBLE 2 PARTIAL]": "PARTIAL is for windows of tuples; windows of time give results from the "
    "first tuple on",
    "SELECT k FROM R [SESSION 2 OFFSET 1]": "a session begins with a tuple; leave out OFFSET and PARTIAL",
    "SELECT v FROM R [SIZE 5 ROWS PARTIAL], S [SIZE 1 TIME]": "a window of a join slides with every tuple; leave out "
    "PARTIAL, as in [SIZE 10 MINUTES]",
    "SELECT v FROM R [TUMBLE 5 SECONDS], S [SIZE 1 TIME]": "a window of a join slides with every tuple; leave out "
    "TUMBLE, as in [SIZE 10 MINUTES]",
    "SELECT k FROM R WHERE v + 1": "the predicate must be true or false, but v + 1 is int64; compare it with something",
    "SELECT k FROM R WHERE v = 'x'": "cannot compare v (int32) with 'x' (string); cast one of them",
    "SELECT k, k FROM R": "two columns of the result are called 'k'; name one with AS",
    "SELECT k FROM A INTO B; SELECT k FROM B INTO A": "a stream cannot feed itself: B reads A reads B",
    "SELECT k FROM R INTO S": "there are two streams named 'S'",
    "SELECT k FROM R UNION SELECT k, v FROM R": "UNION of 1 columns (k) with 2 (k, v)",
    "SELECT k FROM R UNION SELECT t FROM R": "UNION of column 'k' (int8) with 't' (timestamp[ms]), which have no "
    "common type; cast one",
    "SELECT k FROM R ORDER BY k": "ORDER BY has no meaning on streams without an end; sort the results, or leave",
    "SELECT k FROM R LIMIT 5": "LIMIT has no meaning on streams without an end; leave it out",
    "SELECT DISTINCT k FROM R": "SELECT DISTINCT has no meaning on streams without an end; use GROUP BY in a window",
    "WITH T AS (SELECT k FROM R) SELECT k FROM T": "WITH is not read; give that query a name by INTO",
    "SELECT v FROM R LEFT JOIN S [SIZE 1 TIME] ON R.k = S.k": "stream R of the join has no window",
    f"SELECT v FROM {_R} ASOF RIGHT JOIN {_S} ON R.k = S.k": "no kind of join 'ASOF RIGHT JOIN'; streams are joined with a comma, or "
    "with JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN, LEFT SEMI JOIN, LEFT ANTI JOIN, RIGHT SEMI JOIN or RIGHT ANTI JOIN … ON, or with "
    "ASOF JOIN or LEFT ASOF JOIN … MATCH_CONDITION (…) ON",
    f"SELECT v FROM R ASOF JOIN {_S} ON R.k = S.k": "an as-of join says which times match; write MATCH_CONDITION (R.t >= S.t) "
    "behind the stream",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t = S.t)": "MATCH_CONDITION compares the times of both streams with >=, >, "
    "<= or <, as in MATCH_CONDITION (R.t >= S.t); other conditions, such as R.t = S.t, stand in ON",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t >= S.t AND v > 1)": "MATCH_CONDITION compares the times of both streams",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t >= R.t)": "MATCH_CONDITION compares a time column of each stream, as in "
    "MATCH_CONDITION (R.t >= S.t), not R.t >= R.t",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t >= S.t + INTERVAL '1' SECOND)": "compares a time column of each stream, as in "
    "MATCH_CONDITION (R.t >= S.t), not R.t >= (S.t + INTERVAL '1' SECOND); the window says how far apart they may be",
    f"SELECT v FROM {_R} JOIN U [SIZE 1 s] ON R.k = U.k ASOF JOIN {_S} MATCH_CONDITION (R.t >= S.t)": "as-of joins and other joins are "
    "not in one FROM; put the first ones in parentheses",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t > S.w)": "S.w is not the time of S; write MATCH_CONDITION (R.t >= S.t)",
    "SELECT v FROM R ASOF JOIN S MATCH_CONDITION (R.t > S.t)": "an as-of join with > looks back, so the right stream needs a window "
    "of time, and S has none; write S [SIZE 10 MINUTES]",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (S.t > R.t)": "an as-of join with < looks ahead, so the left stream needs a "
    "window of time, and R has none; write R [SIZE 10 MINUTES]",
    "SELECT v FROM R ASOF JOIN S [SIZE 9 ROWS] MATCH_CONDITION (R.t > S.t)": "and S has one of 9 tuples",
    "SELECT v FROM R ASOF JOIN S [SIZE 9999999999 w] MATCH_CONDITION (R.t > S.t)": "the window is longer than 2^62 ms",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t >= S.t) USING (k)": "ASOF JOIN … USING is not known; write the condition",
    f"SELECT v FROM R ASOF JOIN {_S} MATCH_CONDITION (R.t >= S.t) LEFT JOIN U [SIZE 1 s] ON U.k = R.k": "as-of joins and other joins "
    "are not in one FROM; put the first ones in parentheses, as in FROM (SELECT …) [SIZE 10 MINUTES] LEFT JOIN …",
    "SELECT v FROM R [SIZE 1 s] ASOF JOIN S MATCH_CONDITION (R.t <= S.t) ASOF JOIN U [SIZE 1 s] MATCH_CONDITION (R.t >= U.t)": "R has no "
    "column with its times: declare one with TIMESTAMP BY, and select it if R is a query",
    "SELECT v FROM R ASOF JOIN (SELECT count() n FROM S [TUMBLE 1 s]) [SIZE 1 s] c MATCH_CONDITION (R.t >= c.n)": "c has no column "
    "with its times",
    "CREATE INPUT STREAM X (a int, t int) TIMESTAMP BY t; SELECT v FROM R ASOF JOIN X [SIZE 1 s] MATCH_CONDITION (R.t >= X.t)": "R.t >= "
    "X.t compares times of different units; declare both as timestamps, or as whole numbers of one unit",
    f"SELECT v FROM {_R} NATURAL LEFT JOIN {_S}": "no kind of join 'NATURAL LEFT JOIN'",
    f"SELECT v FROM {_R} LEFT INNER JOIN {_S} ON R.k = S.k": "no kind of join 'LEFT INNER JOIN'",
    f"SELECT v FROM {_R} OUTER JOIN {_S} ON R.k = S.k": "no kind of join 'OUTER JOIN'",
    f"SELECT v FROM {_R} FULL OUTER JOIN {_S}": "FULL OUTER JOIN has no condition; write FULL OUTER JOIN … ON and when "
    "rows match",
    f"SELECT v FROM {_R} LEFT JOIN {_S} USING (k)": "LEFT JOIN … USING is not known; write the condition, as in ON",
    f"SELECT v FROM {_R} LEFT JOIN {_S} LEFT JOIN U [SIZE 1 TIME] ON U.k = S.k ON R.k = S.k": "LEFT JOIN has its condition "
    "behind another join; write ON behind its stream",
    f"SELECT w FROM {_R} SEMI JOIN {_S} ON R.k = S.k": "no field 'w' in R (k, v, t)",
    f"SELECT S.w FROM {_R} SEMI JOIN {_S} ON R.k = S.k": "results do not have the columns of S, which a semi or anti join "
    "only searches; read them in ON (line 4, column 8)",
    f"SELECT v FROM {_R} ANTI JOIN {_S} ON R.k = S.k WHERE S.w > 0": "results do not have the columns of S",
    f"SELECT R.* FROM {_R} RIGHT ANTI JOIN {_S} ON R.k = S.k": "results do not have the columns of R",
    f"SELECT S.* FROM {_R} SEMI JOIN {_S} ON R.k = S.k": "results do not have the columns of S",
    f"SELECT v FROM {_R} SEMI JOIN {_S} ON R.k = S.k LEFT JOIN U [SIZE 1 TIME] ON U.k = S.k": "results do not have the "
    "columns of S",
    f"SELECT v FROM {_R} LEFT JOIN {_S} ON R.k = U.k LEFT JOIN U [SIZE 1 TIME] ON U.k = S.k": "no input 'U' (R, S)",
    f"SELECT v FROM {_R} LEFT JOIN {_S} ON R.k = S.k LEFT JOIN U [SIZE 2 ROWS] ON U.k = S.k": "streams of several joins, "
    "not all of them inner joins, need windows of time, and U has one of 2 tuples; put the first join in parentheses",
    f"SELECT v FROM {_R} LEFT JOIN {_S} ON R.k = S.k LEFT JOIN U [SIZE 9999999999 w] ON U.k = S.k": "the windows "
    "of the joins add up to more than 2^62 ms",
    f"SELECT count() FROM {_R} LEFT JOIN {_S} ON R.k = S.k": "count() over the results of a join, which never end",
    "CREATE INPUT STREAM X (a it); SELECT a FROM X": "field 'a' has the unknown type it; did you mean 'int'?",
    "CREATE INPUT STREAM X (a int) TIMESTAMP BY b; SELECT a FROM X": "no field 'b' in stream X",
    "CREATE INPUT STREAM X (a string) TIMESTAMP BY a; SELECT a FROM X": "field 'a' is string; a time is a timestamp, or "
    "a whole number with its unit, as in TIMESTAMP BY ts IN MICROSECONDS",
    "CREATE INPUT STREAM X (k int8) FROM Q WHERE k = 1; SELECT k FROM X": "no input stream 'Q' is declared before",
    "CREATE INPUT STREAM X (k int) FROM R WHERE k = 1; SELECT k FROM X": "field 'k' is int32 in X but int8 in R",
    "CREATE INPUT STREAM X (k int8) FROM R WHERE k > 1; SELECT k FROM X": "streams are distinguished by a field of the "
    "input that carries them, as in WHERE MsgType = 68",
    "CREATE INPUT STREAM M (k int8, a int, b int); CREATE INPUT STREAM X (k int8, a int) FROM M WHERE k IN (1, 2) TIMESTAMP BY a; "
    "CREATE INPUT STREAM Y (k int8, b int) FROM M WHERE k = 2 TIMESTAMP BY b; SELECT k FROM X": "a tuple of M may be one of X and of Y, "
    "which have times of their own; declare TIMESTAMP BY for M",
    "DROP TABLE R": "a statement is CREATE INPUT STREAM … or SELECT …",
    "": "the query selects nothing; write SELECT … FROM … INTO name",
}


SPELLINGS = {
    "SIZE 90 MINUTES ADVANCE 30 MINUTES": "SIZE 5400 ADVANCE 1800 TIME",
    "SIZE 5400 ADVANCE 30 MINUTES": "SIZE 5400 ADVANCE 1800 TIME",
    "SIZE 1.5 hours ADVANCE 1800": "SIZE 5400 ADVANCE 1800 TIME",
    "SIZE 2 SECONDS": "SIZE 2 ADVANCE 1 TIME",
    "TUMBLE 10": "SIZE 10 ADVANCE 10 TIME",
    "TUMBLE 500 ms": "SIZE 0.5 ADVANCE 0.5 TIME",
    "TUMBLE 7 TUPLES": "SIZE 7 ADVANCE 7 TUPLES",
    "HOP 10 SECONDS SIZE 1 MINUTE": "SIZE 60 ADVANCE 10 TIME",
    "HOP 2 SIZE 5 ROWS": "SIZE 5 ADVANCE 2 TUPLES",
    "SESSION 30": "SESSION 30 SECONDS",
    "TUMBLE 1 HOUR OFFSET 15 MINUTES": "SIZE 3600 ADVANCE 3600 TIME OFFSET 900",
    "TUMBLE 1 DAY OFFSET -8 HOURS": "SIZE 86400 ADVANCE 86400 TIME OFFSET 57600",
    "HOP 10 SIZE 60 OFFSET 25": "SIZE 60 ADVANCE 10 TIME OFFSET 5",
    "SIZE 600 ADVANCE 60 TIME OFFSET FIRST": "SIZE 600 ADVANCE 60 TIME OFFSET FIRST",
    "CUMULATE 10 MINUTES SIZE 1 HOUR OFFSET 90 MINUTES": "CUMULATE 600 SIZE 3600 TIME OFFSET 1800",
    "SIZE 4 ADVANCE 1 TUPLES PARTIAL": "SIZE 4 ADVANCE 1 TUPLES PARTIAL",
    "SIZE 4 ROWS PARTIAL": "SIZE 4 ADVANCE 1 TUPLES PARTIAL",
    "SESSION .5 d": "SESSION 43200 SECONDS",
}


@pytest.mark.parametrize("written", SPELLINGS)
def test_spellings_of_windows(written: str) -> None:
    (output,) = parse_query(f"{TWO} SELECT count() AS n FROM R [{written}]").outputs
    assert isinstance(output.input, Windowing)
    assert str(output.input.window) == SPELLINGS[written]


def test_windows_of_joins_may_have_units() -> None:
    (output,) = parse_query(f"{TWO} SELECT v, w FROM R [SIZE 2 MINUTES], S [SIZE 5 ROWS]").outputs
    join = next(node for node in walk(output) if isinstance(node, WindowJoin))
    assert [str(window) for window in join.windows] == ["2 minutes", "5 tuples"]


def test_sessions_are_per_group() -> None:
    (output,) = parse_query(
        f"{TWO} SELECT k % 2 AS odd, count() AS n FROM R [SESSION 3] GROUP BY k % 2"
    ).outputs
    window = next(node for node in walk(output) if isinstance(node, Windowing))
    assert isinstance(window.window, Session)
    assert set(window.window.keys) <= set(window.input.schema.names)
    assert len(window.window.keys) == 1


@pytest.mark.parametrize("text", WRONG)
def test_mistakes(text: str) -> None:
    with pytest.raises(QueryError) as found:
        parse_query(TWO + "\n" + text)
    assert WRONG[text] in found.value.message


def test_a_caret_shows_the_place() -> None:
    with pytest.raises(QueryError) as found:
        parse_query(TWO + "\nSELECT k\nFROM R WHERE vv > 1\n")
    assert str(found.value).split("\n")[1:] == ["  FROM R WHERE vv > 1", "               ^"]
    assert (found.value.line, found.value.column) == (5, 14)


def test_plans_tell_the_digits_of_decimals() -> None:
    declared = "CREATE INPUT STREAM S (d decimal(12, 2), i int);"
    text = explain_plan(parse_query(declared + "SELECT d + i AS s, CAST(i AS decimal(20, 3)) AS c FROM S"))
    casts = [line.split(": ", 1)[1] for line in text.splitlines() if "CAST" in line]
    assert casts == ["CAST(i AS decimal(20, 3))", "CAST(i AS decimal(12, 2))", "CAST(d AS decimal(12, 2))"]
