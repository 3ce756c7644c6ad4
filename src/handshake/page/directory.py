"""The pages that programs of this user serve on this machine, as files in a private folder."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from handshake.errors import InputError


class Announced(NamedTuple):
    """A page that runs: its address, with its token if it has one, and the process that serves it."""

    url: str
    process: int


def announce(url: str) -> Path | None:
    """Write down that this process serves a page; None if there is no place for it."""
    try:
        path = _folder() / f"{os.getpid()}-{abs(hash(url)):x}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except (OSError, InputError):
        return None
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "process": os.getpid()}, file)
    return path


def withdraw(path: Path | None) -> None:
    """Remove what `announce` wrote."""
    if path is not None:
        path.unlink(missing_ok=True)


def pages() -> list[Announced]:
    """Return the pages of processes that are alive; remove what dead ones left."""
    found: list[Announced] = []
    for path in sorted(_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            held = json.loads(path.read_text())
            if _is_alive(int(held["process"])):
                found.append(Announced(str(held["url"]), int(held["process"])))
            else:
                path.unlink(missing_ok=True)
    return found


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _folder() -> Path:
    """Return the folder, which only this user can read and write."""
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(root) / f"handshake-live-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InputError(
            f"live pages are announced in '{folder}', which cannot be used: {error.strerror}; set "
            "XDG_RUNTIME_DIR to a folder of this user, or unset it"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InputError(f"'{folder}' is not a private folder of this user; remove it")
    return folder
