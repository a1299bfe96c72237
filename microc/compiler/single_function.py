# SPDX-License-Identifier: Apache-2.0
"""Functions of the user as planned modules of one kernel, and the dynamic sizes of functions and models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from microc.base.dtypes import Array
from microc.codegen.c.identifiers import is_free_identifier, network_name
from microc.compiler.lowering.graph_to_module import describe_loop_steps
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.lowering.kernel_selection import add_estimates
from microc.compiler.lowering.module_builder import (
    ModuleBuilder,
    declare_workspaces,
    firmware_fingerprint,
    register_kernel,
)
from microc.compiler.model import read_model
from microc.compiler.options import Bound, Options, make_options
from microc.compiler.sizes.family import NetworkFamily, read_family
from microc.compiler.sizes.general import DirectFunction, GeneralKernelBuilder, WrongAtSomeSize, as_array
from microc.errors import InternalError, ProgramError, ScheduleError, UnsupportedError, UsageError
from microc.frontend.detect import SymbolicShape, read_symbolic_input_shapes
from microc.graph.ir import Graph, TensorType
from microc.isa import SCALAR
from microc.module import Call, Kernel, Module, Size
from microc.plan.plan import plan_module
from microc.schedule.choose import Choice
from microc.schedule.primitives.loops import keep_private_slices
from microc.schedule.rules.around_rules import split_across_threads
from microc.schedule.rules.rule import vectorize_unassigned_loops
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Target
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.extents import DependsOnSize, declare_sizes_in_texts
from microc.tir.lower import lower
from microc.tir.lower.work_groups import unbind_loops
from microc.tir.operators import FUNCTIONS
from microc.tir.rewrite import accesses_of, children, stmt_children, walk_all_exprs
from microc.tir.symbolic import require_constant_sizes, require_function, specialize
from microc.tir.verify import constant_names, verify

# ---- Compile a single function of the user to a planned module with one kernel.


def compile_function(schedule: Schedule, target: Target, constants: Mapping[str, Any], threads: int = 1) -> Module:
    """Compile the function of a schedule to a planned module.

    ``constants``: the data of constant parameters by name. ``threads``: the number of threads that share large loops.
    """
    require_constant_sizes(schedule.func)
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
    schedule = _keep_private_slices(schedule)
    schedule = vectorize_unassigned_loops(schedule, target)
    schedule = replace(schedule, func=unbind_loops(schedule.func))
    choice = split_across_threads(Choice(schedule, lower(schedule.func)), target, threads)
    return build_function_module(
        choice.schedule, choice.func, KernelBuilder(Configuration(ends, SPEED), target, threads)
    )


def _keep_private_slices(schedule: Schedule) -> Schedule:
    """Return a schedule in which parallel loops, also those of the text, keep the slices of their workspaces.

    Raises ScheduleError if their iterations would share a workspace."""
    return replace(schedule, func=keep_private_slices(schedule.func, f"function {schedule.func.name}"))


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

    Constants are packed in the layout that the schedule requires. Raises ProgramError for an invalid function,
    ScheduleError for blocks in a wrong order, and UsageError for constants that are missing or have the wrong shape or
    dtype.
    """
    func = schedule.func
    verify_function(func)
    schedule.check_order()
    stored = {buffer.name for buffer in buffers_written(func.body)}
    ends = [p.name for p in func.params if p.scope != "const"]
    inputs, outputs = (tuple(n for n in ends if (n in stored) == is_output) for is_output in (False, True))
    if not outputs:
        raise ProgramError(
            f"function {func.name} stores to no parameter, expected at least one output",
            hint="store to a parameter: the outputs are the parameters that the function stores to",
        )
    for param in func.params:
        if param.name in outputs and _reads_first(func.body, param):
            raise ProgramError(
                f"function {func.name} reads parameter {param.name} before it stores to it; outputs hold nothing at the start",
                hint=f"read what was there from a parameter of its own, and store to {param.name}, as in B[i] = A[i] + 1",
            )
    types = {p.name: TensorType(p.shape, p.dtype) for p in func.params}
    consts = _pack_constants(schedule, constants)
    verify_function(func, consts)
    return Graph(network_name(func.name), inputs, outputs, (), types, consts, {}, {})


