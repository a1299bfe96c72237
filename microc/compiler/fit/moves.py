# SPDX-License-Identifier: Apache-2.0
"""Moves of the search for a network that fits its limits at the least cost. A move proposes changes of the
configuration.

The search tries :data:`MOVES` and then :data:`ARENA_MOVES`, in this order:

1. Flash: if the network exceeds its flash limit, other optimisation goals for all kernels, or for each kernel.
2. Graph variants that trade memory for time. They precede all moves that concern the kernels of the final graph.
3. Layers whose weights are read from storage in pieces, if the arena has no room for all weights of a layer.
4. Measured schedules, if the options name a file of them.
5. Arena: if the network exceeds its arena limit, smaller workspaces, layers computed row by row, or both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from microc.base.knapsack import LayerOption, pareto_front
from microc.codegen.c.c_statements import has_parallel_loop
from microc.compiler.fit.budget import (
    arena_bytes,
    count_read_buffer_bytes,
    flash_bytes,
    live_tensor_and_workspace_bytes,
    make_flash_error,
    min_flash_bytes,
    workspace_limits,
)
from microc.compiler.fit.search import Move, Search
from microc.compiler.fit.striping import ChainCandidate
from microc.compiler.lowering.kernel_builder import CompiledNetwork, Configuration, KernelGroup
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.tuned.optimisation_plan import schedules_from_options
from microc.compiler.tuned.records import kernel_key_by_layer, list_tuning_tasks
from microc.graph.ir import Graph, verify
from microc.module import Module
from microc.ops import registry
from microc.ops.registry import infer_node_types
from microc.schedule.cost.cost_model import time_unit_of
from microc.schedule.rules.rule import float_vector_level
from microc.target import SPEED
from microc.transform.attention import block_attention, find_attention
from microc.transform.loop_blocking import (
    LOOP_BLOCKING_PASS,
    PREWIDENED_WEIGHTS_PASS,
    find_widenable_weights,
    widen_weights,
)
from microc.transform.parallel_layers import split_layers
from microc.transform.pass_context import Pass

Proposals = Iterator[tuple[str, Configuration]]


# ---- Flash: one price of flash for all kernels, then a price for each kernel.
#
# Schedules are chosen at a price of flash: the number of executed instructions that a byte is worth. A high price for all
# kernels would slow down some kernels unnecessarily. Therefore the network is built at several prices, and a price is then
# chosen for each kernel so that the network takes the least time within the flash limit: the fewest instructions, or cycles
# where these rank schedules. Time and bytes of kernels add up, so this is a multiple-choice knapsack problem
# (:mod:`microc.base.knapsack`). Calls that share a C function at any of the prices form a group and get the same price, because
# the code of the function counts once.

KNAPSACK_ROUNDS = 3
"""Maximum number of knapsack solutions that are built. A solution may exceed the limit a little, because the knapsack
counts constants twice that two kernels share."""


def propose_flash_prices(search: Search) -> Proposals:
    """Propose higher prices of flash (the number of instructions that one byte is worth) if the network exceeds its
    flash limit.

    Raises FitError if even a lower bound on the smallest network exceeds the flash budget of the options. A network
    that exceeds the flash of the board is not refused here:
    :func:`microc.compiler.fit.search.compute_and_check_footprint` reports it, with the whole firmware.
    """
    requested = search.best
    if search.limits.fits_flash(requested):
        return
    candidates = [requested]
    # Every price is tried, even if a lower one fits, because the knapsack combines kernels that were built at different prices.
    for goal in search.builder.goals[1:]:
        price = "for size" if goal.price == inf else f"a byte of flash is worth {goal.price:.4g} instructions"
        yield price, replace(requested.configuration, goal=goal)
        candidates.append(search.last)
    if search.limits.fits_flash(search.best):
        # With dynamic sizes, the cost of the network is not a sum of costs of kernels.
        yield from _propose_goal_per_kernel(search, candidates) if search.builder.family is None else ()
    elif search.options.flash and min_flash_bytes(search.best.module) > search.options.flash:
        raise make_flash_error(search.best.module, search.options.flash)


def _propose_goal_per_kernel(search: Search, candidates: Sequence[CompiledNetwork]) -> Proposals:
    """Propose configurations in which each kernel has an optimisation goal of its own.

    ``candidates``: the network built at several prices of flash (the number of instructions that one byte is worth); at
    least one of them fits. The network as a whole gets the goal with the highest finite price among its kernels. An
    infinite price (size alone) is avoided, because it changes the options of the C compiler.
    """
    fitting = search.best
    steps = [call.writes for call in fitting.module.calls]
    if any([call.writes for call in candidate.module.calls] != steps for candidate in candidates):
        return  # the candidates do not have the same calls, so that their kernels cannot be combined
    groups = _group_calls_sharing_kernels(candidates)
    unit = time_unit_of(search.builder.target)
    items = [
        [_make_knapsack_option(number, candidate.module, group, unit) for number, candidate in enumerate(candidates)]
        for group in groups
    ]
    start = next(number for number, candidate in enumerate(candidates) if candidate is fitting)
    # Bytes of flash that are available to the groups: the flash limit without the bytes that do not depend on the goals.
    capacity = search.limits.flash - flash_bytes(fitting.module) + sum(choices[start].flash for choices in items)
    start_loss = sum(choices[start].loss for choices in items)
    for _ in range(KNAPSACK_ROUNDS):
        pareto = pareto_front(items, int(capacity))
        if not pareto or pareto[-1].loss >= start_loss:
            return
        kernel_goals = [candidates[number].kernel_builder.goal for number in pareto[-1].picks]
        goal = max(kernel_goals, key=lambda goal: (goal.price < inf, goal.price))
        goals = {
            key: own
            for group, own in zip(groups, kernel_goals, strict=True)
            if own != goal
            for key in _list_goal_keys(fitting, group)
        }
        yield "a price of flash for each kernel", replace(fitting.configuration, goal=goal, goals=goals)
        if search.limits.fits_flash(search.last):
            return
        capacity -= flash_bytes(search.last.module) - search.limits.flash


def _group_calls_sharing_kernels(candidates: Sequence[CompiledNetwork]) -> list[list[int]]:
    """Group the indices of calls. Two calls are in the same group if they share a kernel in any candidate.

    Calls whose kernels were not scheduled for a goal are left out.
    """
    first = candidates[0]
    scheduled = [
        k
        for k, call in enumerate(first.module.calls)
        if isinstance(first.kernel_builder.origins[call.writes], KernelGroup)
    ]
    group = {index: [index] for index in scheduled}
    for candidate in candidates:
        first_users: dict[str, int] = {}
        for index in scheduled:
            other = first_users.setdefault(candidate.module.calls[index].kernel, index)
            if group[other] is not group[index]:
                # Join the two lists of indices. Every index then refers to the joined list.
                group[other].extend(group[index])
                group |= dict.fromkeys(group[index], group[other])
    return list({id(indices): indices for indices in group.values()}.values())


def _make_knapsack_option(
    candidate_index: int, module: Module, call_indices: Sequence[int], time_unit: str
) -> LayerOption:
    """Return the knapsack option to build a group of calls as in the candidate network ``module``.

    The option has the number ``candidate_index``. Its loss is the time of the calls in ``time_unit`` (``instructions`` or
    ``cycles``). Its size is the number of bytes of flash for the code and the constants of the calls.
    """
    calls = [module.calls[index] for index in call_indices]
    kernels, operands = {call.kernel for call in calls}, {name for call in calls for name in call.args}
    code = sum(kernel.code_bytes for kernel in module.kernels if kernel.name in kernels)
    values = (module.values[name] for name in operands)
    return LayerOption(
        candidate_index,
        sum(call.cycles if time_unit == "cycles" else call.instructions for call in calls),
        code + sum(value.nbytes for value in values if value.storage == "const"),
        0,
    )


def _list_goal_keys(network: CompiledNetwork, call_indices: Sequence[int]) -> Iterator[str]:
    """Yield the keys in :data:`.kernel_builder.Goals` of the calls with the given indices.

    The key of a call is the result of the last node that its kernel computes.
    """
    for index in call_indices:
        origin = network.kernel_builder.origins[network.module.calls[index].writes]
        assert isinstance(origin, KernelGroup)
        yield origin.nodes[-1].outputs[0]


# ---- Recurrent layers that compute several iterations at a time (blocks), if the saved instructions are worth the memory.


def propose_loop_blocking(search: Search) -> Proposals:
    """Propose to compute recurrent layers in blocks of iterations, unless the arena exceeds its limit already."""
    base, options = search.best, search.options
    loops = _count_loops(base.configuration.graph)
    if not loops or _is_pass_decided_by_user(search, LOOP_BLOCKING_PASS) or not search.limits.fits_arena(base):
        return
    required = options.required | {LOOP_BLOCKING_PASS.name}
    changed = search.optimise(replace(options, dump=None, instruments=(), required=required))
    if _count_loops(changed) != loops:
        yield "recurrent layers in blocks of iterations", replace(base.configuration, graph=changed)


def _is_pass_decided_by_user(search: Search, variant: Pass) -> bool:
    """Test whether the options already require or exclude the graph pass ``variant``.

    External code also excludes graph variants, because it is compared with microc's code layer by layer.
    """
    options = search.options
    return variant.name in options.required | options.disabled or options.opt_level < 1 or bool(options.external)


def _count_loops(graph: Graph) -> int:
    """Count the loop nodes of a graph, including nested loops."""
    return sum(1 + _count_loops(node.attr("body")) for node in graph.nodes if node.op == "loop")


# ---- Attention that is computed for some queries at a time (blocks), if the smaller arena is worth the instructions.

ATTENTION_ROWS = (64, 32, 16, 8)
"""Numbers of queries in a block that are tried, besides all queries of a head. With smaller blocks, preparing the
operands of a block would cost more than its products."""


def propose_attention_blocking(search: Search) -> Proposals:
    """Propose to compute attention in blocks of fewer and fewer queries, until a smaller block makes the network
    worse."""
    base, options = search.best, search.options
    graph = base.configuration.graph
    layers = find_attention(graph)
    if not layers or options.opt_level < 1 or options.threads > 1:  # threads share whole operators
        return
    all_rows = max(graph.types[layer.score_nodes[0].outputs[0]].shape[-2] for layer in layers)
    for rows in (all_rows, *(rows for rows in ATTENTION_ROWS if rows < all_rows)):
        changed = block_attention(graph, layers, rows)
        plan = search.best.module.plan
        # The live tensors give a lower bound on the arena, without compiling the graph.
        if changed is graph or (plan and estimate_peak_live_bytes(changed, count_io=options.io_in_arena) >= plan.size):
            continue
        verify(changed, infer_node_types, "attention")
        yield f"attention in blocks of {rows} queries", replace(base.configuration, graph=changed)
        if search.best is not search.last and search.best is not base:
            return


def estimate_peak_live_bytes(graph: Graph, *, count_io: bool) -> int:
    """Estimate the maximum number of bytes of tensors that are live at the same time.

    The results of a kernel never overlap its operands in this estimate, and kernels need no scratch. ``count_io``:
    inputs and outputs of the graph count too.
    """
    views = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def find_tensor_behind_views(name: str) -> str:
        while name in views:
            name = views[name]
        return name

    groups = [nodes for nodes in groups_of(graph) if not registry.get(nodes[0].op).view]
    last = {
        find_tensor_behind_views(name): time
        for time, nodes in enumerate(groups)
        for node in nodes
        for name in node.inputs
        if name
    }
    last |= {find_tensor_behind_views(name): len(groups) for name in graph.outputs}
    uncounted = {
        *graph.consts,
        *graph.state,
        *(() if count_io else (*graph.inputs, *map(find_tensor_behind_views, graph.outputs))),
    }
    alive, most = {find_tensor_behind_views(name) for name in graph.inputs}, 0
    for time, nodes in enumerate(groups):
        alive |= {name for name in nodes[-1].outputs if name}
        bodies = [nodes[0].attr(name) for name in registry.get(nodes[0].op).regions]
        own = max((estimate_peak_live_bytes(body, count_io=False) for body in bodies), default=0)
        most = max(most, own + sum(graph.types[name].nbytes for name in alive - uncounted))
        alive = {name for name in alive if last.get(name, -1) > time}
    return most


# ---- Packed weights of float layers that are converted to floats in RAM before the layer runs, if the time saved is worth
# the RAM.

PREWIDEN_DIVISORS = (1, 2, 4, 8)
"""Divisors n that are tried: weights are converted if they have at most 1/n of the size of the largest weights. The
largest weights take the most RAM, and often few rows of data are multiplied by them, so that converting them saves
little."""


def propose_prewidened_weights(search: Search) -> Proposals:
    """Propose to convert the packed weights of float layers to floats in RAM before the layers run.

    The first proposal converts all of these weights. Each further proposal leaves out more of the largest weights. The
    move ends when a proposal is not better than the one before it.
    """
    base = search.best
    graph = base.configuration.graph
    # For the goal speed, weights are stored as floats anyway. A core with vectors converts a weight once for many rows of
    # data, at almost no cost.
    is_free = base.configuration.goal == SPEED or float_vector_level(search.builder.target)
    if _is_pass_decided_by_user(search, PREWIDENED_WEIGHTS_PASS) or is_free or not search.limits.fits_arena(base):
        return
    packed = find_widenable_weights(graph)
    sizes = {name: graph.types[name].nbytes for name in packed}
    before = list[str]()
    for part in PREWIDEN_DIVISORS:
        chosen = [name for name, size in sizes.items() if part * size <= max(sizes.values())]
        if chosen == before:
            continue
        before = chosen
        changed = widen_weights(graph, packed, chosen)
        verify(changed, infer_node_types, PREWIDENED_WEIGHTS_PASS.name)
        yield (
            f"{len(chosen)} of {len(packed)} packed weights widened in RAM",
            replace(base.configuration, graph=changed),
        )
        if search.best is not search.last and search.best is not base:
            return


# ---- Layers whose weights are read from storage in pieces, because the arena has no room for all of them.

PIECES_ROUNDS = 3
"""Maximum number of networks that are built with smaller and smaller pieces: other calls may become the largest."""
PIECE_CHANNELS = 4
"""Pieces of more channels have a multiple of this number: no register tile has more columns on cores without vectors."""
MAX_PIECES = 64
"""Maximum number of pieces of a layer. Each is a call, with a latency of its own."""


def propose_layers_in_pieces(search: Search) -> Proposals:
    """Propose to split layers along their output channels if the weights that they read from storage exceed the arena
    limit."""
    storage = search.builder.capacity.storage if search.builder.capacity is not None else None
    for _ in range(PIECES_ROUNDS):
        network = search.best
        module, graph = network.module, network.configuration.graph
        if storage is None or search.limits.fits_arena(network) or not module.plan or not module.plan.stored_offsets:
            return
        buffers = count_read_buffer_bytes(module)
        needs = live_tensor_and_workspace_bytes(module)
        limit = min(int(search.limits.arena), max(map(sum, needs)) - 1)
        channels: dict[str, int] = {}
        for call, (tensors, own), buffered in zip(module.calls, needs, buffers, strict=True):
            origin = network.kernel_builder.origins.get(call.writes)
            weights = sum(module.values[name].nbytes for name in {*call.args} & module.plan.stored_offsets.keys())
            if not isinstance(origin, KernelGroup) or not weights or tensors + own <= limit:
                continue
            result = origin.nodes[-1].outputs[0]
            count = graph.types[result].shape[-1]
            room = (limit - own - (tensors - buffered)) // (2 if storage.dma else 1)  # of two, one is being read
            step = max(room * count // weights, 1, -(-count // MAX_PIECES))
            step = -(-count // -(-count // step))  # pieces of equal size share a kernel
            channels[result] = step if step < PIECE_CHANNELS else step // PIECE_CHANNELS * PIECE_CHANNELS
        changed = split_layers(graph, channels)
        if changed is graph:
            return
        verify(changed, infer_node_types, "pieces")
        yield f"{len(channels)} layers in pieces", replace(network.configuration, graph=changed)
        if search.last is not search.best:
            return


# ---- Measured schedules. Measured times are more reliable than estimates, so the schedules are used whatever their estimated
# cost.


def propose_measured_schedules(search: Search) -> Proposals:
    """Propose the measured schedules from the files that the options name."""
    if search.options.tuned is not None or search.options.plan is not None:
        yield "measured schedules", _configure_measured_schedules(search, search.best)


def _configure_measured_schedules(search: Search, untuned: CompiledNetwork) -> Configuration:
    """Return the configuration of ``untuned`` with the measured schedules from the files that the options name."""
    if search.options.tuned is None and search.options.plan is None:
        return untuned.configuration
    limit = int(search.limits.arena) if search.limits.arena < inf else 0
    board = search.builder.capacity.board if search.builder.capacity else ""
    return replace(untuned.configuration, tuned=schedules_from_options(untuned, search.options, board, limit))


# ---- Arena: smaller workspaces.
#
# Schedules are first chosen by instructions and flash. The workspace of a kernel matters only if its calls make the arena too
# large, which is known only after the memory is planned. Then kernels are chosen again, with workspaces that fit beside the
# tensors that are live during their calls.

WORKSPACE_ROUNDS = 4
"""Maximum number of memory plans that are tried. Limits on workspaces change from plan to plan, because a smaller
workspace may overlap less of the kernel's operands."""


