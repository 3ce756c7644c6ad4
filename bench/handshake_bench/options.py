"""Command-line options shared by several benchmarks."""

from __future__ import annotations

from typing import Annotated

import typer

from handshake.errors import HandshakeError, InputError

__all__ = ["Cores", "Out", "Quick", "Source", "parse_numbers"]

Quick = Annotated[bool, typer.Option("--quick", help="Short windows and runs, as a smoke test.")]
Out = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="Folder for table, figures (JSON) and plot (SVG).")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE", help="Show and plot the JSON of an earlier run instead of measuring."
    ),
]
Cores = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="Numbers of cores; powers of two up to all by default.")
]


def parse_numbers(text: str, example: str, error: type[HandshakeError] = InputError) -> list[int]:
    """Parse a list of whole numbers from 1 up, such as '1,2,4'; sort it and drop repetitions."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise error(f"'{text}' is not a list of whole numbers from 1 up; write it as {example}")
    return sorted({int(part) for part in parts})
