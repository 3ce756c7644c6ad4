"""Bounded model checking by Yosys: small components lose nothing and make up nothing, for all inputs."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Module, Mux, Signal

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.operators import Fork
from handshake.engines.circuit.components.stream import beat, moves, stream_in
from handshake.engines.circuit.components.types import Row, Wire
from handshake.engines.circuit.components.union import Union
from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.yosys import run_yosys
from handshake.errors import HandshakeError
from handshake.schema import INT64

ROW = Row((Wire("mark", INT64, 1),))
STEPS = 11


def prove(circuit: Block) -> None:
    """Prove that every assertion holds in every run of that many cycles from reset, for all inputs."""
    passes = (
        "hierarchy -top top",
        "proc",
        "flatten",
        "memory_map",
        "chformal -lower",
        "opt_clean",
        f"tee -o {{output}} sat -verify -prove-asserts -set-assumes -seq 1 -set-at 1 rst 1 -tempinduct "
        f"-tempinduct-baseonly -maxsteps {STEPS} top",
    )
    assert "SUCCESS" in run_yosys(to_rtlil(circuit), passes, timeout=120)


class Checked(Block):
    """Counts beats into and out of a block; the solver drives inputs and readiness at will.

    A beat that is offered stays until it is taken. When nothing has come for `settle` cycles and the output
    has been ready, everything that was taken has left. One marked tuple goes in: it comes out at most once.
    """

    def __init__(
        self, block: Any, inputs: list[str], *, settle: int, copies: int = 1, lose: bool = False
    ) -> None:
        self.inner, self.inputs, self.settle, self.copies, self.lose = block, inputs, settle, copies, lose
        super().__init__({name: stream_in(ROW) for name in inputs} | {"ready": stream_in(ROW)})

    def build(self) -> Module:
        m = Module()
        m.submodules.inner = inner = self.inner
        taken, left, quiet, marked, out_marked = (Signal(6, name=n) for n in ("t", "l", "q", "m", "o"))
        outs = [inner.o] if hasattr(inner, "o") else [inner.o0, inner.o1]
        coming: Any = 0
        now, now_marked = [], []
        for name in self.inputs:
            free, sink = getattr(self, name), getattr(inner, name)
            held = Signal(name=f"held_{name}")
            m.d.comb += [
                sink.valid.eq(free.valid),
                sink.eos.eq(0),
                sink.payload.eq(free.payload),
                free.ready.eq(sink.ready),
            ]
            m.d.sync += held.eq(sink.valid & ~sink.ready)
            before = Signal(name=f"before_{name}")
            m.d.sync += before.eq(free.payload["mark"])
            with m.If(held):
                m.d.comb += Assume(free.valid & (free.payload["mark"] == before))
            coming = coming | free.valid
            now.append(moves(sink))
            now_marked.append(moves(sink) & sink.payload["mark"])
        ready = self.ready.valid
        m.d.comb += [out.ready.eq(ready) for out in outs]
        dropped = self.lose & (taken == 2)
        m.d.sync += [
            taken.eq(taken + sum(now)),
            marked.eq(marked + sum(now_marked)),
            left.eq(left + Mux(dropped, 0, sum(moves(out) for out in outs))),
            out_marked.eq(out_marked + sum(moves(out) & out.payload["mark"] for out in outs)),
            quiet.eq(Mux(coming | ~ready, 0, quiet + (quiet != 63))),
        ]
        m.d.comb += [
            Assume(marked + sum(now_marked) <= 1),
            Assert(out_marked <= self.copies * marked),
            Assert((quiet < self.settle) | (left == self.copies * taken)),
        ]
        for out in outs:
            stuck, old = Signal(name="stuck"), Signal(name="old")
            m.d.sync += [stuck.eq(beat(out) & ~out.ready), old.eq(out.payload["mark"])]
            m.d.comb += Assert(~stuck | (out.valid & (out.payload["mark"] == old)))  # a beat stays as it is
        return m


CASES = {
    "fifo of 1": lambda: Checked(Fifo(ROW, 1), ["i"], settle=3),
    "fifo of 3": lambda: Checked(Fifo(ROW, 3), ["i"], settle=5),
    "fifo in memory": lambda: Checked(Fifo(ROW, 2, storage="memory"), ["i"], settle=4),
    "union": lambda: Checked(Union(ROW, 2, depth=1), ["i0", "i1"], settle=5),
    "union of three": lambda: Checked(Union(ROW, 3, depth=0), ["i0", "i1", "i2"], settle=5),
    "fork": lambda: Checked(Fork(ROW, 2), ["i"], settle=2, copies=2),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost_or_doubled(name: str) -> None:
    prove(CASES[name]())


def test_the_solver_finds_a_loss() -> None:
    with pytest.raises(HandshakeError, match=r"^Yosys failed: .*proof did fail"):
        prove(Checked(Fifo(ROW, 3), ["i"], settle=5, lose=True))
