# SPDX-License-Identifier: Apache-2.0
"""The digits network as a fully quantised int8 TFLite file: per-channel weights, one scale per activation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite
from network import LAYERS, Params

INPUT = (1 / 255, -128)
SOFTMAX = (1 / 256, -128)
VERSIONS = {
    tflite.BuiltinOperator.PAD: 2,
    tflite.BuiltinOperator.CONV_2D: 3,
    tflite.BuiltinOperator.DEPTHWISE_CONV_2D: 3,
    tflite.BuiltinOperator.RESHAPE: 1,
    tflite.BuiltinOperator.FULLY_CONNECTED: 4,
    tflite.BuiltinOperator.SOFTMAX: 2,
}
"""First version of each operator that takes int8: LiteRT refuses a version that it does not know."""


def affine(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point for int8 over a range that is widened to contain zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    return scale, int(np.clip(round(-128 - low / scale), -128, 127))


class Writer:
    """Collects tensors, buffers and operators of one subgraph."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.buffers: list[bytes] = [b""]
        self.tensors: list[int] = []
        self.codes: list[int] = []
        self.operators: list[int] = []

    def ints(self, values: Any) -> int:
        return int(self.builder.CreateNumpyVector(np.asarray(values, np.int32)))

    def tensor(self, name: str, shape: Any, kind: int, scale: Any, zero: Any, data: Any = None, axis: int = 0) -> int:
        b = self.builder
        buffer = 0
        if data is not None:
            buffer = len(self.buffers)
            self.buffers.append(np.ascontiguousarray(data).tobytes())
        scales = b.CreateNumpyVector(np.asarray(scale, np.float32).reshape(-1))
        zeros = b.CreateNumpyVector(np.asarray(zero, np.int64).reshape(-1))
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scales)
        tflite.QuantizationParametersAddZeroPoint(b, zeros)
        tflite.QuantizationParametersAddQuantizedDimension(b, axis)
        quant = tflite.QuantizationParametersEnd(b)
        label, dims = b.CreateString(name), self.ints(shape)
        tflite.TensorStart(b)
        tflite.TensorAddName(b, label)
        tflite.TensorAddShape(b, dims)
        tflite.TensorAddType(b, kind)
        tflite.TensorAddBuffer(b, buffer)
        tflite.TensorAddQuantization(b, quant)
        self.tensors.append(tflite.TensorEnd(b))
        return len(self.tensors) - 1

    def operator(self, code: int, kind: int, options: int, inputs: Any, outputs: Any) -> None:
        b = self.builder
        if code not in self.codes:
            self.codes.append(code)
        ins, outs = self.ints(inputs), self.ints(outputs)
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, self.codes.index(code))
        tflite.OperatorAddInputs(b, ins)
        tflite.OperatorAddOutputs(b, outs)
        tflite.OperatorAddBuiltinOptionsType(b, kind)
        tflite.OperatorAddBuiltinOptions(b, options)
        self.operators.append(tflite.OperatorEnd(b))

    def offsets(self, start: Any, items: list[int]) -> int:
        start(self.builder, len(items))
        for item in reversed(items):
            self.builder.PrependUOffsetTRelative(item)
        return int(self.builder.EndVector())

    def finish(self, inputs: Any, outputs: Any) -> bytes:
        b = self.builder
        tensors = self.offsets(tflite.SubGraphStartTensorsVector, self.tensors)
        operators = self.offsets(tflite.SubGraphStartOperatorsVector, self.operators)
        ins, outs, name = self.ints(inputs), self.ints(outputs), b.CreateString("main")
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, tensors)
        tflite.SubGraphAddInputs(b, ins)
        tflite.SubGraphAddOutputs(b, outs)
        tflite.SubGraphAddOperators(b, operators)
        tflite.SubGraphAddName(b, name)
        graphs = self.offsets(tflite.ModelStartSubgraphsVector, [tflite.SubGraphEnd(b)])
        codes = []
        for code in self.codes:
            tflite.OperatorCodeStart(b)
            tflite.OperatorCodeAddDeprecatedBuiltinCode(b, code)
            tflite.OperatorCodeAddBuiltinCode(b, code)
            tflite.OperatorCodeAddVersion(b, VERSIONS[code])
            codes.append(tflite.OperatorCodeEnd(b))
        code_vector = self.offsets(tflite.ModelStartOperatorCodesVector, codes)
        buffers = []
        for data in self.buffers:
            vector = b.CreateByteVector(data) if data else None
            tflite.BufferStart(b)
            if vector is not None:
                tflite.BufferAddData(b, vector)
            buffers.append(tflite.BufferEnd(b))
        buffer_vector = self.offsets(tflite.ModelStartBuffersVector, buffers)
        text = b.CreateString("handwritten digits, int8")
        tflite.ModelStart(b)
        tflite.ModelAddVersion(b, 3)
        tflite.ModelAddOperatorCodes(b, code_vector)
        tflite.ModelAddSubgraphs(b, graphs)
        tflite.ModelAddDescription(b, text)
        tflite.ModelAddBuffers(b, buffer_vector)
        b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
        return bytes(b.Output())


def weights(w: Any, axis: int) -> tuple[Any, Any]:
    """Symmetric int8 per channel along ``axis``: integers and scales."""
    others = tuple(a for a in range(w.ndim) if a != axis)
    scale = np.maximum(np.abs(w).max(others), 1e-8) / 127
    shape = [1] * w.ndim
    shape[axis] = -1
    return np.clip(np.round(w / scale.reshape(shape)), -127, 127).astype(np.int8), scale


