"""Search for the configuration of a network that fits its limits and costs least.

A configuration is a graph, a goal for each kernel, and the workspace that each kernel may use. The search is greedy:
each step starts from the best network so far, builds a few variants and keeps one only if it is better. ``pipeline``
runs the steps in this order:

1. :func:`build_within_flash`: one goal for all kernels; over the flash limit, a goal for each (:func:`choose_kernel_goals`).
2. :func:`try_loop_blocking`, :func:`try_blocked_attention`, :func:`try_prewidened_weights`: graph variants that trade memory
for time.
3. :func:`choose_within_ram`: over the RAM limit, kernels with smaller workspaces, layers row by row, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.base.knapsack import LayerOption, pareto_front
from microc.compiler.fit.budget import (
    fits_limits,
    flash_bytes,
    flash_error,
    goal_ladder,
    memory_per_time,
    min_flash_bytes,
    relative_cost,
)
from microc.compiler.fit.striping import LoweredStream, arena_bytes
from microc.compiler.interaction import Progress
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_maker import (
    CompiledNetwork,
    External,
    Goals,
    KernelBuilder,
    KernelGroup,
    Tuned,
    Workspaces,
    merge_kernels,
)
from microc.compiler.lowering.kernel_selection import add_estimates, groups_of
from microc.compiler.options import Options
from microc.graph.ir import Graph
from microc.graph.verify import verify
from microc.module import Module
from microc.ops import registry
from microc.ops.registry import infer
from microc.plan.liveness import lifetimes
from microc.reports.firmware_size import count_covered_addresses
from microc.schedule.rules.rule import float_vector_level
from microc.target import SPEED, Goal, Target
from microc.transform.attention import block_attention, find_attention
from microc.transform.loop_blocking import (
    LOOP_BLOCKING_PASS,
    PREWIDENED_WEIGHTS_PASS,
    find_widenable_weights,
    widen_weights,
)
from microc.transform.pass_context import write_graph

if TYPE_CHECKING:
    from microc.compiler.sizes.family import NetworkFamily
    from microc.compiler.tuned.records import Task


# ---- RAM limit: smaller workspaces, layers row by row, or both, whichever takes the fewest instructions.

SMALL_WORKSPACE_MAX_SLOWDOWN = 1.05
"""Factor on instructions up to which smaller workspaces are taken without trying layers row by row."""


def choose_within_ram(
    base_network: CompiledNetwork,
    build_with_small_workspaces: Callable[[], CompiledNetwork],
    build_with_streams: Callable[[CompiledNetwork], CompiledNetwork],
    arena_limits: Sequence[int],
    flash_limits: Sequence[int],
) -> CompiledNetwork:
    """Choose the network with the fewest instructions whose arena keeps within all limits, else the one with the smallest
    arena.

    ``base_network``, planned, is returned if it fits. ``arena_limits``, ``flash_limits``: in bytes; networks that keep
    within the latter (constants plus code) are preferred. ``build_with_small_workspaces`` builds the network with
    smaller workspaces; ``build_with_streams`` builds a network with layers row by row."""

    def fits_ram(made: CompiledNetwork) -> bool:
        return fits_limits(made.module, arena_limits)

    if fits_ram(base_network):
        return base_network
    lean_network = build_with_small_workspaces()
    if (
        fits_limits(lean_network.module, arena_limits, flash_limits)
        and lean_network.module.instructions <= SMALL_WORKSPACE_MAX_SLOWDOWN * base_network.module.instructions
    ):
        return lean_network
    candidates = [base_network, lean_network, build_with_streams(base_network)]
    if lean_network is not base_network and not any(map(fits_ram, candidates)):
        candidates.append(build_with_streams(lean_network))
    fitting = [made for made in candidates if fits_ram(made)]
    if fitting:
        return min(fitting, key=lambda made: (not fits_limits(made.module, (), flash_limits), made.module.instructions))
    return min(candidates, key=lambda made: arena_bytes(made.module))


def arena_limit(module: Module, ram_bytes: int) -> int:
    """Return what inputs and outputs outside of the arena leave to the arena of ``ram_bytes`` of RAM; 0: unlimited."""
    outside = [name for name in (*module.inputs, *module.outputs) if module.plan and name not in module.plan.offsets]
    return max(ram_bytes - sum(module.values[name].nbytes for name in outside), 1) if ram_bytes else 0


# ---- Smaller workspaces, for an arena over its limit.
#
# Rules choose a schedule by instructions and flash. Its workspace matters only in the steps that make the arena too large, which
# are known once the network is planned. Then kernels are chosen again within the bytes that the tensors leave in these steps.

WORKSPACE_ROUNDS = 4
"""Plans that are tried: a smaller workspace may overlap less of a kernel's operands, which changes the limits."""


