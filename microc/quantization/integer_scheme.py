"""Quantisation scheme: affine activations, symmetric weights by channel or block, and three ways to round weights."""

from __future__ import annotations

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Node, Quant
from microc.tir.bit_fields import BLOCKS, FEW, MOST

# ---- Quantisation scheme: affine for activations, symmetric for weights.
#
# real = scale * (q - zero_point), as in TFLite's and ONNX's specifications
# (https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec).

WIDE = "int16"
"""Dtype of values that a loop carries between iterations."""
SMALLEST = float(np.finfo(np.float32).tiny)
"""Least scale: the least normal float32."""
Span = tuple[int, int]
"""Least and largest level."""


@frozen
class Activation:
    """Storage of an activation: ``dtype`` (int8, uint8, int16) and its per-tensor quantisation."""

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
    """Storage of a constant: integers and their quantisation (one scale, or one per index of axis 0)."""

    data: Array
    quant: Quant

    @property
    def real(self) -> Array:
        """Dequantised numbers."""
        scales, zeros = np.array(self.quant.scale, np.float64), np.array(self.quant.zero_point, np.float64)
        shape = (-1, *(1,) * (self.data.ndim - 1)) if self.quant.axis == 0 else ()
        return np.asarray((self.data - zeros.reshape(shape)) * scales.reshape(shape))


def activation_for_range(low: float, high: float, dtype: str, power_of_two: bool = False) -> Activation:
    """Return the affine quantisation of real numbers from ``low`` to ``high``, extended to zero, which is exact.

    int16 is symmetric: its kernels add no zero point. ``power_of_two``: the scale is rounded up to a power of two.
    """
    least, most = dtypes.int_range(dtype)
    low, high = min(low, 0.0), max(high, 0.0)
    if dtype == "int16":
        scale = _round_scale(max(-low, high) / most, power_of_two)
        return Activation(dtype, Quant((scale,), (0,)))
    scale = _round_scale((high - low) / (most - least), power_of_two)
    zero = int(np.clip(np.rint(least - low / scale), least, most))
    return Activation(dtype, Quant((scale,), (zero,)))


def _round_scale(scale: float, power_of_two: bool) -> float:
    """Round a scale to float32, or up to a power of two; a tensor of zeros gets 1."""
    if not scale > 0:
        return 1.0
    scale = max(scale, SMALLEST)
    return float(np.float32(2.0 ** np.ceil(np.log2(scale)) if power_of_two else scale))


def round_up_to_powers_of_two(scales: Array) -> Array:
    """Round positive scales up to powers of two."""
    return np.asarray(np.exp2(np.ceil(np.log2(scales))))


def weight_levels(bits: int) -> Span:
    """Return the least and largest level of a weight of so many bits.

    They are symmetric, except that 2 bits keep all four levels: that lowers the error of normally distributed weights by 1 dB
    (with 4 bits by 0.4 dB).
    """
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


def dequantise_array(stored: Array, quant: Quant) -> Array:
    """Dequantise integers of one scale."""
    return np.asarray((stored.astype(np.float64) - quant.zero_point[0]) * quant.scale[0])


def fake_quantise(reals: Array, storage: Activation) -> Array:
    """Quantise ``reals`` to integers of the ``storage`` and dequantise them again."""
    low, high = dtypes.int_range(storage.dtype)
    steps = np.clip(np.rint(reals / storage.scale) + storage.zero_point, low, high)
    return np.asarray((steps - storage.zero_point) * storage.scale)


# ---- Rounding of weights to nearest, symmetric, with a scale for each output channel.

_LARGEST_BIAS = 1 << 30
"""Limit of an int32 bias, which leaves half of the range to the sum."""
_SHRINK = np.linspace(1.0, 0.2, 41)
"""Factors of the full-range scale that are tried."""
_EXACT_RANGE = 8
"""Bits from which the largest weight of a channel determines its scale."""


