"""What is done around any rule: anchors of users' functions, first steps, threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from microc.errors import ScheduleError
from microc.schedule.choose import Choice
from microc.schedule.cost.cost_model import estimate
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.loops import is_inside
from microc.schedule.primitives.tree import find_loop
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern
from microc.schedule.rules.rule import FAST_MATH, float_lanes
from microc.schedule.rules.templates import multiplies
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.cover import has_parts
from microc.tir.lower import lower
from microc.tir.names import ACC, OUT, PART, UNTILE
from microc.tir.rewrite import free_vars, walk_expr, walk_stmt
from microc.tir.verify import constants_of, fault

# ---- Functions of a user's own get the names that rules look for: the sum of products along one axis becomes
# ``acc``, the elementwise work behind it ``out``, whatever they were called and whether there is such work at all.


def with_anchors(start: Schedule) -> Schedule:
    """The function with its one product named; as it was where it has several or none, or stages that are named already."""
    if any(map(start.has, (OUT, UNTILE, PART))) or any(map(is_extern, blocks_of(start))):
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
    names = ((sums[0].name, ACC), (readers[0], OUT))
    for name, known in names:
        schedule = schedule if name == known else schedule.rename_block(name, known)
    return schedule


def _is_product(block: ir.Block) -> bool:
    """Whether it sums products of two loads along one axis, for rows and columns at least."""
    kinds = [each.kind for each in block.iters]
    if len(kinds) < 3 or kinds != ["space"] * (len(kinds) - 1) + ["reduce"] or not isinstance(block.body, ir.Store):
        return False
    match block.body.value:
        case ir.Bin("add", ir.Load(buffer), value) if buffer == block.body.buffer:
            return any(map(multiplies, walk_expr(value)))
        case _:
            return False


# ---- What is done to every function for a core, before the steps of any rule and behind them.


def begun(func: ir.PrimFunc, target: Target) -> Schedule:
    """The loops as the operator wrote them, in forms that rules look for: functions of floats as vectors have them; high products
    to which twice a sum means nothing of the sum itself, before rules store weights doubled for them."""
    schedule = with_anchors(Schedule(func))
    if target.has(FAST_MATH) and target.has("fpu"):
        schedule = _changed(schedule, schedule.select_functions(target.has("fma"), True))
    elif float_lanes(target):
        schedule = _changed(schedule, schedule.select_functions(target.has("fma")))
    if target.has("lanes") or target.has("high_mul"):
        return schedule
    return _changed(schedule, schedule.select_high_mac())


def _changed(schedule: Schedule, selected: Schedule) -> Schedule:
    """Without a step that changes nothing."""
    return schedule if selected.func == schedule.func else selected


def with_instructions(schedule: Schedule, target: Target) -> Schedule:
    """What the core does in one instruction, whatever the loops."""
    if not target.has("lanes"):  # whose lanes know the form that the rounding has from the start
        schedule = schedule.select_rounding()
    if target.has("high_mul"):
        schedule = schedule.select_high_mul()
    if target.has("clamp8"):
        schedule = schedule.select_clamp()
    if target.has("fma"):
        schedule = schedule.select_fma()
    if target.has("mul_i8"):
        schedule = schedule.select_byte_products()
    if target.has("nearest_i32"):
        schedule = schedule.select_conversion()
    return schedule.select_saturation() if target.has("saturate_i8") else schedule


# ---- The outermost loops of large kernels, split among threads: any schedule, after it was chosen.
#
# A turn is a run of neighbouring iterations in their order, with workspaces of its own; so every element is computed as one
# thread would, bit for bit. Loops that do little stay as they are: a second thread that is awake pays from some two
# microseconds of work on (1.64 become 1.33, 16.2 become 8.7), one that must be woken from fifty on, and buffers of parallel
# loops share no memory.

MOST = 4
"""Turns for each thread at most: each has workspaces of its own."""
LEAST = 60_000
"""Instructions of a loop, by the cost model, from which on it is split: some two microseconds in vectors, twenty without."""


def across_threads(choice: Choice, target: Target, threads: int) -> Choice:
    """The same with its large loops parallel."""
    if threads == 1:
        return choice
    total, start = estimate(choice.func, target).instructions, choice.schedule.func
    work = {loop.var.name: _instances(loop) for loop in _outermost(start.body)}
    for name, instances in work.items():
        if total * instances >= LEAST * sum(work.values()):
            choice = _split(choice, name, threads)
    return choice


def _outermost(stmt: ir.Stmt) -> Iterator[ir.For]:
    """The loops that are in no other, but for those of a single turn."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                yield from _outermost(child)
        case ir.Alloc(_, body) | ir.Let(_, _, body):
            yield from _outermost(body)
        case ir.For(_, extent, body):
            if ir.int_value(extent) == 1:
                yield from _outermost(body)
            else:
                yield stmt


def _instances(loop: ir.For) -> int:
    """How often blocks in a loop run."""
    found = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return sum(prod(i.extent for i in block.iters) for block in found)


def _split(choice: Choice, name: str, threads: int) -> Choice:
    """A loop as turns for threads; as it was where turns might get in each other's way, or it is not known that they stay within
    buffers."""
    schedule = choice.schedule
    loop = find_loop(schedule.func.body, name)
    count = _turns(ir.int_value(loop.extent) or 0, threads)
    if loop.kind != "serial" or count == 0 or _guarded(loop):
        return choice
    try:
        made = schedule.split(name, (count, None)).parallel(f"{name}_0", private=True)
    except ScheduleError as refusal:
        return replace(choice, schedule=schedule.without(f"parallel({name})", refusal))
    lowered, turns = lower(made.func), find_loop(made.func.body, f"{name}_0")
    return (
        choice
        if not _independent(made.func, turns) or fault(lowered, tables=constants_of(lowered))
        else Choice(made, lowered)
    )


def _turns(extent: int, threads: int) -> int:
    """The fewest turns, all alike, by which threads are done first; 0 where there are none for two of them."""
    fitting = [n for n in range(2, min(extent, MOST * threads) + 1) if extent % n == 0]
    return min(fitting, key=lambda n: -(-n // threads) * (extent // n), default=0)


def _guarded(loop: ir.For) -> bool:
    """Whether the last iteration is a part of one: it is peeled, and would be nobody's turn."""
    blocks = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return any(block.predicate is not None and loop.var in free_vars(block.predicate) for block in blocks)


def _independent(func: ir.PrimFunc, loop: ir.For) -> bool:
    """Whether turns write parts of their own of what others see, and see nothing but memory themselves."""
    written = buffers_written(loop.body)
    seen = [b for b in written | buffers_read(loop.body) if b in func.params or not is_inside(func, loop, b)]
    return all(b.scope not in ("local", "register") for b in seen) and all(
        has_parts(loop, b) for b in seen if b in written
    )
