# SPDX-License-Identifier: Apache-2.0
"""Divide a network between microc's code and external code (of backends such as CMSIS-NN).

A region of the graph that a backend supports becomes external if its code is faster by measurement or, without
measurements, by estimated cost; or in any case, if the user says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from microc.base.file_access import write_text
from microc.base.immutable import frozen
from microc.codegen.output_files import replace_atomically
from microc.codegen.render import Label
from microc.compiler.fit.budget import list_goals_to_try
from microc.compiler.options import Options
from microc.compiler.tuned.measured_regions import RegionTask, RegionVerdict, judge_region, make_region_task
from microc.compiler.tuned.records import Database, open_records
from microc.errors import UsageError, known_names_hint
from microc.external.backend import BACKENDS, Backend, ClaimedRegion, Partition, partition
from microc.graph.ir import Graph
from microc.isa import FAMILIES
from microc.module import BackendDecision, Module, Sources, Streaming
from microc.ops.control import EXTERNAL
from microc.schedule.cost.cost_model import estimate
from microc.target import Goal, Target

REPORT = "external.txt"
"""Name of the file of a dump that has a line for every region that a pattern matched, with the decision about the
region."""
OptimisedGraph = tuple[Graph, Streaming | None]
LibraryPaths = Mapping[str, str]
"""Location of each backend's library as the user gave it, by the name of the backend."""
RunPasses = Callable[[Callable[[Graph], Graph] | None], OptimisedGraph]
"""Function that runs all graph passes. Its argument transforms the graph in the middle: after the passes that convert
all model formats to one form, and before the passes that replace quantised operators by integer arithmetic."""


@frozen
class NetworkDivision:
    """A network divided between microc's code and external code.

    ``graph``: the graph after all passes. ``external``: the external regions, by the attribute ``code`` of their nodes.
    ``sources``: the C sources of the external code. ``decisions``: for each region that a backend supports, whose code
    computes it, and why.
    """

    graph: Graph
    streaming: Streaming | None
    external: Mapping[tuple[str, ...], ClaimedRegion] = field(default_factory=dict)
    sources: tuple[Sources, ...] = ()
    decisions: tuple[BackendDecision, ...] = ()

    def add_sources_and_decisions(self, module: Module) -> Module:
        """Return ``module`` with the C sources of its external kernels and the decisions about all regions."""
        sources = self.sources if any(kernel.external for kernel in module.kernels) else ()
        return replace(module, sources=sources, decisions=self.decisions)

    def attach_own_module(self, module: Module, build_own_module: Callable[[], Module]) -> Module:
        """Attach to ``module`` a module that has the same calls but contains no external code. A module without
        external kernels is returned unchanged.

        ``build_own_module``: builds the module that has only microc's code. It is stored in the field ``own``.
        """
        return replace(module, own=build_own_module()) if module.sources else module


def divide_network(passes: RunPasses, target: Target, options: Options, board: str = "") -> NetworkDivision:
    """Run ``passes`` on the network, and divide it between microc's code and external code as the options request.

    ``board``: the name of the board whose tuning records are preferred. Raises UsageError for a backend that does not
    exist, whose library is not at the given location, or that does not support ``target``.
    """
    if not options.external:
        return NetworkDivision(*passes(None))
    if options.relocatable:
        raise UsageError(
            f"external: a relocatable network has no external code; got {', '.join(options.external)}, expected none",
            hint="leave out external, or relocatable",
        )
    backends, library_paths = _open_backends(target, options)
    records = open_records(options.tuned) if options.tuned is not None else None
    kept_ours: dict[str, BackendDecision] = {}
    measured_goals: tuple[Goal, ...] = ()
    # A region for which microc's code is chosen is left out of the next partition, because its nodes may be part of other
    # regions.
    while True:
        partition_, graph, streaming = _run_and_partition(passes, backends, target, kept_ours)
        decisions_by_key = {
            each.key: _make_decision_by_user(each) for each in partition_.taken if options.external_choice == "all"
        }
        if options.external_choice == "cost":
            measured_goals = (
                measured_goals or list_goals_to_try(graph, options, target)[:1]
            )  # the goal of the first graph, because regions are measured with it
            for task in _make_region_tasks(partition_, graph, target, library_paths, measured_goals):
                decisions_by_key[task.taken.key] = _decide_region(task, records, board)
        rejected = {key: decision for key, decision in decisions_by_key.items() if not decision.theirs}
        if not rejected:
            break
        kept_ours |= rejected
    sources = tuple(
        each
        for backend in backends
        for each in _collect_backend_sources(backend, partition_.taken, target, library_paths[backend.name])
    )
    decisions = (*decisions_by_key.values(), *kept_ours.values())
    if options.dump is not None:
        lines = (*map(str, decisions), *(f"{place}: ours, {why}" for place, why in partition_.refused))
        with replace_atomically(options.dump / REPORT) as temporary:
            write_text(temporary, "".join(f"{Label(line)}\n" for line in lines))
    return NetworkDivision(graph, streaming, _claimed_regions_by_code(partition_), sources, decisions)


