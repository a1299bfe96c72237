# SPDX-License-Identifier: Apache-2.0
"""What goals promise of each other: ``speed`` is never slower than ``balanced``, estimated or counted.

Small networks are built and counted on an emulated Cortex-M4 here. Where MICROC_GOALS names a file, every model of the corpus is,
and the table is appended to that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.compiler.api import Program
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops import registry
from microc.target import GOALS
from tests.device.smoke import needs
from tests.support import digits
from tests.support.corpus import models

BOARD = "mps2-an386"
SAME = 1.005
"""Layout in flash alone moves counts by less."""
ALL = models("*.tflite", "*.onnx") if os.environ.get("MICROC_GOALS") else []


def dense(depth: int, units: int) -> Graph:
    """One quantised layer on a single row."""
    dice = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "weight": dice.integers(-127, 128, (units, depth)).astype(np.int8),
        "bias": dice.integers(-500, 500, units).astype(np.int32),
    }
    types = {
        "x": TensorType((1, depth), "int8", Quant((0.05,), (3,))),
        "weight": TensorType((units, depth), "int8", Quant((0.01,), (0,))),
        "bias": TensorType((units,), "int32", Quant((0.0005,), (0,))),
        "y": TensorType((1, units), "int8", Quant((0.1,), (-4,))),
    }
    attrs = {**registry.get("dense").defaults, "activation": "", "rounding": "double"}
    layer = Node("dense", ("x", "weight", "bias"), ("y",), attrs)
    return Graph("net", ("x",), ("y",), (layer,), types, arrays)


NETWORKS = {
    "257 terms, a padded row": dense(257, 64),
    "257 terms, odd units": dense(257, 33),
    "64 terms, odd units": dense(64, 31),
}


def compiled(network: Graph | Path, goal: Any) -> Program:
    program = microc.compile(network, board=BOARD, optimize=goal)
    assert isinstance(program, Program)
    return program


def estimated(program: Program) -> int:
    return int(program.report()["estimated_instructions"])


def counted(program: Program, folder: Path) -> int:
    """Instructions of one inference on the emulated board."""
    microc.build(microc.open_project(program.write(folder)))
    with microc.Device(folder) as device:
        profile = device.profile()
    assert profile.unit == "instructions"
    return profile.time


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize("name", NETWORKS)
def test_speed_is_not_slower_than_balanced(name: str, tmp_path: Path) -> None:
    programs = {goal: compiled(NETWORKS[name], goal) for goal in ("balanced", "speed")}
    assert estimated(programs["speed"]) <= SAME * estimated(programs["balanced"])
    counts = {goal: counted(program, tmp_path / goal) for goal, program in programs.items()}
    assert counts["speed"] <= SAME * counts["balanced"]


WAITING = "nucleo-f446re"
"""A Cortex-M4 whose flash has five wait states."""


@pytest.mark.parametrize("network", [digits.INT8, dense(257, 64), dense(640, 128)], ids=["digits", "257", "640"])
def test_speed_takes_the_fewest_cycles_where_flash_waits(network: Graph | Path) -> None:
    """Weights of two bytes take fewer instructions, and wait twice as long."""
    board = load_board(WAITING)
    cycles = {
        goal: compile_model(network, board.target, make_options(optimize=goal)).estimated_time("cycles")
        for goal in GOALS
    }
    assert cycles["speed"] <= SAME * min(cycles.values())


@pytest.mark.parametrize(("depth", "units"), [(64, 31), (256, 9), (64, 11), (257, 33)])
def test_an_odd_number_of_units_costs_what_the_next_even_one_does(depth: int, units: int) -> None:
    odd, even = (estimated(compiled(dense(depth, n), "balanced")) for n in (units, units + 1))
    assert odd < 1.08 * even


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_speed_is_not_slower_over_the_corpus(path: Path, tmp_path: Path) -> None:
    programs = {goal: compiled(path, goal) for goal in ("balanced", "speed")}
    counts = {goal: counted(program, tmp_path / goal) for goal, program in programs.items()}
    guesses = {goal: estimated(program) for goal, program in programs.items()}
    row = (f"{goal} {guesses[goal]:,} estimated {counts[goal]:,} counted" for goal in programs)
    with Path(os.environ["MICROC_GOALS"]).open("a") as table:
        table.write(f"{path.stem}: {', '.join(row)}, {counts['speed'] / counts['balanced']:.3f}\n")
    assert guesses["speed"] <= SAME * guesses["balanced"]
    assert counts["speed"] <= SAME * counts["balanced"]
