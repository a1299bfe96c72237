# SPDX-License-Identifier: Apache-2.0
"""Quantise arrays: affine activations, symmetric weights for each channel or block, and three ways to round weights."""

from __future__ import annotations

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Node, Quant
from microc.tir.bit_fields import BLOCKS, FEW, MOST

# ---- Quantisation scheme: affine for activations, symmetric for weights:
#
# real = scale * (q - zero_point), as in TFLite's and ONNX's specifications
# (https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec).

WIDE = "int16"
"""Wide dtype of activations, for values that a loop carries between iterations and for operators with 16 bits."""
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Smallest permitted scale: the smallest normal float32."""
Span = tuple[int, int]
"""Smallest and largest integer (level) of a quantised weight."""


@frozen
class Activation:
    """Storage format of an activation: its ``dtype`` (int8, uint8 or int16) and its per-tensor quantisation."""

    dtype: str
    quant: Quant

    @property
    def scale(self) -> float:
        return self.quant.scale[0]

    @property
    def zero_point(self) -> int:
        return self.quant.zero_point[0]


@frozen
class Weight:
    """A quantised constant: its integers, and their quantisation with a single scale or with a scale for each index of
    axis 0."""

    data: Array
    quant: Quant

    @property
    def real(self) -> Array:
        """The dequantised real numbers of the constant."""
        scales, zeros = np.array(self.quant.scale, np.float64), np.array(self.quant.zero_point, np.float64)
        shape = (-1, *(1,) * (self.data.ndim - 1)) if self.quant.axis == 0 else ()
        return np.asarray((self.data - zeros.reshape(shape)) * scales.reshape(shape))


def activation_for_range(low: float, high: float, dtype: str, power_of_two: bool = False) -> Activation:
    """Return the affine quantisation of an activation for real numbers from ``low`` to ``high``.

    The range is extended to contain zero, which is represented exactly. int16 is symmetric, because kernels for it have
    no zero point. ``power_of_two``: True if the scale is rounded up to a power of two."""
    least, most = dtypes.int_range(dtype)
    low, high = min(low, 0.0), max(high, 0.0)
    if dtype == "int16":
        scale = _round_scale(max(-low, high) / most, power_of_two)
        return Activation(dtype, Quant((scale,), (0,)))
    scale = _round_scale((high - low) / (most - least), power_of_two)
    zero = int(np.clip(np.rint(least - low / scale), least, most))
    return Activation(dtype, Quant((scale,), (zero,)))


def _round_scale(scale: float, power_of_two: bool) -> float:
    """Round a scale to float32, or up to a power of two. A scale of 0, that of a tensor of zeros, becomes 1."""
    if not scale > 0:
        return 1.0
    scale = max(scale, SMALLEST_SCALE)
    return float(np.float32(2.0 ** np.ceil(np.log2(scale)) if power_of_two else scale))


def round_up_to_powers_of_two(scales: Array) -> Array:
    """Round positive scales up to powers of two."""
    return np.asarray(np.exp2(np.ceil(np.log2(scales))))


def level_span_of_weights(bits: int) -> Span:
    """Return the smallest and the largest integer (level) of a weight with ``bits`` bits.

    They are symmetric, except that weights of 2 bits use all four levels, -2 to 1. The fourth level lowers the error of
    normally distributed weights by 1 dB; with 4 bits an additional level would lower it by 0.4 dB."""
    most = (1 << (bits - 1)) - 1
    return (-2, 1) if bits == 2 else (-most, most)


def quantise_array(reals: Array, quant: Quant, dtype: str) -> Array:
    """Quantise ``reals`` to the nearest integers, ties to even, saturated."""
    low, high = dtypes.int_range(dtype)
    shape = (-1, *(1,) * (reals.ndim - 1)) if quant.axis == 0 else ()
    scales = np.array(quant.scale, np.float64).reshape(shape)
    zeros = np.array(quant.zero_point, np.float64).reshape(scales.shape)
    steps = np.rint(np.asarray(reals, np.float64) / scales) + zeros
    return np.asarray(np.clip(steps, low, high), dtypes.to_numpy(dtype))


def fake_quantise(reals: Array, storage: Activation) -> Array:
    """Quantise ``reals`` with the dtype and quantisation of ``storage``, and dequantise the integers again."""
    low, high = dtypes.int_range(storage.dtype)
    steps = np.clip(np.rint(reals / storage.scale) + storage.zero_point, low, high)
    return np.asarray((steps - storage.zero_point) * storage.scale)


# ---- First way to round weights: each weight to the nearest level, with a scale for each output channel.

_LARGEST_BIAS = 1 << 30
"""Maximum magnitude of an int32 bias. It leaves half of int32's range for the sum of products."""
_SCALE_FRACTIONS = np.linspace(1.0, 0.2, 41)
"""Factors of a channel's full-range scale (at which its largest weight does not saturate) that are tried."""
_MIN_FULL_RANGE_BITS = 8
"""Minimum number of bits for which the largest weight of a channel determines the scale of the channel. With fewer
bits, smaller scales are tried too."""