def shrink_workspaces(
    arena_limit_bytes: int, base_network: CompiledNetwork, build: Callable[[Workspaces], CompiledNetwork]
) -> CompiledNetwork:
    """Build the network with smaller workspaces until the arena takes at most ``arena_limit_bytes``.

    If it never does, the smallest network found is returned. ``base_network``, planned, is returned if no kernel has a
    workspace, or if it has several arenas. ``build`` builds with a limit of the workspace for each kernel."""
    assert base_network.module.plan is not None
    if base_network.module.plan.arenas or not any(own for _, own in _tensor_and_workspace_bytes(base_network.module)):
        return base_network
    from microc.compiler.tuned.records import list_tuning_tasks

    best, network, tasks, limits = base_network, base_network, list_tuning_tasks(base_network), dict[str, int]()
    for _ in range(WORKSPACE_ROUNDS):
        workspaces = workspace_limits(arena_limit_bytes, network.module, tasks)
        # Limits only ever shrink, so the loop cannot alternate between two plans.
        before, limits = limits, {key: min(size, limits.get(key, size)) for key, size in workspaces.items()}
        if limits == before:
            break
        network = build(limits)
        best = min(best, network, key=lambda candidate: arena_bytes(candidate.module))
        if arena_bytes(network.module) <= arena_limit_bytes:
            break
    return best


def workspace_limits(limit: int, module: Module, tasks: Sequence[Task]) -> Workspaces:
    """Return for each kernel, by key, the workspace for which an arena of ``limit`` bytes has room in all of its layers."""
    keys = {layer: task.key for task in tasks for layer in task.layers}
    workspaces: dict[str, int] = {}
    for call, (tensors, _) in zip(module.calls, _tensor_and_workspace_bytes(module), strict=True):
        key = keys.get(call.layer)
        if key is not None:
            workspaces[key] = min(workspaces.get(key, limit), limit - tensors)
    return workspaces


def _tensor_and_workspace_bytes(module: Module) -> list[tuple[int, int]]:
    """Return for each call of a planned module the bytes of the arena that hold tensors while it runs, and the bytes of
    its workspaces."""
    assert module.plan is not None
    live: list[list[tuple[int, int]]] = [[] for _ in module.calls]
    for name, (first, last) in lifetimes(module, io_in_arena=module.plan.io_in_arena).items():
        offset = module.plan.offsets[name]
        for step in range(max(first, 0), min(last, len(live) - 1) + 1):
            live[step].append((offset, offset + module.values[name].nbytes))
    scratch = [sum(module.values[name].nbytes for name in call.workspace) for call in module.calls]
    return [(count_covered_addresses(live) - own, own) for live, own in zip(live, scratch, strict=True)]


# ---- Flash limit: a goal for each kernel.
#
# Raising the price of flash for all kernels at once slows down many that need not be. The network is built at several prices.
# Times and bytes of kernels add up, so the exact choice is a multiple-choice knapsack (:mod:`microc.base.knapsack`): for each
# kernel one price, so that all take the fewest instructions within the limit. Kernels that share a function at one of the prices
# form a group with one price, since its code counts once.

