"""Which measured schedule every kernel takes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.base.knapsack import Option, front
from microc.compiler.tuned.records import NETWORK, OK, Database, Record, Task, unbeaten

# ---- What was measured of a network as a whole: which schedules of its kernels ran together, and which of these
# combinations takes the least.
#
# Kernels that win alone can lose beside each other: they share caches, and the clock of a core that wide vectors slow down. So a
# search on a computer ends with runs of the whole network, and keeps them as records of their own, as those of a kernel are: one
# of the network as it is compiled without records, and one for every combination, whose decisions are the record that a kernel
# takes, by its key. What a combination does not name stays as it is.


@frozen
class Together:
    """What was measured of a network on one board, by one compiler: ``untuned``, and it with all ``combinations``, the one that
    takes the least first; of each the newest record."""

    untuned: Record
    combinations: tuple[Record, ...]

    @property
    def best(self) -> Record:
        return self.combinations[0]

    @property
    def kept(self) -> frozenset[str]:
        """The keys of kernels that stay as they are in the best one, though they have something that is faster alone."""
        return frozenset(key for each in self.combinations for key in parts_of(each)) - parts_of(self.best).keys()

    @property
    def beaten(self) -> frozenset[str]:
        """The ids of records that were part of a combination, and are not of the best one."""
        return frozenset(id_ for each in self.combinations for id_ in parts_of(each).values()) - {
            *parts_of(self.best).values()
        }


def parts_of(record: Record) -> Mapping[str, str]:
    """Of a combination: by the key of a kernel the id of the record that it takes."""
    return {} if record.untuned else {key: str(number) for key, number in record.decisions}


def network_key(tasks: Sequence[Task], threads: int) -> str:
    """What records of a network are found by: 40 hex digits of its kernels and of what these take without records. Networks that
    differ in constants alone have one key; one that rules schedule otherwise is another network."""
    known = [
        (task.key, task.runs, len(task.layers), task.algorithms[first.number], first.choice.schedule.trace)
        for task in tasks
        for first in task.untuned[:1]
    ]
    return hashlib.sha256(repr((NETWORK, threads, known)).encode()).hexdigest()[:40]


def measured_together(key: str, cpu: str, database: Database, board: str) -> Together | None:
    """What is known of a network on a core: of records of ``board`` rather than of others, those that were measured last. None
    where nothing was measured together."""
    groups: dict[tuple[str, str, str], dict[object, Record]] = {}
    for record in database.of(key):
        if record.cpu == cpu and record.status == OK:
            where = (record.board, record.unit, record.toolchain)
            group = groups[where] = groups.pop(where, {})  # the one that was measured with last is the last
            group[frozenset(parts_of(record).items())] = record
    newest = list(reversed(groups))
    for where in sorted(newest, key=lambda where: where[0] != board):
        untuned = groups[where].get(frozenset())
        if untuned is not None:
            return Together(untuned, tuple(sorted(groups[where].values(), key=lambda record: record.ticks)))
    return None


def ways_together(together: Together, tasks: Sequence[Task], database: Database) -> Iterator[list[tuple[Task, Record]]]:
    """The kernels that take something else than by themselves, with that, combination by combination, the best first; but for
    combinations whose records are not all there."""
    for combination in together.combinations:
        parts = parts_of(combination)
        pairs = [
            (task, record)
            for task in tasks
            if task.key in parts
            for record in database.of(task.key)
            if record.id == parts[task.key]
        ]
        if len({task.key for task, _ in pairs}) == len(parts):
            yield pairs


# ---- Which measured schedule every kernel of a network takes: an exact choice of the least time under a limit of
# flash.
#
# Times and bytes add up over kernels, and one schedule of each is chosen (:mod:`microc.base.knapsack`). Kernels that differ in
# constants alone share a function where they have one schedule, and its code counts once: they are chosen together. A
# schedule's workspace counts only where it would make the arena grow.

TOGETHER = 1 << 10
"""Choices of kernels that share a function, all of which are compared."""


@frozen
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
    known = _known(tasks, database, board, room)
    return {key: [default, *unbeaten(others)] for key, (default, others) in known.items()}


def _known(
    tasks: Sequence[Task], database: Database, board: str, room: Mapping[str, int] | None
) -> dict[str, tuple[Record, list[Record]]]:
    """The default of such kernels, and all others that they have room for."""
    found = {}
    for task in tasks:
        records = _together([r for r in database.of(task.key) if r.status == OK and r.cpu == task.target.cpu], board)
        default = default_of(task, records)
        if default is not None:
            most = math.inf if room is None else max(default.workspace, room.get(task.key, 0))
            found[task.key] = default, [r for r in records if r.workspace <= most and r is not default]
    return found


def _by_algorithm(records: Sequence[Record]) -> list[Record]:
    """What none other of the same algorithm beats: a function that kernels share may be better than faster ones of their own."""
    ways: dict[str, list[Record]] = {}
    for record in records:
        ways.setdefault(record.algorithm, []).append(record)
    return [record for each in ways.values() for record in unbeaten(each)]


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
    known = _known(tasks, database, board, room)
    measured = {
        key: [default, *_by_algorithm([record for record in others if record not in without])]
        for key, (default, others) in known.items()
    }
    groups = _groups([task for task in tasks if task.key in measured])
    ways = [_ways(group, [measured[task.key] for task in group]) for group in groups]
    options = [
        [_option(group, number, way) for number, way in enumerate(many)]
        for group, many in zip(groups, ways, strict=True)
    ]
    limit = None if flash is None else flash + sum(many[0].flash for many in options)
    points = front([_best(many) for many in options], limit)
    weighed = (lambda point: (point.flash, point.loss)) if least else (lambda point: (point.loss, point.flash))
    best = min(points, key=weighed) if points else None
    picks = best.picks if best is not None else (0,) * len(groups)
    found = {
        task.key: Chosen(task, None if record is measured[task.key][0] else record, measured[task.key][0])
        for group, many, pick in zip(groups, ways, picks, strict=True)
        for task, record in zip(group, many[pick], strict=True)
    }
    return [found[task.key] for task in tasks if task.key in found]


def _groups(tasks: Sequence[Task]) -> list[list[Task]]:
    """Kernels that share a function as they are compiled by themselves."""
    found: dict[object, list[Task]] = {}
    for task in tasks:
        first = task.untuned[0]
        function = task.functions[task.algorithms[first.number]]
        found.setdefault((function, first.choice.schedule.trace), []).append(task)
    return list(found.values())


def _ways(group: Sequence[Task], measured: Sequence[Sequence[Record]]) -> list[tuple[Record, ...]]:
    """The choices of a group, the default first: all, or, of too many, those where kernels with one algorithm have one schedule,
    or a single kernel has another than by itself."""
    default = tuple(records[0] for records in measured)
    if math.prod(map(len, measured)) <= TOGETHER:
        return list(product(*measured))
    steps = [{(record.algorithm, record.trace): record for record in records} for records in measured]
    alike = [
        tuple(each.get(way, records[0]) for each, records in zip(steps, measured, strict=True)) for way in steps[0]
    ]
    alone = [
        (*default[:place], record, *default[place + 1 :])
        for place, records in enumerate(measured)
        for record in records[1:]
    ]
    return list(dict.fromkeys((default, *alike, *alone)))


def _option(group: Sequence[Task], number: int, way: Sequence[Record]) -> Option:
    """Schedules of a group as one choice; layers that are alike share code, but not constants."""
    code: dict[object, int] = {}
    for task, record in zip(group, way, strict=True):
        function = task.functions.get(record.algorithm, task.key), record.trace
        code[function] = max(code.get(function, 0), record.code)
    constants = sum(len(task.layers) * record.constants for task, record in zip(group, way, strict=True))
    ticks = sum(task.runs * record.ticks for task, record in zip(group, way, strict=True))
    return Option(number, ticks, round(sum(code.values()) + constants), 0)


def _best(options: Sequence[Option]) -> list[Option]:
    """Those of a group that none other beats."""
    return [options[point.picks[0]] for point in front([options])]


def _together(records: Sequence[Record], board: str) -> list[Record]:
    """Those that can be compared: of one board, unit and toolchain; the newest of each schedule."""
    groups: dict[tuple[str, str, str], dict[object, Record]] = {}
    for record in records:
        group = groups.setdefault((record.board, record.unit, record.toolchain), {})
        group[record.algorithm, record.trace] = record
    best = max(groups, key=lambda group: (group[0] == board, len(groups[group])), default=None)
    return list(groups[best].values()) if best is not None else []
