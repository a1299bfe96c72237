# SPDX-License-Identifier: Apache-2.0
"""Convolutional and dense ONNX networks as TFLite files, for a quantiser that reads no other format.

Data become NHWC and ReLU part of the operator before it, as TensorFlow's converter does: what a quantiser sees there decides its
ranges. Recurrent layers and attention are not covered: ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from onnx import helper, numpy_helper

OPERATOR, OPTIONS, PADDING = schema.BuiltinOperator, schema.BuiltinOptions, schema.Padding
RELU = schema.ActivationFunctionType.RELU


class Twin:
    """A TFLite network under construction; tensors by the names that their ONNX values have."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = onnx.shape_inference.infer_shapes(model).graph
        self.constants = {c.name: numpy_helper.to_array(c) for c in self.graph.initializer}
        values = (*self.graph.input, *self.graph.output, *self.graph.value_info)
        self.shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        self.tensors: list[Any] = []
        self.numbers: dict[str, int] = {}
        self.buffers: list[Any] = [schema.BufferT()]
        self.codes: list[int] = []
        self.operators: list[Any] = []

    def tensor(self, name: str, shape: Any, data: Any = None) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.buffer = name.encode(), [int(n) for n in shape], 0
        made.type = schema.TensorType.FLOAT32 if data is None or data.dtype == np.float32 else schema.TensorType.INT32
        if data is not None:
            made.buffer = len(self.buffers)
            self.buffers.append(schema.BufferT())
            self.buffers[-1].data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.tensors.append(made)
        return len(self.tensors) - 1

    def constant(self, data: Any) -> int:
        return self.tensor(f"constant{len(self.tensors)}", data.shape, data)

    def ints(self, *values: Any) -> int:
        return self.constant(np.array(values, np.int32))

    def value(self, name: str) -> int:
        """The tensor of an ONNX value, made when it is first named."""
        if name not in self.numbers:
            n, *rest = self.shapes[name]
            self.numbers[name] = self.tensor(name, (n, *rest[1:], rest[0]) if len(rest) == 3 else (n, *rest))
        return self.numbers[name]

    def operator(self, kind: str, options: Any, inputs: list[int], output: int, version: int = 1) -> None:
        made, code = schema.OperatorT(), (getattr(OPERATOR, kind), version)
        if code not in self.codes:
            self.codes.append(code)
        made.opcodeIndex, made.inputs, made.outputs = self.codes.index(code), inputs, [output]
        if options is not None:
            made.builtinOptions = options
            made.builtinOptionsType = getattr(OPTIONS, type(options).__name__[:-1])
        self.operators.append(made)

    def bytes(self) -> bytes:
        graph, model = schema.SubGraphT(), schema.ModelT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs = [self.value(v.name) for v in self.graph.input]
        graph.outputs = [self.value(v.name) for v in self.graph.output]
        for kind, version in self.codes:
            code = schema.OperatorCodeT()
            code.builtinCode, code.deprecatedBuiltinCode, code.version = kind, min(kind, 127), version
            model.operatorCodes = [*(model.operatorCodes or ()), code]
        model.version, model.subgraphs, model.buffers = 3, [graph], self.buffers
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def windowed(twin: Twin, x: str, attrs: Mapping[str, Any], options: Any) -> int:
    """The data of a window, padded before it where TFLite's SAME, which pads the end more, would be another one."""
    pads, strides = attrs.get("pads", [0, 0, 0, 0]), attrs.get("strides", [1, 1])
    options.strideH, options.strideW = strides
    same = any(pads) and strides == [1, 1]
    options.padding = PADDING.SAME if same else PADDING.VALID
    if same or not any(pads):
        return twin.value(x)
    top, left, bottom, right = pads
    n, c, h, w = twin.shapes[x]
    padded = twin.tensor(f"{x}_padded", (n, h + top + bottom, w + left + right, c))
    paddings = twin.constant(np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32))
    twin.operator("PAD", schema.PadOptionsT(), [twin.value(x), paddings], padded)
    return padded


