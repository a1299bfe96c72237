"""A graph as kernels and calls, within a flash budget: for the goal that is asked for, or one that takes less."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.driver.compile.budget import flash_bytes, goals, least_flash, refusal
from microc.driver.compile.estimates import estimated
from microc.driver.compile.lower import build_module
from microc.driver.compile.maker import Compiled, External, Maker, Tuned, Workspaces
from microc.driver.compile.merge import merge_kernels
from microc.driver.options import Options
from microc.driver.progress import Progress
from microc.driver.stripes.kernel import LoweredStream
from microc.graph.ir import Graph
from microc.target import Goal, Target

if TYPE_CHECKING:  # imported for networks whose sizes vary
    from microc.driver.sizes.family import Family


def build_within_budget(
    graph: Graph,
    target: Target,
    source: str,
    options: Options,
    progress: Progress | None,
    room: int,
    family: Family | None = None,
    external: External = MappingProxyType({}),
) -> Compiled:
    """The module for the goal of the options; where that takes too much flash, the first smaller one that does not.

    ``family`` as in :func:`maker_of`, ``external`` as in :class:`Maker`.
    """
    limits = [limit for limit in (options.flash, room) if limit]
    for goal in goals(graph, options, target):
        make = maker_of(graph, target, goal, options, external=external, family=family)
        made = built(graph, target, source, progress, make)
        if all(flash_bytes(made.module) <= limit for limit in limits):
            return made
    if options.flash and least_flash(made.module) > options.flash:
        raise refusal(made.module, options.flash)
    return made


def maker_of(
    graph: Graph,
    target: Target,
    goal: Goal,
    options: Options,
    tuned: Tuned = MappingProxyType({}),
    external: External = MappingProxyType({}),
    family: Family | None = None,
    workspaces: Workspaces = MappingProxyType({}),
) -> Maker:
    """What makes the functions; ``family``: the graph at other sizes, where they vary; ``workspaces`` as in :class:`Maker`."""
    if family is not None:
        from microc.driver.sizes.general import GeneralMaker

        return GeneralMaker(family, target, goal)
    return Maker(graph, target, goal, options.threads, tuned, external, shipped=options.shipped, workspaces=workspaces)


def built(
    graph: Graph,
    target: Target,
    source: str,
    progress: Progress | None,
    make: Maker,
    streams: Sequence[LoweredStream] = (),
) -> Compiled:
    """The graph as kernels and calls, with what they cost."""
    module = build_module(graph, target, source, make.goal, progress, streams, make)
    alike = make.goal.price > 0 and not make.sizes
    return Compiled(estimated(merge_kernels(module) if alike else module, target), make)
