"""Quantised graphs of ours as TFLite models."""

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
from microc.frontend.tflite.context import ACTIVATIONS, same_padding
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops.attributes import Rounding

# ---- What a quantised layer of ours is in TFLite: one operator, or a PAD before one, with the tensors that only it
# has.
#
# The opposite of the spellings of the reader (``frontend/tflite/operators_layers.py`` and others), for layers of int8 data.

Field = bool | int | float | tuple[int, ...]
_SAME, _VALID = 0, 1
_NO_PADDING = (0, 0, 0, 0)
_NO_FIELDS: Mapping[str, Field] = {}


@frozen
class Written:
    """An operator: TFLite's word for it, the version of that, names of tensors ("" is absent), the table of its options."""

    code: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Written:
        """With other names for all of its tensors."""
        ends = [tuple(names[name] for name in side) for side in (self.inputs, self.outputs)]
        return replace(self, inputs=ends[0], outputs=ends[1])


@frozen
class Layer:
    """A node as TFLite's operators, and the tensors that are theirs alone, with the data of constants."""

    operators: tuple[Written, ...]
    tensors: Mapping[str, tuple[TensorType, Array | None]]


def written(graph: Graph, node: Node) -> Layer:
    """A node of int8 data in TFLite's words. UnsupportedError that says why it has none here."""
    application = _Application(graph, node)
    if node.op not in ROWS:
        application.refuse("no TFLite operator is written for it")
    for name in (*node.inputs[:1], *node.outputs):
        kind = graph.types[name]
        if kind.dtype != "int8" or kind.quant is None or kind.quant.axis is not None:
            application.refuse(f"its data are {kind.dtype}{'' if kind.quant else ', not quantised'}")
    if (rounding := node.attrs.get("rounding", Rounding.DOUBLE)) != Rounding.DOUBLE:
        application.refuse(f"it is rounded as {rounding}, not twice, as TFLite does")
    ROWS[node.op](application)
    return Layer(tuple(application.operators), application.tensors)


