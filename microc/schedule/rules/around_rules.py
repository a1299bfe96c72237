# SPDX-License-Identifier: Apache-2.0
"""Steps before and after every rule: naming the stages of user functions, replacing float functions, splitting loops
across threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from microc.errors import ScheduleError
from microc.schedule.choose import Choice
from microc.schedule.cost.cost_model import estimate
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.loops import is_used_only_in_loop
from microc.schedule.primitives.tree import find_loop
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_operator_scheduled
from microc.schedule.rules.instruction_choice import apply_early_identities
from microc.schedule.rules.rule import FAST_MATH, float_vector_level
from microc.schedule.rules.templates import is_product_of_loads
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.lower import lower
from microc.tir.names import ACC, OUT, PART, UNTILE
from microc.tir.rewrite import free_vars, walk_expr, walk_stmt
from microc.tir.verify import constant_names, explain_fault

# ---- User functions get the block names that rules look for: the sum of products along one axis becomes ``acc``, its elementwise
# epilogue ``out``. If there is no epilogue, a copy of the sums becomes one.


def name_product_blocks(start: Schedule) -> Schedule:
    """Rename the blocks of the function's only product to ``acc`` and ``out``, the names by which rules find them.

    Return the schedule unchanged if the function has several products or none, or if it has blocks with these names
    already."""
    if any(map(start.has, (OUT, UNTILE, PART))) or any(map(is_operator_scheduled, blocks_of(start))):
        return start
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    sums = [block for block in blocks if block.init is not None]
    if len(sums) != 1 or not _is_product(sums[0]):
        return start
    total, others = stored_buffer(sums[0]), [block for block in blocks if block is not sums[0]]
    readers = [block.name for block in others if total in buffers_read(block)]
    if total in schedule.func.params:
        schedule = schedule.cache_write(sums[0].name, "workspace")
        readers.append(blocks_of(schedule)[-1].name)
    if len(readers) != 1:
        return start
    for name, anchor in ((sums[0].name, ACC), (readers[0], OUT)):
        schedule = schedule if name == anchor else schedule.rename_block(name, anchor)
    return schedule


def _is_product(block: ir.Block) -> bool:
    """Test whether a block sums products of two loads along one axis, in at least two spatial loops."""
    axis_kinds = [axis.kind for axis in block.iters]
    if len(axis_kinds) < 3 or axis_kinds != ["space"] * (len(axis_kinds) - 1) + ["reduce"]:
        return False
    if not isinstance(block.body, ir.Store):
        return False
    match block.body.value:
        case ir.Bin("add", ir.Load(buffer), value) if buffer == block.body.buffer:
            return any(map(is_product_of_loads, walk_expr(value)))
        case _:
            return False


# ---- First steps of every schedule


def canonicalise_for_target(func: ir.PrimFunc, target: Target) -> Schedule:
    """Convert a function to the form that rules match: blocks have the expected names, float functions are replaced
    by arithmetic that vectors can compute, and high products by the form that suits the core."""
    schedule = name_product_blocks(Schedule(func))
    fused, scalars = target.has("fma"), target.has("fpu")
    if scalars and target.has(FAST_MATH):
        schedule = _drop_idle_step(schedule, schedule.select_functions(fused, True))
    elif float_vector_level(target) or (scalars and fused):
        # Not only vectors gain: newlib's expf and tanhf take 60 to 100 instructions on a Cortex-M4, this arithmetic 25 to 35 (a
        # float LSTM of 24 cells takes 0.77 of its instructions, in 0.99 of the flash, as the library is not linked). And all
        # cores that fuse multiply-adds give the same bits, whatever C library their toolchains have.
        schedule = _drop_idle_step(schedule, schedule.select_functions(fused))
    return apply_early_identities(schedule, target)


def _drop_idle_step(before: Schedule, after: Schedule) -> Schedule:
    """Return the schedule ``after`` a step, or the schedule ``before`` it if the step has changed nothing.

    A step without effect would only lengthen the trace."""
    return before if after.func == before.func else after


# ---- Threads: split the outermost loops of large kernels, in any schedule, after it was chosen
#
# A chunk consists of neighbouring iterations in their original order, and has its own workspaces. Therefore every element is
# computed exactly as by one thread. Small loops stay serial, because buffers of parallel loops share no memory, and because a
# second thread that is awake pays only from about two microseconds of work (measured: 1.64 us become 1.33, 16.2 become 8.7), and
# a thread that must be woken from fifty.

MAX_CHUNKS = 4
"""Most chunks for each thread. Each chunk has its own workspaces."""
MIN_INSTRUCTIONS = 60_000
"""Number of instructions of a loop, estimated by the cost model, from which it is split: about two microseconds with
vectors, twenty without."""


def split_across_threads(choice: Choice, target: Target, threads: int) -> Choice:
    """Split the large loops of a chosen schedule into parallel chunks for ``threads`` threads."""
    if threads == 1:
        return choice
    total, start = estimate(choice.func, target).instructions, choice.schedule.func
    work = {loop.var.name: count_block_instances(loop) for loop in iterate_outermost_loops(start.body)}
    for name, instances in work.items():
        # A loop's share of the instructions is its share of all instances of blocks.
        if total * instances >= MIN_INSTRUCTIONS * sum(work.values()):
            choice = _split_loop_in_chunks(choice, name, threads)
    return choice


def iterate_outermost_loops(stmt: ir.Stmt) -> Iterator[ir.For]:
    """Iterate over the loops that are not inside another loop. Loops with one iteration are skipped; the loops
    inside them count as outermost."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                yield from iterate_outermost_loops(child)
        case ir.Alloc(_, body) | ir.Let(_, _, body):
            yield from iterate_outermost_loops(body)
        case ir.For(_, extent, body):
            if ir.int_value(extent) == 1:
                yield from iterate_outermost_loops(body)
            else:
                yield stmt


