"""The memory plan of a module: an order of calls, the best of several planners, checked."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import FitError
from microc.module import Module, Plan
from microc.plan.check import check_plan
from microc.plan.liveness import demand, lower_bound, size_of
from microc.plan.overlap import Overlaps
from microc.plan.planners import EXACT_LIMIT, PLANNERS, exact
from microc.plan.sequence import order_calls

ARENA_ALIGN = 8
LARGEST = (1 << 31) - 1
"""Indices are int32."""


def plan_module(module: Module, *, io_in_arena: bool = True) -> Module:
    """``module`` with its calls in the order that needs least memory, and offsets for everything in the arena.

    Inputs and outputs lie inside it by choice.
    """
    overlaps = Overlaps(module)
    module = order_calls(module, overlaps, io_in_arena=io_in_arena)
    wanted = demand(module, overlaps, io_in_arena=io_in_arena)
    planners = PLANNERS + ((("exact", exact),) if len(wanted.units) <= EXACT_LIMIT else ())
    bound, name, best = lower_bound(wanted), "", None
    for tried, planner in planners:
        placement = planner(wanted)
        if placement is not None and size_of(placement) < wanted.limit:
            name, best = tried, placement
            wanted = replace(wanted, limit=size_of(placement))
        if wanted.limit == bound:
            break
    assert best is not None
    if size_of(best) > LARGEST:
        raise FitError(
            f"the network needs an arena of {size_of(best):,} bytes; generated code indexes at most {LARGEST:,}",
            where=module.source,
            hint="bind a smaller input shape: --input-shape NAME=1,...",
        )
    offsets = {unit.name: at for unit, at in best.items()}
    plan = Plan(
        offsets=dict(sorted(offsets.items())),
        size=-(-size_of(best) // 4) * 4,
        lower_bound=bound,
        planner=name,
        io_in_arena=io_in_arena,
        align=ARENA_ALIGN,
    )
    planned = module.with_plan(plan)
    check_plan(planned)
    return planned
