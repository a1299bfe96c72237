# SPDX-License-Identifier: Apache-2.0
"""The choice of a measured schedule for every kernel of a network, from measurements of kernels and of whole networks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.base.knapsack import LayerOption, pareto_front
from microc.compiler.tuned.records import (
    NETWORK,
    OK,
    Database,
    Origin,
    Record,
    Task,
    group_by_origin,
    pareto_records,
)

# ---- Choose a measured schedule for every kernel: by an exact knapsack over kernels, or as the best combination
# that was measured with the whole network.


# ---- Measurements of whole networks: combinations of kernel schedules that ran together.
#
# Schedules that are the fastest for each kernel alone may be slow together, because kernels share caches, and because wide
# vectors may reduce the clock rate of a core. Therefore tuning on a computer ends with runs of the whole network, which have
# records of their own: one record of the network without tuned schedules, and one for each combination of tuned schedules.
# The decisions of such a record map the key of a kernel to the id of the record whose schedule the kernel uses. All other
# kernels use their default schedule.


@frozen
class NetworkMeasurements:
    """Measurements of whole runs of a network on one board, compiled by one compiler.

    ``untuned``: the record without tuned schedules. ``combinations``: the records of all combinations of schedules,
    including the one without tuned schedules, the fastest first.
    """

    untuned: Record
    combinations: tuple[Record, ...]

    @property
    def best(self) -> Record:
        return self.combinations[0]

    @property
    def kernels_kept_at_default(self) -> frozenset[str]:
        """Keys of the kernels that use their default schedule in the best combination, but another schedule in some
        other combination."""
        return (
            frozenset(key for each in self.combinations for key in record_id_by_kernel_key(each))
            - record_id_by_kernel_key(self.best).keys()
        )

    @property
    def losing_record_ids(self) -> frozenset[str]:
        """Ids of the records whose schedules are used in some combination but not in the best combination."""
        return frozenset(id_ for each in self.combinations for id_ in record_id_by_kernel_key(each).values()) - {
            *record_id_by_kernel_key(self.best).values()
        }


def record_id_by_kernel_key(record: Record) -> Mapping[str, str]:
    """Return the schedules of a measured combination: for each kernel that does not use its default schedule, the id of
    the record whose schedule it uses, by the kernel's key."""
    return {} if record.untuned else {key: str(number) for key, number in record.decisions}


def compute_network_key(tasks: Sequence[Task], threads: int, cores: int) -> str:
    """Compute the key of a network's records: 40 hex digits that depend on its kernels and on their default schedules.

    Networks that differ only in constants have the same key. If rules schedule a kernel differently, the key changes.
    ``threads``, ``cores``: number of threads, or of a board's cores, that share large loops: times of a network on one core say
    nothing of two.
    """
    known = [
        (task.key, task.runs, len(task.layers), task.algorithms[first.number], first.choice.schedule.trace)
        for task in tasks
        for first in task.untuned[:1]
    ]
    shared = (threads,) if cores == 1 else (threads, cores)  # keys of one core are those of records that exist
    return hashlib.sha256(repr((NETWORK, *shared, known)).encode()).hexdigest()[:40]


def find_network_measurements(key: str, cpu: str, database: Database, board: str) -> NetworkMeasurements | None:
    """Find the measurements of a network on a core; None if there are none.

    ``key``: the key of the network's records (:func:`compute_network_key`). ``cpu``: the name of the core. Records of
    ``board`` are preferred to those of other boards. Among other boards, the board measured last is preferred.
    """
    known = [record for record in database.records_of(key) if record.cpu == cpu and record.status == OK]
    for records in group_by_origin(known, board):
        combinations = {frozenset(record_id_by_kernel_key(record).items()): record for record in records}
        if frozenset() in combinations:
            fastest_first = sorted(combinations.values(), key=lambda record: record.ticks)
            return NetworkMeasurements(combinations[frozenset()], tuple(fastest_first))
    return None


