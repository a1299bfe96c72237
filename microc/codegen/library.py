"""Functions of the compiler's library that kernels call, and what they take: stack, flash, RAM.

``library.json`` holds a table for each core, measured by ``benchmarks/library.py``: operations (a sum of floats, ``sinf``, a
division of 64 bits) with the deepest stack below them and the sections that they need, sections with their bytes. A kernel's
operations follow from its expressions and their types. Which of them are instructions of the core is in the table: these take
nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc import dtypes
from microc.codegen.c_expr import MATH
from microc.frozen import frozen
from microc.isa import SCALAR
from microc.module import Module
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs, walk_expr

TABLE = Path(__file__).with_name("library.json")
LIKE: Mapping[str, str] = {
    "cortex-m0plus": "cortex-m0", "rv32imac_zba_zbb": "rv32imac", "cv32e40p": "rv32imc", "rv32imc_zve32x": "rv32imc",
    "rv32imafc_zve32f": "rv32imafc", "rv64gcv": "rv64imafdc",
}  # fmt: skip
"""Cores that have the libraries of another one."""
UNMEASURED = 1.5
"""Factor on the largest stack of all measured cores, for a core without a row: Xtensa's register windows take 16 bytes a call
beside the frame, and 64-bit pointers make frames of saved registers twice as large. Measured: none of these cores."""
REMEMBERED = 256
"""Kernels whose operations are kept: stack and flash ask for them several times."""
ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


@frozen
class Library:
    """The table of a core. ``factor``: on its stacks."""

    operations: Mapping[str, tuple[int, Sequence[int]]]
    sections: Sequence[tuple[int, int]]
    factor: float = 1.0

    def stack(self, used: Iterable[str]) -> int:
        """Bytes of stack below the deepest of some operations."""
        return round(
            self.factor * max((self.operations[name][0] for name in used if name in self.operations), default=0)
        )

    def memory(self, used: Iterable[str]) -> tuple[int, int]:
        """Bytes of flash and of RAM that some operations take together: sections that they share count once."""
        sections = set().union(*(self.operations[name][1] for name in used if name in self.operations))
        return sum(self.sections[k][0] for k in sections), sum(self.sections[k][1] for k in sections)


@cache
def _tables() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


@cache
def library_of(cpu: str) -> Library:
    """The table of a core. A core without one has the most that any core takes, times :data:`UNMEASURED`."""
    tables, name = _tables(), cpu.partition("+")[0]
    table = tables.get(LIKE.get(name, name))
    if table is not None:
        return Library(table["operations"], table["sections"])
    rows: dict[str, tuple[int, Sequence[int]]] = {}
    sections: list[tuple[int, int]] = []
    for each in tables.values():
        for operation, (stack, _) in each["operations"].items():
            rows[operation] = max(rows.get(operation, (0, ())), (stack, ()))
    return Library(rows, sections, 1.0 if name == "host" else UNMEASURED)


def operations_of(module: Module) -> frozenset[str]:
    """Operations of all kernels of a network, in the words of ``library.json``."""
    return frozenset().union(*(kernel_operations(kernel.func) for kernel in module.kernels))


def kernel_operations(func: ir.PrimFunc) -> frozenset[str]:
    """Operations of a kernel. Compilers copy and clear memory where they see fit, so that every kernel may."""
    return frozenset({"copy", *_counts(func.body, SCALAR.entries)})


def operation_count(func: ir.PrimFunc, kind: str) -> int:
    """Operations in the text of a kernel whose names have ``kind`` in them."""
    return sum(count for name, count in _counts(func.body, SCALAR.entries).items() if kind in name)


@lru_cache(maxsize=REMEMBERED)
def _counts(body: ir.Stmt, _known: object) -> Mapping[str, int]:
    """Count each operation in the text of a kernel; what an intrinsic means depends on the plugins that hold."""
    return MappingProxyType(Counter(name for expr in walk_all_exprs(body) for name in _operations(expr)))


def _operations(expr: ir.Expr) -> set[str]:
    """Operations of one node of an expression, and of what an intrinsic means."""
    match expr:
        case ir.Bin(op, a) if dtypes.is_float(a.dtype):
            return {f"{_wide(a.dtype)}.{op if op in ARITHMETIC else 'compare'}"}
        case ir.Bin(op, a) if op in ("floordiv", "truncdiv", "floormod", "truncmod"):
            return {f"{_wide(a.dtype)}.{kind}" for kind in ("div", "mod")}
        case ir.Bin("mul", a):
            return {f"{_wide(a.dtype)}.mul"}
        case ir.Bin("shl" | "shr", a) if dtypes.nbytes(a.dtype) == 8:
            return {f"{_wide(a.dtype)}.shift"}
        case ir.Cast(dtype, a) if dtypes.is_float(dtype) != dtypes.is_float(a.dtype):
            down = dtypes.is_float(a.dtype)
            return {f"{_wide(a.dtype)}.to_{_wide(dtype)}" if down else f"{_wide(dtype)}.of_{_wide(a.dtype)}"}
        case ir.Cast(dtype, a) if dtypes.is_float(dtype) and "float64" in (dtype, a.dtype):
            return {"float64.widen", "float64.narrow"}
        case ir.Call(name, args) if name in MATH:
            return {f"{_wide(args[0].dtype)}.{name}"}
        case ir.Call(name) if name in SCALAR:
            return _meaning(name)
        case _:
            return set()


def _meaning(name: str) -> set[str]:
    """Operations of an intrinsic as portable C."""
    meaning = SCALAR[name].meaning
    exprs = walk_all_exprs(meaning) if isinstance(meaning, ir.Stmt) else walk_expr(meaning)
    return set().union(*map(_operations, exprs))


def _wide(dtype: str) -> str:
    """The type that C computes in: 32 bits at least; floats of 16 bits are computed as float32."""
    if dtypes.is_float(dtype):
        return "float64" if dtype == "float64" else "float32"
    if dtypes.nbytes(dtype) < 4:
        return "int32"
    return dtype
