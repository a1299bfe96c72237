"""What makes the functions of a graph: its groups scheduled, its control flow placed, its copies."""

from __future__ import annotations

from collections.abc import Sequence

from microc import te
from microc.driver.control import LoweredControl, lower_control
from microc.driver.kernel import Choices, alias_of, schedule_group
from microc.graph.ir import Graph, Node
from microc.module import Size
from microc.ops.lowering import LoweredGroup
from microc.ops.registry import Alias
from microc.schedule.choose import Choice, choose
from microc.schedule.rules import candidates
from microc.target import Goal, Target
from microc.tir import ir


def copy_func(graph: Graph, value: str, *, constant: bool) -> ir.PrimFunc:
    """A copy of a whole value, element by element; ``constant``: of one that lies in flash."""
    kind = graph.types[value]
    x = te.placeholder((kind.size,), kind.dtype, "x")
    out = te.compute((kind.size,), lambda i: x[i], "out", ("i",))
    return te.create_prim_func("copy", [] if constant else [x], [out], [x] if constant else [])


class Maker:
    """Makes the functions of a graph."""

    sizes: tuple[Size, ...] = ()
    """Sizes that are told when the network runs."""

    def __init__(self, graph: Graph, target: Target, goal: Goal) -> None:
        self.graph, self.target, self.goal = graph, target, goal
        self._choices: Choices = {}

    def group(self, nodes: Sequence[Node], uses: int, *, in_place: bool = False) -> tuple[LoweredGroup, Choice]:
        """A group, and its schedule; ``uses``: how many groups are alike, ``in_place`` as in :func:`schedule_group`."""
        return schedule_group(
            self.graph, nodes, self.target, self.goal, "kernel", uses, in_place=in_place, known=self._choices
        )

    def control(self, node: Node) -> LoweredControl:
        """A node of control flow."""
        return lower_control(self.graph, node, self.target, self.goal)

    def copy(self, value: str, *, constant: bool) -> ir.PrimFunc:
        """A copy of a whole value, as fast as the core moves its elements."""
        plain = copy_func(self.graph, value, constant=constant)
        return choose(candidates(plain, "copy", self.target, self.goal), self.target, self.goal).func

    def alias(self, node: Node) -> Alias | None:
        """How a node is done by placing tensors, if it can be."""
        return alias_of(self.graph, node)

    def extents(self, value: str) -> tuple[ir.Expr, ...]:
        """The shape of a value where it depends on sizes."""
        return ()
