"""Estimate resources of code: library functions, stack, flash around networks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import MATH_FUNCTIONS
from microc.isa import CORES, SCALAR, Core
from microc.module import Module
from microc.target import Board
from microc.tir import ir
from microc.tir.rewrite import stmt_children, stmt_exprs, walk_all_exprs, walk_expr

# ---- Functions of the compiler's library that kernels call: their stack, flash and RAM.
#
# ``library.json`` has a table for each core, measured by ``benchmarks/library.py``. Operations (a sum of floats, ``sinf``, a
# 64-bit division) have the deepest stack below them and the linker sections that they need; sections have sizes. A kernel's
# operations follow from its expressions and their types. Operations that are instructions of the core take nothing in the
# table.

LIBRARY_TABLE = Path(__file__).with_name("library.json")
SAME_LIBRARY_AS: Mapping[str, str] = {
    "cortex-m0plus": "cortex-m0", "rv32imac_zba_zbb": "rv32imac", "cv32e40p": "rv32imc", "rv32imc_zve32x": "rv32imc",
    "rv32imafc_zve32f": "rv32imafc", "rv64gcv": "rv64imafdc",
}  # fmt: skip
"""Cores that have the libraries of another one."""
UNMEASURED = 1.5
"""Factor on the largest stack of all measured cores, for a core without a row.

Xtensa's register windows take 16 bytes a call beside the frame; 64-bit pointers double the frames of saved registers. Not
measured on any of these cores.
"""
CACHED_KERNELS = 256
"""Size of the cache of operation counts: stack and flash estimates use them several times."""
ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


@frozen
class LibraryCosts:
    """Measured stack, flash and RAM of the library functions of a core.

    ``operations``: for each operation the bytes of stack below it, and the indices of the linker sections that it
    needs. ``sections``: bytes of flash and RAM of each section. ``factor`` multiplies all stacks."""

    operations: Mapping[str, tuple[int, Sequence[int]]]
    sections: Sequence[tuple[int, int]]
    factor: float = 1.0

    def stack(self, used: Iterable[str]) -> int:
        """Return the bytes of stack below the deepest of some operations."""
        return round(
            self.factor * max((self.operations[name][0] for name in used if name in self.operations), default=0)
        )

    def memory(self, used: Iterable[str]) -> tuple[int, int]:
        """Return the bytes of flash and RAM that some operations take together; shared sections count once."""
        sections = set().union(*(self.operations[name][1] for name in used if name in self.operations))
        return sum(self.sections[k][0] for k in sections), sum(self.sections[k][1] for k in sections)


@cache
def _library_tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads(LIBRARY_TABLE.read_text(encoding="utf-8"))
    return tables


@cache
def core_library(cpu: str) -> LibraryCosts:
    """Return the costs of library functions on a core.

    For a core that was not measured: the largest stacks of all cores, times :data:`UNMEASURED` except on the host, and
    no sections."""
    tables, name = _library_tables(), cpu.partition("+")[0]
    table = tables.get(SAME_LIBRARY_AS.get(name, name))
    if table is not None:
        return LibraryCosts(table["operations"], table["sections"])
    rows: dict[str, tuple[int, Sequence[int]]] = {}
    sections: list[tuple[int, int]] = []
    for table in tables.values():
        for operation, (stack, _) in table["operations"].items():
            rows[operation] = max(rows.get(operation, (0, ())), (stack, ()))
    return LibraryCosts(rows, sections, 1.0 if name == "host" else UNMEASURED)


def network_operations(module: Module) -> frozenset[str]:
    """Return the operations of all kernels of a network, by their names in ``library.json``."""
    return frozenset().union(*(kernel_operations(kernel.func) for kernel in module.kernels))


def kernel_operations(func: ir.PrimFunc) -> frozenset[str]:
    """Return the operations of a kernel, always including "copy": compilers may copy and clear memory anywhere."""
    return frozenset({"copy", *_operation_counts(func.body, SCALAR.entries)})


def operation_count(func: ir.PrimFunc, name_part: str) -> int:
    """Count the operations of a kernel whose names in ``library.json`` contain ``name_part``."""
    return sum(count for name, count in _operation_counts(func.body, SCALAR.entries).items() if name_part in name)


@lru_cache(maxsize=CACHED_KERNELS)
def _operation_counts(body: ir.Stmt, _known: object) -> Mapping[str, int]:
    """Count the operations of a kernel's body by name. The second argument keys the cache: plugins change the meaning of
    intrinsics."""
    return MappingProxyType(Counter(name for expr in walk_all_exprs(body) for name in _node_operations(expr)))


def _node_operations(expr: ir.Expr) -> set[str]:
    """Return the library operations of one expression node; those of its meaning if it is an intrinsic."""
    match expr:
        case ir.Bin(op, a) if dtypes.is_float(a.dtype):
            return {f"{_promoted_dtype(a.dtype)}.{op if op in ARITHMETIC else 'compare'}"}
        case ir.Bin(op, a) if op in ("floordiv", "truncdiv", "floormod", "truncmod"):
            return {f"{_promoted_dtype(a.dtype)}.{kind}" for kind in ("div", "mod")}
        case ir.Bin("mul", a):
            return {f"{_promoted_dtype(a.dtype)}.mul"}
        case ir.Bin("shl" | "shr", a) if dtypes.nbytes(a.dtype) == 8:
            return {f"{_promoted_dtype(a.dtype)}.shift"}
        case ir.Cast(dtype, a) if dtypes.is_float(dtype) != dtypes.is_float(a.dtype):
            down = dtypes.is_float(a.dtype)
            return {
                f"{_promoted_dtype(a.dtype)}.to_{_promoted_dtype(dtype)}"
                if down
                else f"{_promoted_dtype(dtype)}.of_{_promoted_dtype(a.dtype)}"
            }
        case ir.Cast(dtype, a) if dtypes.is_float(dtype) and "float64" in (dtype, a.dtype):
            return {"float64.widen", "float64.narrow"}
        case ir.Call(name, args) if name in MATH_FUNCTIONS:
            return {f"{_promoted_dtype(args[0].dtype)}.{name}"}
        case ir.Call(name) if name in SCALAR:
            return _intrinsic_operations(name)
        case _:
            return set()


def _intrinsic_operations(name: str) -> set[str]:
    """Return the library operations of an intrinsic's portable meaning."""
    meaning = SCALAR[name].meaning
    exprs = walk_all_exprs(meaning) if isinstance(meaning, ir.Stmt) else walk_expr(meaning)
    return set().union(*map(_node_operations, exprs))


