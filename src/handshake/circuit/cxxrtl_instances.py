"""Compiled simulation of circuits with many like parts: one function for each, called for every instance.

CXXRTL flattens a circuit into one long program, which the instruction cache has to take in anew in every
cycle; for 64 join cores that is half of the time. Not flattened, it evaluates until nothing changes any more.
Where every output of every part depends on the part's registers and memories alone, there is a third way:
outputs first, then each part once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

__all__ = ["has_many_alike", "instanced"]

MANY = 8
_CELL = re.compile(
    r"^\t// cells? .*\n"
    r"(?P<inputs>(?:\tcell_(?P<cell>\w+)\.p_\w+ = .*;\n)+)"
    r"\tif \(cell_(?P=cell)\.eval\(performer\)\) \{\n"
    r"(?P<outputs>(?:\t\t.*;\n)*)"
    r"\t\} else \{\n(?:\t\t.*;\n)*\t\}\n",
    re.MULTILINE,
)
_EVAL = re.compile(
    r"^bool (?P<name>p_\w+)::eval\(performer \*performer\) \{\n(?P<body>.*?)^\}\n", re.MULTILINE | re.DOTALL
)
_OUTPUT = re.compile(r"^\t\t(?P<net>[\w<>()]+?)(?:\.next)? = (?P<source>cell_\w+\.p_\w+\.curr);$")
_SETTLED = re.compile(r"^\t(p_\w+)\.next = (.*);\n", re.MULTILINE)
_READ = re.compile(
    r"^\t// memory \S+ read port \d+\n"
    r"\tauto (?P<index>tmp_\d+) = memory_index\(\w+\.curr, \d+, \d+\);\n"
    r"\tCXXRTL_ASSERT.*\n"
    r"\tif\((?P=index)\.valid\) \{\n"
    r"\t\t(?P<shape>value<\d+>) (?P<found>tmp_\d+) = \w+\[(?P=index)\.index\];\n"
    r"\t\t(?P<net>p_\w+)(?P<wire>\.next)? = (?P=found);\n"
    r"\t\} else \{\n.*\n\t\}\n",
    re.MULTILINE,
)
"""What a register's value points at in a memory: it changes with registers only, like them."""
_STRUCT = re.compile(r"^struct (p_\w+) : public module \{\n(.*?)^\}; // struct", re.MULTILINE | re.DOTALL)


def has_many_alike(rtlil: str) -> bool:
    """Whether the top of a design has a part many times."""
    top = rtlil[rtlil.rindex("\nmodule ") :]
    counts = Counter(re.findall(r"^  cell \\(\w+) ", top, re.MULTILINE))
    return any(number >= MANY for number in counts.values())


def instanced(model: str) -> str | None:
    """C++ of a design that was not flattened, made to settle in one pass; None where it would not."""
    model = re.sub(r"^\tcell_\w+\.p_rst = .*;\n", "", model, flags=re.MULTILINE)  # nobody resets
    evals = {found["name"]: found for found in _EVAL.finditer(model)}
    top = evals.pop("p_top")
    settling: dict[str, str] = {}
    for name, found in evals.items():
        settled = _settled(found["body"])
        if settled is None:
            return None
        settling[name] = settled
    rewritten = _top(top["body"], {name: text for name, text in settling.items() if text}, model)
    if rewritten is None:
        return None
    for found in sorted((*evals.values(), top), key=lambda each: -each.start()):
        body = rewritten if found is top else _unsettled(found["body"])
        body = body.replace("bool converged = false;", "bool converged = true;")
        model = f"{model[: found.start('body')]}{body}{model[found.end('body') :]}"
    return _STRUCT.sub(lambda struct: _with_methods(struct, settling), model)


