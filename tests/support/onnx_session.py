# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with a model, as near to the same on every computer as it is.

Where x86 has no VNNI its products of uint8 and int8 saturate: sums of two leave 16 bits. Models in QDQ form are right there as
long as their operators are not fused; operators on bytes are not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper


def session(model: bytes | Path, *, fused: bool = True) -> Any:
    """A quiet session on one thread; ``fused``: with the runtime's optimisations, where these are exact."""
    return _session(model, fused=fused and not saturates())


@cache
def saturates() -> bool:
    """Whether 255 * 127 + 255 * 127 is less than that here."""
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 2))
    w = helper.make_tensor_value_info("w", TensorProto.INT8, (2, 1))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, (1, 1))
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "sum", [x, w], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    given = {"x": np.full((1, 2), 255, np.uint8), "w": np.full((2, 1), 127, np.int8)}
    return int(_session(model.SerializeToString(), fused=True).run(None, given)[0][0, 0]) != 2 * 255 * 127


def skip_if_saturating() -> None:
    """Skip a test of operators on bytes where they are wrong."""
    if saturates():
        pytest.skip("ONNX Runtime's products of uint8 and int8 saturate on this computer")


def _session(model: bytes | Path, *, fused: bool) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not fused:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
