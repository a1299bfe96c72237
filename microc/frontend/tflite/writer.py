# SPDX-License-Identifier: Apache-2.0
"""Writer of TFLite models: converts quantised int8 graphs of microc to a TFLite flatbuffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import flatbuffers
import numpy as np
import tflite

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UnsupportedError
from microc.frontend.tflite.context import ACTIVATIONS, compute_same_padding
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops.attributes import Rounding

# ---- Conversion of one int8 node to a TFLite operator, or to a PAD and an operator.
#
# These functions are the inverse of the reader's converters (``frontend/tflite/operators_layers.py`` and others).

OptionValue = bool | int | float | tuple[int, ...]
_SAME, _VALID = 0, 1
_NO_PADDING = (0, 0, 0, 0)
_NO_FIELDS: Mapping[str, OptionValue] = {}


@frozen
class TfliteOperator:
    """A TFLite operator to be written.

    ``code`` is the builtin operator's name, ``version`` its version in the model. ``inputs`` and ``outputs`` are names
    of tensors; "" is an optional input that is absent. ``options_table`` is the schema's name of the options table, ""
    for no options. ``fields`` maps fields of this table to values."""

    code: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options_table: str = ""
    fields: Mapping[str, OptionValue] = field(default_factory=dict)

    def rename_tensors(self, names: Mapping[str, str]) -> TfliteOperator:
        """Return the operator with all of its tensors renamed; ``names`` maps old names to new ones."""
        ends = [tuple(names[name] for name in side) for side in (self.inputs, self.outputs)]
        return replace(self, inputs=ends[0], outputs=ends[1])


@frozen
class WrittenNode:
    """TFLite operators that compute one node of a graph.

    ``tensors`` contains the tensors that no other node uses, by name: weights, options that TFLite passes as operands,
    padded data. Each has a type, and data if it is a constant."""

    operators: tuple[TfliteOperator, ...]
    tensors: Mapping[str, tuple[TensorType, Array | None]]


def convert_node(graph: Graph, node: Node) -> WrittenNode:
    """Convert a node whose first input and outputs are int8 to TFLite operators; UnsupportedError if that is not
    possible."""
    node_writer = _NodeWriter(graph, node)
    if node.op not in WRITERS:
        node_writer.refuse("no TFLite operator is written for this operator")
    for name in (*node.inputs[:1], *node.outputs):
        type_ = graph.types[name]
        if type_.dtype != "int8" or type_.quant is None or type_.quant.axis is not None:
            node_writer.refuse(
                f"value {name!r}: got {type_.dtype}{'' if type_.quant else ' without a scale'}, expected int8 with one scale"
            )
    if (rounding := node.attrs.get("rounding", Rounding.DOUBLE)) != Rounding.DOUBLE:
        node_writer.refuse(f"rounding: got {rounding}, expected {Rounding.DOUBLE} (two roundings, as in TFLite)")
    WRITERS[node.op](node_writer)
    return WrittenNode(tuple(node_writer.operators), node_writer.tensors)


class _NodeWriter:
    """Writer of one node as TFLite operators.

    It reads the types, constants and attributes of the node, and collects the operators and tensors written so far."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.operators: list[TfliteOperator] = []
        self.tensors: dict[str, tuple[TensorType, Array | None]] = {}

    def refuse(self, why: str) -> None:
        """Raise UnsupportedError with the reason ``why``. microc's own kernel then computes the node."""
        raise UnsupportedError(why, where=str(self.node.loc), hint="microc's own kernel computes this layer")

    def input_type(self, position: int) -> TensorType:
        return self.graph.types[self.node.inputs[position]]

    @property
    def result_type(self) -> TensorType:
        return self.graph.types[self.node.outputs[0]]

    def read_constant(self, position: int) -> Array:
        """Return the data of a constant input."""
        array = self.graph.consts.get(self.node.inputs[position])
        if array is None:
            self.refuse(f"input {position}: got a computed tensor, expected a constant")
        assert array is not None
        return array

    def add_tensor(self, name_stem: str, type_: TensorType, data: Array | None = None) -> str:
        """Add a tensor that no other node uses; return its name, made from ``name_stem`` and the node's output."""
        self.tensors[f"{name_stem} of {self.node.outputs[0]}"] = (type_, data)
        return f"{name_stem} of {self.node.outputs[0]}"

    def add_int32_constant(self, name_stem: str, *values: object) -> str:
        """Add an int32 constant that no other node uses; return its name, made from ``name_stem`` and the node's
        output."""
        array = np.array(values, np.int32)
        return self.add_tensor(name_stem, TensorType(array.shape, "int32"), array)

    def add_operator(
        self,
        builtin_operator: str,
        inputs: tuple[str, ...],
        options_table: str,
        fields: Mapping[str, OptionValue] = _NO_FIELDS,
        operator_version: int = 2,
    ) -> None:
        """Add a TFLite operator that computes the node's output."""
        self.operators.append(
            TfliteOperator(builtin_operator, operator_version, inputs, self.node.outputs[:1], options_table, fields)
        )

    def activation_code(self) -> int:
        """Return TFLite's number of the node's fused activation.

        Refuse the node if the activation is not one of the first four of ACTIVATIONS, which TFLite's int8 kernels
        compute."""
        name = str(self.node.attrs.get("activation", ""))
        if name not in ACTIVATIONS[:4]:
            self.refuse(f"activation: got {name}, expected one of {', '.join(ACTIVATIONS[1:4])}")
        return ACTIVATIONS.index(name)

    def require_attribute_values(self, **expected_values: object) -> None:
        """Refuse the node if one of its attributes differs from the value given for it in ``expected_values``.

        For attributes that TFLite has no field for: it always computes as if they had this value."""
        for name, value in expected_values.items():
            if self.node.attrs.get(name, value) not in (value, None):
                self.refuse(f"{name}: got {self.node.attrs[name]}, expected {value}")

    def require_same_quantisation(self) -> None:
        """Refuse the node if an operand's quantisation differs from the result's. TFLite does not rescale in such
        operators."""
        quants = [self.graph.types[name].quant for name in self.node.inputs]
        if any(quant != self.result_type.quant for quant in quants):
            self.refuse(
                "quantisation: got operands and result with different scales or zero points, expected equal ones"
            )

    def add_weights_and_bias(self, axis_order: tuple[int, ...], scale_axis: int) -> tuple[str, ...]:
        """Add the node's weights and its bias, if any; return their names.

        ``axis_order`` transposes the weights to TFLite's layout. Weights must be int8 with zero point 0, and have one
        scale, or one scale for each index along the axis ``scale_axis`` of TFLite's layout."""
        type_, data = self.input_type(1), self.read_constant(1)
        if type_.dtype != "int8" or type_.quant is None or any(type_.quant.zero_point):
            self.refuse(f"weights: got {type_.dtype}, expected int8 with zero point 0")
        assert type_.quant is not None
        array = data.transpose(axis_order)
        quant = replace(type_.quant, axis=None if type_.quant.axis is None else scale_axis)
        names = [self.add_tensor("weight", TensorType(array.shape, "int8", quant), array)]
        if len(self.node.inputs) > 2 and self.node.inputs[2]:
            bias = self.read_constant(2).reshape(-1)
            if str(bias.dtype) != "int32":
                self.refuse(f"bias: got {bias.dtype}, expected int32")
            data_quant = self.input_type(0).quant
            assert data_quant is not None
            scale = tuple(
                float(np.float32(data_quant.scale[0]) * np.float32(weight_scale)) for weight_scale in quant.scale
            )
            bias_quant = Quant(scale, (0,) * len(scale), 0 if len(scale) > 1 else None)
            names.append(self.add_tensor("bias", TensorType(bias.shape, "int32", bias_quant), bias))
        return tuple(names)

    def prepare_window_data_and_fields(
        self, kernel_extents: tuple[int, ...], *, allows_pad_operator: bool
    ) -> tuple[str, dict[str, OptionValue]]:
        """Return the name of the data operand of a convolution or pool, and its option fields for strides and padding.

        TFLite has the padding schemes SAME and VALID only. Any other padding becomes a PAD operator before this one if
        ``allows_pad_operator`` is True; otherwise the node is refused."""
        data, strides, padding = self.input_type(0), self.node.attr("strides"), self.node.attr("padding")
        dilation = self.node.attr("dilation") if "dilation" in self.node.attrs else (1, 1)
        fields: dict[str, OptionValue] = {"StrideH": strides[0], "StrideW": strides[1], "Padding": _VALID}
        if padding == _NO_PADDING:
            return self.node.inputs[0], fields
        if padding == compute_same_padding(data.shape[1:3], kernel_extents, strides, dilation):
            return self.node.inputs[0], {**fields, "Padding": _SAME}
        if not allows_pad_operator or min(padding) < 0:
            self.refuse(f"padding: got {padding}, expected TFLite's SAME or VALID")
        top, left, bottom, right = padding
        n, height, width, channels = data.shape
        shape = (n, height + top + bottom, width + left + right, channels)
        padded = self.add_tensor("padded", replace(data, shape=shape))
        amounts = self.add_int32_constant("paddings", (0, 0), (top, bottom), (left, right), (0, 0))
        self.operators.append(TfliteOperator("PAD", 2, (self.node.inputs[0], amounts), (padded,), "PadOptions"))
        return padded, fields


