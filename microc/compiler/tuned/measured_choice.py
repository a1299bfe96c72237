"""Choose a measured schedule for every kernel: an exact knapsack over kernels, or the best measured combination."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.base.knapsack import LayerOption, pareto_front
from microc.compiler.tuned.records import NETWORK, OK, Database, Record, Task, pareto_records

# ---- Measurements of whole networks: combinations of kernel schedules that ran together.
#
# Kernels that win alone can lose together: they share caches, and the clock of a core that wide vectors slow down. So a
# search on a computer ends with runs of the whole network, which have records of their own: one of the network compiled
# without records, and one for each combination, whose decisions map the key of a kernel to the record that it takes.
# Other kernels keep their default.


@frozen
class NetworkMeasurements:
    """Measurements of whole runs of a network on one board, compiled by one compiler.

    ``untuned``: the record without tuned schedules; ``combinations``: the records of all combinations of schedules, the
    untuned one included, the fastest first."""

    untuned: Record
    combinations: tuple[Record, ...]

    @property
    def best(self) -> Record:
        return self.combinations[0]

    @property
    def kept(self) -> frozenset[str]:
        """Keys of kernels that keep their default in the best combination, though another schedule is faster alone."""
        return (
            frozenset(key for each in self.combinations for key in combination_parts(each))
            - combination_parts(self.best).keys()
        )

    @property
    def beaten(self) -> frozenset[str]:
        """Ids of the records that are part of some combination, but not of the best one."""
        return frozenset(id_ for each in self.combinations for id_ in combination_parts(each).values()) - {
            *combination_parts(self.best).values()
        }


def combination_parts(record: Record) -> Mapping[str, str]:
    """Return the schedules of a measured combination, as a mapping from the key of a kernel to the id of the record whose
    schedule it takes."""
    return {} if record.untuned else {key: str(number) for key, number in record.decisions}


def network_key(tasks: Sequence[Task], threads: int) -> str:
    """Return the key of a network's records: 40 hex digits of its kernels and of their schedules without records.

    Networks that differ in constants alone have the same key; a network that the rules schedule differently has
    another.
    """
    known = [
        (task.key, task.runs, len(task.layers), task.algorithms[first.number], first.choice.schedule.trace)
        for task in tasks
        for first in task.untuned[:1]
    ]
    return hashlib.sha256(repr((NETWORK, threads, known)).encode()).hexdigest()[:40]


def network_measurements(key: str, cpu: str, database: Database, board: str) -> NetworkMeasurements | None:
    """Return the measurements of a network on a core; None if there are none.

    Records of ``board`` are preferred to those of other boards, then the latest measured.
    """
    groups: dict[tuple[str, str, str], dict[object, Record]] = {}
    for record in database.of(key):
        if record.cpu == cpu and record.status == OK:
            origin = (record.board, record.unit, record.toolchain)
            group = groups[origin] = groups.pop(origin, {})  # the one that was measured with last is the last
            group[frozenset(combination_parts(record).items())] = record
    newest = list(reversed(groups))
    for origin in sorted(newest, key=lambda origin: origin[0] != board):
        untuned = groups[origin].get(frozenset())
        if untuned is not None:
            return NetworkMeasurements(untuned, tuple(sorted(groups[origin].values(), key=lambda record: record.ticks)))
    return None


def measured_combinations(
    measurements: NetworkMeasurements, tasks: Sequence[Task], database: Database
) -> Iterator[list[tuple[Task, Record]]]:
    """Yield each measured combination of schedules, fastest first, as the kernels with the record that each takes.

    Combinations with a missing record are left out."""
    for combination in measurements.combinations:
        parts = combination_parts(combination)
        pairs = [
            (task, record)
            for task in tasks
            if task.key in parts
            for record in database.of(task.key)
            if record.id == parts[task.key]
        ]
        if len({task.key for task, _ in pairs}) == len(parts):
            yield pairs


# ---- The choice of a measured schedule for each kernel: the least time under a flash limit.
#
# Times and bytes add up over kernels, and each takes one schedule: a multiple-choice knapsack (:mod:`microc.base.knapsack`).
# Kernels that differ in constants alone share a function if they have the same schedule, and its code counts once: they form one
# group. The workspace of a schedule counts only if the arena would grow.

MAX_GROUP_COMBINATIONS = 1 << 10
"""Most combinations within a group of kernels with a shared function that are all compared."""


@frozen
class KernelChoice:
    """The choice of a schedule for a kernel: ``record``, whose schedule it takes, None for the default; ``default``: the
    measurement of the default schedule."""

    task: Task
    record: Record | None
    default: Record


def kernel_pareto_fronts(
    tasks: Sequence[Task], database: Database, board: str, workspace_bytes: Mapping[str, int] | None
) -> dict[str, list[Record]]:
    """Return for every kernel, by key, the record of its default schedule, and the records that beat it.

    They beat it in time, flash or workspace. Kernels whose default was not measured are left out. The records of a
    kernel are of one board and one compiler: of ``board`` if there are any, else of the board of the same core with the
    most records. ``workspace_bytes``: bytes of workspace by key that a kernel may take without enlarging the arena
    (None: unlimited)."""
    known = _measured_records(tasks, database, board, workspace_bytes)
    return {key: [default, *pareto_records(others)] for key, (default, others) in known.items()}


def _measured_records(
    tasks: Sequence[Task], database: Database, board: str, workspace_bytes: Mapping[str, int] | None
) -> dict[str, tuple[Record, list[Record]]]:
    """Return for every kernel, by key, the record of its default schedule, and its other records.

    Kernels whose default was not measured are left out, and records that take more workspace than ``workspace_bytes``
    (by kernel key) allows."""
    schedules = {}
    for task in tasks:
        records = _comparable_records(
            [r for r in database.of(task.key) if r.status == OK and r.cpu == task.target.cpu], board
        )
        default = default_record(task, records)
        if default is not None:
            most = math.inf if workspace_bytes is None else max(default.workspace, workspace_bytes.get(task.key, 0))
            schedules[task.key] = default, [r for r in records if r.workspace <= most and r is not default]
    return schedules


def _pareto_by_algorithm(records: Sequence[Record]) -> list[Record]:
    """Return the Pareto front of each algorithm: a function that kernels share may beat faster ones of their own."""
    by_algorithm: dict[str, list[Record]] = {}
    for record in records:
        by_algorithm.setdefault(record.algorithm, []).append(record)
    return [record for algorithm_records in by_algorithm.values() for record in pareto_records(algorithm_records)]


def default_record(task: Task, records: Sequence[Record]) -> Record | None:
    """Return the record of a kernel's default schedule: of the bundled one, else of the rules' choice; None if neither was
    measured."""
    by_trace = {(record.algorithm, record.trace): record for record in records}
    traces = ((task.algorithms[untuned.number], untuned.choice.schedule.trace) for untuned in task.untuned)
    return next((by_trace[trace] for trace in traces if trace in by_trace), None)


def choose_records(
    tasks: Sequence[Task],
    database: Database,
    *,
    board: str = "",
    flash_growth: int | None = None,
    workspace_bytes: Mapping[str, int] = MappingProxyType({}),
    minimise_flash: bool = False,
    excluded_records: Collection[object] = (),
) -> list[KernelChoice]:
    """Choose a record for each measured kernel, so that all together take the least ticks.

    ``minimise_flash``: the least flash instead. Kernels without measurements keep their default. ``flash_growth``:
    bytes by which code and constants may grow (None: unlimited). ``workspace_bytes`` as in
    :func:`kernel_pareto_fronts`. ``excluded_records``: records that are not chosen."""
    known = _measured_records(tasks, database, board, workspace_bytes)
    measured = {
        key: [default, *_pareto_by_algorithm([record for record in others if record not in excluded_records])]
        for key, (default, others) in known.items()
    }
    # Kernels with the same default share its code, so the code of one depends on the choice of the others: a group is one item.
    groups = _group_by_default_function([task for task in tasks if task.key in measured])
    alternatives = [_group_choices(group, [measured[task.key] for task in group]) for group in groups]
    options = [
        [_group_option(group, number, alternative) for number, alternative in enumerate(group_alternatives)]
        for group, group_alternatives in zip(groups, alternatives, strict=True)
    ]
    # The first alternative of a group is its default: growth is counted from there.
    limit = (
        None
        if flash_growth is None
        else flash_growth + sum(group_alternatives[0].flash for group_alternatives in options)
    )
    points = pareto_front([_undominated_options(group_alternatives) for group_alternatives in options], limit)
    weighed = (lambda point: (point.flash, point.loss)) if minimise_flash else (lambda point: (point.loss, point.flash))
    best = min(points, key=weighed) if points else None
    picks = best.picks if best is not None else (0,) * len(groups)
    choices = {
        task.key: KernelChoice(task, None if record is measured[task.key][0] else record, measured[task.key][0])
        for group, group_alternatives, pick in zip(groups, alternatives, picks, strict=True)
        for task, record in zip(group, group_alternatives[pick], strict=True)
    }
    return [choices[task.key] for task in tasks if task.key in choices]


def _group_by_default_function(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group the kernels that share a function by default."""
    groups: dict[object, list[Task]] = {}
    for task in tasks:
        first = task.untuned[0]
        function = task.functions[task.algorithms[first.number]]
        groups.setdefault((function, first.choice.schedule.trace), []).append(task)
    return list(groups.values())


