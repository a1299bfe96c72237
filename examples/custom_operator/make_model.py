# SPDX-License-Identifier: Apache-2.0
"""Writes model.onnx: a convolution with the activation Snake on an image, and the Magnitude of a spectrum."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make() -> onnx.ModelProto:
    weight = np.random.default_rng(1).normal(0, 0.4, (4, 1, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["features"], pads=[1, 1, 1, 1]),
        helper.make_node("Snake", ["features"], ["activated"], domain="com.example", alpha=0.5),
        helper.make_node("Magnitude", ["spectrum"], ["loudness"], domain="com.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "custom",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8]),
            helper.make_tensor_value_info("spectrum", TensorProto.INT16, [65, 2]),
        ],
        [
            helper.make_tensor_value_info("activated", TensorProto.FLOAT, [1, 4, 8, 8]),
            helper.make_tensor_value_info("loudness", TensorProto.INT32, [65]),
        ],
        [numpy_helper.from_array(weight, "weight")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "model.onnx"
    onnx.save(make(), target)
    print(f"{target} written")
