"""Functions without a product to tile: four results in the lanes of vectors, or several in one turn of a loop."""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern, schedule_generic
from microc.schedule.rules.lanes import in_lanes_of, in_strips_of
from microc.schedule.rules.moves import suits_copies
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs

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