def propose_smaller_workspaces(search: Search) -> Proposals:
    """Propose kernels with smaller workspaces if the network exceeds its arena limit. Networks with several arenas are
    skipped."""
    if search.limits.fits_arena(search.best):
        return
    untuned = search.untuned_network
    assert untuned.module.plan is not None
    if untuned.module.plan.arenas or not any(own for _, own in live_tensor_and_workspace_bytes(untuned.module)):
        return
    smallest, network, keys, limits = (
        untuned,
        untuned,
        kernel_key_by_layer(list_tuning_tasks(untuned)),
        dict[str, int](),
    )
    for _ in range(WORKSPACE_ROUNDS):
        workspaces = workspace_limits(int(search.limits.arena), network.module, keys)
        # The limits never grow, so the loop cannot alternate between two plans.
        before, limits = limits, {key: min(size, limits.get(key, size)) for key, size in workspaces.items()}
        if limits == before:
            break
        network = search.builder.build(replace(untuned.configuration, workspaces=limits))
        smallest = min(smallest, network, key=lambda candidate: arena_bytes(candidate.module))
        if search.limits.fits_arena(network):
            break
    if smallest is not untuned:
        yield "smaller workspaces", _configure_measured_schedules(search, smallest)


# ---- Arena: kernels that one core computes alone.
#
# Two cores need two workspaces, and may overwrite an input only where neither needs what the other one has. A network that fits
# on one core may not fit on two.

