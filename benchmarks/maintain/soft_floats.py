# SPDX-License-Identifier: Apache-2.0
"""Instructions of float operations on cores without a floating-point unit: counted in an emulator, and as estimated.

    python benchmarks/maintain/soft_floats.py [--boards microbit,mps2-an385,hifive1] [--operators Add,Exp] [--json FILE]

Networks of one operator run on normal random numbers. An element's difference between count and estimate says by how much the
numbers in ``microc/isa/portable.py`` are wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import microc
from microc.device.boards import load_board
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.toolchain import run_make
from microc.device.transport import open_transport
from microc.run.board_project import open_project
from microc.run.profile import ticks_to_instructions
from microc.schedule.cost.cost_model import estimate

ELEMENTS, COLUMNS = 256, 16
OPERATORS = (
    "Add",
    "Mul",
    "Div",
    "Max",
    "Relu",
    "Clip",
    "QuantizeLinear",
    "MatMul",
    "Sqrt",
    "Exp",
    "Tanh",
    "Erf",
    "Log",
)


def network(operator: str) -> Any:
    """An ONNX model of one operator over :data:`ELEMENTS` numbers."""
    rng = np.random.default_rng(0)
    constants = {
        "Clip": [np.float32(-0.5), np.float32(0.7)],
        "QuantizeLinear": [np.float32(0.03), np.int8(3)],
        "MatMul": [rng.normal(size=(ELEMENTS, COLUMNS)).astype(np.float32)],
        **{name: [rng.normal(size=(1, ELEMENTS)).astype(np.float32)] for name in ("Add", "Mul", "Div", "Max")},
    }.get(operator, [])
    names = [f"c{k}" for k in range(len(constants))]
    dtype = TensorProto.INT8 if operator == "QuantizeLinear" else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *names], ["y"])],
        operator.lower(),
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ELEMENTS])],
        [helper.make_tensor_value_info("y", dtype, [1, COLUMNS if operator == "MatMul" else ELEMENTS])],
        [numpy_helper.from_array(np.asarray(c), name) for name, c in zip(names, constants, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(name: str, operator: str) -> dict[str, Any]:
    """Instructions counted and estimated of one network on a board, and its library calls an element."""
    board = load_board(name)
    program = microc.compile(network(operator), board=board, optimize="speed")
    values = np.random.default_rng(1).normal(size=ELEMENTS).astype(np.float32)
    if operator in ("Sqrt", "Log"):
        values = np.abs(values)
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        project = open_project(program.write(Path(folder) / "project"))
        run_make(project.folder)
        with Emulator(board, project.elf) as emulator, Client(open_transport(emulator.url)) as client:
            client.hello()
            client.write_tensor(0, values.tobytes())
            counted = sum(ticks_to_instructions(board, ticks) for ticks in client.profile())
    costs = [estimate(kernel.func, board.target) for kernel in program.module.kernels]
    calls: dict[str, float] = {}
    for cost in costs:
        for kind, count in cost.operations.items():
            if kind.startswith("call_"):
                calls[kind] = calls.get(kind, 0.0) + count / ELEMENTS
    return {
        "board": name,
        "operator": operator,
        "counted": counted,
        "estimated": round(sum(cost.instructions for cost in costs)),
        "calls": calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", default="microbit,mps2-an385,hifive1")
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(
        f"{'board':14}{'operator':16}{'counted':>10}{'estimated':>10}{'error':>8}{'an element':>12}  calls an element"
    )
    for board in options.boards.split(","):
        for operator in options.operators.split(","):
            row = measure(board, operator)
            rows.append(row)
            error, excess = row["estimated"] / row["counted"] - 1, (row["counted"] - row["estimated"]) / ELEMENTS
            calls = ", ".join(f"{n:.2f} {kind.removeprefix('call_')}" for kind, n in row["calls"].items())
            print(
                f"{board:14}{operator:16}{row['counted']:>10,}{row['estimated']:>10,}{error:>+8.1%}{excess:>+12.1f}  {calls}"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
