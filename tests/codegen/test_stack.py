# SPDX-License-Identifier: Apache-2.0
"""Bounds on the stack: painted stacks of networks on every emulated family of cores keep within them, at every level."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import microc
from microc.codegen.c.resources import stack_bound, stack_bounds
from microc.codegen.c.source import network_files
from microc.device.boards import load_board
from microc.device.emulators import find_program_or_simulator
from microc.device.toolchain import run_make
from microc.errors import FitError, UnsupportedError
from microc.run.board_project import open_project
from microc.run.session import Device
from tests.device.smoke import skip_without
from tests.support.campaign import everything

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
BOARDS = (
    "microbit", "mps2-an385", "mps2-an386", "mps2-an500", "mps2-an505", "mps2-an521", "mps3-an547", "hifive1", "qemu-riscv32",
    "hifive-unleashed", "qemu-riscv64", "arduino-mega",
)  # fmt: skip
LEVELS = ("", "-O0", "-Os", "-O2", "-O3")
"""Compiler options of the network; empty: those of the project."""
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes: list[Any], shape: tuple[int, ...], weights: dict[str, Any] | None = None, opset: int = 17) -> Any:
    """A network from x to y of float32."""
    rng = np.random.default_rng(5)
    made = {
        name: value if isinstance(value, np.ndarray) else rng.normal(0, 0.3, value).astype(np.float32)
        for name, value in (weights or {}).items()
    }
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in made.items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def unary(name: str, **attributes: Any) -> Any:
    return model([helper.make_node(name, ["x"], ["y"], **attributes)], (1, 4))


def binary(name: str, **attributes: Any) -> Any:
    return model([helper.make_node(name, ["x", "w"], ["y"], **attributes)], (1, 4), {"w": np.full(4, 1.7, np.float32)})


def convolution() -> Any:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return model(nodes, (1, 3, 8, 8), {"w": (8, 3, 3, 3), "b": (8,)})


def lstm() -> Any:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["h", "", ""], hidden_size=8),
        helper.make_node("Identity", ["h"], ["y"]),
    ]
    return model(nodes, (5, 1, 6), {"w": (1, 32, 6), "r": (1, 32, 8), "b": (1, 64)})


def attention() -> Any:
    nodes = [
        *(helper.make_node("MatMul", ["x", name], [f"{name}x"]) for name in "qkv"),
        helper.make_node("Transpose", ["kx"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["qx", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"]),
        helper.make_node("MatMul", ["p", "vx"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "scale"], ["y"]),
    ]
    return model(nodes, (1, 6, 8), {"q": (8, 8), "k": (8, 8), "v": (8, 8), "scale": (8,)})


def dynamic() -> Any:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    weights = np.random.default_rng(2).integers(-127, 127, (16, 8)).astype(np.int8)
    return model(nodes, (1, 16), {"w": weights})


def trees() -> Any:
    count = 6
    ids = [k for k in range(count) for _ in range(3)]
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=ids, nodes_nodeids=[0, 1, 2] * count, nodes_featureids=[k % 4 for k in ids],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * count, nodes_values=[0.1, 0.0, 0.0] * count,
        nodes_truenodeids=[1, 0, 0] * count, nodes_falsenodeids=[2, 0, 0] * count,
        target_treeids=[k for k in range(count) for _ in range(2)], target_nodeids=[1, 2] * count,
        target_ids=[0] * 2 * count, target_weights=[0.5, -0.25] * count,
    )  # fmt: skip
    return model([node], (1, 4))


NETWORKS: dict[str, Callable[[], Any]] = {
    **{name: partial(unary, name) for name in
       ("Sin", "Cos", "Tan", "Exp", "Log", "Tanh", "Erf", "Sinh", "Asinh", "Sqrt", "Round", "Softplus", "Elu", "LogSoftmax")},
    "Pow": partial(binary, "Pow"),
    "Mod": partial(binary, "Mod", fmod=1),
    "convolution": convolution,
    "lstm": lstm,
    "attention": attention,
    "dynamic": dynamic,
    "trees": trees,
    "int8": lambda: DIGITS,
}  # fmt: skip
SOME = [
    ("Sin", "mps2-an386", ""), ("Tan", "microbit", ""), ("convolution", "qemu-riscv32", "-O0"), ("Pow", "arduino-mega", "-O0"),
    ("attention", "mps3-an547", "-Os"),
]  # fmt: skip
CASES = [(n, b, o) for n in NETWORKS for b in BOARDS for o in LEVELS] if everything() else SOME


def painted(network: Any, board: str, level: str, folder: Path) -> tuple[int, int]:
    """Bytes of stack that a board saw in runs on small, middling and large numbers; the bound that its header has."""
    program = microc.compile(network, board=board, check=False)
    project = open_project(program.write(folder / "project"))
    run_make(project.folder, (f"OPT={level}",) if level else ())
    bounds = stack_bounds(program.module)
    with Device(project) as device:
        for value in (0.0, 1.0, 0.9, 1e30, -1e5):
            device.run(
                *(np.full(t["shape"], value if t["dtype"] == "float32" else 3, t["dtype"]) for t in device.inputs)
            )
        found = device.stats().stack_bytes
    assert found is not None
    return found, bounds.unoptimised if level == "-O0" else bounds.gcc


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize(("name", "board", "level"), CASES)
def test_painted_stacks_keep_within_the_bound(name: str, board: str, level: str, tmp_path: Path) -> None:
    target = load_board(board)
    skip_without(target)
    if target.simulated and not find_program_or_simulator(target.raw["simulator"]["argv"][0]):
        pytest.skip("the simulator is absent")
    try:
        found, bound = painted(NETWORKS[name](), board, level, tmp_path)
    except (FitError, UnsupportedError) as error:
        pytest.skip(str(error))
    assert found <= bound


def test_library_functions_count() -> None:
    bounds = stack_bounds(microc.compile(unary("Sin"), board="microbit").module)
    assert bounds.gcc > 552  # the reduction of large arguments
    assert bounds.gcc <= bounds.unoptimised


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_header_follows_the_compiler(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not on PATH")
    module = microc.compile(convolution(), board="mps2-an386").module
    bounds = stack_bounds(module)
    (tmp_path / "model.h").write_text(network_files(module, "0")["model.h"])
    for level, wanted in (("-O0", bounds.unoptimised), ("-O1", bounds.gcc), ("-Os", bounds.gcc), ("-O3", bounds.gcc)):
        argv = [compiler, level, "-E", "-dM", str(tmp_path / "model.h")]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        [found] = re.findall(r"#define \w+_STACK_BOUND (\d+)", text)
        assert int(found) == (bounds.clang if compiler == "clang" and level != "-O0" else wanted)
    assert stack_bound(module) == bounds.gcc
