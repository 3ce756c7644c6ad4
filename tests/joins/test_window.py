"""Windows: how they are read, errors in them, and which rows join, are late or have expired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from handshake.errors import HandshakeError, WindowError
from handshake.joins.join import MultiReplay, prepare_streams
from handshake.plan import bind, parse
from handshake.schema import UNITS
from handshake.testing.oracle import TIME, join
from handshake.windows import (
    Duration,
    Time,
    TimeWindow,
    Tuples,
    TupleWindow,
    Window,
    Windows,
    is_late,
    parse_window,
    watermark,
    windows_of,
)
from strategies import make_windows, scope_of, windows

SECOND = 10**9

DURATIONS = [
    ("15 minutes", 900 * SECOND),
    ("900s", 900 * SECOND),
    ("1h30m", 5400 * SECOND),
    ("1 minute 30 seconds", 90 * SECOND),
    ("1.5 seconds", 1_500_000_000),
    ("0.001 us", 1),
    ("10ns", 10),
    ("3 µs", 3000),
    ("3 microseconds", 3000),
    ("2 MS", 2_000_000),
    ("1 hr", 3600 * SECOND),
    ("2 days", 2 * 86_400 * SECOND),
    ("1 week", 7 * 86_400 * SECOND),
    ("1w -1d", 6 * 86_400 * SECOND),
    (" 5 sec ", 5 * SECOND),
]


@pytest.mark.parametrize(("text", "nanoseconds"), DURATIONS)
def test_durations(text: str, nanoseconds: int) -> None:
    assert Duration.parse(text) == Duration(nanoseconds)


@pytest.mark.parametrize(
    "text", ["", " ", "soon", "5", "5 parsecs", "s", "1.5", "0.5 ns", "5 seconds!", "1 2 s"]
)
def test_unreadable_durations(text: str) -> None:
    with pytest.raises(WindowError) as error:
        Duration.parse(text)
    assert str(error.value) == (
        f"cannot read '{text}' as a length of time; write a number and a unit, "
        "such as '15 minutes', '900s' or '1h30m' (ns, us, ms, s, min, h, d)"
    )


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (86_400 * SECOND, "1 day"),
        (2 * 86_400 * SECOND, "2 days"),
        (5400 * SECOND, "90 minutes"),
        (3600 * SECOND, "1 hour"),
        (SECOND, "1 second"),
        (1_500_000_000, "1500 ms"),
        (1, "1 ns"),
        (0, "0 ns"),
    ],
)
def test_durations_as_text(nanoseconds: int, text: str) -> None:
    assert str(Duration(nanoseconds)) == text
    assert Duration.parse(text) == Duration(nanoseconds)


@given(st.integers(1, 10**18))
def test_a_duration_survives_its_text(nanoseconds: int) -> None:
    assert Duration.parse(str(Duration(nanoseconds))) == Duration(nanoseconds)


WINDOWS = [
    ("15 minutes", TimeWindow(900 * SECOND)),
    ("1000 tuples", TupleWindow(1000)),
    ("1_000 rows", TupleWindow(1000)),
    ("1 tuple", TupleWindow(1)),
    ("1 ROW", TupleWindow(1)),
    ("10tuples", TupleWindow(10)),
]


@pytest.mark.parametrize(("text", "window"), WINDOWS)
def test_windows_from_text(text: str, window: Window) -> None:
    assert parse_window(text) == window


MISTAKES: list[tuple[Any, str]] = [
    (lambda: parse_window("10"), "window '10' has no unit; write '10 seconds' or '10 tuples'"),
    (lambda: parse_window("0 tuples"), "a tuple window must hold at least one tuple; 0 does not"),
    (lambda: parse_window("-3 rows"), "a tuple window must hold at least one tuple; -3 does not"),
    (lambda: parse_window("0 s"), "a time window must be longer than zero; '0 s' is not"),
    (lambda: parse_window("-1 min"), "a time window must be longer than zero; '-1 min' is not"),
    (lambda: Time(), "Time() needs a size, such as Time('15 minutes')"),
    (lambda: Tuples(), "Tuples() needs a size, such as Tuples(1000)"),
    (lambda: Time(5), "a time window takes a text such as '15 minutes', not 5"),
    (lambda: Tuples(1.5), "a tuple window takes a whole number of tuples, not 1.5"),
    (lambda: Tuples(True), "a tuple window takes a whole number of tuples, not True"),
    (lambda: Tuples(left=0), "a tuple window must hold at least one tuple; 0 does not"),
    (lambda: windows_of(5), "a window is Time(…), Tuples(…), a text or None, not 5"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(WindowError) as error:
        make()
    assert str(error.value) == message
    assert isinstance(error.value, HandshakeError)


def test_windows_of_both_sides() -> None:
    minute, ten = TimeWindow(60 * SECOND), TupleWindow(10)
    assert windows_of() == Windows(None, None)
    assert windows_of("1 minute") == Windows(minute, minute)
    assert windows_of("1 minute", right="10 tuples") == Windows(minute, ten)
    assert windows_of(left=Tuples(10)) == Windows(ten, None)
    assert windows_of(Time(left="1 minute")) == Windows(minute, None)
    assert windows_of(Time("1 minute", right="2 s")) == Windows(minute, TimeWindow(2 * SECOND))
    assert windows_of(minute, right=Time(left="5 s")) == Windows(minute, None)


def test_what_windows_need() -> None:
    assert (windows_of().timed, windows_of().counted) == (False, False)
    both = windows_of("1 s", right="1 tuple")
    assert (both.timed, both.counted) == (True, True)


def test_windows_as_text() -> None:
    assert str(windows_of()) == "none"
    assert str(windows_of("15 minutes")) == "15 minutes"
    assert str(windows_of("1 s", right="5 tuples")) == "left 1 second, right 5 tuples"
    assert str(windows_of(left="1 s")) == "left 1 second, right unbounded"


def test_reach_is_strict_for_time() -> None:
    assert TimeWindow(SECOND).reach("ns") == SECOND - 1
    assert TimeWindow(SECOND).reach("s") == 0
    assert TimeWindow(SECOND + 1).reach("s") == 1
    assert TimeWindow(1).reach("d") == 0
    assert TupleWindow(7).reach("s") == 7


def test_rules_name_their_stamps() -> None:
    assert TimeWindow(3 * SECOND).rule("s") == ("time", "time", 2)
    assert TupleWindow(3).rule("s") == ("own", "other", 3)
    assert (TimeWindow(1).capacity, TupleWindow(7).capacity) == (None, 7)


def test_the_watermark_is_that_of_the_slower_stream() -> None:
    assert watermark([None, 5], 0) is None
    assert watermark([5, None], 0) is None
    assert watermark([10, 7], 2) == 5
    assert watermark([10, 7, 3], 2) == 1
    assert not is_late(5, 5)
    assert is_late(4, 5)


# Against the oracle.


@dataclass(frozen=True)
class Stamp:
    """The stamps of a row: its time, its position, and how many rows of the other stream came before it."""

    time: int
    own: int
    other: int


def stamp(arrivals: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Stamp]]:
    """Turn (side, time) in arrival order into stamped rows."""
    seen = {"left": 0, "right": 0}
    for side, time in arrivals:
        yield side, Stamp(time, seen[side], seen["right" if side == "left" else "left"])
        seen[side] += 1


def joins(r: Stamp, s: Stamp, chosen: Windows, unit: str = "ns") -> bool:
    """Return whether a left and a right row are in each other's windows, by the rules."""
    return holds(chosen.left, r, s, unit) and holds(chosen.right, s, r, unit)


