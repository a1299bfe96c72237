# SPDX-License-Identifier: Apache-2.0
"""Dynamic sizes of models and of user functions: symbolic dimensions that the application sets for every run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from microc.codegen.c.identifiers import is_free_identifier
from microc.compiler.model import read_model
from microc.compiler.options import Bound, Options
from microc.compiler.single_function import build_function_module, make_boundary_graph
from microc.compiler.sizes.family import NetworkFamily, read_family
from microc.compiler.sizes.general import GeneralKernelBuilder
from microc.errors import UnsupportedError, UsageError
from microc.frontend.detect import SymbolicShape, read_symbolic_input_shapes
from microc.graph.ir import Graph
from microc.module import Module, Size
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Target
from microc.tir import ir
from microc.tir.analysis.generalise import StructureMismatch, lower_with_hidden_sizes
from microc.tir.analysis.size_forms import Point
from microc.tir.lower import lower
from microc.tir.symbolic import specialize
from microc.tir.verify import constant_names

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


# ---- Functions of the user with dynamic sizes. They are built at several sizes and generalised, like the kernels of networks.

ScheduleAt = Callable[[Mapping[str, int]], Schedule]
"""Function that returns the schedule of a user function at given sizes, by label."""


def make_specialiser(
    function: ir.PrimFunc | Callable[..., Any], bounds: Mapping[str, Bound]
) -> Callable[[Mapping[str, int]], Any]:
    """Make a function that specialises ``function`` to given sizes, by label.

    ``function``: a PrimFunc with symbolic extents, or a Python function whose parameters are the sizes. Raises
    UsageError if its sizes differ from those in ``bounds``.
    """
    if isinstance(function, ir.PrimFunc):
        names = [scalar.name for scalar in function.scalars]
        if sorted(names) != sorted(bounds):
            known = ", ".join(names) or "none"
            raise UsageError(
                f"bounds of {function.name}: got bounds for {', '.join(bounds)}, expected {known}",
                hint="give a bound for each size: bounds={'n': 1024}",
            )
        return partial(specialize, function)
    try:
        inspect.signature(function).bind(**dict.fromkeys(bounds, 1))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the function cannot be called with the sizes {', '.join(bounds)}: {error}",
            hint="name the function's parameters: bounds={'n': 1024} calls function(n=...)",
        ) from error
    return lambda at: function(**at)


def compile_sized_function(
    make_schedule: ScheduleAt, bounds: Mapping[str, Bound], target: Target, constants: Mapping[str, Any]
) -> Module:
    """Compile a user function to a planned module that works for all sizes within ``bounds``.

    ``make_schedule``: returns the schedule of the function at given sizes. ``constants``: as in :func:`microc.build`.
    Raises UsageError or UnsupportedError if the structure of the function differs between sizes.
    """
    schedules: dict[Point, Schedule] = {}

    def read_graph_at_sizes(sizes_by_label: Mapping[str, int]) -> Graph:
        point, schedule = tuple(sizes_by_label.values()), make_schedule(sizes_by_label)
        schedules[point] = schedule
        return make_boundary_graph(schedule, constants)

    family = read_family(make_sizes_from_bounds(bounds), read_graph_at_sizes)
    _require_sizes_of_inputs(family)
    largest = schedules[tuple(size.maximum for size in family.sizes)]
    small = [Schedule(schedules[point].start) for point, _ in family.small]
    points = lower_with_hidden_sizes([schedules[point].func for point in family.points], lower)
    funcs = [*points, lower(largest.func), *(lower(schedule.func) for schedule in small)]
    graphs = [*family.graphs, family.largest, *(make_boundary_graph(schedule, constants) for schedule in small)]
    kernel_builder = GeneralKernelBuilder(family, target, SPEED)
    try:
        func = kernel_builder.generalise_functions(
            funcs, [list(graph.consts.values()) for graph in graphs], constant_names(funcs[-1])
        )
    except StructureMismatch as error:
        raise UnsupportedError(
            f"function {largest.func.name} does not support dynamic sizes: {error}",
            hint="split loops by factors that divide all sizes: bounds={'n': microc.Bound(1024, step=8)}",
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
