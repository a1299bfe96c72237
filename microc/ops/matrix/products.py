# SPDX-License-Identifier: Apache-2.0
"""Legalisation of quantised conv2d, dense and matmul: integer products followed by a requantisation.

sum((x - zx) (w - zw)) + bias  =  sum(x w') + bias',    w' = w - zw,    bias' = bias - zx sum(w'),

so with constant weights the loop subtracts no zero point. A convolution pads with zx, so that the padding's terms (zx -
zx) w' are zero, as they must be. If both operands are computed at run time, their zero points are subtracted first.

Sources: TFLite Micro ``conv.cc``, ``depthwise_conv.cc``, ``fully_connected.cc``, ``batch_matmul.cc`` and the kernels
that they call. These accumulate 16-bit data in 64 bits, unless the bias has 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node
from microc.numerics import INT32_MAX
from microc.ops.arithmetic import Rewrite, activation_range, cast_exact, constant_data, per_tensor_quant
from microc.ops.attributes import Multiplier, Rounding
from microc.ops.matrix.gemm import emit_weight_offset_correction, find_weight_offset
from microc.ops.quantised.requantize import Requantization, emit_requantize, product_multipliers
from microc.ops.registry import Legalized

_SURFACE = frozenset({"activation", "rounding"})
"""Attributes of the quantised operator that its integer operator does not have."""
_UNKNOWN = 1 << 62
"""Stands for the unknown bound of a sum with a bias computed at run time; 32 bits are assumed to suffice for such a
sum."""
_WIDE_SUM_LIMIT = 1 << 47
"""Exclusive bound of 64-bit sums: TFLite's ``MultiplyByQuantizedMultiplier(int64_t)`` asserts -2**47 <= x < 2**47."""


@frozen
class ProductForm:
    """Properties of an operator that sums products, which its legalisation needs.

    - ``depth``: number of products in a sum.
    - ``trailing_axes``: number of output axes after the channel axis.
    - ``multiplies_scales_in_float32``: True if the scales of data and weight are multiplied in float32.
    - ``core_has_zero_points``: True if the core operator (the same operator on plain integers) has zero points as
    attributes and no bias. Otherwise it has a bias, and the channels are axis 0 of its weights.
    - ``core_has_pad_value``: True if the core operator has the attribute ``pad_value``."""

    depth: int
    trailing_axes: int = 0
    multiplies_scales_in_float32: bool = False
    core_has_zero_points: bool = False
    core_has_pad_value: bool = False


@frozen
class _CoreOperands:
    """Operands of the integer core operator, and bounds of its sums.

    ``max_partial_sum``: bound of the magnitude of every partial sum. ``max_sum``: bound of the magnitude of the
    complete sum."""

    operands: tuple[str, ...]
    max_partial_sum: int
    max_sum: int
    pad_value: int
    weight_offset: int = 0
    """Number subtracted from every weight so that the weights fit int8, or 0 (see :func:`find_weight_offset`)."""


