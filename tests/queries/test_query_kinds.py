"""Outer, semi and anti joins in queries against the oracle: rows, their order, times and counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.plan.query import parse_query
from query_backends import Local, Spark, check, many
from query_cases import CHAINS, KINDS, TWO
from query_streams import arrivals

FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))

ON_SPARK = ("full", "left semi", "right anti", "by tuples", "windows over anti", "left inner")


def prove(text: str, data: st.DataObject, count: int, most: int) -> None:
    """The in-process engine gives what the oracle gives, whatever the streams."""
    plan = parse_query(TWO + text)
    check(Local(), plan, data.draw(many(arrivals(plan, most=most), count)), data.draw)


@pytest.mark.parametrize("name", [*KINDS, *CHAINS])
@FEW
@given(data=st.data())
def test_kinds(name: str, data: st.DataObject) -> None:
    prove({**KINDS, **CHAINS}[name], data, 3, 16)


@pytest.mark.parametrize("name", ON_SPARK)
@settings(FEW, max_examples=1)
@given(data=st.data())
def test_kinds_on_spark(spark: Any, name: str, data: st.DataObject) -> None:
    plan = parse_query(TWO + {**KINDS, **CHAINS}[name])
    check(Spark(spark), plan, data.draw(many(arrivals(plan, most=16), 3)), data.draw)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*KINDS, *CHAINS])
@settings(MANY, max_examples=4)
@given(data=st.data())
def test_all_kinds_on_spark(spark: Any, name: str, data: st.DataObject) -> None:
    plan = parse_query(TWO + {**KINDS, **CHAINS}[name])
    check(Spark(spark), plan, data.draw(many(arrivals(plan, most=24), 8)), data.draw)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*KINDS, *CHAINS])
@MANY
@given(data=st.data())
def test_kinds_at_length(name: str, data: st.DataObject) -> None:
    prove({**KINDS, **CHAINS}[name], data, 1, 32)
