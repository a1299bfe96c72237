# SPDX-License-Identifier: Apache-2.0
"""Matrix products as tensor expressions, and the forms in which their weights are stored.

A product has P rows (pixels), O columns (output channels, also called units) and K terms in each sum. Weights are (O,
K). Constant weights are padded to whole words, packed at 1, 2 or 4 bits, stored as int8 with scales for float products,
or rounded to float16.
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
    smallest_bit_width,
    smallest_bits_and_block,
    smallest_bits_and_table_count,
)
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, OPENED, SCALED, SMALLEST_WEIGHT, SUM_BOUND, WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES
from microc.tir.names import HALVES as BLOCK

# ---- Nine-bit weights in one byte: all weights are shifted by c, and c sum(x), equal for all channels, is added to the sums.
#
# uint8 weights minus their zero point exceed int8, mostly by only one number at the end of their range. Stored as int16 they
# would need twice the flash, and products for which few cores have instructions. Instead,
#
#     sum(x w)  =  sum(x (w - c)) + sum(x c),
#
# where w - c fits int8. The last sum is the same for all channels: it is computed once, as one more channel, and added to each.

MIN_SHARING_CHANNELS: Mapping[str, int] = MappingProxyType({"dense": 8, "conv2d": 32})
"""Least number of output channels that share the sum of the shift, by operator. A convolution stores an int32 sum for
every pixel: with fewer channels these sums need more memory than int8 weights save."""
_BYTE = 128


def find_weight_offset(node: Node, graph: Graph, weight_matrix: Array) -> int:
    """Return the number to subtract from the weights ``weight_matrix`` (O, K) so that they fit int8.

    It is 0 if the weights fit already, if no number makes them fit, or if a partial sum with these weights could
    exceed 32 bits."""
    low, high = int(weight_matrix.min(initial=0)), int(weight_matrix.max(initial=0))
    fits, spread = low >= -_BYTE and high < _BYTE, high - low < 2 * _BYTE
    plain = (
        len(weight_matrix) >= MIN_SHARING_CHANNELS.get(node.op, len(weight_matrix) + 1)
        and node.attrs.get("groups", 1) == 1
    )
    if fits or not spread or not plain or dtypes.nbytes(graph.types[node.inputs[0]].dtype) > 1:
        return 0
    shift = high - (_BYTE - 1) if high >= _BYTE else low + _BYTE
    least, most = dtypes.int_range(graph.types[node.inputs[0]].dtype)
    # A generous bound of all partial sums: the sum itself, plus twice the shifted sum and twice the sum of the shift.
    sums = (
        np.abs(weight_matrix).sum(axis=1)
        + 2 * np.abs(weight_matrix - shift).sum(axis=1)
        + 2 * abs(shift) * weight_matrix.shape[1]
    )
    return shift if int(sums.max(initial=0)) * max(most, -least) < INT32_MAX // 2 else 0


def emit_weight_offset_correction(
    rewrite: Rewrite,
    operands: Sequence[str],
    weight_offset: int,
    sum_shape: Sequence[int],
    sum_dtype: str,
    attrs: Mapping[str, Attr],
) -> str:
    """Emit sum(x c): the term to add to sums whose weights were reduced by c = ``weight_offset``. It is equal for all
    output channels.

    ``sum_shape`` and ``sum_dtype``: shape and dtype of the sums. The emitted operator is that of the product, with its
    ``attrs`` and a single channel of weights c. Call this function before the product is emitted, so that the product's
    kernel can fuse the addition."""
    data, weight = operands[:2]
    extents = rewrite.type(weight).shape
    same = rewrite.add_constant(
        "shift", np.full((1, *extents[1:]), weight_offset, np.int8 if weight_offset < _BYTE else np.int16)
    )
    axis = 1 if attrs.get("layout") == "NCHW" else len(sum_shape) - 1
    one = (*sum_shape[:axis], 1, *sum_shape[axis + 1 :])
    return rewrite.emit(rewrite.node.op, (data, same), rewrite.add_value("lacking", one, sum_dtype), attrs)


# ---- The matrix product as a tensor expression; its operands: padded weights, biases, bounds of sums.


def padded_term_count(call: OpCall, depth: int, min_padded_depth: int = WORD) -> int:
    """Return the number of terms of a sum to compute: ``depth``, rounded up to whole words if the core multiplies
    words.

    Only a product by constant weights whose ``depth`` exceeds ``min_padded_depth`` is padded."""
    data, weight, _ = call.data_weight_bias
    # A matrix is read in place if the core can multiply partial words, because padding would need a copy of the matrix.
    in_place = call.multiples.multiplies_partial_words and len(data.type.shape) == 2
    if in_place or weight.data is None or call.attrs.get("out_dtype") != "int32" or depth <= min_padded_depth:
        return depth
    return call.multiples.round_up_terms(depth, data.type.dtype, str(weight.data.dtype))


def padded_unit_count(call: OpCall, units: int) -> int:
    """Return the number of columns of a product to compute: ``units``, rounded up to the number that the
    core computes together.

    Only a product by constant weights is padded."""
    is_constant = call.has_constant_parameters and call.data_weight_bias[1].data is not None
    return call.multiples.round_up_columns(units) if is_constant else units


def constant_int8_weights(call: OpCall) -> Array | None:
    """Return the weights (O, K) of a layer with int8 data and int32 sums if they are constant int8; else None.

    A bias, if there is one, must also be constant."""
    data, weight, _ = call.data_weight_bias
    dtypes = (data.type.dtype, weight.type.dtype, call.attrs.get("out_dtype"))
    if weight.data is None or not call.has_constant_parameters or dtypes != ("int8", "int8", "int32"):
        return None
    return weight.data.reshape(weight.data.shape[0], -1)


def can_store_data_as_uint8(call: OpCall) -> bool:
    """Test whether sums of int8 data times constant int8 weights still fit int32 if 128 is added to the data to store
    it as uint8."""
    weights, (_, _, bias) = constant_int8_weights(call), call.data_weight_bias
    if weights is None:
        return False
    first = 0 if bias is None or bias.data is None else int(np.abs(bias.data.astype(np.int64)).max(initial=0))
    # \|x + 128\| <= 255 for the product, and 128 \|w\| for the correction of the bias: 383 \|w\| together.
    return first + 383 * int(np.abs(weights.astype(np.int64)).sum(1).max(initial=0)) < 1 << 31


def bias_for_uint8_data(weight: Operand, bias: Operand | None) -> Array:
    """Return the bias (O) minus 128 sum(w). It corrects sums over int8 data that is stored as uint8 after 128 was
    added."""
    assert weight.data is not None
    rows = weight.data.reshape(weight.data.shape[0], -1).astype(np.int64)
    bias_data = (
        np.zeros(len(rows), np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    return np.asarray(bias_data - 128 * rows.sum(1), np.int32)


def make_bias_operand(original_bias: Operand, data: Array) -> Operand:
    """Return the constant bias ``data`` (O) as an operand. Its tensor is named after the operand ``original_bias``."""
    tensor = original_bias.packed(data)
    return Operand(TensorType(data.shape, str(data.dtype)), data, lambda shape: tensor, original_bias.packed)


def pack_weight_rows(weight: Operand, rows: int, depth: int, padded_columns: int, extra_rows: int = 0) -> te.Tensor:
    """Return the weights as a matrix (``rows``, ``depth``).

    Constant weights are padded with zeros to (``rows`` + ``extra_rows``, ``padded_columns``)."""
    if weight.data is None:
        return weight.tensor((rows, depth))
    return weight.packed(np.pad(weight.data.reshape(rows, depth), ((0, extra_rows), (0, padded_columns - depth))))


def build_initial_sum(bias: Operand | None, channel: Expr, acc_dtype: str) -> Expr:
    """Return the initial value of an output channel's sum: the bias of the channel, or zero."""
    if bias is None:
        return ir.const(0, acc_dtype)
    return ir.cast(acc_dtype, bias.tensor((bias.type.size,))[channel])


