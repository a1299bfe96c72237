# SPDX-License-Identifier: Apache-2.0
"""Conversions of half floats on emulated cores that have instructions for them: the bits of the integer conversions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.interface import print_constant_definition
from microc.device.boards import load_board
from microc.module import Value
from microc.tir import ir
from tests.codegen.machines import firmware, on_board
from tests.device.smoke import needs

COUNT = 2048
K = ir.Var("i")


def loop(name: str, source: str, target: str) -> ir.PrimFunc:
    x, out = ir.Buffer("x", (COUNT,), source), ir.Buffer("result", (COUNT,), target)
    body = ir.Store(out, (K,), ir.cast(target, x[K]))
    return ir.PrimFunc(name, (x, out), ir.For(K, ir.const(COUNT, "int32"), body))


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "arm-none-eabi-objdump", "qemu-system-arm")
@pytest.mark.parametrize(("cpu", "board"), [("cortex-m4", "mps2-an386"), ("cortex-m55", "mps3-an547")])
def test_instructions(cpu: str, board: str, tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    halves = np.resize(np.arange(0, 65536, 31, dtype=np.uint16), COUNT)
    halves = np.where((halves & 0x7FFF) > 0x7C00, 0x7C00, halves).astype(np.uint16)
    floats = np.exp(dice.normal(size=COUNT) * 9).astype(np.float32) * dice.choice((-1, 1), COUNT).astype(np.float32)
    floats[:5] = (0.0, -0.0, np.inf, -np.inf, 65520.0)
    funcs = [loop("test_widen", "float16", "float32"), loop("test_narrow", "float32", "float16")]
    with np.errstate(over="ignore"):
        narrow = floats.astype(np.float16).view(np.uint16)
    wanted: dict[str, Array] = {"widen": halves.view(np.float16).astype(np.float32), "narrow": narrow}
    data, answers = [], []
    for name, given in (("widen", halves), ("narrow", floats)):
        value = Value(f"{name}_x", given.shape, str(given.dtype), "const", given)
        data.append("static " + "\n".join(print_constant_definition(value)))
        kind = "float" if name == "widen" else "uint16_t"
        data.append(f"static {kind} {name}_result[{COUNT}];")
        answers.append(f"test_{name}({name}_x, {name}_result);")
        answers.append(f"(void)microc_port_write((const uint8_t *){name}_result, sizeof {name}_result);")
    source = tmp_path / "halves.c"
    source.write_text(firmware(cpu, funcs, data, answers))
    assert "vcvtb" in source.read_text()
    on_board(load_board(board), source, tmp_path, (), wanted)