class _Application:
    """A node that is written: what it reads and makes, and what it has become so far."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.operators: list[Written] = []
        self.tensors: dict[str, tuple[TensorType, Array | None]] = {}

    def refuse(self, why: str) -> None:
        raise UnsupportedError(why, where=str(self.node.loc), hint="it is left to code of ours")

    def type(self, position: int) -> TensorType:
        return self.graph.types[self.node.inputs[position]]

    @property
    def result(self) -> TensorType:
        return self.graph.types[self.node.outputs[0]]

    def const(self, position: int) -> Array:
        array = self.graph.consts.get(self.node.inputs[position])
        if array is None:
            self.refuse("its weights are computed")
        assert array is not None
        return array

    def tensor(self, name: str, kind: TensorType, data: Array | None = None) -> str:
        self.tensors[f"{name} of {self.node.outputs[0]}"] = (kind, data)
        return f"{name} of {self.node.outputs[0]}"

    def ints(self, name: str, *values: object) -> str:
        array = np.array(values, np.int32)
        return self.tensor(name, TensorType(array.shape, "int32"), array)

    def emit(
        self,
        code: str,
        inputs: tuple[str, ...],
        options: str,
        fields: Mapping[str, Field] = _NO_FIELDS,
        version: int = 2,
    ) -> None:
        self.operators.append(Written(code, version, inputs, self.node.outputs[:1], options, fields))

    def activation(self) -> int:
        name = str(self.node.attrs.get("activation", ""))
        if name not in ACTIVATIONS[:4]:
            self.refuse(f"its activation is {name}")
        return ACTIVATIONS.index(name)

    def plain(self, **wanted: object) -> None:
        """Refuse attributes that TFLite has no field for, unless they say what it means without."""
        for name, value in wanted.items():
            if self.node.attrs.get(name, value) not in (value, None):
                self.refuse(f"its {name} is {self.node.attrs[name]}")

    def alike(self) -> None:
        """Refuse operands that are scaled otherwise than the result, which TFLite would not scale."""
        kinds = [self.graph.types[name].quant for name in self.node.inputs]
        if any(kind != self.result.quant for kind in kinds):
            self.refuse("data and results have other scales")

    def weights(self, moved: tuple[int, ...], axis: int) -> tuple[str, ...]:
        """Names of weights and bias: int8 around zero, axes in TFLite's order, a scale for all or along ``axis``."""
        kind, data = self.type(1), self.const(1)
        if kind.dtype != "int8" or kind.quant is None or any(kind.quant.zero_point):
            self.refuse("its weights are no int8 around zero")
        assert kind.quant is not None
        array = data.transpose(moved)
        quant = replace(kind.quant, axis=None if kind.quant.axis is None else axis)
        names = [self.tensor("weight", TensorType(array.shape, "int8", quant), array)]
        if len(self.node.inputs) > 2 and self.node.inputs[2]:
            bias = self.const(2).reshape(-1)
            if str(bias.dtype) != "int32":
                self.refuse(f"its bias is {bias.dtype}")
            of_data = self.type(0).quant
            assert of_data is not None
            scale = tuple(float(np.float32(of_data.scale[0]) * np.float32(each)) for each in quant.scale)
            terms = Quant(scale, (0,) * len(scale), 0 if len(scale) > 1 else None)
            names.append(self.tensor("bias", TensorType(bias.shape, "int32", terms), bias))
        return tuple(names)

    def window(self, kernel: tuple[int, ...], *, pads: bool) -> tuple[str, dict[str, Field]]:
        """The data, padded before where that is neither SAME nor VALID and ``pads``, and the fields of strides and padding."""
        data, strides, padding = self.type(0), self.node.attr("strides"), self.node.attr("padding")
        dilation = self.node.attr("dilation") if "dilation" in self.node.attrs else (1, 1)
        fields: dict[str, Field] = {"StrideH": strides[0], "StrideW": strides[1], "Padding": _VALID}
        if padding == _NO_PADDING:
            return self.node.inputs[0], fields
        if padding == same_padding(data.shape[1:3], kernel, strides, dilation):
            return self.node.inputs[0], {**fields, "Padding": _SAME}
        if not pads or min(padding) < 0:
            self.refuse(f"its padding is {padding}")
        top, left, bottom, right = padding
        n, height, width, channels = data.shape
        shape = (n, height + top + bottom, width + left + right, channels)
        padded = self.tensor("padded", replace(data, shape=shape))
        amounts = self.ints("paddings", (0, 0), (top, bottom), (left, right), (0, 0))
        self.operators.append(Written("PAD", 2, (self.node.inputs[0], amounts), (padded,), "PadOptions"))
        return padded, fields


def _conv2d(a: _Application) -> None:
    a.plain(layout="NHWC", pad_value=0, out_dtype="")
    weight, groups = a.type(1).shape, a.node.attr("groups")
    if groups != 1 and (groups != a.type(0).shape[3] or weight[3] != 1):
        a.refuse(f"it has {groups} groups of channels")
    data, fields = a.window(weight[1:3], pads=True)
    dilation = a.node.attr("dilation")
    fields |= {
        "DilationHFactor": dilation[0],
        "DilationWFactor": dilation[1],
        "FusedActivationFunction": a.activation(),
    }
    if groups == 1:
        a.emit("CONV_2D", (data, *a.weights((0, 1, 2, 3), 0)), "Conv2DOptions", fields, 3)
    else:
        fields["DepthMultiplier"] = weight[0] // groups
        operands = (data, *a.weights((3, 1, 2, 0), 3))
        a.emit("DEPTHWISE_CONV_2D", operands, "DepthwiseConv2DOptions", fields, 3)


