"""Products of floats by constant weights that are integers times scales: bytes in flash, opened in registers.

Networks whose weights alone are quantised (ONNX ``DequantizeLinear`` or ``MatMulNBits``, TFLite's layers of floats on int8)
are read as networks of floats. What the weights were is found again from the numbers, wherever they come from and whatever
moved them: those of an output channel, or of each block of its inputs, are w = s q with integers q of 8 bits, or of 4 or 2,
which are packed.

A float32 w = round(s q) differs from s q by 2**-24 of it, the largest of a block gives s to 2**-23: what is within 2**-22 of its
level counts as it. So a sum changes by at most 2**-22 sum(\\|x w\\|), as much as four roundings of its terms do. One scale for a
channel is applied once, to the sum; scales of blocks to each weight, as it was dequantised.
"""

from __future__ import annotations

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import InternalError
from microc.frozen import frozen
from microc.ops.matrix.gemm import Notes, matrix_product, start
from microc.ops.registry import OpCall
from microc.tir import ir
from microc.tir.bit_fields import bits_of
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, OPENED, SCALED, WEIGHT_BITS

BLOCKS = (256, 128, 64, 32, 16)
"""Neighbours that may share a scale, where the channel has not one for all."""
LOWEST, HIGHEST = -128, 127
NEAR = 2.0**-22
"""How far from its level a weight may be, as a share of itself."""
SAMPLED = 16
"""Weights of a block that are looked at before all are."""
_TOGETHER = 256
"""Blocks whose scales are looked for at once, each of which takes some kilobytes."""


@frozen
class Levels:
    """Weights (O, K) as int8 and the scales (O, K / block) of float32."""

    values: Array
    scales: Array

    @property
    def block(self) -> int:
        """Weights that share a scale."""
        return int(self.values.shape[1] // self.scales.shape[1])


def find_levels(rows: Array) -> Levels | None:
    """The form of float32 weights (O, K) of the fewest scales; None where they are no integers times scales."""
    units, depth = rows.shape
    for block in (depth, *(n for n in BLOCKS if n < depth and depth % n == 0)):
        parts = rows.reshape(-1, block).astype(np.float64)
        if not _scales(parts[:1])[0]:
            continue
        scales = np.concatenate([_scales(parts[k : k + _TOGETHER]) for k in range(0, len(parts), _TOGETHER)])
        if scales.all():
            values = np.rint(parts / scales[:, None]).astype(np.int8).reshape(units, depth)
            return Levels(values, scales.astype(np.float32).reshape(units, -1))
    return None


def _scales(parts: Array) -> Array:
    """The largest scale of every part (N, B) whose numbers are levels times it; 0 where there is none, 1 for zeros."""
    peaks = np.abs(parts).max(axis=1)
    found = np.where(peaks == 0, 1.0, 0.0)
    scales = (peaks[:, None] / np.arange(1, 1 - LOWEST)).astype(np.float32).astype(np.float64)
    sample = np.concatenate((parts[:, :: -(-parts.shape[1] // SAMPLED)], peaks[:, None]), axis=1)
    likely = _on_levels(np.abs(sample)[:, None], scales, -LOWEST)
    for level in np.flatnonzero(likely.any(axis=0)):
        left = np.flatnonzero(likely[:, level] & (found == 0))
        sure = _on_levels(parts[left], scales[left, level], HIGHEST)
        found[left[sure]] = scales[left[sure], level]
    return found


def _on_levels(parts: Array, scales: Array, highest: int) -> Array:
    """Whether all numbers (..., B) are levels times a scale each; never of scales that are 0."""
    apart = np.where(scales > 0, scales, np.inf)[..., None]
    levels = np.rint(parts / apart)
    near = np.abs(levels * scales[..., None] - parts) <= NEAR * np.abs(parts)
    whole: Array = (near & (levels >= LOWEST) & (levels <= highest)).all(axis=-1) & (scales > 0)
    return whole


def levels_of(call: OpCall) -> Levels | None:
    """Those of a layer of floats (one group) with constant weights (O, ...), where they take less flash."""
    data, weight, _ = call.weighted
    if weight.data is None or {data.type.dtype, weight.data.dtype.name} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) > 1 or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    levels = find_levels(rows) if np.isfinite(rows).all() else None
    smaller = levels is not None and levels.values.nbytes + levels.scales.nbytes < rows.nbytes
    return levels if smaller else None


def opened_product(call: OpCall, terms: te.Tensor) -> te.Tensor:
    """Rows ``terms`` (P, K) times the weights, and the bias: (P, O)."""
    levels, (_, weight, bias) = levels_of(call), call.weighted
    if levels is None:
        raise InternalError("these weights are no integers times scales")
    bits = bits_of(levels.values)
    notes: Notes = ((OPENED, 1), *(((WEIGHT_BITS, bits),) if bits < 8 else ()))
    rows, block = weight.packed(levels.values), levels.block
    if levels.scales.shape[1] == 1:
        factors = weight.packed(levels.scales.reshape(-1))
        total = matrix_product(terms, rows, None, "float32", notes)

        def scaled(p: Var, o: Var) -> Expr:
            real = total[p, o] * factors[o]
            return real if bias is None else real + start(bias, o, "float32")

        return te.compute(total.shape, scaled, SCALED, ("p", "o"))
    scales, k = weight.packed(levels.scales), te.reduce_axis(terms.shape[1], "k")

    def element(p: Var, o: Var) -> Expr:
        opened = ir.cast("float32", rows[o, k.var]) * scales[o, k.var // block]
        return te.sum_reduce(terms[p, k.var] * opened, k, init=start(bias, o, "float32"))

    return te.compute((terms.shape[0], rows.shape[0]), element, ACC, ("p", "o"), notes)
