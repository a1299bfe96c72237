# SPDX-License-Identifier: Apache-2.0
"""Build functions of the user, without a network: a PrimFunc or a schedule becomes a library, a program or a tuning task.

``microc.build(func)`` compiles the loops as they are. :func:`default_schedule` first applies the compiler's schedule
rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal, overload

from microc import __version__
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler import option_values, validation
from microc.compiler.api import Program
from microc.compiler.fit.search import compute_and_check_footprint
from microc.compiler.lowering.kernel_builder import TUNED_SUFFIX
from microc.compiler.lowering.kernel_selection import replay_on_group, tuning_key
from microc.compiler.single_function import (
    compile_function,
    compile_sized_function,
    make_boundary_graph,
    make_specialiser,
    verify_function,
)
from microc.compiler.tuned.measured_choice import select_comparable_records
from microc.compiler.tuned.records import OK, Database, DefaultSchedule, Task, open_records
from microc.device.boards import load_board
from microc.device.toolchain import NATIVE, PORTABLE, flags_if_machine_available, parse_library_target
from microc.errors import MicrocError, ScheduleError, UsageError
from microc.graph.ir import Graph, Node
from microc.module import Module
from microc.ops.lowering import LoweredGroup, Param
from microc.run import board_project
from microc.run.board_project import BuildResult, Project
from microc.run.desktop.library import Library
from microc.run.desktop.load import OpenCLFunction, build_library
from microc.run.engine import HostKernels
from microc.schedule.choose import Choice, choose_schedule
from microc.schedule.rules import candidate_schedules, schedule_as_written
from microc.schedule.rules.rule import vectorize_unassigned_loops
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Board, Goal, Target, target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.lower.work_groups import unbind_loops

Function = ir.PrimFunc | Schedule
Named = Mapping[str, Any] | None
"""Data of constants, or bounds of dynamic sizes, by name."""
OPENCL = "opencl"
"""Name of the target for an accelerator with an OpenCL driver. All other targets are names of CPU cores."""
_GOALS: Mapping[str, Goal] = {"speed": SPEED, "size": SIZE}
"""Optimisation goals of a single function. The goal ``balanced`` is missing, because it weighs instructions against
flash, and only a whole network defines the price of flash."""

_OPERATORS = ("", "dense", "matmul")
"""Names of operators for which the schedule rules are tried on a function: none, a layer with weights (dense), and a
product of two data tensors (matmul)."""


@overload
def build(what: Project | str | os.PathLike[str]) -> BuildResult: ...
@overload
def build(  # type: ignore[overload-overlap]
    what: Function, target: Literal["opencl"], *, constants: Named = None
) -> OpenCLFunction: ...
@overload
def build(
    what: Function | Callable[..., Function],
    target: str = "host",
    *,
    constants: Named = None,
    bounds: Named = None,
    threads: int = 1,
) -> Library: ...
@overload
def build(
    what: Function | Callable[..., Function],
    *,
    board: str | Path | Board,
    constants: Named = None,
    bounds: Named = None,
) -> Program: ...
@overload
def build(
    what: Sequence[Function], target: str = "host", *, constants: Named = None, threads: int = 1
) -> dict[str, Library]: ...
@overload
def build(what: Sequence[Function], *, board: str | Path | Board, constants: Named = None) -> dict[str, Program]: ...
def build(
    what: Any,
    target: str = "host",
    *,
    board: str | Path | Board | None = None,
    constants: Named = None,
    bounds: Named = None,
    threads: int = 1,
) -> Any:
    """Compile functions of the user.

    ``what``: a PrimFunc (``te.create_prim_func``, ``tir.from_text``), a :class:`Schedule`, or a sequence of them, for
    which the result is a dictionary by function name. A project that was written (its folder, or the result of
    ``microc.open_project``) is built as firmware.

    Without ``board`` the result is a library, which is called with numpy arrays. Its outputs are the parameters that
    the function stores to, its inputs the other parameters, in their order. With ``board`` the result is a
    :class:`Program`, whose project runs the function like a network. :func:`microc.bundle` combines several programs
    into one firmware.

    ``constants``: the data of the parameters of scope ``const`` (weights), by name, in the layout of the unscheduled
    function.

    ``target``: one of

    - ``host``: this computer
    - the name of the core whose intrinsics the function may call. If this computer lacks the instructions of that core,
      portable C is used instead.
    - ``opencl``: an accelerator. The loops must be bound to its groups and items (:meth:`Schedule.bind`), and the
      result is an :class:`OpenCLFunction`.

    ``threads``: the number of threads that share large loops of a library, as in :func:`microc.compile`. The results do
    not depend on it.

    ``bounds``: dynamic sizes by name, as ``microc.compile`` accepts them. ``what`` must then be a PrimFunc with
    symbolic extents, or a Python function ``(n, m) -> PrimFunc or Schedule``. The Python function is called at several
    sizes and must return the same loop structure at every size.

    Raises ProgramError for an invalid function, UsageError for constants that are missing or do not match and for sizes
    that no input determines, and UnsupportedError for loops whose dependence on the sizes follows no supported rule.
    """
    if isinstance(what, (str, os.PathLike)):
        what = board_project.open_project(validation.as_path("a project", what))
    if isinstance(what, Project):
        return board_project.build_project(what)
    if isinstance(what, Sequence):
        if len({_function_name(each) for each in what}) < len(what):
            raise UsageError(
                f"functions: two have the same name; got {', '.join(map(_function_name, what))}, expected unique names",
                hint="rename one of them: schedule.renamed(name)",
            )
        one: Any = build
        given: dict[str, Any] = {"board": board, "constants": constants, "bounds": bounds, "threads": threads}
        return {_function_name(each): one(each, target, **given) for each in what}
    if target == OPENCL and board is None:
        if bounds or threads != 1:
            raise UsageError(
                f"{'bounds' if bounds else 'threads'}: not possible with target {OPENCL}, "
                "whose kernels have fixed sizes and no threads",
                hint="leave out bounds and threads",
            )
        return OpenCLFunction(as_schedule(what), constants or {})
    count = option_values.check_thread_count("threads", threads)
    if count > 1 and (bounds or board is not None):
        raise UsageError(
            f"threads: got {count} threads with {'bounds' if bounds else f'board {board}'}, "
            "expected a library of functions with fixed sizes",
            hint="leave out threads, or bounds and board",
        )
    if board is None:
        core = _function_target(target)
        module = _compile_to_module(what, core, constants or {}, bounds, count)
        return build_library(shared_files(module, __version__), *flags_if_machine_available(core.core.machine))
    found = board if isinstance(board, Board) else load_board(validation.as_path("a board", board))
    program = Program(_compile_to_module(what, found.target, constants or {}, bounds), found)
    compute_and_check_footprint((program.module,), found)
    return program


def default_schedule(
    func: ir.PrimFunc, target: str = "host", *, optimize: str = "speed", tuned: str | Path | None = None
) -> Schedule:
    """Schedule ``func`` by the compiler's rules, and return the schedule that is best by the cost model or, with
    ``tuned``, by measurements.

    ``func`` belongs to no operator of a network. Blocks that have the names of blocks of operators (``acc``: the
    reduction, ``out``: its elementwise epilogue, ``patch``: im2col rows) are scheduled like those. ``target``: a core.
    ``optimize``: the goal, ``speed`` or ``size``. ``tuned``: a file of records that :func:`microc.tune` wrote for this
    function; without records of the core, the rules decide. Raises UsageError for an unknown core or goal or a missing
    file, and ProgramError for an invalid function.
    """
    verify_function(func)
    func = Schedule(func).func  # its loops and blocks have unique names, as in the records of a search
    core = _function_target(target)
    if optimize not in _GOALS:
        raise UsageError(
            f"optimize: got {optimize!r}, expected the optimisation goal of a single function",
            hint="choose one of: " + ", ".join(_GOALS),
        )
    goal = _GOALS[optimize]
    if tuned is not None:
        measured = choose_measured_schedule(func, core, goal, open_records(validation.as_path("tuned", tuned)))
        if measured is not None:
            return measured
    return schedule_by_rules(func, core, goal)


def schedule_by_rules(func: ir.PrimFunc, core: Target, goal: Goal) -> Schedule:
    """Return the schedule of a function of the user that is best by the cost model, for the goal speed or size."""
    schedules = [schedule_as_written(func, core)]
    for op in _OPERATORS:
        with suppress(ScheduleError):  # raised by rules that expect blocks with other names
            schedules += candidate_schedules(func, op, core, goal)
    return choose_schedule(schedules, core, goal).schedule


def _function_target(target: str) -> Target:
    """Return the target with the given name. ``host`` and ``portable``: this computer without vector instructions;
    ``native``: with them."""
    name = validation.as_text("a target", target)
    return parse_library_target(name) if name in (NATIVE, PORTABLE) else target_for(name)


def _compile_to_module(
    function: Any, target: Target, constants: Mapping[str, Any], bounds: Named, threads: int = 1
) -> Module:
    """Compile a function or schedule to a planned module. If ``bounds`` are given, the module works for all sizes
    within them."""
    if not bounds:
        return compile_function(as_schedule(function), target, constants, threads)
    symbolic = as_schedule(function) if isinstance(function, Function) else None
    if not callable(function) and (symbolic is None or not symbolic.func.scalars):
        raise UsageError(
            f"bounds: got a function of type {type(function).__name__}, which has no dynamic sizes",
            hint="leave out bounds, or give a PrimFunc with symbolic extents or a Python function of the sizes",
        )
    checked = validation.as_mapping_by_name("bound", bounds, option_values.validated_bound, default_key="")
    make = make_specialiser(symbolic or function, checked)
    return compile_sized_function(lambda at: as_schedule(make(at)), checked, target, constants)


def as_schedule(function: object) -> Schedule:
    """Convert a PrimFunc to a schedule without steps, or return a schedule. Both get a name for reports.

    Raises UsageError for any other value.
    """
    if isinstance(function, ir.PrimFunc):
        return Schedule(function).named("as written")
    if isinstance(function, Schedule):
        return function if function.rule else function.named("by hand")
    raise UsageError(
        f"{type(function).__name__} cannot be built",
        hint="give a PrimFunc, a microc.Schedule, a list of these, or the folder of a project",
    )


def _function_name(function: Function) -> str:
    """Return the name of a function, or of the function of a schedule."""
    return as_schedule(function).func.name


# ---- Tuning of the user's functions: a PrimFunc or a schedule as a tuning task, and its measured schedule.


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
