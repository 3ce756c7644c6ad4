"""Processes of tests: their environment, their children, and waiting for a condition."""

from __future__ import annotations

import os
import subprocess


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


def family(pid: int) -> set[int]:
    """Return the processes below one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found
