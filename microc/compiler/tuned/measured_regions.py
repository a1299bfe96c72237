# SPDX-License-Identifier: Apache-2.0
"""Measurements of external code: tasks to measure regions, microc's own code for a region, and the verdict of the
records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.project.firmware import optimisation_options
from microc.compiler.lowering.control_flow import LoweredControl, goal_per_iteration, lower_control_flow
from microc.compiler.lowering.kernel_builder import TUNED_SUFFIX, Tuned, TunedSchedule
from microc.compiler.lowering.kernel_selection import (
    group_algorithms,
    replay_on_algorithm,
    select_group_schedule,
    tuning_key,
    with_16_bit_constants,
)
from microc.compiler.tuned.records import (
    NAME,
    OK,
    UNBUILT,
    WRONG,
    Database,
    Record,
    Task,
    group_by_origin,
    make_part_graph,
)
from microc.errors import MicrocError, ScheduleError
from microc.external.backend import ClaimedRegion
from microc.graph.ir import Graph, Node
from microc.module import Sources
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice, constant_bytes
from microc.schedule.primitives.tree import Step
from microc.schedule.rules.rule import THREADS
from microc.target import Goal, Target

# ---- A region that a backend can compute, measured with the backend's code and with microc's own code.
#
# microc's own code is one function with all kernels of the region, as in the comparison by cost. It may use schedules that were
# measured for these kernels. Its trace contains the schedule steps of all kernels. The steps of each kernel follow a step
# :data:`KERNEL` with the names of algorithm and rule, so that a record describes the whole function.

KERNEL = "kernel"
"""Primitive of the step that precedes the schedule steps of a kernel in the trace of a region."""
OURS = "ours"
"""Name of the algorithm in records of microc's own code for a region."""
PickSchedule = Callable[[Sequence[LoweredGroup], Goal, bool], tuple[int, Choice]]
"""Function that chooses the schedule of a kernel; it returns the index of its algorithm, and the choice. Its last
argument is False inside of loops, where no records apply."""


@frozen
class OwnCode:
    """microc's own code for a region that a backend can compute.

    ``trace``: the schedule steps of its kernels. ``rule``: the rules of these schedules, as text. ``constants``: number
    of bytes. ``kernels``: the schedules of the kernels for which records may exist, by :func:`tuning_key`.
    """

    goal: Goal
    control: LoweredControl
    trace: tuple[Step, ...]
    rule: str
    constants: int
    kernels: Mapping[str, TunedSchedule]


