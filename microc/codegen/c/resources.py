# SPDX-License-Identifier: Apache-2.0
"""Estimate the flash, RAM and stack that generated code needs.

The estimates cover the C library functions that kernels call, the stack of a run, the network's code, and the firmware around
the network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
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

# ---- Stack, flash and RAM of the functions that kernels call in the C library and in the compiler's runtime library.
#
# ``library.json`` has a table for each core, measured by ``benchmarks/maintain/library.py``. For each operation (a sum of floats,
# ``sinf``, a 64-bit division) it contains the deepest stack of the functions that implement the operation, and the linker
# sections that they need. For each section it contains the size. The operations of a kernel follow from its expressions and
# their types. Operations that are instructions of the core have zero costs in the table.

LIBRARY_TABLE = Path(__file__).with_name("library.json")
SAME_LIBRARY_AS: Mapping[str, str] = {
    "cortex-m0plus": "cortex-m0", "cortex-m35p": "cortex-m33", "cortex-m52": "cortex-m55", "cortex-m85": "cortex-m55",
    "rv32imac_zba_zbb": "rv32imac", "cv32e40p": "rv32imc", "rv32imc_zve32x": "rv32imc", "rv32imafc_zve32f": "rv32imafc",
    "rv64gcv": "rv64imafdc",
}  # fmt: skip
"""For cores without a table in ``library.json``: the core whose libraries are the same."""
UNMEASURED = 1.5
"""Factor for a core without a table in ``library.json``: the largest stack of all measured cores is multiplied by it.

