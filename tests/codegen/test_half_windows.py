# SPDX-License-Identifier: Apache-2.0
"""Windows over halves and runs of them on three machines: meaning, portable C here, instructions on a Cortex-M55."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.interface import print_constant_definition
from microc.device.boards import load_board
from microc.isa.vocabulary.matrix_products import HALF_WINDOWS, HALF_WINDOWS_LANES, TAPS, float16_window_name
from microc.module import Value
from microc.tir import ir
from tests.codegen.machines import compiled_here, firmware, meant, on_board
from tests.device.smoke import needs

STEP, ROWS = 24, 3
ROW = 12 * STEP
WINDOWS = {float16_window_name(*shape): shape for shape in HALF_WINDOWS}
COUNTS = (1, 3, 4, 7, 8, 16, 21, 64)
NAMES = (*WINDOWS, "narrow_f32_f16", "zero_f16")


def place(buffer: ir.Buffer, index: int, extent: int, writes: bool = False) -> ir.AddressOf:
    return ir.AddressOf(buffer, (ir.const(index, "int32"),), extent, writes)


def function(name: str) -> ir.PrimFunc:
    """The word for one row of taps, two and three; for runs of every length, each behind the one before."""
    calls: list[tuple[ir.Expr, ...]] = []
    if name in WINDOWS:
        stride, pixels = WINDOWS[name]
        a, b = ir.Buffer("a", (ROWS * ROW,), "float16"), ir.Buffer("b", (ROWS * TAPS * STEP,), "float16")
        size = pixels * HALF_WINDOWS_LANES
        result = ir.Buffer("result", (ROWS * size,), "float16")
        params: tuple[ir.Buffer, ...] = (a, b, result)
        for rows in range(1, ROWS + 1):
            reach = (rows - 1) * ROW + ((pixels - 1) * stride + TAPS - 1) * STEP + HALF_WINDOWS_LANES
            taps = (rows * TAPS - 1) * STEP + HALF_WINDOWS_LANES
            numbers = (ir.const(n, "int32") for n in (rows, ROW, STEP))
            calls.append(
                (
                    place(a, HALF_WINDOWS_LANES, reach),
                    place(b, HALF_WINDOWS_LANES, taps),
                    place(result, (rows - 1) * size, size, True),
                    *numbers,
                )
            )
    else:
        q, result = ir.Buffer("q", (sum(COUNTS),), "float32"), ir.Buffer("result", (sum(COUNTS) + 9,), "float16")
        params = (q, result)
        for k, n in enumerate(COUNTS):
            first = sum(COUNTS[:k])
            source = (place(q, first, n),) if name.startswith("narrow") else ()
            calls.append((place(result, first, n, True), *source, ir.const(n, "int32")))
    body = ir.seq(*(ir.Evaluate(ir.Call(name, args, "int32")) for args in calls))
    return ir.PrimFunc(f"test_{name}", params, body)


@lru_cache
def operands(name: str) -> tuple[Array, ...]:
    dice = np.random.default_rng(sum(map(ord, name)))
    with np.errstate(over="ignore"):
        return tuple(
            (np.exp2(dice.normal(size=p.shape) * 5) * dice.choice((-1, 1), p.shape)).astype(p.dtype)
            for p in function(name).params[:-1]
        )


@pytest.fixture(scope="module")
def wanted() -> dict[str, Array]:
    return {name: meant(function(name), operands(name)) for name in NAMES}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_portable_bodies(compiler: str, wanted: dict[str, Array], tmp_path: Path) -> None:
    funcs = {name: function(name) for name in NAMES}
    found = compiled_here(funcs, {name: operands(name) for name in NAMES}, tmp_path, compiler)
    for name, want in wanted.items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_instructions(level: str, wanted: dict[str, Array], tmp_path: Path) -> None:
    data, answers = [f"static uint16_t result[{max(x.size for x in wanted.values())}];"], []
    for name, want in wanted.items():
        labels = []
        for param, array in zip(function(name).params[:-1], operands(name), strict=True):
            labels.append(f"{name}_{param.name}")
            value = Value(labels[-1], array.shape, str(array.dtype), "const", array)
            data.append("static " + "\n".join(print_constant_definition(value)))
        answers.append("memset(result, 0, sizeof result);")
        answers.append(f"test_{name}({', '.join([*labels, 'result'])});")
        answers.append(f"(void)microc_port_write((const uint8_t *)result, {want.nbytes});")
    source = tmp_path / "windows.c"
    source.write_text(firmware("cortex-m55", [function(name) for name in NAMES], data, answers))
    on_board(load_board("mps3-an547"), source, tmp_path, (level,), wanted)