def _write_conv_2d(writer: _NodeWriter) -> None:
    """Write CONV_2D, or DEPTHWISE_CONV_2D if every input channel is a group of its own."""
    writer.require_attribute_values(layout="NHWC", pad_value=0, out_dtype="")
    weight, groups = writer.input_type(1).shape, writer.node.attr("groups")
    if groups != 1 and (groups != writer.input_type(0).shape[3] or weight[3] != 1):
        writer.refuse(f"groups: got {groups}, expected 1 or the number of input channels")
    data, fields = writer.prepare_window_data_and_fields(weight[1:3], allows_pad_operator=True)
    dilation = writer.node.attr("dilation")
    fields |= {
        "DilationHFactor": dilation[0],
        "DilationWFactor": dilation[1],
        "FusedActivationFunction": writer.activation_code(),
    }
    if groups == 1:
        writer.add_operator(
            "CONV_2D", (data, *writer.add_weights_and_bias((0, 1, 2, 3), 0)), "Conv2DOptions", fields, 3
        )
    else:
        fields["DepthMultiplier"] = weight[0] // groups
        operands = (data, *writer.add_weights_and_bias((3, 1, 2, 0), 3))
        writer.add_operator("DEPTHWISE_CONV_2D", operands, "DepthwiseConv2DOptions", fields, 3)


