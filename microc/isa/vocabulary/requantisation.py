# SPDX-License-Identifier: Apache-2.0
"""Intrinsics that requantise rows of int32 sums to bytes."""

from __future__ import annotations

from microc.base import dtypes
from microc.isa.instruction_set import ANY, Intrin
from microc.isa.vocabulary.vector_lanes import build_wrapping_operation
from microc.tir import ir
from microc.tir.ir import Buffer, Var
from microc.tir.lower.lane_code import NARROWING_DISTANCES
from microc.tir.lower.requantisation import MAX_ROWS, requantisation_name

# ---- ``requantize_<t>_rshr_<n>_<R>`` requantises R rows of ``columns`` sums, a multiple of eight. For row r and column c
#
#     out[r, c] = saturate(high_word((addend[c] + sums[r, c] * factor) * multiplier[c]) >> n, rounded half up)
#
# Sums and addends wrap around. A single row needs no strides, which then are no parameters.

SHORT = {"int8": "i8", "uint8": "u8"}
"""Dtypes of results, with their suffixes in the names."""


def _build_requantisation(dtype: str, distance: int, rows: int) -> Intrin:
    """Build the intrinsic that requantises ``rows`` rows. ``distance``: bits by which the high words are shifted to the
    right."""
    out = Buffer("out", (ANY,), dtype)
    sums, addend, multiplier = (Buffer(name, (ANY,), "int32") for name in ("sums", "addend", "multiplier"))
    columns, factor, c = Var("columns"), Var("factor"), Var("c")
    strides = (Var("stride_out"), Var("stride_sums")) if rows > 1 else ()
    stores = []
    for r in range(rows):
        place, source = (stride * r + c if r else c for stride in strides or (c, c))
        operand = build_wrapping_operation("add", addend[c], build_wrapping_operation("mul", sums[source], factor))
        high = ((operand.astype("int64") * multiplier[c].astype("int64")) >> 32).astype("int32")
        rounded = ((high >> (distance - 1)) + 1) >> 1
        clamped = ir.clamp(rounded, *dtypes.int_range(dtype))
        stores.append(ir.Store(out, (place,), ir.cast(dtype, clamped)))
    params = (out, sums, addend, multiplier, columns, factor, *strides)
    return Intrin(requantisation_name(SHORT[dtype], distance, rows), params, ir.For(c, columns, ir.seq(*stores)))


REQUANTISATIONS = tuple(
    _build_requantisation(dtype, distance, rows)
    for dtype in SHORT
    for distance in NARROWING_DISTANCES
    for rows in range(1, MAX_ROWS + 1)
)
