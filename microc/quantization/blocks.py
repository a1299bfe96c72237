"""Weights of few bits whose blocks of inputs have multipliers of their own, 1 to 15, beside the scale of their channel.

A weight is scale * multiplier * level. The scale of a block is so a multiple of its channel's, in flash half a byte or a byte for
16 to 64 weights; in the graph the numbers are multiplier * level, of int8 (docs/quantisation.md, "Packed weights").
"""

from __future__ import annotations

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Node, Quant
from microc.quantization.scheme import Span, Weight, levels
from microc.quantization.weights import allowed_scales, quantised_weights, searched
from microc.tir.bit_fields import BLOCKS, FEW, MOST

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
