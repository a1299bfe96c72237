"""Conversion of ONNX's quantised operators: QuantizeLinear and DequantizeLinear (QDQ), QLinear*, and integer operators.

Layers with quantised weights and float data (MatMulNBits) are here, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.onnx import operators_linear as onnx_linear
from microc.frontend.onnx import operators_windows as onnx_windows
from microc.frontend.onnx.context import FLOAT, Converter, OpContext, StoredTensor
from microc.frontend.onnx.file import dtype_from_code
from microc.frontend.onnx.operators_linear import emit_dense
from microc.frontend.onnx.operators_windows import read_convolution_attributes, write_convolution
from microc.graph.ir import Attr, Quant
from microc.ops.attributes import Ties

# ---- Quantised operators whose scales or zero points are computed, per block, or of 16 bits: written as their defining
# arithmetic.
#
# Sums of products are exact, in int32. Scaling is done in float32 and rounded half to even, as ONNX's definition says.


def has_constant_scales(context: OpContext, *input_indices: int) -> bool:
    """Test whether scales and zero points are constants of a form that ``quantize`` and ``dequantize`` support.

    ``input_indices``: indices of the inputs with scales and zero points; absent inputs are ignored. They must be per
    tensor or per channel, and not of a 16-bit float dtype."""
    arrays = [context.builder.consts.get(context.value(p)) for p in input_indices if context.has_input(p)]
    is_plain = all(array is not None and array.ndim <= 1 and array.dtype.name not in dtypes.HALF for array in arrays)
    return is_plain and not context.operator.attributes.integer("block_size", 0)


def _cast_to(context: OpContext, value_name: str, dtype: str) -> str:
    """Return the name of ``value_name`` converted to ``dtype``, or ``value_name`` itself if it has this dtype."""
    return (
        value_name if context.type(value_name).dtype == dtype else context.emit("cast", (value_name,), {"dtype": dtype})
    )


def broadcast_scale(context: OpContext, input_index: int, data_shape: Sequence[int], channel_axis: int) -> str:
    """Reshape or repeat a scale or zero point so that it broadcasts to ``data_shape``; return the result's name.

    ``input_index``: input with one element, one for each channel along ``channel_axis``, or one for each block of
    elements."""
    value = context.value(input_index)
    scale_shape, rank = context.type(value).shape, len(data_shape)
    if context.type(value).size == 1:
        return context.reshape(value, ())
    if len(scale_shape) == 1:
        channel_axis = context.axis(channel_axis, rank)
        return context.reshape(value, (*scale_shape, *[1] * (rank - channel_axis - 1)))
    if len(scale_shape) != rank or any(
        not scale_extent or -(-extent // scale_extent) * scale_extent < extent
        for extent, scale_extent in zip(data_shape, scale_shape, strict=True)
    ):
        context.broken(
            f"got scales of shape {scale_shape} for data of shape {tuple(data_shape)}, expected one scale, "
            "one for each channel or blocks along each axis"
        )
    blocks = [-(-extent // scale_extent) for extent, scale_extent in zip(data_shape, scale_shape, strict=True)]
    separated = context.reshape(value, [extent for scale_extent in scale_shape for extent in (scale_extent, 1)])
    target = tuple(
        extent for scale_extent, block in zip(scale_shape, blocks, strict=True) for extent in (scale_extent, block)
    )
    expanded = context.reshape(
        context.emit("broadcast_to", (separated,), {"shape": target}),
        [p * b for p, b in zip(scale_shape, blocks, strict=True)],
    )
    if context.type(expanded).shape == tuple(data_shape):
        return expanded
    attrs: Mapping[str, Attr] = {"begin": (0,) * rank, "end": tuple(data_shape), "strides": (1,) * rank}
    return context.emit("slice", (expanded,), attrs)


def _broadcast_constant_scale(context: OpContext, input_index: int, channel_axis: int) -> Array:
    """Return the constant scale or zero point at input ``input_index``, made to broadcast to input 0.

    It is reshaped and repeated as by :func:`broadcast_scale`, but at compile time, because repeating the scales of
    blocks of weights at run time would need much memory."""
    array, shape = context.constant(input_index), context.shape(0)
    if input_index == 0 or array.size == 1:
        return array if input_index == 0 else array.reshape(())
    if array.ndim == 1:
        channel_axis = context.axis(channel_axis, len(shape))
        return array.reshape(-1, *[1] * (len(shape) - channel_axis - 1))
    if array.ndim != len(shape) or not all(array.shape):
        context.broken(f"got scales of shape {array.shape} for data of shape {shape}, expected equal numbers of axes")
    for along, (extent, part) in enumerate(zip(shape, array.shape, strict=True)):
        array = np.repeat(array, -(-extent // part), axis=along).take(np.arange(extent), axis=along, mode="clip")
    return array


def write_quantize_arithmetic(context: OpContext, out_dtype: str, bit_count: int) -> None:
    """Write QuantizeLinear as separate operators for division, rounding, addition and saturation."""
    data, shape = context.value(0), context.shape(0)
    axis = context.operator.attributes.integer("axis", 1)
    scale = _cast_to(context, broadcast_scale(context, 1, shape, axis), "float32")
    levels = context.emit("div", (_cast_to(context, data, "float32"), scale))
    zero = broadcast_scale(context, 2, shape, axis) if context.has_input(2) else ""
    _write_rounded_and_saturated(context, levels, zero, out_dtype, bit_count)


def _write_rounded_and_saturated(
    context: OpContext, scaled_name: str, zero_point_name: str, out_dtype: str, bit_count: int
) -> None:
    """Write the output: ``scaled_name`` rounded, plus the zero point, saturated to ``bit_count`` bits.

    ``zero_point_name``: name of the zero point; empty if the operator has none. ``out_dtype``: dtype of the output."""
    scaled_name = context.emit("round", (scaled_name,))
    if zero_point_name:
        scaled_name = context.emit("add", (scaled_name, _cast_to(context, zero_point_name, "float32")))
    low, high = dtypes.int_range(out_dtype)
    low, high = (
        low >> dtypes.dtype_parts(out_dtype).bits - bit_count,
        high >> dtypes.dtype_parts(out_dtype).bits - bit_count,
    )
    clipped = context.emit("clip", (scaled_name,), {"minimum": float(low), "maximum": float(high)})
    context.result("cast", (clipped,), {"dtype": out_dtype})


def subtract_zero_point(context: OpContext, input_index: int, zero_point_input_index: int, channel_axis: int) -> str:
    """Emit the integers at input ``input_index`` minus their zero points, as int32; return the name of the result.

    ``zero_point_input_index``: index of the input with the zero points, which may be absent. ``channel_axis``: axis of
    the integers along which zero points per channel differ."""
    shape = context.shape(input_index)
    data = _cast_to(context, context.value(input_index), "int32")
    if not context.has_input(zero_point_input_index):
        return data
    return context.emit(
        "sub",
        (data, _cast_to(context, broadcast_scale(context, zero_point_input_index, shape, channel_axis), "int32")),
    )


def write_dequantize_arithmetic(context: OpContext) -> None:
    """Write DequantizeLinear as a subtraction and a multiplication; the result has the scale's dtype."""
    axis = context.operator.attributes.integer("axis", 1)
    kind = context.type(context.value(1)).dtype
    constants = [context.builder.consts.get(context.value(k)) for k in range(3) if context.has_input(k)]
    if kind == "float32" and all(array is not None for array in constants):
        data, scales, *zeros = (
            _broadcast_constant_scale(context, k, axis).astype(np.float32) for k in range(len(constants))
        )
        context.result_constant(np.ascontiguousarray((data - (zeros[0] if zeros else np.float32(0))) * scales))
        return
    real = _cast_to(context, subtract_zero_point(context, 0, 2, axis), "float32")
    scale = _cast_to(context, broadcast_scale(context, 1, context.shape(0), axis), "float32")
    product = context.emit("mul", (real, scale))
    context.result_alias(_cast_to(context, product, kind))


