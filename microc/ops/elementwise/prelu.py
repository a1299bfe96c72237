# SPDX-License-Identifier: Apache-2.0
"""Operator ``prelu``: x, or ``slope`` times x where x is negative. The slope is a tensor that broadcasts to x.

Source of the quantised form, ``qprelu``: TFLite ``reference/prelu.h`` (BroadcastPrelu4DSlow), TFLite Micro
``prelu_common.cc``. With rounding ``single`` both products are scaled with one rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import NUMPY, quantize_multiplier
from microc.ops.arithmetic import Rewrite, is_quantised, legalize_in_float, per_tensor_quant
from microc.ops.attributes import (
    MULTIPLIER_ROUNDING,
    SCALED,
    SURFACE,
    Multiplier,
    Rounding,
    element_type,
    exponent,
    integer,
    mantissa,
)
from microc.ops.constants import (
    CheckedNode,
    make_zero_point_range_check,
    product_overflow_message,
    stored_range_error_message,
)
from microc.ops.gradients.call import GradientCall, Gradients
from microc.ops.quantised.scaling import FixedPointScale, ScaledResult, scale_double_rounding, scale_single_rounding
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir
from microc.tir.ir import Expr


def _infer_prelu_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, slope = types
    try:
        shape = np.broadcast_shapes(data.shape, slope.shape)
    except ValueError:
        shape = ()
    if shape != data.shape or (data.dtype != slope.dtype and "float32" in (data.dtype, slope.dtype)):
        raise ModelError(
            f"prelu: slopes must broadcast to the data and have their dtype; got slopes {slope.dtype} {slope.shape} "
            f"for {data.dtype} {data.shape}"
        )
    return (TensorType(data.shape, attrs.get("out_dtype") or data.dtype),)


def _evaluate_prelu_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, slope = (np.asarray(array, np.float64) for array in arrays)
    return (np.where(x < 0, x * slope, x).astype(arrays[0].dtype),)


def _build_prelu_gradients(call: GradientCall) -> Gradients:
    """Return g, times the slope where the data are not positive; and g times the negative data, for the slopes."""
    g, x, slope = call.gradient, call.data, call.operand(1)
    return (
        (x > 0.0).select(g, g * slope) if 0 in call.wanted else None,
        (g * x.apply("minimum", 0.0)).sum_to(slope.shape) if 1 in call.wanted else None,
    )


def _build_prelu_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    x, slope = args
    return ir.select(x < 0.0, x * slope, x)


def _legalize_prelu(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    if node.attr("rounding") == Rounding.EVEN:
        return legalize_in_float(node, graph)
    names = (*node.inputs, *node.outputs)
    (x, zero_x), (slope, zero_slope), (out, zero_out) = (per_tensor_quant(node, graph, name) for name in names)
    positive = quantize_multiplier(float(np.float32(x)) / float(np.float32(out)))
    negative = quantize_multiplier(float(np.float32(x)) * float(np.float32(slope)) / float(np.float32(out)))
    attrs: dict[str, Attr] = {"zero_point_x": zero_x, "zero_point_slope": zero_slope, "zero_point": zero_out}
    attrs |= {"multiplier_positive": positive[0], "shift_positive": positive[1], "multiplier": negative[0]}
    attrs |= {"shift": negative[1], "out_dtype": graph.types[node.outputs[0]].dtype}
    attrs["rounding"] = Rounding(str(node.attr("rounding"))).multiplier
    rewrite = Rewrite(node, graph)
    rewrite.emit("qprelu", node.inputs, node.outputs, attrs)
    return rewrite.legalized()


def _make_prelu_test_cases() -> Iterable[Case]:
    for shape, slopes in (((2, 3, 4), (4,)), ((1, 2, 2, 3), (1, 2, 2, 3)), ((5,), (1,)), ((2, 3), (2, 1))):
        yield Case({}, (TensorType(shape, "float32"), TensorType(slopes, "float32")), tolerance=1e-6)
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -1.0], np.float32)
    types = (TensorType(x.shape, "float32"), TensorType((1,), "float32"))
    yield Case({}, types, arrays=(x, np.array([-0.5], np.float32)), name="special")


# ---------------------------------------------------------------- integers


def _evaluate_qprelu_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.int64) - attrs["zero_point_x"]
    slope = np.asarray(arrays[1], np.int64) - attrs["zero_point_slope"]
    times = Multiplier(attrs["rounding"]).multiply_function
    above = times(x, attrs["multiplier_positive"], attrs["shift_positive"], NUMPY)
    below = times(x * slope, attrs["multiplier"], attrs["shift"], NUMPY)
    low, high = dtypes.int_range(attrs["out_dtype"])
    result = np.where(x >= 0, above, below) + attrs["zero_point"]
    return (np.clip(result, low, high).astype(attrs["out_dtype"]),)


def _build_qprelu_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    out = ScaledResult(attrs["zero_point"], *dtypes.int_range(attrs["out_dtype"]), attrs["out_dtype"])
    low, high = (end - attrs["zero_point_x"] for end in dtypes.int_range(args[0].dtype))
    ends = [end - attrs["zero_point_slope"] for end in dtypes.int_range(args[1].dtype)]
    x = ir.cast("int32", args[0]) - attrs["zero_point_x"]
    slope = ir.cast("int32", args[1]) - attrs["zero_point_slope"]
    corners = [a * b for a in (low, high) for b in ends]
    positive, negative = (
        FixedPointScale.from_mantissa_and_shift(attrs[f"multiplier{w}"], attrs[f"shift{w}"]) for w in ("_positive", "")
    )
    if attrs["rounding"] == Multiplier.SINGLE:
        above = scale_single_rounding(x, max(-low, high), positive, out)
        below = scale_single_rounding(x * slope, max(-min(corners), max(corners)), negative, out)
    else:
        above = scale_double_rounding(x, low, high, positive, out)
        below = scale_double_rounding(x * slope, min(corners), max(corners), negative, out)
    return ir.select(x < 0, below, above)


def _qprelu_overflow_message(checked_node: CheckedNode) -> str:
    return product_overflow_message(checked_node, ("zero_point_x", "zero_point_slope"))


def _make_qprelu_test_cases() -> Iterable[Case]:
    for dtype, zeros in (("int8", (3, -5, -128)), ("uint8", (128, 100, 7)), ("int8", (0, 0, 0))):
        attrs: dict[str, Attr] = {f"zero_point{k}": z for k, z in zip(("_x", "_slope", ""), zeros, strict=True)}
        attrs |= {"multiplier_positive": 1400000000, "shift_positive": 0, "multiplier": 2000000000, "shift": -6}
        types = (TensorType((3, 64), dtype), TensorType((64,), dtype))
        mixed = (TensorType((3, 64), "int16"), TensorType((64,), "int8"))
        for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
            attrs["rounding"] = rounding
            yield Case({**attrs, "out_dtype": dtype}, types, name=f"{dtype} {rounding}")
            yield Case({**attrs, "shift": -9, "out_dtype": "int16"}, mixed, name=f"int16 {rounding}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "prelu",
        infer=_infer_prelu_types,
        reference=_evaluate_prelu_reference,
        scalar=_build_prelu_scalar_expr,
        cases=_make_prelu_test_cases,
        gradient=_build_prelu_gradients,
        attrs=SURFACE,
        legalize=_legalize_prelu,
        operand_names=("x", "slope"),
    ),
    OpDef(
        "qprelu",
        attrs={
            **SCALED,
            "multiplier_positive": mantissa("of numbers that are not negative, Q0.31"),
            "shift_positive": exponent("its exponent"),
            "zero_point_x": integer("of x"),
            "zero_point_slope": integer("of the slope"),
            "zero_point": integer("of the result"),
            "out_dtype": element_type(),
            "rounding": MULTIPLIER_ROUNDING,
        },
        infer=_infer_prelu_types,
        reference=_evaluate_qprelu_reference,
        scalar=_build_qprelu_scalar_expr,
        cases=_make_qprelu_test_cases,
        sound=(
            stored_range_error_message,
            make_zero_point_range_check("zero_point_x", 0),
            make_zero_point_range_check("zero_point_slope", 1),
            _qprelu_overflow_message,
        ),
        operand_names=("x", "slope"),
    ),
)
