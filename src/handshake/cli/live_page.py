"""`--live`: the page on which the run of a command can be watched."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from handshake.engines.engine import Run

if TYPE_CHECKING:
    from handshake.page.live import Page

Live = Annotated[bool, typer.Option("--live", help="Show the run on a web page, until Ctrl-C.")]
LiveAt = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where to serve that page (implies --live): 127.0.0.1:8642."),
]
TOKEN = "HANDSHAKE_LIVE_TOKEN"
Show = Callable[[str, pa.RecordBatch], None]
"""Shows a batch of the result of that name."""


def open_page(address: str | None, *, announced: bool = True) -> Page:
    """Start a page; its packages are imported now."""
    page: Page = importlib.import_module("handshake.page.live").Page(
        address, os.environ.get(TOKEN) or None, announced=announced
    )
    return page


@contextlib.contextmanager
def open_live(wanted: bool, address: str | None) -> Iterator[Page | None]:
    """Serve a page if it is wanted, and print its address on standard error."""
    if not wanted and address is None:
        yield None
        return
    with open_page(address) as page:
        print(f"live page at {page.url}", file=sys.stderr, flush=True)
        yield page


@contextlib.contextmanager
def showing(page: Page | None, run: Run, inputs: Sequence[str] = ()) -> Iterator[Show]:
    """Show a run on the page, with the names of its inputs; yield a function for its results.

    Args:
        page: The page; None shows nothing.
        run: The run, which has not started.
        inputs: Files, folders or streams. Without them, the run has the names of its results.
    """
    if page is None:
        yield lambda name, batch: None
        return
    title = " and ".join(Path(name).stem for name in inputs) or " and ".join(run.schemas) or "run"
    source = page.add_run(run, title)
    board = page.board
    try:
        yield lambda name, batch: board.show(name if name in board.cards else title, batch)
    except BaseException as error:
        source.finish(str(error) or type(error).__name__)
        raise
    source.finish()


def hold(page: Page | None) -> None:
    """Serve the page after its run until Ctrl-C."""
    if page is not None:
        print("done; the page stays until Ctrl-C", file=sys.stderr, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            page.wait()