def holds(window: Window | None, member: Stamp, other: Stamp, unit: str) -> bool:
    if window is None:
        return True
    rule = window.rule(unit)
    return bool(rule.holds(getattr(member, rule.held), getattr(other, rule.asked)))


def arrivals_of(rng: Random, size: int) -> list[tuple[str, int]]:
    return [(rng.choice(("left", "right")), rng.randint(0, 12)) for _ in range(size)]


def oracle_pairs(arrivals: list[tuple[str, int]], chosen: Windows, unit: str, **options: Any) -> Any:
    """Return the oracle's answer for (side, time in `unit`) in arrival order."""
    sides: dict[str, list[dict[str, int]]] = {"left": [], "right": []}
    order = []
    for side, moment in arrivals:
        order.append((side, len(sides[side])))
        sides[side].append({TIME: moment * UNITS[unit]})
    empty = pa.schema({})
    always = bind(parse("TRUE"), scope_of(empty, empty))
    return join(
        sides["left"],
        sides["right"],
        always,
        chosen,
        arrivals=order,
        left_time=TIME,
        right_time=TIME,
        **options,
    )


def stamps_of(arrivals: list[tuple[str, int]]) -> tuple[list[Stamp], list[Stamp]]:
    stamps = list(stamp(arrivals))
    return [s for side, s in stamps if side == "left"], [s for side, s in stamps if side == "right"]


seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 20)


@settings(max_examples=200, deadline=None)
@given(seeds, sizes, windows(tick=10**6), st.sampled_from(("ms", "us")))
def test_joins_is_the_rule_of_the_oracle(seed: int, size: int, chosen: Windows, unit: str) -> None:
    arrivals = arrivals_of(Random(seed), size)
    left, right = stamps_of(arrivals)
    found = [(i, j) for i, r in enumerate(left) for j, s in enumerate(right) if joins(r, s, chosen, unit)]
    assert found == oracle_pairs(arrivals, chosen, unit).pairs


@settings(max_examples=200, deadline=None)
@given(seeds, sizes, st.integers(0, 8))
def test_late_is_the_rule_of_the_oracle(seed: int, size: int, lateness: int) -> None:
    arrivals = arrivals_of(Random(seed), size)
    newest: dict[str, int | None] = {"left": None, "right": None}
    late = 0
    for side, moment in arrivals:
        mark = watermark([newest["left"], newest["right"]], lateness)
        late += mark is not None and is_late(moment, mark)
        newest[side] = moment if newest[side] is None else max(moment, newest[side])
    assert late == oracle_pairs(arrivals, windows_of("5 ns"), "ns", lateness=lateness).late


