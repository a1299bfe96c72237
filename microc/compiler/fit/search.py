"""The configuration that fits and costs least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.base.knapsack import Option, front
from microc.compiler.fit.budget import fits, flash_bytes, goals, least_flash, refusal, share_of, worth_of
from microc.compiler.fit.striping import LoweredStream, arena
from microc.compiler.interaction import Progress
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_maker import (
    Compiled,
    External,
    Goals,
    Group,
    Maker,
    Tuned,
    Workspaces,
    merge_kernels,
)
from microc.compiler.lowering.kernel_selection import estimated, groups_of
from microc.compiler.options import Options
from microc.graph.ir import Graph
from microc.graph.verify import verify
from microc.module import Module
from microc.ops import registry
from microc.ops.registry import infer
from microc.plan.liveness import lifetimes
from microc.reports.firmware_size import covered
from microc.schedule.rules.rule import float_lanes
from microc.target import SPEED, Goal, Target
from microc.transform.attention import find_attention, in_blocks
from microc.transform.loop_blocking import BLOCKED_TURNS_PASS, OPENED_WEIGHTS_PASS, find_opened, with_opened
from microc.transform.pass_context import write_graph

if TYPE_CHECKING:
    from microc.compiler.sizes.family import Family
    from microc.compiler.tuned.records import Task


# ---- An arena within its limits: schedules of smaller workspaces, layers row by row, or both, whichever costs the
# least work.

LITTLE = 1.05
"""Times the instructions that a network may take for smaller workspaces before anything else is tried."""


def within_limits(
    plain: Compiled,
    lean: Callable[[], Compiled],
    stream: Callable[[Compiled], Compiled],
    ram: Sequence[int],
    flash: Sequence[int],
) -> Compiled:
    """``plain``, planned, where it keeps within the limits of the arena, ``ram``; else the network of the fewest instructions
    that does, or the smallest; those come first that keep within the limits of constants and code, too, ``flash``. ``lean``: with
    smaller workspaces; ``stream``: a network with layers row by row."""

    def fit(made: Compiled) -> bool:
        return fits(made.module, ram)

    if fit(plain):
        return plain
    less = lean()
    if fits(less.module, ram, flash) and less.module.instructions <= LITTLE * plain.module.instructions:
        return less
    tried = [plain, less, stream(plain)]
    if less is not plain and not any(map(fit, tried)):
        tried.append(stream(less))
    fitting = [made for made in tried if fit(made)]
    if fitting:
        return min(fitting, key=lambda made: (not fits(made.module, (), flash), made.module.instructions))
    return min(tried, key=lambda made: arena(made.module))


def arena_room(module: Module, room: int) -> int:
    """What is left of the board's RAM for the arena by inputs and outputs outside of it; 0: any amount."""
    outside = [name for name in (*module.inputs, *module.outputs) if module.plan and name not in module.plan.offsets]
    return max(room - sum(module.values[name].nbytes for name in outside), 1) if room else 0


# ---- Schedules of smaller workspaces, where an arena exceeds its limit.
#
# Rules choose a schedule for its instructions and its flash. What it takes of the arena while it runs counts where its step is
# the one that makes the arena too large, which shows once the network is planned: then kernels are chosen again within what
# tensors leave there.

WORKSPACES_ROUNDS = 4
"""Plans that are tried for a limit: a smaller workspace may lie over less of what a kernel reads and writes."""


def within_workspaces(limit: int, plain: Compiled, build: Callable[[Workspaces], Compiled]) -> Compiled:
    """The first that ``build`` makes whose arena takes at most ``limit`` bytes, else the smallest that is found; ``plain``,
    planned, where no step has a workspace."""
    assert plain.module.plan is not None
    if plain.module.plan.arenas or not any(own for _, own in _steps(plain.module)):
        return plain
    best, made, tasks, least = plain, plain, _tasks(plain), dict[str, int]()
    for _ in range(WORKSPACES_ROUNDS):
        rooms = workspaces_within(limit, made.module, tasks)
        before, least = least, {key: min(room, least.get(key, room)) for key, room in rooms.items()}
        if least == before:
            break
        made = build(least)
        best = min(best, made, key=lambda each: arena(each.module))
        if arena(made.module) <= limit:
            break
    return best


