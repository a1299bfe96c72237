# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions as loops: what is shared in the one is shared in the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from microc import te
from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.rewrite import walk_stmt

DEPTH = 40


def test_what_is_shared_is_lowered_once() -> None:
    data = te.placeholder((8,), "int32", "data")

    def powers(i: ir.Expr) -> ir.Expr:
        value: ir.Expr = data[i]
        for _ in range(DEPTH):  # 2**DEPTH expressions as a tree
            value = value * value
        return value

    out = te.compute((8,), powers, "out", ("i",))
    assert isinstance(out.definition, te.ComputeDef)
    assert [read.tensor for read in te.tensor_reads(out.definition.body)] == [data]
    func = te.create_prim_func("f", [data], [out])
    store = next(s for s in walk_stmt(func.body) if isinstance(s, ir.Store))
    depth, value = 0, store.value
    while isinstance(value, ir.Bin):
        assert value.a is value.b
        depth, value = depth + 1, value.a
    assert depth == DEPTH
    assert isinstance(value, ir.Load)


def test_reads_are_told_from_the_outside_in() -> None:
    index, data = te.placeholder((8,), "int32", "index"), te.placeholder((8,), "float32", "data")
    gathered = te.compute((8,), lambda i: data[index[i]] + data[i], "gathered", ("i",))
    assert isinstance(gathered.definition, te.ComputeDef)
    assert [read.tensor.name for read in te.tensor_reads(gathered.definition.body)] == ["data", "index", "data"]


A, K = te.placeholder((8, 4), "float32", "A"), te.reduce_axis(4, "k")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: te.compute((8, 4), lambda i: A[i, 0], "c"), "one index for each axis; got a function of other parameters"),
        (lambda: te.compute((8, 4), lambda i: A[i, 0], "c", ("i",)), "got 1 names of axes, expected 2"),
        (lambda: te.compute((8,), lambda i: 1.5, "c"), "an element is no expression; got 1.5"),  # type: ignore[arg-type, return-value]
        (lambda: te.compute((8,), lambda i: te.sum_reduce(A[i, K], K), "c"), "write axis.var"),  # type: ignore[index]
        (lambda: te.compute((8,), lambda i: A[i, 0] + A, "c"), "neither an expression nor a number"),  # type: ignore[operator]
        (lambda: te.placeholder(8, "float32", "x"), "no tuple of extents; got 8"),  # type: ignore[arg-type]
        (lambda: te.placeholder((4, -1), "float32", "x"), "an extent is negative; got -1"),
        (lambda: te.placeholder((4,), "float33", "x"), "unknown dtype; got 'float33'"),
    ],
)  # fmt: skip
def test_wrong_expressions_are_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        wrong()
    assert said in str(caught.value)
