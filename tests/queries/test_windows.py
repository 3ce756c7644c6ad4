"""Sessions and other windows on the local engine, against the oracle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.operators import sessions
from handshake.operators.query import Query
from handshake.plan.query import parse_query
from query_backends import Local, check
from query_cases import NOW
from query_cases import WINDOWS as OTHERS
from query_streams import arrivals

WINDOWS = OTHERS | NOW
FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))


def prove(text: str, data: st.DataObject, **options: Any) -> None:
    """Check that the local engine gives what the oracle gives for any streams in any batches."""
    plan = parse_query(text)
    check(Local(), plan, [data.draw(arrivals(plan, **options))], data.draw)


@pytest.mark.parametrize("name", WINDOWS)
@FEW
@given(data=st.data())
def test_windows(name: str, data: st.DataObject) -> None:
    prove(WINDOWS[name], data, most=12 if name in NOW or "join" in name else 28)


@pytest.mark.soak
@pytest.mark.parametrize("name", WINDOWS)
@settings(FEW, max_examples=2000)
@given(data=st.data())
def test_windows_at_length(name: str, data: st.DataObject) -> None:
    prove(WINDOWS[name], data, most=12 if name in NOW or "join" in name else 28)


@settings(FEW, max_examples=4)
@given(data=st.data())
def test_groups_without_sessions_are_forgotten(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_MANY_GROUPS", 2)
        prove(WINDOWS["sessions of some"], data, most=40)


TICKS = "CREATE INPUT STREAM S (k int, t long) TIMESTAMP BY t LATENESS 20; "


def push_times(text: str, *batches: list[int]) -> tuple[list[Any], Query]:
    """Push rows of one key; return the rows of the result and the query."""
    query, found = Query(TICKS + text), list[Any]()
    for times in batches:
        found += query.push("S", {"k": [1] * len(times), "t": times})["result"]
    found += query.finish()["result"]
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()], query


BOUNDS = "SELECT window_start() AS a, window_end() AS b, count() AS n FROM S [SESSION 10]"


def test_rows_exactly_a_gap_apart_are_in_one_session() -> None:
    rows, _ = push_times(BOUNDS, [0, 10, 19, 30, 41])
    assert rows == [(0, 29, 3), (30, 40, 1), (41, 51, 1)]


def test_a_row_in_between_merges_sessions() -> None:
    rows, query = push_times(BOUNDS, [0], [18], [9, 40])
    assert rows == [(0, 28, 3), (40, 50, 1)]
    assert query.metrics().windows == 2


def test_a_session_closes_once_no_row_can_join_it() -> None:
    query = Query(TICKS + BOUNDS)
    assert query.push("S", {"k": [1], "t": [0]})["result"] == []
    assert query.push("S", {"k": [1], "t": [30]})["result"] == []  # the clock shows 10, and 10 still joins
    (batch,) = query.push("S", {"k": [1], "t": [31]})["result"]
    assert batch.to_pylist() == [{"a": 0, "b": 10, "n": 1}]


def test_late_rows_are_in_no_session() -> None:
    rows, query = push_times(BOUNDS, [0, 100, 70], [69, 80, 79])
    assert rows == [(0, 10, 1), (70, 90, 3), (100, 110, 1)]
    assert query.metrics().late == 1


def test_closed_sessions_are_not_kept() -> None:
    text = "SELECT k, count() AS n, max(t) AS m FROM S [SESSION 5] GROUP BY k"
    query = Query(TICKS + text)
    for turn in range(30):
        numbers = pa.array(range(1000 * turn, 1000 * turn + 1000))
        query.push("S", {"k": numbers.cast(pa.int32()), "t": numbers})
    operator = next(op for op, _ in query._steps if isinstance(op, sessions.SessionOperator))
    assert len(operator._starts) < 50
    assert len(operator._index) < 10_000
    query.finish()
    assert query.metrics().results == {"result": 30_000}


LIMIT = 2**62


@pytest.mark.parametrize(
    ("window", "size", "every", "offset"),
    [
        ("TUMBLE 10 OFFSET 3", 10, 10, 3),
        ("HOP 7 SIZE 9 OFFSET -1", 9, 7, -1),
        ("CUMULATE 5 SIZE 10 OFFSET 9", 10, 10, 9),
        ("TUMBLE 9999999999 OFFSET 9999999998", 9999999999, 9999999999, -1),
    ],
)
def test_windows_of_the_first_and_the_last_times(window: str, size: int, every: int, offset: int) -> None:
    text = f"SELECT window_start() AS a, max(t) AS t FROM S [{window}]"
    rows, query = push_times(text, [1 - LIMIT, LIMIT - 1])
    assert query.metrics().late == 0
    assert {t for _, t in rows} == {1 - LIMIT, LIMIT - 1}
    assert all(start <= t < start + size for start, t in rows)
    assert all((start - offset) % every == 0 for start, _ in rows)


def test_sessions_of_the_first_and_the_last_times() -> None:
    rows, _ = push_times(BOUNDS, [1 - LIMIT, LIMIT - 1])
    assert rows == [(1 - LIMIT, 11 - LIMIT, 1), (LIMIT - 1, LIMIT + 9, 1)]


def test_a_filter_of_the_query_does_not_move_the_first_window() -> None:
    text = "SELECT k, window_start() AS a FROM S [TUMBLE 10 OFFSET FIRST] WHERE t > 5 GROUP BY k"
    rows, _ = push_times(text, [3, 9, 14])
    assert rows == [(1, 3), (1, 13)]
