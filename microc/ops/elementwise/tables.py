"""Tables of 256 entries for quantised functions of one 8-bit number.

Rounding ``even`` follows ONNX: dequantise, apply the function to floats, quantise half to even. Rounding ``double`` and
``single`` give the results of TFLite Micro's kernels, which use fixed-point arithmetic for most functions (sources:
``activations_common.cc``, ``logistic.h``, ``tanh.h``, ``hard_swish.h``, ``leaky_relu.h``) and floats for the others
(``LUTPopulate`` in ``common.h``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import numerics
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError, UnsupportedError
from microc.graph.ir import Quant
from microc.numerics import NUMPY, quantize_multiplier
from microc.ops.arithmetic import Rewrite, emit_dequantize, quantize_attrs
from microc.ops.attributes import Rounding
from microc.ops.elementwise.scalar_functions import UNARY_BY_NAME, apply_unary


@frozen
class TableParameters:
    """Parameters of the lookup table of a quantised function.

    They are the operator, its attributes, the quantisation of input and output, their dtypes and the rounding."""

    op: str
    attrs: Mapping[str, Any]
    source: Quant
    result: Quant
    in_dtype: str
    out_dtype: str
    rounding: str

    @property
    def input(self) -> Array:
        """All inputs minus their zero point, from the lowest to the highest (int64)."""
        low, high = dtypes.int_range(self.in_dtype)
        return np.arange(low, high + 1, dtype=np.int64) - self.source.zero_point[0]

    @property
    def scales(self) -> tuple[np.float32, np.float32]:
        """Scales of input and output."""
        return np.float32(self.source.scale[0]), np.float32(self.result.scale[0])

    @property
    def ratio(self) -> float:
        """The input's scale over the output's, in double precision as in TFLite Micro."""
        return float(self.scales[0]) / float(self.scales[1])

    def to_output(self, values: Array, low: float = -math.inf, high: float = math.inf) -> Array:
        """Add the output's zero point to integers and clamp them to ``low``..``high`` within the output's dtype."""
        least, most = dtypes.int_range(self.out_dtype)
        shifted = NUMPY.clamp(values + self.result.zero_point[0], numerics.INT32_MIN, numerics.INT32_MAX)
        clipped: Array = np.clip(shifted, max(low, least), min(high, most))
        return clipped.astype(dtypes.to_numpy(self.out_dtype))

    def rescale(self, x: Array, real: float) -> Array:
        """Multiply x by a positive real in fixed point, in the rounding mode of the table."""
        mantissa, shift = quantize_multiplier(real)
        return np.asarray(Rounding(self.rounding).multiplier.times(NUMPY.wide(x), mantissa, shift, NUMPY))


_ROOT_SHIFT = 20
"""Fraction bits of inverse roots (``elementwise.cc``)."""

IDENTITY: tuple[str, Mapping[str, Any]] = ("clip", MappingProxyType({"minimum": -math.inf, "maximum": math.inf}))
"""Operator and attributes of a table that only changes the scale."""


def quantised_clip_bounds(
    op: str, attrs: Mapping[str, Any], quant: Quant, dtype: str, rounding: str
) -> tuple[int, int]:
    """Return the bounds of ``relu`` or ``clip``, quantised to integers of the result's ``dtype``.

    They are quantised in float32 as TFLite does, half to even if ``rounding`` is ``even``."""
    low, high = dtypes.int_range(dtype)
    rounded = numerics.round_half_even if rounding == Rounding.EVEN else numerics.round_half_away
    bounds = (0.0, math.inf) if op == "relu" else (attrs["minimum"], attrs["maximum"])
    with np.errstate(invalid="ignore"):
        steps = [float(rounded(np.asarray(np.float32(real) / np.float32(quant.scale[0])))) for real in bounds]
        steps = [
            float(NUMPY.clamp(step, numerics.INT32_MIN, numerics.INT32_MAX)) if math.isfinite(real) else step
            for step, real in zip(steps, bounds, strict=True)
        ]
    least, most = (step + quant.zero_point[0] for step in steps)
    return int(min(max(least, low), high)), int(min(max(most, low), high))


def compute_lookup_table(call: TableParameters) -> Array:
    """Compute the table's 256 results, from that of the lowest input to that of the highest."""
    if call.rounding == Rounding.EVEN:
        return _float_table(call, even=True)
    return _KERNELS.get(call.op, _float_table)(call)


def emit_lookup(
    rewrite: Rewrite, op: str, attrs: Mapping[str, Any], value: str, output: str, rounding: str = Rounding.EVEN
) -> str:
    """Append the ``lookup`` that applies ``op`` to the quantised 8-bit ``value``; the types of both values have ``quant``."""
    source, result = rewrite.type(value), rewrite.type(output)
    if source.quant is None or result.quant is None:
        raise InternalError(f"a table from {value!r} to {output!r}, which are not quantised")
    call = TableParameters(op, attrs, source.quant, result.quant, source.dtype, result.dtype, rounding)
    return rewrite.emit("lookup", (value, rewrite.constant("table", compute_lookup_table(call))), output, {})


