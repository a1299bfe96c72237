# SPDX-License-Identifier: Apache-2.0
"""Rules for any function: reductions with sums in registers, and functions that are computed row by row."""

from __future__ import annotations

import itertools
from math import prod

from microc.errors import ScheduleError
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.rule import (
    Decisions,
    float_vector_level,
    largest_dividing_lane_count,
    vectorize_in_lanes,
    vectorize_lanes,
)
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.analysis.context import buffers_read
from microc.tir.names import ACC, EXTERN, MOVED, PADDED
from microc.tir.rewrite import free_vars, walk_all_exprs, walk_stmt

# ---- Any function: reductions in registers, elementwise stages fused with their producers

LONG_RUN = 32
"""Number of contiguous elements from which a test at run time pays whether the addresses permit moving words."""
ENOUGH_REGISTERS = 12
"""Number of registers from which a core spills nothing around the call of a copy function in a loop."""
UNROLL_LIMIT = 16
"""Largest trip count of a reduction that is unrolled completely."""


def blocks_of(schedule: Schedule) -> list[ir.Block]:
    """Return all blocks of the function, in order."""
    return [s for s in walk_stmt(schedule.func.body) if isinstance(s, ir.Block)]


def reduction_loops(schedule: Schedule, block: str) -> list[str]:
    """Return the names of the reduction loops of a block, outermost first."""
    iters = find_block(schedule.func.body, block).iters
    names = {v.name for i in iters if i.kind == "reduce" for v in free_vars(i.binding)}
    return [name for name in schedule.loops_of(block) if name in names]


def count_instances(block: ir.Block) -> int:
    """Return how often a block is executed: the product of the extents of its iterators."""
    return prod(i.extent for i in block.iters)


def is_operator_scheduled(block: ir.Block) -> bool:
    """Test whether a block contains loops that the operator's definition provides itself."""
    return any(name == EXTERN for name, _ in block.annotations)


def inline_elementwise(schedule: Schedule) -> Schedule:
    """Inline every stage without a reduction that only one later stage reads.

    The gathering blocks ``padded`` and ``patch`` are not inlined, nor are stages whose elements would be computed
    several times."""
    for block in blocks_of(schedule):
        if block.init is not None or block.name in ("padded", "patch") or is_operator_scheduled(block):
            continue
        buffer = stored_buffer(block)
        readers = [b for b in blocks_of(schedule) if buffer in buffers_read(b)]
        if (
            buffer in schedule.func.params
            or len(readers) != 1
            or readers[0].init is not None
            or is_operator_scheduled(readers[0])
        ):
            continue
        if count_instances(block) < count_instances(readers[0]):
            continue
        schedule = schedule.compute_inline(block.name)
    return schedule


def finish_reduction(schedule: Schedule, block: str, unrolled: bool = False) -> Schedule:
    """Decompose the reduction ``block``, fuse its elementwise consumer into the innermost spatial loop, and keep the
    sum in a register.

    ``unrolled``: unroll some iterations of the reduction."""
    reducing = reduction_loops(schedule, block)
    around = schedule.loops_of(block)
    spatial = [name for name in around if name not in reducing]
    if not reducing:
        return schedule
    if list(around) != spatial + reducing:
        try:
            schedule = schedule.reorder(*spatial, *reducing)
        except ScheduleError as refusal:  # the sum joined what it adds up, and stays there
            return schedule.without(f"reorder({', '.join((*spatial, *reducing))})", refusal)
    schedule = schedule.decompose_reduction(block, reducing[0])
    if unrolled:
        schedule = unroll_iterations(schedule, reducing[-1])
    buffer = stored_buffer(find_block(schedule.func.body, block))
    readers = [
        b for b in blocks_of(schedule) if buffer in buffers_read(b.body) and b.name not in (block, f"{block}_init")
    ]
    if len(readers) != 1 or buffer in schedule.func.params or not spatial:
        return schedule
    try:
        joined = schedule.reverse_compute_at(readers[0].name, spatial[-1])
    except ScheduleError as refusal:  # the consumer reads another shape, or another sum, which is computed later
        return schedule.without(f"reverse_compute_at({readers[0].name}, {spatial[-1]})", refusal)
    return joined.set_scope(buffer.name, "register")