def _settled(body: str) -> str | None:
    """What a part's outputs that are no registers are made of, if that is registers and memories alone."""
    lines, reads = _SETTLED.findall(body), list(_READ.finditer(body))
    inside = "|".join(read["net"] for read in reads if not read["wire"]) or "(?!)"
    sources = (re.sub(rf"\b(?:{inside})\b", "", source) for _, source in lines)
    if "cell_p_" in body or any(re.search(r"\b[pi]_\w+(?!\w)(?!\.curr)", source) for source in sources):
        return None
    outputs = (f"\t\t{net}.curr = {net}.next = {source};\n" for net, source in lines)
    return "".join((*map(_settled_read, reads), *outputs))


def _settled_read(read: re.Match[str]) -> str:
    net = read["net"]
    if read["wire"]:
        return read[0].replace(f"{net}.next = ", f"{net}.curr = {net}.next = ")
    return f"\t{read['shape']} {net};\n{read[0]}"


def _unsettled(body: str) -> str:
    """What is left of a part's program when its outputs are there already."""
    return _READ.sub(lambda read: "" if read["wire"] else read[0], _SETTLED.sub("", body))


def _top(body: str, settling: dict[str, str], model: str) -> str | None:
    """All outputs, what the top itself computes, then every part once."""
    cells = list(_CELL.finditer(body))
    sources: dict[str, str] = {}
    for cell in cells:
        for line in cell["outputs"].splitlines():
            output = _OUTPUT.match(line)
            if output is None:
                return None
            sources[output["net"]] = output["source"]
    rest = _CELL.sub("", body)
    if "cell_p_" in rest:
        return None
    kinds = {cell: kind for kind, cell in re.findall(r"^\t(p_\w+) cell_(\w+) \{", model, re.MULTILINE)}
    head, *units = re.split(r"^(?=\t// )", rest.replace("\treturn converged;\n", ""), flags=re.MULTILINE)
    settles = "".join(f"\tcell_{c['cell']}.settle();\n" for c in cells if kinds[c["cell"]] in settling)
    ports = "".join(f"\t{net} = {source};\n" for net, source in sources.items() if _is_port(net, model))
    calls = (f"{_wired(c['inputs'], sources)}\tcell_{c['cell']}.eval(performer);\n" for c in cells)
    own = _wired("".join(units), sources)
    return f"{head}{settles}{ports}{own}{''.join(calls)}\treturn converged;\n"


def _is_port(net: str, model: str) -> bool:
    return re.search(rf"^\t/\*output\*/ value<\d+> {net};$", model, re.MULTILINE) is not None


def _wired(text: str, sources: dict[str, str]) -> str:
    """Nets replaced by the outputs that drive them; a name before `=` is a port of a part, and stays."""

    def source(found: re.Match[str]) -> str:
        return sources.get(found["net"], found[0])

    return re.sub(r"(?<![\w.])(?P<net>p_\w+)(?:\.curr)?(?=[^\w])(?!\.next)", source, text)


def _with_methods(struct: re.Match[str], settling: dict[str, str]) -> str:
    name, text = struct[1], struct[2]
    methods = (
        f"\tvoid settle() {{\n{settling.get(name, '')}\t}}\n\tvoid move() {{\n{''.join(_moves(text))}\t}}\n"
    )
    return f"struct {name} : public module {{\n{text}{methods}}}; // struct"


def _moves(text: str) -> Iterator[str]:
    """`commit` without asking what has changed; clocks are low again after it."""
    for name in re.findall(r"^\t\tif \((\w+)\.commit\(observer\)\) changed = true;$", text, re.MULTILINE):
        if name.startswith("memory_"):
            yield f"\t\t{{ observer nobody; {name}.commit(nobody); }}\n"
        elif name.startswith("cell_"):
            yield f"\t\t{name}.move();\n"
        else:
            yield f"\t\t{name}.curr = {name}.next;\n"
    for name in re.findall(r"^\t\t(prev_p_\w+) = p_\w+;$", text, re.MULTILINE):
        yield f"\t\t{name} = value<1>{{0u}};\n"
