# SPDX-License-Identifier: Apache-2.0
"""Operators ``requantize`` and ``requantize_float``: they convert integers of one scale and zero point to integers of
another scale and zero point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError, ModelError, UnsupportedError
from microc.graph.ir import Attr, Quant, TensorType
from microc.numerics import INT32_MAX, INT32_MIN, NUMPY, quantize_multiplier, reduce_multiplier, round_half_even
from microc.ops.arithmetic import Rewrite
from microc.ops.attributes import (
    OPTIONAL,
    STORED,
    Attributes,
    Multiplier,
    Rounding,
    Ties,
    default_attributes,
    enum_choice,
    exponent,
    integer,
    integers,
    mantissa,
    numbers,
    real,
)
from microc.ops.constants import CheckedNode, Constants, NumberUse, OperandBounds, stored_range_error_message
from microc.ops.quantised.exact_rounding import emit_requantize_even, is_exact_scale
from microc.ops.quantised.scaling import (
    FixedPointScale,
    ScaledResult,
    largest_float32_not_above,
    least_float32_not_below,
    round_to_int32,
    scale_by_reduced_multiplier,
    scale_double_rounding,
    scale_single_rounding,
)
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

# ---- Emission of the ``requantize`` or ``requantize_float`` node at the end of a legalised operator.
#
# Sources of the multipliers: TFLite ``kernel_util.cc`` (PopulateConvolutionQuantizationParams multiplies the scales as doubles,
# GetQuantizedConvolutionMultipler as floats); ONNX Runtime's QLinearConv and QGemm (float32 throughout).


@frozen
class Requantization:
    """Parameters of a requantisation: the real multipliers, and the zero point, clamp bounds and dtype of the result.

    ``multipliers`` has one element, or one for each channel. ``trailing_axes``: number of axes of the data after the
    channel axis: 0 for channels last, 2 for NCHW."""

    multipliers: tuple[float, ...]
    zero_point: int
    minimum: int
    maximum: int
    dtype: str
    trailing_axes: int = 0

    @property
    def result_attrs(self) -> Mapping[str, Attr]:
        """Attributes of the ``requantize`` node that describe its result: zero point, clamp bounds and dtype."""
        return {
            "zero_point": self.zero_point,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "out_dtype": self.dtype,
        }


def product_multipliers(
    data_quant: Quant, weight_quant: Quant, out_quant: Quant, rounding: str, multiplies_in_float32: bool
) -> tuple[float, ...]:
    """Return data scale * weight scale / output scale for each weight scale.

    If ``rounding`` is ``even`` the multipliers are computed in float32; a product of scales that is not a normal
    float32 is computed in float64. With other roundings ``multiplies_in_float32`` multiplies the two input scales in
    float32, as TFLite does."""
    s, t = np.float32(data_quant.scale[0]), np.float32(out_quant.scale[0])
    scales = np.array(weight_quant.scale, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        short, exact = s * scales, np.float64(s) * scales.astype(np.float64)
        if rounding == Rounding.EVEN:
            normal = np.isfinite(short) & (short >= np.finfo(np.float32).tiny)
            return tuple(float(x) for x in np.where(normal, short / t, (exact / t).astype(np.float32)))
        return tuple(float(x) for x in (short.astype(np.float64) if multiplies_in_float32 else exact) / np.float64(t))


def clip_to_float32(multiplier: float) -> float:
    """Convert a multiplier to float32. A multiplier that is too large becomes the largest float32 instead of infinity.

    The results stay the same, because either multiplier maps 0 to 0 and every other integer beyond the clamp bounds."""
    return float(np.float32(min(multiplier, float(np.finfo(np.float32).max))))


def emit_requantize(
    rewrite: Rewrite,
    operand_name: str,
    output_name: str,
    parameters: Requantization,
    rounding: str,
    max_magnitude: int = -1,
    input_zero_point: int = 0,
) -> None:
    """Append the ``requantize`` or ``requantize_float`` node that scales the integers ``operand_name`` and computes
    ``output_name``.

    ``rounding`` is ``double``, ``single``, ``wide`` or ``even``. ``max_magnitude`` is the largest magnitude of an
    integer minus ``input_zero_point``, or -1 if it is unknown. Multipliers and shifts that are equal for all channels
    become attributes of the node; others become constant operands."""
    count = len(parameters.multipliers)
    shape = (count,) + (1,) * parameters.trailing_axes
    if rounding == Rounding.EVEN:
        scales = np.array([clip_to_float32(scale) for scale in parameters.multipliers], np.float32)
        if count == 1:
            rewrite.emit(
                "requantize_float", (operand_name,), output_name, {**parameters.result_attrs, "scale": float(scales[0])}
            )
        else:
            operand = rewrite.add_constant("scale", scales.reshape(shape))
            rewrite.emit(
                "requantize_float", (operand_name, operand), output_name, {**parameters.result_attrs, "scale": None}
            )
        return
    if rounding not in (Multiplier.DOUBLE, Multiplier.SINGLE, Multiplier.WIDE):
        raise UnsupportedError(f"unknown rounding; got {rounding!r}, expected double, single or even")
    mantissas, shifts = _quantize_multipliers(parameters.multipliers, 7 if rounding == Multiplier.WIDE else 30)
    if rounding == Multiplier.WIDE:
        mantissas = np.asarray(reduce_multiplier(mantissas))
    attrs: dict[str, Attr] = {**parameters.result_attrs, "rounding": rounding, "bound": max_magnitude}
    attrs |= {"input_zero_point": input_zero_point, "multiplier": None, "shift": None}
    attrs["shift_range"] = (int(shifts.min()), int(shifts.max()))
    operands = [operand_name]
    if count == 1 or len(set(zip(mantissas.tolist(), shifts.tolist(), strict=True))) == 1:
        attrs |= {"multiplier": int(mantissas[0]), "shift": int(shifts[0])}
    else:
        dtype = np.int16 if rounding == Multiplier.WIDE else np.int32
        operands.append(rewrite.add_constant("multiplier", mantissas.astype(dtype).reshape(shape)))
        if len(set(shifts.tolist())) == 1:
            attrs["shift"] = int(shifts[0])
        else:
            operands.append(rewrite.add_constant("shift", shifts.astype(np.int8).reshape(shape)))
    rewrite.emit("requantize", operands, output_name, attrs)


def _quantize_multipliers(
    multipliers: tuple[float, ...], max_shift: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """Convert real multipliers to two arrays: fixed-point mantissas, and shifts of at most ``max_shift``.

    A zero mantissa gets the shift of the first non-zero one, because its product is 0 with any shift."""
    pairs = [quantize_multiplier(real, max_shift) for real in multipliers]
    common = next((shift for mantissa, shift in pairs if mantissa), 0)
    mantissas = np.array([mantissa for mantissa, _ in pairs], np.int64)
    shifts = np.array([shift if mantissa else common for mantissa, shift in pairs], np.int64)
    return mantissas, shifts


def emit_scaled_sum(
    rewrite: Rewrite,
    operand_name: str,
    max_magnitude: int,
    exact_factor: Fraction,
    float32_scale: float,
    result_attrs: Mapping[str, Attr],
    extra_attrs: Mapping[str, Attr] = MappingProxyType({}),
) -> None:
    """Append the node that multiplies integer sums by ``exact_factor`` and rounds half to even.

    The sums have a magnitude of at most ``max_magnitude``. The node is ``requantize_float`` with the scale
    ``float32_scale`` if that rounds all such sums correctly. Otherwise it is ``requantize_even`` if fixed-point factors
    that do so are found. ``extra_attrs`` are attributes of ``requantize_float``, and force this operator: a mean whose
    number of elements varies at run time must be the same node for all sizes."""
    low, high, zero = (int(str(result_attrs[name])) for name in ("minimum", "maximum", "zero_point"))
    needs_even = not extra_attrs and not is_exact_scale(
        float32_scale, max_magnitude, exact_factor, low - zero, high - zero
    )
    if not (needs_even and emit_requantize_even(rewrite, operand_name, max_magnitude, exact_factor, result_attrs)):
        rewrite.emit(
            "requantize_float",
            (operand_name,),
            rewrite.node.outputs,
            {**result_attrs, "scale": float32_scale, **extra_attrs},
        )


# ---- Test cases: edges of rounding, clamping and range, with parameters as attributes and as operands.

REQUANTIZE_ATTRS: Attributes = {
    "multiplier": mantissa("one for all channels; None: an operand", None),
    "shift": exponent("its exponent, positive to the left; None: an operand", None),
    "shift_range": integers("the least and the largest shift", (-31, 31), length=2, least=-31, most=31),
    "input_zero_point": integer("zero point of x", 0),
    **STORED,
    "rounding": enum_choice("of what is scaled", *Multiplier, default=Multiplier.DOUBLE),
    "bound": integer("the largest distance of x from its zero point; -1: unknown", -1, least=-1),
    "average": numbers(
        "for a mean over a variable number of elements: the numbers from which `mean_multiplier` is computed", OPTIONAL
    ),
}
REQUANTIZE = default_attributes(REQUANTIZE_ATTRS)


def make_requantize_test_cases() -> Iterable[Case]:
    edges = np.array(
        [
            0,
            1,
            -1,
            2,
            -2,
            3,
            -3,
            127,
            -128,
            1 << 10,
            -(1 << 10),
            12345,
            -54321,
            (1 << 29) + 7,
            1 - (1 << 30),
            (1 << 30) - 1,
        ],
        np.int32,
    )
    extremes = np.array([INT32_MAX, -(1 << 31), 1 << 30, -(1 << 30)], np.int32)
    outs: tuple[tuple[str, int, int, int], ...] = (
        ("int8", -3, -128, 127),
        ("int8", -128, -128, 127),
        ("int8", 5, 5, 90),
        ("uint8", 128, 0, 255),
        ("int16", 0, -32768, 32767),
    )
    for dtype, zero, low, high in outs:
        for shift in (0, -1, -5, -8, -17, -31):
            attrs = {"multiplier": 1518500250, "shift": shift, "zero_point": zero, "minimum": low, "maximum": high}
            known = {**REQUANTIZE, **attrs, "out_dtype": dtype, "bound": (1 << 30) - 1}
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                bounded, name = {**known, "rounding": rounding}, f"{rounding} {dtype} shift {shift}"
                yield Case(bounded, (TensorType((16,), "int32"),), arrays=(edges,), name=name)
            x = np.concatenate((edges, extremes))
            unknown = {**known, "bound": -1}
            yield Case(unknown, (TensorType((20,), "int32"),), arrays=(x,), name=f"{dtype} shift {shift} unbounded")
            yield Case(
                {**unknown, "rounding": Multiplier.SINGLE},
                (TensorType((20,), "int32"),),
                arrays=(x,),
                name=f"single {dtype} {shift}",
            )
    yield from _make_channel_test_cases(edges)
    yield from _make_special_test_cases()


def _make_channel_test_cases(edge_values: Array) -> Iterable[Case]:
    """Yield test cases with one multiplier and one shift per channel."""
    multiplier = np.array([1 << 30, INT32_MAX, 1518500250, 1234567890], np.int32)
    types = (TensorType((4, 4), "int32"), TensorType((4,), "int32"), TensorType((4,), "int8"))
    for shifts in (
        (-1, -5, -7, -30),
        (0, -3, -9, -1),
        (0, -31, -2, -3),
        (-1, -31, -5, -8),
        (2, -3, -1, 0),
        (3, 0, 9, 1),
    ):
        for low, zero in ((-128, -7), (4, 4)):
            attrs: dict[str, Attr] = {"zero_point": zero, "minimum": low, "maximum": 127, "out_dtype": "int8"}
            bound = 1 << 20 if shifts[0] > 0 else (1 << 30) - 1
            x = np.clip(edge_values, -bound, bound).reshape(4, 4)
            known = {**REQUANTIZE, **attrs, "shift_range": (min(shifts), max(shifts)), "bound": bound}
            arrays = (x, multiplier, np.array(shifts, np.int8))
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                name = f"{rounding} channels {shifts} from {low}"
                yield Case({**known, "rounding": rounding}, types, (1, 2), arrays, name=name)
    for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
        shared = {**REQUANTIZE, **attrs, "shift": -6, "bound": (1 << 30) - 1, "rounding": rounding}
        name = f"{rounding} channels, one shift"
        yield Case(shared, types[:2], (1,), (edge_values.reshape(4, 4), multiplier), name=name)


def _make_special_test_cases() -> Iterable[Case]:
    """Yield test cases of 64-bit sums with rounding ``wide``, and of 8- and 16-bit data with an input zero point."""
    base = {**REQUANTIZE, "zero_point": 0, "minimum": -32768, "maximum": 32767, "out_dtype": "int16"}
    x64 = np.array([0, 1, -1, 1 << 40, -(1 << 40), (1 << 46) - 1, -(1 << 46), 12345678901], np.int64)
    wide = {**base, "rounding": Multiplier.WIDE, "multiplier": reduce_multiplier(1518500250), "bound": 1 << 46}
    for shift in (7, 0, -10, -31):
        x = x64 >> max(0, 16 + shift)
        yield Case({**wide, "shift": shift}, (TensorType((8,), "int64"),), arrays=(x,), name=f"wide shift {shift}")
    small = np.array([0, 1, -1, 16383, -16384, 3000, -29999, 7], np.int32)
    yield Case(
        {**wide, "shift": -3, "bound": 30000}, (TensorType((8,), "int32"),), arrays=(small,), name="wide in int32"
    )
    yield Case({**wide, "shift": -3}, (TensorType((8,), "int32"),), arrays=(small,), name="wide of int32")
    per_channel = {**wide, "multiplier": None, "shift_range": (-12, -4)}
    types = (TensorType((2, 4), "int64"), TensorType((4,), "int16"), TensorType((4,), "int8"))
    parts = (np.array([16384, 32767, 20000, 30000], np.int16), np.array([-4, -5, -12, -8], np.int8))
    yield Case(per_channel, types, (1, 2), ((x64 >> 20).reshape(2, 4), *parts), name="wide channels")
    for dtype in ("int8", "uint8", "int16"):
        low, high = dtypes.int_range(dtype)
        x = np.array([low, low + 1, 0, 1, high - 1, high], dtypes.to_numpy(dtype))
        moved = {**base, "input_zero_point": 3, "bound": 1 << 17, "minimum": low, "maximum": high, "out_dtype": dtype}
        for multiplier, shift in ((1 << 30, 1), (1 << 30, 0), (1 << 30, -3), (1900000000, 2), (1900000000, -1)):
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                attrs = {**moved, "multiplier": multiplier, "shift": shift, "rounding": rounding}
                name = f"{rounding} {dtype} {multiplier} {shift}"
                yield Case(attrs, (TensorType((6,), dtype),), arrays=(x,), name=name)


def make_requantize_float_test_cases() -> Iterable[Case]:
    x = np.array([0, 1, -1, 3, -3, 5, -5, 255, -256, 1 << 20, -(1 << 20), INT32_MAX, -(1 << 31), 99, 101, 7], np.int32)
    scale = np.array([0.5, 0.1, 0.0031, 1.25], np.float32)
    for dtype, zero in (("uint8", 128), ("int8", 0), ("int8", -128), ("int16", 0)):
        low, high = dtypes.int_range(dtype)
        attrs: dict[str, Attr] = {"scale": 0.5, "zero_point": zero, "minimum": low, "maximum": high, "out_dtype": dtype}
        yield Case(attrs, (TensorType((16,), "int32"),), arrays=(x,), name=dtype)
        types = (TensorType((4, 4), "int32"), TensorType((4,), "float32"))
        yield Case({**attrs, "scale": None}, types, (1,), (x.reshape(4, 4), scale), name=f"{dtype} channels")


def make_quantize_test_cases() -> Iterable[Case]:
    x = np.array(
        [0.0, 0.25, -0.25, 0.75, -0.75, 1.25, 31.9, -32.1, 1e9, -1e9, 0.12, 63.75, -64.25, np.inf, -np.inf, 5.0]
    )
    for rounding in Ties:
        for dtype, zero in (
            ("int8", 0),
            ("int8", -128),
            ("uint8", 127),
            ("int16", 0),
            ("int32", 0),
            ("int32", -1),
            ("int32", 200),
        ):
            attrs: dict[str, Attr] = {
                "scale": (0.5,),
                "zero_point": (zero,),
                "axis": None,
                "out_dtype": dtype,
                "rounding": rounding,
            }
            arrays = (x.astype(np.float32),)
            yield Case(attrs, (TensorType((16,), "float32"),), arrays=arrays, name=f"{dtype} {zero} {rounding}")


def make_dequantize_test_cases() -> Iterable[Case]:
    for dtype, zero in (("int8", 0), ("int8", -5), ("uint8", 128), ("int16", 0), ("int32", 0)):
        attrs = {"scale": (0.0031,), "zero_point": (zero,), "axis": None}
        yield Case(attrs, (TensorType((3, 5), dtype),), name=f"{dtype} {zero}")


# ---- From integers to integers of another scale: requantize and requantize_float.
#
# The numpy references are the formulas of :mod:`microc.numerics`; the generated expressions are the sequences of ``scaling.py``.
#
# Source: TFLite ``requantize.h``.

_MAX_WIDE_SUM = 1 << 47
"""Largest magnitude of a 64-bit sum that can be scaled by a 16-bit multiplier, as in TFLite."""


def infer_requantize(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the result's type: the shape of the first operand, and the dtype in the attribute ``out_dtype``.

    Raise ModelError if that dtype is no integer dtype, or if multipliers or shifts cannot be broadcast to the data."""
    if not dtypes.is_integer(attrs["out_dtype"]):
        raise ModelError(f"out_dtype must be an integer dtype; got {attrs['out_dtype']!r}")
    for tensor_type in types[1:]:
        pairs = zip(tensor_type.shape[::-1], types[0].shape[::-1], strict=False)
        if len(tensor_type.shape) > len(types[0].shape) or any(own not in (1, extent) for own, extent in pairs):
            raise ModelError(
                f"multipliers and shifts do not broadcast to the data; got {tensor_type.shape}, expected axes of 1 or those of "
                f"{types[0].shape}"
            )
    return (TensorType(types[0].shape, attrs["out_dtype"]),)


