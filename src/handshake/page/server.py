"""The web server of the page: static files, server-sent events, and nothing that changes anything."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from handshake.errors import HandshakeError, InputError
from handshake.metrics.address import asks_for_loopback, is_loopback, parse_address
from handshake.page.board import Board
from handshake.page.frames import FASTEST, Viewer, encode

PORT = 8642
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_RATE = 4.0
"""Updates per second that a page asks for by default."""
_PATIENCE = 10.0
"""Seconds to wait for the start of the server."""


class _Guard:
    """Refuses requests without the token, from pages of other hosts, and methods that could change things."""

    def __init__(self, app: ASGIApp, token: str | None, port: int) -> None:
        self._app, self._token = app, None if token is None else token.encode()
        self._cookie = f"handshake_live_{port}"
        """The name of the cookie. Browsers send cookies of a host to all its ports."""
        self._proof = "" if token is None else hashlib.sha256(token.encode()).hexdigest()
        """The value of the cookie. A token may have characters that no cookie can hold."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._refuse(request)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = {**_HEADERS}
                if self._is_token(request.query_params.get("token")):
                    added["Set-Cookie"] = f"{self._cookie}={self._proof}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] += [(k.lower().encode(), v.encode()) for k, v in added.items()]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refuse(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only shows; it takes no changes", 405, _HEADERS)
        if self._token is None:
            if asks_for_loopback(request.headers.get("host", "")):
                return None
            return PlainTextResponse("this page answers to 127.0.0.1 and localhost only", 421, _HEADERS)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        held = request.cookies.get(self._cookie, "").encode()
        if (
            self._is_token(request.query_params.get("token"))
            or self._is_token(bearer.encode("latin-1").decode(errors="replace"))
            or secrets.compare_digest(held, self._proof.encode())
        ):
            return None
        return PlainTextResponse("this page needs its token: open it as …/?token=TOKEN", 401, _HEADERS)

    def _is_token(self, given: str | None) -> bool:
        if not given or self._token is None:
            return False
        return secrets.compare_digest(given.encode(), self._token)


class _Pages:
    """The answers of the server."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.closing = asyncio.Event()
        self._files = {
            file.name: (file.read_bytes(), _KINDS[file.name.rpartition(".")[2]])
            for file in (files("handshake.page") / "static").iterdir()
        }
        self._files[""] = self._files.pop("page.html")

    def routes(self) -> list[Route]:
        """Return all routes; each only reads."""
        return [
            Route("/events", self.events),
            Route("/state", self.state),
            Route("/query", self.query),
            Route("/why", self.why),
            Route("/metrics", self.metrics),
            Route("/{path:path}", self.file),
        ]

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        found = self._files.get(request.path_params["path"])
        if found is None:
            return PlainTextResponse("no such page; the live page is at /", 404)
        return Response(found[0], media_type=found[1])

    async def events(self, request: Request) -> Response:
        """Send the figures again and again, as server-sent events."""
        try:
            rate = float(request.query_params.get("rate", _RATE))
        except ValueError:
            return PlainTextResponse("rate is a number of updates per second", 400)
        if not 0 < rate <= FASTEST:
            return PlainTextResponse(f"rate is at most {FASTEST} updates per second", 400)
        return StreamingResponse(self._frames(rate), media_type="text/event-stream")

    async def _frames(self, rate: float) -> AsyncIterator[str]:
        viewer, loop = Viewer(rate), asyncio.get_running_loop()
        due = loop.time()
        self._board.look(viewer)
        try:
            yield "retry: 1000\n\n"
            while not self.closing.is_set():
                frame = self._board.news(viewer)
                if frame is not None:
                    yield f"data: {encode(frame)}\n\n"
                due = max(due + 1 / rate, loop.time())
                await asyncio.sleep(due - loop.time())
        finally:
            self._board.leave(viewer)

    async def state(self, request: Request) -> Response:
        """Return the figures of this moment, for another page that collects several."""
        return Response(encode(self._board.frame()), media_type="application/json")

    async def query(self, request: Request) -> Response:
        """Return the history of a query, its plan and its windows."""
        return await self._answer(lambda: self._board.describe(request.query_params.get("name", "")))

    async def why(self, request: Request) -> Response:
        """Explain why rows, one per stream, are a result, or not."""
        asked = request.query_params
        return await self._answer(
            lambda: {"text": self._board.why(asked.get("name", ""), asked.getlist("row"))}
        )

    async def metrics(self, request: Request) -> Response:
        """Return all metrics in the OpenMetrics text format."""
        try:
            text = await run_in_threadpool(self._board.openmetrics)
        except HandshakeError as error:
            return PlainTextResponse(str(error), 501)
        return Response(text, media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")

    async def _answer(self, work: Callable[[], Any]) -> Response:
        try:
            found, status = await run_in_threadpool(work), 200
        except HandshakeError as error:
            found, status = {"error": str(error)}, 400
        return Response(json.dumps(found), status, media_type="application/json")


class Server:
    """The server in a thread of its own."""

    def __init__(self, board: Board, address: str | None, token: str | None) -> None:
        host, port = parse_address(address) if address is not None else ("127.0.0.1", PORT)
        if not is_loopback(host) and not token:
            raise InputError(
                f"a live page at '{host}' can be read by other machines, so it needs a token; give one "
                "(token=…, or HANDSHAKE_LIVE_TOKEN for commands), or use 127.0.0.1"
            )
        self._socket = _bind(host, port, any_port=address is None)
        self.host, self.port = host, self._socket.getsockname()[1]
        self.token = token
        self._pages = _Pages(board)
        guard = Middleware(_Guard, token=token or None, port=self.port)
        app = Starlette(routes=self._pages.routes(), middleware=[guard])
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        # in a thread of its own, the server also leaves Ctrl-C to the program
        self._thread = threading.Thread(target=self._run, name="handshake-live-server", daemon=True)
        self._thread.start()
        ends = time.monotonic() + _PATIENCE
        while not self._server.started and self._thread.is_alive() and time.monotonic() < ends:
            time.sleep(0.005)

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={quote(self.token)}" if self.token else "")

    def close(self) -> None:
        """End the server and all its connections."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._pages.closing.set)
            self._server.should_exit = True
            self._thread.join(5.0)
        self._socket.close()


def _bind(host: str, port: int, *, any_port: bool) -> socket.socket:
    """Return a bound socket; if the port was not asked for, any free one will do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        if any_port:
            return _bind(host, 0, any_port=False)
        raise InputError(
            f"a live page cannot be served at '{host}:{port}': {error.strerror or error}"
        ) from error
    made.listen(128)
    return made
