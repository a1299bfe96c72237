"""Measured schedules in a compilation (``--tuned``): which records are of its kernels, and which of them are taken.

The goal says what they may cost. For speed any flash is right; ``balanced`` takes no more than the schedules that were chosen
without records; for size the least flash wins, and time decides between equals. Workspaces may make the arena grow a little, by
:data:`GROWTH`, and never beyond what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from pathlib import Path

from microc.driver.compile.kernel import replayed
from microc.driver.compile.maker import Compiled, TunedSchedule
from microc.driver.report.size import covered
from microc.driver.tuned.choice import Chosen, choose
from microc.driver.tuned.records import records_of
from microc.driver.tuned.task import Task, tasks_of
from microc.errors import MicrocError
from microc.module import Module
from microc.plan.liveness import lifetimes

GROWTH = 1 / 32
"""Of the arena: a row more in a plane is worth it, a copy of a whole image is not."""


def tuned_schedules(made: Compiled, path: Path, board: str = "", ram: int = 0) -> Mapping[str, TunedSchedule]:
    """The schedules of a planned network's kernels that a file of records has something better for. ``board``: whose records are
    preferred. ``ram``: bytes that the arena may take (0: any number). UsageError for a file that is none of records."""
    goal = made.make.goal
    database, tasks = records_of(path), tasks_of(made)
    room = workspace_room(made.module, tasks, ram)
    flash = None if goal.price == 0 else 0
    unfit: set[object] = set()
    while True:
        found = choose(tasks, database, board=board, flash=flash, room=room, least=isinf(goal.price), without=unfit)
        wrong = [chosen for chosen in found if not _fits(chosen)]
        if not wrong:
            return {chosen.task.key: _schedule(chosen) for chosen in found if chosen.record is not None}
        unfit.update(chosen.record for chosen in wrong)


def _schedule(chosen: Chosen) -> TunedSchedule:
    assert chosen.record is not None
    return TunedSchedule(chosen.record.algorithm, chosen.record.rule, chosen.record.trace)


def _fits(chosen: Chosen) -> bool:
    """Whether a record's trace makes a schedule still: the compiler may be a later one than that which wrote it."""
    if chosen.record is None:
        return True
    group = next((each for each in chosen.task.lowered if each.algorithm == chosen.record.algorithm), None)
    if group is None:
        return False
    try:
        replayed(group, chosen.record.trace, chosen.record.rule)
    except MicrocError:
        return False
    return True


def workspace_room(module: Module, tasks: Sequence[Task], ram: int) -> Mapping[str, int]:
    """By key of a kernel, the bytes of workspace that it may take in all of its layers."""
    assert module.plan is not None
    grown = int((1 + GROWTH) * module.plan.size)
    most = max(module.plan.size, min(grown, ram) if ram else grown)
    alive: list[list[tuple[int, int]]] = [[] for _ in module.calls]
    for name, (first, last) in lifetimes(module, io_in_arena=module.plan.io_in_arena).items():
        place = module.plan.offsets[name]
        for step in range(max(first, 0), min(last, len(alive) - 1) + 1):
            alive[step].append((place, place + module.values[name].nbytes))
    found: dict[str, int] = {}
    keys = {layer: task.key for task in tasks for layer in task.layers}
    for call, live in zip(module.calls, alive, strict=True):
        key = keys.get(call.layer)
        if key is not None:
            free = most - covered(live) + sum(module.values[name].nbytes for name in call.workspace)
            found[key] = min(found.get(key, free), free)
    return found