def multiplier_and_shift(attrs: Mapping[str, Any], operands: Sequence[Any]) -> tuple[Any, Any]:
    """Return multiplier and shift of a ``requantize`` node, each from its attribute, or from the operand if the
    attribute is None."""
    rest = [x for x in operands[1:] if x is not None]
    multiplier = attrs["multiplier"] if attrs["multiplier"] is not None else rest.pop(0)
    shift = attrs["shift"] if attrs["shift"] is not None else rest.pop(0)
    return multiplier, shift


def _build_fixed_point_scale(attrs: Mapping[str, Any], args: Sequence[Expr]) -> FixedPointScale:
    """Build the fixed-point scale of a ``requantize`` node. Multiplier and shift are Python integers if they are
    constant, else int32 expressions."""
    multiplier, shift = multiplier_and_shift(attrs, args)
    values = [ir.int_value(x) if isinstance(x, Expr) else x for x in (multiplier, shift)]
    multiplier = values[0] if values[0] is not None else ir.cast("int32", multiplier)
    if values[1] is not None:
        return FixedPointScale(multiplier, -values[1], (-values[1], -values[1]))
    lowest, highest = attrs["shift_range"]
    return FixedPointScale(multiplier, 0 - ir.cast("int32", shift), (-highest, -lowest))