It allows for Xtensa's register windows, which need 16 bytes for each call in addition to the frame, and for 64-bit cores, where
saved registers take twice the space. The factor was not measured on these cores.
"""
CACHED_KERNELS = 256
"""Number of kernels whose operation counts are cached. The estimates of stack and flash use the counts several times."""
ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


@frozen
class LibraryCosts:
    """Measured stack, flash and RAM of the library functions that implement operations on a core.

    ``operations`` contains for each operation the bytes of stack of its library functions, and the indices of the linker
    sections that they need. ``sections`` contains the bytes of flash and of RAM of each section. All stacks are
    multiplied by ``factor``."""

    operations: Mapping[str, tuple[int, Sequence[int]]]
    sections: Sequence[tuple[int, int]]
    factor: float = 1.0

    def stack_bytes(self, operations_used: Iterable[str]) -> int:
        """Return the bytes of stack that the library functions of ``operations_used`` need: the maximum over them."""
        return round(
            self.factor
            * max((self.operations[name][0] for name in operations_used if name in self.operations), default=0)
        )

    def flash_and_ram_bytes(self, operations_used: Iterable[str]) -> tuple[int, int]:
        """Return the bytes of flash and of RAM that the library functions of ``operations_used`` need together.

        A section that several operations need counts once."""
        sections = set().union(*(self.operations[name][1] for name in operations_used if name in self.operations))
        return sum(self.sections[k][0] for k in sections), sum(self.sections[k][1] for k in sections)


@cache
def _read_library_tables() -> Mapping[str, Any]:
    """Return the content of ``library.json``: a table of measured library functions for each core."""
    tables: Mapping[str, Any] = json.loads(LIBRARY_TABLE.read_text(encoding="utf-8"))
    return tables


@cache
def library_costs_of_core(cpu: str) -> LibraryCosts:
    """Return the costs of library functions on the core ``cpu``.

    For a core that was not measured, each operation gets its largest stack on any measured core, multiplied by
    :data:`UNMEASURED` unless the core is the host, and no sections."""
    tables, name = _read_library_tables(), cpu.partition("+")[0]
    table = tables.get(SAME_LIBRARY_AS.get(name, name))
    if table is not None:
        return LibraryCosts(table["operations"], table["sections"])
    rows: dict[str, tuple[int, Sequence[int]]] = {}
    sections: list[tuple[int, int]] = []
    for table in tables.values():
        for operation, (stack, _) in table["operations"].items():
            rows[operation] = max(rows.get(operation, (0, ())), (stack, ()))
    return LibraryCosts(rows, sections, 1.0 if name == "host" else UNMEASURED)


def list_network_library_operations(module: Module) -> frozenset[str]:
    """Return the operations of a network's kernels for which a compiler may call C library functions: their names in
    ``library.json``."""
    return frozenset().union(*(list_kernel_library_operations(kernel.func) for kernel in module.kernels))


def list_kernel_library_operations(func: ir.PrimFunc) -> frozenset[str]:
    """Return the operations of a kernel for which a compiler may call C library functions: their names in
    ``library.json``.

    "copy" is always among them, because compilers may call ``memcpy`` and ``memset`` anywhere."""
    return frozenset({"copy", *_count_operations_by_name(func.body, SCALAR.entries)})


def count_library_operations(func: ir.PrimFunc, name_part: str) -> int:
    """Count the operations of a kernel whose names in ``library.json`` contain ``name_part``."""
    return sum(
        count for name, count in _count_operations_by_name(func.body, SCALAR.entries).items() if name_part in name
    )


@lru_cache(maxsize=CACHED_KERNELS)
def _count_operations_by_name(body: ir.Stmt, _intrinsics_key: object) -> Mapping[str, int]:
    """Count the operations of a kernel's body by their names in ``library.json``.

    The second argument, the table of intrinsics, is only a part of the cache's key: plugins may add intrinsics or change what
    they compute."""
    nodes = (expr for expr in walk_all_exprs(body) if not isinstance(expr, (ir.Const, ir.Var)))
    return MappingProxyType(Counter(name for expr in nodes for name in _operations_of_node(expr)))


def _operations_of_node(expr: ir.Expr) -> AbstractSet[str]:
    """Return the names in ``library.json`` of the operations of one expression node, without its operands.

    For an intrinsic these are the operations of its portable meaning."""
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
            return _intrinsic_operations(name, SCALAR.entries)
        case _:
            return set()


@lru_cache(maxsize=1024)
def _intrinsic_operations(name: str, _intrinsics_key: object) -> AbstractSet[str]:
    """Return the names in ``library.json`` of the operations in an intrinsic's portable meaning (its TIR definition).

    Kernels call few intrinsics many times. The second argument is as in :func:`_count_operations_by_name`."""
    meaning = SCALAR[name].meaning
    exprs = walk_all_exprs(meaning) if isinstance(meaning, ir.Stmt) else walk_expr(meaning)
    return frozenset().union(*map(_operations_of_node, exprs))


def _promoted_dtype(dtype: str) -> str:
    """Return the dtype in which generated C computes with numbers of ``dtype``.

    It has at least 32 bits: small integers are promoted to int32, and 16-bit floats to float32."""
    if dtypes.is_float(dtype):
        return "float64" if dtype == "float64" else "float32"
    if dtypes.nbytes(dtype) < 4:
        return "int32"
    return dtype


# ---- Bounds on the stack of a run: the frames of the printed functions, estimated from their loops, and the library functions
# that they call.
#
# During a run three printed functions are active, apart from helpers and library functions: run, step and kernel. Each bound
# is the sum of the frames of run and step, the frame of a kernel, the stack of the deepest library function (``library.json``)
# that this kernel may call, and the stack of the functions that call run in a project's firmware. Of all kernels, the kernel for
# which this sum is largest counts.
#
# Compilers store different things on the stack with optimisation than without:
#
# - With optimisation, variables share registers and stack slots when scopes end. The frame grows with the variables of the
#   deepest scope, with loops (induction variables, hoisted addresses) and with expressions, until the registers are full.
# - Without optimisation, every variable has a stack slot. A result also has a slot if it does not fit a register, or if a branch
#   or call lies between the result and its use: gcc reserves a slot for each 64-bit result on 32-bit cores, clang for each
#   result of a conditional. For RISC-V, picolibc defines ``fabs``, ``fmax``, ``fmin``, ``fma`` and ``sqrt`` as functions that are
#   always inlined: each call reserves a slot for each of its parameters and for its result.
#
# Each effect has a weight (:class:`FrameWeights`). The weights are the solution of a linear program: the smallest weights with
# which no measured frame exceeds its bound, increased by about a quarter. The frames were reported (``-fstack-usage``) by gcc 12,
# gcc 5.4 (AVR) and clang 14 for 5,200 builds of operators and networks for 13 boards. In another 1,500 builds no frame exceeded
# its bound. The bound is an estimate: a network that is unlike these may exceed it. ``benchmarks/maintain/stack.py`` repeats the
# comparison of bounds and frames.

INLINED_FUNCTIONS = frozenset({"fabs", "fmax", "fmin", "fma", "sqrt"})
"""Functions that picolibc inlines at every optimisation level on RISC-V cores that have an instruction for them."""
CALLED_BYTES = 40
"""Stack in bytes of the deepest library function that compilers call even on cores that have an instruction for it.

