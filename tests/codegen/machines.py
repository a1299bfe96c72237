# SPDX-License-Identifier: Apache-2.0
"""A set of functions on three machines: interpreted, compiled here, and as firmware that answers over its serial line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.device.emulators import Emulator
from microc.isa import SCALAR
from microc.isa.instruction_set import VL
from microc.schedule.identities import intrinsic_functions
from microc.target import Board
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.interp import execute
from tests.device.smoke import Line
from tests.device.smoke import build as build_firmware
from tests.support.native import UNDEFINED, build, call, kernels_source

_ANSWERING = """\
int main(void)
{
    uint8_t byte;
    microc_port_init();
    for (;;) {
        if (microc_port_read(&byte, 1) == 0) {
            continue;
        }
        if (byte < 32u) {
            (void)microc_port_write(&byte, 1);
            continue;
        }"""
"""When a byte above 31 arrives, everything is computed."""
_SHORT = {"int32": "i32", "float32": "f32", "int16": "i16"}


def often(name: str, count: int, reach: int, known: Mapping[str, int] | None = None) -> ir.PrimFunc:
    """A word on ``count`` operands. Memory of ``reach`` elements is read from every address, gathered and in steps from its
    first on; results lie apart and anywhere. ``known``: parameters that are the same always."""
    intrin, i, constants = SCALAR[name], ir.Var("i"), known or {}
    written = buffers_written(intrin.meaning) if isinstance(intrin.meaning, ir.Stmt) else set()
    params: list[ir.Buffer] = []
    args: list[ir.Expr] = []
    target: ir.Buffer | None = None
    lengths = ir.Buffer("vl", (count,), "int32")
    taken = (lengths[i],) if intrin.scalable else ()
    for param in intrin.params:
        if isinstance(param, ir.Buffer) and param in written:
            apart = max(20, intrin.lanes + 4)
            target = ir.Buffer("result", (count * apart,), param.dtype)
            args.append(ir.AddressOf(target, (i * apart + 1,), max(4, intrin.lanes), True))
        elif isinstance(param, ir.Buffer):
            params.append(ir.Buffer(param.name, (reach,), param.dtype))
            first = ir.const(0, "int32") if "gather" in name or "strided" in name else i
            args.append(ir.AddressOf(params[-1], (first,), max(1, intrin.lanes)))
        elif dtypes.is_vector(param.dtype):
            element, lanes = _parts(param.dtype)
            params.append(ir.Buffer(param.name, (count * lanes,), element))
            place = ir.AddressOf(params[-1], (i * lanes,), lanes)
            args.append(ir.Call(f"load_{_SHORT[element]}_{_named(param.dtype)}", (place, *taken), param.dtype))
        elif param == VL:
            params.append(lengths)
            args.append(*taken)
        elif param.name in constants:
            args.append(ir.const(constants[param.name], "int32"))
        else:
            params.append(ir.Buffer(param.name, (count,), param.dtype))
            args.append(params[-1][i])
    applied = ir.Call(name, tuple(args), intrin.result or "int32")
    if target is None:
        if intrin.result.startswith("int16"):  # only factors are so short
            kind = intrin.result.replace("int16", "int32")
            none = ir.Call(f"dup_{_named(kind)}", (ir.const(0, "int32"), *taken), kind)
            applied = ir.Call(f"mac_short_n_{_named(kind)}", (none, applied, ir.const(1, "int32"), *taken), kind)
        element, lanes = _parts(applied.dtype)
        target = ir.Buffer("result", (count * lanes,), element)
        place = ir.AddressOf(target, (i * lanes,), lanes, True)
        applied = ir.Call(f"store_{_SHORT[element]}_{_named(applied.dtype)}", (place, applied, *taken), "int32")
    return ir.PrimFunc(f"test_{name}", (*params, target), ir.For(i, ir.const(count, "int32"), ir.Evaluate(applied)))


def _parts(vector: str) -> tuple[str, int]:
    """Element and lanes of a type."""
    kind, bits, lanes = dtypes.dtype_parts(vector)
    return f"{kind}{bits}", lanes


def _named(vector: str) -> str:
    """A type as words end with it."""
    element, _, lanes = vector.partition("x")
    return f"{_SHORT[element]}x{lanes}"


def meant(func: ir.PrimFunc, operands: Sequence[Array]) -> Array:
    """The last parameter by the meaning of intrinsics, zero to start with."""
    out = np.zeros(func.params[-1].shape, to_numpy(func.params[-1].dtype))
    return execute(func, [*operands, out], intrinsic_functions())[-1]


def compiled_here(
    funcs: Mapping[str, ir.PrimFunc], operands: Mapping[str, Sequence[Array]], folder: Path, compiler: str
) -> dict[str, Array]:
    """The last parameter of every function, by the portable bodies of intrinsics; gcc's complain of undefined behaviour."""
    library = build(list(funcs.values()), folder, *([UNDEFINED] if compiler == "gcc" else []), compiler=compiler)
    zeros = {name: np.zeros(f.params[-1].shape, to_numpy(f.params[-1].dtype)) for name, f in funcs.items()}
    return {name: call(library, func, [*operands[name], zeros[name]])[-1] for name, func in funcs.items()}


def firmware(cpu: str, funcs: Sequence[ir.PrimFunc], data: Sequence[str], answers: Sequence[str]) -> str:
    """A program for a core that runs the statements ``answers``, over ``data`` in flash, and again."""
    head = [kernels_source(funcs, cpu), '#include "microc_port.h"\n', *data, _ANSWERING]
    return "\n".join([*head, *(f"        {line}" for line in answers), "    }", "}"]) + "\n"


def on_board(board: Board, source: Path, folder: Path, flags: Sequence[str], wanted: Mapping[str, Array]) -> None:
    """Build the program, and compare what it says with what is wanted."""
    elf = build_firmware(board, folder, *flags, program=[source])
    with Emulator(board, elf) as emulator, Line(emulator.url) as line:
        line.send(b"R")
        for name, want in wanted.items():
            got = np.frombuffer(line.receive(want.nbytes), want.dtype)
            np.testing.assert_array_equal(got, want.reshape(-1), err_msg=name)
