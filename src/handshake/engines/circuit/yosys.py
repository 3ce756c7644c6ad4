"""Yosys, as the package `pyosys` brings it, in a process of its own: it ends its process on an error."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from handshake.errors import HandshakeError, UnsupportedError

_PROGRAM = """
import sys
from pyosys import libyosys as ys
design = ys.Design()
for line in open(sys.argv[1]).read().splitlines():
    ys.run_pass(line, design)
"""


def run_yosys(rtlil: str, passes: Sequence[str], *, timeout: float | None = None) -> str:
    """Read a design, run `passes`, and return what they wrote to the file they name `{output}`."""
    with tempfile.TemporaryDirectory(prefix="handshake-yosys-") as folder:
        place = Path(folder)
        (place / "design.il").write_text(rtlil)
        output = place / "output"
        script = ("read_rtlil design.il", *(step.format(output=output) for step in passes))
        (place / "script").write_text("\n".join(script))
        _call(place, timeout)
        return output.read_text()


def _call(place: Path, timeout: float | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "script"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode == 0:
        return
    if "No module named 'pyosys'" in done.stderr:
        raise UnsupportedError(
            "circuits need the package pyosys; install the extra 'circuit' from a checkout: "
            "pip install -e '.[circuit]'"
        )
    tail = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-3:]
    raise HandshakeError(f"Yosys failed: {' / '.join(tail)}")


def runtime() -> Path:
    """Return the folder of headers that compiled simulations include."""
    import pyosys  # found only where the extra is installed

    return Path(pyosys.__file__).parent / "share/include/backends/cxxrtl/runtime"
