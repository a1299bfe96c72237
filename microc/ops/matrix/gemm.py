"""The matrix product as a tensor expression: forms of its weights."""

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
from microc.tir.bit_fields import HALVES, NEIGHBOURS, VECTOR, BitFields, bits_of, few_bits, few_values
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, OPENED, SCALED, SMALLEST_WEIGHT, SUM_BOUND, WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES
from microc.tir.names import HALVES as BLOCK

# ---- Weights of nine bits in one byte: what all of them are shifted by comes back as one sum for all channels.
#
# Bytes with a zero point, as uint8 has them, are beyond int8 once that is taken away, most often by the one number at the end of
# their range. Twice the flash for them all, and products that few cores have, are the other way. Instead,
#
#     sum(x w)  =  sum(x (w - c)) + sum(x c),
#
# where w - c is a byte, and the last sum is the same for all channels: a product with one channel more, added to each.

CHANNELS: Mapping[str, int] = MappingProxyType({"dense": 8, "conv2d": 32})
"""As many share the sum at least. A convolution keeps one of four bytes for every pixel: with fewer channels that is more
memory than the bytes are worth."""
_BYTE = 128


def shift_of(node: Node, graph: Graph, rows: Array) -> int:
    """c for weights w, a row for each channel; 0 where they are bytes as they are, or stay wider.

    Every product, and every sum of some of them, must fit in 32 bits shifted, too.
    """
    low, high = int(rows.min(initial=0)), int(rows.max(initial=0))
    fits, spread = low >= -_BYTE and high < _BYTE, high - low < 2 * _BYTE
    plain = len(rows) >= CHANNELS.get(node.op, len(rows) + 1) and node.attrs.get("groups", 1) == 1
    if fits or not spread or not plain or dtypes.nbytes(graph.types[node.inputs[0]].dtype) > 1:
        return 0
    shift = high - (_BYTE - 1) if high >= _BYTE else low + _BYTE
    least, most = dtypes.int_range(graph.types[node.inputs[0]].dtype)
    sums = np.abs(rows).sum(axis=1) + 2 * np.abs(rows - shift).sum(axis=1) + 2 * abs(shift) * rows.shape[1]
    return shift if int(sums.max(initial=0)) * max(most, -least) < INT32_MAX // 2 else 0


def lacking_of(
    rewrite: Rewrite, operands: Sequence[str], shift: int, shape: Sequence[int], dtype: str, attrs: Mapping[str, Attr]
) -> str:
    """What sums of this ``shape`` and ``dtype`` lack with shifted weights: one number for all channels, by the same operator
    under its ``attrs``. It is made before the sums, so that these can take it up at once."""
    data, weight = operands[:2]
    extents = rewrite.type(weight).shape
    same = rewrite.constant("shift", np.full((1, *extents[1:]), shift, np.int8 if shift < _BYTE else np.int16))
    axis = 1 if attrs.get("layout") == "NCHW" else len(shape) - 1
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    return rewrite.emit(rewrite.node.op, (data, same), rewrite.value("lacking", one, dtype), attrs)


# ---- The matrix product as a tensor expression, and what its operands look like: rows of weights, words of them,
# bounds of sums.


def padded_depth(call: OpCall, depth: int, least: int = WORD) -> int:
    """The terms of a product's sum: ``depth``, and zeros up to whole words of constant weights where there are more than
    ``least``."""
    data, weight, _ = call.weighted
    as_it_lies = call.multiples.partly and len(data.type.shape) == 2
    if as_it_lies or weight.data is None or call.attrs.get("out_dtype") != "int32" or depth <= least:
        return depth
    return call.multiples.terms(depth, data.type.dtype, str(weight.data.dtype))


def padded_units(call: OpCall, units: int) -> int:
    """The columns of a product: ``units``, and some of zeros behind constant ones."""
    known = call.constant and call.weighted[1].data is not None
    return call.multiples.units(units) if known else units