def _write_requantisation(
    context: OpContext, int32_sums_name: str, operand_scale_names: Sequence[str], scale_input_index: int
) -> None:
    """Write the output: int32 sums of products, rescaled, rounded and saturated to the result's quantisation.

    The factor is the product of ``operand_scale_names`` divided by the result's scale. ``scale_input_index``: index of
    the input with the result's scale; the next input is the result's zero point."""
    reals = [_cast_to(context, scale, "float32") for scale in operand_scale_names]
    factor = context.emit("mul", reals)
    factor = context.emit(
        "div", (factor, _cast_to(context, broadcast_scale(context, scale_input_index, (), 0), "float32"))
    )
    levels = context.emit("mul", (_cast_to(context, int32_sums_name, "float32"), factor))
    zero = context.reshape(context.value(scale_input_index + 1), ())
    out_dtype = context.type(zero).dtype
    _write_rounded_and_saturated(context, levels, zero, out_dtype, dtypes.dtype_parts(out_dtype).bits)


def convert_qlinear_matmul_at_run_time(context: OpContext) -> None:
    """Convert QLinearMatMul for operands, scales and zero points that may be computed at run time.

    The left operand may have one scale for each row, the right operand one for each column."""
    a, b = subtract_zero_point(context, 0, 2, -2), subtract_zero_point(context, 3, 5, -1)
    total = context.emit("matmul", (a, b), {"out_dtype": "int32"})
    shape = context.type(total).shape
    _write_requantisation(
        context, total, [broadcast_scale(context, 1, shape, -2), broadcast_scale(context, 4, shape, -1)], 6
    )


