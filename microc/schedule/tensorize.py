"""tensorize: the innermost loops of a reduction become calls of an intrinsic."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from operator import mul

from microc import dtypes
from microc.errors import ScheduleError, suggestion
from microc.isa import TENSOR, TensorIntrin
from microc.schedule.tree import extent_of, find_block, find_loop, has_block, loops_around, replace_stmt
from microc.schedule.unit import LOOPS, tensorize_unit
from microc.tir import ir
from microc.tir.affine import linear, simplify
from microc.tir.lower.region import loop_bounds
from microc.tir.rewrite import free_vars, substitute

Point = Mapping[ir.Var, ir.Expr]
"""Values of loop variables."""


def _operand(expr: ir.Expr) -> ir.Load | None:
    """The load under a widening cast."""
    return expr.a if isinstance(expr, ir.Cast) and expr.dtype == "int32" and isinstance(expr.a, ir.Load) else None


def _refuse(loop: str, intrin: TensorIntrin, why: str) -> ScheduleError:
    loops = " ".join(
        f"for {name} in {n}:" for name, n in zip("nk"[-len(intrin.extents) :], intrin.extents, strict=True)
    )
    return ScheduleError(
        f"tensorize {loop!r} with {intrin.name}: {why}",
        hint=f"it replaces '{loops} c += int32(a[.., k]) * int32(b[.., k])'"
        f" with {intrin.a} a and {intrin.b} b, its order in memory, the innermost loops of a decomposed reduction",
    )


def tensorize(func: ir.PrimFunc, loop: str, intrin: str) -> ir.PrimFunc:
    """Replace ``loop``, and what loops the intrinsic has inside it (around one block only), by the tensor intrinsic.

    Words of a tensor unit take loops of any extents (:mod:`microc.schedule.unit`). The name of a block that
    :func:`~microc.schedule.blockize.blockize` made says: the loops in it.
    """
    if intrin in LOOPS:
        return tensorize_unit(func, loop, intrin)
    if intrin not in TENSOR:
        names = (*TENSOR, *LOOPS)
        raise ScheduleError(f"there is no tensor intrinsic {intrin!r}", hint=suggestion(intrin, names, "intrinsics"))
    what = TENSOR[intrin]
    old = find_block(func.body, loop).body if has_block(func.body, loop) else find_loop(func.body, loop)
    if not isinstance(old, ir.For):
        raise _refuse(loop, what, "the block holds no loops")
    block, points = _nest(old, what)
    if block.init is not None:
        raise _refuse(loop, what, "the reduction is not decomposed")
    if block.predicate is not None and points[0].keys() & free_vars(block.predicate):
        raise _refuse(loop, what, "the loop has a guarded tail")
    store = block.body
    if not (isinstance(store, ir.Store) and isinstance(store.value, ir.Bin) and store.value.op == "add"):
        raise _refuse(loop, what, "the body is no sum")
    product = store.value.b
    if store.value.a != ir.Load(store.buffer, store.indices) or not isinstance(product, ir.Bin) or product.op != "mul":
        raise _refuse(loop, what, "the body is no sum of products")
    a, b = _operand(product.a), _operand(product.b)
    if a is None or b is None or (a.dtype, b.dtype) != (what.a, what.b):
        raise _refuse(loop, what, "the operands have other dtypes")
    bindings = {i.var: i.binding for i in block.iters}
    bounds = loop_bounds(loops_around(func.body, old))
    for load, order, aligned in ((a, what.order_a, what.aligned_a), (b, what.order_b, what.aligned_b)):
        steps = [_distance(load.indices, bindings, points[0], point) for point in points]
        strides = load.buffer.strides
        if [None if s is None else sum(map(mul, s, strides)) for s in steps] != list(order):
            raise _refuse(loop, what, f"{load.buffer.name!r} is not read in the order {order}")
        if aligned and not _aligned(load, bindings, points[0], bounds):
            raise _refuse(loop, what, f"{load.buffer.name!r} is not known to be read at whole words")
    iters = tuple(replace(i, binding=simplify(substitute(i.binding, points[0]))) for i in block.iters)
    places = _places(store, bindings, points, what.outputs)
    if places is None:
        raise _refuse(loop, what, f"{store.buffer.name!r} is not written at one place for each output")
    body = what.body(a, b, tuple(ir.Load(store.buffer, place) for place in places))
    return replace(func, body=replace_stmt(func.body, old, replace(block, iters=iters, body=body)))


def _nest(loop: ir.For, intrin: TensorIntrin) -> tuple[ir.Block, list[Point]]:
    """The block inside the intrinsic's loops, and the values of their variables, in order."""
    variables: list[ir.Var] = []
    inner: ir.Stmt = loop
    for extent in intrin.extents:
        if not isinstance(inner, ir.For) or extent_of(inner) != extent:
            raise _refuse(loop.var.name, intrin, "the loops have other extents")
        variables.append(inner.var)
        inner = inner.body
    if not isinstance(inner, ir.Block):
        raise _refuse(loop.var.name, intrin, "the loops are not innermost")
    numbers = itertools.product(*(range(extent) for extent in intrin.extents))
    return inner, [dict(zip(variables, (ir.const(n, "int32") for n in row), strict=True)) for row in numbers]


def _distance(
    indices: tuple[ir.Expr, ...], bindings: Mapping[ir.Var, ir.Expr], first: Point, point: Point
) -> tuple[int, ...] | None:
    """How far along every axis the element at ``point`` lies behind that at ``first``; None where that varies."""
    found = []
    for index in indices:
        bound = substitute(index, bindings)
        difference = ir.int_value(simplify(substitute(bound, point) - substitute(bound, first)))
        if difference is None:
            return None
        found.append(difference)
    return tuple(found)


def _places(
    store: ir.Store, bindings: Mapping[ir.Var, ir.Expr], points: list[Point], outputs: int
) -> list[tuple[ir.Expr, ...]] | None:
    """The indices at which every output is kept; None if they vary while its terms are added."""
    terms = len(points) // outputs
    moves = [_distance(store.indices, bindings, points[0], point) for point in points]
    found = []
    for n in range(outputs):
        move = moves[n * terms]
        if move is None or any(other != move for other in moves[n * terms : (n + 1) * terms]):
            return None
        found.append(tuple(i + d if d else i for i, d in zip(store.indices, move, strict=True)))
    return found


def _aligned(
    load: ir.Load, bindings: Mapping[ir.Var, ir.Expr], first: Point, bounds: Mapping[ir.Var, tuple[int, int]]
) -> bool:
    """Whether the first element lies at a multiple of four bytes, given that the buffer starts at one."""
    elements = 4 // dtypes.nbytes(load.dtype)
    for index, stride in zip(load.indices, load.buffer.strides, strict=True):
        terms, offset = linear(simplify(substitute(substitute(index, bindings), first), bounds))
        if any(factor * stride % elements for factor in (*terms.values(), offset)):
            return False
    return True
