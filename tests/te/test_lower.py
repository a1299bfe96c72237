# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions as loops: what is shared in the one is shared in the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import microc
from microc import te, tir
from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.rewrite import walk_stmt
from microc.tir.verify import verify

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


def test_buffers_avoid_the_names_that_an_extern_declares() -> None:
    """A constant is called as a loop of an extern, a workspace that is made later as a local buffer of it."""
    x, b = te.placeholder((4,), "float32", "x"), te.placeholder((4,), "float32", "b")
    loop, local = ir.Var("b"), ir.Buffer("line", (1,), "float32", "workspace")

    def double(operands: Sequence[ir.Buffer], results: Sequence[ir.Buffer]) -> ir.Stmt:
        zero = ir.const(0, "int32")
        load = ir.Store(local, (zero,), ir.Load(operands[0], (loop,)))
        store = ir.Store(results[0], (loop,), ir.Load(local, (zero,)) * 2.0)
        return ir.loops([(loop, 4)], ir.Alloc(local, ir.seq(load, store)))

    (doubled,) = te.extern("double", [x], [("doubled", (4,), "float32")], double)
    line = te.compute((4,), lambda i: doubled[i] * b[i], "line", ("i",))
    out = te.compute((4,), lambda i: line[i] + x[i], "out", ("i",))
    func = te.create_prim_func("f", [x], [out], [b])
    verify(func)
    assert [param.name for param in func.params] == ["x", "b_1", "out"]
    data, factors = np.arange(4, dtype=np.float32), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(
        microc.build(func, "host", constants={"b_1": factors})(data), 2 * data * factors + data
    )


A, K = te.placeholder((8, 4), "float32", "A"), te.reduce_axis(4, "k")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: te.compute((8, 4), lambda i: A[i, 0], "c"), "one index for each axis; got a function of other parameters"),
        (lambda: te.compute((8, 4), lambda i: A[i, 0], "c", ("i",)), "got 1 names of axes, expected 2"),
        (lambda: te.compute((8,), lambda i: 1.5, "c"), "an element is no expression; got 1.5"),  # type: ignore[arg-type, return-value]
        (lambda: te.compute((8,), lambda i: te.sum_reduce(A[i, K], K), "c"), "write axis.var"),  # type: ignore[index]
        (lambda: te.sum_reduce(A[0, K.var], [K, K.var]), "expected a reduction axis"),  # type: ignore[list-item]
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


def test_axes_of_a_reduction_may_be_a_list() -> None:
    """As TVM writes ``te.sum(value, axis=[k, l])``."""
    first, second = te.reduce_axis(2, "k"), te.reduce_axis(3, "l")
    x = te.placeholder((4, 2, 3), "float32", "x")

    def sum_over(*axes: te.ReduceAxis | list[te.ReduceAxis]) -> tir.PrimFunc:
        rows = te.compute((4,), lambda i: te.sum_reduce(x[i, first.var, second.var], *axes), "rows", ("i",))
        return te.create_prim_func("f", [x], [rows])

    assert sum_over([first, second]) == sum_over(first, second)
