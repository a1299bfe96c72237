"""What is tuned: the kernels of a network, equal ones once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from microc.driver.compile.kernel import algorithms_of, chosen, key_of
from microc.driver.compile.maker import Compiled, Group
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice
from microc.target import Goal, Target

NAME = "kernel"
"""What functions are called that are lowered to be compared."""


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
    """One kernel. ``layers``: where the network has it, in order of execution; ``uses`` as in ``choose``; ``lowered``: an entry
    for every algorithm; ``untuned``: what is taken without records first, then what rules choose for the network's goal and for
    others."""

    graph: Graph
    layers: tuple[str, ...]
    op: str
    target: Target
    uses: int
    lowered: tuple[LoweredGroup, ...]
    untuned: tuple[Untuned, ...]

    @property
    def name(self) -> str:
        """The first of its layers."""
        return self.layers[0]

    @cached_property
    def key(self) -> str:
        """What a record is found by."""
        return key_of(self.lowered, self.target)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(group.algorithm for group in self.lowered)


def tasks_of(made: Compiled, others: Sequence[Goal] = ()) -> tuple[Task, ...]:
    """The kernels of a compiled network that rules schedule, in order of execution: neither copies, nor control flow, nor
    changes of a part of a state in place, nor layers that are computed row by row. ``others``: goals beside the network's whose
    schedules are to be known, too."""
    graph, target, goal = made.make.graph, made.make.target, made.make.goal
    found: dict[str, Task] = {}
    for call in made.module.calls:
        origin = made.make.origins.get(call.writes)
        if not isinstance(origin, Group) or origin.in_place or registry.get(origin.nodes[0].op).regions:
            continue
        lowered = algorithms_of(graph, origin.nodes, target, NAME)
        key = key_of(lowered, target)
        if key in found:
            found[key] = replace(found[key], layers=(*found[key].layers, call.layer))
            continue
        untuned = [Untuned(g.name, *chosen(lowered, target, g, origin.uses)) for g in (goal, *others)]
        if made.make.shipped:
            untuned.insert(0, Untuned(SHIPPED, *chosen(lowered, target, goal, origin.uses, shipped=True)))
        part = part_of(graph, origin.nodes, lowered)
        found[key] = Task(part, (call.layer,), call.op, target, origin.uses, lowered, tuple(untuned))
    return tuple(found.values())


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
