# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions as loops: what is shared in the one is shared in the other."""

from __future__ import annotations

from microc import te
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
