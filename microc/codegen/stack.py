"""Bounds on the stack of a run: frames of the printed functions, estimated from the loops, and the library below them.

A run is three functions deep, helpers and library aside: run, step, kernel. Each bound is the sum of the frames of run and
step, of the kernel with the largest sum, of the deepest library function (``library.json``) that this kernel may call, and of
the stack around a run in a project's firmware.

Compilers keep other things in memory with optimisation than without:

- Optimised, variables share registers and slots as scopes end. The frame grows with the variables of the deepest scope, with
  loops (induction variables, hoisted addresses) and with expressions, until these fill the registers.
- Unoptimised, every variable has a slot, and so has every result that does not fit a register or that a branch or call
  parts from its use: gcc keeps a slot for each 64-bit result on 32-bit cores, clang for each result of a conditional. picolibc
  defines ``fabs``, ``fmax``, ``fmin``, ``fma`` and ``sqrt`` for RISC-V as functions that are always inlined: a slot for each
  parameter and result of each call.

Each effect has a weight (:class:`Frame`). The weights are a linear program: the smallest that no frame exceeds, and about a
quarter more. The frames are those that gcc 12, gcc 5.4 (AVR) and clang 14 report (``-fstack-usage``) of 5,200 builds of operators
and networks for 13 boards; another 1,500 builds exceeded no bound. It is an estimate: a network unlike these may exceed it.
``benchmarks/stack.py`` compares bounds and frames again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType

from microc import dtypes
from microc.codegen.c_expr import MATH
from microc.codegen.library import kernel_operations, library_of
from microc.frozen import frozen
from microc.isa import CORES, Core
from microc.module import Module
from microc.tir import ir
from microc.tir.rewrite import stmt_children, stmt_exprs, walk_expr

INLINED = frozenset({"fabs", "fmax", "fmin", "fma", "sqrt"})
"""Functions that picolibc inlines at every level, where RISC-V has an instruction for them."""
CALLED_BYTES = 40
"""Bytes of stack of the deepest library function that a compiler calls although the core has its instruction: ``fmaf``, by gcc
at -O0 and by clang. Measured with -fno-builtin on all cores of ``benchmarks/library.py``."""
FULL_NODES = 100
"""Nodes of expressions beyond which a frame grows no more: the registers are full. Chosen; the weights are fitted to it."""


@frozen
class Frame:
    """Bytes that each property of a kernel adds to its frame, helpers that it calls included; ``run``, ``run_argument``: bytes
    of run and step function. ``node``: of optimised code for :data:`FULL_NODES` nodes at most. ``scalar``: a factor on the bytes
    of variables. ``vector``: a factor on the bytes of vector results."""

    run: int
    run_argument: int
    kernel: int
    argument: int
    scalar: float
    loop: int = 0
    node: float = 0.0
    wide: float = 0.0
    conditional: float = 0.0
    call: float = 0.0
    vector: float = 0.0


GCC: Mapping[str, Frame] = MappingProxyType({
    "avr": Frame(16, 3, 24, 5, 0.8, loop=15, node=0.4),
    "32": Frame(36, 4, 36, 5, 0.5, loop=42, node=0.3),
    "arm": Frame(32, 5, 28, 18, 0.75, loop=54, node=0.25),
    "arm vectors": Frame(32, 5, 28, 26, 1.2, loop=24, node=3.6),
    "64": Frame(64, 8, 88, 10, 1.1, loop=24, node=0.9),
})  # fmt: skip
"""Weights with gcc's -O1, -O2, -O3 and -Os, by kind of core."""
CLANG: Mapping[str, Frame] = MappingProxyType({
    "avr": GCC["avr"],
    "32": Frame(36, 4, 36, 6, 2.6, loop=20, node=0.3),
    "arm": Frame(40, 5, 36, 24, 2.1, loop=40, node=0.3),
    "arm vectors": Frame(40, 5, 36, 24, 1.3, loop=24, node=2.0),
    "64": Frame(64, 8, 48, 8, 1.2, loop=66, node=1.6),
})  # fmt: skip
"""Weights with clang's -O1, -O2, -O3 and -Os. clang for AVR was not measured."""
UNOPTIMISED: Mapping[str, Frame] = MappingProxyType({
    "avr": Frame(44, 5, 56, 6, 1.3, node=0.2, wide=7.0, conditional=3.0, call=8.0),
    "32": Frame(104, 7, 96, 10, 1.6, node=0.2, wide=7.0, conditional=4.0, call=3.0),
    "arm": Frame(104, 7, 64, 23, 1.4, node=0.3, wide=7.0, conditional=4.0, call=2.5),
    "arm vectors": Frame(104, 7, 48, 23, 2.8, node=0.75, wide=7.0, conditional=4.0, call=2.5, vector=0.5),
    "64": Frame(168, 14, 64, 50, 1.3, node=0.8, wide=1.0, conditional=7.0, call=4.0),
})  # fmt: skip
"""Weights with -O0."""
CALLERS: Mapping[str, int] = MappingProxyType({"avr": 128, "32": 288, "arm": 160, "arm vectors": 160, "64": 464})
"""Bytes of stack around a run in a project's firmware, by kind of core: main, RPC and one interrupt, which saves all registers on
RISC-V. Painted stacks hold them. Measured with 22 networks on 12 emulated boards: they exceeded the bounds without this term by
99, 240, 132, 108 and 404 bytes at most."""
UNROLLED_BYTES = 2400
"""Bytes of vectors that clang loads ahead and spills where it unrolls a loop at -O3: 1,808 of a pointwise convolution on
Cortex-M55, measured with clang 14, and a third more."""


