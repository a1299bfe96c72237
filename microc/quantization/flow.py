"""How values flow through a float network, loops included: who makes and reads each, and which names are one value."""

from __future__ import annotations

from collections.abc import Iterator

from microc.graph.ir import Graph, Node
from microc.quantization.loops import flattened, handed
from microc.transform.qdq_moves import moves
from microc.transform.qdq_values import CHOICES


class Flow:
    """``graph``: all nodes in one; ``outside``: the values that are in no loop; ``links``: pairs of names of one value, inside of
    a loop and outside, or in the next turn."""

    def __init__(self, graph: Graph) -> None:
        self.outside = frozenset(graph.types)
        self.graph = flattened(graph)
        self.consumers, self.makers = self.graph.consumers(), self.graph.producer()
        self.links = [
            link
            for node in self.graph.nodes
            for link in handed(node)
            if all(map(self.is_activation, link)) and (link[1] in self.consumers or link[1] in self.graph.outputs)
        ]

    def is_float(self, value: str) -> bool:
        return self.graph.types[value].dtype == "float32"

    def is_activation(self, name: str) -> bool:
        return bool(name) and name not in self.graph.consts and self.is_float(name)

    def activations(self, node: Node) -> Iterator[str]:
        return filter(self.is_activation, node.inputs)

    def ordered(self) -> Iterator[str]:
        """All values that are no constants."""
        yield from self.graph.inputs
        yield from self.graph.state
        for node in self.graph.nodes:
            yield from node.outputs

    def only_user(self, value: str) -> Node | None:
        users = self.consumers.get(value, ())
        kept = value in self.graph.outputs or value in self.graph.updates.values()
        return users[0] if len(users) == 1 and not kept else None

    def keeps_scale(self, node: Node) -> bool:
        """Whether the result has its operand's scale: it is made of elements, or between them."""
        return (moves(node) or node.op in CHOICES or node.op == "resample") and self.is_float(node.outputs[0])
