"""Matrix product as a tensor expression, and the forms of its weights.

P rows (pixels), O columns (output channels, units), K terms. Weights are (O, K): constant ones are padded to whole words, packed
at 1, 2 or 4 bits, stored as int8 with scales for float products, or rounded to float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX
from microc.ops.arithmetic import Rewrite
from microc.ops.registry import WORD, Algorithms, OpCall, Operand
from microc.tir import ir
from microc.tir.bit_fields import (
    HALVES,
    NEIGHBOURS,
    VECTOR,
    BitFields,
    bits_of,
    smallest_packing,
    smallest_table_packing,
)
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, OPENED, SCALED, SMALLEST_WEIGHT, SUM_BOUND, WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES
from microc.tir.names import HALVES as BLOCK

# ---- Nine-bit weights in one byte: all weights are shifted by c, and c sum(x), equal for all channels, is added back.
#
# uint8 weights less their zero point exceed int8, mostly by the one number at the end of their range. As int16 they would take
# twice the flash and products that few cores have. Instead,
#
#     sum(x w)  =  sum(x (w - c)) + sum(x c),
#
# where w - c fits int8, and the last sum is the same for all channels: the product with one more channel, added to each.

MIN_SHARING_CHANNELS: Mapping[str, int] = MappingProxyType({"dense": 8, "conv2d": 32})
"""Least output channels that share the sum. A convolution stores an int32 sum for every pixel: with fewer channels these take
more memory than int8 weights save."""
_BYTE = 128


def find_weight_shift(node: Node, graph: Graph, rows: Array) -> int:
    """Return the number c whose subtraction makes the weights ``rows`` (O, K) fit int8.

    It is 0 if they fit as they are, or cannot be shifted into int8. Every partial sum must fit in 32 bits with shifted
    weights, too."""
    low, high = int(rows.min(initial=0)), int(rows.max(initial=0))
    fits, spread = low >= -_BYTE and high < _BYTE, high - low < 2 * _BYTE
    plain = len(rows) >= MIN_SHARING_CHANNELS.get(node.op, len(rows) + 1) and node.attrs.get("groups", 1) == 1
    if fits or not spread or not plain or dtypes.nbytes(graph.types[node.inputs[0]].dtype) > 1:
        return 0
    shift = high - (_BYTE - 1) if high >= _BYTE else low + _BYTE
    least, most = dtypes.int_range(graph.types[node.inputs[0]].dtype)
    # A generous bound of all partial sums: the sum itself, and twice the shifted sum and the shift's own.
    sums = np.abs(rows).sum(axis=1) + 2 * np.abs(rows - shift).sum(axis=1) + 2 * abs(shift) * rows.shape[1]
    return shift if int(sums.max(initial=0)) * max(most, -least) < INT32_MAX // 2 else 0


def emit_shift_sum(
    rewrite: Rewrite, operands: Sequence[str], shift: int, shape: Sequence[int], dtype: str, attrs: Mapping[str, Attr]
) -> str:
    """Emit sum(x c), which is missing from sums with weights shifted by c: one number for all output channels.

    ``shape`` and ``dtype`` are those of the sums. The operator is the product's own, with its ``attrs`` and a single
    channel of weights c. Call this before the product is emitted, so that the product's kernel can fuse the addition."""
    data, weight = operands[:2]
    extents = rewrite.type(weight).shape
    same = rewrite.constant("shift", np.full((1, *extents[1:]), shift, np.int8 if shift < _BYTE else np.int16))
    axis = 1 if attrs.get("layout") == "NCHW" else len(shape) - 1
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    return rewrite.emit(rewrite.node.op, (data, same), rewrite.value("lacking", one, dtype), attrs)


# ---- The matrix product as a tensor expression; its operands: padded weights, biases, bounds of sums.


def padded_depth(call: OpCall, depth: int, least: int = WORD) -> int:
    """Return the number of terms K of a sum: ``depth``, padded to whole words if weights are constant and it exceeds
    ``least``."""
    data, weight, _ = call.weighted
    # A plain matrix is read in place where the core multiplies partial words: padding would need a copy of it.
    in_place = call.multiples.partly and len(data.type.shape) == 2
    if in_place or weight.data is None or call.attrs.get("out_dtype") != "int32" or depth <= least:
        return depth
    return call.multiples.terms(depth, data.type.dtype, str(weight.data.dtype))


