"""Which integers stand for reals, and weights rounded to them."""

from __future__ import annotations

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Node, Quant
from microc.tir.bit_fields import BLOCKS, FEW, MOST

# ---- What integers may stand for reals: affine scales of activations, symmetric ones of weights.
#
# real = scale * (q - zero_point), as in TFLite's and ONNX's specifications
# (https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec).

WIDE = "int16"
"""What a loop's turns hand on."""
SMALLEST = float(np.finfo(np.float32).tiny)
"""No scale is smaller: float32 has normal numbers from here on."""
Span = tuple[int, int]
"""The least and the largest level."""


@frozen
class Activation:
    """How an activation is stored: ``dtype`` (int8, uint8, int16) and its quantisation, of one scale."""

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
    """How a constant is stored: integers, and what they stand for (a scale, or one for each index of axis 0)."""

    data: Array
    quant: Quant

    @property
    def real(self) -> Array:
        """The reals that are stored."""
        scales, zeros = np.array(self.quant.scale, np.float64), np.array(self.quant.zero_point, np.float64)
        shape = (-1, *(1,) * (self.data.ndim - 1)) if self.quant.axis == 0 else ()
        return np.asarray((self.data - zeros.reshape(shape)) * scales.reshape(shape))


def activation(low: float, high: float, dtype: str, power_of_two: bool = False) -> Activation:
    """The affine quantisation of the reals from ``low`` to ``high``, and zero, which is exact.

    16 bits are symmetric: their kernels add no zero point. ``power_of_two``: the scale is the next power of two.
    """
    least, most = dtypes.int_range(dtype)
    low, high = min(low, 0.0), max(high, 0.0)
    if dtype == "int16":
        scale = _scale(max(-low, high) / most, power_of_two)
        return Activation(dtype, Quant((scale,), (0,)))
    scale = _scale((high - low) / (most - least), power_of_two)
    zero = int(np.clip(np.rint(least - low / scale), least, most))
    return Activation(dtype, Quant((scale,), (zero,)))


def _scale(real: float, power_of_two: bool) -> float:
    """A scale that float32 has; of a tensor that is zero throughout, one."""
    if not real > 0:
        return 1.0
    real = max(real, SMALLEST)
    return float(np.float32(2.0 ** np.ceil(np.log2(real)) if power_of_two else real))


def next_powers(scales: Array) -> Array:
    """The powers of two that are at least as large as positive scales."""
    return np.asarray(np.exp2(np.ceil(np.log2(scales))))


def levels(bits: int) -> Span:
    """The least and the largest level of a weight of so many bits. They are symmetric, but of the four levels of 2 bits none
    is given up: that lowers the error of normally distributed weights by 1 dB (of 4 bits by 0.4)."""
    most = (1 << (bits - 1)) - 1
    return (-2, 1) if bits == 2 else (-most, most)


def rounded(reals: Array, quant: Quant, dtype: str) -> Array:
    """``reals`` as the nearest stored integers, halves to even, saturated."""
    low, high = dtypes.int_range(dtype)
    shape = (-1, *(1,) * (reals.ndim - 1)) if quant.axis == 0 else ()
    scales = np.array(quant.scale, np.float64).reshape(shape)
    zeros = np.array(quant.zero_point, np.float64).reshape(scales.shape)
    steps = np.rint(np.asarray(reals, np.float64) / scales) + zeros
    return np.asarray(np.clip(steps, low, high), dtypes.to_numpy(dtype))


def dequantised(stored: Array, quant: Quant) -> Array:
    """The reals that integers of one scale stand for."""
    return np.asarray((stored.astype(np.float64) - quant.zero_point[0]) * quant.scale[0])


def faked(reals: Array, how: Activation) -> Array:
    """What remains of ``reals`` when they have been integers."""
    low, high = dtypes.int_range(how.dtype)
    steps = np.clip(np.rint(reals / how.scale) + how.zero_point, low, high)
    return np.asarray((steps - how.zero_point) * how.scale)


