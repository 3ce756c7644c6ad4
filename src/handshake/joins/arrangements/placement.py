"""Which processor runs which core: neighbours on one memory node, whole processors before their siblings.

A thread that stays where it is keeps its caches; one that stays on a node keeps its windows in that node's
memory, since Linux puts a page where it is touched first. Cores that talk to each other are neighbours in the
line, so a node is filled up before the next one is begun.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from handshake.errors import UnsupportedError

SYSTEM = Path("/sys/devices/system")


def usable_cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def placement(cores: int, system: Path = SYSTEM) -> tuple[int, ...]:
    """Return a processor for each core; raises `UnsupportedError` if threads cannot be pinned."""
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedError(
            "cores cannot be pinned on this system: it has no sched_setaffinity, which Linux has; "
            "leave pin out"
        )
    allowed = os.sched_getaffinity(0)
    if cores > len(allowed):
        raise UnsupportedError(
            f"pin needs a processor for each core: {cores} cores were asked for, and this process may use "
            f"{len(allowed)} processors; ask for fewer cores, or leave pin out"
        )
    return order_processors(allowed, system)[:cores]


def order_processors(allowed: set[int], system: Path = SYSTEM) -> tuple[int, ...]:
    """Sort processors in the order in which a line of cores should take them.

    Nodes with most of them first; on each, one thread of every processor before the second ones.
    """
    nodes = [sorted(node & allowed) for node in _nodes(system)]
    strays = sorted(allowed.difference(*nodes))
    parts = sorted((node for node in [*nodes, strays] if node), key=lambda node: (-len(node), node))
    return tuple(cpu for part in parts for cpu in _spread(part, system))


def _nodes(system: Path) -> list[set[int]]:
    """Return the processors of each memory node; none if the system does not say."""
    lists = sorted(system.glob("node/node[0-9]*/cpulist"))
    return [cpus_of(text) for path in lists if (text := _read(path))]


def _spread(cpus: Sequence[int], system: Path) -> list[int]:
    """Sort by place among siblings, so that two cores share a processor last."""

    def place(cpu: int) -> int:
        text = _read(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")
        return sorted(cpus_of(text)).index(cpu) if text and cpu in cpus_of(text) else 0

    return sorted(cpus, key=lambda cpu: (place(cpu), cpu))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def cpus_of(text: str) -> set[int]:
    """Parse a list of processors as the kernel writes it.

    >>> sorted(cpus_of("0-2,8"))
    [0, 1, 2, 8]
    """
    ranges = (part.split("-") for part in text.split(",") if part)
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def pin_to(*cpus: int) -> None:
    """Keep the calling thread on one processor, or on some."""
    os.sched_setaffinity(0, cpus)


def pinned_to() -> tuple[int, ...]:
    """Return the processors that the calling thread may run on."""
    return tuple(os.sched_getaffinity(0))
