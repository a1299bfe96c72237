"""The units that channels are stored in: which are free to choose, which must be alike, and a graph in other units.

A channel is an index along the last axis. Channels are of one unit where a positively homogeneous operator ties them;
weights of a layer, and constant factors, take one unit to another. Wherever anything else looks at a channel its unit is
fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Names, Node
from microc.transform.channels import channels, is_mixing, links

HOMOGENEOUS = frozenset(
    (
        *("relu", "leaky_relu", "abs", "neg", "max_pool2d", "avg_pool2d", "mean", "max", "min", "sum"),
        *("reshape", "transpose", "pad", "slice", "concat", "add", "sub"),
    )
)
"""f(s x) = s f(x) for s > 0, channel by channel."""
_TERMS = frozenset(("add", "sub"))
_LINEAR = ("", "relu")
"""Activations in the same operator that do not see a unit."""


class Units:
    """The units of a float graph, numbered from 0; ``free`` says which may be chosen."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._starts: dict[str, int] = {}
        total = 0
        for name in graph.types:
            if name not in graph.consts:
                self._starts[name], total = total, total + channels(graph, name)
        self._parents = list(range(total))
        fixed = np.zeros(total, bool)
        for name in (*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()):
            if name in self._starts:
                fixed[self._places(name)] = True
        for node in graph.nodes:
            if not self._understood(node):
                for name in (*node.inputs, *node.outputs):
                    if name in self._starts:
                        fixed[self._places(name)] = True
        roots = np.array([self._root(place) for place in range(total)], np.int64)
        _, self._units = np.unique(roots, return_inverse=True)
        self.count = int(self._units.max(initial=-1)) + 1
        self.free = np.ones(self.count, bool)
        self.free[self._units[fixed]] = False

    def of(self, value: str) -> Array:
        """The unit of each channel of a value."""
        return np.asarray(self._units[self._places(value)])

    def blocks(self, values: Sequence[str]) -> Iterator[list[str]]:
        """The values, those together that have units in common."""
        owner: dict[int, int] = {}
        found: list[list[str]] = []
        for value in values:
            units = set(self.of(value).tolist())
            known = sorted({owner[unit] for unit in units if unit in owner})
            block = known[0] if known else len(found)
            if not known:
                found.append([])
            for other in known[1:]:
                found[block] += found[other]
                found[other] = []
                owner |= {unit: block for unit, at in owner.items() if at == other}
            found[block].append(value)
            owner |= dict.fromkeys(units, block)
        yield from filter(None, found)

    def is_layer(self, node: Node) -> bool:
        """Whether constant weights and bias make one unit of another: dense layers, convolutions of one group or depthwise
        ones."""
        if node.attrs.get("activation", "") not in _LINEAR or node.attrs.get("pad_value", 0):
            return False
        return is_mixing(self.graph, node) or (node.op == "conv2d" and links(self.graph, node) is not None)

    def applied(self, factors: Array) -> Graph:
        """The graph whose channels are divided by the factors of their units."""
        names, types, consts = Names(self.graph.types), dict(self.graph.types), dict(self.graph.consts)

        def stored(name: str, data: Array) -> str:
            fresh = names.fresh(name)
            consts[fresh] = data.astype(np.float32)
            types[fresh] = replace(types[name], shape=data.shape)
            return fresh

        def scaled(node: Node) -> Node:
            changed = self._scaled(node, factors)
            inputs = (stored(name, changed[name]) if name in changed else name for name in node.inputs)
            return replace(node, inputs=tuple(inputs))

        return self.graph.with_nodes(list(map(scaled, self.graph.nodes)), types=types, consts=consts)

    def _scaled(self, node: Node, factors: Array) -> dict[str, Array]:
        """The constants of a node in other units, those that change."""
        known = [name for name in node.inputs if name in self.graph.consts]
        if not known or len(node.outputs) != 1 or not (self.is_layer(node) or node.op in _TERMS or self._factor(node)):
            return {}
        made = factors[self.of(node.outputs[0])]
        data = next((factors[self.of(name)] for name in node.inputs if name in self._starts), made)
        if (made == 1).all() and (data == 1).all():
            return {}
        consts = {name: self.graph.consts[name].astype(np.float64) for name in known}
        if node.op in _TERMS:
            return {name: array / made for name, array in consts.items()}
        if not self.is_layer(node):
            return {name: array * data / made for name, array in consts.items()}
        weight = consts[node.inputs[1]]
        if weight.shape[-1] == len(data):
            read = data
        else:
            read = data[np.arange(len(made)) // (len(made) // len(data))].reshape(-1, 1, 1, 1)
        outputs = made.reshape(-1, *(1,) * (weight.ndim - 1))
        return {
            name: array * read / outputs if name == node.inputs[1] else array / made for name, array in consts.items()
        }

    def _understood(self, node: Node) -> bool:
        """Tie the channels of a node; False where it is none that units can pass."""
        if len(node.outputs) != 1 or self.graph.types[node.outputs[0]].dtype != "float32":
            return False
        if self.is_layer(node) or self._factor(node):
            return True
        homogeneous = node.op in HOMOGENEOUS and node.attrs.get("activation", "") in _LINEAR
        if not homogeneous or (node.op == "pad" and node.attr("value")):
            return False
        tied = links(self.graph, node)
        computed = {k for k, name in enumerate(node.inputs) if name in self._starts}
        constant = any(name in self.graph.consts for name in node.inputs) and node.op not in _TERMS
        if tied is None or constant or {link.operand for link in tied} != computed:
            return False
        for link in tied:
            here, there = self._starts[node.inputs[link.operand]], self._starts[node.outputs[0]]
            for source, target in zip(link.source.tolist(), link.target.tolist(), strict=True):
                self._join(here + source, there + target)
        return True

    def _factor(self, node: Node) -> bool:
        """Whether a node multiplies each channel by a constant of its own."""
        if node.op != "mul" or node.attrs.get("activation", "") not in _LINEAR:
            return False
        count = channels(self.graph, node.outputs[0])
        known = [name for name in node.inputs if name in self.graph.consts]
        return len(known) == 1 and all(channels(self.graph, name) == count for name in node.inputs)

    def _places(self, value: str) -> slice:
        start = self._starts[value]
        return slice(start, start + channels(self.graph, value))

    def _root(self, place: int) -> int:
        while self._parents[place] != place:
            self._parents[place] = place = self._parents[self._parents[place]]
        return place

    def _join(self, a: int, b: int) -> None:
        self._parents[self._root(b)] = self._root(a)
