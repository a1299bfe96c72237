"""Products of bytes on cores without SIMD: four channels' weights in a word, two multiplications for them.

For a single row of data there are no two pixels to share a multiplication (``pairs``), but two channels can. Four channels'
weights of the same input are the bytes u = w + 128 of a word v = u0 + 2**8 u1 + 2**16 u2 + 2**24 u3, and (v >> 8) & 0xFF00FF is
u1 + 2**16 u3. With sums over the inputs x of a block, modulo 2**32,

    q = sum(x ((v >> 8) & 0xFF00FF)) = sum(x u1) + 2**16 sum(x u3),        p - 2**8 q = sum(x u0) + 2**16 sum(x u2),

where p = sum(x v). Both are two sums side by side. A word behind each block of inputs, 2**15 + 2**31 - 128 (2**16 + 1) sum(x),
takes what the offset of the bytes added, and makes each sum one of x w plus 2**15, which lies within 0..2**16 - 1 as long as
the block's weights permit: what ``pairs`` says of fields holds from there on.

Where the weights of a block would leave the fields, part of the largest moves to a column of its own at the end, which reads the
same input again; channels share these columns. All of it is exact; :func:`pack_quads` proves the bounds with the weights at hand.
"""

from __future__ import annotations

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.frozen import frozen
from microc.ops.matrix.gemm import byte_weights
from microc.ops.matrix.pairs import ADDED, FIELD, HIGH, number, overflow, padded_depth, word
from microc.ops.registry import OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, COLUMN, ENTRY, PART, VALUE

CHANNELS = 4
"""Weights in a word."""
TERMS = (8, 6, 4, 3, 2)
"""Columns of a block."""
MOST_REPEATED = 0.25
"""Columns at the end, as a share of the others."""
_MASK = 0xFF00FF


