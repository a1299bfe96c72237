"""The memory plan of a module: an order of calls, memories for its values, the best of several planners, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.errors import FitError
from microc.module import Module, Plan
from microc.plan.check import check_plan
from microc.plan.liveness import Demand, demand, lower_bound, size_of
from microc.plan.memories import plan_in_memories, waiting
from microc.plan.overlap import Overlaps
from microc.plan.planners import placed
from microc.plan.sequence import order_calls, ordered_as
from microc.target import Memory

ARENA_ALIGN = 8
"""Bytes, unless a value asks for more."""
LARGEST = (1 << 31) - 1
"""Indices are int32."""


def plan_module(
    module: Module,
    *,
    io_in_arena: bool = True,
    memories: Sequence[Memory] = (),
    flash: float = 0.0,
    like: Module | None = None,
) -> Module:
    """``module`` with its calls in the order that needs least memory, or in that of ``like`` (it may be ``module``), and
    offsets for everything in the arena.

    Inputs and outputs lie inside it by choice. ``memories``: where the board has several for tensors, the one with the stack
    first: then there are several arenas, and calls say how long they wait for what lies in them. ``flash``: cycles that a byte
    of constants waits where it is linked.
    """
    overlaps = Overlaps(module)
    module = order_calls(module, overlaps, io_in_arena=io_in_arena) if like is None else ordered_as(module, like)
    wanted = demand(module, overlaps, io_in_arena=io_in_arena)
    plan = plan_in_memories(module, wanted, memories, flash) if memories else _in_one(wanted)
    if plan.size > LARGEST:
        raise FitError(
            f"the network needs an arena of {plan.size:,} bytes; generated code indexes at most {LARGEST:,}",
            where=module.source,
            hint="bind a smaller input shape: --input-shape NAME=1,...",
        )
    align = max((ARENA_ALIGN, *(module.values[name].align for name in plan.offsets)))
    plan = replace(plan, io_in_arena=io_in_arena, align=align)
    planned = module.with_plan(plan)
    planned = waiting(planned, memories, flash) if memories or module.plan is not None else planned
    check_plan(planned)
    return planned


def in_one_arena(module: Module, flash: float = 0.0) -> Module:
    """A planned module as for a board with one memory: for what places its arena by itself, and hot code."""
    plan = module.plan
    if plan is None or not plan.arenas:
        return module
    planned = plan_module(module, io_in_arena=plan.io_in_arena, flash=flash)
    assert planned.plan is not None
    return planned.with_plan(replace(planned.plan, code=plan.code))


def _in_one(wanted: Demand) -> Plan:
    name, best = placed(wanted)
    offsets = {unit.name: at for unit, at in best.items()}
    return Plan(dict(sorted(offsets.items())), -(-size_of(best) // 4) * 4, lower_bound(wanted), name)
