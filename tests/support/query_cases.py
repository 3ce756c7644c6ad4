# ruff: noqa: E501 - a query is easier to read in one line
"""Queries that every back end is tested on: the paper's, windows and aggregates of all kinds, joins."""

from __future__ import annotations

__all__ = [
    "ASOF",
    "CHAINS",
    "JOINS",
    "KINDS",
    "LAYERED",
    "NOW",
    "ODD",
    "ODD_JOINS",
    "PAPER",
    "QUERIES",
    "TRADES",
    "TWO",
    "WINDOWS",
]

TRADES = """CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int, Ts timestamp(0))
TIMESTAMP BY Ts;"""
PAPER = {
    "Q1": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO UBSTrades',
    "Q2": 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" AND Volume > 100000 INTO LargeUBSTrades',
    "Q3": """SELECT count() AS Number
FROM Trades [SIZE 600 ADVANCE 60 TIME]
WHERE Symbol = "UBSN"
INTO NumUBSTrades""",
    "Q4": """SELECT wsum(Price,[.5,.25,.125,.125]) AS Wprice
FROM (SELECT * FROM Trades
WHERE Symbol = "UBSN")
[SIZE 4 ADVANCE 1 TUPLES]
INTO WeightedUBSTrades""",
    "Q5": """SELECT Symbol, avg(Price) AS AvgPrice
FROM Trades [SIZE 600 ADVANCE 60 TIME]
GROUP BY Symbol
INTO PriceAverages""",
}
WIDE = """CREATE INPUT STREAM S (g string(4), h double, i int8, l long, u uint64, d decimal(12, 2), e decimal(38, 3),
  x double, f float, b bool, t timestamp(3)) TIMESTAMP BY t;"""
