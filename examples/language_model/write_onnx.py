# SPDX-License-Identifier: Apache-2.0
"""The trained weights as an ONNX file of one step: a token and the caches go in, the next token and the caches come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from network import BLOCK, Shape, angles, bits_of, levels
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
MICROSOFT = "com.microsoft"


class Writer:
    """Nodes, constants, inputs and outputs so far."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def node(self, code: str, inputs: list[str], outputs: list[str], domain: str = "", **attrs: Any) -> str:
        self.nodes.append(helper.make_node(code, inputs, outputs, name=outputs[0], domain=domain, **attrs))
        return outputs[0]

    def constant(self, name: str, data: Array) -> str:
        self.constants[name] = data
        return name

    def product(self, x: str, name: str) -> str:
        """Rows times weights that are packed, the lowest numbers of a byte first."""
        weight, bits = self.weights[name], bits_of(name)
        numbers, scales = levels(weight, bits)
        whole = (numbers + (1 << (bits - 1))).astype(np.uint8)
        packed = whole[:, :, ::2] | whole[:, :, 1::2] << 4 if bits == 4 else whole
        operands = [x, self.constant(f"{name}.levels", packed), self.constant(f"{name}.scales", scales.reshape(-1))]
        sizes = {"N": weight.shape[0], "K": weight.shape[1], "bits": bits, "block_size": BLOCK}
        return self.node("MatMulNBits", operands, [f"{name}.out"], MICROSOFT, **sizes)

    def value(self, ends: list[Any], name: str, kind: int, shape: tuple[int, ...]) -> str:
        ends.append(helper.make_tensor_value_info(name, kind, shape))
        return name


def write(path: Path, weights: dict[str, Array], shape: Shape, letters: str) -> None:
    """``letters`` are kept with the model, in the order of their tokens."""
    made = Writer(weights)
    token = made.value(made.inputs, "token", TensorProto.INT32, (1, 1))
    position = made.value(made.inputs, "position", TensorProto.INT32, (1, 1))
    embedding = made.constant("embedding", weights["embedding"])
    skip, new = made.node("Gather", [embedding, token], ["embedded"]), ""
    shared = [made.constant("positions", np.array(shape.room, np.int32))]
    shared += [made.constant(name, table) for name, table in zip(("cosines", "sines"), angles(shape), strict=True)]
    for k in range(shape.layers):
        skip, rows = normed(made, skip, new, f"{k}.norm")
        cache = (1, shape.shared, shape.room, shape.width)
        past = [made.value(made.inputs, f"past_{n}_{k}", TensorProto.FLOAT, cache) for n in ("key", "value")]
        present = [made.value(made.outputs, f"present_{n}_{k}", TensorProto.FLOAT, cache) for n in ("key", "value")]
        heads = made.product(rows, f"{k}.heads")
        operands = [heads, "", "", *past, position, *shared]
        sizes = {"num_heads": shape.queries, "kv_num_heads": shape.shared, "do_rotary": 1}
        found = made.node("GroupQueryAttention", operands, [f"{k}.found", *present], MICROSOFT, **sizes)
        skip, rows = normed(made, skip, made.product(found, f"{k}.joined"), f"{k}.second_norm")
        gate, up = (made.product(rows, f"{k}.{name}") for name in ("gate", "up"))
        share = made.node("Sigmoid", [gate], [f"{k}.share"])
        open_gate = made.node("Mul", [gate, share], [f"{k}.open"])
        new = made.product(made.node("Mul", [open_gate, up], [f"{k}.inner"]), f"{k}.down")
    _, rows = normed(made, skip, new, "norm")
    scores = made.product(rows, "head")
    made.node("ArgMax", [scores], ["next"], axis=-1, keepdims=0)
    made.value(made.outputs, "next", TensorProto.INT64, (1, 1))
    made.node("Add", [position, made.constant("one", np.array([[1]], np.int32))], ["next_position"])
    made.value(made.outputs, "next_position", TensorProto.INT32, (1, 1))
    made.outputs.insert(0, made.outputs.pop(-2))
    constants = [numpy_helper.from_array(data, name) for name, data in made.constants.items()]
    graph = helper.make_graph(made.nodes, "language_model", made.inputs, made.outputs, constants)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=8)
    helper.set_model_props(model, {"letters": letters})
    onnx.save_model(model, path)


def normed(made: Writer, x: str, new: str, name: str) -> tuple[str, str]:
    """The sum of both (or the first alone), and its norm."""
    scale = made.constant(name, made.weights[name])
    if not new:
        return x, made.node("SimplifiedLayerNormalization", [x, scale], [f"{name}.out"], axis=-1, epsilon=1e-5)
    outputs = [f"{name}.out", "", "", f"{name}.sum"]
    made.node("SkipSimplifiedLayerNormalization", [x, new, scale], outputs, MICROSOFT, epsilon=1e-5)
    return outputs[3], outputs[0]
