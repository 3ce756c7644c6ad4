"""Compiled simulation of circuits with many equal instances: one function per module, called per instance.

CXXRTL flattens a circuit into one long program, which g++ compiles for minutes and which does not fit the
instruction cache. Not flattened, it evaluates until nothing changes. If all outputs of all modules depend on
registers and memories only, there is a third way: evaluate each instance once, on the outputs of all others
as they stood; then all of them move on together.

An instance whose last cycle changed nothing, and whose inputs are still the same, would change nothing again
and is skipped: in a join whose results queue up, most cores wait in most cycles.

The C++ that Yosys writes is rewritten as text; `one_pass` returns None for a text of another form.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

MANY = 8
_MODULE = re.compile(
    r"^struct (?P<name>p_\w+) : public module \{\n(?P<members>.*?)^\}; // struct (?P=name)\n\n"
    r"void (?P=name)::reset\(\) \{\n(?P<reset>.*?)^\}\n\n"
    r"bool (?P=name)::eval\(performer \*performer\) \{\n(?P<body>.*?)\treturn converged;\n\}\n",
    re.MULTILINE | re.DOTALL,
)
_NET = re.compile(r"\t(?:/\*(?P<role>input|output)\*/ )?(?P<kind>wire|value)<(?P<bits>\d+)> (?P<name>p_\w+);")
_CLOCK = re.compile(
    r"\t(?:/\*input\*/ )?value<1> p_clk;\n\tvalue<1> prev_p_clk;\n"
    r"\tbool posedge_p_clk\(\) const \{\n.*\n\t\}\n"
)
_START = re.compile(r"^\t(?P<name>p_\w+) = wire<(?P<bits>\d+)>", re.MULTILINE)
_CLOCKED = re.compile(r"(?:\t//.*\n)+\tif \(posedge_p_clk\) \{\n(?:\t\t.*\n)*\t\}\n")
_SETTLED = re.compile(r"(?:\t//.*\n)+\t(?P<net>p_\w+)(?P<next>\.next) = (?P<source>.*);\n")
_READ = re.compile(
    r"\t// memory \S+ read port \d+\n"
    r"\tauto (?P<index>tmp_\d+) = memory_index\((?P<address>p_\w+)\.curr, \d+, \d+\);\n"
    r"\tCXXRTL_ASSERT.*\n"
    r"\tif\((?P=index)\.valid\) \{\n"
    r"\t\tvalue<\d+> (?P<found>tmp_\d+) = \w+\[(?P=index)\.index\];\n"
    r"\t\t(?P<net>p_\w+)(?P<next>\.next)? = (?P=found);\n"
    r"\t\} else \{\n.*\n\t\}\n"
)
"""The word of a memory that a register's value points at; it changes with registers only."""
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
_OUTPUT = re.compile(r"^\t\t(?P<net>[\w<>()]+?)(?:\.next)? = (?P<cell>cell_\w+)\.(?P<port>p_\w+)\.curr;$")
_ABOUT = re.compile(r"^\t+(?:wire<\d+> |value<\d+> |if \()?(p_\w+)(?:;| = (?:wire|value)<.*|\.commit\(.*)$")


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
    modules = list(_MODULE.finditer(model))
    if len(modules) < max(2, len(re.findall("^struct ", model, re.MULTILINE))):
        return None
    parts = {module["name"]: _parse(module) for module in modules[:-1]}
    known = {name: part for name, part in parts.items() if part is not None}
    top = _write_top(modules[-1], known) if len(known) == len(parts) else None
    if top is None:
        return None
    before, after = model[: modules[0].start()], model[modules[-1].end() :]
    return "\n".join([before, *map(_write_part, known.values()), top, after])


Declared = dict[str, str]
"""Names and their C++ types."""


@dataclass(frozen=True)
class _Part:
    """A module: statements that settle its outputs from registers and memories, and all others."""

    name: str
    inputs: Declared
    registers: Declared
    settled: Declared
    """Outputs, and values that are read from memories for them."""
    local: Declared
    """Values that live within a cycle."""
    memories: str
    reset: str
    settling: str
    others: str

    def output(self, name: str) -> str:
        return name if name in self.settled else f"now.{name}"


