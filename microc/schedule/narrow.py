"""A schedule for one size made one for many: tiles that leave a tail at some of them are one wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from microc.schedule.placement import loop_extent
from microc.schedule.schedule import Schedule
from microc.schedule.step import Step
from microc.tir import ir


def narrowed(
    trace: Sequence[Step], funcs: Sequence[ir.PrimFunc], divides: Callable[[Sequence[int], int], bool]
) -> tuple[Step, ...]:
    """The trace for functions that differ in extents, so that it leaves no tails: splits of loops that differ, and that it does
    not always divide, become splits by one; what takes a whole loop apart (unrolling, copying by words) is left out there.
    ``divides`` tells of extents, by function, whether a number always divides them.

    Raises ScheduleError where it does not suit one of the functions.
    """
    schedules = [Schedule(func) for func in funcs]
    found = []
    for step in trace:
        if step.primitive in ("split", "set_kind"):
            extents = [loop_extent(schedule.func, step.args[0]) for schedule in schedules]
            differs = len(set(extents)) > 1
            if differs and step.primitive == "set_kind":
                continue
            if differs and not divides(extents, prod(f for f in step.args[1] if f)):
                loop, factors = step.args
                step = Step("split", (loop, (None, *(1 for _ in factors[1:]))))
        schedules = [schedule.apply(step.primitive, *step.args) for schedule in schedules]
        found.append(step)
    return tuple(found)
