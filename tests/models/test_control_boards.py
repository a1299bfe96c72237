# SPDX-License-Identifier: Apache-2.0
"""Control flow on an emulated Cortex-M4: the same bits as on the host, however often the data make a loop turn."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.run.session import Device
from tests.frontend.onnx.test_control import DTYPES, X, doubling, looping
from tests.frontend.onnx_model import proto
from tests.frontend.tflite.test_control import INT, WHILE, body, condition
from tests.frontend.tflite_model import Tensor, model
from tests.models.test_boards import TOOLS, firmware

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.cross,
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS)),
]


def test_a_while_that_data_end(tmp_path: Path) -> None:
    tensors = (Tensor("i", (), INT), Tensor("x", (3,)), Tensor("n", (), INT), Tensor("y", (3,)))
    path = tmp_path / "turns.tflite"
    path.write_bytes(model(tensors, (WHILE,), ("i", "x"), ("y",), (condition(5), body(1))))
    host = microc.compile(path)
    with Device(firmware(path, "mps2-an386", tmp_path)) as device:
        for start in (-7, 3, 5):
            arrays = np.array(start, np.int32), X
            np.testing.assert_array_equal(device.run(*arrays), host(*arrays))


def test_a_loop_that_stacks(tmp_path: Path) -> None:
    made = proto(
        [looping("n", "", doubling())], {"n": (), "x": (3,), "w": (3,)}, outputs=("y", "k2", "rows"), dtypes=DTYPES
    )
    made.graph.output[2].type.tensor_type.shape.dim.add().dim_value = 5
    made.graph.output[2].type.tensor_type.shape.dim.add().dim_value = 3
    path = tmp_path / "stack.onnx"
    path.write_bytes(made.SerializeToString())
    host = microc.compile(path)
    with Device(firmware(path, "mps2-an386", tmp_path)) as device:
        for turns in (0, 1, 5):
            arrays = np.array(turns, np.int64), X, X + 1
            for mine, wanted in zip(device.run(*arrays), host(*arrays), strict=True):
                np.testing.assert_array_equal(mine, wanted)
