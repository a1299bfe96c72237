# SPDX-License-Identifier: Apache-2.0
"""Tuning of the user's functions: a PrimFunc or a schedule as a tuning task, and its measured schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

from microc import __version__
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.lowering.kernel_builder import TUNED_SUFFIX
from microc.compiler.lowering.kernel_selection import replay_on_group, tuning_key
from microc.compiler.single_function import compile_function, make_boundary_graph
from microc.compiler.tuned.measured_choice import select_comparable_records
from microc.compiler.tuned.records import OK, Database, DefaultSchedule, Task
from microc.errors import MicrocError, UsageError
from microc.graph.ir import Graph, Node
from microc.ops.lowering import LoweredGroup, Param
from microc.run.desktop.load import build_library
from microc.run.engine import HostKernels
from microc.schedule.choose import Choice
from microc.schedule.rules.rule import vectorize_unassigned_loops
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Goal, Target, target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.lower.work_groups import unbind_loops

FUNCTION = "function"
"""Operator in records of functions of the user."""
BY_HAND = "by hand"
"""Goal of a default schedule that the user wrote."""


@dataclass(frozen=True, eq=False)
class FunctionTask(Task):
    """A task to tune a function of the user. It belongs to no operator, so that the function itself, compiled for this
    computer without any schedule, computes the outputs that candidates must have."""

    @cached_property
    def _unscheduled_kernels(self) -> HostKernels:
        (group,) = self.lowered
        module = compile_function(Schedule(group.func).named("as written"), target_for("host"), self.graph.consts)
        return HostKernels(build_library(shared_files(module, __version__)))

    def compute_outputs(self, arrays: Sequence[Array]) -> list[Array]:
        return list(self._unscheduled_kernels.infer(arrays).outputs)


def make_function_task(
    function: Schedule, target: Target, constants: Mapping[str, Any], rules_choices: Mapping[Goal, Schedule]
) -> FunctionTask:
    """Create the task to tune the function of a schedule.

    The schedule is the default candidate if it has steps. ``constants``: the data of constant parameters by name.
    ``rules_choices``: the schedules that the rules choose, by goal. Raises ProgramError for an invalid function, and
    UsageError for missing constants or parameters in another order than inputs before outputs."""
    graph = make_boundary_graph(Schedule(function.start), constants)
    group = _group_of_function(function.start, graph)
    by_hand = {BY_HAND: function} if function.trace else {}
    schedules = {**by_hand, **{goal.name: schedule for goal, schedule in rules_choices.items()}}
    untuned = tuple(DefaultSchedule(name, 0, _lower_for_core(s, target)) for name, s in schedules.items())
    return FunctionTask(graph, (function.func.name,), FUNCTION, target, 1, (group,), untuned)


def _lower_for_core(schedule: Schedule, target: Target) -> Choice:
    """Lower a schedule as :func:`microc.build` does."""
    schedule = vectorize_unassigned_loops(schedule, target)
    schedule = replace(schedule, func=unbind_loops(schedule.func))
    return Choice(schedule, lower(schedule.func))


def _group_of_function(func: ir.PrimFunc, graph: Graph) -> LoweredGroup:
    """Wrap a function as a lowered group. ``graph``: inputs, outputs and constants of the function."""
    names = [param.name for param in func.params]
    operands = tuple(name for name in names if name not in graph.outputs)
    if names != [*operands, *graph.outputs]:
        raise UsageError(
            f"function {func.name}: got parameters {', '.join(names)}, expected outputs ({', '.join(graph.outputs)}) last",
            hint="write the function with its outputs behind all other parameters",
        )
    params = tuple(Param(name, name, graph.consts.get(name)) for name in operands)
    return LoweredGroup(func, params, graph.outputs, (Node(FUNCTION, operands, graph.outputs),), 0, (), ())


def choose_measured_schedule(func: ir.PrimFunc, target: Target, goal: Goal, database: Database) -> Schedule | None:
    """Choose the schedule of a function from tuning records; None if there is none.

    For the goal speed the fastest is chosen, for size the one with the least flash. A record whose steps can no longer
    be applied is skipped."""
    assert goal in (SPEED, SIZE)
    group = LoweredGroup(func, (), (), (Node(FUNCTION, (), ()),), 0, (), ())
    known = [r for r in database.records_of(tuning_key((group,), target)) if r.status == OK and r.cpu == target.cpu]
    comparable = select_comparable_records(known, "")
    for record in sorted(comparable, key=lambda r: (r.flash if goal.price == inf else 0, r.ticks)):
        with suppress(MicrocError):
            return replay_on_group(group, record.trace, record.rule + TUNED_SUFFIX).schedule
    return None
