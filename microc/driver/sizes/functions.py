"""Functions of a user's own whose sizes are told when they run: made at several, and generalised as kernels of networks are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from microc.driver.compile.function import ends_of, planned
from microc.driver.options import Bound
from microc.driver.sizes.dimensions import named_sizes
from microc.driver.sizes.family import Family, read_family
from microc.driver.sizes.general import GeneralMaker
from microc.errors import UnsupportedError, UsageError
from microc.graph.ir import Graph
from microc.module import Module
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Target
from microc.tir import ir
from microc.tir.fit import Point
from microc.tir.generalise import Unlike
from microc.tir.hide import lowered_alike
from microc.tir.lower import lower
from microc.tir.symbolic import specialize
from microc.tir.verify import constants_of

Make = Callable[[Mapping[str, int]], Schedule]
"""The function at some sizes, by label."""


def at_sizes(what: ir.PrimFunc | Callable[..., Any], bounds: Mapping[str, Bound]) -> Callable[[Mapping[str, int]], Any]:
    """What makes a function of symbolic extents at some sizes, or the Python function that does; UsageError where its sizes are
    not those of the bounds."""
    if isinstance(what, ir.PrimFunc):
        names = [scalar.name for scalar in what.scalars]
        if sorted(names) != sorted(bounds):
            known = ", ".join(names) or "none"
            raise UsageError(
                f"the sizes of {what.name} are {known}; bounds are for {', '.join(bounds)}", hint="bounds={'n': 1024}"
            )
        return partial(specialize, what)
    try:
        inspect.signature(what).bind(**dict.fromkeys(bounds, 1))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the function cannot be called with the sizes {', '.join(bounds)}: {error}",
            hint="bounds={'n': 1024} calls function(n=...)",
        ) from error
    return lambda at: what(**at)


def sized_module(make: Make, bounds: Mapping[str, Bound], target: Target, constants: Mapping[str, Any]) -> Module:
    """The module of a function for all sizes within bounds; ``constants`` as in :func:`microc.build`.

    UsageError or UnsupportedError where what is made at some sizes is not alike.
    """
    schedules: dict[Point, Schedule] = {}

    def read(at: Mapping[str, int]) -> Graph:
        point, schedule = tuple(at.values()), make(at)
        schedules[point] = schedule
        return ends_of(schedule, constants)

    family = read_family(named_sizes(bounds), read)
    _require_told(family)
    largest = schedules[tuple(size.maximum for size in family.sizes)]
    small = [Schedule(schedules[point].start) for point, _ in family.small]
    points = lowered_alike([schedules[point].func for point in family.points], lower)
    funcs = [*points, lower(largest.func), *(lower(schedule.func) for schedule in small)]
    graphs = [*family.graphs, family.largest, *(ends_of(schedule, constants) for schedule in small)]
    maker = GeneralMaker(family, target, SPEED)
    try:
        func = maker.generalised(funcs, [list(graph.consts.values()) for graph in graphs], constants_of(funcs[-1]))
    except Unlike as error:
        raise UnsupportedError(
            f"function {largest.func.name} cannot have sizes that vary: {error}",
            hint="its loops must be alike at all sizes: split by what divides them, bounds={'n': microc.Bound(1024, step=8)}",
        ) from error
    return planned(largest, func, maker)


def _require_told(family: Family) -> None:
    """UsageError for a size that no input tells."""
    told = {extent for name in family.largest.inputs for extent in family.extents.get(name, ())}
    for size in family.sizes:
        if size.scalar not in told:
            raise UsageError(
                f"no input tells the size {size.label}",
                hint="give an input an axis of this extent: arrays tell the sizes",
            )
