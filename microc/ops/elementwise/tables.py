# SPDX-License-Identifier: Apache-2.0
"""Lookup tables of 256 entries for quantised functions of one 8-bit number.

Rounding ``even`` follows ONNX: dequantise, apply the function to floats, quantise half to even. Rounding ``double`` and
``single`` give the results of TFLite Micro's kernels. These use fixed-point arithmetic for most functions (sources:
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
    """Parameters that determine the lookup table of a quantised elementwise function.

    They are the operator, its attributes, scale and zero point of input and output, the dtypes of both, and the
    rounding mode."""

    op: str
    attrs: Mapping[str, Any]
    in_quant: Quant
    out_quant: Quant
    in_dtype: str
    out_dtype: str
    rounding: str

    @property
    def inputs_minus_zero_point(self) -> Array:
        """All inputs in ascending order, minus their zero point (int64)."""
        low, high = dtypes.int_range(self.in_dtype)
        return np.arange(low, high + 1, dtype=np.int64) - self.in_quant.zero_point[0]

    @property
    def scales(self) -> tuple[np.float32, np.float32]:
        """Scale of the input and scale of the output."""
        return np.float32(self.in_quant.scale[0]), np.float32(self.out_quant.scale[0])

    @property
    def scale_ratio(self) -> float:
        """Scale of the input divided by scale of the output, in double precision as in TFLite Micro."""
        return float(self.scales[0]) / float(self.scales[1])

    def add_zero_point_and_clamp(self, values: Array, low: float = -math.inf, high: float = math.inf) -> Array:
        """Add the output's zero point to integers, and clamp the sums to ``low``..``high`` and to the output's
        dtype."""
        least, most = dtypes.int_range(self.out_dtype)
        shifted = NUMPY.clamp(values + self.out_quant.zero_point[0], numerics.INT32_MIN, numerics.INT32_MAX)
        clipped: Array = np.clip(shifted, max(low, least), min(high, most))
        return clipped.astype(dtypes.to_numpy(self.out_dtype))

    def multiply_in_fixed_point(self, x: Array, multiplier: float) -> Array:
        """Multiply integers by the positive real number ``multiplier`` in fixed point, in the table's rounding mode."""
        mantissa, shift = quantize_multiplier(multiplier)
        return np.asarray(Rounding(self.rounding).multiplier.multiply_function(NUMPY.widen(x), mantissa, shift, NUMPY))


_ROOT_SHIFT = 20
"""Number of fraction bits of inverse square roots (``elementwise.cc``)."""

IDENTITY: tuple[str, Mapping[str, Any]] = ("clip", MappingProxyType({"minimum": -math.inf, "maximum": math.inf}))
"""Operator and attributes of the identity function. Its table changes only scale and zero point."""


def quantised_clip_bounds(
    op: str, attrs: Mapping[str, Any], out_quant: Quant, out_dtype: str, rounding: str
) -> tuple[int, int]:
    """Return the bounds of ``relu`` or ``clip`` as integers of ``out_dtype``, quantised by ``out_quant``.

    The bounds are quantised in float32 as in TFLite, and rounded half to even if ``rounding`` is ``even``."""
    low, high = dtypes.int_range(out_dtype)
    rounded = numerics.round_half_even if rounding == Rounding.EVEN else numerics.round_half_away
    bounds = (0.0, math.inf) if op == "relu" else (attrs["minimum"], attrs["maximum"])
    with np.errstate(invalid="ignore", over="ignore"):
        steps = [float(rounded(np.asarray(np.float32(real) / np.float32(out_quant.scale[0])))) for real in bounds]
        steps = [
            float(NUMPY.clamp(step, numerics.INT32_MIN, numerics.INT32_MAX)) if math.isfinite(real) else step
            for step, real in zip(steps, bounds, strict=True)
        ]
    least, most = (step + out_quant.zero_point[0] for step in steps)
    return int(min(max(least, low), high)), int(min(max(most, low), high))


