"""Optimisations of circuits (Glacier, section 6), each a rule that can be left out: on nets, or on plans."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from handshake.engines.circuit.nets.netlist import (
    ComputeNet,
    ConcatNet,
    Input,
    Net,
    SelectNet,
    StageNet,
    rebuild,
)
from handshake.engines.circuit.nets.window_nets import GroupedWindowNet, GroupNet, WindowNet
from handshake.errors import UnsupportedError, suggest
from handshake.plan.algebra import Plan, WindowJoin
from handshake.plan.algebra import walk as walk_plan
from handshake.plan.expr import Column
from handshake.plan.expr import walk as walk_expr
from handshake.plan.rules.projections import push_down_projections

Nets = dict[str, Net]


def _check_names(without: Collection[str]) -> None:
    """Raise an error if `without` names a rule that does not exist."""
    known = (*PLAN_RULES, *RULES)
    for name in sorted(set(without) - set(known)):
        raise UnsupportedError(f"no rule '{name}'; there are {', '.join(known)}{suggest(name, known)}")


def prepare(plan: Plan, without: Collection[str] = ()) -> Plan:
    """Apply all rules on plans but those named in `without`."""
    _check_names(without)
    for name, rule in PLAN_RULES.items():
        if name not in without:
            plan = rule(plan)
    return plan


def optimise(nets: Nets, without: Collection[str] = ()) -> Nets:
    """Apply all rules on nets but those named in `without`."""
    _check_names(without)
    for name, rule in RULES.items():
        if name not in without:
            nets = rule(nets)
    return nets


# Joins hold tuples.


def narrow_joins(plan: Plan) -> Plan:
    """Leave columns that are not read out before a join, which would hold them in its windows."""
    joins = any(isinstance(node, WindowJoin) for output in plan.outputs for node in walk_plan(output))
    return plan.map(push_down_projections) if joins else plan


def _rewrite_all(rule: Callable[[Net], Net], nets: Nets) -> Nets:
    """Rewrite the nets of all results, keeping what they share."""
    done: dict[int, Net] = {}
    return {name: rebuild(net, rule, done) for name, net in nets.items()}


# 6.4 Un-nesting of grouping and windows.


def _unnest_group_in_window(net: Net) -> Net:
    """Put one CAM before the windows instead of one in every copy; see `GroupedWindowNet`."""
    if not isinstance(net, WindowNet):
        return net
    after, group = _stages_until(net.body, GroupNet)
    if not isinstance(group, GroupNet):
        return net
    before, leaf = _stages_until(group.source, Input)
    if not isinstance(leaf, Input) or net.slide.bounds:
        return net
    if net.slide.kind == "tuples" and any(isinstance(stage, SelectNet) for stage in before):
        return net  # windows count tuples that the selection leaves out
    source = _stack(before, net.source)
    made: Net = GroupedWindowNet(
        source, group.keys, net.slide, group.body, group.entries, group.write_cycles, net.merge
    )
    return _stack(after, made)


def _stages_until(net: Net, kind: type[Net]) -> tuple[list[StageNet], Net]:
    """Return the stages from the end of a net back to the first net of a kind, last stage first."""
    stages: list[StageNet] = []
    while isinstance(net, StageNet) and not isinstance(net, kind):
        stages.append(net)
        net = net.source
    return stages, net


def _stack(stages: list[StageNet], source: Net) -> Net:
    """Return the stages behind another source."""
    for stage in reversed(stages):
        source = stage.with_inputs((source,))
    return source


# 6.2 Parallel evaluation.


def _evaluate_in_parallel(net: Net) -> Net:
    """Merge consecutive operations that do not read each other's results into one parallel step."""
    if not isinstance(net, ComputeNet) or not isinstance(net.source, ComputeNet):
        return net
    made = {name for name, _, _ in net.source.operations}
    reads = {e.name for _, op, _ in net.operations for e in walk_expr(op) if isinstance(e, Column)}
    if made & reads:
        return net
    return replace(net.source, operations=(*net.source.operations, *net.operations))


# 6.3 Multiplexers for unions.


def _multiplex_windows(net: Net) -> Net:
    """Send results of windows through a multiplexer instead of a union with FIFOs."""
    return replace(net, merge="multiplexer") if isinstance(net, (WindowNet, GroupedWindowNet)) else net


# 6.1 Elimination of registers.


def eliminate_registers(nets: Nets) -> Nets:
    """Run consecutive gates in one cycle: only the last stage before an output has a register."""
    bare = _rewrite_all(_asynchronous, nets)
    return {name: _add_register(net) for name, net in bare.items()}


def _asynchronous(net: Net) -> Net:
    return replace(net, registered=False) if isinstance(net, (StageNet, ConcatNet)) else net


def _add_register(net: Net) -> Net:
    """Give a result a register: that of a window or aggregate, or else of the last stage."""
    _, behind = _stages_until(net, Input)
    clocked = isinstance(behind, (WindowNet, GroupedWindowNet))
    return replace(net, registered=True) if isinstance(net, StageNet) and not clocked else net


PLAN_RULES: dict[str, Callable[[Plan], Plan]] = {"narrow_joins": narrow_joins}
RULES: dict[str, Callable[[Nets], Nets]] = {
    "unnest_group_in_window": partial(_rewrite_all, _unnest_group_in_window),
    "evaluate_in_parallel": partial(_rewrite_all, _evaluate_in_parallel),
    "multiplex_windows": partial(_rewrite_all, _multiplex_windows),
    "eliminate_registers": eliminate_registers,
}