def convert_qlinear_conv_at_run_time(context: OpContext) -> None:
    """Convert QLinearConv for weights, scales and zero points that may be computed at run time.

    The weights may have one scale for each output channel."""
    data, weight = subtract_zero_point(context, 0, 2, 1), subtract_zero_point(context, 3, 5, 0)
    operands = (data, weight, context.value(8)) if context.has_input(8) else (data, weight)
    total = context.emit("convolution", operands, _get_integer_convolution_attributes(context, weight))
    shape = context.type(total).shape
    _write_requantisation(
        context, total, [broadcast_scale(context, 1, shape, 1), broadcast_scale(context, 4, shape, 1)], 6
    )


def _get_integer_convolution_attributes(context: OpContext, weight_name: str) -> Mapping[str, Attr]:
    """Return the attributes of the graph operator ``convolution`` for a convolution of integers.

    ``weight_name``: name of the integer weights."""
    return read_convolution_attributes(context, context.type(weight_name).shape[2:])


def convert_conv_integer(context: OpContext) -> None:
    """Convert ConvInteger, which subtracts zero points and convolves the integers to int32 results."""
    data, weight = subtract_zero_point(context, 0, 2, 1), subtract_zero_point(context, 1, 3, 0)
    context.result("convolution", (data, weight), _get_integer_convolution_attributes(context, weight))


def convert_matmul_integer(context: OpContext) -> None:
    """Convert MatMulInteger, which subtracts zero points and multiplies the integer matrices to int32 results."""
    operands = (subtract_zero_point(context, 0, 2, -2), subtract_zero_point(context, 1, 3, -1))
    context.result("matmul", operands, {"out_dtype": "int32"})


def get_result_bit_count(
    context: OpContext, zero_point_input_index: int, output_dtype_code: int, default_dtype: str
) -> int:
    """Return the number of bits to which a quantised result is saturated.

    The width is 4 if ``output_dtype_code`` (ONNX's number of a dtype) or the zero point at input
    ``zero_point_input_index`` is of a four-bit type. Otherwise it is the width of ``default_dtype``."""
    names = context.builder.file.four_bit_values
    is_four_bit = output_dtype_code in (21, 22) or (
        context.has_input(zero_point_input_index) and context.operator.inputs[zero_point_input_index] in names
    )
    return 4 if is_four_bit else dtypes.dtype_parts(default_dtype).bits


# ---- Converters of quantised operators to dequantize, a float operator, and quantize.
#
# Many quantisers write this form (QDQ) themselves. The pass ``qdq`` turns it into operators on quantised tensors.

BYTES = ("int8", "uint8")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
QUANTIZE_INPUTS = (*FLOAT, "int32")


def read_scales(context: OpContext, scale_input_index: int) -> tuple[float, ...]:
    """Return the scales at input ``scale_input_index``: one, or one for each channel.

    Raises an error unless the input is constant and its scales are positive float32 numbers."""
    scales = context.constant(scale_input_index)
    if scales.dtype != np.float32 or scales.ndim > 1 or not scales.size:
        context.refuse(
            f"got scales of shape {scales.shape} and dtype {scales.dtype}, expected float32 and at most one axis",
            "quantise per tensor or per channel",
        )
    numbers = tuple(float(s) for s in scales.reshape(-1))
    if not all(math.isfinite(s) and s > 0 for s in numbers):
        invalid = next(s for s in numbers if not (math.isfinite(s) and s > 0))
        context.broken(f"scale: got {invalid}, expected a positive number")
    return numbers


