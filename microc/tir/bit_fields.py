# SPDX-License-Identifier: Apache-2.0
"""Sub-byte integers (weights) packed into bytes and words: layouts, packing, and the expressions that unpack a number.

A row of numbers of ``bits`` bits, in two's complement, is packed into a row of elements that contain several numbers each.
The order of the numbers depends on the instructions that unpack them:

- ``neighbours``: a byte contains consecutive numbers, the first number in the lowest bits. For cores that unpack one number
  at a time.
- ``halves``: consecutive numbers are stored alternately in the low and the high half of a 32-bit word. One shift and one mask
  unpack two numbers into the upper bits of two int16, the operands of dual multiplications (``dot2``).
- ``vector``: 16 bytes contain 16 consecutive numbers in their lowest fields, the next 16 numbers in the next fields, and so
  on. Shifting all bytes unpacks 16 consecutive numbers.

Multipliers: each ``block`` of consecutive numbers may have a multiplier from 1 to 15. A number is the product of its packed
bits and the multiplier. The multipliers of a row, one byte each, follow the last element of the row.

Tables: alternatively, the packed numbers are unsigned indices into tables of values. There is one table for all rows, or one
for each row. The tables, one byte per value, follow the last row; rows and tables are one array of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.ir import Expr

NEIGHBOURS, HALVES, VECTOR = "neighbours", "halves", "vector"
LANES = 16
"""Number of bytes in a vector."""
HALF = 16
"""Number of bits in half of a 32-bit word."""
FEW = (2, 4)
"""Bit widths of packed numbers, apart from indices into tables."""
BLOCKS, MOST = (64, 32, 16), 15
"""Possible lengths of a block of consecutive numbers that share a multiplier; the largest multiplier."""
INDICES = (1, 2, 4)
"""Bit widths of packed indices into tables of values."""


def smallest_bit_width(array: Array) -> int:
    """Return the smallest bit width of :data:`FEW` that can represent every number of an array; 8 if none can."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    return next((bits for bits in FEW if -(1 << (bits - 1)) <= low and high < 1 << (bits - 1)), 8)


def smallest_bits_and_block(rows: Array) -> tuple[int, int]:
    """Return (bits, block) of the smallest packing that represents rows (N, K) of numbers exactly.

    ``block`` is the number of consecutive numbers that share a multiplier, or 0 without multipliers. If no packing represents
    the numbers, ``bits`` is 8."""
    bits = smallest_bit_width(rows)
    forms = [(few, block) for few in FEW if few < bits for block in BLOCKS]
    parts = (rows[:1], rows)  # the first row refutes most forms
    return next((form for form in forms if all(find_block_multipliers(part, *form).all() for part in parts)), (bits, 0))


