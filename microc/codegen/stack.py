"""The stack that a run needs at most: a static estimate over the printed loops."""

from __future__ import annotations

from microc import dtypes
from microc.module import Module
from microc.tir import ir
from microc.tir.rewrite import walk_stmt

FRAME_BYTES = 160
"""Saved registers, spilled temporaries and arguments of the run, step and kernel functions on a 32-bit core."""


def stack_bound(module: Module) -> int:
    """Bytes: a frame per function plus the named scalars and register tiles of the largest kernel, all of them spilled."""
    return FRAME_BYTES + max((_scalars(kernel.func) for kernel in module.kernels), default=0)


def _scalars(func: ir.PrimFunc) -> int:
    """Bytes of every variable that a kernel declares."""
    total = 4 * len(func.params)
    for stmt in walk_stmt(func.body):
        match stmt:
            case ir.Alloc(buffer):
                total += buffer.nbytes
            case ir.Let(var) | ir.For(var):
                total += max(4, dtypes.nbytes(var.dtype))
            case _:
                pass
    return total