ALONE_ROUNDS = 8
"""Maximum number of networks that are built with more and more kernels on one core."""


def propose_kernels_on_one_core(search: Search) -> Proposals:
    """Propose to leave the kernels that need the most memory to one core, if a network that two cores share exceeds its arena
    limit."""
    for _ in range(ALONE_ROUNDS):
        network = search.best
        if search.limits.fits_arena(network) or search.builder.target.cores == 1:
            return
        module, configuration = network.module, network.configuration
        kernels = {kernel.name: kernel for kernel in module.kernels}
        needs: dict[str, int] = {}
        for call, need in zip(module.calls, live_tensor_and_workspace_bytes(module), strict=True):
            origin = network.kernel_builder.origins.get(call.writes)
            if isinstance(origin, KernelGroup) and has_parallel_loop(kernels[call.kernel]):
                needs[origin.nodes[-1].outputs[0]] = sum(need)
        if not needs:
            return
        most = min(search.limits.arena, max(needs.values()) - 1)
        alone = configuration.alone | {output for output, need in needs.items() if need > most}
        yield f"{len(alone)} kernels on one core", replace(configuration, alone=alone)
        if search.last is not search.best:
            return


# ---- Arena: layers that are computed row by row.

SMALL_WORKSPACE_MAX_SLOWDOWN = 1.05
"""Largest factor on the number of instructions at which smaller workspaces are accepted without trying layers row by
row."""
PLAN_ROUNDS = 4
"""Maximum number of memory plans that are tried. A plan may need a little more than the lower bound by its largest
call."""


