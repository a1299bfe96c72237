# SPDX-License-Identifier: Apache-2.0
"""Products of bytes in bit fields of a word (SWAR), for cores without SIMD instructions.

A product has P rows of data (pixels), O output channels and K inputs of a channel. There are two packings: ``pairs``
packs two pixels in a word, ``quads`` packs the weights of four output channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.numerics import round_up_to_multiple
from microc.ops.matrix.gemm import constant_int8_weights
from microc.ops.registry import OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, COLUMN, ENTRY, PAIRS, PART, VALUE

# ---- Products of bytes on cores without SIMD: one multiplication serves two pixels.
#
# Two pixels' values x and y of the same input lie in one word, x + 2**16 y. A product with a weight w is the word w x + 2**16 w
# y, and so is a sum of such products as long as both fields, a = sum(w x) and b = sum(w y), stay within 16 bits. The bounds
# follow from the weights: at most ``terms`` products are summed before the fields are taken apart. With c = 2**15 + 2**31
# added, the fields are A = a + 2**15 and B = b + 2**15, both within 0..2**16 - 1, and the word is t = A + 2**16 B exactly. Two
# sums are kept, modulo 2**32:
#
#     s = sum(t) = sum(A) + 2**16 sum(B),        h = sum(t >> 16) = sum(B),        s - 2**16 h = sum(A).
#
# Weights are stored as unsigned bytes u = w + 128, which Armv6-M loads at an offset without sign extension. The offset adds 128
# times the words, equally for all channels: a word behind each block holds c less that, from which its sums start.
#
# Where the weights of a block would exceed the fields, part of the largest moves to a block of its own at the end of the channel,
# which reads its inputs by index. All of it is exact; :func:`pack_pairs` proves the bounds with the weights at hand.

FIELD = 1 << 15
"""A field of a word represents the integers -FIELD .. FIELD - 1."""
LOW, HIGH = -128, 127
"""Range of a pixel's values (int8)."""
TERMS = (8, 6, 4, 3, 2)
"""Candidate numbers of products that are summed before the two fields of a word are split."""
LONG_TERMS = (16, 12, *TERMS)
"""Candidate numbers for quads with widened inputs. Their blocks end with more instructions, so that long blocks pay; small
weights permit them."""
MAX_MOVED = 8
"""Largest number of moved parts of weights in the additional last block of a channel."""
ADDED = (FIELD << 16) + FIELD
"""Constant c that makes both fields of a word non-negative: 2**31 + 2**15."""


@frozen
class PairPacking:
    """Packing of weights for a product that multiplies two pixels at once, in two fields of one 32-bit word.

    ``uint8_weights`` are the weights (O, K) plus 128; K is a multiple of ``terms_per_block``. The sum of a block of
    ``terms_per_block`` products must not overflow a field. Therefore parts of some weights are moved to an additional
    last block of their channel. All channels have the same number of moved parts. ``moved_input_indices``: for each
    part, the index of its input in the stage ``pairs``. ``moved_weights``: the parts themselves, 0 if a channel needs
    fewer parts."""

    terms_per_block: int
    uint8_weights: Array
    moved_input_indices: Array
    moved_weights: Array

    @property
    def blocks(self) -> int:
        """Number of blocks of ``terms_per_block`` products in a channel, including the additional block of moved
        parts."""
        return int(self.uint8_weights.shape[1]) // self.terms_per_block + (1 if self.moved_weights.size else 0)

    @property
    def cost(self) -> float:
        """Estimated number of instructions for one channel and two pixels. Only instructions that differ between
        packings are counted: per input, block and moved part."""
        depth, moved = int(self.uint8_weights.shape[1]), int(self.moved_weights.shape[1])
        return 3.5 * depth + 5.5 * self.blocks + 6 * moved


