"""Matrix products of float32 on cores that multiply and add in one instruction, in 32 registers.

A tile of pixels by channels accumulates in registers beside the weights of one k and one activation, so that a step of k takes
(rows + columns) loads for rows * columns products. Weights lie in the order they are read. Every sum runs along k in order.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import finish_tile, inline_elementwise
from microc.schedule.rules.matrix import product_axes
from microc.schedule.rules.matrix_dsp import operands
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir.names import ACC, OUT

REGISTERS = 30
"""Registers for sums, weights and an activation; two are left for the elementwise end and the C compiler."""
COLUMNS = (4, 5, 6, 3, 2)
"""Channels at once, the best first: rows and columns of like number share most."""
ROW_COLUMNS = (16, 14, 12, 10, 8, 15, 13, 11, 9, 7, 6, 5, 4, 3, 2)
"""Channels at once for a single row, where each weight serves one product and only the activation is shared."""
UNROLL = (4, 3, 2, 1)


def suits_float(schedule: Schedule, target: Target) -> bool:
    """Whether ``acc`` multiplies float32 by float32 on a core that does so in registers."""
    found = operands(schedule)
    if found is None or not target.has("fma"):
        return False
    return {found.data.dtype, found.weight.dtype, found.total.dtype} == {"float32"}


def choose_tile(rows: int, columns: int) -> tuple[int, int]:
    """Pixels and channels at once. Channels divide evenly where possible, so that their weights can be packed."""
    if rows == 1:
        return 1, next((n for n in ROW_COLUMNS if columns % n == 0), min(columns, ROW_COLUMNS[0]))
    wide = next((n for n in COLUMNS if columns % n == 0), min(columns, COLUMNS[0]))
    most = min(rows, (REGISTERS - wide - 1) // wide, 8)
    return next((n for n in range(most, most // 2, -1) if rows % n == 0), most), wide


def schedule_matrix_float(schedule: Schedule, target: Target) -> Schedule:
    """p and o tiled into registers, k innermost; patches for one tile of pixels at a time. Loops around p stay around it."""
    schedule = inline_elementwise(schedule)
    found = operands(schedule)
    assert found is not None
    axes = product_axes(schedule)
    p, o, k = axes.p, axes.o, axes.k
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (p, o, k))
    tall, wide = choose_tile(rows, columns)
    unroll = next(n for n in UNROLL if depth % n == 0)
    if found.weight.scope == "const" and len(found.weight.shape) == 2 and columns % wide == 0:
        schedule = schedule.transform_layout(found.weight.name, ((None, wide), (None,)), (0, 2, 1))
    schedule = schedule.split(p, (None, tall)).split(o, (None, wide)).split(k, (None, unroll))
    schedule = schedule.reorder(f"{p}_0", *axes.inside, f"{o}_0", f"{k}_0", f"{k}_1", f"{p}_1", f"{o}_1")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(found.total.name, "register")
    return finish_tile(schedule, (p, o, k), axes.tile, target)
