"""`handshake.live`: one page per process for everything that runs in it."""

from __future__ import annotations

import functools
import html
import time
from typing import Any, ClassVar, Self

from handshake.closing import Closing
from handshake.engines.engine import Run
from handshake.errors import InputError, UnsupportedError
from handshake.page.board import Board
from handshake.page.directory import announce, withdraw
from handshake.page.sources import RunSource, ThingSource

try:
    from handshake.page.server import Server
except ImportError as error:
    raise UnsupportedError(
        f"the live page needs more packages: {error}; from a checkout: pip install -e '.[live]'"
    ) from error

__all__ = ["Page", "live"]


class Page(Closing):
    """A live page that is being served; `url` is its address, `close` ends it."""

    _shared: ClassVar[dict[str | None, Page]] = {}
    """The pages that calls of `handshake.live` share, by the address that was asked for."""

    def __init__(
        self, address: str | None = None, token: str | None = None, *, announced: bool = True
    ) -> None:
        self.board = Board()
        self._server = Server(self.board, address, token)
        self.url = self._server.url
        """The address of the page, with its token if it has one."""
        self._announced = announce(self.url) if announced else None
        self.closed = False

    @classmethod
    def get_shared(cls, address: str | None, token: str | None) -> Page:
        """Return the page of this process at an address; start it if it is not served yet."""
        page = cls._shared.get(address)
        if page is None or page.closed:
            page = cls._shared[address] = Page(address, token)
        elif token is not None and token != page._server.token:
            raise InputError(
                "this process serves a live page at that address already, with another token or without one; "
                "close it first (page.close()), or give another address"
            )
        return page

    def add(self, thing: Any, name: str | None = None, plan: Any = None) -> Self:
        """Show one more join or query, in place of the one of the same name.

        Args:
            thing: A `Join`, `MultiJoin`, `Query` or replay, or a `StreamingQuery` of Spark.
            name: Its name on the page.
            plan: A plan, the text of a query, or a DataFrame of `handshake.join` that says what a streaming
                query runs; others know their plans.
        """
        source = ThingSource(thing, name, plan)
        source.listen(functools.partial(self.board.show, source.name))
        self.board.add(source)
        return self

    def add_run(self, run: Run, name: str, text: str = "") -> RunSource:
        """Show a run of an engine; call `finish` of the returned source when the run ends."""
        source = RunSource(run, name, text)
        self.board.add(source)
        return source

    def show(self, name: str, rows: Any) -> None:
        """Show rows as the last results of a query, such as those of a micro-batch in `foreachBatch`.

        Args:
            name: The name of the query on the page.
            rows: An Arrow batch or table.
        """
        batches = rows.to_batches() if hasattr(rows, "to_batches") else [rows]
        for batch in batches[-1:]:
            self.board.show(name, batch)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until Ctrl-C, or for some seconds; the page is served all the time."""
        ends = None if seconds is None else time.monotonic() + seconds
        while ends is None or time.monotonic() < ends:
            time.sleep(0.2)

    def close(self) -> None:
        """End the page; what it shows runs on."""
        if not self.closed:
            self.closed = True
            withdraw(self._announced)
            self._server.close()
            self.board.close()

    def __repr__(self) -> str:
        return f"<live page, {'closed' if self.closed else self.url}>"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        return f'Live page: <a href="{url}" target="_blank" rel="noopener">{url}</a>'


def live(
    *things: Any,
    name: str | None = None,
    plan: Any = None,
    address: str | None = None,
    token: str | None = None,
) -> Page:
    """Show joins and queries on a web page that this process serves, while they run.

    The page only reads: rates, windows, latencies, late and shed rows, the plan, the last results, and the
    history of the last hour. All calls of a process with the same address share one page, and its token. It
    needs the extra `live`.

    Args:
        *things: Joins, queries or replays in process, or streaming queries of Spark; `Page.add` takes more.
        name: The name of the thing on the page, if there is one thing. A thing of the same name, such as a
            restarted one, takes the place of the former and continues its history.
        plan: The plan of a streaming query of Spark: a DataFrame that `handshake.join` returned, a plan, or
            the text of a query.
        address: `HOST:PORT`; by default port 8642 of this machine, or a free one if it is taken. An address
            that other machines can reach needs a token.
        token: The secret that readers must know; the address of the page then has it.

    Returns:
        The page: `url` is its address, `close()` ends it.

    Raises:
        InputError: A thing has no metrics, the address cannot be used, or the page there has another token.
        UnsupportedError: A package is missing.

    Examples:
        >>> import handshake, pyarrow
        >>> rows = pyarrow.schema([("x", pyarrow.int64())])
        >>> with handshake.Join(left=rows, right=rows, on="l.x < r.x", window="10 tuples") as join:
        ...     with handshake.live(join, name="pairs", address="127.0.0.1:0") as page:
        ...         _ = join.push_left({"x": [1, 2]})
        ...         page.url.startswith("http://127.0.0.1:")
        True
    """
    if name is not None and len(things) != 1:
        raise InputError(f"name '{name}' is for one thing, and {len(things)} are given; use add(thing, name)")
    page = Page.get_shared(address, token)
    for thing in things:
        page.add(thing, name, plan)
    return page