def _transposed(a: _Application) -> None:
    """The padding is that of a convolution of the result, which TFLite's two schemes say."""
    a.plain(groups=1, dilation=(1, 1), out_dtype="")
    strides, shape, kernel = a.node.attr("strides"), a.result.shape, a.type(1).shape[1:3]
    same = same_padding(shape[1:3], kernel, strides)
    full = [(n - 1) * s + k for n, s, k in zip(a.type(0).shape[1:3], strides, kernel, strict=True)]
    scheme = next(
        (
            number
            for number, (top, left, _, _) in ((_SAME, same), (_VALID, _NO_PADDING))
            if tuple(a.node.attr("padding")) == (top, left, full[0] - top - shape[1], full[1] - left - shape[2])
        ),
        None,
    )
    if scheme is None:
        a.refuse(f"its padding is {a.node.attr('padding')}")
    fields: dict[str, Field] = {"StrideH": strides[0], "StrideW": strides[1], "Padding": scheme or 0}
    fields["FusedActivationFunction"] = a.activation()
    weight, *bias = a.weights((0, 1, 2, 3), 0)
    operands = (a.ints("shape", *shape), weight, a.node.inputs[0], *bias)
    a.emit("TRANSPOSE_CONV", operands, "TransposeConvOptions", fields, 3)


def _dense(a: _Application) -> None:
    a.plain(out_dtype="")
    fields: dict[str, Field] = {"FusedActivationFunction": a.activation()}
    a.emit("FULLY_CONNECTED", (a.node.inputs[0], *a.weights((0, 1), 0)), "FullyConnectedOptions", fields, 4)


def _pool(code: str) -> Callable[[_Application], None]:
    def write(a: _Application) -> None:
        a.plain(layout="NHWC", count_include_pad=False)
        a.alike()
        kernel = a.node.attr("kernel")
        data, fields = a.window(kernel, pads=False)
        fields |= {"FilterHeight": kernel[0], "FilterWidth": kernel[1], "FusedActivationFunction": a.activation()}
        a.emit(code, (data,), "Pool2DOptions", fields)

    return write


def _binary(code: str, options: str) -> Callable[[_Application], None]:
    def write(a: _Application) -> None:
        kinds = [a.type(k) for k in range(2)]
        if any(kind.dtype != "int8" or kind.quant is None or kind.quant.axis is not None for kind in kinds):
            a.refuse("its operands are no int8 of one scale")
        a.emit(code, a.node.inputs, options, {"FusedActivationFunction": a.activation()})

    return write


def _unary(code: str, options: str = "") -> Callable[[_Application], None]:
    return lambda a: a.emit(code, a.node.inputs, options)


def _concat(a: _Application) -> None:
    a.alike()
    a.emit("CONCATENATION", a.node.inputs, "ConcatenationOptions", {"Axis": a.node.attr("axis")})


def _reshape(a: _Application) -> None:
    shape = a.result.shape
    a.emit("RESHAPE", (a.node.inputs[0], a.ints("shape", *shape)), "ReshapeOptions", {"NewShape": shape}, 1)


def _softmax(a: _Application) -> None:
    rank = len(a.result.shape)
    if a.node.attr("axis") not in (-1, rank - 1):
        a.refuse("it is not over the last axis")
    a.emit("SOFTMAX", a.node.inputs, "SoftmaxOptions", {"Beta": float(a.node.attr("beta"))})


def _leaky(a: _Application) -> None:
    a.emit("LEAKY_RELU", a.node.inputs, "LeakyReluOptions", {"Alpha": float(a.node.attr("alpha"))})


def _slice(a: _Application) -> None:
    if any(step != 1 for step in a.node.attr("strides")):
        a.refuse(f"it takes steps of {a.node.attr('strides')}")
    a.alike()
    parts = a.ints("begin", *a.node.attr("begin")), a.ints("size", *a.result.shape)
    a.emit("SLICE", (a.node.inputs[0], *parts), "SliceOptions")


def _transpose(a: _Application) -> None:
    a.emit("TRANSPOSE", (a.node.inputs[0], a.ints("axes", *a.node.attr("axes"))), "TransposeOptions")


def _prelu(a: _Application) -> None:
    a.const(1)
    a.emit("PRELU", a.node.inputs, "")


def _mean(a: _Application) -> None:
    if not prod(a.result.shape):
        a.refuse("it is empty")
    axes = a.ints("axes", *a.node.attr("axes"))
    a.emit("MEAN", (a.node.inputs[0], axes), "ReducerOptions", {"KeepDims": bool(a.node.attr("keepdims"))})


