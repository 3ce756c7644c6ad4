"""Equal registers are simulated once.

A circuit has copies for the sake of its wires: a read address for each lane of a memory, a flag for each
reader. Yosys merges registers with the same input, but not those whose next value depends on their own. Here
all registers with the same first value count as equal until a statement tells them apart. Those that remain
together hold the same value in every cycle, by induction over the cycles.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

from handshake.engines.circuit.simulation.cxxrtl.parse import ParsedModule, targets

_NAME = re.compile(r"\b(?:memory_p|p|i)_\w+")
_SCRATCH = re.compile(r"\btmp_\d+")
_COMMENT = re.compile(r"^\t+//.*\n", re.MULTILINE)

Classes = dict[str, int]
Definitions = dict[str, list[str]]


def merge_registers(part: ParsedModule) -> ParsedModule:
    """Return the module with one register, value or memory for each class of equal ones."""
    definitions: Definitions = {}
    for unit in part.units:
        for name in targets(unit):
            definitions.setdefault(name, []).append(_COMMENT.sub("", unit))
    instead = _representatives(part, _classes(part, definitions), definitions)
    kept = (unit for unit in part.units if not instead.keys() & targets(unit))
    return replace(
        part,
        nets={name: net for name, net in part.nets.items() if name not in instead},
        memories={name: memory for name, memory in part.memories.items() if name not in instead},
        values={name: bits for name, bits in part.values.items() if name not in instead},
        units=tuple(_NAME.sub(lambda found: instead.get(found[0], found[0]), unit) for unit in kept),
    )


def _classes(part: ParsedModule, definitions: Definitions) -> Classes:
    """Return the coarsest partition whose members have equal first values and equal statements."""
    names = (*part.nets, *part.memories, *part.values)
    classes = _number({name: _beginning(part, name, definitions) for name in names})
    while True:
        finer = _number(
            {
                name: (classes[name], *(_in_classes(unit, classes) for unit in definitions.get(name, ())))
                for name in names
            }
        )
        if len(set(finer.values())) == len(set(classes.values())):
            return classes
        classes = finer


def _beginning(part: ParsedModule, name: str, definitions: Definitions) -> Hashable:
    """Return a key that is equal for names that may be merged; inputs and shared statements are unique."""
    units = definitions.get(name, ())
    if not units or any(len(targets(unit)) > 1 for unit in units):
        return name
    if name in part.memories:
        return part.memories[name]
    if name in part.values:
        # One that is set in pieces is not there as a whole where the first piece is.
        return ("value", part.values[name]) if len(units) == 1 else name
    return part.nets[name].kind, part.nets[name].bits, part.starts.get(name, "")


def _in_classes(unit: str, classes: Classes) -> str:
    scratch: dict[str, int] = {}
    text = _NAME.sub(lambda found: f"@{classes.get(found[0], found[0])}", unit)
    return _SCRATCH.sub(lambda found: f"#{scratch.setdefault(found[0], len(scratch))}", text)


def _number(keys: dict[str, Hashable]) -> Classes:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}


def _representatives(part: ParsedModule, classes: Classes, definitions: Definitions) -> dict[str, str]:
    """Return for each name that goes the one that stays: an output, or else the first that is set."""
    together: dict[int, list[str]] = defaultdict(list)
    for name in sorted(definitions, key=lambda name: not _is_output(part, name)):
        together[classes[name]].append(name)
    return {
        name: first for first, *others in together.values() for name in others if not _is_output(part, name)
    }


def _is_output(part: ParsedModule, name: str) -> bool:
    return name in part.nets and part.nets[name].role == "output"
