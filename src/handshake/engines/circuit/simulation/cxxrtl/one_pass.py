"""Compiled simulation of circuits with many equal instances: one function per module, called per instance.

CXXRTL flattens a circuit into one long program, which g++ compiles for minutes and which does not fit the
instruction cache. Not flattened, it evaluates until nothing changes. If all outputs of all modules depend on
registers and memories only, there is a third way: evaluate each instance once, on the outputs of all others
as they stood; then all of them move on together.

An instance whose last cycle changed nothing, and whose inputs are still the same, would change nothing again
and is skipped: in a join whose results queue up, most cores wait in most cycles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from handshake.engines.circuit.simulation.cxxrtl.merge import merge_registers
from handshake.engines.circuit.simulation.cxxrtl.parse import (
    ParsedModule,
    evaluations,
    is_clocked,
    kind_of,
    modules_of,
    targets,
)

MANY = 8
_GUARDED = re.compile(
    r"^(\s*)(memory_\w+\.update\(.*, ([\w.]+)\.repeat<\d+>\(\)\.val\(\), \d+\);)$", re.MULTILINE
)
"""A write to memory, which is skipped while its enable is low; CXXRTL queues it and masks it later."""
_CELL = re.compile(
    r"^\t// cells? .*\n"
    r"(?P<inputs>(?:\tcell_(?P<cell>\w+)\.p_\w+ = .*;\n)+)"
    r"\tif \(cell_(?P=cell)\.eval\(performer\)\) \{\n"
    r"(?P<outputs>(?:\t\t.*;\n)*)"
    r"\t\} else \{\n(?:\t\t.*;\n)*\t\}\n",
    re.MULTILINE,
)
_INPUT = re.compile(r"^\t(?P<cell>cell_\w+)\.(?P<port>p_\w+) = (?P<source>.*);\n", re.MULTILINE)
_OUTPUT = re.compile(r"^\t\t(?P<net>[\w<>()]+?)(?:\.next)? = (?P<source>cell_\w+\.p_\w+)\.curr;$")
_SETTLED = re.compile(r"^\t(?P<net>p_\w+)\.next = (?P<source>.*);\n", re.MULTILINE)
_READ = re.compile(
    r"^\t// memory \S+ read port \d+\n"
    r"\tauto (?P<index>tmp_\d+) = memory_index\((?P<address>\w+)\.curr, \d+, \d+\);\n"
    r"\tCXXRTL_ASSERT.*\n"
    r"\tif\((?P=index)\.valid\) \{\n"
    r"\t\tvalue<\d+> (?P<found>tmp_\d+) = \w+\[(?P=index)\.index\];\n"
    r"\t\t(?P<net>p_\w+)(?:\.next)? = (?P=found);\n"
    r"\t\} else \{\n.*\n\t\}\n",
    re.MULTILINE,
)
"""The word of a memory that a register's value points at; it changes with registers only."""
_PLACE = re.compile(r"\bmemory_index\((.*), 0, (\d+)\)")
_WRITE = re.compile(
    r"if \((?P<enable>[\w.]+)\) (?P<memory>memory_\w+)\.update\((?P<place>\w+\.index), (?P<word>.*), "
    r"(?P=enable)\.repeat<\d+>\(\)\.val\(\), \d+\);"
)
_UPDATE = re.compile(r"(memory_\w+\.update\(.*, (?P<priority>\d+)\);)$", re.MULTILINE)
_RESET = re.compile(r"^void p_top::reset\(\) \{\n(?P<text>.*?)(?=^\})", re.MULTILINE | re.DOTALL)
_ABOUT = re.compile(r"^\t+(?:wire<\d+> |value<\d+> |if \()?(p_\w+)(?:;| = (?:wire|value)<.*|\.commit\(.*)$")
_TOP = re.compile(r"^struct p_top : public module \{\n(?P<text>.*?)^\}; // struct", re.MULTILINE | re.DOTALL)


def has_many_instances(rtlil: str) -> bool:
    """Return whether the top of a design has many instances of one module."""
    top = rtlil[rtlil.rindex("\nmodule ") :]
    counts = Counter(re.findall(r"^  cell \\(\w+) ", top, re.MULTILINE))
    return any(number >= MANY for number in counts.values())


