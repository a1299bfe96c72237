# SPDX-License-Identifier: Apache-2.0
"""Compile a single function of the user to a planned module with one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from microc.base.dtypes import Array
from microc.codegen.c.identifiers import network_name
from microc.compiler.lowering.graph_to_module import describe_loop_steps
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.lowering.kernel_selection import add_estimates
from microc.compiler.lowering.module_builder import (
    ModuleBuilder,
    declare_workspaces,
    firmware_fingerprint,
    register_kernel,
)
from microc.compiler.options import make_options
from microc.compiler.sizes.run_shapes import as_array
from microc.errors import InternalError, ProgramError, ScheduleError, UsageError
from microc.graph.ir import Graph, TensorType
from microc.module import Call, Kernel, Module
from microc.plan.plan import plan_module
from microc.schedule.choose import Choice
from microc.schedule.primitives.loops import keep_private_slices
from microc.schedule.rules.around_rules import split_across_threads
from microc.schedule.rules.rule import vectorize_unassigned_loops
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Target
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.lower import lower
from microc.tir.lower.work_groups import unbind_loops
from microc.tir.verify import constant_names, verify


def compile_function(schedule: Schedule, target: Target, constants: Mapping[str, Any], threads: int = 1) -> Module:
    """Compile the function of a schedule to a planned module.

    ``constants``: the data of constant parameters by name. ``threads``: the number of threads that share large loops.
    """
    try:
        ends = make_boundary_graph(schedule, constants)
    except ProgramError as error:
        if schedule.trace:
            steps = ", ".join(map(str, schedule.trace))
            hint = f"leave out one of the steps: {steps}"
            raise ScheduleError(
                f"schedule of {schedule.func.name}: its steps leave an invalid function: {error.what}",
                where=error.where,
                hint=hint,
            ) from error
        raise
    schedule = replace(schedule, func=keep_private_slices(schedule.func, f"function {schedule.func.name}"))
    schedule = vectorize_unassigned_loops(schedule, target)
    schedule = replace(schedule, func=unbind_loops(schedule.func))
    choice = split_across_threads(Choice(schedule, lower(schedule.func)), target, threads)
    return build_function_module(
        choice.schedule, choice.func, KernelBuilder(Configuration(ends, SPEED), target, threads)
    )


def build_function_module(schedule: Schedule, lowered_func: ir.PrimFunc, kernel_builder: KernelBuilder) -> Module:
    """Build and plan the module whose only kernel is ``lowered_func``.

    ``schedule``: the schedule from which ``lowered_func`` was lowered. ``kernel_builder``: its graph has the inputs,
    outputs and constants of the function.
    """
    graph, params = kernel_builder.graph, schedule.func.params
    builder = ModuleBuilder(graph, kernel_builder)
    for param in params:
        storage = "const" if param.scope == "const" else "input" if param.name in graph.inputs else "output"
        builder.declare_value(param.name, storage, graph.consts.get(param.name))
    name = register_kernel(
        builder,
        Kernel(lowered_func, (f"function {schedule.func.name}",)),
        schedule.func.name,
        tables=constant_names(lowered_func),
    )
    scratch = declare_workspaces(builder, builder.make_internal_name("work"), lowered_func.params[len(params) :])
    reads, writes = (tuple(map(builder.name_of, ends)) for ends in (graph.inputs, graph.outputs))
    args, trace = (*(builder.name_of(p.name) for p in params), *scratch), describe_loop_steps(schedule.trace)
    layer = schedule.func.name
    call = Call(name, args, reads, writes, scratch, layer=layer, op="function", schedule=trace, rule=schedule.rule)
    chosen = {
        **make_options().format_changed_options(),
        "optimize": "speed",
        "cpu": kernel_builder.target.cpu,
        "protocol": "rpc",
        "threads": str(kernel_builder.threads),
    }
    module = Module(
        graph.name,
        builder.values,
        tuple(builder.kernels.values()),
        (call,),
        reads,
        writes,
        source=layer,
        sizes=kernel_builder.sizes,
        options=chosen,
    )
    module = plan_module(add_estimates(module, kernel_builder.target))
    return replace(module, fingerprint=firmware_fingerprint(module, kernel_builder.target))


def make_boundary_graph(schedule: Schedule, constants: Mapping[str, Any]) -> Graph:
    """Make a graph without nodes that has the inputs, outputs and constants of a function.

    Constants are packed in the layout that the schedule requires. Raises ProgramError for an invalid function, and
    UsageError for constants that are missing or have the wrong shape or dtype.
    """
    func = schedule.func
    verify_function(func)
    stored = {buffer.name for buffer in buffers_written(func.body)}
    ends = [p.name for p in func.params if p.scope != "const"]
    inputs, outputs = (tuple(n for n in ends if (n in stored) == is_output) for is_output in (False, True))
    if not outputs:
        raise ProgramError(
            f"function {func.name} stores to no parameter, expected at least one output",
            hint="store to a parameter: the outputs are the parameters that the function stores to",
        )
    types = {p.name: TensorType(p.shape, p.dtype) for p in func.params}
    consts = _pack_constants(schedule, constants)
    verify_function(func, consts)
    return Graph(network_name(func.name), inputs, outputs, (), types, consts, {}, {})


def verify_function(func: ir.PrimFunc, constants: Mapping[str, Array] | None = None) -> None:
    """Raise ProgramError if the function is not valid TIR (:func:`microc.tir.verify.verify`).

    ``constants``: the data of constant parameters by name, if known. Indices that depend on input data are not checked:
    as in C, the caller must ensure that they are in range.
    """
    known = {n: (int(a.min()), int(a.max())) for n, a in (constants or {}).items() if a.dtype.kind in "iu" and a.size}
    try:
        verify(func, tables=constant_names(func) if constants is None else (), numbers=known)
    except ProgramError:
        raise
    except InternalError as error:
        raise ProgramError(error.what, where=error.where or f"function {func.name}", hint=error.hint) from error


def _pack_constants(schedule: Schedule, constant_data: Mapping[str, Any]) -> dict[str, Array]:
    """Pack the data of each constant parameter in the layout that the schedule requires. Return the arrays by name.

    Raises UsageError if data is missing, has the wrong shape or dtype, or belongs to no constant parameter.
    """
    params = [param for param in schedule.start.params if param.scope == "const"]
    for name in constant_data:
        if name not in {param.name for param in params}:
            known = ", ".join(param.name for param in params) or "none"
            raise UsageError(
                f"constants: the function has no constant {name!r}",
                hint=f"name one of its parameters of scope const: {known}",
            )
    packed = {}
    for param in params:
        if param.name not in constant_data:
            raise UsageError(
                f"constant {param.name!r} has no data; got none, expected {param.dtype}{list(param.shape)}",
                hint=f"give constants={{{param.name!r}: array}}",
            )
        array = as_array(f"constant {param.name}", constant_data[param.name])
        if (array.shape, str(array.dtype)) != (param.shape, param.dtype):
            raise UsageError(
                f"constant {param.name!r}: got {array.dtype}{list(array.shape)}, "
                f"expected {param.dtype}{list(param.shape)}",
                hint="give the array with the shape and layout of the parameter in the unscheduled function; the shape "
                "cannot depend on dynamic sizes",
            )
        packed[param.name] = schedule.packed(param, array)
    return packed
