"""Functions of rows, such as softmax and normalisation: all stages of a row before the next row.

What a row has one of (its largest element, its sum, a scale) then lives in registers, and what it has many of in the memory of
one row; nothing is kept for all rows.
"""

from __future__ import annotations

from microc.schedule.placement import stored_buffer
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern, reduce_loops, unroll_run
from microc.schedule.rules.lanes import in_lanes_of
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs


def suits_rows(start: Schedule, target: Target) -> bool:
    """Whether the last of several stages goes through rows, and all that it needs is made for the same row."""
    *first, last = blocks_of(inline_elementwise(start))
    if not first or not any(block.init for block in first) or is_extern(last) or last.init or len(last.iters) < 2:
        return False
    rows = last.iters[0].extent
    made = {}
    for block in first:
        if is_extern(block) or block.iters[0].kind != "space" or block.iters[0].extent != rows:
            return False
        made[stored_buffer(block)] = block
    return made.keys().isdisjoint(start.func.params) and all(
        x.indices[0] == block.iters[0].var
        for block in (*first, last)
        for x in walk_all_exprs(block)
        if isinstance(x, ir.Load) and x.buffer in made
    )


def schedule_rows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Every stage before the last moves into the loop over rows, the steps of its sums some at a time where ``unrolled``."""
    schedule, unrolled = inline_elementwise(start), decisions["unrolled"]
    *first, last = blocks_of(schedule)
    row = schedule.loops_of(last.name)[0]
    for block in reversed(first):
        schedule = schedule.compute_at(block.name, row)
    for block in first:
        buffer = stored_buffer(find_block(schedule.func.body, block.name))
        if buffer.size == buffer.shape[0]:
            schedule = schedule.set_scope(buffer.name, "register")
        reducing = reduce_loops(schedule, block.name)
        if reducing:
            schedule = schedule.decompose_reduction(block.name, reducing[0])
            schedule = unroll_run(schedule, reducing[-1]) if unrolled else schedule
    inner = schedule.loops_of(last.name)[-1]
    if target.has("lanes") or target.has("vectors"):
        return in_lanes_of(schedule, inner, target)
    return unroll_run(schedule, inner) if unrolled else schedule
