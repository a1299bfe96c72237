# SPDX-License-Identifier: Apache-2.0
"""Operator fusion: the nodes of a graph are grouped into kernels.

:func:`fuse` gives each elementwise reader a copy of a node that only widens its operand, merges every elementwise node
with the kernels of its operands (:class:`_FusionGroups`), and makes the nodes of a group adjacent, the anchor first.
"""

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

# ---- Number of times that the scalar expression of an elementwise operator uses each operand. In a fused chain these numbers
# multiply, because the expression of an intermediate value is repeated at every use.


def count_operand_uses(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return for each operand of an elementwise ``node`` the number of times that the node's scalar expression uses it,
    at least 1."""
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
    uses: dict[int, tuple[int, ...]] = {}
    for k, arg in enumerate(args):
        uses[id(arg)] = tuple(int(k == position) for position in range(len(args)))
    return tuple(
        max(n_uses, 1) for n_uses in _count_operand_uses_in_expr(definition.scalar(node.attrs, args), uses, len(args))
    )


def _count_operand_uses_in_expr(
    expr: ir.Expr, counts_by_expr_id: dict[int, tuple[int, ...]], operand_count: int
) -> tuple[int, ...]:
    """Return the number of uses of each operand in ``expr``.

    A shared subexpression is traversed once; its uses are counted again at each occurrence. ``counts_by_expr_id``
    stores the results by expression id."""
    if id(expr) not in counts_by_expr_id:
        operands = [
            _count_operand_uses_in_expr(operand, counts_by_expr_id, operand_count) for operand in children(expr)
        ]
        counts_by_expr_id[id(expr)] = tuple(map(sum, zip(*operands, strict=True))) if operands else (0,) * operand_count
    return counts_by_expr_id[id(expr)]


# ---- Operator fusion.
#
# A kernel consists of an anchor (any node that is neither elementwise nor a view) and of the elementwise nodes on paths from the
# anchor to the kernel's result, or of elementwise nodes alone. Inside a kernel every value has as many elements as the result, so
# that nothing is computed twice. Only the result is read outside the kernel, so that no path leaves a kernel and re-enters it.

MANDATORY = frozenset(("requantize", "requantize_float"))
"""Operators that are fused at every optimisation level. If the requantisation of an int32 accumulator is in the same
kernel, the accumulator is not stored."""

REUSED = 2
"""Largest number of elementwise values in a kernel that are used more than once. Each use repeats the value's
expression."""

MAX_KERNEL_NODES = 64
"""Largest number of nodes in a kernel, more than any known network needs: the time to compile an expression grows with
the square of its length."""

MOST_LOADS, FEW_LOADS, LOADS_IN_ALL = 640, 32, 6144
"""Limits of the number of operands in the expression of a kernel, because compile time grows with it. An operator that
uses its operand twice doubles the number.

``MOST_LOADS`` is the limit of one kernel. ``LOADS_IN_ALL`` is the limit of the sum over those kernels of a network that
have more than ``FEW_LOADS`` operands."""

_WIDENING = frozenset(("dequantize", "cast"))


def fuse(graph: Graph, context: PassContext) -> Graph:
    """Set ``Node.group`` on every node except views, and make the nodes of a group adjacent, the anchor first.

    Level 0 fuses requantisation only. With option ``fuse_add=False``, an operator on two computed operands does not
    join the kernels that compute them."""
    if context.opt_level > 0:
        graph = _duplicate_widening_nodes(graph)
    return _order_by_group(graph, _FusionGroups(graph, context).assign_groups())


def _duplicate_widening_nodes(graph: Graph) -> Graph:
    """Give every elementwise reader its own copy of a node that only widens its operand.

    Each kernel then reads the narrow value, which is cheaper than to store the wide one."""
    readers = graph.consumers()
    taken = set(graph.types)
    types = dict(graph.types)
    copies: dict[tuple[str, int], str] = {}
    nodes: list[Node] = []
    positions = {id(node): position for position, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        inputs = tuple(copies.get((name, positions[id(node)]), name) for name in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        value = node.outputs[0]
        if not _only_widens_dtype(graph, node) or len(readers.get(value, ())) < 2:
            continue
        for reader in readers[value]:
            if registry.get(reader.op).elementwise and graph.types[reader.outputs[0]].size == types[value].size:
                name = fresh_name(taken, f"{value}.copy")
                taken.add(name)
                types[name] = types[value]
                copies[value, positions[id(reader)]] = name
                nodes.append(replace(node, outputs=(name,)))
    return _remove_unread_nodes(replace(graph, types=types).with_nodes(nodes)) if copies else graph


def _only_widens_dtype(graph: Graph, node: Node) -> bool:
    """Test whether a node only converts its operand to a larger dtype."""
    if node.op not in _WIDENING:
        return False
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    return dtypes.nbytes(result.dtype) > dtypes.nbytes(source.dtype)


def _remove_unread_nodes(graph: Graph) -> Graph:
    """Remove nodes whose results have no readers."""
    read = {*graph.outputs, *graph.updates.values(), *(name for node in graph.nodes for name in node.inputs)}
    return graph.with_nodes(node for node in graph.nodes if not read.isdisjoint(node.outputs))


class _FusionGroups:
    """Groups of nodes that become kernels, under construction. A group is named ``k`` plus the index of its first node.

    ``merged`` maps a group to the group into which it was merged. ``group_by_value`` maps the value of a node with one
    result to its group, ``values_by_group`` a group to its values. ``anchored`` contains groups with an anchor,
    ``reused`` elementwise values that are used more than once. ``loads`` maps a value to the number of operands in its
    expression. ``remaining_loads`` is the unused part of ``LOADS_IN_ALL`` (limit of the operands of all kernels), and
    ``spent_loads`` maps a group to the part that it uses."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph, self.context = graph, context
        self.readers = graph.consumers()
        self.kept = {*graph.outputs, *graph.updates.values()}
        self.group_by_value: dict[str, str] = {}
        self.merged: dict[str, str] = {}
        self.anchored: set[str] = set()
        self.values_by_group: dict[str, list[str]] = {}
        self.reused: set[str] = set()
        self.loads: dict[str, int] = {}
        self.remaining_loads = LOADS_IN_ALL
        self.spent_loads: dict[str, int] = {}

    def assign_groups(self) -> list[str]:
        """Return the final group of every node; it is empty for views."""
        groups = [self.add_node(number, node) for number, node in enumerate(self.graph.nodes)]
        return [self.find_root_group(group) for group in groups]

    def find_root_group(self, group: str) -> str:
        """Return the group that contains ``group`` after all mergers (union-find with path compression)."""
        last = group
        while last in self.merged:
            last = self.merged[last]
        while group != last:
            self.merged[group], group = last, self.merged[group]
        return last

    def add_node(self, node_index: int, node: Node) -> str:
        """Return a new group for the node. The groups of its operands are merged into it if the node may be fused."""
        definition = registry.get(node.op)
        if definition.view:
            return ""
        group = f"k{node_index}"
        outputs = [name for name in node.outputs if name]
        self.values_by_group[group] = outputs
        if definition.regions:
            return group
        if len(outputs) == 1:
            self.group_by_value[outputs[0]] = group
        if not definition.elementwise:
            self.anchored.add(group)
            return group
        if sum(reader.inputs.count(outputs[0]) for reader in self.readers.get(outputs[0], ())) > 1:
            self.reused.add(outputs[0])
        if self.context.opt_level > 0 or node.op in MANDATORY:
            self.merge_operands(node, group)
        return group

    def merge_operands(self, node: Node, group: str) -> None:
        """Merge the kernels that compute the node's operands into the node's group.

        All kernels without an anchor are merged, and of the kernels with an anchor the one that runs last. Kernels are
        left out if their values have other readers, and none is merged if a limit would be exceeded."""
        whole = registry.get(node.op).whole
        operands = [name for k, name in enumerate(node.inputs) if name and k not in whole]
        varying = {name for name in operands if name not in self.graph.consts}
        if len(varying) > 1 and self.context.options.get("fuse_add") is False:
            return
        operand_groups = {
            self.find_root_group(self.group_by_value[name]) for name in varying if name in self.group_by_value
        }
        # A kernel has one anchor: the operand's anchor that runs last, because results of the others must exist before it runs.
        anchors = sorted(operand_groups & self.anchored, key=_first_node_index)
        chosen = (operand_groups - self.anchored if self.context.opt_level > 0 else set()) | set(anchors[-1:])
        size = self.graph.types[node.outputs[0]].size
        # A group that is left out becomes an outside reader, so that groups which it reads may no longer be closed: repeat.
        while chosen:
            inside = {*chosen, group}
            not_closed = {other for other in chosen if not self.is_read_elementwise_only_by(other, inside, size)}
            if not not_closed:
                break
            chosen -= not_closed
        if sum(name in self.reused for other in chosen for name in self.values_by_group[other]) > REUSED:
            return
        loads = self.count_loads(node, chosen)
        # The merged kernel replaces the chosen groups, so that their share of LOADS_IN_ALL becomes free.
        spent = sum(self.spent_loads.get(other, 0) for other in chosen)
        charged, nodes = loads if loads > FEW_LOADS else 0, sum(len(self.values_by_group[other]) for other in chosen)
        if (
            nodes >= MAX_KERNEL_NODES or loads > MOST_LOADS or charged - spent > self.remaining_loads
        ) and node.op not in MANDATORY:
            return
        self.remaining_loads -= charged - spent
        self.loads[node.outputs[0]], self.spent_loads[group] = loads, charged
        for other in chosen:
            self.merged[other] = group
            self.values_by_group[group] = [*self.values_by_group.pop(other), *self.values_by_group[group]]
        if chosen & self.anchored:
            self.anchored.add(group)

    def count_loads(self, node: Node, inlined_groups: set[str]) -> int:
        """Return the number of operands in the node's expression after the expressions of ``inlined_groups`` have been
        substituted in it."""
        total = 0
        for name, uses in zip(node.inputs, count_operand_uses(self.graph, node), strict=True):
            is_merged = (
                name in self.group_by_value and self.find_root_group(self.group_by_value[name]) in inlined_groups
            )
            total += uses * (self.loads.get(name, 1) if is_merged else 1)
        return total

    def is_read_elementwise_only_by(self, group: str, reading_groups: set[str], element_count: int) -> bool:
        """Test whether the values of a group have ``element_count`` elements and are read element by element by
        ``reading_groups`` only."""
        for name in self.values_by_group[group]:
            if name in self.kept or self.graph.types[name].size != element_count:
                return False
            readers = self.readers.get(name, ())
            if any(
                self.find_group_of_node(reader) not in reading_groups or _needs_stored_operand(reader, name)
                for reader in readers
            ):
                return False
        return True

    def find_group_of_node(self, node: Node) -> str:
        """Return the current group of a node with one result; return an empty string if the node has not been added."""
        return self.find_root_group(self.group_by_value.get(node.outputs[0], ""))


def _needs_stored_operand(node: Node, value_name: str) -> bool:
    """Test whether a node needs the value ``value_name`` to be stored.

    It does if it indexes the value as a tensor (``OpDef.whole``), or if it uses each element so often that inlining
    would repeat the element's expression too often."""
    definition = registry.get(node.op)
    return (
        not definition.elementwise or definition.repeats or any(node.inputs[k] == value_name for k in definition.whole)
    )


def _first_node_index(group: str) -> int:
    """Return the index of the first node of a group."""
    return int(group[1:])


def _order_by_group(graph: Graph, groups: Iterable[str]) -> Graph:
    """Set the group of each node and move all nodes of a group to the position of its last node.

    The anchor comes first. It does not depend on other nodes of the group, because the values of these nodes are read
    inside the group only."""
    grouped = [replace(node, group=group) for node, group in zip(graph.nodes, groups, strict=True)]
    members: dict[str, list[Node]] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(grouped):
        members.setdefault(node.group, []).append(node)
        last[node.group] = position
    nodes: list[Node] = []
    for position, node in enumerate(grouped):
        if not node.group:
            nodes.append(node)
        elif last[node.group] == position:
            nodes.extend(sorted(members[node.group], key=lambda n: registry.get(n.op).elementwise))
    return graph.with_nodes(nodes)


PASS = Pass("fuse", fuse, 0)
