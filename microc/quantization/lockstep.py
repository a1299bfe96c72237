"""The float network and a quantised one in numpy, on all samples side by side: a layer's weights may be chosen by what the layers
before it, as they are stored, hand to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from microc.driver.compile.budget import count_macs
from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.ops.meaning import meaning
from microc.quantization.layers import Layer
from microc.quantization.loops import body_of, exposed, flattened
from microc.quantization.observe import Row, state_of
from microc.quantization.write import Simulated

_ROWS = 1 << 13
"""Results of a layer that are looked at, over all samples."""
_WORK, _NODE, _LEAST = 1 << 29, 1 << 15, 16
"""Multiply-accumulates of a network that are spent on samples, which take as long as a node takes besides, and so many samples at
least: a second or two."""
_ADDED = frozenset(("quantize", "dequantize"))
Fit = Callable[[Layer, "Moments"], None]


@dataclass(slots=True)
class Moments:
    """Of a layer's factors, group by group: means (G, K) of the ``real`` and the ``stored`` ones, second moments (G, K, K) of the
    stored ones, ``square``, and of real by stored ones, ``cross``. ``samples`` and ``rows``: how many they are of."""

    real: Array
    stored: Array
    square: Array
    cross: Array
    samples: int = 0
    rows: int = 0

    @classmethod
    def none(cls, layer: Layer) -> Moments:
        means = layer.groups, layer.depth
        squares = *means, layer.depth
        return cls(np.zeros(means), np.zeros(means), np.zeros(squares), np.zeros(squares))

    def add(self, real: Array, stored: Array) -> None:
        """Rows (G, rows, K) of a sample."""
        share = 1 / real.shape[1]
        self.real += share * real.sum(axis=1)
        self.stored += share * stored.sum(axis=1)
        self.square += share * (stored.swapaxes(1, 2) @ stored)
        self.cross += share * (real.swapaxes(1, 2) @ stored)
        self.samples += 1
        self.rows += real.shape[1]

    @property
    def independent(self) -> float:
        """How many independent rows these may count for: those of a sample are alike, but not the same."""
        return float(np.sqrt(self.samples * self.rows))

    def centred(self) -> tuple[Array, Array, Array, Array]:
        """Means, covariances."""
        real, stored = self.real / self.samples, self.stored / self.samples
        square = self.square / self.samples - stored[:, :, None] * stored[:, None]
        cross = self.cross / self.samples - real[:, :, None] * stored[:, None]
        return real, stored, square, cross


class _Side:
    """A network that has come to a node. Of each sample there are the values that later nodes read."""

    def __init__(self, graph: Graph, samples: Sequence[Row]) -> None:
        self.samples = samples
        self.values: list[dict[str, Array]] = [dict(zip(graph.inputs, row, strict=True)) for row in samples]
        self.position = 0
        self.become(graph)

    def become(self, graph: Graph) -> None:
        """The same network with other constants."""
        self.graph, self.consts, self.nodes = graph, dict(graph.consts), list[Node]()
        self.apply = meaning(graph)
        for node in graph.nodes:
            if all(name in self.consts for name in node.inputs if name) and node.op in _ADDED:
                self._run(node, self.consts)
            else:
                self.nodes.append(node)
        self.order = [k for k, node in enumerate(self.nodes) if node.op not in _ADDED]

    def advance(self, place: int) -> None:
        """To the node of a place, those that quantise not counted."""
        end = self.order[place]
        needed = {name for node in self.nodes[end:] for name in node.inputs}
        for values in self.values:
            for node in self.nodes[self.position : end]:
                self._run(node, values)
            for name in values.keys() - needed:
                del values[name]
        self.position = end

    def peek(self, place: int) -> Iterator[Mapping[str, Array]]:
        """The values of each sample there. State lives from sample to sample of a sequence."""
        end = self.order[place] if place < len(self.order) else len(self.nodes)
        state = self.graph.state
        for row, values in zip(self.samples, self.values, strict=True):
            state = state_of(self.graph, row, state)
            found = {**self.consts, **state, **values}
            for node in self.nodes[self.position : end]:
                self._run(node, found)
            state = {name: found[value] for name, value in self.graph.updates.items()}
            yield found

    def _run(self, node: Node, values: dict[str, Array]) -> None:
        arrays = [values[name] if name in values else self.consts[name] for name in node.inputs if name]
        values.update((name, array) for name, array in zip(node.outputs, self.apply(node, arrays), strict=True) if name)


def in_turn(
    graph: Graph,
    found: Sequence[Layer],
    samples: Sequence[Row],
    network: Callable[[], Simulated],
    fit: Fit,
    seed: int,
) -> None:
    """``fit`` of every layer, from the first one on, with the moments of what it reads. ``network``: the quantised one as it is
    by then."""
    samples = samples[: max(_LEAST, _WORK // (count_macs(graph) + _NODE * _steps(graph)))]
    reals = _Side(exposed(graph, [layer.data for layer in found]), samples)
    at = network()
    inner = [at.data[layer.name] for layer in found]
    stored = _Side(exposed(at.graph, inner), samples)
    random, most = np.random.default_rng(seed), max(1, _ROWS // len(samples))
    for begin, end, own in _stages(graph, found):
        if begin:
            reals.advance(begin)
            stored.advance(begin)
        moments = [Moments.none(layer) for layer in own]
        for a, b in zip(reals.peek(end), stored.peek(end), strict=True):
            for layer, of in zip(own, moments, strict=True):
                real, read = a[layer.data], b[at.data[layer.name]]
                reads = layer.reads(real, most, random)
                of.add(reads.of(real), reads.of(read))
        for layer, of in zip(own, moments, strict=True):
            fit(layer, of)
        stored.become(exposed(network().graph, inner))


def _steps(graph: Graph) -> int:
    """How many nodes are run for a sample."""
    bodies = ((node, body_of(node)) for node in graph.nodes)
    return sum(1 if body is None else node.attr("count") * _steps(body) for node, body in bodies)


def _stages(graph: Graph, found: Sequence[Layer]) -> Iterator[tuple[int, int, list[Layer]]]:
    """Layers that are fitted together, and the places of nodes from which to which what they read is computed for that alone:
    nothing for a layer, the loop for those in its body, the whole network where a sample goes on from the one before."""
    if graph.state:
        yield 0, len(graph.nodes), list(found)
        return
    for place, node in enumerate(graph.nodes):
        body = body_of(node)
        inside = {id(node)} if body is None else set(map(id, flattened(body).nodes))
        own = [layer for layer in found if id(layer.node) in inside]
        if own:
            yield place, place if body is None else place + 1, own
