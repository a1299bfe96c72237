# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX's quantised operators: QuantizeLinear and DequantizeLinear (QDQ), QLinear*, and integer operators.

Layers with quantised weights and float data (MatMulNBits) are here, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.onnx.builder import StoredTensor
from microc.frontend.onnx.context import FLOAT, ConverterTable, OpContext
from microc.frontend.onnx.file import FOUR_BITS
from microc.frontend.onnx.operators.linear import emit_dense, write_softmax
from microc.frontend.onnx.operators.windows import (
    ConvolutionAttributes,
    WindowAttributes,
    convert_average_pool,
    get_convolution_attrs,
    write_convolution,
)
from microc.frontend.onnx.quantization import (
    QuantizedOperand,
    ResultQuantization,
    broadcast_constant_scale,
    broadcast_scale,
    get_dequantize_attrs,
    get_quantize_attrs,
    has_plain_scales,
    quantize_array,
    read_quantization,
    read_scales,
    subtract_zero_point,
    write_rounding_and_saturation,
)
from microc.frontend.signature import Ints, Only, Value
from microc.graph.ir import Quant

CONVERTERS = ConverterTable()

BYTES = ("int8", "uint8")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_USE_QDQ = "quantise the model in QDQ format"
_USE_SCALE_DTYPE = "leave output_dtype out, and cast the result"

# ---- Converters of quantised operators to dequantize, a float operator, and quantize.
#
# Many quantisers write this form (QDQ) themselves. The pass ``qdq`` turns it into operators on quantised tensors.


