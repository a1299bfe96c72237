"""The pipeline on one page: model file -> Graph -> fused Graph -> Module -> planned Module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from microc.codegen.c.identifiers import network_name
from microc.compiler.fit.budget import (
    Room,
    arithmetic_of,
    count_macs,
    memories_for,
    refuse_float64,
    refuse_hopeless,
    refuse_large_arrays,
    with_math,
)
from microc.compiler.fit.search import (
    arena_room,
    build_within_budget,
    built,
    by_blocks,
    by_opened,
    by_turns,
    maker_of,
    within_limits,
    within_workspaces,
)
from microc.compiler.fit.striping import Chain, Search, Streams, arena, ram_refusal, stream_within
from microc.compiler.interaction import Progress
from microc.compiler.lowering.external_layers import divided, regions
from microc.compiler.lowering.kernel_maker import Compiled, Maker, Tuned, Workspaces
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.lowering.module_builder import code_placed, ends_of, fingerprint, refuse_without_memory
from microc.compiler.model import read_model, source_name
from microc.compiler.options import Options
from microc.compiler.tuned.measured_regions import RegionTask
from microc.errors import FitError, UsageError
from microc.frontend.detect import contents
from microc.graph.file import to_bytes
from microc.graph.ir import Graph
from microc.graph.text import regions as graphs_inside
from microc.graph.verify import verify
from microc.isa import CORES, FAMILIES
from microc.module import Module, Plain, Streaming
from microc.ops import registry
from microc.plan.plan import plan_module
from microc.target import Target
from microc.transform import LOWERING, PASSES
from microc.transform.pass_context import DumpInstrument, PassContext, run_passes, with_own


def optimise(graph: Graph, options: Options) -> Graph:
    """All graph passes, and from the whole run to a step of a stream if that is wanted."""
    return optimised(graph, options)[0]


def optimised(
    graph: Graph, options: Options, between: Callable[[Graph], Graph] | None = None
) -> tuple[Graph, Streaming | None]:
    """The same, and how the network streams. ``between``: what is done where formats are spelled alike, and integers are not
    explicit yet; it is given layers as the formats have them, unless these are streamed or rounded otherwise."""
    instruments = (*((DumpInstrument(options.dump),) if options.dump else ()), *options.instruments)
    whole = between is not None and not options.stream and options.rounding == "tflm"
    told = {name: getattr(options, name) for name in ("requantize", "hybrid", "rounding", "weight_dtype")}
    context = PassContext(
        opt_level=options.opt_level,
        disabled=options.disabled,
        required=options.required,
        instruments=instruments,
        options={**told, "whole": whole},
    )
    passes = with_own(PASSES, options.passes)
    middle = passes.index(LOWERING[0])
    graph, streaming = run_passes(graph, passes[:middle], context, passes), None
    if options.stream:
        from microc.transform.streaming import stream

        graph, streaming = stream(graph, options.stream, options.hop, options.stream_allow)
    graph = between(graph) if between else graph
    graph = run_passes(graph, passes[middle:], context, passes)
    for each in (graph, *graphs_inside(graph)):
        verify(each, constants=registry.constant_fault)
    return graph, streaming


def read_at_largest(source: Path | Graph, options: Options) -> tuple[Graph, Graph]:
    """The graph as it is read, and fused; where sizes vary, at the largest ones."""
    if options.bounds:
        from microc.compiler.sizes.open_functions import open_sizes

        sizes, read = open_sizes(source, options)
        graph = read({size.label: size.maximum for size in sizes})
        return graph, optimise(graph, _of_all_sizes(options))
    graph = read_model(source, options)
    return graph, optimise(graph, options)


def _of_all_sizes(options: Options) -> Options:
    """Without the passes that use what some sizes have by accident."""
    accidents = {"common_subexpressions", "constant_channels", "duplicate_channels", "dead_channels", "parallel_layers"}
    return replace(options, dump=None, disabled=options.disabled | accidents)


def compile_model(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None = None, room: Room | None = None
) -> Module:
    """The planned module of a model file, or of a graph as it was read.

    FitError when it exceeds the flash or the RAM of the options.
    ``room``: what the board has (None: any amount), which the choice of schedules keeps within if it can.
    """
    return compiled(source, target, options, progress, room).module


def compiled(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None = None, room: Room | None = None
) -> Compiled:
    """The same, and what its functions were made from; all of it is written where ``options.dump`` says."""
    refuse_without_memory(options, room)
    target = with_math(target, options)
    if options.bounds:
        made = _with_sizes(source, target, options, progress, room)
    else:
        made = _compiled(read_model(source, options), source_name(source), target, options, progress, room)
    refuse_large_arrays(made.module, target)
    made = replace(made, module=replace(made.module, hashes=hashes(source, options)))
    if options.dump is not None:
        from microc.compiler.lowering.derivation import dump_kernels

        dump_kernels(made, options.dump, progress)
    return made


def external_regions(source: Path | Graph, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """What the backends of the options have code for in a network, to be measured."""
    read, target = read_model(source, options), with_math(target, options)
    named = replace(read, name=network_name(read.name))
    return regions(lambda between: optimised(named, options, between), target, options)


def hashes(source: Path | Graph, options: Options) -> dict[str, str]:
    """SHA-256 of what a network is made from: the model's file (or the graph's, as :func:`microc.save` writes it), plugins."""
    data = to_bytes(source) if isinstance(source, Graph) else contents(source)
    plugins = {plugin.source: plugin.digest for plugin in options.plugins if plugin.digest}
    return {"model": hashlib.sha256(data).hexdigest(), **plugins}


def compile_graph(
    read: Graph,
    source: str,
    target: Target,
    options: Options,
    progress: Progress | None = None,
    room: Room | None = None,
) -> Module:
    """The same of a graph as it is; ``source`` says in the generated files where it is from."""
    return _compiled(read, source, with_math(target, options), options, progress, room).module


def _compiled(
    read: Graph, source: str, target: Target, options: Options, progress: Progress | None, room: Room | None
) -> Compiled:
    if options.threads > 1 and not FAMILIES[target.isa].threads:
        known = ", ".join(name for name, core in CORES.items() if FAMILIES[core.family].threads)
        raise UsageError(f"{target.cpu} runs no threads", hint=f"leave out threads, which are for computers: {known}")
    named = replace(read, name=network_name(read.name))
    return _planned(named, source, target, options, progress, room)


def _planned(
    read: Graph, source: str, target: Target, options: Options, progress: Progress | None, room: Room | None
) -> Compiled:
    if options.tuned is not None or options.plan is not None:
        from microc.compiler.tuned.optimisation_plan import refuse_unreadable

        refuse_unreadable(options)
    board = room.board if room else ""
    parts = divided(lambda between: optimised(read, options, between), target, options, board)
    graph, streaming = parts.graph, parts.streaming
    refuse_float64(graph, target)
    refuse_hopeless(graph, source, options, room)
    least = room.flash if room else 0
    first = build_within_budget(graph, target, source, options, progress, least, external=parts.external)
    goal, goals = first.make.goal, first.make.goals

    def planned(made: Module, like: Module | None = None) -> Module:
        if progress is not None:
            progress("memory plan", 0, 2)
        memories = memories_for(made, options, room)
        made = plan_module(
            parts.built_from(made),
            io_in_arena=options.io_in_arena,
            memories=memories,
            flash=target.flash_wait,
            like=like,
        )
        made = code_placed(made, options, room)
        if progress is not None:
            progress("fingerprint", 1, 2)
        found = fingerprint(made, target)
        chosen = {**options.chosen(), **made.options, "protocol": options.protocol}
        return replace(
            made,
            fingerprint=found,
            nominal_macs=count_macs(read),
            arithmetic=arithmetic_of(graph, options.weight_dtype),
            streaming=_named(made, streaming),
            options=chosen,
            **ends_of(made, read, options),
        )

    def maker(graph: Graph, workspaces: Workspaces, tuned: Tuned = MappingProxyType({})) -> Maker:
        return maker_of(graph, target, goal, options, tuned, parts.external, workspaces=workspaces, goals=goals)

    def changed_to(changed: Graph, workspaces: Workspaces = MappingProxyType({})) -> Compiled:
        made = built(changed, target, source, None, maker(changed, workspaces))
        return replace(made, module=planned(made.module))

    first = replace(first, module=planned(first.module))
    limits = [limit for limit in (options.ram, arena_room(first.module, room.ram) if room else 0) if limit]
    flash = [limit for limit in (options.flash, room.flash if room else 0) if limit]
    first = by_turns(first, lambda other: optimised(read, other)[0], changed_to, options, limits, flash)
    first = by_blocks(first, changed_to, options, limits, flash)
    first = by_opened(first, changed_to, options, limits, flash)
    graph = first.make.graph

    def measured(untuned: Compiled) -> Compiled:
        """The same with the schedules that the options name."""
        if options.tuned is None and options.plan is None:
            return untuned
        from microc.compiler.tuned.optimisation_plan import measured_schedules

        tuned = measured_schedules(untuned, options, board, min(limits, default=0))
        made = built(graph, target, source, progress, maker(graph, untuned.make.workspaces, tuned))
        return replace(made, module=planned(made.module))

    plain = measured(first)
    groups = {nodes[0].group: nodes for nodes in groups_of(graph) if nodes[0].group}
    streams = Streams(graph, groups, target, goal)
    searches: list[Search] = []

    def streamed(base: Compiled) -> Compiled:
        """The same with layers row by row, for an arena within the least of the limits."""
        searches.append(Search(streams, base.module, io_in_arena=options.io_in_arena))
        tried = [base]

        def build(chains: tuple[Chain, ...]) -> Module:
            make = maker(graph, base.make.workspaces, base.make.tuned)
            found = built(graph, target, source, None, make, [streams.lower(chain) for chain in chains])
            tried.append(replace(found, module=planned(found.module)))
            return tried[-1].module

        found = stream_within(min(limits), base.module, searches[-1], build)
        return next(made for made in tried if made.module is found)

    def own(chosen: Compiled) -> Module:
        chains = [streams.lower(each) for each in chosen.make.origins.values() if isinstance(each, Chain)]
        workspaces = chosen.make.workspaces
        make = maker_of(graph, target, goal, options, chosen.make.tuned, workspaces=workspaces, goals=goals)
        return planned(built(graph, target, source, None, make, chains).module, like=chosen.module)

    def less() -> Compiled:
        return measured(within_workspaces(min(limits), first, lambda rooms: changed_to(graph, rooms)))

    chosen = within_limits(plain, less, streamed, limits, flash)
    if options.ram and arena(chosen.module) > options.ram:
        raise ram_refusal(options.ram, chosen.module, searches[-1])
    if chosen is not plain:
        before = Plain(arena(plain.module), plain.module.instructions)
        chosen = replace(chosen, module=replace(chosen.module, plain=before))
    if options.plan is not None:
        from microc.compiler.tuned.optimisation_plan import as_planned

        chosen = as_planned(first, chosen, options)
    return replace(chosen, module=parts.beside(chosen.module, lambda: own(chosen)))


def _with_sizes(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None, room: Room | None
) -> Compiled:
    """The planned module of a model some of whose sizes are told when it runs."""
    if options.threads > 1:
        raise UsageError("a network whose sizes vary runs in one thread", hint="leave out threads, or fix the sizes")
    if options.external:
        raise UsageError("a network whose sizes vary has no external code", hint="leave out external, or fix the sizes")
    if options.plan is not None:
        raise UsageError("a network whose sizes vary takes no plan", hint="leave out plan, or fix the sizes")
    if options.stream or options.protocol == "mlperf":
        what = "is not streamed" if options.stream else "does not speak MLPerf's protocol"
        raise UsageError(f"a network whose sizes vary {what}", hint="leave out --bound")
    from microc.compiler.sizes.family import read_family
    from microc.compiler.sizes.open_functions import open_sizes

    sizes, read = open_sizes(source, options)
    family = read_family(sizes, lambda at: optimise(read(at), _of_all_sizes(options)))
    refuse_float64(family.largest, target)
    refuse_hopeless(family.largest, source_name(source), options, room)
    flash = room.flash if room else 0
    made = build_within_budget(family.largest, target, source_name(source), options, progress, flash, family)
    memories = memories_for(made.module, options, room)
    module = plan_module(made.module, io_in_arena=options.io_in_arena, memories=memories, flash=target.flash_wait)
    module = code_placed(module, options, room)
    largest = read({size.label: size.maximum for size in sizes})
    chosen = {**module.options, "protocol": options.protocol}
    module = replace(
        module, arithmetic=arithmetic_of(family.largest, options.weight_dtype), nominal_macs=count_macs(largest), options=chosen,
        **ends_of(module, largest, options),
    )  # fmt: skip
    module = replace(module, fingerprint=fingerprint(module, target))
    if options.ram and arena(module) > options.ram:
        raise FitError(
            f"the arena takes {arena(module):,} bytes, {options.ram:,} are allowed",
            where=module.source,
            hint="networks whose sizes vary are not computed row by row: take smaller bounds, or fix the sizes",
        )
    return replace(made, module=module)


def _named(module: Module, streaming: Streaming | None) -> Streaming | None:
    """How a network streams, by the names of its C code."""
    if streaming is None:
        return None
    inputs = {n: streaming.inputs[v.label] for n in module.inputs if (v := module.values[n]).label in streaming.inputs}
    return Streaming(streaming.hop, inputs, dict(zip(module.outputs, streaming.outputs.values(), strict=True)))
