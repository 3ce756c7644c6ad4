"""Arrivals in one order: slots in lock step, whatever is held back; latency and issue rate as declared."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from circuits import latency_and_rate, patterns
from handshake.engines.circuit.components.sequence import Claim, Mask, Sequence, place_wire, slot_row
from handshake.engines.circuit.components.types import Row, Wire
from handshake.engines.circuit.simulation.simulate import Beat, Feed, Simulation, feed
from handshake.schema import BOOL, Int

A = Row((Wire("a", Int(8), 8, True), place_wire()))
B = Row((Wire("b", Int(4), 4, True, True), Wire("ok", BOOL, 1, False, True), place_wire()))
SLOTS = slot_row(B)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    order=st.lists(st.sampled_from("ab"), max_size=10),
    held=st.lists(patterns, min_size=4, max_size=4),
    ends=st.lists(st.sampled_from(["alone", "last"]), min_size=2, max_size=2),
)
def test_every_stream_has_a_slot_for_every_arrival(
    order: list[str], held: list[tuple[bool, ...]], ends: list[str]
) -> None:
    a = [(place, place) for place, side in enumerate(order) if side == "a"]
    b = [(None if place % 3 else place % 8, True, place) for place, side in enumerate(order) if side == "b"]
    feeds = {
        "i0": feed(A, a, pattern=held[0], end=ends[0]),
        "i1": feed(B, b, pattern=held[1], end=ends[1]),
    }
    run = Simulation(Sequence((A, B))).run(feeds, ready={"o0": held[2], "o1": held[3]})
    left, right = run.tuples("o0", slot_row(A)), run.tuples("o1", SLOTS)
    assert [here for *_, here in left] == [side == "a" for side in order]
    assert [here for *_, here in right] == [side == "b" for side in order]
    assert [values[:1] for values in left if values[-1]] == [(place,) for place, _ in a]
    assert [values[:2] for values in right if values[-1]] == [values[:2] for values in b]
    assert run.outputs["o0"][-1].eos
    assert run.outputs["o1"][-1].eos


def test_one_arrival_in_a_cycle() -> None:
    beats = [Beat(A.pack((n, n))) for n in range(6)]
    run = Simulation(Sequence((A,))).run({"i0": Feed(beats)}, stop_at_eos=False, quiet=9)
    assert run.accepted["i0"] == [arrival.cycle for arrival in run.outputs["o0"]] == list(range(6))


@pytest.mark.parametrize("registered", [True, False])
def test_latency_and_issue_rate_are_as_declared(registered: bool) -> None:
    """An empty slot is a beat like any other."""
    slots = [(2, ok, here) for ok in (True, False, None) for here in (True, False)]
    for block in (
        Mask(SLOTS, "ok", registered=registered),
        Claim(SLOTS, "b", (2, 3), (2, 3), registered=registered),
    ):
        beats = [Beat(SLOTS.pack(each)) for each in slots]
        assert latency_and_rate(block, beats) == (block.latency, block.issue_rate) == (registered, 1)


def test_what_is_selected_and_claimed_is_still_there() -> None:
    slots = [(b, ok, here) for b in (1, 2, None) for ok in (True, False, None) for here in (True, False)]
    given_ = {"i": feed(SLOTS, slots)}
    masked = Simulation(Mask(SLOTS, "ok")).run(given_).tuples("o", SLOTS)
    assert masked == [(b, ok, here and ok is True) for b, ok, here in slots]
    run = Simulation(Claim(SLOTS, "b", (2,), (2, 3))).run(given_)
    assert run.tuples("o", SLOTS) == [(b, ok, here and b == 2) for b, ok, here in slots]
    assert run.probes["unknown"] == sum(here and b != 2 for b, _, here in slots)
