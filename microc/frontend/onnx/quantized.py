"""Spellings of ONNX's quantised operators, as dequantize, a float operator, and quantize.

The ``qdq`` pass turns that form, which quantisers also write themselves, into operators on quantised tensors; both
mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.onnx import neural as onnx_neural
from microc.frontend.onnx import pool as onnx_pool
from microc.frontend.onnx import quantized_values as values
from microc.frontend.onnx.application import FLOAT, Application, Spelling
from microc.frontend.onnx.build import Stored
from microc.frontend.onnx.neural import write_dense
from microc.frontend.onnx.tensor import dtype
from microc.frontend.onnx.window import convolve
from microc.graph.ir import Attr, Quant
from microc.ops.rounding import Ties

BYTES = ("int8", "uint8")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_REAL = (*FLOAT, "int32")


def real_scales(application: Application, scale: int) -> tuple[float, ...]:
    """The scale or scales at input ``scale``."""
    scales = application.constant(scale)
    if scales.dtype != np.float32 or scales.ndim > 1 or not scales.size:
        application.refuse(f"scales of shape {scales.shape} and {scales.dtype}", "quantise per tensor or per channel")
    numbers = tuple(float(s) for s in scales.reshape(-1))
    if not all(math.isfinite(s) and s > 0 for s in numbers):
        application.broken("a scale is not positive")
    return numbers


def quantization(application: Application, scale: int, zero_point: int, shape: tuple[int, ...], axis: int) -> Quant:
    """The quantisation that inputs ``scale`` and ``zero_point`` (optional) give a tensor of ``shape``."""
    numbers = real_scales(application, scale)
    zeros = (0,) * len(numbers)
    if application.has(zero_point):
        points = application.constant(zero_point)
        if points.size not in (1, len(numbers)) or not dtypes.is_integer(points.dtype.name):
            application.broken(f"zero points of shape {points.shape} and {points.dtype} for {len(numbers)} scales")
        zeros = tuple(int(z) for z in np.broadcast_to(points.reshape(-1), (len(numbers),)))
    if len(numbers) == 1:
        return Quant(numbers, zeros)
    if axis >= len(shape) or axis < -len(shape) or shape[axis] != len(numbers):
        application.broken(f"{len(numbers)} scales along axis {axis} of shape {shape}")
    return Quant(numbers, zeros, axis % len(shape))


def _refuse_blocks(application: Application) -> int:
    """The axis of the scales; scales of blocks are refused."""
    if application.operator.attributes.integer("block_size", 0):
        application.refuse("blocked quantisation", "quantise per tensor or per channel")
    return application.operator.attributes.integer("axis", 1)


def _attrs(quant: Quant) -> dict[str, Attr]:
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}


def _quantize_attrs(application: Application, quant: Quant, out_dtype: str) -> Mapping[str, Attr]:
    low, high = dtypes.int_range(out_dtype)
    if any(not low <= zero <= high for zero in quant.zero_point):
        application.broken(f"a zero point does not fit {out_dtype}")
    return {**_attrs(quant), "out_dtype": out_dtype, "rounding": Ties.EVEN}


def quantize_linear(application: Application) -> None:
    """QuantizeLinear: saturate(round half to even(x / scale) + zero_point)."""
    data, code = application.value(0), application.operator.attributes.integer("output_dtype", 0)
    out_dtype = dtype(code, application.where) if code else "uint8"
    if application.has(2):
        out_dtype = application.type(application.value(2)).dtype
    if not dtypes.is_integer(out_dtype):
        application.broken(f"zero points of shape {application.shape(2)} and {out_dtype}")
    bits = values.bits_of(application, 2, code, out_dtype)
    real = application.type(data).dtype == "float32"
    if not real or bits == 4 or out_dtype not in _INTEGERS or not values.is_known(application, 1, 2):
        values.quantize(application, out_dtype, bits)
        return
    quant = quantization(application, 1, 2, application.type(data).shape, _refuse_blocks(application))
    if out_dtype not in _INTEGERS:
        application.refuse(f"quantisation to {out_dtype}", "quantise to 8 or 16 bits")
    attrs = _quantize_attrs(application, quant, out_dtype)
    stored = application.builder.consts.get(data)
    if stored is not None and np.isnan(stored).any():
        application.broken("NaN cannot be quantised")
    if stored is None:
        application.result("quantize", (data,), attrs)
    else:
        application.result_constant(quantized(stored, quant, out_dtype))


def quantized(data: Array, quant: Quant, out_dtype: str) -> Array:
    """What QuantizeLinear makes of constant float32 data."""
    shape = [1] * data.ndim
    if quant.axis is not None:
        shape[quant.axis] = len(quant.scale)
    scale = np.array(quant.scale, np.float32).reshape(shape)
    zero = np.array(quant.zero_point, np.float64).reshape(shape)
    low, high = dtypes.int_range(out_dtype)
    levels = np.rint(data / scale).astype(np.float64) + zero
    return np.asarray(np.clip(levels, low, high).astype(dtypes.to_numpy(out_dtype)))


def dequantize_linear(application: Application) -> None:
    """DequantizeLinear: (x - zero_point) * scale."""
    data = application.value(0)
    if not values.is_known(application, 1, 2):
        values.dequantize(application)
        return
    axis = _refuse_blocks(application)
    if application.has(2) and application.constant(2).dtype.name != application.type(data).dtype:
        application.broken(f"a zero point of {application.constant(2).dtype} for {application.type(data).dtype} data")
    quant = quantization(application, 1, 2, application.type(data).shape, axis)
    application.result("dequantize", (data,), _attrs(quant))


class Quantized:
    """The dequantised operands and the quantised result of one operator whose inputs are (value, scale, zero point) triples."""

    def __init__(self, application: Application) -> None:
        self.application = application

    def operand(self, position: int) -> str:
        """The triple that starts at ``position``, as a float."""
        application, data = self.application, self.application.value(position)
        kind = application.type(data)
        if kind.dtype not in BYTES:
            application.refuse(f"{kind.dtype} operand {data!r}", "quantise it to int8 or uint8")
        if application.builder.consts.get(data) is not None:
            return application.store(data, self.stored(position, 0))
        quant = quantization(application, position + 1, position + 2, kind.shape, 1)
        return application.emit("dequantize", (data,), _attrs(quant))

    def stored(self, position: int, axis: int) -> Stored:
        """The constant triple that starts at ``position``, quantised per tensor or along ``axis``."""
        data = self.application.constant(position)
        if data.dtype.name not in BYTES:
            self.application.refuse(f"{data.dtype} weights", "quantise them to int8 or uint8")
        return Stored(data, quantization(self.application, position + 1, position + 2, data.shape, axis))

    def bias(self, position: int, weight: Stored, scale: int) -> Stored | None:
        """The int32 bias at ``position``, whose scale is that of the data (input ``scale``) times the weights'."""
        application = self.application
        if not application.has(position):
            return None
        bias, units = application.constant(position), weight.data.shape[0]
        if bias.dtype != np.int32 or bias.size != units or weight.quant is None:
            application.broken(f"bias of shape {bias.shape} and {bias.dtype} for {units} channels")
        data_scale = np.float32(real_scales(application, scale)[0])
        scales = np.array(weight.quant.scale, np.float32) * data_scale
        numbers = tuple(float(s) for s in scales)
        return Stored(bias.reshape(units), Quant(numbers, (0,) * len(numbers), None if len(numbers) == 1 else 0))

    def result(self, value: str, scale: int) -> None:
        """The output: ``value`` quantised as inputs ``scale`` and ``scale`` + 1 say."""
        application = self.application
        quant = quantization(application, scale, scale + 1, application.type(value).shape, 1)
        out_dtype = application.constant(scale + 1).dtype.name if application.has(scale + 1) else "uint8"
        if out_dtype not in BYTES or quant.axis is not None:
            application.refuse(
                f"an output of {out_dtype} with {len(quant.scale)} scales", "quantise it to 8 bits, per tensor"
            )
        application.result("quantize", (value,), _quantize_attrs(application, quant, out_dtype))