def list_measured_combinations(
    measurements: NetworkMeasurements, tasks: Sequence[Task], database: Database
) -> Iterator[list[tuple[Task, Record]]]:
    """Yield each measured combination of schedules, the fastest first: the tuned kernels, each with the record of its
    schedule.

    A combination is left out if the record of one of its schedules is missing.
    """
    for combination in measurements.combinations:
        parts = record_id_by_kernel_key(combination)
        pairs = [
            (task, record)
            for task in tasks
            if task.key in parts
            for record in database.records_of(task.key)
            if record.id == parts[task.key]
        ]
        if len({task.key for task, _ in pairs}) == len(parts):
            yield pairs


# ---- The choice of a measured schedule for each kernel: the least time within a flash limit.
#
# The times and the flash bytes of kernels add up, and each kernel uses one schedule. So this is a multiple-choice knapsack
# problem (:mod:`microc.base.knapsack`). Kernels that differ only in constants share a C function if they use the same
# schedule, and its code counts once. Such kernels form one group. The workspace of a schedule matters only if the arena would
# grow.

MAX_GROUP_COMBINATIONS = 1 << 10
"""Maximum number of combinations of records for which all combinations are compared, in a group of kernels that share a
function."""


@frozen
class KernelChoice:
    """The choice of a schedule for a kernel. ``record``: the record of the chosen schedule, or None for the default
    schedule. ``default``: the record of the default schedule."""

    task: Task
    record: Record | None
    default: Record


def kernel_pareto_fronts(
    tasks: Sequence[Task], database: Database, board: str, workspace_bytes: Mapping[str, int] | None
) -> dict[str, list[Record]]:
    """Return, by the key of the kernel, the record of its default schedule followed by the records on its Pareto front.

    The Pareto front is of time, flash and workspace. Kernels whose default schedule was not measured are left out. All
    records of a kernel are of one board and one compiler: of ``board`` if there are any, else of the board with the
    most records among those with the same core. ``workspace_bytes``: bytes of workspace that a kernel may use without
    enlarging the arena, by the key of the kernel (None: unlimited).
    """
    known = _find_comparable_schedules(tasks, database, board, workspace_bytes)
    return {key: [default, *pareto_records(others)] for key, (default, others) in known.items()}


def _find_comparable_schedules(
    tasks: Sequence[Task], database: Database, board: str, workspace_bytes: Mapping[str, int] | None
) -> dict[str, tuple[Record, list[Record]]]:
    """Return, by the key of the kernel, the record of its default schedule, and its other records.

    Kernels whose default schedule was not measured are left out. So are records that need more workspace than
    ``workspace_bytes`` allows for the kernel.
    """
    schedules = {}
    for task in tasks:
        records = select_comparable_records(
            [r for r in database.records_of(task.key) if r.status == OK and r.cpu == task.target.cpu], board
        )
        default = find_default_record(task, records)
        if default is not None:
            most = math.inf if workspace_bytes is None else max(default.workspace, workspace_bytes.get(task.key, 0))
            schedules[task.key] = default, [r for r in records if r.workspace <= most and r is not default]
    return schedules


def _select_pareto_records_per_algorithm(records: Sequence[Record]) -> list[Record]:
    """Return the records on the Pareto fronts of ticks, flash and workspace, with a separate front for each algorithm.

    A slower schedule may be better than a faster one of another algorithm, if several kernels can share its function.
    """
    by_algorithm: dict[str, list[Record]] = {}
    for record in records:
        by_algorithm.setdefault(record.algorithm, []).append(record)
    return [record for algorithm_records in by_algorithm.values() for record in pareto_records(algorithm_records)]