ROWS: Mapping[str, Callable[[_Application], None]] = {
    "add": _binary("ADD", "AddOptions"),
    "avg_pool2d": _pool("AVERAGE_POOL_2D"),
    "concat": _concat,
    "conv2d": _conv2d,
    "conv2d_transpose": _transposed,
    "dense": _dense,
    "hard_swish": _unary("HARD_SWISH", "HardSwishOptions"),
    "leaky_relu": _leaky,
    "max_pool2d": _pool("MAX_POOL_2D"),
    "mean": _mean,
    "mul": _binary("MUL", "MulOptions"),
    "prelu": _prelu,
    "relu": _unary("RELU"),
    "reshape": _reshape,
    "sigmoid": _unary("LOGISTIC"),
    "slice": _slice,
    "softmax": _softmax,
    "sub": _binary("SUB", "SubOptions"),
    "tanh": _unary("TANH"),
    "transpose": _transpose,
}
"""What writes an operator, by our name of it."""


# ---- Tensors and operators as a TFLite flatbuffer (schema version 3), and graphs of ours as such models.

_LAST_OF_A_BYTE = 127
"""What the deprecated field of operators' numbers says for all from there on."""


def to_tflite(graph: Graph) -> bytes:
    """The TFLite model of a graph without state. Values are called ``t0_``, ``t1_`` ... in the order of ``graph.types``,
    tensors that only a layer has after its result; a tool that appends to names leaves them readable.

    UnsupportedError for an operator, dtype or attribute that TFLite has no word for, or none here.
    """
    names = name_of(graph)
    found = [written(graph, node) for node in graph.nodes]
    tensors = {names[name]: (kind, graph.consts.get(name)) for name, kind in graph.types.items()}
    operators = []
    for k, node in enumerate(found):
        own = {name: f"{names[node.operators[-1].outputs[0]]}{k}_{n}" for n, name in enumerate(node.tensors)}
        tensors |= {own[name]: given for name, given in node.tensors.items()}
        operators += [each.renamed({**names, **own, "": ""}) for each in node.operators]
    used = {name for each in operators for name in (*each.inputs, *each.outputs)}
    ends = [tuple(names[name] for name in side) for side in (graph.inputs, graph.outputs)]
    kept = {name: given for name, given in tensors.items() if name in used or name in ends[0]}
    return _Model(kept).written(operators, *ends)


def name_of(graph: Graph) -> Mapping[str, str]:
    """What the model calls the values of a graph."""
    return {name: f"t{k}_" for k, name in enumerate(graph.types)}