def _parse(module: re.Match[str]) -> _Part | None:
    """Return None if an output depends on an input in the same cycle, or on another output."""
    members = _CLOCK.sub("", module["members"].partition(f"\n\t{module['name']}(interior)")[0] + "\n")
    lines = [line for line in members.splitlines() if line and not line.startswith("\t//")]
    nets = [net for line in lines if (net := _NET.fullmatch(line))]
    memories = [line for line in lines if line.startswith("\tmemory<")]
    head, *units = _split(module["body"])
    settling = [found for unit in units if (found := _SETTLED.fullmatch(unit))]
    reads = [found for unit in units if (found := _READ.fullmatch(unit))]
    others = [unit for unit in units if not (_SETTLED.fullmatch(unit) or _READ.fullmatch(unit))]
    outputs = {found["net"] for found in (*settling, *reads) if found["next"]}
    words = {found["net"] for found in reads} - outputs
    if (
        len(nets) + len(memories) < len(lines)
        or "cell_p_" in module["body"]
        or any(net["kind"] == "value" and net["role"] != "input" for net in nets)
        or any(found["address"] in outputs for found in reads)
        or not all(_depends_on_registers(found["source"], outputs, words) for found in settling)
        or any(".next" in unit and not _CLOCKED.fullmatch(unit) for unit in others)
    ):
        return None
    wires = {net["name"]: f"value<{net['bits']}>" for net in nets if net["kind"] == "wire"}
    local = {name: kind for kind, name in re.findall(r"^\t(value<\d+>) ([pi]_\w+);$", head, re.MULTILINE)}
    registers = {name: kind for name, kind in wires.items() if name not in outputs}

    def place(statements: str) -> str:
        """Name members: a register has a present and a next value, an output that is settled has one."""

        def member(found: re.Match[str]) -> str:
            name, when = found.groups()
            return f"{'now' if when == 'curr' else 'then'}.{name}" if name in registers else name

        return re.sub(r"\b(p_\w+)\.(curr|next)\b", member, statements)

    return _Part(
        module["name"],
        {net["name"]: f"value<{net['bits']}>" for net in nets if net["role"] == "input"},
        registers,
        {name: kind for name, kind in (wires | local).items() if name in outputs | words},
        {name: kind for name, kind in local.items() if name not in words},
        "".join(f"{line}\n" for line in memories),
        _START.sub(r"\tnow.\g<name> = value<\g<bits>>", module["reset"]),
        place("".join(found[0] for found in (*reads, *settling))),
        place("".join(others)),
    )


def _split(body: str) -> list[str]:
    """Return what stands before the first statement, then each statement with the comment before it."""
    return re.split(r"^(?=\t// )", body, flags=re.MULTILINE)


def _depends_on_registers(source: str, outputs: set[str], words: set[str]) -> bool:
    """Return whether a source is made of registers and of words that they point at in memories."""
    names = re.findall(r"\b([pi]_\w+)(\.curr)?", source)
    return all(name in words or (curr and name not in outputs) for name, curr in names)


def _write_part(part: _Part) -> str:
    """Return the C++ of a module; `turn` evaluates unless nothing changed since a cycle without a change."""
    name, inputs = part.name, part.inputs
    linked = "".join(f"\t{kind} {each}; const {kind} *from_{each};\n" for each, kind in inputs.items())
    same = " & ".join(f"{each} == *from_{each}" for each in inputs) or "true"
    copies = "".join(f"\t{each} = *from_{each};\n" for each in inputs)
    stored = re.findall(r" (memory_\w+)", part.memories)
    commits = "".join(f"\talive |= {memory}.commit(nobody);\n" for memory in stored)
    return f"""\
struct {name} : public module {{
{linked}{_declare(part.settled)}{part.memories}\
	struct State {{
{_declare(part.registers)}\
	}} now, then;
	bool alive, turned;
	{name}(interior) {{}}
	void reset() override;
	bool eval(performer *performer = nullptr) override;
	bool commit() override;
	template<class ObserverT> bool commit(ObserverT &) {{ return commit(); }}
	void settle();
	void turn();
}};

void {name}::reset() {{
	now = State();
{part.reset}\
	then = now, alive = true, turned = false;
	settle();
}}

void {name}::settle() {{
{part.settling}}}

bool {name}::eval(performer *performer) {{
	const bool posedge_p_clk = true;
{_declare(part.local)}{part.others}\
	return true;
}}

void {name}::turn() {{
	if (!alive && ({same})) return;
{copies}\
	turned = true;
	eval();
}}

bool {name}::commit() {{
	if (!turned) return false;
	observer nobody;
	turned = false;
	alive = std::memcmp(&now, &then, sizeof now) != 0;
	now = then;
{commits}\
	if (alive) settle();
	return alive;
}}
"""