def emit_quantised_function(
    rewrite: Rewrite, op: str, attrs: Mapping[str, Any], value: str, output: str, rounding: str
) -> str:
    """Append ``op`` on a quantised value of any width: :func:`emit_lookup` for 8 bits.

    For wider values it becomes float operators if it rounds half to even; otherwise ``op`` remains and is legalised
    later."""
    if dtypes.nbytes(rewrite.type(value).dtype) == 1 and dtypes.nbytes(rewrite.type(output).dtype) <= 2:
        return emit_lookup(rewrite, op, attrs, value, output, rounding)
    if rounding != Rounding.EVEN:
        return rewrite.emit(op, (value,), output, {**attrs, "rounding": rounding})
    result = rewrite.type(output)
    real = rewrite.value("float", result.shape, "float32")
    rewrite.emit(op, (emit_dequantize(rewrite, value),), real, attrs)
    return rewrite.emit("quantize", (real,), output, quantize_attrs(result, rounding))


def _float_table(call: TableParameters, even: bool = False) -> Array:
    """Compute the table by the operator's float function and quantise the results."""
    return _apply_float(call, lambda x: apply_unary(UNARY_BY_NAME[call.op], call.attrs, x), even)


def _elu_table(call: TableParameters) -> Array:
    """Compute the table of ELU.

    TFLite rounds exp(x) to float32 before it subtracts one, which matters for inputs around 1e-6."""
    alpha, exp = np.float32(call.attrs["alpha"]), UNARY_BY_NAME["exp"]
    return _apply_float(call, lambda x: np.where(x < 0, alpha * (apply_unary(exp, {}, x) - np.float32(1)), x))


def _apply_float(call: TableParameters, function: Callable[[Array], Array], even: bool = False) -> Array:
    """Apply a float function to all inputs and quantise the results.

    TFLite multiplies by the inverse output scale, ONNX (``even``) divides. NaN becomes zero."""
    scale_in, scale_out = call.scales
    with np.errstate(all="ignore"):
        real = function(scale_in * call.input.astype(np.float32))
        inverse = np.float32(1) / scale_out
        rounded = numerics.round_half_even(real / scale_out) if even else numerics.round_half_away(real * inverse)
    steps = NUMPY.clamp(rounded.astype(np.float64), numerics.INT32_MIN, numerics.INT32_MAX)
    return call.to_output(np.nan_to_num(steps, nan=0.0).astype(np.int64))


def _clip_table(call: TableParameters) -> Array:
    """Compute the table of relu or clip: rescale, then clamp to the quantised bounds."""
    low, high = quantised_clip_bounds(call.op, call.attrs, call.result, call.out_dtype, call.rounding)
    return call.to_output(call.rescale(call.input, call.ratio), low, high)


def _leaky_relu_table(call: TableParameters) -> Array:
    """Compute the table of leaky_relu by two rescalings; a negative alpha negates the result of its magnitude."""
    x, alpha = call.input, call.attrs["alpha"]
    below = call.rescale(np.minimum(x, 0), slope_ratio(float(call.scales[0]), float(call.scales[1]), alpha))
    above = call.rescale(np.maximum(x, 0), call.ratio)
    return call.to_output(np.where(x >= 0, above, -below if alpha < 0 else below))


def slope_ratio(scale_in: float, scale_out: float, alpha: float) -> float:
    """Return the magnitude of leaky_relu's factor of negative numbers, multiplied by the ratio of scales."""
    return float(np.float32(scale_in)) * abs(float(np.float32(alpha))) / float(np.float32(scale_out))


def _sigmoid_table(call: TableParameters) -> Array:
    """Compute the table of sigmoid by the fixed-point logistic in Q4.27.

    The kernel supports only scale 1/256 with the lowest value as zero point."""
    low, _ = dtypes.int_range(call.out_dtype)
    if call.out_dtype != "int8" or call.result != Quant((1 / 256,), (low,)):
        return _float_table(call)
    return call.to_output(_apply_fixed_point(call, numerics.logistic, 0, 256, 31 - 8))


def _tanh_table(call: TableParameters) -> Array:
    """Compute the table of tanh by the fixed-point tanh in Q4.27.

    The kernel supports only scale 1/128 with zero point 0."""
    if call.out_dtype != "int8" or call.result != Quant((1 / 128,), (0,)):
        return _float_table(call)
    return call.to_output(_apply_fixed_point(call, numerics.tanh, -128, 127, 31 - 7))


