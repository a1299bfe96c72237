# SPDX-License-Identifier: Apache-2.0
"""Compile a model: model file -> Graph -> fused Graph -> Module -> planned Module.

:func:`compile_model` reads the model, runs the graph passes, builds kernels and calls, plans the memory, and then
searches for the configuration with the least cost that fits the memory limits (:mod:`microc.compiler.fit.search`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from microc.base.operating_system import reserves_stack
from microc.codegen.c.identifiers import network_name
from microc.compiler.fit.budget import BoardCapacity, arena_bytes, refuse_large_read_buffers, with_math_features
from microc.compiler.fit.lower_bounds import (
    refuse_arrays_above_compiler_limit,
    refuse_float64,
    refuse_provably_too_large,
)
from microc.compiler.fit.moves import ARENA_MOVES, MOVES, OPEN_SIZE_MOVES
from microc.compiler.fit.search import NetworkBuilder, Search
from microc.compiler.fit.striping import make_ram_error
from microc.compiler.interaction import Progress
from microc.compiler.lowering.external_layers import NetworkDivision, divide_network, list_region_tasks
from microc.compiler.lowering.kernel_builder import CompiledNetwork
from microc.compiler.lowering.module_builder import (
    refuse_without_code_memory,
)
from microc.compiler.model import model_file_name, read_model
from microc.compiler.options import Options
from microc.compiler.tuned.measured_regions import RegionTask
from microc.errors import FitError, UsageError
from microc.frontend.detect import read_model_bytes
from microc.graph.file import to_bytes
from microc.graph.ir import Graph, verify
from microc.graph.text import nested_graphs
from microc.isa import CORES, FAMILIES
from microc.module import Module, Streaming, UnlimitedArenaCost
from microc.ops import registry
from microc.target import Target
from microc.transform import LOWERING, PASSES
from microc.transform.pass_context import DumpInstrument, PassContext, insert_user_passes, run_passes


def optimise_graph(graph: Graph, options: Options) -> Graph:
    """Run all graph passes. If the options request streaming, the graph becomes that of one streaming run."""
    return optimise_and_stream(graph, options)[0]


def optimise_and_stream(
    graph: Graph, options: Options, transform_between: Callable[[Graph], Graph] | None = None
) -> tuple[Graph, Streaming | None]:
    """Run all graph passes; return the graph, and the description of its streaming or None.

    ``transform_between`` transforms the graph in the middle: after the passes that convert the operators of all model
    formats to one form, and before the passes that replace quantised operators by integer arithmetic. In the middle,
    layers are still as the model format defines them, unless the network is streamed or uses another rounding than
    TFLite Micro's.
    """
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
    for inner in (graph, *nested_graphs(graph)):
        verify(inner, constants=registry.node_constant_error_message)
    return graph, streaming


def read_and_optimise_at_maximum(source: Path | Graph, options: Options) -> tuple[Graph, Graph]:
    """Read a model with dynamic sizes set to their maximum. Return the graph as read, and the graph after all
    passes."""
    if options.bounds:
        from microc.compiler.single_function import open_dynamic_sizes

        sizes, read = open_dynamic_sizes(source, options)
        graph = read({size.label: size.maximum for size in sizes})
        return graph, optimise_graph(graph, _without_size_dependent_passes(options))
    graph = read_model(source, options)
    return graph, optimise_graph(graph, options)


def _without_size_dependent_passes(options: Options) -> Options:
    """Return the options with the passes disabled whose result depends on the values of sizes, and without the dump.

    For example, such a pass may merge two tensors only because their sizes happen to be equal.
    """
    size_dependent = {
        "common_subexpressions",
        "constant_channels",
        "duplicate_channels",
        "dead_channels",
        "parallel_layers",
    }
    return replace(options, dump=None, disabled=options.disabled | size_dependent)


def compile_model(
    source: Path | Graph,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    capacity: BoardCapacity | None = None,
) -> Module:
    """Compile a model file, or a graph as it was read, to a planned module.

    ``capacity``: the memory of the board that is available to the network (None: unlimited). Schedules are chosen to
    stay within it where possible. Raises FitError if the network exceeds the flash or RAM budget of the options.
    """
    return compile_network(source, target, options, progress, capacity).module


@reserves_stack
def compile_network(
    source: Path | Graph,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    capacity: BoardCapacity | None = None,
) -> CompiledNetwork:
    """Compile as :func:`compile_model` does, and return the module together with its kernel builder.

    If ``options.dump`` is set, all stages are written to that folder.
    """
    refuse_without_code_memory(options, capacity)
    _refuse_learning_conflicts(options)
    target = with_math_features(target, options)
    if options.bounds:
        network = _compile_dynamic_sizes(source, target, options, progress, capacity)
    else:
        network = _compile_static_sizes(
            read_model(source, options), model_file_name(source), target, options, progress, capacity
        )
    refuse_arrays_above_compiler_limit(network.module, target)
    network = replace(network, module=replace(network.module, hashes=compute_content_hashes(source, options)))
    if options.dump is not None:
        from microc.compiler.lowering.derivation import dump_kernels

        dump_kernels(network, options.dump, progress)
    return network


def _refuse_learning_conflicts(options: Options) -> None:
    """Raise UsageError for options that a network that learns does not support."""
    conflicts = {
        "bounds": bool(options.bounds),
        "stream": bool(options.stream),
        "relocatable": options.relocatable,
        "self_test": options.self_test is not None,
        "protocol": options.protocol == "mlperf",
    }
    found = [name for name, given in conflicts.items() if given]
    if options.learn is not None and found:
        raise UsageError(
            f"learn cannot be combined with {found[0]}: got both, expected one", hint=f"leave out {found[0]}, or learn"
        )


def list_external_regions(source: Path | Graph, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """List the regions of a network that the options' external backends can compute, as tasks for measuring."""
    read, target = read_model(source, options), with_math_features(target, options)
    named = replace(read, name=network_name(read.name))
    return list_region_tasks(lambda between: optimise_and_stream(named, options, between), target, options)