def _build_requantize_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    attrs = {**REQUANTIZE, **attrs}
    scale = _build_fixed_point_scale(attrs, args)
    out = ScaledResult(attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])
    x, zero, bound = args[0], attrs["input_zero_point"], attrs["bound"]
    if attrs["rounding"] == Multiplier.WIDE:
        return scale_by_reduced_multiplier(x, bound, scale, out)
    if x.dtype == "int64":  # sums that may not fit 32 bits
        if zero:
            raise InternalError("requantize of int64 data supports no input zero point other than 0")
        x = ir.cast("int32", ir.clamp(x, INT32_MIN, INT32_MAX))
    low, high = (-bound, bound) if bound >= 0 else dtypes.int_range(x.dtype)
    if bound < 0:
        low, high = low - zero, high - zero
    x = _subtract_zero_point(ir.cast("int32", x), zero, bound < 0)
    low, high = max(low, INT32_MIN), min(high, INT32_MAX)
    if attrs["rounding"] == Multiplier.SINGLE:
        return scale_single_rounding(x, max(-low, high), scale, out)
    return scale_double_rounding(x, low, high, scale, out)


def _subtract_zero_point(x: Expr, zero_point: int, bound_is_unknown: bool) -> Expr:
    """Subtract the zero point from the int32 ``x``. If ``bound_is_unknown`` the difference saturates at the ends of
    int32."""
    if bound_is_unknown and zero_point > 0:
        x = ir.maximum(x, INT32_MIN + zero_point)
    if bound_is_unknown and zero_point < 0:
        x = ir.minimum(x, INT32_MAX + zero_point)
    return x - zero_point if zero_point else x


