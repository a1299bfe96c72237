"""The layers of a float network as reports tell of them: an operator of the model, and all that becomes one with it.

Readers write several operators for one of the model's, which all say its place. What only moves elements belongs to whatever
makes them, and a function of each element to the layer whose result is nothing but its operand.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

from microc.graph.ir import Graph, Loc, Node
from microc.ops import registry
from microc.quantization.loops import flattened
from microc.transform.qdq import LAYERS


@dataclass(slots=True)
class Row:
    """``nodes``: its operators, none of an input; ``values``: what they make, or the input."""

    nodes: list[Node] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    @property
    def computing(self) -> list[Node]:
        """The operators that do not only move elements."""
        return [node for node in self.nodes if not registry.get(node.op).moves]

    @property
    def made(self) -> list[str]:
        """What these make, each once: what is moved is the same numbers. Of an input, it."""
        return [name for node in self.computing for name in node.outputs if name] or self.values[:1]

    @property
    def weights(self) -> list[str]:
        """What layers multiply by."""
        return [node.inputs[1] for node in self.nodes if node.op in LAYERS]

    @property
    def name(self) -> str:
        """What the model calls it."""
        nodes = self.computing
        if not nodes:
            return self.values[0]
        known = next((node for node in nodes if node.op in LAYERS), nodes[0])
        return known.loc.name or known.outputs[0]

    @property
    def ops(self) -> str:
        """What it does."""
        return "+".join(dict.fromkeys(node.op for node in self.computing)) or "input"


def rows(graph: Graph, stored: Container[str]) -> list[Row]:
    """The layers in order, inputs and state first. ``stored``: the values that become integers."""
    flat = flattened(graph)
    owner = {name: Row([], [name]) for name in (*graph.inputs, *graph.state)}
    found: dict[str, Row] = {str(graph.place(name)): row for name, row in owner.items()}
    for number, node in enumerate(flat.nodes):
        place = str(node.loc) if node.loc != Loc() else f"operator {number}"
        row = found.setdefault(place, Row())
        row.nodes.append(node)
        row.values += filter(None, node.outputs)
        owner |= dict.fromkeys(filter(None, node.outputs), row)
    for place, row in list(found.items()):
        before = _joined(row, owner, stored)
        if before is not None and before is not row:
            before.nodes += row.nodes
            before.values += row.values
            owner |= dict.fromkeys(row.values, before)
            del found[place]
    return list(found.values())


def _joined(row: Row, owner: dict[str, Row], stored: Container[str]) -> Row | None:
    """The layer before, if this one is a part of it."""
    if not row.nodes:
        return None
    if not row.computing:
        return owner.get(row.nodes[0].inputs[0])
    if not all(registry.get(node.op).elementwise for node in row.computing):
        return None
    made = (name for name in row.nodes[0].inputs if name in owner and name not in stored and owner[name].computing)
    return next((owner[name] for name in made), None)


def placed(graph: Graph, layers: list[Row]) -> Graph:
    """The graph whose operators say the number of their layer as their place: a model's own places may be one for several."""
    places = {value: place_of(number) for number, row in enumerate(layers) for value in row.values if row.nodes}
    nodes = [replace(node, loc=places.get(node.outputs[0], node.loc)) for node in graph.nodes]
    return graph.with_nodes(nodes)


def place_of(number: int) -> Loc:
    """The place that :func:`placed` gives the operators of a layer."""
    return Loc(index=number, name="layer")
