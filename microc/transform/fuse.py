"""Operator fusion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from microc import te
from microc.base import dtypes
from microc.graph.ir import Graph, Node, fresh_name
from microc.ops import registry
from microc.tir import ir
from microc.tir.rewrite import children
from microc.transform.pass_context import Pass, PassContext

# ---- How often the expression of an elementwise operator names each of its operands: fused chains multiply these
# numbers.


def written(graph: Graph, node: Node) -> tuple[int, ...]:
    """By operand, at least once each. ``node`` is elementwise."""
    definition = registry.get(node.op)
    assert definition.scalar is not None
    args: list[Any] = []
    for k, name in enumerate(node.inputs):
        if not name:
            args.append(None)
        elif k in definition.whole:
            args.append(te.placeholder(graph.types[name].shape, graph.types[name].dtype, f"x{k}"))
        else:
            args.append(ir.Var(f"x{k}", graph.types[name].dtype))
    known: dict[int, tuple[int, ...]] = {}
    for k, arg in enumerate(args):
        known[id(arg)] = tuple(int(k == position) for position in range(len(args)))
    return tuple(max(count, 1) for count in _counted(definition.scalar(node.attrs, args), known, len(args)))


def _counted(expr: ir.Expr, known: dict[int, tuple[int, ...]], width: int) -> tuple[int, ...]:
    """The sum over what an expression is made of; parts that it shares are counted once and added as often as they stand."""
    if id(expr) not in known:
        parts = [_counted(part, known, width) for part in children(expr)]
        known[id(expr)] = tuple(map(sum, zip(*parts, strict=True))) if parts else (0,) * width
    return known[id(expr)]


# ---- Operator fusion: which nodes become one kernel.
#
# A kernel is an anchor (anything that is neither elementwise nor a view) and the elementwise nodes that lead from its result to
# another one, or elementwise nodes alone. Inside a kernel every value has the result's element count, so that nothing is
# computed twice. The result alone is read outside: no path leaves a kernel and comes back.

MANDATORY = frozenset(("requantize", "requantize_float"))
"""An accumulator of 32 bits never goes to memory when its requantisation follows, whatever the optimisation level."""

REUSED = 2
"""So many elementwise values of a kernel may be used more than once: the expression of each is written down for every use."""

MOST = 64
"""So many nodes make a kernel at most: longer expressions than any network has take time that grows with their square."""

MOST_LOADS, FEW_LOADS, LOADS_IN_ALL = 640, 32, 6144
"""So many operands does the expression of a kernel write down at most (an operator that names its operand twice doubles it), and
so many all kernels of a network that have more than a few: the time that expressions take grows with them."""

_WIDENING = frozenset(("dequantize", "cast"))


def fuse(graph: Graph, context: PassContext) -> Graph:
    """Set ``Node.group`` on every node but views, and put the nodes of a group side by side, the anchor first.

    Level 0 fuses requantisation only. With option ``fuse_add=False``, operators on two computed operands join no kernel before
    them.
    """
    if context.opt_level > 0:
        graph = _with_own_copies(graph)
    return _in_order(graph, _Groups(graph, context).run())


def _with_own_copies(graph: Graph) -> Graph:
    """Give every elementwise reader its own copy of a node that only widens its operand: reading bytes twice is cheaper than
    keeping them as floats."""
    readers = graph.consumers()
    taken = set(graph.types)
    types = dict(graph.types)
    copies: dict[tuple[str, int], str] = {}
    nodes: list[Node] = []
    places = {id(node): place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        inputs = tuple(copies.get((name, places[id(node)]), name) for name in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        made = node.outputs[0]
        if not _widens(graph, node) or len(readers.get(made, ())) < 2:
            continue
        for reader in readers[made]:
            if registry.get(reader.op).elementwise and graph.types[reader.outputs[0]].size == types[made].size:
                name = fresh_name(taken, f"{made}.copy")
                taken.add(name)
                types[name] = types[made]
                copies[made, places[id(reader)]] = name
                nodes.append(replace(node, outputs=(name,)))
    return _without_unread(replace(graph, types=types).with_nodes(nodes)) if copies else graph


def _widens(graph: Graph, node: Node) -> bool:
    """Whether a node's result is its operand in a larger dtype."""
    if node.op not in _WIDENING:
        return False
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    return dtypes.nbytes(result.dtype) > dtypes.nbytes(source.dtype)


def _without_unread(graph: Graph) -> Graph:
    """Originals of which every reader got a copy go."""
    read = {*graph.outputs, *graph.updates.values(), *(name for node in graph.nodes for name in node.inputs)}
    return graph.with_nodes(node for node in graph.nodes if not read.isdisjoint(node.outputs))