def _write_transpose_conv(writer: _NodeWriter) -> None:
    """Write TRANSPOSE_CONV.

    TFLite's padding scheme applies to the convolution in the opposite direction, from the result to the data."""
    writer.require_attribute_values(groups=1, dilation=(1, 1), out_dtype="")
    strides, shape, kernel = writer.node.attr("strides"), writer.result_type.shape, writer.input_type(1).shape[1:3]
    same = compute_same_padding(shape[1:3], kernel, strides)
    full = [(n - 1) * s + k for n, s, k in zip(writer.input_type(0).shape[1:3], strides, kernel, strict=True)]
    scheme = next(
        (
            number
            for number, (top, left, _, _) in ((_SAME, same), (_VALID, _NO_PADDING))
            if tuple(writer.node.attr("padding")) == (top, left, full[0] - top - shape[1], full[1] - left - shape[2])
        ),
        None,
    )
    if scheme is None:
        writer.refuse(f"padding: got {writer.node.attr('padding')}, expected TFLite's SAME or VALID")
    fields: dict[str, OptionValue] = {"StrideH": strides[0], "StrideW": strides[1], "Padding": scheme or 0}
    fields["FusedActivationFunction"] = writer.activation_code()
    weight, *bias = writer.add_weights_and_bias((0, 1, 2, 3), 0)
    operands = (writer.add_int32_constant("shape", *shape), weight, writer.node.inputs[0], *bias)
    writer.add_operator("TRANSPOSE_CONV", operands, "TransposeConvOptions", fields, 3)


def _write_fully_connected(writer: _NodeWriter) -> None:
    """Write FULLY_CONNECTED."""
    writer.require_attribute_values(out_dtype="")
    fields: dict[str, OptionValue] = {"FusedActivationFunction": writer.activation_code()}
    writer.add_operator(
        "FULLY_CONNECTED",
        (writer.node.inputs[0], *writer.add_weights_and_bias((0, 1), 0)),
        "FullyConnectedOptions",
        fields,
        4,
    )


def _make_pool_writer(builtin_operator: str) -> Callable[[_NodeWriter], None]:
    """Return the function that writes a node as the pooling operator ``builtin_operator``."""

    def write_pool(writer: _NodeWriter) -> None:
        writer.require_attribute_values(layout="NHWC", count_include_pad=False)
        writer.require_same_quantisation()
        kernel = writer.node.attr("kernel")
        data, fields = writer.prepare_window_data_and_fields(kernel, allows_pad_operator=False)
        fields |= {
            "FilterHeight": kernel[0],
            "FilterWidth": kernel[1],
            "FusedActivationFunction": writer.activation_code(),
        }
        writer.add_operator(builtin_operator, (data,), "Pool2DOptions", fields)

    return write_pool