def workspaces_within(limit: int, module: Module, tasks: Sequence[Task]) -> Workspaces:
    """By key of a kernel, the bytes of workspace for which an arena of ``limit`` bytes has room in all of its layers."""
    keys = {layer: task.key for task in tasks for layer in task.layers}
    found: dict[str, int] = {}
    for call, (tensors, _) in zip(module.calls, _steps(module), strict=True):
        key = keys.get(call.layer)
        if key is not None:
            found[key] = min(found.get(key, limit), limit - tensors)
    return found


def _steps(module: Module) -> list[tuple[int, int]]:
    """For every call, the bytes of the arena that hold something else than its workspaces, and those of them."""
    assert module.plan is not None
    alive: list[list[tuple[int, int]]] = [[] for _ in module.calls]
    for name, (first, last) in lifetimes(module, io_in_arena=module.plan.io_in_arena).items():
        place = module.plan.offsets[name]
        for step in range(max(first, 0), min(last, len(alive) - 1) + 1):
            alive[step].append((place, place + module.values[name].nbytes))
    scratch = [sum(module.values[name].nbytes for name in call.workspace) for call in module.calls]
    return [(covered(live) - own, own) for live, own in zip(alive, scratch, strict=True)]


def _tasks(made: Compiled) -> tuple[Task, ...]:
    from microc.compiler.tuned.records import tasks_of

    return tasks_of(made)


# ---- A goal for every kernel, where flash is short: what a step of the price of flash does to all layers, few of
# them need.
#
# The network was built at several prices of flash. Times and bytes of its kernels add up, so that of each one the price is chosen
# with which all of them together take the fewest instructions within the flash: an exact choice (:mod:`microc.base.knapsack`).
# Kernels that share a function at one of the prices have one price: its code counts once.

GOALS_ROUNDS = 3
"""Choices that are built: constants that two kernels share count for both, until they are built."""


def by_kernels(
    tried: Sequence[Compiled], plain: Compiled, limit: int, build: Callable[[Goal, Goals], Compiled]
) -> Compiled | None:
    """The network of the fewest instructions in ``limit`` bytes of flash, whose kernels are built for the goals of those that
    were ``tried``; None where that is no fewer than ``plain``, one of them that fits, takes. ``build``: for the network's goal,
    and those of kernels that have another. The network's is the one at the highest price below size alone, for which compilers
    have other options."""
    if any(
        [call.writes for call in each.module.calls] != [call.writes for call in plain.module.calls] for each in tried
    ):
        return None
    groups = _groups(tried)
    options = [[_option(number, each.module, group) for number, each in enumerate(tried)] for group in groups]
    at = next(number for number, each in enumerate(tried) if each is plain)
    allowed = limit - flash_bytes(plain.module) + sum(many[at].flash for many in options)
    most = sum(many[at].loss for many in options)
    for _ in range(GOALS_ROUNDS):
        points = front(options, allowed)
        if not points or points[-1].loss >= most:
            return None
        picked = [tried[number].make.goal for number in points[-1].picks]
        goal = max(picked, key=lambda goal: (goal.price < inf, goal.price))
        others = zip(groups, picked, strict=True)
        made = build(goal, {name: own for group, own in others if own != goal for name in _names(plain, group)})
        if flash_bytes(made.module) <= limit:
            return made if made.module.instructions < plain.module.instructions else None
        allowed -= flash_bytes(made.module) - limit
    return None


def _groups(tried: Sequence[Compiled]) -> list[list[int]]:
    """Calls of kernels that have a goal, by their places: those together that share a function anywhere."""
    first = tried[0]
    scheduled = [k for k, call in enumerate(first.module.calls) if isinstance(first.make.origins[call.writes], Group)]
    group = {place: [place] for place in scheduled}
    for each in tried:
        met: dict[str, int] = {}
        for place in scheduled:
            other = met.setdefault(each.module.calls[place].kernel, place)
            if group[other] is not group[place]:
                group[other].extend(group[place])
                group |= dict.fromkeys(group[place], group[other])
    return list({id(places): places for places in group.values()}.values())


