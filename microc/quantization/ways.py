"""What each layer may be: its noise, its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from microc.frozen import frozen
from microc.graph.ir import Graph, Loc
from microc.knapsack import Option, Point, front, front_by_time
from microc.quantization.by_hand import BITS, FLOAT_BITS
from microc.quantization.cost import Price, priced
from microc.quantization.layer_noise import layer_changes
from microc.quantization.sensitivity import noise_of
from microc.quantization.task import Task
from microc.quantization.write import quantised
from microc.transform.qdq import LAYERS


@frozen
class Ways:
    """What each layer may be, and what all networks cost beside that: total costs less those of the layers at 8 bits.
    ``by_time``: the front is that of noise against time, not flash."""

    options: Sequence[Sequence[Option]]
    base: Mapping[str, Any]
    by_time: bool

    def front(self, flash: int | None = None, cycles: int | None = None) -> tuple[Point, ...]:
        """The front of choices within limits of the whole network."""
        found = front_by_time if self.by_time else front
        return found(self.options, _less(flash, self.base["flash"]), _less(cycles, self.base["estimated_cycles"]))


def _less(limit: int | None, amount: int) -> int | None:
    return None if limit is None else limit - amount


def ways_of(task: Task, widths: Sequence[int], by_time: bool) -> Ways:
    """Every layer in each of ``widths`` (8 among them), but those that are fixed."""
    network = task.network
    widths = tuple(dict.fromkeys((*widths, *network.fixed.values())))
    recipes = {bits: task.everywhere(bits) for bits in widths if bits != FLOAT_BITS}
    changes = layer_changes(network.graph, network.rows, recipes, task.weights, network.seed)
    noise = noise_of(network.graph, network.rows, changes, progress=network.progress)
    prices, base = _prices(task, widths)
    options = []
    for name in task.weights:
        allowed = (network.fixed[name],) if name in network.fixed else widths
        known = _rising({b: noise.get((name, b), 0.0) for b in allowed})
        options.append([Option(b, known[b], prices[b][name].flash, prices[b][name].cycles) for b in allowed])
    return Ways(options, base, by_time)


def _rising(noise: Mapping[int, float]) -> dict[int, float]:
    """Noise by bits where fewer bits make more of it, by a thousandth at least: that some seem to make less is chance, of few
    samples."""
    found, least = dict[int, float](), 0.0
    for bits in sorted(noise, reverse=True):
        found[bits] = max(noise[bits], least)
        least = 1.001 * found[bits]
    return found


def _prices(task: Task, widths: Sequence[int]) -> tuple[dict[int, dict[str, Price]], dict[str, Any]]:
    """Prices of layers by bits and weight, and the rest of the network's."""
    graph, places = _labelled(task.network.graph, task.weights)
    sizes = {str(place): task.network.graph.consts[name].size for name, place in places.items()}
    found: dict[int, dict[str, Price]] = {}
    base: dict[str, Any] = {}
    for bits in task.in_turn("prices", widths):
        total, parts = priced(quantised(graph, task.everywhere(bits)).graph, task.limits.board, sizes)
        found[bits] = {name: parts[str(place)] for name, place in places.items()}
        if bits == BITS[0]:
            base = {**total}
            base["flash"] -= sum(price.flash for price in found[bits].values())
            base["estimated_cycles"] -= sum(price.cycles for price in found[bits].values())
    return found, base


def _labelled(graph: Graph, weights: Sequence[str]) -> tuple[Graph, dict[str, Loc]]:
    """The graph whose layers say their weight as their place: those of a file may be the same for several."""
    places = {name: Loc(index=k, name="layer") for k, name in enumerate(weights)}
    nodes = [
        replace(node, loc=places[node.inputs[1]]) if node.op in LAYERS and node.inputs[1] in places else node
        for node in graph.nodes
    ]
    return graph.with_nodes(nodes), places
