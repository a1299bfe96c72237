"""Which measured schedule every kernel of a network takes: an exact choice of the least time under a limit of flash.

Times and bytes add up over kernels, and one schedule of each is chosen (:mod:`microc.knapsack`). A schedule's workspace counts
only where it would make the arena grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from microc.driver.tuned.records import OK, Database, Record, unbeaten
from microc.driver.tuned.task import Task
from microc.knapsack import Option, front


@dataclass(frozen=True, slots=True)
class Chosen:
    """A kernel's schedule: ``record`` is None where it stays as it is; ``default``: what that was measured as."""

    task: Task
    record: Record | None
    default: Record


def fronts(
    tasks: Sequence[Task], database: Database, board: str, room: Mapping[str, int] | None
) -> dict[str, list[Record]]:
    """For every kernel whose default was measured: that, and what beats it in something, by one board and one compiler.

    ``board``: whose records are preferred; else those of any board of the core that has most of them. ``room``: bytes of
    workspace that a kernel may take without making the arena larger, by key (None: any number).
    """
    found = {}
    for task in tasks:
        records = _together([r for r in database.of(task.key) if r.status == OK and r.cpu == task.target.cpu], board)
        default = default_of(task, records)
        if default is not None:
            most = math.inf if room is None else max(default.workspace, room.get(task.key, 0))
            found[task.key] = [default, *unbeaten([r for r in records if r.workspace <= most and r is not default])]
    return found


def default_of(task: Task, records: Sequence[Record]) -> Record | None:
    """What the compiler takes by itself, as it was measured; where that comes with it and was not, what rules choose instead."""
    found = {(record.algorithm, record.trace): record for record in records}
    traces = ((task.algorithms[each.number], each.choice.schedule.trace) for each in task.untuned)
    return next((found[trace] for trace in traces if trace in found), None)


def choose(
    tasks: Sequence[Task],
    database: Database,
    *,
    board: str = "",
    flash: int | None = None,
    room: Mapping[str, int] = MappingProxyType({}),
    least: bool = False,
    without: Collection[object] = (),
) -> list[Chosen]:
    """The least ticks of all measured kernels together; ``least``: the least flash. Kernels that were not measured stay as they
    are. ``flash``: bytes by which code and constants may grow, 0 for none at all (None: any number). ``without``: records that
    are no choice."""
    measured = {
        key: [record for record in records if record not in without]
        for key, records in fronts(tasks, database, board, room).items()
    }
    known = [task for task in tasks if task.key in measured]
    layers = [[_option(task, number, record) for number, record in enumerate(measured[task.key])] for task in known]
    limit = None if flash is None else flash + sum(options[0].flash for options in layers)
    points = front(layers, limit)
    weighed = (lambda point: (point.flash, point.loss)) if least else (lambda point: (point.loss, point.flash))
    best = min(points, key=weighed) if points else None
    picks = best.picks if best is not None else (0,) * len(known)
    return [
        Chosen(task, measured[task.key][pick] if pick else None, measured[task.key][0])
        for task, pick in zip(known, picks, strict=True)
    ]


def _option(task: Task, number: int, record: Record) -> Option:
    """A record as a choice among those of its kernel; layers that are alike share code, but not constants."""
    flash = round(record.code + len(task.layers) * record.constants)
    return Option(number, task.runs * record.ticks, flash, 0)


def _together(records: Sequence[Record], board: str) -> list[Record]:
    """Those that can be compared: of one board, unit and toolchain; the newest of each schedule."""
    groups: dict[tuple[str, str, str], dict[object, Record]] = {}
    for record in records:
        group = groups.setdefault((record.board, record.unit, record.toolchain), {})
        group[record.algorithm, record.trace] = record
    best = max(groups, key=lambda group: (group[0] == board, len(groups[group])), default=None)
    return list(groups[best].values()) if best is not None else []
