"""Measured schedules in a compilation (``--tuned``): which records are of its kernels, and which of them are taken.

The goal says what they may cost. For speed any flash is right; ``balanced`` takes no more than the schedules that were chosen
without records; for size the least flash wins, and time decides between equals. Workspaces may make the arena grow a little, by
:data:`GROWTH`, and never beyond what there is. Where time alone counts, and the network was measured as a whole
(:mod:`.network`), that decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isinf
from pathlib import Path

from microc.driver.compile.kernel import replayed
from microc.driver.compile.maker import Compiled, TunedSchedule
from microc.driver.compile.workspaces import workspaces_within
from microc.driver.tuned.choice import Chosen, choose
from microc.driver.tuned.network import measured_together, network_key, ways_together
from microc.driver.tuned.records import Database, Record, records_of
from microc.driver.tuned.task import Task, tasks_of
from microc.errors import MicrocError
from microc.module import Module

GROWTH = 1 / 32
"""Of the arena: a row more in a plane is worth it, a copy of a whole image is not."""


def tuned_schedules(made: Compiled, path: Path, board: str = "", ram: int = 0) -> Mapping[str, TunedSchedule]:
    """The schedules of a planned network's kernels that a file of records has something better for. ``board``: whose records are
    preferred. ``ram``: bytes that the arena may take (0: any number). UsageError for a file that is none of records."""
    database, tasks = records_of(path), tasks_of(made)
    room = workspace_room(made.module, tasks, ram)
    pairs = _together(made, tasks, database, board, room)
    if pairs is None:
        apart = chosen_apart(made, tasks, database, board, room)
        pairs = [(each.task, each.record) for each in apart if each.record is not None]
    return {task.key: TunedSchedule(record.algorithm, record.rule, record.trace) for task, record in pairs}


def chosen_apart(
    made: Compiled,
    tasks: Sequence[Task],
    database: Database,
    board: str,
    room: Mapping[str, int],
    without: Collection[object] = (),
) -> list[Chosen]:
    """What the kernels of a network take by what was measured of each alone; ``without`` as in :func:`choose`."""
    goal = made.make.goal
    flash = None if goal.price == 0 else 0
    unfit = set(without)
    while True:
        found = choose(tasks, database, board=board, flash=flash, room=room, least=isinf(goal.price), without=unfit)
        wrong = [each.record for each in found if each.record is not None and not _fits(each.task, each.record)]
        if not wrong:
            return found
        unfit.update(wrong)


def _together(
    made: Compiled, tasks: Sequence[Task], database: Database, board: str, room: Mapping[str, int]
) -> list[tuple[Task, Record]] | None:
    """What they take by runs of the whole network, where time alone counts: the best combination that can still be made; None
    where nothing was measured so."""
    if made.make.goal.price > 0:
        return None
    together = measured_together(network_key(tasks, made.make.threads), made.make.target.cpu, database, board)
    ways = ways_together(together, tasks, database) if together is not None else ()
    return next((pairs for pairs in ways if all(_fits(*each) and _has_room(*each, room) for each in pairs)), None)


def _has_room(task: Task, record: Record, room: Mapping[str, int]) -> bool:
    return record.workspace <= room.get(task.key, record.workspace)


def _fits(task: Task, record: Record) -> bool:
    """Whether a record's trace makes a schedule still: the compiler may be a later one than that which wrote it."""
    group = next((each for each in task.lowered if each.algorithm == record.algorithm), None)
    if group is None:
        return False
    try:
        replayed(group, record.trace, record.rule)
    except MicrocError:
        return False
    return True


def workspace_room(module: Module, tasks: Sequence[Task], ram: int) -> Mapping[str, int]:
    """By key of a kernel, the bytes of workspace that it may take in all of its layers."""
    assert module.plan is not None
    grown = int((1 + GROWTH) * module.plan.size)
    most = max(module.plan.size, min(grown, ram) if ram else grown)
    return workspaces_within(most, module, tasks)