The function is ``fmaf``, which gcc calls at -O0, and clang at all levels. It was measured with -fno-builtin on all cores of
``benchmarks/maintain/library.py``."""
FULL_NODES = 100
"""Number of expression nodes beyond which the estimated frame of optimised code does not grow, because the registers are full.

The number was chosen; the weights were fitted with it."""


@frozen
class FrameWeights:
    """Weights with which the properties of a kernel add to the estimate of its stack frame, in bytes.

    The frame includes those of the helpers that the kernel calls. ``run`` and ``run_argument`` are for the frames of the run
    and step functions: a constant, and bytes for each argument of the kernel with the most arguments. ``kernel`` is the
    constant for a kernel, and ``argument`` are bytes for each of its arguments. ``loop`` are bytes for each loop of the
    deepest loop nest. ``node``, ``wide``, ``conditional`` and ``call`` are bytes for each expression node, 64-bit result,
    conditional and call; in optimised code at most :data:`FULL_NODES` nodes count. ``scalar`` is multiplied by the bytes of
    variables, ``vector`` by the bytes of vector results."""

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
"""Weights of stack frames for gcc with -O1, -O2, -O3 or -Os, by the key that :func:`_frame_weights_key_of_core`
returns."""
CLANG: Mapping[str, FrameWeights] = MappingProxyType({
    "avr": GCC["avr"],
    "32": FrameWeights(36, 4, 36, 6, 2.6, loop=20, node=0.3),
    "arm": FrameWeights(40, 5, 36, 24, 2.1, loop=40, node=0.3),
    "arm vectors": FrameWeights(40, 5, 36, 24, 1.3, loop=24, node=2.0),
    "64": FrameWeights(64, 8, 48, 8, 1.2, loop=66, node=1.6),
})  # fmt: skip
"""Weights of stack frames for clang with -O1, -O2, -O3 or -Os, by kind of core. clang for AVR was not measured: it has gcc's."""
UNOPTIMISED: Mapping[str, FrameWeights] = MappingProxyType({
    "avr": FrameWeights(44, 5, 56, 6, 1.3, node=0.2, wide=7.0, conditional=3.0, call=8.0),
    "32": FrameWeights(104, 7, 96, 10, 1.6, node=0.2, wide=7.0, conditional=4.0, call=3.0),
    "arm": FrameWeights(104, 7, 64, 23, 1.4, node=0.3, wide=7.0, conditional=4.0, call=2.5),
    "arm vectors": FrameWeights(104, 7, 48, 23, 2.8, node=0.75, wide=7.0, conditional=4.0, call=2.5, vector=0.5),
    "64": FrameWeights(168, 14, 64, 50, 1.3, node=0.8, wide=1.0, conditional=7.0, call=4.0),
})  # fmt: skip
"""Weights of stack frames for gcc and clang with -O0, by kind of core."""
CALLERS: Mapping[str, int] = MappingProxyType({"avr": 128, "32": 288, "arm": 160, "arm vectors": 160, "64": 464})
"""Bytes of stack in a project's firmware that a run does not use itself, by kind of core.

They are the frames of main, of the RPC functions that call run, and of one interrupt, which saves all registers on RISC-V. They
are part of the stack's high-water mark that a board measures. With 22 networks on 12 emulated boards the high-water marks
exceeded the bounds without this term by at most 99, 240, 132, 108 and 404 bytes."""
UNROLLED_BYTES = 2400
"""Additional bytes of stack for a kernel with vectors compiled by clang.

Where clang unrolls a loop at -O3, it loads vectors ahead of their use and spills them. A pointwise convolution on Cortex-M55
needed 1,808 bytes for them with clang 14; the constant is a third more."""


