"""Products of bytes on cores without SIMD: one multiplication serves two pixels.

Two pixels' values x and y of the same input lie in one word, x + 2**16 y. A product with a weight w is the word w x + 2**16 w y,
and so is a sum of such products as long as both fields, a = sum(w x) and b = sum(w y), stay within 16 bits. The bounds follow
from the weights: at most ``terms`` products are summed before the fields are taken apart. With c = 2**15 + 2**31 added, the
fields are A = a + 2**15 and B = b + 2**15, both within 0..2**16 - 1, and the word is t = A + 2**16 B exactly. Two sums are
kept, modulo 2**32:

    s = sum(t) = sum(A) + 2**16 sum(B),        h = sum(t >> 16) = sum(B),        s - 2**16 h = sum(A).

Weights are stored as unsigned bytes u = w + 128, which Armv6-M loads at an offset without sign extension; what that adds, 128
times the words, is the same for all channels: a word behind each block's holds c less it, the shift that its sums start from.

Where the weights of a block would leave the fields, part of the largest moves to a block of its own at the end of the channel,
which reads its inputs by index. All of it is exact; :func:`pack` proves the bounds with the weights at hand.
"""

from __future__ import annotations

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.frozen import frozen
from microc.ops.matrix.gemm import byte_weights
from microc.ops.registry import OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, PAIRS, PART, VALUE

FIELD = 1 << 15
"""Fields hold -FIELD .. FIELD - 1."""
LOW, HIGH = -128, 127
"""The values of a pixel."""
TERMS = (8, 6, 4, 3, 2)
"""Products before the fields are taken apart."""
MOST_MOVED = 8
"""Entries of the block at the end of a channel."""
ADDED = (FIELD << 16) + FIELD
"""What makes both fields of a word positive."""


@frozen
class Packing:
    """Weights (O, K), K a multiple of ``terms``, as bytes w + 128 (``unsigned``), and what was moved: for every channel the same
    number of inputs (``places`` in ``pairs``) and weights (``moved``), 0 where fewer are needed."""

    terms: int
    unsigned: Array
    places: Array
    moved: Array

    @property
    def blocks(self) -> int:
        """Blocks of a channel."""
        return int(self.unsigned.shape[1]) // self.terms + (1 if self.moved.size else 0)

    @property
    def cost(self) -> float:
        """Instructions for a channel and two pixels, as far as packings differ."""
        depth, moved = int(self.unsigned.shape[1]), int(self.moved.shape[1])
        return 3.5 * depth + 5.5 * self.blocks + 6 * moved


def pack(weights: Array) -> Packing | None:
    """The cheapest packing of int8 weights (O, K); None when no number of terms suits them."""
    found = [p for p in (_packing(weights, terms) for terms in TERMS) if p is not None]
    return min(found, key=lambda p: p.cost, default=None)


def pair_packing(call: OpCall) -> Packing | None:
    """The packing for a product of several pixels with constant weights and bias; None where there is none."""
    weights = byte_weights(call)
    if weights is None or call.attrs.get("groups", 1) > 1 or call.out_types[0].size < 2 * len(weights):
        return None
    return pack(weights)


