"""What functions of compilers' libraries take: the measured table, and the bound on the stack that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import microc
from microc.codegen.library import LIKE, kernel_operations, library_of
from microc.codegen.stack import stack_bound
from microc.device.boards import list_boards, load_board
from microc.driver.measure.firmware import build, open_project
from microc.driver.measure.session import Device
from tests.campaign import everything
from tests.device.smoke import skip_without

FIRMWARE = 200
"""Bytes of stack of main, the RPC and interrupts, which the paint holds, too."""
FUNCTIONS = ("Sin", "Exp", "Tanh", "Log", "Cos", "Tan", "Sqrt", "Erf", "Atan", "Sinh")
BOARDS = ("mps2-an386", "microbit", "mps2-an385", "mps2-an505", "mps2-an500", "mps3-an547", "qemu-riscv32", "hifive1")


def one_function(name: str) -> Any:
    value = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, 4]) for end in "xy"]
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"])], name.lower(), value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("cpu", sorted({load_board(name).target.cpu for name in list_boards()}))
def test_every_core_knows_its_library(cpu: str) -> None:
    library = library_of(cpu)
    assert 20 <= library.stack({"float32.sin"}) <= 1200
    assert library.stack({"float32.sin", "float32.add"}) == library.stack({"float32.sin"})
    assert LIKE.get(cpu, cpu) not in ("cortex-m0", "avr") or library.memory({"float32.add"})[0] > 100


def test_operations_of_a_kernel() -> None:
    module = microc.compile(one_function("Sin"), board="microbit").module
    assert {"copy", "float32.sin"} <= kernel_operations(module.kernels[0].func)
    assert stack_bound(module) > 552  # the reduction of large arguments


CASES = [(f, b) for f in FUNCTIONS for b in BOARDS] if everything() else [("Sin", "mps2-an386"), ("Tan", "microbit")]


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize(("function", "board"), CASES)
def test_painted_stacks_keep_within_the_bound(function: str, board: str, tmp_path: Path) -> None:
    skip_without(load_board(board))
    program = microc.compile(one_function(function), board=board)
    project = open_project(program.write(tmp_path / "project"))
    build(project)
    with Device(project) as device:
        for value in (0.0, 1.0, 1e30):
            device.run(np.full((1, 4), value, np.float32))
        painted = device.stats().stack_bytes
    assert painted is not None and painted <= stack_bound(program.module) + FIRMWARE