def find_default_record(task: Task, records: Sequence[Record]) -> Record | None:
    """Return the record of a kernel's default schedule: the bundled schedule if it was measured, else the rules'
    choice.

    None if neither was measured.
    """
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
    """Choose a record for each measured kernel, so that the network takes the fewest ticks.

    Kernels without measurements use their default schedule. ``minimise_flash``: minimise flash instead of ticks.
    ``flash_growth``: number of bytes by which code and constants may grow (None: unlimited). ``workspace_bytes``: as in
    :func:`kernel_pareto_fronts`. ``excluded_records``: records that must not be chosen.
    """
    known = _find_comparable_schedules(tasks, database, board, workspace_bytes)
    measured = {
        key: [
            default,
            *_select_pareto_records_per_algorithm([record for record in others if record not in excluded_records]),
        ]
        for key, (default, others) in known.items()
    }
    # Kernels with the same default schedule share its code, so the size of a kernel's code depends on the choice for the others.
    # Therefore such a group of kernels is one item of the knapsack.
    groups = _group_by_default_function([task for task in tasks if task.key in measured])
    alternatives = [_list_record_combinations(group, [measured[task.key] for task in group]) for group in groups]
    options = [
        [
            _make_knapsack_option_of_group(group, number, alternative)
            for number, alternative in enumerate(group_alternatives)
        ]
        for group, group_alternatives in zip(groups, alternatives, strict=True)
    ]
    # The first alternative of a group are its default schedules. The growth is relative to them.
    limit = (
        None
        if flash_growth is None
        else flash_growth + sum(group_alternatives[0].flash for group_alternatives in options)
    )
    points = pareto_front([_remove_dominated_options(group_alternatives) for group_alternatives in options], limit)
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
    """Group the kernels that share a C function if they use their default schedules."""
    groups: dict[object, list[Task]] = {}
    for task in tasks:
        first = task.untuned[0]
        function = task.functions[task.algorithms[first.number]]
        groups.setdefault((function, first.choice.schedule.trace), []).append(task)
    return list(groups.values())


def _list_record_combinations(
    group: Sequence[Task], measured_records: Sequence[Sequence[Record]]
) -> list[tuple[Record, ...]]:
    """Return the combinations of records that the kernels of a group may use. The first consists of the default
    schedules.

    If there are more than :data:`MAX_GROUP_COMBINATIONS` combinations, only two kinds are returned: those in which all
    kernels use the same schedule if they have it, and those in which only one kernel does not use its default.
    """
    default = tuple(records[0] for records in measured_records)
    if math.prod(map(len, measured_records)) <= MAX_GROUP_COMBINATIONS:
        return list(product(*measured_records))
    by_trace = [{(record.algorithm, record.trace): record for record in records} for records in measured_records]
    uniform = [
        tuple(
            kernel_records.get(trace, records[0])
            for kernel_records, records in zip(by_trace, measured_records, strict=True)
        )
        for trace in by_trace[0]
    ]
    single = [
        (*default[:index], record, *default[index + 1 :])
        for index, records in enumerate(measured_records)
        for record in records[1:]
    ]
    return list(dict.fromkeys((default, *uniform, *single)))


def _make_knapsack_option_of_group(
    group: Sequence[Task], combination_index: int, records: Sequence[Record]
) -> LayerOption:
    """Return the option of the knapsack for a combination of records of a group: its index, its ticks and its bytes of
    flash.

    Layers with equal functions share code but not constants.
    """
    code: dict[object, int] = {}
    for task, record in zip(group, records, strict=True):
        function = task.functions.get(record.algorithm, task.key), record.trace
        code[function] = max(code.get(function, 0), record.code)
    constants = sum(len(task.layers) * record.constants for task, record in zip(group, records, strict=True))
    ticks = sum(task.runs * record.ticks for task, record in zip(group, records, strict=True))
    return LayerOption(combination_index, ticks, round(sum(code.values()) + constants), 0)


def _remove_dominated_options(options: Sequence[LayerOption]) -> list[LayerOption]:
    """Return the options of a group to which no other option is superior in ticks and flash."""
    return [options[point.picks[0]] for point in pareto_front([options])]


def select_comparable_records(records: Sequence[Record], board: str) -> list[Record]:
    """Return records that can be compared: those of one board, unit of time and toolchain, and only the newest of each
    schedule.

    Records of ``board`` are preferred.
    """
    groups: dict[Origin, dict[object, Record]] = {}
    for record in records:
        groups.setdefault(record.origin, {})[record.algorithm, record.trace] = record
    best = max(groups, key=lambda origin: (origin.board == board, len(groups[origin])), default=None)
    return list(groups[best].values()) if best is not None else []