def count_block_instances(loop: ir.For) -> int:
    """Return how often blocks are executed in a loop, in total."""
    blocks = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return sum(prod(i.extent for i in block.iters) for block in blocks)


def _split_loop_in_chunks(choice: Choice, name: str, threads: int) -> Choice:
    """Split the loop ``name`` of a chosen schedule into parallel chunks. Return the choice unchanged if chunks may
    conflict, or if the verifier cannot prove that they stay within buffers."""
    schedule = choice.schedule
    loop = find_loop(schedule.func.body, name)
    count = _chunk_count(ir.int_value(loop.extent) or 0, threads)
    if loop.kind != "serial" or count == 0 or has_partial_iteration(loop):
        return choice
    try:
        parallel = schedule.split(name, (count, None)).parallel(f"{name}_0", private=True)
    except ScheduleError as refusal:
        return replace(choice, schedule=schedule.without(f"parallel({name})", refusal))
    lowered, chunks = lower(parallel.func), find_loop(parallel.func.body, f"{name}_0")
    if not are_iterations_independent(parallel.func, chunks) or explain_fault(lowered, tables=constant_names(lowered)):
        return choice
    return Choice(parallel, lowered)


def _chunk_count(extent: int, threads: int) -> int:
    """Return the least number of equal chunks with which all threads finish earliest; 0 if no number of chunks
    divides ``extent``."""
    divisors = [n for n in range(2, min(extent, MAX_CHUNKS * threads) + 1) if extent % n == 0]
    return min(divisors, key=lambda n: -(-n // threads) * (extent // n), default=0)


def has_partial_iteration(loop: ir.For) -> bool:
    """Test whether the last iteration of a loop is partial. Lowering peels such an iteration, so that it would be in
    no chunk."""
    blocks = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return any(block.predicate is not None and loop.var in free_vars(block.predicate) for block in blocks)


def are_iterations_independent(func: ir.PrimFunc, loop: ir.For) -> bool:
    """Test whether the iterations of ``loop`` are independent: they share no locals and no register
    tiles, and each writes a disjoint part of every shared buffer."""
    written = buffers_written(loop.body)
    shared = [
        b for b in written | buffers_read(loop.body) if b in func.params or not is_used_only_in_loop(func, loop, b)
    ]
    return all(b.scope not in ("local", "register") for b in shared) and all(
        has_disjoint_iterations(loop, b) for b in shared if b in written
    )