# ---- Weights as integers: symmetric, a scale for each output channel, the nearest levels.

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


# ---- Weights of few bits whose blocks of inputs have multipliers of their own, 1 to 15, beside the scale of their
# channel.
#
# A weight is scale * multiplier * level. The scale of a block is so a multiple of its channel's, in flash half a byte or a byte
# for 16 to 64 weights; in the graph the numbers are multiplier * level, of int8 (docs/quantisation.md, "Packed weights").

NONE = 0
SIZES = (NONE, *sorted(BLOCKS))
"""Inputs that share a multiplier."""
_TOPS = range(MOST, MOST // 2, -1)
"""Multipliers that the largest scale of a channel's blocks is tried to have."""


def block_of(node: Node, weights: Array, block: int) -> int:
    """``block``, or none where its inputs are no neighbours to kernels: transposed convolutions order taps by phases."""
    apart = node.op == "conv2d_transpose" and block != NONE and weights.shape[-1] % block
    return NONE if apart else block


def quantised_in_blocks(
    reals: Array, bits: int, block: int, bias: Array | None = None, data_scale: float = 1.0, power_of_two: bool = False
) -> Weight:
    """Weights (O, ...) in ``bits`` bits times multipliers of blocks, as :func:`quantised_weights` gives them without. As those do
    they come where all inputs are one block, or 8 bits leave no room for multipliers."""
    rows = reals.reshape(len(reals), -1).astype(np.float64)
    if not divided(rows, bits, block):
        return quantised_weights(reals, bits, bias, data_scale, power_of_two)
    span = levels(bits)
    scales = allowed_scales(channel_scales(rows, span, block), bias, data_scale, power_of_two)
    factors = multipliers(rows, scales, span, block)
    numbers = np.clip(np.rint(rows / (scales[:, None] * factors)), *span) * factors
    quant = Quant(tuple(map(float, scales)), (0,) * len(scales), 0)
    return Weight(numbers.reshape(reals.shape).astype(np.int8), quant)


def channel_scales(rows: Array, span: Span, block: int) -> Array:
    """Of rows (O, K) in levels of ``span`` the scales (O) of least squared error, of those whose largest block has one of some
    multipliers."""
    wanted = _block_scales(rows, span, block)
    top = wanted.max(axis=1, initial=0.0)
    best: Array = top / MOST
    least = np.full(len(rows), np.inf)
    for multiplier in _TOPS:
        scales = top / multiplier
        near = np.clip(np.rint(wanted / _positive(scales)[:, None]), 1, MOST)
        error = squared_error(rows, scales[:, None] * _spread(near, rows, block), span)
        best, least = np.where(error < least, scales, best), np.minimum(error, least)
    return best


def multipliers(rows: Array, scales: Array, span: Span, block: int) -> Array:
    """Of each weight (O, K) the multiplier of its block, of least squared error at the ``scales`` (O)."""
    parts = _parts(rows, block)
    best: Array = np.ones(parts.shape[:2])
    least = np.full(parts.shape[:2], np.inf)
    for multiplier in range(1, MOST + 1):
        error = squared_error(parts, (multiplier * scales)[:, None, None], span)
        best, least = np.where(error < least, multiplier, best), np.minimum(error, least)
    return _spread(best, rows, block)


def divided(rows: Array, bits: int, block: int) -> bool:
    """Whether rows (O, K) in so many bits have several blocks with multipliers."""
    return block != NONE and bits in FEW and rows.shape[1] > block


def squared_error(reals: Array, steps: Array, span: Span) -> Array:
    """Of the nearest levels, summed along the last axis."""
    steps = _positive(steps)
    found: Array = np.square(np.clip(np.rint(reals / steps), *span) * steps - reals).sum(axis=-1)
    return found


def _block_scales(rows: Array, span: Span, block: int) -> Array:
    """The scale of least squared error of every block (O, blocks)."""
    parts = _parts(rows, block)
    flat = parts.reshape(-1, block)
    return searched(flat, np.abs(flat).max(axis=1, initial=0.0) / span[1], span).reshape(parts.shape[:2])


def _parts(rows: Array, block: int) -> Array:
    """Rows (O, blocks, block), with zeros behind the last weight."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % block))).reshape(len(rows), -1, block)


def _spread(each: Array, rows: Array, block: int) -> Array:
    """What blocks have, for each of their weights."""
    return np.asarray(np.repeat(each, block, axis=1)[:, : rows.shape[1]])


def _positive(scales: Array) -> Array:
    return np.where(scales > 0, scales, 1.0)


# ---- Weights rounded for what their layer answers, not each to the nearest level.
#
# The squared error of a sum of products is (w - q) H (w - q)' with H the second moments of the factors. Weights are rounded one
# by one; those still to come make up for the error of each (GPTQ: Frantar et al., 2022, after "Optimal Brain Surgeon",
# Hassibi et al., 1993). Then single levels move as long as the error falls, and the scale is the best for the levels. The factors
# are those that the quantised network has, and w what suits them best.

_LEAST_SHARE = 1e-3
"""Of factors that do not hang together, in second moments."""
_TRIED = np.linspace(0.7, 1.2, 6)
_SWEEPS = 3
_BLOCK = 64


def shrunk(square: Array, cross: Array, count: float) -> tuple[Array, Array]:
    """Second moments (groups, K, K) of ``count`` independent rows, and those by other rows, as they are to be expected of all:
    nearer to those of factors that do not hang together ("Shrinkage Algorithms for MMSE Covariance Estimation", Chen et al.,
    2010, OAS). The first have an inverse: what was never seen together is no reason to move a weight."""
    depth = square.shape[-1]
    trace, power = np.trace(square, axis1=-2, axis2=-1), np.square(square).sum(axis=(-2, -1))
    apart = (count + 1 - 2 / depth) * (power - trace**2 / depth)
    wanted = (1 - 2 / depth) * power + trace**2
    share = np.divide(wanted, apart, out=np.ones_like(apart), where=apart > wanted)
    share = np.maximum(share, _LEAST_SHARE)[:, None, None]
    alike = share * np.where(trace > 0, trace / depth, 1.0)[:, None, None] * np.eye(depth)
    return (1 - share) * square + alike, (1 - share) * cross + alike


def for_stored(weights: Array, square: Array, cross: Array) -> Array:
    """The weights (groups, outputs, K) that answer to stored factors as ``weights`` do to the real ones, by least squares: with
    second moments ``square`` of the stored ones, ``cross`` of real by stored ones."""
    return np.asarray(np.linalg.solve(square, (weights @ cross).swapaxes(1, 2)).swapaxes(1, 2))


def weights_by_answer(
    wanted: Array, h: Array, least: Array, bits: int, block: int = NONE, power_of_two: bool = False
) -> Weight:
    """Weights ``wanted`` (groups, outputs, K) in ``bits`` bits, whose factors have second moments ``h`` (groups, K, K) that have
    an inverse.

    ``least``: of every output the smallest scale that its bias allows; ``block``: inputs that share a multiplier. The result is
    (all outputs, K), a scale for each output.
    """
    groups, outputs, depth = wanted.shape
    span = levels(bits)
    rows = wanted.reshape(-1, depth)
    factors = np.broadcast_to(1.0, wanted.shape)
    if divided(rows, bits, block):
        nearest = channel_scales(rows, span, block)
        factors = multipliers(rows, nearest, span, block).reshape(wanted.shape)
    else:
        nearest = searched(rows, np.abs(rows).max(axis=1, initial=0.0) / span[1], span)
    least = np.maximum(least, SMALLEST)
    scales = np.maximum(_TRIED[:, None] * np.where(nearest > 0, nearest, 1.0), least)
    if power_of_two:
        scales = next_powers(scales)
    tried = np.moveaxis(scales.reshape(len(_TRIED), groups, outputs), 0, 1).reshape(groups, -1)
    tried_factors = np.tile(factors, (1, len(_TRIED), 1))
    q = _compensated(np.tile(wanted, (1, len(_TRIED), 1)), tried, h, _Levels(tried_factors, span))
    shape_of_tries = (groups, len(_TRIED), outputs)
    error = _error(q * tried[..., None] - np.tile(wanted, (1, len(_TRIED), 1)), h).reshape(shape_of_tries)
    best = error.argmin(axis=1)[:, None]
    scale = np.take_along_axis(tried.reshape(shape_of_tries), best, axis=1)[:, 0]
    q = np.take_along_axis(q.reshape(*shape_of_tries, depth), best[..., None], axis=1)[:, 0]
    for _ in range(_SWEEPS):
        q = _moved(q, scale, wanted, h, _Levels(factors, span))
        if not power_of_two:
            scale = np.maximum(_best_scale(q, scale, wanted, h), least.reshape(scale.shape))
    stored = scale.reshape(-1).astype(np.float32)
    quant = Quant(tuple(map(float, stored)), (0,) * stored.size, 0)
    return Weight(q.reshape(-1, depth).astype(np.int8), quant)


@frozen
class _Levels:
    """The numbers that weights may be: their ``factors`` (groups, rows, K) times levels."""

    factors: Array
    span: Span

    def nearest(self, numbers: Array, k: int) -> Array:
        """To ``numbers`` (groups, rows) of column ``k``."""
        factors = self.factors[..., k]
        return np.asarray(np.clip(np.rint(numbers / factors), *self.span) * factors)


def _compensated(wanted: Array, scales: Array, h: Array, allowed: _Levels) -> Array:
    """The levels, weight by weight: the error of each is taken from those that follow."""
    upper = np.linalg.cholesky(np.linalg.inv(h)).swapaxes(-1, -2)
    left, q = wanted.copy(), np.empty_like(wanted)
    for start in range(0, wanted.shape[-1], _BLOCK):
        end = min(start + _BLOCK, wanted.shape[-1])
        errors = np.empty((*wanted.shape[:2], end - start))
        for k in range(start, end):
            q[..., k] = allowed.nearest(left[..., k] / scales, k)
            errors[..., k - start] = (left[..., k] - q[..., k] * scales) / upper[:, k, k, None]
            left[..., k:end] -= errors[..., k - start, None] * upper[:, None, k, k:end]
        left[..., end:] -= errors @ upper[:, start:end, end:]
    return q


def _moved(q: Array, scale: Array, wanted: Array, h: Array, allowed: _Levels) -> Array:
    """The levels after each was set to the best one beside the others."""
    q = q.copy()
    slope = (q * scale[..., None] - wanted) @ h
    for k in range(q.shape[-1]):
        better = allowed.nearest(q[..., k] - slope[..., k] / (h[:, k, k, None] * scale), k)
        change = (better - q[..., k]) * scale
        moving = np.flatnonzero(change.any(axis=0))
        slope[:, moving] += change[:, moving, None] * h[:, None, k]
        q[..., k] = better
    return q


def _best_scale(q: Array, scale: Array, wanted: Array, h: Array) -> Array:
    """The scale of the least error of given levels, which is a projection."""
    qh = q @ h
    square = (qh * q).sum(axis=-1)
    found = (qh * wanted).sum(axis=-1) / np.where(square > 0, square, 1.0)
    return np.asarray(np.where((square > 0) & (found > 0), found, scale))


def _error(difference: Array, h: Array) -> Array:
    """Of every row, (groups, rows)."""
    return np.asarray(((difference @ h) * difference).sum(axis=-1))
