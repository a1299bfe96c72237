"""Rules for functions that move elements, and for elementwise ones."""

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
    is_operator_scheduled,
    pad_by_row,
    reduce_loops,
    schedule_generic,
    split_contiguous_runs,
    unroll_small_loops,
)
from microc.schedule.rules.rule import Decisions, vectorize_in_lanes, vectorize_in_strips, vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.lower.lanes import COPY_SUFFIXES
from microc.tir.lower.lanes import SHORT as LANES_SHORT
from microc.tir.lower.region import is_consecutive
from microc.tir.names import MOVED
from microc.tir.rewrite import free_vars, walk_all_exprs, walk_expr, walk_stmt

# ---- Copy loops that operators wrote themselves: as many elements at a time as a core moves

WORD = 4
"""Bytes of a word."""
LEAST = 16
"""Bytes of a run from which a run-time test whether words can be moved pays."""


def matches_copy_loops(start: Schedule, target: Target) -> bool:
    """Match functions in which loops that an operator's definition wrote itself copy memory."""
    return any(find_copy_loops(start.func))


def schedule_copy_loops(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Schedule as :func:`schedule_generic`, with the operator's own copy loops moved by words or vectors.

    For short runs that is more work, but contiguous runs become one: the cost model sees which."""
    return schedule_generic(vectorize_copy_loops(start, target), target, decisions)


def find_copy_loops(func: ir.PrimFunc) -> Iterator[tuple[str, str]]:
    """Iterate over (loop, dtype) of the loops that only copy contiguous elements from one buffer to another.

    Only an operator's own loops hold statements outside of blocks.
    """
    for loop in walk_stmt(func.body):
        match loop:
            case ir.For(var, ir.Const(), ir.Store(into, into_indices, ir.Load(source, indices)), "serial") if (
                into != source and is_consecutive(into_indices, var) and is_consecutive(indices, var)
            ):
                if find_loop(func.body, var.name) is loop:  # steps know loops by name
                    yield var.name, into.dtype


def vectorize_copy_loops(schedule: Schedule, target: Target) -> Schedule:
    """Move the copy loops of :func:`find_copy_loops` by vectors, by words at any address, by words if both addresses allow
    it, or leave them.

    Elements keep their order, so that memory may move down over itself."""
    for loop, dtype in tuple(find_copy_loops(schedule.func)):
        width = dtypes.nbytes(dtype)
        if (target.has("lanes") or target.has("vectors")) and dtype in COPY_SUFFIXES:
            schedule = vectorize_lanes(schedule, loop)
        elif target.has("unaligned") or width == WORD:
            schedule = schedule.vectorize(loop)
        elif target.has("words") and dtype in LANES_SHORT and loop_extent(schedule.func, loop) * width >= LEAST:
            schedule = schedule.annotate(loop, MOVED, 1)
    return schedule


# ---- Functions that move elements, or take a maximum: whole words if the core can, else several elements in an iteration

RUNS = (8, 4)
"""Elements that are moved in one iteration, best first; the first that divides all is taken."""
TAPS = 16
"""Elements of a window up to which a maximum is unrolled for every word."""


def matches_copies(start: Schedule, target: Target) -> bool:
    """Match functions that only move elements, in loops."""
    blocks = blocks_of(start)
    return bool(blocks) and all(_is_copy_block(block) and bool(start.loops_of(block.name)) for block in blocks)


def schedule_copies(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Copy by ``words`` if the core moves them, or can test whether it may; else unroll several elements."""
    schedule = generic = schedule_generic(start, target, {"unrolled": False})
    for block in blocks_of(generic):
        if not decisions["words"]:
            schedule = _unroll_elements(schedule, block)
        elif target.has("unaligned"):
            schedule = _vectorize_innermost(split_contiguous_runs(schedule, block.name), block.name)
        elif target.has("words"):
            inner = [name for name in schedule.loops_of(block.name) if loop_extent(schedule.func, name) > 1]
            schedule = schedule.annotate(inner[-1], MOVED, 1) if inner else schedule
    return schedule


def matches_integer_moves(start: Schedule, target: Target) -> bool:
    """Match functions that move integers, or take a maximum or minimum of a few."""
    return all(_is_integer_move_block(block) for block in blocks_of(start))


def schedule_integer_moves(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """Compute all lanes of a word at once; None if too many elements are compared."""
    schedule = inline_elementwise(start)
    for block in blocks_of(schedule):
        reducing = reduce_loops(schedule, block.name)
        if prod(loop_extent(schedule.func, name) for name in reducing) > TAPS:
            return None
        schedule = unroll_small_loops(finish_reduction(schedule, block.name), block.name, reducing, TAPS)
    schedule = pad_by_row(schedule, target)
    return _vectorize_innermost(schedule, blocks_of(schedule)[-1].name)


def _vectorize_innermost(schedule: Schedule, block: str) -> Schedule:
    """Vectorise the innermost loop of a block that has several iterations."""
    inner = [name for name in schedule.loops_of(block) if loop_extent(schedule.func, name) > 1]
    return schedule.vectorize(inner[-1]) if inner else schedule


def _unroll_elements(schedule: Schedule, block: ir.Block) -> Schedule:
    """Unroll several elements of a block's innermost loop to save counters and branches, unless their code is long."""
    inner = schedule.loops_of(block.name)[-1]
    run = next((n for n in RUNS if loop_extent(schedule.func, inner) % n == 0), 1)
    if run == 1 or any(_selects_by_element(x, block.iters[-1].var) for x in walk_all_exprs(block.body)):
        return schedule
    return schedule.split(inner, (None, run)).unroll(f"{inner}_1")


def _selects_by_element(expr: ir.Expr, element: ir.Var) -> bool:
    """Test for a select that the code of every unrolled element would repeat: one whose condition depends on ``element``,
    or one in the index of a load."""
    match expr:
        case ir.Select(condition, _, _):
            return element in free_vars(condition)
        case ir.Load(_, indices):
            return any(isinstance(x, ir.Select) for index in indices for x in walk_expr(index))
        case _:
            return False


def _is_copy_block(block: ir.Block) -> bool:
    """Test whether a block stores loaded elements or constants unchanged."""
    return (
        block.init is None
        and not is_operator_scheduled(block)
        and isinstance(block.body, ir.Store)
        and _is_copied_value(block.body.value)
    )


def _is_copied_value(value: ir.Expr) -> bool:
    """Test for a load, a constant, or a select of these."""
    match value:
        case ir.Select(_, a, b):
            return _is_copied_value(a) and _is_copied_value(b)
        case _:
            return isinstance(value, (ir.Load, ir.Const))


def _is_integer_move_block(block: ir.Block) -> bool:
    """Test whether a block moves integers, or takes their maximum or minimum."""
    if is_operator_scheduled(block) or not isinstance(block.body, ir.Store):
        return False
    return _is_integer_move(block.body.value)


def _is_integer_move(value: ir.Expr) -> bool:
    """Test for an integer load or constant, or a select, maximum, minimum or cast of these."""
    match value:
        case ir.Select(_, a, b) | ir.Bin("max" | "min", a, b):
            return _is_integer_move(a) and _is_integer_move(b)
        case ir.Cast(_, inner):
            return _is_integer_move(inner)
        case _:
            return isinstance(value, (ir.Load, ir.Const)) and not value.dtype.startswith("float")


# ---- Functions without a product to tile: results in the lanes of vectors, or several in one iteration

SHORT = 40
"""Nodes of an expression up to which it is unrolled: beside a longer one a counter and a branch cost little."""


def matches_block_loops(start: Schedule, target: Target) -> bool:
    """Match functions all of whose loops belong to blocks; none is written in the operator's definition."""
    return not any(is_operator_scheduled(block) for block in blocks_of(start))


def vectorize_results(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """Vectorise the innermost loop of the last block; what no vector computes stays scalar. None if it has no loop."""
    schedule = schedule_generic(start, target, {"unrolled": False})
    inner = _innermost_long_loop(schedule, blocks_of(schedule)[-1])
    return vectorize_in_lanes(schedule, inner, target) if inner else None


def vectorize_stages(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Vectorise the innermost loop of the last block, and those of earlier elementwise blocks that no other block shares.

    ``strips``: vectors of any length (RVV), else of a fixed number of lanes."""
    if decisions["strips"] and not target.has("scalable"):
        return None
    vectorize = vectorize_in_strips if decisions["strips"] else vectorize_in_lanes
    schedule = schedule_generic(start, target, {"unrolled": False})
    *stages, last = blocks_of(schedule)
    elementwise = [
        _innermost_long_loop(schedule, block) for block in stages if not any(i.kind == "reduce" for i in block.iters)
    ]
    unshared = [
        name for name in elementwise if name and sum(name in schedule.loops_of(b.name) for b in (*stages, last)) == 1
    ]
    inner = _innermost_long_loop(schedule, last)
    for loop in (*unshared, *([inner] if inner else [])):
        schedule = vectorize(schedule, loop, target)
    return schedule if inner else None


def matches_elementwise_arithmetic(start: Schedule, target: Target) -> bool:
    """Match functions without reductions whose elements take more than moving them."""
    blocks = blocks_of(start)
    return not any(block.init is not None or is_operator_scheduled(block) for block in blocks) and not matches_copies(
        start, target
    )


def unroll_results(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Unroll ``results`` elements in an iteration; None if the extent is no multiple, or the code of an element is long."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    if len(blocks) != 1:
        return None
    inner, run = _innermost_long_loop(schedule, blocks[0]), decisions["results"]
    size = sum(1 for x in walk_all_exprs(blocks[0].body) if not isinstance(x, (ir.Var, ir.Const)))
    if not inner or loop_extent(schedule.func, inner) % run or size > SHORT:
        return None
    return schedule.split(inner, (None, run)).unroll(f"{inner}_1")


def _innermost_long_loop(schedule: Schedule, block: ir.Block) -> str:
    """Return the innermost loop of a block that has several iterations; empty if there is none."""
    loops = schedule.loops_of(block.name)
    return next((name for name in reversed(loops) if loop_extent(schedule.func, name) > 1), "")