@dataclass
class _Model:
    """A flatbuffer under construction; flatbuffers grow from their end, what is named before what names it."""

    tensors: Mapping[str, tuple[TensorType, Array | None]]
    fb: Any = field(default_factory=lambda: flatbuffers.Builder(1024))
    buffers: list[bytes] = field(default_factory=lambda: [b""])

    def written(self, operators: Sequence[Written], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        numbers = {name: k for k, name in enumerate(self.tensors)} | {"": -1}
        codes = list(dict.fromkeys((each.code, each.version) for each in operators))
        tensors = self._offsets([self._tensor(name, *given) for name, given in self.tensors.items()])
        made = self._offsets([self._operator(each, codes, numbers) for each in operators])
        ends = [self._numbers([numbers[name] for name in side], np.int32) for side in (inputs, outputs)]
        tflite.SubGraphStart(self.fb)
        tflite.SubGraphAddTensors(self.fb, tensors)
        tflite.SubGraphAddInputs(self.fb, ends[0])
        tflite.SubGraphAddOutputs(self.fb, ends[1])
        tflite.SubGraphAddOperators(self.fb, made)
        graphs = self._offsets([int(tflite.SubGraphEnd(self.fb))])
        buffers = self._offsets([self._buffer(data) for data in self.buffers])
        kinds = self._offsets([self._code(*code) for code in codes])
        tflite.ModelStart(self.fb)
        tflite.ModelAddVersion(self.fb, 3)
        tflite.ModelAddOperatorCodes(self.fb, kinds)
        tflite.ModelAddSubgraphs(self.fb, graphs)
        tflite.ModelAddBuffers(self.fb, buffers)
        self.fb.Finish(tflite.ModelEnd(self.fb), b"TFL3")
        return bytes(self.fb.Output())

    def _offsets(self, entries: Sequence[int]) -> int:
        self.fb.StartVector(4, len(entries), 4)
        for entry in reversed(entries):
            self.fb.PrependUOffsetTRelative(entry)
        return int(self.fb.EndVector())

    def _numbers(self, values: Sequence[float], dtype: Any) -> int:
        return int(self.fb.CreateNumpyVector(np.asarray(values, dtype)))

    def _buffer(self, data: bytes) -> int:
        vector = self.fb.CreateNumpyVector(np.frombuffer(data, np.uint8)) if data else 0
        tflite.BufferStart(self.fb)
        if data:
            tflite.BufferAddData(self.fb, vector)
        return int(tflite.BufferEnd(self.fb))

    def _code(self, name: str, version: int) -> int:
        number = getattr(tflite.BuiltinOperator, name)
        tflite.OperatorCodeStart(self.fb)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(self.fb, min(number, _LAST_OF_A_BYTE))
        tflite.OperatorCodeAddBuiltinCode(self.fb, number)
        tflite.OperatorCodeAddVersion(self.fb, version)
        return int(tflite.OperatorCodeEnd(self.fb))

    def _tensor(self, name: str, kind: TensorType, data: Array | None) -> int:
        shape, label = self._numbers(kind.shape, np.int32), self.fb.CreateString(name)
        quant = self._quantisation(kind.quant) if kind.quant else 0
        if data is not None:
            self.buffers.append(np.ascontiguousarray(data).tobytes())
        tflite.TensorStart(self.fb)
        tflite.TensorAddShape(self.fb, shape)
        tflite.TensorAddType(self.fb, getattr(tflite.TensorType, kind.dtype.upper()))
        tflite.TensorAddBuffer(self.fb, len(self.buffers) - 1 if data is not None else 0)
        tflite.TensorAddName(self.fb, label)
        if quant:
            tflite.TensorAddQuantization(self.fb, quant)
        return int(tflite.TensorEnd(self.fb))

    def _quantisation(self, quant: Quant) -> int:
        scale, zero_point = self._numbers(quant.scale, np.float32), self._numbers(quant.zero_point, np.int64)
        tflite.QuantizationParametersStart(self.fb)
        tflite.QuantizationParametersAddScale(self.fb, scale)
        tflite.QuantizationParametersAddZeroPoint(self.fb, zero_point)
        tflite.QuantizationParametersAddQuantizedDimension(self.fb, quant.axis or 0)
        return int(tflite.QuantizationParametersEnd(self.fb))

    def _operator(self, each: Written, codes: Sequence[tuple[str, int]], numbers: Mapping[str, int]) -> int:
        options = self._options(each) if each.options else 0
        inputs, outputs = (self._numbers([numbers[n] for n in side], np.int32) for side in (each.inputs, each.outputs))
        tflite.OperatorStart(self.fb)
        tflite.OperatorAddOpcodeIndex(self.fb, codes.index((each.code, each.version)))
        tflite.OperatorAddInputs(self.fb, inputs)
        tflite.OperatorAddOutputs(self.fb, outputs)
        if each.options:
            tflite.OperatorAddBuiltinOptionsType(self.fb, getattr(tflite.BuiltinOptions, each.options))
            tflite.OperatorAddBuiltinOptions(self.fb, options)
        return int(tflite.OperatorEnd(self.fb))

    def _options(self, each: Written) -> int:
        values = {n: self._numbers(v, np.int32) if isinstance(v, tuple) else v for n, v in each.fields.items()}
        getattr(tflite, f"{each.options}Start")(self.fb)
        for name, value in values.items():
            getattr(tflite, f"{each.options}Add{name}")(self.fb, value)
        return int(getattr(tflite, f"{each.options}End")(self.fb))