def compute_content_hashes(source: Path | Graph, options: Options) -> dict[str, str]:
    """Compute the SHA-256 digests of the model and of the plugins as hexadecimal text.

    The digest of the model has the key ``model``, that of a plugin its source.

    The digest of a graph is that of the bytes that :func:`microc.save` writes.
    """
    data = to_bytes(source) if isinstance(source, Graph) else read_model_bytes(source)
    plugins = {plugin.source: plugin.digest for plugin in options.plugins if plugin.digest}
    return {"model": hashlib.sha256(data).hexdigest(), **plugins}


def compile_graph(
    read: Graph,
    source: str,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    capacity: BoardCapacity | None = None,
) -> Module:
    """Compile a graph to a planned module. The options for reading a model are not applied.

    ``source``: the name of the model that the generated files show.
    """
    return _compile_static_sizes(read, source, with_math_features(target, options), options, progress, capacity).module


def _compile_static_sizes(
    read: Graph,
    source: str,
    target: Target,
    options: Options,
    progress: Progress | None,
    capacity: BoardCapacity | None,
) -> CompiledNetwork:
    """Compile a graph of static sizes, under a name that is valid in C: run the passes, then search for a network that
    fits its memory limits. Raise UsageError if the target has no threads, and the options request several, or if they bind the
    threads of a network that has one."""
    if options.threads > 1 and not FAMILIES[target.isa].threads:
        known = ", ".join(name for name, core in CORES.items() if FAMILIES[core.family].threads)
        raise UsageError(
            f"threads: got {options.threads}, expected 1 on {target.cpu}, which has no threads",
            hint=f"leave out threads, or choose a computer: {known}",
        )
    if options.bind_threads and options.threads == 1:
        raise UsageError(
            "bind_threads: got one thread, expected several", hint="leave out bind_threads, or set threads to 2 or more"
        )
    read = replace(read, name=network_name(read.name))
    if options.tuned is not None or options.plan is not None:
        from microc.compiler.tuned.optimisation_plan import refuse_unreadable_tuning_files

        refuse_unreadable_tuning_files(options)
    board = capacity.board if capacity else ""
    division = divide_network(lambda between: optimise_and_stream(read, options, between), target, options, board)
    refuse_float64(division.graph, target)
    refuse_provably_too_large(division.graph, source, options, capacity)
    builder = NetworkBuilder(read, division, source, target, options, progress, capacity)
    search = Search(builder, lambda other: optimise_and_stream(read, other)[0])
    search.try_moves(MOVES)
    search.unlimited = search.best
    search.try_moves(ARENA_MOVES)
    network = search.best
    if options.ram and arena_bytes(network.module) > options.ram:
        excess = arena_bytes(network.module) - options.ram
        refuse_large_read_buffers(network.module, f"a RAM budget of {options.ram} bytes", excess)
        whole = builder.build(replace(network.configuration, chains=()))
        raise make_ram_error(options.ram, network.module, builder.make_stripe_search(whole))
    if options.plan is not None:
        from microc.compiler.tuned.optimisation_plan import refuse_unused_choices

        refuse_unused_choices(search.untuned_network, network, options.plan)
    module = replace(network.module, trials=tuple(search.trials))
    if network is not search.unlimited:
        # Reports compare this network with the network before it was changed to fit the arena limit.
        unlimited = search.unlimited.module
        module = replace(module, plain=UnlimitedArenaCost(arena_bytes(unlimited), unlimited.instructions))
    return replace(
        network, module=division.attach_own_module(module, lambda: builder.build_without_external_code(network))
    )