def _promoted_dtype(dtype: str) -> str:
    """Return the dtype in which C computes with numbers of ``dtype``: at least 32 bits; 16-bit floats are computed as
    float32."""
    if dtypes.is_float(dtype):
        return "float64" if dtype == "float64" else "float32"
    if dtypes.nbytes(dtype) < 4:
        return "int32"
    return dtype


# ---- Bounds on the stack of a run: frames of the printed functions, estimated from the loops, and the library below
# them.
#
# A run is three functions deep, helpers and library aside: run, step, kernel. Each bound is the sum of the frames of run and
# step, of the kernel with the largest sum, of the deepest library function (``library.json``) that this kernel may call, and of
# the stack around a run in a project's firmware.
#
# Compilers keep other things in memory with optimisation than without:
#
# - Optimised, variables share registers and slots as scopes end. The frame grows with the variables of the deepest scope, with
#   loops (induction variables, hoisted addresses) and with expressions, until these fill the registers.
# - Unoptimised, every variable has a slot, and so has every result that does not fit a register or that a branch or call
#   parts from its use: gcc keeps a slot for each 64-bit result on 32-bit cores, clang for each result of a conditional. picolibc
#   defines ``fabs``, ``fmax``, ``fmin``, ``fma`` and ``sqrt`` for RISC-V as functions that are always inlined: a slot for each
#   parameter and result of each call.
#
# Each effect has a weight (:class:`FrameWeights`). The weights are a linear program: the smallest that no frame exceeds, and
# about a quarter more. The frames are those that gcc 12, gcc 5.4 (AVR) and clang 14 report (``-fstack-usage``) of 5,200 builds of
# operators and networks for 13 boards; another 1,500 builds exceeded no bound. It is an estimate: a network unlike these may
# exceed it. ``benchmarks/stack.py`` compares bounds and frames again.