def compute_lookup_table(parameters: TableParameters) -> Array:
    """Return the results of a function of 8 or 16 bits, for all inputs in ascending order."""
    if parameters.rounding == Rounding.EVEN:
        return _compute_float_table(parameters, half_to_even=True)
    return _KERNELS.get(parameters.op, _compute_float_table)(parameters)


def emit_table_lookup(
    rewrite: Rewrite,
    op: str,
    attrs: Mapping[str, Any],
    value_name: str,
    output_name: str,
    rounding: str = Rounding.EVEN,
) -> str:
    """Append the ``lookup`` node that applies the operator ``op`` to the quantised 8-bit value ``value_name``.

    The node writes ``output_name``. Both values must be quantised with one scale and zero point."""
    source, result = rewrite.type(value_name), rewrite.type(output_name)
    if source.quant is None or result.quant is None:
        raise InternalError(f"lookup from {value_name!r} to {output_name!r}: a value is not quantised per tensor")
    call = TableParameters(op, attrs, source.quant, result.quant, source.dtype, result.dtype, rounding)
    return rewrite.emit(
        "lookup", (value_name, rewrite.add_constant("table", compute_lookup_table(call))), output_name, {}
    )


def emit_quantised_function(
    rewrite: Rewrite, op: str, attrs: Mapping[str, Any], value_name: str, output_name: str, rounding: str
) -> str:
    """Append the operator ``op`` on a quantised value of any width; it writes ``output_name``.

    8-bit values use :func:`emit_table_lookup`. For wider values, float operators are appended if ``rounding`` is half
    to even; otherwise ``op`` is appended unchanged and legalised later."""
    if dtypes.nbytes(rewrite.type(value_name).dtype) == 1 and dtypes.nbytes(rewrite.type(output_name).dtype) <= 2:
        return emit_table_lookup(rewrite, op, attrs, value_name, output_name, rounding)
    if rounding != Rounding.EVEN:
        return rewrite.emit(op, (value_name,), output_name, {**attrs, "rounding": rounding})
    result = rewrite.type(output_name)
    real = rewrite.add_value("float", result.shape, "float32")
    rewrite.emit(op, (emit_dequantize(rewrite, value_name),), real, attrs)
    return rewrite.emit("quantize", (real,), output_name, quantize_attrs(result, rounding))


def _compute_float_table(parameters: TableParameters, half_to_even: bool = False) -> Array:
    """Compute the table: apply the operator's float function to the real inputs, and quantise the results."""
    return _apply_float_function(
        parameters, lambda x: apply_unary(UNARY_BY_NAME[parameters.op], parameters.attrs, x), half_to_even
    )


def _compute_elu_table(parameters: TableParameters) -> Array:
    """Compute the table of ELU.

    TFLite rounds exp(x) to float32 before it subtracts one, which changes results for inputs of about 1e-6."""
    alpha, exp = np.float32(parameters.attrs["alpha"]), UNARY_BY_NAME["exp"]
    return _apply_float_function(
        parameters, lambda x: np.where(x < 0, alpha * (apply_unary(exp, {}, x) - np.float32(1)), x)
    )


def _apply_float_function(
    parameters: TableParameters, function: Callable[[Array], Array], half_to_even: bool = False
) -> Array:
    """Apply a float function to all real inputs and quantise the results.

    Like TFLite, multiply by the inverse of the output scale and round half away from zero. With ``half_to_even``,
    divide by the output scale and round half to even, like ONNX. NaN becomes zero."""
    scale_in, scale_out = parameters.scales
    with np.errstate(all="ignore"):
        real = function(scale_in * parameters.inputs_minus_zero_point.astype(np.float32))
        inverse = np.float32(1) / scale_out
        rounded = (
            numerics.round_half_even(real / scale_out) if half_to_even else numerics.round_half_away(real * inverse)
        )
    steps = NUMPY.clamp(rounded.astype(np.float64), numerics.INT32_MIN, numerics.INT32_MAX)
    return parameters.add_zero_point_and_clamp(np.nan_to_num(steps, nan=0.0).astype(np.int64))