def byte_weights(call: OpCall) -> Array | None:
    """Constant weights as int8 (O, K), of int8 data and with a bias that is constant too, summed in 32 bits; else None."""
    data, weight, _ = call.weighted
    dtypes = (data.type.dtype, weight.type.dtype, call.attrs.get("out_dtype"))
    if weight.data is None or not call.constant or dtypes != ("int8", "int8", "int32"):
        return None
    return weight.data.reshape(weight.data.shape[0], -1)


def fits_unsigned(call: OpCall) -> bool:
    """Whether sums of int8 data by constant bytes stay within int32 where the data is stored as uint8, 128 more."""
    weights, (_, _, bias) = byte_weights(call), call.weighted
    if weights is None:
        return False
    first = 0 if bias is None or bias.data is None else int(np.abs(bias.data.astype(np.int64)).max(initial=0))
    return first + 383 * int(np.abs(weights.astype(np.int64)).sum(1).max(initial=0)) < 1 << 31


def less_offset(weight: Operand, bias: Operand | None) -> Array:
    """The bias (O) less 128 times the weights, which data that is 128 too large adds."""
    assert weight.data is not None
    rows = weight.data.reshape(weight.data.shape[0], -1).astype(np.int64)
    given = (
        np.zeros(len(rows), np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    return np.asarray(given - 128 * rows.sum(1), np.int32)


def packed_bias(like: Operand, data: Array) -> Operand:
    """A bias (O) that was computed; ``like`` is what it is named after."""
    tensor = like.packed(data)
    return Operand(TensorType(data.shape, str(data.dtype)), data, lambda shape: tensor, like.packed)


def weight_rows(weight: Operand, rows: int, depth: int, padded: int, more: int = 0) -> te.Tensor:
    """Weights as a matrix (rows, depth); constant ones are packed, with zeros up to ``padded`` and ``more`` rows of these."""
    if weight.data is None:
        return weight.tensor((rows, depth))
    return weight.packed(np.pad(weight.data.reshape(rows, depth), ((0, more), (0, padded - depth))))


def start(bias: Operand | None, channel: Expr, dtype: str) -> Expr:
    """What a sum starts from: the channel's bias, or zero."""
    if bias is None:
        return ir.const(0, dtype)
    return ir.cast(dtype, bias.tensor((bias.type.size,))[channel])


Notes = tuple[tuple[str, int | str], ...]


def product_notes(data: Operand, weight: Operand, bias: Operand | None) -> Notes:
    """What a schedule may know of integers times constants: the largest \\|sum\\| with its bias, and the smallest weight."""
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
    """``acc`` (P, O): sum over k of a[p, k] b[o, k], plus the bias."""
    k = te.reduce_axis(a.shape[1], "k")

    def element(p: Var, o: Var) -> Expr:
        product = ir.cast(dtype, a[p, k.var]) * ir.cast(dtype, b[o, k.var])
        return te.sum_reduce(product, k, init=start(bias, o, dtype))

    return te.compute((a.shape[0], b.shape[0]), element, ACC, ("p", "o"), notes)


def columns_bias(call: OpCall, more: int, *, unsigned: bool) -> Operand | None:
    """The bias of a product's columns and of ``more`` of zeros behind them, less what ``unsigned`` data is more than int8."""
    _, weight, bias = call.weighted
    if unsigned:
        return packed_bias(bias or weight, np.pad(less_offset(weight, bias), (0, more)))
    if not more or bias is None:
        return bias
    assert bias.data is not None
    return packed_bias(bias, np.pad(bias.data.reshape(-1), (0, more)))


def unit_product(call: OpCall, a: te.Tensor, units: int, depth: int, notes: Notes, more: int = 0) -> te.Tensor:
    """The product of rows (P, K) by the weights of ``units`` of ``depth`` terms, ``more`` units of zeros behind them, which are
    left out of the result. Rows of uint8 that are int8 data are 128 more than it."""
    data, weight, _ = call.weighted
    dtype = call.attrs.get("out_dtype") or data.type.dtype
    rows = weight_rows(weight, units, depth, a.shape[1], more)
    bias = columns_bias(call, more, unsigned=(a.dtype, data.type.dtype) == ("uint8", "int8"))
    total = matrix_product(a, rows, bias, dtype, notes)
    return te.compute((a.shape[0], units), lambda p, o: total[p, o], "wanted", ("p", "o")) if more else total


# ---- Products by constant weights of few bits, which a schedule stores side by side (:mod:`microc.tir.bit_fields`).
#
# Any constant int8 weights within -8..7 (4 bits) or -2..1 (2 bits) suit, wherever they come from; and such as are products of
# those and a multiplier of their own for each block of inputs. And, as indices of 4, 2 or 1 bits into a table, any weights of
# which an output channel has few values: what TFLite Micro's compressed constants are. The expression is that of any product;
# its note says how many bits a weight has, and there are zeros behind the terms up to whole elements of the form. Which form is
# for which core says ``schedule/rules/rule.py``.

MOST = 0.75
"""The share of the bytes that packed weights may take, with the zeros behind them."""
LARGEST = 32
"""The largest block whose sums are kept apart in an iteration: of larger ones the parts have equal multipliers."""


TABLES = "packed_tables"
ORDERS: Mapping[str, str] = MappingProxyType(
    {"packed": NEIGHBOURS, "packed_halves": HALVES, "packed_vectors": VECTOR, TABLES: NEIGHBOURS}
)
"""How weights lie, by algorithm."""


def packed_form(call: OpCall, algorithm: str) -> BitFields | None:
    """How an algorithm packs the constant weights (O, ...) of one group whose sums have 32 bits; None where it does not."""
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
        values = few_values(rows)
        fewer = values is not None and values[0] < bits_of(rows)
        return BitFields(values[0], order, tables=values[1]) if values and fewer else None
    bits, block = few_bits(rows)
    if block and order == HALVES:
        block = min(block, LARGEST)
    return BitFields(bits, order, block) if bits < 8 else None


def packed_depth(form: BitFields, depth: int) -> int:
    """Terms of a sum, with zeros up to whole elements."""
    whole = max(form.group, form.block)
    return -(-depth // whole) * whole


def _suits(call: OpCall, algorithm: str) -> bool:
    """Whether weights may be packed, and take less flash then."""
    form, weight = packed_form(call, algorithm), call.weighted[1].data
    if form is None or weight is None:
        return False
    units = len(weight)
    depth = weight.size // units
    stored = prod(form.shape(units, packed_depth(form, depth))) * dtypes.nbytes(form.dtype)
    narrow = form.order == NEIGHBOURS or (form.order == HALVES and dtypes.nbytes(call.weighted[0].type.dtype) == 1)
    return stored <= MOST * weight.size and (narrow or not form.block)


def packed_notes(call: OpCall, form: BitFields) -> Notes:
    """What a schedule may know of the product."""
    more = ((WEIGHT_BLOCK, form.block), (WEIGHT_TABLES, form.tables))
    return (*product_notes(*call.weighted), (WEIGHT_BITS, form.bits), *((name, n) for name, n in more if n))


FAR = np.int8(13)
"""What cases multiply numbers of few bits by, so that only a table holds them."""
PACKED: Algorithms = {algorithm: partial(_suits, algorithm=algorithm) for algorithm in ORDERS}
"""Whether an algorithm suits a product."""


# ---- Products of floats by constant weights that are integers times scales: bytes in flash, opened in registers.
#
# Networks whose weights alone are quantised (ONNX ``DequantizeLinear`` or ``MatMulNBits``, TFLite's layers of floats on int8)
# are read as networks of floats. What the weights were is found again from the numbers, wherever they come from and whatever
# moved them: those of an output channel, or of each block of its inputs, are w = s q with integers q of 8 bits, or of 4 or 2,
# which are packed.
#
# A float32 w = round(s q) differs from s q by 2**-24 of it, the largest of a block gives s to 2**-23: what is within 2**-22 of
# its level counts as it. So a sum changes by at most 2**-22 sum(\|x w\|), as much as four roundings of its terms do. One scale
# for a channel is applied once, to the sum; scales of blocks to each weight, as it was dequantised.

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


# ---- Products of floats in float16, where the user lets them be so (``--math half``): each factor is rounded to
# float16, terms are added in float16 in runs of at most :data:`RUN`, every one with one rounding, and the runs' sums
# are added in float32.
#
# A run of n terms is then off by (n + 2) u of its sum of \|x w\| at most, but for terms in u**2, u = 2**-11: each factor is off
# by u of itself, which makes 2 u of a term, and each of n additions rounds by u of a partial sum, which is no larger than the sum
# of \|x w\| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Beside that the roundings of float32 between
# runs do not count: (:data:`RUN` + 2) 2**-11 sum \|x w\|, and as a rule a small part of it, for roundings go either way. Numbers
# below 2**-14 are multiples of 2**-24 in float16: each factor and each addition may be off by another 2**-25.
#
# From 65,520 on numbers are infinite in float16: weights that large keep a layer in float32, what is known when a network runs
# does not. An activation or a partial sum beyond it makes infinities, or NaN, of the outputs that it is part of.

RUN = 32
"""Terms that are added in float16 at most."""
LANES = 8
"""Columns of a vector of halves."""
HALF_TOLERANCE = 2e-2
"""Of results of a few dozen terms of about one."""
END, TURN, ZEROS = 5.0, 0.1, 4.0
"""Terms that the end of a run, that of an iteration and zeros behind a row of data take as long as."""
HALF = "float16"


def half_weights(call: OpCall, groups: int = 1) -> Array | None:
    """Constant weights (O, K) of a layer of floats in so many groups as float16; None where some would be infinite, or vectors
    are not filled."""
    data, weight, _ = call.weighted
    if weight.data is None or {data.type.dtype, weight.type.dtype} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) != groups or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    halves = dtypes.narrowed(rows, HALF)
    return halves if len(rows) % LANES == 0 and np.isfinite(halves).all() else None


def runs_of(depth: int) -> tuple[int, int]:
    """How many runs a sum has, and the terms of each, of which the last may be zeros: what takes the least time, for a run's end
    takes as long as :data:`END` terms, four terms are an iteration where they come out even, and zeros have to be made."""

    def time(runs: int) -> float:
        terms = -(-depth // runs)
        together = next(n for n in (4, 3, 2, 1) if terms % n == 0)
        return runs * (terms * (1 + TURN / together) + END) + ZEROS * (runs * terms > depth)

    least = -(-depth // RUN)
    runs = min(range(least, min(2 * least, depth) + 1), key=time)
    return runs, -(-depth // runs)


def padded_terms(depth: int) -> int:
    """The terms of a sum, and zeros up to whole runs."""
    runs, terms = runs_of(depth)
    return runs * terms


def half_product(call: OpCall, rows: te.Tensor, depth: int) -> te.Tensor:
    """The product of ``rows`` (P, K) of float16, zeros behind ``depth``, by the weights, and the bias: (P, O) in float32."""
    weights, (_, weight, bias) = half_weights(call), call.weighted
    if weights is None:
        raise InternalError("this product is not computed in float16")
    columns = weight.packed(np.pad(weights, ((0, 0), (0, rows.shape[1] - depth))))
    runs, terms = runs_of(depth)
    run, term = te.reduce_axis(runs, "r"), te.reduce_axis(terms, "k")

    def partial(p: Var, o: Var, r: Var) -> Expr:
        k = r * terms + term.var
        return te.fma_reduce(rows[p, k], columns[o, k], term, init=0.0)

    halves = te.compute((rows.shape[0], len(weights), runs), partial, BLOCK, ("p", "o", "r"))

    def element(p: Var, o: Var) -> Expr:
        return te.sum_reduce(ir.cast("float32", halves[p, o, run.var]), run, init=start(bias, o, "float32"))

    return te.compute((rows.shape[0], len(weights)), element, ACC, ("p", "o"))
