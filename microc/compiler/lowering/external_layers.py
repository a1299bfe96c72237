"""Which parts of a network other people's code computes: those that the user's backends have code for, where it takes less than
ours does, by measurement or by cost, or all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from microc.base.immutable import frozen
from microc.codegen.output_files import replacing
from microc.codegen.render import Label
from microc.compiler.fit.budget import goals
from microc.compiler.options import Options
from microc.compiler.tuned.measured_regions import RegionTask, Verdict, region_task, verdict_of
from microc.compiler.tuned.records import Database, records_of
from microc.errors import UsageError, suggestion
from microc.external.backend import BACKENDS, Backend
from microc.external.partition import Partition, Taken, partition
from microc.graph.ir import Graph
from microc.isa import FAMILIES
from microc.module import Decision, Module, Sources, Streaming
from microc.ops.external_region import EXTERNAL
from microc.schedule.cost.cost_model import estimate
from microc.target import Goal, Target

REPORT = "external.txt"
"""Of a dump: a line for every region that a pattern found, and what became of it."""
Optimised = tuple[Graph, Streaming | None]
Places = Mapping[str, str]
"""Where the library of each backend is, as it is told: by the backend's name."""
Passes = Callable[[Callable[[Graph], Graph] | None], Optimised]
"""All passes over a network, with a step if there is one between those that spell formats alike and those for integers."""


