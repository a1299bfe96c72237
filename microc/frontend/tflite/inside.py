"""A subgraph inside of control flow: the variables that it touches come in behind its inputs, and go out behind its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from microc.frozen import frozen
from microc.graph.ir import Graph, Node, TensorType, new_value


@frozen
class Inside:
    """A subgraph as a graph whose last inputs are variables that it finds (``given``), and whose last outputs are those that it
    assigns. ``handed``: the outputs of the subgraph that stand for a variable, by position; they are none of the graph."""

    graph: Graph
    given: tuple[str, ...] = ()
    assigned: tuple[str, ...] = ()
    handed: Mapping[int, str] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, TensorType]:
        """The types of the variables that it touches."""
        graph = self.graph
        results = zip(self.assigned, graph.outputs[len(graph.outputs) - len(self.assigned) :], strict=True)
        inputs = zip(self.given, graph.inputs[len(graph.inputs) - len(self.given) :], strict=True)
        return {key: graph.types[name] for key, name in (*results, *inputs)}

    def aligned(self, given: Mapping[str, TensorType], assigned: Sequence[str]) -> Graph:
        """The graph with these variables as last inputs and outputs; what it does not assign goes out as it came in."""
        graph, types = self.graph, dict(self.graph.types)
        inputs, outputs = len(graph.inputs) - len(self.given), len(graph.outputs) - len(self.assigned)
        found = dict(zip(self.given, graph.inputs[inputs:], strict=True))
        made = dict(zip(self.assigned, graph.outputs[outputs:], strict=True))
        nodes = list(graph.nodes)
        for key, kind in given.items():
            if key not in found:
                found[key] = new_value(types, "variable", kind)
        for key in assigned:
            if key not in made:
                made[key] = new_value(types, "kept", given[key])
                nodes.append(Node("reshape", (found[key],), (made[key],), {"shape": given[key].shape}))
        return replace(
            graph,
            inputs=(*graph.inputs[:inputs], *(found[key] for key in given)),
            outputs=(*graph.outputs[:outputs], *(made[key] for key in assigned)),
            nodes=tuple(nodes),
            types=types,
        )