def _reads_first(stmt: ir.Stmt, buffer: ir.Buffer) -> bool | None:
    """Test whether the first access of a statement to a buffer is a load that always runs; None if it has no access.

    A load under a condition may only run behind a store, as in running sums."""
    match stmt:
        case ir.Store(target, indices, value):
            found = _loads_first((*indices, value), buffer)
            return False if found is None and target == buffer else found
        case ir.Evaluate(value):
            return _loads_first((value,), buffer)
        case ir.If(condition, then, otherwise):
            found = _loads_first((condition,), buffer)
            branches = [_reads_first(then, buffer), _reads_first(otherwise, buffer) if otherwise else None]
            return found if found is not None or branches == [None, None] else all(branches)
        case ir.For(_, extent, body):
            found = _loads_first((extent,), buffer)
            return _reads_first(body, buffer) if found is None else found
        case ir.Let(_, value, body):
            found = _loads_first((value,), buffer)
            return _reads_first(body, buffer) if found is None else found
        case _:
            return next((r for s in stmt_children(stmt) if (r := _reads_first(s, buffer)) is not None), None)


def _loads_first(exprs: Sequence[ir.Expr], buffer: ir.Buffer) -> bool | None:
    """Test whether expressions always load from a buffer; None if they do not access it.

    False if they may load, or if a call writes to it."""
    accesses = [access for expr in exprs for access in accesses_of(expr) if access.buffer == buffer]
    if not accesses or any(isinstance(access, ir.AddressOf) for access in accesses):
        return False if accesses else None
    pending = list(exprs)
    while pending:
        expr = pending.pop()
        if isinstance(expr, ir.Load) and expr.buffer == buffer:
            return True
        is_lazy = isinstance(expr, ir.Select) or (isinstance(expr, ir.Bin) and expr.op in ir.LOGICAL)
        pending += children(expr)[:1] if is_lazy else children(expr)
    return False


def verify_function(func: ir.PrimFunc, constants: Mapping[str, Array] | None = None) -> None:
    """Raise ProgramError if the function is not valid TIR (:func:`microc.tir.verify.verify`).

    ``constants``: the data of constant parameters by name, if known. Indices that depend on input data are not checked:
    as in C, the caller must ensure that they are in range.
    """
    require_function(func)
    known = {n: (int(a.min()), int(a.max())) for n, a in (constants or {}).items() if a.dtype.kind in "iu" and a.size}
    try:
        verify(func, tables=constant_names(func) if constants is None else (), numbers=known)
    except ProgramError:
        raise
    except InternalError as error:
        raise ProgramError(error.what, where=error.where or f"function {func.name}", hint=error.hint) from error
    for called in {expr.name for expr in walk_all_exprs(func.body) if isinstance(expr, ir.Call)}:
        if called not in FUNCTIONS and called not in SCALAR and called != ir.REINTERPRET:
            raise ProgramError(
                f"there is no function T.{called}",
                where=f"function {func.name}",
                hint="write what it computes as TIR, or declare it with its meaning as microc.plugin.extern",
            )


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


# ---- Symbolic dimensions of a model for which the options specify bounds.

BATCH = "batch"
"""Label of the first axes of all inputs, if they are symbolic and the model does not name them."""
_MAX_NAME_LENGTH = 32
"""Maximum length in characters of the C name of a size."""
ReadGraph = Callable[[Mapping[str, int]], Graph]