class _Groups:
    """Groups under construction, by the names they get first; ``merged`` says what a group has become part of.

    ``maker`` holds the group of every value of a node with one result, ``made`` the values of a group, ``anchored`` the groups
    with an anchor, ``reused`` the elementwise values that are used more than once.
    """

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph, self.context = graph, context
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.maker: dict[str, str] = {}
        self.merged: dict[str, str] = {}
        self.anchored: set[str] = set()
        self.made: dict[str, list[str]] = {}
        self.reused: set[str] = set()
        self.loads: dict[str, int] = {}
        self.left = LOADS_IN_ALL
        self.spent: dict[str, int] = {}

    def run(self) -> list[str]:
        """The group of every node, empty for views."""
        found = [self.place(number, node) for number, node in enumerate(self.graph.nodes)]
        return [self.final(group) for group in found]

    def final(self, group: str) -> str:
        last = group
        while last in self.merged:
            last = self.merged[last]
        while group != last:  # the next one who asks finds it at once
            self.merged[group], group = last, self.merged[group]
        return last

    def place(self, number: int, node: Node) -> str:
        definition = registry.get(node.op)
        if definition.view:
            return ""
        group = f"k{number}"
        outputs = [name for name in node.outputs if name]
        self.made[group] = outputs
        if definition.regions:
            return group
        if len(outputs) == 1:
            self.maker[outputs[0]] = group
        if not definition.elementwise:
            self.anchored.add(group)
            return group
        if sum(reader.inputs.count(outputs[0]) for reader in self.readers.get(outputs[0], ())) > 1:
            self.reused.add(outputs[0])
        if self.context.opt_level > 0 or node.op in MANDATORY:
            self.join(node, group)
        return group

    def join(self, node: Node, group: str) -> None:
        """Merge the kernels of a node's operands with it: all without anchor, and of the others the one that runs last."""
        whole = registry.get(node.op).whole
        operands = [name for k, name in enumerate(node.inputs) if name and k not in whole]
        varying = {name for name in operands if name not in self.graph.consts}
        if len(varying) > 1 and self.context.options.get("fuse_add") is False:
            return
        found = {self.final(self.maker[name]) for name in varying if name in self.maker}
        anchors = sorted(found & self.anchored, key=_number)
        chosen = (found - self.anchored if self.context.opt_level > 0 else set()) | set(anchors[-1:])
        size = self.graph.types[node.outputs[0]].size
        while chosen:
            inside = {*chosen, group}
            open_ = {other for other in chosen if not self.closes(other, inside, size)}
            if not open_:
                break
            chosen -= open_
        if sum(name in self.reused for other in chosen for name in self.made[other]) > REUSED:
            return
        loads = self.written(node, chosen)
        spent = sum(self.spent.get(other, 0) for other in chosen)
        many, nodes = loads if loads > FEW_LOADS else 0, sum(len(self.made[other]) for other in chosen)
        if (nodes >= MOST or loads > MOST_LOADS or many - spent > self.left) and node.op not in MANDATORY:
            return
        self.left -= many - spent
        self.loads[node.outputs[0]], self.spent[group] = loads, many
        for other in chosen:
            self.merged[other] = group
            self.made[group] = [*self.made.pop(other), *self.made[group]]
        if chosen & self.anchored:
            self.anchored.add(group)

    def written(self, node: Node, chosen: set[str]) -> int:
        """How many operands the expression of a node writes down, those of the groups ``chosen`` in it."""
        total = 0
        for name, count in zip(node.inputs, written(self.graph, node), strict=True):
            joined = name in self.maker and self.final(self.maker[name]) in chosen
            total += count * (self.loads.get(name, 1) if joined else 1)
        return total

    def closes(self, group: str, inside: set[str], size: int) -> bool:
        """Whether all that a group makes has ``size`` elements and is read by the groups ``inside`` alone, element by element."""
        for name in self.made[group]:
            if name in self.kept or self.graph.types[name].size != size:
                return False
            readers = self.readers.get(name, ())
            if any(self.group_of(reader) not in inside or _from_memory(reader, name) for reader in readers):
                return False
        return True

    def group_of(self, node: Node) -> str:
        """The group of a node with one result that has been placed; empty for others."""
        return self.final(self.maker.get(node.outputs[0], ""))


def _from_memory(node: Node, name: str) -> bool:
    """Whether a node needs all of a value at once, or each element so often that its expression would be written down again and
    again."""
    definition = registry.get(node.op)
    return not definition.elementwise or definition.repeats or any(node.inputs[k] == name for k in definition.whole)


def _number(group: str) -> int:
    return int(group[1:])


def _in_order(graph: Graph, groups: Iterable[str]) -> Graph:
    """The nodes with their groups, each group where its last node stood. The anchor comes first: what else precedes it in the
    group is not what it reads, which nobody else may read."""
    placed = [replace(node, group=group) for node, group in zip(graph.nodes, groups, strict=True)]
    members: dict[str, list[Node]] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(placed):
        members.setdefault(node.group, []).append(node)
        last[node.group] = position
    nodes: list[Node] = []
    for position, node in enumerate(placed):
        if not node.group:
            nodes.append(node)
        elif last[node.group] == position:
            nodes.extend(sorted(members[node.group], key=lambda n: registry.get(n.op).elementwise))
    return graph.with_nodes(nodes)


PASS = Pass("fuse", fuse, 0)