SOON = "CREATE INPUT STREAM S (k int, v int, t long) TIMESTAMP BY t IN MILLISECONDS LATENESS .004;"
TWO = """CREATE INPUT STREAM R (k int8, v int, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int8, w int, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM U (k int8, z int, t timestamp(3)) TIMESTAMP BY t;"""
QUERIES = {
    "sums": (WIDE, "SELECT sum(i) a, sum(l) b, sum(u) c, sum(d) d, sum(x) x, sum(f) f FROM S [SIZE .01 ADVANCE .004 TIME]"),
    "averages": (WIDE, "SELECT g, avg(i) a, avg(l) b, avg(d) d, avg(x) x FROM S [SIZE 5 ADVANCE 2 TUPLES] GROUP BY g"),
    "extremes": (WIDE, """SELECT b, min(l) a, max(u) m, min(d) d, max(e) e, min(x) x, max(f) f, max(g) g, min(t) t, max(i) i
        FROM S [SIZE .009 ADVANCE .003 TIME] GROUP BY b"""),
    "counts": (WIDE, "SELECT count() n, count(g) g, window_start() a, window_end() z FROM S [SIZE .006 ADVANCE .003 TIME] WHERE i > 0"),
    "positions": (WIDE, "SELECT window_start() a, window_end() z, max(l) m, count(*) n FROM S [SIZE 3 ADVANCE 2 TUPLES] WHERE i > 0"),
    "holistic": (WIDE, "SELECT median(i) a, median(d) d, median(x) x, mode(g) g, mode(x) m, mode(b) b FROM S [SIZE .01 ADVANCE .005 TIME]"),
    "weighted": (WIDE, "SELECT g, wsum(x, [.5, 2]) x, wsum(d, [-1, .25]) d, wsum(i, [1, 2, 3]) i FROM S [SIZE 6 ADVANCE 1 TUPLES] GROUP BY g"),
    "keys": (WIDE, "SELECT h, g, count() n, max(l) m FROM S [SIZE .02 ADVANCE .01 TIME] GROUP BY h, g"),
    "computed keys": (WIDE, "SELECT i % 2 AS odd, sum(l * 2) / count() AS m FROM S [SIZE 4 ADVANCE 4 TUPLES] WHERE i <> 0 GROUP BY i % 2 HAVING count() > 1"),
    "gaps": (WIDE, "SELECT sum(i) s, count() n FROM S [SIZE .002 ADVANCE .005 TIME]"),
    "tuple gaps": (WIDE, "SELECT sum(i) s, min(l) n FROM S [SIZE 2 ADVANCE 5 TUPLES]"),
    "uneven": (WIDE, "SELECT g, count() n, sum(x) s, max(l) m FROM S [SIZE .007 ADVANCE .003 TIME] GROUP BY g"),
    "contents": (WIDE, "SELECT i, l - 1 AS m FROM S [SIZE .006 ADVANCE .003 TIME] WHERE i > 0"),
    "no advance": (WIDE, "SELECT sum(i) s FROM S [SIZE 3 TUPLES]"),
    "lateness": (SOON, "SELECT k, sum(v) s, max(v) m, count() n FROM S [SIZE .01 ADVANCE .005 TIME] GROUP BY k"),
    "late extremes": (SOON, "SELECT max(v) m, min(v) n FROM S [SIZE .02 ADVANCE .002 TIME]"),
    "filtered": (WIDE, "SELECT count(*) FILTER (WHERE i > 0) n, count(g) FILTER (WHERE b) c, sum(i) FILTER (WHERE b) s, min(l) FILTER (WHERE i > 1) a, max(i) FILTER (WHERE b) z, avg(i) FILTER (WHERE i > 0) m, count() e FROM S [SIZE 4 ADVANCE 2 TUPLES]"),
    "filtered groups": (WIDE, """SELECT g, count(*) FILTER (WHERE i > 1) n, sum(i) FILTER (WHERE b) s, max(l) FILTER (WHERE i > 0) m, any(b) a, every(b) e, bool_or(i > 1) FILTER (WHERE b) k,
        count_if(b) c, count_if(i > 2) d FROM S [SIZE .009 ADVANCE .003 TIME] WHERE i <> 2 GROUP BY g"""),
    "spreads": (WIDE, """SELECT g, stddev(i) a, stddev_pop(l) p, variance(x) v, var_pop(d) FILTER (WHERE b) w, std(u) u, var_samp(e) e, any(b) o, every(b) n,
        bool_or(i > 1) FILTER (WHERE b) k, count_if(b) c, sum(x) FILTER (WHERE i > 0) s, max(DISTINCT l) m FROM S [SIZE .009 ADVANCE .003 TIME] GROUP BY g"""),
    "picks": (WIDE, """SELECT b, first(x) a, last(g) z, first(i) IGNORE NULLS i, last(e ORDER BY l) e, first(t ORDER BY g DESC NULLS LAST, i) f, max_by(g, i) m, min_by(x, l) n,
        max_by(t, b) FILTER (WHERE i > 0) k FROM S [SIZE .008 ADVANCE .004 TIME] GROUP BY b HAVING count() > 1"""),
    "picks of tuples": (WIDE, "SELECT first(x) a, last(g) z, last(l, true) FILTER (WHERE b) i, min_by(d, x) m, max_by(u, g) n FROM S [SIZE 5 ADVANCE 2 TUPLES]"),
    "distinct": (WIDE, """SELECT g, count(DISTINCT i) a, count(DISTINCT x, b) c, sum(DISTINCT i) s, avg(DISTINCT d) m, stddev(DISTINCT i) k, percentile(i, .3) p, percentile(x, .5) q,
        percentile(d, .25) FILTER (WHERE b) r, approx_percentile(l, .75) u, approx_percentile(t, .5, 100) w FROM S [SIZE .01 ADVANCE .005 TIME] GROUP BY g"""),
    "collected": (WIDE, """SELECT string_agg(g) a, listagg(g, ', ') WITHIN GROUP (ORDER BY i DESC) z, string_agg(DISTINCT g, ';') FILTER (WHERE i > 0) c, collect_list(i) i, collect_set(g) g,
        array_agg(t ORDER BY l) t, collect_list(x) FILTER (WHERE b) x, collect_list(d) d FROM S [SIZE 4 ADVANCE 3 TUPLES]"""),
    "cascade": (WIDE, """SELECT g, sum(i) AS s FROM S [SIZE .004 ADVANCE .002 TIME] GROUP BY g INTO A;
        SELECT max(s) AS m, count() AS n FROM A [SIZE .008 ADVANCE .004 TIME] INTO B;
        SELECT s, i FROM (SELECT sum(i) AS s, max(i) AS i FROM S [SIZE 2 ADVANCE 1 TUPLES]) WHERE i > 0 INTO C;
        SELECT sum(s) AS t FROM C [SIZE .01 ADVANCE .005 TIME] INTO D"""),
    "arithmetic": (WIDE, "SELECT l * l AS a, l + u AS b, (i + 1) * (i + 1) AS c, d * 1.5 AS d, x / i AS e, t - t AS z FROM S WHERE i + l > 0 OR b"),
    "constants": (WIDE, "SELECT 1 AS one, 'x' AS x, CAST(NULL AS INT) AS n FROM S WHERE NULL OR i = 1"),
    "union": (TWO, "SELECT k, v AS x FROM R WHERE v > 0 UNION SELECT k, w + 1 FROM S INTO A; SELECT k, sum(x) AS s, count() AS n FROM A [SIZE .01 ADVANCE .005 TIME] GROUP BY k INTO B; SELECT sum(x) AS s FROM A [SIZE 3 ADVANCE 2 TUPLES] INTO C"),
    "union of results": (TWO, "SELECT count() AS n FROM R [SIZE .006 ADVANCE .003 TIME] UNION SELECT v FROM R UNION ALL SELECT max(w) FROM S [SIZE 2 ADVANCE 1 TUPLES] INTO A; SELECT sum(n) AS s FROM A [SIZE 2 ADVANCE 1 TUPLES] INTO B"),
    "carried": ("""CREATE INPUT STREAM Mux (kind int8, a int, b int, t timestamp(3)) TIMESTAMP BY t;
        CREATE INPUT STREAM A (kind int8, a int, t timestamp(3)) FROM Mux WHERE kind = 1 TIMESTAMP BY t;
        CREATE INPUT STREAM B (kind int8, b int, t timestamp(3)) FROM Mux WHERE kind IN (2, -3) TIMESTAMP BY t;""",
        "SELECT sum(a) AS s FROM A [SIZE .006 ADVANCE .003 TIME] INTO X; SELECT b FROM B WHERE b > 0 INTO Y; SELECT count() AS n FROM Mux [SIZE 3 ADVANCE 3 TUPLES] INTO Z"),
}  # fmt: skip
JOINS = {
    "band": "SELECT R.k, v, w FROM R [SIZE .008 TIME], S [SIZE .005 TIME] WHERE v BETWEEN w - 10 AND w + 10",
    "equality": "SELECT R.k, v - w AS d FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES] WHERE R.k = S.k",
    "mixed": "SELECT a.v, b.w, a.v / b.w AS q FROM R [SIZE .01 TIME] AS a JOIN S [SIZE 3 TUPLES] b ON a.v > b.w",
    "three": "SELECT v, w, z FROM R [SIZE .01 TIME], S [SIZE .01 TIME], U [SIZE .006 TIME] WHERE R.k = S.k AND U.z > R.v",
    "self": "SELECT a.v, b.v AS u FROM R [SIZE .01 TIME] a, R [SIZE .004 TIME] b WHERE a.k = b.k AND a.v < b.v",
    "aggregated": """SELECT a, stddev(d) AS s, count(DISTINCT d) AS c, first(d ORDER BY d) AS f, collect_list(d ORDER BY d) AS e FROM (SELECT R.k AS a, v - w AS d FROM R [SIZE .01 TIME], S [SIZE .01 TIME]
        WHERE R.k <= S.k) [SIZE .01 ADVANCE .005 TIME] GROUP BY a""",
    "windowed": """SELECT count() AS n, max(d) AS m FROM (SELECT v - w AS d FROM R [SIZE .01 TIME], S [SIZE .01 TIME]
        WHERE R.k <= S.k) [SIZE .01 ADVANCE .005 TIME]""",
}
_JOINED = "SELECT R.k, v - w AS d FROM R [SIZE .008 TIME], S [SIZE .01 TIME] WHERE R.k <= S.k AND v > 0"
LAYERED = {
    "tuples over a join": f"SELECT sum(d) AS s, count() AS n FROM ({_JOINED}) [SIZE 3 ADVANCE 2 TUPLES]",
    "weighted over a join": f"SELECT k, wsum(d, [1, -2]) AS s FROM ({_JOINED}) [SIZE .01 ADVANCE .005 TIME] GROUP BY k",
    "of a window": "SELECT a.n, w FROM (SELECT count() AS n, k FROM R [SIZE .006 ADVANCE .003 TIME] GROUP BY k) [SIZE .01 TIME] a, S [SIZE .004 TIME] WHERE a.k <= S.k",
    "of a join": f"SELECT a.d, z FROM ({_JOINED}) [SIZE .01 TIME] a, U [SIZE .006 TIME] WHERE a.k <> U.k",
    "of a union": """SELECT k, v AS x FROM R UNION SELECT k, w FROM S INTO Both;
        SELECT x, z FROM Both [SIZE .006 TIME], U [SIZE .008 TIME] WHERE Both.k <= U.k INTO Pairs""",
    "ahead": """SELECT count() AS k, 7 AS v FROM S [SIZE .003 ADVANCE .003 TIME] INTO Counts;
        SELECT k, v FROM Counts UNION SELECT k, v FROM R INTO Both;
        SELECT x.k AS a, x.v AS b, y.k AS c FROM Both [SIZE 1 TIME] x, R [SIZE .004 TIME] y WHERE x.v - y.v >= 7 INTO Pairs""",
    "three by tuples": "SELECT v, w, z FROM R [SIZE 3 TUPLES], S [SIZE .01 TIME], U [SIZE 2 TUPLES] WHERE R.k <= S.k AND U.z > R.v",
    "backwards": "SELECT v, w FROM S [SIZE 3 TUPLES], R [SIZE 2 TUPLES] WHERE R.k <= S.k",
    "itself": "SELECT a.v, b.v AS u FROM R [SIZE 3 TUPLES] a, R [SIZE .004 TIME] b WHERE a.k <= b.k",
    "union with a join": f"""{_JOINED} UNION SELECT k, z FROM U INTO All;
        SELECT count() AS n, max(d) AS m FROM All [SIZE .01 ADVANCE .005 TIME] INTO Counts""",
}  # fmt: skip
"""Joins below windows and above them, of unions, of joins, of several by tuples: streams of these run in one task on Spark."""
ALL = """CREATE INPUT STREAM S (g string(4), h double, i int8, l long, u uint64, d decimal(12, 2), e decimal(38, 3), x double,
  f float, b bool, y binary, a date, s timestamp(3), t timestamp(3)) TIMESTAMP BY t;"""