@settings(max_examples=200, deadline=None)
@given(seeds, sizes)
def test_expired_tuples_join_nothing_that_comes_later(seed: int, size: int) -> None:
    rng = Random(seed)
    chosen = make_windows(rng, tick=3)
    arrivals = sorted(arrivals_of(rng, size), key=lambda arrival: arrival[1])
    stamps = list(stamp(arrivals))
    for now, (_, newest) in enumerate(stamps):
        for side, old in stamps[:now]:
            window = chosen.left if side == "left" else chosen.right
            if window is not None and is_expired(old, window, newest.time, count(stamps[:now], side)):
                later = [other for whose, other in stamps[now:] if whose != side]
                assert not any(meet(side, old, other, chosen) for other in later)


def count(stamps: list[tuple[str, Stamp]], side: str) -> int:
    return sum(whose == side for whose, _ in stamps)


def is_expired(old: Stamp, window: Window, mark: int, seen: int, unit: str = "ns") -> bool:
    rule = window.rule(unit)
    oldest = rule.oldest(mark, seen)
    return oldest is not None and getattr(old, rule.held) < oldest


def meet(side: str, old: Stamp, other: Stamp, chosen: Windows) -> bool:
    return joins(old, other, chosen) if side == "left" else joins(other, old, chosen)


def test_expiry_is_not_early() -> None:
    old = Stamp(time=10, own=4, other=4)
    assert not is_expired(old, TimeWindow(3), 12, 0)
    assert is_expired(old, TimeWindow(3), 13, 0)
    assert not is_expired(old, TupleWindow(3), 0, 7)
    assert is_expired(old, TupleWindow(3), 0, 8)
    assert not is_expired(old, TimeWindow(3 * SECOND), 12, 0, "s")
    assert is_expired(old, TimeWindow(3 * SECOND), 13, 0, "s")
    assert TimeWindow(3).rule("ns").oldest(None, 5) is None


def test_expiry_agrees_with_joins_at_the_edge() -> None:
    for size in range(1, 6):
        for gap in range(8):
            r, s = Stamp(10, 4, 0), Stamp(10 + gap, 0, 4 + gap)
            for window in (TimeWindow(size), TupleWindow(size)):
                held = joins(r, s, Windows(window, None))
                assert held is not is_expired(r, window, s.time, s.other)


NOW_CASES: list[tuple[dict[str, Any], list[tuple[int, int]]]] = [
    # By time: a row of the left joins rows of the right that are not later and at most two seconds old.
    ({"left_window": "now", "right_window": "3 seconds", "time": "t"}, [(3, 1), (3, 3), (6, 4), (6, 6)]),
    ({"window": "now", "time": "t"}, [(3, 3), (6, 6)]),
    # By arrival: left 3, 6, 0 and right 1, 3, 4, 6 take turns, left first.
    ({"left_window": "now", "right_window": "2 tuples"}, [(6, 1), (0, 1), (0, 3)]),
    ({"left_window": "5 tuples", "right_window": "NOW"}, [(3, 1), (3, 3), (6, 3), (3, 4), (6, 4), (0, 4),
                                                          (3, 6), (6, 6), (0, 6)]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "wanted"), NOW_CASES)
def test_a_side_without_a_window_of_its_own(options: dict[str, Any], wanted: list[tuple[int, int]]) -> None:
    left, right = {"t": [3, 6, 0]}, {"t": [1, 3, 4, 6]}
    found = hs.join(left, right, "TRUE", **options)
    rows = zip(found.column("t").to_pylist(), found.column("t_right").to_pylist(), strict=True)
    assert sorted(rows) == sorted(wanted)


def test_several_streams_one_of_which_has_no_window() -> None:
    tables = {"a": pa.table({"x": [1, 2]}), "b": pa.table({"y": [5, 6]}), "c": pa.table({"z": [8, 9]})}
    schemas = {name: table.schema for name, table in tables.items()}
    plan = prepare_streams(schemas, "a.x < c.z", windows={"a": "1 tuples", "b": "NOW", "c": "9 rows"})
    found = [row for batch in MultiReplay(plan, tables) for row in batch.to_pylist()]
    # 1 5 8 2 6 9: 6 alone finds rows of both others.
    assert found == [{"x": 2, "y": 6, "z": 8}]


def test_an_outer_join_keeps_rows_that_find_nothing_now() -> None:
    found = hs.join({"t": [3, 0]}, {"t": [1, 3]}, "TRUE", how="left", time="t", left_window="now",
                    right_window="3 seconds")  # fmt: skip
    assert sorted(map(str, found.to_pylist())) == [
        "{'t': 0, 't_right': None}",
        "{'t': 3, 't_right': 1}",
        "{'t': 3, 't_right': 3}",
    ]