def evaluate_requantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Evaluate ``requantize``: the formulas of :mod:`microc.numerics` on arrays."""
    attrs = {**REQUANTIZE, **attrs}
    multiplier, shift = (np.asarray(part, np.int64) for part in multiplier_and_shift(attrs, arrays))
    x = np.asarray(arrays[0], np.int64) - attrs["input_zero_point"]
    x = x if attrs["rounding"] == Multiplier.WIDE else NUMPY.clamp(x, INT32_MIN, INT32_MAX)
    scaled = Multiplier(attrs["rounding"]).multiply_function(x, multiplier, shift, NUMPY)
    shifted = NUMPY.clamp(scaled + attrs["zero_point"], INT32_MIN, INT32_MAX)
    clipped = np.clip(shifted, attrs["minimum"], attrs["maximum"])
    return (np.asarray(clipped).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _requantize_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return the bounds of the operands multiplier and shift, as far as these are operands.

    They must be constants, or results of ``mean_multiplier`` (:mod:`microc.ops.quantised.computed_scales`), which stay
    within the bounds."""
    attrs, means = checked_node.attrs, ("mean_multiplier",)
    most = INT32_MAX >> 16 if attrs["rounding"] == Multiplier.WIDE else INT32_MAX
    factors = [OperandBounds(NumberUse.FACTOR, 0, most, means)] if attrs["multiplier"] is None else []
    low, high = attrs["shift_range"]
    shifts = [OperandBounds(NumberUse.SHIFT, low, high, means)] if attrs["shift"] is None else []
    return dict(enumerate((*factors, *shifts), 1))


