"""Loops annotated ``product`` in which runs of terms are summed in float16: one intrinsic does them whole.

::

    for lane in 4 [product]: for row: for vector: for odd in 2: for run:
        total = 0
        for k: total = fma(a[row, run, k], b[run, k, vector, lane, odd], total)
        sums[row, vector, odd, lane] += float32(total)

becomes ``half_product_<R>x<V>(a, b, sums, depth, runs, stride of a)``. Loops of one iteration may be missing, and the others
be in any order.
"""

from __future__ import annotations

from typing import NoReturn

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.lower.region import address, flat_step
from microc.tir.names import PRODUCT
from microc.tir.rewrite import map_stmt, walk_all_exprs, walk_stmt

LANES = 8
"""Columns of a vector."""


def lower_half_products(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with every such nest as a call."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _call(s) if isinstance(s, ir.For) and PRODUCT in dict(s.annotations) and _halves(s) else s

    return map_stmt(stmt, on_stmt)


def _halves(nest: ir.For) -> bool:
    return any(isinstance(x, ir.Call) and (x.name, x.dtype) == ("fma", "float16") for x in walk_all_exprs(nest))


def _fail(nest: ir.For, why: str) -> NoReturn:
    raise InternalError(f"the loops from {nest.var.name} inwards are no product of halves: {why}")


def _call(nest: ir.For) -> ir.Stmt:
    """The call that does what the loops do."""
    stores = [s for s in walk_stmt(nest) if isinstance(s, ir.Store)]
    factors = [s.value.args[:2] for s in stores if isinstance(s.value, ir.Call)]
    added = [s for s in stores if isinstance(s.value, ir.Bin)]
    match factors, added:
        case [(ir.Load() as a, ir.Load() as b)], [sums]:
            places = ((a.buffer, a.indices), (b.buffer, b.indices), (sums.buffer, sums.indices))
        case _:
            _fail(nest, "there is not one product and one sum")
    loops = turns_of(nest)
    if loops is None:
        _fail(nest, "it has conditions")
    steps = {var: tuple(flat_step(*place, var) for place in places) for var in loops}
    roles = {_role(steps[var]): var for var, extent in loops.items() if extent != 1}
    counts = {role: loops[roles[role]] if role in roles else 1 for role in ("row", "vector", "run", "term")}
    width, depth, rows = LANES * counts["vector"], counts["run"] * counts["term"], counts["row"]
    stride = steps[roles["row"]][0] if rows > 1 else 0
    wanted = {
        "row": (stride, 0, width), "vector": (0, LANES, LANES), "odd": (0, 1, 4), "lane": (0, 2, 1),
        "run": (counts["term"], counts["term"] * width, 0), "term": (1, width, 0),
    }  # fmt: skip
    if any(steps[var] != wanted[role] for role, var in roles.items()) or stride is None:
        _fail(nest, f"{', '.join(var.name for var in roles.values())} move by other steps")
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var in loops}
    extents = ((rows - 1) * stride + depth, depth * width, rows * width)
    args = [address(*place, first, n, writes=place is places[2]) for place, n in zip(places, extents, strict=True)]
    numbers = (depth, counts["run"], *((stride,) if rows > 1 else ()))
    name = f"half_product_{rows}x{counts['vector']}"
    return ir.Evaluate(ir.Call(name, (*args, *(ir.const(n, "int32") for n in numbers)), "int32"))


def turns_of(nest: ir.For) -> dict[ir.Var, int] | None:
    """How often the loops of a nest run that does something in every turn, or below a limit alone, where a tile is a part of one;
    None where other conditions hold."""
    found = {s.var: ir.int_value(s.extent) or 0 for s in walk_stmt(nest) if isinstance(s, ir.For)}
    for test in (s for s in walk_stmt(nest) if isinstance(s, ir.If)):
        match test:
            case ir.If(ir.Bin("lt", ir.Var() as var, ir.Const(int() as limit)), _, None) if var in found:
                found[var] = min(found[var], limit)
            case _:
                return None
    return found


def _role(steps: tuple[int | None, ...]) -> str:
    """What a loop counts, by how far it moves in ``a``, ``b`` and ``sums``."""
    left, right, total = steps
    if total == 0:
        return "term" if left == 1 else "run"
    if right == 0:
        return "row"
    return {1: "lane", 4: "odd"}.get(total or 0, "vector")