@frozen
class StackBounds:
    """Bytes of stack that a run and its callers in a project's firmware take at most, by how the network is compiled: with -O1,
    -O2, -O3 or -Os, by gcc and by clang, and with -O0."""

    gcc: int
    clang: int
    unoptimised: int


def stack_bound(module: Module) -> int:
    """Bound the stack of a run where gcc compiles the network with -O1, -O2, -O3 or -Os, as projects do."""
    return stack_bounds(module).gcc


def stack_bounds(module: Module) -> StackBounds:
    """Bound the stack of a run. External code is not counted."""
    cpu = module.options["cpu"]
    core, library = CORES[cpu], library_of(cpu)
    kind = _kind(core)
    inlined = core.family == "riscv" and "fpu" in core.has
    deepest, arguments = [0.0, 0.0, 0.0], 0
    for kernel in module.kernels:
        func, facts = kernel.func, _Facts(kernel.func.body)
        below = max(library.stack(kernel_operations(func)), CALLED_BYTES if facts.math else 0)
        count = len(func.params) + len(func.scalars)
        own = (
            _bound_optimised(GCC[kind], facts, count),
            _bound_optimised(CLANG[kind], facts, count) + (UNROLLED_BYTES if facts.vectors else 0),
            _bound_unoptimised(UNOPTIMISED[kind], facts, count) + facts.inlined * inlined,
        )
        deepest = [max(most, below + facts.arrays + each) for most, each in zip(deepest, own, strict=True)]
        arguments = max(arguments, count)
    runs = (table[kind].run + table[kind].run_argument * arguments for table in (GCC, CLANG, UNOPTIMISED))
    gcc, clang, unoptimised = (
        4 * ceil((CALLERS[kind] + run + most) / 4) for run, most in zip(runs, deepest, strict=True)
    )
    return StackBounds(gcc, clang, max(gcc, unoptimised))


def _kind(core: Core) -> str:
    """Choose the weights of a core."""
    if core.family in ("host", "x86", "aarch64") or core.name.startswith("rv64"):
        return "64"
    if core.family == "arm" and any(instructions.unit for instructions in core.sets):
        return "arm vectors"
    return core.family if core.family in GCC else "32"


def _bound_optimised(frame: Frame, facts: _Facts, arguments: int) -> float:
    found = frame.kernel + frame.argument * arguments + frame.scalar * facts.deepest + frame.loop * facts.loops
    return found + frame.node * min(facts.nodes, FULL_NODES)


def _bound_unoptimised(frame: Frame, facts: _Facts, arguments: int) -> float:
    found = frame.kernel + frame.argument * arguments + frame.scalar * facts.scalars + frame.node * facts.nodes
    found += frame.wide * facts.wide + frame.conditional * facts.conditionals + frame.call * facts.calls
    return found + frame.vector * facts.vectors


class _Facts:
    """Properties of a kernel's body that frames depend on. Counts are those of printed C, where subexpressions repeat.

    ``scalars``: bytes of all variables, ``deepest``: of those that one scope sees. ``loops``: of the deepest nest. ``inlined``:
    bytes of parameters and results of :data:`INLINED` functions.
    """

    def __init__(self, body: ir.Stmt) -> None:
        self.scalars = self.deepest = self.arrays = self.loops = 0
        self.nodes = self.wide = self.conditionals = self.calls = self.vectors = self.inlined = 0
        self.math = False
        ahead = [(body, 0, 0)]
        while ahead:
            stmt, seen, loops = ahead.pop()
            declared = self._count_declared(stmt)
            self.scalars += declared
            seen, loops = seen + declared, loops + isinstance(stmt, ir.For)
            self.deepest, self.loops = max(self.deepest, seen), max(self.loops, loops)
            for expr in stmt_exprs(stmt):
                for node in walk_expr(expr):
                    self._count(node)
            ahead += ((child, seen, loops) for child in stmt_children(stmt))

    def _count_declared(self, stmt: ir.Stmt) -> int:
        """Count bytes of the variables that a statement declares."""
        match stmt:
            case ir.Let(var) | ir.For(var):
                return max(4, dtypes.nbytes(var.dtype))
            case ir.Alloc(buffer) if buffer.scope == "register":
                return buffer.size * max(4, dtypes.nbytes(buffer.dtype))
            case ir.Alloc(buffer) if buffer.scope == "local":
                self.arrays += buffer.nbytes
        return 0

    def _count(self, expr: ir.Expr) -> None:
        if isinstance(expr, (ir.Const, ir.Var)):
            return
        self.nodes += 1
        nbytes = dtypes.nbytes(expr.dtype)
        if dtypes.is_vector(expr.dtype):
            self.vectors += nbytes
            return
        self.wide += nbytes == 8
        match expr:
            case ir.Select() | ir.Bin("and" | "or"):
                self.conditionals += 1
            case ir.Call(name, args):
                self.calls += 1
                self.math |= name in MATH
                if name in INLINED:
                    self.inlined += nbytes * (len(args) + 1)
