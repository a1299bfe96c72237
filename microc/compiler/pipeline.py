"""Compile a model: model file -> Graph -> fused Graph -> Module -> planned Module.

:func:`compile_model` reads the model, runs the graph passes, builds kernels and calls, plans memory, and then searches
for the configuration that fits its limits and costs least (:mod:`microc.compiler.fit.search`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from microc.codegen.c.identifiers import network_name
from microc.compiler.fit.budget import (
    BoardCapacity,
    arena_memories,
    count_macs,
    refuse_float64,
    refuse_impossible,
    refuse_large_arrays,
    summarise_arithmetic,
    with_math_features,
)
from microc.compiler.fit.search import (
    arena_limit,
    build_network,
    build_within_flash,
    choose_within_ram,
    kernel_builder,
    shrink_workspaces,
    try_blocked_attention,
    try_loop_blocking,
    try_prewidened_weights,
)
from microc.compiler.fit.striping import Chain, ChainLowering, StripeSearch, arena_bytes, ram_error, stream_within
from microc.compiler.interaction import Progress
from microc.compiler.lowering.external_layers import divide_network, list_region_tasks
from microc.compiler.lowering.kernel_maker import CompiledNetwork, KernelBuilder, Tuned, Workspaces
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.lowering.module_builder import (
    firmware_fingerprint,
    io_fields,
    place_hot_code,
    refuse_without_code_memory,
)
from microc.compiler.model import read_model, source_name
from microc.compiler.options import Options
from microc.compiler.tuned.measured_regions import RegionTask
from microc.errors import FitError, UsageError
from microc.frontend.detect import read_model_bytes
from microc.graph.file import to_bytes
from microc.graph.ir import Graph
from microc.graph.text import nested_graphs as graphs_inside
from microc.graph.verify import verify
from microc.isa import CORES, FAMILIES
from microc.module import Module, Streaming, UnlimitedArenaCost
from microc.ops import registry
from microc.plan.plan import plan_module
from microc.target import Target
from microc.transform import LOWERING, PASSES
from microc.transform.pass_context import DumpInstrument, PassContext, insert_user_passes, run_passes


def optimise_graph(graph: Graph, options: Options) -> Graph:
    """Run all graph passes; convert the network to one streaming step if the options ask for it."""
    return optimise_and_stream(graph, options)[0]


def optimise_and_stream(
    graph: Graph, options: Options, transform_between: Callable[[Graph], Graph] | None = None
) -> tuple[Graph, Streaming | None]:
    """Run all graph passes; return the graph, and its streaming description if the options ask for streaming.

    ``transform_between`` transforms the graph after the passes that make formats alike and before the passes that make
    integers explicit. It gets layers as the formats define them, unless these are streamed or use another rounding than
    TFLite Micro's."""
    instruments = (*((DumpInstrument(options.dump),) if options.dump else ()), *options.instruments)
    whole = transform_between is not None and not options.stream and options.rounding == "tflm"
    pass_options = {name: getattr(options, name) for name in ("requantize", "hybrid", "rounding", "weight_dtype")}
    context = PassContext(
        opt_level=options.opt_level,
        disabled=options.disabled,
        required=options.required,
        instruments=instruments,
        options={**pass_options, "whole": whole},
    )
    passes = insert_user_passes(PASSES, options.passes)
    middle = passes.index(LOWERING[0])
    graph, streaming = run_passes(graph, passes[:middle], context, passes), None
    if options.stream:
        from microc.transform.streaming import stream

        graph, streaming = stream(graph, options.stream, options.hop, options.stream_allow)
    graph = transform_between(graph) if transform_between else graph
    graph = run_passes(graph, passes[middle:], context, passes)
    for inner in (graph, *graphs_inside(graph)):
        verify(inner, constants=registry.node_constant_error_message)
    return graph, streaming


def read_at_largest(source: Path | Graph, options: Options) -> tuple[Graph, Graph]:
    """Read a model; return the graph as read, and the graph after all passes. Dynamic sizes are set to their maxima."""
    if options.bounds:
        from microc.compiler.sizes.open_functions import open_dynamic_sizes

        sizes, read = open_dynamic_sizes(source, options)
        graph = read({size.label: size.maximum for size in sizes})
        return graph, optimise_graph(graph, _without_size_dependent_passes(options))
    graph = read_model(source, options)
    return graph, optimise_graph(graph, options)


