"""Between scales: requantize, requantize_float, quantize, dequantize; qadd and qmul come from ``arithmetic.py``.

The references are the formulas of ``fixed.py`` over numpy; the expressions are the sequences of ``scaling.py``.

Sources: TFLite ``requantize.h``, ``quantize.h``, ``dequantize.h``; the ONNX operators QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import InternalError, ModelError, UnsupportedError
from microc.fixed import (
    INT32_MAX,
    INT32_MIN,
    NUMPY,
    bounded,
    multiply_double_rounding,
    multiply_reduced,
    multiply_single_rounding,
    round_half_away,
    round_half_even,
)
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import Rewrite, clamped
from microc.ops.attributes import OPTIONAL, STORED, Attributes, choice, element_type, integers, numbers, one_axis, real
from microc.ops.quantised.arithmetic import QADD, QMUL, legalize_add, legalize_mul, legalize_sub
from microc.ops.quantised.quantization_cases import (
    REQUANTIZE,
    REQUANTIZE_ATTRS,
    dequantize_cases,
    quantize_cases,
    requantize_cases,
    requantize_float_cases,
)
from microc.ops.quantised.requantization import Requantization, emit_requantize
from microc.ops.quantised.scaling import (
    Output,
    Scale,
    double_rounded,
    float_below,
    single_rounded,
    to_integer,
    wide_rounded,
)
from microc.ops.registry import Legalized, OpDef
from microc.ops.surface import dequantized
from microc.tir import ir
from microc.tir.ir import Expr

__all__ = ["OPERATORS", "legalize_add", "legalize_mul", "legalize_sub"]

_ROUNDING = {"double": multiply_double_rounding, "single": multiply_single_rounding, "wide": multiply_reduced}


def _like_first(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not dtypes.is_integer(attrs["out_dtype"]):
        raise ModelError(f"quantisation to {attrs['out_dtype']}")
    return (TensorType(types[0].shape, attrs["out_dtype"]),)


# ---------------------------------------------------------------- requantize


def _scale_parts(attrs: Mapping[str, Any], operands: Sequence[Any]) -> tuple[Any, Any]:
    """Multiplier and shift: from the attributes, or from the operands after x."""
    rest = [x for x in operands[1:] if x is not None]
    multiplier = attrs["multiplier"] if attrs["multiplier"] is not None else rest.pop(0)
    shift = attrs["shift"] if attrs["shift"] is not None else rest.pop(0)
    return multiplier, shift


def _scale(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Scale:
    """The parts as numbers where they are known."""
    multiplier, shift = _scale_parts(attrs, args)
    known = [ir.int_value(x) if isinstance(x, Expr) else x for x in (multiplier, shift)]
    multiplier = known[0] if known[0] is not None else ir.cast("int32", multiplier)
    if known[1] is not None:
        return Scale(multiplier, -known[1], (-known[1], -known[1]))
    lowest, highest = attrs["shift_range"]
    return Scale(multiplier, 0 - ir.cast("int32", shift), (-highest, -lowest))


def _requantize_scalar(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    attrs = {**REQUANTIZE, **attrs}
    scale = _scale(attrs, args)
    out = Output(attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])
    x, zero, bound = args[0], attrs["input_zero_point"], attrs["bound"]
    if attrs["rounding"] == "wide":
        return wide_rounded(x, bound, scale, out)
    if x.dtype == "int64":  # sums that 32 bits may not hold
        if zero:
            raise InternalError("requantize of int64 takes no zero point off")
        x = ir.cast("int32", ir.clamp(x, INT32_MIN, INT32_MAX))
    low, high = (-bound, bound) if bound >= 0 else dtypes.int_range(x.dtype)
    if bound < 0:
        low, high = low - zero, high - zero
    x = _less(ir.cast("int32", x), zero, bound < 0)
    low, high = max(low, INT32_MIN), min(high, INT32_MAX)
    if attrs["rounding"] == "single":
        return single_rounded(x, max(-low, high), scale, out)
    return double_rounded(x, low, high, scale, out)


def _less(x: Expr, zero: int, unknown: bool) -> Expr:
    """The int32 x less its zero point; where nothing is known of x the difference saturates."""
    if unknown and zero > 0:
        x = ir.maximum(x, INT32_MIN + zero)
    if unknown and zero < 0:
        x = ir.minimum(x, INT32_MAX + zero)
    return x - zero if zero else x


def _requantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    attrs = {**REQUANTIZE, **attrs}
    multiplier, shift = (np.asarray(part, np.int64) for part in _scale_parts(attrs, arrays))
    x = np.asarray(arrays[0], np.int64) - attrs["input_zero_point"]
    x = x if attrs["rounding"] == "wide" else NUMPY.clamp(x, INT32_MIN, INT32_MAX)
    scaled = _ROUNDING[attrs["rounding"]](x, multiplier, shift, NUMPY)
    shifted = NUMPY.clamp(scaled + attrs["zero_point"], INT32_MIN, INT32_MAX)
    clipped = np.clip(shifted, attrs["minimum"], attrs["maximum"])
    return (np.asarray(clipped).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _requantize_float_scalar(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale = ir.const(attrs["scale"], "float32") if attrs.get("scale") is not None else args[1]
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    x = to_integer(ir.cast("float32", args[0]) * scale, low - zero, high - zero, "even")
    return ir.cast(attrs["out_dtype"], x + zero if zero else x)


def _requantize_float_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    scale = np.float32(attrs["scale"]) if attrs.get("scale") is not None else np.asarray(arrays[1], np.float32)
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    scaled = np.clip(np.asarray(arrays[0]).astype(np.float32) * scale, np.float32(low - zero), float_below(high - zero))
    return ((round_half_even(scaled).astype(np.int64) + zero).astype(dtypes.to_numpy(attrs["out_dtype"])),)


# ---------------------------------------------------------------- quantize, dequantize


def _channels(attrs: Mapping[str, Any], rank: int) -> tuple[Array, Array]:
    """Scale (float32) and zero point (int64), shaped to broadcast along their axis."""
    shape = [1] * rank
    if attrs["axis"] is not None:
        shape[attrs["axis"]] = len(attrs["scale"])
    return np.array(attrs["scale"], np.float32).reshape(shape), np.array(attrs["zero_point"], np.int64).reshape(shape)


def _one(attrs: Mapping[str, Any]) -> tuple[float, int]:
    if len(attrs["scale"]) != 1:
        raise InternalError("scales per channel are legalized into operands first")
    return attrs["scale"][0], attrs["zero_point"][0]


def _quantize_scalar(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale, zero = _one(attrs)
    low, high = dtypes.int_range(attrs["out_dtype"])
    least, most = max(low - zero, -(1 << 31)), min(high - zero, INT32_MAX)
    x = to_integer(args[0] / ir.const(scale, "float32"), least, most, attrs["rounding"])
    return clamped(x + zero if zero else x, low, high, attrs["out_dtype"])


def _quantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.float32)
    scale, zero = _channels(attrs, x.ndim)
    low, high = dtypes.int_range(attrs["out_dtype"])
    least, most = np.maximum(low - zero, -(1 << 31)), np.minimum(high - zero, INT32_MAX)
    rounded = round_half_even if attrs["rounding"] == "even" else round_half_away
    with np.errstate(over="ignore", invalid="ignore"):
        ceiling = np.vectorize(float_below, otypes=[np.float32])(most)
        steps = rounded(bounded(x / scale, least.astype(np.float32), ceiling)).astype(np.int64)
    return ((steps + zero).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _dequantize_scalar(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale, zero = _one(attrs)
    x = ir.cast("int32", args[0])
    return ir.cast("float32", x - zero if zero else x) * ir.const(scale, "float32")


def _dequantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.int64)
    scale, zero = _channels(attrs, x.ndim)
    return ((x - zero).astype(np.float32) * scale,)


def _dequantize_infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not dtypes.is_integer(types[0].dtype):
        raise ModelError(f"dequantize of {types[0].dtype}")
    return (TensorType(types[0].shape, "float32"),)


def _legalize_dequantize(node: Node, graph: Graph) -> Legalized | None:
    """Scales per channel become operands."""
    if len(node.attr("scale")) == 1:
        return None
    rewrite, kind = Rewrite(node, graph), graph.types[node.inputs[0]]
    scale, zero = _channels(node.attrs, len(kind.shape))
    real = rewrite.emit("cast", node.inputs, rewrite.value("real", kind.shape, "float32"), {"dtype": "float32"})
    if zero.any():
        points = rewrite.constant("zero_point", zero.astype(np.float32))
        real = rewrite.emit("sub", (real, points), rewrite.value("centred", kind.shape, "float32"), {})
    rewrite.emit("mul", (real, rewrite.constant("scale", scale)), node.outputs, {})
    return rewrite.legalized()


def _legalize_quantize(node: Node, graph: Graph) -> Legalized | None:
    """An integer operand is requantised; scales per channel become operands."""
    if dtypes.is_integer(graph.types[node.inputs[0]].dtype):
        return _legalize_integer(node, graph)
    if len(node.attr("scale")) == 1:
        return None
    if node.attr("rounding") != "even":
        raise UnsupportedError("quantize with scales per channel, rounding half away from zero", where=str(node.loc))
    rewrite, kind = Rewrite(node, graph), graph.types[node.inputs[0]]
    scale, zero = _channels(node.attrs, len(kind.shape))
    steps = rewrite.emit(
        "div", (node.inputs[0], rewrite.constant("scale", scale)), rewrite.value("steps", kind.shape, "float32"), {}
    )
    if zero.any():
        rounded = rewrite.emit("round", (steps,), rewrite.value("rounded", kind.shape, "float32"), {})
        points = rewrite.constant("zero_point", zero.astype(np.float32))
        steps = rewrite.emit("add", (rounded, points), rewrite.value("shifted", kind.shape, "float32"), {})
    plain: dict[str, Attr] = {"scale": (1.0,), "zero_point": (0,), "axis": None}
    rewrite.emit("quantize", (steps,), node.outputs, {**node.attrs, **plain})
    return rewrite.legalized()


def _legalize_integer(node: Node, graph: Graph) -> Legalized:
    source, dtype = graph.types[node.inputs[0]], node.attr("out_dtype")
    if source.quant is None or len(source.quant.scale) != 1 or len(node.attr("scale")) != 1:
        raise UnsupportedError(
            f"quantize of {source.dtype} values", where=str(node.loc), hint="both sides need one scale and zero point"
        )
    rewrite, (low, high) = Rewrite(node, graph), dtypes.int_range(dtype)
    scale, zero = source.quant.scale[0], source.quant.zero_point[0]
    if node.attr("rounding") == "even" and dtypes.nbytes(source.dtype) == 1 and dtypes.nbytes(dtype) <= 2:
        levels = np.arange(256) + dtypes.int_range(source.dtype)[0]
        reals = (levels - zero).astype(np.float32) * np.float32(scale)
        (table,) = _quantize_reference({**node.attrs, "axis": None}, [reals])
        rewrite.emit("lookup", (node.inputs[0], rewrite.constant("table", table)), node.outputs, {})
    elif node.attr("rounding") == "even":
        rewrite.emit("quantize", (dequantized(rewrite, node.inputs[0]),), node.outputs, node.attrs)
    else:
        least, most = dtypes.int_range(source.dtype)
        bound = max(most - zero, zero - least) if dtypes.nbytes(source.dtype) <= 2 else -1
        real = float(np.float32(scale)) / float(np.float32(node.attr("scale")[0]))
        parameters = Requantization((real,), node.attr("zero_point")[0], low, high, dtype)
        emit_requantize(rewrite, node.inputs[0], node.outputs[0], parameters, "double", bound, input_zero_point=zero)
    return rewrite.legalized()


_QUANTISATION: Attributes = {
    "scale": numbers("one, or one for each index along the axis"),
    "zero_point": integers("likewise"),
    "axis": one_axis("of scales and zero points; None: one for all", None),
}
OPERATORS = (
    OpDef(
        "requantize",
        infer=_like_first,
        reference=_requantize_reference,
        scalar=_requantize_scalar,
        cases=requantize_cases,
        attrs=REQUANTIZE_ATTRS,
        operand_names=("x", "multiplier", "shift"),
        formula="clamp(round({x} * {multiplier} * 2**({shift} - 31)) + {zero_point}, {minimum}, {maximum})",
    ),
    OpDef(
        "requantize_float",
        infer=_like_first,
        reference=_requantize_float_reference,
        scalar=_requantize_float_scalar,
        cases=requantize_float_cases,
        attrs={
            "scale": real("one for all channels; None: an operand", None),
            **STORED,
            "average": numbers(
                "of a mean over as many elements as a run has: what `mean_scale` is made from", OPTIONAL
            ),
        },
        operand_names=("x", "scale"),
        formula="clamp(rint({x} * {scale}) + {zero_point}, {minimum}, {maximum})",
    ),
    OpDef(
        "quantize",
        infer=_like_first,
        reference=_quantize_reference,
        scalar=_quantize_scalar,
        cases=quantize_cases,
        attrs={
            **_QUANTISATION,
            "out_dtype": element_type(),
            "rounding": choice(
                "of ties: `away` from zero, to `even`; or, of an integer, as in `requantize`",
                "away",
                "even",
                "double",
                "single",
                default="away",
            ),
        },
        edges="NaN becomes the lowest number",
        legalize=_legalize_quantize,
    ),
    OpDef(
        "dequantize",
        infer=_dequantize_infer,
        reference=_dequantize_reference,
        scalar=_dequantize_scalar,
        cases=dequantize_cases,
        attrs=_QUANTISATION,
        legalize=_legalize_dequantize,
    ),
    QADD,
    QMUL,
)
