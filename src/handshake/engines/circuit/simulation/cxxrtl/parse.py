"""Modules as C++ that Yosys wrote, parsed: nets and memories, and statements of a cycle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_STRUCT = re.compile(
    r"^struct (?P<name>p_\w+) : public module \{\n(?P<members>.*?)"
    r"(?P<methods>^\t(?P=name)\(interior\).*?)^\}; // struct (?P=name)\n\n"
    r"void (?P=name)::reset\(\) \{\n(?P<reset>.*?)^\}\n",
    re.MULTILINE | re.DOTALL,
)
_EVAL = re.compile(
    r"^bool (?P<name>p_\w+)::eval\(performer \*performer\) \{\n(?P<body>.*?)^\}\n", re.MULTILINE | re.DOTALL
)
_NET = re.compile(r"\t(?:/\*(?P<role>input|output)\*/ )?(?P<kind>wire|value)<(?P<bits>\d+)> (?P<name>p_\w+);")
_MEMORY = re.compile(r"\tmemory<(?P<bits>\d+)> (?P<name>memory_p_\w+) \{ (?P<depth>\d+)u \};")
_CLOCK = re.compile(
    r"\t(?:/\*input\*/ )?value<1> p_clk;\n\tvalue<1> prev_p_clk;\n"
    r"\tbool posedge_p_clk\(\) const \{\n.*\n\t\}\n?"
)
_START = re.compile(r"^\t(?P<name>p_\w+) = (?:wire|value)<\d+>(?P<value>\{.*\});\n", re.MULTILINE)
_CONTENT = re.compile(
    r"^\tstatic const value<\d+> (?P<init>mem_init_\d+)\[\d+\] (?P<values>\{\n.*?^\t\});\n"
    r"\tstd::copy\([^\n]*, &(?P<name>memory_p_\w+)\.data\[0\]\);\n",
    re.MULTILINE | re.DOTALL,
)
_HEAD = re.compile(r"\tbool (?:converged = (?:true|false)|posedge_p_clk = this->posedge_p_clk\(\));\n")
_LOCAL = re.compile(r"^\tvalue<(?P<bits>\d+)> (?P<name>[pi]_\w+);\n", re.MULTILINE)
_WRITE = re.compile(r"^\t+(?:if \(\S+\) )?(?P<name>memory_p_\w+)\.update\(", re.MULTILINE)
_SET = re.compile(r"^\t+(?P<targets>[pi]_[^=\n]*?) = ", re.MULTILINE)
_CLOCKED = re.compile(r"(?:\t//.*\n)+\tif \(posedge_p_clk\) \{\n(?:\t\t.*\n)*\t\}\n")
_TARGET = re.compile(r"\b[pi]_\w+")


class Net(NamedTuple):
    """A net that outlives a cycle: a register or another output (`wire`), or an input (`value`)."""

    kind: str
    role: str
    bits: int


class Memory(NamedTuple):
    """Words of a memory, and what it holds in the beginning."""

    bits: int
    depth: int
    content: str


@dataclass(frozen=True)
class ParsedModule:
    """One module: nets and memories that it holds, values that live within a cycle, and statements."""

    name: str
    nets: dict[str, Net]
    memories: dict[str, Memory]
    starts: dict[str, str]
    """The first values of registers; the others begin with zero."""
    values: dict[str, int]
    units: tuple[str, ...]


def targets(unit: str) -> tuple[str, ...]:
    """Return the nets, values or memories that a statement sets."""
    names = [found["name"] for found in _WRITE.finditer(unit)]
    names += [name for found in _SET.finditer(unit) for name in _TARGET.findall(found["targets"])]
    return tuple(dict.fromkeys(names))


def is_clocked(unit: str) -> bool:
    """Return whether a statement runs at the clock's edge only."""
    return _CLOCKED.fullmatch(unit) is not None


def modules_of(model: str) -> list[tuple[re.Match[str], re.Match[str], ParsedModule | None]]:
    """Return every module but the top: its declaration, its evaluation, and both parsed if possible."""
    evals = evaluations(model)
    return [
        (struct, evals[struct["name"]], _part(struct, evals[struct["name"]]["body"]))
        for struct in _STRUCT.finditer(model)
        if struct["name"] != "p_top"
    ]


def evaluations(model: str) -> dict[str, re.Match[str]]:
    """Return the evaluation of every module, by its name."""
    return {found["name"]: found for found in _EVAL.finditer(model)}


def kind_of(model: str) -> dict[str, str]:
    """Return the module of every cell."""
    return {cell: kind for kind, cell in re.findall(r"^\t(p_\w+) (cell_\w+) \{", model, re.MULTILINE)}


def _part(struct: re.Match[str], body: str) -> ParsedModule | None:
    """Parse a module; None if it has something unknown, such as instances or a second clock."""
    members = [line for line in _members(struct["members"]) if line]
    nets = {found["name"]: found for line in members if (found := _NET.fullmatch(line))}
    stores = {found["name"]: found for line in members if (found := _MEMORY.fullmatch(line))}
    contents = {found["name"]: found["values"] for found in _CONTENT.finditer(struct["reset"])}
    rest = _START.sub("", _CONTENT.sub("", struct["reset"]))
    if len(nets) + len(stores) < len(members) or rest.strip() or "cell_p_" in body:
        return None
    units = tuple(_units(body))
    part = ParsedModule(
        struct["name"],
        {name: Net(n["kind"], n["role"] or "", int(n["bits"])) for name, n in nets.items()},
        {n: Memory(int(m["bits"]), int(m["depth"]), contents.get(n, "")) for n, m in stores.items()},
        {found["name"]: found["value"] for found in _START.finditer(struct["reset"])},
        {found["name"]: int(found["bits"]) for found in _LOCAL.finditer(body)},
        units,
    )
    return part if all(map(targets, units)) else None


def _members(text: str) -> Iterator[str]:
    for line in _CLOCK.sub("", text + "\n").splitlines():
        yield "" if line.startswith("\t//") else line


def _units(body: str) -> Iterator[str]:
    """Yield statements, each with a comment before it; connections are comments alone."""
    statements = _LOCAL.sub("", _HEAD.sub("", body)).replace("\treturn converged;\n", "")
    for unit in re.split(r"^(?=\t// )", statements, flags=re.MULTILINE):
        if re.search(r"^\t+(?!//)", unit, re.MULTILINE):
            yield unit
