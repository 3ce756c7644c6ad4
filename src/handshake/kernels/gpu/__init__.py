"""Kernels for a GPU: frames in LLVM IR around the same lowering of predicates, and the driver that runs them.

Nothing here is imported until a join asks for `device="gpu"`.
"""
