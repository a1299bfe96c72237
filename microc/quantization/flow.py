"""How values flow through a float network, loops and state included: who makes and reads each, and which names are one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from microc.graph.ir import Graph, Node
from microc.quantization.loops import flattened, handed
from microc.transform.qdq_moves import moves
from microc.transform.qdq_values import CHOICES


class Flow:
    """``graph``: all nodes in one; ``links``: pairs of names of one value, inside of a loop and outside, in the next turn, or in
    the next run; ``recurrent``: the values that depend on what they were in the turn or in the run before."""

    def __init__(self, graph: Graph) -> None:
        self.graph = flattened(graph)
        self.consumers, self.makers = self.graph.consumers(), self.graph.producer()
        kept = [(value, state) for state, value in self.graph.updates.items()]
        self.links = [
            link
            for link in (*(link for node in self.graph.nodes for link in handed(node)), *kept)
            if all(map(self.is_activation, link)) and (link[1] in self.consumers or link[1] in self.graph.outputs)
        ]
        self.recurrent = (self.graph.types.keys() - graph.types.keys()) | self.fed_back()

    def fed_back(self) -> set[str]:
        """The values on a way from a state back to it, in one run or through other states in several."""
        forwards, backwards = dict[str, list[str]](), dict[str, list[str]]()
        steps = [(name, result) for node in self.graph.nodes for name in node.inputs for result in node.outputs]
        for name, result in (*steps, *((value, state) for state, value in self.graph.updates.items())):
            forwards.setdefault(name, []).append(result)
            backwards.setdefault(result, []).append(name)
        return {value for state in self.graph.state for value in reached(state, forwards) & reached(state, backwards)}

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


def reached(start: str, steps: Mapping[str, Sequence[str]]) -> set[str]:
    """All that steps lead to from a value, itself where they lead back."""
    found, waiting = set[str](), [start]
    while waiting:
        for name in steps.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found