def _without_size_dependent_passes(options: Options) -> Options:
    """Disable the passes whose result depends on coincidences of sizes, and the dump."""
    accidents = {"common_subexpressions", "constant_channels", "duplicate_channels", "dead_channels", "parallel_layers"}
    return replace(options, dump=None, disabled=options.disabled | accidents)


def compile_model(
    source: Path | Graph,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    room: BoardCapacity | None = None,
) -> Module:
    """Compile a model file, or a graph as it was read, to a planned module.

    Raises FitError if the network exceeds the flash or RAM budget of the options. ``room``: the capacity of the board
    (None: unlimited); schedules are chosen to stay within it where possible.
    """
    return compile_network(source, target, options, progress, room).module


def compile_network(
    source: Path | Graph,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    room: BoardCapacity | None = None,
) -> CompiledNetwork:
    """Compile like :func:`compile_model`, and return the kernel builder too. ``options.dump`` writes all stages."""
    refuse_without_code_memory(options, room)
    target = with_math_features(target, options)
    if options.bounds:
        network = _compile_dynamic(source, target, options, progress, room)
    else:
        network = _compile_and_check_static_sizes(
            read_model(source, options), source_name(source), target, options, progress, room
        )
    refuse_large_arrays(network.module, target)
    network = replace(network, module=replace(network.module, hashes=content_hashes(source, options)))
    if options.dump is not None:
        from microc.compiler.lowering.derivation import dump_kernels

        dump_kernels(network, options.dump, progress)
    return network


