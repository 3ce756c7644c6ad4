"""Compiled loops that outlive the process: kept on disk beside the source, or in the user's cache folder.

Numba's own cache numbers its files and lists them in an index, which processes that compile at the same time
(Spark's workers do) may leave wrong. Here the name of a file is a checksum of all that the code depends on,
and files appear whole: no index, nothing to agree about. A loop is kept only if all that it calls stands in
its own file, since that file's text is part of the name.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

__all__ = ["CompiledFiles", "kernel"]


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a loop when it is first called, without the interpreter's lock, or take it from the disk."""
    compiled = numba.njit(nogil=True)(function)
    # RuntimeError: neither folder can be written; then every process compiles for itself
    with suppress(RuntimeError, OSError):
        cache = FunctionCache(function)
        cache._cache_file = CompiledFiles(Path(cache.cache_path), function)
        compiled._cache = cache
    return compiled


class CompiledFiles:
    """One file for each set of argument types and kind of processor; Numba has an index file instead."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        source = Path(inspect.getfile(function)).read_bytes()
        self._folder, self._name = folder, function.__qualname__
        self._depends = (numba.__version__, hashlib.sha256(source).hexdigest(), self._name)

    def _path(self, key: Any) -> Path:
        digest = hashlib.sha256(repr((self._depends, key)).encode()).hexdigest()
        return self._folder / f"handshake.{self._name}.{digest[:32]}.nbc"

    def load(self, key: Any) -> Any:
        """What was kept for a key; None where nothing was, or it is damaged."""
        with suppress(OSError):
            raw = self._path(key).read_bytes()
            if raw[:32] == hashlib.sha256(raw[32:]).digest():
                kept, data = pickle.loads(raw[32:])
                return data if kept == (self._depends, key) else None
        return None

    def save(self, key: Any, data: Any) -> None:
        """Keep it; a full disk keeps nothing."""
        body = dumps(((self._depends, key), data))
        path = self._path(key)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            partial.write_bytes(hashlib.sha256(body).digest() + body)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)

    def flush(self) -> None:
        """Forget all that was kept for this loop."""
        for path in self._folder.glob(f"handshake.{self._name}.*.nbc"):
            path.unlink(missing_ok=True)