def _is_constant(application: Application, count: int) -> bool:
    """Whether all but the data is known when compiling."""
    return all(application.value(k) in application.builder.consts for k in range(1, count) if application.has(k)) and (
        values.is_known(application, 1, 2, 4, 5, 6, 7)
    )


def qlinear_conv(application: Application) -> None:
    """QLinearConv: x, w and y as triples (y without data), then the int32 bias."""
    if not _is_constant(application, 9):
        values.qlinear_conv(application)
        return
    operands = Quantized(application)
    data, weight = operands.operand(0), operands.stored(3, 0)
    name = application.builder.unique(f"{application.output()}_real")
    convolve(application, data, weight, operands.bias(8, weight, 1), name)
    operands.result(name, 6)


def qgemm(application: Application) -> None:
    """com.microsoft.QGemm: A and B as triples, the int32 bias C, then scale and zero point of Y."""
    attributes, operands = application.operator.attributes, Quantized(application)
    if attributes.real("alpha", 1.0) != 1.0 or attributes.flag("transA"):
        application.refuse("a factor or a transposed left side", "quantise the model in QDQ format")
    if not application.has(7):
        application.refuse("a float result", "quantise the model in QDQ format")
    data, weight = operands.operand(0), operands.stored(3, 0 if attributes.flag("transB") else 1)
    if weight.data.ndim != 2:
        application.broken(f"weights of shape {weight.data.shape}")
    weight = weight if attributes.flag("transB") else weight.transposed((1, 0))
    operands.result(write_dense(application, data, weight, operands.bias(6, weight, 1)), 7)


