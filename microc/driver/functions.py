"""Functions of a user's own, without a network around them: a PrimFunc or a schedule becomes a library or a program.

``microc.build(func)`` compiles the loops as they are; :func:`default_schedule` makes those that the compiler's rules choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from microc import __version__
from microc.codegen.names import network_name
from microc.codegen.network import shared_files
from microc.device.boards import load_board
from microc.driver import accepted
from microc.driver.api import Program
from microc.driver.compile.builder import Builder, register, workspaces
from microc.driver.compile.comments import describe
from microc.driver.compile.estimates import estimated
from microc.driver.compile.fit import check_modules
from microc.driver.compile.maker import Maker
from microc.driver.compile.pipeline import fingerprint
from microc.driver.desktop.library import Library
from microc.driver.desktop.load import build_library
from microc.driver.measure import firmware
from microc.driver.measure.firmware import BuildResult, Project
from microc.driver.options import make_options
from microc.driver.sizes.shapes import as_array
from microc.dtypes import Array
from microc.errors import InternalError, ProgramError, ScheduleError, UsageError
from microc.graph.ir import Graph, TensorType
from microc.module import Call, Kernel, Module
from microc.plan.plan import plan_module
from microc.schedule.choose import choose
from microc.schedule.rules import as_written, candidates
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Board, Goal, Target, target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.rewrite import buffers_written
from microc.tir.verify import verify

Function = ir.PrimFunc | Schedule
_GOALS: Mapping[str, Goal] = {"speed": SPEED, "size": SIZE}
"""In between lies a price of flash, which a whole network sets."""

_OPERATORS = ("", "dense", "matmul")
"""Rules are told of an operator: a function of a user's own is tried as one of a kind, as layers and as products of data."""