def read_constant_quantization(
    context: OpContext,
    scale_input_index: int,
    zero_point_input_index: int,
    tensor_shape: tuple[int, ...],
    channel_axis: int,
) -> Quant:
    """Return the quantisation (scales, zero points, axis) of a tensor, read from two constant inputs.

    ``scale_input_index``, ``zero_point_input_index``: inputs with scales and zero points; absent zero points are 0.
    ``channel_axis``: axis of the tensor along which scales differ if there are several."""
    numbers = read_scales(context, scale_input_index)
    zeros = (0,) * len(numbers)
    if context.has_input(zero_point_input_index):
        points = context.constant(zero_point_input_index)
        if points.size not in (1, len(numbers)) or not dtypes.is_integer(points.dtype.name):
            context.broken(
                f"got zero points of shape {points.shape} and {points.dtype}, expected {len(numbers)} integers"
            )
        zeros = tuple(int(z) for z in np.broadcast_to(points.reshape(-1), (len(numbers),)))
    if len(numbers) == 1:
        return Quant(numbers, zeros)
    if (
        channel_axis >= len(tensor_shape)
        or channel_axis < -len(tensor_shape)
        or tensor_shape[channel_axis] != len(numbers)
    ):
        context.broken(
            f"got {len(numbers)} scales along axis {channel_axis} of shape {tensor_shape}, expected one for each element"
        )
    return Quant(numbers, zeros, channel_axis % len(tensor_shape))


def _read_scale_axis(context: OpContext) -> int:
    """Return the axis along which scales differ; raise UnsupportedError if each block of elements has its own scale."""
    if context.operator.attributes.integer("block_size", 0):
        context.refuse("blocked quantisation (block_size) is not supported", "quantise per tensor or per channel")
    return context.operator.attributes.integer("axis", 1)


def _get_dequantize_attrs(quant: Quant) -> dict[str, Attr]:
    """Return the attributes of the graph operator ``dequantize`` that describe ``quant``."""
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}


def _get_quantize_attrs(context: OpContext, quant: Quant, out_dtype: str) -> Mapping[str, Attr]:
    """Return the attributes of the graph operator ``quantize``.

    Raise ModelError if a zero point does not fit ``out_dtype``."""
    low, high = dtypes.int_range(out_dtype)
    if any(not low <= zero <= high for zero in quant.zero_point):
        context.broken(
            f"got zero points {min(quant.zero_point)}..{max(quant.zero_point)}, expected {low}..{high} for {out_dtype}"
        )
    return {**_get_dequantize_attrs(quant), "out_dtype": out_dtype, "rounding": Ties.EVEN}


def convert_quantize_linear(context: OpContext) -> None:
    """Convert QuantizeLinear, saturate(round_half_to_even(x / scale) + zero_point)."""
    data, code = context.value(0), context.operator.attributes.integer("output_dtype", 0)
    out_dtype = dtype_from_code(code, context.where) if code else "uint8"
    if context.has_input(2):
        out_dtype = context.type(context.value(2)).dtype
    if not dtypes.is_integer(out_dtype):
        context.broken(f"the output has dtype {out_dtype}, expected integers")
    bits = get_result_bit_count(context, 2, code, out_dtype)
    real = context.type(data).dtype == "float32"
    if not real or bits == 4 or out_dtype not in _INTEGERS or not has_constant_scales(context, 1, 2):
        write_quantize_arithmetic(context, out_dtype, bits)
        return
    quant = read_constant_quantization(context, 1, 2, context.type(data).shape, _read_scale_axis(context))
    if out_dtype not in _INTEGERS:
        context.refuse(f"quantisation to {out_dtype} is not supported", "quantise to 8 or 16 bits")
    attrs = _get_quantize_attrs(context, quant, out_dtype)
    stored = context.builder.consts.get(data)
    if stored is not None and np.isnan(stored).any():
        context.broken("constant data: got NaN, which cannot be quantised, expected numbers")
    if stored is None:
        context.result("quantize", (data,), attrs)
    else:
        context.result_constant(quantize_array(stored, quant, out_dtype))


