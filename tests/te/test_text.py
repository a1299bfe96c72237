# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from microc import te
from microc.errors import ProgramError
from microc.tir import ir


def test_a_product_and_its_end() -> None:
    x = te.placeholder((4, 9), "int8", "x")
    weight, bias = te.placeholder((2, 9), "int8", "weight"), te.placeholder((2,), "int32", "bias")
    k = te.reduce_axis(9, "k")
    acc = te.compute(
        (4, 2),
        lambda p, o: te.sum_reduce(x[p, k.var].astype("int32") * weight[o, k.var].astype("int32"), k, init=bias[o]),
        "acc",
        ("p", "o"),
    )
    out = te.compute((4, 2), lambda p, o: ir.clamp(acc[p, o] + 1 >> 7, -128, 127).astype("int8"), "out", ("p", "o"))
    assert te.to_text([out], [weight, bias]) == (
        "x: int8[4, 9]\n"
        "weight: int8[2, 9] constant\n"
        "bias: int32[2] constant\n"
        "acc[p < 4, o < 2]: int32 = bias[o] + sum(int32(x[p, k]) * int32(weight[o, k]) for k < 9)\n"
        "out[p < 4, o < 2]: int8 = int8(min(max(acc[p, o] + 1 >> 7, -128), 127))\n"
    )


def test_other_reductions_borders_and_notes() -> None:
    x, k = te.placeholder((4,), "float32", "x"), te.reduce_axis(4, "k")
    start = ir.const(-1.5, "float32")
    largest = te.compute((1,), lambda i: te.max_reduce(x[k.var], k, init=start), "largest", ("i",), (("bound", 3),))
    inside = te.compute((6,), lambda i: ir.select(ir.Bin("and", i >= 1, i < 5), x[i - 1], start), "padded", ("i",))
    total = te.compute((1,), lambda i: te.sum_reduce(inside[k.var] - (largest[i] - x[k.var]), k), "total", ("i",))
    assert te.to_text([total]) == (
        "x: float32[4]\n"
        "padded[i < 6]: float32 = select(i >= 1 and i < 5, x[i - 1], float32(-1.5))\n"
        "largest[i < 1]: float32 = max(float32(-1.5), max(x[k] for k < 4))\n"
        "    # bound = 3\n"
        "total[i < 1]: float32 = sum(padded[k] - (largest[i] - x[k]) for k < 4)\n"
    )


def test_loops_of_an_operator() -> None:
    x = te.placeholder((4,), "int8", "x")
    (made,) = te.extern("sort", [x], [("sorted", (4,), "int8")], lambda read, made: ir.Seq(()))
    assert te.to_text([made]) == "x: int8[4]\nsorted: int8[4] = sort(x)[0]  # loops of the operator's own\n"


def test_symbolic_extents() -> None:
    n = te.var("n")
    x, k = te.placeholder((4, n * 2), "float32", "x"), te.reduce_axis(n, "k")
    total = te.compute((n + 1, 4), lambda i, j: te.sum_reduce(x[j, k.var], k), "total", ("i", "j"))
    assert te.to_text([total]) == ("x: float32[4, n * 2]\ntotal[i < n + 1, j < 4]: float32 = sum(x[j, k] for k < n)\n")


@pytest.mark.parametrize("extent", [2.5, None, ir.Var("n", "int64"), te.placeholder((1,), "int32", "x")[0]])
def test_extents_are_numbers_or_made_of_sizes(extent: Any) -> None:
    for made in (
        lambda: te.placeholder((4, extent), "float32", "x"),
        lambda: te.reduce_axis(extent, "x"),
        lambda: te.compute((extent,), lambda i: i, "x"),
    ):
        with pytest.raises(ProgramError, match="neither a number nor an expression over sizes"):
            made()