def _make_binary_writer(builtin_operator: str, options_table: str) -> Callable[[_NodeWriter], None]:
    """Return the function that writes a node of two int8 operands, with its fused activation."""

    def write_binary(writer: _NodeWriter) -> None:
        types = [writer.input_type(k) for k in range(2)]
        if any(type_.dtype != "int8" or type_.quant is None or type_.quant.axis is not None for type_ in types):
            writer.refuse("operands: expected int8 with one scale each")
        writer.add_operator(
            builtin_operator, writer.node.inputs, options_table, {"FusedActivationFunction": writer.activation_code()}
        )

    return write_binary


def _make_unary_writer(builtin_operator: str, options_table: str = "") -> Callable[[_NodeWriter], None]:
    """Return the function that writes a node as an operator whose options all have default values."""
    return lambda writer: writer.add_operator(builtin_operator, writer.node.inputs, options_table)


def _write_concatenation(writer: _NodeWriter) -> None:
    writer.require_same_quantisation()
    writer.add_operator("CONCATENATION", writer.node.inputs, "ConcatenationOptions", {"Axis": writer.node.attr("axis")})


def _write_reshape(writer: _NodeWriter) -> None:
    shape = writer.result_type.shape
    writer.add_operator(
        "RESHAPE",
        (writer.node.inputs[0], writer.add_int32_constant("shape", *shape)),
        "ReshapeOptions",
        {"NewShape": shape},
        1,
    )


def _write_softmax(writer: _NodeWriter) -> None:
    rank = len(writer.result_type.shape)
    if writer.node.attr("axis") not in (-1, rank - 1):
        writer.refuse(f"axis: got {writer.node.attr('axis')}, expected the last axis")
    writer.add_operator("SOFTMAX", writer.node.inputs, "SoftmaxOptions", {"Beta": float(writer.node.attr("beta"))})


def _write_leaky_relu(writer: _NodeWriter) -> None:
    """Write LEAKY_RELU."""
    writer.add_operator(
        "LEAKY_RELU", writer.node.inputs, "LeakyReluOptions", {"Alpha": float(writer.node.attr("alpha"))}
    )


def _write_slice(writer: _NodeWriter) -> None:
    if any(step != 1 for step in writer.node.attr("strides")):
        writer.refuse(f"strides: got {writer.node.attr('strides')}, expected 1 along every axis")
    writer.require_same_quantisation()
    parts = (
        writer.add_int32_constant("begin", *writer.node.attr("begin")),
        writer.add_int32_constant("size", *writer.result_type.shape),
    )
    writer.add_operator("SLICE", (writer.node.inputs[0], *parts), "SliceOptions")


def _write_transpose(writer: _NodeWriter) -> None:
    writer.add_operator(
        "TRANSPOSE",
        (writer.node.inputs[0], writer.add_int32_constant("axes", *writer.node.attr("axes"))),
        "TransposeOptions",
    )


def _write_prelu(writer: _NodeWriter) -> None:
    writer.read_constant(1)
    writer.add_operator("PRELU", writer.node.inputs, "")


def _write_mean(writer: _NodeWriter) -> None:
    if not prod(writer.result_type.shape):
        writer.refuse("result: got no elements, expected at least one")
    axes = writer.add_int32_constant("axes", *writer.node.attr("axes"))
    writer.add_operator(
        "MEAN", (writer.node.inputs[0], axes), "ReducerOptions", {"KeepDims": bool(writer.node.attr("keepdims"))}
    )


WRITERS: Mapping[str, Callable[[_NodeWriter], None]] = {
    "add": _make_binary_writer("ADD", "AddOptions"),
    "avg_pool2d": _make_pool_writer("AVERAGE_POOL_2D"),
    "concat": _write_concatenation,
    "conv2d": _write_conv_2d,
    "conv2d_transpose": _write_transpose_conv,
    "dense": _write_fully_connected,
    "hard_swish": _make_unary_writer("HARD_SWISH", "HardSwishOptions"),
    "leaky_relu": _write_leaky_relu,
    "max_pool2d": _make_pool_writer("MAX_POOL_2D"),
    "mean": _write_mean,
    "mul": _make_binary_writer("MUL", "MulOptions"),
    "prelu": _write_prelu,
    "relu": _make_unary_writer("RELU"),
    "reshape": _write_reshape,
    "sigmoid": _make_unary_writer("LOGISTIC"),
    "slice": _write_slice,
    "softmax": _write_softmax,
    "sub": _make_binary_writer("SUB", "SubOptions"),
    "tanh": _make_unary_writer("TANH"),
    "transpose": _write_transpose,
}
"""Functions that write a node as TFLite operators, by microc's name of the node's operator."""


