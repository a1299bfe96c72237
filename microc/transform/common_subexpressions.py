"""Nodes that compute the same thing from the same inputs become one; equal constants become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from microc.graph.ir import Attr, Graph, Node
from microc.ops import registry
from microc.transform.context import Pass, PassContext
from microc.transform.fuse import MANDATORY


def merge_common_subexpressions(graph: Graph, context: PassContext) -> Graph:
    """The first of equal nodes stays. Nodes that make graph outputs or state updates stay too: their names are promised."""
    return _Merger(graph).run()


class _Merger:
    """``equal`` maps values to the first that is equal; ``instead`` only those that need not be computed again."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.promised = {*graph.outputs, *graph.updates.values()}
        self.readers = graph.consumers()
        self.equal: dict[str, str] = {}
        self.instead: dict[str, str] = {}

    def run(self) -> Graph:
        self.constants()
        seen: dict[object, Node] = {}
        nodes: list[Node] = []
        for node in self.graph.nodes:
            inputs = tuple(self.instead.get(name, name) for name in node.inputs)
            node = node if inputs == node.inputs else replace(node, inputs=inputs)
            first = seen.setdefault(self.key(node), node)
            pairs = dict(zip(node.outputs, first.outputs, strict=True))
            if first is not node:
                self.equal.update(pairs)
            if first is node or self.promised & pairs.keys() or self.is_accumulator(node):
                nodes.append(node)
            else:
                self.instead.update(pairs)
        return self.graph.with_nodes(nodes)

    def key(self, node: Node) -> object:
        """What equal nodes have in common; ``repr`` tells 0 from 0.0 and -0.0. Nodes with graphs of their own are never equal."""
        if any(map(_holds_graph, node.attrs.values())):
            return id(node)
        inputs = tuple(self.equal.get(name, name) for name in node.inputs)
        return node.op, inputs, repr(dict(node.attrs)), tuple(self.graph.types.get(name) for name in node.outputs)

    def is_accumulator(self, node: Node) -> bool:
        """Whether a kernel must keep the result to itself. Its requantisation can still be a common one."""
        readers: Iterable[Node] = self.readers.get(node.outputs[0], ())
        return not registry.get(node.op).elementwise and any(reader.op in MANDATORY for reader in readers)

    def constants(self) -> None:
        """The first of all constants of equal type and data."""
        first: dict[object, str] = {}
        for name, array in self.graph.consts.items():
            original = first.setdefault((self.graph.types[name], array.tobytes()), name)
            if original != name:
                self.equal[name] = original
                if name not in self.promised:
                    self.instead[name] = original


PASS = Pass("common_subexpressions", merge_common_subexpressions, 3)


def _holds_graph(attr: Attr) -> bool:
    return any(map(_holds_graph, attr)) if isinstance(attr, tuple) else isinstance(attr, Graph)
