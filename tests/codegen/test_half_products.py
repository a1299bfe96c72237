# SPDX-License-Identifier: Apache-2.0
"""Products of halves on three machines: their meaning interpreted, their portable C here, their instructions on a Cortex-M55."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.interface import print_constant_definition
from microc.device.boards import load_board
from microc.isa.vocabulary.matrix_products import HALF_PRODUCTS_LANES, HALF_SHAPES, float16_product_name
from microc.module import Value
from microc.tir import ir
from microc.tir.operators import FUNCTIONS
from tests.codegen.machines import compiled_here, firmware, meant, on_board
from tests.device.smoke import needs
from tests.support.native import build, call

CUTS = ((1, 1), (9, 1), (10, 1), (33, 3), (40, 2), (64, 2))
"""Terms and runs, for iterations of every length."""
STRIDE = 67
NAMES = {float16_product_name(*shape): shape for shape in HALF_SHAPES}


def function(name: str) -> ir.PrimFunc:
    """The word for every cut, each from a multiple of its terms on, into sums of its own."""
    rows, vectors = NAMES[name]
    width = vectors * HALF_PRODUCTS_LANES
    a, b = ir.Buffer("a", (rows * STRIDE,), "float16"), ir.Buffer("b", (64 * width,), "float16")
    result = ir.Buffer("result", (len(CUTS) * rows * width,), "float32")
    calls = []
    for k, (depth, runs) in enumerate(CUTS):
        first, place = ir.const(min(k, STRIDE - depth), "int32"), ir.const(k * rows * width, "int32")
        numbers = (depth, runs, *((STRIDE,) if rows > 1 else ()))
        args = (
            ir.AddressOf(a, (first,), (rows - 1) * STRIDE + depth),
            ir.AddressOf(b, (ir.const(0, "int32"),), depth * width),
            ir.AddressOf(result, (place,), rows * width, True),
            *(ir.const(n, "int32") for n in numbers),
        )
        calls.append(ir.Evaluate(ir.Call(name, args, "int32")))
    return ir.PrimFunc(f"test_{name}", (a, b, result), ir.seq(*calls))


@lru_cache
def operands(name: str) -> tuple[Array, Array]:
    """Halves of many magnitudes, subnormal ones too; of each row some products beyond 65504."""
    dice = np.random.default_rng(sum(map(ord, name)))
    rows, _ = NAMES[name]
    a, b = (np.exp2(dice.normal(size=p.shape) * 4) * dice.choice((-1, 1), p.shape) for p in function(name).params[:2])
    a.reshape(rows, STRIDE)[:, 40:44] = (60000, 1e-6, -3e-8, 0)
    return a.astype(np.float16), b.astype(np.float16)


@pytest.fixture(scope="module")
def wanted() -> dict[str, Array]:
    found = {name: meant(function(name), operands(name)) for name in NAMES}
    assert all(np.isfinite(x).mean() > 0.5 and not np.isfinite(x).all() for x in found.values())
    return found


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_portable_bodies(
    compiler: str, wanted: dict[str, Array], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    funcs = {name: function(name) for name in NAMES}
    found = compiled_here(funcs, {name: operands(name) for name in NAMES}, tmp_path, compiler)
    for name, want in wanted.items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize("level", ["-O0", "-O2", "-Os"])
def test_instructions(level: str, wanted: dict[str, Array], tmp_path: Path) -> None:
    data, answers = [f"static float result[{max(x.size for x in wanted.values())}];"], []
    for name, want in wanted.items():
        for label, array in zip("ab", operands(name), strict=True):
            value = Value(f"{name}_{label}", array.shape, str(array.dtype), "const", array)
            data.append("static " + "\n".join(print_constant_definition(value)))
        answers.append("memset(result, 0, sizeof result);")
        answers.append(f"test_{name}({name}_a, {name}_b, result);")
        answers.append(f"(void)microc_port_write((const uint8_t *)result, {want.nbytes});")
    source = tmp_path / "halves.c"
    source.write_text(firmware("cortex-m55", [function(name) for name in NAMES], data, answers))
    assert "vfma.f16" in source.read_text()
    on_board(load_board("mps3-an547"), source, tmp_path, (level,), wanted)


def test_every_term_is_rounded_once(tmp_path: Path) -> None:
    """Sums on both sides of ties, and exactly on them, of every magnitude."""
    dice, count, i = np.random.default_rng(2), 8000, ir.Var("i")
    a, b, c, out = (ir.Buffer(name, (count,), "float16") for name in ("a", "b", "c", "out"))
    body = ir.Store(out, (i,), ir.call("fma", a[i], b[i], c[i]))
    func = ir.PrimFunc("added", (a, b, c, out), ir.For(i, ir.const(count, "int32"), body))
    bits = dice.integers(0, 1 << 16, (3, count), np.uint16)
    bits[2, : count // 2] = (bits[2, : count // 2] & 0x83FF) | ((bits[0, : count // 2] & 0x7C00) ^ 0x2000)
    arrays = [row.view(np.float16) for row in bits]
    found = call(build([func], tmp_path), func, [*arrays, np.zeros(count, np.float16)])[-1]
    with np.errstate(all="ignore"):
        meaning = np.array([FUNCTIONS["fma"](*each) for each in zip(*arrays, strict=True)])
    np.testing.assert_array_equal(found, meaning)
    for x, y, z, rounded in zip(*arrays, meaning, strict=True):
        if np.isfinite([x, y, z, rounded]).all():
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            lost = abs(exact - Fraction(float(rounded)))
            beside = [np.nextafter(rounded, np.float16(end)) for end in (-np.inf, np.inf)]
            others = [abs(exact - Fraction(float(each))) for each in beside if np.isfinite(each)]
            assert lost < min(others) or (lost == min(others) and not rounded.view(np.uint16) & 1)
