"""`handshake live`: all that runs, on one page."""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import Annotated

import typer

from handshake.cli.errors import reporting
from handshake.cli.live_page import open_page


def live(
    pages: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="Pages to collect; those of this user's runs by default."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve the page; 127.0.0.1:8642.")
    ] = None,
) -> None:
    """Show all that runs on this machine on one web page.

    Every join or query that is started with --live, or that calls handshake.live, appears on the page while
    it runs, with its history. Name pages to collect these instead, such as those of other machines. If two
    pages have a query of the same name, the address of its page follows the name of the second. An address
    that other machines can reach needs a token, in the environment as HANDSHAKE_LIVE_TOKEN. The page only
    reads. Ctrl-C ends it; the runs go on.

    \b
    Examples:
      handshake live
      handshake demo --backend local --live
      handshake live http://10.0.0.7:8642/?token=SECRET http://127.0.0.1:8650
    """
    with reporting(), open_page(at, announced=False) as page:
        look_for_pages = importlib.import_module("handshake.page.remote").look_for_pages
        look_for_pages(page.board, pages or ())
        print(f"live page at {page.url}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(1.0)
                look_for_pages(page.board, pages or ())