@frozen
class QuadPacking:
    """Weights (O, K) as int8 (O up to a multiple of four, columns: a multiple of ``terms``); the inputs of columns from K on."""

    terms: int
    weights: Array
    repeated: Array

    @property
    def blocks(self) -> int:
        """Blocks of a channel."""
        return int(self.weights.shape[1]) // self.terms

    @property
    def words(self) -> Array:
        """The weights as uint32 (O / 4, columns)."""
        channels, columns = self.weights.shape
        unsigned = (self.weights.astype(np.int64) + 128).reshape(channels // CHANNELS, CHANNELS, columns)
        words: Array = (unsigned << (8 * np.arange(CHANNELS)).reshape(1, CHANNELS, 1)).sum(1).astype(np.uint32)
        return words

    @property
    def cost(self) -> float:
        """Instructions for four channels, as far as packings differ; and a little for the flash of a column."""
        return 8.5 * int(self.weights.shape[1]) + 13.0 * self.blocks


def pack_quads(weights: Array) -> QuadPacking | None:
    """The cheapest packing of int8 weights (O, K); None when no number of terms suits them."""
    found = [p for p in (_packing(weights, terms) for terms in TERMS) if p is not None]
    return min(found, key=lambda p: p.cost, default=None)


def quad_packing(call: OpCall) -> QuadPacking | None:
    """The packing for a product of data with constant weights (O, ...) and bias; None where there is none."""
    weights = byte_weights(call)
    return None if weights is None or len(weights) % CHANNELS else pack_quads(weights)


def _packing(weights: Array, terms: int) -> QuadPacking | None:
    """Weights by blocks of ``terms`` columns; None where too many columns would be repeated."""
    channels, depth = weights.shape
    most = depth + int(MOST_REPEATED * depth)
    kept = np.zeros((channels, padded_depth(most, terms)), np.int64)
    kept[:, :depth] = weights
    blocks, places = kept.reshape(channels, -1, terms), list(range(depth))
    over = overflow(blocks)
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
        places.append(places[block * terms + column])
        for changed in (block, end // terms):
            over[:, changed] = overflow(blocks[:, changed])
    total = padded_depth(len(places), terms)
    repeated = np.array([*places[depth:], *(0,) * (total - len(places))], np.uint16)
    return QuadPacking(terms, kept[:, :total].astype(np.int8), repeated)


def quad_product(
    rows: te.Tensor, weight: Operand, bias: Operand | None, packing: QuadPacking, widened: bool
) -> te.Tensor:
    """Rows (P, K) times weights as int32 (P, O). Stages: ``column`` (P, columns) the inputs of all columns, ``entry`` (P, blocks
    of their words and the word behind them; only this unless ``widened``), ``part`` (P, block, O / 4, 2) the sums q and p of
    blocks, ``acc`` (P, O / 4, 2, 2) their fields' sums as in ``pairs``, and ``value``."""
    terms, blocks, quads = packing.terms, packing.blocks, packing.weights.shape[0] // CHANNELS
    count, kept = rows.shape[0], terms if widened else 0
    words, first = weight.packed(packing.words), _start(weight, bias, packing)
    inputs = _columns(rows, weight, packing)

    def entry(p: Var, e: Var) -> Expr:
        block, place = e // (kept + 1) * terms, e % (kept + 1)
        total = word(inputs[p, block])
        for k in range(1, terms):
            total = total + word(inputs[p, block + k])
        total = total << 7
        behind = number(ADDED) - total - (total << 16)
        return ir.select(place < terms, word(inputs[p, block + place]), behind) if widened else behind

    entries = te.compute((count, blocks * (kept + 1)), entry, ENTRY, ("p", "e"))
    term, block = te.reduce_axis(terms, "i"), te.reduce_axis(blocks, "j")

    def summed(p: Var, j: Var, g: Var, f: Var) -> Expr:
        taps = words[g, j * terms + term.var]
        factor = ir.select(f < 1, (taps >> 8) & number(_MASK), taps)
        x = entries[p, j * (terms + 1) + term.var] if widened else word(inputs[p, j * terms + term.var])
        return te.sum_reduce(factor * x, term)

    part = te.compute((count, blocks, quads, 2), summed, PART, ("p", "j", "g", "f"))

    def field(p: Var, g: Var, f: Var, h: Var) -> Expr:
        odd, whole = part[p, block.var, g, 0], part[p, block.var, g, 1]
        total = ir.select(f < 1, whole - (odd << 8), odd) + entries[p, block.var * (kept + 1) + kept]
        return te.sum_reduce(ir.select(h < 1, total, total >> 16), block, init=first[g, f, h])

    acc = te.compute((count, quads, 2, 2), field, ACC, ("p", "g", "f", "h"))

    def value(p: Var, o: Var) -> Expr:
        low, high = acc[p, o // CHANNELS, o % 2, 0], acc[p, o // CHANNELS, o % 2, 1]
        return ir.cast("int32", ir.select(o % CHANNELS < 2, low - (high << 16), high))

    return te.compute((count, quads * CHANNELS), value, VALUE, ("p", "o"))


def _columns(rows: te.Tensor, weight: Operand, packing: QuadPacking) -> te.Tensor:
    """The input of every column."""
    count, depth = rows.shape
    if not packing.repeated.size:
        return rows
    places = weight.packed(packing.repeated, table=True)

    def column(p: Var, k: Var) -> Expr:
        again = ir.cast("int32", places[ir.binary("max", k - depth, ir.const(0, "int32"))])
        return rows[p, ir.select(k < depth, k, again)]

    return te.compute((count, packing.weights.shape[1]), column, COLUMN, ("p", "k"))


def _start(weight: Operand, bias: Operand | None, packing: QuadPacking) -> te.Tensor:
    """What the sums of fields (O / 4, 2, 2) start from: the bias less what the blocks add, as ``pairs`` sums it up."""
    channels = packing.weights.shape[0]
    given = np.zeros(channels, np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64)
    starts = (given.reshape(-1) - packing.blocks * FIELD).reshape(-1, 2, 2)
    low, high = starts[:, 0], starts[:, 1]
    return weight.packed(np.stack((low + (high << 16), high), axis=2).astype(np.uint32))
