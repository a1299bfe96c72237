# SPDX-License-Identifier: Apache-2.0
"""Requantisations of rows on three machines: their meaning interpreted, their portable C here, their instructions on a
Cortex-M55."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.interface import print_constant_definition
from microc.device.boards import load_board
from microc.isa.mve.arm_mve import ARM_MVE
from microc.isa.vocabulary.matrix_products import REQUANTISATIONS, TWICE_ROUNDINGS
from microc.module import Value
from microc.tir import ir
from tests.codegen.machines import compiled_here, firmware, meant, on_board
from tests.device.smoke import needs

COLUMNS, STRIDE_OUT, STRIDE_SUMS = 24, 29, 26
TWICE_COLUMNS, TWICE_NUMBERS = 32, (1638001719, -8, 5)
"""Columns, and multiplier, shift and zero point, of requantisations that round twice."""
TWICE = [i.name for i in TWICE_ROUNDINGS]
NAMES = [*(i.name for i in REQUANTISATIONS if i.name.split("_")[3] in ("2", "9", "15")), *TWICE]
"""One distance is as good as another: the least, the largest and one between."""


def function(name: str) -> ir.PrimFunc:
    """The intrinsic on rows that lie apart; 256 is the factor."""
    if name in TWICE:
        sums = ir.Buffer("sums", (TWICE_COLUMNS,), "int32")
        out = ir.Buffer("out", (TWICE_COLUMNS,), "int8" if "_i8_" in name else "uint8")
        ends = (ir.AddressOf(b, (ir.as_index(0),), b.size, b == out) for b in (out, sums))
        scale = (ir.const(n, "int32") for n in (TWICE_COLUMNS, *TWICE_NUMBERS))
        return ir.PrimFunc(f"test_{name}", (sums, out), ir.Evaluate(ir.Call(name, (*ends, *scale), "int32")))
    rows = int(name[-1])
    shapes = (rows * STRIDE_SUMS, COLUMNS, COLUMNS)
    inputs = [
        ir.Buffer(label, (n,), "int32") for label, n in zip(("sums", "addend", "multiplier"), shapes, strict=True)
    ]
    out = ir.Buffer("out", (rows * STRIDE_OUT,), "int8" if "_i8_" in name else "uint8")
    strides = (STRIDE_OUT, STRIDE_SUMS) if rows > 1 else ()
    places = (ir.AddressOf(b, (ir.as_index(0),), b.size, b == out) for b in (out, *inputs))
    numbers = (ir.const(n, "int32") for n in (COLUMNS, 256, *strides))
    return ir.PrimFunc(f"test_{name}", (*inputs, out), ir.Evaluate(ir.Call(name, (*places, *numbers), "int32")))


def operands(name: str) -> tuple[Array, ...]:
    """Sums whose results are within and beyond the range of bytes, and ends of int32, which wrap around."""
    dice = np.random.default_rng(len(name))
    if name in TWICE:
        # Products of -168 and -503 are ties, which both roundings of negative sums round differently.
        edges = np.array([-(1 << 31), (1 << 31) - 1, 0, -1, 1, -168, 168, -503, 503], np.int32)
        return (np.concatenate([edges, dice.integers(-90000, 90000, TWICE_COLUMNS - edges.size, np.int32)]),)
    distance = int(name.split("_")[3])
    sums, addend, multiplier = (np.zeros(b.shape, np.int32) for b in function(name).params[:-1])
    multiplier[:] = dice.integers(1 << 29, 1 << 31, COLUMNS, endpoint=False)
    reach = int(200 * 2.0 ** (distance - 6))  # 256 * reach * 2**30 / 2**(32 + distance) is 200
    sums[:] = dice.integers(-reach, reach, sums.size)
    addend[:] = dice.integers(-128 * reach, 128 * reach, COLUMNS)
    sums[:4], addend[:2] = ((1 << 31) - 1, -(1 << 31), 0, -1), ((1 << 31) - 1, -(1 << 31))
    return sums, addend, multiplier


@cache
def wanted() -> dict[str, Array]:
    return {name: meant(function(name), operands(name)) for name in NAMES}


def test_results_differ_and_saturate() -> None:
    """The operands are worth comparing: every dtype reaches both ends of its range, and much between."""
    for dtype, ends in (("i8", {-128, 127}), ("u8", {0, 255})):
        values = np.unique(np.concatenate([array for name, array in wanted().items() if f"_{dtype}_" in name]))
        assert ends <= set(values.tolist()) and len(values) > 60


def test_ties_of_negative_sums_differ() -> None:
    plain, away = (wanted()[f"requantize_i8_twice{end}"] for end in ("", "_away"))
    assert np.any(plain != away)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_portable_bodies(compiler: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    funcs = {name: function(name) for name in NAMES}
    found = compiled_here(funcs, {name: operands(name) for name in NAMES}, tmp_path, compiler)
    for name, want in wanted().items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "arm-none-eabi-objdump", "qemu-system-arm")
def test_instructions(tmp_path: Path) -> None:
    assert set(NAMES) <= ARM_MVE.bodies.keys()
    data, answers = [f"static int32_t result[{STRIDE_OUT * 3}];"], []
    for name in NAMES:
        *params, out = function(name).params
        labels = [f"{name}_{param.name}" for param in params]
        for label, array in zip(labels, operands(name), strict=True):
            lines = print_constant_definition(Value(label, array.shape, str(array.dtype), "const", array))
            data.append("static " + "\n".join(lines))
        answers.append("memset(result, 0, sizeof result);")
        answers.append(f"test_{name}({', '.join([*labels, '(void *)result'])});")
        answers.append(f"(void)microc_port_write((const uint8_t *)result, {out.size}u);")
    source = tmp_path / "requantisation.c"
    source.write_text(firmware("cortex-m55", [function(name) for name in NAMES], data, answers))
    on_board(load_board("mps3-an547"), source, tmp_path, (), wanted())