Notes = tuple[tuple[str, int | str], ...]
"""Annotations of a tensor, as pairs of name and value. Schedules read them."""


def sum_bound_annotations(data: Operand, weight: Operand, bias: Operand | None) -> Notes:
    """Return block annotations of a product by constant integer weights: the largest magnitude of a sum with bias, and
    the smallest weight."""
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


def build_matrix_product(
    rows: te.Tensor, weights: te.Tensor, bias: Operand | None, acc_dtype: str, notes: Notes = ()
) -> te.Tensor:
    """Build the stage ``acc`` (P, O): the sum over k of rows[p, k] * weights[o, k], plus the bias."""
    k = te.reduce_axis(rows.shape[1], "k")

    def build_sum(p: Var, o: Var) -> Expr:
        product = ir.cast(acc_dtype, rows[p, k.var]) * ir.cast(acc_dtype, weights[o, k.var])
        return te.sum_reduce(product, k, init=build_initial_sum(bias, o, acc_dtype))

    return te.compute((rows.shape[0], weights.shape[0]), build_sum, ACC, ("p", "o"), notes)


def build_column_bias(call: OpCall, extra_columns: int, *, unsigned_input: bool) -> Operand | None:
    """Return the bias of a product's columns, with zeros for ``extra_columns`` additional columns.

    ``unsigned_input``: the bias is corrected for int8 data that is stored as uint8 after 128 was added."""
    _, weight, bias = call.data_weight_bias
    if unsigned_input:
        return make_bias_operand(bias or weight, np.pad(bias_for_uint8_data(weight, bias), (0, extra_columns)))
    if not extra_columns or bias is None:
        return bias
    assert bias.data is not None
    return make_bias_operand(bias, np.pad(bias.data.reshape(-1), (0, extra_columns)))


