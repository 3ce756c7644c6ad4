"""The machine that a frame is compiled for: a warp of a GPU.

Frames are written against these few operations. Tests have a target of their own, which runs the same frames
on the processor, one lane at a time (`tests/support/stand_in_gpu.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from llvmlite import binding, ir

from handshake.kernels.lower import I32, I64

THREADS = 256
"""Threads of a block."""
_FULL = ir.Constant(I32, -1)


class Target(ABC):
    """The operations in which a warp differs from a single lane."""

    lanes: int
    """Threads of a warp."""
    space: int
    """The address space of device memory."""
    triple: str

    @abstractmethod
    def machine(self) -> binding.TargetMachine:
        """Return the machine that code is emitted for."""

    @abstractmethod
    def kernel(self, module: ir.Module, name: str, arguments: Sequence[ir.Type]) -> Kernel:
        """Begin a kernel of this name, with these arguments."""

    @abstractmethod
    def ballot(self, builder: ir.IRBuilder, flag: ir.Value) -> ir.Value:
        """Return a word with a bit for each lane whose flag is set."""

    @abstractmethod
    def broadcast(self, builder: ir.IRBuilder, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return a 64-bit word of one lane in all lanes."""

    @abstractmethod
    def shuffle(self, builder: ir.IRBuilder, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the 32-bit word of a lane, which each lane names for itself; its number may wrap."""

    @abstractmethod
    def stage(self, kernel: Kernel, words: int) -> ir.Value:
        """Return a pointer to `words` 32-bit words that the lanes of a warp share."""

    @abstractmethod
    def sync(self, builder: ir.IRBuilder) -> None:
        """Let the lanes of a warp see what the others have stored."""

    @abstractmethod
    def float_word(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """Return the bits of a computed float of 32 bits; the sign of NaN is not set, as PTX says."""

    def pointer(self, builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
        """Return a pointer into device memory."""
        return builder.inttoptr(address, ir.PointerType(kind, addrspace=self.space))


class Kernel:
    """A kernel under construction: its arguments, and where its thread is."""

    def __init__(
        self, builder: ir.IRBuilder, args: Sequence[ir.Value], place: Sequence[ir.Value], end: ir.Block
    ) -> None:
        self.builder, self.args, self.end = builder, args, end
        self.thread, self.block_x, self.block_y, self.blocks_x = place

    def variable(self, kind: ir.Type) -> ir.Value:
        """Return a place for a value that changes; it becomes a register."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(kind)

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int) -> Iterator[ir.Value]:
        """Emit a loop over numbers."""
        b = self.builder
        before, head = b.block, b.append_basic_block("loop")
        body, after = b.append_basic_block("turn"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        counter = b.phi(start.type)
        counter.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", counter, stop), body, after)
        b.position_at_end(body)
        yield counter
        counter.add_incoming(b.add(counter, ir.Constant(start.type, step)), b.block)
        b.branch(head)
        b.position_at_end(after)


def call(builder: ir.IRBuilder, name: str, kind: ir.Type, *args: ir.Value) -> ir.Value:
    """Call an intrinsic function of LLVM."""
    module = builder.module
    function = module.globals.get(name) or ir.Function(
        module, ir.FunctionType(kind, [arg.type for arg in args]), name
    )
    return builder.call(function, args)


class PtxTarget(Target):
    """A GPU by NVIDIA of some compute capability."""

    lanes, space, triple = 32, 1, "nvptx64-nvidia-cuda"

    def __init__(self, capability: tuple[int, int]) -> None:
        self.chip = next(f"sm_{10 * a + b}" for a, b in ((9, 0), (8, 0), (7, 0)) if (a, b) <= capability)

    def machine(self) -> binding.TargetMachine:
        """Return the machine that code is emitted for; PTX 8.0 is that of CUDA 12.0."""
        return _nvptx().create_target_machine(cpu=self.chip, features="+ptx80", opt=3)

    def kernel(self, module: ir.Module, name: str, arguments: Sequence[ir.Type]) -> Kernel:
        """Begin a kernel: threads and blocks are in special registers."""
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), list(arguments)), name)
        function.calling_convention = "ptx_kernel"
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        end = function.append_basic_block("end")
        with builder.goto_block(end):
            builder.ret_void()
        names = ("tid.x", "ctaid.x", "ctaid.y", "nctaid.x")
        place = [call(builder, f"llvm.nvvm.read.ptx.sreg.{register}", I32) for register in names]
        return Kernel(builder, function.args, place, end)

    def emit(self, module: ir.Module, blocks: int = 2) -> str:
        """Return the text of a module in PTX, with registers for `blocks` blocks on a multiprocessor."""
        parsed, machine = optimise(self, module)
        text: str = machine.emit_assembly(parsed)
        return text.replace(")\n{", f")\n.maxntid {THREADS}, 1, 1\n.minnctapersm {blocks}\n{{", 1)

    def ballot(self, builder: ir.IRBuilder, flag: ir.Value) -> ir.Value:
        """Return a word with a bit for each lane whose flag is set."""
        return call(builder, "llvm.nvvm.vote.ballot.sync", I32, _FULL, flag)

    def broadcast(self, builder: ir.IRBuilder, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return a 64-bit word of one lane in all lanes."""
        halves = [builder.trunc(word, I32), builder.trunc(builder.lshr(word, I64(32)), I32)]
        low, high = (builder.zext(self.shuffle(builder, half, lane), I64) for half in halves)
        return builder.or_(low, builder.shl(high, I64(32)))

    def shuffle(self, builder: ir.IRBuilder, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the 32-bit word of a lane, which each lane names for itself; its number may wrap."""
        return call(builder, "llvm.nvvm.shfl.sync.idx.i32", I32, _FULL, word, lane, I32(31))

    def stage(self, kernel: Kernel, words: int) -> ir.Value:
        """Return a pointer to `words` 32-bit words that the lanes of a warp share."""
        builder = kernel.builder
        kind = ir.ArrayType(I32, words * THREADS // self.lanes)
        shared = ir.GlobalVariable(builder.module, kind, "stage", addrspace=3)
        shared.linkage, shared.initializer = "internal", ir.Constant(kind, ir.Undefined)
        warp = builder.udiv(kernel.thread, I32(self.lanes))
        return builder.gep(shared, [I32(0), builder.mul(warp, I32(words))])

    def sync(self, builder: ir.IRBuilder) -> None:
        """Let the lanes of a warp see what the others have stored."""
        call(builder, "llvm.nvvm.bar.warp.sync", ir.VoidType(), _FULL)

    def float_word(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """Return the bits of a computed float of 32 bits: NaN is 0x7fffffff."""
        return builder.bitcast(value, I32)


@lru_cache(maxsize=1)
def _nvptx() -> binding.Target:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding.Target.from_triple(PtxTarget.triple)


def optimise(
    target: Target, module: ir.Module, level: int = 3
) -> tuple[binding.ModuleRef, binding.TargetMachine]:
    """Return a checked and optimised module, and the machine to emit it for."""
    machine = target.machine()
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=level))
    passes.getModulePassManager().run(parsed, passes)
    return parsed, machine
