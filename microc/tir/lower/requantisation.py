# SPDX-License-Identifier: Apache-2.0
"""Replacement of loops over vectors that requantise sums in memory to bytes.

::

    for o in 2 n: for r in R (unrolled):
        store_saturated_<t>_rshr_<n>_i32x4(out[r, 4 o], high_product(mac_n(addend[4 o], sums[r, 4 o], factor), multiplier[4 o]))

becomes ``requantize_<t>_rshr_<n>_<R>(out, sums, addend, multiplier, 8 n, factor, strides of out and sums)``. One instruction
narrows half of a vector, so that two vectors become one; and the intrinsic orders the instructions of all rows. Of an odd number
of vectors the last one stays as it is.
"""

from __future__ import annotations

import re
from itertools import pairwise

from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.lower.region import build_address, memory_stride
from microc.tir.rewrite import map_stmt, substitute_stmt

MAX_ROWS = 3
"""Most rows that one intrinsic requantises: rows of a matrix product on MVE."""
LANES = 4
"""Number of sums in a vector."""
_STORE = re.compile(r"store_saturated_([iu]8)_rshr_(\d+)_i32x4")


def requantisation_name(dtype_suffix: str, distance: int, rows: int) -> str:
    """Return the name of the intrinsic that requantises ``rows`` rows to ``i8`` or ``u8``, with a right shift by
    ``distance``."""
    return f"requantize_{dtype_suffix}_rshr_{distance}_{rows}"


@frozen
class _Row:
    """A vector of sums that is requantised: the addresses of its result, its sums and its constants.

    ``dtype_suffix``, ``distance``: dtype of the result and its right shift. ``factor``: factor of the sums."""

    dtype_suffix: str
    distance: int
    factor: int
    out: ir.AddressOf
    sums: ir.AddressOf
    constants: tuple[ir.AddressOf, ir.AddressOf]

    @property
    def common(self) -> tuple[object, ...]:
        """What all rows of a loop have in common."""
        return self.dtype_suffix, self.distance, self.factor, self.constants


def lower_requantisation(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with its loops that requantise vectors of sums replaced by calls."""
    return map_stmt(stmt, lambda s: (_build_call(s) or s) if isinstance(s, ir.For) else s)


def _build_call(loop: ir.For) -> ir.Stmt | None:
    """Return the call of the intrinsic, and the last vector of an odd number, in place of a loop; None for other loops."""
    statements = loop.body.body if isinstance(loop.body, ir.Seq) else (loop.body,)
    rows = [row for s in statements if (row := _match_row(s)) is not None]
    extent = ir.int_value(loop.extent) or 0
    if not 0 < len(rows) == len(statements) <= MAX_ROWS or extent < 2:
        return None
    first = rows[0]
    places = (first.out, first.sums, *first.constants)
    stride_out, stride_sums = (_row_stride([getattr(row, name) for row in rows]) for name in ("out", "sums"))
    # Eight columns are loaded before any of them is stored: results must not overwrite sums or constants.
    apart = first.sums.buffer.scope == "local" and all(a.buffer.scope == "const" for a in first.constants)
    consecutive = all(memory_stride(a.buffer, a.indices, loop.var) == LANES for a in places)
    if stride_out is None or stride_sums is None or not apart or not consecutive:
        return None
    if any(row.common != first.common for row in rows):
        return None
    columns, start = extent // 2 * (2 * LANES), {loop.var: ir.const(0, "int32")}
    reaches = (columns + (len(rows) - 1) * stride_out, columns + (len(rows) - 1) * stride_sums, columns, columns)
    numbers = (columns, first.factor, *((stride_out, stride_sums) if len(rows) > 1 else ()))
    args = (
        *(
            build_address(a.buffer, a.indices, start, reach, writes=a.writes)
            for a, reach in zip(places, reaches, strict=True)
        ),
        *(ir.const(number, "int32") for number in numbers),
    )
    name = requantisation_name(first.dtype_suffix, first.distance, len(rows))
    last = [substitute_stmt(loop.body, {loop.var: ir.const(extent - 1, "int32")})] if extent % 2 else []
    return ir.seq(ir.Evaluate(ir.Call(name, args, "int32")), *last)


def _match_row(stmt: ir.Stmt) -> _Row | None:
    """Match the requantisation of a vector of sums in memory; None for other statements."""
    match stmt:
        case ir.Evaluate(
            ir.Call(
                store,
                (
                    ir.AddressOf() as out,
                    ir.Call(
                        "high_product_i32x4",
                        (
                            ir.Call(
                                "mac_n_i32x4",
                                (
                                    ir.Call("load_i32_i32x4", (ir.AddressOf() as addend,)),
                                    ir.Call("load_i32_i32x4", (ir.AddressOf() as sums,)),
                                    ir.Const(int() as factor),
                                ),
                            ),
                            ir.Call("load_i32_i32x4", (ir.AddressOf() as multiplier,)),
                        ),
                    ),
                ),
            )
        ) if (name := _STORE.fullmatch(store)) is not None:
            return _Row(name[1], int(name[2]), factor, out, sums, (addend, multiplier))
        case _:
            return None


def _row_stride(addresses: list[ir.AddressOf]) -> int | None:
    """Return the distance in elements between the addresses of neighbouring rows, 0 for a single row.

    None if it is not constant, not positive, or differs."""
    offsets = [_flat_index(address) for address in addresses]
    distances = {ir.int_value(simplify(after - before)) for before, after in pairwise(offsets)}
    buffers = {address.buffer for address in addresses}
    stride = distances.pop() if distances else 0
    return None if distances or len(buffers) > 1 or stride is None or stride < 0 else stride


def _flat_index(address: ir.AddressOf) -> ir.Expr:
    """Return the offset of an address from the start of its buffer, in elements."""
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(address.indices, address.buffer.strides, strict=True):
        total = total + index * stride
    return total