def _compute_clip_table(parameters: TableParameters) -> Array:
    """Compute the table of relu or clip: rescale the inputs, then clamp to the quantised bounds."""
    low, high = quantised_clip_bounds(
        parameters.op, parameters.attrs, parameters.out_quant, parameters.out_dtype, parameters.rounding
    )
    return parameters.add_zero_point_and_clamp(
        parameters.multiply_in_fixed_point(parameters.inputs_minus_zero_point, parameters.scale_ratio), low, high
    )


def _compute_leaky_relu_table(parameters: TableParameters) -> Array:
    """Compute the table of leaky_relu with one multiplier for negative and one for other inputs. If alpha is negative,
    the results of negative inputs are negated."""
    x, alpha = parameters.inputs_minus_zero_point, parameters.attrs["alpha"]
    below = parameters.multiply_in_fixed_point(
        np.minimum(x, 0), leaky_relu_multiplier(float(parameters.scales[0]), float(parameters.scales[1]), alpha)
    )
    above = parameters.multiply_in_fixed_point(np.maximum(x, 0), parameters.scale_ratio)
    return parameters.add_zero_point_and_clamp(np.where(x >= 0, above, -below if alpha < 0 else below))


def leaky_relu_multiplier(scale_in: float, scale_out: float, alpha: float) -> float:
    """Return abs(``alpha``) * ``scale_in`` / ``scale_out``, the multiplier of negative inputs of ``leaky_relu``."""
    return float(np.float32(scale_in)) * abs(float(np.float32(alpha))) / float(np.float32(scale_out))


def _compute_sigmoid_table(parameters: TableParameters) -> Array:
    """Compute the table of sigmoid by the fixed-point logistic function in Q4.27.

    TFLite's kernel supports only scale 1/256 with the lowest value as zero point; any other output uses floats."""
    low, _ = dtypes.int_range(parameters.out_dtype)
    if parameters.out_dtype != "int8" or parameters.out_quant != Quant((1 / 256,), (low,)):
        return _compute_float_table(parameters)
    return parameters.add_zero_point_and_clamp(
        _apply_fixed_point_function(parameters, numerics.logistic, 0, 256, 31 - 8)
    )


def _compute_tanh_table(parameters: TableParameters) -> Array:
    """Compute the table of tanh by the fixed-point tanh in Q4.27.

    TFLite's kernel supports only scale 1/128 with zero point 0; any other output uses floats."""
    if parameters.out_dtype != "int8" or parameters.out_quant != Quant((1 / 128,), (0,)):
        return _compute_float_table(parameters)
    return parameters.add_zero_point_and_clamp(
        _apply_fixed_point_function(parameters, numerics.tanh, -128, 127, 31 - 7)
    )


def _apply_fixed_point_function(
    parameters: TableParameters,
    function: Callable[[Any, int], Any],
    lowest_result: int,
    highest_result: int,
    right_shift: int,
) -> Array:
    """Apply a Q4.27 ``function`` to all inputs and shift its results right by ``right_shift``.

    Inputs beyond the range of Q4.27 have the result ``lowest_result`` or ``highest_result``."""
    real = float(parameters.scales[0]) * (1 << 27)
    _, left = numerics.mantissa_and_shift(real)
    if not 0 <= left <= 62:
        raise UnsupportedError(
            f"the input's scale is outside of the range of the fixed-point table; got {parameters.scales[0]:.3g}, expected "
            f"{2.0**-28:.3g} to {2.0**35:.3g}",
            hint=numerics.FAR_APART,
        )
    x, radius = parameters.inputs_minus_zero_point, math.floor(math.ldexp(15 << 27, -left))
    inner = np.clip(x, 1 - radius, radius - 1)  # if the radius is zero nothing is inside
    raw = parameters.multiply_in_fixed_point(inner, real) if radius > 1 else np.zeros_like(x)
    value = numerics.rounding_shift_right(function(raw, 4), right_shift, NUMPY)
    return np.where(x <= -radius, lowest_result, np.where(x >= radius, highest_result, value))


