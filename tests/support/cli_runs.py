"""Running commands: in this process, or in one of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handshake.cli import app as cli

__all__ = ["COMMAND", "Outcome", "process", "run_here", "write_inputs"]

COMMAND = [sys.executable, "-m", "handshake.cli"]


class Outcome:
    """The output of a command, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def complaint(self) -> str:
        """The one line of an error; fails unless it is one, with exit status 2."""
        assert (self.status, self.out) == (2, ""), (self.status, self.out)
        assert self.err.startswith("handshake: ")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("handshake: ").rstrip("\n")


def run_here(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> Outcome:
    """Run a command in this process."""
    capfd.readouterr()
    status = cli.run([str(argument) for argument in arguments])
    sys.stdout.flush()
    return Outcome(status, *capfd.readouterr())


def write_inputs(folder: Path) -> tuple[Path, Path]:
    """Write left(x, s, t) and right(x, a, t); times out of order, one row without a time."""
    left, right = folder / "left.csv", folder / "right.csv"
    left.write_text("x,s,t\n1,a,2024-01-01 00:00:00\n2,b,2024-01-01 00:00:05\n3,,2024-01-01 00:00:02\n")
    right.write_text("x,a,t\n1,0,2024-01-01 00:00:01\n2,5,2024-01-01 00:00:09\n,1,\n")
    return left, right


def process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)