KNAPSACK_ROUNDS = 3
"""Solutions that are built: the knapsack counts constants of two kernels twice, so that a solution may be a little off."""


def choose_kernel_goals(
    candidates: Sequence[CompiledNetwork],
    fitting: CompiledNetwork,
    flash_limit: int,
    build: Callable[[Goal, Goals], CompiledNetwork],
) -> CompiledNetwork | None:
    """Choose a goal for each kernel, so that the network takes the fewest instructions in ``flash_limit`` bytes of flash.

    ``candidates``: the network built at several prices of flash; ``fitting``: the one of them that fits. Returns None
    if the choice is no faster than ``fitting``. ``build`` takes the network's goal, and the goals of kernels that
    differ from it. The network's goal is the one with the highest price below size alone, since for size the C compiler
    has other options."""
    if any(
        [call.writes for call in candidate.module.calls] != [call.writes for call in fitting.module.calls]
        for candidate in candidates
    ):
        return None  # the calls do not correspond one to one
    groups = _calls_sharing_kernels(candidates)
    items = [
        [_knapsack_option(number, candidate.module, group) for number, candidate in enumerate(candidates)]
        for group in groups
    ]
    start = next(number for number, candidate in enumerate(candidates) if candidate is fitting)
    # Bytes for the groups alone: the limit without the bytes that no goal changes.
    capacity = flash_limit - flash_bytes(fitting.module) + sum(choices[start].flash for choices in items)
    start_loss = sum(choices[start].loss for choices in items)
    for _ in range(KNAPSACK_ROUNDS):
        pareto = pareto_front(items, capacity)
        if not pareto or pareto[-1].loss >= start_loss:
            return None
        kernel_goals = [candidates[number].make.goal for number in pareto[-1].picks]
        network_goal = max(kernel_goals, key=lambda network_goal: (network_goal.price < inf, network_goal.price))
        group_goals = zip(groups, kernel_goals, strict=True)
        mixed = build(
            network_goal,
            {name: own for group, own in group_goals if own != network_goal for name in _goal_keys(fitting, group)},
        )
        if flash_bytes(mixed.module) <= flash_limit:
            return mixed if mixed.module.instructions < fitting.module.instructions else None
        capacity -= flash_bytes(mixed.module) - flash_limit
    return None


def _calls_sharing_kernels(candidates: Sequence[CompiledNetwork]) -> list[list[int]]:
    """Group the calls (by index) that share a kernel in any candidate; calls without a goal are left out."""
    first = candidates[0]
    scheduled = [
        k for k, call in enumerate(first.module.calls) if isinstance(first.make.origins[call.writes], KernelGroup)
    ]
    group = {index: [index] for index in scheduled}
    for candidate in candidates:
        first_users: dict[str, int] = {}
        for index in scheduled:
            other = first_users.setdefault(candidate.module.calls[index].kernel, index)
            if group[other] is not group[index]:
                # Union of two lists; every member then refers to the joined list.
                group[other].extend(group[index])
                group |= dict.fromkeys(group[index], group[other])
    return list({id(indices): indices for indices in group.values()}.values())


def _knapsack_option(candidate_index: int, module: Module, call_indices: Sequence[int]) -> LayerOption:
    """Return the option to build a group of calls as a candidate network does: the candidate's index, the group's
    instructions (loss) and its bytes of flash."""
    calls = [module.calls[index] for index in call_indices]
    kernels, operands = {call.kernel for call in calls}, {name for call in calls for name in call.args}
    code = sum(kernel.code_bytes for kernel in module.kernels if kernel.name in kernels)
    values = (module.values[name] for name in operands)
    return LayerOption(
        candidate_index,
        sum(call.instructions for call in calls),
        code + sum(value.nbytes for value in values if value.storage == "const"),
        0,
    )


def _goal_keys(network: CompiledNetwork, call_indices: Sequence[int]) -> Iterator[str]:
    """Yield the keys in :data:`Goals` of the calls ``call_indices``: the last result of each call's group of nodes."""
    for index in call_indices:
        origin = network.make.origins[network.module.calls[index].writes]
        assert isinstance(origin, KernelGroup)
        yield origin.nodes[-1].outputs[0]