def _compile_dynamic_sizes(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None, capacity: BoardCapacity | None
) -> CompiledNetwork:
    """Compile a model with dynamic sizes (``--bound``). Sizes are parameters of the kernels; memory is planned for the
    maximum."""
    if options.threads > 1:
        raise UsageError(
            f"threads: got {options.threads}, expected 1 for a network with dynamic sizes",
            hint="leave out threads, or fix the sizes",
        )
    if options.cores > 1:
        raise UsageError(
            f"cores: got {options.cores}, expected 1 for a network with dynamic sizes",
            hint="leave out cores, or fix the sizes",
        )
    if options.external:
        raise UsageError(
            f"external: got {', '.join(options.external)}, expected none for a network with dynamic sizes",
            hint="leave out external, or fix the sizes",
        )
    if options.plan is not None:
        raise UsageError(
            f"plan cannot be combined with bounds: got {options.plan} for a network with dynamic sizes",
            hint="leave out plan, or fix the sizes",
        )
    if options.stream or options.protocol == "mlperf":
        what = "stream" if options.stream else "protocol mlperf"
        raise UsageError(
            f"{what} cannot be combined with bounds: got a network with dynamic sizes, expected fixed sizes",
            hint="leave out --bound",
        )
    from microc.compiler.single_function import open_dynamic_sizes
    from microc.compiler.sizes.family import read_family

    sizes, read = open_dynamic_sizes(source, options)
    family = read_family(sizes, lambda at: optimise_graph(read(at), _without_size_dependent_passes(options)))
    refuse_float64(family.largest, target)
    refuse_provably_too_large(family.largest, model_file_name(source), options, capacity)
    largest = read({size.label: size.maximum for size in sizes})
    division = NetworkDivision(family.largest, None)
    builder = NetworkBuilder(largest, division, model_file_name(source), target, options, progress, capacity, family)
    search = Search(builder, lambda other: family.largest)
    search.try_moves(OPEN_SIZE_MOVES)
    module = replace(search.best.module, trials=tuple(search.trials))
    if options.ram and arena_bytes(module) > options.ram:
        raise FitError(
            f"ram: the arena exceeds its limit; got {arena_bytes(module):,} bytes, expected at most {options.ram:,}",
            where=module.source,
            hint="give smaller bounds, or fix the sizes: only layers of fixed sizes are computed row by row",
        )
    return replace(search.best, module=module)
