"""A sketch for any function with one reduction: two levels of loops, a square of sums in registers (multi-level tiling, Ansor).

What it computes does not matter, so it serves operators that no rule knows, those of plugins too. The two innermost loops beside
the reduction are tiled without a rest; the reduction runs outside of the square, some of its steps written out; what reads the
sums, and stages of its inputs that a row needs, are joined. There is no default: it is for a search.
"""

from __future__ import annotations

from collections.abc import Sequence

from microc.frozen import frozen
from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern, pad_by_row, reduce_loops
from microc.schedule.rules.rule import Decisions
from microc.schedule.rules.spaces import STEPS, WRITTEN, perfect
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Goal, Target
from microc.tir.facts import buffers_read

SIDE = 8
"""Iterations of a side of the square at most."""


@frozen
class Square:
    """A choice: iterations of the last two loops beside the reduction at once, and steps of it that are written out."""

    rows: int
    columns: int
    steps: int


def suits_sketch(start: Schedule, target: Target) -> bool:
    """One reduction, that another stage reads, within loops of its own."""
    return _parts(start) is not None


def _parts(start: Schedule) -> tuple[Schedule, str, str] | None:
    """The function with its stages joined, the block that reduces, and the one that reads what it makes."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    sums = [block for block in blocks if block.init is not None]
    if len(sums) != 1 or any(map(is_extern, blocks)):
        return None
    total = stored_buffer(sums[0])
    readers = [block.name for block in blocks if block is not sums[0] and total in buffers_read(block.body)]
    spatial = [i for i in sums[0].iters if i.kind == "space"]
    if len(readers) != 1 or total in start.func.params or len(spatial) < 2 or len(spatial) == len(sums[0].iters):
        return None
    return schedule, sums[0].name, readers[0]


def squares(start: Schedule, target: Target, goal: Goal) -> Sequence[Square]:
    """Perfect tiles; nothing that is written out is long."""
    parts = _parts(start)
    assert parts is not None
    schedule, block, _ = parts
    reducing = reduce_loops(schedule, block)
    rows, columns = [loop for loop in schedule.loops_of(block) if loop not in reducing][-2:]
    extents = [loop_extent(schedule.func, loop) for loop in (rows, columns, reducing[-1])]
    return [
        Square(r, c, steps)
        for r in perfect(extents[0], SIDE)
        for c in perfect(extents[1], SIDE)
        for steps in perfect(extents[2], STEPS)
        if r * c * steps <= WRITTEN
    ]


def schedule_sketch(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Loops beside the reduction, then that, then the square."""
    parts, square = _parts(start), decisions["square"]
    if parts is None:
        return None
    schedule, block, reader = parts
    reducing = reduce_loops(schedule, block)
    *outer, rows, columns = [loop for loop in schedule.loops_of(block) if loop not in reducing]
    steps = reducing[-1]
    schedule = schedule.split(rows, (None, square.rows)).split(columns, (None, square.columns))
    schedule = schedule.split(steps, (None, square.steps))
    order = [*outer, f"{rows}_0", f"{columns}_0", *reducing[:-1], f"{steps}_0", f"{steps}_1"]
    schedule = schedule.reorder(*order, f"{rows}_1", f"{columns}_1")
    schedule = schedule.decompose_reduction(block, (*reducing[:-1], f"{steps}_0")[0])
    schedule = schedule.reverse_compute_at(reader, f"{columns}_0")
    schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, block)).name, "register")
    for name in (f"{block}_init", block, reader):
        around = schedule.loops_of(name)
        for loop in around[around.index(f"{columns}_0") + 1 :]:
            schedule = schedule if loop in reducing[:-1] or loop == f"{steps}_0" else schedule.unroll(loop)
    return pad_by_row(schedule, target)
