"""Compiled loops: cached on disk for other processes, and shared between predicates.

A predicate takes seconds to compile, and Spark starts several processes per query. So compiled code is kept
on disk. The name of a file is a checksum of everything that the code depends on, and files appear complete.
Processes that compile at the same time therefore cannot damage the cache, as they can Numba's own index
files.

Two thirds of the compile time go into the loop, which is the same for all predicates of a shape. So the first
kernel of a shape leaves a template: its loop with calls to functions that depend on the predicate. The next
kernel only compiles these functions and fills them in.

Loaded code keeps the symbols of the process that compiled it. So the name of a loop ends in a checksum, and
two loops never share a symbol. The private parts of Numba are in `numba_internals`, the plain path is here.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import re
import tempfile
import threading
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import ir

from handshake.kernels import numba_internals as internals

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value | None]
"""Emits the body of a function and returns its result, or None for a void function."""
_DIGITS = 16
"""Digits of the checksum in a name."""
_MOST_FILES = 1000
"""Files in the folder before the least recently used ones are removed."""


@dataclass(frozen=True)
class PredicateFunction:
    """A function of a predicate that loops call and LLVM inlines."""

    name: str
    """Ends in a checksum of the predicate."""
    kind: ir.FunctionType
    emit: Emit

    def call(self, context: Any, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        """Emit a call in a loop that Numba is about to compile."""
        internals.keep_text(context.active_code_library)
        function = builder.module.globals.get(self.name) or self.define(builder.module)
        value = builder.call(function, args)
        return context.get_dummy_value() if isinstance(self.kind.return_type, ir.VoidType) else value

    def define(self, module: ir.Module) -> ir.Function:
        """Add the function to a module. LLVM drops it after inlining."""
        function = ir.Function(module, self.kind, self.name)
        function.linkage = "linkonce_odr"
        function.attributes.add("alwaysinline")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        value = self.emit(builder, function.args)
        if value is None:
            builder.ret_void()
        else:
            builder.ret(value)
        return function

    def without_body(self, text: str) -> str:
        """Replace the definition in the text of a module by a declaration."""
        body = rf"^define [^\n]*@{re.escape(self.name)}\([^\n]*\{{\n.*?^\}}\n"
        args = ", ".join(map(str, self.kind.args))
        declaration = f"declare {self.kind.return_type} @{self.name}({args})\n"
        return re.sub(body, lambda _: declaration, text, flags=re.MULTILINE | re.DOTALL)


class _Build(threading.local):
    """The kernel that this thread is building."""

    subject, shape = "", ""
    functions: tuple[PredicateFunction, ...] = ()


_build = _Build()
_enabled = True


@contextmanager
def building(subject: object, shape: object = None) -> Iterator[None]:
    """Say what the loops that are defined in this block depend on.

    Args:
        subject: A predicate, for example. Loops whose subjects differ in their `repr` are different code.
        shape: Everything that the loops depend on except for predicate functions. Loops of one shape share a
            template; without a shape, there is none.
    """
    before = _build.subject, _build.shape, _build.functions
    _build.subject, _build.shape, _build.functions = repr(subject), "" if shape is None else repr(shape), ()
    try:
        yield
    finally:
        _build.subject, _build.shape, _build.functions = before


def predicate_function(role: str, kind: ir.FunctionType, emit: Emit) -> PredicateFunction:
    """Return a function that the next loops of this block may call."""
    name = f"handshake.{role}{len(_build.functions)}.{_digest(_build.subject)[:_DIGITS]}"
    function = PredicateFunction(name, kind, emit)
    _build.functions = (*_build.functions, function)
    return function


def disable_cache() -> None:
    """Compile everything in this process from now on, because the compiler is changed or measured."""
    global _enabled
    _enabled = False


def compile_loop(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a loop when it is first called, or load it from the disk.

    Args:
        **options: Options of `numba.njit`.
    """

    def wrap(function: Callable[..., Any]) -> Any:
        digest = _digest(_build.subject, sorted(options.items()))
        loop = _rename(function, f"{function.__qualname__}_{digest[:_DIGITS]}")
        if not _enabled or numba.config.DISABLE_JIT:
            return numba.njit(**options)(loop)
        if not internals.is_available():
            # Numba's own cache does not see a change of the predicate.
            return numba.njit(cache=not _build.subject, **options)(loop)
        dispatcher = numba.njit(**options)(loop)
        with suppress(RuntimeError, OSError):  # no writable folder: every process compiles for itself
            internals.attach(dispatcher, _DiskStore(function, options, digest))
        return dispatcher

    return wrap