def legalize_product(node: Node, graph: Graph, product_form: ProductForm) -> Legalized:
    """Rewrite a quantised operator to the same operator on plain integers, followed by ``requantize``.

    If the node's rounding is ``even``, ``requantize_float`` follows instead. Raise UnsupportedError if the sums cannot
    be computed as TFLite computes them."""
    rewrite = Rewrite(node, graph)
    output = graph.types[node.outputs[0]]
    weight = graph.types[node.inputs[1]].quant
    data_zero, out_zero = (per_tensor_quant(node, graph, name)[1] for name in (node.inputs[0], node.outputs[0]))
    assert weight is not None and output.quant is not None
    rounding = str(node.attrs.get("rounding", Rounding.DOUBLE))
    exact_scales = rounding == Rounding.LITERT
    # LiteRT rounds once, like TFLite with single rounding. It differs in the scales (double precision) and in 64-bit sums, below.
    rounding = Rounding.SINGLE if exact_scales else rounding
    weights = constant_data(graph, node.inputs[1])
    if product_form.core_has_zero_points:
        largest = _bound_sum_minus_zero_points(rewrite, product_form.depth)
        terms = _CoreOperands(node.inputs[:2], largest, largest, 0)
    elif weights is None:
        terms = _subtract_zero_points(rewrite, product_form.depth)
    else:
        terms = _fold_zero_points(rewrite, weights, data_zero)
    fits = terms.max_partial_sum <= INT32_MAX
    # TFLite sums int16 data without an int32 bias in 64 bits and scales the sum by a 16-bit multiplier. As this rounds
    # differently, 64 bits are used even where the sum fits 32 bits. With exact scales (LiteRT) 32 bits are permitted.
    wide = rounding != Rounding.EVEN and _accumulates_in_64_bits(node, graph) and not (exact_scales and fits)
    if wide and _WIDE_SUM_LIMIT <= terms.max_partial_sum != _UNKNOWN:
        raise UnsupportedError(
            f"sums need {terms.max_partial_sum.bit_length()} bits without the sign; expected at most "
            f"{(_WIDE_SUM_LIMIT - 1).bit_length()}, TFLite's limit of 64-bit sums",
            where=str(node.loc),
            hint="make the bias smaller",
        )
    # A computed bias is clipped (_clip_bias) so that the sum fits its dtype.
    accumulator = "int32" if fits or terms.max_partial_sum == _UNKNOWN else "int64"
    terms = _convert_bias(rewrite, terms, accumulator)
    attrs: dict[str, Attr] = {k: v for k, v in node.attrs.items() if k not in _SURFACE}
    attrs |= {"activation": "", "out_dtype": accumulator}
    if product_form.core_has_zero_points:
        zeros = (per_tensor_quant(node, graph, name)[1] for name in node.inputs[:2])
        attrs |= dict(zip(("zero_point_a", "zero_point_b"), zeros, strict=True))
    if product_form.core_has_pad_value:
        attrs["pad_value"] = terms.pad_value
    shift_sum = (
        emit_weight_offset_correction(rewrite, terms.operands, terms.weight_offset, output.shape, accumulator, attrs)
        if terms.weight_offset
        else ""
    )
    # The sum of the weights' shift was emitted before the product, so that the product's kernel can fuse the addition below.
    acc = rewrite.emit(node.op, terms.operands, rewrite.add_value("acc", output.shape, accumulator), attrs)
    if shift_sum:
        acc = rewrite.emit("add", (acc, shift_sum), rewrite.add_value("whole", output.shape, accumulator), {})
    data = graph.types[node.inputs[0]].quant
    assert data is not None
    low, high = activation_range(
        str(node.attrs.get("activation", "")), output.quant, output.dtype, rounding, str(node.loc)
    )
    multipliers = product_multipliers(
        data, weight, output.quant, rounding, product_form.multiplies_scales_in_float32 and not exact_scales
    )
    result = Requantization(multipliers, out_zero, low, high, output.dtype, product_form.trailing_axes)
    bound = terms.max_sum if terms.max_sum <= INT32_MAX or wide else -1  # -1: unknown
    emit_requantize(rewrite, acc, node.outputs[0], result, Multiplier.WIDE if wide else rounding, bound)
    return rewrite.legalized()


def _accumulates_in_64_bits(node: Node, graph: Graph) -> bool:
    """Test whether TFLite accumulates the sums of the operator in 64 bits and scales them by a 16-bit multiplier."""
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return graph.types[node.inputs[0]].dtype == "int16" and not (bias and graph.types[bias].dtype == "int32")