def quantize_array(float_data: Array, quant: Quant, out_dtype: str) -> Array:
    """Quantise constant float32 data as QuantizeLinear does."""
    shape = [1] * float_data.ndim
    if quant.axis is not None:
        shape[quant.axis] = len(quant.scale)
    scale = np.array(quant.scale, np.float32).reshape(shape)
    zero = np.array(quant.zero_point, np.float64).reshape(shape)
    low, high = dtypes.int_range(out_dtype)
    levels = np.rint(float_data / scale).astype(np.float64) + zero
    return np.asarray(np.clip(levels, low, high).astype(dtypes.to_numpy(out_dtype)))


def convert_dequantize_linear(context: OpContext) -> None:
    """Convert DequantizeLinear, (x - zero_point) * scale."""
    data = context.value(0)
    if not has_constant_scales(context, 1, 2):
        write_dequantize_arithmetic(context)
        return
    axis = _read_scale_axis(context)
    if context.has_input(2) and context.constant(2).dtype.name != context.type(data).dtype:
        context.broken(
            f"the zero point has dtype {context.constant(2).dtype}, expected {context.type(data).dtype} as the data have"
        )
    quant = read_constant_quantization(context, 1, 2, context.type(data).shape, axis)
    context.result("dequantize", (data,), _get_dequantize_attrs(quant))


class QuantizedOperands:
    """Reader of a quantised ONNX operator's operands, each given by three inputs: value, scale, zero point.

    Operands are dequantised before a float operator reads them, and the result of the float operator is quantised."""

    def __init__(self, context: OpContext) -> None:
        self.context = context

    def dequantize_operand(self, value_input_index: int) -> str:
        """Emit ``dequantize`` of an operand; return the name of the result.

        The operand's value, scale and zero point are three inputs from ``value_input_index`` on."""
        context, data = self.context, self.context.value(value_input_index)
        kind = context.type(data)
        if kind.dtype not in BYTES:
            context.refuse(
                f"operand {data!r} has dtype {kind.dtype}, expected int8 or uint8", "quantise it to int8 or uint8"
            )
        if context.builder.consts.get(data) is not None:
            return context.add_stored_tensor(data, self.read_constant_operand(value_input_index, 0))
        quant = read_constant_quantization(context, value_input_index + 1, value_input_index + 2, kind.shape, 1)
        return context.emit("dequantize", (data,), _get_dequantize_attrs(quant))

    def read_constant_operand(self, value_input_index: int, channel_axis: int) -> StoredTensor:
        """Return the integers and the quantisation of a constant operand.

        Its value, scale and zero point are three inputs from ``value_input_index`` on. The operand has one scale, or
        one for each element along ``channel_axis``."""
        data = self.context.constant(value_input_index)
        if data.dtype.name not in BYTES:
            self.context.refuse(
                f"the weights have dtype {data.dtype}, expected int8 or uint8", "quantise them to int8 or uint8"
            )
        return StoredTensor(
            data,
            read_constant_quantization(
                self.context, value_input_index + 1, value_input_index + 2, data.shape, channel_axis
            ),
        )

    def read_bias(
        self, bias_input_index: int, weight: StoredTensor, data_scale_input_index: int
    ) -> StoredTensor | None:
        """Return the int32 bias at input ``bias_input_index`` with its quantisation; None if the bias is absent.

        The scale of the bias is the scale of the data (input ``data_scale_input_index``) times the scale of the
        weights."""
        context = self.context
        if not context.has_input(bias_input_index):
            return None
        bias, units = context.constant(bias_input_index), weight.data.shape[0]
        if bias.dtype != np.int32 or bias.size != units or weight.quant is None:
            context.broken(f"bias: got shape {bias.shape} of {bias.dtype}, expected ({units},) of int32")
        data_scale = np.float32(read_scales(context, data_scale_input_index)[0])
        scales = np.array(weight.quant.scale, np.float32) * data_scale
        numbers = tuple(float(s) for s in scales)
        return StoredTensor(bias.reshape(units), Quant(numbers, (0,) * len(numbers), None if len(numbers) == 1 else 0))

    def write_quantized_result(self, float_name: str, scale_input_index: int) -> None:
        """Write the operator's output: ``float_name``, quantised with the scale at input ``scale_input_index``.

        The next input is the zero point."""
        context = self.context
        quant = read_constant_quantization(
            context, scale_input_index, scale_input_index + 1, context.type(float_name).shape, 1
        )
        out_dtype = (
            context.constant(scale_input_index + 1).dtype.name if context.has_input(scale_input_index + 1) else "uint8"
        )
        if out_dtype not in BYTES or quant.axis is not None:
            context.refuse(
                f"the output has dtype {out_dtype} and {len(quant.scale)} scales, expected int8 or uint8 and one scale",
                "quantise it to 8 bits, per tensor",
            )
        context.result("quantize", (float_name,), _get_quantize_attrs(context, quant, out_dtype))


