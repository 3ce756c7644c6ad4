"""A headless Chromium from the system's packages, driven through its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from waiting import wait_until

__all__ = ["Browser", "open_browser"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    """One page of the browser: what it shows, and what it complained about."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.complaints: list[str] = []
        """Errors on the console, uncaught exceptions, and refusals by the content policy."""
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        kind, held = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(held["exceptionDetails"])[:500])
        elif kind == "Runtime.consoleAPICalled" and held["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(held["args"])[:500])
        elif kind == "Log.entryAdded" and held["entry"]["level"] in ("error", "warning"):
            self.complaints.append(held["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.requested.append(held["request"]["url"])

    def ask(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of the first element."""
        return str(self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        self.call("Page.navigate", url=url)
        wait_until(lambda: self.ask("document.readyState") == "complete")

    def resize(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """Set the size of the window, and whether the user prefers dark pages."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
            mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what the page shows as a PNG file."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser with one empty page; skip the test if none is installed."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed (package chromium)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            told = Path(folder) / "DevToolsActivePort"
            wait_until(lambda: told.exists() and len(told.read_text().splitlines()) > 1, seconds=60)
            port = told.read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                page = next(each for each in json.load(answer) if each["type"] == "page")
            with connect(page["webSocketDebuggerUrl"], max_size=None, ping_interval=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait(20)