def options(writer: Writer, layer: Any) -> tuple[int, int, int]:
    """Operator code, option type and option table of a layer."""
    b = writer.builder
    if layer.kind == "dense":
        tflite.FullyConnectedOptionsStart(b)
        table = tflite.FullyConnectedOptionsEnd(b)
        return tflite.BuiltinOperator.FULLY_CONNECTED, tflite.BuiltinOptions.FullyConnectedOptions, table
    prefix = "Conv2DOptions" if layer.kind == "conv" else "DepthwiseConv2DOptions"
    getattr(tflite, f"{prefix}Start")(b)
    getattr(tflite, f"{prefix}AddPadding")(b, tflite.Padding.VALID)
    getattr(tflite, f"{prefix}AddStrideW")(b, layer.stride)
    getattr(tflite, f"{prefix}AddStrideH")(b, layer.stride)
    getattr(tflite, f"{prefix}AddFusedActivationFunction")(b, tflite.ActivationFunctionType.RELU)
    if layer.kind == "depthwise":
        tflite.DepthwiseConv2DOptionsAddDepthMultiplier(b, 1)
    table = getattr(tflite, f"{prefix}End")(b)
    code = tflite.BuiltinOperator.CONV_2D if layer.kind == "conv" else tflite.BuiltinOperator.DEPTHWISE_CONV_2D
    kind = tflite.BuiltinOptions.Conv2DOptions if layer.kind == "conv" else tflite.BuiltinOptions.DepthwiseConv2DOptions
    return code, kind, table


def write_int8(path: Path, params: Params, ranges: dict[str, tuple[float, float]]) -> None:
    """SAME padding of TFLite puts the odd pixel at the end; a stride-2 layer on an even size therefore pads differently
    from the float network. The float network pads symmetrically, so those layers get an explicit PAD and VALID padding."""
    writer = Writer()
    int8, int32 = tflite.TensorType.INT8, tflite.TensorType.INT32
    shape: tuple[int, ...] = (1, 8, 8, 1)
    value, (scale, zero) = writer.tensor("image", shape, int8, *INPUT), INPUT
    source = value
    for layer in LAYERS:
        w, bias = params[f"{layer.name}_w"], params[f"{layer.name}_b"]
        if layer.kind == "dense":
            flat = (1, int(np.prod(shape)))
            value = _reshape(writer, value, flat, scale, zero)
            q, w_scale = weights(w.T, 0)
            axis, out_shape = 0, (1, layer.channels)
        else:
            value, shape = _padded(writer, layer, value, shape, scale, zero)
            arranged, axis = (w.transpose(3, 0, 1, 2), 0) if layer.kind == "conv" else (w[None], 3)
            q, w_scale = weights(arranged, axis)
            side = (shape[1] - layer.kernel) // layer.stride + 1
            out_shape = (1, side, side, layer.channels)
        weight = writer.tensor(f"{layer.name}/weight", q.shape, int8, w_scale, np.zeros(len(w_scale)), q, axis)
        b_scale = (scale * w_scale).astype(np.float32)
        b_int = np.round(bias / b_scale).astype(np.int32)
        biases = writer.tensor(f"{layer.name}/bias", b_int.shape, int32, b_scale, np.zeros(len(b_scale)), b_int)
        scale, zero = affine(*ranges[layer.name])
        result = writer.tensor(layer.name, out_shape, int8, scale, zero)
        writer.operator(*options(writer, layer), [value, weight, biases], [result])
        value, shape = result, out_shape
    final = writer.tensor("probabilities", shape, int8, *SOFTMAX)
    tflite.SoftmaxOptionsStart(writer.builder)
    tflite.SoftmaxOptionsAddBeta(writer.builder, 1.0)
    table = tflite.SoftmaxOptionsEnd(writer.builder)
    writer.operator(tflite.BuiltinOperator.SOFTMAX, tflite.BuiltinOptions.SoftmaxOptions, table, [value], [final])
    path.write_bytes(writer.finish([source], [final]))


def _reshape(writer: Writer, value: int, shape: tuple[int, ...], scale: float, zero: int) -> int:
    result = writer.tensor("flat", shape, tflite.TensorType.INT8, scale, zero)
    wanted = writer.ints(shape)
    tflite.ReshapeOptionsStart(writer.builder)
    tflite.ReshapeOptionsAddNewShape(writer.builder, wanted)
    table = tflite.ReshapeOptionsEnd(writer.builder)
    writer.operator(tflite.BuiltinOperator.RESHAPE, tflite.BuiltinOptions.ReshapeOptions, table, [value], [result])
    return result


def _padded(
    writer: Writer, layer: Any, value: int, shape: tuple[int, ...], scale: float, zero: int
) -> tuple[int, tuple[int, ...]]:
    """The layer's input with its border, where the border is not TFLite's SAME; the SAME case needs no operator."""
    pad = layer.kernel // 2
    if pad == 0:
        return value, shape
    amounts = np.array([[0, 0], [pad, pad], [pad, pad], [0, 0]], np.int32)
    wide = (1, shape[1] + 2 * pad, shape[2] + 2 * pad, shape[3])
    paddings = writer.tensor(f"{layer.name}/paddings", (4, 2), tflite.TensorType.INT32, [], [], amounts)
    result = writer.tensor(f"{layer.name}/padded", wide, tflite.TensorType.INT8, scale, zero)
    tflite.PadOptionsStart(writer.builder)
    table = tflite.PadOptionsEnd(writer.builder)
    writer.operator(tflite.BuiltinOperator.PAD, tflite.BuiltinOptions.PadOptions, table, [value, paddings], [result])
    return result, wide
