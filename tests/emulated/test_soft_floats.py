# SPDX-License-Identifier: Apache-2.0
"""Estimates of floats on cores without a floating-point unit are near what an emulated board counts, of a network that the cost
model was not calibrated with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.device.boards import load_board
from microc.graph.ir import Graph
from tests.device.smoke import needs

BOUND = 0.2


def network() -> Graph:
    """An int8 end, layers of floats with functions of the library between them, and a softmax."""
    net, rng = microc.GraphBuilder(), np.random.default_rng(11)

    def dense(x: str, inputs: int, outputs: int) -> str:
        weight = (rng.normal(size=(outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        return net.op("dense", x, net.new_constant("weight", weight))

    more: dict[str, Any] = {"scale": (0.02,), "zero_point": (3,), "axis": None}
    stored = net.op("quantize", net.input("x", (1, 60)), out_dtype="int8", rounding="even", **more)
    value = net.op("dequantize", stored, **more)
    for function, inputs, outputs in (("tanh", 60, 14), ("sigmoid", 14, 22), ("erf", 22, 9)):
        value = net.op(function, dense(value, inputs, outputs))
    return net.graph("floats", {"y": net.op("softmax", dense(value, 9, 11)), "q": stored})


@needs("arm-none-eabi-gcc", "qemu-system-arm", "riscv64-unknown-elf-gcc", "qemu-system-riscv32")
@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("name", ["microbit", "mps2-an385", "hifive1"])
def test_estimates_are_near_counts(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    program = microc.compile(network(), board=board)
    project = microc.open_project(program.write(tmp_path / "firmware"))
    microc.build(project)
    with microc.Device(project) as device:
        device.set_inputs(np.random.default_rng(1).normal(size=(1, 60)).astype(np.float32))
        counted = [kernel.time for kernel in device.profile().kernels]
    for call, count in zip(program.module.calls, counted, strict=True):
        assert abs(call.instructions / count - 1) < BOUND, (call.op, call.instructions, count)
