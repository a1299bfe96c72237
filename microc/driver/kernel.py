"""One group becomes one schedule: of every algorithm that suits it and every schedule that the rules make the best by cost."""

from __future__ import annotations

from collections.abc import Sequence

from microc.graph.ir import Graph, Node
from microc.ops.lowering import LoweredGroup, lower_algorithms
from microc.schedule.choose import Choice, choose
from microc.schedule.rules import candidates
from microc.target import Goal, Target


def schedule_group(
    graph: Graph, nodes: Sequence[Node], target: Target, goal: Goal, name: str, uses: int = 1
) -> tuple[LoweredGroup, Choice]:
    """The group, lowered by the algorithm that was chosen, and its schedule; ``uses`` as in ``choose``."""
    found = [
        (group, schedule)
        for group in lower_algorithms(graph, nodes, target, name)
        for schedule in candidates(group.func, group.anchor.op, target, goal)
    ]
    choice = choose([schedule for _, schedule in found], target, goal, uses)
    return next(group for group, schedule in found if schedule is choice.schedule), choice