def external_regions(source: Path | Graph, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """List the regions of a network that the external backends of the options can compute, as measuring tasks."""
    read, target = read_model(source, options), with_math_features(target, options)
    named = replace(read, name=network_name(read.name))
    return list_region_tasks(lambda between: optimise_and_stream(named, options, between), target, options)


def content_hashes(source: Path | Graph, options: Options) -> dict[str, str]:
    """Return the SHA-256 digests of the model (its file, or the bytes that :func:`microc.save` writes) and of the plugins."""
    data = to_bytes(source) if isinstance(source, Graph) else read_model_bytes(source)
    plugins = {plugin.source: plugin.digest for plugin in options.plugins if plugin.digest}
    return {"model": hashlib.sha256(data).hexdigest(), **plugins}


def compile_graph(
    read: Graph,
    source: str,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    room: BoardCapacity | None = None,
) -> Module:
    """Compile a graph as it is, without the options for reading, to a planned module. ``source``: the origin that the
    generated files name."""
    return _compile_and_check_static_sizes(
        read, source, with_math_features(target, options), options, progress, room
    ).module


def _compile_and_check_static_sizes(
    read: Graph, source: str, target: Target, options: Options, progress: Progress | None, room: BoardCapacity | None
) -> CompiledNetwork:
    """Check the options that depend on the target, name the network, and compile the graph, which has static sizes."""
    if options.threads > 1 and not FAMILIES[target.isa].threads:
        known = ", ".join(name for name, core in CORES.items() if FAMILIES[core.family].threads)
        raise UsageError(
            f"threads: got {options.threads}, expected 1 on {target.cpu}, which runs no threads",
            hint=f"leave out threads, or choose a computer: {known}",
        )
    named = replace(read, name=network_name(read.name))
    return _compile_static(named, source, target, options, progress, room)


def _compile_static(
    read: Graph, source: str, target: Target, options: Options, progress: Progress | None, room: BoardCapacity | None
) -> CompiledNetwork:
    """Compile a graph of static sizes: passes, kernels, plan, then the search for a network that fits its limits."""
    if options.tuned is not None or options.plan is not None:
        from microc.compiler.tuned.optimisation_plan import refuse_unreadable_tuning_files

        refuse_unreadable_tuning_files(options)
    board = room.board if room else ""
    parts = divide_network(lambda between: optimise_and_stream(read, options, between), target, options, board)
    graph, streaming = parts.graph, parts.streaming
    refuse_float64(graph, target)
    refuse_impossible(graph, source, options, room)
    board_flash = room.flash if room else 0
    network = build_within_flash(graph, target, source, options, progress, board_flash, external=parts.external)
    goal, goals = network.make.goal, network.make.goals

    def plan_memory(module: Module, like: Module | None = None) -> Module:
        if progress is not None:
            progress("memory plan", 0, 2)
        memories = arena_memories(module, options, room)
        module = plan_module(
            parts.built_from(module),
            io_in_arena=options.io_in_arena,
            memories=memories,
            flash_wait=target.flash_wait,
            order_like=like,
        )
        module = place_hot_code(module, options, room)
        if progress is not None:
            progress("fingerprint", 1, 2)
        digest = firmware_fingerprint(module, target)
        module_options = {**options.changed_texts(), **module.options, "protocol": options.protocol}
        return replace(
            module,
            fingerprint=digest,
            nominal_macs=count_macs(read),
            arithmetic=summarise_arithmetic(graph, options.weight_dtype),
            streaming=_streaming_in_c_names(module, streaming),
            options=module_options,
            **io_fields(module, read, options),
        )

    def builder_for(graph: Graph, workspaces: Workspaces, tuned: Tuned = MappingProxyType({})) -> KernelBuilder:
        return kernel_builder(graph, target, goal, options, tuned, parts.external, workspaces=workspaces, goals=goals)

    def build_graph(changed: Graph, workspaces: Workspaces = MappingProxyType({})) -> CompiledNetwork:
        built_network = build_network(changed, target, source, None, builder_for(changed, workspaces))
        return replace(built_network, module=plan_memory(built_network.module))

    network = replace(network, module=plan_memory(network.module))
    limits = [limit for limit in (options.ram, arena_limit(network.module, room.ram) if room else 0) if limit]
    flash = [limit for limit in (options.flash, board_flash) if limit]
    # Graph variants come first: records and stripes belong to the kernels of the final graph.
    network = try_loop_blocking(
        network, lambda other: optimise_and_stream(read, other)[0], build_graph, options, limits, flash
    )
    network = try_blocked_attention(network, build_graph, options, limits, flash)
    network = try_prewidened_weights(network, build_graph, options, limits, flash)
    graph = network.make.graph

    def with_measured_schedules(untuned: CompiledNetwork) -> CompiledNetwork:
        """Build again with the measured schedules that the options name."""
        if options.tuned is None and options.plan is None:
            return untuned
        from microc.compiler.tuned.optimisation_plan import schedules_from_options

        tuned = schedules_from_options(untuned, options, board, min(limits, default=0))
        built_network = build_network(
            graph, target, source, progress, builder_for(graph, untuned.make.workspaces, tuned)
        )
        return replace(built_network, module=plan_memory(built_network.module))

    plain = with_measured_schedules(network)
    groups = {nodes[0].group: nodes for nodes in groups_of(graph) if nodes[0].group}
    streams = ChainLowering(graph, groups, target, goal)
    searches: list[StripeSearch] = []

    def with_stripes(base: CompiledNetwork) -> CompiledNetwork:
        """Compute chains of layers row by row, so that the arena fits the lowest RAM limit."""
        searches.append(StripeSearch(streams, base.module, io_in_arena=options.io_in_arena))
        candidates = [base]

        def build_chains(chains: tuple[Chain, ...]) -> Module:
            builder = builder_for(graph, base.make.workspaces, base.make.tuned)
            built_network = build_network(
                graph, target, source, None, builder, [streams.lower(chain) for chain in chains]
            )
            candidates.append(replace(built_network, module=plan_memory(built_network.module)))
            return candidates[-1].module

        smallest = stream_within(min(limits), base.module, searches[-1], build_chains)
        return next(candidate for candidate in candidates if candidate.module is smallest)

    def build_without_external(chosen: CompiledNetwork) -> Module:
        chains = [streams.lower(origin) for origin in chosen.make.origins.values() if isinstance(origin, Chain)]
        workspaces = chosen.make.workspaces
        builder = kernel_builder(graph, target, goal, options, chosen.make.tuned, workspaces=workspaces, goals=goals)
        return plan_memory(build_network(graph, target, source, None, builder, chains).module, like=chosen.module)

    def with_small_workspaces() -> CompiledNetwork:
        return with_measured_schedules(shrink_workspaces(min(limits), network, lambda rooms: build_graph(graph, rooms)))

    chosen = choose_within_ram(plain, with_small_workspaces, with_stripes, limits, flash)
    if options.ram and arena_bytes(chosen.module) > options.ram:
        raise ram_error(options.ram, chosen.module, searches[-1])
    if chosen is not plain:
        # Reports compare with the network before it had to fit.
        before = UnlimitedArenaCost(arena_bytes(plain.module), plain.module.instructions)
        chosen = replace(chosen, module=replace(chosen.module, plain=before))
    if options.plan is not None:
        from microc.compiler.tuned.optimisation_plan import require_plan_is_used

        chosen = require_plan_is_used(network, chosen, options)
    return replace(chosen, module=parts.beside(chosen.module, lambda: build_without_external(chosen)))


def _compile_dynamic(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None, room: BoardCapacity | None
) -> CompiledNetwork:
    """Compile a model with dynamic sizes (``--bound``): kernels take sizes as parameters, the plan is for the largest."""
    if options.threads > 1:
        raise UsageError(
            f"threads: got {options.threads}, expected 1 for a network whose sizes vary",
            hint="leave out threads, or fix the sizes",
        )
    if options.external:
        raise UsageError(
            f"external: got {', '.join(options.external)}, expected none for a network whose sizes vary",
            hint="leave out external, or fix the sizes",
        )
    if options.plan is not None:
        raise UsageError(
            f"plan cannot be combined with bounds: got {options.plan} for a network whose sizes vary",
            hint="leave out plan, or fix the sizes",
        )
    if options.stream or options.protocol == "mlperf":
        what = "stream" if options.stream else "protocol mlperf"
        raise UsageError(
            f"{what} cannot be combined with bounds: the network's sizes vary, expected fixed sizes",
            hint="leave out --bound",
        )
    from microc.compiler.sizes.family import read_family
    from microc.compiler.sizes.open_functions import open_dynamic_sizes

    sizes, read = open_dynamic_sizes(source, options)
    family = read_family(sizes, lambda at: optimise_graph(read(at), _without_size_dependent_passes(options)))
    refuse_float64(family.largest, target)
    refuse_impossible(family.largest, source_name(source), options, room)
    board_flash = room.flash if room else 0
    network = build_within_flash(family.largest, target, source_name(source), options, progress, board_flash, family)
    memories = arena_memories(network.module, options, room)
    module = plan_module(
        network.module, io_in_arena=options.io_in_arena, memories=memories, flash_wait=target.flash_wait
    )
    module = place_hot_code(module, options, room)
    largest = read({size.label: size.maximum for size in sizes})
    module_options = {**module.options, "protocol": options.protocol}
    module = replace(
        module,
        arithmetic=summarise_arithmetic(family.largest, options.weight_dtype),
        nominal_macs=count_macs(largest),
        options=module_options,
        **io_fields(module, largest, options),
    )
    module = replace(module, fingerprint=firmware_fingerprint(module, target))
    if options.ram and arena_bytes(module) > options.ram:
        raise FitError(
            f"ram: the arena takes {arena_bytes(module):,} bytes, {options.ram:,} are allowed",
            where=module.source,
            hint="take smaller bounds, or fix the sizes: only networks of fixed sizes are computed row by row",
        )
    return replace(network, module=module)


def _streaming_in_c_names(module: Module, streaming: Streaming | None) -> Streaming | None:
    """Rename the tensors of ``streaming`` to their names in the C code."""
    if streaming is None:
        return None
    inputs = {n: streaming.inputs[v.label] for n in module.inputs if (v := module.values[n]).label in streaming.inputs}
    return Streaming(streaming.hop, inputs, dict(zip(module.outputs, streaming.outputs.values(), strict=True)))
