"""Compiled loops that outlive the process: kept on disk beside the source, or in the user's cache folder.

A predicate costs a second to compile, in every process that meets it: Spark starts several for each query,
and again after each restart. Numba's own cache does not know what a predicate is, and lists its files in an
index that processes which compile at the same time may leave wrong. Here the name of a file is a checksum of
all that the code depends on, and files appear whole: no index, nothing to agree about.

Code that is loaded brings its symbols along, numbered as they were where it was compiled. So loops are also
called by a checksum: two of them never have a name in common.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
from llvmlite import ir
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from handshake.kernels.parts import Emit, Part, filled, frame_of

__all__ = ["CompiledFiles", "compiled", "folder_for", "keep_nothing", "kernel", "made_for", "part"]

_LONG = 16
"""Digits of the checksum in a name."""
_MOST = 1000
"""Files in a folder; when there are more, those that were not used for the longest time go."""


class _Making(threading.local):
    what, shape = "", ""
    parts: tuple[Part, ...] = ()


_making = _Making()
_keeping = True
_folders: dict[str, Path] = {}


@contextmanager
def made_for(what: object, shape: object = None) -> Iterator[None]:
    """Loops that are made meanwhile depend on what this is, in its `repr`; a predicate, for one.

    `shape` is what all depends on but the parts: of one shape, loops are compiled once (`kernels.parts`).
    """
    before = _making.what, _making.shape, _making.parts
    _making.what, _making.shape, _making.parts = repr(what), "" if shape is None else repr(shape), ()
    try:
        yield
    finally:
        _making.what, _making.shape, _making.parts = before


def part(role: str, kind: ir.FunctionType, emit: Emit) -> Part:
    """A function that the loops made from now on may call, and that alone depends on what they are for."""
    made = Part(f"handshake.{role}{len(_making.parts)}.{_digest(_making.what)[:_LONG]}", kind, emit)
    _making.parts = (*_making.parts, made)
    return made


def keep_nothing() -> None:
    """From now on, compile everything in this process: what is compiled has been changed, or is looked at."""
    global _keeping
    _keeping = False


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a loop when it is first called, or take it from the disk. Options are those of `numba.njit`."""

    def wrap(function: Callable[..., Any]) -> Any:
        return _kept(function, options)

    return wrap


def kernel(function: Callable[..., Any]) -> Any:
    """A loop on its own, without the interpreter's lock."""
    return _kept(function, {"nogil": True})


def _kept(function: Any, options: dict[str, Any]) -> Any:
    digest = _digest(_making.what, sorted(options.items()))
    name = f"{function.__qualname__}_{digest[:_LONG]}"
    own = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    own.__qualname__, own.__module__, own.__doc__ = name, function.__module__, function.__doc__
    dispatcher = numba.njit(**options)(own)
    # RuntimeError: neither folder can be written; then every process compiles for itself
    with suppress(RuntimeError, OSError):
        if _keeping and not numba.config.DISABLE_JIT:
            folder = folder_for(function)
            dispatcher._cache = _OnDisk(CompiledFiles(folder, function, digest), _framed(function, options))
    return dispatcher


def _framed(function: Any, options: dict[str, Any]) -> _Framed | None:
    """Where the loop may be taken from a frame, and leave one."""
    if not _making.shape or not _making.parts:
        return None
    shape = _digest("frame", _making.shape, sorted(options.items()))
    names = (_digest(_making.what, sorted(options.items()))[:_LONG], _digest(_making.what)[:_LONG])
    return _Framed(CompiledFiles(folder_for(function), function, shape), _making.parts, names)


def folder_for(function: Callable[..., Any]) -> Path:
    """Where what is compiled for a function lies, as Numba chooses; RuntimeError where nothing can be."""
    file = inspect.getfile(function)
    if file not in _folders:
        _folders[file] = Path(FunctionCache(function).cache_path)
    return _folders[file]


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def _setting() -> tuple[str, ...]:
    """What all compiled code depends on: versions, switches, and the text of all that makes it."""
    config = numba.config
    switches = (config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.BOUNDSCHECK)
    package = Path(__file__).parent.parent
    sources = sorted([*package.glob("kernels/*.py"), *package.glob("plan/*.py"), package / "schema.py"])
    text = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources))
    return numba.__version__, llvmlite.__version__, repr(switches), text.hexdigest()


class _Framed(NamedTuple):
    """The frames of a loop's shape, and what it puts into them."""

    frames: CompiledFiles
    parts: tuple[Part, ...]
    names: tuple[str, ...]


class _OnDisk:
    """What Numba asks for compiled code before it compiles, and gives it to afterwards."""

    def __init__(self, files: CompiledFiles, framed: _Framed | None = None) -> None:
        self._files, self._framed = files, framed

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(self._files.folder)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The code for arguments of these types, or None."""
        context.refresh()
        key = self._key(signature, context)
        data = self._files.load(key)
        if data is not None:
            return CompileResult._rebuild(context, *data)
        frame = self._framed and self._framed.frames.load(key)
        if self._framed is None or frame is None:
            return None
        result = filled(frame, context, self._framed.parts, *self._framed.names)
        self._files.save(key, result._reduce())
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep it, unless it holds addresses of this process."""
        if result.library.has_dynamic_globals or not all(loop.can_cache for loop in result.lifted):
            return
        key, data = self._key(signature, result.target_context), result._reduce()
        self._files.save(key, data)
        if self._framed is not None:
            frame = frame_of(result, data, self._framed.parts, *self._framed.names)
            if frame is not None:
                self._framed.frames.save(key, frame)

    def _key(self, signature: Any, context: Any) -> tuple[str, str]:
        return repr(signature), repr(context.codegen().magic_tuple())

    def enable(self) -> None:
        """It is."""

    def disable(self) -> None:
        """See `keep_nothing`."""

    def flush(self) -> None:
        """Forget all that was kept for this loop."""
        self._files.flush()


class CompiledFiles:
    """One file for each set of argument types and kind of processor; Numba has an index file instead."""

    def __init__(self, folder: Path, function: Callable[..., Any], purpose: str = "") -> None:
        source = hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
        self.folder, self._name = folder, function.__name__
        self._depends = (*_setting(), source, function.__qualname__, purpose)

    def _path(self, key: Any) -> Path:
        return self.folder / f"{self._stem}.{_digest(key)[:32]}.nbc"

    @property
    def _stem(self) -> str:
        return f"handshake.{self._name}.{_digest(self._depends)[:32]}"

    def load(self, key: Any) -> Any:
        """What was kept for a key; None where nothing was, or it is damaged."""
        path = self._path(key)
        with suppress(OSError):
            raw = path.read_bytes()
            if raw[:32] == hashlib.sha256(raw[32:]).digest():
                kept, data = pickle.loads(raw[32:])
                if kept == (self._depends, key):
                    with suppress(OSError):
                        os.utime(path)
                    return data
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
        _make_room(self.folder)

    def flush(self) -> None:
        """Forget all that was kept for this loop."""
        for path in self.folder.glob(f"{self._stem}.*.nbc"):
            path.unlink(missing_ok=True)


def _make_room(folder: Path) -> None:
    """Of too many files, leave the three quarters that were used last."""
    with suppress(OSError):
        files = [entry for entry in os.scandir(folder) if entry.name.startswith("handshake.")]
        if len(files) <= _MOST:
            return
        used = {}
        for entry in files:
            with suppress(OSError):
                used[entry.path] = entry.stat().st_mtime
        for path in sorted(used, key=lambda path: used[path])[: len(used) // 4]:
            Path(path).unlink(missing_ok=True)