def one_pass(model: str) -> str | None:
    """Rewrite the C++ of a design that was not flattened, so that it settles in one pass.

    Returns:
        None if an output of a module depends on an input in the same cycle, or if the text has another form.
    """
    model = _GUARDED.sub(r"\1if (\3) \2", model)
    model = re.sub(r"^\tcell_\w+\.p_(?:rst|clk) = .*;\n", "", model, flags=re.MULTILINE)  # there is no reset
    try:
        return _rewrite(model)
    except (KeyError, ValueError):  # something was not found where it is expected
        return None


def _rewrite(model: str) -> str | None:
    found = modules_of(model)
    halves = {part.name: _halves(merge_registers(part)) for _, _, part in found if part is not None}
    if not found or len(halves) < len(found) or not all(halves.values()):
        return None
    whole = {name: each for name, each in halves.items() if each is not None}
    top = _top(model, whole)
    if top is None:
        return None
    for struct, evaluation, part in reversed(found):
        assert part is not None
        text = _write(whole[part.name])
        model = f"{model[: struct.start()]}{text}{model[evaluation.end() :]}"
    return top.put_into(model).replace("\n\n", '\n#include "one_pass.h"\n\n', 1)


@dataclass(frozen=True)
class _Halves:
    """A module's statements that settle its outputs from registers and memories, and all others."""

    part: ParsedModule
    settling: tuple[str, ...]
    reads: frozenset[str]
    """Values that are read from memories meanwhile, and kept for the others."""
    others: tuple[str, ...]

    @cached_property
    def registers(self) -> dict[str, int]:
        settled = self.settled
        nets = self.part.nets.items()
        return {name: net.bits for name, net in nets if net.kind == "wire" and name not in settled}

    @cached_property
    def settled(self) -> set[str]:
        return {targets(unit)[0] for unit in self.settling} - self.reads

    @property
    def inputs(self) -> dict[str, int]:
        return {name: net.bits for name, net in self.part.nets.items() if net.role == "input"}

    def where(self, text: str) -> str:
        """Name nets as members: registers have a present and a next value, settled outputs have one."""
        registers = self.registers

        def member(found: re.Match[str]) -> str:
            name, when = found.groups()
            return f"{'now' if when == 'curr' else 'then'}.{name}" if name in registers else name

        return re.sub(r"\b(p_\w+)\.(curr|next)\b", member, text)

    def output(self, name: str) -> str:
        return f"now.{name}" if name in self.registers else name


def _halves(part: ParsedModule) -> _Halves | None:
    """Return None if an output depends on an input in the same cycle, or on another output."""
    reads = {targets(unit)[0]: unit for unit in part.units if _READ.search(unit)}
    settling = {targets(unit)[0]: unit for unit in part.units if _SETTLED.search(unit)}
    first = (*reads.values(), *settling.values())
    others = tuple(unit for unit in part.units if unit not in first)
    inside = reads.keys() & part.values.keys()
    if any(found["address"] in settling for unit in reads.values() for found in _READ.finditer(unit)):
        return None
    if not all(_settles(_sources(unit), inside, settling) for unit in settling.values()):
        return None
    wires = {name for name, net in part.nets.items() if net.kind == "wire"}
    if any(wires & set(targets(unit)) and not is_clocked(unit) for unit in others):
        return None
    if any(net.kind == "value" and net.role != "input" for net in part.nets.values()):
        return None
    return _Halves(part, first, frozenset(inside), others)


def _settles(source: str, reads: Collection[str], settling: Collection[str]) -> bool:
    """Return whether a source is made of registers, and of what they point at in memories."""
    names = re.findall(r"\b([pi]_\w+)(\.curr)?", source)
    return all(name in reads or (curr and name not in settling) for name, curr in names)


def _sources(unit: str) -> str:
    return "".join(found["source"] for found in _SETTLED.finditer(unit))


