"""The way out of a join circuit: the root of the merging network becomes a stream."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, Value

__all__ = ["leave"]


def leave(m: Module, root: Any, results: Any) -> Value:
    """Results out, and one `eos` after the last; high when that is taken and the next input may begin."""
    was, owed = Signal(name="was_over"), Signal(name="eos_owed")
    m.d.sync += was.eq(root.over)
    m.d.comb += [
        results.payload.as_value().eq(root.payload), results.valid.eq(root.valid), results.eos.eq(owed),
        root.ready.eq(results.ready),
    ]  # fmt: skip
    with m.If(root.over & ~was):
        m.d.sync += owed.eq(1)
    with m.Elif(results.ready):
        m.d.sync += owed.eq(0)
    return owed & results.ready