def open_dynamic_sizes(source: Path | Graph, options: Options) -> tuple[tuple[Size, ...], ReadGraph]:
    """List the dynamic sizes of a model. Return them, and a function that reads the model at given sizes (by label).

    The dynamic sizes are the symbolic dimensions with a bound in the options. Raises UsageError if a bound is not for a
    symbolic dimension of the model. The error lists the model's symbolic dimensions.
    """
    shapes = read_symbolic_input_shapes(source) if isinstance(source, Path) and source.is_file() else {}
    if BATCH in options.bounds and not any(BATCH in shape for shape in shapes.values()):
        shapes = {name: tuple(BATCH if e == f"{name}:0" else e for e in shape) for name, shape in shapes.items()}
    symbols = dict.fromkeys(extent for shape in shapes.values() for extent in shape if isinstance(extent, str))
    for label in options.bounds:
        if label not in symbols:
            known = ", ".join(symbols) or "it has none"
            raise UsageError(
                f"the model has no symbolic dimension {label!r}",
                where=str(source),
                hint=f"name one of its symbolic dimensions: {known}",
            )

    def read_graph_at_sizes(sizes_by_label: Mapping[str, int]) -> Graph:
        given = dict(options.input_shapes)
        for name, shape in shapes.items():
            if any(extent in sizes_by_label for extent in shape):
                given[name] = _input_shape_at(name, shape, sizes_by_label, options)
        return read_model(source, replace(options, input_shapes=given))

    return make_sizes_from_bounds(options.bounds), read_graph_at_sizes


