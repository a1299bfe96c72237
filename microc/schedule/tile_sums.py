"""What primitives share that change how a tile multiplies by constant bytes: the product's parts, passes over its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from microc.errors import ScheduleError
from microc.frozen import frozen
from microc.schedule.tree import fresh
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.rewrite import free_vars, substitute

Point = Mapping[ir.Var, ir.Expr]
"""Values of loop variables."""


@frozen
class ByteProduct:
    """The parts of ``c[.., o] += a[.., k] * w[o, k]``."""

    block: ir.Block
    store: ir.Store
    data: ir.Load
    weight: ir.Load

    def first(self, point: Point) -> tuple[ir.IterVar, ...]:
        """The block's iterators where the loops of ``point`` stand there."""
        return tuple(replace(i, binding=simplify(substitute(i.binding, point))) for i in self.block.iters)

    def counts_space(self, loop: ir.For) -> bool:
        """Whether a loop counts places of sums."""
        return any(i.kind == "space" and loop.var in free_vars(i.binding) for i in self.block.iters)


def byte_product(block: ir.Block, refuse: Callable[[str], ScheduleError]) -> ByteProduct:
    """The parts of a block that adds products by constant bytes."""
    match block.body:
        case ir.Store(total, where, ir.Bin("add", ir.Load(b, i), ir.Bin("mul", ir.Cast(_, x), ir.Cast(_, w)))) if (
            b == total and i == where and isinstance(x, ir.Load) and isinstance(w, ir.Load)
        ):
            if len(w.indices) == 2 and w.buffer.scope == "const" and w.dtype == "int8":
                return ByteProduct(block, block.body, x, w)
        case _:
            pass
    raise refuse("the body is no product by constant bytes")


def over_tile(
    product: ByteProduct,
    tile: list[ir.For],
    first: Point,
    taken: set[str],
    what: str,
    change: Callable[[ir.Load], ir.Stmt],
    more: tuple[ir.IterVar, ...] = (),
) -> ir.Stmt:
    """A pass over the sums that the loops ``tile`` count, ``first`` the values of others: what ``change`` does to each, which may
    use the iterators ``more``."""
    block = product.block
    renamed = {x.var: ir.Var(fresh(taken, f"{x.var.name}_{what}")) for x in tile}
    values: dict[ir.Var, ir.Expr] = {}
    iters = list(more)
    for it in block.iters:
        if it.kind == "space":
            var = ir.Var(fresh(taken, f"{it.var.name}_{what}"))
            values[it.var] = var
            binding = simplify(substitute(substitute(it.binding, first), dict(renamed)))
            iters.append(replace(it, var=var, binding=binding))
    place = tuple(substitute(i, values) for i in product.store.indices)
    guard = None if block.predicate is None else substitute(block.predicate, dict(renamed))
    body = change(ir.Load(product.store.buffer, place))
    nest: ir.Stmt = ir.Block(f"{block.name}_{what}", tuple(iters), body, None, guard)
    for x in reversed(tile):
        nest = ir.For(renamed[x.var], x.extent, nest, "unrolled")
    return nest