@CONVERTERS.register("QuantizeLinear", dtypes=(*FLOAT, "int32"))
@CONVERTERS.register("QuantizeLinear", dtypes=FLOAT, domain="com.microsoft")
def convert_quantize_linear(
    context: OpContext,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> None:
    """Convert QuantizeLinear, saturate(round_half_to_even(x / scale) + zero_point)."""
    out_dtype = context.decode_dtype(output_dtype) if output_dtype else "uint8"
    out_dtype = out_dtype if y_zero_point is None else y_zero_point.dtype
    if not dtypes.is_integer(out_dtype):
        context.broken(f"the output has dtype {out_dtype}, expected integers")
    has_four_bits = output_dtype in FOUR_BITS or context.is_four_bit_input(2)
    bits = 4 if has_four_bits else dtypes.dtype_parts(out_dtype).bits
    is_plain = has_plain_scales(y_scale, y_zero_point) and not block_size
    if x.dtype != "float32" or bits == 4 or out_dtype not in _INTEGERS or not is_plain:
        scale = context.cast(broadcast_scale(context, y_scale, x.shape, axis), "float32")
        levels = context.emit("div", (context.cast(x, "float32"), scale))
        zero = None if y_zero_point is None else broadcast_scale(context, y_zero_point, x.shape, axis)
        write_rounding_and_saturation(context, levels, zero, out_dtype, bits)
        return
    quant = read_quantization(context, y_scale, y_zero_point, x.shape, axis)
    attrs = get_quantize_attrs(context, quant, out_dtype)
    if x.constant is None:
        context.result("quantize", (x,), attrs)
        return
    if np.isnan(x.constant).any():
        context.broken("constant data: got NaN, which cannot be quantised, expected numbers")
    context.result_constant(quantize_array(x.constant, quant, out_dtype))


@CONVERTERS.register("DequantizeLinear", dtypes=_INTEGERS)
@CONVERTERS.register("DequantizeLinear", dtypes=_INTEGERS, domain="com.microsoft")
def convert_dequantize_linear(
    context: OpContext,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> None:
    """Convert DequantizeLinear, (x - zero_point) * scale.

    Scales that are computed, per block or of 16 bits become a subtraction and a multiplication, or are applied at
    compile time if the data are constant, too. The result has the scale's dtype."""
    if output_dtype and context.decode_dtype(output_dtype) != x_scale.dtype:
        context.refuse(f"output_dtype {output_dtype} is not supported for scales of {x_scale.dtype}", _USE_SCALE_DTYPE)
    if has_plain_scales(x_scale, x_zero_point) and not block_size:
        if x_zero_point is not None and x_zero_point.dtype != x.dtype:
            context.broken(f"the zero point has dtype {x_zero_point.dtype}, expected {x.dtype} as the data have")
        quant = read_quantization(context, x_scale, x_zero_point, x.shape, axis)
        context.result("dequantize", (x,), get_dequantize_attrs(quant))
        return
    zero_data = None if x_zero_point is None else x_zero_point.constant
    is_constant = x.constant is not None and (x_zero_point is None or zero_data is not None)
    if is_constant and x.constant is not None and x_scale.constant is not None and x_scale.dtype == "float32":
        scales = broadcast_constant_scale(context, x_scale.constant, x.shape, axis).astype(np.float32)
        zeros = np.zeros((), np.float32) if zero_data is None else zero_data.astype(np.float32)
        zeros = broadcast_constant_scale(context, zeros, x.shape, axis)
        context.result_constant(np.ascontiguousarray((x.constant.astype(np.float32) - zeros) * scales))
        return
    real = context.cast(subtract_zero_point(context, x, x_zero_point, axis), "float32")
    scale = context.cast(broadcast_scale(context, x_scale, x.shape, axis), "float32")
    product = context.emit("mul", (real, scale))
    context.result_alias(context.cast(product, x_scale.dtype))


@CONVERTERS.register("ConvInteger", dtypes=BYTES)
def convert_conv_integer(
    context: OpContext,
    x: Value,
    w: Value,
    x_zero_point: Value | None,
    w_zero_point: Value | None,
    *,
    attributes: ConvolutionAttributes,
) -> None:
    """Convert ConvInteger, which subtracts zero points and convolves the integers to int32 results."""
    data, weight = subtract_zero_point(context, x, x_zero_point, 1), subtract_zero_point(context, w, w_zero_point, 0)
    context.result("convolution", (data, weight), get_convolution_attrs(context, x, weight, attributes))


@CONVERTERS.register("MatMulInteger", dtypes=BYTES)
def convert_matmul_integer(
    context: OpContext, a: Value, b: Value, a_zero_point: Value | None, b_zero_point: Value | None
) -> None:
    """Convert MatMulInteger, which subtracts zero points and multiplies the integer matrices to int32 results."""
    operands = subtract_zero_point(context, a, a_zero_point, -2), subtract_zero_point(context, b, b_zero_point, -1)
    context.result("matmul", operands, {"out_dtype": "int32"})


def _dequantize_operand(context: OpContext, operand: QuantizedOperand) -> Value:
    """Emit ``dequantize`` of an operand; return the result."""
    data = operand.value
    if data.dtype not in BYTES:
        context.refuse(
            f"operand {str(data)!r} has dtype {data.dtype}, expected int8 or uint8", "quantise it to int8 or uint8"
        )
    if data.constant is not None:
        return context.add_stored_tensor(data, _read_constant_operand(context, operand, 0))
    quant = read_quantization(context, operand.scale, operand.zero_point, data.shape, 1)
    return context.emit("dequantize", (data,), get_dequantize_attrs(quant))


def _read_constant_operand(context: OpContext, operand: QuantizedOperand, channel_axis: int) -> StoredTensor:
    """Return the integers and the quantisation of a constant operand.

    It has one scale, or one for each element along ``channel_axis``."""
    data = context.data(operand.value)
    if data.dtype.name not in BYTES:
        context.refuse(f"the weights have dtype {data.dtype}, expected int8 or uint8", "quantise them to int8 or uint8")
    return StoredTensor(data, read_quantization(context, operand.scale, operand.zero_point, data.shape, channel_axis))


def _read_bias(context: OpContext, bias: Value | None, weight: StoredTensor, data_scale: Value) -> StoredTensor | None:
    """Return an int32 bias with its quantisation; None if it is absent.

    The scale of the bias is the scale of the data times the scale of the weights."""
    if bias is None:
        return None
    data, units = context.data(bias), weight.data.shape[0]
    if data.dtype != np.int32 or data.size != units or weight.quant is None:
        context.broken(f"bias: got shape {data.shape} of {data.dtype}, expected ({units},) of int32")
    scales = np.array(weight.quant.scale, np.float32) * np.float32(read_scales(context, data_scale)[0])
    numbers = tuple(float(s) for s in scales)
    return StoredTensor(data.reshape(units), Quant(numbers, (0,) * len(numbers), None if len(numbers) == 1 else 0))


def _write_quantized_result(context: OpContext, real: Value, y: ResultQuantization) -> None:
    """Write the operator's output: the float value ``real``, quantised."""
    quant = read_quantization(context, y.scale, y.zero_point, real.shape, 1)
    out_dtype = "uint8" if y.zero_point is None else y.zero_point.dtype
    if out_dtype not in BYTES or quant.axis is not None:
        context.refuse(
            f"the output has dtype {out_dtype} and {len(quant.scale)} scales, expected int8 or uint8 and one scale",
            "quantise it to 8 bits, per tensor",
        )
    context.result("quantize", (real,), get_quantize_attrs(context, quant, out_dtype))


def _write_requantisation(
    context: OpContext, sums: Value, operand_scales: Sequence[Value], y: ResultQuantization
) -> None:
    """Write the output: int32 sums of products, rescaled, rounded and saturated to the result's quantisation.

    The factor is the product of ``operand_scales`` divided by the result's scale."""
    factor = context.emit("mul", [context.cast(scale, "float32") for scale in operand_scales])
    divisor = context.cast(broadcast_scale(context, y.scale, (), 0), "float32")
    factor = context.emit("div", (factor, divisor))
    levels = context.emit("mul", (context.cast(sums, "float32"), factor))
    if y.zero_point is None:
        context.broken("y_zero_point is missing; the operator requires it")
    if y.zero_point.dtype not in BYTES:
        context.broken(f"y_zero_point has dtype {y.zero_point.dtype}, expected {' or '.join(BYTES)}")
    zero = context.reshape(y.zero_point, ())
    write_rounding_and_saturation(context, levels, zero, zero.dtype, dtypes.dtype_parts(zero.dtype).bits)


@CONVERTERS.register("QLinearConv", dtypes=BYTES)
def convert_qlinear_conv(
    context: OpContext,
    x: QuantizedOperand,
    w: QuantizedOperand,
    y: ResultQuantization,
    b: Value | None,
    *,
    attributes: ConvolutionAttributes,
) -> None:
    """Convert QLinearConv, with constant weights and scales to ``dequantize``, a float convolution and ``quantize``.

    Otherwise it becomes integer arithmetic; the weights may have one scale for each output channel."""
    is_plain = has_plain_scales(x.scale, x.zero_point, w.scale, w.zero_point, y.scale, y.zero_point)
    if is_plain and w.value.constant is not None and (b is None or b.constant is not None):
        data = _dequantize_operand(context, x)
        weight = _read_constant_operand(context, w, 0)
        name = context.builder.make_unique_name(f"{context.output()}_real")
        bias = _read_bias(context, b, weight, x.scale)
        real = write_convolution(context, data, weight, bias, attributes, name)
        _write_quantized_result(context, real, y)
        return
    integers, weights = (
        subtract_zero_point(context, operand.value, operand.zero_point, channel_axis)
        for operand, channel_axis in ((x, 1), (w, 0))
    )
    operands = (integers, weights) if b is None else (integers, weights, b)
    total = context.emit("convolution", operands, get_convolution_attrs(context, x.value, weights, attributes))
    scales = [broadcast_scale(context, scale, total.shape, 1) for scale in (x.scale, w.scale)]
    _write_requantisation(context, total, scales, y)


@CONVERTERS.register("QGemm", dtypes=BYTES, domain="com.microsoft")
def convert_qgemm(
    context: OpContext,
    a: QuantizedOperand,
    b: QuantizedOperand,
    c: Value | None,
    y_scale: Value | None,
    y_zero_point: Value | None,
    *,
    alpha: Annotated[float, Only(1.0, _USE_QDQ)] = 1.0,
    transA: Annotated[bool, Only(False, _USE_QDQ)] = False,
    transB: bool = False,
) -> None:
    """Convert com.microsoft.QGemm to a dense layer."""
    if y_scale is None:
        context.refuse("y_scale is missing; a float result is not supported", _USE_QDQ)
    data = _dequantize_operand(context, a)
    weight = _read_constant_operand(context, b, 0 if transB else 1)
    if weight.data.ndim != 2:
        context.broken(f"B: got shape {weight.data.shape}, expected two axes")
    weight = weight if transB else weight.transpose((1, 0))
    real = emit_dense(context, data, weight, _read_bias(context, c, weight, a.scale))
    _write_quantized_result(context, real, ResultQuantization(y_scale, y_zero_point))


@CONVERTERS.register("QLinearMatMul", dtypes=BYTES)
def convert_qlinear_matmul(context: OpContext, a: QuantizedOperand, b: QuantizedOperand, y: ResultQuantization) -> None:
    """Convert QLinearMatMul: to a ``dense`` layer if the right operand is a constant matrix, else to a ``matmul``.

    With a ``matmul``, the left operand may have one scale for each row, the right operand one for each column."""
    is_plain = has_plain_scales(a.scale, a.zero_point, b.scale, b.zero_point, y.scale, y.zero_point)
    if is_plain and b.value.constant is not None and b.value.rank == 2:
        data = _dequantize_operand(context, a)
        weight = _read_constant_operand(context, b, 1)
        real = emit_dense(context, data, weight.transpose((1, 0)), None)
        _write_quantized_result(context, real, y)
        return
    rows_and_columns = ((a, -2), (b, -1))
    operands = [subtract_zero_point(context, x.value, x.zero_point, axis) for x, axis in rows_and_columns]
    total = context.emit("matmul", operands, {"out_dtype": "int32"})
    scales = [broadcast_scale(context, x.scale, total.shape, axis) for x, axis in rows_and_columns]
    _write_requantisation(context, total, scales, y)


def _make_qlinear_unary_converter(op: str) -> Callable[..., None]:
    """Make a converter of a quantised ONNX operator with one operand to ``dequantize``, ``op``, and ``quantize``."""

    def convert_qlinear(context: OpContext, x: QuantizedOperand, y: ResultQuantization, **attributes: float) -> None:
        data = _dequantize_operand(context, x)
        _write_quantized_result(context, context.emit(op, (data,), attributes), y)

    return convert_qlinear


def _make_qlinear_binary_converter(op: str) -> Callable[..., None]:
    """Make a converter of a quantised ONNX operator with two operands to ``dequantize``, ``op``, and ``quantize``."""

    def convert_qlinear(context: OpContext, a: QuantizedOperand, b: QuantizedOperand, c: ResultQuantization) -> None:
        left = _dequantize_operand(context, a)
        right = _dequantize_operand(context, b)
        _write_quantized_result(context, context.emit(op, (left, right)), c)

    return convert_qlinear


_MICROSOFT_BYTES: Mapping[str, Any] = {"dtypes": BYTES, "domain": "com.microsoft"}
CONVERTERS.register("QLinearAdd", **_MICROSOFT_BYTES)(_make_qlinear_binary_converter("add"))
CONVERTERS.register("QLinearMul", **_MICROSOFT_BYTES)(_make_qlinear_binary_converter("mul"))
CONVERTERS.register("QLinearSigmoid", **_MICROSOFT_BYTES)(_make_qlinear_unary_converter("sigmoid"))
CONVERTERS.register("QLinearLeakyRelu", float_attributes={"alpha": 0.01}, **_MICROSOFT_BYTES)(
    _make_qlinear_unary_converter("leaky_relu")
)


@CONVERTERS.register("QLinearConcat", domain="com.microsoft")
def convert_qlinear_concat(context: OpContext, y: ResultQuantization, *triples: Value | None, axis: int) -> None:
    """Convert com.microsoft.QLinearConcat.

    ``triples``: value, scale and zero point of each operand."""
    values = []
    for k in range(0, len(triples), 3):
        value, scale, zero_point = (*triples[k : k + 3], None, None)[:3]
        if value is None or scale is None:
            context.broken(f"input {k + 2}: got no value or no scale, expected both")
        values.append(_dequantize_operand(context, QuantizedOperand(value, scale, zero_point)))
    if not values:
        context.broken("got no operands, expected at least one")
    joined = context.emit("concat", values, {"axis": context.axis(axis, values[0].rank)})
    _write_quantized_result(context, joined, y)


_ChannelsFirst = Annotated[bool, Only(False, "export the model with channels first")]


def _name_real_result(context: OpContext) -> OpContext:
    """Return the context of the float operator in place of a quantised one, whose result gets a new name."""
    name = context.builder.make_unique_name(f"{context.output()}_real")
    return replace(context, operator=replace(context.operator, outputs=(name,)))


@CONVERTERS.register("QLinearAveragePool", **_MICROSOFT_BYTES)
def convert_qlinear_average_pool(
    context: OpContext,
    x: QuantizedOperand,
    y: ResultQuantization,
    *,
    channels_last: _ChannelsFirst = False,
    kernel_shape: Ints,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    attributes: WindowAttributes,
) -> None:
    """Convert com.microsoft.QLinearAveragePool to ``dequantize``, a float pool, and ``quantize``."""
    float_context = _name_real_result(context)
    data = _dequantize_operand(context, x)
    if data.rank < 3:
        context.broken(f"got data of shape {data.shape}, expected at least three axes")
    convert_average_pool(
        float_context,
        data,
        kernel_shape=kernel_shape,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        attributes=attributes,
    )
    real = context.look_up(context.builder.resolve_value(float_context.output(), context.where))
    _write_quantized_result(context, real, y)


@CONVERTERS.register("QLinearSoftmax", **_MICROSOFT_BYTES)
def convert_qlinear_softmax(
    context: OpContext, x: QuantizedOperand, y: ResultQuantization, *, axis: int | None = None, opset: int | None = None
) -> None:
    """Convert com.microsoft.QLinearSoftmax to ``dequantize``, the Softmax of version ``opset``, and ``quantize``."""
    float_context = _name_real_result(context)
    data = _dequantize_operand(context, x)
    version = context.opset if opset is None else opset
    axis = (1 if version < 13 else -1) if axis is None else axis
    write_softmax(float_context, data, context.axis(axis, data.rank), flattens=version < 13)
    real = context.look_up(context.builder.resolve_value(float_context.output(), context.where))
    _write_quantized_result(context, real, y)


@CONVERTERS.register("QLinearGlobalAveragePool", **_MICROSOFT_BYTES)
def convert_qlinear_global_average_pool(
    context: OpContext, x: QuantizedOperand, y: ResultQuantization, *, channels_last: _ChannelsFirst = False
) -> None:
    """Convert com.microsoft.QLinearGlobalAveragePool to a mean over the spatial axes; data must have channels first."""
    data = _dequantize_operand(context, x)
    if data.rank < 3:
        context.broken(f"got data of shape {data.shape}, expected at least three axes")
    mean = context.emit("mean", (data,), {"axes": tuple(range(2, data.rank)), "keepdims": True})
    _write_quantized_result(context, mean, y)


# ---- Layers with quantised weights and float data; the weights are dequantised at compile time: ONNX Runtime's MatMulNBits.
#
# :mod:`microc.ops.matrix.gemm` recognises from the numbers how kernels can store them. Source: the documentation of ONNX
# Runtime's contributed operators.

BITS = (2, 4, 8)


@CONVERTERS.register("MatMulNBits", dtypes=("float32",), domain="com.microsoft")
def convert_matmul_n_bits(
    context: OpContext,
    a: Value,
    b: Array,
    scales: Array,
    zero_points: Array | None,
    g_idx: Value | None,
    bias: Array | None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> None:
    """Convert com.microsoft.MatMulNBits to a ``dense`` layer with float32 weights.

    It multiplies A (..., K) by the transpose of B (N, K). B is dequantised at compile time. Its numbers of ``bits``
    bits are packed in bytes, lowest bits first. Each block of ``block_size`` numbers of a row of B has its own
    scale."""
    if bits not in BITS or min(N, K, block_size) < 1 or weight_prepacked:
        got = f"bits {bits}, N {N}, K {K}, block_size {block_size} and weight_prepacked {weight_prepacked}"
        what = f"got {got}, expected bits of 2, 4 or 8, sizes above 0 and weight_prepacked 0"
        context.refuse(what, "quantise the weights to 2, 4 or 8 bits, with weight_prepacked = 0")
    if g_idx is not None:
        context.refuse(
            "input g_idx is not supported (it reorders the rows of the weights)", "quantise the model without it"
        )
    blocks = -(-K // block_size)
    byte_count = N * blocks * (-(-block_size * bits // 8))
    if b.dtype != np.uint8 or b.size != byte_count or scales.size != N * blocks:
        context.broken(
            f"got weights of shape {b.shape} and {b.dtype} with {scales.size} scales, expected "
            f"{byte_count} bytes of uint8 and {N * blocks} scales"
        )
    levels = _unpack_bit_fields(b.reshape(N * blocks, -1), bits, block_size).reshape(N, blocks, block_size)
    zeros = _unpack_zero_points(context, zero_points, N, blocks, bits).reshape(N, blocks, 1)
    real = (levels - zeros) * scales.astype(np.float32).reshape(N, blocks, 1)
    weight = np.ascontiguousarray(real.reshape(N, -1)[:, :K].astype(np.float32))
    stored_bias = None if bias is None else StoredTensor(bias.reshape(-1))
    context.result_alias(emit_dense(context, a, StoredTensor(weight), stored_bias))


def _unpack_bit_fields(packed_rows: Array, bits_per_number: int, number_count: int) -> Array:
    """Unpack the first ``number_count`` unsigned numbers in each row of bytes to float32.

    ``bits_per_number``: 2, 4 or 8. The first number of a byte is in its lowest bits."""
    shifts = np.arange(0, 8, bits_per_number, dtype=np.uint8)
    digits = (packed_rows[:, :, None] >> shifts) & np.uint8((1 << bits_per_number) - 1)
    return np.asarray(digits.reshape(len(packed_rows), -1)[:, :number_count].astype(np.float32))


def _unpack_zero_points(
    context: OpContext, zero_points: Array | None, unit_count: int, blocks_per_unit: int, bits_per_number: int
) -> Array:
    """Return the zero points of all blocks of weights as float32.

    The file stores zero points as packed integers, row by row of the weights, or as floats. Absent zero points are
    2 ** (``bits_per_number`` - 1), the middle of the range of the weights."""
    if zero_points is None:
        return np.full(unit_count * blocks_per_unit, 1 << (bits_per_number - 1), np.float32)
    row_bytes = -(-blocks_per_unit * bits_per_number // 8)
    if zero_points.dtype == np.uint8 and zero_points.size == unit_count * row_bytes:
        return _unpack_bit_fields(zero_points.reshape(unit_count, row_bytes), bits_per_number, blocks_per_unit)
    if zero_points.dtype == np.uint8 or zero_points.size != unit_count * blocks_per_unit:
        context.broken(
            f"zero_points: got {zero_points.size} of {zero_points.dtype}, expected {unit_count * row_bytes} bytes or "
            f"{unit_count * blocks_per_unit} floats"
        )
    return np.asarray(zero_points.astype(np.float32))