def _requantize_error_message(checked_node: CheckedNode) -> str:
    """Return a message if multiplier or shift is missing, is present as both attribute and operand, or is out of range,
    or if the data have an unsupported dtype or bound; else return an empty string.

    With rounding ``wide`` a left shift has at most 7 bits."""
    attrs = checked_node.attrs
    if len(checked_node.types) != 1 + sum(attrs[name] is None for name in ("multiplier", "shift")):
        return (
            f"each of multiplier and shift must be an attribute or an operand; got {len(checked_node.types)} operands, "
            f"multiplier={attrs['multiplier']} and shift={attrs['shift']}"
        )
    low, high = attrs["shift_range"] if attrs["shift"] is None else (attrs["shift"],) * 2
    wide, dtype = attrs["rounding"] == Multiplier.WIDE, checked_node.types[0].dtype
    most = 7 if wide else 30 if attrs["shift"] is not None else 31
    if not low <= high <= most:
        return f"shifts are out of range; got {low}..{high}, expected at most {most}"
    if not dtypes.is_integer(dtype) or dtype in ("uint32", "uint64"):
        return f"the data have an unsupported dtype; got {dtype}, expected integers other than uint32 and uint64"
    if wide and attrs["multiplier"] is not None and attrs["multiplier"] > INT32_MAX >> 16:
        return f"multiplier is too large; got {attrs['multiplier']}, expected at most {INT32_MAX >> 16}"
    if abs(attrs["input_zero_point"]) > INT32_MAX or (dtype == "int64" and attrs["input_zero_point"]):
        return f"input_zero_point is out of range for {dtype}; got {attrs['input_zero_point']}, expected " + (
            "0" if dtype == "int64" else f"a magnitude of at most {INT32_MAX}"
        )
    if dtype == "int64" and (attrs["bound"] > _MAX_WIDE_SUM or (wide and attrs["bound"] < 0)):
        return (
            f"bound is out of range for int64 sums; got {attrs['bound']}, expected {0 if wide else -1}..{_MAX_WIDE_SUM}"
        )
    return ""