# ---- Building within the flash budget: for the requested goal, else for goals that weigh flash more.


def build_within_flash(
    graph: Graph,
    target: Target,
    source: str,
    options: Options,
    progress: Progress | None,
    board_flash: int,
    family: NetworkFamily | None = None,
    external: External = MappingProxyType({}),
) -> CompiledNetwork:
    """Build the network for the goal of the options; over the flash limits, build the fastest that fits.

    Falls back to goals that weigh flash ever more: a goal for each kernel, or one for all with dynamic sizes. Raises
    FitError if the flash budget is below the lower bound of the smallest network. ``board_flash``: flash of the board
    in bytes (0: unlimited); a network over it is returned, and
    :func:`microc.compiler.fit.footprint.footprint_that_fits` reports it with the whole firmware. ``family`` as in
    :func:`kernel_builder`, ``external`` as in :class:`KernelBuilder`."""
    limits = [limit for limit in (options.flash, board_flash) if limit]

    def build_at(goal: Goal, kernel_goals: Goals = MappingProxyType({})) -> CompiledNetwork:
        builder = kernel_builder(graph, target, goal, options, external=external, family=family, goals=kernel_goals)
        return build_network(graph, target, source, progress, builder)

    requested, *fallbacks = goal_ladder(graph, options, target)
    candidates = [build_at(requested)]
    if fits_limits(candidates[0].module, (), limits):
        return candidates[0]
    # Build at every price, even after one fits: the knapsack mixes them kernel by kernel.
    candidates += map(build_at, fallbacks)
    fitting = next((candidate for candidate in candidates if fits_limits(candidate.module, (), limits)), None)
    if fitting is not None:
        return (choose_kernel_goals(candidates, fitting, min(limits), build_at) if family is None else None) or fitting
    smallest = candidates[-1]
    if options.flash and min_flash_bytes(smallest.module) > options.flash:
        raise flash_error(smallest.module, options.flash)
    return smallest