def list_region_tasks(passes: RunPasses, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """List the regions of a network that backends can compute, as tasks for measuring. Equal regions are listed once.

    The regions of the first partition come first. They are followed by the regions that patterns match only if regions
    of the first partition are left out.
    microc's code is built for the goal of the network, and for all goals with the same C compiler options.
    """
    (backends, library_paths), without = _open_backends(target, options), set[str]()
    tasks: dict[object, RegionTask] = {}
    measured_goals: tuple[Goal, ...] = ()
    while True:
        partition_, graph, _ = _run_and_partition(passes, backends, target, without)
        if not partition_.taken:
            return tuple(tasks.values())
        measured_goals = measured_goals or tuple(_list_goals_with_same_c_flags(graph, target, options))
        for task in _make_region_tasks(partition_, graph, target, library_paths, measured_goals):
            identity = task.key, task.digest, tuple(ours.trace for ours in task.ours)
            known_task = tasks.get(identity)
            tasks[identity] = (
                task if known_task is None else known_task.with_layers(task.layers, task.runs, inside=False)
            )
        without |= {taken.key for taken in partition_.taken}


def _list_goals_with_same_c_flags(graph: Graph, target: Target, options: Options) -> Iterator[Goal]:
    """Yield the optimisation goal of the network, and all other goals with which the C compiler gets the same
    options."""
    flags = FAMILIES[target.isa].options
    for name in dict.fromkeys((options.optimize, *flags)):
        if flags[name] == flags[options.optimize]:
            yield list_goals_to_try(graph, replace(options, optimize=name), target)[0]


def _make_decision_by_user(claimed_region: ClaimedRegion) -> BackendDecision:
    """Return the decision for a region that is external because the user requested external code for all supported
    regions."""
    return BackendDecision(
        str(claimed_region.region.root.loc),
        claimed_region.backend.name,
        claimed_region.entry.name,
        True,
        "choice",
        claimed_region.code.differs,
    )


def _decide_region(task: RegionTask, records: Database | None, board: str) -> BackendDecision:
    """Decide whose code computes a region.

    microc's code is used if the results of the backend differ too much. Otherwise the code that is faster by
    measurement is used, or, without measurements, the code with fewer estimated instructions.
    """
    code, chosen = task.taken.code, _make_decision_by_user(task.taken)
    verdict = judge_region(task, records, board) if records is not None else RegionVerdict()
    measured = replace(
        chosen,
        by="measurement",
        ours=verdict.own_ticks,
        other=verdict.backend_ticks,
        unit=verdict.unit,
        why=verdict.description,
    )
    if code.differs:
        words = f"{task.backend_and_pattern}: {code.differs}" + (
            f"; {verdict.description}" if verdict.description else ""
        )
        return replace(measured, theirs=False, by="difference", why=words)
    if verdict.is_decisive:
        words = (
            verdict.description if verdict.own_ticks is None else f"{task.backend_and_pattern} {verdict.description}"
        )
        return measured if verdict.is_backend_faster else replace(measured, theirs=False, why=words)
    ours = estimate(task.ours[0].control.func, task.target).instructions
    priced = replace(chosen, by="cost", ours=ours, other=code.instructions, why=verdict.why)
    if ours > code.instructions:
        return priced
    words = f"about {ours:,.0f} instructions; {task.backend_and_pattern} takes about {code.instructions:,.0f}"
    return replace(priced, theirs=False, why="; ".join(filter(None, (words, verdict.why))))


def _open_backends(target: Target, options: Options) -> tuple[tuple[Backend, ...], LibraryPaths]:
    """Return the backends that the options name, and the path of each backend's library, by the backend's name.

    Raises the errors of a backend that finds no usable library at its path.
    """
    for name in options.external:
        if name not in BACKENDS:
            raise UsageError(
                f"external: there is no backend {name!r}", hint=known_names_hint(name, sorted(BACKENDS), "backends")
            )
    library_paths = {name: BACKENDS[name].on(place, target) for name, place in options.external.items()}
    backends = tuple(_configure_for_library(BACKENDS[name], place) for name, place in library_paths.items())
    for backend in backends:
        backend.open(library_paths[backend.name], target, ())
    return backends, library_paths


def _configure_for_library(backend: Backend, library_path: str) -> Backend:
    """Return the backend, configured for the library at ``library_path``."""
    return backend.given(library_path) if backend.given is not None else backend


def _run_and_partition(
    passes: RunPasses, backends: Sequence[Backend], target: Target, excluded_regions: Collection[str]
) -> tuple[Partition, Graph, Streaming | None]:
    """Run the passes, and partition the graph in the middle into regions that the backends can compute.

    ``excluded_regions``: keys of regions to leave out. Return the partition, the final graph, and the description of
    its streaming or None.
    """
    result = Partition(Graph("", (), (), (), {}))

    def partition_graph(graph: Graph) -> Graph:
        nonlocal result
        result = partition(graph, backends, target, excluded_regions)
        return result.graph

    graph, streaming = passes(partition_graph)
    return result, graph, streaming


def _claimed_regions_by_code(partition: Partition) -> dict[tuple[str, ...], ClaimedRegion]:
    """Return the external regions of a partition as a dict. The keys are the attributes ``code`` of the regions'
    nodes."""
    return {(each.backend.name, str(k)): each for k, each in enumerate(partition.taken)}


def _make_region_tasks(
    partition: Partition, graph: Graph, target: Target, library_paths: LibraryPaths, goals: Sequence[Goal]
) -> Iterator[RegionTask]:
    """Yield a task for measuring each external region that the graph still contains after all passes, in order of
    execution.

    microc's code for the region is built for each of ``goals``.
    """
    by_code = _claimed_regions_by_code(partition)
    for node in graph.nodes:
        if node.op == EXTERNAL:
            taken = by_code[node.attr("code")]
            opened = partial(taken.backend.open, library_paths[taken.backend.name], target, taken.code.functions)
            yield make_region_task(graph, node, taken, opened, goals)


def _collect_backend_sources(
    backend: Backend, claimed_regions: Sequence[ClaimedRegion], target: Target, library_path: str
) -> Iterator[Sources]:
    """Yield the C sources of a backend, if it computes any of ``claimed_regions``."""
    mine = [each.code for each in claimed_regions if each.backend is backend]
    if mine:
        called = dict.fromkeys(name for code in mine for name in code.functions)
        yield backend.open(library_path, target, tuple(called))