def qlinear_matmul(application: Application) -> None:
    """QLinearMatMul: a constant right side of two axes makes a dense layer."""
    if not _is_constant(application, 8) or len(application.shape(3)) != 2:
        values.qlinear_matmul(application)
        return
    operands = Quantized(application)
    data, weight = operands.operand(0), operands.stored(3, 1)
    if weight.data.ndim != 2:
        application.broken(f"a right side of shape {weight.data.shape}")
    operands.result(write_dense(application, data, weight.transposed((1, 0)), None), 6)


def qlinear(op: str, count: int, attrs: Callable[[Application], Mapping[str, Attr]] = lambda _: {}) -> Spelling:
    """An operator on ``count`` triples, then scale and zero point of the result."""

    def spell(application: Application) -> None:
        operands = Quantized(application)
        values = [operands.operand(3 * k) for k in range(count)]
        operands.result(application.emit(op, values, attrs(application)), 3 * count)

    return Spelling(spell, BYTES)


def qlinear_concat(application: Application) -> None:
    """com.microsoft.QLinearConcat: scale and zero point of the result, then triples."""
    operands = Quantized(application)
    values = [operands.operand(position) for position in range(2, application.count(), 3)]
    if not values:
        application.broken("there are no operands")
    axis = application.axis(application.operator.attributes.integer("axis"), len(application.type(values[0]).shape))
    operands.result(application.emit("concat", values, {"axis": axis}), 0)


def quantised(spelling: Spelling) -> Spelling:
    """A quantised form of an operator on one triple: ``spelling`` of the operator on floats between dequantize and quantize."""

    def spell(application: Application) -> None:
        attributes, operands = application.operator.attributes, Quantized(application)
        if attributes.flag("channels_last"):
            application.refuse("channels-last data", "export it channels first, as ONNX has it")
        real = application.builder.unique(f"{application.output()}_real")
        version = attributes.integer("opset", application.opset)
        operator = replace(application.operator, inputs=(operands.operand(0),), outputs=(real,), opset=version)
        spelling.spell(replace(application, operator=operator))
        operands.result(real, 3)

    return Spelling(spell, BYTES)


def qlinear_global_average_pool(application: Application) -> None:
    """com.microsoft.QLinearGlobalAveragePool of channels-first data."""
    if application.operator.attributes.flag("channels_last"):
        application.refuse("channels-last data", "export the model with channels first")
    operands = Quantized(application)
    data = operands.operand(0)
    axes = tuple(range(2, len(application.type(data).shape)))
    if not axes:
        application.broken("data without spatial axes")
    operands.result(application.emit("mean", (data,), {"axes": axes, "keepdims": True}), 3)


def _alpha(application: Application) -> Mapping[str, Attr]:
    return {"alpha": application.operator.attributes.real("alpha", 0.01)}


SPELLINGS: Mapping[str, Spelling] = {
    "ConvInteger": Spelling(values.conv_integer, BYTES),
    "MatMulInteger": Spelling(values.matmul_integer, BYTES),
    "DequantizeLinear": Spelling(dequantize_linear, _INTEGERS),
    "QLinearConv": Spelling(qlinear_conv, BYTES),
    "QLinearMatMul": Spelling(qlinear_matmul, BYTES),
    "QuantizeLinear": Spelling(quantize_linear, _REAL),
}

MICROSOFT: Mapping[str, Spelling] = {
    "DequantizeLinear": Spelling(dequantize_linear, _INTEGERS),
    "QGemm": Spelling(qgemm, BYTES),
    "QLinearAdd": qlinear("add", 2),
    "QLinearAveragePool": quantised(onnx_pool.SPELLINGS["AveragePool"]),
    "QLinearConcat": Spelling(qlinear_concat),
    "QLinearGlobalAveragePool": Spelling(qlinear_global_average_pool, BYTES),
    "QLinearLeakyRelu": qlinear("leaky_relu", 1, _alpha),
    "QLinearMul": qlinear("mul", 2),
    "QLinearSigmoid": qlinear("sigmoid", 1),
    "QLinearSoftmax": quantised(onnx_neural.SPELLINGS["Softmax"]),
    "QuantizeLinear": Spelling(quantize_linear, FLOAT),
}
