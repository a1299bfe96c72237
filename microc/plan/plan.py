"""The memory plan of a module: an order of calls, memories for its values, the best of several planners, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.errors import FitError
from microc.module import Arena, Call, Module, Plan
from microc.plan.check import check_plan
from microc.plan.liveness import Demand, demand, lower_bound, size_of
from microc.plan.overlap import Overlaps
from microc.plan.planners import placed
from microc.plan.sequence import order_calls
from microc.plan.split import Homes, part, split
from microc.target import Memory

ARENA_ALIGN = 8
APART = 64
"""Bytes at whose multiples arenas start among a plan's."""
LARGEST = (1 << 31) - 1
"""Indices are int32."""


def plan_module(module: Module, *, io_in_arena: bool = True, memories: Sequence[Memory] = ()) -> Module:
    """``module`` with its calls in the order that needs least memory, and offsets for everything in the arena.

    Inputs and outputs lie inside it by choice. ``memories``: where the board has several for tensors, the one with the stack
    first: then there are several arenas, and calls say how long they wait for what lies in them.
    """
    overlaps = Overlaps(module)
    module = order_calls(module, overlaps, io_in_arena=io_in_arena)
    wanted = demand(module, overlaps, io_in_arena=io_in_arena)
    plan = _in_several(module, wanted, memories) if len(memories) > 1 else _in_one(wanted)
    if plan.size > LARGEST:
        raise FitError(
            f"the network needs an arena of {plan.size:,} bytes; generated code indexes at most {LARGEST:,}",
            where=module.source,
            hint="bind a smaller input shape: --input-shape NAME=1,...",
        )
    plan = replace(plan, io_in_arena=io_in_arena, align=ARENA_ALIGN)
    planned = _waiting(module.with_plan(plan), memories)
    check_plan(planned)
    return planned


def in_one_arena(module: Module) -> Module:
    """A planned module as for a board with one memory: for what places its arena by itself."""
    plan = module.plan
    return plan_module(module, io_in_arena=plan.io_in_arena) if plan is not None and plan.arenas else module


def _in_one(wanted: Demand) -> Plan:
    name, best = placed(wanted)
    offsets = {unit.name: at for unit, at in best.items()}
    return Plan(dict(sorted(offsets.items())), -(-size_of(best) // 4) * 4, lower_bound(wanted), name)


def _in_several(module: Module, wanted: Demand, memories: Sequence[Memory]) -> Plan:
    """Arenas one behind the other, an empty one for a memory that holds nothing."""
    by_name = {unit.name: unit for unit in wanted.units}
    waits = {unit: [0.0] * len(memories) for unit in wanted.units}
    accesses = dict.fromkeys(wanted.units, 0.0)
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            unit = by_name.get(module.base_of(name)[0])
            if unit is not None:
                accesses[unit] += moved.reads + moved.writes
                for number, memory in enumerate(memories):
                    waits[unit][number] += memory.waits(moved, module.values[name].nbytes)
    homes: Homes = split(wanted, {unit: tuple(cycles) for unit, cycles in waits.items()}, memories)
    offsets: dict[str, int] = {}
    arenas: list[Arena] = []
    planners: list[str] = []
    start = bound = 0
    for number, memory in enumerate(memories):
        own = [unit for unit in wanted.units if homes[unit] == number]
        inside = part(wanted, own)
        name, best = placed(inside)
        size = -(-size_of(best) // 4) * 4
        offsets |= {unit.name: start + at for unit, at in best.items()}
        count, cycles = sum(accesses[unit] for unit in own), sum(waits[unit][number] for unit in own)
        arenas.append(Arena(memory.name, start, size, memory.size, round(count), round(cycles)))
        planners += [name] if own else []
        bound += lower_bound(inside)
        start += -(-size // APART) * APART
    size = max((arena.start + arena.size for arena in arenas if arena.size), default=0)
    planner = ", ".join(dict.fromkeys(planners))
    return Plan(dict(sorted(offsets.items())), size, bound, planner, arenas=tuple(arenas))


def _waiting(module: Module, memories: Sequence[Memory]) -> Module:
    """``module`` with the cycles of its calls as they wait for their operands where these lie."""
    assert module.plan is not None
    if not module.plan.arenas and not any(call.waits for call in module.calls):
        return module
    return replace(module, calls=tuple(_timed(module, call, memories) for call in module.calls))


def _timed(module: Module, call: Call, memories: Sequence[Memory]) -> Call:
    plan, cycles = module.plan, 0.0
    assert plan is not None
    for name, moved in zip(call.args, call.traffic, strict=True):
        at = plan.offsets.get(module.base_of(name)[0])
        if at is not None and plan.arenas:
            memory = memories[max(k for k, arena in enumerate(plan.arenas) if arena.size and arena.start <= at)]
            cycles += memory.waits(moved, module.values[name].nbytes)
    return replace(call, waits=round(cycles), cycles=call.cycles - call.waits + round(cycles))
