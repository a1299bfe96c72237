"""The stack that a run needs at most: a static estimate over the printed loops and the library below them."""

from __future__ import annotations

from microc import dtypes
from microc.codegen.library import kernel_operations, library_of
from microc.isa import CORES
from microc.module import Module
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs, walk_stmt

FRAME_BYTES = 224
"""Saved registers, spilled temporaries and arguments of the run, step, kernel and helper functions on a 32-bit core. Measured:
disassembled frames of 26 networks, each on one of six cores, at -O0 and -O3: 224 holds for all that compute no floats on RV32F
at -O0. Measure again when kernels are printed otherwise."""


def stack_bound(module: Module) -> int:
    """Bytes: a frame per function; the named scalars and register tiles of a kernel, all of them spilled; the deepest function
    of the compiler's library that the kernel may call. The largest sum of any kernel counts."""
    cpu = module.options["cpu"]
    library, core = library_of(cpu), CORES[cpu]
    apart = core.family == "riscv" and "fpu" in core.has
    return FRAME_BYTES + max(
        (
            _scalars(kernel.func)
            + library.stack(kernel_operations(kernel.func))
            + (_float_results(kernel.func) if apart else 0)
            for kernel in module.kernels
        ),
        default=0,
    )


def _float_results(func: ir.PrimFunc) -> int:
    """Count eight bytes for every result of a float operation, which gcc for RISC-V keeps in memory of its own at -O0.

    measured: unknown. Frames of 1,200 to 2,608 bytes were seen before this term.
    """
    found = sum(
        dtypes.is_float(expr.dtype) for expr in walk_all_exprs(func.body) if not isinstance(expr, (ir.Var, ir.Const))
    )
    return 8 * found


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
