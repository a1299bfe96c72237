"""Bytes multiplied by two channels at once (``ops/matrix/quads.py``): ``entry``, ``part``, ``acc``, ``out``.

Eight low registers hold a word of four weights, its odd bytes, an input, two sums of a block, the mask and two pointers, the
high ones the fields' sums.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir.names import ACC, COLUMN, ENTRY, OUT, PART

CHANNELS = 4


def is_quad(schedule: Schedule) -> bool:
    """Whether the function multiplies quads of channels."""
    return schedule.has(ENTRY) and schedule.has(PART)


def schedule_matrix_quads(schedule: Schedule, target: Target) -> Schedule:
    """A row at a time: its inputs laid out, or the words behind its blocks alone; then four channels at once, block by block."""
    schedule = inline_elementwise(schedule)
    end = "out" if schedule.has(OUT) else "value"
    p, o = schedule.loops_of(end)
    schedule = schedule.split(o, (None, CHANNELS)).compute_at(ACC, f"{o}_0")
    *_, field, high, j = schedule.loops_of(ACC)
    schedule = schedule.reorder(j, field, high).decompose_reduction(ACC, j).compute_at(PART, j)
    column, term = schedule.loops_of(PART)[-2:]
    schedule = schedule.reorder(term, column).decompose_reduction(PART, term)
    terms, blocks = loop_extent(schedule.func, term), loop_extent(schedule.func, j)
    for block in ("acc", "part"):
        schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, block)).name, "register")
    schedule = schedule.compute_at(ENTRY, p)
    entries = schedule.loops_of(ENTRY)[-1]
    if loop_extent(schedule.func, entries) > blocks:
        schedule = schedule.split(entries, (None, terms + 1)).unroll(f"{entries}_1")
    if schedule.has(COLUMN):
        schedule = schedule.compute_at(COLUMN, p)
    unrolled = (*schedule.loops_of("acc_init")[-2:], *schedule.loops_of("part_init")[-1:], schedule.loops_of(end)[-1])
    for loop in (*unrolled, term, column, field, high):
        schedule = schedule.unroll(loop)
    return schedule