@overload
def build(what: Project) -> BuildResult: ...
@overload
def build(what: Function, target: str = "host", *, constants: Mapping[str, Any] | None = None) -> Library: ...
@overload
def build(what: Function, *, board: str | Path | Board, constants: Mapping[str, Any] | None = None) -> Program: ...
@overload
def build(
    what: Sequence[Function], target: str = "host", *, constants: Mapping[str, Any] | None = None
) -> dict[str, Library]: ...
@overload
def build(
    what: Sequence[Function], *, board: str | Path | Board, constants: Mapping[str, Any] | None = None
) -> dict[str, Program]: ...
def build(
    what: Any,
    target: str = "host",
    *,
    board: str | Path | Board | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """Compile functions: a PrimFunc (``te.create_prim_func``, ``tir.from_text``), a :class:`Schedule`, or several of them, which
    become a dictionary by their names. A project that was written (``microc.open_project``) becomes a firmware.

    Without ``board`` the result is called with numpy arrays: parameters that the function stores to are its outputs, the others
    its inputs, in their order. With ``board`` it is a :class:`Program`, whose project runs it as any network
    (:func:`microc.bundle` puts several into one firmware). Parameters of scope ``const`` are weights: ``constants`` has their
    data by name, as the function without a schedule reads them. ``target``: ``host``, or the core whose intrinsics may be called.

    Raises ProgramError where a function makes no sense, UsageError for constants that are missing or do not fit.
    """
    if isinstance(what, Project):
        return firmware.build(what)
    if isinstance(what, Sequence) and not isinstance(what, str):
        if len({_name(each) for each in what}) < len(what):
            raise UsageError("two of the functions have one name", hint="schedule.renamed(name) gives another")
        one: Any = build
        return {_name(each): one(each, target, board=board, constants=constants) for each in what}
    schedule = _schedule(what)
    if board is None:
        module = function_module(schedule, target_for(accepted.text("a target", target)), constants or {})
        return build_library(shared_files(module, __version__))
    found = board if isinstance(board, Board) else load_board(accepted.path("a board", board))
    program = Program(function_module(schedule, found.target, constants or {}), found)
    check_modules((program.module,), found)
    return program


def default_schedule(func: ir.PrimFunc, target: str = "host", *, optimize: str = "speed") -> Schedule:
    """What the rules of the compiler make of a function that no operator stands behind, the best by the cost model.

    Blocks that are called as those of operators (``acc``: the reduction, ``out``: the elementwise work behind it, ``patch``: rows
    of im2col) are treated as those are.
    """
    _verified(func)
    core = target_for(accepted.text("a target", target))
    if optimize not in _GOALS:
        raise UsageError(f"optimize={optimize!r} is no goal", hint="one of: " + ", ".join(_GOALS))
    found = [as_written(func, core)]
    for op in _OPERATORS:
        with suppress(ScheduleError):  # a rule that wants blocks of other names
            found += candidates(func, op, core, _GOALS[optimize])
    return choose(found, core, _GOALS[optimize]).schedule


def function_module(schedule: Schedule, target: Target, constants: Mapping[str, Any]) -> Module:
    """A planned module whose only kernel is the schedule's function."""
    func = schedule.func
    _verified(func)
    lowered = lower(func)
    stored = {buffer.name for buffer in buffers_written(lowered.body)}
    storage = {p.name: _storage(p, stored) for p in func.params}
    kinds = {p.name: TensorType(p.shape, p.dtype) for p in func.params}
    ends = {kind: tuple(n for n, of in storage.items() if of == kind) for kind in ("input", "output")}
    if not ends["output"]:
        raise ProgramError(
            f"function {func.name} stores to no parameter", hint="its outputs are those that it stores to"
        )
    graph = Graph(network_name(func.name), ends["input"], ends["output"], (), kinds, {}, {}, {})
    builder = Builder(graph, Maker(graph, target, SPEED))
    data = _constants(schedule, storage, constants)
    for name, of in storage.items():
        builder.declare(name, of, data.get(name))
    kernel = register(builder, Kernel(lowered, (f"function {func.name}",)), func.name)
    scratch = workspaces(builder, builder.unique("work"), lowered.params[len(func.params) :])
    reads, writes = (tuple(map(builder.name_of, ends[kind])) for kind in ("input", "output"))
    args = (*(builder.name_of(p.name) for p in func.params), *scratch)
    trace = describe(schedule.trace)
    call = Call(
        kernel, args, reads, writes, scratch, layer=func.name, op="function", schedule=trace, rule=schedule.rule
    )
    chosen = {**make_options().chosen(), "optimize": "speed", "cpu": target.cpu, "protocol": "rpc"}
    module = Module(
        graph.name,
        builder.values,
        tuple(builder.kernels.values()),
        (call,),
        reads,
        writes,
        source=func.name,
        options=chosen,
    )
    module = plan_module(estimated(module, target))
    return replace(module, fingerprint=fingerprint(module, target))


def _schedule(what: object) -> Schedule:
    if isinstance(what, ir.PrimFunc):
        return Schedule(what).named("as written")
    if isinstance(what, Schedule):
        return what if what.rule else what.named("by hand")
    raise UsageError(
        f"{type(what).__name__} cannot be built",
        hint="a PrimFunc, a microc.Schedule, a list of them, or a project (microc.open_project)",
    )


def _name(what: Function) -> str:
    return _schedule(what).func.name


def _verified(func: ir.PrimFunc) -> None:
    """ProgramError where the function breaks a rule of TIR."""
    try:
        verify(func, trust_data=True)  # places that data say are the caller's business, as in C
    except ProgramError:
        raise
    except InternalError as error:
        raise ProgramError(error.what, where=error.where or f"function {func.name}", hint=error.hint) from error


def _storage(param: ir.Buffer, stored: set[str]) -> str:
    if param.scope == "const":
        return "const"
    return "output" if param.name in stored else "input"


def _constants(schedule: Schedule, storage: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Array]:
    """The data of every constant parameter, laid out as the schedule stores it."""
    wanted = [name for name, of in storage.items() if of == "const"]
    for name in given:
        if name not in wanted:
            known = ", ".join(wanted) or "none"
            raise UsageError(f"the function has no constant {name!r}", hint=f"its parameters of scope const: {known}")
    found = {}
    for param in schedule.start.params:
        if param.name not in wanted:
            continue
        if param.name not in given:
            raise UsageError(f"constant {param.name!r} has no data", hint=f"constants={{{param.name!r}: array}}")
        array = as_array(f"constant {param.name}", given[param.name])
        if (array.shape, str(array.dtype)) != (param.shape, param.dtype):
            raise UsageError(
                f"constant {param.name!r} is {param.dtype}{list(param.shape)}, given {array.dtype}{list(array.shape)}",
                hint="give it as the function reads it without a schedule",
            )
        found[param.name] = schedule.packed(param, array)
    return found