def quantise_weights(
    reals: Array, bits: int, bias: Array | None = None, data_scale: float = 1.0, power_of_two: bool = False
) -> Weight:
    """Quantise weights (O, ...) to ``bits`` bits, stored as int8, with a scale for each index of axis 0.

    For few bits the scale with the least squared error of its channel is searched. A scale is large enough that ``bias`` (O),
    stored at ``data_scale`` times it, is far from the limits of int32.
    """
    rows = reals.reshape(len(reals), -1).astype(np.float64)
    span = weight_levels(bits)
    scales = np.abs(rows).max(axis=1, initial=0.0) / span[1]
    if bits < _EXACT_RANGE:
        scales = search_scales(rows, scales, span)
    scales = allowed_scales(scales, bias, data_scale, power_of_two)
    quant = Quant(tuple(map(float, scales)), (0,) * len(scales), 0)
    return Weight(np.clip(quantise_array(reals, quant, "int8"), *span).astype(np.int8), quant)


def allowed_scales(scales: Array, bias: Array | None, data_scale: float, power_of_two: bool = False) -> Array:
    """Round weight scales (O) to float32, and raise those that are too small for their bias; zeros become 1."""
    if bias is not None:
        scales = np.maximum(scales, least_scales(bias, data_scale))
    positive = np.where(scales > 0, np.maximum(scales, SMALLEST), 1.0)
    return np.asarray(round_up_to_powers_of_two(positive) if power_of_two else positive, np.float32)


def least_scales(bias: Array, data_scale: float) -> Array:
    """Return the least scales for which biases, stored at ``data_scale`` times them, are far from the limits of int32."""
    return np.asarray(np.abs(bias.astype(np.float64)) / (data_scale * _LARGEST_BIAS))


def quantise_constant(reals: Array, power_of_two: bool = False) -> Weight:
    """Quantise a constant operand to 8 bits with one symmetric scale. A single number is exact, unless scales are powers of
    two."""
    top = float(np.abs(reals).max(initial=0.0))
    scale = float(np.float32(max(top / weight_levels(8)[1], SMALLEST))) if top > 0 else 1.0
    quant = Quant((float(round_up_to_powers_of_two(np.array(scale))) if power_of_two else scale,), (0,))
    return Weight(quantise_array(reals, quant, "int8"), quant)


def quantise_like(reals: Array, storage: Activation) -> Weight:
    """Quantise a constant with the dtype and quantisation of an activation."""
    return Weight(quantise_array(reals, storage.quant, storage.dtype), storage.quant)


def search_scales(rows: Array, scales: Array, span: Span) -> Array:
    """Search for each row the scale of least squared error among fractions of ``scales``."""
    best, least = scales, np.full(len(rows), np.inf)
    for shrink in _SHRINK:
        tried = scales * shrink
        steps = np.where(tried > 0, tried, 1.0)[:, np.newaxis]
        error = np.square(np.clip(np.rint(rows / steps), *span) * steps - rows).sum(axis=1)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best


# ---- Weights of few bits in blocks of inputs, each with a multiplier from 1 to 15 beside the scale of its channel.
#
# A weight is scale * multiplier * level. So the scale of a block is a multiple of its channel's, and takes half a byte or a
# byte of flash for 16 to 64 weights. In the graph the numbers are multiplier * level as int8 (docs/quantisation.md, "Packed
# weights").

