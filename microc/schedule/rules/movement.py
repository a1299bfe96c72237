"""Functions that move elements, and elementwise ones."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from microc.base import dtypes
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.primitives.tree import find_loop
from microc.schedule.rules.generic import (
    blocks_of,
    finish_reduction,
    inline_elementwise,
    is_extern,
    pad_by_row,
    reduce_loops,
    schedule_generic,
    split_runs,
    unroll_small,
)
from microc.schedule.rules.rule import Decisions, in_lanes_of, in_strips_of, vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.lower.lanes import COPIED
from microc.tir.lower.lanes import SHORT as LANES_SHORT
from microc.tir.lower.region import consecutive
from microc.tir.names import MOVED
from microc.tir.rewrite import free_vars, walk_all_exprs, walk_expr, walk_stmt

# ---- Loops in which operators copy runs of memory themselves, by as many elements at a time as a core moves.

WORD = 4
LEAST = 16
"""Bytes that are worth finding out whether words can be moved."""


def suits_runs(start: Schedule, target: Target) -> bool:
    """Whether an operator's own loops copy memory."""
    return any(copies_of(start.func))


def schedule_runs(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """As :func:`schedule_generic`, with runs moved. Of short ones that is more work, but where they lie side by side they become
    one: the cost model sees which."""
    return schedule_generic(move_runs(start, target), target, decisions)


def copies_of(func: ir.PrimFunc) -> Iterator[tuple[str, str]]:
    """The loops that do nothing but copy neighbours from one buffer to another, and the dtypes of these. Only an operator's own
    loops hold statements that no block is around."""
    for loop in walk_stmt(func.body):
        match loop:
            case ir.For(var, ir.Const(), ir.Store(into, places, ir.Load(source, indices)), "serial") if (
                into != source and consecutive(places, var) and consecutive(indices, var)
            ):
                if find_loop(func.body, var.name) is loop:  # steps know loops by name
                    yield var.name, into.dtype


def move_runs(schedule: Schedule, target: Target) -> Schedule:
    """Such loops by vectors, by words wherever they lie, by words where both ends allow it, or as they are. Elements keep their
    order, so that memory may move down over itself."""
    for loop, dtype in tuple(copies_of(schedule.func)):
        width = dtypes.nbytes(dtype)
        if (target.has("lanes") or target.has("vectors")) and dtype in COPIED:
            schedule = vectorize_lanes(schedule, loop)
        elif target.has("unaligned") or width == WORD:
            schedule = schedule.vectorize(loop)
        elif target.has("words") and dtype in LANES_SHORT and loop_extent(schedule.func, loop) * width >= LEAST:
            schedule = schedule.annotate(loop, MOVED, 1)
    return schedule


# ---- Functions that move elements, or pick the largest: whole words where the core has what that takes, else several
# at a time.

RUNS = (8, 4)
"""Elements that are moved in one turn of a loop."""
TAPS = 16
"""Windows of at most so many elements are written out for every word."""


def suits_copies(start: Schedule, target: Target) -> bool:
    """Whether all that a function does is to move elements in loops."""
    blocks = blocks_of(start)
    return bool(blocks) and all(_moves(block) and bool(start.loops_of(block.name)) for block in blocks)


def schedule_copies(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """By ``words``, where the core moves them or may look whether it can; else several elements in a turn."""
    schedule = generic = schedule_generic(start, target, {"unrolled": False})
    for block in blocks_of(generic):
        if not decisions["words"]:
            schedule = _by_runs(schedule, block)
        elif target.has("unaligned"):
            schedule = _by_words(split_runs(schedule, block.name), block.name)
        elif target.has("words"):
            inner = [name for name in schedule.loops_of(block.name) if loop_extent(schedule.func, name) > 1]
            schedule = schedule.annotate(inner[-1], MOVED, 1) if inner else schedule
    return schedule


def suits_picks(start: Schedule, target: Target) -> bool:
    """Whether it moves integers, or picks the largest or smallest of a few."""
    return all(_picks(block) for block in blocks_of(start))


def schedule_picks(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """For all lanes of a word at once; None where too many are compared."""
    schedule = inline_elementwise(start)
    for block in blocks_of(schedule):
        reducing = reduce_loops(schedule, block.name)
        if prod(loop_extent(schedule.func, name) for name in reducing) > TAPS:
            return None
        schedule = unroll_small(finish_reduction(schedule, block.name), block.name, reducing, TAPS)
    schedule = pad_by_row(schedule, target)
    return _by_words(schedule, blocks_of(schedule)[-1].name)


def _by_words(schedule: Schedule, block: str) -> Schedule:
    inner = [name for name in schedule.loops_of(block) if loop_extent(schedule.func, name) > 1]
    return schedule.vectorize(inner[-1]) if inner else schedule


def _by_runs(schedule: Schedule, block: ir.Block) -> Schedule:
    """Some elements without a counter and a branch for each, where what is printed for one of them is short."""
    inner = schedule.loops_of(block.name)[-1]
    run = next((n for n in RUNS if loop_extent(schedule.func, inner) % n == 0), 1)
    if run == 1 or any(_chooses(x, block.iters[-1].var) for x in walk_all_exprs(block.body)):
        return schedule
    return schedule.split(inner, (None, run)).unroll(f"{inner}_1")


def _chooses(expr: ir.Expr, element: ir.Var) -> bool:
    """A choice that leaves no loop over elements: it is by element, or of the place that one comes from."""
    match expr:
        case ir.Select(condition, _, _):
            return element in free_vars(condition)
        case ir.Load(_, indices):
            return any(isinstance(x, ir.Select) for index in indices for x in walk_expr(index))
        case _:
            return False


def _moves(block: ir.Block) -> bool:
    """Whether a block stores elements as they are, or constants."""
    return block.init is None and not is_extern(block) and isinstance(block.body, ir.Store) and _moved(block.body.value)


def _moved(value: ir.Expr) -> bool:
    match value:
        case ir.Select(_, a, b):
            return _moved(a) and _moved(b)
        case _:
            return isinstance(value, (ir.Load, ir.Const))


def _picks(block: ir.Block) -> bool:
    """Whether a block moves integers, or picks from them."""
    if is_extern(block) or not isinstance(block.body, ir.Store):
        return False
    return _picked(block.body.value)


def _picked(value: ir.Expr) -> bool:
    match value:
        case ir.Select(_, a, b) | ir.Bin("max" | "min", a, b):
            return _picked(a) and _picked(b)
        case ir.Cast(_, inner):
            return _picked(inner)
        case _:
            return isinstance(value, (ir.Load, ir.Const)) and not value.dtype.startswith("float")


# ---- Functions without a product to tile: four results in the lanes of vectors, or several in one turn of a loop.

SHORT = 40
"""Parts of an expression that may be printed for every one of them: a counter and a branch are little beside more."""


def suits_lanes(start: Schedule, target: Target) -> bool:
    """Whether all loops are the compiler's own."""
    return not any(is_extern(block) for block in blocks_of(start))


def in_lanes(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """The last loop of results by vectors; what no vector computes stays as it is."""
    schedule = schedule_generic(start, target, {"unrolled": False})
    inner = _innermost(schedule, blocks_of(schedule)[-1])
    return in_lanes_of(schedule, inner, target) if inner else None


def in_vectors(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """The last loop of results by vectors, and that of every stage of single elements before, where no other stage shares it: by
    vectors of any length (``strips``), or of a number of lanes."""
    if decisions["strips"] and not target.has("scalable"):
        return None
    taken = in_strips_of if decisions["strips"] else in_lanes_of
    schedule = schedule_generic(start, target, {"unrolled": False})
    *stages, last = blocks_of(schedule)
    own = [_innermost(schedule, block) for block in stages if not any(i.kind == "reduce" for i in block.iters)]
    alone = [name for name in own if name and sum(name in schedule.loops_of(b.name) for b in (*stages, last)) == 1]
    inner = _innermost(schedule, last)
    for loop in (*alone, *([inner] if inner else [])):
        schedule = taken(schedule, loop, target)
    return schedule if inner else None


def suits_several(start: Schedule, target: Target) -> bool:
    """Whether it makes single elements, and does more than to move them."""
    blocks = blocks_of(start)
    return not any(block.init is not None or is_extern(block) for block in blocks) and not suits_copies(start, target)


def several(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """A function of single elements, some ``results`` in one turn; None where they are few, or long to print."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    if len(blocks) != 1:
        return None
    inner, run = _innermost(schedule, blocks[0]), decisions["results"]
    size = sum(1 for x in walk_all_exprs(blocks[0].body) if not isinstance(x, (ir.Var, ir.Const)))
    if not inner or loop_extent(schedule.func, inner) % run or size > SHORT:
        return None
    return schedule.split(inner, (None, run)).unroll(f"{inner}_1")


def _innermost(schedule: Schedule, block: ir.Block) -> str:
    """The innermost loop over a stage's results; empty for a single one."""
    loops = schedule.loops_of(block.name)
    return next((name for name in reversed(loops) if loop_extent(schedule.func, name) > 1), "")