def _build_requantize_float_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    scale = ir.const(attrs["scale"], "float32") if attrs.get("scale") is not None else args[1]
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    x = round_to_int32(ir.cast("float32", args[0]) * scale, low - zero, high - zero, Ties.EVEN)
    return ir.cast(attrs["out_dtype"], x + zero if zero else x)


def _evaluate_requantize_float_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    scale = np.float32(attrs["scale"]) if attrs.get("scale") is not None else np.asarray(arrays[1], np.float32)
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    least, most = (
        least_float32_not_below(max(low - zero, INT32_MIN)),
        largest_float32_not_above(min(high - zero, INT32_MAX)),
    )
    scaled = np.clip(np.asarray(arrays[0]).astype(np.float32) * scale, np.float32(least), np.float32(most))
    return ((round_half_even(scaled).astype(np.int64) + zero).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _float_scale_error_message(checked_node: CheckedNode) -> str:
    """Return a message unless all scales are finite float32 numbers of at least 0, else an empty string.

    A scale of 0 is valid: it comes from a scale that underflowed in float32."""
    scale = checked_node.attrs["scale"]
    scale_values = scale if scale is not None else checked_node.data[1] if len(checked_node.data) > 1 else 1.0
    if scale_values is None:
        return ""
    scales = np.asarray(scale_values, np.float64)
    if ((scales >= 0) & (scales <= np.finfo(np.float32).max)).all():
        return ""
    return f"scale is out of range; got {scales.reshape(-1)[:4]}, expected float32 numbers of at least 0"


OPERATORS = (
    OpDef(
        "requantize",
        infer=infer_requantize,
        reference=evaluate_requantize_reference,
        scalar=_build_requantize_scalar_expr,
        cases=make_requantize_test_cases,
        constants=_requantize_operand_bounds,
        sound=(stored_range_error_message, _requantize_error_message),
        attrs=REQUANTIZE_ATTRS,
        operand_names=("x", "multiplier", "shift"),
        formula="clamp(round({x} * {multiplier} * 2**({shift} - 31)) + {zero_point}, {minimum}, {maximum})",
    ),
    OpDef(
        "requantize_float",
        infer=infer_requantize,
        reference=_evaluate_requantize_float_reference,
        scalar=_build_requantize_float_scalar_expr,
        cases=make_requantize_float_test_cases,
        sound=(stored_range_error_message, _float_scale_error_message),
        attrs={
            "scale": real("one for all channels; None: an operand", None),
            **STORED,
            "average": numbers(
                "for a mean over a variable number of elements: the numbers from which `mean_scale` is computed",
                OPTIONAL,
            ),
        },
        operand_names=("x", "scale"),
        formula="clamp(rint({x} * {scale}) + {zero_point}, {minimum}, {maximum})",
    ),
)