# ---- A whole graph as a TFLite flatbuffer of schema version 3.

_LAST_OF_A_BYTE = 127
"""Value of the deprecated 8-bit field ``deprecated_builtin_code`` for all operator numbers of 127 or more."""


def to_tflite(graph: Graph) -> bytes:
    """Convert a graph without state to a TFLite model; return the bytes of the file.

    Values are named ``t0_``, ``t1_`` ... in the order of ``graph.types``. The name of a tensor that only one node uses
    begins with the name of the node's result. Names end in ``_``, which keeps them readable if a tool appends text.

    UnsupportedError for an operator, dtype or attribute that cannot be written.
    """
    names = tflite_names(graph)
    layers = [convert_node(graph, node) for node in graph.nodes]
    tensors = {names[name]: (type_, graph.consts.get(name)) for name, type_ in graph.types.items()}
    operators = []
    for k, node in enumerate(layers):
        own = {name: f"{names[node.operators[-1].outputs[0]]}{k}_{n}" for n, name in enumerate(node.tensors)}
        tensors |= {own[name]: tensor for name, tensor in node.tensors.items()}
        operators += [operator.rename_tensors({**names, **own, "": ""}) for operator in node.operators]
    used = {name for operator in operators for name in (*operator.inputs, *operator.outputs)}
    ends = [tuple(names[name] for name in side) for side in (graph.inputs, graph.outputs)]
    used_tensors = {name: tensor for name, tensor in tensors.items() if name in used or name in ends[0]}
    return _ModelFlatbuffer(used_tensors).serialise(operators, *ends)


def tflite_names(graph: Graph) -> Mapping[str, str]:
    """Return the tensor names of a written TFLite model, by value of the graph."""
    return {name: f"t{k}_" for k, name in enumerate(graph.types)}


