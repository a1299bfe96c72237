# SPDX-License-Identifier: Apache-2.0
"""How much C there is: the text of functions without numbers, which must not depend on extents; and what C may not hold."""

from __future__ import annotations

import re
from collections.abc import Iterable

from microc.codegen.c.c_statements import StmtPrinter
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.graph.ir import Graph
from microc.target import SPEED, target_for
from microc.tir import ir

_NUMBER = re.compile(r"\d+")
_ARRAY = re.compile(r"^[ \t]+(?:const )?\w+ \w+\[(\w*)\] *[;=]", re.MULTILINE)
_ALLOCATION = re.compile(r"\b(?:malloc|calloc|realloc|alloca|free)\s*\(")
STACK_ELEMENTS = 128
"""What a tile of sums in memory may have at most (int32): a product of MVE writes them, since its registers are the operands'."""


def c_text(funcs: Iterable[ir.PrimFunc]) -> str:
    """The functions in C."""
    printer = StmtPrinter()
    return "\n".join("\n".join(printer.print_function(func)) for func in funcs)


def c_size(text: str) -> int:
    """Characters of C; every number is one."""
    return len(_NUMBER.sub("0", text))


def network_size(graph: Graph, cpu: str = "host") -> tuple[int, int]:
    """Characters of all kernels of a network, and how many calls of them there are."""
    module = build_module(
        KernelBuilder(Configuration(optimise_graph(graph, Options()), SPEED), target_for(cpu)), "test"
    )
    return c_size(c_text(kernel.func for kernel in module.kernels)), len(module.calls)


def memory_faults(text: str) -> list[str]:
    """What C has of its own memory that it may not have: from the heap, or large arrays on the stack."""
    sizes = ((found[0].strip(), found[1]) for found in _ARRAY.finditer(text))
    arrays = [what for what, size in sizes if not size.isdigit() or int(size) > STACK_ELEMENTS]
    return [found[0] for found in _ALLOCATION.finditer(text)] + arrays
