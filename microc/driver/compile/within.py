"""A graph as kernels and calls, within a flash budget: for the goal that is asked for, or one that takes less."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.driver.compile.budget import flash_bytes, goals, least_flash, refusal
from microc.driver.compile.estimates import estimated
from microc.driver.compile.goals import by_kernels
from microc.driver.compile.lower import build_module
from microc.driver.compile.maker import Compiled, External, Goals, Maker, Tuned, Workspaces
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
    """The module for the goal of the options; where that takes too much flash, the one that does not and takes the fewest
    instructions, of goals that weigh flash ever more: a goal for each kernel, or one for all where sizes vary.

    ``family`` as in :func:`maker_of`, ``external`` as in :class:`Maker`.
    """
    limits = [limit for limit in (options.flash, room) if limit]

    def build(goal: Goal, others: Goals = MappingProxyType({})) -> Compiled:
        make = maker_of(graph, target, goal, options, external=external, family=family, goals=others)
        return built(graph, target, source, progress, make)

    def fits(made: Compiled) -> bool:
        return all(flash_bytes(made.module) <= limit for limit in limits)

    first, *others = goals(graph, options, target)
    tried = [build(first)]
    if fits(tried[0]):
        return tried[0]
    tried += map(build, others)
    fitting = next((made for made in tried if fits(made)), None)
    if fitting is not None:
        return (by_kernels(tried, fitting, min(limits), build) if family is None else None) or fitting
    smallest = tried[-1]
    if options.flash and least_flash(smallest.module) > options.flash:
        raise refusal(smallest.module, options.flash)
    return smallest


def maker_of(
    graph: Graph,
    target: Target,
    goal: Goal,
    options: Options,
    tuned: Tuned = MappingProxyType({}),
    external: External = MappingProxyType({}),
    family: Family | None = None,
    workspaces: Workspaces = MappingProxyType({}),
    goals: Goals = MappingProxyType({}),
) -> Maker:
    """What makes the functions; ``family``: the graph at other sizes, where they vary; others as in :class:`Maker`."""
    if family is not None:
        from microc.driver.sizes.general import GeneralMaker

        return GeneralMaker(family, target, goal)
    return Maker(
        graph,
        target,
        goal,
        options.threads,
        tuned,
        external,
        shipped=options.shipped,
        workspaces=workspaces,
        goals=goals,
    )


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