def propose_row_by_row_chains(search: Search) -> Proposals:
    """Propose chains (sequences of layers that one kernel computes row by row) if the network exceeds its arena limit.

    No chains are proposed if smaller workspaces suffice and cost at most a factor of
    :data:`SMALL_WORKSPACE_MAX_SLOWDOWN`. Chains together with smaller workspaces are proposed last.
    """
    plain, lean = search.unlimited, search.best
    if search.limits.fits_arena(plain):
        return
    slowdown = lean.module.instructions / max(plain.module.instructions, 1)
    if search.limits.fits(lean) and slowdown <= SMALL_WORKSPACE_MAX_SLOWDOWN:
        return
    for base in (plain,) if lean is plain else (plain, lean):
        if base is plain or not search.limits.fits_arena(search.best):
            yield from _propose_chains_within_limit(search, base)


def _propose_chains_within_limit(search: Search, base: CompiledNetwork) -> Proposals:
    """Propose chains (layers that one kernel computes row by row) for the network ``base``, until its arena is within
    the limit. The last proposal is the set of chains with the smallest arena."""
    stripes, goal = search.builder.make_stripe_search(base), search.limits.arena
    for _ in range(PLAN_ROUNDS):
        chains = stripes.find_chains_within_limit(int(goal))
        if chains is None:
            break
        if chains:
            yield _describe_chains(chains), _configure_chains(base, chains)
            if search.limits.fits_arena(search.last):
                return
        goal = min(goal, stripes.peak_bytes(chains)) - 4
    if smallest := stripes.find_chains_with_smallest_peak():
        yield _describe_chains(smallest), _configure_chains(base, smallest)