def padded_units(call: OpCall, units: int) -> int:
    """Return the number of columns of a product: ``units``, padded to what the core computes together if weights are
    constant."""
    is_constant = call.constant and call.weighted[1].data is not None
    return call.multiples.units(units) if is_constant else units


def constant_int8_weights(call: OpCall) -> Array | None:
    """Return the weights (O, K) of an int8 layer; None unless they are constant int8 and a bias, if any, is constant.

    The data is int8 and the sums are int32."""
    data, weight, _ = call.weighted
    dtypes = (data.type.dtype, weight.type.dtype, call.attrs.get("out_dtype"))
    if weight.data is None or not call.constant or dtypes != ("int8", "int8", "int32"):
        return None
    return weight.data.reshape(weight.data.shape[0], -1)


def can_store_unsigned(call: OpCall) -> bool:
    """Test whether sums of int8 data times constant int8 weights fit int32 when 128 is added to the data, stored as uint8."""
    weights, (_, _, bias) = constant_int8_weights(call), call.weighted
    if weights is None:
        return False
    first = 0 if bias is None or bias.data is None else int(np.abs(bias.data.astype(np.int64)).max(initial=0))
    # \|x + 128\| <= 255 for the product, and 128 \|w\| for the correction of the bias: 383 \|w\| together.
    return first + 383 * int(np.abs(weights.astype(np.int64)).sum(1).max(initial=0)) < 1 << 31