def _fold_zero_points(rewrite: Rewrite, weights: Array, data_zero_point: int) -> _CoreOperands:
    """Fold the zero points of the data and of constant weights (channels on axis 0) into the weights and the bias."""
    node, graph = rewrite.node, rewrite.graph
    weight_type = graph.types[node.inputs[1]]
    assert weight_type.quant is not None
    if weight_type.quant.axis not in (None, 0):
        raise UnsupportedError(
            f"the weights {node.inputs[1]!r} are quantised along axis {weight_type.quant.axis}; expected axis 0 "
            "(output channels) or one scale",
            where=str(node.loc),
            hint="quantise per output channel",
        )
    weight, shift = node.inputs[1], 0
    rows = weights.reshape(weights.shape[0], -1).astype(np.int64) - np.array(weight_type.quant.zero_point).reshape(
        -1, 1
    )
    if any(weight_type.quant.zero_point) or weight_type.dtype not in ("int8", "int16"):
        # Weights less their zero point may need nine bits: shift them into int8 if possible, else store int16.
        shift = find_weight_offset(node, graph, rows)
        dtype = "int8" if shift or (rows.min(initial=0) >= -128 and rows.max(initial=0) <= 127) else "int16"
        weight = rewrite.add_constant("weight", cast_exact(dtype, rows - shift).reshape(weights.shape))
    folded = -data_zero_point * rows.sum(axis=1)
    bias_name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias_data = constant_data(graph, bias_name)
    low, high = dtypes.int_range(graph.types[node.inputs[0]].dtype)
    # largest adds up magnitudes, so it holds for partial sums in any order; above and below are the extremes of the whole sum.
    total = folded if bias_data is None else folded + bias_data.astype(np.int64).reshape(-1)
    largest = int((np.abs(total) + np.abs(rows).sum(axis=1) * max(-low, high)).max(initial=0))
    above = total + np.maximum(rows * low, rows * high).sum(axis=1)
    below = total + np.minimum(rows * low, rows * high).sum(axis=1)
    bound = int(np.maximum(np.abs(above), np.abs(below)).max(initial=0))
    operands: tuple[str, ...] = (node.inputs[0], weight)
    if bias_name and bias_data is None:
        bias = _clip_bias(
            rewrite, _add_folded_zero_point(rewrite, bias_name, folded), largest_product_sum(rows, low, high)
        )
        return _CoreOperands((*operands, bias), _UNKNOWN, _UNKNOWN, data_zero_point, shift)
    if total.any():
        operands = (*operands, rewrite.add_constant("bias", total))
    return _CoreOperands(operands, largest, bound, data_zero_point, shift)


def largest_product_sum(weight_matrix: Array, data_min: int, data_max: int) -> int:
    """Return the largest magnitude of a sum of weights (channels, depth) times data within
    ``data_min``..``data_max``."""
    above, below = (
        np.maximum(weight_matrix * data_min, weight_matrix * data_max).sum(axis=1),
        np.minimum(weight_matrix * data_min, weight_matrix * data_max).sum(axis=1),
    )
    return max(int(above.max(initial=0)), -int(below.min(initial=0)))


def _clip_bias(rewrite: Rewrite, bias_name: str, max_product_sum: int) -> str:
    """Clip a bias computed at run time, so that its sum with products of at most ``max_product_sum`` fits the dtype of
    the bias.

    Return the name of the clipped bias. Without the clip, the sum could overflow, which C does not define for signed
    integers."""
    bias_type = rewrite.type(bias_name)
    room = dtypes.int_range(bias_type.dtype)[1] - max_product_sum
    if room < 0:
        raise UnsupportedError(
            f"sums with the bias {bias_name!r}, which is computed when the network runs, can overflow "
            f"{bias_type.dtype}; got products of up to {max_product_sum}",
            where=str(rewrite.node.loc),
            hint="make the bias a constant, or a layer of its own",
        )
    attrs: Mapping[str, Attr] = {"minimum": -room, "maximum": room, "rounding": Rounding.NONE}
    return rewrite.emit("clip", (bias_name,), rewrite.add_value("bias", bias_type.shape, bias_type.dtype), attrs)


def _add_folded_zero_point(rewrite: Rewrite, bias_name: str, zero_point_sums: Array) -> str:
    """Add ``zero_point_sums``, the contribution of the data's zero point to each sum, to a bias computed at run time;
    return the sum's name."""
    if not zero_point_sums.any():
        return bias_name
    bias_type = rewrite.type(bias_name)
    term = rewrite.add_constant("correction", cast_exact(bias_type.dtype, zero_point_sums))
    return rewrite.emit("add", (bias_name, term), rewrite.add_value("bias", bias_type.shape, bias_type.dtype), {})