def _rename(function: Any, name: str) -> Any:
    own = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    own.__qualname__, own.__module__, own.__doc__ = name, function.__module__, function.__doc__
    return own


class _DiskStore:
    """The store of one loop: its code by argument types, and the templates of its shape."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], digest: str) -> None:
        folder = cache_folder(function)
        self._code = CodeFiles(folder, function, digest)
        self._functions = _build.functions
        self._names = (digest[:_DIGITS], _digest(_build.subject)[:_DIGITS])
        self._templates: CodeFiles | None = None
        if _build.shape and _build.functions:
            shape = _digest("template", _build.shape, sorted(options.items()))
            self._templates = CodeFiles(folder, function, shape)

    @property
    def cache_path(self) -> str:
        return str(self._code.folder)

    def load_overload(self, signature: Any, context: Any) -> Any:
        context.refresh()
        key = internals.type_key(signature, context)
        components = self._code.load(key)
        if components is not None:
            return internals.rebuild(context, components)
        template = self._templates.load(key) if self._templates is not None else None
        if template is None:
            return None
        result = internals.fill(template, context, self._functions, *self._names)
        self._code.save(key, internals.reduce(result))
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        if not internals.can_be_stored(result):
            return
        key, components = internals.type_key(signature, result.target_context), internals.reduce(result)
        self._code.save(key, components)
        if self._templates is not None:
            template = internals.template_of(result, components, self._functions, *self._names)
            if template is not None:
                self._templates.save(key, template)


def cache_folder(function: Callable[..., Any]) -> Path:
    """Return a writable folder for code that is compiled for a function.

    That is a folder in `NUMBA_CACHE_DIR` if it is set, else `__pycache__` beside the source of the function,
    else a folder in the user's cache.

    Raises:
        RuntimeError: No such folder can be written.
    """
    return _writable_folder(Path(inspect.getfile(function)).resolve().parent, numba.config.CACHE_DIR)


@cache
def _writable_folder(source: Path, given: str) -> Path:
    name = f"{source.name}_{_digest(str(source))[:_DIGITS]}"
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (Path(given) / name,) if given else (source / "__pycache__", users / "handshake" / name):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    raise RuntimeError(f"no writable folder for code compiled from '{source}'")


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


@cache
def _environment() -> tuple[str, ...]:
    """Return what all compiled code depends on: versions, switches, and the sources of the compiler."""
    config = numba.config
    switches = (config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.BOUNDSCHECK)
    package = Path(__file__).parent.parent
    sources = sorted([*package.glob("kernels/*.py"), *package.glob("plan/*.py"), package / "schema.py"])
    text = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources))
    return numba.__version__, llvmlite.__version__, repr(switches), text.hexdigest()


class CodeFiles:
    """The files of one loop, one per key."""

    def __init__(
        self, folder: Path, function: Callable[..., Any], purpose: str = "", most: int = _MOST_FILES
    ) -> None:
        source = hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
        self.folder, self._most = folder, most
        self._depends = (*_environment(), source, function.__qualname__, purpose)
        self._stem = f"handshake.{function.__name__}.{_digest(self._depends)[:32]}"

    def path(self, key: Any) -> Path:
        """Return the file of a key."""
        return self.folder / f"{self._stem}.{_digest(key)[:32]}.nbc"

    def load(self, key: Any) -> Any:
        """Return the data saved for a key, or None if there is none or the file is damaged."""
        path = self.path(key)
        with suppress(OSError):
            raw = path.read_bytes()
            if raw[:32] == hashlib.sha256(raw[32:]).digest():
                saved, data = pickle.loads(raw[32:])
                if saved == (self._depends, key):
                    with suppress(OSError):
                        os.utime(path)
                    return data
        return None

    def save(self, key: Any, data: Any) -> None:
        """Save data for a key. A full disk is not an error."""
        body = internals.dump(((self._depends, key), data))
        path = self.path(key)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            partial.write_bytes(hashlib.sha256(body).digest() + body)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove the least recently used quarter if there are too many files."""
        with suppress(OSError):
            files = [entry for entry in os.scandir(self.folder) if entry.name.startswith("handshake.")]
            if len(files) <= self._most:
                return
            used = {}
            for entry in files:
                with suppress(OSError):
                    used[entry.path] = entry.stat().st_mtime
            for path in sorted(used, key=lambda path: used[path])[: len(used) // 4]:
                Path(path).unlink(missing_ok=True)
