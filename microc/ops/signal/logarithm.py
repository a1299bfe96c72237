# SPDX-License-Identifier: Apache-2.0
"""``log2_fixed``: logarithms to base 2 of integers, in fixed point.

The result for a uint64 x is 512 log2(max(x + offset, least)) - subtract, rounded and saturated to int16; it has nine
fractional bits. The logarithm is the exponent, plus the mantissa as a linear approximation, plus a correction that is
interpolated linearly in a table of 128 segments with 16 bits. The error is at most 2**-10 from rounding plus 4e-5 from
the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.arithmetic import build_bit_length, wrap_in_lets
from microc.ops.attributes import integer
from microc.ops.registry import AxisMap, Case, OpCall, OpDef
from microc.ops.signal.filter_bank import log2_correction_table
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

FRACTION = 9
"""Number of fractional bits of the result."""
_WORK, _SEGMENTS = 16, 7
"""Number of fractional bits of the computation, and binary logarithm of the number of table segments."""
_INSIDE = _WORK - _SEGMENTS
"""Number of bits of a position within a table segment."""
_MOST = (1 << 63) - 1
"""Largest value of the attributes ``offset`` and ``least``."""
MOST_SUBTRACTED = 1 << 17
"""Largest magnitude of the attribute ``subtract``."""


def _infer_log2_fixed_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "uint64":
        raise ModelError(f"log2_fixed: the data must be uint64; got {types[0].dtype}, expected uint64")
    if attrs["offset"] > _MOST or attrs["least"] > _MOST:
        raise ModelError(
            f"log2_fixed: attributes are out of range; got offset={attrs['offset']} and least={attrs['least']}, "
            f"expected at most {_MOST}"
        )
    if abs(attrs["subtract"]) > MOST_SUBTRACTED:
        raise ModelError(
            f"log2_fixed: subtract is out of range; got {attrs['subtract']}, expected "
            f"-{MOST_SUBTRACTED}..{MOST_SUBTRACTED}"
        )
    return (TensorType(types[0].shape, "int16"),)


def _evaluate_log2_fixed_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    table, logarithms = [int(v) for v in log2_correction_table()], []
    for x in (int(v) for v in arrays[0].reshape(-1)):
        value = max(min(x + attrs["offset"], (1 << 64) - 1), attrs["least"])
        whole = value.bit_length() - 1
        share = (value << 63 - whole >> 63 - _WORK) - (1 << _WORK)
        segment, inside = share >> _INSIDE, share & (1 << _INSIDE) - 1
        risen = table[segment] + ((table[segment + 1] - table[segment]) * inside >> _INSIDE)
        log2 = (whole << _WORK) + share + risen
        rounded = (log2 + (1 << _WORK - FRACTION - 1) >> _WORK - FRACTION) - attrs["subtract"]
        logarithms.append(max(min(rounded, 32767), -32768))
    return (np.array(logarithms, np.int16).reshape(arrays[0].shape),)


def _compute_log2_fixed(call: OpCall) -> te.Tensor:
    (data,), size = call.present, call.out_types[0].size
    offset, least = (ir.const(call.attrs[name], "uint64") for name in ("offset", "least"))
    table = data.packed(log2_correction_table())

    def build_log2_fixed_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, points), (out,) = operands, results
        i, moved, value, high = Var("i"), Var("moved", "uint64"), Var("value", "uint64"), Var("high", "uint32")
        top = Var("top", "uint32")
        lets, bits = build_bit_length(top, "top")
        whole, share, segment, log2 = Var("whole"), Var("share"), Var("segment"), Var("log2")
        none = ir.const(0, "uint32")
        mantissa = (value << ir.cast("uint64", 63 - whole)) >> ir.const(63 - _WORK, "uint64")
        low, next_ = (ir.cast("int32", points[segment + k]) for k in (0, 1))
        inside = share - segment * (1 << _INSIDE)
        full = ir.const((1 << 64) - 1, "uint64")
        lets = [
            (moved, x[i] + offset),
            (value, ir.maximum(ir.select(moved < offset, full, moved), least)),
            (high, ir.cast("uint32", value >> ir.const(32, "uint64"))),
            (top, ir.select(high.ne(none), high, ir.cast("uint32", value))),
            *lets,
            (whole, ir.clamp(bits - 1 + ir.select(high.ne(none), ir.const(32, "int32"), 0), 0, 63)),
            (share, ir.cast("int32", mantissa) - (1 << _WORK)),
            (segment, ir.clamp(share >> _INSIDE, 0, (1 << _SEGMENTS) - 1)),
            (log2, whole * (1 << _WORK) + share + low + ((next_ - low) * inside >> _INSIDE)),
        ]
        rounded = ((log2 + (1 << _WORK - FRACTION - 1)) >> _WORK - FRACTION) - call.attrs["subtract"]
        store = ir.Store(out, (i,), ir.cast("int16", ir.clamp(rounded, -32768, 32767)))
        return ir.For(i, ir.const(size, "int32"), wrap_in_lets(lets, store))

    return te.extern("log2", (data.tensor((size,)), table), (("out", (size,), "int16"),), build_log2_fixed_loops)[0]


def _map_log2_fixed_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (tuple(range(len(types[0].shape))),)


def _make_log2_fixed_test_cases() -> Iterable[Case]:
    edges = [0, 1, 2, 3, 5, 77, (1 << 32) - 1, 1 << 32, 123456789012, (1 << 46) + 7, (1 << 64) - 1, 1 << 63]
    for x in (np.array(edges, np.uint64), np.array(edges, np.uint64).reshape(3, 4)):
        for offset, least, less in ((0, 1, 0), (1000, 1, 16000), (0, 5000, -900), (_MOST, _MOST, 1 << 17)):
            attrs = {"offset": offset, "least": least, "subtract": less}
            yield Case(attrs, (TensorType(x.shape, "uint64"),), arrays=(x,), name=f"{x.ndim} {offset} {least}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "log2_fixed",
        attrs={
            "offset": integer("added to the data; the sum saturates", 0, least=0),
            "least": integer("what the sum is at least", 1, least=1),
            "subtract": integer("from the logarithm, in units of the result", 0),
        },
        infer=_infer_log2_fixed_types,
        reference=_evaluate_log2_fixed_reference,
        compute=_compute_log2_fixed,
        cases=_make_log2_fixed_test_cases,
        axes=_map_log2_fixed_axes,
        operand_names=("data",),
    ),
)
