# SPDX-License-Identifier: Apache-2.0
"""The digits network as ONNX: float32, and QDQ int8 by onnxruntime's static quantiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from network import LAYERS, Params
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def write_float(path: Path, params: Params) -> None:
    """NCHW, as exporters write it. The dense weights are permuted to the order that flattening NCHW gives."""
    nodes, weights, value = [], [], "image"
    channels = 1
    for layer in LAYERS:
        weight, bias = params[f"{layer.name}_w"], params[f"{layer.name}_b"]
        if layer.kind == "dense":
            side = round((weight.shape[0] / channels) ** 0.5)
            weight = weight.reshape(side, side, channels, -1).transpose(2, 0, 1, 3).reshape(weight.shape)
            nodes.append(helper.make_node("Flatten", [value], ["flat"], name="flatten"))
            nodes.append(
                helper.make_node("Gemm", ["flat", f"{layer.name}_w", f"{layer.name}_b"], ["logits"], name=layer.name)
            )
        else:
            if layer.kind == "conv":
                weight, group = weight.transpose(3, 2, 0, 1), 1
            else:
                weight, group = weight.transpose(2, 0, 1)[:, None], channels
            pad = layer.kernel // 2
            inputs = [value, f"{layer.name}_w", f"{layer.name}_b"]
            nodes.append(
                helper.make_node(
                    "Conv", inputs, [layer.name], name=layer.name, group=group, kernel_shape=[layer.kernel] * 2,
                    strides=[layer.stride] * 2, pads=[pad] * 4,
                )
            )  # fmt: skip
            nodes.append(helper.make_node("Relu", [layer.name], [f"{layer.name}_relu"], name=f"{layer.name}_relu"))
            value, channels = f"{layer.name}_relu", layer.channels
        weights.append(numpy_helper.from_array(np.ascontiguousarray(weight), f"{layer.name}_w"))
        weights.append(numpy_helper.from_array(bias, f"{layer.name}_b"))
    nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def write_qdq(source: Path, target: Path, images: Any) -> None:
    """Static quantisation, per channel, calibrated on ``images`` (NHWC)."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            row = next(self.rows, None)
            return None if row is None else {"image": row.transpose(2, 0, 1)[None]}

    quantize_static(
        str(source), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