UNEQUAL = """CREATE INPUT STREAM R (k int8, v int, c string(2), d decimal(5, 2), t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int16, w long, c string(6), d decimal(20, 4), x double, t timestamp(6)) TIMESTAMP BY t;"""
ODD = {
    "decimal keys": ALL + "SELECT d, e, count() n, max(l) m FROM S [SIZE .01 ADVANCE .005 TIME] GROUP BY d, e",
    "binary keys": ALL + "SELECT y, a, b, count() n, sum(x) m FROM S [SIZE 6 ADVANCE 2 TUPLES] GROUP BY y, a, b",
    "time keys": ALL + "SELECT s, t, count() n, max(f) m FROM S [SIZE .02 ADVANCE .01 TIME] GROUP BY s, t",
    "float keys": ALL + "SELECT h, f, count() n, avg(f) m FROM S [SIZE 5 ADVANCE 1 TUPLES] GROUP BY h, f",
    "keys by case": ALL + """SELECT CASE WHEN i > 0 THEN g WHEN i = 0 THEN 'zero' END AS k, count() n, mode(g) m
        FROM S [SIZE .01 ADVANCE .005 TIME] GROUP BY CASE WHEN i > 0 THEN g WHEN i = 0 THEN 'zero' END""",
    "more weights than tuples": ALL + "SELECT g, wsum(x, [1, .5, .25, 2, 3, 4, 5]) a, wsum(i, [1, 2, 3, 4]) c FROM S [SIZE 3 ADVANCE 1 TUPLES] GROUP BY g",
    "few weights": ALL + "SELECT wsum(x, [2]) a, wsum(l, [1, -1]) c, wsum(d, [.001]) z, wsum(u, [3, .5]) w FROM S [SIZE .01 ADVANCE .003 TIME]",
    "gaps between groups": ALL + "SELECT g, sum(i) s, max(x) m, avg(d) a FROM S [SIZE .003 ADVANCE .011 TIME] GROUP BY g",
    "nothing selected": ALL + "SELECT count() n, sum(x) s, max(g) g, avg(d) e, median(d) d, mode(g) y FROM S [SIZE .01 ADVANCE .005 TIME] WHERE i > 100",
    "middles": ALL + "SELECT g, median(l) a, median(u) b, median(f) f, mode(h) h, mode(d) d, mode(s) s FROM S [SIZE .01 ADVANCE .005 TIME] GROUP BY g",
    "five in a row": ALL + """SELECT g, sum(l) AS q, max(t) AS z FROM S [SIZE .004 ADVANCE .002 TIME] GROUP BY g INTO A;
        SELECT g, max(q) AS m, count() n FROM A [SIZE 3 ADVANCE 1 TUPLES] GROUP BY g INTO B; SELECT g, n FROM B WHERE m > 0 INTO C;
        SELECT count() c, min(n) n FROM C [SIZE .01 ADVANCE .01 TIME] INTO D; SELECT avg(c) z FROM D [SIZE 2 ADVANCE 3 TUPLES] INTO E""",
    "filters": ALL + "SELECT i, g FROM S WHERE g IN ('UBSN', 'ü') AND i IN (1, 2, 127) OR g = 'CSGN' AND h IN (0.0, 1.5)",
    "union of widths": UNEQUAL + """SELECT k, v AS n, c, d FROM R UNION SELECT k, w, c, d FROM S INTO A;
        SELECT c, sum(n) s, max(d) m, count() z FROM A [SIZE .01 ADVANCE .005 TIME] GROUP BY c INTO B;
        SELECT d, count() n FROM A [SIZE 4 ADVANCE 3 TUPLES] GROUP BY d INTO C""",
    "union with floats": UNEQUAL + "SELECT v AS n FROM R UNION SELECT x FROM S INTO A; SELECT max(n) m, sum(n) s FROM A [SIZE .01 ADVANCE .005 TIME] INTO B",
    "union of windows": UNEQUAL + """SELECT c, count() n FROM R [SIZE .005 ADVANCE .005 TIME] GROUP BY c UNION SELECT c, sum(w) FROM S [SIZE 3 ADVANCE 2 TUPLES] GROUP BY c INTO A;
        SELECT c, max(n) m FROM A [SIZE .02 ADVANCE .01 TIME] GROUP BY c INTO B""",
}  # fmt: skip
"""Kinds of keys and ends of ranges that the others leave out."""
ODD_JOINS = {
    "texts": UNEQUAL + "SELECT R.k, v, w, R.c FROM R [SIZE .008 TIME], S [SIZE .005 TIME] WHERE R.c = S.c",
    "decimals": UNEQUAL
    + "SELECT R.d a, S.d b, v FROM R [SIZE 3 TUPLES], S [SIZE 4 TUPLES] WHERE R.d <= S.d AND R.k <> S.k",
    "by case": UNEQUAL
    + "SELECT v, w, x FROM R [SIZE .01 TIME], S [SIZE .01 TIME] WHERE CASE WHEN R.k > 0 THEN x > 1 ELSE w = 0 END",
    "of a window": UNEQUAL
    + "SELECT sum(v) AS z FROM R [SIZE .006 ADVANCE .003 TIME] INTO A; SELECT z, w FROM A [SIZE .01 TIME], S [SIZE .01 TIME] WHERE z > w INTO B",
}