@dataclass(frozen=True, eq=False)
class RegionTask(Task):
    """A task to measure a region of the graph that a backend can compute, with the backend's code and with microc's
    code.

    ``taken``: the region with the backend's code. ``open_sources``: returns the sources of the backend's code.
    ``ours``: microc's own code with the schedules that the rules choose, for the network's goal and then for other
    goals. ``lowered`` and ``untuned`` are empty, because the rules do not schedule the region as a whole.
    """

    taken: ClaimedRegion
    open_sources: Callable[[], Sources]
    ours: tuple[OwnCode, ...]

    @cached_property
    def sources(self) -> Sources:
        """The sources from which the backend's code is built."""
        return self.open_sources()

    @cached_property
    def key(self) -> str:
        """Key of the region's records: 40 hex digits that depend on the backend, the C code that it generates, its
        operands, the core, and the compiler options.

        The sources of the backend's library are not part of the key. :attr:`digest` identifies them.
        """
        taken, code = self.taken, self.taken.code
        types = [(type_.shape, type_.dtype) for type_ in (*taken.region.input_types, *taken.region.output_types)]
        data = [(name, array.shape, str(array.dtype)) for name, array in code.data.items()]
        options = optimisation_options(self.target, self.ours[0].goal.name)
        known = (
            (taken.backend.name, taken.entry.name, taken.backend.headers, code.functions),
            (code.lines, code.workspace, code.align, code.fails, types, data),
            (self.target.cpu, sorted(self.target.features - {THREADS}), options),
        )
        return hashlib.sha256(repr(known).encode()).hexdigest()[:40]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the sources of the backend's code. A linked library is identified by its name and
        version."""
        sources = self.sources
        known = hashlib.sha256(repr((sources.version, sources.include, sources.defines, sources.libraries)).encode())
        for path, data in sources.files.items():
            known.update(f"\n{path} {len(data)}\n".encode() + data)
        return known.hexdigest()[:16]

    @property
    def backend_and_pattern(self) -> str:
        """The names of the backend and of the pattern that matched the region."""
        return f"{self.taken.backend.name} {self.taken.entry.name}"


def make_region_task(
    graph: Graph, node: Node, claimed_region: ClaimedRegion, open_sources: Callable[[], Sources], goals: Sequence[Goal]
) -> RegionTask:
    """Create the task to measure a node of the operator ``external``.

    ``claimed_region``: the region with the backend's code. ``open_sources``: returns the sources of that code.
    ``goals``: the goal of the network, and other goals with the same compiler options.
    """
    target, layers = claimed_region.region.target, "+".join(inner.op for inner in claimed_region.region.graph.nodes)
    inputs = tuple(dict.fromkeys(name for name in node.inputs if name and name not in graph.consts))
    part = make_part_graph("region", graph, (node,), inputs, node.outputs)
    ours = tuple(build_own_code(part, node, target, goal) for goal in goals)
    return RegionTask(
        part, (str(claimed_region.region.root.loc),), layers, target, 1, (), (), claimed_region, open_sources, ours
    )


def build_own_code(
    graph: Graph, node: Node, target: Target, goal: Goal, tuned: Tuned = MappingProxyType({})
) -> OwnCode:
    """Build microc's own code for a region. ``tuned``: measured schedules of kernels.

    A kernel without a measured schedule, or whose measured schedule can no longer be applied, is scheduled by the
    rules.
    """

    def pick_schedule(
        lowered: Sequence[LoweredGroup], goal_inside: Goal, are_records_usable: bool
    ) -> tuple[int, Choice]:
        found = tuned.get(tuning_key(lowered, target)) if tuned and are_records_usable else None
        if found is not None:
            with suppress(MicrocError):
                return _replay_measured_schedule(lowered, found)
        return select_group_schedule(lowered, target, goal_inside)

    return _build_region_function(graph, node, target, goal, pick_schedule)


def replay_own_code(task: RegionTask, trace: Sequence[Step]) -> OwnCode:
    """Build microc's own code for a region from the trace of a record; MicrocError if the trace can no longer be
    applied."""
    kernels = list(_list_schedules_in_trace(trace))

    def pick_schedule(
        lowered: Sequence[LoweredGroup], goal_inside: Goal, are_records_usable: bool
    ) -> tuple[int, Choice]:
        if not kernels:
            raise ScheduleError("record: the trace schedules fewer kernels than the region has")
        return _replay_measured_schedule(lowered, kernels.pop(0))

    found = _build_region_function(task.graph, task.graph.nodes[0], task.target, task.ours[0].goal, pick_schedule)
    if kernels:
        raise ScheduleError(f"record: the trace schedules {len(kernels)} kernels more than the region has")
    return found


def best_own_code(task: RegionTask, records: Callable[[str], Sequence[Record]]) -> OwnCode:
    """Build microc's own code for a region with the fastest measured schedules of its kernels.

    ``records``: returns the records of a kernel on one board, given its key. Unless the goal is speed, a schedule must
    not need more flash than the default schedule. A kernel without a faster schedule is scheduled by the rules.
    """
    ours = task.ours[0]
    faster: dict[str, TunedSchedule] = {}
    for key, default in ours.kernels.items():
        good = [record for record in records(key) if record.status == OK]
        default_record = next((r for r in good if (r.algorithm, r.trace) == (default.algorithm, default.trace)), None)
        if default_record is None:
            continue
        flash = float("inf") if ours.goal.price == 0 else default_record.flash
        best = min((r for r in good if r.flash <= flash), key=lambda record: record.ticks)
        if best.ticks < default_record.ticks:
            faster[key] = best.schedule
    return build_own_code(task.graph, task.graph.nodes[0], task.target, ours.goal, faster) if faster else ours


def _build_region_function(
    graph: Graph, node: Node, target: Target, goal: Goal, pick_schedule: PickSchedule
) -> OwnCode:
    """Build microc's own code for a region. ``pick_schedule``: chooses the schedule of each kernel."""
    steps: list[Step] = []
    rules: dict[str, None] = {}
    kernels: dict[str, TunedSchedule] = {}
    annotations: dict[tuple[tuple[str, Any], ...], None] = {}
    constants = 0

    def schedule_and_record(inner: Graph, nodes: Sequence[Node], iterations: int) -> tuple[LoweredGroup, Choice]:
        nonlocal constants
        lowered, inside = group_algorithms(inner, nodes, target, NAME), goal_per_iteration(goal, iterations)
        own = inner is node.attr("body")
        number, choice = pick_schedule(lowered, inside, own)
        rule = choice.schedule.rule.removesuffix(TUNED_SUFFIX)
        tuned_schedule = TunedSchedule(lowered[number].algorithm, rule, choice.schedule.trace)
        steps.extend((Step(KERNEL, (tuned_schedule.algorithm, rule)), *tuned_schedule.trace))
        if own:
            kernels[tuning_key(lowered, target)] = tuned_schedule
        rules[rule or "as written"] = None
        choice = with_16_bit_constants(lowered[number], choice, target, inside)
        constants += constant_bytes(choice.schedule)
        annotations[choice.func.annotations] = None
        return lowered[number], choice

    control = lower_control_flow(graph, node, schedule_and_record, target)
    if len(annotations) == 1:  # C compiler options apply to a whole function, so all kernels must agree on them
        control = replace(control, func=replace(control.func, annotations=next(iter(annotations))))
    return OwnCode(goal, control, tuple(steps), " | ".join(rules), constants, kernels)


