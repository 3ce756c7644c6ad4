"""Random predicates as SQL text: typed expressions built recursively, so that every one of them binds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["make_predicate", "make_ranking", "predicates"]

COMPARE = ("=", "=", "<", "<=", ">", ">=", "<>")
BANDS = (
    "{x} BETWEEN {a} - {k} AND {a} + {k}",
    "{a} BETWEEN {x} - {k} AND {x} + {k}",
    "{x} >= {a} - {k} AND {x} <= {a} + {k}",
    "{a} + {k} > {x} AND {a} - {k} < {x}",
    "{x} - {k} <= {a} AND {a} <= {x} + {k}",
    "{x} >= {a} AND {x} < {a} + {k}",
    "NOT ({x} < {a} - {k}) AND NOT ({x} > {a} + {k})",
    "{x} + {k} >= {a} - {k}",
)
DIFFERENCES = (
    "ABS({x} - {a}) <= {k}",
    "ABS({a} - {x}) < {k}",
    "{k} >= ABS({x} - {a})",
    "{x} - {a} <= {k} AND {a} - {x} <= {k}",
    "{x} - {a} BETWEEN {zero} AND {k}",
    "{x} - {a} > {k}",
)
INT_TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT")
INT_LITERALS = (*map(str, range(8)), "(-1)", "(-2)", "10", "100", "255", "2147483648", "9223372036854775807")
DECIMAL_LITERALS = ("0.25", "0.5", "1.0", "1.50", "2.00", "0.1", "(-0.75)", "99999999999999999999.5")
FLOAT_LITERALS = ("0e0", "1e0", "25e-2", "1e-1", "(-5e-1)", "1e300")
TEXT_LITERALS = ("''", "'a'", "'ab'", "'A'", "' a'", "'é'", "'12'")
PATTERNS = ("%", "a%", "%b", "_", "a_b", "%a%", "", "A%", "a\\\\%b")


def make_predicate(rng: Random, left: pa.Schema, right: pa.Schema, depth: int, conditions: int) -> str:
    """Draw a predicate: mostly a conjunction of usual join conditions, sometimes any condition."""
    writer = Writer(rng, left, right)
    if rng.random() < 0.25:
        return writer.condition(max(depth, 1))
    return " AND ".join(f"({writer.usual(depth)})" for _ in range(rng.randint(1, conditions)))


def make_ranking(rng: Random, left: pa.Schema, right: pa.Schema, depth: int) -> str:
    """Draw an expression of any type over both sides."""
    writer = Writer(rng, left, right)
    return (
        writer.condition(depth)
        if rng.random() < 0.1
        else writer.expression(writer.any_family(None), None, depth)
    )


@st.composite
def predicates(draw: Any, left: pa.Schema, right: pa.Schema, max_depth: int = 3) -> str:
    """Draw random predicates over the columns of two Arrow schemas."""
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    return make_predicate(rng, left, right, draw(st.integers(0, max_depth)), draw(st.integers(1, 3)))


def family_of(kind: pa.DataType) -> str:
    """Return the family of an Arrow type; types of one family can be compared with each other."""
    tests: dict[str, Callable[[pa.DataType], bool]] = {
        "int": pa.types.is_integer,
        "float": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "bool": pa.types.is_boolean,
        "date": pa.types.is_date,
        "span": pa.types.is_duration,
        "clock": pa.types.is_time,
        "bytes": pa.types.is_binary,
    }
    if pa.types.is_timestamp(kind):
        return "zoned" if kind.tz else "naive"
    return next((family for family, test in tests.items() if test(kind)), "text")


class Writer:
    """Writes expressions of a wanted family that read one side (0, 1) or both (None)."""

    def __init__(self, rng: Random, left: pa.Schema, right: pa.Schema) -> None:
        self.rng = rng
        self.columns: dict[tuple[str, int], list[str]] = {}
        for side, schema, other in ((0, left, right), (1, right, left)):
            for field in schema:
                name = f"`{field.name}`" if " " in field.name else field.name
                if field.name in other.names or rng.random() < 0.7:
                    name = f"{'lr'[side]}.{name}"
                self.columns.setdefault((family_of(field.type), side), []).append(name)

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def has(self, family: str, side: int | None) -> bool:
        return any((family, s) in self.columns for s in ((0, 1) if side is None else (side,)))

    def column(self, family: str, side: int | None) -> str | None:
        both = [self.columns.get((family, s), []) for s in ((0, 1) if side is None else (side,))]
        names = [name for names in both for name in names]
        return self.rng.choice(names) if names else None

    # Conditions.

    def usual(self, depth: int) -> str:
        """Draw a condition that joins usually have: equality, band, inequality, a filter on one side."""
        shared = [family for family, side in self.columns if side == 0 and self.has(family, 1)]
        if not shared or self.rng.random() < 0.1:
            return self.condition(depth)
        family = self.rng.choice(shared)
        x, a = (self.expression(family, side, self.rng.randint(0, depth)) for side in (0, 1))
        if family not in STEPS or self.rng.random() < 0.35:
            return f"{x} {self.pick(*COMPARE)} {a}" if self.rng.random() < 0.5 else f"{a} = {x}"
        return self.band(family, x, a)

    def band(self, family: str, x: str, a: str) -> str:
        step, length = STEPS[family]
        if self.rng.random() < 0.5:
            return self.pick(*BANDS).format(x=x, a=a, k=self.pick(*step))
        zero = "INTERVAL 0 SECONDS" if "INTERVAL" in length[0] else "0"
        return self.pick(*DIFFERENCES).format(x=x, a=a, k=self.pick(*length), zero=zero)

    def condition(self, depth: int, side: int | None = None) -> str:
        if depth <= 0:
            return self.comparison(0, side)
        below = depth - 1
        kind = self.rng.randrange(11)
        if kind < 4:
            return self.comparison(below, side)
        if kind < 7:
            parts = [self.condition(below, side) for _ in range(self.rng.randint(2, 3))]
            return f"({self.pick(' AND ', ' OR ', ' OR ').join(parts)})"
        if kind == 7:
            return f"(NOT {self.condition(below, side)})"
        if kind == 8:
            one, two, three = (self.condition(below, side) for _ in range(3))
            return f"(CASE WHEN {one} THEN {two} ELSE {three} END)"
        return self.test(below, side)

    def comparison(self, depth: int, side: int | None) -> str:
        family = self.any_family(side)
        a, b = (self.expression(family, side, depth) for _ in range(2))
        if family == "number" and self.rng.random() < 0.2:
            return f"({a} IN ({b}, {self.pick(*INT_LITERALS)}, {self.pick(*DECIMAL_LITERALS)}))"
        if family in ("naive", "zoned") and self.rng.random() < 0.2:
            b = self.pick("'2024-01-01 00:00:02'", "'2024-01-01 02:00:00.5'", "'2024-01-01T00:00:01+01:00'")
        return f"({a} {self.pick(*COMPARE, '<=>')} {b})"

    def test(self, depth: int, side: int | None) -> str:
        """Draw a condition that is not a comparison."""
        family = self.any_family(side)
        value = self.expression(family, side, depth)
        if family == "text" and self.rng.random() < 0.7:
            return self.text_test(value)
        if self.has("bool", side) and self.rng.random() < 0.5:
            return str(self.column("bool", side))
        return f"({value} IS {self.pick('', 'NOT ')}NULL)"

    def text_test(self, value: str) -> str:
        kind = self.rng.randrange(4)
        if kind == 0:
            return f"({value} {self.pick('LIKE', 'NOT LIKE', 'ILIKE')} '{self.pick(*PATTERNS)}')"
        if kind == 1:
            return f"REGEXP_LIKE({value}, '{self.pick('a', '^a', 'b$', '[0-9]+', '^.$')}')"
        name = self.pick("STARTSWITH", "ENDSWITH", "CONTAINS")
        return f"{name}({value}, {self.pick(*TEXT_LITERALS)})"

    def any_family(self, side: int | None) -> str:
        known = sorted({family for family, s in self.columns if side in (None, s)} - {"bool"})
        families = ["number" if family in ("int", "float", "decimal") else family for family in known]
        return self.rng.choice(families or ["number"])

    # Expressions.

    def expression(self, family: str, side: int | None, depth: int) -> str:
        write = {"number": self.number, "int": self.integer, "float": self.real, "decimal": self.decimal}.get(
            family
        )
        if write is not None:
            return write(side, depth)
        if family in ("clock", "bytes", "bool"):
            return self.column(family, side) or "NULL"
        if depth <= 0:
            return self.column(family, side) or self.pick(*LITERALS[family])
        return self.general(family, side, depth) or getattr(self, family)(side, depth - 1)

    def general(self, family: str, side: int | None, depth: int) -> str | None:
        """Draw a form that every family has, or None for one of the family's own forms."""
        if self.rng.random() < 0.6:
            return None
        a, b = (self.expression(family, side, depth - 1) for _ in range(2))
        if self.rng.random() < 0.4:
            return f"(CASE WHEN {self.condition(depth - 1, side)} THEN {a} ELSE {b} END)"
        if family == "text" or self.rng.random() < 0.3:
            return f"COALESCE({a}, {b})"
        return f"{self.pick('LEAST', 'GREATEST')}({a}, {b})"

    def number(self, side: int | None, depth: int) -> str:
        families = [family for family in ("int", "float", "decimal") if self.has(family, side)]
        return self.expression(self.rng.choice(families or ["int"]), side, depth)

    def integer(self, side: int | None, depth: int) -> str:
        if depth <= 0:
            return self.column("int", side) or self.pick(*INT_LITERALS)
        if (text := self.general("int", side, depth)) is not None:
            return text
        a, b = (self.integer(side, self.rng.randint(0, depth - 1)) for _ in range(2))
        b = self.pick(b, *INT_LITERALS[:12])
        kind = self.rng.randrange(8)
        if kind < 5:
            return f"({a} {('+', '-', '*', '%', 'DIV')[kind]} {b})"
        if kind == 5:
            return self.pick(f"ABS({a})", f"(- {a})", f"SIGN({a})", f"NULLIF({a}, {b})")
        if kind == 6:
            return f"CAST({self.number(side, depth - 1)} AS {self.pick(*INT_TYPES)})"
        return self.derived_integer(side) or f"({a} + {b})"

    def derived_integer(self, side: int | None) -> str | None:
        """Draw a whole number that comes from another family; None without columns of such families."""
        choices = []
        if text := self.column("text", side):
            choices += [f"LENGTH({text})", f"CAST({text} AS INT)"]
        if day := self.column("date", side):
            choices += [f"{self.pick('YEAR', 'MONTH', 'DAY')}({day})"]
        if moment := self.column(self.pick("naive", "zoned"), side):
            choices += [f"{self.pick('YEAR', 'DAY', 'HOUR', 'MINUTE', 'SECOND')}({moment})"]
        if number := self.column("decimal", side):
            choices += [f"{self.pick('FLOOR', 'CEIL', 'ROUND')}({number})"]
        if flag := self.column("bool", side):
            choices += [f"CAST({flag} AS INT)"]
        return self.rng.choice(choices) if choices else None

    def real(self, side: int | None, depth: int) -> str:
        if depth <= 0:
            return self.column("float", side) or self.pick(*FLOAT_LITERALS)
        if (text := self.general("float", side, depth)) is not None:
            return text
        a, b = self.real(side, depth - 1), self.number(side, depth - 1)
        b = self.pick(b, *FLOAT_LITERALS, *DECIMAL_LITERALS[:7])
        kind = self.rng.randrange(9)
        if kind < 5:
            return f"({a} {('+', '-', '*', '/', '%')[kind]} {b})"
        if kind == 5:
            return f"{self.pick('ABS', 'FLOOR', 'CEIL', 'ROUND', 'SIGN', 'SQRT')}({a})"
        if kind == 6:
            return f"CAST({self.number(side, depth - 1)} AS {self.pick('DOUBLE', 'FLOAT')})"
        if kind == 7:
            # Libraries differ in the last bit of these functions, so that bit is not looked at.
            return f"FLOOR({self.pick('EXP', 'LN', 'SIN', 'COS')}({a} % 50) * 4 + 0.3)"
        return f"({self.number(side, depth - 1)} / {b})"

    def decimal(self, side: int | None, depth: int) -> str:
        if depth <= 0:
            return self.column("decimal", side) or self.pick(*DECIMAL_LITERALS)
        if (text := self.general("decimal", side, depth)) is not None:
            return text
        a, b = self.decimal(side, depth - 1), self.pick(self.decimal, self.integer)(side, depth - 1)
        kind = self.rng.randrange(6)
        if kind < 4:
            return f"({a} {('+', '-', '*', '%')[kind]} {b})"
        if kind == 4:
            return self.pick(f"ABS({a})", f"(- {a})")
        return f"CAST({a} AS DECIMAL({self.pick('5, 2', '38, 10', '12, 0', '18, 6')}))"

    def date(self, side: int | None, depth: int) -> str:
        a = self.expression("date", side, depth)
        moment = self.column("naive", side)
        if moment and self.rng.random() < 0.3:
            return f"CAST({moment} AS DATE)"
        if (text := self.column("text", side)) and self.rng.random() < 0.3:
            return f"CAST({text} AS DATE)"
        by = self.integer(side, depth) if self.rng.random() < 0.3 else self.pick(*STEPS["date"][0][:4])
        return f"({a} {self.pick('+', '-')} {by})"

    def naive(self, side: int | None, depth: int) -> str:
        if (day := self.column("date", side)) and self.rng.random() < 0.3:
            return f"CAST({day} AS TIMESTAMP)"
        return self.moment(side, depth, "naive")

    def moment(self, side: int | None, depth: int, family: str = "zoned") -> str:
        column = self.column(family, side)
        if column is None:
            return self.pick(*LITERALS[family])
        if self.rng.random() < 0.2:
            return f"CAST({column} AS TIMESTAMP)"
        return f"({column} {self.pick('+', '-')} {self.expression('span', side, depth)})"

    zoned = moment  # `expression` finds methods by the names of families

    def span(self, side: int | None, depth: int) -> str:
        a, b = (self.expression("span", side, depth) for _ in range(2))
        moment = self.column("naive", side)
        if moment and self.rng.random() < 0.4:
            return f"({moment} - {self.column('naive', side)})"
        if self.rng.random() < 0.3:
            return f"({a} * {self.integer(side, depth)})"
        return self.pick(f"({a} + {b})", f"({a} - {b})", f"ABS({a})", f"(- {a})")

    def text(self, side: int | None, depth: int) -> str:
        a, b = (self.expression("text", side, depth) for _ in range(2))
        if self.rng.random() < 0.4:
            return f"{self.pick('LOWER', 'UPPER', 'TRIM', 'LTRIM', 'RTRIM')}({a})"
        if self.rng.random() < 0.4:
            first, length = self.pick(0, 1, 2, 3, -1, -2), self.pick("", ", 0", ", 1", ", 2")
            return f"SUBSTRING({a}, {first}{length})"
        number = self.column("int", side)
        return f"CAST({number} AS STRING)" if number and self.pick(0, 1) else f"({a} || {b})"


