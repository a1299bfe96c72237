"""Functions of a user's own, without a network around them: a PrimFunc or a schedule becomes a library or a program.

``microc.build(func)`` compiles the loops as they are; :func:`default_schedule` makes those that the compiler's rules choose.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, overload

from microc import __version__
from microc.codegen.c.source import shared_files
from microc.compiler import option_values, validation
from microc.compiler.api import Program
from microc.compiler.fit.footprint import check_modules
from microc.compiler.single_function import function_module, verified
from microc.compiler.sizes.open_functions import at_sizes, sized_module
from microc.device.boards import load_board
from microc.device.toolchain import NATIVE, PORTABLE, library_core, machine_flags
from microc.errors import ScheduleError, UsageError
from microc.module import Module
from microc.run import board_project
from microc.run.board_project import BuildResult, Project
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.run.desktop.opencl_device import OpenCLFunction
from microc.schedule.choose import choose
from microc.schedule.rules import as_written, candidates
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Board, Goal, Target, target_for
from microc.tir import ir

Function = ir.PrimFunc | Schedule
Named = Mapping[str, Any] | None
"""Data of constants, or bounds of sizes."""
OPENCL = "opencl"
"""What is no core: an accelerator behind a driver."""
_GOALS: Mapping[str, Goal] = {"speed": SPEED, "size": SIZE}
"""In between lies a price of flash, which a whole network sets."""

_OPERATORS = ("", "dense", "matmul")
"""Rules are told of an operator: a function of a user's own is tried as one of a kind, as layers and as products of data."""


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
    """Compile functions: ``what`` is a PrimFunc (``te.create_prim_func``, ``tir.from_text``), a :class:`Schedule`, or several of
    them, which become a dictionary by their names. A project that was written (its folder, or what ``microc.open_project``
    gives) becomes a firmware.

    Without ``board`` the result is called with numpy arrays: parameters that the function stores to are its outputs, the others
    its inputs, in their order. With ``board`` it is a :class:`Program`, whose project runs it as any network
    (:func:`microc.bundle` puts several into one firmware). Parameters of scope ``const`` are weights: ``constants`` has their
    data by name, as the function without a schedule reads them. ``target``: ``host``, or the core whose intrinsics may be called;
    its instructions are used where this computer has them, else they are portable C; ``opencl``: an accelerator, for loops that
    are bound to its groups and items (:meth:`Schedule.bind`), which gives an :class:`OpenCLFunction`. ``threads`` share large
    loops of a library, as in :func:`microc.compile`, with the same results for any number.

    ``bounds``: sizes that are told when it runs, by name, as ``microc.compile`` takes them; for a PrimFunc of symbolic extents,
    or a Python function ``(n, m) -> PrimFunc or Schedule``, which is called at several sizes and makes the same loops at all.

    Raises ProgramError where a function makes no sense, UsageError for constants that are missing or do not fit and sizes that no
    input tells, UnsupportedError for loops that differ from size to size by no rule.
    """
    if isinstance(what, (str, os.PathLike)):
        what = board_project.open_project(validation.path("a project", what))
    if isinstance(what, Project):
        return board_project.build(what)
    if isinstance(what, Sequence):
        if len({_name(each) for each in what}) < len(what):
            raise UsageError("two of the functions have one name", hint="schedule.renamed(name) gives another")
        one: Any = build
        given: dict[str, Any] = {"board": board, "constants": constants, "bounds": bounds, "threads": threads}
        return {_name(each): one(each, target, **given) for each in what}
    if target == OPENCL and board is None:
        if bounds or threads != 1:
            raise UsageError(
                "an accelerator's kernels have fixed sizes and no threads", hint="leave out bounds and threads"
            )
        return OpenCLFunction(_schedule(what), constants or {})
    count = option_values.threads("threads", threads)
    if count > 1 and (bounds or board is not None):
        raise UsageError(
            "threads are for libraries of functions whose sizes are fixed",
            hint="leave out threads, or bounds and board",
        )
    if board is None:
        core = _core(target)
        module = _module(what, core, constants or {}, bounds, count)
        return build_library(shared_files(module, __version__), *machine_flags(core.core.machine))
    found = board if isinstance(board, Board) else load_board(validation.path("a board", board))
    program = Program(_module(what, found.target, constants or {}, bounds), found)
    check_modules((program.module,), found)
    return program


def default_schedule(func: ir.PrimFunc, target: str = "host", *, optimize: str = "speed") -> Schedule:
    """What the rules of the compiler make of ``func``, a function that no operator stands behind, the best by the cost model.

    Blocks that are called as those of operators (``acc``: the reduction, ``out``: the elementwise work behind it, ``patch``: rows
    of im2col) are treated as those are. ``target``: a core; ``optimize``: the goal, ``speed``, ``size`` or ``balanced``. Raises
    UsageError for a core or a goal that there is not, and ProgramError for a function that makes no sense.
    """
    verified(func)
    core = _core(target)
    if optimize not in _GOALS:
        raise UsageError(f"optimize={optimize!r} is no goal", hint="one of: " + ", ".join(_GOALS))
    found = [as_written(func, core)]
    for op in _OPERATORS:
        with suppress(ScheduleError):  # a rule that wants blocks of other names
            found += candidates(func, op, core, _GOALS[optimize])
    return choose(found, core, _GOALS[optimize]).schedule


def _core(target: str) -> Target:
    """A core by its name; ``host`` and ``portable`` are this computer without its vectors, ``native`` is it with them."""
    name = validation.text("a target", target)
    return library_core(name) if name in (NATIVE, PORTABLE) else target_for(name)


def _module(what: Any, target: Target, constants: Mapping[str, Any], bounds: Named, threads: int = 1) -> Module:
    if not bounds:
        return function_module(_schedule(what), target, constants, threads)
    if not isinstance(what, ir.PrimFunc) and not callable(what):
        raise UsageError(
            f"{type(what).__name__} has no sizes that vary",
            hint="bounds are for a PrimFunc of symbolic extents, or for a function that makes a schedule for sizes",
        )
    checked = validation.by_name("bound", bounds, option_values.bound, every="")
    make = at_sizes(what, checked)
    return sized_module(lambda at: _schedule(make(at)), checked, target, constants)


def _schedule(what: object) -> Schedule:
    if isinstance(what, ir.PrimFunc):
        return Schedule(what).named("as written")
    if isinstance(what, Schedule):
        return what if what.rule else what.named("by hand")
    raise UsageError(
        f"{type(what).__name__} cannot be built",
        hint="a PrimFunc, a microc.Schedule, a list of them, or the folder of a project",
    )


def _name(what: Function) -> str:
    return _schedule(what).func.name
