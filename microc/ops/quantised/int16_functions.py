# SPDX-License-Identifier: Apache-2.0
"""Quantised functions of int16 values. A lookup table of all 65536 values would be too large, so that they are
computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import FAR_APART, INT32_MAX, INT32_MIN
from microc.ops.arithmetic import Rewrite, per_tensor_quant
from microc.ops.attributes import Rounding, choice, integer, mantissa
from microc.ops.constants import CheckedNode, NumberUse, OperandBounds
from microc.ops.elementwise.tables import leaky_relu_multiplier, quantised_clip_bounds
from microc.ops.quantised.requantize import Requantization, emit_requantize
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

# ---- Functions computed in int32: relu, clip, leaky_relu and abs of int16, squared differences.
#
# Sources: TFLite Micro ``activations_common.cc``, ``leaky_relu_common.cc``, ``elementwise.cc``, ``squared_difference.cc``.


def legalize_int16_function(node: Node, graph: Graph) -> Legalized:
    """Rewrite a quantised relu, clip or leaky_relu to ``requantize``; a leaky_relu also needs integer arithmetic around
    it."""
    rewrite = Rewrite(node, graph)
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    single = node.attr("rounding") == Rounding.LITERT  # LiteRT divides the scales in float32, TFLite Micro in double
    ratio = (
        float(np.float32(scale_in) / np.float32(scale_out)) if single else np.float64(scale_in) / np.float64(scale_out)
    )
    least, most = dtypes.int_range(source.dtype)
    bound = max(most - zero_in, zero_in - least)
    if node.op != "leaky_relu":
        assert result.quant is not None
        low, high = quantised_clip_bounds(node.op, node.attrs, result.quant, result.dtype, _multiplier_rounding(node))
        parameters = Requantization((float(ratio),), zero_out, low, high, result.dtype)
        emit_requantize(
            rewrite, node.inputs[0], node.outputs[0], parameters, _multiplier_rounding(node), bound, zero_in
        )
        return rewrite.legalized()
    alpha = node.attr("alpha")
    slope = leaky_relu_multiplier(scale_in, scale_out, alpha)
    if single:
        slope = float(np.float32(scale_in) * abs(np.float32(alpha)) / np.float32(scale_out))
    x = rewrite.emit("cast", node.inputs[:1], rewrite.add_value("wide", source.shape, "int32"), {"dtype": "int32"})
    if zero_in:
        x = _emit_with_constant(rewrite, "sub", x, zero_in)
    parts = [
        _emit_rescale(rewrite, _emit_with_constant(rewrite, op, x, 0), float(real), bound)
        for op, real in (("maximum", ratio), ("minimum", slope))
    ]
    total = rewrite.add_value("sum", source.shape, "int32")
    rewrite.emit("sub" if alpha < 0 else "add", parts, total, {"activation": "", "rounding": Rounding.NONE})
    if zero_out:
        total = _emit_with_constant(rewrite, "add", total, zero_out)
    low, high = dtypes.int_range(result.dtype)
    clipped = rewrite.add_value("clipped", source.shape, "int32")
    rewrite.emit("clip", (total,), clipped, {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
    rewrite.emit("cast", (clipped,), node.outputs[0], {"dtype": result.dtype})
    return rewrite.legalized()


def legalize_int16_abs(node: Node, graph: Graph) -> Legalized:
    """Rewrite ``abs`` of int16 to integer operators, followed by a ``requantize`` to the scale of the output."""
    rewrite = Rewrite(node, graph)
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    x = rewrite.emit("cast", node.inputs[:1], rewrite.add_value("wide", source.shape, "int32"), {"dtype": "int32"})
    if zero_in:
        x = _emit_with_constant(rewrite, "sub", x, zero_in)
    size = rewrite.emit("abs", (x,), rewrite.add_value("size", source.shape, "int32"), {"rounding": Rounding.NONE})
    ratio = np.float64(scale_in) / np.float64(scale_out)
    low, high = dtypes.int_range(result.dtype)
    parameters = Requantization((float(ratio),), zero_out, low, high, result.dtype)
    emit_requantize(rewrite, size, node.outputs[0], parameters, _multiplier_rounding(node), 1 << 16)
    return rewrite.legalized()


def legalize_squared_difference(node: Node, graph: Graph) -> Legalized:
    """Rewrite (a - b) squared of quantised operands to integer operators.

    Both operands are shifted left first, by 7 bits if they have 8 bits and by 0 if they have 16, then scaled to twice
    the larger of their scales."""
    rewrite = Rewrite(node, graph)
    result = graph.types[node.outputs[0]]
    scales = [float(np.float32(per_tensor_quant(node, graph, name)[0])) for name in (*node.inputs, *node.outputs)]
    zero_out = per_tensor_quant(node, graph, node.outputs[0])[1]
    left, twice = 7 if dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1 else 0, 2.0 * max(scales[:2])
    terms = [
        emit_shifted_scale(rewrite, name, left, scale / twice) for name, scale in zip(node.inputs, scales, strict=False)
    ]
    plain: Mapping[str, Attr] = {"activation": "", "rounding": Rounding.NONE}
    difference = rewrite.emit("sub", terms, rewrite.add_value("difference", result.shape, "int32"), plain)
    square = rewrite.emit("mul", (difference,) * 2, rewrite.add_value("square", result.shape, "int32"), plain)
    real = twice * twice / float(np.float32((1 << left * 2) * np.float32(scales[2])))
    low, high = dtypes.int_range(result.dtype)
    parameters = Requantization((real,), zero_out, low, high, result.dtype)
    emit_requantize(rewrite, square, node.outputs[0], parameters, _multiplier_rounding(node), INT32_MAX)
    return rewrite.legalized()


def emit_shifted_scale(rewrite: Rewrite, operand_name: str, left_shift: int, multiplier: float) -> str:
    """Append the int32 value round(((x - zero point) << ``left_shift``) * ``multiplier``), where x is the operand
    ``operand_name``.

    ``multiplier`` is at most one. Return the name of the value."""
    value_type = rewrite.type(operand_name)
    zero = per_tensor_quant(rewrite.node, rewrite.graph, operand_name)[1]
    low, high = dtypes.int_range(value_type.dtype)
    x = rewrite.emit("cast", (operand_name,), rewrite.add_value("wide", value_type.shape, "int32"), {"dtype": "int32"})
    x = _emit_with_constant(rewrite, "sub", x, zero) if zero else x
    x = _emit_with_constant(rewrite, "mul", x, 1 << left_shift) if left_shift else x
    return _emit_rescale(rewrite, x, multiplier, max(high - zero, zero - low) << left_shift)


def _multiplier_rounding(node: Node) -> str:
    return Rounding(str(node.attr("rounding"))).multiplier


def _emit_with_constant(rewrite: Rewrite, op: str, value_name: str, right_operand: int) -> str:
    """Append the int32 operator ``op`` on the value ``value_name`` and the constant ``right_operand``; return the name
    of the result."""
    constant = rewrite.add_constant("number", np.array(right_operand, np.int32))
    result = rewrite.add_value(op, rewrite.type(value_name).shape, "int32")
    return rewrite.emit(op, (value_name, constant), result, {"activation": "", "rounding": Rounding.NONE})


def _emit_rescale(rewrite: Rewrite, value_name: str, multiplier: float, max_magnitude: int) -> str:
    """Append the product of the int32 value ``value_name`` and ``multiplier``, rounded to int32; return the name of the
    result.

    ``max_magnitude``: largest magnitude of the value."""
    output = rewrite.add_value("scaled", rewrite.type(value_name).shape, "int32")
    parameters = Requantization((multiplier,), 0, INT32_MIN, INT32_MAX, "int32")
    emit_requantize(rewrite, value_name, output, parameters, _multiplier_rounding(rewrite.node), max_magnitude)
    return output


# ---- ``qsigmoid16``: sigmoid and tanh of int16 with zero points of zero, interpolated in a table as in TFLite Micro.
#
# The table contains sigmoid(i / 24) in Q0.16 for i = -255 .. 256. Sources: TFLite ``integer_ops/logistic.h``,
# ``integer_ops/tanh.h`` (int16), ``common.h`` (sigmoid_table_uint16); TFLite Micro ``logistic_common.cc``, ``tanh.cc``
# (multiplier and shift).

_BITS = {"sigmoid": 9, "tanh": 8}
"""Number of fraction bits of a table index, by function."""
_ENDS = {"sigmoid": (255 << 9) - 1, "tanh": 255 << 8}
"""Largest magnitude of a table index in fixed point, by function; larger data are clamped to it. The sigmoid ends just
before the last point of the table, which would be 1; tanh ends at this point."""
_INDEX_MASK = 511
"""Mask that reduces table indices modulo 512. The table stores the points of negative indices after those of the others."""


def sigmoid_table() -> Array:
    """Return TFLite's table of the sigmoid: 256 points at i / 24 as uint16 (Q0.16).

    Each point is the exact value plus half of the error that linear interpolation to the next point has halfway between
    them. The last point is 65535."""
    x = np.arange(257) / 24
    exact = 1 / (1 + np.exp(-x))
    middle = 1 / (1 + np.exp(-(x[:-1] + 1 / 48)))
    lack = middle - (exact[:-1] + exact[1:]) / 2
    points = np.floor(65536 * (exact[:-1] + lack / 2) + 0.5)
    points[-1] = 65535
    return points.astype(np.uint16)


def signed_sigmoid_table() -> Array:
    """Return the table of the sigmoid for signed indices, as uint16: entry ``i % 512`` is the point at i / 24.

    i is from -255 to 256; entry 512 repeats entry 0, for the interpolation from i = -1. The point at -i is one minus
    the point at i. The table has an entry for every signed index, so that the interpolation needs no branch on the
    sign."""
    points = np.append(sigmoid_table(), 65535).astype(np.int64)
    return np.concatenate([points, 65536 - points[-2:0:-1], points[:1]]).astype(np.uint16)


def table_index_multiplier_and_shift(function_name: str, in_scale: float) -> tuple[int, int] | None:
    """Return the multiplier and the right shift that convert data with the scale ``in_scale`` to the unit of the
    function's table.

    The unit is 1 / (3 * 4096). Return None if the multiplier does not fit 15 bits or the shift exceeds 31 bits. A scale
    within 0.1 % of certain powers of two near the unit gets an exact multiplier and no shift."""
    log2 = float(np.float32(np.log(np.float32(in_scale))) * np.float32(1 / np.log(2.0)))
    left = 12 + round(log2)
    if abs(log2 - round(log2)) < 1e-3 and (left == 0 or (left == 1 and function_name == "tanh")):
        return 3 << left, 0
    multiplier, shift = in_scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2.0, shift + 1
    return (int(multiplier), shift) if 1 <= multiplier < 32768 else None


def _scale_to_table_index(attrs: Mapping[str, Any], x: Any) -> Any:
    """Convert ``x``, an int32 within the range of int16, to a fixed-point table index by the attributes ``multiplier``
    and ``shift``."""
    shift = attrs["shift"]
    return (x * attrs["multiplier"] + ((1 << shift) >> 1)) >> shift


def _interpolate_magnitude_and_apply_sign(attrs: Mapping[str, Any], x: Array, table: Array) -> Array:
    """Return the sigmoid or tanh of ``x`` in Q0.15. As in TFLite the table is interpolated at the magnitude of ``x``,
    then the sign is applied."""
    scaled = _scale_to_table_index(attrs, x)
    bits, size = _BITS[attrs["curve"]], np.abs(scaled)
    segment = size >> bits
    first = np.minimum(segment, 254)
    low = table[first]
    inside = (low << bits) + (size & ((1 << bits) - 1)) * (table[first + 1] - low)
    value = np.where(segment < 255, inside, (0x7FFF << 10) if bits == 9 else (0xFFFF << 8))
    if attrs["curve"] == "sigmoid":
        return np.asarray(np.where(scaled < 0, (1 << 25) + (1 << 9) - 1 - value, value + (1 << 9)) >> 10)
    return np.asarray(np.where(scaled < 0, (1 << 23) + (1 << 7) - 1 - value, value - (1 << 23) + (1 << 7)) >> 8)


def _infer_qsigmoid16_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype != "int16" or (table.dtype, table.shape) != ("uint16", (513,)):
        raise ModelError(
            f"qsigmoid16: data or table have unsupported types; got {x.dtype} data and a table {table.dtype} {table.shape}, "
            "expected int16 and uint16 (513,)"
        )
    return (TensorType(x.shape, "int16"),)


def _evaluate_qsigmoid16_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    return (_interpolate_magnitude_and_apply_sign(attrs, x, table).astype(np.int16),)


def _build_qsigmoid16_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    """Build the interpolation without a branch on the sign.

    On a segment of the table the interpolated line is the same for both signs. Only ties differ, because they round
    away from zero: one is subtracted from the sum if the number is negative."""
    bits, end, table = _BITS[attrs["curve"]], _ENDS[attrs["curve"]], args[1]
    scaled = _scale_to_table_index(attrs, ir.cast("int32", args[0]))
    if _scale_to_table_index(attrs, 1 << 15) > end:
        scaled = ir.clamp(scaled, -end, end)
    first = (scaled >> bits) & _INDEX_MASK
    low, high = (ir.cast("int32", table[place]) for place in (first, first + 1))
    line = (low << bits) + (scaled & ((1 << bits) - 1)) * (high - low) + (scaled >> 31)
    rounded = (line + (1 << bits)) >> (bits + 1) if attrs["curve"] == "sigmoid" else (line + (1 << bits - 1)) >> bits
    return ir.cast("int16", rounded if attrs["curve"] == "sigmoid" else rounded - (1 << 15))


def _make_qsigmoid16_test_cases() -> Iterable[Case]:
    x = np.append(np.linspace(-32768, 32767, 98), [0, 1, -1]).round().astype(np.int16)
    for curve in ("sigmoid", "tanh"):
        for scale in (1 / 4096, 1 / 2048, 3e-4, 1e-5, 0.01):
            scaling = table_index_multiplier_and_shift(curve, scale)
            assert scaling is not None
            attrs: dict[str, Attr] = {"curve": curve, "multiplier": scaling[0], "shift": scaling[1]}
            types = (TensorType(x.shape, "int16"), TensorType((513,), "uint16"))
            yield Case(attrs, types, consts=(1,), arrays=(x, signed_sigmoid_table()), name=f"{curve} {scale}")


def legalize_sigmoid16(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite ``sigmoid`` or ``tanh`` of int16 to ``qsigmoid16`` if TFLite's fixed-point kernel supports it, else
    return None.

    The kernel needs zero points of zero and an output scale of 2**-15. Raise UnsupportedError if the input scale is out
    of its range."""
    scale_in, zero_in = per_tensor_quant(node, graph, node.inputs[0])
    scale_out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    if zero_in or zero_out or abs(scale_out * 32768 - 1) > 1e-3:
        return None
    scaling = table_index_multiplier_and_shift(node.op, scale_in)
    if scaling is None:
        raise UnsupportedError(
            f"the input's scale is outside of the range of the fixed-point function; got {scale_in:.3g}", hint=FAR_APART
        )
    rewrite = Rewrite(node, graph)
    operands = (node.inputs[0], rewrite.add_constant("table", signed_sigmoid_table()))
    attrs: dict[str, Attr] = {"curve": node.op, "multiplier": scaling[0], "shift": scaling[1]}
    rewrite.emit("qsigmoid16", operands, node.outputs[0], attrs)
    return rewrite.legalized()


def _table_mismatch_message(checked_node: CheckedNode) -> str:
    """Return a message if the operand ``table`` is constant and not the table of the sigmoid, else an empty string.

    The generated loops rely on the symmetry of the table and on its last entries."""
    table, points = checked_node.data[1], signed_sigmoid_table()
    if table is None or np.array_equal(table, points):
        return ""
    wrong = int((table != points).argmax())
    return f"table[{wrong}] is not that of TFLite's sigmoid; got {table[wrong]}, expected {points[wrong]}"


QSIGMOID16 = OpDef(
    "qsigmoid16",
    attrs={
        "curve": choice("function in the table", "sigmoid", "tanh"),
        "multiplier": mantissa("of the input, Q0.15", most=(1 << 15) - 1),
        "shift": integer("its exponent, positive to the right", least=0, most=31),
    },
    infer=_infer_qsigmoid16_types,
    reference=_evaluate_qsigmoid16_reference,
    scalar=_build_qsigmoid16_scalar_expr,
    cases=_make_qsigmoid16_test_cases,
    constants={1: OperandBounds(NumberUse.POINT, 0, (1 << 16) - 1)},
    sound=(_table_mismatch_message,),
    operand_names=("x", "table"),
    whole=(1,),
    repeats=True,
)