def _compute_hard_swish_table(parameters: TableParameters) -> Array:
    """Compute the table of x * relu6(x + 3) / 6 in 16-bit fixed point.

    The factor x is scaled by the mantissa of the output's multiplier, whose shift is applied last; the other factor is
    Q0.15."""
    with np.errstate(under="ignore"):
        fine_scale = float(parameters.scales[0] / np.float32(128))  # float32 as in TFLite: denormal numbers lose bits
    if numerics.mantissa_and_shift(fine_scale / float(parameters.scales[1]))[1] > 0:
        return _compute_float_table(parameters)
    out_mantissa, out_shift = quantize_multiplier(fine_scale / float(parameters.scales[1]))
    factor_mantissa, factor_shift = quantize_multiplier(fine_scale / (3 / 32768), 31)
    fine = parameters.inputs_minus_zero_point * 128
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
    return parameters.add_zero_point_and_clamp(_rounding_divide_by_pot16(truncated, -out_shift))


def _compute_abs_table(parameters: TableParameters) -> Array:
    """Compute the table of abs(x). If the scales of input and output differ, abs(x) is multiplied by their ratio."""
    size = np.abs(parameters.inputs_minus_zero_point)
    return parameters.add_zero_point_and_clamp(
        size
        if parameters.scales[0] == parameters.scales[1]
        else parameters.multiply_in_fixed_point(size, parameters.scale_ratio)
    )


def _compute_rsqrt_table(parameters: TableParameters) -> Array:
    """Compute the table of 1 / sqrt(x).

    The result for zero and for negative inputs, which TFLite rejects, is the largest number of the output's dtype."""
    real = rsqrt_multiplier(float(parameters.scales[0]), float(parameters.scales[1]))
    _, most = dtypes.int_range(parameters.out_dtype)
    roots = []
    for x in parameters.inputs_minus_zero_point.tolist():
        mantissa, shift = numerics.inverse_square_root_mantissa_and_shift(max(x, 1))
        roots.append(int(numerics.multiply_double_rounding(np.int64(1), mantissa, shift + _ROOT_SHIFT, NUMPY)))
    mantissa, shift = quantize_multiplier(real)
    scaled = numerics.multiply_double_rounding(np.array(roots, np.int64), mantissa, shift - _ROOT_SHIFT, NUMPY)
    return np.where(
        parameters.inputs_minus_zero_point > 0, parameters.add_zero_point_and_clamp(np.asarray(scaled)), most
    ).astype(dtypes.to_numpy(parameters.out_dtype))


def rsqrt_multiplier(scale_in: float, scale_out: float) -> float:
    """Return the real multiplier of ``rsqrt`` on stored integers. Square root and product are computed in float32, as
    in TFLite."""
    with np.errstate(all="ignore"):
        return float(np.float64(1.0) / np.float64(np.sqrt(np.float32(scale_in)) * np.float32(scale_out)))


def _rounding_divide_by_pot16(x: Any, exponent: int) -> Any:
    """Return x / 2**exponent as gemmlowp's 16-bit RoundingDivideByPOT computes it.

    For exponents of 16 or more its mask of the remainder is all ones, so that the result is 1 for x >= 0 and -1 for
    negative x."""
    return numerics.rounding_shift_right(x, exponent, NUMPY) if exponent < 16 else np.where(x < 0, -1, 1)


def _high_mul16(a: Any, b: Any) -> Any:
    """Return ``round(a * b / 2**15)``, ties upwards (SaturatingRoundingDoublingHighMul of 16 bits)."""
    return (a * b + (1 << 14)) >> 15


def _saturate_int16(x: Any) -> Any:
    return np.clip(x, -(1 << 15), (1 << 15) - 1)


_KERNELS: Mapping[str, Callable[[TableParameters], Array]] = MappingProxyType(
    {
        "relu": _compute_clip_table,
        "clip": _compute_clip_table,
        "leaky_relu": _compute_leaky_relu_table,
        "elu": _compute_elu_table,
        "sigmoid": _compute_sigmoid_table,
        "tanh": _compute_tanh_table,
        "hard_swish": _compute_hard_swish_table,
        "abs": _compute_abs_table,
        "rsqrt": _compute_rsqrt_table,
    }
)
"""Functions that compute the table as TFLite Micro's kernels do, by operator."""
