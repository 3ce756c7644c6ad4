"""Asking for memory before it is needed."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from handshake.kernels.lower import I8

__all__ = ["emit_prefetch", "prefetch"]

_WORD = ir.IntType(32)


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for the cache line at an address; nothing waits, and an address that is not there does no harm."""
    pointer = ir.PointerType(I8)
    kind = ir.FunctionType(ir.VoidType(), [pointer, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, keep, data = (ir.Constant(_WORD, n) for n in (0, 3, 1))
    builder.call(function, [builder.inttoptr(address, pointer), to_read, keep, data])


@intrinsic
def prefetch(typing_context, address):  # type: ignore[no-untyped-def]
    """The same in a compiled loop."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emit_prefetch(builder, args[0])
        return context.get_dummy_value()

    return types.void(address), code