def kernel_builder(
    graph: Graph,
    target: Target,
    goal: Goal,
    options: Options,
    tuned: Tuned = MappingProxyType({}),
    external: External = MappingProxyType({}),
    family: NetworkFamily | None = None,
    workspaces: Workspaces = MappingProxyType({}),
    goals: Goals = MappingProxyType({}),
) -> KernelBuilder:
    """Build the object that makes the graph's kernels. ``family``: the graph at several sizes, if these are dynamic."""
    if family is not None:
        from microc.compiler.sizes.general import GeneralKernelBuilder

        return GeneralKernelBuilder(family, target, goal)
    return KernelBuilder(
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


def build_network(
    graph: Graph,
    target: Target,
    source: str,
    progress: Progress | None,
    make: KernelBuilder,
    streams: Sequence[LoweredStream] = (),
) -> CompiledNetwork:
    """Lower the graph to a module of kernels and calls, with cost estimates. ``streams``: the chains of layers that run
    row by row."""
    module = build_module(graph, target, source, make.goal, progress, streams, make)
    # Merging equal kernels saves flash and costs an operand, so it is skipped at price 0. Kernels with dynamic sizes have
    # parameters already.
    merges = make.goal.price > 0 and not make.sizes
    return CompiledNetwork(add_estimates(merge_kernels(module) if merges else module, target), make)


# ---- Variant: recurrent layers in blocks of iterations, if the saved instructions are worth the memory.


def try_loop_blocking(
    base_network: CompiledNetwork,
    run_passes: Callable[[Options], Graph],
    build: Callable[[Graph], CompiledNetwork],
    options: Options,
    arena_limits: Sequence[int],
    flash_limits: Sequence[int],
) -> CompiledNetwork:
    """Run recurrent layers in blocks of iterations if that costs less; else return ``base_network``, planned.

    ``run_passes`` runs the graph passes with other options, ``build`` builds and plans a graph. ``arena_limits``:
    limits of the arena, ``flash_limits``: limits of constants plus code. Nothing is compiled again if the pass is
    required or disabled (the user decided) or changes nothing, if the arena is too large already, or if external code
    takes part, which is compared with ours layer by layer."""
    loops = _count_loops(base_network.make.graph)
    is_decided = (
        LOOP_BLOCKING_PASS.name in options.required | options.disabled or options.opt_level < 1 or options.external
    )
    if not loops or is_decided or not fits_limits(base_network.module, arena_limits):
        return base_network
    changed = run_passes(
        replace(options, dump=None, instruments=(), required=options.required | {LOOP_BLOCKING_PASS.name})
    )
    if _count_loops(changed) == loops:
        return base_network
    blocked = build(changed)
    if (
        not fits_limits(blocked.module, arena_limits, flash_limits)
        or relative_cost(blocked.module, base_network.module, memory_per_time(options, base_network.make.target)) >= 1
    ):
        return base_network
    if options.dump is not None:
        write_graph(options.dump, LOOP_BLOCKING_PASS.name, blocked.make.graph)
    return blocked


def _count_loops(graph: Graph) -> int:
    """Count the loop nodes of a graph, nested ones included."""
    return sum(1 + _count_loops(node.attr("body")) for node in graph.nodes if node.op == "loop")


# ---- Variant: attention in blocks of queries, if the smaller arena is worth the instructions.
#
# 1 % of the network's time is worth as many percent of the arena as of flash (:mod:`microc.compiler.fit.budget`). For speed alone
# no time is given up, for size alone as much as memory is saved, and any time if the arena without blocks exceeds its limit.

ATTENTION_ROWS = (64, 32, 16, 8)
"""Queries of a block, below all of a head. With fewer, preparing the operands of a block costs more than its products."""


def try_blocked_attention(
    base_network: CompiledNetwork,
    build: Callable[[Graph], CompiledNetwork],
    options: Options,
    arena_limits: Sequence[int],
    flash_limits: Sequence[int],
) -> CompiledNetwork:
    """Compute attention in blocks of queries if a smaller arena is worth the time; else return ``base_network``, planned.

    ``arena_limits``: limits of the arena, ``flash_limits``: limits of constants plus code. Blocks shrink until one is
    worse than the last, so that few variants are compiled."""
    graph = base_network.make.graph
    layers = find_attention(graph)
    if not layers or options.opt_level < 1 or options.threads > 1:  # threads share whole operators
        return base_network
    too_large = any(
        base_network.module.plan is not None and base_network.module.plan.main > limit for limit in arena_limits
    )
    worth = 0.0 if too_large else memory_per_time(options, base_network.make.target)
    all_rows = max(graph.types[layer.scores[0].outputs[0]].shape[-2] for layer in layers)
    best, best_cost = base_network, _attention_cost(base_network.module, base_network.module, worth)
    for rows in (all_rows, *(rows for rows in ATTENTION_ROWS if rows < all_rows)):
        changed = block_attention(graph, layers, rows)
        # Liveness bounds the arena from below, without compiling.
        if changed is graph or peak_live_bytes(changed, inside=options.io_in_arena) >= _all_arena_bytes(best.module):
            continue
        verify(changed, infer, "attention")
        blocked = build(changed)
        blocked_cost = _attention_cost(blocked.module, base_network.module, worth)
        if blocked_cost < best_cost and all(flash_bytes(blocked.module) <= limit for limit in flash_limits):
            best, best_cost = blocked, blocked_cost
        elif best is not base_network:
            break
    if best is not base_network and options.dump is not None:
        write_graph(options.dump, "attention", best.make.graph)
    return best


def peak_live_bytes(graph: Graph, *, inside: bool) -> int:
    """Return the largest number of bytes of tensors that are live at once, if every kernel has its own results and no
    scratch.

    ``inside``: inputs and outputs count."""
    views = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def viewed_tensor(name: str) -> str:
        while name in views:
            name = views[name]
        return name

    groups = [nodes for nodes in groups_of(graph) if not registry.get(nodes[0].op).view]
    last = {
        viewed_tensor(name): time for time, nodes in enumerate(groups) for node in nodes for name in node.inputs if name
    }
    last |= {viewed_tensor(name): len(groups) for name in graph.outputs}
    uncounted = {*graph.consts, *graph.state, *(() if inside else (*graph.inputs, *map(viewed_tensor, graph.outputs)))}
    alive, most = {viewed_tensor(name) for name in graph.inputs}, 0
    for time, nodes in enumerate(groups):
        alive |= {name for name in nodes[-1].outputs if name}
        bodies = [nodes[0].attr(name) for name in registry.get(nodes[0].op).regions]
        own = max((peak_live_bytes(body, inside=False) for body in bodies), default=0)
        most = max(most, own + sum(graph.types[name].nbytes for name in alive - uncounted))
        alive = {name for name in alive if last.get(name, -1) > time}
    return most


def _attention_cost(blocked: Module, unblocked: Module, time_exponent: float) -> float:
    """Return the cost of the network with attention in blocks, relative to the network without blocks.

    It is arena * instructions ** ``time_exponent``, both as ratios of the two networks."""
    arena, time = (
        _all_arena_bytes(blocked) / max(_all_arena_bytes(unblocked), 1),
        blocked.instructions / max(unblocked.instructions, 1),
    )
    if time_exponent == float("inf"):
        return arena if time <= 1 else 1 + time
    return float(arena * time**time_exponent)


def _all_arena_bytes(module: Module) -> int:
    """Return the bytes of all arenas of a planned module."""
    assert module.plan is not None
    return module.plan.size


# ---- Variant: packed weights of float layers are widened in RAM before the layer runs, if the time is worth the RAM.

PREWIDEN_DIVISORS = (1, 2, 4, 8)
"""Divisors n: weights of at most 1/n of the largest are widened. The largest take most RAM, and may serve the fewest rows."""


def try_prewidened_weights(
    base_network: CompiledNetwork,
    build: Callable[[Graph], CompiledNetwork],
    options: Options,
    arena_limits: Sequence[int],
    flash_limits: Sequence[int],
) -> CompiledNetwork:
    """Widen packed weights of float layers in RAM before the layers run, if the time is worth the RAM.

    Else return ``base_network``, which is planned. ``arena_limits``: limits of the arena, ``flash_limits``: limits of
    constants plus code, in bytes. The search starts with all weights and leaves out the largest while that is better,
    so that few variants are compiled."""
    graph = base_network.make.graph
    is_decided = (
        PREWIDENED_WEIGHTS_PASS.name in options.required | options.disabled or options.opt_level < 1 or options.external
    )
    # For `speed` weights are stored widened. A core with vectors widens a weight for many rows at once, at next to no cost.
    is_free = base_network.make.goal == SPEED or float_vector_level(base_network.make.target)
    if is_decided or is_free or not fits_limits(base_network.module, arena_limits):
        return base_network
    packed = find_widenable_weights(graph)
    sizes = {name: graph.types[name].nbytes for name in packed}
    best, best_cost, before = base_network, 1.0, list[str]()
    for part in PREWIDEN_DIVISORS:
        chosen = [name for name, size in sizes.items() if part * size <= max(sizes.values())]
        if chosen == before:
            continue
        before = chosen
        changed = widen_weights(graph, packed, chosen)
        verify(changed, infer, PREWIDENED_WEIGHTS_PASS.name)
        widened = build(changed)
        cost = relative_cost(widened.module, base_network.module, memory_per_time(options, base_network.make.target))
        if cost < best_cost and fits_limits(widened.module, arena_limits, flash_limits):
            best, best_cost = widened, cost
        elif best is not base_network:
            break
    if best is not base_network and options.dump is not None:
        write_graph(options.dump, PREWIDENED_WEIGHTS_PASS.name, best.make.graph)
    return best
