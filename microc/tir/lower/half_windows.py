"""Loops annotated ``window`` that slide over pixels of float16: one intrinsic does them whole.

::

    for lane in 8 [window]: for pixel:
        sums[pixel, lane] = 0
        for row: for tap in 3: sums[pixel, lane] = fma(a[row, S * pixel + tap, lane], b[row, tap, lane], sums[pixel, lane])

becomes ``half_window_<S>_<X>(a, b, sums, rows, elements of a row, those of a pixel)``. Loops of one iteration may be missing.
"""

from __future__ import annotations

from typing import NoReturn

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.lower.half_products import turns_of
from microc.tir.lower.region import address, flat_step
from microc.tir.names import WINDOW
from microc.tir.rewrite import map_stmt, walk_stmt

LANES, TAPS = 8, 3
"""Channels, and taps of a row."""


def lower_half_windows(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with every such nest as a call."""
    return map_stmt(stmt, lambda s: _call(s) if isinstance(s, ir.For) and WINDOW in dict(s.annotations) else s)


def _fail(nest: ir.For, why: str) -> NoReturn:
    raise InternalError(f"the loops from {nest.var.name} inwards are no window: {why}")


def _call(nest: ir.For) -> ir.Stmt:
    """The call that does what the loops do."""
    match [s for s in walk_stmt(nest) if isinstance(s, ir.Store) and isinstance(s.value, ir.Call)]:
        case [ir.Store(sums, indices, ir.Call("fma", (ir.Load() as a, ir.Load() as b, _)))]:
            places = ((a.buffer, a.indices), (b.buffer, b.indices), (sums, indices))
        case _:
            _fail(nest, "there is not one sum of products")
    loops = turns_of(nest)
    if loops is None:
        _fail(nest, "it has conditions")
    steps = {var: tuple(flat_step(*place, var) for place in places) for var in loops}
    summed = sorted((var for var in loops if steps[var][2] == 0), key=lambda var: steps[var][1] or 0)
    moved = [var for var in loops if steps[var][2] != 0 and var != nest.var]
    if not summed or len(summed) > 2 or len(moved) > 1:
        _fail(nest, "its loops are others")
    tap, rows, pixels = summed[0], loops[summed[1]] if summed[1:] else 1, loops[moved[0]] if moved else 1
    step, row_step = steps[tap][0] or 0, (steps[summed[1]][0] or 0) if summed[1:] else 0
    stride = (steps[moved[0]][0] or 0) // step if moved and step else 1
    wanted = {nest.var: (1, 1, 1), tap: (step, step, 0)}
    wanted |= dict.fromkeys(summed[1:], (row_step, TAPS * step, 0)) | dict.fromkeys(moved, (stride * step, 0, LANES))
    if steps != wanted or (loops[nest.var], loops[tap]) != (LANES, TAPS):
        _fail(nest, f"{', '.join(var.name for var in loops)} move by other steps")
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var in loops}
    reach = (rows - 1) * row_step + ((pixels - 1) * stride + TAPS - 1) * step + LANES
    extents = (reach, (rows * TAPS - 1) * step + LANES, pixels * LANES)
    args = [address(*place, first, n, writes=place is places[2]) for place, n in zip(places, extents, strict=True)]
    numbers = (ir.const(n, "int32") for n in (rows, row_step, step))
    return ir.Evaluate(ir.Call(f"half_window_{stride}_{pixels}", (*args, *numbers), "int32"))