NONE = 0
SIZES = (NONE, *sorted(BLOCKS))
"""Numbers of inputs that may share a multiplier."""
_TOPS = range(MOST, MOST // 2, -1)
"""Multipliers that are tried for the block with the largest scale of a channel."""


def usable_block_size(node: Node, weights: Array, block: int) -> int:
    """Return the block size for a layer's weights: ``block``, or NONE if a block would not hold neighbouring inputs.

    That is so in transposed convolutions, which order taps by phases, unless the channels are a multiple of the block."""
    is_split = node.op == "conv2d_transpose" and block != NONE and weights.shape[-1] % block
    return NONE if is_split else block


def quantise_in_blocks(
    reals: Array, bits: int, block: int, bias: Array | None = None, data_scale: float = 1.0, power_of_two: bool = False
) -> Weight:
    """Quantise weights (O, ...) to ``bits`` bits times multipliers of blocks.

    Falls back to :func:`quantise_weights` if all inputs are one block, or if 8 bits leave no room for multipliers.
    """
    rows = reals.reshape(len(reals), -1).astype(np.float64)
    if not has_block_multipliers(rows, bits, block):
        return quantise_weights(reals, bits, bias, data_scale, power_of_two)
    span = weight_levels(bits)
    scales = allowed_scales(channel_scales(rows, span, block), bias, data_scale, power_of_two)
    factors = block_multipliers(rows, scales, span, block)
    numbers = np.clip(np.rint(rows / (scales[:, None] * factors)), *span) * factors
    quant = Quant(tuple(map(float, scales)), (0,) * len(scales), 0)
    return Weight(numbers.reshape(reals.shape).astype(np.int8), quant)


def channel_scales(rows: Array, span: Span, block: int) -> Array:
    """Return scales (O) of rows (O, K) with the least squared error, among those that give the largest block one of
    ``_TOPS``."""
    wanted = _block_scales(rows, span, block)
    top = wanted.max(axis=1, initial=0.0)
    best: Array = top / MOST
    least = np.full(len(rows), np.inf)
    for multiplier in _TOPS:
        scales = top / multiplier
        near = np.clip(np.rint(wanted / _replace_zero_scales(scales)[:, None]), 1, MOST)
        error = squared_error(rows, scales[:, None] * _repeat_in_blocks(near, rows, block), span)
        best, least = np.where(error < least, scales, best), np.minimum(error, least)
    return best


def block_multipliers(rows: Array, scales: Array, span: Span, block: int) -> Array:
    """Return for each weight (O, K) the multiplier of its block with the least squared error at the ``scales`` (O)."""
    parts = _split_into_blocks(rows, block)
    best: Array = np.ones(parts.shape[:2])
    least = np.full(parts.shape[:2], np.inf)
    for multiplier in range(1, MOST + 1):
        error = squared_error(parts, (multiplier * scales)[:, None, None], span)
        best, least = np.where(error < least, multiplier, best), np.minimum(error, least)
    return _repeat_in_blocks(best, rows, block)


def has_block_multipliers(rows: Array, bits: int, block: int) -> bool:
    """Test whether rows (O, K) of so many bits have several blocks with multipliers."""
    return block != NONE and bits in FEW and rows.shape[1] > block


def squared_error(reals: Array, step_sizes: Array, span: Span) -> Array:
    """Return the squared error of rounding ``reals`` to the nearest levels, summed along the last axis.

    ``step_sizes``: the real distance of two levels; ``span``: the least and the greatest level."""
    step_sizes = _replace_zero_scales(step_sizes)
    error: Array = np.square(np.clip(np.rint(reals / step_sizes), *span) * step_sizes - reals).sum(axis=-1)
    return error


def _block_scales(rows: Array, span: Span, block: int) -> Array:
    """Return the scale of least squared error of every block (O, blocks)."""
    parts = _split_into_blocks(rows, block)
    flat = parts.reshape(-1, block)
    return search_scales(flat, np.abs(flat).max(axis=1, initial=0.0) / span[1], span).reshape(parts.shape[:2])


def _split_into_blocks(rows: Array, block: int) -> Array:
    """Split rows (O, K) into blocks (O, blocks, block), padded with zeros."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % block))).reshape(len(rows), -1, block)


def _repeat_in_blocks(by_block: Array, rows: Array, block: int) -> Array:
    """Repeat the number of each block for its weights (O, K)."""
    return np.asarray(np.repeat(by_block, block, axis=1)[:, : rows.shape[1]])


def _replace_zero_scales(scales: Array) -> Array:
    """Return scales with 1 in place of zeros, to divide by."""
    return np.where(scales > 0, scales, 1.0)


# ---- Rounding of weights for the least error of their layer's outputs (GPTQ), instead of each to its nearest level.
#
# The squared error of a sum of products is (w - q) H (w - q)' with H the second moments of the factors. Weights are rounded one
# by one, and the remaining ones compensate the error of each (GPTQ: Frantar et al., 2022, after "Optimal Brain Surgeon",
# Hassibi et al., 1993). Then single levels are changed while the error falls, and the scale is fitted to the levels. The
# factors are those of the quantised network, and w is fitted to them by least squares.

_LEAST_SHARE = 1e-3
"""Least weight of the uncorrelated matrix in shrunk second moments."""
_TRIED = np.linspace(0.7, 1.2, 6)
"""Factors of the nearest-level scale that are tried."""
_SWEEPS = 3
"""Passes of coordinate descent over all levels."""
_BLOCK = 64
"""Columns whose errors are applied to later columns together."""


def shrink_moments(square: Array, cross: Array, count: float) -> tuple[Array, Array]:
    """Shrink second moments (groups, K, K) of ``count`` independent rows, and cross moments, towards those of uncorrelated
    factors.

    They estimate the moments of all data ("Shrinkage Algorithms for MMSE Covariance Estimation", Chen et al., 2010, OAS). The
    first has an inverse, so factors that never occurred together move no weight.
    """
    depth = square.shape[-1]
    trace, power = np.trace(square, axis1=-2, axis2=-1), np.square(square).sum(axis=(-2, -1))
    denominator = (count + 1 - 2 / depth) * (power - trace**2 / depth)
    numerator = (1 - 2 / depth) * power + trace**2
    share = np.divide(numerator, denominator, out=np.ones_like(denominator), where=denominator > numerator)
    share = np.maximum(share, _LEAST_SHARE)[:, None, None]
    uncorrelated = share * np.where(trace > 0, trace / depth, 1.0)[:, None, None] * np.eye(depth)
    return (1 - share) * square + uncorrelated, (1 - share) * cross + uncorrelated


def fit_to_stored_factors(weights: Array, square: Array, cross: Array) -> Array:
    """Return the weights (groups, outputs, K) that applied to stored factors come closest to ``weights`` applied to the real
    ones.

    Least squares, with second moments ``square`` of stored factors and cross moments ``cross`` of real by stored ones.
    """
    return np.asarray(np.linalg.solve(square, (weights @ cross).swapaxes(1, 2)).swapaxes(1, 2))


def round_weights_for_output(
    real_weights: Array,
    second_moments: Array,
    min_scales: Array,
    bits: int,
    block: int = NONE,
    power_of_two: bool = False,
) -> Weight:
    """Quantise weights ``real_weights`` (groups, outputs, K) to ``bits`` bits for the least output error.

    ``second_moments`` (groups, K, K): invertible second moments of their factors; ``min_scales``: the smallest scale of
    each output that its bias allows; ``block``: inputs that share a multiplier. The result is (all outputs, K) with a
    scale for each output."""
    groups, outputs, depth = real_weights.shape
    span = weight_levels(bits)
    rows = real_weights.reshape(-1, depth)
    factors = np.broadcast_to(1.0, real_weights.shape)
    if has_block_multipliers(rows, bits, block):
        nearest = channel_scales(rows, span, block)
        factors = block_multipliers(rows, nearest, span, block).reshape(real_weights.shape)
    else:
        nearest = search_scales(rows, np.abs(rows).max(axis=1, initial=0.0) / span[1], span)
    min_scales = np.maximum(min_scales, SMALLEST)
    scales = np.maximum(_TRIED[:, None] * np.where(nearest > 0, nearest, 1.0), min_scales)
    if power_of_two:
        scales = round_up_to_powers_of_two(scales)
    tried = np.moveaxis(scales.reshape(len(_TRIED), groups, outputs), 0, 1).reshape(groups, -1)
    tried_factors = np.tile(factors, (1, len(_TRIED), 1))
    # All trial scales are rounded in one call: they are stacked along the outputs.
    q = _round_with_compensation(
        np.tile(real_weights, (1, len(_TRIED), 1)), tried, second_moments, _AllowedNumbers(tried_factors, span)
    )
    trials_shape = (groups, len(_TRIED), outputs)
    error = _squared_norm(q * tried[..., None] - np.tile(real_weights, (1, len(_TRIED), 1)), second_moments).reshape(
        trials_shape
    )
    best = error.argmin(axis=1)[:, None]
    scale = np.take_along_axis(tried.reshape(trials_shape), best, axis=1)[:, 0]
    q = np.take_along_axis(q.reshape(*trials_shape, depth), best[..., None], axis=1)[:, 0]
    for _ in range(_SWEEPS):
        q = _improve_levels(q, scale, real_weights, second_moments, _AllowedNumbers(factors, span))
        if not power_of_two:
            scale = np.maximum(_best_scale(q, scale, real_weights, second_moments), min_scales.reshape(scale.shape))
    stored = scale.reshape(-1).astype(np.float32)
    quant = Quant(tuple(map(float, stored)), (0,) * stored.size, 0)
    return Weight(q.reshape(-1, depth).astype(np.int8), quant)


@frozen
class _AllowedNumbers:
    """The integers that weights may be: levels within ``span``, times ``factors`` (groups, rows, K)."""

    factors: Array
    span: Span

    def nearest(self, numbers: Array, column: int) -> Array:
        """Round ``numbers`` (groups, rows) of column ``column`` to the nearest integers that are allowed."""
        factors = self.factors[..., column]
        return np.asarray(np.clip(np.rint(numbers / factors), *self.span) * factors)


def _round_with_compensation(
    real_weights: Array, scales: Array, second_moments: Array, allowed: _AllowedNumbers
) -> Array:
    """Round weights column by column, and subtract the error of each from the columns behind it (GPTQ)."""
    # Row k of the upper Cholesky factor of inv(h) gives the optimal correction of columns k.. for an error in column k.
    # Corrections of columns beyond a block are applied once per block, as one matrix product.
    upper = np.linalg.cholesky(np.linalg.inv(second_moments)).swapaxes(-1, -2)
    left, q = real_weights.copy(), np.empty_like(real_weights)
    for start in range(0, real_weights.shape[-1], _BLOCK):
        end = min(start + _BLOCK, real_weights.shape[-1])
        errors = np.empty((*real_weights.shape[:2], end - start))
        for k in range(start, end):
            q[..., k] = allowed.nearest(left[..., k] / scales, k)
            errors[..., k - start] = (left[..., k] - q[..., k] * scales) / upper[:, k, k, None]
            left[..., k:end] -= errors[..., k - start, None] * upper[:, None, k, k:end]
        left[..., end:] -= errors @ upper[:, start:end, end:]
    return q


def _improve_levels(
    rounded: Array, scale: Array, real_weights: Array, second_moments: Array, allowed: _AllowedNumbers
) -> Array:
    """Set each rounded weight in order to the best one for the present others (coordinate descent)."""
    rounded = rounded.copy()
    slope = (rounded * scale[..., None] - real_weights) @ second_moments
    for k in range(rounded.shape[-1]):
        better = allowed.nearest(rounded[..., k] - slope[..., k] / (second_moments[:, k, k, None] * scale), k)
        change = (better - rounded[..., k]) * scale
        changed_rows = np.flatnonzero(change.any(axis=0))
        slope[:, changed_rows] += change[:, changed_rows, None] * second_moments[:, None, k]
        rounded[..., k] = better
    return rounded


def _best_scale(rounded: Array, scale: Array, real_weights: Array, second_moments: Array) -> Array:
    """Return the scale of least output error for given rounded weights: the real weights projected onto them."""
    qh = rounded @ second_moments
    square = (qh * rounded).sum(axis=-1)
    projection = (qh * real_weights).sum(axis=-1) / np.where(square > 0, square, 1.0)
    return np.asarray(np.where((square > 0) & (projection > 0), projection, scale))


def _squared_norm(difference: Array, second_moments: Array) -> Array:
    """Return the squared norm of every row (groups, rows) under ``second_moments``: the output error that it causes."""
    return np.asarray(((difference @ second_moments) * difference).sum(axis=-1))
