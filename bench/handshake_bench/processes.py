"""Processor time of this process and of all that it started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Spent", "processor_seconds"]


class Spent(NamedTuple):
    """Processor seconds of Spark's JVMs, and of all other processes: Python."""

    jvm: float = 0.0
    python: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of all processes."""
        return self.jvm + self.python

    def since(self, before: Spent) -> Spent:
        """Return the seconds since an earlier reading."""
        return Spent(self.jvm - before.jvm, self.python - before.python)


class _Stat(NamedTuple):
    """A process, its parent, its name, its clock ticks, and those of its ended children."""

    pid: int
    parent: int
    name: str
    own: int
    ended: int


def processor_seconds() -> Spent:
    """Return the processor seconds of this process and its descendants, ended ones included."""
    stats = [_stat(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    parents = {stat.pid: stat.parent for stat in stats}
    mine = [stat for stat in stats if _descends(stat.pid, parents)]
    jvm = sum(stat.own for stat in mine if stat.name == "java")
    python = sum(stat.own + stat.ended for stat in mine if stat.name != "java")
    ticks = os.sysconf("SC_CLK_TCK")
    return Spent(jvm / ticks, python / ticks)


def _stat(folder: Path) -> _Stat:
    try:
        head, _, tail = (folder / "stat").read_text().rpartition(")")
    except OSError:  # the process has ended
        return _Stat(int(folder.name), 0, "", 0, 0)
    fields = tail.split()
    own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return _Stat(int(folder.name), int(fields[1]), head.partition("(")[2], own, ended)


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != os.getpid():
        pid = parents.get(pid, 0)
    return bool(pid)
