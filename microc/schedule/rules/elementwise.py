"""Functions without a product to tile: four results in the lanes of vectors, or several in one turn of a loop."""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern, schedule_generic
from microc.schedule.rules.lanes import in_lanes_of
from microc.schedule.rules.moves import suits_copies
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs

RUN = 4
"""Results in one turn."""
SHORT = 40
"""Parts of an expression that may be printed for every one of them: a counter and a branch are little beside more."""


def suits_lanes(start: Schedule, target: Target) -> bool:
    """Whether all loops are the compiler's own."""
    return not any(is_extern(block) for block in blocks_of(start))


def in_lanes(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """The last loop of results by vectors; what no vector computes stays as it is."""
    schedule = schedule_generic(start, target, {"unrolled": False})
    inner = _results(schedule)
    return in_lanes_of(schedule, inner, target) if inner else None


def suits_several(start: Schedule, target: Target) -> bool:
    """Whether it makes single elements, and does more than to move them."""
    blocks = blocks_of(start)
    return not any(block.init is not None or is_extern(block) for block in blocks) and not suits_copies(start, target)


def several(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """A function of single elements, some of them in one turn; None where they are few, or long to print."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    if len(blocks) != 1:
        return None
    inner = _results(schedule)
    size = sum(1 for x in walk_all_exprs(blocks[0].body) if not isinstance(x, (ir.Var, ir.Const)))
    if not inner or loop_extent(schedule.func, inner) % RUN or size > SHORT:
        return None
    return schedule.split(inner, (None, RUN)).unroll(f"{inner}_1")


def _results(schedule: Schedule) -> str:
    """The innermost loop over results; empty for a single one."""
    loops = schedule.loops_of(blocks_of(schedule)[-1].name)
    return next((name for name in reversed(loops) if loop_extent(schedule.func, name) > 1), "")
