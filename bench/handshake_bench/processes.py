"""Processor time of this process and of all that it started."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["processor_seconds"]


def processor_seconds() -> float:
    """Return the processor seconds of this process and its descendants, ended ones included."""
    stats = [_stat(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    parents = {pid: parent for pid, parent, _ in stats}
    ticks = sum(ticks for pid, _, ticks in stats if _descends(pid, parents))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(folder: Path) -> tuple[int, int, int]:
    """Return a process, its parent, and its clock ticks with those of its ended children."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended
        return int(folder.name), 0, 0
    return int(folder.name), int(fields[1]), sum(int(field) for field in fields[11:15])


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != os.getpid():
        pid = parents.get(pid, 0)
    return bool(pid)
