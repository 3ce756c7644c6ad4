"""Handshake join as a circuit: against its model cycle by cycle, and against the oracle."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import join_circuits as jc
from handshake.engines.circuit.emit import to_verilog
from handshake.engines.circuit.join.arrivals import feed_of
from handshake.engines.circuit.join.core import CoreShape, LocalCore
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.host import condition_of, run_join
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.simulation.simulate import simulate
from handshake.errors import HandshakeError, UnsupportedError
from handshake.joins.plan import prepare
from handshake.plan.bind import bind
from handshake.plan.parse import parse
from handshake.testing.oracle import join as oracle_join
from handshake.testing.oracle import rows as oracle_rows
from handshake_bench.circuit_workload import keys, papers_condition
from handshake_bench.join_picture import draw
from handshake_bench.lockstep import GlobalDesign, LockstepJoin, join_of, original
from handshake_bench.nested_loops import NestedLoops
from predicates import make_predicate
from strategies import make_array, scope_of

seeds = st.integers(0, 2**32 - 1)


def _same_cycles(run: Any, trace: Any, condition: Any) -> None:
    pairs = [jc.payload_of(condition, pair) for _, pair in trace.results]
    assert run.accepted["arrivals"] == trace.accepted
    assert [a.cycle for a in run.outputs["results"]] == [cycle for cycle, _ in trace.results]
    assert [a.payload for a in run.outputs["results"]] == pairs


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_circuit_is_its_model_cycle_by_cycle_and_gives_what_the_oracle_gives(seed: int) -> None:
    _check_cycles(seed)


@pytest.mark.soak
@settings(max_examples=400, deadline=None)
@given(seeds)
def test_circuit_is_its_model_for_many_designs(seed: int) -> None:
    _check_cycles(seed)


def _check_cycles(seed: int) -> None:
    rng = Random(seed)
    design, order = jc.make_design(rng), jc.make_order(rng)
    condition = jc.key_condition(rng.choice(("l.k = r.k", "l.k < r.k", "l.k BETWEEN r.k - 1 AND r.k + 1")))
    offered, taken = jc.make_pattern(rng), jc.make_pattern(rng)
    run = jc.run_circuit(condition, design, order, offered=offered, taken=taken)
    trace = jc.trace_model(condition, design, order, offered=offered, taken=taken)
    _same_cycles(run, trace, condition)
    assert run.outputs["results"][-1].eos
    assert trace.lost == 0
    if isinstance(design, GlobalDesign) and design.overload == "discard":
        before, order = order, jc.kept_arrivals(condition, order, trace)
        assert run.probes["discarded"] == len(before) - len(order)
    assert jc.results_of(condition, run) == jc.expected_results(condition, design, order)


@pytest.mark.parametrize("reach", [1, 2, 16])
def test_registers_on_long_wires_lose_nothing_while_the_output_waits(reach: int) -> None:
    condition, design = jc.key_condition(), Design(5, 10, 9, reach=reach)
    order, taken = [(i % 2, (i % 5 > 0, i)) for i in range(50)], (False,) * 40 + (True,) * 30
    run = jc.run_circuit(condition, design, order, taken=taken)
    trace = jc.trace_model(condition, design, order, taken=taken)
    _same_cycles(run, trace, condition)
    assert (design.line_registers, trace.lost) == (-(-5 // reach), 0)
    assert jc.results_of(condition, run) == jc.expected_results(condition, design, order)


def test_long_links_give_a_result_in_every_cycle() -> None:
    design = Design(4, 8, 8, reach=1)
    order = [(i % 2, (1, i)) for i in range(120)]
    cycles = [cycle for cycle, _ in jc.trace_model(jc.key_condition(), design, order).results]
    middle = cycles[len(cycles) // 4 : -len(cycles) // 4]
    assert design.link_registers(4) == 3
    assert len(middle) / (middle[-1] - middle[0]) > 0.97


def test_windows_in_block_ram_do_what_shorter_ones_do() -> None:
    for seed in range(4):
        rng = Random(seed)
        design, order = (
            jc.make_design(rng, cores=2, left=6 + seed, right=9, windows="memory", block_ram_from=3),
            jc.make_order(rng),
        )
        condition, taken = jc.key_condition(), jc.make_pattern(rng)
        run = jc.run_circuit(condition, design, order, taken=taken)
        trace = jc.trace_model(condition, design, order, taken=taken)
        _same_cycles(run, trace, condition)
        kept = jc.kept_arrivals(condition, order, trace)
        assert jc.results_of(condition, run) == jc.expected_results(condition, design, kept)


def _negative(margin: int) -> tuple[Any, Any, Any]:
    """Return a join whose buffers fill up: all pairs match, and the output is slow."""
    design = Design(2, 8, 8, buffer=8, pipeline=3, margin=margin)
    order = [(i % 2, (1, i)) for i in range(40)]
    return jc.key_condition(), design, order


def test_too_small_a_margin_loses_results() -> None:
    condition, design, order = _negative(margin=1)
    assert design.needed_margin == 4
    run = jc.run_circuit(condition, design, order, taken=(False, False, True))
    trace = jc.trace_model(condition, design, order, taken=(False, False, True))
    missing = jc.expected_results(condition, design, order) - jc.results_of(condition, run)
    assert trace.lost == sum(missing.values()) > 0
    _same_cycles(run, trace, condition)


def test_the_needed_margin_loses_none_and_a_smaller_one_would() -> None:
    for kind, pipeline in ((Design, 0), (Design, 4), (GlobalDesign, 0), (GlobalDesign, 2)):
        design = kind(1, 8, 8, pipeline=pipeline, buffer=9)  # no merger helps it
        order = [(i % 2, (1, i)) for i in range(60)]
        lost = {
            margin: jc.trace_model(
                jc.key_condition(), replace(design, margin=margin), order, taken=(False,) * 5 + (True,)
            ).lost
            for margin in (design.needed_margin, design.needed_margin - 1)
        }
        assert lost[design.needed_margin] == 0
        assert lost[design.needed_margin - 1] > 0, (kind, pipeline)


_TYPES = (
    pa.int8(), pa.int32(), pa.uint16(), pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("ms"),
    pa.decimal128(6, 2), pa.string(),
)  # fmt: skip


def _tables(rng: Random) -> tuple[pa.Table, pa.Table]:
    """Draw two inputs of columns that wires can carry, NULLs among them."""
    kinds = [rng.choice(_TYPES) for _ in range(rng.randint(1, 3))]
    sizes = [rng.randint(0, 14) for _ in range(2)]
    left, right = (
        pa.table({f"{letter}{i}": _column(rng, kind, size) for i, kind in enumerate(kinds)})
        for letter, size in zip("xa", sizes, strict=True)
    )
    return left, right


def _column(rng: Random, kind: pa.DataType, size: int) -> pa.Array:
    made = make_array(rng, kind, size)
    if pa.types.is_string(kind):
        return pa.array([None if v is None else v.replace("\0", "")[:2] for v in made.to_pylist()], kind)
    return made


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_random_predicates_on_random_columns(seed: int) -> None:
    rng = Random(seed)
    left, right = _tables(rng)
    text = make_predicate(rng, left.schema, right.schema, 1, 2)
    on = bind(parse(text), scope_of(left.schema, right.schema))
    design = jc.make_design(rng, ("hold",))
    plan = prepare(
        left.schema, right.schema, text, f"{design.left} tuples", right_window=f"{design.right} tuples"
    )
    offered, taken = jc.make_pattern(rng), jc.make_pattern(rng)
    try:
        condition = condition_of(left, right, on, text_bytes=8)
        run = run_join(
            left,
            right,
            condition,
            design,
            plan.output_schema,
            engine="amaranth",
            offered=offered,
            taken=taken,
            form=LockstepJoin if isinstance(design, GlobalDesign) else HandshakeJoin,
        )
    except UnsupportedError:
        return
    wanted = oracle_join(oracle_rows(left), oracle_rows(right), on, plan.spec.windows).pairs
    pairs = Counter(
        (*left.slice(i, 1).to_pylist()[0].values(), *right.slice(j, 1).to_pylist()[0].values())
        for i, j in wanted
    )
    assert Counter(tuple(row.values()) for row in run.results.to_pylist()) == pairs, text


def test_every_engine_of_simulation_sees_the_same_cycles() -> None:
    rng = Random(7)
    for design in (Design(9, 20, 18), original(3, 6, 5)):  # one in parts, one flattened
        order, offered, taken = jc.make_order(rng, 60), jc.make_pattern(rng), jc.make_pattern(rng)
        runs = [
            jc.run_circuit(jc.key_condition(), design, order, offered=offered, taken=taken, engine=engine)
            for engine in ("amaranth", "cxxrtl-quick")
        ]
        assert runs[0] == runs[1]


def test_long_windows_are_searched_and_drained_in_silence() -> None:
    left = pa.table({"x": pa.array(range(12), pa.int16())})
    right = pa.table({"a": pa.array([0, *range(20, 30), 11], pa.int16())})
    condition = condition_of(left, right, bind(parse("l.x = r.a"), scope_of(left.schema, right.schema)))
    output = pa.schema([*left.schema, *right.schema])
    done = run_join(left, right, condition, Design(1, 400, 300), output, engine="cxxrtl-quick")
    assert done.results.to_pydict() == {"x": [0, 11], "a": [0, 11]}


def test_a_circuit_that_stands_still_is_an_error_and_no_result() -> None:
    condition = papers_condition()
    fed = feed_of(condition, [(condition.left.pack((1, 2)), None)])
    text = (
        "stopped after [0-9]+ cycles, of which the last 40 moved nothing, before its output 'results' ended"
    )
    with pytest.raises(HandshakeError, match=text):
        simulate(HandshakeJoin(condition, Design(2, 64, 64)), {"arrivals": fed}, quiet=40)


@settings(max_examples=8, deadline=None)
@given(seeds)
def test_nested_loops_baseline(seed: int) -> None:
    rng = Random(seed)
    condition, order = jc.key_condition(), jc.make_order(rng, 40)
    left, right = rng.randint(1, 6), rng.randint(1, 6)
    feeds = {"arrivals": feed_of(condition, jc.beats_of(condition, order), pattern=jc.make_pattern(rng))}
    run = simulate(NestedLoops(condition, left, right), feeds, ready={"results": jc.make_pattern(rng)})
    assert run.outputs["results"][-1].eos
    assert jc.results_of(condition, run) == jc.expected_results(condition, Design(1, left, right), order)


def test_a_second_stream_sees_nothing_of_the_first() -> None:
    condition, first, second = jc.key_condition(), jc.make_order(Random(1)), jc.make_order(Random(2))
    for design in (Design(3, 6, 5), original(3, 6, 5)):
        beats = [feed_of(condition, jc.beats_of(condition, order)).beats for order in (first, second)]
        feed = feed_of(condition, [])
        both = type(feed)([*beats[0], *beats[1]], feed.pattern)
        run = simulate(join_of(condition, design), {"arrivals": both}, stop_at_eos=False)
        assert sum(a.eos for a in run.outputs["results"]) == 2
        wanted = jc.expected_results(condition, design, first) + jc.expected_results(
            condition, design, second
        )
        assert jc.results_of(condition, run) == wanted


def test_steps_take_the_cycles_that_the_core_says() -> None:
    condition, design = jc.key_condition("l.k > r.k AND l.k < r.k"), Design(4, 32, 32)
    order = [(side, (1, i)) for i in range(30) for side in (0, 1)]
    taken = jc.run_circuit(condition, design, order).accepted["arrivals"][10:30]
    core = LocalCore(condition, CoreShape.of(design, 0))
    assert {b - a for a, b in pairwise(taken)} == {core.step_cycles} == {17}


def test_core_and_merger_are_written_once() -> None:
    text = to_verilog(HandshakeJoin(papers_condition(), Design(16, 128, 128)))
    assert text.count("\nmodule join_core") == text.count("\nmodule granting_merger") == 1
    assert (text.count("  join_core "), text.count("  granting_merger ")) == (16, 15)


def test_papers_results_are_96_bits_and_match_rates_are_as_asked_for() -> None:
    assert papers_condition().result.bits == 96
    pairs = list(keys(400, 0.25))
    matches = sum(a == b for a, _ in pairs for _, b in pairs)
    assert matches == 200 * 200 == 0.25 * 400 * 400


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cores": 0}, "cores must be a whole number from 1 up; 0 was given"),
        (
            {"left": 3},
            "the left window must be a whole number from 4 up; every core holds a tuple of it; 3 was given",
        ),
        ({"reach": 0}, "reach must be a whole number from 1 up; 0 was given"),
        ({"windows": "paper"}, "no windows 'paper'; choose registers or memory"),
        (
            {"pipeline": 5},
            "a comparison has up to 4 pipeline stages; 5 were asked for",
        ),
        (
            {"buffer": 3},
            "a core's buffer of 3 results is too small: 5 may be on their way when it fills up; give it",
        ),
    ],
)
def test_designs_that_make_no_circuit(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match="^" + text.replace("'", ".")):
        Design(**{"cores": 4, "left": 8, "right": 8, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"overload": "lose"}, "no overload 'lose'; choose hold or discard"),
        ({"pipeline": 4}, "a comparison has up to 3 pipeline stages; 4 were asked for"),
    ],
)
def test_designs_that_make_no_circuit_in_lock_step(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match="^" + text.replace("'", ".")):
        GlobalDesign(4, 8, 8, **changes)


def test_example_of_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/circuits-join.md").read_text()
    ((code, output),) = re.findall(r"```python\n(.*?)```\n+```\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", output)


def test_picture_of_the_page_is_that_of_the_circuit() -> None:
    picture = Path(__file__).parents[2] / "docs/circuits-join.svg"
    assert picture.read_text() == draw(Design(4, 32, 32))
    assert draw(Design(5, 10, 10)).count('class="merger"') == 4