def _configure_chains(base: CompiledNetwork, chains: Sequence[ChainCandidate]) -> Configuration:
    """Return the configuration of ``base`` with the given chains (sequences of layers that one kernel computes row by
    row)."""
    return replace(base.configuration, chains=tuple(each.chain for each in chains))


def _describe_chains(chains: Sequence[ChainCandidate]) -> str:
    """Describe chains for the list of configurations that the search tried."""
    return f"{len(chains)} chain{'s' if len(chains) != 1 else ''} of layers row by row"


MOVES = (
    Move("flash", propose_flash_prices),
    Move(LOOP_BLOCKING_PASS.name, propose_loop_blocking),
    Move("attention", propose_attention_blocking),
    Move(PREWIDENED_WEIGHTS_PASS.name, propose_prewidened_weights),
    Move("pieces", propose_layers_in_pieces),
    Move("records", propose_measured_schedules, measured=True),
)
ARENA_MOVES = (
    Move("workspaces", propose_smaller_workspaces),
    Move("cores", propose_kernels_on_one_core),
    Move("rows", propose_row_by_row_chains),
)
"""Moves for a network whose arena exceeds its limit. The network before these moves is stored for reports
(:attr:`.Search.unlimited`)."""
OPEN_SIZE_MOVES = MOVES[:1]
"""Moves for a network with dynamic sizes. All other moves require the shapes of the tensors."""