@frozen
class StackBounds:
    """Upper estimates, in bytes, of the stack of a run and its callers in a project's firmware.

    They depend on how the network is compiled: ``gcc`` and ``clang`` are for these compilers with -O1, -O2, -O3 or -Os;
    ``unoptimised`` is for both compilers with -O0.
    """

    gcc: int
    clang: int
    unoptimised: int


def stack_bound(module: Module) -> int:
    """Return the upper estimate, in bytes, of the stack of a run if gcc compiles the network as generated projects do.

    They use -O1, -O2, -O3 or -Os."""
    return stack_bounds(module).gcc


def stack_bounds(module: Module) -> StackBounds:
    """Return upper estimates of the stack of a run. The stack of external code is not included."""
    cpu = module.options["cpu"]
    core, library = CORES[cpu], library_costs_of_core(cpu)
    kind = _frame_weights_key_of_core(core)
    inlined = core.family == "riscv" and "fpu" in core.has
    deepest, arguments = [0.0, 0.0, 0.0], 0
    for kernel in module.kernels:
        func, facts = kernel.func, _frame_facts(kernel.func.body)
        below = max(library.stack_bytes(list_kernel_library_operations(func)), CALLED_BYTES if facts.math else 0)
        count = len(func.params) + len(func.scalars)
        frames = (
            _optimised_frame_bytes(GCC[kind], facts, count),
            _optimised_frame_bytes(CLANG[kind], facts, count) + (UNROLLED_BYTES if facts.vectors else 0),
            _unoptimised_frame_bytes(UNOPTIMISED[kind], facts, count) + facts.inlined * inlined,
        )
        deepest = [max(largest, below + facts.arrays + each) for largest, each in zip(deepest, frames, strict=True)]
        arguments = max(arguments, count)
    runs = (table[kind].run + table[kind].run_argument * arguments for table in (GCC, CLANG, UNOPTIMISED))
    gcc, clang, unoptimised = (
        4 * ceil((CALLERS[kind] + run + largest) / 4) for run, largest in zip(runs, deepest, strict=True)
    )
    return StackBounds(gcc, clang, max(gcc, unoptimised))


def _frame_weights_key_of_core(core: Core) -> str:
    """Return the key of a core in the tables of stack frame weights: ``avr``, ``32``, ``arm``, ``arm vectors`` or
    ``64``."""
    if core.family in ("host", "x86", "aarch64") or core.name.startswith("rv64"):
        return "64"
    if core.family == "arm" and any(instructions.unit for instructions in core.sets):
        return "arm vectors"
    return core.family if core.family in GCC else "32"


def _optimised_frame_bytes(weights: FrameWeights, facts: _FrameFacts, argument_count: int) -> float:
    """Estimate the bytes of a kernel's stack frame if the compiler optimises the kernel.

    ``facts``: the properties of the kernel's body that the weights apply to."""
    nbytes = (
        weights.kernel + weights.argument * argument_count + weights.scalar * facts.deepest + weights.loop * facts.loops
    )
    return nbytes + weights.node * min(facts.nodes, FULL_NODES)


def _unoptimised_frame_bytes(weights: FrameWeights, facts: _FrameFacts, argument_count: int) -> float:
    """Estimate the bytes of a kernel's stack frame if the compiler does not optimise the kernel.

    ``facts``: the properties of the kernel's body that the weights apply to."""
    nbytes = (
        weights.kernel + weights.argument * argument_count + weights.scalar * facts.scalars + weights.node * facts.nodes
    )
    nbytes += weights.wide * facts.wide + weights.conditional * facts.conditionals + weights.call * facts.calls
    return nbytes + weights.vector * facts.vectors


