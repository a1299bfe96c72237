"""Which parts of a network other people's code computes: those that the user's backends have code for, where it costs less than
ours does, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from microc.codegen.text import Label
from microc.driver.compile.budget import goals
from microc.driver.control.function import lower_control
from microc.driver.options import Options
from microc.errors import UsageError, suggestion
from microc.external.backend import Backend
from microc.external.known import BACKENDS
from microc.external.partition import Partition, Taken, partition
from microc.graph.ir import Graph, Node
from microc.module import Module, Sources, Streaming
from microc.ops.external import EXTERNAL
from microc.schedule.cost import estimate
from microc.target import Target

REPORT = "external.txt"
"""Of a dump: a line for every region that a pattern found, and what became of it."""
Optimised = tuple[Graph, Streaming | None]
Passes = Callable[[Callable[[Graph], Graph] | None], Optimised]
"""All passes over a network, with a step if there is one between those that spell formats alike and those for integers."""


@dataclass(frozen=True, slots=True)
class Division:
    """A network between us and others: the graph after all passes, by the attribute ``code`` of a node what computes it, what
    that is built from."""

    graph: Graph
    streaming: Streaming | None
    external: Mapping[tuple[str, ...], Taken] = field(default_factory=dict)
    sources: tuple[Sources, ...] = ()

    def built_from(self, module: Module) -> Module:
        """``module`` with what its external kernels are built from."""
        return replace(module, sources=self.sources) if any(kernel.external for kernel in module.kernels) else module

    def beside(self, module: Module, own: Callable[[], Module]) -> Module:
        """``module`` with the same steps in code of ours, where some are external."""
        return replace(module, own=own()) if module.sources else module


def divided(passes: Passes, target: Target, options: Options) -> Division:
    """The network as ``passes`` leave it, divided as the options say.

    UsageError for a backend that does not exist, for one whose library is not where the user says, or not for ``target``.
    """
    if not options.external:
        return Division(*passes(None))
    if options.relocatable:
        raise UsageError("a network that is loaded has no external code", hint="leave out external, or relocatable")
    places = {name: _known(name).on(place, target) for name, place in options.external.items()}
    backends = tuple(_backend(name, place) for name, place in places.items())
    for backend in backends:
        backend.open(places[backend.name], target, ())
    without: dict[str, str] = {}
    while True:
        found, graph, streaming = _parted(passes, backends, target, without)
        dear = _dear(found, graph, target, options) if options.external_choice == "cost" else {}
        if not dear:
            break
        without |= dear
    by_code: dict[tuple[str, ...], Taken] = {(each.backend.name, str(k)): each for k, each in enumerate(found.taken)}
    sources = tuple(
        each for backend in backends for each in _sources(backend, found.taken, target, places[backend.name])
    )
    lines = [
        *map(_line, found.taken),
        *without.values(),
        *(f"{place}: ours, {why}" for place, why in found.refused),
    ]
    if options.dump is not None:
        options.dump.mkdir(parents=True, exist_ok=True)
        (options.dump / REPORT).write_text("".join(f"{Label(line)}\n" for line in lines), encoding="utf-8")
    return Division(graph, streaming, by_code, sources)


def _line(taken: Taken) -> str:
    """Of a region that is theirs."""
    line = f"{taken.region.root.loc}: {taken.backend.name} {taken.entry.name}"
    return f"{line}; {taken.code.differs}" if taken.code.differs else line


def _known(name: str) -> Backend:
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}", hint=suggestion(name, sorted(BACKENDS), "backends"))
    return BACKENDS[name]


def _backend(name: str, place: str) -> Backend:
    found = BACKENDS[name]
    return found.given(place) if found.given is not None else found


def _parted(
    passes: Passes, backends: Sequence[Backend], target: Target, without: Mapping[str, str]
) -> tuple[Partition, Graph, Streaming | None]:
    found = Partition(Graph("", (), (), (), {}))

    def between(graph: Graph) -> Graph:
        nonlocal found
        found = partition(graph, backends, target, without)
        return found.graph

    graph, streaming = passes(between)
    return found, graph, streaming


def _dear(found: Partition, graph: Graph, target: Target, options: Options) -> dict[str, str]:
    """Regions that our code computes in no more instructions, and those that are not ours in every bit, by what their roots make,
    each with a line that says so."""
    nodes: dict[tuple[str, ...], Node] = {node.attr("code"): node for node in graph.nodes if node.op == EXTERNAL}
    goal = goals(graph, options)[0]
    dear: dict[str, str] = {}
    for number, taken in enumerate(found.taken):
        node = nodes.get((taken.backend.name, str(number)))
        if node is None:  # nobody reads what it makes
            continue
        if taken.code.differs:
            dear[taken.key] = (
                f"{taken.region.root.loc}: ours, {taken.backend.name} {taken.entry.name}: {taken.code.differs}"
            )
            continue
        own = estimate(lower_control(graph, node, target, goal).func, target).instructions
        if own <= taken.code.instructions:
            dear[taken.key] = (
                f"{taken.region.root.loc}: ours, about {own:,.0f} instructions; {taken.backend.name} "
                f"{taken.entry.name} takes about {taken.code.instructions:,.0f}"
            )
    return dear


def _sources(backend: Backend, taken: Sequence[Taken], target: Target, place: str) -> Iterator[Sources]:
    """What the regions of a backend are built from, if it has any."""
    mine = [each.code for each in taken if each.backend is backend]
    if mine:
        called = dict.fromkeys(name for code in mine for name in code.functions)
        yield backend.open(place, target, tuple(called))
