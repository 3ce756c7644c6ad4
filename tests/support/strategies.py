"""Random tables, windows and whole joins.

A Hypothesis strategy here draws a seed and a few knobs that shrink (rows, depth, conditions); plain functions
build the rest from `random.Random`. That is much faster than nested strategies, and changing one knob leaves
what does not depend on it as it was. Predicates are in predicates.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal as PyDecimal
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from handshake.plan import Expr, Scope, bind, parse
from handshake.schema import UNITS, Schema
from handshake.testing.oracle import TIME, Result, join, rows
from handshake.windows import TimeWindow, TupleWindow, Window, Windows
from predicates import make_predicate, predicates

__all__ = [
    "Case", "bound", "cases", "expect", "known_cases", "make_case", "predicates", "scope_of", "tables",
    "windows",
]  # fmt: skip

_SHAPES = 24
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "+02:00")
TIME_UNITS = ("s", "ms", "us", "ns")
WORDS = (
    *("", "a", "A", "ab", "aB", "abc", "b", " a ", "a%b", "a_b", "é", "日本", "\uffff", "😀"),
    *("12", "-3", " 7 ", "1.5", "true", "2024-01-01", "2024-01-02"),
)
BLOBS = (b"", b"\x00", b"\x00\xff", b"\x7f", b"\x80", b"a", b"ab", b"\xff")
FLOATS = (float("nan"), float("inf"), float("-inf"), -0.0, 0.1, -1e-3, 1e30, -1e30)
NEW_YEAR = 1_704_067_200
"""2024-01-01 in seconds since 1970."""

FAMILIES: dict[str, tuple[pa.DataType, ...]] = {
    "int": tuple(getattr(pa, f"{u}int{b}")() for u in ("", "u") for b in (8, 16, 32, 64)),
    "float": (pa.float32(), pa.float64()),
    "decimal": tuple(pa.decimal128(*ps) for ps in ((5, 2), (18, 4), (38, 0), (38, 10), (9, 9), (38, 38))),
    "bool": (pa.bool_(),),
    "date": (pa.date32(),),
    "naive": tuple(pa.timestamp(u) for u in TIME_UNITS),
    "zoned": tuple(pa.timestamp(u, z) for u in TIME_UNITS for z in ZONES),
    "span": tuple(pa.duration(u) for u in TIME_UNITS),
    "clock": (pa.time32("s"), pa.time64("us")),
    "text": (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())),
    "bytes": (pa.binary(),),
}
FAMILY_WEIGHTS = {"int": 6, "float": 5, "decimal": 2, "date": 2, "naive": 2, "zoned": 2, "text": 3}


# Values: a small domain, so that rows match; a wide one; and the ends of the type.


def make_array(rng: Random, kind: pa.DataType, size: int) -> pa.Array:
    """Draw a column: values from a small pool, with or without skew, with or without NULLs."""
    draw = _drawer(kind)
    spread = rng.choices(("small", "wide", "edges"), (6, 2, 1))[0]
    pool = [draw(rng, spread) for _ in range(rng.choice((1, 4, 8, 40)))]
    weights = [1 / (k + 1) for k in range(len(pool))] if rng.random() < 0.3 else None
    nulls = rng.choices((0.0, 0.1, 0.6, 1.0), (6, 3, 1, 0.2))[0]
    values = rng.choices(pool, weights, k=size)
    if nulls:
        values = [None if rng.random() < nulls else value for value in values]
    return pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind).cast(kind)


Draw = Callable[[Random, str], Any]


def _drawer(kind: pa.DataType) -> Draw:
    if pa.types.is_integer(kind):
        return _ints(kind.bit_width, pa.types.is_signed_integer(kind))
    if pa.types.is_floating(kind):
        return _floats(kind.bit_width)
    if pa.types.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    if pa.types.is_temporal(kind):
        return _temporals(kind)
    if pa.types.is_boolean(kind):
        return lambda rng, spread: rng.random() < 0.5
    return lambda rng, spread: rng.choice(BLOBS if pa.types.is_binary(kind) else WORDS)


def _ints(bits: int, signed: bool) -> Draw:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def draw(rng: Random, spread: str) -> int:
        if spread == "small":
            return rng.randint(-2 if signed else 0, 7)
        if spread == "wide":
            return rng.randint(low, high)
        return rng.choice((low, low + 1, high - 1, high, 0, 1))

    return draw


def _floats(bits: int) -> Draw:
    largest, least = (3.4028234663852886e38, 1e-45) if bits == 32 else (1.7976931348623157e308, 5e-324)

    def draw(rng: Random, spread: str) -> float:
        if spread == "small":
            return rng.randint(-4, 24) / 4
        if spread == "wide":
            return rng.choice((rng.uniform(-5, 5), rng.gauss(0, 1e6), float(rng.randint(-(2**40), 2**40))))
        return rng.choice((*FLOATS, largest, -largest, least, 0.0, 1.0))

    return draw


def _decimals(precision: int, scale: int) -> Draw:
    top = 10**precision - 1

    def draw(rng: Random, spread: str) -> PyDecimal:
        if spread == "small":
            digits = max(-top, min(rng.randint(-4, 24) * 10**scale // 4, top))
        elif spread == "wide":
            digits = rng.randint(-top, top)
        else:
            digits = rng.choice((top, -top, 0, 1, -1))
        return PyDecimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))

    return draw


def _temporals(kind: pa.DataType) -> Draw:
    """Return a function that draws times in the unit of the type: years 2 to 9998, if in its reach."""
    unit = 86_400 * 10**9 if pa.types.is_date(kind) else UNITS[kind.unit]
    second = max(10**9 // unit, 1)
    base, steps = NEW_YEAR * 10**9 // unit, (1, second, second // 2 or 1)
    low, high = -62_100_000_000 * 10**9 // unit, 253_300_000_000 * 10**9 // unit
    if pa.types.is_duration(kind):
        base, low, high = 0, -(2**63) + 1, 2**63 - 1
    elif pa.types.is_time(kind):
        base, low, high = 3600 * second, 0, 86_400 * second - 1
    low, high = max(low, -(2**63) + 1), min(high, 2**63 - 1)

    def draw(rng: Random, spread: str) -> int:
        if spread == "small":
            return base + rng.choice(steps) * rng.randint(0, 6)
        if spread == "wide":
            return min(base + rng.randint(0, 10**6) * second, high)
        return rng.choice((low, high, base, base + 1))

    return draw


# Tables.


def make_tables(
    seed: int, left_rows: int, right_rows: int, values: int | None = None
) -> tuple[pa.Table, pa.Table]:
    """Draw two tables with columns of like families; `values` is a separate seed for their values."""
    rng = Random(f"schema {seed}")
    weights = [FAMILY_WEIGHTS.get(family, 1) for family in FAMILIES]
    families = rng.choices(list(FAMILIES), weights, k=rng.randint(1, 4))
    same_names = rng.random() < 0.2
    return tuple(
        pa.table(dict(_columns(seed, values, families, side, size, "c" if same_names else "xa"[side])))
        for side, size in enumerate((left_rows, right_rows))
    )


def _columns(seed: int, values: int | None, families: list[str], side: int, size: int, letter: str) -> Any:
    rng, values = Random(f"types {seed} {side}"), seed if values is None else values
    for number, family in enumerate(families):
        name = f"{letter} {number}" if rng.random() < 0.03 else f"{letter}{number}_{family}"
        kind = rng.choice(FAMILIES[family])
        yield name, make_array(Random(f"values {values} {side} {number}"), kind, size)


@st.composite
def tables(draw: Any, max_rows: int = 40) -> tuple[pa.Table, pa.Table]:
    """Draw two random tables of up to `max_rows` rows."""
    sizes = st.integers(0, max_rows)
    return make_tables(draw(st.integers(0, 2**32 - 1)), draw(sizes), draw(sizes))


# Windows and times.


def make_windows(rng: Random, tick: int = 10**9, timed: bool = True) -> Windows:
    """Draw windows of any kind on either side; those of time are a few `tick`s (in nanoseconds) long."""
    if rng.random() < 0.4:
        both = _window(rng, tick, timed)
        return Windows(both, both)
    return Windows(_window(rng, tick, timed), _window(rng, tick, timed))


def _window(rng: Random, tick: int, timed: bool) -> Window | None:
    kind = rng.choices((None, "tuples", "time"), (1, 2, 4 if timed else 0))[0]
    if kind is None:
        return None
    if kind == "tuples":
        return TupleWindow(rng.choice((0, 1, 2, 3, 5, 10, 100)))
    size = rng.choice((1, 1, 2, 3, 5, 100)) * tick + rng.choice((0, 0, 0, 1, -1, tick // 2))
    return TimeWindow(max(size, 1))


@st.composite
def windows(draw: Any, tick: int = 10**9) -> Windows:
    return make_windows(Random(draw(st.integers(0, 2**32 - 1))), tick)


@dataclass(frozen=True)
class Clock:
    """How the time columns of one case look."""

    names: tuple[str, str]
    kinds: tuple[pa.DataType, pa.DataType]
    tick: int
    base: int


def make_clock(rng: Random) -> Clock:
    """Draw two time columns; sometimes their units differ, seldom their times are at the end of the range."""
    units = rng.choices(TIME_UNITS, k=2)
    if rng.random() < 0.6:
        units[1] = units[0]
    zones = rng.choices(ZONES, k=2) if rng.random() < 0.3 else (None, None)
    tick = max(UNITS[unit] for unit in units)
    base = NEW_YEAR * 10**9
    if units[0] == units[1] and rng.random() < 0.1:
        base = rng.choice((0, 2**63 * UNITS[units[0]] - 30 * tick, -(2**63) * UNITS[units[0]] + tick))
    kinds = tuple(pa.timestamp(u, z) for u, z in zip(units, zones, strict=True))
    return Clock(rng.choice((("t", "t"), ("t", "ts"))), kinds, tick, base)


def make_times(rng: Random, clock: Clock, side: int, size: int, nulls: bool) -> pa.Array:
    """Draw times with ties; in order, nearly in order, or in none."""
    unit = UNITS[clock.kinds[side].unit]
    span = rng.choice((1, 4, 12, 25))
    ticks = sorted(rng.randint(0, span) for _ in range(size))
    disorder = rng.choice((0, 0, 2, 100))
    ticks.sort(key=lambda tick: tick + rng.randint(0, disorder))
    jitter = [rng.choice((0, 0, 1, -1)) if clock.tick > unit else 0 for _ in ticks]
    values = [(clock.base + n * clock.tick) // unit + j for n, j in zip(ticks, jitter, strict=True)]
    missing = 0.2 if nulls and rng.random() < 0.3 else 0
    return pa.array([None if rng.random() < missing else v for v in values], clock.kinds[side])


# Whole joins.


@dataclass(frozen=True)
class Case:
    """A join to be run: two tables, a predicate, windows and the time columns, if any."""

    left: pa.Table
    right: pa.Table
    on: str
    windows: Windows
    left_time: str | None = None
    right_time: str | None = None


def make_case(
    seed: int, left_rows: int, right_rows: int, depth: int = 1, conditions: int = 2,
    values: int | None = None,
) -> Case:  # fmt: skip
    """Return the case of a seed; `depth` and `conditions` bound the size of the predicate."""
    rng = Random(f"case {seed}")
    left, right = make_tables(seed, left_rows, right_rows, values)
    timed = rng.random() < 0.7
    clock = make_clock(rng)
    chosen = make_windows(rng, clock.tick, timed)
    names: tuple[str | None, str | None] = (None, None)
    if timed:
        names = clock.names
        clocks = [Random(f"times {seed if values is None else values} {side}") for side in (0, 1)]
        left, right = (
            table.append_column(names[side], make_times(clocks[side], clock, side, len(table), chosen.timed))
            for side, table in enumerate((left, right))
        )
    text = make_predicate(Random(f"predicate {seed}"), left.schema, right.schema, depth, conditions)
    return Case(left, right, text, chosen, *names)


@st.composite
def cases(draw: Any, max_rows: int = 40, max_depth: int = 3, max_conditions: int = 3) -> Case:
    seed, sizes = draw(st.integers(0, 2**32 - 1)), st.integers(0, max_rows)
    knobs = draw(st.tuples(sizes, sizes, st.integers(0, max_depth), st.integers(1, max_conditions)))
    return make_case(seed, *knobs)


@st.composite
def known_cases(draw: Any, max_rows: int = 40) -> Case:
    """Draw joins of some shapes (columns, predicate, windows) that all tests share, with random values.

    A predicate takes a second to compile, and what one test has compiled the others find on the disk.
    """
    shape, sizes = draw(st.integers(0, _SHAPES - 1)), st.integers(0, max_rows)
    knobs = draw(st.tuples(sizes, sizes)), draw(st.integers(0, 2**32 - 1))
    return make_case(shape, *knobs[0], depth=shape % 2, conditions=1 + shape % 3, values=knobs[1])


def scope_of(left: pa.Schema, right: pa.Schema) -> Scope:
    """Return the scope of a join of two Arrow schemas."""
    return Scope.of(Schema.from_arrow(left, "left"), Schema.from_arrow(right, "right"))


def bound(case: Case) -> Expr:
    """Bind the predicate of a case."""
    return bind(parse(case.on), scope_of(case.left.schema, case.right.schema))


def expect(case: Case, lateness: int | None = None, arrivals: Any = None) -> Result:
    """Return the oracle's answer for a case."""
    left, right = rows(case.left, case.left_time), rows(case.right, case.right_time)
    times = (TIME, TIME) if case.left_time else (None, None)
    return join(left, right, bound(case), case.windows, lateness, arrivals, *times)
