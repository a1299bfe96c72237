"""Control flow becomes one function: loops and conditions around the kernels of the graphs inside.

Each graph's groups are scheduled and lowered as any others; their statements are then placed, in order, on flat buffers: what is
computed inside lives in workspaces, what a loop carries in the loop's own results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from microc.driver.compile.kernel import alias_of, groups_of
from microc.driver.control.memory import ZERO, Memory, Names
from microc.driver.control.statements import Flow, Places, Step
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.control import turns_of
from microc.ops.lowering import LoweredGroup, Param
from microc.schedule.choose import Choice
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.stream import Place, names_of
from microc.tir.verify import verify

Inside = Callable[[Graph, Sequence[Node], int], tuple[LoweredGroup, Choice]]
"""What schedules the groups inside, each of which runs so many times when the node does."""


@frozen
class LoweredControl:
    """The function; ``params`` are what its parameters are bound to, all but results and workspaces."""

    func: ir.PrimFunc
    params: tuple[Param, ...]


def goal_inside(goal: Goal, turns: int) -> Goal:
    """The goal for a group that runs ``turns`` times: its code lies in flash once, an instruction is paid every time."""
    return replace(goal, price=goal.price / turns)


def place_control(graph: Graph, node: Node, schedule: Inside, target: Target | None) -> LoweredControl:
    """The function of a node that has graphs inside, whose groups ``schedule`` makes. Without a target, where sizes vary, values
    inside never share memory, so that where they lie does not depend on what is larger, and copies are plain loops."""
    step = _lowered(graph, (node,), schedule)
    taken = {name for func in _functions(step) for name in names_of(func)}
    names = Names(taken)
    memory = Memory(names, reuse=target is not None)
    places: Places = {}
    for name in dict.fromkeys(name for name in node.inputs if name):
        if name in graph.consts:
            places[name] = Place(memory.constant("value", graph.consts[name].reshape(-1)), ZERO)
        else:
            places[name] = memory.data(name, graph.types[name].size, graph.types[name].dtype)
    kinds = [graph.types[name] for name in node.outputs]
    results = [ir.Buffer(names.fresh("result"), (kind.size,), kind.dtype) for kind in kinds]
    flow = Flow(names, memory, str(node.loc), target)
    body = flow.statements(step, places, [Place(buffer, ZERO) for buffer in results], "turn")
    body, buffers, params = memory.function(body, results)
    return LoweredControl(ir.PrimFunc("control", buffers, simplify_stmt(body)), params)


def groups_inside(graph: Graph, node: Node, turns: int = 1) -> list[tuple[Graph, tuple[Node, ...], int]]:
    """The groups that a node's graphs need kernels for, with their graphs and how often they run when the node runs ``turns``
    times, in the order that they are scheduled in."""
    if not registry.get(node.op).regions:
        return [] if _start_of_view(graph, (node,)) is not None else [(graph, (node,), turns)]
    found, turns = [], turns * turns_of(node)
    for name in registry.get(node.op).regions:
        inner: Graph = node.attr(name)
        for nodes in groups_of(inner):
            found += groups_inside(inner, nodes[0], turns) if len(nodes) == 1 else [(inner, nodes, turns)]
    return found


def _start_of_view(graph: Graph, nodes: tuple[Node, ...]) -> int | None:
    """The element of its first operand from which on a group's result lies there; None where it needs a kernel."""
    if registry.get(nodes[0].op).view:
        return 0
    alias = alias_of(graph, nodes[0]) if len(nodes) == 1 else None
    return None if alias is None else alias.source


def _lowered(graph: Graph, nodes: tuple[Node, ...], schedule: Inside, turns: int = 1) -> Step:
    """A group with its kernel, or with the steps of the graphs inside."""
    first = nodes[0]
    definition = registry.get(first.op)
    if definition.regions:
        turns *= turns_of(first)
        inside = {
            name: tuple(_lowered(first.attr(name), group, schedule, turns) for group in groups_of(first.attr(name)))
            for name in definition.regions
        }
        return Step(nodes, inside=inside)
    start = _start_of_view(graph, nodes)
    if start is not None:
        return Step(nodes, start=start)
    group, choice = schedule(graph, nodes, turns)
    if not choice.verified:
        verify(choice.func, tables=group.tables)  # while it is known which of the constants these are
    return Step(nodes, kernel=(group, choice))


def _functions(step: Step) -> list[ir.PrimFunc]:
    if step.inside is not None:
        return [func for steps in step.inside.values() for each in steps for func in _functions(each)]
    return [] if step.kernel is None else [step.kernel[1].func]
