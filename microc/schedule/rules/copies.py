"""Loops in which operators copy runs of memory themselves, by as many elements at a time as a core moves."""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import schedule_generic
from microc.schedule.rules.lanes import vectorize_lanes
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_loop
from microc.target import Target
from microc.tir import ir
from microc.tir.lower.lanes import COPIED, SHORT
from microc.tir.lower.region import consecutive
from microc.tir.names import MOVED
from microc.tir.rewrite import walk_stmt

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
        elif target.has("words") and dtype in SHORT and loop_extent(schedule.func, loop) * width >= LEAST:
            schedule = schedule.annotate(loop, MOVED, 1)
    return schedule