def quantise_weights(
    reals: Array, bits: int, bias: Array | None = None, data_scale: float = 1.0, power_of_two: bool = False
) -> Weight:
    """Quantise weights (O, ...) to ``bits`` bits, with a scale for each of the O output channels. They are stored as
    int8.

    Below 8 bits, the scale of each channel is the one with the least squared error. ``bias`` (O) is stored as int32
    with the scale of its channel times ``data_scale``. Scales are at least so large that the bias is far from the
    limits of int32."""
    rows = reals.reshape(len(reals), -1).astype(np.float64)
    span = level_span_of_weights(bits)
    scales = np.abs(rows).max(axis=1, initial=0.0) / span[1]
    if bits < _MIN_FULL_RANGE_BITS:
        scales = search_row_scales(rows, scales, span)
    scales = round_scales_for_biases(scales, bias, data_scale, power_of_two)
    quant = Quant(tuple(map(float, scales)), (0,) * len(scales), 0)
    return Weight(np.clip(quantise_array(reals, quant, "int8"), *span).astype(np.int8), quant)


def round_scales_for_biases(scales: Array, bias: Array | None, data_scale: float, power_of_two: bool = False) -> Array:
    """Round scales of weights (O) to float32. Scales that are too small for the channel's bias are raised, and 0
    becomes 1."""
    if bias is not None:
        scales = np.maximum(scales, min_scales_for_biases(bias, data_scale))
    positive = np.where(scales > 0, np.maximum(scales, SMALLEST_SCALE), 1.0)
    return np.asarray(round_up_to_powers_of_two(positive) if power_of_two else positive, np.float32)


def min_scales_for_biases(biases: Array, data_scale: float) -> Array:
    """Return the smallest scales of weights (O) for which the biases (O) are far from the limits of int32.

    A bias is stored with the scale of its weights times ``data_scale``."""
    return np.asarray(np.abs(biases.astype(np.float64)) / (data_scale * _LARGEST_BIAS))


def quantise_constant(reals: Array, power_of_two: bool = False) -> Weight:
    """Quantise a constant operand to 8 bits with a single scale, symmetrically.

    A constant with a single element is represented exactly, unless the scale must be a power of two."""
    top = float(np.abs(reals).max(initial=0.0))
    scale = float(np.float32(max(top / level_span_of_weights(8)[1], SMALLEST_SCALE))) if top > 0 else 1.0
    quant = Quant((float(round_up_to_powers_of_two(np.array(scale))) if power_of_two else scale,), (0,))
    return Weight(quantise_array(reals, quant, "int8"), quant)


def quantise_like(reals: Array, storage: Activation) -> Weight:
    """Quantise a constant with the dtype and quantisation of an activation."""
    return Weight(quantise_array(reals, storage.quant, storage.dtype), storage.quant)


