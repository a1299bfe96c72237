"""Small integers side by side in bytes and words: where each of a row lies, and the expressions that take it out.

A row of numbers of ``bits`` bits, in two's complement, becomes a row of elements that hold several each, in the order that the
instructions want which take them apart:

- ``neighbours``: a byte holds neighbours, the first one lowest. For cores that take one at a time.
- ``halves``: a word of 32 bits holds neighbours by turns in its halves, so that one shift and one mask leave two neighbours as
  the upper ends of 16-bit numbers: what an instruction multiplies that takes pairs of them.
- ``vector``: 16 bytes hold, in their lowest fields, 16 neighbours, in the next ones those that follow: a shift of all bytes
  leaves 16 neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.tir import ir
from microc.tir.ir import Expr

NEIGHBOURS, HALVES, VECTOR = "neighbours", "halves", "vector"
LANES = 16
"""Bytes of a vector."""
HALF = 16
"""Bits of half a word."""
FEW = (2, 4)
"""Numbers of bits that are packed."""


def bits_of(array: Array) -> int:
    """The fewest of :data:`FEW` that hold every number of an array; 8 where none do."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    return next((bits for bits in FEW if -(1 << (bits - 1)) <= low and high < 1 << (bits - 1)), 8)


@dataclass(frozen=True, slots=True)
class BitFields:
    """A form of storage: ``bits`` of a number, and their ``order`` (see the file's head)."""

    bits: int
    order: str

    @property
    def dtype(self) -> str:
        """That of an element."""
        return "int32" if self.order == HALVES else "int8"

    @property
    def count(self) -> int:
        """Numbers in an element."""
        return (32 if self.order == HALVES else 8) // self.bits

    @property
    def group(self) -> int:
        """Neighbours that fill whole elements."""
        return self.count * (LANES if self.order == VECTOR else 1)

    @property
    def shift(self) -> int:
        """A number of a :meth:`pair` is multiplied by two to the power of this."""
        return HALF - self.bits

    def place(self, k: Any) -> tuple[Any, Any]:
        """The element that holds number ``k`` of a row, and its lowest bit in it; of integers, arrays or expressions."""
        match self.order:
            case "halves":
                return k // self.count, k % 2 * HALF + k % self.count // 2 * self.bits
            case "vector":
                return k // self.group * LANES + k % LANES, k // LANES % self.count * self.bits
            case _:
                return k // self.count, k % self.count * self.bits

    def packed(self, array: Array) -> Array:
        """Rows (N, K) of numbers as rows of elements, with zeros behind the last number."""
        rows, depth = array.shape
        length = -(-depth // self.group) * self.group // self.count
        elements, bits = self.place(np.arange(depth))
        found = np.zeros((rows, length), np.int64)
        fields = (array.astype(np.int64) & ((1 << self.bits) - 1)) << bits
        for k, element in enumerate(elements):
            found[:, element] |= fields[:, k]
        unsigned: Array = found.astype(np.uint32 if self.order == HALVES else np.uint8)
        return unsigned.view(np.int32 if self.order == HALVES else np.int8)

    def number(self, element: Expr, bit: Expr) -> Expr:
        """The number whose lowest bit is ``bit`` of an element, as int32."""
        top = ir.const(32 - self.bits, "int32")
        return ir.cast("int32", ir.cast("uint32", element.astype("int32")) << ir.cast("uint32", top - bit)) >> top

    def pair(self, word: Expr, k: Expr) -> Expr:
        """Numbers ``k`` (even) and ``k`` + 1 of a row in ``halves``, as two 16-bit numbers in a word, times 2**shift."""
        mask = ((1 << self.bits) - 1 << self.shift) * 0x10001
        held = ir.call("hold", ir.const(mask - (1 << 32), "int32"))
        upwards = ir.const(self.shift, "int32") - k % self.count // 2 * self.bits
        return ir.cast("int32", ir.cast("uint32", word) << ir.cast("uint32", upwards)) & held