def pack_pairs(weights: Array) -> PairPacking | None:
    """Return the cheapest packing of int8 weights (O, K) that multiplies two pixels at once; None if no block size is
    possible."""
    packings = [p for p in (_pack_pairs_in_blocks(weights, terms) for terms in TERMS) if p is not None]
    return min(packings, key=lambda p: p.cost, default=None)


def find_pair_packing(call: OpCall) -> PairPacking | None:
    """Return the packing that multiplies two pixels at once, for a product by constant weights and bias; None if there
    is none."""
    weights = constant_int8_weights(call)
    if weights is None or call.attrs.get("groups", 1) > 1 or call.out_types[0].size < 2 * len(weights):
        return None
    return pack_pairs(weights)


def _pack_pairs_in_blocks(weights: Array, terms_per_block: int) -> PairPacking | None:
    """Pack weights (O, K) in blocks of ``terms_per_block`` terms; return None if a channel needs more than MAX_MOVED
    moved parts."""
    channels, depth = weights.shape
    total = round_up_to_multiple(depth, terms_per_block)
    remaining = np.pad(weights.astype(np.int64), ((0, 0), (0, total - depth))).reshape(channels, -1, terms_per_block)
    moves: list[list[tuple[int, int]]] = [[] for _ in range(channels)]
    for channel, block in np.argwhere(max_field_overflow(remaining) > 0):
        # Move as much of the largest weight as brings the block into the field; a unit of weight changes a sum by HIGH at least.
        row = remaining[channel, block].tolist()  # numbers of Python, because a block is too short for NumPy to be fast
        while (excess := _overflow_of_block(row)) > 0:
            index = max(range(terms_per_block), key=lambda k: abs(row[k]))
            part = min(-(-excess // HIGH), abs(row[index])) * (1 if row[index] > 0 else -1)
            row[index] -= part
            # Entries of pairs are blocks of ``terms`` inputs and the shift behind them.
            moves[channel].append((int(block) * (terms_per_block + 1) + index, part))
            if len(moves[channel]) > MAX_MOVED:
                return None
        remaining[channel, block] = row
    max_moves = max(map(len, moves))
    places, moved = np.zeros((channels, max_moves), np.uint16), np.zeros((channels, max_moves), np.int32)
    for channel, entries in enumerate(moves):
        for k, (index, part) in enumerate(entries):
            places[channel, k], moved[channel, k] = index, part
    if max_moves and int(max_field_overflow(moved.astype(np.int64)).max()) > 0:
        return None
    return PairPacking(terms_per_block, (remaining.reshape(channels, total) + 128).astype(np.uint8), places, moved)


def max_field_overflow(weights: Array) -> Array:
    """Return the amount by which sums of weights times pixels over the last axis can exceed a field of a word; at most
    0 if they cannot."""
    positive, negative = np.maximum(weights, 0).sum(-1), np.minimum(weights, 0).sum(-1)
    above = positive * HIGH + negative * LOW - (FIELD - 1)
    below = -(positive * LOW + negative * HIGH) - FIELD
    excess: Array = np.maximum(above, below)
    return excess


def _overflow_of_block(weights: list[int]) -> int:
    """Compute :func:`max_field_overflow` of the weights of one block, in Python integers."""
    positive = sum([w for w in weights if w > 0])
    negative = sum(weights) - positive
    return max(positive * HIGH + negative * LOW - (FIELD - 1), -(positive * LOW + negative * HIGH) - FIELD)


def build_paired_product(
    pixels: te.Tensor, pixel_count: int, weight: Operand, bias: Operand | None, packing: PairPacking
) -> te.Tensor:
    """Build the int32 product (``pixel_count``, O) of pixels (P, K) and weights, plus the bias, two pixels at a time.

    If the number of pixels is odd, the last pixel is paired with itself. Stages: ``pairs`` (pair of pixels, terms of
    all blocks, each block followed by the word from which its sum starts), ``part`` (pair, block, O) with the sums t of
    blocks, ``acc`` (pair, 2, O) with the sums s of all t and h of their upper fields, and ``value``."""
    rows, depth = pixels.shape
    channels, terms = packing.uint8_weights.shape[0], packing.terms_per_block
    taps, start_of = weight.packed(packing.uint8_weights), _initial_pair_sums(weight, bias, packing)
    half = (pixel_count + 1) // 2

    def build_packed_pair(p: Var, k: Expr) -> Expr:
        partner = ir.binary("min", p * 2 + 1, rows - 1) if rows % 2 else p * 2 + 1
        return to_uint32(pixels[p * 2, k]) + (to_uint32(pixels[partner, k]) << 16)

    def build_word_or_block_start(p: Var, e: Var) -> Expr:
        block, place = e // (terms + 1) * terms, e % (terms + 1)
        total = build_packed_pair(p, block)
        for k in range(1, terms):
            total = total + build_packed_pair(p, block + k)
        # Behind each block: c - 128 sum(words), what the sum of the block starts from.
        return ir.select(place < terms, build_packed_pair(p, block + place), uint32_literal(ADDED) - (total << 7))

    pairs = te.compute((half, depth // terms * (terms + 1)), build_word_or_block_start, PAIRS, ("p", "e"))
    term, block = te.reduce_axis(terms, "i"), te.reduce_axis(depth // terms, "j")

    def build_block_sum(p: Var, j: Var, o: Var) -> Expr:
        product = pairs[p, j * (terms + 1) + term.var] * ir.cast("uint32", taps[o, j * terms + term.var])
        return te.sum_reduce(product, term, init=pairs[p, j * (terms + 1) + terms])

    part = te.compute((half, depth // terms, channels), build_block_sum, PART, ("p", "j", "o"))

    def build_field_sum(p: Var, h: Var, o: Var) -> Expr:
        total, start = part[p, block.var, o], start_of(o)
        # s = sum(A) + 2**16 sum(B) starts from both fields' start, 2**16 + 1 times it; h = sum(B) from one.
        low, high = start * uint32_literal(65537), start
        if packing.moved_weights.size:
            rest = _build_sum_of_moved_parts(weight, packing, pairs, p, o)
            low, high = low + rest, high + (rest >> 16)
        return te.sum_reduce(ir.select(h < 1, total, total >> 16), block, init=ir.select(h < 1, low, high))

    acc = te.compute((half, 2, channels), build_field_sum, ACC, ("p", "h", "o"))

    def unpack_product(p: Var, o: Var) -> Expr:
        low = acc[p // 2, 0, o] - (acc[p // 2, 1, o] << 16)
        return ir.cast("int32", ir.select(p % 2 < 1, low, acc[p // 2, 1, o]))

    return te.compute((pixel_count, channels), unpack_product, VALUE, ("p", "o"))


def _initial_pair_sums(weight: Operand, bias: Operand | None, packing: PairPacking) -> Callable[[Var], Expr]:
    """Return the initial value of the sums of a channel: the bias minus FIELD for each block, because the sum of each block
    contains FIELD. Without a bias it is the same constant for all channels."""
    start = -packing.blocks * FIELD
    if bias is None or bias.data is None:
        return lambda _: uint32_literal(start % (1 << 32))
    first = weight.packed((bias.data.astype(np.int64).reshape(-1) + start).astype(np.int32))
    return lambda o: ir.cast("uint32", first[o])


def _build_sum_of_moved_parts(weight: Operand, packing: PairPacking, pairs: te.Tensor, p: Var, o: Var) -> Expr:
    """Build the sum t of a channel's additional last block, which contains the parts of weights moved from other
    blocks."""
    places, parts = weight.packed(packing.moved_input_indices, table=True), weight.packed(packing.moved_weights)
    total: Expr = uint32_literal(ADDED)
    for k in range(packing.moved_weights.shape[1]):
        total = total + ir.cast("uint32", parts[o, k]) * pairs[p, ir.cast("int32", places[o, k])]
    return total


def swap_bytes(word: Expr) -> Expr:
    """Swap the bytes of each half of a uint32 word."""
    return ir.cast("uint32", ir.call("swap_bytes", ir.cast("int32", word)))


def to_uint32(x: Expr) -> Expr:
    """Convert an integer expression to uint32, modulo 2**32."""
    return ir.cast("uint32", ir.cast("int32", x))


def uint32_literal(value: int) -> Expr:
    """Return a uint32 constant."""
    return ir.const(value, "uint32")


# ---- Products of bytes on cores without SIMD: four channels' weights in a word, two multiplications for them.
#
# For a single row of data there are no two pixels to share a multiplication (``pairs``), but two channels can. Four channels'
# weights of the same input are the bytes u = w + 128 of a word v = u0 + 2**8 u1 + 2**16 u2 + 2**24 u3. Then (v >> 8) & 0xFF00FF
# is u1 + 2**16 u3. With sums over the inputs x of a block, modulo 2**32,
#
#     q = sum(x ((v >> 8) & 0xFF00FF)) = sum(x u1) + 2**16 sum(x u3),        p - 2**8 q = sum(x u0) + 2**16 sum(x u2),
#
# where p = sum(x v). Both are two sums side by side: e = sum(x u0) + 2**16 sum(x u2) and o = sum(x u1) + 2**16 sum(x u3). A core
# that swaps the bytes of halves in one instruction needs no mask. The swapped word is u1 + 2**8 u0 + 2**16 u3 + 2**24 u2, so that
#
#     p = e + 2**8 o,    r = sum(x swapped) = o + 2**8 e,    p - 2**8 r = (1 - 2**16) e,
#
# and e = (1 + 2**16) (p - 2**8 r), because (1 + 2**16) (1 - 2**16) is 1 modulo 2**32; then o = r - 2**8 e. A word behind each
# block of inputs, 2**15 + 2**31 - 128 (2**16 + 1) sum(x), cancels the offset of the bytes and makes each sum one of x w plus
# 2**15, which is within 0..2**16 - 1 as long as the block's weights permit. From there on the fields are handled as in
# ``pairs``.
#
# Where the weights of a block would exceed the fields, part of the largest moves to a column of its own at the end, which reads
# the same input again; channels share these columns. All of it is exact; :func:`pack_quads` proves the bounds with the weights
# at hand.

CHANNELS = 4
"""Number of weights in a word, each of another output channel."""
MAX_REPEATED_SHARE = 0.25
"""Largest number of additional columns that read an input again, as a fraction of the number of inputs."""
_MASK = 0xFF00FF


@frozen
class QuadPacking:
    """Packing of int8 weights (O, columns) for a product that multiplies four output channels at once.

    O is a multiple of four, and the number of columns is a multiple of ``terms_per_block``. The first K columns
    read the K inputs. ``repeated_inputs``: indices of the inputs that the additional columns read again."""

    terms_per_block: int
    weights: Array
    repeated_inputs: Array

    @property
    def blocks(self) -> int:
        """Number of blocks of ``terms_per_block`` columns."""
        return int(self.weights.shape[1]) // self.terms_per_block

    @property
    def words(self) -> Array:
        """Packed weights (O / 4, columns): each uint32 contains the weights of four channels, plus 128, as bytes."""
        channels, columns = self.weights.shape
        unsigned = (self.weights.astype(np.int64) + 128).reshape(channels // CHANNELS, CHANNELS, columns)
        words: Array = (unsigned << (8 * np.arange(CHANNELS)).reshape(1, CHANNELS, 1)).sum(1).astype(np.uint32)
        return words

    @property
    def cost(self) -> float:
        """Estimated number of instructions for four channels, plus a small cost for the flash of a column. Only
        instructions that differ between packings are counted."""
        return 8.5 * int(self.weights.shape[1]) + 13.0 * self.blocks


def pack_quads(weights: Array, block_sizes: tuple[int, ...]) -> QuadPacking | None:
    """Return the cheapest packing of int8 weights (O, K) in blocks of one of ``block_sizes`` that multiplies four channels at
    once; None if no block size is possible."""
    packings = [p for p in (_pack_quads_in_blocks(weights, terms) for terms in block_sizes) if p is not None]
    return min(packings, key=lambda p: p.cost, default=None)


def find_quad_packing(call: OpCall, *, widened: bool) -> QuadPacking | None:
    """Return the packing that multiplies four channels at once, for a product of inputs, which are ``widened`` to words, by
    constant int8 weights (O, ...); None if there is none."""
    weights = constant_int8_weights(call)
    if weights is None or len(weights) % CHANNELS:
        return None
    return pack_quads(weights, LONG_TERMS if widened else TERMS)


def _pack_quads_in_blocks(weights: Array, columns_per_block: int) -> QuadPacking | None:
    """Pack weights (O, K) in blocks of ``columns_per_block`` columns; return None if too many columns would be
    repeated."""
    channels, depth = weights.shape
    most = depth + int(MAX_REPEATED_SHARE * depth)
    kept = np.zeros((channels, round_up_to_multiple(most, columns_per_block)), np.int64)
    kept[:, :depth] = weights
    blocks, places = kept.reshape(channels, -1, columns_per_block), list(range(depth))
    over = max_field_overflow(blocks)
    # Repeat one column at a time: of the block that exceeds the field most, the input whose weights can give up most.
    while over.max(initial=0) > 0:
        end = len(places)
        if end == most:
            return None
        block = int(over.max(0).argmax())
        wanted = np.maximum(-(-over[:, block] // HIGH), 0)[:, None]
        possible = np.minimum(np.abs(blocks[:, block]), wanted)
        column = int(possible.sum(0).argmax())
        part = np.sign(blocks[:, block, column]) * possible[:, column]
        blocks[:, block, column] -= part
        kept[:, end] = part
        places.append(places[block * columns_per_block + column])
        for changed in (block, end // columns_per_block):
            over[:, changed] = max_field_overflow(blocks[:, changed])
    total = round_up_to_multiple(len(places), columns_per_block)
    repeated = np.array([*places[depth:], *(0,) * (total - len(places))], np.uint16)
    return QuadPacking(columns_per_block, kept[:, :total].astype(np.int8), repeated)


def build_quad_product(
    rows: te.Tensor, weight: Operand, bias: Operand | None, packing: QuadPacking, stores_widened_inputs: bool
) -> te.Tensor:
    """Build the int32 product (P, O) of rows (P, K) and weights, plus the bias, four output channels at a time.

    Stages:

    - ``column`` (P, columns): the inputs of all columns.
    - ``entry`` (P, ...): for each block, the inputs as words, then the word behind the block; without
    ``stores_widened_inputs`` only the latter.
    - ``part`` (P, block, O / 4, 2): for each block, the sum q of channels 1 and 3, and the sum p of all four channels.
    - ``acc`` (P, O / 4, 2, 2): the sums of the fields, as in ``pairs``.
    - ``value`` (P, O)."""
    terms, blocks, quads = packing.terms_per_block, packing.blocks, packing.weights.shape[0] // CHANNELS
    count, kept = rows.shape[0], terms if stores_widened_inputs else 0
    words, start_of = weight.packed(packing.words), _initial_quad_sums(weight, bias, packing)
    inputs = _build_column_inputs(rows, weight, packing)

    def build_word_or_block_start(p: Var, e: Var) -> Expr:
        block, place = e // (kept + 1) * terms, e % (kept + 1)
        total = to_uint32(inputs[p, block])
        for k in range(1, terms):
            total = total + to_uint32(inputs[p, block + k])
        total = total << 7
        # total is 128 sum(x): the word behind a block is c - 128 (2**16 + 1) sum(x).
        behind = uint32_literal(ADDED) - total - (total << 16)
        return (
            ir.select(place < terms, to_uint32(inputs[p, block + place]), behind) if stores_widened_inputs else behind
        )

    entries = te.compute((count, blocks * (kept + 1)), build_word_or_block_start, ENTRY, ("p", "e"))
    term, block = te.reduce_axis(terms, "i"), te.reduce_axis(blocks, "j")

    def build_block_sum(p: Var, j: Var, g: Var, f: Var) -> Expr:
        taps = words[g, j * terms + term.var]
        odd = swap_bytes(taps) if stores_widened_inputs else (taps >> 8) & uint32_literal(_MASK)
        factor = ir.select(f < 1, odd, taps)
        x = (
            entries[p, j * (terms + 1) + term.var]
            if stores_widened_inputs
            else to_uint32(inputs[p, j * terms + term.var])
        )
        return te.sum_reduce(factor * x, term)

    part = te.compute((count, blocks, quads, 2), build_block_sum, PART, ("p", "j", "g", "f"))

    def build_field_sum(p: Var, g: Var, f: Var, h: Var) -> Expr:
        odd: Expr = part[p, block.var, g, 0]
        even: Expr = part[p, block.var, g, 1]
        # Field f 0: channels 0 and 2. Field f 1: channels 1 and 3.
        even = even - (odd << 8)
        if stores_widened_inputs:
            even = even + (even << 16)
            odd = odd - (even << 8)
        total = ir.select(f < 1, even, odd) + entries[p, block.var * (kept + 1) + kept]
        return te.sum_reduce(ir.select(h < 1, total, total >> 16), block, init=start_of(g, f, h))

    acc = te.compute((count, quads, 2, 2), build_field_sum, ACC, ("p", "g", "f", "h"))

    def unpack_product(p: Var, o: Var) -> Expr:
        low, high = acc[p, o // CHANNELS, o % 2, 0], acc[p, o // CHANNELS, o % 2, 1]
        return ir.cast("int32", ir.select(o % CHANNELS < 2, low - (high << 16), high))

    return te.compute((count, quads * CHANNELS), unpack_product, VALUE, ("p", "o"))


def _build_column_inputs(rows: te.Tensor, weight: Operand, packing: QuadPacking) -> te.Tensor:
    """Return the inputs of all columns (P, columns): the data, followed by the inputs that are read again."""
    count, depth = rows.shape
    if not packing.repeated_inputs.size:
        return rows
    places = weight.packed(packing.repeated_inputs, table=True)

    def build_column_input(p: Var, k: Var) -> Expr:
        again = ir.cast("int32", places[ir.binary("max", k - depth, ir.const(0, "int32"))])
        return rows[p, ir.select(k < depth, k, again)]

    return te.compute((count, packing.weights.shape[1]), build_column_input, COLUMN, ("p", "k"))


def _initial_quad_sums(weight: Operand, bias: Operand | None, packing: QuadPacking) -> Callable[[Var, Var, Var], Expr]:
    """Return the initial value of the sums of fields, given the indices (O / 4, 2, 2): the bias minus FIELD for each block,
    combined as in ``pairs``. Without a bias these are two constants."""
    start = -packing.blocks * FIELD
    if bias is None or bias.data is None:
        both = uint32_literal((start + (start << 16)) % (1 << 32))
        return lambda g, f, h: ir.select(h < 1, both, uint32_literal(start % (1 << 32)))
    starts = (bias.data.astype(np.int64).reshape(-1) + start).reshape(-1, 2, 2)
    low, high = starts[:, 0], starts[:, 1]
    first = weight.packed(np.stack((low + (high << 16), high), axis=2).astype(np.uint32))
    return lambda g, f, h: first[g, f, h]