def search_row_scales(rows: Array, scales: Array, span: Span) -> Array:
    """Return for each row of weights the scale with the least squared error, among fractions of its scale in
    ``scales``."""
    best, least = scales, np.full(len(rows), np.inf)
    for shrink in _SCALE_FRACTIONS:
        tried = scales * shrink
        steps = np.where(tried > 0, tried, 1.0)[:, np.newaxis]
        error = np.square(np.clip(np.rint(rows / steps), *span) * steps - rows).sum(axis=1)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best


# ---- Second way to round weights, for few bits: each block of inputs has a multiplier from 1 to 15 beside its channel's scale.
#
# A weight is scale * multiplier * level. The scale of a block is therefore a multiple of its channel's scale, and needs only half
# a byte or a byte of flash for 16 to 64 weights. In the graph the weights are stored as multiplier * level in int8
# (docs/quantisation.md, "Packed weights").

NONE = 0
SIZES = (NONE, *sorted(BLOCKS))
"""Permitted block sizes: numbers of inputs that share a multiplier."""
_LARGEST_MULTIPLIERS = range(MOST, MOST // 2, -1)
"""Multipliers that are tried for the block of a channel that needs the largest scale."""


def usable_block_size(node: Node, weights: Array, block: int) -> int:
    """Return the block size for a layer's weights: ``block``, or NONE if blocks would not consist of neighbouring
    inputs.

    Transposed convolutions order their kernel positions by phases of the stride. Their blocks consist of neighbouring
    inputs only if the number of channels is a multiple of the block size."""
    is_split = node.op == "conv2d_transpose" and block != NONE and weights.shape[-1] % block
    return NONE if is_split else block


def quantise_in_blocks(
    reals: Array, bits: int, block: int, bias: Array | None = None, data_scale: float = 1.0, power_of_two: bool = False
) -> Weight:
    """Quantise weights (O, ...) to ``bits`` bits, with a multiplier for each block of ``block`` inputs.

    :func:`quantise_weights` is used instead if all inputs would be in one block, or if the number of bits has no
    multipliers."""
    rows = reals.reshape(len(reals), -1).astype(np.float64)
    if not has_block_multipliers(rows, bits, block):
        return quantise_weights(reals, bits, bias, data_scale, power_of_two)
    span = level_span_of_weights(bits)
    scales = round_scales_for_biases(search_channel_scales(rows, span, block), bias, data_scale, power_of_two)
    factors = choose_block_multipliers(rows, scales, span, block)
    numbers = np.clip(np.rint(rows / (scales[:, None] * factors)), *span) * factors
    quant = Quant(tuple(map(float, scales)), (0,) * len(scales), 0)
    return Weight(numbers.reshape(reals.shape).astype(np.int8), quant)


def search_channel_scales(rows: Array, span: Span, block: int) -> Array:
    """Return a scale for each channel's row of weights, rows (O, K), with the least squared error.

    Scales are tried for which the block that needs the largest scale has one of the multipliers
    ``_LARGEST_MULTIPLIERS``."""
    wanted = _search_block_scales(rows, span, block)
    top = wanted.max(axis=1, initial=0.0)
    best: Array = top / MOST
    least = np.full(len(rows), np.inf)
    for multiplier in _LARGEST_MULTIPLIERS:
        scales = top / multiplier
        near = np.clip(np.rint(wanted / _replace_zero_scales(scales)[:, None]), 1, MOST)
        error = squared_error(rows, scales[:, None] * _repeat_for_weights_of_blocks(near, rows, block), span)
        best, least = np.where(error < least, scales, best), np.minimum(error, least)
    return best


def choose_block_multipliers(rows: Array, scales: Array, span: Span, block: int) -> Array:
    """Return for each weight (O, K) the multiplier of its block: the one with the least squared error.

    ``scales`` (O): the scales of the channels."""
    parts = _split_into_blocks(rows, block)
    best: Array = np.ones(parts.shape[:2])
    least = np.full(parts.shape[:2], np.inf)
    for multiplier in range(1, MOST + 1):
        error = squared_error(parts, (multiplier * scales)[:, None, None], span)
        best, least = np.where(error < least, multiplier, best), np.minimum(error, least)
    return _repeat_for_weights_of_blocks(best, rows, block)


def has_block_multipliers(rows: Array, bits: int, block: int) -> bool:
    """Test whether rows of weights (O, K) with ``bits`` bits consist of several blocks with multipliers."""
    return block != NONE and bits in FEW and rows.shape[1] > block


def squared_error(reals: Array, step_sizes: Array, span: Span) -> Array:
    """Return the squared error of rounding ``reals`` to the nearest levels, summed along the last axis.

    ``step_sizes``: the real difference of neighbouring levels. ``span``: the smallest and the largest level."""
    step_sizes = _replace_zero_scales(step_sizes)
    error: Array = np.square(np.clip(np.rint(reals / step_sizes), *span) * step_sizes - reals).sum(axis=-1)
    return error


def _search_block_scales(rows: Array, span: Span, block: int) -> Array:
    """Return for every block of weights the scale with the least squared error, as an array (O, blocks)."""
    parts = _split_into_blocks(rows, block)
    flat = parts.reshape(-1, block)
    return search_row_scales(flat, np.abs(flat).max(axis=1, initial=0.0) / span[1], span).reshape(parts.shape[:2])


def _split_into_blocks(rows: Array, block: int) -> Array:
    """Split rows of weights (O, K) into blocks (O, blocks, block). The last block is padded with zeros."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % block))).reshape(len(rows), -1, block)


def _repeat_for_weights_of_blocks(by_block: Array, rows: Array, block: int) -> Array:
    """Return for each weight (O, K) the number that ``by_block`` (O, blocks) contains for its block."""
    return np.asarray(np.repeat(by_block, block, axis=1)[:, : rows.shape[1]])


def _replace_zero_scales(scales: Array) -> Array:
    """Return scales with every 0 replaced by 1, so that they can be divisors."""
    return np.where(scales > 0, scales, 1.0)


# ---- Third way to round weights: for the least error of the layer's outputs (GPTQ), instead of each weight to its nearest level.
#
# The data that weights are multiplied by are called factors. The squared error of a sum of products is (w - q) H (w - q)', where
# H are the second moments of the factors. Weights are rounded one after the other, and the weights that are not rounded yet
# are changed to compensate the error of each (GPTQ: Frantar et al., 2022, after "Optimal Brain Surgeon", Hassibi et al., 1993).
# Then single levels are changed while this lowers the error, and the scale is fitted to the levels. The factors are those of the
# quantised network, and w, the real weights, are first fitted to them by least squares.

_LEAST_SHARE = 1e-3
"""Smallest weight of the matrix for uncorrelated factors in second moments that are shrunk towards it."""
_TRIED_SCALE_FACTORS = np.linspace(0.7, 1.2, 6)
"""Factors that the best scale for rounding to nearest is multiplied by, to try other scales."""
_SWEEPS = 3
"""Number of passes of coordinate descent over all weights."""
_COMPENSATED_COLUMNS = 64
"""Number of columns of weights whose rounding errors are applied to later columns in one matrix product."""


def shrink_moments(second_moments: Array, cross_moments: Array, row_count: float) -> tuple[Array, Array]:
    """Shrink the second moments (groups, K, K) of factors, and cross moments, towards the moments of uncorrelated
    factors.

    ``second_moments``: second moments on ``row_count`` independent rows. ``cross_moments``: cross moments of real by
    stored factors. The results estimate the moments on all data ("Shrinkage Algorithms for MMSE Covariance Estimation",
    Chen et al., 2010, OAS). The shrunk second moments are invertible, so that weights of factors that never occurred
    together do not affect each other."""
    depth = second_moments.shape[-1]
    trace, power = np.trace(second_moments, axis1=-2, axis2=-1), np.square(second_moments).sum(axis=(-2, -1))
    denominator = (row_count + 1 - 2 / depth) * (power - trace**2 / depth)
    numerator = (1 - 2 / depth) * power + trace**2
    share = np.divide(numerator, denominator, out=np.ones_like(denominator), where=denominator > numerator)
    share = np.maximum(share, _LEAST_SHARE)[:, None, None]
    uncorrelated = share * np.where(trace > 0, trace / depth, 1.0)[:, None, None] * np.eye(depth)
    return (1 - share) * second_moments + uncorrelated, (1 - share) * cross_moments + uncorrelated


def compensate_for_data_quantisation(weights: Array, second_moments: Array, cross_moments: Array) -> Array:
    """Return real weights that compensate for the quantisation of the data that they are multiplied by.

    Multiplied by the stored (quantised) factors, the new weights (groups, outputs, K) approximate the products of
    ``weights`` and the real factors, by least squares. ``second_moments``: second moments of stored factors.
    ``cross_moments``: cross moments of real by stored factors."""
    return np.asarray(np.linalg.solve(second_moments, (weights @ cross_moments).swapaxes(1, 2)).swapaxes(1, 2))


def round_weights_for_output(
    real_weights: Array,
    second_moments: Array,
    min_scales: Array,
    bits: int,
    block: int = NONE,
    power_of_two: bool = False,
) -> Weight:
    """Quantise weights ``real_weights`` (groups, outputs, K) to ``bits`` bits with the least error of the layer's
    outputs.

    ``second_moments`` (groups, K, K): invertible second moments of the data that the weights are multiplied by.
    ``min_scales``: the smallest scale of each output that its bias permits. ``block``: number of inputs that share a
    multiplier. The result has the shape (all outputs, K) and a scale for each output."""
    groups, outputs, depth = real_weights.shape
    span = level_span_of_weights(bits)
    rows = real_weights.reshape(-1, depth)
    factors = np.broadcast_to(1.0, real_weights.shape)
    if has_block_multipliers(rows, bits, block):
        nearest = search_channel_scales(rows, span, block)
        factors = choose_block_multipliers(rows, nearest, span, block).reshape(real_weights.shape)
    else:
        nearest = search_row_scales(rows, np.abs(rows).max(axis=1, initial=0.0) / span[1], span)
    min_scales = np.maximum(min_scales, SMALLEST_SCALE)
    scales = np.maximum(_TRIED_SCALE_FACTORS[:, None] * np.where(nearest > 0, nearest, 1.0), min_scales)
    if power_of_two:
        scales = round_up_to_powers_of_two(scales)
    tried = np.moveaxis(scales.reshape(len(_TRIED_SCALE_FACTORS), groups, outputs), 0, 1).reshape(groups, -1)
    tried_factors = np.tile(factors, (1, len(_TRIED_SCALE_FACTORS), 1))
    # Weights are rounded with all trial scales in one call: the trials are stacked along the axis of outputs.
    q = _round_with_compensation(
        np.tile(real_weights, (1, len(_TRIED_SCALE_FACTORS), 1)),
        tried,
        second_moments,
        _AllowedIntegers(tried_factors, span),
    )
    trials_shape = (groups, len(_TRIED_SCALE_FACTORS), outputs)
    error = _output_error_by_row(
        q * tried[..., None] - np.tile(real_weights, (1, len(_TRIED_SCALE_FACTORS), 1)), second_moments
    ).reshape(trials_shape)
    best = error.argmin(axis=1)[:, None]
    scale = np.take_along_axis(tried.reshape(trials_shape), best, axis=1)[:, 0]
    q = np.take_along_axis(q.reshape(*trials_shape, depth), best[..., None], axis=1)[:, 0]
    for _ in range(_SWEEPS):
        q = _improve_rounded_weights(q, scale, real_weights, second_moments, _AllowedIntegers(factors, span))
        if not power_of_two:
            scale = np.maximum(_best_scale(q, scale, real_weights, second_moments), min_scales.reshape(scale.shape))
    stored = scale.reshape(-1).astype(np.float32)
    quant = Quant(tuple(map(float, stored)), (0,) * stored.size, 0)
    return Weight(q.reshape(-1, depth).astype(np.int8), quant)


@frozen
class _AllowedIntegers:
    """The integers that stored weights may have: levels within ``level_span``, times the multipliers ``multipliers``
    (groups, rows, K)."""

    multipliers: Array
    level_span: Span

    def find_nearest(self, numbers: Array, column: int) -> Array:
        """Return the allowed integers nearest to ``numbers`` (groups, rows): weights of a column, divided by their
        scale."""
        factors = self.multipliers[..., column]
        return np.asarray(np.clip(np.rint(numbers / factors), *self.level_span) * factors)


def _round_with_compensation(
    real_weights: Array, scales: Array, second_moments: Array, allowed: _AllowedIntegers
) -> Array:
    """Round weights column by column, and compensate the error of each column in the later columns (GPTQ).

    Return the integers, which are among those of ``allowed``."""
    # Row k of the upper Cholesky factor of inv(H) contains the optimal correction of columns k.. for an error in column k.
    # The columns after a block are corrected once for the whole block, by one matrix product.
    upper = np.linalg.cholesky(np.linalg.inv(second_moments)).swapaxes(-1, -2)
    left, q = real_weights.copy(), np.empty_like(real_weights)
    for start in range(0, real_weights.shape[-1], _COMPENSATED_COLUMNS):
        end = min(start + _COMPENSATED_COLUMNS, real_weights.shape[-1])
        errors = np.empty((*real_weights.shape[:2], end - start))
        for k in range(start, end):
            q[..., k] = allowed.find_nearest(left[..., k] / scales, k)
            errors[..., k - start] = (left[..., k] - q[..., k] * scales) / upper[:, k, k, None]
            left[..., k:end] -= errors[..., k - start, None] * upper[:, None, k, k:end]
        left[..., end:] -= errors @ upper[:, start:end, end:]
    return q


def _improve_rounded_weights(
    rounded: Array, scale: Array, real_weights: Array, second_moments: Array, allowed: _AllowedIntegers
) -> Array:
    """Return rounded weights with a lower output error, by one pass of coordinate descent.

    Each rounded weight in turn is set to the allowed integer that is best while all others stay as they are."""
    rounded = rounded.copy()
    slope = (rounded * scale[..., None] - real_weights) @ second_moments
    for k in range(rounded.shape[-1]):
        better = allowed.find_nearest(rounded[..., k] - slope[..., k] / (second_moments[:, k, k, None] * scale), k)
        change = (better - rounded[..., k]) * scale
        changed_rows = np.flatnonzero(change.any(axis=0))
        slope[:, changed_rows] += change[:, changed_rows, None] * second_moments[:, None, k]
        rounded[..., k] = better
    return rounded


def _best_scale(rounded: Array, scale: Array, real_weights: Array, second_moments: Array) -> Array:
    """Return the scale of each output for which rounded weights have the least output error.

    It is the projection of the real weights onto the rounded ones. Where the projection is not positive, ``scale``
    stays."""
    qh = rounded @ second_moments
    square = (qh * rounded).sum(axis=-1)
    projection = (qh * real_weights).sum(axis=-1) / np.where(square > 0, square, 1.0)
    return np.asarray(np.where((square > 0) & (projection > 0), projection, scale))


def _output_error_by_row(weight_errors: Array, second_moments: Array) -> Array:
    """Return the mean squared output error (groups, rows) that each row of weight errors causes.

    ``weight_errors``: quantised less real weights. It is the squared norm of a row with respect to
    ``second_moments``."""
    return np.asarray(((weight_errors @ second_moments) * weight_errors).sum(axis=-1))
