# SPDX-License-Identifier: Apache-2.0
"""Quantisation in ONNX models: scales and zero points as operands, read as constants or written as arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.context import OpContext
from microc.frontend.signature import Ints, Value
from microc.graph.ir import Attr, Quant
from microc.ops.attributes import Ties

# ---- Scales and zero points that are computed, per block, or of 16 bits: written as the operators' defining arithmetic.
#
# Sums of products are exact, in int32. Scaling is done in float32 and rounded half to even, as ONNX's definition says.


@frozen
class QuantizedOperand:
    """An operand of a quantised ONNX operator: three inputs. The zero point may be absent."""

    value: Value
    scale: Value
    zero_point: Value | None


@frozen
class ResultQuantization:
    """Quantisation of the result of a quantised ONNX operator: two inputs. The zero point may be absent."""

    scale: Value
    zero_point: Value | None


def has_plain_scales(*scales_and_zero_points: Value | None) -> bool:
    """Test whether scales and zero points are constants of a form that ``quantize`` and ``dequantize`` support.

    They must be per tensor or per channel, and not of a 16-bit float dtype. Absent ones are ignored."""
    return all(
        value is None or (value.constant is not None and value.rank <= 1 and value.dtype not in dtypes.HALF)
        for value in scales_and_zero_points
    )


def broadcast_scale(context: OpContext, scale: Value, data_shape: Sequence[int], channel_axis: int) -> Value:
    """Reshape or repeat a scale or zero point so that it broadcasts to ``data_shape``; return the result.

    ``scale``: one element, one for each channel along ``channel_axis``, or one for each block of elements."""
    rank = len(data_shape)
    if scale.size == 1:
        return context.reshape(scale, ())
    if scale.rank == 1:
        channel_axis = context.axis(channel_axis, rank)
        return context.reshape(scale, (*scale.shape, *[1] * (rank - channel_axis - 1)))
    if scale.rank != rank or any(
        not scale_extent or -(-extent // scale_extent) * scale_extent < extent
        for extent, scale_extent in zip(data_shape, scale.shape, strict=True)
    ):
        context.broken(
            f"got scales of shape {scale.shape} for data of shape {tuple(data_shape)}, expected one scale, "
            "one for each channel or blocks along each axis"
        )
    blocks = [-(-extent // scale_extent) for extent, scale_extent in zip(data_shape, scale.shape, strict=True)]
    separated = context.reshape(scale, [extent for scale_extent in scale.shape for extent in (scale_extent, 1)])
    target = tuple(
        extent for scale_extent, block in zip(scale.shape, blocks, strict=True) for extent in (scale_extent, block)
    )
    expanded = context.reshape(
        context.emit("broadcast_to", (separated,), {"shape": target}),
        [p * b for p, b in zip(scale.shape, blocks, strict=True)],
    )
    return context.slice(expanded, (0,) * rank, data_shape)


def broadcast_constant_scale(context: OpContext, array: Array, data_shape: Ints, channel_axis: int) -> Array:
    """Return a constant scale or zero point, made to broadcast to ``data_shape``.

    It is reshaped and repeated as by :func:`broadcast_scale`, but at compile time, because repeating the scales of
    blocks of weights at run time would need much memory."""
    if array.size == 1:
        return array.reshape(())
    if array.ndim == 1:
        channel_axis = context.axis(channel_axis, len(data_shape))
        return array.reshape(-1, *[1] * (len(data_shape) - channel_axis - 1))
    if array.ndim != len(data_shape) or not all(array.shape):
        context.broken(
            f"got scales of shape {array.shape} for data of shape {data_shape}, expected equal numbers of axes"
        )
    for along, (extent, part) in enumerate(zip(data_shape, array.shape, strict=True)):
        array = np.repeat(array, -(-extent // part), axis=along).take(np.arange(extent), axis=along, mode="clip")
    return array


def write_rounding_and_saturation(
    context: OpContext, scaled: Value, zero_point: Value | None, out_dtype: str, bit_count: int
) -> None:
    """Write the output: ``scaled`` rounded, plus the zero point, saturated to ``bit_count`` bits.

    ``out_dtype``: dtype of the output."""
    levels = context.emit("round", (scaled,))
    if zero_point is not None:
        levels = context.emit("add", (levels, context.cast(zero_point, "float32")))
    low, high = dtypes.int_range(out_dtype)
    low, high = (
        low >> dtypes.dtype_parts(out_dtype).bits - bit_count,
        high >> dtypes.dtype_parts(out_dtype).bits - bit_count,
    )
    clipped = context.emit("clip", (levels,), {"minimum": float(low), "maximum": float(high)})
    context.result("cast", (clipped,), {"dtype": out_dtype})


def subtract_zero_point(context: OpContext, data: Value, zero_point: Value | None, channel_axis: int) -> Value:
    """Emit integers minus their zero points, as int32; return the result.

    ``channel_axis``: axis of the integers along which zero points per channel differ."""
    integers = context.cast(data, "int32")
    if zero_point is None:
        return integers
    zeros = context.cast(broadcast_scale(context, zero_point, data.shape, channel_axis), "int32")
    return context.emit("sub", (integers, zeros))


# ---- Constant scales and zero points.


def read_scales(context: OpContext, scale: Value) -> tuple[float, ...]:
    """Return constant scales: one, or one for each channel.

    Raises an error unless the scales are constant, positive float32 numbers."""
    scales = context.data(scale)
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


def read_quantization(
    context: OpContext, scale: Value, zero_point: Value | None, tensor_shape: Ints, channel_axis: int
) -> Quant:
    """Return the quantisation (scales, zero points, axis) of a tensor; an absent zero point is 0.

    ``channel_axis``: axis of the tensor along which scales differ if there are several."""
    numbers = read_scales(context, scale)
    zeros = (0,) * len(numbers)
    if zero_point is not None:
        points = context.data(zero_point)
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


def get_dequantize_attrs(quant: Quant) -> dict[str, Attr]:
    """Return the attributes of the graph operator ``dequantize`` that describe ``quant``."""
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}


def get_quantize_attrs(context: OpContext, quant: Quant, out_dtype: str) -> Mapping[str, Attr]:
    """Return the attributes of the graph operator ``quantize``.

    Raise ModelError if a zero point does not fit ``out_dtype``."""
    low, high = dtypes.int_range(out_dtype)
    if any(not low <= zero <= high for zero in quant.zero_point):
        context.broken(
            f"got zero points {min(quant.zero_point)}..{max(quant.zero_point)}, expected {low}..{high} for {out_dtype}"
        )
    return {**get_dequantize_attrs(quant), "out_dtype": out_dtype, "rounding": Ties.EVEN}


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