@lru_cache(maxsize=CACHED_KERNELS)
def _frame_facts(body: ir.Stmt) -> _FrameFacts:
    """Return the properties of a kernel's body that determine its stack frame.

    They are cached, because the footprint, the manifest and the report of a network each compute the stack bounds."""
    return _FrameFacts(body)


class _FrameFacts:
    """Properties of a kernel's body that determine the size of its stack frame.

    Expression nodes are counted as they are in the printed C: a subexpression that is printed twice counts twice.

    ``scalars``: bytes of all variables. ``deepest``: bytes of the variables that are visible in the scope with the most.
    ``arrays``: bytes of local arrays. ``loops``: number of loops in the deepest loop nest. ``nodes``: number of expression
    nodes. ``wide``, ``conditionals`` and ``calls``: number of 64-bit results, of conditionals and of calls. ``vectors``:
    bytes of vector results. ``inlined``: bytes of the parameters and results of calls of :data:`INLINED_FUNCTIONS`.
    ``math``: True if a function of ``<math.h>`` is called."""

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
        """Return the bytes of the variables that a statement declares. Local arrays are added to ``arrays`` instead."""
        match stmt:
            case ir.Let(var) | ir.For(var):
                return max(4, dtypes.nbytes(var.dtype))
            case ir.Alloc(buffer) if buffer.scope == "register":
                return buffer.size * max(4, dtypes.nbytes(buffer.dtype))
            case ir.Alloc(buffer) if buffer.scope == "local":
                self.arrays += buffer.nbytes
        return 0

    def _count_node(self, expr: ir.Expr) -> None:
        """Add one expression node, without its operands, to the counts. Constants and variables are not counted."""
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


# ---- Upper estimates of the flash of a firmware that was not linked yet.
#
# ``firmware.json`` is measured by ``benchmarks/maintain/firmware.py``. It has two tables. ``boards`` contains the bytes of
# flash and static RAM of the firmware around a network (start-up, drivers, the protocol's runtime, the C library functions
# that they use), by protocol. ``cores`` contains the bytes of code for each of :data:`PARTS` of a network. Library functions
# that kernels call
# are estimated by the functions above.
#
# The code of a kernel after optimisation is between 0.7 and 6 times as large as the cost model counts. The sum is therefore
# neither a prediction nor a proven bound (docs/measuring.md has the errors). If a compiler is installed,
# :func:`microc.run.board_project.link_and_read_sizes` links the firmware and returns the exact sizes.

FIRMWARE_TABLE = Path(__file__).with_name("firmware.json")
PARTS = ("network", "calls", "tensors", "integer code", "float code", "float operations", "functions")
"""Terms of the upper estimate of a network's code size. Each is a number that is multiplied by measured bytes.

"network" is 1 for each network. "calls" is the number of kernel calls. "tensors" is the number of values that are not
constant. "integer code" and "float code" are the bytes that the cost model estimates for kernels without and with floats, and
"float operations" is the number of float operations in the latter. "functions" is the number of functions of ``<math.h>`` that
the core's library lacks, so that microc prints them."""


@cache
def _read_firmware_tables() -> Mapping[str, Any]:
    """Return the content of ``firmware.json``: measured flash and static RAM by board, and measured code sizes by core."""
    tables: Mapping[str, Any] = json.loads(FIRMWARE_TABLE.read_text(encoding="utf-8"))
    return tables