def _convert_bias(rewrite: Rewrite, core_operands: _CoreOperands, acc_dtype: str) -> _CoreOperands:
    """Convert a constant bias among ``core_operands`` to the accumulator's dtype; return the new operands."""
    if len(core_operands.operands) < 3 or core_operands.operands[2] not in rewrite.consts:
        return core_operands
    bias = core_operands.operands[2]
    values = rewrite.consts.pop(bias)
    low, high = dtypes.int_range(acc_dtype)
    if values.min() < low or values.max() > high:
        raise UnsupportedError(
            f"the bias does not fit the accumulator's dtype {acc_dtype}; got values of {values.min()}..{values.max()}",
            where=str(rewrite.node.loc),
            hint="quantise the weights with a larger scale",
        )
    del rewrite.types[bias]
    operand = rewrite.add_constant("bias", cast_exact(acc_dtype, values))
    return replace(core_operands, operands=(*core_operands.operands[:2], operand))


def _subtract_zero_points(rewrite: Rewrite, products_per_sum: int) -> _CoreOperands:
    """Subtract the zero points from both operands at run time, for weights that the network computes."""
    node = rewrite.node
    operands = [_subtract_zero_point(rewrite, name) for name in node.inputs[:2]]
    bound = _bound_sum_minus_zero_points(rewrite, products_per_sum)
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = constant_data(rewrite.graph, name)
    if bias is not None:
        bound += int(np.abs(bias.astype(np.int64)).max(initial=0))
        operands.append(rewrite.add_constant("bias", bias.astype(np.int64).reshape(-1)))
    elif name:
        operands.append(_clip_bias(rewrite, name, bound))
        bound = _UNKNOWN
    return _CoreOperands(tuple(operands), bound, bound, 0)


def _bound_sum_minus_zero_points(rewrite: Rewrite, products_per_sum: int) -> int:
    """Return the largest magnitude of a sum of ``products_per_sum`` products, each of two operands minus their zero
    points."""
    ranges = (_value_range_minus_zero_point(rewrite, name) for name in rewrite.node.inputs[:2])
    return products_per_sum * prod(max(-low, high) for low, high in ranges)


def _value_range_minus_zero_point(rewrite: Rewrite, value_name: str) -> tuple[int, int]:
    """Return ``(least, largest)``: the range of the value ``value_name`` minus its zero point."""
    low, high = dtypes.int_range(rewrite.type(value_name).dtype)
    zero = per_tensor_quant(rewrite.node, rewrite.graph, value_name)[1]
    return low - zero, high - zero


def _subtract_zero_point(rewrite: Rewrite, value_name: str) -> str:
    """Subtract the zero point from the value ``value_name``; return the name of the int16 result, or ``value_name`` if
    the zero point is 0."""
    operand_type, zero = rewrite.type(value_name), per_tensor_quant(rewrite.node, rewrite.graph, value_name)[1]
    if zero == 0:
        return value_name
    values = constant_data(rewrite.graph, value_name)
    if values is not None:
        return rewrite.add_constant("centred", cast_exact("int16", values.astype(np.int64) - zero))
    low, high = _value_range_minus_zero_point(rewrite, value_name)
    if dtypes.nbytes(operand_type.dtype) != 1:
        raise UnsupportedError(
            f"{value_name!r} has an unsupported zero point; got {zero} for {operand_type.dtype}, expected 0 or 8-bit "
            "data",
            where=str(rewrite.node.loc),
            hint="quantise it symmetrically",
        )
    # A multiplier of 2**30 / 2**31 and a left shift of one is the factor one.
    attrs: Mapping[str, Attr] = {
        "multiplier": 1 << 30,
        "shift": 1,
        "shift_range": (1, 1),
        "rounding": Multiplier.DOUBLE,
    }
    result: Mapping[str, Attr] = {"zero_point": 0, "minimum": low, "maximum": high, "out_dtype": "int16"}
    extra: Mapping[str, Attr] = {"input_zero_point": zero, "bound": max(-low, high)}
    output = rewrite.add_value("centred", operand_type.shape, "int16")
    return rewrite.emit("requantize", (value_name,), output, {**attrs, **result, **extra})