def double_requantised_sums(schedule: Schedule, weight_name: str) -> Schedule:
    """Double the sums of the decomposed block ``acc`` if the requantisation multiplies high halves. Its constant int8
    weights are doubled and stored as int16.

    That saves one shift per output."""
    try:
        return schedule.double_reduction(ACC, weight_name)
    except ScheduleError as refusal:  # the scaling needs the sum itself
        return schedule.without(f"double_reduction(acc, {weight_name})", refusal)


def schedule_generic(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Fuse every reduction with its consumer, and compute padding once per row. If the decision ``unrolled`` is
    True, unroll some iterations of reductions."""
    schedule = inline_elementwise(start)
    for block in blocks_of(schedule):
        if block.init is not None:
            schedule = finish_reduction(schedule, block.name, decisions["unrolled"])
    return compute_padding_by_row(schedule, target)


def _reads_result_of(schedule: Schedule, block: str, producer: str) -> bool:
    """Test whether the block ``block`` reads the buffer that the block ``producer`` writes."""
    buffer = stored_buffer(find_block(schedule.func.body, producer))
    return buffer in buffers_read(find_block(schedule.func.body, block))


def compute_padding_by_row(schedule: Schedule, target: Target) -> Schedule:
    """Compute the block ``padded`` (the input with its border) for one output row at a time: move it into the second
    spatial loop of ``acc``."""
    if schedule.has(PADDED) and schedule.has(ACC) and _reads_result_of(schedule, ACC, PADDED):
        rows = schedule.loops_of(ACC)
        if len(rows) > 2:
            schedule = schedule.compute_at(PADDED, rows[1])
            return vectorize_copy(
                decompose_border_fill(schedule) if target.has("vectors") else schedule, PADDED, target
            )
    return schedule


def decompose_border_fill(schedule: Schedule) -> Schedule:
    """Split the block ``padded`` into a fill of the border and a copy of the rows, so that the copy needs no test."""
    try:
        return schedule.decompose_padding(PADDED)
    except ScheduleError as refusal:  # there is none beside the rows
        return schedule.without(f"decompose_padding({PADDED})", refusal)


def vectorize_copy(schedule: Schedule, block: str, target: Target) -> Schedule:
    """Copy contiguous elements of the source of a gathering block by vectors or words."""
    schedule = split_contiguous_runs(schedule, block)
    inner = schedule.loops_of(block)[-1]
    extent = loop_extent(schedule.func, inner)
    if target.core.lanes and extent > 1:
        lanes = (
            largest_dividing_lane_count(extent, target) or target.core.lanes[-1]
        )  # only copies with arithmetic use lanes; others are calls
        return vectorize_lanes(schedule, inner, lanes, float_vector_level(target))
    if target.has("unaligned") and extent > 1:
        return schedule.vectorize(inner)
    long = extent >= LONG_RUN and target.core.costs.registers >= ENOUGH_REGISTERS
    return schedule.annotate(inner, MOVED, 1) if target.has("words") and long else schedule


def split_contiguous_runs(schedule: Schedule, block: str) -> Schedule:
    """Split the innermost loop of a gathering block such that the new innermost loop covers elements that are
    contiguous in the source."""
    runs = contiguous_run_lengths(schedule, block)
    if not runs or any(a % b for a, b in itertools.pairwise(runs)):
        return schedule
    counts = tuple(a // b for a, b in itertools.pairwise(runs))
    return schedule.split(schedule.loops_of(block)[-1], (None, *counts, runs[-1]))


def contiguous_run_lengths(schedule: Schedule, block: str) -> tuple[int, ...]:
    """Return the numbers of contiguous elements along the last iterator of a gathering block, longest first. If there
    are several, longer ones consist of whole shorter ones.

    An im2col patch computes its source indices by dividing the iterator by these numbers."""
    gather = find_block(schedule.func.body, block)
    last = gather.iters[-1].var
    lengths: set[int] = set()
    for expr in walk_all_exprs(gather.body):
        match expr:
            case ir.Bin("floordiv", a, ir.Const(int() as length)) if a == last:
                lengths.add(length)
            case ir.Bin("floordiv", ir.Bin("floormod", a, _), ir.Const(int() as length)) if a == last:
                lengths.add(length)
            case _:
                pass
    return tuple(sorted(lengths, reverse=True))


RUNS = (8, 7, 6, 5, 4, 3)
"""Unroll factors of a long reduction in order of preference: the first factor that divides its trip count is chosen,
so that there is no tail."""


def unroll_iterations(schedule: Schedule, loop: str) -> Schedule:
    """Unroll a short loop completely, and a long loop by a factor.

    A counter and a branch in every iteration would cost as much as the work of the iteration."""
    extent = loop_extent(schedule.func, loop)
    if extent <= RUNS[0]:
        return schedule.unroll(loop)
    run = next((n for n in RUNS if extent % n == 0), 1)
    return schedule.split(loop, (None, run)).unroll(f"{loop}_1") if run > 1 else schedule


def unroll_small_loops(
    schedule: Schedule, block: str, loops: list[str], max_iterations: int = UNROLL_LIMIT
) -> Schedule:
    """Unroll the innermost of ``loops`` around ``block`` while the product of their trip counts is at most
    ``max_iterations``."""
    total = 1
    for name in reversed(loops):
        total *= loop_extent(schedule.func, name)
        if total > max_iterations:
            break
        schedule = schedule.unroll(name)
    return schedule


# ---- Functions of rows, such as softmax and normalisation: all stages of a row before the next row
#
# A row's scalars (its maximum, its sum, a scale) are then in registers, and its intermediate vectors take the memory of one row;
# nothing is kept for all rows.


def matches_rows(start: Schedule, target: Target) -> bool:
    """Match a function of several stages, at least one of them a reduction, in which every row depends only on the
    same row of earlier stages."""
    *first, last = blocks_of(inline_elementwise(start))
    if (
        not first
        or not any(block.init for block in first)
        or is_operator_scheduled(last)
        or last.init
        or len(last.iters) < 2
    ):
        return False
    rows = last.iters[0].extent
    producers = {}
    for block in first:
        if is_operator_scheduled(block) or block.iters[0].kind != "space" or block.iters[0].extent != rows:
            return False
        producers[stored_buffer(block)] = block
    return producers.keys().isdisjoint(start.func.params) and all(
        x.indices[0] == block.iters[0].var
        for block in (*first, last)
        for x in walk_all_exprs(block)
        if isinstance(x, ir.Load) and x.buffer in producers
    )


def schedule_rows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Move every stage before the last into the loop over rows. If the decision ``unrolled`` is True, unroll some
    iterations of the reductions."""
    schedule, unrolled = inline_elementwise(start), decisions["unrolled"]
    *first, last = blocks_of(schedule)
    row = schedule.loops_of(last.name)[0]
    for block in reversed(first):
        schedule = schedule.compute_at(block.name, row)
    for block in first:
        buffer = stored_buffer(find_block(schedule.func.body, block.name))
        if buffer.size == buffer.shape[0]:  # one element per row
            schedule = schedule.set_scope(buffer.name, "register")
        reducing = reduction_loops(schedule, block.name)
        if reducing:
            schedule = schedule.decompose_reduction(block.name, reducing[0])
            schedule = unroll_iterations(schedule, reducing[-1]) if unrolled else schedule
    inner = schedule.loops_of(last.name)[-1]
    if target.has("lanes") or target.has("vectors"):
        return vectorize_in_lanes(schedule, inner, target)
    return unroll_iterations(schedule, inner) if unrolled else schedule