@dataclass
class _ModelFlatbuffer:
    """The flatbuffer of a TFLite model under construction.

    ``tensors`` contains the type of each tensor, and its data if it is a constant, by name. ``buffers`` collects the
    data of constants. A flatbuffer is written from its end: a table must be written before any table that refers to
    it."""

    tensors: Mapping[str, tuple[TensorType, Array | None]]
    builder: Any = field(default_factory=lambda: flatbuffers.Builder(1024))
    buffers: list[bytes] = field(default_factory=lambda: [b""])

    def serialise(self, operators: Sequence[TfliteOperator], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """Write the model; return the bytes of the file. ``inputs`` and ``outputs`` are names of tensors."""
        numbers = {name: k for k, name in enumerate(self.tensors)} | {"": -1}
        codes = list(dict.fromkeys((operator.code, operator.version) for operator in operators))
        tensors = self._write_offset_vector([self._write_tensor(name, *entry) for name, entry in self.tensors.items()])
        operator_offsets = self._write_offset_vector(
            [self._write_operator(operator, codes, numbers) for operator in operators]
        )
        ends = [self._write_number_vector([numbers[name] for name in side], np.int32) for side in (inputs, outputs)]
        tflite.SubGraphStart(self.builder)
        tflite.SubGraphAddTensors(self.builder, tensors)
        tflite.SubGraphAddInputs(self.builder, ends[0])
        tflite.SubGraphAddOutputs(self.builder, ends[1])
        tflite.SubGraphAddOperators(self.builder, operator_offsets)
        graphs = self._write_offset_vector([int(tflite.SubGraphEnd(self.builder))])
        buffers = self._write_offset_vector([self._write_buffer(data) for data in self.buffers])
        code_offsets = self._write_offset_vector([self._write_operator_code(*code) for code in codes])
        tflite.ModelStart(self.builder)
        tflite.ModelAddVersion(self.builder, 3)
        tflite.ModelAddOperatorCodes(self.builder, code_offsets)
        tflite.ModelAddSubgraphs(self.builder, graphs)
        tflite.ModelAddBuffers(self.builder, buffers)
        self.builder.Finish(tflite.ModelEnd(self.builder), b"TFL3")
        return bytes(self.builder.Output())

    def _write_offset_vector(self, table_offsets: Sequence[int]) -> int:
        """Write a vector of offsets of tables; return the offset of the vector."""
        self.builder.StartVector(4, len(table_offsets), 4)
        for offset in reversed(table_offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def _write_number_vector(self, values: Sequence[float], dtype: Any) -> int:
        """Write a vector of numbers of ``dtype``; return the vector's offset."""
        return int(self.builder.CreateNumpyVector(np.asarray(values, dtype)))

    def _write_buffer(self, data: bytes) -> int:
        """Write a Buffer table with the bytes of a constant; return the table's offset."""
        vector = self.builder.CreateNumpyVector(np.frombuffer(data, np.uint8)) if data else 0
        tflite.BufferStart(self.builder)
        if data:
            tflite.BufferAddData(self.builder, vector)
        return int(tflite.BufferEnd(self.builder))

    def _write_operator_code(self, builtin_operator: str, version: int) -> int:
        """Write an OperatorCode table; return its offset."""
        number = getattr(tflite.BuiltinOperator, builtin_operator)
        tflite.OperatorCodeStart(self.builder)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(self.builder, min(number, _LAST_OF_A_BYTE))
        tflite.OperatorCodeAddBuiltinCode(self.builder, number)
        tflite.OperatorCodeAddVersion(self.builder, version)
        return int(tflite.OperatorCodeEnd(self.builder))

    def _write_tensor(self, name: str, type_: TensorType, data: Array | None) -> int:
        """Write a Tensor table and return its offset. Data of a constant are appended to ``buffers``, to be written
        later."""
        shape, label = self._write_number_vector(type_.shape, np.int32), self.builder.CreateString(name)
        quant = self._write_quantisation(type_.quant) if type_.quant else 0
        if data is not None:
            self.buffers.append(np.ascontiguousarray(data).tobytes())
        tflite.TensorStart(self.builder)
        tflite.TensorAddShape(self.builder, shape)
        tflite.TensorAddType(self.builder, getattr(tflite.TensorType, type_.dtype.upper()))
        tflite.TensorAddBuffer(self.builder, len(self.buffers) - 1 if data is not None else 0)
        tflite.TensorAddName(self.builder, label)
        if quant:
            tflite.TensorAddQuantization(self.builder, quant)
        return int(tflite.TensorEnd(self.builder))

    def _write_quantisation(self, quant: Quant) -> int:
        """Write a QuantizationParameters table with a tensor's scales and zero points; return its offset."""
        scale, zero_point = (
            self._write_number_vector(quant.scale, np.float32),
            self._write_number_vector(quant.zero_point, np.int64),
        )
        tflite.QuantizationParametersStart(self.builder)
        tflite.QuantizationParametersAddScale(self.builder, scale)
        tflite.QuantizationParametersAddZeroPoint(self.builder, zero_point)
        tflite.QuantizationParametersAddQuantizedDimension(self.builder, quant.axis or 0)
        return int(tflite.QuantizationParametersEnd(self.builder))

    def _write_operator(
        self, operator: TfliteOperator, operator_codes: Sequence[tuple[str, int]], tensor_indices: Mapping[str, int]
    ) -> int:
        """Write an Operator table with its options; return its offset.

        ``operator_codes``: all pairs (builtin operator, version) of the model, in the order in which they are written.
        ``tensor_indices``: index of each tensor, by name."""
        options = self._write_options(operator) if operator.options_table else 0
        inputs, outputs = (
            self._write_number_vector([tensor_indices[n] for n in side], np.int32)
            for side in (operator.inputs, operator.outputs)
        )
        tflite.OperatorStart(self.builder)
        tflite.OperatorAddOpcodeIndex(self.builder, operator_codes.index((operator.code, operator.version)))
        tflite.OperatorAddInputs(self.builder, inputs)
        tflite.OperatorAddOutputs(self.builder, outputs)
        if operator.options_table:
            tflite.OperatorAddBuiltinOptionsType(self.builder, getattr(tflite.BuiltinOptions, operator.options_table))
            tflite.OperatorAddBuiltinOptions(self.builder, options)
        return int(tflite.OperatorEnd(self.builder))

    def _write_options(self, operator: TfliteOperator) -> int:
        """Write the options table of an operator; return its offset."""
        values = {
            n: self._write_number_vector(v, np.int32) if isinstance(v, tuple) else v for n, v in operator.fields.items()
        }
        getattr(tflite, f"{operator.options_table}Start")(self.builder)
        for name, value in values.items():
            getattr(tflite, f"{operator.options_table}Add{name}")(self.builder, value)
        return int(getattr(tflite, f"{operator.options_table}End")(self.builder))
