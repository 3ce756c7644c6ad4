"""Measurements in a child process, with vector kernels or scalar ones.

The scalar variant runs the same loops over the same blocks of 64 tuples. It builds each mask from 64 single
tuples instead of 4 vectors of 16, and LLVM does not vectorise.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

from llvmlite import ir

from handshake.errors import HandshakeError
from handshake.kernels import compile as kernels
from handshake.kernels.compile_cache import disable_cache
from handshake.kernels.lower import I64, Env, truth
from handshake.plan.expr import Expr

__all__ = ["in_child", "scalar_kernels"]

_NO_VECTORS = {"NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}


def in_child(target: str, *, scalar: bool = False, **options: Any) -> Any:
    """Call `module:function` of the benchmarks in a child process; options and result must be JSON values."""
    command = [sys.executable, "-m", "handshake_bench.child", target, str(int(scalar)), json.dumps(options)]
    environment = {**os.environ, **(_NO_VECTORS if scalar else {})}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise HandshakeError(f"the measurement '{target}' failed with status {done.returncode}; see above")
    return json.loads(done.stdout.splitlines()[-1])


def scalar_kernels() -> None:
    """Compile predicates without vectors from now on."""
    kernels.block_mask = _one_by_one


def _one_by_one(
    builder: ir.IRBuilder, program: kernels.Program, expr: Expr, inner: int, args: Any,
    tuples: int = kernels.BLOCK,
) -> ir.Value:  # fmt: skip
    mask = ir.Constant(I64, 0)
    for step in range(tuples):
        start = builder.add(args[3], ir.Constant(I64, step))
        pointers = {1 - inner: (args[0], args[1]), inner: (args[2], start)}
        env = Env(builder, kernels._loader(builder, program, pointers, None), program.headroom, inner)
        word = builder.zext(truth(expr, env).yes, I64)
        mask = builder.or_(mask, builder.shl(word, ir.Constant(I64, step)))
    return mask


def _main(target: str, scalar: str, options: str) -> None:
    disable_cache()
    if int(scalar):
        scalar_kernels()
    module, function = target.split(":")
    call = getattr(importlib.import_module(f"handshake_bench.{module}"), function)
    print(json.dumps(call(**json.loads(options))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