def _option(number: int, module: Module, places: Sequence[int]) -> Option:
    """What a group takes as it was built for one of the goals: instructions of a run, bytes of code and constants."""
    calls = [module.calls[place] for place in places]
    used, constants = {call.kernel for call in calls}, {name for call in calls for name in call.args}
    code = sum(kernel.code_bytes for kernel in module.kernels if kernel.name in used)
    values = (module.values[name] for name in constants)
    return Option(
        number,
        sum(call.instructions for call in calls),
        code + sum(value.nbytes for value in values if value.storage == "const"),
        0,
    )


def _names(made: Compiled, places: Sequence[int]) -> Iterator[str]:
    """What :data:`Goals` knows the groups of some calls by."""
    for place in places:
        origin = made.make.origins[made.module.calls[place].writes]
        assert isinstance(origin, Group)
        yield origin.nodes[-1].outputs[0]


# ---- A graph as kernels and calls, within a flash budget: for the goal that is asked for, or those that take less.


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

    first, *others = goals(graph, options, target)
    tried = [build(first)]
    if fits(tried[0].module, (), limits):
        return tried[0]
    tried += map(build, others)
    fitting = next((made for made in tried if fits(made.module, (), limits)), None)
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
        from microc.compiler.sizes.general import GeneralMaker

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


# ---- Whether recurrent layers run by blocks of turns: where that costs fewer instructions, and no more memory than
# that is worth.


def by_turns(
    plain: Compiled,
    optimised: Callable[[Options], Graph],
    build: Callable[[Graph], Compiled],
    options: Options,
    ram: Sequence[int],
    flash: Sequence[int],
) -> Compiled:
    """``plain``, planned, or what ``build`` makes of the graph that is ``optimised`` with blocks of turns. ``ram``: limits of the
    arena, ``flash``: of constants and code.

    Nothing is compiled twice where the pass is required, disabled or changes nothing, where the arena is too large already, or
    where code of others stands in the network, which is compared with ours step by step.
    """
    loops = _loops(plain.make.graph)
    told = BLOCKED_TURNS_PASS.name in options.required | options.disabled or options.opt_level < 1 or options.external
    if not loops or told or not fits(plain.module, ram):
        return plain
    changed = optimised(
        replace(options, dump=None, instruments=(), required=options.required | {BLOCKED_TURNS_PASS.name})
    )
    if _loops(changed) == loops:
        return plain
    made = build(changed)
    if (
        not fits(made.module, ram, flash)
        or share_of(made.module, plain.module, worth_of(options, plain.make.target)) >= 1
    ):
        return plain
    if options.dump is not None:
        write_graph(options.dump, BLOCKED_TURNS_PASS.name, made.make.graph)
    return made


def _loops(graph: Graph) -> int:
    """Loops, and those inside of them."""
    return sum(1 + _loops(node.attr("body")) for node in graph.nodes if node.op == "loop")


# ---- Whether attention is computed by blocks: where that makes the arena smaller and costs few instructions more.
#
# A percent of the network's time is worth as many percents of the arena as of flash (:mod:`microc.compiler.fit.budget`); for
# speed alone no time is given, for size alone as much as memory is won, and any where the arena without blocks exceeds its limit.

ROWS = (64, 32, 16, 8)
"""Queries of a block, if not all of a head: fewer, and what is made ready for a block's products outweighs them."""


def by_blocks(
    plain: Compiled, build: Callable[[Graph], Compiled], options: Options, ram: Sequence[int], flash: Sequence[int]
) -> Compiled:
    """``plain``, planned, or what ``build`` makes of its graph with attention in blocks. ``ram``: limits of the arena,
    ``flash``: of constants and code.

    Blocks get smaller as long as that looks better than the last, so that few are compiled.
    """
    graph = plain.make.graph
    found = find_attention(graph)
    if not found or options.opt_level < 1 or options.threads > 1:  # threads share whole operators
        return plain
    tight = any(plain.module.plan is not None and plain.module.plan.main > limit for limit in ram)
    worth = 0.0 if tight else worth_of(options, plain.make.target)
    height = max(graph.types[each.scores[0].outputs[0]].shape[-2] for each in found)
    best, price = plain, _price(plain.module, plain.module, worth)
    for rows in (height, *(rows for rows in ROWS if rows < height)):
        changed = in_blocks(graph, found, rows)
        if changed is graph or most_alive(changed, inside=options.io_in_arena) >= _arena(best.module):
            continue
        verify(changed, infer, "attention")
        made = build(changed)
        costs = _price(made.module, plain.module, worth)
        if costs < price and all(flash_bytes(made.module) <= limit for limit in flash):
            best, price = made, costs
        elif best is not plain:
            break
    if best is not plain and options.dump is not None:
        write_graph(options.dump, "attention", best.make.graph)
    return best


