"""The only module that uses private parts of Numba (docs/dependencies.md).

`compile_cache` stores compiled loops on disk and fills loop templates through it. If `HANDSHAKE_PLAIN_NUMBA`
is set, or if a Numba release lacks one of the parts, `compile_cache` uses Numba's public interface instead.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numba
from llvmlite import binding, ir
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler import CompileResult, compile_result
from numba.core.serialize import dumps

PLAIN = "HANDSHAKE_PLAIN_NUMBA"
"""Environment variable that switches to Numba's public interface."""
_TEXT = "handshake_text"


class Store(Protocol):
    """Storage of compiled code, as a Numba dispatcher expects it in its private attribute `_cache`."""

    @property
    def cache_path(self) -> str: ...

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the code for arguments of these types, or None."""

    def save_overload(self, signature: Any, result: Any) -> None: ...


@cache
def is_available() -> bool:
    """Return whether this Numba release has the private parts that this module uses."""
    parts = {
        CompileResult: ("_reduce", "_rebuild"),
        CPUCodeLibrary: ("_optimize_final_module", "enable_object_caching", "has_dynamic_globals"),
    }
    return (
        not os.environ.get(PLAIN)
        and all(hasattr(owner, name) for owner, names in parts.items() for name in names)
        and hasattr(numba.njit(lambda: None), "_cache")
    )


def attach(dispatcher: Any, store: Store) -> None:
    """Make a dispatcher load its code from a store before it compiles, and save it afterwards."""
    dispatcher._cache = store


def can_be_stored(result: Any) -> bool:
    """Return whether compiled code is free of addresses of this process."""
    return not result.library.has_dynamic_globals and all(loop.can_cache for loop in result.lifted)


def type_key(signature: Any, context: Any) -> tuple[str, str]:
    """Return a key for the types of the arguments and the kind of processor."""
    return repr(signature), repr(context.codegen().magic_tuple())


def reduce(result: Any) -> tuple[Any, ...]:
    """Return the components of a compiled result, which `rebuild` takes."""
    components: tuple[Any, ...] = result._reduce()
    return components


def rebuild(context: Any, components: tuple[Any, ...]) -> Any:
    """Load compiled code into this process."""
    return CompileResult._rebuild(context, *components)


def dump(value: Any) -> bytes:
    """Pickle a value that may hold functions of Numba."""
    data: bytes = dumps(value)
    return data


class Function(Protocol):
    """A function in LLVM that a loop calls and that a template leaves out."""

    def define(self, module: ir.Module) -> ir.Function: ...

    def without_body(self, text: str) -> str: ...


@dataclass(frozen=True)
class Template:
    """A compiled loop without the functions that depend on the predicate."""

    text: str
    """LLVM text, in which these functions are only declared."""
    rest: bytes
    """The components of the compiled result without the code, pickled."""
    names: tuple[str, ...]
    """Checksums in its symbols. Others of the same length may replace them."""


def keep_text(library: Any) -> None:
    """Keep the LLVM text of a library from before its optimisation, for `template_of`."""
    optimise: Callable[[], None] | None = getattr(library, "_optimize_final_module", None)
    if optimise is None or _TEXT in vars(library):
        return
    vars(library)[_TEXT] = None

    def keep_and_optimise() -> None:
        del library._optimize_final_module
        vars(library)[_TEXT] = str(library._final_module)
        optimise()

    library._optimize_final_module = keep_and_optimise


def template_of(
    result: Any, components: tuple[Any, ...], functions: Sequence[Function], *names: str
) -> Template | None:
    """Return the template of a loop, or None if it calls another loop that depends on the predicate."""
    text = vars(result.library).pop(_TEXT, None)
    if text is None:
        return None
    for function in functions:
        text = function.without_body(text)
    known = result.fndesc
    own = {known.llvm_func_name, known.llvm_cpython_wrapper_name, known.llvm_cfunc_wrapper_name}
    for line in re.findall(r"^define [^\n]*", text, re.MULTILINE):
        if any(name in line for name in names) and not any(f"@{name}(" in line for name in own):
            return None
    return Template(text, dump(components[1:]), names)


def fill(template: Template, context: Any, functions: Sequence[Function], *names: str) -> Any:
    """Compile a template with other functions."""
    text, rest = template.text, template.rest
    for old, new in zip(template.names, names, strict=True):
        text, rest = text.replace(old, new), rest.replace(old.encode(), new.encode())
    fndesc, environment, signature, objectmode, lifted, annotation, reload, environments = pickle.loads(rest)
    for prepare in reload or ():
        prepare()
    library = context.codegen().create_library(fndesc.qualname)
    library.enable_object_caching()
    library._final_module.link_in(binding.parse_assembly(text))
    module = library.create_ir_module(f"{fndesc.qualname}.functions")
    for function in functions:
        function.define(module)
    library.add_ir_module(module)
    library.finalize()
    for other in environments:
        library.codegen.set_env(other.env_name, other)
    return compile_result(
        target_context=context,
        typing_context=context.typing_context,
        library=library,
        environment=environment,
        entry_point=context.get_executable(library, fndesc, environment),
        fndesc=fndesc,
        type_annotation=annotation,
        signature=signature,
        objectmode=objectmode,
        lifted=lifted,
        reload_init=reload,
        referenced_envs=environments,
    )