def _write(halves: _Halves) -> str:
    """Return the rewritten C++ of a module."""
    part, name = halves.part, halves.part.name
    members = [
        *(f"value<{bits}> {each}; const value<{bits}> *from_{each};" for each, bits in halves.inputs.items()),
        *(f"value<{part.nets[each].bits}> {each};" for each in part.nets if each in halves.settled),
        *(f"value<{part.values[each]}> {each};" for each in part.values if each in halves.reads),
        *(f"handshake::store<{m.bits}, {m.depth}> {each};" for each, m in part.memories.items()),
        "struct alignas(32) State {",
        *(f"\tvalue<{bits}> {each};" for each, bits in halves.registers.items()),
        "} now, then;",
        "bool alive, turned, wrote;",
        f"{name}(interior) {{}}",
        f"{name}() {{ reset(); }}",
        "void reset() override;",
        "bool eval(performer *performer = nullptr) override;",
        "bool commit() override { return move(); }",
        "template<class ObserverT> bool commit(ObserverT &) { return move(); }",
        "void settle(); __attribute__((noinline)) void turn(); __attribute__((noinline)) bool move();",
    ]
    declared = "".join(f"\t{line}\n" for line in members)
    functions = (
        f"void {name}::reset() {{\n{_reset(halves)}}}\n",
        f"void {name}::settle() {{\n{_statements(halves, halves.settling)}}}\n",
        f"bool {name}::eval(performer *performer) {{\n{_evaluation(halves)}\treturn true;\n}}\n",
        f"void {name}::turn() {{\n{_turn(halves)}}}\n",
        f"bool {name}::move() {{\n{_MOVE}}}\n",
    )
    return f"struct {name} : public module {{\n{declared}}}; // struct {name}\n\n" + "\n".join(functions)


_MOVE = """\
	if (!turned) return false;
	turned = false;
	alive = handshake::moved(now, then) | wrote;
	wrote = false;
	if (alive) settle();
	return alive;
"""


def _reset(halves: _Halves) -> str:
    part, registers = halves.part, halves.registers
    lines = ["now = State();"]
    lines += [f"now.{n} = value<{b}>{part.starts[n]};" for n, b in registers.items() if n in part.starts]
    for number, (name, memory) in enumerate(part.memories.items()):
        lines.append(f"std::fill(std::begin({name}.data), std::end({name}.data), value<{memory.bits}>());")
        if memory.content:
            lines.append(
                f"static const value<{memory.bits}> held{number}[{memory.depth}] {memory.content};"
                f" std::copy(std::begin(held{number}), std::end(held{number}), {name}.data);"
            )
    lines += ["then = now; alive = true; turned = wrote = false; settle();"]
    return "".join(f"\t{line}\n" for line in lines)


def _evaluation(halves: _Halves) -> str:
    """Return the evaluation; memories are written last, in the order of their ports, after all reads."""
    values = "".join(f"\tvalue<{b}> {n};\n" for n, b in halves.part.values.items() if n not in halves.reads)
    writes = sorted((unit for unit in halves.others if _UPDATE.search(unit)), key=_priority)
    rest = [unit for unit in halves.others if not _UPDATE.search(unit)]
    return f"\tconst bool posedge_p_clk = true;\n{values}{_statements(halves, (*rest, *writes))}"


def _priority(unit: str) -> int:
    return max(int(found["priority"]) for found in _UPDATE.finditer(unit))


def _statements(halves: _Halves, units: tuple[str, ...]) -> str:
    text = _PLACE.sub(r"handshake::place<\2>(\1)", "".join(units))
    text = _WRITE.sub(r"if (\g<enable>) \g<memory>.write(\g<place>, \g<word>), wrote = true;", text)
    return halves.where(_UPDATE.sub(r"wrote |= \1", text))


def _turn(halves: _Halves) -> str:
    """Return a function that evaluates unless nothing has changed since a cycle that changed nothing."""
    same = " & ".join(f"{name} == *from_{name}" for name in halves.inputs) or "true"
    copies = "".join(f"\t{name} = *from_{name};\n" for name in halves.inputs)
    return f"\tif (!alive && ({same})) return;\n{copies}\tturned = true;\n\teval();\n"


@dataclass(frozen=True)
class _Top:
    """The rewritten top: its evaluation, the values that it keeps for inputs, and nets that are not read."""

    body: str
    kept: str
    wires: str
    gone: frozenset[str]

    def put_into(self, model: str) -> str:
        old = evaluations(model)["p_top"]
        model = f"{model[: old.start('body')]}{self.body}{model[old.end('body') :]}"
        model = _RESET.sub(lambda found: f"{found[0]}{self.wires}{_without(found['text'], self.gone)}", model)
        return _TOP.sub(
            lambda found: f"{self._struct(_without(found['text'], self.gone))}}}; // struct", model
        )

    def _struct(self, text: str) -> str:
        moves = "".join(_moves(text))
        return f"struct p_top : public module {{\n{text}{self.kept}\tvoid move() {{\n{moves}\t}}\n"