@frozen
class Division:
    """A network between us and others: the graph after all passes, by the attribute ``code`` of a node what computes it, what
    that is built from, and why each region is whose."""

    graph: Graph
    streaming: Streaming | None
    external: Mapping[tuple[str, ...], Taken] = field(default_factory=dict)
    sources: tuple[Sources, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def built_from(self, module: Module) -> Module:
        """``module`` with what its external kernels are built from."""
        sources = self.sources if any(kernel.external for kernel in module.kernels) else ()
        return replace(module, sources=sources, decisions=self.decisions)

    def beside(self, module: Module, own: Callable[[], Module]) -> Module:
        """``module`` with the same steps in code of ours, where some are external."""
        return replace(module, own=own()) if module.sources else module


def divided(passes: Passes, target: Target, options: Options, board: str = "") -> Division:
    """The network as ``passes`` leave it, divided as the options say; ``board``: whose records are preferred.

    UsageError for a backend that does not exist, for one whose library is not where the user says, or not for ``target``.
    """
    if not options.external:
        return Division(*passes(None))
    if options.relocatable:
        raise UsageError("a network that is loaded has no external code", hint="leave out external, or relocatable")
    backends, places = _backends(target, options)
    records = records_of(options.tuned) if options.tuned is not None else None
    ours: dict[str, Decision] = {}
    wanted: tuple[Goal, ...] = ()
    while True:
        found, graph, streaming = _parted(passes, backends, target, ours)
        decided = {each.key: _chosen(each) for each in found.taken if options.external_choice == "all"}
        if options.external_choice == "cost":
            wanted = wanted or goals(graph, options, target)[:1]  # of the first graph, with which regions are measured
            for task in _tasks(found, graph, target, places, wanted):
                decided[task.taken.key] = _decided(task, records, board)
        more = {key: decision for key, decision in decided.items() if not decision.theirs}
        if not more:
            break
        ours |= more
    sources = tuple(
        each for backend in backends for each in _sources(backend, found.taken, target, places[backend.name])
    )
    decisions = (*decided.values(), *ours.values())
    if options.dump is not None:
        lines = (*map(str, decisions), *(f"{place}: ours, {why}" for place, why in found.refused))
        with replacing(options.dump / REPORT) as temporary:
            temporary.write_text("".join(f"{Label(line)}\n" for line in lines), encoding="utf-8")
    return Division(graph, streaming, _by_code(found), sources, decisions)


def regions(passes: Passes, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """What a network's backends have code for, equal regions once: those that are found first, then what patterns find without
    these. Our code is there for the network's goal, and for those that the C compiler has the same options for."""
    (backends, places), without = _backends(target, options), set[str]()
    tasks: dict[object, RegionTask] = {}
    wanted: tuple[Goal, ...] = ()
    while True:
        found, graph, _ = _parted(passes, backends, target, without)
        if not found.taken:
            return tuple(tasks.values())
        wanted = wanted or tuple(_alike(graph, target, options))
        for task in _tasks(found, graph, target, places, wanted):
            alike = task.key, task.digest, tuple(ours.trace for ours in task.ours)
            known = tasks.get(alike)
            tasks[alike] = task if known is None else known.with_layers(task.layers, task.runs, inside=False)
        without |= {taken.key for taken in found.taken}


def _alike(graph: Graph, target: Target, options: Options) -> Iterator[Goal]:
    """The network's goal, then others that are compiled with the same options."""
    told = FAMILIES[target.isa].options
    for name in dict.fromkeys((options.optimize, *told)):
        if told[name] == told[options.optimize]:
            yield goals(graph, replace(options, optimize=name), target)[0]


def _chosen(taken: Taken) -> Decision:
    """A region that is theirs because the user says so."""
    return Decision(
        str(taken.region.root.loc), taken.backend.name, taken.entry.name, True, "choice", taken.code.differs
    )


def _decided(task: RegionTask, records: Database | None, board: str) -> Decision:
    """Whose code a region gets: never theirs where that has not our bits; as it was measured; else by instructions."""
    code, chosen = task.taken.code, _chosen(task.taken)
    found = verdict_of(task, records, board) if records is not None else Verdict()
    measured = replace(chosen, by="measurement", ours=found.ours, other=found.theirs, unit=found.unit, why=found.words)
    if code.differs:
        words = f"{task.whose}: {code.differs}" + (f"; {found.words}" if found.words else "")
        return replace(measured, theirs=False, by="difference", why=words)
    if found.decides:
        words = found.words if found.ours is None else f"{task.whose} {found.words}"
        return measured if found.theirs_is_less else replace(measured, theirs=False, why=words)
    ours = estimate(task.ours[0].control.func, task.target).instructions
    priced = replace(chosen, by="cost", ours=ours, other=code.instructions, why=found.why)
    if ours > code.instructions:
        return priced
    words = f"about {ours:,.0f} instructions; {task.whose} takes about {code.instructions:,.0f}"
    return replace(priced, theirs=False, why="; ".join(filter(None, (words, found.why))))


def _backends(target: Target, options: Options) -> tuple[tuple[Backend, ...], Places]:
    """Those that the user names, whose libraries are there, and where."""
    for name in options.external:
        if name not in BACKENDS:
            raise UsageError(f"there is no backend {name!r}", hint=suggestion(name, sorted(BACKENDS), "backends"))
    places = {name: BACKENDS[name].on(place, target) for name, place in options.external.items()}
    backends = tuple(_backend(BACKENDS[name], place) for name, place in places.items())
    for backend in backends:
        backend.open(places[backend.name], target, ())
    return backends, places


def _backend(known: Backend, place: str) -> Backend:
    return known.given(place) if known.given is not None else known


def _parted(
    passes: Passes, backends: Sequence[Backend], target: Target, without: Collection[str]
) -> tuple[Partition, Graph, Streaming | None]:
    found = Partition(Graph("", (), (), (), {}))

    def between(graph: Graph) -> Graph:
        nonlocal found
        found = partition(graph, backends, target, without)
        return found.graph

    graph, streaming = passes(between)
    return found, graph, streaming


def _by_code(found: Partition) -> dict[tuple[str, ...], Taken]:
    """The regions by the attribute ``code`` of their nodes."""
    return {(each.backend.name, str(k)): each for k, each in enumerate(found.taken)}


def _tasks(
    found: Partition, graph: Graph, target: Target, places: Places, wanted: Sequence[Goal]
) -> Iterator[RegionTask]:
    """The regions whose results somebody reads, in order of execution, to be compared with our code for some goals."""
    by_code = _by_code(found)
    for node in graph.nodes:
        if node.op == EXTERNAL:
            taken = by_code[node.attr("code")]
            opened = partial(taken.backend.open, places[taken.backend.name], target, taken.code.functions)
            yield region_task(graph, node, taken, opened, wanted)


def _sources(backend: Backend, taken: Sequence[Taken], target: Target, place: str) -> Iterator[Sources]:
    """What the regions of a backend are built from, if it has any."""
    mine = [each.code for each in taken if each.backend is backend]
    if mine:
        called = dict.fromkeys(name for code in mine for name in code.functions)
        yield backend.open(place, target, tuple(called))
