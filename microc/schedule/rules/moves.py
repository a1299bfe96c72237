"""Functions that move elements, or pick the largest: whole words where the core has what that takes, else several at a time."""

from __future__ import annotations

from math import prod

from microc.schedule.placement import loop_extent
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
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.names import MOVED
from microc.tir.rewrite import free_vars, walk_all_exprs, walk_expr

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
