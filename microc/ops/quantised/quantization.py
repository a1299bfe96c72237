# SPDX-License-Identifier: Apache-2.0
"""Operators that convert between real numbers and integers: ``quantize`` and ``dequantize``.

The numpy references are the formulas of :mod:`microc.numerics`; the generated expressions are the sequences of
:mod:`microc.ops.quantised.scaling`.

Sources: TFLite ``quantize.h``, ``dequantize.h``; the ONNX operators QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, clip_with_nan_as_low, round_half_away, round_half_even
from microc.ops.arithmetic import Rewrite, clamp_to_dtype, emit_dequantize
from microc.ops.attributes import Attributes, Multiplier, Ties, element_type, enum_choice, integers, numbers, one_axis
from microc.ops.constants import CheckedNode
from microc.ops.quantised.quantised_arithmetic import QADD, QMUL, legalize_add, legalize_mul, legalize_sub
from microc.ops.quantised.requantize import (
    Requantization,
    emit_requantize,
    infer_requantize,
    make_dequantize_test_cases,
    make_quantize_test_cases,
)
from microc.ops.quantised.scaling import largest_float32_not_above, least_float32_not_below, round_to_int32
from microc.ops.registry import Legalized, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

__all__ = ["OPERATORS", "legalize_add", "legalize_mul", "legalize_sub"]

# ---------------------------------------------------------------- quantize, dequantize


def _read_scales_and_zero_points(attrs: Mapping[str, Any], data_rank: int) -> tuple[Array, Array]:
    """Return scale (float32) and zero_point (int64) of the attributes as arrays that broadcast to data of ``data_rank``
    axes."""
    shape = [1] * data_rank
    if attrs["axis"] is not None:
        shape[attrs["axis"]] = len(attrs["scale"])
    return np.array(attrs["scale"], np.float32).reshape(shape), np.array(attrs["zero_point"], np.int64).reshape(shape)


def _read_single_scale_and_zero_point(attrs: Mapping[str, Any]) -> tuple[float, int]:
    """Return the scale and zero point of a tensor that has one of each for all elements."""
    if len(attrs["scale"]) != 1:
        raise InternalError("a scale per channel has no scalar expression: legalisation must turn it into an operand")
    return attrs["scale"][0], attrs["zero_point"][0]


def _build_quantize_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale, zero = _read_single_scale_and_zero_point(attrs)
    low, high = dtypes.int_range(attrs["out_dtype"])
    least, most = max(low - zero, -(1 << 31)), min(high - zero, INT32_MAX)
    x = round_to_int32(args[0] / ir.const(scale, "float32"), least, most, attrs["rounding"])
    return clamp_to_dtype(x + zero if zero else x, low, high, attrs["out_dtype"])


def _evaluate_quantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.float32)
    scale, zero = _read_scales_and_zero_points(attrs, x.ndim)
    low, high = dtypes.int_range(attrs["out_dtype"])
    least, most = np.maximum(low - zero, -(1 << 31)), np.minimum(high - zero, INT32_MAX)
    rounded = round_half_even if attrs["rounding"] == Ties.EVEN else round_half_away
    with np.errstate(over="ignore", invalid="ignore"):
        floor, ceiling = (
            np.array([end(int(number)) for number in ends.flat], np.float32).reshape(ends.shape)
            for end, ends in ((least_float32_not_below, least), (largest_float32_not_above, most))
        )
        steps = rounded(clip_with_nan_as_low(x / scale, floor, ceiling)).astype(np.int64)
    return ((steps + zero).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _build_dequantize_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale, zero = _read_single_scale_and_zero_point(attrs)
    wide = dtypes.nbytes(args[0].dtype) >= 4 and zero  # the difference of two 32-bit numbers needs 33 bits
    x = ir.cast("int64" if wide else "int32", args[0])
    return ir.cast("float32", x - zero if zero else x) * ir.const(scale, "float32")


def _evaluate_dequantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.int64)
    scale, zero = _read_scales_and_zero_points(attrs, x.ndim)
    return ((x - zero).astype(np.float32) * scale,)


def _infer_dequantize_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not dtypes.is_integer(types[0].dtype):
        raise ModelError(f"dequantize: the data must be integers; got {types[0].dtype}, expected integers")
    return (TensorType(types[0].shape, "float32"),)


def _scale_error_message(checked_node: CheckedNode) -> str:
    """Return a message if scales or zero points are invalid, else an empty string.

    There must be one scale and one zero point, or one of each for every channel. Scales must be positive float32
    numbers, zero points must be in the range of the dtype."""
    attrs, tensor_type = checked_node.attrs, checked_node.types[0]
    scales, points, axis = np.asarray(attrs["scale"], np.float64), attrs["zero_point"], attrs["axis"]
    count = 1 if axis is None else tensor_type.shape[axis] if 0 <= axis < len(tensor_type.shape) else -1
    if len(scales) != len(points) or len(scales) != count:
        return f"scale and zero_point have wrong lengths; got {len(scales)} and {len(points)}, expected " + (
            "1 each" if axis is None else f"one per channel along axis={axis} of {tensor_type.shape}"
        )
    with np.errstate(over="ignore", under="ignore"):
        single = scales.astype(np.float32)
    if not (np.isfinite(single) & (single > 0)).all():
        return f"scale is out of range; got {attrs['scale']}, expected positive float32 numbers"
    if dtypes.nbytes(tensor_type.dtype) == 8 and dtypes.is_integer(tensor_type.dtype) and any(points):
        return f"{tensor_type.dtype} data cannot have a zero point; got zero_point={points}, expected 0"
    low, high = dtypes.int_range(attrs.get("out_dtype") or tensor_type.dtype)
    return (
        ""
        if all(low <= point <= high for point in points)
        else f"zero_point is out of range; got {points}, expected {low}..{high}"
    )


def _legalize_dequantize(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a ``dequantize`` with one scale per channel to ``cast``, ``sub`` and ``mul``, with zero points and scales
    as constant operands."""
    if len(node.attr("scale")) == 1:
        return None
    rewrite, tensor_type = Rewrite(node, graph), graph.types[node.inputs[0]]
    scale, zero = _read_scales_and_zero_points(node.attrs, len(tensor_type.shape))
    real = rewrite.emit(
        "cast", node.inputs, rewrite.add_value("real", tensor_type.shape, "float32"), {"dtype": "float32"}
    )
    if zero.any():
        points = rewrite.add_constant("zero_point", zero.astype(np.float32))
        real = rewrite.emit("sub", (real, points), rewrite.add_value("centred", tensor_type.shape, "float32"), {})
    rewrite.emit("mul", (real, rewrite.add_constant("scale", scale)), node.outputs, {})
    return rewrite.legalized()


