"""Operator fusion: which nodes become one kernel.

A kernel is an anchor (anything that is neither elementwise nor a view) and the elementwise nodes that follow it, or a chain
of elementwise nodes. A node joins the kernel of a producer when it is the only consumer, the element count stays, and its other
operands exist before the kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.transform.context import Pass, PassContext

MANDATORY = frozenset({"requantize", "requantize_float"})
"""An accumulator of 32 bits never goes to memory when its requantisation follows, whatever the optimisation level."""


@dataclass
class _Groups:
    """Groups under construction: the group of every value, and the values each group waits for."""

    graph: Graph
    of: dict[str, str] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)

    def depends(self, value: str, group: str) -> bool:
        """Whether ``value`` is computed from what ``group`` makes: then the group cannot wait for it."""
        stack, seen = [value], set()
        while stack:
            name = stack.pop()
            owner = self.of.get(name, name)
            if owner == group:
                return True
            if owner not in seen:
                seen.add(owner)
                stack.extend(self.needs.get(owner, ()))
        return False


def fuse(graph: Graph, context: PassContext) -> Graph:
    """Set ``Node.group`` on every node but views. Level 0 fuses requantisation only; ``fuse_add=False`` keeps sums apart."""
    groups = _Groups(graph)
    consumers = graph.consumers()
    kept = {*graph.outputs, *graph.updates.values()}
    nodes: list[Node] = []
    for number, node in enumerate(graph.nodes):
        definition = registry.get(node.op)
        inputs = {name for name in node.inputs if name}
        if definition.view:
            for name in node.outputs:
                groups.needs[name] = inputs
            nodes.append(node)
            continue
        group = ""
        if definition.elementwise and (context.opt_level > 0 or node.op in MANDATORY):
            group = _join(groups, node, consumers, kept, context)
        group = group or f"k{number}"
        groups.needs[group] = groups.needs.get(group, set()) | {n for n in inputs if groups.of.get(n) != group}
        groups.of.update(dict.fromkeys((name for name in node.outputs if name), group))
        nodes.append(replace(node, group=group))
    return graph.with_nodes(nodes)


def _join(
    groups: _Groups, node: Node, consumers: dict[str, tuple[Node, ...]], kept: set[str], context: PassContext
) -> str:
    """The group of the producer that ``node`` can join: the one computed last, whose result then never goes to memory."""
    graph = groups.graph
    size = graph.types[node.outputs[0]].size
    whole = {node.inputs[k] for k in registry.get(node.op).whole if k < len(node.inputs)}
    variable = [name for name in dict.fromkeys(node.inputs) if name in groups.of and name not in whole]
    if len(variable) > 1 and context.options.get("fuse_add") is False:
        return ""
    for name in reversed(variable):
        group = groups.of[name]
        alone = len(consumers[name]) == 1 and name not in kept and graph.types[name].size == size
        others = [n for n in node.inputs if n and n != name]
        if alone and _single_output(graph, name) and not any(groups.depends(n, group) for n in others):
            return group
    return ""


def _single_output(graph: Graph, name: str) -> bool:
    """Whether the node that makes a value makes nothing else."""
    return all(len([o for o in node.outputs if o]) == 1 for node in graph.nodes if name in node.outputs)


PASS = Pass("fuse", fuse, 0)