def _are_weights_and_scales_constant(context: OpContext, input_count: int) -> bool:
    """Test whether all inputs of a quantised operator except its data (input 0) are constants.

    ``input_count``: maximum number of the operator's inputs."""
    return all(context.value(k) in context.builder.consts for k in range(1, input_count) if context.has_input(k)) and (
        has_constant_scales(context, 1, 2, 4, 5, 6, 7)
    )


def convert_qlinear_conv(context: OpContext) -> None:
    """Convert QLinearConv, with constant weights and scales to ``dequantize``, a float convolution and ``quantize``.

    Its inputs are x and w with scale and zero point each, then scale and zero point of y, and a bias."""
    if not _are_weights_and_scales_constant(context, 9):
        convert_qlinear_conv_at_run_time(context)
        return
    operands = QuantizedOperands(context)
    data, weight = operands.dequantize_operand(0), operands.read_constant_operand(3, 0)
    name = context.builder.make_unique_name(f"{context.output()}_real")
    write_convolution(context, data, weight, operands.read_bias(8, weight, 1), name)
    operands.write_quantized_result(name, 6)


def convert_qgemm(context: OpContext) -> None:
    """Convert com.microsoft.QGemm to a dense layer.

    Its inputs are A and B with scale and zero point each, the int32 bias C, then scale and zero point of Y."""
    attributes, operands = context.operator.attributes, QuantizedOperands(context)
    if attributes.real("alpha", 1.0) != 1.0 or attributes.flag("transA"):
        what = f"alpha = {attributes.real('alpha', 1.0)}, transA = {int(attributes.flag('transA'))}; only 1 and 0 are supported"
        context.refuse(what, "quantise the model in QDQ format")
    if not context.has_input(7):
        context.refuse("y_scale is missing; a float result is not supported", "quantise the model in QDQ format")
    data, weight = (
        operands.dequantize_operand(0),
        operands.read_constant_operand(3, 0 if attributes.flag("transB") else 1),
    )
    if weight.data.ndim != 2:
        context.broken(f"B: got shape {weight.data.shape}, expected two axes")
    weight = weight if attributes.flag("transB") else weight.transpose((1, 0))
    operands.write_quantized_result(emit_dense(context, data, weight, operands.read_bias(6, weight, 1)), 7)


def convert_qlinear_matmul(context: OpContext) -> None:
    """Convert QLinearMatMul: to a ``dense`` layer if the right operand is a constant matrix, else to a ``matmul``."""
    if not _are_weights_and_scales_constant(context, 8) or len(context.shape(3)) != 2:
        convert_qlinear_matmul_at_run_time(context)
        return
    operands = QuantizedOperands(context)
    data, weight = operands.dequantize_operand(0), operands.read_constant_operand(3, 1)
    if weight.data.ndim != 2:
        context.broken(f"B: got shape {weight.data.shape}, expected two axes")
    operands.write_quantized_result(emit_dense(context, data, weight.transpose((1, 0)), None), 6)


def make_qlinear_converter(
    op: str, operand_count: int, get_attrs: Callable[[OpContext], Mapping[str, Attr]] = lambda _: {}
) -> Converter:
    """Make a converter of a quantised ONNX operator to ``dequantize`` of its operands, ``op``, and ``quantize``.

    The ONNX operator's inputs are ``operand_count`` triples (value, scale, zero point), then the result's scale and
    zero point. ``get_attrs``: function that returns the attributes of ``op``."""

    def convert_qlinear(context: OpContext) -> None:
        operands = QuantizedOperands(context)
        values = [operands.dequantize_operand(3 * k) for k in range(operand_count)]
        operands.write_quantized_result(context.emit(op, values, get_attrs(context)), 3 * operand_count)

    return Converter(convert_qlinear, BYTES)


