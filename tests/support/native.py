# SPDX-License-Identifier: Apache-2.0
"""TIR functions as machine code of this computer: printed, compiled many to a library, called on numpy arrays."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from microc.base.dtypes import Array, to_numpy
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.c_statements import StmtPrinter, print_helper_functions
from microc.isa import CORES, FAMILIES
from microc.tir import ir

WARNINGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")
UNDEFINED = "-fsanitize=undefined,float-cast-overflow"
"""Faults are written to stderr as ``runtime error``; tests look there, so that one fault does not end the whole run."""

GUARD, POISON = 64, 0xA5
Calls = Callable[[str, Sequence[Array]], None]
"""Calls a function on the memory of its parameters, each with :data:`GUARD` bytes before and behind."""


def kernels_source(funcs: Sequence[ir.PrimFunc], cpu: str = "host") -> str:
    """Headers, helpers for a core and the functions, all ``static``."""
    printer = StmtPrinter(ExprPrinter(own_math=FAMILIES[CORES[cpu].family].own_math))
    kernels = ["\n".join(printer.print_function(func)) for func in funcs]
    texts = ["\n".join(lines) for lines in print_helper_functions(printer.expr.helpers, cpu).values()]
    headers = [f"#include <{name}.h>" for name in ("math", "stdbool", "stdint", "string")]
    return "\n\n".join(["\n".join(headers), *texts, *kernels]) + "\n"


def entry(func: ir.PrimFunc) -> str:
    """C of ``call_<name>``, which takes pointers to anything."""
    params = ", ".join(f"void *p{k}" for k in range(len(func.params)))
    passed = ", ".join(f"p{k}" for k in range(len(func.params)))
    return f"void call_{func.name}({params});\nvoid call_{func.name}({params})\n{{\n    {func.name}({passed});\n}}\n"


def build(
    funcs: Sequence[ir.PrimFunc], folder: Path, *flags: str, compiler: str = "gcc", cpu: str = "host"
) -> ctypes.CDLL:
    """One library with an entry ``call_<name>`` for every function; warnings are errors. ``cpu``: whose bodies intrinsics have,
    as far as the flags allow them."""
    return build_source(library_source(funcs, cpu), folder, *flags, compiler=compiler)


def library_source(funcs: Sequence[ir.PrimFunc], cpu: str = "host") -> str:
    """The C of such a library."""
    return kernels_source(funcs, cpu) + "\n" + "\n".join(map(entry, funcs))


def build_source(text: str, folder: Path, *flags: str, compiler: str = "gcc") -> ctypes.CDLL:
    """The library of its C."""
    source, library = folder / "kernels.c", folder / "kernels.so"
    source.write_text(text)
    argv = [
        compiler,
        *WARNINGS,
        "-ffp-contract=off",
        *flags,
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(source),
        "-lm",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def call(library: ctypes.CDLL | Calls, func: ir.PrimFunc, arrays: Sequence[Array | None]) -> list[Array]:
    """The parameters after the call, in a library here or on another machine; None stands for memory that the function fills.

    Poisoned memory before and behind every parameter must stay as it is.
    """
    memory = []
    for buffer, array in zip(func.params, arrays, strict=True):
        memory.append(np.full(buffer.nbytes + 2 * GUARD, POISON, np.uint8))
        if array is not None:
            assert (array.size, str(array.dtype)) == (buffer.size, buffer.dtype)
            memory[-1][GUARD : GUARD + buffer.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    if isinstance(library, ctypes.CDLL):
        getattr(library, f"call_{func.name}")(*(ctypes.c_void_p(raw.ctypes.data + GUARD) for raw in memory))
    else:
        library(func.name, memory)
    results = []
    for buffer, raw in zip(func.params, memory, strict=True):
        assert np.all(np.concatenate([raw[:GUARD], raw[GUARD + buffer.nbytes :]]) == POISON), f"{buffer.name}: overrun"
        results.append(raw[GUARD : GUARD + buffer.nbytes].view(to_numpy(buffer.dtype)).reshape(buffer.shape).copy())
    return results