def _replay_measured_schedule(lowered: Sequence[LoweredGroup], schedule: TunedSchedule) -> tuple[int, Choice]:
    """Apply a measured schedule to a kernel; MicrocError if it can no longer be applied."""
    return replay_on_algorithm(lowered, schedule.algorithm, schedule.trace, schedule.rule + TUNED_SUFFIX)


def _list_schedules_in_trace(trace: Sequence[Step]) -> Iterator[TunedSchedule]:
    """Yield the schedule of each kernel in the trace of a region's record; MicrocError if the trace is malformed."""
    starts = [k for k, step in enumerate(trace) if step.primitive == KERNEL]
    if trace and starts[:1] != [0]:
        raise ScheduleError(f"record: the trace begins with step {trace[0]}, expected a step {KERNEL!r}")
    for start, end in zip(starts, [*starts[1:], len(trace)], strict=bool(starts)):
        match trace[start].args:
            case (str(algorithm), str(rule)):
                yield TunedSchedule(algorithm, rule, tuple(trace[start + 1 : end]))
            case _:
                raise ScheduleError(f"record: got kernel step {trace[start]}, expected its algorithm and its rule")


# ---- The verdict of the records on a region: whose code is faster, or why this is unknown.


@frozen
class RegionVerdict:
    """Result of measuring a region of the graph on ``board``, once with microc's code and once with a backend's code.

    ``own_ticks``: ticks of microc's fastest code that was measured. ``backend_ticks``: ticks of the backend's code.
    Both are None if the backend's code failed. ``why``: the reason for the failure. If ``board`` is empty, there is no valid
    measurement. In this case ``why`` may contain the reason.
    """

    own_ticks: float | None = None
    backend_ticks: float | None = None
    unit: str = ""
    board: str = ""
    why: str = ""

    @property
    def is_decisive(self) -> bool:
        """True if there is a valid measurement, so that the verdict decides whose code is used."""
        return bool(self.board)

    @property
    def is_backend_faster(self) -> bool:
        return self.own_ticks is not None and self.backend_ticks is not None and self.backend_ticks < self.own_ticks

    @property
    def description(self) -> str:
        """The verdict as text: the ticks of microc's and of the backend's code, or the reason why there are none."""
        if self.own_ticks is None or self.backend_ticks is None:
            return self.why
        return f"measured: ours {self.own_ticks:,.0f}, theirs {self.backend_ticks:,.0f} {self.unit}"


def judge_region(task: RegionTask, database: Database, board: str) -> RegionVerdict:
    """Judge by tuning records whose code is faster for a region: the backend's or microc's own.

    - Records of ``board`` are preferred. Then those of other boards with the same core are used, the board, unit of
      time and toolchain measured last first. Of equal measurements the newest counts.
    - microc's code is the rules' current choice, or a measured schedule that is faster. That schedule must still be
      applicable and, unless the goal is speed, must not need more flash.
    - The backend's code must have been built from the current sources of its library.
    """
    known = [record for record in database.records_of(task.key) if record.cpu == task.target.cpu]
    verdicts = [_judge_records(task, records) for records in group_by_origin(known, board)]
    return next((verdict for verdict in verdicts if verdict.is_decisive), verdicts[0] if verdicts else RegionVerdict())


def _judge_records(task: RegionTask, records: Sequence[Record]) -> RegionVerdict:
    """Judge by records that have the same board, unit of time and toolchain whose code is faster for a region."""
    whose = task.taken.backend.name
    theirs = next((r for r in reversed(records) if r.theirs == task.digest), None)
    if theirs is None:
        other = any(r.theirs for r in records)
        return RegionVerdict(why=f"measured with another version of {whose}: tune again" if other else "")
    if theirs.status == UNBUILT:
        return RegionVerdict(why=f"{whose} could not be built to be measured on {theirs.board}")
    if theirs.status != OK:
        what = "gave wrong results" if theirs.status == WRONG else "did not run to its end"
        return RegionVerdict(board=theirs.board, why=f"{whose} {what} when it was measured on {theirs.board}")
    ours = _find_fastest_own_record(task, [r for r in records if r.status == OK and not r.theirs])
    if ours is None:
        return RegionVerdict(why="measured beside other code of ours: tune again")
    return RegionVerdict(ours.ticks, theirs.ticks, theirs.unit, theirs.board)


def _find_fastest_own_record(task: RegionTask, records: Iterable[Record]) -> Record | None:
    """Return the fastest record of microc's code for a region whose trace can still be applied.

    None if the schedules that the rules choose were not measured.
    """
    newest = {record.trace: record for record in records}
    default = newest.get(task.ours[0].trace)
    if default is None:
        return None
    fast = [r for r in newest.values() if task.ours[0].goal.price == 0 or r.flash <= default.flash]
    return next(r for r in sorted(fast, key=lambda r: r.ticks) if r is default or _can_replay_region(task, r))


def _can_replay_region(task: RegionTask, record: Record) -> bool:
    """Test whether the trace of a record can still be applied to a region."""
    try:
        replay_own_code(task, record.trace)
    except MicrocError:
        return False
    return True