def find_block_multipliers(rows: Array, bits: int, block: int) -> Array:
    """Return the smallest multiplier of every block of consecutive numbers in rows (N, K): shape (N, ceil(K / block)).

    All numbers of a block, divided by its multiplier, fit ``bits`` bits. The result is 0 for a block without such a
    multiplier. Rows are padded with zeros to whole blocks."""
    parts = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block))).reshape(len(rows), -1, block).astype(np.int64)
    # A multiplier divides all numbers of a block if it divides their greatest common divisor. Then their extremes decide.
    divisor, low, high = np.gcd.reduce(parts, axis=2), parts.min(axis=2), parts.max(axis=2)
    factors, limit = np.arange(1, MOST + 1)[:, None, None], 1 << (bits - 1)
    fits = (divisor % factors == 0) & (low // factors >= -limit) & (high // factors < limit)
    return np.where(fits.any(axis=0), fits.argmax(axis=0) + 1, 0)


def smallest_bits_and_table_count(rows: Array) -> tuple[int, int] | None:
    """Return (bits of an index, number of tables) of the smallest packing with tables for rows (N, K) of bytes.

    None if a table would need more than 16 values. Rows whose indices do not fill whole bytes are padded with zeros."""
    forms = []
    if _max_distinct_values(rows[:1]) > 1 << INDICES[-1]:  # the first row refutes most
        return None
    for bits in INDICES:
        whole = np.pad(rows, ((0, 0), (0, -rows.shape[1] % (8 // bits))))
        for tables in dict.fromkeys((1, len(rows))):
            if _max_distinct_values(whole.reshape(tables, -1)) <= 1 << bits:
                forms.append((whole.size * bits // 8 + (tables << bits), bits, tables))
    return min(forms)[1:] if forms else None


def _max_distinct_values(rows: Array) -> int:
    """Return the largest number of distinct values in a row of an array."""
    changes = np.diff(np.sort(rows, axis=1), axis=1) != 0
    return 1 + int(changes.sum(axis=1).max())


def build_value_tables(rows: Array, bits: int, tables: int) -> Array:
    """Return the tables of values for a packing of ``rows`` with tables: shape (tables, 2**bits).

    The values of each table are in ascending order and padded with zeros."""
    found = np.zeros((tables, 1 << bits), rows.dtype)
    for table, part in zip(found, rows.reshape(tables, -1), strict=True):
        values = np.unique(part)
        table[: len(values)] = values
    return found


@frozen
class BitFields:
    """A packing: the layout of sub-byte numbers in bytes or words (see the module's docstring).

    ``bits``: bit width of a packed number. ``order``: ``neighbours`` (a byte contains consecutive numbers), ``halves``
    (numbers alternate between the halves of a 32-bit word) or ``vector`` (the lowest fields of 16 bytes contain 16
    consecutive numbers, the next fields the next 16, and so on). ``block``: number of consecutive numbers that share a
    multiplier, 0 without multipliers. ``tables``: number of tables of values, 0 without tables."""

    bits: int
    order: str
    block: int = 0
    tables: int = 0

    @property
    def dtype(self) -> str:
        """Dtype of an element, which contains several packed numbers."""
        return "int32" if self.order == HALVES else "int8"

    @property
    def count(self) -> int:
        """Number of packed numbers in an element."""
        return (32 if self.order == HALVES else 8) // self.bits

    @property
    def group(self) -> int:
        """Smallest number of consecutive packed numbers that fill whole elements."""
        return self.count * (LANES if self.order == VECTOR else 1)

    @property
    def shift(self) -> int:
        """Exponent of the power of two by which the numbers that :meth:`unpack_pair` unpacks are multiplied."""
        return HALF - self.bits

    def element_and_bit(self, k: Any) -> tuple[Any, Any]:
        """Return the position of number ``k`` of a row: the index of its element, and of its lowest bit in the element.

        ``k`` and the results are integers, arrays or expressions."""
        match self.order:
            case "halves":
                return k // self.count, k % 2 * HALF + k % self.count // 2 * self.bits
            case "vector":
                return k // self.group * LANES + k % LANES, k // LANES % self.count * self.bits
            case _:
                return k // self.count, k % self.count * self.bits

    def packed_length(self, depth: int) -> int:
        """Return the number of elements for a row of ``depth`` numbers, without the row's multipliers."""
        return -(-depth // self.group) * self.group // self.count

    def size(self, depth: int) -> int:
        """Return the number of elements for a row of ``depth`` numbers, including the row's multipliers."""
        multipliers = -(-depth // self.block) if self.block else 0
        return self.packed_length(depth) + (-(-multipliers // 4) if self.order == HALVES else multipliers)

    def load_multiplier(self, load_element: Callable[[Expr], Expr], depth: int, block: Expr) -> Expr:
        """Return the multiplier of a block of consecutive numbers in a row, as an int32 expression.

        ``load_element``: function that loads the element of the row with a given index. ``depth``: number of numbers in the row.
        ``block``: index of the block."""
        if self.order != HALVES:
            return load_element(self.packed_length(depth) + block).astype("int32")
        return (load_element(self.packed_length(depth) + block // 4) >> block % 4 * 8) & MOST

    def shape(self, rows: int, depth: int) -> tuple[int, ...]:
        """Return the shape of the packed array for ``rows`` rows of ``depth`` numbers."""
        size = self.size(depth)
        return (rows * size + (self.tables << self.bits),) if self.tables else (rows, size)

    def load_table_value(
        self, load_element: Callable[[Expr], Expr], shape: tuple[int, int], row: Expr, k: Expr
    ) -> Expr:
        """Return the value of number ``k`` of a row, looked up in the row's table, as an int32 expression.

        ``load_element``: function that loads the packed element with a given index. ``shape``: shape (N, K) of the unpacked
        numbers."""
        rows, size = shape[0], self.size(shape[1])
        element, bit = self.element_and_bit(k)
        index = load_element(row * size + element).astype("int32") >> bit & (1 << self.bits) - 1
        table = rows * size + (row << self.bits if self.tables > 1 else 0)
        return load_element(table + index).astype("int32")

    def pack(self, array: Array) -> Array:
        """Return rows (N, K) of numbers in packed form: an array of the shape of :meth:`shape`, padded with zeros."""
        if self.tables:
            tables = build_value_tables(array, self.bits, self.tables)
            indices = (array[:, :, None] == tables[:, None, :]).argmax(axis=2)
            elements = BitFields(self.bits, self.order).pack(indices)
            return np.concatenate((elements.reshape(-1), tables.reshape(-1)))
        rows, depth = array.shape
        elements, bits = self.element_and_bit(np.arange(depth))
        found = np.zeros((rows, self.size(depth)), np.int64)
        if self.block:
            factors = find_block_multipliers(array, self.bits, self.block)
            array = array // np.repeat(factors, self.block, axis=1)[:, :depth]
            each = 4 if self.order == HALVES else 1
            for k in range(factors.shape[1]):
                found[:, self.packed_length(depth) + k // each] |= factors[:, k] << k % each * 8
        fields = (array.astype(np.int64) & ((1 << self.bits) - 1)) << bits
        for k, element in enumerate(elements):
            found[:, element] |= fields[:, k]
        unsigned: Array = found.astype(np.uint32 if self.order == HALVES else np.uint8)
        return unsigned.view(np.int32 if self.order == HALVES else np.int8)

    def unpack_number(self, element: Expr, bit: Expr) -> Expr:
        """Return the number whose lowest bit is bit ``bit`` of an element, sign-extended to int32, as an expression."""
        # The unsigned shift left drops the numbers in higher bits; the arithmetic shift right extends the sign.
        top = ir.const(32 - self.bits, "int32")
        return ir.cast("int32", ir.cast("uint32", element.astype("int32")) << ir.cast("uint32", top - bit)) >> top

    def unpack_pair(self, word: Expr, k: Expr) -> Expr:
        """Return numbers ``k`` (even) and ``k + 1`` of a row in the order ``halves``, unpacked, as an expression.

        The result is a 32-bit word of two int16. Each is the number times 2**shift."""
        mask = ((1 << self.bits) - 1 << self.shift) * 0x10001
        # ``hold`` keeps the mask in a register: no compiler replaces it by an immediate in every instruction.
        mask_in_register = ir.call("hold", ir.const(mask - (1 << 32), "int32"))
        upwards = ir.const(self.shift, "int32") - k % self.count // 2 * self.bits
        return ir.cast("int32", ir.cast("uint32", word) << ir.cast("uint32", upwards)) & mask_in_register