def build_unit_product(
    call: OpCall, input_rows: te.Tensor, units: int, depth: int, notes: Notes, extra_units: int = 0
) -> te.Tensor:
    """Build the product (P, units) of ``input_rows`` (P, K) and the weights (units, depth), plus the bias.

    ``extra_units`` additional units with zero weights are computed and omitted from the result. If ``input_rows`` is
    uint8 and the data int8, 128 was added to the data, and the bias is corrected for this."""
    data, weight, _ = call.data_weight_bias
    dtype = call.attrs.get("out_dtype") or data.type.dtype
    rows = pack_weight_rows(weight, units, depth, input_rows.shape[1], extra_units)
    bias = build_column_bias(call, extra_units, unsigned_input=(input_rows.dtype, data.type.dtype) == ("uint8", "int8"))
    total = build_matrix_product(input_rows, rows, bias, dtype, notes)
    return (
        te.compute((input_rows.shape[0], units), lambda p, o: total[p, o], "wanted", ("p", "o"))
        if extra_units
        else total
    )


# ---- Products by constant weights of few bits, which a schedule stores side by side (:mod:`microc.tir.bit_fields`).
#
# Three sorts of constant int8 weights can be packed, whatever they come from: numbers within -8..7 (4 bits) or -2..1 (2 bits);
# such numbers times one multiplier per block of inputs; and, as indices of 4, 2 or 1 bits into a table, weights of which each
# output channel has few values (TFLite Micro's compressed constants). The expression is that of any product; a note gives the
# bits per weight, and the terms are padded to whole elements of the form. ``schedule/rules/rule.py`` chooses the form by core.

MAX_PACKED_SHARE = 0.75
"""Largest size of packed weights, padding included, as a fraction of the size of the weights as int8."""
MAX_SUM_BLOCK = 32
"""Largest number of terms in a block whose sum an iteration computes separately. Larger blocks are split into parts
with equal multipliers."""


TABLES = "packed_tables"
ORDERS: Mapping[str, str] = MappingProxyType(
    {"packed": NEIGHBOURS, "packed_halves": HALVES, "packed_vectors": VECTOR, TABLES: NEIGHBOURS}
)
"""Order of packed weights in memory, by name of the algorithm."""


