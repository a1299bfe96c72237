"""A region's code as a kernel of ours: its parameters, and a body that says what it reads and writes.

For the planner and its checker the body is one call that is given all of every operand: it writes its results and its workspace
before it is done with its operands, so that nothing may share memory. What is printed is the backend's text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from microc.dtypes import Array
from microc.errors import ProgramError
from microc.external.partition import Taken
from microc.graph.ir import TensorType
from microc.module import External
from microc.tir import ir

SCRATCH = "scratch"
_NAME = re.compile("[a-z][a-z0-9_]*")
_INCLUDE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-+./]*")


def function(taken: Taken) -> tuple[ir.PrimFunc, External]:
    """The function of a region, whose parameters are its inputs, its constants, its outputs and its workspace, in this order."""
    code, region = taken.code, taken.region
    _check(taken)
    reads = [_buffer(f"in_{k}", kind) for k, kind in enumerate(region.input_types)]
    consts = [ir.Buffer(name, (array.size,), str(array.dtype), "const") for name, array in code.data.items()]
    writes = [_buffer(f"out_{k}", kind) for k, kind in enumerate(region.output_types)]
    scratch = [ir.Buffer(SCRATCH, (code.workspace,), "uint8", "workspace")] if code.workspace else []
    buffers = (*reads, *consts, *writes, *scratch)
    start, written = ir.const(0, "int32"), {*writes, *scratch}
    pointers = tuple(ir.AddressOf(b, (start,), b.size, b in written) for b in buffers)
    name = hashlib.sha256("\n".join((taken.backend.name, *code.lines)).encode()).hexdigest()[:16]
    body = ir.Evaluate(ir.Call(f"external_{name}", pointers, "int32"))
    backend = taken.backend
    instructions = round(code.instructions)
    external = External(
        backend.name,
        code.lines,
        backend.headers,
        instructions,
        code.code_bytes,
        backend.bound,
        fails=code.fails,
        differs=code.differs,
    )
    return ir.PrimFunc("external", buffers, body), external


def _buffer(name: str, kind: TensorType) -> ir.Buffer:
    return ir.Buffer(name, (kind.size,), kind.dtype)


def _check(taken: Taken) -> None:
    """ProgramError where a backend's code is not whole."""
    code, where = taken.code, f"{taken.backend.name}, pattern {taken.entry.name}"
    data: Mapping[str, Array] = code.data
    for name in data:
        if not _NAME.fullmatch(name) or name == SCRATCH or re.fullmatch(r"(in|out)_\d+", name):
            raise ProgramError(f"a constant cannot be called {name!r}", where=where, hint="a name of C in lower case")
    for header in taken.backend.headers:
        if not _INCLUDE.fullmatch(header) or ".." in header:
            raise ProgramError(f"{header!r} is no header", where=where, hint="a relative path")
    if not code.lines or code.workspace < 0 or code.instructions < 0:
        raise ProgramError("code is statements of C, and costs what is no less than nothing", where=where)
    if code.align < 4 or code.align & (code.align - 1):
        raise ProgramError(f"nothing is aligned to {code.align} bytes", where=where, hint="a power of two, 4 or more")