def _declare(names: Declared) -> str:
    return "".join(f"\t{kind} {name};\n" for name, kind in names.items())


def _write_top(top: re.Match[str], parts: dict[str, _Part]) -> str | None:
    """Return the C++ of the top: it computes its own nets, then evaluates every instance once."""
    kinds = re.findall(r"^\t(p_\w+) (cell_\w+) \{", top["members"], re.MULTILINE)
    instances = {cell: parts[kind] for kind, cell in kinds if kind in parts}
    cells = list(_CELL.finditer(top["body"]))
    head, *units = _split(_CELL.sub("", top["body"]))
    lines = [line for cell in cells for line in cell["outputs"].splitlines()]
    outputs = [found for line in lines if (found := _OUTPUT.fullmatch(line))]
    if (
        len(outputs) < len(lines)
        or not len(kinds) == len(instances) == len(cells)
        or "cell_p_" in "".join(units)
        or "posedge_p_clk = " not in head
        or any(".next" in unit and not _CLOCKED.fullmatch(unit) for unit in units)
    ):
        return None
    sources = {
        each["net"]: f"{each['cell']}.{instances[each['cell']].output(each['port'])}" for each in outputs
    }
    declared = re.findall(r"^\t/\*output\*/ (\w+)<\d+> (p_\w+);$", top["members"], re.MULTILINE)
    ports = [(kind, name) for kind, name in declared if name in sources]
    # An output that the top itself reads is a `wire`.
    shown = "".join(
        f"\t{name} = {sources[name]};\n"
        if kind == "value"
        else f"\t{name}.curr = {name}.next = {sources[name]};\n"
        for kind, name in ports
    )
    kept, links, gives = "", "", ""
    for each in _INPUT.finditer(_wire("".join(cell["inputs"] for cell in cells), sources)):
        cell, port, source = each["cell"], each["port"], each["source"]
        if not re.fullmatch(r"cell_\w+\.(?:now\.)?p_\w+", source):  # the top keeps a value for the instance
            kept += f"\t{instances[cell].inputs[port]} given_{cell}_{port};\n"
            gives += f"\tgiven_{cell}_{port} = {source};\n"
            source = f"given_{cell}_{port}"
        links += f"\t{cell}.from_{port} = &{source};\n"
    turns = "".join(f"\t\tcell_{cell['cell']}.turn();\n" for cell in cells)
    text = f"""\
struct p_top : public module {{
{kept}{top["members"]}\
}};

void p_top::reset() {{
{links}{top["reset"]}\
}}

bool p_top::eval(performer *performer) {{
{head}{shown}{_wire("".join(units), sources)}{gives}\
	if (posedge_p_clk) {{
{turns}\
	}}
	return true;
}}
"""
    gone = sources.keys() - {name for _, name in ports}  # nets between instances
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not ((net := _ABOUT.match(line)) and net[1] in gone))


def _wire(text: str, sources: dict[str, str]) -> str:
    """Replace nets by the outputs that drive them; a name before `=` is a port of an instance, and stays."""

    def source(found: re.Match[str]) -> str:
        return sources.get(found["net"], found[0])

    return re.sub(r"(?<![\w.])(?P<net>p_\w+)(?:\.curr)?(?=[^\w])(?!\.next)", source, text)
