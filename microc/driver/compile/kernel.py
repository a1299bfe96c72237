"""The groups of a graph, and the best schedule by cost of one: over every algorithm that suits it and what the rules make."""

from __future__ import annotations

from collections.abc import Sequence

from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, lower_algorithms, lower_update
from microc.ops.registry import Alias
from microc.schedule.choose import Choice, choose
from microc.schedule.rules import candidates
from microc.schedule.rules.algorithms import suits_core
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.text import to_text

Choices = dict[tuple[str, ...], tuple[int, Choice]]
"""What was chosen, the number of the algorithm and its schedule: by how often it is used and the functions of all algorithms."""


def groups_of(graph: Graph) -> list[tuple[Node, ...]]:
    """Nodes by kernel, in an order that respects dependences: a group runs where its last node stands."""
    last = {node.group: k for k, node in enumerate(graph.nodes) if node.group}
    found: list[tuple[Node, ...]] = []
    for k, node in enumerate(graph.nodes):
        if not node.group:
            found.append((node,))
        elif last[node.group] == k:
            found.append(tuple(n for n in graph.nodes if n.group == node.group))
    return found


def schedule_group(
    graph: Graph,
    nodes: Sequence[Node],
    target: Target,
    goal: Goal,
    name: str,
    uses: int = 1,
    *,
    in_place: bool = False,
    known: Choices | None = None,
) -> tuple[LoweredGroup, Choice]:
    """The group, lowered by the algorithm that was chosen, and its schedule; ``uses`` as in ``choose``.

    ``in_place``: the one node changes a part of its first operand where that lies. ``known``: choices for the same target and
    goal; a group whose functions are those of one before, but for the numbers in its constants, takes what that has.
    """
    lowered = algorithms_of(graph, nodes, target, name, in_place=in_place)
    known = {} if known is None else known
    key = (str(uses), *(f"{group.anchor.op} {to_text(group.func)}" for group in lowered))
    if key not in known:
        known[key] = _best(lowered, target, goal, uses)
    number, choice = known[key]
    return lowered[number], choice


def algorithms_of(
    graph: Graph, nodes: Sequence[Node], target: Target, name: str, *, in_place: bool = False
) -> tuple[LoweredGroup, ...]:
    """The group, lowered in every way that computes it and suits the core; ``in_place`` as in :func:`schedule_group`."""
    if in_place:
        return (lower_update(graph, nodes[0], target, name),)
    return lower_algorithms(graph, nodes, target, name, lambda algorithm: suits_core(algorithm, target))


def ways_of(lowered: Sequence[LoweredGroup], target: Target, goal: Goal) -> list[tuple[int, Schedule]]:
    """All that is chosen from: number of the algorithm, schedule."""
    return [
        (number, schedule)
        for number, group in enumerate(lowered)
        for schedule in candidates(group.func, group.anchor.op, target, goal)
    ]


def _best(lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int) -> tuple[int, Choice]:
    """The algorithm, by number, and the schedule for it."""
    found = ways_of(lowered, target, goal)
    choice = choose([schedule for _, schedule in found], target, goal, uses)
    return next(number for number, schedule in found if schedule is choice.schedule), choice


def alias_of(graph: Graph, node: Node) -> Alias | None:
    """How a node is done by placing tensors, if it can be."""
    alias = registry.get(node.op).alias
    if alias is None:
        return None
    kinds, made = ([graph.types[name] for name in names] for names in (node.inputs, node.outputs))
    return alias(node.attrs, kinds, made)