def convert_qlinear_concat(context: OpContext) -> None:
    """Convert com.microsoft.QLinearConcat.

    Its inputs are the result's scale and zero point, then a triple (value, scale, zero point) for each operand."""
    operands = QuantizedOperands(context)
    values = [operands.dequantize_operand(position) for position in range(2, context.input_count(), 3)]
    if not values:
        context.broken("got no operands, expected at least one")
    axis = context.axis(context.operator.attributes.integer("axis"), len(context.type(values[0]).shape))
    operands.write_quantized_result(context.emit("concat", values, {"axis": axis}), 0)


def make_dequantizing_converter(float_converter: Converter) -> Converter:
    """Make a converter of the quantised variant of an ONNX operator with one operand.

    The operand is dequantised, ``float_converter`` converts the float operator, and the result is quantised."""

    def convert_dequantized(context: OpContext) -> None:
        attributes, operands = context.operator.attributes, QuantizedOperands(context)
        if attributes.flag("channels_last"):
            context.refuse("channels_last is 1, expected 0", "export the model with channels first")
        real = context.builder.make_unique_name(f"{context.output()}_real")
        version = attributes.integer("opset", context.opset)
        operator = replace(context.operator, inputs=(operands.dequantize_operand(0),), outputs=(real,), opset=version)
        float_converter.convert(replace(context, operator=operator))
        operands.write_quantized_result(real, 3)

    return Converter(convert_dequantized, BYTES)


def convert_qlinear_global_average_pool(context: OpContext) -> None:
    """Convert com.microsoft.QLinearGlobalAveragePool to a mean over the spatial axes; data must have channels first."""
    if context.operator.attributes.flag("channels_last"):
        context.refuse("channels_last is 1, expected 0", "export the model with channels first")
    operands = QuantizedOperands(context)
    data = operands.dequantize_operand(0)
    axes = tuple(range(2, len(context.type(data).shape)))
    if not axes:
        context.broken(f"got data of shape {context.type(data).shape}, expected spatial axes behind batch and channels")
    operands.write_quantized_result(context.emit("mean", (data,), {"axes": axes, "keepdims": True}), 3)


def _get_leaky_relu_attrs(context: OpContext) -> Mapping[str, Attr]:
    """Return the attributes of the graph operator ``leaky_relu``: ``alpha``, the slope for negative numbers."""
    return {"alpha": context.operator.attributes.real("alpha", 0.01)}


QUANTIZED_CONVERTERS: Mapping[str, Converter] = {
    "ConvInteger": Converter(convert_conv_integer, BYTES),
    "MatMulInteger": Converter(convert_matmul_integer, BYTES),
    "DequantizeLinear": Converter(convert_dequantize_linear, _INTEGERS),
    "QLinearConv": Converter(convert_qlinear_conv, BYTES),
    "QLinearMatMul": Converter(convert_qlinear_matmul, BYTES),
    "QuantizeLinear": Converter(convert_quantize_linear, QUANTIZE_INPUTS),
}

MICROSOFT_CONVERTERS: Mapping[str, Converter] = {
    "DequantizeLinear": Converter(convert_dequantize_linear, _INTEGERS),
    "QGemm": Converter(convert_qgemm, BYTES),
    "QLinearAdd": make_qlinear_converter("add", 2),
    "QLinearAveragePool": make_dequantizing_converter(onnx_windows.POOL_CONVERTERS["AveragePool"]),
    "QLinearConcat": Converter(convert_qlinear_concat),
    "QLinearGlobalAveragePool": Converter(convert_qlinear_global_average_pool, BYTES),
    "QLinearLeakyRelu": make_qlinear_converter("leaky_relu", 1, _get_leaky_relu_attrs),
    "QLinearMul": make_qlinear_converter("mul", 2),
    "QLinearSigmoid": make_qlinear_converter("sigmoid", 1),
    "QLinearSoftmax": make_dequantizing_converter(onnx_linear.NEURAL_CONVERTERS["Softmax"]),
    "QuantizeLinear": Converter(convert_quantize_linear, FLOAT),
}


# ---- Layers with quantised weights and float data; the weights are dequantised at compile time: ONNX Runtime's MatMulNBits.
#
# :mod:`microc.ops.matrix.gemm` recognises from the numbers how kernels can store them. Source: the documentation of ONNX
# Runtime's contributed operators.