def padded_depth(depth: int, terms: int) -> int:
    """The next multiple of ``terms``."""
    return -(-depth // terms) * terms


def _packing(weights: Array, terms: int) -> Packing | None:
    channels, depth = weights.shape
    total = padded_depth(depth, terms)
    kept = np.pad(weights.astype(np.int64), ((0, 0), (0, total - depth))).reshape(channels, -1, terms)
    moves: list[list[tuple[int, int]]] = [[] for _ in range(channels)]
    for channel, block in np.argwhere(overflow(kept) > 0):
        row = kept[channel, block]
        while (excess := int(overflow(row))) > 0:
            place = int(np.argmax(np.abs(row)))
            part = int(np.sign(row[place])) * min(-(-excess // HIGH), abs(int(row[place])))
            row[place] -= part
            moves[channel].append((int(block) * (terms + 1) + place, part))
    most = max(map(len, moves))
    places, moved = np.zeros((channels, most), np.uint16), np.zeros((channels, most), np.int32)
    for channel, entries in enumerate(moves):
        for k, (place, part) in enumerate(entries):
            places[channel, k], moved[channel, k] = place, part
    if most > MOST_MOVED or (most and int(overflow(moved.astype(np.int64)).max()) > 0):
        return None
    return Packing(terms, (kept.reshape(channels, total) + 128).astype(np.uint8), places, moved)


def overflow(weights: Array) -> Array:
    """How far sums over the last axis can leave a field, for all pixel values; at most 0 where they cannot."""
    positive, negative = np.maximum(weights, 0).sum(-1), np.minimum(weights, 0).sum(-1)
    above = positive * HIGH + negative * LOW - (FIELD - 1)
    below = -(positive * LOW + negative * HIGH) - FIELD
    excess: Array = np.maximum(above, below)
    return excess


def paired_product(pixels: te.Tensor, count: int, weight: Operand, bias: Operand | None, packing: Packing) -> te.Tensor:
    """``count`` pixels (P, K) times weights as int32 (count, O); without a partner the last one is its own. Stages: ``pairs``
    (pair of pixels, blocks of terms and their shift), ``part`` (pair, block, O) the sums t of blocks, ``acc`` (pair, 2, O) the
    sums s and h, and ``value``."""
    rows, depth = pixels.shape
    channels, terms = packing.unsigned.shape[0], packing.terms
    taps, first = weight.packed(packing.unsigned), _start(weight, bias, packing, channels)
    half = (count + 1) // 2

    def pair(p: Var, k: Expr) -> Expr:
        partner = ir.binary("min", p * 2 + 1, rows - 1) if rows % 2 else p * 2 + 1
        return word(pixels[p * 2, k]) + (word(pixels[partner, k]) << 16)

    def entry(p: Var, e: Var) -> Expr:
        block, place = e // (terms + 1) * terms, e % (terms + 1)
        total = pair(p, block)
        for k in range(1, terms):
            total = total + pair(p, block + k)
        return ir.select(place < terms, pair(p, block + place), number(ADDED) - (total << 7))

    pairs = te.compute((half, depth // terms * (terms + 1)), entry, PAIRS, ("p", "e"))
    term, block = te.reduce_axis(terms, "i"), te.reduce_axis(depth // terms, "j")

    def summed(p: Var, j: Var, o: Var) -> Expr:
        product = pairs[p, j * (terms + 1) + term.var] * ir.cast("uint32", taps[o, j * terms + term.var])
        return te.sum_reduce(product, term, init=pairs[p, j * (terms + 1) + terms])

    part = te.compute((half, depth // terms, channels), summed, PART, ("p", "j", "o"))

    def field(p: Var, h: Var, o: Var) -> Expr:
        total, start = part[p, block.var, o], ir.cast("uint32", first[o])
        low, high = start * number(65537), start
        if packing.moved.size:
            rest = _moved(weight, packing, pairs, p, o)
            low, high = low + rest, high + (rest >> 16)
        return te.sum_reduce(ir.select(h < 1, total, total >> 16), block, init=ir.select(h < 1, low, high))

    acc = te.compute((half, 2, channels), field, ACC, ("p", "h", "o"))

    def value(p: Var, o: Var) -> Expr:
        low = acc[p // 2, 0, o] - (acc[p // 2, 1, o] << 16)
        return ir.cast("int32", ir.select(p % 2 < 1, low, acc[p // 2, 1, o]))

    return te.compute((count, channels), value, VALUE, ("p", "o"))


def _start(weight: Operand, bias: Operand | None, packing: Packing, channels: int) -> te.Tensor:
    """What a channel's fields start from: the bias less what the blocks add."""
    given = (
        np.zeros(channels, np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    return weight.packed((given - packing.blocks * FIELD).astype(np.int32))


def _moved(weight: Operand, packing: Packing, pairs: te.Tensor, p: Var, o: Var) -> Expr:
    """The last block of a channel."""
    places, parts = weight.packed(packing.places, table=True), weight.packed(packing.moved)
    total: Expr = number(ADDED)
    for k in range(packing.moved.shape[1]):
        total = total + ir.cast("uint32", parts[o, k]) * pairs[p, ir.cast("int32", places[o, k])]
    return total


def word(x: Expr) -> Expr:
    """An integer modulo 2**32."""
    return ir.cast("uint32", ir.cast("int32", x))


def number(value: int) -> Expr:
    """A constant modulo 2**32."""
    return ir.const(value, "uint32")
