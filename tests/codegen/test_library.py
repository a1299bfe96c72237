# SPDX-License-Identifier: Apache-2.0
"""Functions of compilers' libraries: every core has a measured table, and operations of kernels are found in it."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

import microc
from microc.codegen.c.resources import SAME_LIBRARY_AS, library_costs_of_core, list_kernel_library_operations
from microc.device.boards import list_boards, load_board


@pytest.mark.parametrize("cpu", sorted({load_board(name).target.cpu for name in list_boards()}))
def test_every_core_knows_its_library(cpu: str) -> None:
    library = library_costs_of_core(cpu)
    assert 20 <= library.stack_bytes({"float32.sin"}) <= 1200
    assert library.stack_bytes({"float32.sin", "float32.add"}) == library.stack_bytes({"float32.sin"})
    assert (
        SAME_LIBRARY_AS.get(cpu, cpu) not in ("cortex-m0", "avr")
        or library.flash_and_ram_bytes({"float32.add"})[0] > 100
    )


def test_operations_of_a_kernel() -> None:
    value = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, 4]) for end in "xy"]
    graph = helper.make_graph([helper.make_node("Sin", ["x"], ["y"])], "sin", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = microc.compile(model, board="microbit").module
    assert {"copy", "float32.sin"} <= list_kernel_library_operations(module.kernels[0].func)