BITS = (2, 4, 8)


def convert_matmul_n_bits(context: OpContext) -> None:
    """Convert com.microsoft.MatMulNBits to a ``dense`` layer with float32 weights.

    It multiplies A (..., K) by the transpose of B (N, K). B is dequantised at compile time. Its numbers of ``bits``
    bits are packed in bytes, lowest bits first. Each block of ``block_size`` numbers of a row of B has its own
    scale."""
    attributes = context.operator.attributes
    units, depth, block = (attributes.integer(name) for name in ("N", "K", "block_size"))
    bits = attributes.integer("bits", 4)
    if bits not in BITS or min(units, depth, block) < 1 or attributes.integer("weight_prepacked", 0):
        prepacked = attributes.integer("weight_prepacked", 0)
        got = f"bits {bits}, N {units}, K {depth}, block_size {block} and weight_prepacked {prepacked}"
        what = f"got {got}, expected bits of 2, 4 or 8, sizes above 0 and weight_prepacked 0"
        context.refuse(what, "quantise the weights to 2, 4 or 8 bits, with weight_prepacked = 0")
    if context.has_input(4):
        context.refuse(
            "input g_idx is not supported (it reorders the rows of the weights)", "quantise the model without it"
        )
    blocks = -(-depth // block)
    packed, scales = context.constant(1), context.constant(2)
    if (
        packed.dtype != np.uint8
        or packed.size != units * blocks * (-(-block * bits // 8))
        or scales.size != units * blocks
    ):
        context.broken(
            f"got weights of shape {packed.shape} and {packed.dtype} with {scales.size} scales, expected "
            f"{units * blocks * (-(-block * bits // 8))} bytes of uint8 and {units * blocks} scales"
        )
    levels = _unpack_bit_fields(packed.reshape(units * blocks, -1), bits, block).reshape(units, blocks, block)
    zeros = _read_block_zero_points(context, units, blocks, bits).reshape(units, blocks, 1)
    real = (levels - zeros) * scales.astype(np.float32).reshape(units, blocks, 1)
    weight = np.ascontiguousarray(real.reshape(units, -1)[:, :depth].astype(np.float32))
    bias = StoredTensor(context.constant(5).reshape(-1)) if context.has_input(5) else None
    context.result_alias(emit_dense(context, context.operand(0), StoredTensor(weight), bias))


def _unpack_bit_fields(packed_rows: Array, bits_per_number: int, number_count: int) -> Array:
    """Unpack the first ``number_count`` unsigned numbers in each row of bytes to float32.

    ``bits_per_number``: 2, 4 or 8. The first number of a byte is in its lowest bits."""
    shifts = np.arange(0, 8, bits_per_number, dtype=np.uint8)
    digits = (packed_rows[:, :, None] >> shifts) & np.uint8((1 << bits_per_number) - 1)
    return np.asarray(digits.reshape(len(packed_rows), -1)[:, :number_count].astype(np.float32))


def _read_block_zero_points(context: OpContext, unit_count: int, blocks_per_unit: int, bits_per_number: int) -> Array:
    """Return the zero points of all blocks of weights as float32.

    The file stores zero points as packed integers, row by row of the weights, or as floats. Absent zero points are
    2 ** (``bits_per_number`` - 1), the middle of the range of the weights."""
    if not context.has_input(3):
        return np.full(unit_count * blocks_per_unit, 1 << (bits_per_number - 1), np.float32)
    points = context.constant(3)
    row_bytes = -(-blocks_per_unit * bits_per_number // 8)
    if points.dtype == np.uint8 and points.size == unit_count * row_bytes:
        return _unpack_bit_fields(points.reshape(unit_count, row_bytes), bits_per_number, blocks_per_unit)
    if points.dtype == np.uint8 or points.size != unit_count * blocks_per_unit:
        context.broken(
            f"zero_points: got {points.size} of {points.dtype}, expected {unit_count * row_bytes} bytes or "
            f"{unit_count * blocks_per_unit} floats"
        )
    return np.asarray(points.astype(np.float32))


WEIGHT_ONLY_CONVERTERS: Mapping[str, Converter] = {"MatMulNBits": Converter(convert_matmul_n_bits, ("float32",))}
"""Converters of ONNX operators of the domain ``com.microsoft`` with quantised weights and float data, by operator name."""