def make_sizes_from_bounds(bounds: Mapping[str, Bound]) -> tuple[Size, ...]:
    """Create a dynamic size, with a C name, for every bound."""
    sizes: list[Size] = []
    for label, bound in bounds.items():
        name = _size_identifier(label, {size.name for size in sizes})
        sizes.append(Size(name, label, bound.minimum, bound.maximum // bound.step * bound.step, bound.step))
    return tuple(sizes)


def _input_shape_at(name: str, shape: SymbolicShape, sizes: Mapping[str, int], options: Options) -> tuple[int, ...]:
    """Return the shape of the input ``name`` at given sizes.

    A dimension without a bound has the extent that the options specify. If they specify none, it must be the first
    axis, whose extent is then 1.
    """
    given = options.input_shapes.get(name, options.input_shapes.get("*"))
    extents = []
    for axis, extent in enumerate(shape):
        if isinstance(extent, int):
            extents.append(extent)
        elif extent in sizes:
            extents.append(sizes[extent])
        elif given is not None and axis < len(given):
            extents.append(given[axis])
        elif axis == 0:
            extents.append(1)
        else:
            raise UsageError(
                f"dimension {extent!r} of input {name!r}: got neither a bound nor a size, expected one of them",
                hint=f"add --bound {extent}=64, or --input-shape {name}=...",
            )
    return tuple(extents)


def _size_identifier(label: str, taken_names: Collection[str]) -> str:
    """Return a unique C name for a size. It is a member of the struct of sizes; kernels use the name with the prefix
    ``size_``."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", label).strip("_").lower()[-_MAX_NAME_LENGTH:]
    name = name if name and not name[0].isdigit() else f"n_{name}"
    while name in taken_names or not is_free_identifier(name) or not is_free_identifier(f"size_{name}"):
        name += "_"
    return name


# ---- Functions of the user with dynamic sizes. They are made once, with extents that depend on the sizes, like the kernels of
# networks; at several sizes, their tensors' shapes are read.

_MAX_COMPARED_SIZES = 64
"""Maximum number of sizes, the largest of them, at which a function is compared because an answer about extents was wrong."""
ScheduleAt = Callable[[Mapping[str, int]], Schedule]
"""Function that returns the schedule of a user function at given sizes, by label."""


def make_specialiser(
    function: Schedule | Callable[..., Any], bounds: Mapping[str, Bound]
) -> Callable[[Mapping[str, int]], Any]:
    """Make a function that specialises ``function`` to given sizes, by label.

    ``function``: the schedule of a function with symbolic extents, or a Python function whose parameters are the sizes.
    Raises UsageError if its sizes differ from those in ``bounds``.
    """
    if isinstance(function, Schedule):
        scheduled, start = function.func, function.start
        names = [scalar.name for scalar in scheduled.scalars]
        if sorted(names) != sorted(bounds):
            known = ", ".join(names) or "none"
            raise UsageError(
                f"bounds of {scheduled.name}: got bounds for {', '.join(bounds)}, expected {known}",
                hint="give a bound for each size: bounds={'n': 1024}",
            )
        return lambda at: replace(function, func=specialize(scheduled, at), origin=specialize(start, at))
    try:
        inspect.signature(function).bind(**dict.fromkeys(bounds, 1))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the function cannot be called with the sizes {', '.join(bounds)}: {error}",
            hint="name the function's parameters: bounds={'n': 1024} calls function(n=...)",
        ) from error
    return lambda at: function(**at)


def compile_sized_function(
    make_schedule: ScheduleAt,
    bounds: Mapping[str, Bound],
    target: Target,
    constants: Mapping[str, Any],
) -> Module:
    """Compile a user function to a planned module that works for all sizes within ``bounds``.

    ``make_schedule``: returns the schedule of the function at given sizes. ``constants``: as in :func:`microc.build`.
    Raises UsageError or UnsupportedError if the structure of the function differs between sizes.
    """

    def schedule_at(sizes_by_label: Mapping[str, Any]) -> Schedule:
        return _keep_private_slices(make_schedule(sizes_by_label))

    family = read_family(make_sizes_from_bounds(bounds), lambda at: make_boundary_graph(schedule_at(at), constants))
    _require_sizes_of_inputs(family)
    largest = schedule_at({size.label: size.maximum for size in family.sizes})
    kernel_builder = GeneralKernelBuilder(family, target, SPEED)
    arrays = list(family.largest.consts.values())

    def list_direct_functions() -> Iterator[tuple[Mapping[str, int], DirectFunction]]:
        """Yield the unscheduled function and its constants at the smallest sizes, and where an answer about extents was wrong."""
        wrong = {**family.domain.exceptions, **family.domain.coincidences}
        for sizes in (*family.small, *(wrong[k] for k in sorted(wrong)[-_MAX_COMPARED_SIZES:])):
            at = make_schedule({size.label: sizes[size.scalar.name] for size in family.sizes}).start
            yield sizes, (lower(at), list(_pack_constants(Schedule(at), constants).values()))

    try:
        extents = {size: family.domain.extent_of(size.scalar) for size in family.sizes}
        with declare_sizes_in_texts({size.scalar.name: extent for size, extent in extents.items()}):
            symbolic = schedule_at({size.label: extent for size, extent in extents.items()})
        tables = constant_names(lower(largest.func))
        func = kernel_builder.write_and_compare(lower(symbolic.func), arrays, list_direct_functions(), tables)
    except (WrongAtSomeSize, DependsOnSize) as error:
        raise UnsupportedError(
            f"function {largest.func.name} does not support dynamic sizes: {error}",
            hint="compute numbers and choose steps in the same way for all sizes, for example for multiples of 8: "
            "bounds={'n': microc.Bound(1024, step=8)}",
        ) from error
    return build_function_module(largest, func, kernel_builder)


def _require_sizes_of_inputs(family: NetworkFamily) -> None:
    """Raise UsageError if a size is not an extent of any input, because a run determines the sizes from the inputs'
    shapes."""
    input_extents = {extent for name in family.largest.inputs for extent in family.extents.get(name, ())}
    for size in family.sizes:
        if size.scalar not in input_extents:
            raise UsageError(
                f"size {size.label!r}: got no input with an axis of this extent, expected at least one",
                hint="give an input an axis of this extent: a call derives the sizes from its arrays",
            )