def _top(model: str, parts: dict[str, _Halves]) -> _Top | None:
    """Return the rewritten top: it computes its own nets, then evaluates every instance once."""
    body, kinds = evaluations(model)["p_top"]["body"], kind_of(model)
    cells = list(_CELL.finditer(body))
    sources = _outputs(cells)
    rest = _CELL.sub("", body).replace("\treturn converged;\n", "")
    head, *units = re.split(r"^(?=\t// )", rest, flags=re.MULTILINE)
    if sources is None or "cell_p_" in rest or "posedge_p_clk = " not in head:
        return None
    if any(".next" in unit and not is_clocked(unit) for unit in units):
        return None
    placed = {net: _place(source, kinds, parts) for net, source in sources.items()}
    shown = _ports(model)
    ports = "".join(f"\t{shown[net]} = {source};\n" for net, source in placed.items() if net in shown)
    wired = _INPUT.finditer(_wire("".join(cell["inputs"] for cell in cells), placed))
    kept, wires, gives = zip(*(_input(each, kinds, parts) for each in wired), strict=True)
    turns = "".join(f"\t\tcell_{cell['cell']}.turn();\n" for cell in cells)
    own = _wire("".join(units), placed) + "".join(gives)
    text = f"{head}{ports}{own}\tif (posedge_p_clk) {{\n{turns}\t}}\n\treturn converged;\n"
    gone = frozenset(sources) - shown.keys()
    text = _without(text.replace("bool converged = false;", "bool converged = true;"), gone)
    return _Top(text, "".join(kept), "".join(wires), gone)


def _ports(model: str) -> dict[str, str]:
    """Return the outputs of the top, and how each is set; one that the top itself reads is a `wire`."""
    found = _TOP.search(model)
    ports = re.findall(r"^\t/\*output\*/ (\w+)<\d+> (p_\w+);$", found["text"] if found else "", re.MULTILINE)
    return {name: name if kind == "value" else f"{name}.curr = {name}.next" for kind, name in ports}


def _without(text: str, gone: frozenset[str]) -> str:
    """Return the lines that do not declare, reset or commit a net that is gone."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not ((net := _ABOUT.match(line)) and net[1] in gone))


def _outputs(cells: list[re.Match[str]]) -> dict[str, str] | None:
    lines = [_OUTPUT.match(line) for cell in cells for line in cell["outputs"].splitlines()]
    return None if None in lines else {line["net"]: line["source"] for line in lines if line}


def _place(source: str, kinds: dict[str, str], parts: dict[str, _Halves]) -> str:
    cell, port = source.split(".")
    return f"{cell}.{parts[kinds[cell]].output(port)}"


def _input(found: re.Match[str], kinds: dict[str, str], parts: dict[str, _Halves]) -> tuple[str, str, str]:
    """Connect an input of an instance to the output that drives it, or to a value that the top keeps."""
    cell, port, source = found["cell"], found["port"], found["source"]
    if re.fullmatch(r"cell_\w+\.(?:now\.)?p_\w+", source):
        return "", f"\t{cell}.from_{port} = &{source};\n", ""
    kept, bits = f"given_{cell}_{port}", parts[kinds[cell]].inputs[port]
    return f"\tvalue<{bits}> {kept};\n", f"\t{cell}.from_{port} = &{kept};\n", f"\t{kept} = {source};\n"


def _wire(text: str, sources: dict[str, str]) -> str:
    """Replace nets by the outputs that drive them; a name before `=` is a port of an instance, and stays."""

    def source(found: re.Match[str]) -> str:
        return sources.get(found["net"], found[0])

    return re.sub(r"(?<![\w.])(?P<net>p_\w+)(?:\.curr)?(?=[^\w])(?!\.next)", source, text)


def _moves(struct: str) -> Iterator[str]:
    """Yield `commit` of the top without a check for changes."""
    names = re.findall(r"^\t\tif \((\w+)\.commit\(observer\)\) changed = true;$", struct, re.MULTILINE)
    for name in names:
        if name.startswith("memory_"):
            yield f"\t\t{{ observer nobody; {name}.commit(nobody); }}\n"
        elif name.startswith("cell_"):
            yield f"\t\t{name}.move();\n"
        else:
            yield f"\t\t{name}.curr = {name}.next;\n"
