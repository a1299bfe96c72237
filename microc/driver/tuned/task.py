"""What is tuned: the kernels of a network, equal ones once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

from microc.driver.compile.kernel import algorithms_of, chosen, function_of, key_of
from microc.driver.compile.maker import Compiled, Group
from microc.driver.control.function import goal_inside, groups_inside
from microc.graph.ir import Graph, Node
from microc.isa import FAMILIES
from microc.ops import registry
from microc.ops.external import EXTERNAL
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice
from microc.target import Goal, Target

NAME = "kernel"
"""What functions are called that are lowered to be compared."""
PART = ", part "
"""What stands between a loop's layer and the number of a kernel inside it."""
SHIPPED = "shipped"
"""The goal of what comes with the compiler."""


class Untuned(NamedTuple):
    """What the compiler takes by itself for a goal (:data:`SHIPPED`: for the network's, and not by rules): the algorithm by
    number, and the schedule."""

    goal: str
    number: int
    choice: Choice


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel. ``layers``: where the network has it, in order of execution, ``runs``: how often all of these run it in an
    inference, ``inside``: of control flow, as a part of that function; ``uses`` as in ``choose``; ``lowered``: an entry for every
    algorithm; ``untuned``: what is taken without records first, then what rules choose for the network's goal and for others."""

    graph: Graph
    layers: tuple[str, ...]
    op: str
    target: Target
    uses: int
    lowered: tuple[LoweredGroup, ...]
    untuned: tuple[Untuned, ...]
    runs: int = field(default=1, kw_only=True)
    inside: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        """The first of its layers."""
        return self.layers[0]

    @cached_property
    def key(self) -> str:
        """What a record is found by."""
        return key_of(self.lowered, self.target)

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """By algorithm, what kernels share that differ in constants alone."""
        return {group.algorithm: function_of(group) for group in self.lowered}

    @property
    def flags(self) -> tuple[str, ...]:
        """Options of the C compiler that it may have, which are a whole function's."""
        return () if self.inside else FAMILIES[self.target.isa].flags

    def with_layers(self, layers: Iterable[str], runs: int, *, inside: bool) -> Self:
        """The same kernel in more places."""
        return replace(self, layers=(*self.layers, *layers), runs=self.runs + runs, inside=self.inside or inside)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(group.algorithm for group in self.lowered)


def tasks_of(made: Compiled, others: Sequence[Goal] = ()) -> tuple[Task, ...]:
    """The kernels of a compiled network that rules schedule, in order of execution, those inside of control flow, too: neither
    copies, nor changes of a part of a state in place, nor layers that are computed row by row, nor loops where sizes vary.
    ``others``: goals beside the network's whose schedules are to be known, too."""
    target, shipped = made.make.target, made.make.shipped
    found: dict[str, Task] = {}
    for place in _places(made):
        lowered = algorithms_of(place.graph, place.nodes, target, NAME)
        key = key_of(lowered, target)
        if key in found:
            task = found[key]
            found[key] = task.with_layers((place.layer,), place.turns, inside=place.inside)
            continue
        goals = [goal_inside(each, place.turns) for each in (place.goal, *others)]
        room = inf if place.inside else made.make.workspaces.get(key, inf)
        untuned = [Untuned(each.name, *chosen(lowered, target, each, place.uses, workspace=room)) for each in goals]
        if shipped and not place.inside:
            choice = chosen(lowered, target, place.goal, place.uses, shipped=True, workspace=room)
            untuned.insert(0, Untuned(SHIPPED, *choice))
        part, op = part_of(place.graph, place.nodes, lowered), "+".join(node.op for node in place.nodes)
        found[key] = Task(
            part, (place.layer,), op, target, place.uses, lowered, tuple(untuned), runs=place.turns, inside=place.inside
        )
    return tuple(found.values())


class _Place(NamedTuple):
    """Where a network has a kernel, and what it was scheduled for; ``inside``: of control flow, which runs it ``turns`` times."""

    graph: Graph
    nodes: tuple[Node, ...]
    layer: str
    goal: Goal
    uses: int = 1
    turns: int = 1
    inside: bool = False


def _places(made: Compiled) -> Iterator[_Place]:
    graph = made.make.graph
    for call in made.module.calls:
        origin = made.make.origins.get(call.writes)
        if not isinstance(origin, Group) or origin.in_place or origin.nodes[0].op == EXTERNAL:
            continue
        if not registry.get(origin.nodes[0].op).regions:
            yield _Place(graph, origin.nodes, call.layer, made.make.goal_of(origin.nodes), origin.uses)
        elif not made.make.sizes:
            for number, (inner, nodes, turns) in enumerate(groups_inside(graph, origin.nodes[0])):
                goal = made.make.goal_of(origin.nodes)
                yield _Place(inner, nodes, f"{call.layer}{PART}{number}", goal, turns=turns, inside=True)


def part_of(graph: Graph, nodes: Sequence[Node], lowered: Sequence[LoweredGroup]) -> Graph:
    """The nodes of a kernel as a graph of their own, whose inputs are what the kernel reads."""
    inputs = _once(p.value for group in lowered for p in group.params if p.array is None)
    outputs = lowered[0].outputs
    named = {name for node in nodes for name in (*node.inputs, *node.outputs) if name} | set(inputs)
    types = {name: graph.types[name] for name in graph.types if name in named}
    consts = {name: graph.consts[name] for name in graph.consts if name in named}
    return Graph("tuned", inputs, outputs, tuple(nodes), types, consts)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
