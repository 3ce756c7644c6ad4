"""Queries through circuits: bounds, feeds, checks against the oracle, and strategies for random queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, note, reject, settings
from hypothesis import strategies as st

import query_oracle
from circuits import patterns, physical, with_places
from handshake.engines.circuit.compiler import Compiled
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.join_nets import JoinNet
from handshake.engines.circuit.nets.netlist import Net
from handshake.engines.circuit.nets.netlist import walk as walk_net
from handshake.engines.circuit.simulation.simulate import Feed, Simulation, feed
from handshake.engines.circuit.simulation.testbench import Run
from handshake.errors import QueryError
from handshake.operators.query import Query
from handshake.plan.algebra import Group, Plan, Union, walk
from handshake.plan.query import parse_query
from query_streams import arrivals, compare, cuts, results

__all__ = [
    "COLUMNS",
    "FEW_QUERIES",
    "NUMBERS",
    "aggregates",
    "bounds_of",
    "check_run",
    "checked_runs",
    "conditions",
    "feeds_of",
    "numbers",
    "plan_of",
]

COLUMNS = {
    "g": "string(4)",
    "i": "int8",
    "j": "int8",
    "l": "long",
    "u": "uint64",
    "d": "decimal(12, 2)",
    "b": "bool",
}
NUMBERS = ("i", "j", "l", "u", "d")
# Shrinking would build hundreds of circuits; the text of the query is noted instead.
FEW_QUERIES = settings(
    max_examples=7, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


def bounds_of(plan: Plan, groups: int = 5) -> Bounds:
    """Return bounds under which every field of every input may be NULL."""
    nullable = {source.name: frozenset(source.fields.names) for source in plan.inputs}
    return Bounds(groups=groups, nullable=nullable, write_cycles=2, divider="host")


def feeds_of(compiled: Compiled, items: list[Any], draw: Any) -> dict[str, Feed]:
    """Return feeds of arrivals, held back by drawn patterns."""
    items = with_places(compiled, items)
    return {
        name: feed(
            row,
            [tuple(values.get(field) for field in row.names) for stream, values in items if stream == name],
            pattern=draw(patterns),
            end=draw(st.sampled_from(["alone", "last"])),
        )
        for name, row in compiled.inputs.items()
    }


def check_run(plan: Plan, compiled: Compiled, run: Run, wanted: dict[str, list[dict[str, Any]]]) -> None:
    """Check that tuples are the oracle's, in the same order if one is defined.

    The groups of a window come in any order; so do the streams of a union and results of a handshake join.
    """
    for output in plan.outputs:
        row = compiled.outputs[output.name]
        found = [dict(zip(row.names, each, strict=True)) for each in run.tuples(output.name, row)]
        loose = any(isinstance(node, (Group, Union)) for node in walk(output))
        if loose or in_any_order(compiled.nets[output.name]):
            assert Counter(map(_key, found)) == Counter(map(_key, wanted[output.name]))
        else:
            assert found == wanted[output.name]
    assert run.probes.get("overflow", 0) == 0


def in_any_order(net: Net) -> bool:
    """Return whether results come from a handshake join, as tuples meet."""
    return any(isinstance(each, JoinNet) and not each.spec.ordered for each in walk_net(net))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))


@st.composite
def numbers(draw: Any, fields: list[str], depth: int = 2) -> str:
    """Draw an expression whose value is a number."""
    known = [name for name in fields if name in NUMBERS or name.startswith("n")]
    if depth == 0 or not known or draw(st.booleans()):
        return draw(st.sampled_from([*known, "1", "-3", "2.5"]))
    a, b = (draw(numbers(fields, depth - 1)) for _ in range(2))
    form = draw(
        st.sampled_from(["({a} + {b})", "({a} - {b})", "({a} * {b})", "abs({a})", "greatest({a}, {b})"])
    )
    return form.format(a=a, b=b)


@st.composite
def conditions(draw: Any, fields: list[str], depth: int = 2) -> str:
    """Draw an expression whose value is a truth value."""
    if depth and draw(st.integers(0, 2)) == 0:
        a, b = (draw(conditions(fields, depth - 1)) for _ in range(2))
        return draw(st.sampled_from(["({a} AND {b})", "({a} OR {b})", "NOT {a}"])).format(a=a, b=b)
    forms = ["{a} {op} {b}", "{a} IS NULL", "{a} BETWEEN {b} AND 50"]
    forms += ["b"] if "b" in fields else []
    forms += ["g {op} 'UBSN'", "g IS NOT NULL", "g IN ('', 'ü')"] if "g" in fields else []
    op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    a, b = (draw(numbers(fields, 1)) for _ in range(2))
    return draw(st.sampled_from(forms)).format(a=a, b=b, op=op)


@st.composite
def windows(draw: Any, loose: bool) -> str:
    size, advance = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    if -(-size // advance) > 3:
        advance = -(-size // 3)
    if not loose and draw(st.booleans()):
        return f"[SIZE {size} ADVANCE {advance} TUPLES]"
    return f"[SIZE .00{size} ADVANCE .00{advance} TIME]"


@st.composite
def aggregates(draw: Any, source: str, fields: list[str]) -> tuple[str, list[str]]:
    """Draw a SELECT with aggregates over windows of a source, and the names of its columns.

    The groups of a window come in any order, so nothing that reads them may depend on one.
    """
    loose = "GROUP BY" in source
    where = f" WHERE {draw(conditions(fields, 1))}" if draw(st.booleans()) else ""
    known = [name for name in fields if name in NUMBERS or name.startswith("n")]
    functions = ["count()", "sum({x})", "min({x})", "max({x})"]
    functions += [] if loose else ["wsum({x}, [2, -1])"]
    calls = draw(st.lists(st.sampled_from(functions), min_size=1, max_size=2))
    items = [f"{call.format(x=draw(st.sampled_from(known)))} AS n{k}" for k, call in enumerate(calls)]
    names = [f"n{k}" for k in range(len(items))]
    group = ""
    if "b" in fields and draw(st.booleans()):
        group, items, names = " GROUP BY b", ["b", *items], ["b", *names]
    window = draw(windows(loose))
    return f"SELECT {', '.join(items)} FROM {source} {window}{where}{group}", names


def plan_of(text: str) -> Plan:
    """Return the plan of a random text; reject one whose values have no type."""
    note(text)
    try:
        return parse_query(text)
    except QueryError as error:  # a product of more than 38 digits has no type to be held in
        if "cannot be held; cast them to a smaller type" in str(error):
            reject()
        raise


def checked_runs(
    data: st.DataObject, plan: Plan, compiled: Compiled, *, engine: bool, **drawn: Any
) -> Iterator[tuple[Run, query_oracle.Counts]]:
    """Check two random inputs through one circuit against the oracle and, if asked, the local engine."""
    made = Simulation(compiled.circuit())
    for _ in range(2):
        items, counts = data.draw(arrivals(plan, **drawn)), query_oracle.Counts()
        given_ = physical(plan, items)
        wanted = query_oracle.run(plan, given_, counts)
        if engine:
            compare(results(Query(plan), cuts(data.draw, items)), wanted)
        ready = {name: data.draw(patterns) for name in compiled.outputs}
        run = made.run(feeds_of(compiled, given_, data.draw), ready=ready)
        check_run(plan, compiled, run, wanted)
        yield run, counts
