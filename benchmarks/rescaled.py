# SPDX-License-Identifier: Apache-2.0
"""The same function with badly scaled channels: what training without weight decay, or folded normalisation, may leave behind.

Where a convolution's channels reach another through nothing but ReLU and pooling, each channel is multiplied by a random
factor and the next layer's weights are divided by it. ReLU and pooling commute with positive factors, so that the float
network stays what it was, while a quantiser that gives all channels one scale loses the small ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

LARGEST = 100.0
COMMUTES = ("Relu", "MaxPool", "AveragePool", "GlobalAveragePool")


def rescaled(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy whose convolutions' channels are scaled by factors from 1 to 100, evenly drawn in their logarithm."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    draw = np.random.default_rng(seed)
    constants = {c.name: c for c in found.graph.initializer}
    for node in found.graph.node:
        if node.op_type == "Conv" and (after := next_convolution(found.graph, node)) is not None:
            factors = np.exp(draw.uniform(0, np.log(LARGEST), constants[node.input[1]].dims[0]))
            for name in node.input[1:]:
                scale(constants[name], factors, 0)
            axis = 0 if constants[after.input[1]].dims[1] == 1 else 1
            scale(constants[after.input[1]], 1 / factors, axis)
    return found


def next_convolution(graph: onnx.GraphProto, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The convolution that alone reads a node's channels, each of them once; None where there is no such one."""
    users = [n for n in graph.node if node.output[0] in n.input]
    if len(users) != 1:
        return None
    if users[0].op_type == "Conv":
        return users[0]
    return next_convolution(graph, users[0]) if users[0].op_type in COMMUTES else None


def scale(constant: onnx.TensorProto, factors: Any, axis: int) -> None:
    """Multiply a constant along an axis, in place."""
    array = numpy_helper.to_array(constant)
    shape = [-1 if k == axis else 1 for k in range(array.ndim)]
    constant.CopyFrom(numpy_helper.from_array((array * factors.reshape(shape)).astype(array.dtype), constant.name))
