"""From integers to integers of another scale: requantize and requantize_float.

The references are the formulas of ``fixed.py`` over numpy; the expressions are the sequences of ``scaling.py``.

Source: TFLite ``requantize.h``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import InternalError, ModelError
from microc.fixed import (
    INT32_MAX,
    INT32_MIN,
    NUMPY,
    round_half_even,
)
from microc.graph.ir import TensorType
from microc.ops.attributes import OPTIONAL, STORED, numbers, real
from microc.ops.constants import Application, Constant, Constants, Use, stored
from microc.ops.quantised.quantization_cases import (
    REQUANTIZE,
    REQUANTIZE_ATTRS,
    requantize_cases,
    requantize_float_cases,
)
from microc.ops.quantised.scaling import (
    Output,
    Scale,
    double_rounded,
    float_above,
    float_below,
    single_rounded,
    to_integer,
    wide_rounded,
)
from microc.ops.registry import OpDef
from microc.ops.rounding import Multiplier, Ties
from microc.tir import ir
from microc.tir.ir import Expr

_WIDEST = 1 << 47
"""The largest sum that a multiplier of 16 bits takes, TFLite's too."""


def like_first(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Inference: the first operand's shape, and the dtype that the attributes name."""
    if not dtypes.is_integer(attrs["out_dtype"]):
        raise ModelError(f"quantisation to {attrs['out_dtype']}")
    for kind in types[1:]:
        pairs = zip(kind.shape[::-1], types[0].shape[::-1], strict=False)
        if len(kind.shape) > len(types[0].shape) or any(own not in (1, extent) for own, extent in pairs):
            raise ModelError(f"quantisation of shape {types[0].shape} with numbers of shape {kind.shape}")
    return (TensorType(types[0].shape, attrs["out_dtype"]),)


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
    if attrs["rounding"] == Multiplier.WIDE:
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
    if attrs["rounding"] == Multiplier.SINGLE:
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
    x = x if attrs["rounding"] == Multiplier.WIDE else NUMPY.clamp(x, INT32_MIN, INT32_MAX)
    scaled = Multiplier(attrs["rounding"]).times(x, multiplier, shift, NUMPY)
    shifted = NUMPY.clamp(scaled + attrs["zero_point"], INT32_MIN, INT32_MAX)
    clipped = np.clip(shifted, attrs["minimum"], attrs["maximum"])
    return (np.asarray(clipped).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _constants(application: Application) -> Constants:
    """Multiplier and shift where they are operands: constants, or what :mod:`microc.ops.quantised.mean_scale` computes."""
    attrs, means = application.attrs, ("mean_multiplier",)
    most = INT32_MAX >> 16 if attrs["rounding"] == Multiplier.WIDE else INT32_MAX
    factors = [Constant(Use.FACTOR, 0, most, means)] if attrs["multiplier"] is None else []
    low, high = attrs["shift_range"]
    shifts = [Constant(Use.SHIFT, low, high, means)] if attrs["shift"] is None else []
    return dict(enumerate((*factors, *shifts), 1))


def _sound(application: Application) -> str:
    """Each part is an attribute or an operand; 16 bits of a wide multiplier are shifted to the left by seven places at most."""
    attrs = application.attrs
    if len(application.types) != 1 + sum(attrs[name] is None for name in ("multiplier", "shift")):
        return f"{len(application.types)} operands with multiplier={attrs['multiplier']} and shift={attrs['shift']}"
    low, high = attrs["shift_range"] if attrs["shift"] is None else (attrs["shift"],) * 2
    wide, dtype = attrs["rounding"] == Multiplier.WIDE, application.types[0].dtype
    if not low <= high <= (7 if wide else 30 if attrs["shift"] is not None else 31):
        return f"shifts of {low}..{high}"
    if not dtypes.is_integer(dtype) or dtype in ("uint32", "uint64"):
        return f"x of {dtype}, expected signed integers or small ones"
    if wide and attrs["multiplier"] is not None and attrs["multiplier"] > INT32_MAX >> 16:
        return f"multiplier={attrs['multiplier']} has more than 15 bits"
    if abs(attrs["input_zero_point"]) > INT32_MAX or (dtype == "int64" and attrs["input_zero_point"]):
        return f"input_zero_point={attrs['input_zero_point']} of {dtype}"
    if dtype == "int64" and (attrs["bound"] > _WIDEST or (wide and attrs["bound"] < 0)):
        return f"bound={attrs['bound']} of sums of 64 bits, expected 0..{_WIDEST}"
    return ""


def _requantize_float_scalar(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale = ir.const(attrs["scale"], "float32") if attrs.get("scale") is not None else args[1]
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    x = to_integer(ir.cast("float32", args[0]) * scale, low - zero, high - zero, Ties.EVEN)
    return ir.cast(attrs["out_dtype"], x + zero if zero else x)


def _requantize_float_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    scale = np.float32(attrs["scale"]) if attrs.get("scale") is not None else np.asarray(arrays[1], np.float32)
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    least, most = float_above(max(low - zero, INT32_MIN)), float_below(min(high - zero, INT32_MAX))
    scaled = np.clip(np.asarray(arrays[0]).astype(np.float32) * scale, np.float32(least), np.float32(most))
    return ((round_half_even(scaled).astype(np.int64) + zero).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _sound_scale(application: Application) -> str:
    """Scales are finite numbers of float32, and not negative: of such as float32 has none they are zero."""
    scale = application.attrs["scale"]
    known = scale if scale is not None else application.data[1] if len(application.data) > 1 else 1.0
    if known is None:
        return ""
    scales = np.asarray(known, np.float64)
    if ((scales >= 0) & (scales <= np.finfo(np.float32).max)).all():
        return ""
    return f"scale={scales.reshape(-1)[:4]}, expected numbers of float32 that are not negative"


OPERATORS = (
    OpDef(
        "requantize",
        infer=like_first,
        reference=_requantize_reference,
        scalar=_requantize_scalar,
        cases=requantize_cases,
        constants=_constants,
        sound=(stored, _sound),
        attrs=REQUANTIZE_ATTRS,
        operand_names=("x", "multiplier", "shift"),
        formula="clamp(round({x} * {multiplier} * 2**({shift} - 31)) + {zero_point}, {minimum}, {maximum})",
    ),
    OpDef(
        "requantize_float",
        infer=like_first,
        reference=_requantize_float_reference,
        scalar=_requantize_float_scalar,
        cases=requantize_float_cases,
        sound=(stored, _sound_scale),
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
)
