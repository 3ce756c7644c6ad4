"""Loops and what is computed in them, compiled apart: a frame is made once, each predicate only filled in.

Of the time that a kernel takes to compile, Numba needs two thirds for the loops, which are the same whatever
the predicate is. So the predicate's functions are parts that loops call and LLVM inlines. The first kernel of
a shape leaves its loops behind as a frame: LLVM's text as it was before it was optimised, without the parts.
The next one takes the frame, under another name, with parts of its own.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import binding, ir
from numba.core.compiler import CompileResult, compile_result
from numba.core.serialize import dumps

__all__ = ["Frame", "Part", "filled", "frame_of"]

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value | None]
"""Emits the body of a part; None where it gives nothing."""
_NOTED = "handshake_frame"


@dataclass(frozen=True)
class Part:
    """A function of a predicate that loops call."""

    name: str
    """Ends in a checksum of what the loop is made for."""
    kind: ir.FunctionType
    emit: Emit

    def call(self, context: Any, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        """Call it from a loop that Numba is about to compile."""
        _note(context.active_code_library)
        function = builder.module.globals.get(self.name) or self.define(builder.module)
        value = builder.call(function, args)
        return context.get_dummy_value() if isinstance(self.kind.return_type, ir.VoidType) else value

    def define(self, module: ir.Module) -> ir.Function:
        """Put it into a module; LLVM drops it once it is inlined."""
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
        """A module's text that only declares it."""
        body = rf"^define [^\n]*@{re.escape(self.name)}\([^\n]*\{{\n.*?^\}}\n"
        args = ", ".join(map(str, self.kind.args))
        declared = f"declare {self.kind.return_type} @{self.name}({args})\n"
        return re.sub(body, lambda _: declared, text, flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Frame:
    """Loops without their parts."""

    text: str
    """Of LLVM, in which the parts are declared."""
    rest: bytes
    """What Numba knows of the loops: all of a compiled result but the code."""
    names: tuple[str, ...]
    """Checksums that its names contain; others of the same length may take their places."""


def _note(library: Any) -> None:
    """Keep what a library holds before it is optimised; where Numba does not say when, there is no frame."""
    optimise = getattr(library, "_optimize_final_module", None)
    if optimise is None or _NOTED in vars(library):
        return
    vars(library)[_NOTED] = None

    def noted() -> None:
        del library._optimize_final_module
        vars(library)[_NOTED] = str(library._final_module)
        optimise()

    library._optimize_final_module = noted


def frame_of(
    result: CompileResult, kept: tuple[Any, ...], parts: Sequence[Part], *names: str
) -> Frame | None:
    """The frame of a loop that was compiled; None where more than its parts depends on what it is for."""
    text = vars(result.library).pop(_NOTED, None)
    if text is None:
        return None
    for part in parts:
        text = part.without_body(text)
    known = result.fndesc
    own = {known.llvm_func_name, known.llvm_cpython_wrapper_name, known.llvm_cfunc_wrapper_name}
    for line in re.findall(r"^define [^\n]*", text, re.MULTILINE):
        if any(name in line for name in names) and not any(f"@{name}(" in line for name in own):
            return None  # another loop that this one calls
    return Frame(text, dumps(kept[1:]), names)


def filled(frame: Frame, context: Any, parts: Sequence[Part], *names: str) -> CompileResult:
    """A frame with other parts, compiled."""
    text, rest = frame.text, frame.rest
    for old, new in zip(frame.names, names, strict=True):
        text, rest = text.replace(old, new), rest.replace(old.encode(), new.encode())
    fndesc, environment, signature, objectmode, lifted, annotation, reload, environments = pickle.loads(rest)
    for prepare in reload or ():
        prepare()
    library = context.codegen().create_library(fndesc.qualname)
    library.enable_object_caching()
    library._final_module.link_in(binding.parse_assembly(text))
    module = library.create_ir_module(f"{fndesc.qualname}.parts")
    for part in parts:
        part.define(module)
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