def most_alive(graph: Graph, *, inside: bool) -> int:
    """The most bytes that are alive at one time if every kernel has results of its own, and no scratch. ``inside``: inputs and
    outputs count."""
    views = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def root(name: str) -> str:
        while name in views:
            name = views[name]
        return name

    groups = [nodes for nodes in groups_of(graph) if not registry.get(nodes[0].op).view]
    last = {root(name): time for time, nodes in enumerate(groups) for node in nodes for name in node.inputs if name}
    last |= {root(name): len(groups) for name in graph.outputs}
    uncounted = {*graph.consts, *graph.state, *(() if inside else (*graph.inputs, *map(root, graph.outputs)))}
    alive, most = {root(name) for name in graph.inputs}, 0
    for time, nodes in enumerate(groups):
        alive |= {name for name in nodes[-1].outputs if name}
        bodies = [nodes[0].attr(name) for name in registry.get(nodes[0].op).regions]
        own = max((most_alive(body, inside=False) for body in bodies), default=0)
        most = max(most, own + sum(graph.types[name].nbytes for name in alive - uncounted))
        alive = {name for name in alive if last.get(name, -1) > time}
    return most


def _price(made: Module, plain: Module, worth: float) -> float:
    """The arena as a share of that without blocks, times the share of instructions as often as time is ``worth``."""
    arena, time = _arena(made) / max(_arena(plain), 1), made.instructions / max(plain.instructions, 1)
    if worth == float("inf"):
        return arena if time <= 1 else 1 + time
    return float(arena * time**worth)


def _arena(module: Module) -> int:
    assert module.plan is not None
    return module.plan.size


# ---- Whether layers of floats have their packed weights opened before they run: where the time is worth the RAM.

PARTS = (1, 2, 4, 8)
"""Opened are weights up to this part of the largest: these take most RAM, and may serve fewest rows."""


def by_opened(
    plain: Compiled, build: Callable[[Graph], Compiled], options: Options, ram: Sequence[int], flash: Sequence[int]
) -> Compiled:
    """``plain``, planned, or what ``build`` makes of its graph with weights opened first. ``ram``: limits of the arena,
    ``flash``: of constants and code.

    Fewer weights are opened as long as that looks better than the last, so that few are compiled. For speed alone they are no
    bytes at all; a core with vectors opens a weight for many rows at once, which costs it next to nothing.
    """
    graph = plain.make.graph
    told = OPENED_WEIGHTS_PASS.name in options.required | options.disabled or options.opt_level < 1 or options.external
    free = plain.make.goal == SPEED or float_lanes(plain.make.target)
    if told or free or not fits(plain.module, ram):
        return plain
    found = find_opened(graph)
    sizes = {name: graph.types[name].nbytes for name in found}
    best, price, before = plain, 1.0, list[str]()
    for part in PARTS:
        chosen = [name for name, size in sizes.items() if part * size <= max(sizes.values())]
        if chosen == before:
            continue
        before = chosen
        changed = with_opened(graph, found, chosen)
        verify(changed, infer, OPENED_WEIGHTS_PASS.name)
        made = build(changed)
        share = share_of(made.module, plain.module, worth_of(options, plain.make.target))
        if share < price and fits(made.module, ram, flash):
            best, price = made, share
        elif best is not plain:
            break
    if best is not plain and options.dump is not None:
        write_graph(options.dump, OPENED_WEIGHTS_PASS.name, best.make.graph)
    return best
