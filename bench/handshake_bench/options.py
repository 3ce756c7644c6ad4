"""Options that several benchmarks have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Cores", "Out", "Quick", "Source"]

Quick = Annotated[bool, typer.Option("--quick", help="Short windows and runs: to see that it works.")]
Out = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="Write table, figures (JSON) and plot (SVG) there.")
]
Source = Annotated[
    str | None,
    typer.Option("--from", metavar="FILE", help="Show and plot the JSON of an earlier run; measure nothing."),
]
Cores = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="Numbers of cores; powers of two up to all by default.")
]
