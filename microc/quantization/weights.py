"""Weights as integers: symmetric, a scale for each output channel, the nearest levels."""

from __future__ import annotations

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Quant
from microc.quantization.scheme import SMALLEST, Activation, Span, Weight, levels, next_powers, rounded

_LARGEST_BIAS = 1 << 30
_SHRINK = np.linspace(1.0, 0.2, 41)
_EXACT_RANGE = 8
"""Bits from which on the largest weight of a channel decides its scale."""


def quantised_weights(
    reals: Array, bits: int, bias: Array | None = None, data_scale: float = 1.0, power_of_two: bool = False
) -> Weight:
    """Weights (O, ...) in ``bits`` bits, stored as int8, with a scale for each index of axis 0.

    Of few bits the scale is searched that makes the least squared error of its channel. A scale is large enough that
    ``bias`` (O), stored at ``data_scale`` times it, is far from the end of int32.
    """
    rows = reals.reshape(len(reals), -1).astype(np.float64)
    span = levels(bits)
    scales = np.abs(rows).max(axis=1, initial=0.0) / span[1]
    if bits < _EXACT_RANGE:
        scales = searched(rows, scales, span)
    scales = allowed_scales(scales, bias, data_scale, power_of_two)
    quant = Quant(tuple(map(float, scales)), (0,) * len(scales), 0)
    return Weight(np.clip(rounded(reals, quant, "int8"), *span).astype(np.int8), quant)


def allowed_scales(scales: Array, bias: Array | None, data_scale: float, power_of_two: bool = False) -> Array:
    """Scales (O) of weights as float32 has them, none too small for its bias; of zeros, one."""
    if bias is not None:
        scales = np.maximum(scales, least_scales(bias, data_scale))
    found = np.where(scales > 0, np.maximum(scales, SMALLEST), 1.0)
    return np.asarray(next_powers(found) if power_of_two else found, np.float32)


def least_scales(bias: Array, data_scale: float) -> Array:
    """The scales from which on biases stored at ``data_scale`` times them are far from the end of int32."""
    return np.asarray(np.abs(bias.astype(np.float64)) / (data_scale * _LARGEST_BIAS))


def quantised_constant(reals: Array, power_of_two: bool = False) -> Weight:
    """A constant operand in 8 bits with one scale, symmetric: a single number is exact, unless that is a power of two."""
    top = float(np.abs(reals).max(initial=0.0))
    scale = float(np.float32(max(top / levels(8)[1], SMALLEST))) if top > 0 else 1.0
    quant = Quant((float(next_powers(np.array(scale))) if power_of_two else scale,), (0,))
    return Weight(rounded(reals, quant, "int8"), quant)


def like(reals: Array, how: Activation) -> Weight:
    """A constant stored as an activation is."""
    return Weight(rounded(reals, how.quant, how.dtype), how.quant)


def searched(rows: Array, scales: Array, span: Span) -> Array:
    """For each row the scale, of those that shrink its own, of the least squared error."""
    best, least = scales, np.full(len(rows), np.inf)
    for shrink in _SHRINK:
        tried = scales * shrink
        steps = np.where(tried > 0, tried, 1.0)[:, np.newaxis]
        error = np.square(np.clip(np.rint(rows / steps), *span) * steps - rows).sum(axis=1)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best
