"""Weights rounded for what their layer answers, not each to the nearest level.

The squared error of a sum of products is (w - q) H (w - q)' with H the second moments of the factors. Weights are rounded one
by one; those still to come make up for the error of each (GPTQ: Frantar et al., 2022, after "Optimal Brain Surgeon",
Hassibi et al., 1993). Then single levels move as long as the error falls, and the scale is the best for the levels. The factors
are those that the quantised network has, and w what suits them best.
"""

from __future__ import annotations

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Quant
from microc.quantization.blocks import NONE, channel_scales, divided, multipliers
from microc.quantization.scheme import SMALLEST, Span, Weight, levels, next_powers
from microc.quantization.weights import searched

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
