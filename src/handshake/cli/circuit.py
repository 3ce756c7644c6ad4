"""What `handshake compile` and `handshake explain --circuit` do; imported when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handshake.cli.preview import plain_table
from handshake.cli.query import read_query
from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.picture import draw
from handshake.engines.circuit.report import report
from handshake.errors import InputError, suggest
from handshake.plan.algebra import Plan

__all__ = ["compile_query", "explain_circuit"]


def compile_query(
    path: str,
    output: str | None,
    *,
    nullable: Sequence[str] = (),
    without: Sequence[str] = (),
    figures: bool = False,
    **bounds: Any,
) -> None:
    """Write a query's circuit as Verilog; with `figures`, say what it costs. `bounds`: see `Bounds`."""
    plan = read_query(path)
    given = Bounds(nullable=_by_stream(nullable, plan), **bounds)
    compiled = compile_plan(plan, given, without=without)
    if output is not None:
        write(output, compiled.verilog())
    if figures or output is None:
        for line in plain_table(report(compiled, synthesis=figures)):
            print(line)


def explain_circuit(path: str, svg_file: str | None, *, without: Sequence[str] = (), **bounds: Any) -> None:
    """Draw a query's circuit, or list its blocks with the cycle in which each one has its result."""
    compiled = compile_plan(read_query(path), Bounds(**bounds), without=without)
    if svg_file is not None:
        write(svg_file, draw(compiled.nets))
        return
    for line in plain_table(_blocks(compiled)):
        print(line)


def _blocks(compiled: Compiled) -> list[tuple[str, str]]:
    circuit = compiled.circuit()
    facts = [(name, f"input, {net.row.bits} wires") for name, net in circuit.leaves.items()]
    shown = set()
    for net in circuit.order:
        if net.inputs and net.unit not in shown:
            shown.add(net.unit)
            facts.append((circuit.blocks[net.unit].title, f"cycle {net.latency}, {net.row.bits} wires"))
    return [*facts, *report(compiled, synthesis=False)]


def write(path: str, text: str) -> None:
    """Write a text file; `-` is standard output."""
    if path == "-":
        print(text, end="")
        return
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from None


def _by_stream(given: Sequence[str], plan: Plan) -> dict[str, frozenset[str]]:
    """Fields written as STREAM.FIELD, by stream."""
    found: dict[str, frozenset[str]] = {}
    fields = {source.name: source.fields.names for source in plan.inputs if source.demux is None}
    for text in given:
        stream, dot, name = text.partition(".")
        if not dot or not name:
            raise InputError(f"--nullable '{text}' is no field; write STREAM.FIELD")
        stream = _known(text, "the query has no input", stream, tuple(fields))
        name = _known(text, f"{stream} has no field", name, fields[stream])
        found[stream] = found.get(stream, frozenset()) | {name}
    return found


def _known(text: str, lacks: str, name: str, names: Sequence[str]) -> str:
    """A name as it was declared, in any case where that is unambiguous."""
    same = [n for n in names if n == name] or [n for n in names if n.casefold() == name.casefold()]
    if len(same) != 1:
        raise InputError(f"--nullable '{text}': {lacks} '{name}' ({', '.join(names)}){suggest(name, names)}")
    return same[0]