def _apply_fixed_point(
    call: TableParameters, function: Callable[[Any, int], Any], low: int, high: int, shift: int
) -> Array:
    """Apply a Q4.27 ``function`` and shift its results right; inputs beyond the radius of Q4.27 give ``low`` or ``high``."""
    real = float(call.scales[0]) * (1 << 27)
    _, left = numerics.mantissa_and_shift(real)
    if not 0 <= left <= 62:
        raise UnsupportedError(
            f"the input's scale is out of the range of fixed point; got {call.scales[0]:.3g}, expected "
            f"{2.0**-28:.3g} to {2.0**35:.3g}",
            hint=numerics.FAR_APART,
        )
    x, radius = call.input, math.floor(math.ldexp(15 << 27, -left))
    inner = np.clip(x, 1 - radius, radius - 1)  # if the radius is zero nothing is inside
    raw = call.rescale(inner, real) if radius > 1 else np.zeros_like(x)
    value = numerics.rounding_shift_right(function(raw, 4), shift, NUMPY)
    return np.where(x <= -radius, low, np.where(x >= radius, high, value))


def _hard_swish_table(call: TableParameters) -> Array:
    """Compute the table of x * relu6(x + 3) / 6 in 16-bit fixed point.

    x is on the output's scale before its shift, the factor is in Q0.15."""
    with np.errstate(under="ignore"):
        fine_scale = float(call.scales[0] / np.float32(128))  # float32 as in TFLite: denormal numbers lose bits
    if numerics.mantissa_and_shift(fine_scale / float(call.scales[1]))[1] > 0:
        return _float_table(call)
    out_mantissa, out_shift = quantize_multiplier(fine_scale / float(call.scales[1]))
    factor_mantissa, factor_shift = quantize_multiplier(fine_scale / (3 / 32768), 31)
    fine = call.input * 128
    scaled = _high_mul16(fine, numerics.reduce_multiplier(out_mantissa))
    factor = fine
    if factor_shift > 0:
        factor = _saturate_int16(factor << (factor_shift - 1))
    factor = _high_mul16(factor, numerics.reduce_multiplier(factor_mantissa))
    if factor_shift > 0:
        factor = _saturate_int16(factor << 1)
    elif factor_shift < 0:
        factor = _rounding_divide_by_pot16(factor, -factor_shift)
    factor = (factor + (1 << 15)) >> 1
    product = factor * scaled
    truncated = np.where(product < 0, -(-product >> 15), product >> 15)
    return call.to_output(_rounding_divide_by_pot16(truncated, -out_shift))


def _abs_table(call: TableParameters) -> Array:
    """Compute the table of the magnitude of x, scaled if the output has another scale; the ratio of scales is a float32."""
    size = np.abs(call.input)
    return call.to_output(size if call.scales[0] == call.scales[1] else call.rescale(size, call.ratio))


def _rsqrt_table(call: TableParameters) -> Array:
    """Compute the table of 1 / sqrt(x).

    The result for zero, and for negative numbers, which TFLite rejects, is the largest number."""
    real = inverse_root_ratio(float(call.scales[0]), float(call.scales[1]))
    _, most = dtypes.int_range(call.out_dtype)
    roots = []
    for x in call.input.tolist():
        mantissa, shift = numerics.inverse_square_root(max(x, 1))
        roots.append(int(numerics.multiply_double_rounding(np.int64(1), mantissa, shift + _ROOT_SHIFT, NUMPY)))
    mantissa, shift = quantize_multiplier(real)
    scaled = numerics.multiply_double_rounding(np.array(roots, np.int64), mantissa, shift - _ROOT_SHIFT, NUMPY)
    return np.where(call.input > 0, call.to_output(np.asarray(scaled)), most).astype(dtypes.to_numpy(call.out_dtype))


def inverse_root_ratio(scale_in: float, scale_out: float) -> float:
    """Return the factor that scales rsqrt of stored integers, with root and product in float32 as in TFLite."""
    with np.errstate(all="ignore"):
        return float(np.float64(1.0) / np.float64(np.sqrt(np.float32(scale_in)) * np.float32(scale_out)))


def _rounding_divide_by_pot16(x: Any, exponent: int) -> Any:
    """Return gemmlowp's 16-bit RoundingDivideByPOT, x / 2**exponent.

    From exponent 16 on its mask of the remainder is all ones, so that the result is 1 for x >= 0 and -1 for negative x."""
    return numerics.rounding_shift_right(x, exponent, NUMPY) if exponent < 16 else np.where(x < 0, -1, 1)


def _high_mul16(a: Any, b: Any) -> Any:
    """Return ``round(a * b / 2**15)``, ties upwards (SaturatingRoundingDoublingHighMul of 16 bits)."""
    return (a * b + (1 << 14)) >> 15


def _saturate_int16(x: Any) -> Any:
    return np.clip(x, -(1 << 15), (1 << 15) - 1)


_KERNELS: Mapping[str, Callable[[TableParameters], Array]] = MappingProxyType(
    {
        "relu": _clip_table,
        "clip": _clip_table,
        "leaky_relu": _leaky_relu_table,
        "elu": _elu_table,
        "sigmoid": _sigmoid_table,
        "tanh": _tanh_table,
        "hard_swish": _hard_swish_table,
        "abs": _abs_table,
        "rsqrt": _rsqrt_table,
    }
)