def bias_for_unsigned_data(weight: Operand, bias: Operand | None) -> Array:
    """Return the bias (O) minus 128 sum(w), the excess of sums over data to which 128 is added."""
    assert weight.data is not None
    rows = weight.data.reshape(weight.data.shape[0], -1).astype(np.int64)
    bias_data = (
        np.zeros(len(rows), np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    return np.asarray(bias_data - 128 * rows.sum(1), np.int32)


def bias_operand(like: Operand, data: Array) -> Operand:
    """Return the constant bias ``data`` (O) as an operand; its tensor is named after the operand ``like``."""
    tensor = like.packed(data)
    return Operand(TensorType(data.shape, str(data.dtype)), data, lambda shape: tensor, like.packed)


def weight_rows(weight: Operand, rows: int, depth: int, padded: int, more: int = 0) -> te.Tensor:
    """Return the weights as a matrix (rows, depth).

    Constant ones are padded with zeros to (rows + more, padded)."""
    if weight.data is None:
        return weight.tensor((rows, depth))
    return weight.packed(np.pad(weight.data.reshape(rows, depth), ((0, more), (0, padded - depth))))


def initial_sum(bias: Operand | None, channel: Expr, dtype: str) -> Expr:
    """Return the initial value of a sum: the channel's bias, or zero."""
    if bias is None:
        return ir.const(0, dtype)
    return ir.cast(dtype, bias.tensor((bias.type.size,))[channel])


Notes = tuple[tuple[str, int | str], ...]
"""Annotations of a tensor, by name, which schedules read."""


def product_notes(data: Operand, weight: Operand, bias: Operand | None) -> Notes:
    """Return notes on a product of integers by constants: the largest magnitude of a sum with its bias, and the smallest
    weight."""
    if weight.data is None or dtypes.is_float(data.type.dtype) or (bias is not None and bias.data is None):
        return ()
    rows = weight.data.reshape(weight.data.shape[0], -1).astype(np.int64)
    first = (
        np.zeros(len(rows), np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    low, high = dtypes.int_range(data.type.dtype)
    ends = (
        first + np.minimum(rows * low, rows * high).sum(axis=1),
        first + np.maximum(rows * low, rows * high).sum(axis=1),
    )
    return (
        (SUM_BOUND, int(max(np.abs(end).max(initial=0) for end in ends))),
        (SMALLEST_WEIGHT, int(rows.min(initial=0))),
    )


def matrix_product(a: te.Tensor, b: te.Tensor, bias: Operand | None, dtype: str, notes: Notes = ()) -> te.Tensor:
    """Build ``acc`` (P, O): sum over k of a[p, k] b[o, k], plus the bias."""
    k = te.reduce_axis(a.shape[1], "k")

    def element(p: Var, o: Var) -> Expr:
        product = ir.cast(dtype, a[p, k.var]) * ir.cast(dtype, b[o, k.var])
        return te.sum_reduce(product, k, init=initial_sum(bias, o, dtype))

    return te.compute((a.shape[0], b.shape[0]), element, ACC, ("p", "o"), notes)


def column_bias(call: OpCall, more: int, *, unsigned: bool) -> Operand | None:
    """Return the bias of a product's columns and of ``more`` columns of zeros behind them.

    With ``unsigned`` it is corrected for data to which 128 is added."""
    _, weight, bias = call.weighted
    if unsigned:
        return bias_operand(bias or weight, np.pad(bias_for_unsigned_data(weight, bias), (0, more)))
    if not more or bias is None:
        return bias
    assert bias.data is not None
    return bias_operand(bias, np.pad(bias.data.reshape(-1), (0, more)))


def unit_product(call: OpCall, a: te.Tensor, units: int, depth: int, notes: Notes, more: int = 0) -> te.Tensor:
    """Build the product (P, units) of rows ``a`` (P, K) and weights (units, depth), plus the bias.

    ``more`` units of zeros are also computed and left out of the result. If ``a`` is uint8 and the data int8, ``a`` is
    the data plus 128, which the bias corrects."""
    data, weight, _ = call.weighted
    dtype = call.attrs.get("out_dtype") or data.type.dtype
    rows = weight_rows(weight, units, depth, a.shape[1], more)
    bias = column_bias(call, more, unsigned=(a.dtype, data.type.dtype) == ("uint8", "int8"))
    total = matrix_product(a, rows, bias, dtype, notes)
    return te.compute((a.shape[0], units), lambda p, o: total[p, o], "wanted", ("p", "o")) if more else total


# ---- Products by constant weights of few bits, which a schedule stores side by side (:mod:`microc.tir.bit_fields`).
#
# Three sorts of constant int8 weights can be packed, whatever they come from: numbers within -8..7 (4 bits) or -2..1 (2 bits);
# such numbers times one multiplier per block of inputs; and, as indices of 4, 2 or 1 bits into a table, weights of which each
# output channel has few values (TFLite Micro's compressed constants). The expression is that of any product; a note gives the
# bits per weight, and the terms are padded to whole elements of the form. ``schedule/rules/rule.py`` chooses the form by core.

MAX_PACKED_SHARE = 0.75
"""Largest size of packed weights, padding included, as a share of their size in bytes."""
MAX_SUM_BLOCK = 32
"""Largest block whose sums are kept apart in an iteration; larger blocks are split, and their parts have equal multipliers."""


TABLES = "packed_tables"
ORDERS: Mapping[str, str] = MappingProxyType(
    {"packed": NEIGHBOURS, "packed_halves": HALVES, "packed_vectors": VECTOR, TABLES: NEIGHBOURS}
)
"""Order of packed weights in memory, by algorithm."""


def packed_weight_form(call: OpCall, algorithm: str) -> BitFields | None:
    """Return the form in which an algorithm packs constant int8 weights (O, ...); None if it cannot.

    The layer has one group and sums in int32.
    """
    if algorithm not in ORDERS:
        return None
    data, weight, _ = call.weighted
    integers = dtypes.is_integer(data.type.dtype) and call.attrs.get("out_dtype") == "int32"
    if weight.data is None or weight.data.dtype != np.int8 or not integers or call.attrs.get("groups", 1) > 1:
        return None
    if not weight.data.size:
        return None
    rows, order = weight.data.reshape(len(weight.data), -1), ORDERS[algorithm]
    if algorithm == TABLES:
        values = smallest_table_packing(rows)
        fewer = values is not None and values[0] < bits_of(rows)
        return BitFields(values[0], order, tables=values[1]) if values and fewer else None
    bits, block = smallest_packing(rows)
    if block and order == HALVES:
        block = min(block, MAX_SUM_BLOCK)
    return BitFields(bits, order, block) if bits < 8 else None


def packed_depth(form: BitFields, depth: int) -> int:
    """Return ``depth``, the number of terms of a sum, padded to whole elements and blocks of the form of packed weights."""
    whole = max(form.group, form.block)
    return -(-depth // whole) * whole


def _can_pack(call: OpCall, algorithm: str) -> bool:
    """Test whether an algorithm can pack the weights and saves flash."""
    form, weight = packed_weight_form(call, algorithm), call.weighted[1].data
    if form is None or weight is None:
        return False
    units = len(weight)
    depth = weight.size // units
    stored = prod(form.shape(units, packed_depth(form, depth))) * dtypes.nbytes(form.dtype)
    # Blocks with multipliers: neighbours suit any core; halves need bytes of data, for which dot2 sums a block apart.
    narrow = form.order == NEIGHBOURS or (form.order == HALVES and dtypes.nbytes(call.weighted[0].type.dtype) == 1)
    return stored <= MAX_PACKED_SHARE * weight.size and (narrow or not form.block)


def packed_notes(call: OpCall, form: BitFields) -> Notes:
    """Return the notes on a product by packed weights."""
    more = ((WEIGHT_BLOCK, form.block), (WEIGHT_TABLES, form.tables))
    return (*product_notes(*call.weighted), (WEIGHT_BITS, form.bits), *((name, n) for name, n in more if n))


FAR = np.int8(13)
"""Factor that test cases multiply numbers of few bits by, so that only a table can hold them."""
PACKED: Algorithms = {algorithm: partial(_can_pack, algorithm=algorithm) for algorithm in ORDERS}
"""Predicates by algorithm: whether it can compute a product."""


# ---- Products of floats by constant weights that are integers times scales: int8 in flash, dequantised in registers.
#
# Networks with quantised weights and float data (ONNX ``DequantizeLinear`` or ``MatMulNBits``, TFLite's hybrid layers) are read
# as float networks. The integers are recovered from the float values, whatever passes moved them: the weights of an output
# channel, or of each block of its inputs, are w = s q with integers q of 8 bits, or of 4 or 2, which are packed.
#
# A float32 w = round(s q) differs from s q by 2**-24 of it, and the largest weight of a block gives s to 2**-23: a weight within
# 2**-22 of s q counts as s q. So a sum changes by at most 2**-22 sum(\|x w\|), as much as four roundings of its terms do. One
# scale per channel is applied once, to the sum; scales of blocks are applied to each weight, as dequantisation did.

BLOCKS = (256, 128, 64, 32, 16)
"""Candidate numbers of neighbours that share a scale, where a channel has no single one."""
LOWEST, HIGHEST = -128, 127
NEAR = 2.0**-22
"""Largest relative distance of a weight from its level."""
SAMPLED = 16
"""Weights of a block that are tested before all are."""
_BATCH_BLOCKS = 256
"""Blocks whose scales are searched together; each takes a few kilobytes of temporary arrays."""


@frozen
class QuantisedWeights:
    """Float weights (O, K) as int8 ``values`` times float32 ``scales`` (O, K / block)."""

    values: Array
    scales: Array

    @property
    def block(self) -> int:
        """Number of weights that share a scale."""
        return int(self.values.shape[1] // self.scales.shape[1])


def recover_quantised_weights(rows: Array) -> QuantisedWeights | None:
    """Return int8 values and scales whose products are the float32 weights ``rows`` (O, K); None if there are none.

    The number of scales is the least possible."""
    units, depth = rows.shape
    for block in (depth, *(n for n in BLOCKS if n < depth and depth % n == 0)):
        parts = rows.reshape(-1, block).astype(np.float64)
        if not _block_scales(parts[:1])[0]:  # the first block alone rejects most weights
            continue
        scales = np.concatenate(
            [_block_scales(parts[k : k + _BATCH_BLOCKS]) for k in range(0, len(parts), _BATCH_BLOCKS)]
        )
        if scales.all():
            values = np.rint(parts / scales[:, None]).astype(np.int8).reshape(units, depth)
            return QuantisedWeights(values, scales.astype(np.float32).reshape(units, -1))
    return None


def _block_scales(parts: Array) -> Array:
    """Return the largest scale of every block (N, B) whose numbers are int8 multiples of it; 0 if there is none, 1 for
    zeros."""
    peaks = np.abs(parts).max(axis=1)
    largest = np.where(peaks == 0, 1.0, 0.0)
    # The peak is a level of 1 to 128 times the scale: 128 candidates, tested on a sample of magnitudes first. A negative peak may
    # have level -128, so the sample admits 128; all numbers are tested with their signs.
    scales = (peaks[:, None] / np.arange(1, 1 - LOWEST)).astype(np.float32).astype(np.float64)
    sample = np.concatenate((parts[:, :: -(-parts.shape[1] // SAMPLED)], peaks[:, None]), axis=1)
    likely = _are_multiples_of_scales(np.abs(sample)[:, None], scales, -LOWEST)
    for level in np.flatnonzero(likely.any(axis=0)):
        left = np.flatnonzero(likely[:, level] & (largest == 0))
        sure = _are_multiples_of_scales(parts[left], scales[left, level], HIGHEST)
        largest[left[sure]] = scales[left[sure], level]
    return largest


def _are_multiples_of_scales(parts: Array, scales: Array, highest: int) -> Array:
    """Test for every row (..., B) whether its numbers are integers times its scale (...); False for scales of 0.

    The integers are LOWEST..highest."""
    apart = np.where(scales > 0, scales, np.inf)[..., None]
    levels = np.rint(parts / apart)
    near = np.abs(levels * scales[..., None] - parts) <= NEAR * np.abs(parts)
    whole: Array = (near & (levels >= LOWEST) & (levels <= highest)).all(axis=-1) & (scales > 0)
    return whole


def quantised_weights_of(call: OpCall) -> QuantisedWeights | None:
    """Return the constant weights (O, ...) of a float layer in one group as int8 values and scales; None if that saves no
    flash."""
    data, weight, _ = call.weighted
    if weight.data is None or {data.type.dtype, weight.data.dtype.name} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) > 1 or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    levels = recover_quantised_weights(rows) if np.isfinite(rows).all() else None
    smaller = levels is not None and levels.values.nbytes + levels.scales.nbytes < rows.nbytes
    return levels if smaller else None


def dequantised_product(call: OpCall, terms: te.Tensor) -> te.Tensor:
    """Build the product (P, O) in float32 of rows ``terms`` (P, K) and weights that are int8 times scales, plus the bias."""
    levels, (_, weight, bias) = quantised_weights_of(call), call.weighted
    if levels is None:
        raise InternalError("these weights are no integers times scales")
    bits = bits_of(levels.values)
    notes: Notes = ((OPENED, 1), *(((WEIGHT_BITS, bits),) if bits < 8 else ()))
    rows, block = weight.packed(levels.values), levels.block
    if levels.scales.shape[1] == 1:
        factors = weight.packed(levels.scales.reshape(-1))
        total = matrix_product(terms, rows, None, "float32", notes)

        def scale_sum(p: Var, o: Var) -> Expr:
            real = total[p, o] * factors[o]
            return real if bias is None else real + initial_sum(bias, o, "float32")

        return te.compute(total.shape, scale_sum, SCALED, ("p", "o"))
    scales, k = weight.packed(levels.scales), te.reduce_axis(terms.shape[1], "k")

    def element(p: Var, o: Var) -> Expr:
        dequantised = ir.cast("float32", rows[o, k.var]) * scales[o, k.var // block]
        return te.sum_reduce(terms[p, k.var] * dequantised, k, init=initial_sum(bias, o, "float32"))

    return te.compute((terms.shape[0], rows.shape[0]), element, ACC, ("p", "o"), notes)


# ---- Products of floats in float16 (``--math half``): each factor is rounded to float16, runs of at most :data:`RUN` terms
# are added in float16 by fused multiply-adds, one rounding each, and the sums of runs are added in float32.
#
# The error of a run of n terms is at most (n + 2) u sum \|x w\| to first order in u = 2**-11: each factor is off by u of itself,
# which makes 2 u of a term, and each of n additions rounds by u of a partial sum, which is no larger than sum \|x w\|
# (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The float32 roundings between runs are negligible beside
# that. So the bound is (:data:`RUN` + 2) 2**-11 sum \|x w\|; the actual error is usually far smaller, since roundings cancel.
# Numbers below 2**-14 are multiples of 2**-24 in float16: each factor and each addition may be off by another 2**-25.
#
# From 65,520 on numbers are infinite in float16. A weight that large keeps its layer in float32. Activations are not known at
# compile time: one that large, or such a partial sum, makes the outputs that depend on it infinite or NaN.

RUN = 32
"""Largest number of terms that are added in float16."""
LANES = 8
"""Columns of a vector of float16."""
HALF_TOLERANCE = 2e-2
"""Absolute tolerance of test cases: a few dozen terms of about one."""
RUN_END_COST, ITERATION_COST, PADDING_COST = 5.0, 0.1, 4.0
"""Cost of the end of a run, of the end of an iteration and of zeros behind a row of data, in terms. measured: unknown"""
HALF = "float16"


def half_weights(call: OpCall, groups: int = 1) -> Array | None:
    """Return the constant weights (O, K) of a float layer with ``groups`` groups, rounded to float16.

    Return None if the layer is another, if a weight would be infinite, or if the channels do not fill vectors."""
    data, weight, _ = call.weighted
    if weight.data is None or {data.type.dtype, weight.type.dtype} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) != groups or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    halves = dtypes.round_to_half(rows, HALF)
    return halves if len(rows) % LANES == 0 and np.isfinite(halves).all() else None


def split_into_runs(depth: int) -> tuple[int, int]:
    """Return the number of float16 runs of a sum of ``depth`` terms, and the terms of each; the last ones may be zeros.

    The estimated time is least: an iteration takes four terms if they divide a run, the end of each run costs
    RUN_END_COST, and zeros have to be appended to the data (PADDING_COST)."""

    def estimated_cost(runs: int) -> float:
        terms = -(-depth // runs)
        together = next(n for n in (4, 3, 2, 1) if terms % n == 0)
        return runs * (terms * (1 + ITERATION_COST / together) + RUN_END_COST) + PADDING_COST * (runs * terms > depth)

    least = -(-depth // RUN)
    runs = min(range(least, min(2 * least, depth) + 1), key=estimated_cost)
    return runs, -(-depth // runs)


def padded_terms(depth: int) -> int:
    """Return ``depth``, the number of terms of a sum, padded to whole float16 runs."""
    runs, terms = split_into_runs(depth)
    return runs * terms


def half_product(call: OpCall, rows: te.Tensor, depth: int) -> te.Tensor:
    """Build the product (P, O) in float32 of float16 ``rows`` (P, K), zeros behind ``depth``, and the weights, plus the
    bias."""
    weights, (_, weight, bias) = half_weights(call), call.weighted
    if weights is None:
        raise InternalError("this product is not computed in float16")
    columns = weight.packed(np.pad(weights, ((0, 0), (0, rows.shape[1] - depth))))
    runs, terms = split_into_runs(depth)
    run, term = te.reduce_axis(runs, "r"), te.reduce_axis(terms, "k")

    def partial(p: Var, o: Var, r: Var) -> Expr:
        k = r * terms + term.var
        return te.fma_reduce(rows[p, k], columns[o, k], term, init=0.0)

    halves = te.compute((rows.shape[0], len(weights), runs), partial, BLOCK, ("p", "o", "r"))

    def element(p: Var, o: Var) -> Expr:
        return te.sum_reduce(ir.cast("float32", halves[p, o, run.var]), run, init=initial_sum(bias, o, "float32"))

    return te.compute((rows.shape[0], len(weights)), element, ACC, ("p", "o"))