def min_and_max_flash_without_networks(board: Board, protocol: str) -> tuple[int, int]:
    """Return the smallest and the largest number of bytes of flash that a board's firmware needs besides networks.

    For a measured board both numbers are the same. For a board that was not measured, they are the extremes over the measured
    boards with its core, or over all measured boards if there is none. The flash of a vendor's framework is not included.
    """
    rows = _read_firmware_tables()["boards"]
    core = board.target.cpu.partition("+")[0]
    same_core = [
        row for row in rows.values() if SAME_LIBRARY_AS.get(row["core"], row["core"]) == SAME_LIBRARY_AS.get(core, core)
    ]
    candidates = [rows[board.name]] if board.name in rows and rows[board.name]["core"] == core else same_core
    measured = [row for row in candidates if protocol in row] or [row for row in rows.values() if protocol in row]
    flash_bytes = [row[protocol][0] for row in measured]
    return min(flash_bytes), max(flash_bytes)


def static_ram_without_networks(board: Board, protocol: str) -> int | None:
    """Return the measured bytes of static RAM that a board's firmware needs besides networks.

    None if the board was not measured with its core and with this protocol."""
    row = _read_firmware_tables()["boards"].get(board.name)
    if row is None or row["core"] != board.target.cpu.partition("+")[0] or protocol not in row:
        return None
    return int(row[protocol][1])


def list_code_size_terms(module: Module) -> tuple[float, ...]:
    """Return the terms of the linear estimate of a network's code size, one for each of :data:`PARTS`."""
    integers = floats = operations = 0
    for kernel in module.kernels:
        if any("float" in name for name in list_kernel_library_operations(kernel.func)):
            floats += kernel.code_bytes
            operations += count_library_operations(kernel.func, "float")
        else:
            integers += kernel.code_bytes
    values = sum(value.storage != "const" for value in module.values.values())
    library = library_costs_of_core(module.options["cpu"])
    lacking = {
        name for name in list_network_library_operations(module) if name.partition(".")[2] in MATH_FUNCTIONS
    } - library.operations.keys()
    return 1, len(module.calls), values, integers, floats, operations, len(lacking)


def estimate_max_code_bytes(module: Module) -> int:
    """Return an upper estimate of the size of a network's code in bytes, without the library functions that it calls."""
    rows: Mapping[str, Sequence[float]] = _read_firmware_tables()["cores"]
    core = module.options["cpu"].partition("+")[0]
    row = rows.get(SAME_LIBRARY_AS.get(core, core)) or [max(column) for column in zip(*rows.values(), strict=True)]
    return round(sum(factor * part for factor, part in zip(row, list_code_size_terms(module), strict=True)))


STORAGE_CODE_BYTES, READ_CODE_BYTES, STORAGE_RAM_BYTES = 640, 40, 8
"""Bytes that a network with constants in storage adds to a firmware: code that checks the file of weights and reads it, without
reads; code of a read; variables. A Cortex-M4 takes 528 with the driver for semihosting, 24 to 36 for a read, and 4."""


def storage_code_bytes(read_count: int) -> int:
    """Estimate the bytes of code of a firmware whose network reads ``read_count`` constants from storage; 0 for none."""
    return STORAGE_CODE_BYTES + READ_CODE_BYTES * read_count if read_count else 0


def estimate_library_flash_bytes(modules: Sequence[Module]) -> int:
    """Estimate the bytes of flash of the C library functions that the networks' kernels call.

    Functions for copying memory are not included, because every firmware contains them. If the core of the networks was not
    measured, the result is the maximum over all measured cores. If a network adds or subtracts floats, the functions for both
    operations are included, because compilers replace an addition of a negative constant by a subtraction.
    """
    return library_flash_bytes(modules[0].options["cpu"], set().union(*map(list_network_library_operations, modules)))


def library_flash_bytes(cpu: str, used: set[str]) -> int:
    """Estimate the bytes of flash of the C library functions for the operations ``used`` on a core, as
    :func:`estimate_library_flash_bytes` does."""
    for dtype in ("float32", "float64"):
        add_and_sub = {f"{dtype}.add", f"{dtype}.sub"}
        used = used | add_and_sub if add_and_sub & used else used
    own = library_costs_of_core(cpu)
    libraries = [own] if own.sections else [library_costs_of_core(core) for core in _read_firmware_tables()["cores"]]
    return max(each.flash_and_ram_bytes(used)[0] - each.flash_and_ram_bytes({"copy"})[0] for each in libraries)
