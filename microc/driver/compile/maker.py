"""What makes the functions of a graph: its groups scheduled, its control flow placed, its copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType

from microc import te
from microc.driver.compile.kernel import algorithms_of, alias_of, chosen, key_of, replayed
from microc.driver.compile.weights import stored
from microc.driver.control.function import LoweredControl, goal_inside, place_control
from microc.driver.stripes.kernel import Chain
from microc.errors import MicrocError
from microc.external.partition import Taken
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.module import Module, Size
from microc.ops.lowering import LoweredGroup, Param
from microc.ops.registry import Alias
from microc.schedule.choose import Choice, workspace_bytes
from microc.schedule.rules.threads import across_threads
from microc.schedule.step import Step
from microc.target import Goal, Target
from microc.tir import ir


@frozen
class Group:
    """Nodes that are one kernel, of control flow perhaps; ``uses``, ``in_place`` as in :meth:`Maker.group`."""

    nodes: tuple[Node, ...]
    uses: int = 1
    in_place: bool = False


@frozen
class Copy:
    """A copy of a whole value; ``constant``: of one that lies in flash."""

    value: str
    constant: bool


@frozen
class TunedSchedule:
    """A measured schedule: the algorithm by name, the rule, its steps."""

    algorithm: str
    rule: str
    trace: tuple[Step, ...]


TAKEN = ", tuned"
"""What the names of rules end with whose schedules were measured."""
Tuned = Mapping[str, TunedSchedule]
"""By :func:`key_of`."""
Workspaces = Mapping[str, int]
"""Bytes that kernels may take beside their operands, by :func:`key_of`; others any number."""
Goals = Mapping[str, Goal]
"""Of groups and nodes of control flow whose goal is another than the network's, by their last result."""
External = Mapping[tuple[str, ...], Taken]
"""Regions that somebody else's code computes, by the attribute ``code`` of their nodes."""
Origin = Group | Copy | Chain
"""What a call was made from."""


def lower_copy(graph: Graph, copy: Copy) -> LoweredGroup:
    """A copy, element by element."""
    value, constant = copy.value, copy.constant
    kind = graph.types[value]
    x = te.placeholder((kind.size,), kind.dtype, "x")
    out = te.compute((kind.size,), lambda i: x[i], "out", ("i",))
    func = te.create_prim_func("copy", [] if constant else [x], [out], [x] if constant else [])
    param, node = Param("x", value, graph.consts.get(value) if constant else None), Node("copy", (value,), ("out",))
    return LoweredGroup(func, (param,), ("out",), node, 0, (out,), (x,) if constant else ())


class Maker:
    """Makes the functions of a graph, whose large loops are split among ``threads``. ``tuned``: schedules of kernels that were
    measured, ``taken``: the keys of those that kernels have; ``shipped``: those that come with the compiler are taken;
    ``workspaces``: what is chosen keeps within these; ``goals`` of kernels for which the network's is not theirs. ``external``:
    regions with code of others; without, they are lowered as control flow is. ``origins``: what every call was made from, by the
    values that it writes."""

    sizes: tuple[Size, ...] = ()
    """Sizes that are told when the network runs."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        goal: Goal,
        threads: int = 1,
        tuned: Tuned = MappingProxyType({}),
        external: External = MappingProxyType({}),
        *,
        shipped: bool = False,
        workspaces: Workspaces = MappingProxyType({}),
        goals: Goals = MappingProxyType({}),
    ) -> None:
        self.graph, self.target, self.goal, self.threads = graph, target, goal, threads
        self.tuned, self.shipped, self.external, self.workspaces = tuned, shipped, external, workspaces
        self.goals = goals
        self.origins: dict[tuple[str, ...], Origin] = {}
        self.taken: set[str] = set()

    def group(self, nodes: Sequence[Node], uses: int, *, in_place: bool = False) -> tuple[LoweredGroup, Choice]:
        """A group, and its schedule; ``uses``: how many groups are alike, ``in_place`` as in :func:`schedule_group`."""
        lowered = algorithms_of(self.graph, nodes, self.target, "kernel", in_place=in_place)
        goal = self.goal_of(nodes)
        number, choice = self.scheduled(lowered, goal, uses)
        choice = stored(lowered[number], choice, self.target, goal, uses)
        return lowered[number], across_threads(choice, self.target, self.threads)

    def scheduled(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> tuple[int, Choice]:
        """The algorithm of a group, by number, and the schedule for it: as measured, as shipped, or as the rules choose."""
        limit = self._workspace(lowered)
        return self._tuned(lowered) or chosen(lowered, self.target, goal, uses, shipped=self.shipped, workspace=limit)

    def goal_of(self, nodes: Sequence[Node]) -> Goal:
        """What is to be least of a group, or of a node of control flow."""
        return self.goals.get(nodes[-1].outputs[0], self.goal)

    def room(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> float:
        """Bytes of workspace that a group's kernel is kept within: any number where it would keep within them by itself."""
        limit = self._workspace(lowered)
        if limit == inf:
            return inf
        _, choice = chosen(lowered, self.target, goal, uses, shipped=self.shipped)
        return limit if workspace_bytes(choice.func) > limit else inf

    def _workspace(self, lowered: Sequence[LoweredGroup]) -> float:
        return self.workspaces.get(key_of(lowered, self.target), inf) if self.workspaces else inf

    def inside(self, lowered: Sequence[LoweredGroup], goal: Goal) -> tuple[int, Choice]:
        """The same for a group inside of control flow; ``goal`` as in :func:`goal_inside`."""
        return self._tuned(lowered) or chosen(lowered, self.target, goal)

    def _tuned(self, lowered: Sequence[LoweredGroup]) -> tuple[int, Choice] | None:
        """What was measured to be best."""
        if not self.tuned or (found := self.tuned.get(key := key_of(lowered, self.target))) is None:
            return None
        try:
            number = next(k for k, group in enumerate(lowered) if group.algorithm == found.algorithm)
            choice = replayed(lowered[number], found.trace, found.rule + TAKEN)
        except (StopIteration, MicrocError):  # what constants promise is less here than in the layer that was measured
            return None
        self.taken.add(key)
        return number, choice

    def control(self, node: Node) -> LoweredControl:
        """A node of control flow."""

        def schedule(inner: Graph, nodes: Sequence[Node], turns: int) -> tuple[LoweredGroup, Choice]:
            lowered, goal = (
                algorithms_of(inner, nodes, self.target, "kernel"),
                goal_inside(self.goal_of((node,)), turns),
            )
            number, choice = self.inside(lowered, goal)
            return lowered[number], stored(lowered[number], choice, self.target, goal)

        return place_control(self.graph, node, schedule, self.target)

    def copy(self, copy: Copy) -> ir.PrimFunc:
        """A copy of a whole value, as fast as the core moves its elements."""
        choice = chosen((lower_copy(self.graph, copy),), self.target, self.goal)[1]
        return across_threads(choice, self.target, self.threads).func

    def alias(self, node: Node) -> Alias | None:
        """How a node is done by placing tensors, if it can be."""
        return alias_of(self.graph, node)

    def extents(self, value: str) -> tuple[ir.Expr, ...]:
        """The shape of a value where it depends on sizes."""
        return ()


@frozen
class Compiled:
    """A module, and what made its functions."""

    module: Module
    make: Maker
