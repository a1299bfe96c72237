"""tensorize: an innermost reduction loop becomes calls of an intrinsic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from microc import dtypes
from microc.errors import ScheduleError
from microc.schedule.intrinsics import TENSOR, TensorIntrin
from microc.schedule.tree import extent_of, find_loop, replace_stmt
from microc.tir import ir
from microc.tir.affine import linear, simplify
from microc.tir.rewrite import free_vars, substitute


def _operand(expr: ir.Expr) -> ir.Load | None:
    """The load under a widening cast."""
    return expr.a if isinstance(expr, ir.Cast) and expr.dtype == "int32" and isinstance(expr.a, ir.Load) else None


def _refuse(loop: str, intrin: TensorIntrin, why: str) -> ScheduleError:
    return ScheduleError(
        f"tensorize {loop!r} with {intrin.name}: {why}",
        hint=f"it replaces 'for k in {len(intrin.order_a)}: c += int32(a[.., k]) * int32(b[.., k])'"
        f" with {intrin.a} a and {intrin.b} b, its order in memory, the innermost loop of a decomposed reduction",
    )


def tensorize(func: ir.PrimFunc, loop: str, intrin: str) -> ir.PrimFunc:
    """Replace ``loop`` (around one block only) by the tensor intrinsic called ``intrin``."""
    if intrin not in TENSOR:
        raise ScheduleError(f"there is no tensor intrinsic {intrin!r}", hint="known: " + ", ".join(TENSOR))
    old, what = find_loop(func.body, loop), TENSOR[intrin]
    block = old.body
    if not isinstance(block, ir.Block) or extent_of(old) != len(what.order_a):
        raise _refuse(loop, what, "the loop is not innermost or has another extent")
    if block.init is not None:
        raise _refuse(loop, what, "the reduction is not decomposed")
    if block.predicate is not None and old.var in free_vars(block.predicate):
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
    for load, order, aligned in ((a, what.order_a, what.aligned_a), (b, what.order_b, what.aligned_b)):
        if _steps(load, bindings, old.var, len(order)) != order:
            raise _refuse(loop, what, f"{load.buffer.name!r} is not read in the order {order}")
        if aligned and not _aligned(load, bindings, old.var):
            raise _refuse(loop, what, f"{load.buffer.name!r} is not known to be read at whole words")
    first = {old.var: ir.const(0, "int32")}
    iters = tuple(replace(i, binding=simplify(substitute(i.binding, first))) for i in block.iters)
    address_a = ir.AddressOf(a.buffer, a.indices, len(what.order_a))
    address_b = ir.AddressOf(b.buffer, b.indices, len(what.order_b))
    value = what.value(address_a, address_b, store.value.a)
    new = replace(block, iters=iters, body=ir.Store(store.buffer, store.indices, value))
    return replace(func, body=replace_stmt(func.body, old, new))


def _steps(load: ir.Load, bindings: Mapping[ir.Var, ir.Expr], var: ir.Var, count: int) -> tuple[int, ...] | None:
    """How many elements behind the first the others lie, for each value of ``var``; None where that varies."""
    found = []
    for step in range(count):
        distance = 0
        for axis, index in enumerate(load.indices):
            stride = prod(load.buffer.shape[axis + 1 :])
            bound = substitute(index, bindings)
            ends = (substitute(bound, {var: ir.const(k, "int32")}) for k in (step, 0))
            difference = ir.int_value(simplify(next(ends) - next(ends)))
            if difference is None:
                return None
            distance += difference * stride
        found.append(distance)
    return tuple(found)


def _aligned(load: ir.Load, bindings: Mapping[ir.Var, ir.Expr], var: ir.Var) -> bool:
    """Whether step 0 reads at a multiple of four bytes, given that the buffer starts at one."""
    elements = 4 // dtypes.nbytes(load.dtype)
    for axis, index in enumerate(load.indices):
        stride = prod(load.buffer.shape[axis + 1 :])
        terms, offset = linear(simplify(substitute(substitute(index, bindings), {var: ir.const(0, "int32")})))
        if any(factor * stride % elements for factor in (*terms.values(), offset)):
            return False
    return True
