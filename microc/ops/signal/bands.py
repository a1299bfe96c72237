# SPDX-License-Identifier: Apache-2.0
"""``band_sums``: weighted sums of neighbouring elements along the last axis, which is a filter bank without its zero weights.

Band b sums ``widths[b]`` elements from index ``starts[b]`` on, each times its weight. The weights of all bands are
concatenated. Elements and weights are both floats, or uint64 elements and uint16 weights with sums modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integers
from microc.ops.registry import AxisMap, Case, OpCall, OpDef, map_unchanged_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

_ZERO = ir.const(0, "int32")
_DTYPES = (("float32", "float32"), ("uint64", "uint16"))


def _infer_band_sums_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weights = types
    starts, widths = attrs["starts"], attrs["widths"]
    if (data.dtype, weights.dtype) not in _DTYPES:
        raise ModelError(
            f"band_sums: data and weights have unsupported dtypes; got {data.dtype} and {weights.dtype}, expected float32 and "
            "float32, or uint64 and uint16"
        )
    if not data.shape or len(starts) != len(widths) or not starts:
        raise ModelError(
            f"band_sums: every band needs a start and a width; got {len(starts)} starts and {len(widths)} widths for "
            f"data {data.shape}"
        )
    reach = max(start + width for start, width in zip(starts, widths, strict=True))
    if reach > data.shape[-1] or weights.shape != (sum(widths),):
        raise ModelError(
            f"band_sums: bands exceed the data, or weights have a wrong shape; got bands up to {reach} of "
            f"{data.shape} and weights {weights.shape}, expected weights {(sum(widths),)}"
        )
    return (TensorType((*data.shape[:-1], len(starts)), data.dtype),)


def _evaluate_band_sums_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights = arrays
    wide = np.float64 if data.dtype == np.float32 else np.uint64
    made, first = np.zeros((*data.shape[:-1], len(attrs["starts"])), wide), 0
    for band, (start, width) in enumerate(zip(attrs["starts"], attrs["widths"], strict=True)):
        parts = data[..., start : start + width].astype(wide) * weights[first : first + width].astype(wide)
        made[..., band] = parts.sum(axis=-1, dtype=wide)
        first += width
    return (made.astype(data.dtype),)


def _compute_band_sums(call: OpCall) -> te.Tensor:
    """Build a loop over bands; each band is summed in a register."""
    data, weights = call.present
    dtype, size, bands = data.type.dtype, data.type.shape[-1], len(call.attrs["starts"])
    rows, most = prod(data.type.shape[:-1]), max(call.attrs["widths"])
    tables = np.array([call.attrs["starts"], call.attrs["widths"]]).T
    table = data.packed(tables.astype(np.int16 if size < 1 << 15 else np.int32), table=True)

    def build_band_sums_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, factors, places), (out,) = operands, results
        n, b, j, start, width = Var("n"), Var("b"), Var("j"), Var("start"), Var("width")
        total, first = Buffer("total", (1,), dtype, "register"), Buffer("first", (1,), "int32", "register")
        product = x[n, start + j] * ir.cast(dtype, factors[first[0] + j])
        add = ir.For(j, width, ir.Store(total, (_ZERO,), total[0] + product))
        iteration = ir.seq(
            ir.Store(total, (_ZERO,), ir.const(0, dtype)),
            add,
            ir.Store(out, (n, b), total[0]),
            ir.Store(first, (_ZERO,), first[0] + width),
        )
        known = [(start, ir.cast("int32", places[b, 0])), (width, ir.minimum(ir.cast("int32", places[b, 1]), most))]
        for var, value in reversed(known):
            iteration = ir.Let(var, value, iteration)
        each = ir.seq(ir.Store(first, (_ZERO,), _ZERO), ir.For(b, ir.const(bands, "int32"), iteration))
        return ir.loops([(n, rows)], ir.Alloc(total, ir.Alloc(first, each)))

    operands = (data.tensor((rows, size)), weights.tensor(), table)
    return te.extern("bands", operands, (("out", (rows, bands), dtype),), build_band_sums_loops)[0]


def _map_band_sums_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (map_unchanged_axes(len(types[0].shape), (-1,)), None)


def _count_band_sums_macs(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> int:
    """Return the number of multiply-accumulate operations: one for each weight and row."""
    return prod(types[0].shape[:-1]) * types[1].size


def _make_band_sums_test_cases() -> Iterable[Case]:
    places = {"starts": (0, 1, 4, 2), "widths": (3, 4, 5, 0)}
    rng = np.random.default_rng(2)
    for shape in ((9,), (3, 9), (1, 2, 12)):
        types = (TensorType(shape, "float32"), TensorType((12,), "float32"))
        yield Case(places, types, (1,), tolerance=1e-5, name=f"float32 {shape}")
        energies = rng.integers(0, 1 << 46, shape).astype(np.uint64)
        integers = (TensorType(shape, "uint64"), TensorType((12,), "uint16"))
        yield Case(places, integers, (1,), (energies, None), name=f"uint64 {shape}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "band_sums",
        attrs={
            "starts": integers("the first element of each band", least=0),
            "widths": integers("how many elements each band has", least=0),
        },
        infer=_infer_band_sums_types,
        reference=_evaluate_band_sums_reference,
        compute=_compute_band_sums,
        cases=_make_band_sums_test_cases,
        axes=_map_band_sums_axes,
        macs=_count_band_sums_macs,
        operand_names=("data", "weights"),
    ),
)