def _legalize_quantize(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a ``quantize`` of integers to ``requantize``, and one with a scale per channel to ``div``, ``round``,
    ``add`` and a ``quantize`` of scale 1."""
    if dtypes.is_integer(graph.types[node.inputs[0]].dtype):
        return _legalize_integer_quantize(node, graph)
    if len(node.attr("scale")) == 1:
        return None
    if node.attr("rounding") != Ties.EVEN:
        raise UnsupportedError(
            f"scales per channel need rounding to even; got rounding={node.attr('rounding')}, expected {Ties.EVEN}",
            where=str(node.loc),
            hint="quantise per tensor, or round half to even",
        )
    rewrite, tensor_type = Rewrite(node, graph), graph.types[node.inputs[0]]
    scale, zero = _read_scales_and_zero_points(node.attrs, len(tensor_type.shape))
    steps = rewrite.emit(
        "div",
        (node.inputs[0], rewrite.add_constant("scale", scale)),
        rewrite.add_value("steps", tensor_type.shape, "float32"),
        {},
    )
    if zero.any():
        rounded = rewrite.emit("round", (steps,), rewrite.add_value("rounded", tensor_type.shape, "float32"), {})
        points = rewrite.add_constant("zero_point", zero.astype(np.float32))
        steps = rewrite.emit("add", (rounded, points), rewrite.add_value("shifted", tensor_type.shape, "float32"), {})
    plain: dict[str, Attr] = {"scale": (1.0,), "zero_point": (0,), "axis": None}
    rewrite.emit("quantize", (steps,), node.outputs, {**node.attrs, **plain})
    return rewrite.legalized()


def _legalize_integer_quantize(node: Node, graph: Graph) -> Legalized:
    """Rewrite a ``quantize`` of integers to a table lookup, a float ``quantize`` or a ``requantize``.

    With ties to even, bytes become a lookup and wider integers go through floats; with other roundings the integers are
    requantised."""
    source, dtype = graph.types[node.inputs[0]], node.attr("out_dtype")
    if source.quant is None or len(source.quant.scale) != 1 or len(node.attr("scale")) != 1:
        raise UnsupportedError(
            f"{source.dtype} data or the result are not quantised per tensor; expected one scale and zero point each",
            where=str(node.loc),
            hint="quantise both per tensor",
        )
    rewrite, (low, high) = Rewrite(node, graph), dtypes.int_range(dtype)
    scale, zero = source.quant.scale[0], source.quant.zero_point[0]
    if node.attr("rounding") == Ties.EVEN and dtypes.nbytes(source.dtype) == 1 and dtypes.nbytes(dtype) <= 2:
        levels = np.arange(256) + dtypes.int_range(source.dtype)[0]
        reals = (levels - zero).astype(np.float32) * np.float32(scale)
        (table,) = _evaluate_quantize_reference({**node.attrs, "axis": None}, [reals])
        rewrite.emit("lookup", (node.inputs[0], rewrite.add_constant("table", table)), node.outputs, {})
    elif node.attr("rounding") == Ties.EVEN:
        rewrite.emit("quantize", (emit_dequantize(rewrite, node.inputs[0]),), node.outputs, node.attrs)
    else:
        least, most = dtypes.int_range(source.dtype)
        bound = max(most - zero, zero - least) if dtypes.nbytes(source.dtype) <= 2 else -1
        real = float(np.float32(scale)) / float(np.float32(node.attr("scale")[0]))
        parameters = Requantization((real,), node.attr("zero_point")[0], low, high, dtype)
        times = Multiplier.SINGLE if node.attr("rounding") == Multiplier.SINGLE else Multiplier.DOUBLE
        emit_requantize(rewrite, node.inputs[0], node.outputs[0], parameters, times, bound, input_zero_point=zero)
    return rewrite.legalized()


_QUANTISATION: Attributes = {
    "scale": numbers("one, or one for each index along the axis"),
    "zero_point": integers("likewise"),
    "axis": one_axis("axis of the scales and zero points; None: one scale for all elements", None),
}
OPERATORS = (
    OpDef(
        "quantize",
        infer=infer_requantize,
        reference=_evaluate_quantize_reference,
        scalar=_build_quantize_scalar_expr,
        cases=make_quantize_test_cases,
        sound=(_scale_error_message,),
        attrs={
            **_QUANTISATION,
            "out_dtype": element_type(),
            "rounding": enum_choice(
                "of reals, or of integers", *Ties, Multiplier.DOUBLE, Multiplier.SINGLE, default=Ties.AWAY
            ),
        },
        edges="NaN becomes the lowest number",
        legalize=_legalize_quantize,
    ),
    OpDef(
        "dequantize",
        infer=_infer_dequantize_types,
        reference=_evaluate_dequantize_reference,
        scalar=_build_dequantize_scalar_expr,
        cases=make_dequantize_test_cases,
        sound=(_scale_error_message,),
        attrs=_QUANTISATION,
        legalize=_legalize_dequantize,
    ),
    QADD,
    QMUL,
)