def _group_choices(group: Sequence[Task], measured: Sequence[Sequence[Record]]) -> list[tuple[Record, ...]]:
    """Return the combinations of records that a group of kernels may take, that of the defaults first.

    These are all combinations; if there are more than :data:`MAX_GROUP_COMBINATIONS`, those in which kernels with the
    same algorithm have the same schedule, and those in which a single kernel leaves its default."""
    default = tuple(records[0] for records in measured)
    if math.prod(map(len, measured)) <= MAX_GROUP_COMBINATIONS:
        return list(product(*measured))
    by_trace = [{(record.algorithm, record.trace): record for record in records} for records in measured]
    uniform = [
        tuple(kernel_records.get(trace, records[0]) for kernel_records, records in zip(by_trace, measured, strict=True))
        for trace in by_trace[0]
    ]
    single = [
        (*default[:index], record, *default[index + 1 :])
        for index, records in enumerate(measured)
        for record in records[1:]
    ]
    return list(dict.fromkeys((default, *uniform, *single)))


def _group_option(group: Sequence[Task], index: int, records: Sequence[Record]) -> LayerOption:
    """Return the option of the knapsack for one combination of records of a group: its index, ticks and bytes of flash;
    equal layers share code, but not constants."""
    code: dict[object, int] = {}
    for task, record in zip(group, records, strict=True):
        function = task.functions.get(record.algorithm, task.key), record.trace
        code[function] = max(code.get(function, 0), record.code)
    constants = sum(len(task.layers) * record.constants for task, record in zip(group, records, strict=True))
    ticks = sum(task.runs * record.ticks for task, record in zip(group, records, strict=True))
    return LayerOption(index, ticks, round(sum(code.values()) + constants), 0)


def _undominated_options(options: Sequence[LayerOption]) -> list[LayerOption]:
    """Return the options of a group that no other option beats in ticks and flash."""
    return [options[point.picks[0]] for point in pareto_front([options])]


def _comparable_records(records: Sequence[Record], board: str) -> list[Record]:
    """Return the records that can be compared with each other: of one board, unit and toolchain, ``board`` preferred; the
    newest of each schedule."""
    groups: dict[tuple[str, str, str], dict[object, Record]] = {}
    for record in records:
        group = groups.setdefault((record.board, record.unit, record.toolchain), {})
        group[record.algorithm, record.trace] = record
    best = max(groups, key=lambda group: (group[0] == board, len(groups[group])), default=None)
    return list(groups[best].values()) if best is not None else []