_INTERVALS = (
    *("INTERVAL 1 SECOND", "INTERVAL 2 SECONDS", "INTERVAL '3' SECONDS", "INTERVAL 500 MILLISECONDS"),
    *("INTERVAL 1 DAY", "INTERVAL 1 MICROSECOND", "INTERVAL 0 SECONDS", "INTERVAL 90 MINUTES"),
)
_NUMBERS = ("0", "1", "2", "3", "10", "1000")
STEPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "int": (_NUMBERS, _NUMBERS),
    "float": ((*_NUMBERS, "0.25", "0.1", "1e0"), (*_NUMBERS, "0.25", "0.1", "1e0")),
    "decimal": ((*_NUMBERS, "0.25", "0.10"), (*_NUMBERS, "0.25", "0.10")),
    "date": (("1", "2", "INTERVAL 3 DAYS", "INTERVAL 1 DAY", "INTERVAL 12 HOURS"), ("0", "1", "2", "3")),
    "naive": (_INTERVALS, _INTERVALS),
    "zoned": (_INTERVALS, _INTERVALS),
    "span": (_INTERVALS, _INTERVALS),
}
"""How a band is written: what is added to a value, and what a difference is compared with."""

LITERALS: dict[str, tuple[str, ...]] = {
    "date": ("DATE '2024-01-01'", "DATE '2024-01-03'"),
    "naive": ("TIMESTAMP '2024-01-01 00:00:02'", "TIMESTAMP '2024-01-01 00:00:03.5'"),
    "zoned": ("TIMESTAMP '2024-01-01 00:00:02+00:00'", "TIMESTAMP '2024-01-01 01:00:03.5+01:00'"),
    "span": _INTERVALS,
    "text": TEXT_LITERALS,
}