INLINED_FUNCTIONS = frozenset({"fabs", "fmax", "fmin", "fma", "sqrt"})
"""Functions that picolibc inlines at every level, where RISC-V has an instruction for them."""
CALLED_BYTES = 40
"""Stack in bytes of the deepest library function that compilers call although the core has the instruction: ``fmaf``, by gcc
at -O0 and by clang. Measured with -fno-builtin on all cores of ``benchmarks/library.py``."""
FULL_NODES = 100
"""Expression nodes beyond which a frame grows no more, as the registers are full. Chosen; the weights are fitted to it."""


@frozen
class FrameWeights:
    """Weights in bytes of a kernel's properties for its stack frame, including helpers that it calls.

    ``run`` and ``run_argument`` are for the frames of run and step function. ``node`` counts at most :data:`FULL_NODES`
    nodes of optimised code. ``scalar`` is a factor on the bytes of variables, ``vector`` on those of vector results."""

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


GCC: Mapping[str, FrameWeights] = MappingProxyType({
    "avr": FrameWeights(16, 3, 24, 5, 0.8, loop=15, node=0.4),
    "32": FrameWeights(36, 4, 36, 5, 0.5, loop=42, node=0.3),
    "arm": FrameWeights(32, 5, 28, 18, 0.75, loop=54, node=0.25),
    "arm vectors": FrameWeights(32, 5, 28, 26, 1.2, loop=24, node=3.6),
    "64": FrameWeights(64, 8, 88, 10, 1.1, loop=24, node=0.9),
})  # fmt: skip
"""Weights with gcc's -O1, -O2, -O3 and -Os, by kind of core."""
CLANG: Mapping[str, FrameWeights] = MappingProxyType({
    "avr": GCC["avr"],
    "32": FrameWeights(36, 4, 36, 6, 2.6, loop=20, node=0.3),
    "arm": FrameWeights(40, 5, 36, 24, 2.1, loop=40, node=0.3),
    "arm vectors": FrameWeights(40, 5, 36, 24, 1.3, loop=24, node=2.0),
    "64": FrameWeights(64, 8, 48, 8, 1.2, loop=66, node=1.6),
})  # fmt: skip
"""Weights with clang's -O1, -O2, -O3 and -Os. clang for AVR was not measured."""
UNOPTIMISED: Mapping[str, FrameWeights] = MappingProxyType({
    "avr": FrameWeights(44, 5, 56, 6, 1.3, node=0.2, wide=7.0, conditional=3.0, call=8.0),
    "32": FrameWeights(104, 7, 96, 10, 1.6, node=0.2, wide=7.0, conditional=4.0, call=3.0),
    "arm": FrameWeights(104, 7, 64, 23, 1.4, node=0.3, wide=7.0, conditional=4.0, call=2.5),
    "arm vectors": FrameWeights(104, 7, 48, 23, 2.8, node=0.75, wide=7.0, conditional=4.0, call=2.5, vector=0.5),
    "64": FrameWeights(168, 14, 64, 50, 1.3, node=0.8, wide=1.0, conditional=7.0, call=4.0),
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
    """Bounds of the stack in bytes for a run and its callers in a project's firmware, by compilation of the network.

    ``gcc`` and ``clang`` are for -O1, -O2, -O3 and -Os, ``unoptimised`` is for -O0.
    """

    gcc: int
    clang: int
    unoptimised: int


def stack_bound(module: Module) -> int:
    """Return the stack bound of a run for gcc with -O1, -O2, -O3 or -Os, which projects use."""
    return stack_bounds(module).gcc


def stack_bounds(module: Module) -> StackBounds:
    """Return the stack bounds of a run. External code is not counted."""
    cpu = module.options["cpu"]
    core, library = CORES[cpu], core_library(cpu)
    kind = _frame_weights_key(core)
    inlined = core.family == "riscv" and "fpu" in core.has
    deepest, arguments = [0.0, 0.0, 0.0], 0
    for kernel in module.kernels:
        func, facts = kernel.func, _frame_facts(kernel.func.body)
        below = max(library.stack(kernel_operations(func)), CALLED_BYTES if facts.math else 0)
        count = len(func.params) + len(func.scalars)
        frames = (
            _optimised_frame(GCC[kind], facts, count),
            _optimised_frame(CLANG[kind], facts, count) + (UNROLLED_BYTES if facts.vectors else 0),
            _unoptimised_frame(UNOPTIMISED[kind], facts, count) + facts.inlined * inlined,
        )
        deepest = [max(largest, below + facts.arrays + each) for largest, each in zip(deepest, frames, strict=True)]
        arguments = max(arguments, count)
    runs = (table[kind].run + table[kind].run_argument * arguments for table in (GCC, CLANG, UNOPTIMISED))
    gcc, clang, unoptimised = (
        4 * ceil((CALLERS[kind] + run + largest) / 4) for run, largest in zip(runs, deepest, strict=True)
    )
    return StackBounds(gcc, clang, max(gcc, unoptimised))


def _frame_weights_key(core: Core) -> str:
    """Return the key of a core's frame weights: ``avr``, ``32``, ``arm``, ``arm vectors`` or ``64``."""
    if core.family in ("host", "x86", "aarch64") or core.name.startswith("rv64"):
        return "64"
    if core.family == "arm" and any(instructions.unit for instructions in core.sets):
        return "arm vectors"
    return core.family if core.family in GCC else "32"


def _optimised_frame(weights: FrameWeights, facts: _FrameFacts, argument_count: int) -> float:
    """Estimate the bytes of a kernel's stack frame if the compiler optimises it; ``weights``: bytes per counted fact."""
    nbytes = (
        weights.kernel + weights.argument * argument_count + weights.scalar * facts.deepest + weights.loop * facts.loops
    )
    return nbytes + weights.node * min(facts.nodes, FULL_NODES)


def _unoptimised_frame(weights: FrameWeights, facts: _FrameFacts, argument_count: int) -> float:
    """Estimate the bytes of a kernel's stack frame if the compiler does not optimise it.

    ``weights``: bytes per counted fact."""
    nbytes = (
        weights.kernel + weights.argument * argument_count + weights.scalar * facts.scalars + weights.node * facts.nodes
    )
    nbytes += weights.wide * facts.wide + weights.conditional * facts.conditionals + weights.call * facts.calls
    return nbytes + weights.vector * facts.vectors


@lru_cache(maxsize=CACHED_KERNELS)
def _frame_facts(body: ir.Stmt) -> _FrameFacts:
    """Return the facts of a kernel's body, counted once: a footprint, a manifest and a report ask for the bounds."""
    return _FrameFacts(body)


class _FrameFacts:
    """Properties of a kernel's body that determine the size of its stack frame. Counts are those of printed C, where
    subexpressions repeat.

    ``scalars``: bytes of all variables, ``deepest``: of those that one scope sees. ``loops``: of the deepest nest.
    ``inlined``: bytes of parameters and results of :data:`INLINED_FUNCTIONS` functions."""

    def __init__(self, body: ir.Stmt) -> None:
        self.scalars = self.deepest = self.arrays = self.loops = 0
        self.nodes = self.wide = self.conditionals = self.calls = self.vectors = self.inlined = 0
        self.math = False
        pending = [(body, 0, 0)]
        while pending:
            stmt, in_scope, loops = pending.pop()
            declared = self._declared_bytes(stmt)
            self.scalars += declared
            in_scope, loops = in_scope + declared, loops + isinstance(stmt, ir.For)
            self.deepest, self.loops = max(self.deepest, in_scope), max(self.loops, loops)
            for expr in stmt_exprs(stmt):
                for node in walk_expr(expr):
                    self._count_node(node)
            pending += ((child, in_scope, loops) for child in stmt_children(stmt))

    def _declared_bytes(self, stmt: ir.Stmt) -> int:
        """Count bytes of the variables that a statement declares."""
        match stmt:
            case ir.Let(var) | ir.For(var):
                return max(4, dtypes.nbytes(var.dtype))
            case ir.Alloc(buffer) if buffer.scope == "register":
                return buffer.size * max(4, dtypes.nbytes(buffer.dtype))
            case ir.Alloc(buffer) if buffer.scope == "local":
                self.arrays += buffer.nbytes
        return 0

    def _count_node(self, expr: ir.Expr) -> None:
        """Add one expression node to the counts; constants and variables do not count."""
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
                self.math |= name in MATH_FUNCTIONS
                if name in INLINED_FUNCTIONS:
                    self.inlined += nbytes * (len(args) + 1)


# ---- Flash of a firmware before it is linked, estimated from above.
#
# ``firmware.json`` is measured by ``benchmarks/firmware.py``. It has two tables. ``boards``: bytes of flash and static RAM
# around a network (start-up, drivers, the protocol's runtime, its share of the C library), by protocol. ``cores``: bytes of
# code for each of :data:`PARTS` of a network. Library functions of kernels come from :mod:`microc.codegen.c.resources`.
#
# An optimising compiler makes of a kernel between 0.7 and 6 times what the cost model counts, so that the sum is no
# prediction, and no proof either (docs/measuring.md has the errors). Where a compiler is there, linking gives the number
# (:func:`microc.run.board_project.link_and_read_sizes`).

FIRMWARE_TABLE = Path(__file__).with_name("firmware.json")
PARTS = ("network", "calls", "tensors", "integer code", "float code", "float operations", "functions")
"""Terms of the bound of a network's code: 1 per network, calls, non-constant values, code bytes of integer kernels and of
kernels with floats as the cost model counts them, float operations in the latter, printed functions that the core's library
lacks."""


@cache
def _firmware_tables() -> Mapping[str, Any]:
    """Return the tables of ``firmware.json``: measured flash and RAM of boards and cores."""
    tables: Mapping[str, Any] = json.loads(FIRMWARE_TABLE.read_text(encoding="utf-8"))
    return tables


def flash_around_networks(board: Board, protocol: str) -> tuple[int, int]:
    """Return the smallest and largest measured bytes of flash around networks.

    A board without a row is bounded by the boards with its core, or by all. A vendor's framework is not counted.
    """
    rows = _firmware_tables()["boards"]
    core = board.target.cpu.partition("+")[0]
    same_core = [
        row for row in rows.values() if SAME_LIBRARY_AS.get(row["core"], row["core"]) == SAME_LIBRARY_AS.get(core, core)
    ]
    candidates = [rows[board.name]] if board.name in rows and rows[board.name]["core"] == core else same_core
    measured = [row for row in candidates if protocol in row] or [row for row in rows.values() if protocol in row]
    flash_bytes = [row[protocol][0] for row in measured]
    return min(flash_bytes), max(flash_bytes)


def static_ram_around_networks(board: Board, protocol: str) -> int | None:
    """Return the measured bytes of static RAM around networks; None for a board, core or protocol that is not in the table."""
    row = _firmware_tables()["boards"].get(board.name)
    if row is None or row["core"] != board.target.cpu.partition("+")[0] or protocol not in row:
        return None
    return int(row[protocol][1])


def code_parts(module: Module) -> tuple[float, ...]:
    """Return the numbers that a network's code size is estimated from, one for each of PARTS."""
    integers = floats = operations = 0
    for kernel in module.kernels:
        if any("float" in name for name in kernel_operations(kernel.func)):
            floats += kernel.code_bytes
            operations += operation_count(kernel.func, "float")
        else:
            integers += kernel.code_bytes
    values = sum(value.storage != "const" for value in module.values.values())
    library = core_library(module.options["cpu"])
    lacking = {
        name for name in network_operations(module) if name.partition(".")[2] in MATH_FUNCTIONS
    } - library.operations.keys()
    return 1, len(module.calls), values, integers, floats, operations, len(lacking)


def code_bound(module: Module) -> int:
    """Return an upper estimate of the bytes of a network's code, without library functions."""
    rows: Mapping[str, Sequence[float]] = _firmware_tables()["cores"]
    core = module.options["cpu"].partition("+")[0]
    row = rows.get(SAME_LIBRARY_AS.get(core, core)) or [max(column) for column in zip(*rows.values(), strict=True)]
    return round(sum(factor * part for factor, part in zip(row, code_parts(module), strict=True)))


def library_bytes(modules: Sequence[Module]) -> int:
    """Return the bytes of library functions that kernels call beyond those of every firmware.

    If the networks' core is not measured, it is the maximum of all cores. Add and sub count together, because compilers
    replace one by the other for negative constants.
    """
    used = set().union(*map(network_operations, modules))
    for dtype in ("float32", "float64"):
        add_and_sub = {f"{dtype}.add", f"{dtype}.sub"}
        used |= add_and_sub if add_and_sub & used else set()
    own = core_library(modules[0].options["cpu"])
    libraries = [own] if own.sections else [core_library(core) for core in _firmware_tables()["cores"]]
    return max(each.memory(used)[0] - each.memory({"copy"})[0] for each in libraries)
