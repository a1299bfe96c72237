"""Functions without a product to tile: four results in the lanes of vectors, or several in one turn of a loop."""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern, schedule_generic
from microc.schedule.rules.matrix_mve import vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs

RUN = 4
"""Results in one turn."""
SHORT = 40
"""Parts of an expression that may be printed for every one of them: a counter and a branch are little beside more."""


def in_lanes(start: Schedule, target: Target) -> tuple[Schedule, ...]:
    """The last loop of results by vectors, where there are any; what no vector computes stays as it is."""
    if not target.has("mve") or any(is_extern(block) for block in blocks_of(start)):
        return ()
    schedule = schedule_generic(start, target)
    inner = _results(schedule)
    return (vectorize_lanes(schedule, inner).named("lanes"),) if inner else ()


def several(start: Schedule) -> tuple[Schedule, ...]:
    """A function of single elements, some of them in one turn."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    if len(blocks) != 1 or blocks[0].init is not None or is_extern(blocks[0]):
        return ()
    inner = _results(schedule)
    size = sum(1 for x in walk_all_exprs(blocks[0].body) if not isinstance(x, (ir.Var, ir.Const)))
    if not inner or loop_extent(schedule.func, inner) % RUN or size > SHORT:
        return ()
    return (schedule.split(inner, (None, RUN)).unroll(f"{inner}_1").named("unrolled"),)


def _results(schedule: Schedule) -> str:
    """The innermost loop over results; empty for a single one."""
    loops = schedule.loops_of(blocks_of(schedule)[-1].name)
    return next((name for name in reversed(loops) if loop_extent(schedule.func, name) > 1), "")