def conv(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    weight, bias = twin.constants[node.input[1]], twin.constants[node.input[2]]
    depthwise = attrs["group"] > 1
    options = schema.DepthwiseConv2DOptionsT() if depthwise else schema.Conv2DOptionsT()
    options.dilationHFactor = options.dilationWFactor = 1
    options.fusedActivationFunction = RELU if relu else 0
    if depthwise:
        options.depthMultiplier = 1
    data = windowed(twin, node.input[0], attrs, options)
    moved = weight.transpose(1, 2, 3, 0) if depthwise else weight.transpose(0, 2, 3, 1)
    inputs = [data, twin.constant(moved), twin.constant(bias)]
    twin.operator("DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", options, inputs, twin.value(output))


def transposed_conv(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    options = schema.TransposeConvOptionsT()
    options.strideH, options.strideW = attrs["strides"]
    options.padding, options.fusedActivationFunction = PADDING.VALID, RELU if relu else 0
    n, c, h, w = twin.shapes[output]
    weight = twin.constant(twin.constants[node.input[1]].transpose(1, 2, 3, 0))
    inputs = [twin.ints(n, h, w, c), weight, twin.value(node.input[0]), twin.constant(twin.constants[node.input[2]])]
    twin.operator("TRANSPOSE_CONV", options, inputs, twin.value(output), 4 if relu else 3)


def dense(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    weight = twin.constants[node.input[1]]
    options = schema.FullyConnectedOptionsT()
    options.fusedActivationFunction = RELU if relu else 0
    rows = weight if attrs.get("transB") else weight.T
    inputs = [twin.value(node.input[0]), twin.constant(rows), twin.constant(twin.constants[node.input[2]])]
    twin.operator("FULLY_CONNECTED", options, inputs, twin.value(output))


def max_pool(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    options = schema.Pool2DOptionsT()
    options.filterHeight, options.filterWidth = attrs["kernel_shape"]
    twin.operator("MAX_POOL_2D", options, [windowed(twin, node.input[0], attrs, options)], twin.value(output))


def add(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    options = schema.AddOptionsT()
    options.fusedActivationFunction = RELU if relu else 0
    twin.operator("ADD", options, [twin.value(name) for name in node.input], twin.value(output))


def concat(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    options = schema.ConcatenationOptionsT()
    options.axis = 3
    twin.operator("CONCATENATION", options, [twin.value(name) for name in node.input], twin.value(output))


def mean(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    options = schema.ReducerOptionsT()
    options.keepDims = True
    twin.operator("MEAN", options, [twin.value(node.input[0]), twin.ints(1, 2)], twin.value(output))


def flatten(twin: Twin, node: onnx.NodeProto, attrs: Mapping[str, Any], output: str, relu: bool) -> None:
    """A reshape of NCHW, hence a transposition before it."""
    n, c, h, w = twin.shapes[node.input[0]]
    moved = twin.tensor(f"{output}_moved", (n, c, h, w))
    twin.operator("TRANSPOSE", schema.TransposeOptionsT(), [twin.value(node.input[0]), twin.ints(0, 3, 1, 2)], moved)
    options = schema.ReshapeOptionsT()
    options.newShape = [n, c * h * w]
    twin.operator("RESHAPE", options, [moved, twin.ints(n, c * h * w)], twin.value(output))


WRITERS: Mapping[str, Callable[[Twin, onnx.NodeProto, Mapping[str, Any], str, bool], None]] = {
    "Conv": conv,
    "ConvTranspose": transposed_conv,
    "Gemm": dense,
    "MaxPool": max_pool,
    "Add": add,
    "Concat": concat,
    "ReduceMean": mean,
    "Reshape": flatten,
}
FUSES = ("Conv", "ConvTranspose", "Gemm", "Add")


def tflite_twin(path: Path) -> bytes:
    """The same network as a TFLite file. ValueError for operators and ranks that are not covered."""
    twin = Twin(onnx.load(path))
    nodes = list(twin.graph.node)
    done: set[str] = set()
    for node in nodes:
        if node.output[0] in done:
            continue
        if node.op_type not in WRITERS or len(twin.shapes[node.input[0]]) not in (2, 4):
            raise ValueError(f"{node.op_type} of {len(twin.shapes[node.input[0]])} axes has no TFLite form here")
        users = [user for user in nodes if node.output[0] in user.input]
        relu = node.op_type in FUSES and len(users) == 1 and users[0].op_type == "Relu"
        output = users[0].output[0] if relu else node.output[0]
        done.add(output)
        WRITERS[node.op_type](twin, node, {a.name: helper.get_attribute_value(a) for a in node.attribute}, output, relu)
    return twin.bytes()