def find_packed_weight_form(call: OpCall, algorithm: str) -> BitFields | None:
    """Return the bit fields in which ``algorithm`` packs the constant int8 weights (O, ...) of a layer; None if it
    cannot pack them.

    Only a layer with one group and int32 sums can have packed weights."""
    if algorithm not in ORDERS:
        return None
    data, weight, _ = call.data_weight_bias
    integers = dtypes.is_integer(data.type.dtype) and call.attrs.get("out_dtype") == "int32"
    if weight.data is None or weight.data.dtype != np.int8 or not integers or call.attrs.get("groups", 1) > 1:
        return None
    if not weight.data.size:
        return None
    rows, order = weight.data.reshape(len(weight.data), -1), ORDERS[algorithm]
    if algorithm == TABLES:
        values = smallest_bits_and_table_count(rows)
        fewer = values is not None and values[0] < smallest_bit_width(rows)
        return BitFields(values[0], order, tables=values[1]) if values and fewer else None
    bits, block = smallest_bits_and_block(rows)
    if block and order == HALVES:
        block = min(block, MAX_SUM_BLOCK)
    return BitFields(bits, order, block) if bits < 8 else None


def padded_depth_of_packed_weights(form: BitFields, depth: int) -> int:
    """Return the number of terms ``depth``, rounded up to whole elements and blocks of the packed weights ``form``."""
    whole = max(form.group, form.block)
    return -(-depth // whole) * whole


def _saves_flash_when_packed(call: OpCall, algorithm: str) -> bool:
    """Test whether an algorithm can pack the weights of a layer, and the packed weights save flash."""
    form, weight = find_packed_weight_form(call, algorithm), call.data_weight_bias[1].data
    if form is None or weight is None:
        return False
    units = len(weight)
    depth = weight.size // units
    stored = prod(form.shape(units, padded_depth_of_packed_weights(form, depth))) * dtypes.nbytes(form.dtype)
    # Blocks with multipliers: neighbours suit any core; halves need bytes of data, for which dot2 sums a block apart.
    narrow = form.order == NEIGHBOURS or (
        form.order == HALVES and dtypes.nbytes(call.data_weight_bias[0].type.dtype) == 1
    )
    return stored <= MAX_PACKED_SHARE * weight.size and (narrow or not form.block)


def packed_product_annotations(call: OpCall, form: BitFields) -> Notes:
    """Return the block annotations of a product by packed weights: bounds of its sums, and the form of the weights."""
    more = ((WEIGHT_BLOCK, form.block), (WEIGHT_TABLES, form.tables))
    return (
        *sum_bound_annotations(*call.data_weight_bias),
        (WEIGHT_BITS, form.bits),
        *((name, n) for name, n in more if n),
    )


FAR = np.int8(13)
"""Factor by which test cases multiply numbers of few bits, so that only a table can store them in few bits."""
PACKED: Algorithms = {algorithm: partial(_saves_flash_when_packed, algorithm=algorithm) for algorithm in ORDERS}
"""Algorithms on packed weights, each with a predicate that tests whether the algorithm can compute a call."""


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
"""Candidate numbers of neighbouring weights that share a scale, tried if the weights of a channel have no common
scale."""
LOWEST, HIGHEST = -128, 127
NEAR = 2.0**-22
"""Largest relative difference between a float weight and the product of its integer and scale."""
SAMPLED = 16
"""Number of weights of a block that are tested first, before all are tested."""
_BATCH_BLOCKS = 256
"""Number of blocks whose scales are searched together; the search needs a few kilobytes of temporary arrays for each
block."""


@frozen
class QuantisedWeights:
    """Float weights (O, K) as int8 ``values`` times float32 ``scales`` (O, K / block). Each scale is shared by a block
    of weights."""

    values: Array
    scales: Array

    @property
    def block(self) -> int:
        """Number of weights that share a scale."""
        return int(self.values.shape[1] // self.scales.shape[1])


def recover_quantised_weights(float_weights: Array) -> QuantisedWeights | None:
    """Return int8 values and scales whose products are the float32 weights ``float_weights`` (O, K); None if there are
    none.

    The result has as few scales as possible."""
    units, depth = float_weights.shape
    for block in (depth, *(n for n in BLOCKS if n < depth and depth % n == 0)):
        parts = float_weights.reshape(-1, block).astype(np.float64)
        if not _block_scales(parts[:1])[0]:  # the first block alone rejects most weights
            continue
        scales = np.concatenate(
            [_block_scales(parts[k : k + _BATCH_BLOCKS]) for k in range(0, len(parts), _BATCH_BLOCKS)]
        )
        if scales.all():
            values = np.rint(parts / scales[:, None]).astype(np.int8).reshape(units, depth)
            return QuantisedWeights(values, scales.astype(np.float32).reshape(units, -1))
    return None


def _block_scales(weight_blocks: Array) -> Array:
    """Return for each block of weights (N, B) the largest scale s such that each weight is s times an int8 integer.

    The scale is 0 if there is none, and 1 for a block of zeros."""
    peaks = np.abs(weight_blocks).max(axis=1)
    largest = np.where(peaks == 0, 1.0, 0.0)
    # The peak is a level of 1 to 128 times the scale: 128 candidates, tested on a sample of magnitudes first. A negative peak may
    # have level -128, so the sample admits 128; all numbers are tested with their signs.
    scales = (peaks[:, None] / np.arange(1, 1 - LOWEST)).astype(np.float32).astype(np.float64)
    sample = np.concatenate((weight_blocks[:, :: -(-weight_blocks.shape[1] // SAMPLED)], peaks[:, None]), axis=1)
    likely = _are_multiples_of_scales(np.abs(sample)[:, None], scales, -LOWEST)
    for level in np.flatnonzero(likely.any(axis=0)):
        left = np.flatnonzero(likely[:, level] & (largest == 0))
        sure = _are_multiples_of_scales(weight_blocks[left], scales[left, level], HIGHEST)
        largest[left[sure]] = scales[left[sure], level]
    return largest


def _are_multiples_of_scales(weight_blocks: Array, scales: Array, max_integer: int) -> Array:
    """Test, for each block of weights (..., B), whether all its weights are integer multiples of its scale (...).

    The integers must be LOWEST..``max_integer``. The result is False for a scale of 0."""
    apart = np.where(scales > 0, scales, np.inf)[..., None]
    levels = np.rint(weight_blocks / apart)
    near = np.abs(levels * scales[..., None] - weight_blocks) <= NEAR * np.abs(weight_blocks)
    whole: Array = (near & (levels >= LOWEST) & (levels <= max_integer)).all(axis=-1) & (scales > 0)
    return whole


def recover_quantised_weights_of_call(call: OpCall) -> QuantisedWeights | None:
    """Return the constant weights (O, ...) of a float layer as int8 values and scales; None if they have no such form,
    or if the form saves no flash.

    The layer must have one group."""
    data, weight, _ = call.data_weight_bias
    if weight.data is None or {data.type.dtype, weight.data.dtype.name} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) > 1 or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    levels = recover_quantised_weights(rows) if np.isfinite(rows).all() else None
    smaller = levels is not None and levels.values.nbytes + levels.scales.nbytes < rows.nbytes
    return levels if smaller else None


def build_dequantised_product(call: OpCall, input_rows: te.Tensor) -> te.Tensor:
    """Build the float32 product (P, O) of ``input_rows`` (P, K) and weights stored as int8 values and scales, plus the
    bias."""
    levels, (_, weight, bias) = recover_quantised_weights_of_call(call), call.data_weight_bias
    if levels is None:
        raise InternalError(
            "product: float weights must be int8 multiples of scales; check recover_quantised_weights_of_call()"
        )
    bits = smallest_bit_width(levels.values)
    notes: Notes = ((OPENED, 1), *(((WEIGHT_BITS, bits),) if bits < 8 else ()))
    rows, block = weight.packed(levels.values), levels.block
    if levels.scales.shape[1] == 1:
        factors = weight.packed(levels.scales.reshape(-1))
        total = build_matrix_product(input_rows, rows, None, "float32", notes)

        def build_block_sum(p: Var, o: Var) -> Expr:
            real = total[p, o] * factors[o]
            return real if bias is None else real + build_initial_sum(bias, o, "float32")

        return te.compute(total.shape, build_block_sum, SCALED, ("p", "o"))
    scales, k = weight.packed(levels.scales), te.reduce_axis(input_rows.shape[1], "k")

    def build_sum(p: Var, o: Var) -> Expr:
        dequantised = ir.cast("float32", rows[o, k.var]) * scales[o, k.var // block]
        return te.sum_reduce(input_rows[p, k.var] * dequantised, k, init=build_initial_sum(bias, o, "float32"))

    return te.compute((input_rows.shape[0], rows.shape[0]), build_sum, ACC, ("p", "o"), notes)


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
"""Largest number of terms in a run: a part of a sum that is added in float16."""
LANES = 8
"""Number of columns in a vector of float16."""
HALF_TOLERANCE = 2e-2
"""Absolute tolerance of test cases in float16, whose sums have a few dozen terms of magnitude one or so."""
RUN_END_COST, ITERATION_COST, PADDING_COST = 5.0, 0.1, 4.0
"""Estimated costs, in units of a term: of the end of a run, of the end of an iteration, and of the zeros after a row of
data. measured: unknown"""
HALF = "float16"


def find_float16_weights(call: OpCall, group_count: int = 1) -> Array | None:
    """Return the constant weights (O, K) of a float layer, rounded to float16. ``group_count``: number of groups that
    the layer must have.

    Return None if the layer has another number of groups or another result dtype, if a weight would become infinite, or
    if the number of channels does not fill vectors."""
    data, weight, _ = call.data_weight_bias
    if weight.data is None or {data.type.dtype, weight.type.dtype} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) != group_count or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    halves = dtypes.round_to_16_bit_float(rows, HALF)
    return halves if len(rows) % LANES == 0 and np.isfinite(halves).all() else None


def float16_run_count_and_length(term_count: int) -> tuple[int, int]:
    """Return ``(runs, terms)``: the number of float16 runs into which a sum of ``term_count`` terms is split, and the
    number of terms in a run.

    The last terms may be appended zeros. The split has the least estimated time: an iteration adds up to four terms, as
    many as divide a run; the end of each run costs RUN_END_COST, and appended zeros cost PADDING_COST."""

    def estimate_cost(runs: int) -> float:
        terms = -(-term_count // runs)
        together = next(n for n in (4, 3, 2, 1) if terms % n == 0)
        return runs * (terms * (1 + ITERATION_COST / together) + RUN_END_COST) + PADDING_COST * (
            runs * terms > term_count
        )

    least = -(-term_count // RUN)
    runs = min(range(least, min(2 * least, term_count) + 1), key=estimate_cost)
    return runs, -(-term_count // runs)


def padded_float16_term_count(term_count: int) -> int:
    """Return ``term_count``, the number of terms of a sum, rounded up to whole float16 runs."""
    runs, terms = float16_run_count_and_length(term_count)
    return runs * terms


def build_float16_product(call: OpCall, float16_rows: te.Tensor, term_count: int) -> te.Tensor:
    """Build the float32 product (P, O) of ``float16_rows`` (P, K) and float16 weights, plus the bias.

    Each row has ``term_count`` terms, followed by zeros."""
    weights, (_, weight, bias) = find_float16_weights(call), call.data_weight_bias
    if weights is None:
        raise InternalError("product: these weights cannot be stored as float16; check find_float16_weights()")
    columns = weight.packed(np.pad(weights, ((0, 0), (0, float16_rows.shape[1] - term_count))))
    runs, terms = float16_run_count_and_length(term_count)
    run, term = te.reduce_axis(runs, "r"), te.reduce_axis(terms, "k")

    def build_float16_partial_sum(p: Var, o: Var, r: Var) -> Expr:
        k = r * terms + term.var
        return te.fma_reduce(float16_rows[p, k], columns[o, k], term, init=0.0)

    halves = te.compute((float16_rows.shape[0], len(weights), runs), build_float16_partial_sum, BLOCK, ("p", "o", "r"))

    def build_sum(p: Var, o: Var) -> Expr:
        return te.sum_reduce(ir.cast("float32", halves[p, o, run.var]), run, init=build_initial_sum(bias, o, "float32"))

    return te.compute((float16_rows.shape[0], len(weights)), build_sum, ACC, ("p", "o"))
