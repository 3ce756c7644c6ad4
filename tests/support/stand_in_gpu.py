"""A stand-in for a GPU: the same frames, compiled for this processor, over plain memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import binding, ir

from handshake.kernels.gpu.driver import DeviceError
from handshake.kernels.gpu.target import THREADS, Kernel, Target, optimise
from handshake.kernels.lower import I32


class HostTarget(Target):
    """This processor: a warp is one lane, and a kernel runs all blocks and threads in turn."""

    lanes, space = 1, 0

    def __init__(self) -> None:
        self.triple = binding.get_process_triple()

    def machine(self) -> binding.TargetMachine:
        """Return the machine that code is emitted for."""
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        return binding.Target.from_triple(self.triple).create_target_machine(opt=2)

    def kernel(self, module: ir.Module, name: str, arguments: Sequence[ir.Type]) -> Kernel:
        """Begin a kernel, which gets its grid as two more arguments."""
        kind = ir.FunctionType(ir.VoidType(), [*arguments, I32, I32])
        function = ir.Function(module, kind, name)
        wide, high = function.args[-2:]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        counters, ends = [], []
        for stop in (high, wide, ir.Constant(I32, THREADS)):
            before, head = builder.block, function.append_basic_block("head")
            body, step, after = (function.append_basic_block(part) for part in ("body", "step", "after"))
            builder.branch(head)
            builder.position_at_end(head)
            counter = builder.phi(I32)
            counter.add_incoming(I32(0), before)
            builder.cbranch(builder.icmp_unsigned("<", counter, stop), body, after)
            with builder.goto_block(step):
                counter.add_incoming(builder.add(counter, I32(1)), step)
                builder.branch(head)
            builder.position_at_end(body)
            counters.append(counter)
            ends.append((step, after))
        for (_, after), outer in zip(ends, [None, *ends], strict=False):
            with builder.goto_block(after):
                builder.ret_void() if outer is None else builder.branch(outer[0])
        y, x, thread = counters
        return Kernel(builder, function.args[:-2], (thread, x, y, wide), ends[-1][0])

    def ballot(self, builder: ir.IRBuilder, flag: ir.Value) -> ir.Value:
        """Return the flag as a word."""
        return builder.zext(flag, I32)

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the word: there is one lane."""
        return word

    def shuffle(self, builder: ir.IRBuilder, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the word: there is one lane."""
        return word

    def stage(self, kernel: Kernel, words: int) -> ir.Value:
        """Return a pointer to words that every lane uses in turn."""
        with kernel.builder.goto_entry_block():
            return kernel.builder.alloca(I32, words)

    def sync(self, builder: ir.IRBuilder) -> None:
        """Do nothing: there is one lane."""

    def float_word(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """Return the bits of a computed float of 32 bits; NaN as a GPU has it."""
        missing = builder.fcmp_unordered("uno", value, value)
        return builder.select(missing, ir.Constant(I32, 0x7FFFFFFF), builder.bitcast(value, I32))


class StandIn:
    """Everything that a join asks of a GPU; a warp has one lane, and blocks run one after another."""

    name = "stand-in"

    def __init__(self, total: int = 1 << 34) -> None:
        self.target = HostTarget()
        self.held: dict[int, np.ndarray[Any, Any]] = {}
        self.total = total
        self.launches = 0
        self._engines: list[Any] = []

    def load(self, module: ir.Module, name: str, blocks: int = 2) -> Any:
        parsed, machine = optimise(self.target, module, 1)
        words = len(module.globals[name].args) - 2
        engine = binding.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        self._engines.append(engine)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words, ctypes.c_int32, ctypes.c_int32)
        function = kind(engine.get_function_address(name))

        def launch(grid: tuple[int, int], args: Sequence[int]) -> None:
            self.launches += 1
            function(*args, *grid)

        return launch

    def allocate(self, size: int) -> int:
        if size > self.memory()[0]:
            raise DeviceError("the memory of the stand-in is exhausted")
        # Aligned as the memory of a GPU is.
        array = np.zeros(size + 256, np.uint8)
        address = -(-array.ctypes.data // 256) * 256
        self.held[address] = array
        return address

    def free(self, address: int) -> None:
        del self.held[address]

    def memory(self) -> tuple[int, int]:
        return self.total - sum(array.nbytes for array in self.held.values()), self.total

    def upload(self, address: int, source: int, size: int) -> None:
        self._check(address, size)
        ctypes.memmove(address, source, size)

    def download(self, *copies: tuple[np.ndarray[Any, Any], int]) -> None:
        for target, address in copies:
            self.fetch(target, address)

    def fetch(self, target: np.ndarray[Any, Any], address: int) -> None:
        self._check(address, target.nbytes)
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def move(self, target: int, source: int, size: int) -> None:
        self._check(target, size)
        self._check(source, size)
        assert target + size <= source or source + size <= target, "a GPU copies what does not overlap"
        ctypes.memmove(target, source, size)

    def fill(self, address: int, byte: int, size: int) -> None:
        self._check(address, size)
        ctypes.memset(address, byte, size)

    def host_array(self, size: int) -> np.ndarray[Any, Any]:
        return np.empty(size, np.uint8)

    def _check(self, address: int, size: int) -> None:
        """Check that a copy stays within one allocation."""
        ends = ((start, held.ctypes.data + held.nbytes) for start, held in self.held.items())
        inside = any(start <= address and address + size <= end for start, end in ends)
        assert inside, (address, size)
