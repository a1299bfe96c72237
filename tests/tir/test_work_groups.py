# SPDX-License-Identifier: Apache-2.0
"""Passes for loops that are bound to work-groups: intrinsics and scalars take part in them as loads and stores do."""

from __future__ import annotations

from microc.tir import ir
from microc.tir.lower.loop_splitting import double_buffer_loops
from microc.tir.lower.work_groups import add_barriers
from microc.tir.names import DOUBLE_BUFFER
from microc.tir.rewrite import accesses_of, walk_all_exprs

ZERO = ir.const(0, "int32")


def test_intrinsics_read_the_half_that_was_filled() -> None:
    """Double buffering redirects addresses as it does loads: of a buffer of the old shape nothing is left."""
    data, out = ir.Buffer("data", (8, 4), "int32"), ir.Buffer("out", (8,), "int32")
    tile, k = ir.Buffer("tile", (4,), "int32", "shared"), ir.Var("k")
    fill = ir.Store(tile, (ZERO,), data[k, 0])
    use = ir.Store(out, (k,), ir.Call("sum4", (ir.AddressOf(tile, (ZERO,), 4),), "int32"))
    loop = ir.For(k, ir.const(8, "int32"), ir.seq(fill, use), annotations=((DOUBLE_BUFFER, 1),))
    doubled = double_buffer_loops(ir.Alloc(tile, loop))
    used = {
        access.buffer.shape
        for e in walk_all_exprs(doubled)
        for access in accesses_of(e)
        if access.buffer.name == "tile"
    }
    assert used == {(2, 4)}


def test_barriers_around_scalars() -> None:
    """A scalar of shared memory has no index; nests of items that use it wait for each other."""
    scalar, out = ir.Buffer("scalar", (), "int32", "shared"), ir.Buffer("out", (4,), "int32")
    writes = ir.For(ir.Var("i"), ir.const(4, "int32"), ir.Store(scalar, (), ZERO), "threadIdx.x")
    item = ir.Var("j")
    reads = ir.For(item, ir.const(4, "int32"), ir.Store(out, (item,), scalar[()]), "threadIdx.x")
    assert "barrier" in str(add_barriers(ir.Alloc(scalar, ir.seq(writes, reads)), (out,)))
