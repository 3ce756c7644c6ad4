"""Helpers of the tests of join circuits: random designs and arrivals, runs beside the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from handshake.engines.circuit.components.types import Row, wire
from handshake.engines.circuit.join.arrivals import feed_of, steps
from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.simulation.simulate import simulate
from handshake.engines.circuit.simulation.testbench import ALWAYS, Run
from handshake.plan.bind import Scope, bind
from handshake.plan.parse import parse
from handshake.schema import Field, Int, Schema
from handshake.testing import oracle
from handshake.windows import windows_of
from handshake_bench.lockstep import OVERLOADS, GlobalDesign, join_of
from join_model import Beat, Trace, run_model

BYTE = Int(8, signed=False)
FIELDS = (Field("k", BYTE), Field("p", BYTE))
Order = Sequence[tuple[int, tuple[Any, ...]]]
"""Arrivals: (side, tuple)."""


def key_condition(text: str = "l.k = r.k") -> PairGates:
    """Return a condition on two streams of a key and a payload of a byte each."""
    row = Row(tuple(wire(field) for field in FIELDS))
    on = bind(parse(text), Scope.of(Schema(FIELDS, "left"), Schema(FIELDS, "right")))
    return PairGates(row, row, on)


def make_design(rng: Random, overloads: Sequence[str] = OVERLOADS, **changes: Any) -> Design:
    """Draw a small design of any variant."""
    cores = changes.get("cores", rng.randint(1, 5))
    left, right = (rng.randint(cores, 3 * cores) for _ in range(2))
    kind = rng.choice((Design, GlobalDesign))
    given: dict[str, Any] = {
        "pipeline": rng.randint(0, kind.most_stages),
        "windows": rng.choice(("registers", "memory")),
        "buffer": rng.randint(8, 12), "merger_buffer": rng.randint(3, 5),
        "reach": rng.choice((1, 2, 3, 16)),
    }  # fmt: skip
    if kind is GlobalDesign:
        given["overload"] = rng.choice(overloads)
    return kind(**{"cores": cores, "left": left, "right": right, **given, **changes})


def make_order(rng: Random, most: int = 50, keys: int = 3) -> Order:
    """Draw arrivals in any order, with payloads that distinguish them."""
    return [(rng.randint(0, 1), (rng.randrange(keys), i)) for i in range(rng.randint(0, most))]


def make_pattern(rng: Random) -> tuple[bool, ...]:
    """Draw when a stream may move; it may at last."""
    return (*(rng.random() < 0.6 for _ in range(rng.randint(0, 7))), True)


def beats_of(condition: PairGates, order: Order) -> list[tuple[int | None, int | None]]:
    """Pack arrivals, an R tuple and the S tuple after it together."""
    rows = (condition.left, condition.right)
    return list(steps((side, rows[side].pack(values)) for side, values in order))


def run_circuit(
    condition: PairGates, design: Design, order: Order, *, offered: Any = ALWAYS, taken: Any = ALWAYS,
    engine: str = "amaranth",
) -> Run:  # fmt: skip
    feeds = {"arrivals": feed_of(condition, beats_of(condition, order), pattern=offered)}
    circuit = join_of(condition, design)
    return simulate(circuit, feeds, ready={"results": taken}, engine=engine)


def trace_model(
    condition: PairGates, design: Design, order: Order, *, offered: Any = ALWAYS, taken: Any = ALWAYS
) -> Trace:
    """Run the model of a join circuit."""
    beats = [Beat(left, right) for left, right in beats_of(condition, order)]
    return run_model(
        design, matcher(condition), [*beats, Beat(eos=True)], offered=offered, taken=taken
    )  # fmt: skip


def matcher(condition: PairGates) -> Any:
    """Return the condition on packed tuples, by the oracle."""

    def match(left: int, right: int) -> bool:
        rows = [
            dict(zip(row.names, row.unpack(payload), strict=True))
            for row, payload in ((condition.left, left), (condition.right, right))
        ]
        return oracle.evaluate(condition.on, rows) is True

    return match


def expected_results(condition: PairGates, design: Design, order: Order) -> Counter[tuple[Any, ...]]:
    """Return the results that the semantics ask for, with multiplicities."""
    streams: list[list[tuple[Any, ...]]] = [[], []]
    arrivals = []
    for side, values in order:
        arrivals.append((("left", "right")[side], len(streams[side])))
        streams[side].append(values)
    rows = [
        [dict(zip(row.names, values, strict=True)) for values in stream]
        for row, stream in zip((condition.left, condition.right), streams, strict=True)
    ]
    windows = windows_of(None, f"{design.left} tuples", f"{design.right} tuples")
    found = oracle.join(rows[0], rows[1], condition.on, windows, arrivals=arrivals).pairs
    return Counter((*streams[0][i], *streams[1][j]) for i, j in found)


def results_of(condition: PairGates, run: Run) -> Counter[tuple[Any, ...]]:
    """Return the results that left the circuit."""
    return Counter(condition.restore(values) for values in run.tuples("results", condition.result))


def payload_of(condition: PairGates, pair: tuple[int, int] | None) -> int | None:
    """Return the payload of the result of two packed tuples."""
    if pair is None:
        return None
    left, right = condition.left.unpack(pair[0]), condition.right.unpack(pair[1])
    carried = [v for w, v in zip(condition.right, right, strict=True) if w.name not in condition.shared]
    return condition.result.pack((*left, *carried))


def kept_arrivals(condition: PairGates, order: Order, trace: Trace) -> Order:
    """Return the arrivals without those that were discarded."""
    left = list(order)
    for position, beat in enumerate(beats_of(condition, order)):
        gone = position in trace.dropped
        for _ in range(sum(each is not None for each in beat)):
            arrival = left.pop(0)
            left += [] if gone else [arrival]
    return left