WINDOWS = {
    "sessions": SOON + "SELECT k, count() n, sum(v) s, window_start() a, window_end() b FROM S [SESSION 3 MILLISECONDS] GROUP BY k",
    "sessions of all": SOON + "SELECT count() n, max(v) m, avg(v) a, window_start() s FROM S [SESSION .002] WHERE v > 3",
    "sessions of some": WIDE + """SELECT h, count(x) n, sum(x) s, min(u) u, max(g) g FROM S [SESSION .004 SECONDS] WHERE i <> 1 GROUP BY h
        HAVING count() < 5""",
    "session contents": SOON + "SELECT v, t FROM S [SESSION 2 ms] WHERE v <> 0",
    "holistic sessions": WIDE + "SELECT g, i % 2 AS odd, median(d) m, mode(x) o, wsum(l, [1, -.5]) w FROM S [SESSION 5 ms] GROUP BY g, i % 2",
    "aggregates of sessions": WIDE + """SELECT g, first(l) f, last(x) l, max_by(i, d) b, stddev(d) s, variance(i) v, count(DISTINCT i) c,
        sum(x) FILTER (WHERE i > 0) p, string_agg(g, ',') t, every(b) e FROM S [SESSION 4 ms] WHERE u < 9 GROUP BY g""",
    "states of sessions": WIDE + """SELECT b, first(l) f, last(x ORDER BY i) l, max_by(i, d) y, stddev(d) s, variance(i) v,
        sum(x) FILTER (WHERE i > 0) p, every(b) e, max(e) m FROM S [SESSION 4 ms] WHERE u < 9 GROUP BY b""",
    "sessions of a union": TWO + """SELECT k, v FROM R UNION SELECT k, w FROM S INTO A;
        SELECT k, count() n, sum(v) s, window_end() e FROM A [SESSION 3 ms] GROUP BY k INTO B""",
    "sessions in layers": SOON + """SELECT k, sum(v) AS s, count() AS n FROM S [SIZE .004 ADVANCE .002 TIME] GROUP BY k INTO A;
        SELECT k, max(s) AS m, count() AS n FROM A [SESSION 1 ms] GROUP BY k INTO B; SELECT k, n FROM B WHERE k > 0 INTO D;
        SELECT count() AS n, sum(n) AS s FROM B [SIZE .01 ADVANCE .005 TIME] INTO C""",
    "sessions of a join": TWO + """SELECT R.k, v, w FROM R [SIZE .005 TIME], S [SIZE .004 TIME] WHERE R.k = S.k INTO J;
        SELECT k, count() n, max(v) m, min(w) l FROM J [SESSION 2 ms] GROUP BY k INTO Z""",
    "offset": SOON + "SELECT k, count() n, max(v) m, window_start() a FROM S [HOP 2 ms SIZE 5 ms OFFSET 1 ms] WHERE v <> 3 GROUP BY k",
    "from the first": SOON + "SELECT count() n, sum(v) s, window_start() a, window_end() b FROM S [TUMBLE 4 ms OFFSET FIRST] WHERE v > 2",
    "grouped from the first": SOON + "SELECT k, median(v) s, window_start() a FROM S [HOP 2 ms SIZE 5 ms OFFSET FIRST] WHERE v > 2 GROUP BY k",
    "cumulating": SOON + "SELECT k, count() n, sum(v) s, min(v) m, window_start() a, window_end() b FROM S [CUMULATE 2 ms SIZE 6 ms OFFSET -1 ms] GROUP BY k",
    "cumulating from the first": SOON + "SELECT count() n, median(v) m, window_end() b FROM S [CUMULATE 3 ms SIZE 9 ms OFFSET FIRST]",
    "partial": WIDE + "SELECT g, count() n, sum(x) s, max(l) m, window_start() a FROM S [SIZE 5 ADVANCE 2 TUPLES PARTIAL] GROUP BY g",
    "partial in layers": SOON + """SELECT count() AS n, wsum(v, [1, 2]) AS w, window_start() AS a, window_end() AS b FROM S [SIZE 4 ROWS PARTIAL] INTO A;
        SELECT count() AS n, sum(n) AS s FROM A [SIZE .01 ADVANCE .005 TIME] INTO B; SELECT max(n) AS m FROM A [TUMBLE 3 TUPLES PARTIAL] INTO C""",
}  # fmt: skip
"""Windows beside those with SIZE and ADVANCE."""
NOW = {
    "now by time": TWO + "SELECT R.k, v, w FROM R [NOW], S [SIZE .005 TIME] WHERE R.k <= S.k AND v > 0",
    "now by arrival": TWO + "SELECT R.k, v, w FROM R [SIZE 3 TUPLES], S [NOW] WHERE R.k <= S.k AND w < 90",
    "now of three": TWO + "SELECT v, w, z FROM R [SIZE 3 TUPLES], S [NOW], U [SIZE .009 TIME] WHERE R.k <= S.k AND S.k <= U.k",
    "now of three by arrival": TWO + "SELECT v, w, z FROM R [SIZE 3 TUPLES], S [NOW], U [SIZE 4 ROWS] WHERE R.k <= S.k AND S.k <= U.k",
    "now and now": TWO + "SELECT v, w FROM R [NOW], S [NOW] WHERE R.k <> S.k",
    "now in layers": TWO + """SELECT k, max(v) AS v FROM R [SIZE .006 ADVANCE .003 TIME] GROUP BY k INTO A;
        SELECT S.k, v, w FROM S [NOW], A [SIZE .01 TIME] WHERE S.k = A.k INTO B; SELECT k, count() n FROM B [SESSION 2 ms] GROUP BY k INTO C""",
}  # fmt: skip
"""Joins of a stream that has no window of its own."""
KINDS = {
    "left": "SELECT R.k, v, w FROM R [SIZE .006 TIME] LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k AND v > 3",
    "right outer": "SELECT * FROM R [SIZE .004 TIME] RIGHT OUTER JOIN S [SIZE .006 TIME] ON v BETWEEN w - 10 AND w + 10",
    "full": "SELECT R.k a, S.k b, v, w FROM R [SIZE .005 TIME] FULL OUTER JOIN S [SIZE .003 TIME] ON R.k = S.k AND v > w AND w > 0",
    "left semi": "SELECT * FROM R [SIZE .008 TIME] LEFT SEMI JOIN S [SIZE .005 TIME] ON R.k <= S.k AND v < w",
    "right semi": "SELECT k, w + 1 AS u FROM R [SIZE .008 TIME] RIGHT SEMI JOIN S [SIZE .005 TIME] ON v < w WHERE k > 0",
    "anti": "SELECT * FROM R [SIZE .006 TIME] ANTI JOIN S [SIZE .005 TIME] ON R.k = S.k",
    "right anti": "SELECT k, w FROM R [SIZE .006 TIME] RIGHT ANTI JOIN S [SIZE .005 TIME] ON R.k = S.k AND w > v",
    "by tuples": "SELECT R.k, v, w FROM R [SIZE 3 TUPLES] FULL JOIN S [SIZE 2 TUPLES] ON R.k = S.k",
    "mixed windows": "SELECT R.k, v, w FROM R [SIZE 2 TUPLES] FULL JOIN S [SIZE .005 TIME] ON R.k <= S.k AND v > w",
    "semi by tuples": "SELECT v FROM R [SIZE 3 TUPLES] SEMI JOIN S [SIZE .01 TIME] ON R.k = S.k",
    "left of now": "SELECT v, w FROM R [NOW] LEFT JOIN S [SIZE .004 TIME] ON R.k <= S.k",
    "full of now by arrival": "SELECT v, w FROM R [SIZE 3 TUPLES] FULL JOIN S [NOW] ON R.k <= S.k",
    "selected": "SELECT v, w FROM R [SIZE .006 TIME] LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k WHERE v > 2 AND (w IS NULL OR w < 50)",
    "itself outer": "SELECT a.v, b.v AS u FROM R [SIZE .006 TIME] a LEFT JOIN R [SIZE .004 TIME] b ON a.k = b.k AND a.v < b.v",
    "windows over left": """SELECT k, count() AS n, count(w) AS m, sum(v) AS s, window_end() AS e FROM (SELECT R.k, v, w FROM R [SIZE .006 TIME]
        LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k AND v > 3) [SIZE .006 ADVANCE .003 TIME] GROUP BY k""",
    "windows over anti": """SELECT count() AS n, max(v) AS m FROM (SELECT * FROM R [SIZE 2 TUPLES] ANTI JOIN S [SIZE .004 TIME] ON R.k = S.k) [SIZE .006 ADVANCE .003 TIME]""",
    "tuples over semi": """SELECT sum(v) AS s, window_end() AS e FROM (SELECT * FROM R [SIZE .006 TIME] SEMI JOIN S [SIZE .006 TIME] ON R.k = S.k) [SIZE 2 TUPLES];
        SELECT max(v) AS s, count() AS n FROM (SELECT * FROM R [SIZE .006 TIME] SEMI JOIN S [SIZE .006 TIME] ON R.k = S.k) [SIZE .005 ADVANCE .005 TIME] INTO B""",
    "sessions over full": """SELECT k, count() AS n, max(v) AS m, window_end() AS e FROM (SELECT COALESCE(R.k, S.k) AS k, v, w FROM R [SIZE .004 TIME]
        FULL JOIN S [SIZE .003 TIME] ON R.k = S.k) [SESSION 2 ms] GROUP BY k""",
    "outer of windows": """SELECT count() AS n, k FROM R [SIZE .006 ADVANCE .003 TIME] GROUP BY k INTO A;
        SELECT n, A.k, w FROM A [SIZE .006 TIME] FULL JOIN S [SIZE .004 TIME] ON A.k = S.k INTO B;
        SELECT count() AS n, sum(w) AS s FROM B [SIZE 3 ADVANCE 2 TUPLES] INTO C""",
    "outer of a join": """SELECT R.k, v - w AS d FROM R [SIZE .008 TIME], S [SIZE .01 TIME] WHERE R.k <= S.k INTO P;
        SELECT d, z, U.k FROM P [SIZE .004 TIME] RIGHT JOIN U [SIZE .006 TIME] ON P.k = U.k INTO Q""",
    "anti of outer": """SELECT R.k, w FROM R [SIZE .004 TIME] LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k INTO P;
        SELECT * FROM P [SIZE .004 TIME] ANTI JOIN U [SIZE .004 TIME] ON P.k = U.k INTO Q""",
    "never": "SELECT v, w FROM R [SIZE .004 TIME] LEFT JOIN S [SIZE .004 TIME] ON 1 = 2",
    "always": "SELECT v, w FROM R [SIZE .003 TIME] FULL JOIN S [SIZE .003 TIME] ON TRUE",
}  # fmt: skip
"""Joins of all kinds, of the streams of TWO."""
ASOF = {
    "backward": "SELECT R.k, v, w, S.t FROM R LEFT ASOF JOIN S [SIZE .008 TIME] MATCH_CONDITION (R.t >= S.t) ON R.k = S.k",
    "before": "SELECT R.k, v, w FROM R [SIZE 1 s] ASOF JOIN S [SIZE .006 TIME] MATCH_CONDITION (R.t > S.t) ON R.k = S.k AND w > 0 AND v > 0",
    "forward": "SELECT v, w FROM R [SIZE .007 TIME] ASOF LEFT OUTER JOIN S MATCH_CONDITION (S.t >= R.t) ON R.k <= S.k WHERE v > 0",
    "after": "SELECT v, w FROM R [SIZE .004 TIME] a INNER ASOF JOIN S b MATCH_CONDITION (a.t < b.t) ON a.v BETWEEN b.w - 9 AND b.w + 9 WHERE w <> 0",
    "any key": "SELECT v, w FROM R LEFT OUTER ASOF JOIN S [SIZE .005 TIME] MATCH_CONDITION (R.t >= S.t) WHERE w IS NULL OR w < 9",
    "itself": "SELECT a.v, b.v AS u FROM R a LEFT ASOF JOIN R [SIZE .01 TIME] b MATCH_CONDITION (a.t > b.t) ON a.k = b.k",
    "two": """SELECT v, w, z FROM R LEFT ASOF JOIN S [SIZE .006 TIME] MATCH_CONDITION (R.t >= S.t) ON R.k = S.k
        LEFT ASOF JOIN U [SIZE .009 TIME] MATCH_CONDITION (R.t >= U.t) ON U.k <> R.k AND (w IS NULL OR w > z)""",
    "windows over it": """SELECT count() AS n, sum(d) AS s FROM (SELECT v - w AS d FROM R LEFT ASOF JOIN S [SIZE .008 TIME]
        MATCH_CONDITION (R.t >= S.t) ON R.k = S.k) [SIZE .006 ADVANCE .003 TIME]""",
    "windows ahead": """SELECT count() AS n, max(w) AS s FROM (SELECT v, w FROM R [SIZE .005 TIME] LEFT ASOF JOIN S
        MATCH_CONDITION (R.t <= S.t) ON R.k = S.k) [SIZE .006 ADVANCE .003 TIME]""",
    "a join of it": """SELECT v, w, z FROM (SELECT R.k AS k, v, w FROM R [SIZE .004 TIME] LEFT ASOF JOIN S MATCH_CONDITION (R.t <= S.t)
        ON R.k = S.k) [SIZE .01 TIME] x LEFT JOIN U [SIZE .01 TIME] ON x.k = U.k""",
    "part of a stream": """SELECT v, x FROM R LEFT ASOF JOIN (SELECT k, w + 1 AS x, t AS u FROM S WHERE w > 0) [SIZE .009 TIME] c
        MATCH_CONDITION (c.u <= R.t) ON c.k = R.k""",
    "a union": """SELECT k, w AS x, t FROM S UNION SELECT k, z, t FROM U INTO Both;
        SELECT v, x FROM R LEFT ASOF JOIN Both [SIZE .008 TIME] MATCH_CONDITION (R.t >= Both.t) ON R.k = Both.k INTO Found""",
}
CHAINS = {
    "left left": "SELECT R.k, v, w, z FROM R [SIZE .006 TIME] LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k LEFT JOIN U [SIZE .005 TIME] ON R.k = U.k",
    "left left of the second": "SELECT v, w, z FROM R [SIZE .006 TIME] LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k LEFT JOIN U [SIZE .003 TIME] ON S.k = U.k AND z > 0 WHERE v > 2",
    "inner left": "SELECT v, w, z FROM R [SIZE .006 TIME] JOIN S [SIZE .004 TIME] ON R.k <= S.k LEFT JOIN U [SIZE .003 TIME] ON S.k = U.k",
    "full right": "SELECT v, w, z FROM R [SIZE .003 TIME] FULL JOIN S [SIZE .004 TIME] ON R.k = S.k RIGHT JOIN U [SIZE .003 TIME] ON S.k = U.k OR R.k = U.k",
    "semi anti": "SELECT * FROM R [SIZE .006 TIME] SEMI JOIN S [SIZE .004 TIME] ON R.k = S.k ANTI JOIN U [SIZE .004 TIME] ON R.k = U.k",
    "left inner": "SELECT v, w, z FROM R [SIZE .004 TIME] LEFT JOIN S [SIZE .004 TIME] ON R.k = S.k JOIN U [SIZE .005 TIME] ON R.k = U.k AND w IS NULL",
    "four": "SELECT R.v, w, z, x.v AS y FROM R [SIZE .004 TIME] LEFT JOIN S [SIZE .003 TIME] ON R.k = S.k LEFT JOIN U [SIZE .003 TIME] ON R.k = U.k LEFT JOIN R [NOW] x ON x.k = U.k",
}  # fmt: skip
"""Chains of joins that are not all inner joins, of the streams of TWO."""
