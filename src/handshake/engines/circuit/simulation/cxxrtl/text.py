"""What is done to the C++ that Yosys writes before it is compiled: the same computation, safer and faster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["addressed", "guarded", "in_pieces"]

_WRITE = re.compile(
    r"^(\s*)(memory_\w+\.update\(.*, ([\w.]+)\.repeat<\d+>\(\)\.val\(\), \d+\);)$", re.MULTILINE
)
_EVAL = re.compile(
    r"^bool p_top::eval\(performer \*performer\) \{\n(.*?)^\treturn converged;\n\}\n",
    re.MULTILINE | re.DOTALL,
)
_LOCAL = re.compile(r"^\tvalue<\d+> \w+;\n", re.MULTILINE)
_OUTLINE = re.compile(r"^\t/\*outline\*/ (value<\d+> \w+;)$", re.MULTILINE)
_REGISTER = re.compile(r"^\t\tif \((p_\w+)\.commit\(observer\)\) changed = true;$", re.MULTILINE)
_MEMORY = re.compile(r"^\t\tif \((memory_\w+)\.commit\(observer\)\) changed = true;$", re.MULTILINE)
_APART = "__attribute__((noinline)) void"
_STRUCT = "struct p_top : public module {\n"
PIECE = 200
"""Statements in a function of their own: the compiler's time grows faster than a function's length."""


def addressed(model: str) -> str:
    """The same C++ with a bit for the address of a memory of one place.

    CXXRTL looks at the first word of an address, and one of no bits has none: it would read what lies there.
    """
    return model.replace("memory_index(value<0>(), ", "memory_index(value<1>(), ")


def guarded(model: str) -> str:
    """The same C++ with each write to memory skipped while its enable is low.

    CXXRTL queues every write in every cycle and masks it when it is done; for the many buffers of a join
    that is what most of the time goes to.
    """
    return _WRITE.sub(r"\1if (\3) \2", model)


def in_pieces(model: str) -> str:
    """The same C++ with the evaluation of a large circuit cut into functions, and a quicker way to commit.

    `move` is `commit` without asking what has changed, which is of no use where logic settles at once.
    """
    found = _EVAL.search(model)
    if found is None or "converged" in found[1].replace("bool converged = true;\n", ""):
        return model
    body = found[1]
    known = set(_OUTLINE.findall(model))  # for waveforms, Yosys declares some of them itself
    locals_ = "".join(line for line in _LOCAL.findall(body) if line.strip() not in known)
    units = re.split(r"^(?=\t// )", _LOCAL.sub("", body), flags=re.MULTILINE)
    head, *statements = units
    evals = list(_chunks(statements))
    moves = list(_chunks([*_moved(model)]))
    declared = [f"\tvoid eval{i}(bool posedge_p_clk, performer *performer);\n" for i in range(len(evals))]
    declared += [f"\tvoid move{i}();\n" for i in range(len(moves))] + ["\tvoid move();\n"]
    calls = "".join(f"\teval{i}(posedge_p_clk, performer);\n" for i in range(len(evals)))
    cut = f"bool p_top::eval(performer *performer) {{\n{head}{calls}\treturn converged;\n}}\n"
    whole = model[: found.start()] + _functions(evals, moves) + cut + model[found.end() :]
    return whole.replace(_STRUCT, _STRUCT + locals_ + "".join(declared), 1)


def _chunks(statements: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(statements), PIECE):
        yield "".join(statements[start : start + PIECE])


def _moved(model: str) -> Iterator[str]:
    for name in _REGISTER.findall(model):
        yield f"\t{name}.curr = {name}.next;\n"
    for name in _MEMORY.findall(model):
        yield f"\t{{ observer nobody; {name}.commit(nobody); }}\n"


def _functions(evals: Sequence[str], moves: Sequence[str]) -> str:
    parts = [
        f"{_APART} p_top::eval{i}(bool posedge_p_clk, performer *performer) {{\n{text}}}\n"
        for i, text in enumerate(evals)
    ]
    parts += [f"{_APART} p_top::move{i}() {{\n{text}}}\n" for i, text in enumerate(moves)]
    parts.append("void p_top::move() {\n" + "".join(f"\tmove{i}();\n" for i in range(len(moves))) + "}\n")
    return "\n".join(parts)
